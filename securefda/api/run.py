"""A run in Python: its figures, its model, and what the model predicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from securefda.api.shown import explained, html_table
from securefda.errors import ConfigError
from securefda.operations.records import RoundLine, metrics_in, round_seconds
from securefda.operations.report import metric_points, write_report
from securefda.operations.run_folder import RunRecord, read_run
from securefda.operations.run_list import FoundRun, found_run, runs_below
from securefda.operations.summary_text import ALONE, WARM, help_text, interval_text
from securefda.task_metric import TaskMetric, with_balance

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from torch import nn

    from securefda.tasks import Task
    from securefda.tasks.inputs import Inputs


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much a run is better than the target alone, on the same test rows, in the run's metric.

    Attributes:
        baseline: the value of the target alone.
        difference: the run's value minus that one.
        low, high: the paired 95 % interval of the difference over test rows; None where these give none.
        test_rows: how many there are.
    """

    baseline: float
    difference: float
    low: float | None
    high: float | None
    test_rows: int


class Help:
    """Whether a federation helped its target: the run against both baselines.

    Attributes:
        target_only: against the target alone, from the run's first model; None where it was not measured.
        warm_target: against the target alone from the model after warm-up, at the same rates; None likewise, and
            without warm-up.
    """

    def __init__(self, found: FoundRun, text: str) -> None:
        self.target_only = _difference(found, "target_only")
        self.warm_target = _difference(found, "warm_target")
        self._text = text

    def __bool__(self) -> bool:
        """Whether any baseline was measured."""
        return bool(self.target_only or self.warm_target)

    def __repr__(self) -> str:
        return self._text or "not compared with the target alone"


def _difference(found: FoundRun, name: str) -> Difference | None:
    helped, values = found.helped.get(name), found.baselines.get(name, {})
    if helped is None or found.metric.name not in values:
        return None
    return Difference(values[found.metric.name], **helped)


