"""``task_from``: every form of rows, what is refused, and what becomes of labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from api_rows import data, linear, rows
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import securefda
from securefda.tasks import RowsOnDisk, rows_of


class Frame:
    """What `task_from` takes of a data frame of pandas or polars, neither of which is installed here."""

    def __init__(self, **columns: Any) -> None:
        self._columns = {name: np.asarray(column) for name, column in columns.items()}
        self.columns = list(columns)

    def __getitem__(self, name: str) -> Frame:
        return Frame(**{name: self._columns[name]})

    def to_numpy(self) -> np.ndarray[Any, Any]:
        (column,) = self._columns.values()
        return column


def made(clinic: Any, test: Any = None, **more: Any) -> securefda.Task:
    """The task of a target and one source, whose rows have the target's form."""
    task = securefda.task_from(linear, {"clinic": clinic, "a": more.pop("a", clinic)}, test or clinic, **more)
    return task(securefda.TaskSettings(target="clinic", sources=("a",)))


X, Y = rows(6)


@pytest.mark.parametrize(
    "given",
    [
        (X, Y),
        (X.tolist(), Y.tolist()),
        (torch.tensor(X), torch.tensor(Y)),
        (X.astype(">f8"), Y.astype(np.uint8)),
        (np.asfortranarray(X), Y),
    ],
    ids=["arrays", "lists", "tensors", "bytes swapped", "columns first"],
)
def test_arrays_lists_and_tensors_become_the_same_rows(given: Any) -> None:
    found = rows_of(made(given), "a", "train")
    assert (found.features.dtype, found.labels.dtype) == (torch.float32, torch.int64)
    assert torch.equal(found.features, torch.tensor(X).float())
    assert found.labels.tolist() == Y.tolist()


@pytest.mark.parametrize("wrapped", [lambda rows: rows, lambda rows: DataLoader(rows, batch_size=2)])
def test_rows_of_a_dataset_are_read_when_they_are_needed(wrapped: Any) -> None:
    found = rows_of(made(wrapped(TensorDataset(torch.tensor(X).float(), torch.tensor(Y)))), "a", "train")
    assert isinstance(found.features, RowsOnDisk)
    assert torch.equal(found.features.read()[0], torch.tensor(X).float())


def test_columns_of_a_data_frame_are_features_in_one_order_at_all_sites() -> None:
    clinic, other = Frame(x=X[:, 0], y=X[:, 1], ill=Y), Frame(ill=Y, y=X[:, 1], x=X[:, 0])
    task = made(clinic, a=other, label="ill")
    assert task.feature_names() == ("x", "y")
    assert torch.equal(rows_of(task, "a", "train").features, torch.tensor(X).float())
    assert rows_of(task, "a", "train").labels.tolist() == Y.tolist()


def test_names_of_classes_are_the_same_numbers_at_all_sites() -> None:
    task = made((X[:3], ["no", "yes", "no"]), a=(X[:2], np.array(["maybe", "yes"], dtype=object)))
    assert task.class_names() == ("maybe", "no", "yes")
    assert rows_of(task, "clinic", "train").labels.tolist() == [1, 2, 1]
    assert rows_of(task, "a", "train").labels.tolist() == [0, 2]


def test_booleans_are_names_in_arrays_and_in_tensors() -> None:
    for labels in (Y.astype(bool), torch.tensor(Y).bool()):
        task = made((X, labels))
        assert task.class_names() == ("False", "True")
        assert rows_of(task, "a", "train").labels.tolist() == Y.tolist()


def test_other_numbers_are_predicted_with_the_squared_error() -> None:
    task = made((X, X[:, 0]))
    outputs, labels = torch.zeros(6, 1), torch.tensor(X[:, 0]).float()
    assert task.loss(outputs, labels).item() == pytest.approx(float((labels**2).mean()))
    assert task.metrics(outputs, labels)["rmse"] == pytest.approx(float((labels.double() ** 2).mean() ** 0.5))
    assert task.chosen_metric.name == "rmse"


