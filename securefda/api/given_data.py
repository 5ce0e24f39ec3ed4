"""Arrays, tensors, tables and datasets of users as rows that sites train on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from types import new_class
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from securefda.errors import ConfigError, DataError
from securefda.tasks import Inputs, Rows, Samples, Task, Unlabelled
from securefda.tasks.given import GivenClasses, GivenNumbers
from securefda.tasks.inputs import map_tensors
from securefda.text import first_of

_NAMED = 5


def task_from(
    model: Callable[[], nn.Module] | nn.Module,
    data: Mapping[str, Any],
    test: Any = None,
    *,
    label: str = "",
    loss: Callable[[Any, Tensor], Tensor] | None = None,
    separate_rows: bool = False,
) -> type[Task]:
    """Make a task from a model and from rows that you have, without writing a class.

    A site's rows are one of:

    - a pair ``(features, labels)`` of NumPy arrays, tensors or lists, with the rows in dimension 0; features of a model
      with several inputs are a dict or tuple of them;
    - a data frame of pandas or polars, whose column ``label`` holds the labels and whose other columns are features;
    - a map-style ``Dataset`` of pairs (inputs, label), or a ``DataLoader`` of one;
    - features alone, or a data frame without that column, for a target without labels.

    Labels that are text are names of classes, which all sites share; so are booleans. Whole numbers are class numbers
    from 0. In both cases the model gives a logit for each class, and the loss is the cross-entropy. Other numbers are
    predicted as they are, with the squared error as the loss.

    Features become float32 if they are float64, and stay what they are otherwise. Nothing else is changed: scale them
    yourself, in the same way at each site.

    Args:
        model: a class or function that takes no argument and returns the model; every site starts from the same random
            weights, which follow from the run's seed. Or a module, which every site starts from as it is: such a task
            can be simulated, but not run as processes.
        data: site id -> its training rows, the target's among them.
        test: the target's test rows, in one of these forms; None for a target without any labelled row.
        label: the column of a data frame that holds the labels.
        loss: of a batch, from the model's outputs and the labels, the mean over its rows.
        separate_rows: whether each row was prepared from its own record and from public numbers alone, and not, say,
            scaled by the mean of its site. Training with noise needs that, and takes your word for it.

    Returns:
        A class for ``Federation(task=...)``.

    Raises:
        ConfigError: ``model`` is neither, or no site has rows with labels.
        DataError: rows are unfit: lengths differ, a value is missing, a column is not numbers, labels differ in kind.
    """
    if not callable(model):
        raise ConfigError(
            "model", f"is a {type(model).__name__}", hint="give a class or function that returns the model"
        )
    tables = {site: _Table(f"data of {site}", given, label) for site, given in data.items()}
    if test is not None:
        tables[_TEST] = _Table("test", test, label)
    columns = _same_columns(tables.values())
    labelled = [table for table in tables.values() if table.labels is not None]
    if not labelled:
        hint = "each source's rows are (features, labels), or a data frame with label=COLUMN"
        raise ConfigError("data", "has no rows with labels", hint=hint)
    kinds = {table.kind for table in labelled}
    if len(kinds) > 1:
        named = ", ".join(f"{table.name} has {table.kind}" for table in labelled)
        raise DataError("labels", f"differ in kind: {named}", hint="give labels of one kind at all sites")
    classes = tuple(sorted({name for table in labelled for name in table.class_names}))
    rows = {site: table.rows(columns, classes) for site, table in tables.items()}
    held_out = rows.pop(_TEST, None)
    if isinstance(held_out, Unlabelled):
        raise DataError("test", "its rows have no labels to measure a model by", hint="give test=(features, labels)")
    said = {
        "make_model": staticmethod(CopyOf(model) if isinstance(model, nn.Module) else model),
        "given_loss": None if loss is None else staticmethod(loss),
        "rows": rows,
        "test": held_out,
        "columns": columns,
        "classes": classes,
        "separate_rows": separate_rows,
        "__module__": __name__,
        "__doc__": "A task that `securefda.task_from` made.",
    }
    base = GivenNumbers if kinds == {_NUMBERS} else GivenClasses
    return new_class("Given", (base,), exec_body=lambda body: body.update(said))


_TEST = ""
"""In place of a site id, which is never empty."""
_NAMES, _CLASSES, _NUMBERS = "names", "class numbers", "numbers"


class CopyOf:
    """Makes copies of one module, with its weights."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self) -> nn.Module:
        """Return a copy."""
        return deepcopy(self.module)


