"""Rows of several tensors, and rows that are read from a dataset when a step needs them."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from securefda.errors import DataError
from securefda.operations.trained import export, predict
from securefda.privacy.private_training import require_separate_rows, train_private
from securefda.site.privacy_account import data_set_of
from securefda.tasks import Inputs, RowsOnDisk, Samples, Task, TaskSettings, Unlabelled, rows_of
from securefda.tasks.inputs import UnfitRows, batched, in_memory, joined, named_tensors, row_count, shapes, take
from securefda.training import LocalResult, TrainingSettings, build_model, evaluate, model_to_vector, train_local
from securefda.training.training_settings import NoiseSettings

ROWS = 20
SETTINGS = TrainingSettings("sgd", 0.05, batch_size=6, epochs=2, device="cpu")
TABLE = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(5))
LABELS = torch.linspace(-1, 1, ROWS).reshape(ROWS, 1)


class Columns(nn.Module):
    """A linear layer on columns that come in one tensor, or in several; their prediction comes in the same form."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, inputs: Inputs) -> Inputs:
        if isinstance(inputs, dict):
            return {"risk": self.layer(torch.cat([inputs["age"], *inputs["blood"]], dim=1))}
        if isinstance(inputs, tuple):
            return (self.layer(torch.cat(inputs, dim=1)),)
        return self.layer(inputs)


class OwnRows(Task):
    """Least squares on rows that are given to it."""

    separate_rows = True

    def __init__(self, rows: Any) -> None:
        super().__init__(TaskSettings("target", ("source",)))
        self.rows = rows

    def model(self) -> nn.Module:
        return Columns()

    def train_data(self, site: str) -> Any:
        return self.rows

    def test_data(self, site: str) -> Any:
        return self.rows

    def inputs_from(self, path: Path) -> Inputs:
        return self.rows.features

    def loss(self, outputs: Inputs, labels: Tensor) -> Tensor:
        (risk,) = named_tensors(outputs, "").values()
        return nn.functional.mse_loss(risk, labels)

    def metrics(self, outputs: Inputs, labels: Tensor) -> dict[str, float]:
        (risk,) = named_tensors(outputs, "").values()
        return {"accuracy": float(((risk > 0) == (labels > 0)).double().mean())}


class Pairs(Dataset[Any]):
    """Rows of a table one by one; counts those that were read."""

    def __init__(self, table: Tensor = TABLE, labels: Any = LABELS) -> None:
        self.table, self.labels, self.read = table, labels, list[int]()

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> Any:
        self.read.append(number)
        return self.table[number], self.labels[number]


def several() -> Samples:
    return Samples({"age": TABLE[:, :1], "blood": (TABLE[:, 1:2], TABLE[:, 2:])}, LABELS)


def trained(task: Task, settings: TrainingSettings = SETTINGS) -> LocalResult:
    model, rows = build_model(task, 0), rows_of(task, "source", "train")
    return train_local(task, model, model_to_vector(model), rows, settings=settings, seed=1, site="source")


IN_MEMORY = trained(OwnRows(Samples(TABLE, LABELS)))