def test_a_loss_of_ones_own_is_that_of_each_row_too() -> None:
    def doubled(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return 2 * nn.functional.cross_entropy(outputs, labels)

    task, usual = made((X, Y), loss=doubled), made((X, Y))
    outputs, labels = torch.tensor(X).float(), torch.tensor(Y)
    assert torch.allclose(task.row_losses(outputs, labels), 2 * usual.row_losses(outputs, labels))
    assert task.loss(outputs, labels).item() == pytest.approx(2 * usual.loss(outputs, labels).item())


def test_features_alone_are_rows_of_a_target_without_labels() -> None:
    task = made(X, (X, Y), a=(X, Y))
    assert isinstance(task.train_data("clinic"), securefda.Unlabelled)
    assert isinstance(task.train_data("a"), securefda.Samples)


def test_several_inputs_are_a_dict_or_a_tuple() -> None:
    found = rows_of(made(({"image": X, "age": Y[:, None]}, Y)), "a", "train").features
    assert found["image"].dtype == torch.float32
    assert found["age"].tolist() == Y[:, None].tolist()


def test_a_module_is_where_every_site_starts() -> None:
    module = nn.Linear(2, 2)
    task = securefda.task_from(module, data(), rows())(securefda.TaskSettings(target="clinic", sources=("a",)))
    first = task.model()
    assert torch.equal(first.weight, module.weight)  # type: ignore[arg-type]
    assert first is not module
    assert first.weight is not task.model().weight


@pytest.mark.parametrize(
    ("clinic", "more", "why"),
    [
        ((X, Y[:3]), {}, "data of clinic: 6 rows of features but 3 labels"),
        ((np.where(X[2] == X, np.nan, X), Y), {}, "data of clinic: a feature is NaN or infinite in 1 of 6 rows"),
        ((X, Y - 1), {}, "data of clinic: a label is below 0"),
        (([[1.0], [1.0, 2.0]], [0, 1]), {}, "its rows differ in shape"),
        ((X.astype(str), Y), {}, "data of clinic: are not numbers"),
        ((X, ["a", None, "b", "a", "a", "a"]), {}, "a label is no text in 1 of 6 rows"),
        (Frame(x=["u", "v"], ill=[0, 1]), {"label": "ill"}, "the columns x are not numbers"),
        (Frame(x=[1.0, 2.0], ill=[0, 1]), {"label": "sick", "a": (X, Y)}, "test: its rows have no labels"),
        (
            (X, Y),
            {"a": (X, X[:, 0])},
            "labels: differ in kind: data of clinic has class numbers, data of a has numbers",
        ),
        (X, {"a": X}, "data: has no rows with labels"),
    ],
)
def test_unfit_rows_are_refused_with_their_site(clinic: Any, more: dict[str, Any], why: str) -> None:
    with pytest.raises(securefda.ConfigError) as caught:
        made(clinic, **more)
    assert why in str(caught.value)


def test_sites_with_other_columns_are_refused_by_name() -> None:
    with pytest.raises(securefda.DataError, match="data of a: has other columns than data of clinic: weight"):
        made(Frame(x=X[:, 0], ill=Y), a=Frame(x=X[:, 0], weight=X[:, 1], ill=Y), label="ill")


def test_noise_needs_the_word_of_the_user() -> None:
    assert not made((X, Y)).separate_rows
    assert made((X, Y), separate_rows=True).separate_rows


def test_a_real_data_frame_is_taken_too() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": X[:, 0], "y": X[:, 1], "ill": pandas.Categorical.from_codes(Y, ["no", "yes"])})
    task = made(frame, label="ill")
    assert (task.class_names(), task.feature_names()) == (("no", "yes"), ("x", "y"))
    assert rows_of(task, "a", "train").labels.tolist() == Y.tolist()
