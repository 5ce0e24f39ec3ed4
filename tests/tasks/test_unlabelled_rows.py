"""Rows of a target without labels: what a task gives, what is hidden, and what a file need not have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from securefda.bootstrap import target_rows
from securefda.errors import ConfigError, DataError
from securefda.rules import Rule, TargetLabels
from securefda.site.privacy_account import data_set_of
from securefda.tasks import (
    Samples,
    Task,
    TaskSettings,
    Unlabelled,
    load_task,
    rows_of,
    unlabelled_target,
    with_further_rows,
)
from securefda.tasks.base import UnfitRows
from securefda.tasks.digits import Digits

TABLE: dict[str, Any] = {
    "label": {"column": "ill", "classes": ["no", "yes"]},
    "columns": {"age": {"type": "number", "center": 50, "scale": 10}},
}


def bare(site: str) -> Digits:
    """Digits whose rows at one site have no labels."""

    class Bare(Digits):
        def train_data(self, asked: str) -> Samples | Unlabelled:  # type: ignore[override]
            rows = super().train_data(asked)
            return Unlabelled(rows.features) if asked == site else rows

    return Bare(TaskSettings("target", ("source-1",)))


def tabular(folder: Path, rows: list[str], *, header: str = "age,ill", labelled: bool = False, **options: Any) -> Task:
    (folder / "clinic.csv").write_text("\n".join([header, *rows, ""]))
    settings = TaskSettings(
        "clinic", ("north",), data_dir=folder, options={**TABLE, **options}, labelled_target=labelled
    )
    return load_task("securefda.tasks.tabular:Tabular", settings)


class TestLabelsAreHidden:
    def test_training_has_none_and_tests_keep_theirs(self) -> None:
        task = Digits(TaskSettings("target", ("source-1",), labelled_target=False))
        owned, trained_on, test = target_rows(task, Rule.SOURCE_ONLY, TargetLabels.NONE)
        given = task.train_data("target")
        assert isinstance(trained_on, Unlabelled)
        assert torch.equal(trained_on.features, given.features)
        assert test is not None
        assert torch.equal(test.labels, task.test_data("target").labels)
        assert data_set_of("target", "rows", owned) == data_set_of("target", "rows", given)  # the ledger is of the rows

    def test_given_labels_stay(self) -> None:
        owned, trained_on, _ = target_rows(bare("nobody"), Rule.TARGET_ONLY, TargetLabels.GIVEN)
        assert isinstance(owned, Samples)
        assert trained_on is owned


class TestATaskWithoutLabels:
    def test_is_taken_where_the_settings_say_so(self) -> None:
        owned, trained_on, test = target_rows(bare("target"), Rule.SOURCE_ONLY, TargetLabels.NONE)
        assert isinstance(owned, Unlabelled)
        assert len(trained_on) == 100
        assert test is not None

    def test_is_refused_where_they_do_not(self) -> None:
        with pytest.raises(DataError, match="target, train: the 100 rows have no labels") as refusal:
            target_rows(bare("target"), Rule.FEDGP_AUTO, TargetLabels.GIVEN)
        assert 'labels = "none"' in refusal.value.hint

    def test_is_refused_at_a_source(self) -> None:
        with pytest.raises(DataError, match=r"source-1, train: the \d+ rows have no labels") as refusal:
            rows_of(bare("source-1"), "source-1", "train")
        assert refusal.value.hint == "a source trains on labelled rows alone"

    def test_measures_on_labels_or_not_at_all(self) -> None:
        class Untested(Digits):
            answer: Any = None

            def test_data(self, site: str) -> Any:
                return self.answer

        task = Untested(TaskSettings("target", ("source-1",)))
        assert unlabelled_target(task)[1] is None
        with pytest.raises(DataError, match="target, test: there are no rows"):
            target_rows(task, Rule.FEDGP_AUTO, TargetLabels.GIVEN)
        task.answer = Unlabelled(torch.zeros(3, 64))
        with pytest.raises(DataError, match="target, test: the 3 rows have no labels to measure a model by"):
            unlabelled_target(task)

    @pytest.mark.parametrize(
        "features", [[1.0], torch.tensor(1.0), torch.zeros(0, 2), torch.tensor([[1.0, float("nan")]])]
    )
    def test_its_rows_are_as_sound_as_others(self, features: Any) -> None:
        with pytest.raises(UnfitRows):
            Unlabelled(features)

    def test_rows_with_and_without_labels_are_different_data_sets(self) -> None:
        rows = bare("nobody").train_data("target")
        assert data_set_of("t", "rows", rows) != data_set_of("t", "rows", Unlabelled(rows.features))


class TestTables:
    def test_the_column_of_the_label_may_be_absent(self, tmp_path: Path) -> None:
        task = tabular(tmp_path, [str(age) for age in range(40, 60)], header="age")
        train, test = unlabelled_target(task)
        assert isinstance(train, Unlabelled)
        assert len(train) == 20  # a row without a label is never held out
        assert test is None

    def test_a_target_with_labels_needs_it(self, tmp_path: Path) -> None:
        task = tabular(tmp_path, ["50"], header="age", labelled=True)
        with pytest.raises(DataError, match="has no column ill") as refusal:
            rows_of(task, "clinic", "train")
        assert 'labels = "none"' in refusal.value.hint

    def test_rows_with_a_label_may_be_held_out_and_others_train(self, tmp_path: Path) -> None:
        rows = [f"{age}," for age in range(100, 150)] + [f"{age},{('no', 'yes')[age % 2]}" for age in range(40, 90)]
        train, test = unlabelled_target(tabular(tmp_path, rows, **{"test-share": 0.5}))
        assert test is not None
        assert set(test.labels.tolist()) == {0, 1}
        assert float(test.features.max()) < 5  # ages of 100 and more have no label
        assert len(train) + len(test) == 100
        assert int((train.features >= 5).sum()) == 50

    def test_the_split_of_labelled_rows_is_that_of_a_labelled_target(self, tmp_path: Path) -> None:
        rows = [f"{age},{('no', 'yes')[age % 2]}" for age in range(20, 90)]
        labelled, hidden = tabular(tmp_path, rows, labelled=True), tabular(tmp_path, rows)
        train, test = unlabelled_target(hidden)
        assert test is not None
        assert torch.equal(test.features, rows_of(labelled, "clinic", "test").features)
        assert torch.equal(train.features, rows_of(labelled, "clinic", "train").features)

    def test_the_first_model_is_that_of_every_other_site(self, tmp_path: Path) -> None:
        models = [tabular(tmp_path, ["50,no"], labelled=labelled) for labelled in (True, False)]
        torch.manual_seed(3)
        untrained = [parameter.detach().clone() for parameter in models[0].model().parameters()]
        torch.manual_seed(3)
        other = list(models[1].model().parameters())
        assert all(torch.equal(left, right) for left, right in zip(untrained, other, strict=True))

    def test_labels_of_a_source_stay_required(self, tmp_path: Path) -> None:
        task = tabular(tmp_path, ["50,no"])
        (tmp_path / "north.csv").write_text("age,ill\n50,\n51,no\n")
        with pytest.raises(DataError, match="hold no label"):
            rows_of(task, "north", "train")


class TestBesideLabels:
    def test_digits_has_the_other_training_rows(self) -> None:
        task = Digits(TaskSettings("target", ("source-1",), options={"target-rows": 30}))
        labelled = task.train_data("target")
        rows = with_further_rows(task, labelled)
        assert torch.equal(rows.features, task.oracle_data().features)
        assert torch.equal(rows.features[:30], labelled.features)

    @pytest.mark.parametrize(
        ("answer", "error", "why"),
        [
            (None, ConfigError, "training.adapt: task Answers gives the target no rows without labels"),
            (torch.zeros(3, 64), DataError, "unlabelled: unlabelled_data returned a Tensor and no Unlabelled"),
            (Samples(torch.zeros(3, 64), torch.zeros(3)), DataError, "returned a Samples and no Unlabelled"),
            (
                Unlabelled(torch.zeros(3, 63)),
                DataError,
                r"a row is \(63,\) of torch.float32, and one with a label \(64",
            ),
            (Unlabelled(torch.zeros(3, 64).double()), DataError, "float64, and one with a label"),
            (UnfitRows("a site has no rows"), DataError, "target, unlabelled: a site has no rows"),
        ],
    )
    def test_what_is_unfit_is_refused(self, answer: Any, error: type[Exception], why: str) -> None:
        class Answers(Digits):
            def unlabelled_data(self) -> Any:
                if isinstance(answer, Exception):
                    raise answer
                return answer

        task = Answers(TaskSettings("target", ("source-1",)))
        with pytest.raises(error, match=why):
            with_further_rows(task, task.train_data("target"))


def images(folder: Path, options: Mapping[str, Any] | None = None, *, labelled: bool = False) -> Task:
    chosen = {"classes": ["ill", "well"], "size": 8, **(options or {})}
    settings = TaskSettings("clinic", ("north",), data_dir=folder, options=chosen, labelled_target=labelled)
    return load_task("securefda.tasks.image_folder:ImageFolder", settings)


def save(folder: Path, name: str, count: int) -> None:
    (folder / name).mkdir(parents=True)
    for number in range(count):
        pixels = np.full((8, 8), number, np.uint8)
        Image.fromarray(pixels).save(folder / name / f"{number}.png")


class TestImages:
    def test_a_folder_without_a_class_is_the_targets(self, tmp_path: Path) -> None:
        save(tmp_path / "clinic", "unlabelled", 12)
        train, test = unlabelled_target(images(tmp_path))
        assert len(train) == 12
        assert test is None

    def test_images_of_a_class_may_be_held_out(self, tmp_path: Path) -> None:
        save(tmp_path / "clinic", "unlabelled", 5)
        save(tmp_path / "clinic", "ill", 40)
        train, test = unlabelled_target(images(tmp_path, {"test-share": 0.5}))
        assert test is not None
        assert len(train) + len(test) == 45
        assert test.labels.tolist() == [0] * len(test)

    def test_nobody_else_has_such_a_folder(self, tmp_path: Path) -> None:
        save(tmp_path / "north", "unlabelled", 2)
        with pytest.raises(DataError, match="1 of 1 folders are of no class") as refusal:
            rows_of(images(tmp_path), "north", "train")
        assert "labelled images alone" in refusal.value.hint

    def test_a_target_with_labels_has_both(self, tmp_path: Path) -> None:
        save(tmp_path / "clinic", "unlabelled", 5)
        task = images(tmp_path, {"test-share": 0.5}, labelled=True)
        with pytest.raises(DataError, match="clinic, train: has none of 0 images") as refusal:
            rows_of(task, "clinic", "train")
        assert 'set labels = "none"' in refusal.value.hint
        save(tmp_path / "clinic", "ill", 40)
        labelled, test = rows_of(task, "clinic", "train"), rows_of(task, "clinic", "test")
        assert len(with_further_rows(task, labelled)) + len(test) == 45

    def test_a_target_needs_some_image(self, tmp_path: Path) -> None:
        (tmp_path / "clinic").mkdir()
        with pytest.raises(DataError, match="clinic, train: has no images") as refusal:
            unlabelled_target(images(tmp_path))
        assert "clinic/unlabelled" in refusal.value.hint