class _Table:
    """Rows of one site as they were given.

    Attributes:
        name: where they come from, for errors.
        columns: of a data frame, without the label's; else empty.
        labels: as they were given, or the rows of a dataset; None without any.
    """

    def __init__(self, name: str, given: Any, label: str) -> None:
        self.name, self.columns = name, tuple[str, ...]()
        self._features: Any = given
        self.labels: Tensor | np.ndarray[Any, Any] | None = None
        if isinstance(given, Dataset | DataLoader):
            samples = Samples.of(given)
            self._features, self.labels = samples.features, samples.labels
        elif _is_frame(given):
            self.columns = tuple(column for column in map(str, given.columns) if column != label)
            if len(self.columns) < len(given.columns):
                self.labels = _array(given[label].to_numpy())
        elif isinstance(given, tuple) and len(given) == 2:
            self._features, self.labels = given
        if isinstance(self.labels, Tensor) and self.labels.dtype == torch.bool:
            self.labels = self.labels.numpy()
        if self.labels is not None and not isinstance(self.labels, Tensor):
            self.labels = _array(self.labels)

    @property
    def kind(self) -> str:
        """What the labels are."""
        if isinstance(self.labels, Tensor):
            return _NUMBERS if self.labels.is_floating_point() else _CLASSES
        return {"f": _NUMBERS, "i": _CLASSES, "u": _CLASSES}.get(self._array.dtype.kind, _NAMES)

    @property
    def _array(self) -> np.ndarray[Any, Any]:
        return np.asarray(self.labels)

    @property
    def class_names(self) -> list[str]:
        """The names of the classes that occur, where labels are names.

        Raises:
            DataError: a label is missing.
        """
        if self.kind != _NAMES:
            return []
        named = (str, bool, np.bool_)
        missing = [place for place, value in enumerate(self._array, start=1) if not isinstance(value, named)]
        if missing:
            why = f"a label is no text in {len(missing)} of {len(self._array)} rows"
            raise DataError(self.name, why, hint=f"row {missing[0]} is the first; drop such rows, or name their class")
        return [str(value) for value in np.unique(self._array.astype(str))]

    def rows(self, columns: Sequence[str], classes: Sequence[str]) -> Rows:
        """Return the rows as sites train on them.

        Raises:
            DataError: they are unfit.
        """
        features = self._features
        try:
            if _is_frame(features):
                features = _from_frame(features, columns)
            features = as_inputs(features)
            if self.labels is None:
                return Unlabelled(features)
            return Samples(features, self._label_tensor(classes))
        except DataError as error:
            raise DataError(self.name, error.why, hint=error.hint) from error

    def _label_tensor(self, classes: Sequence[str]) -> Tensor:
        if self.kind == _NAMES:
            place = {name: number for number, name in enumerate(classes)}
            return torch.tensor([place[str(value)] for value in self._array.astype(str)])
        labels = self.labels if isinstance(self.labels, Tensor) else torch.from_numpy(self._array)
        if self.kind == _NUMBERS:
            return labels.float()
        if bool((labels < 0).any()):
            raise DataError(self.name, "a label is below 0", hint="class numbers count from 0; or give names as text")
        return labels.long()


def as_inputs(given: Any, columns: Sequence[str] = ()) -> Inputs:
    """Return features as a model takes them; of a data frame, these columns.

    Raises:
        DataError: they are neither numbers nor a form that a model takes.
    """
    if _is_frame(given):
        given = _from_frame(given, columns or tuple(map(str, given.columns)))
    return map_tensors(_tensor, given)


def _tensor(given: Any) -> Any:
    if not isinstance(given, Tensor):
        if not isinstance(given, np.ndarray | list) and not hasattr(given, "__array__"):
            return given  # rows on disk; what is neither is refused by its type
        array = _array(given)
        if array.dtype.kind not in "fiub":
            raise DataError("features", "are not numbers", hint="encode text as numbers first")
        given = torch.from_numpy(np.ascontiguousarray(array))
    return given.detach().float() if given.dtype == torch.float64 else given.detach()


def _array(given: Any) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(given)
    except ValueError as error:  # lists of different lengths
        raise DataError("data", "is no array: its rows differ in shape", hint="make it a NumPy array") from error
    return array.astype(array.dtype.newbyteorder("=")) if array.dtype.kind in "fiu" else array


def _is_frame(given: Any) -> bool:
    """Whether it is a data frame: pandas's and polars's have these two, and arrays, tensors and modules do not."""
    return hasattr(given, "columns") and hasattr(given, "to_numpy")


def _same_columns(tables: Iterable[_Table]) -> tuple[str, ...]:
    """Return the columns of the first data frame, which all others need as well, in any order."""
    named = [table for table in tables if table.columns]
    for table in named[1:]:
        first = named[0]
        if differing := sorted(set(table.columns) ^ set(first.columns)):
            why = f"has other columns than {first.name}: {first_of(differing, _NAMED)}"
            raise DataError(
                table.name, why, hint="give the same columns at every site; label= names that of the labels"
            )
    return named[0].columns if named else ()


def _from_frame(frame: Any, columns: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return columns of a data frame, (n, k) float32."""
    own = {str(column): column for column in frame.columns}  # which a frame without names counts
    if missing := [column for column in columns if column not in own]:
        raise DataError("features", f"lack the columns {first_of(missing, _NAMED)}", hint=f"give {', '.join(columns)}")
    arrays = {column: np.asarray(frame[own[column]].to_numpy()) for column in columns}
    text = [column for column, array in arrays.items() if array.dtype.kind not in "fiub"]
    if text:
        hint = "encode them as numbers (pandas.get_dummies), or describe the table: securefda new NAME --tabular FILE"
        raise DataError("features", f"the columns {first_of(text, _NAMED)} are not numbers", hint=hint)
    return np.column_stack([array.astype(np.float32) for array in arrays.values()])
