"""The split of a site's rows: by each row's content, or in strata at a target without noise."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from securefda.errors import ConfigError
from securefda.tasks import TaskSettings, load_task
from securefda.tasks.held_out import HeldOut
from securefda.tasks.tabular import FACTORY

ROWS = [str(number).encode() for number in range(100)]


def held_out(labels: list[str], *, seed: int = 0, stratify: bool = True, rows: list[bytes] = ROWS) -> Counter[str]:
    sides = HeldOut(0.2, seed, stratify=stratify).sides(rows[: len(labels)], labels)
    return Counter(label for label, side in zip(labels, sides, strict=True) if side)


@pytest.mark.parametrize("seed", range(20))
def test_each_class_has_its_share_with_every_seed(seed: int) -> None:
    """The public report FederatedScope 153: a class of few rows had none in the test."""
    labels = ["often"] * 80 + ["seldom"] * 15 + ["rare"] * 3 + ["pair"] * 2
    assert held_out(labels, seed=seed) == {"often": 16, "seldom": 3, "rare": 1, "pair": 1}


def test_without_strata_a_rare_class_is_held_out_by_chance() -> None:
    labels = ["often"] * 95 + ["rare"] * 5
    counts = {held_out(labels, seed=seed, stratify=False)["rare"] for seed in range(20)}
    assert {0, 2} <= counts


def test_another_seed_holds_out_other_rows_and_the_order_does_not_matter() -> None:
    labels = ["a", "b"] * 50
    first, again, other = (HeldOut(0.2, seed, stratify=True).sides(ROWS, labels) for seed in (0, 0, 1))
    assert first == again != other
    assert HeldOut(0.2, 0, stratify=True).sides(ROWS[::-1], labels[::-1]) == first[::-1]


def test_equal_rows_and_groups_stay_together() -> None:
    groups = [str(number // 4).encode() for number in range(100)]
    labels = ["ill" if number % 4 == 0 else "well" for number in range(100)]
    sides = HeldOut(0.2, 0, stratify=True).sides(groups, labels)
    assert sum(sides) == 20
    assert all(len({*sides[first : first + 4]}) == 1 for first in range(0, 100, 4))


def test_one_row_more_can_move_another_one_so_noise_is_refused() -> None:
    """What strata cost: some new row of a class takes a place that an old one had."""
    labels = ["a"] * 50
    split = HeldOut(0.2, 0, stratify=True)
    before = split.sides(ROWS[:50], labels)
    after = [split.sides([*ROWS[:50], row], [*labels, "a"])[:50] for row in ROWS[50:]]
    moved = {sum(old != new for old, new in zip(before, sides, strict=True)) for sides in after}
    assert moved == {0, 1}


def settings(**options: Any) -> TaskSettings:
    label = {"column": "ill", "classes": ["0", "1"]}
    columns = {"age": {"type": "number", "center": 50, "scale": 10}}
    return TaskSettings("clinic", ("north",), options={"label": label, "columns": columns, **options})


def test_strata_are_of_the_target_alone() -> None:
    task = load_task(FACTORY, settings(stratify=True))
    task.require_own_sides("north")
    with pytest.raises(ConfigError, match=r"^task.options.stratify: with it one row more at clinic can move another"):
        task.require_own_sides("clinic")
    load_task(FACTORY, settings()).require_own_sides("clinic")


def test_a_target_of_few_rows_has_each_class_on_both_sides(tmp_path: Path) -> None:
    (tmp_path / "clinic.csv").write_text("age,ill\n50,0\n51,0\n52,1\n53,1\n54,0\n")
    given = settings(stratify=True, **{"test-share": 0.4})
    task = load_task(FACTORY, TaskSettings("clinic", ("north",), data_dir=tmp_path, options=given.options))
    for rows in (task.train_data("clinic"), task.test_data("clinic")):
        assert set(rows.labels.tolist()) == {0, 1}  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [1, "yes"])
def test_stratify_is_true_or_false(value: object) -> None:
    with pytest.raises(ConfigError, match=r"task\.options\.stratify: must be true or false"):
        load_task(FACTORY, settings(stratify=value))
