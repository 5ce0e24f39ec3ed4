"""The interface of a task: the model, the loss and the data of one learning problem, and how to load a user's own.

A task is a class that a federation names as ``task.factory = "package.module:Class"``. Every site makes its own
instance and asks it for its own rows only; a task never communicates with another site.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from securefda.errors import ConfigError
from securefda.task_metric import ACCURACY, METRICS, TaskMetric
from securefda.tasks.inputs import (
    Inputs,
    RowsOnDisk,
    UnfitRows,
    map_tensors,
    named_tensors,
    require_rows,
    row_count,
    take,
    tensors_of,
)
from securefda.tasks.task_code import task_code


@dataclass(frozen=True, slots=True)
class Samples:
    """Rows of one site, on the CPU, n >= 1.

    Attributes:
        features: what the model takes: a tensor (n, ...), or a dict or tuple of tensors (n, ...); or ``RowsOnDisk``.
        labels: (n, ...).

    Raises:
        UnfitRows: features or labels are not tensors, their lengths differ, there are no rows, or a value is NaN or
            infinite.
    """

    features: Inputs
    labels: Tensor

    def __post_init__(self) -> None:
        given: object = self.labels
        if not isinstance(given, Tensor):
            raise UnfitRows(f"labels are a {type(given).__name__}", hint="make them a torch.Tensor")
        require_rows(self.features, "feature")
        require_rows(self.labels, "label")
        if len(self) != len(self.labels):
            raise UnfitRows(f"{len(self)} rows of features but {len(self.labels)} labels")

    @classmethod
    def of(cls, source: Dataset[Any] | DataLoader[Any]) -> Samples:
        """Return the rows of a map-style dataset, which stay on disk; all are read once for their labels.

        Where a table has the labels, ``Samples(RowsOnDisk(source), labels)`` need not read the rows.
        """
        rows = RowsOnDisk(source)
        return cls(rows, rows.labels())

    @property
    def tensors(self) -> Iterator[Tensor]:
        """Features and labels; the former in parts if they are on disk."""
        yield from tensors_of(self.features)
        yield self.labels

    def at(self, rows: Tensor) -> Samples:
        """Return some of the rows, by their numbers, (b,), or by a mask, (n,)."""
        return Samples(take(self.features, rows), self.labels[rows])

    def __len__(self) -> int:
        return row_count(self.features)


@dataclass(frozen=True, slots=True)
class Unlabelled:
    """Training rows of a target whose labels are not known: ``features`` as in :class:`Samples`.

    Raises:
        UnfitRows: the features are not tensors, there are no rows, or a value is NaN or infinite.
    """

    features: Inputs

    def __post_init__(self) -> None:
        require_rows(self.features, "feature")

    @property
    def tensors(self) -> Iterator[Tensor]:
        """Features alone; in parts if they are on disk."""
        yield from tensors_of(self.features)

    def __len__(self) -> int:
        return row_count(self.features)


Rows = Samples | Unlabelled
"""Training rows of a target, with labels or without."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The settings that a task is built from. Only ``data_dir`` differs between the sites of a federation.

    Attributes:
        target: site id of the target.
        sources: site ids of the sources, in the order of the federation.
        seed: seeds every random choice about data (splits, kept rows, noise), never training.
        data_dir: folder of this site's data files; None where the data is bundled.
        options: the task's own settings, kebab-case.
        labelled_target: whether the target's training rows have labels. If False, its files need not hold any.
        metric: name of the metric that is chosen in place of the task's own; empty for that.

    Raises:
        ConfigError: no target, no source, or one site named twice.
    """

    target: str
    sources: tuple[str, ...]
    seed: int = 0
    data_dir: Path | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    labelled_target: bool = True
    metric: str = ""

    def __post_init__(self) -> None:
        if not self.target:
            raise ConfigError("target", "a federation has one target site")
        if not self.sources:
            raise ConfigError("sources", "a federation has at least one source site")
        names = (self.target, *self.sources)
        if len(set(names)) < len(names):
            raise ConfigError("sources", "a site is named twice")
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    def lacks_labels(self, site: str) -> bool:
        """Whether ``site`` is a target whose training rows need no labels."""
        return site == self.target and not self.labelled_target

    def reject_unknown_options(self, *known: str) -> None:
        """Raise ConfigError for the first option outside ``known``, naming the nearest one."""
        for name in self.options:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known options: {', '.join(known) or 'none'}"
                raise ConfigError(f"task.options.{name}", "unknown option", hint=hint)

    def require_sites(self, known: Collection[str], what: str) -> None:
        """Raise ConfigError unless each site is a known one; ``what`` says in words what they all are."""
        for site in (self.target, *self.sources):
            if site not in known:
                raise ConfigError("sites", f"{site} is no {what}", hint=f"known: {', '.join(known)}")

    def number(self, name: str, default: float, *, low: float, high: float) -> float:
        """Return option ``name`` as a float in [low, high]; raise ConfigError if it is anything else."""
        value = self.options.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ConfigError(f"task.options.{name}", f"{value!r} is not a number")
        if not low <= value <= high:
            raise ConfigError(f"task.options.{name}", f"{value:g} is outside [{low:g}, {high:g}]")
        return float(value)

    def count(self, name: str, default: int, *, low: int, high: int) -> int:
        """Return option ``name`` as an int in [low, high]; raise ConfigError if it is anything else."""
        value = self.options.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"task.options.{name}", f"{value!r} is not a whole number")
        if not low <= value <= high:
            raise ConfigError(f"task.options.{name}", f"{value} is outside [{low}, {high}]")
        return value

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        """Return option ``name``, one of ``allowed``; raise ConfigError if it is anything else."""
        value = self.options.get(name, default)
        if not isinstance(value, str) or value not in allowed:
            raise ConfigError(f"task.options.{name}", f"{value!r} is not one of {', '.join(allowed)}")
        return value


class Task(ABC):
    """One learning problem. Subclasses read ``self.settings`` and answer for one site at a time.

    Every method is a pure function of the settings and of the site's files: two calls, or two processes, get the
    same rows in the same order. ``model`` can use torch's global generator, as layers do: the caller seeds it and
    restores it afterwards. Running statistics of BatchNorm stay at their site; DP-SGD refuses a model with BatchNorm.

    Set ``separate_rows`` to True if each row is prepared from its own record and from public numbers alone. Leave it
    False if, say, the task standardises with the mean of the site's rows: one record then changes every row, which
    clipping single gradients does not bound, so DP-SGD refuses the task.

    Set ``sums_only`` to True if the model's outputs are constants, and the rule ``analytic`` is to fit the mean of
    :meth:`head_targets` over the sources' rows to them, without a ridge: a run of it gives statistics, and no model.

    ``metric`` names the one of its metrics that chooses the best model, ends a run early, and says whether the
    federation helped, unless the federation's ``task.metric`` names another. It is one of
    `securefda.task_metric.METRICS` or of ``own_metrics``, in which a task declares metrics of its own.

    Set ``public_rows`` to True if all rows are public and the seed assigns them to the sites. `securefda budget advise`
    then tries settings on the rows that other seeds assign.
    """

    separate_rows: bool = False
    public_rows: bool = False
    sums_only: bool = False
    metric: str = ACCURACY.name
    own_metrics: tuple[TaskMetric, ...] = ()

    def __init__(self, settings: TaskSettings) -> None:
        self.settings = settings

    @property
    def chosen_metric(self) -> TaskMetric:
        """The metric that ``task.metric`` of the federation names, or else the task's own ``metric``.

        Raises:
            ConfigError: no metric of this name is declared.
        """
        name, declared = self.settings.metric or self.metric, {**METRICS, **{one.name: one for one in self.own_metrics}}
        if name not in declared:
            near = get_close_matches(name, declared, n=1)
            hint = f"did you mean {near[0]}?" if near else "a task declares metrics of its own as own_metrics"
            why = f"{name!r} is no metric that securefda or task {type(self).__name__} declares"
            raise ConfigError("task.metric", why, hint=hint)
        return declared[name]

    @abstractmethod
    def model(self) -> nn.Module:
        """Return a new model with float32 parameters, initialised at random."""

    @abstractmethod
    def train_data(self, site: str) -> Samples | Unlabelled | Dataset[Any] | DataLoader[Any]:
        """Return the rows that ``site`` trains on; at the target, the few labelled ones.

        Rows that do not fit in memory can be a map-style ``Dataset`` of pairs (inputs, label), or a ``DataLoader`` of
        it, see ``RowsOnDisk``.

        A target without labels can return :class:`Unlabelled`. If it returns labels although the settings say that
        there are none, the framework hides them.
        """

    @abstractmethod
    def test_data(self, site: str) -> Samples | Dataset[Any] | DataLoader[Any] | None:
        """Return the rows that ``site`` holds out; None for a source that holds out none, and for an unlabelled target
        without any labelled row.

        A run reads the target's alone.
        """

    @abstractmethod
    def loss(self, outputs: Inputs, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch, a scalar that can be differentiated.

        ``outputs`` are what the model returns: a tensor, or a dict or tuple of tensors, with the rows in dimension 0.
        """

    def row_losses(self, outputs: Inputs, labels: Tensor) -> Tensor:
        """Return the loss of each row by itself, (n,); :meth:`loss` returns their mean. DP-SGD uses this method.

        The default applies ``loss`` to each row with ``torch.func.vmap``. Override it if there is a quicker way. The
        loss of a row must not depend on any other row: DP-SGD's epsilon does not hold otherwise.
        """

        def loss_of(output: Inputs, label: Tensor) -> Tensor:
            return self.loss(map_tensors(lambda tensor: tensor[None], output), label[None])

        losses: Tensor = torch.func.vmap(loss_of)(outputs, labels)
        return losses

    @abstractmethod
    def metrics(self, outputs: Inputs, labels: Tensor) -> dict[str, float]:
        """Return metrics by name over all rows given, each one number; NaN where these rows do not define it.

        :attr:`chosen_metric` must be among them. ``accuracy`` need not; it lies in [0, 1], as every metric that is
        printed in percent. :mod:`securefda.tasks.metric_functions` has the usual ones.
        """

    def row_accuracies(self, outputs: Inputs, labels: Tensor) -> Tensor:
        """Return the accuracy of each row by itself, (n,); where :meth:`metrics` returns their mean as
        ``accuracy``, two models can be compared row by row.

        The default calls ``metrics`` with one row at a time. Override it if there is a quicker way.
        """
        rows = (slice(row, row + 1) for row in range(len(labels)))
        return torch.tensor([float(self.metrics(take(outputs, row), labels[row])["accuracy"]) for row in rows])

    def oracle_data(self) -> Samples | Unlabelled | Dataset[Any] | DataLoader[Any]:
        """Return the rows that the oracle baseline (the upper bound) trains on: all labelled training rows of the
        target. Default: train_data.
        """
        return self.train_data(self.settings.target)

    def unlabelled_data(self) -> Unlabelled | None:
        """Return further rows of a target with labels, whose own labels are not known; None, the default, for none.

        They are rows neither of :meth:`train_data` nor of :meth:`test_data`, and ``training.adapt`` alone uses them.
        """
        return None

    def head_targets(self, labels: Tensor, outputs: int) -> Tensor:
        """Return what a linear head fits by least squares, (n, outputs), under the analytic rule.

        Default: of C classes, 1 - 1/C for the row's and -1/C for every other; other labels stay as they are. Where
        labels are 0 and 1 and logits decide, as with several labels of a row, define it as ``2 * labels - 1``.

        Args:
            labels: in the form of `Samples.labels`.
            outputs: number of outputs of the model.

        Raises:
            ConfigError: the labels do not fit so many outputs.
        """
        if labels.ndim == 1 and not labels.is_floating_point():
            if outputs > int(labels.max()) and int(labels.min()) >= 0:
                return nn.functional.one_hot(labels.long(), outputs) - 1.0 / outputs
        elif labels.numel() == len(labels) * outputs:
            return labels.reshape(len(labels), outputs)
        why = f"its labels do not fit the {outputs} outputs of the model, and the analytic rule fits one to the other"
        raise ConfigError(f"task {type(self).__name__}", why, hint="define head_targets(self, labels, outputs)")

    def guesses(self, outputs: Inputs) -> tuple[Tensor, Tensor]:  # noqa: ARG002 - others use it
        """Return a predicted label for each row, in the form of `Samples.labels`, and its confidence, (n,) in [0, 1].

        A target without labels can train on the predictions of high confidence (pseudo-labels). Classification tasks
        can define this method.

        Raises:
            ConfigError: the task does not define it.
        """
        raise ConfigError(
            f"task {type(self).__name__}",
            "does not say how sure a model is of a label, which pseudo-labels need",
            hint="define guesses(self, outputs) in the task; it returns labels and how sure the model is of each",
        )

    def varied(self, features: Inputs, generator: torch.Generator) -> Inputs:  # noqa: ARG002 - others use it
        """Return an augmented batch: the rows with small random changes that leave the label true. Default: unchanged.

        Used with ``training.vary`` and for training on pseudo-labels. ``generator`` is on the CPU.
        """
        return features

    def inputs_from(self, path: Path) -> Inputs:
        """Read rows without labels from a file or folder; return model inputs (n, ...), n >= 1, in the file's order.

        ``securefda predict`` calls it on the path that the user gives. A task need not define it.

        Raises:
            ConfigError: the task does not define it.
            DataError: the file is missing, or a row cannot be used; rows are never skipped.
        """
        raise ConfigError(
            f"task {type(self).__name__}",
            f"does not say how it reads inputs without labels, such as {path.name}",
            hint="a task of your own defines inputs_from(self, path), which returns what the model takes, (n, ...)",
        )

    def input_names(self, path: Path) -> tuple[str, ...]:  # noqa: ARG002 - others use it
        """Return a name for each row of :meth:`inputs_from`, so that users can find it again; none by default."""
        return ()

    def predictions(self, outputs: Inputs) -> list[dict[str, str | float]]:
        """Turn the model's outputs (n, ...) into one row of named values each, for display and CSV files.

        Default: the raw numbers, named ``output-1`` and so on; of several outputs, by the name of each.
        """
        columns: dict[str, list[float]] = {}
        for name, tensor in named_tensors(outputs, "output").items():
            for place, column in enumerate(tensor.reshape(len(tensor), -1).double().T.tolist(), start=1):
                columns[f"{name}-{place}"] = column
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def class_names(self) -> tuple[str, ...]:
        """Return a name for each class if labels are class numbers; none by default."""
        return ()

    def feature_names(self) -> tuple[str, ...]:
        """Return a name for each column of the features if they are (n, k), for messages; none by default."""
        return ()

    def scaling_caution(self, rows: Rows) -> str:  # noqa: ARG002 - others use it
        """Return a warning for a site's operator about how its training rows are scaled; empty by default.

        It tells about the rows, so it is shown at the site alone.
        """
        return ""

    def require_own_sides(self, site: str) -> None:  # noqa: B027 - most tasks need not define it
        """Raise ConfigError if one more row at ``site`` could change which other rows train; noise does not cover that.

        By default it cannot.
        """

    def require_site(self, site: str) -> None:
        """Raise ConfigError if ``site`` is neither the target nor a source."""
        if site != self.settings.target and site not in self.settings.sources:
            known = ", ".join((self.settings.target, *self.settings.sources))
            raise ConfigError("site", f"{site} has no part in this task", hint=f"sites: {known}")