class Run:
    """A run on this machine, finished or not: the contents of its folder.

    `Federation.simulate` and `Federation.run` return one, and :meth:`open` reads a folder. Figures stay as they were
    then; open the folder again for what has come since.

    Attributes:
        path: the run's folder.
    """

    def __init__(self, found: FoundRun, task: type[Task] | str | None = None) -> None:
        self.path = found.path
        self._found, self._task = found, task

    @classmethod
    def open(cls, folder: str | Path, *, task: type[Task] | str | None = None) -> Self:
        """Read a run folder.

        Args:
            folder: as `securefda runs ls` names it; of the target, or of a source, which has less.
            task: its task, where that does not come with securefda: the class, or ``"package.module:Class"``. Only
                `model` and `predict` need it. A folder may be somebody else's, so no code runs because of what it says.

        Raises:
            ConfigError: there is no run in the folder, or a file of it is damaged.
        """
        with explained():
            run = cls(found_run(Path(folder)), task)
            run._record = read_run(run.path)  # now: a run with fresh=True may come into the folder
            return run

    @property
    def status(self) -> str:
        """``finished``, ``failed``, ``interrupted``, or ``open`` while it goes on or after it was killed."""
        return self._found.status

    @property
    def rule(self) -> str:
        """The rule of its strategy."""
        return self._found.rule

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the target's test rows, from 0 to 1, as the mean over the last rounds, at most five.

        None for a task without accuracy, and without a finished round.
        """
        return self._found.accuracy

    @property
    def metrics(self) -> dict[str, float]:
        """All of the task's metrics by name, each the same mean."""
        return dict(self._found.metrics)

    @property
    def help(self) -> Help:
        """By how much the federation helped, against both baselines, with intervals; printed, it is one line."""
        return Help(self._found, help_text(self.summary))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the run's summary holds, by dotted key."""
        return dict(self._found.settings)

    @property
    def summary(self) -> Mapping[str, Any]:
        """What ``summary.json`` holds; empty until the run has ended."""
        return self._record.summary or {}

    @property
    def rounds(self) -> tuple[RoundLine, ...]:
        """The line of each round, as ``metrics.jsonl`` has it."""
        return self._record.rounds

    @cached_property
    def _record(self) -> RunRecord:
        with explained():
            return read_run(self.path)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas data frame with a row for each round, by its number.

        Columns are the rule, the status, each metric, losses, the mean β, the sources' share of the step, how many
        sources were in it, seconds, and bytes in both directions.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            with explained():
                hint = "pip install pandas; run.rounds has the same without it"
                raise ConfigError("pandas", "is not installed, and to_frame makes its data frame", hint=hint) from error
        return pd.DataFrame([round_row(line) for line in self.rounds]).set_index("round")

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the run's metric over the rounds, with both baselines as lines, and return the axes.

        Args:
            axes: of matplotlib, to draw into; None for those of a new figure.
        """
        import matplotlib.pyplot as plt
        from matplotlib.ticker import MaxNLocator

        metric, factor = self._found.metric, 100.0 if self._found.metric.percent else 1.0
        if axes is None:
            _, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
        points = metric_points(self.rounds, metric.name)
        label = self.rule or "run"
        axes.plot([number for number, _ in points], [factor * value for _, value in points], marker=".", label=label)
        for name, words, style in (("warm_target", WARM, "--"), ("target_only", ALONE, ":")):
            if (value := self._found.baselines.get(name, {}).get(metric.name)) is not None:
                axes.axhline(factor * value, linestyle=style, color="0.4", label=words)
        axes.set_xlabel("round")
        axes.set_ylabel(f"target {metric.title}{', %' if metric.percent else ''}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        return axes

    def report(self) -> Path:
        """Write the run's ``report.html`` and its model card from what its folder holds now, and return the page.

        Raises:
            ConfigError: a file of the run is damaged.
            SecureFdaError: the page cannot be written.
        """
        with explained():
            path = write_report(self.path)
            if path is None:
                raise ConfigError(str(self.path), "is no run folder any more")
            return path

    @property
    def model(self) -> nn.Module:
        """The model in evaluation mode, on the CPU, as the target adapted it if the run kept that, else the last.

        Raises:
            ConfigError: there is no finished round, the file is not the model that the summary names, or the run's
                task does not come with securefda and was not given: see :meth:`open`.
            DataError: the task cannot be built.
        """
        return self._trained[1]

    def load_model(
        self,
        which: Literal["last", "best", "adapted"] | None = None,
        *,
        head: bool = True,
        options: Mapping[str, Any] | None = None,
        data_dir: str | Path | None = None,
    ) -> nn.Module:
        """Return one of the run's models, in evaluation mode on the CPU.

        Args:
            which: the model after the last round, the best one on the target's validation rows, or the last one as the
                target adapted it; None as for `model`.
            head: whether a head of the target's own (``strategy.head``) has its say.
            options: of the task, over those in the run's summary, which leaves out secrets.
            data_dir: folder of the task's files; None for the one that the run used.

        Raises:
            ConfigError: as for `model`, or the run kept no such model.
            DataError: the task cannot be built.
        """
        place = None if data_dir is None else Path(data_dir)
        return self._load(which=which, head=head, options=dict(options or {}), data_dir=place)[1]

    def predict(self, rows: Any) -> np.ndarray[Any, Any]:
        """Return what the model predicts: the class of each row, (n,), by its name or else its number; or numbers.

        Of a task that does not say which class is the most probable (`Task.guesses`), these are the numbers of
        `Task.predictions`, (n,) or (n, k): by default the model's outputs.

        Args:
            rows: features without labels, as for :func:`securefda.task_from`; or a path, for a task that reads files as
                ``securefda predict`` does. Of a built-in task they are what its model takes, such as scaled columns.

        Raises:
            DataError: the rows are unfit, or the model's own code fails.
            ConfigError: as for `model`.
        """
        with explained():
            task, outputs = self._outputs(rows)
            try:
                numbers = np.asarray(task.guesses(outputs)[0])
            except ConfigError:
                kept = _columns(task, outputs, lambda _, value: not isinstance(value, str))
                return kept[:, 0] if kept.shape[1] == 1 else kept
            return numbers if self.classes is None else self.classes[numbers]

    def predict_proba(self, rows: Any) -> np.ndarray[Any, Any]:
        """Return the probability of each class, (n, C) float64; columns are in the order of `classes`.

        Arguments and errors as for `predict`, and:

        Raises:
            ConfigError: the task predicts no probabilities.
        """
        with explained():
            task, outputs = self._outputs(rows)
            found = _columns(task, outputs, lambda name, _: name.startswith("probability "))
            if not found.size:
                why = f"task {type(task).__name__} predicts no probabilities"
                raise ConfigError("predict_proba", why, hint="predict returns what it predicts")
            return found

    @property
    def classes(self) -> np.ndarray[Any, Any] | None:
        """Names of the classes, (C,), in the order of the model's outputs; None where they have none but numbers."""
        names = self._trained[0].class_names()
        return np.array(names) if names else None

    def __repr__(self) -> str:
        said = self.help if self.help else _value(self._found.metric, self.metrics)
        return f"<Run {self.path}: {self.status}, {self._progress}, {self.rule}; {said}>"

    def _repr_html_(self) -> str:
        found = self._found
        rows = {
            "run": str(self.path),
            "status": f"{self.status}, {self._progress}",
            "task": found.task,
            "rule": self.rule,
            f"target {found.metric.title}": with_balance(found.metric, self.metrics),
        }
        for name, words in (("target_only", ALONE), ("warm_target", WARM)):
            if name in found.baselines:
                rows[words] = with_balance(found.metric, found.baselines[name])
                rows[f"over the {words}"] = interval_text(found.helped.get(name), found.metric)
        return html_table(rows)

    @property
    def _progress(self) -> str:
        of = f" of {self._found.planned}" if self._found.planned else ""
        return f"{self._found.rounds}{of} rounds"

    @cached_property
    def _trained(self) -> tuple[Task, nn.Module]:
        return self._load()

    def _load(self, **arguments: Any) -> tuple[Task, nn.Module]:
        from securefda.operations.trained import trained_model

        with explained():
            named = self._task or ""
            if not isinstance(named, str):
                from securefda.api.user_task import factory_of

                named = factory_of(named)
            return trained_model(self.path, task=named, **arguments)

    def _outputs(self, rows: Any) -> tuple[Task, Inputs]:
        from securefda.api.given_data import as_inputs
        from securefda.operations.trained import outputs_of, require_trained_layers
        from securefda.tasks import task_code
        from securefda.tasks.inputs import require_rows

        require_trained_layers(self.path)
        task, model = self._trained
        if isinstance(rows, str | Path):
            with task_code(type(task), "inputs_from"):
                inputs = task.inputs_from(Path(rows))
        else:
            inputs = as_inputs(rows, task.feature_names())
        require_rows(inputs, "feature")
        return task, outputs_of(task, model, inputs)


