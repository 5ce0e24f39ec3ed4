"""Tasks whose model, rows and loss somebody gave in Python, without writing a class: see `securefda.task_from`.

In the process in which they were given, the rows are in memory. For processes of their own they are files in the run's
folder, one for each site and split, in the safetensors format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from securefda.errors import ConfigError, DataError
from securefda.tasks.base import Rows, Samples, Task, TaskSettings, Unlabelled
from securefda.tasks.classification import Classification
from securefda.tasks.inputs import Inputs, in_memory, map_tensors
from securefda.tasks.metric_functions import number_metrics

_FEATURES, _LABELS = "features", "labels"


class GivenTask(Task):
    """What such tasks have in common. A subclass that :func:`securefda.task_from` makes says the rest.

    Attributes:
        make_model: returns a new model.
        given_loss: of a batch, mean over its rows; None for the usual one.
        rows: site id -> its training rows; None where they are files in the folder of the settings.
        test: the target's test rows; None for none, and where they are files.
        columns: name of each feature, of rows from a table; else empty.
        classes: name of each class, where labels were names; else empty.
    """

    make_model: ClassVar[Callable[[], nn.Module]]
    given_loss: ClassVar[Callable[[Any, Tensor], Tensor] | None] = None
    rows: ClassVar[Mapping[str, Rows] | None] = None
    test: ClassVar[Samples | None] = None
    columns: ClassVar[tuple[str, ...]] = ()
    classes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: TaskSettings) -> None:
        settings.reject_unknown_options()
        super().__init__(settings)

    def model(self) -> nn.Module:
        """Return what ``make_model`` makes."""
        return type(self).make_model()

    def train_data(self, site: str) -> Rows:
        """Return the site's rows."""
        self.require_site(site)
        found = self._read(site, "train") if self.rows is None else self.rows.get(site)
        if found is None:
            known = f"sites of the data: {', '.join(self.rows)}" if self.rows else ""
            raise DataError(f"{site}, train", "there are no rows of this site in the data", hint=known)
        return found

    def test_data(self, site: str) -> Samples | None:
        """Return the target's test rows; a source holds out none."""
        if site != self.settings.target:
            return None
        return cast(Samples | None, self._read(site, "test")) if self.rows is None else self.test

    def feature_names(self) -> tuple[str, ...]:
        """Return the columns of the table."""
        return self.columns

    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes."""
        return self.classes

    def _read(self, site: str, split: str) -> Rows | None:
        if self.settings.data_dir is None:
            raise ConfigError(
                "task.data-dir", "is empty, and the rows of this task are files", hint="name their folder"
            )
        file = rows_path(self.settings.data_dir, site, split)
        return read_rows(file) if file.is_file() else None


class GivenClasses(GivenTask, Classification):
    """Labels are class numbers from 0, and the model gives a logit for each class."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the given loss, or else the mean cross-entropy."""
        given = type(self).given_loss
        return super().loss(outputs, labels) if given is None else given(outputs, labels)

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each row."""
        return (Classification if self.given_loss is None else Task).row_losses(self, outputs, labels)


class GivenNumbers(GivenTask):
    """Labels are numbers, (n, ...), and the model gives as many for each row: (n, 1) serves for (n,)."""

    metric = "rmse"

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the given loss, or else the mean squared error."""
        if (given := type(self).given_loss) is not None:
            return given(outputs, labels)
        return nn.functional.mse_loss(outputs.reshape(labels.shape), labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return RMSE, MAE and R²."""
        return number_metrics(outputs.reshape(labels.shape), labels)


def rows_path(folder: Path, site: str, split: str) -> Path:
    """Return the file of a site's rows; ``split`` is ``train`` or ``test``."""
    return folder / f"{site}.{split}.safetensors"


def rows_bytes(rows: Rows) -> bytes:
    """Return rows in the safetensors format; those on disk are read.

    Raises:
        DataError: the inputs of the model are dicts or tuples inside each other.
    """
    inputs = in_memory(rows.features)
    named = _named(inputs)
    if not all(isinstance(tensor, Tensor) for tensor in named.values()):
        hint = "make each input a tensor of its own, in one dict or tuple"
        raise DataError("data", "holds dicts or tuples inside each other, which no file of rows has", hint=hint)
    labels = {_LABELS: rows.labels} if isinstance(rows, Samples) else {}
    return save(map_tensors(lambda tensor: tensor.clone(memory_format=torch.contiguous_format), named | labels))


def _named(inputs: Inputs) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return {f"{_FEATURES}.{name}": tensor for name, tensor in inputs.items()}
    if isinstance(inputs, tuple):
        return {f"{_FEATURES}-{place}": tensor for place, tensor in enumerate(inputs)}
    return {_FEATURES: inputs}


def read_rows(file: Path) -> Rows:
    """Read the rows in a file that :func:`rows_bytes` made."""
    tensors: dict[str, Tensor] = load_file(file)
    labels = tensors.pop(_LABELS, None)
    inputs: Inputs = tensors.get(_FEATURES)
    if inputs is None:
        prefix = len(_FEATURES) + 1
        inputs = {name[prefix:]: tensor for name, tensor in tensors.items()}
        if all(name.startswith(f"{_FEATURES}-") for name in tensors):
            inputs = tuple(inputs[str(place)] for place in range(len(inputs)))
    return Unlabelled(inputs) if labels is None else Samples(inputs, labels)