def load_task(factory: str, settings: TaskSettings) -> Task:
    """Import ``factory`` ("package.module:Class") and build the task.

    Raises:
        ConfigError: as of :func:`task_class` and of `Task.chosen_metric`, or the task refuses its options.
        DataError: the task finds a data file missing or corrupt, or its constructor fails.
    """
    task_type = task_class(factory)
    with task_code(task_type, "its constructor"):
        task = task_type(settings)
        _ = task.chosen_metric
        return task


def task_class(factory: str) -> type[Task]:
    """Import ``factory`` ("package.module:Class"), which runs the code of its module.

    Raises:
        ConfigError: ``task.factory`` has another form, its module cannot be imported, or it is not a Task.
    """
    task_type = named_object("task.factory", factory, "Class")
    if not (isinstance(task_type, type) and issubclass(task_type, Task)):
        raise ConfigError("task.factory", f"{factory} is not a subclass of securefda.tasks.Task")
    missing = sorted(task_type.__abstractmethods__)
    if missing:
        raise ConfigError("task.factory", f"{factory} does not define {', '.join(missing)}")
    return task_type


def named_object(key: str, name: str, kind: str) -> object:
    """Import what ``name`` ("package.module:Name") names, which runs the code of its module; errors say ``key``.

    Raises:
        ConfigError: it has another form, its module cannot be imported, or has nothing of that name.
    """
    module_name, colon, inner = name.partition(":")
    if not (colon and inner.isidentifier() and all(part.isidentifier() for part in module_name.split("."))):
        raise ConfigError(key, f"{name!r} is not of the form package.module:{kind}")
    named = getattr(_import(key, module_name), inner, None)
    if named is None:
        raise ConfigError(key, f"module {module_name} has no {inner}")
    return named