FORMS = {
    "dict": several,
    "tuple": lambda: Samples((TABLE[:, :1], TABLE[:, 1:]), LABELS),
    "dataset": Pairs,
    "loader": lambda: DataLoader(Pairs(), batch_size=3, shuffle=True),
    "loader with workers": lambda: DataLoader(Pairs(), num_workers=2),
    "known labels": lambda: Samples(RowsOnDisk(Pairs(labels=torch.zeros(ROWS, 1))), LABELS),
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@forms
def test_rows_in_any_form_train_to_the_same_bits_as_one_tensor(form: Any) -> None:
    result = trained(OwnRows(form()))
    assert result.update.tobytes() == IN_MEMORY.update.tobytes()
    assert (result.loss, result.accuracy) == (IN_MEMORY.loss, IN_MEMORY.accuracy)


@forms
def test_rows_in_any_form_train_with_noise_and_are_measured(form: Any) -> None:
    task = OwnRows(form())
    settings = replace(SETTINGS, dp=NoiseSettings(1.0, 0.5))
    model, rows = build_model(task, 0), rows_of(task, "source", "train")
    require_separate_rows(task, model, rows, settings)
    first = model_to_vector(model)
    assert train_private(task, model, first, rows, settings=settings, site="source").steps == 8
    measured, plain = evaluate(task, build_model(task, 0), rows), OwnRows(Samples(TABLE, LABELS))
    assert measured == evaluate(plain, build_model(plain, 0), plain.rows)
    assert measured.by_row() is not None


@forms
def test_a_batch_without_rows_has_the_form_of_a_row(form: Any) -> None:
    rows = rows_of(OwnRows(form()), "source", "train").features
    none = in_memory(take(rows, torch.zeros(ROWS, dtype=torch.bool)))
    assert row_count(none) == 0
    assert shapes(none) == shapes(in_memory(rows))


def test_a_step_reads_its_own_rows_alone() -> None:
    pairs = Pairs()
    rows = Samples(RowsOnDisk(pairs), LABELS)
    assert pairs.read == []
    task = OwnRows(rows)
    model = build_model(task, 0)
    one = replace(SETTINGS, max_steps=1)
    train_local(task, model, model_to_vector(model), rows, settings=one, seed=1, site="source")
    assert len(pairs.read) == len(set(pairs.read)) == 6


def test_some_rows_of_a_dataset_are_those_numbers() -> None:
    rows = Samples.of(Pairs()).at(torch.tensor([3, 1])).at(torch.tensor([True, False]))
    assert torch.equal(in_memory(rows.features), TABLE[[3]])
    assert torch.equal(rows.labels, LABELS[[3]])


def test_a_ledger_knows_rows_in_several_tensors_and_on_disk_again() -> None:
    for form in (several, lambda: Samples.of(Pairs())):
        assert data_set_of("source", "rows", form()) == data_set_of("source", "rows", form())
    changed = TABLE.clone()
    changed[7, 1] += 1
    assert data_set_of("source", "rows", Samples.of(Pairs())) != data_set_of(
        "source", "rows", Samples.of(Pairs(changed))
    )


def test_parts_are_joined_in_their_form() -> None:
    rows = several().features
    again = joined(list(batched(rows, 7)))
    assert list(again) == ["age", "blood"]
    assert all(
        torch.equal(one, other)
        for one, other in zip(named_tensors(rows, "").values(), named_tensors(again, "").values(), strict=True)
    )
    assert [len(part["age"]) for part in batched(rows, 7)] == [7, 7, 6]
    assert [len(part) for part in batched(TABLE, 19, even=True)] == [10, 10]
    assert list(named_tensors(rows, "features")) == ["age", "blood-1", "blood-2"]
    assert list(named_tensors(({"x": TABLE}, TABLE), "in")) == ["in-1.x", "in-2"]
    assert shapes(take(rows, slice(2))) == {"age": (1,), "blood-1": (1,), "blood-2": (1,)}
    assert shapes(TABLE) == (3,)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield TABLE[0], LABELS[0]


class Single(Pairs):
    def __getitem__(self, number: int) -> Any:
        return self.table[number]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (lambda: {"a": TABLE, "b": TABLE[:5]}, "its features differ in their number of rows: a has 20, b has 5"),
        (lambda: {"a": TABLE, "b": [1, 2]}, "b are a list"),
        (dict, "a site has no rows"),
        (lambda: (TABLE, TABLE.clone().fill_(torch.nan)), "a feature of features-2 is NaN or infinite in 20 of 20"),
        (lambda: RowsOnDisk(Endless()), "a dataset without numbers"),
        (lambda: RowsOnDisk(Pairs(TABLE[:0])), "a site has no rows"),
    ],
    ids=["lengths", "list", "none", "nan", "endless", "empty"],
)
def test_unfit_rows_of_several_tensors_are_refused_by_name(rows: Any, why: str) -> None:
    with pytest.raises(UnfitRows, match=why):
        Unlabelled(rows())


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        (Single(), "a row of its dataset is no pair"),
        (Pairs(torch.full_like(TABLE, torch.inf)), "a feature is NaN or infinite in 20 of 20 rows"),
        (Pairs(labels=LABELS.double().log()), "a label is NaN or infinite"),
        (DataLoader(Pairs(), collate_fn=lambda _: (TABLE, LABELS[:3])), "gives 3 labels for 20 rows"),
    ],
    ids=["no pair", "infinite", "label", "collated"],
)
def test_unfit_rows_of_a_dataset_are_refused_when_they_are_read(dataset: Any, why: str) -> None:
    with pytest.raises(DataError, match=why) as refusal:
        rows_of(OwnRows(dataset), "source", "train")
    assert "source, train" in str(refusal.value)


def test_predictions_of_several_inputs_and_outputs_are_named() -> None:
    task = OwnRows(several())
    model = build_model(task, 0).eval()
    predicted = predict(task, model, Path("new"))
    risk = model(task.rows.features)["risk"][:, 0].tolist()
    assert [row["risk-1"] for row in predicted] == pytest.approx(risk)


@pytest.mark.parametrize("form", ["onnx", "torchscript"])
def test_an_export_takes_inputs_by_name_and_holds_no_source_of_the_task(form: str, tmp_path: Path) -> None:
    if form == "onnx":
        pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    task = OwnRows(several())
    text = export(task, build_model(task, 0).eval(), form, tmp_path / "model")
    assert "takes `age` (rows, 1) float32, `blood-1` (rows, 1) float32" in text
    assert "gives `risk` (rows, 1) float32" in text
    content = (tmp_path / "model").read_bytes()
    if form == "torchscript":
        with zipfile.ZipFile(tmp_path / "model") as entries:
            content = b"".join(entries.read(name) for name in entries.namelist())
    for mark in (b"test_inputs.py", b"self.layer(", os.fsencode(Path(__file__).parent)):
        assert mark not in content
    if form == "onnx":
        onnx = pytest.importorskip("onnx")
        graph = onnx.load(tmp_path / "model").graph
        assert [value.name for value in graph.input] == ["age", "blood-1", "blood-2"]
        assert [value.name for value in graph.output] == ["risk"]
