"""Statistics of tables: what a row adds, what follows from the sums, and what somebody is asked to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from securefda.aggregator.site import TargetRows, unlabelled_notes
from securefda.cli.statistics import _lines
from securefda.errors import ConfigError, DataError
from securefda.local.shared_statistics import SharedStatistics, federation_of_statistics, with_scaling
from securefda.operations.records import SeenLine
from securefda.rules import Moments
from securefda.rules.analytic import bounded_rows
from securefda.site.config import FederationConfig
from securefda.site.policy import check_moments, default_policy
from securefda.tasks import Samples, TaskSettings, Unlabelled, load_task
from securefda.tasks.table_statistics import (
    CONSTANTS,
    FACTORY,
    LONGEST,
    CategoryStatistics,
    NumberStatistics,
    TableStatistics,
)
from securefda.tasks.tabular import FACTORY as TABULAR

COLUMNS: dict[str, Any] = {
    "age": {"type": "number", "center": 50, "scale": 10},
    "sex": {"type": "category", "values": ["f", "m"]},
}
OPTIONS: dict[str, Any] = {
    "label": {"column": "ill", "classes": ["no", "yes"]},
    "columns": COLUMNS,
    "source-test-share": 0.01,
    "test-share": 0.01,
}
SITES = ("clinic", "east", "north")


def table(folder: Path, site: str, rows: list[tuple[object, str, str]]) -> None:
    lines = [f"{number},{age},{sex},{ill}" for number, (age, sex, ill) in enumerate(rows)]
    (folder / f"{site}.csv").write_text("\n".join(["row,age,sex,ill", *lines, ""]))


def patients(count: int, seed: int, mean: float = 55.0) -> list[tuple[object, str, str]]:
    drawn = np.random.default_rng(seed)
    ages = drawn.normal(mean, 8, count).round(1)
    return [(age, "fm"[int(drawn.random() < 0.4)], ("no", "yes")[int(drawn.random() < 0.3)]) for age in ages]


def statistics(folder: Path, **options: Any) -> TableStatistics:
    settings = TaskSettings(SITES[0], SITES[1:], data_dir=folder, options=OPTIONS | options, labelled_target=False)
    task = load_task(FACTORY, settings)
    assert isinstance(task, TableStatistics)
    return task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, (site, count) in enumerate(zip(SITES, (60, 300, 200), strict=True)):
        table(tmp_path, site, patients(count, seed))
    return tmp_path


def kept_ages(task: TableStatistics, site: str) -> np.ndarray[Any, Any]:
    return np.array([float(cell) for cell in task._part(site, held_out=False).cells["age"]])


def test_statistics_of_a_site_are_those_of_its_rows(folder: Path) -> None:
    task = statistics(folder)
    age, sex, ill = task.of_site("east")
    ages = kept_ages(task, "east")
    assert isinstance(age, NumberStatistics)
    assert isinstance(sex, CategoryStatistics)
    assert (age.mean, age.deviation) == pytest.approx((ages.mean(), ages.std()))
    assert age.median == pytest.approx(np.median(ages), abs=1.0)
    assert age.spread == pytest.approx(ages.std(), rel=0.15)
    assert sum(age.bins) == pytest.approx(1)
    counted = np.mean([cell == "f" for cell in task._part("east", held_out=False).cells["sex"]])
    assert sex.shares["f"] == pytest.approx(counted)
    assert (age.missing, age.far, age.noise, sex.unlisted, ill.missing) == (0, 0, 0, 0, 0)


def test_one_sum_over_sources_gives_the_statistics_of_all_their_rows(folder: Path) -> None:
    task = statistics(folder)
    sums = []
    for site in SITES[1:]:
        rows = task.train_data(site)
        assert isinstance(rows, Samples)
        counted = check_moments(default_policy(), rows.features.numpy(), rows.labels.double().numpy(), sums_only=True)
        sums.append(Moments.of(*counted, bound=LONGEST))
    together = sum(one.cross[:, -1] for one in sums) / sum(one.rows for one in sums)
    age, sex, _ = task.of_constants(torch.from_numpy(together))
    ages = np.concatenate([kept_ages(task, site) for site in SITES[1:]])
    assert isinstance(age, NumberStatistics)
    assert isinstance(sex, CategoryStatistics)
    assert age.mean == pytest.approx(ages.mean(), abs=0.1)
    assert age.deviation == pytest.approx(ages.std(), rel=0.02)
    assert sum(sex.shares.values()) == pytest.approx(1)


def test_the_targets_rows_are_not_in_the_sum_and_have_no_labels(folder: Path) -> None:
    rows = statistics(folder).train_data("clinic")
    assert isinstance(rows, Unlabelled)
    assert not rows.features.any()


def test_nobody_is_told_that_a_sum_of_statistics_has_no_accuracy(folder: Path) -> None:
    task = statistics(folder)
    rows = task.train_data("clinic")

    assert list(unlabelled_notes(task, TargetRows(rows, rows, None, None))) == []


def test_no_row_is_longer_than_the_bound_so_that_each_counts_fully(tmp_path: Path) -> None:
    for site in SITES:
        table(tmp_path, site, [(1e30, "f", "no"), (-1e30, "m", "yes"), (50, "f", "no"), (90, "m", "no")] * 5)
    rows = statistics(tmp_path).train_data("east")
    assert isinstance(rows, Samples)
    _, _, scales = bounded_rows(rows.features, rows.labels, bound=LONGEST)
    assert (scales == 1).all()


def test_a_value_of_few_rows_does_not_leave_its_site(folder: Path) -> None:
    common = [(55.0, "f", "no"), (54.0, "m", "yes")] * 40
    table(folder, "east", [*common, (49999, "x", "no"), (55.0, "", "no")])
    task = statistics(folder)
    rows = task.train_data("east")
    assert isinstance(rows, Samples)
    assert task.of_site("east")[0].far > 0  # type: ignore[union-attr]
    permitted = check_moments(default_policy(), rows.features.numpy(), rows.labels.double().numpy(), sums_only=True)[1]
    age, sex, _ = task.of_constants(torch.from_numpy(permitted.mean(axis=0)))
    assert isinstance(age, NumberStatistics)
    assert isinstance(sex, CategoryStatistics)
    assert (age.far, sex.unlisted, sex.missing) == (0, 0, 0)


def test_noise_in_the_sums_is_told_from_what_rows_say(folder: Path) -> None:
    task = statistics(folder)
    rows = task.train_data("east")
    assert isinstance(rows, Samples)
    clear = rows.labels.double().numpy().sum(axis=0)
    deviation = 4 * task._unit  # of four rows
    noisy = clear + np.random.default_rng(0).normal(0, deviation, len(clear))
    found = task.of_constants(torch.from_numpy(noisy / len(rows)))
    age = found[0]
    assert isinstance(age, NumberStatistics)
    assert 0.3 < age.noise * len(rows) / 4 < 3
    assert age.mean == pytest.approx(kept_ages(task, "east").mean(), abs=2)
    assert not list(task.cautions(found, task.of_site("clinic"), "clinic"))


@pytest.mark.parametrize(
    ("clinic", "line"),
    [
        (patients(60, 0, mean=85), "age: the median at clinic is"),
        (patients(60, 0, mean=85), "age: the public center and scale do not suit the rows at clinic"),
        ([*patients(60, 0), *[(999, "f", "no")] * 10], "of the values at clinic lie more than 10 scales from the cent"),
        (
            [(float(str(age)) * 12, sex, ill) for age, sex, ill in patients(60, 0)],
            "clinic lie more than 10 scales from",
        ),
        ([*patients(60, 0), *[("", "f", "no")] * 10], 'of the rows at clinic have no value: set missing = "fill"'),
        ([*patients(60, 0), *[(50, "d", "no")] * 10], "of the rows at clinic have a value that is not listed"),
        ([(age, sex, "no") for age, sex, _ in patients(60, 0)], "ill: fewer than 5% of the rows at clinic are yes"),
    ],
    ids=[
        "another domain",
        "another scaling",
        "a number for missing",
        "another unit",
        "missing",
        "unlisted",
        "rare class",
    ],
)
def test_what_does_not_fit_is_named(folder: Path, clinic: list[tuple[object, str, str]], line: str) -> None:
    task = statistics(folder)
    assert not list(task.cautions(task.of_site("east"), task.of_site("clinic"), "clinic"))
    table(folder, "clinic", clinic)
    task = statistics(folder)
    assert line in "\n".join(task.cautions(task.of_site("east"), task.of_site("clinic"), "clinic"))


def test_a_time_and_its_event_are_measured(folder: Path) -> None:
    (folder / "east.csv").write_text("age,sex,days,died\n" + "50,f,100,0\n60,m,300,1\n" * 20)
    label = {"column": "days", "event": "died", "horizon": 400, "survival": 0.8}
    *_, days, died = statistics(folder, label=label).of_site("east")
    assert isinstance(days, NumberStatistics)
    assert isinstance(died, CategoryStatistics)
    assert days.mean == pytest.approx(200, abs=20)
    assert died.shares["1"] == pytest.approx(0.5, abs=0.1)


def test_a_target_without_the_labels_column_has_its_statistics(folder: Path) -> None:
    (folder / "clinic.csv").write_text("age,sex\n" + "50,f\n60,m\n" * 20)
    *_, ill = statistics(folder).of_site("clinic")
    assert isinstance(ill, CategoryStatistics)
    assert ill.missing == 1


def test_wrong_rows_and_uses_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="holds statistics, and no model that predicts"):
        statistics(folder).inputs_from(folder / "east.csv")
    table(folder, "east", [("old", "f", "no"), (50, "m", "yes")])
    with pytest.raises(DataError, match="column age: 1 of 2 rows hold no number"):
        statistics(folder).added("east")


def test_a_federations_file_gets_the_scaling_that_suits_and_stays_as_it_is_otherwise(folder: Path) -> None:
    found = statistics(folder).of_site("east")
    line = 'age = { type = "number", center = 50, scale = 1e1, missing = "fill" }  # in years\n'
    text = f'[task.options.columns]\n{line}sex = {{ type = "category" }}\n'
    assert with_scaling(text, found) == text.replace("center = 50, scale = 1e1", "center = 55, scale = 7.5")
    with pytest.raises(ConfigError, match="age has no center and scale in one line"):
        with_scaling("[task.options.columns.age]\ncenter = 50\nscale = 10\n", found)


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ([("sum", ["east", "west"])], "5 rows of 2 sources in one sum"),
        ([("individual", ["east"]), ("individual", ["west"])], "10 rows of 2 sources, each of which the target saw"),
        ([("sum", ["a", "b", "c"]), ("individual", ["d"])], "10 rows of 4 sources, in parts of 3, 1"),
        ([], "the rows of the sources together"),
    ],
)
def test_the_rows_are_those_of_the_sources_that_the_target_opened(
    folder: Path, parts: list[tuple[str, list[str]]], line: str
) -> None:
    task = statistics(folder)
    seen: list[SeenLine] = [
        {"level": level, "members": members, "rows": 5, "loss": None, "accuracy": None} for level, members in parts
    ]
    of_rows = {CONSTANTS: torch.from_numpy(task.added("east").mean(axis=0) * task._unit)}
    assert next(_lines(SharedStatistics.of(folder, task, "clinic", of_rows, seen))).startswith(line)


@pytest.mark.parametrize("rule", ["fedrep", "fedda_auto"])
def test_neither_personal_layers_nor_noise_at_the_target_keep_statistics_from_being_added(rule: str) -> None:
    layers, noise = (2, 0.0) if rule == "fedrep" else (0, 1.0)
    given = FederationConfig.model_validate(
        {
            "federation": {"name": "f", "target": SITES[0], "sources": [*SITES[1:], "south"]},
            "task": {"factory": TABULAR, "options": OPTIONS},
            "strategy": {"rule": rule, "rounds": 5},
            "training": {
                "target": {"personal-layers": layers, "dp": {"noise-multiplier": noise}},
                "source": {"personal-layers": layers, "dp": {"noise-multiplier": 2 * noise}},
            },
        }
    )
    sides = federation_of_statistics(given).training
    assert (sides.target.with_noise, sides.source.dp.noise_multiplier) == (False, 2 * noise)
    assert (sides.target.personal_layers, sides.source.personal_layers) == (0, 0)


def test_a_model_of_another_task_or_width_holds_no_statistics(folder: Path) -> None:
    task = statistics(folder)
    of_rows = {CONSTANTS: torch.from_numpy(task.added("east").mean(axis=0) * task._unit)}
    assert SharedStatistics.of(folder, task, "clinic", of_rows).own == task.of_site("clinic")
    with pytest.raises(ConfigError, match=f"holds 3 sums, and the task's options ask for {task.width}"):
        SharedStatistics.of(folder, task, "clinic", {CONSTANTS: torch.zeros(3)})
    with pytest.raises(ConfigError, match="holds no statistics"):
        SharedStatistics.of(folder, task, "clinic", {"classifier.bias": torch.zeros(3)})
    other = load_task(TABULAR, TaskSettings(SITES[0], SITES[1:], data_dir=folder, options=OPTIONS))
    with pytest.raises(ConfigError, match="holds no statistics"):
        SharedStatistics.of(folder, other, "clinic", of_rows)