def runs(folder: str | Path = "runs") -> list[Run]:
    """Return all runs in a folder and its sub-folders, the latest last, as ``securefda runs ls`` lists them.

    Raises:
        ConfigError: the folder does not exist.
    """
    with explained():
        return [Run(found) for found in runs_below(Path(folder))]


def round_row(line: RoundLine) -> dict[str, Any]:
    """Return a round as one row of plain values."""
    kept = ("loss", "validation_loss", "mean_beta", "source_share", "target_epsilon")
    return {
        "round": line["round"],
        "rule": line.get("rule", ""),
        "status": line.get("status", "finished"),
        **metrics_in(line),
        **{key: line[key] for key in kept if key in line},  # type: ignore[literal-required]
        "sources": len(line.get("survivors", [])),
        "seconds": round_seconds(line),
        "bytes_up": sum(line.get("bytes_up", {}).values()),
        "bytes_down": sum(line.get("bytes_down", {}).values()),
    }


def _value(metric: TaskMetric, metrics: Mapping[str, float]) -> str:
    return f"{metric.title} {with_balance(metric, metrics)}"


def _columns(task: Task, outputs: Inputs, wanted: Callable[[str, str | float], bool]) -> np.ndarray[Any, Any]:
    """Return some of the columns that a task predicts, (n, k) float64, chosen by name and value."""
    from securefda.tasks import task_code

    with task_code(type(task), "predictions"):
        rows = task.predictions(outputs)
    return np.array([[value for name, value in row.items() if wanted(name, value)] for row in rows], dtype=float)
