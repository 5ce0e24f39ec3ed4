"""Rows that stand in for a site's: of its shape, with its kind of labels, hard as asked, and no row dealt out twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from securefda.errors import ConfigError, DataError
from securefda.privacy.private_training import require_separate_rows
from securefda.tasks import Samples, Task, TaskSettings, load_task
from securefda.tasks.drawn_rows import digit_rows
from securefda.tasks.stand_in import FACTORY, StandIn
from securefda.training import NoiseSettings, TrainingSettings, build_model

TABULAR = "securefda.tasks.tabular:Tabular"
IMAGES = "securefda.tasks.image_folder:ImageFolder"
COLUMNS: dict[str, Any] = {
    "age": {"type": "number", "center": 50, "scale": 10},
    "kind": {"type": "category", "values": ["a", "b", "c"]},
    "lab": {"type": "number", "center": 0, "scale": 1, "missing": "fill"},
}
CLASSES = {"label": {"column": "ill", "classes": ["no", "yes"]}, "columns": COLUMNS}
NUMBER = {"label": {"column": "days", "center": 5, "scale": 4, "tolerance": 2}, "columns": COLUMNS}
TIME = {"label": {"column": "days", "event": "died", "horizon": 10, "survival": 0.8}, "columns": COLUMNS}
WIDE = {
    "label": {"column": "ill", "classes": ["no", "yes", "both"]},
    "columns": {f"x{number}": {"type": "number", "center": 0, "scale": 1} for number in range(6)},
}
NOISY = TrainingSettings(batch_size=8, dp=NoiseSettings(1.0))


def stand_in(factory: str = TABULAR, own: Mapping[str, Any] = CLASSES, *, seed: int = 0, **options: Any) -> StandIn:
    """Sites clinic, the target, and north, with 40 and 30 rows."""
    given = {"factory": factory, "options": dict(own), "rows": {"clinic": 40, "north": 30}, **options}
    task = load_task(FACTORY, TaskSettings("clinic", ("north",), seed, options=given))
    assert isinstance(task, StandIn)
    return task


def test_rows_of_a_table_have_its_columns_and_its_classes() -> None:
    task = stand_in(shape=[6])

    rows, held_out = task.train_data("clinic"), task.test_data("clinic")

    assert task.counts() == {"clinic": 40, "north": 30}
    assert (len(rows), len(held_out), len(task.train_data("north"))) == (40, 2000, 30)
    assert rows.features.shape == (40, 6)
    assert torch.equal(rows.features[:, 1:4].sum(dim=1), torch.ones(40))
    assert set(rows.features[:, 1:4].unique().tolist()) == {0, 1}
    assert not rows.features[:, 5].any()
    assert rows.labels.dtype == torch.int64
    assert set(rows.labels.tolist()) == {0, 1}
    assert "2 classes, 5 Gaussian numbers" in task.text()
    require_separate_rows(task, build_model(task, 1), rows, NOISY)


def test_a_label_that_is_a_number_can_be_learnt_up_to_its_noise() -> None:
    task = stand_in(own=NUMBER, shape=[6], **{"rows": {"clinic": 4000, "north": 4}, "best-accuracy": 0.8})

    rows, test = task.train_data("clinic"), task.test_data("clinic")

    assert rows.labels.shape == (4000, 1)
    with_ones = [torch.cat([samples.features, torch.ones(len(samples), 1)], dim=1) for samples in (rows, test)]
    weights = torch.linalg.lstsq(with_ones[0], rows.labels, driver="gelsd").solution
    # The category says less than the numbers behind it.
    assert 0.5 < task.metrics(with_ones[1] @ weights, test.labels)["accuracy"] <= 0.82


@pytest.mark.parametrize("best", [0.6, 0.9])
def test_the_best_model_is_as_accurate_as_asked(best: float) -> None:
    task = stand_in(own=WIDE, shape=[6], **{"rows": {"clinic": 20_000, "north": 4}, "best-accuracy": best})
    rows, test = task.train_data("clinic"), task.test_data("clinic")

    # Gaussians of one variance: the classes' means, of many rows, make the best model there is.
    centres = torch.stack([rows.features[rows.labels == label].mean(dim=0) for label in range(3)])
    outputs = -torch.cdist(test.features, centres)

    assert task.metrics(outputs, test.labels)["accuracy"] == pytest.approx(best, abs=0.03)


def test_the_seed_settles_the_rows_and_sites_differ() -> None:
    task, again, other = stand_in(shape=[6]), stand_in(shape=[6]), stand_in(shape=[6], seed=1)

    assert torch.equal(task.train_data("north").features, again.train_data("north").features)
    assert not torch.equal(task.train_data("north").features, other.train_data("north").features)
    assert not torch.equal(task.train_data("clinic").features[:30], task.train_data("north").features)
    assert not torch.equal(task.train_data("clinic").features, task.test_data("clinic").features[:40])


def test_labels_are_written_as_the_task_writes_them() -> None:
    options = {"factory": "securefda.tasks.fed_heart:FedHeart", "options": {"scaling": "public"}, "shape": [13]}
    rows = {"va": 40, "cleveland": 30}
    task = load_task(FACTORY, TaskSettings("va", ("cleveland",), options=options | {"rows": rows}))

    samples = task.train_data("va")

    assert isinstance(samples, Samples)
    assert samples.labels.shape == (40, 1)
    assert set(samples.labels.flatten().tolist()) == {0.0, 1.0}
    assert task.separate_rows


def test_images_are_digits_at_their_size() -> None:
    task = stand_in(IMAGES, {"classes": ["a", "b", "c"], "size": 16, "colour": "rgb"}, shape=[3, 16, 16])

    rows = task.train_data("clinic")

    assert rows.features.shape == (40, 3, 16, 16)
    assert -1 <= float(rows.features.min()) < 0.5 < float(rows.features.max()) <= 1.001
    assert set(rows.labels.tolist()) == {0, 1, 2}
    assert "3 classes, made 3 x 16 x 16" in task.text()


def test_digits_that_are_held_out_are_not_trained_on() -> None:
    digits = np.arange(1000) % 10

    rows, held_out = (digit_rows(digits, 4, held_out=which) for which in (False, True))

    assert not set(rows) & set(held_out)
    assert set(rows) | set(held_out) == set(np.flatnonzero(digits < 4))
    assert 0.2 < len(held_out) / (len(rows) + len(held_out)) < 0.6


def test_more_classes_than_digits_are_refused() -> None:
    task = stand_in(IMAGES, {"classes": [f"c{number}" for number in range(11)], "size": 16}, shape=[1, 16, 16])

    with pytest.raises(ConfigError, match="11 classes, and there are 10 digits"):
        task.train_data("clinic")


class Words(Task):
    """Numbers of words in, and no row of logits out where there are no words."""

    separate_rows = True

    def model(self) -> nn.Module:
        return nn.Embedding(5, 2) if self.settings.options.get("words") else nn.Flatten(0)

    def train_data(self, site: str) -> Samples:
        raise AssertionError(f"the rows of {site} are not to be read")

    test_data = train_data

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {"accuracy": float((outputs.argmax(dim=1) == labels).double().mean())}


def test_what_cannot_be_drawn_is_refused_and_no_row_is_read() -> None:
    factory = f"{__name__}:Words"
    with pytest.raises(ConfigError, match="gives no logits of classes"):
        stand_in(factory, {}, shape=[3]).train_data("clinic")
    with pytest.raises(DataError, match="a forward pass raised"):
        stand_in(factory, {"words": True}, shape=[3]).train_data("clinic")


def csv_of(path: Path, rows: int) -> str:
    """Every row has an age of its own."""
    lines = [f"{20 + number / 10:.1f},{'abc'[number % 3]},1.5,{('no', 'yes')[number % 2]}" for number in range(rows)]
    path.write_text("\n".join(["age,kind,lab,ill", *lines, ""]))
    return str(path)


def ages(*parts: Samples) -> list[float]:
    return sorted(round(float(age), 3) for part in parts for age in part.features[:, 0])


def test_times_to_an_event_come_from_a_file_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a time to an event") as refused:
        stand_in(own=TIME, shape=[6]).train_data("clinic")
    assert "--stand-in" in refused.value.hint

    file = tmp_path / "public.csv"
    lines = [f"{40 + number},{'abc'[number % 3]},,{1 + number % 20},{number % 2}" for number in range(100)]
    file.write_text("\n".join(["age,kind,lab,days,died", *lines, ""]))
    task = stand_in(own=TIME, file=str(file), first="north")
    rows = task.train_data("north")
    assert (rows.labels.shape, task.metric) == ((30, 2), "concordance")
    assert task.head_targets(rows.labels, 1).shape == (30, 1)
    few = {"clinic": 40, "north": 90}
    with pytest.raises(DataError, match="other sites need") as refused_file:
        stand_in(own=TIME, file=str(file), first="north", rows=few).train_data("north")
    assert refused_file.value.hint == "name more public rows"


def test_rows_of_a_file_are_dealt_out_once_each_and_the_first_site_has_all_of_its_own(tmp_path: Path) -> None:
    file = csv_of(tmp_path / "public.csv", 100)

    task = stand_in(file=file, first="north")

    parts = [task.train_data("clinic"), task.train_data("north"), task.test_data("clinic")]
    assert task.counts() == {"clinic": 40, "north": 30}
    assert [len(part) for part in parts] == [40, 30, 20]
    assert len(set(ages(*parts))) == 90
    assert set(ages(*parts)) <= {round((20 + number / 10 - 50) / 10, 3) for number in range(100)}
    assert torch.equal(task.test_data("north").features, parts[2].features)


def test_the_other_sites_share_what_is_left_of_a_small_file(tmp_path: Path) -> None:
    task = stand_in(file=csv_of(tmp_path / "public.csv", 65), first="north")

    assert task.counts() == {"clinic": 15, "north": 30}
    with pytest.raises(DataError, match="has 50 rows, and a test, north and 1 other sites need 51"):
        stand_in(file=csv_of(tmp_path / "few.csv", 50), first="north").counts()


def test_images_of_a_folder_are_dealt_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "public" / name).mkdir(parents=True)
        for number in range(50):
            pixels = np.full((8, 8), number * 4 + (name == "b"), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "public" / name / f"{number}.png")

    task = stand_in(IMAGES, {"classes": ["a", "b"], "size": 8}, file=str(tmp_path / "public"), first="clinic")

    parts = [task.train_data("clinic"), task.train_data("north"), task.test_data("north")]
    assert [len(part) for part in parts] == [40, 30, 20]
    assert len({float(image.mean()) for part in parts for image in part.features}) == 90