def _import(key: str, module_name: str) -> ModuleType:
    try:
        on_the_path = importlib.util.find_spec(module_name.partition(".")[0]) is not None
    except ValueError:  # a module put into sys.modules by hand can lack a spec
        on_the_path = True
    here = "" if on_the_path else _take_current_folder()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        own = error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}."))
        if not own:
            why = f"module {module_name} needs {error.name}, not installed"
            raise ConfigError(key, why, hint=f"install {error.name}") from error
        file = f"{module_name.partition('.')[0]}.py"
        why = f"there is no module {module_name}, installed or in the current folder {Path.cwd()}"
        hint = here or f"start in the folder that holds {file}, or put that folder on PYTHONPATH"
        raise ConfigError(key, why, hint=hint) from error
    except Exception as error:  # the user's module may raise anything
        why = f"module {module_name} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(key, why, hint=f"python -c 'import {module_name}' shows where") from error


def _take_current_folder() -> str:
    """Append the current folder to ``sys.path``; return why it was refused, or "".

    The folder comes last, and only for a module that is found nowhere else, so no file in it shadows an installed
    package. A world-writable folder such as ``/tmp`` is refused: any user of the machine could put the module there.
    """
    here = Path.cwd()
    if here.stat().st_mode & stat.S_IWOTH:
        return f"every user may write to {here}, so no module is taken from it: start in a folder of your own"
    if str(here) not in sys.path:
        sys.path.append(str(here))
        importlib.invalidate_caches()
    return ""


def seed_with(description: bytes) -> None:
    """Seed torch's global generator from itself and ``description``, before a task builds its model.

    A source compares the first model of a run with its own (policy key ``model.initial``). So it refuses a run whose
    target describes columns, scaling or classes otherwise, although the two models have the same shape.
    """
    drawn = torch.randint(2**62, ()).item()
    digest = hashlib.sha256(b"securefda first model %d " % drawn + description).digest()
    torch.default_generator.manual_seed(int.from_bytes(digest[:4], "big"))
