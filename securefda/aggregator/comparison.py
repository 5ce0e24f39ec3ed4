"""What the federation adds for the target: a run compared with the target alone, which trains after the run.

The target trains alone twice: from the run's first model (`target_only`) and from the model that the run had after its
warm-up, at the rates of the rounds after it (`warm_target`). Nothing of either leaves the target, and no source hears
of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from securefda.errors import ConfigError, SecureFdaError
from securefda.operations.paired import bootstrap_help, paired_help
from securefda.operations.progress import Reporter
from securefda.operations.records import (
    REPORTED_ROUNDS,
    Baseline,
    Help,
    RoundLine,
    Summary,
    mean_metrics,
    metrics_in,
)
from securefda.parse import load_object, number
from securefda.protocol.encoding import vector_to_wire
from securefda.task_metric import ACCURACY
from securefda.tasks import Samples, Task, task_code
from securefda.text import counted
from securefda.training import Evaluation, LocalResult, PersonalMemory, Vector


def warm_model_key(run_id: str) -> str:
    """Return the key of the model that warm-up has left."""
    return f"{run_id} warm-model"


def rows_key(place: str) -> str:
    """Return the key of what `Evaluation.by_row` gave in the last rounds, of a run or of a baseline."""
    return f"{place} test-rows"


class LoneTrainer(Protocol):
    """The part of :class:`securefda.training.trainer.Trainer` that the target needs alone."""

    def initial_model(self) -> Vector:
        """Return the first model of the run, float32 (m,)."""

    def train(self, received: Vector, round_number: int, factor: float, *, run_id: str = "") -> LocalResult:
        """Train one round from ``received``, float32 (m,)."""

    def evaluate(self, vector: Vector, data: Samples) -> Evaluation:
        """Return loss and metrics of a model, float32 (m,), over ``data``."""


@dataclass(frozen=True, slots=True, repr=False)
class TargetAlone:
    """Trains the target without any source, for comparison with a run. Nothing of it leaves the target.

    Attributes:
        trainer: makes the trainer, which uses the run's first model and the target's training rows.
        test_data: rows for evaluation.
        task: whose metrics they are measured in.
        memory: keeps what is compared, and the results, so that a restarted process need not train again.
        warm_up: number of the run's rounds of warm-up.
        factor: of the learning rates in the rounds after warm-up.
    """

    trainer: Callable[[], LoneTrainer]
    test_data: Samples
    task: Task
    memory: PersonalMemory
    warm_up: int = 0
    factor: float = 1.0

    def keep_warm_model(self, run_id: str, round_number: int, model: Vector) -> None:
        """Keep the model with which the first round after warm-up begins; do nothing before other rounds."""
        if self.warm_up and round_number == self.warm_up + 1:
            self.memory.keep_personal(warm_model_key(run_id), self.warm_up, vector_to_wire(model).tobytes())

    def rows_with(self, run_id: str, round_number: int, rows: Vector) -> tuple[str, bytes]:
        """Return what `Evaluation.by_row` gave in the last rounds, ``rows`` of this one included: the key, and what to
        keep under it.
        """
        key = rows_key(run_id)
        return key, _rows_after(self.memory.personal(key, round_number), rows)

    def run_rows(self, run_id: str, round_number: int) -> Vector | None:
        """Return what `Evaluation.by_row` gave in the last rounds up to this one, a line for each; or None."""
        return self._by_round(self.memory.personal(rows_key(run_id), round_number + 1))

    def _by_round(self, kept: bytes | None) -> Vector | None:
        rows, values = len(self.test_data), np.frombuffer(kept or b"", "<f4")
        if not values.size:
            return None
        width = rows if self.task.chosen_metric == ACCURACY else 1 + rows * int(values[0])
        return None if values.size % width else values.reshape(-1, width)

    def train(self, run_id: str, numbers: Sequence[int]) -> tuple[Baseline, Vector | None]:
        """Train from the run's first model in the rounds with these numbers, with the target's random choices in each.

        Returns:
            The result, and the test rows as of :meth:`run_rows`.

        Raises:
            TrainingError, DataError, ConfigError: training fails, or its rows now have a ledger.
        """
        return self._trained(f"{run_id} target-only", run_id, numbers, lambda trainer: trainer.initial_model(), 1.0)

    def train_warm(
        self, run_id: str, numbers: Sequence[int], before: Sequence[dict[str, float]] = ()
    ) -> tuple[Baseline, Vector | None]:
        """Train from the model that the run had after warm-up, at the rates of the rounds after it.

        Args:
            run_id: of the run.
            numbers: of the rounds after warm-up.
            before: the run's metrics in those rounds of its warm-up that are among its last rounds, because fewer
                came after; both share them.

        Raises:
            TrainingError, DataError, ConfigError: as of :meth:`train`, or the model was not kept.
        """
        kept = self.memory.personal(warm_model_key(run_id), self.warm_up + 1)
        if kept is None:
            raise ConfigError("warm-target", "the run's state holds no model of the end of its warm-up")
        start = np.frombuffer(kept, "<f4").astype(np.float32)
        of_run = self.run_rows(run_id, numbers[-1])
        rows = b"" if of_run is None else of_run[: len(before)].tobytes()
        place = f"{run_id} warm-target"
        return self._trained(place, run_id, numbers, lambda _: start, self.factor, before=before, rows=rows)

    def _trained(
        self,
        place: str,
        run_id: str,
        numbers: Sequence[int],
        start: Callable[[LoneTrainer], Vector],
        factor: float,
        *,
        before: Sequence[dict[str, float]] = (),
        rows: bytes = b"",
    ) -> tuple[Baseline, Vector | None]:
        rounds = len(numbers)
        if known := self.memory.personal(place, rounds + 1):
            found = baseline_of(known)
            if found["rounds"] == rounds:
                return found, self.run_rows(place, rounds)
        trainer, measured = self.trainer(), [RoundLine(round=0, metrics=metrics) for metrics in before]
        model = start(trainer)
        for played, round_number in enumerate(numbers, start=1):
            model = model + trainer.train(model, round_number, factor, run_id=run_id).update
            if played > rounds - REPORTED_ROUNDS:
                evaluation = trainer.evaluate(model, self.test_data)
                measured.append(RoundLine(round=played, metrics=evaluation.metrics))
                by_row = evaluation.by_row()
                rows = b"" if by_row is None else _rows_after(rows, by_row)
        means, final = mean_metrics(measured), metrics_in(measured[-1]).get(ACCURACY.name)
        found = Baseline(accuracy=means.get(ACCURACY.name), final=final, rounds=rounds, metrics=means)
        self.memory.keep_personal(rows_key(place), rounds, rows)
        self.memory.keep_personal(place, rounds, json.dumps(found).encode())
        return found, self.run_rows(place, rounds)


def help_by_rows(task: Task, test: Samples, run: Vector, other: Vector) -> Help | None:
    """Return by how much one model differs from another in the task's chosen metric, with an interval over test rows.

    None where the rows give no interval.

    Args:
        task: its metrics, if they are not the accuracy, are computed once more for each resample of the rows.
        test: the rows.
        run: what `Evaluation.by_row` gave of the one model, a line for each round.
        other: the same of the other model.
    """
    if (metric := task.chosen_metric) == ACCURACY:
        return paired_help(run.mean(axis=0, dtype=np.float64), other.mean(axis=0, dtype=np.float64))
    outputs = [[torch.from_numpy(of[1:].reshape(len(test), -1).copy()) for of in kept] for kept in (run, other)]

    def difference(chosen: NDArray[np.int64]) -> float:
        rows = torch.from_numpy(chosen)
        with torch.no_grad(), task_code(type(task), "evaluation"):
            values = [[task.metrics(of[rows], test.labels[rows])[metric.name] for of in kept] for kept in outputs]
        return fmean(values[0]) - fmean(values[1])

    return bootstrap_help(difference, len(test))


def _rows_after(kept: bytes | None, rows: Vector) -> bytes:
    """Return the rows of the last rounds with those of one more round, float32."""
    data = vector_to_wire(rows).tobytes()
    return ((kept or b"") + data)[-REPORTED_ROUNDS * len(data) :]


def baseline_of(data: bytes) -> Baseline:
    """Read the result that the state folder keeps.

    Raises:
        ConfigError: it is damaged.
    """
    try:
        fields = load_object(data, "accuracy", "final", "rounds", "metrics")
        accuracy, final, metrics = fields["accuracy"], fields["final"], fields["metrics"]
        if not isinstance(metrics, dict) or not all(isinstance(one, float) for one in metrics.values()):
            raise ValueError("metrics are numbers by name")
        if not isinstance(accuracy, float | None) or not isinstance(final, float | None):
            raise ValueError("a share is needed")
        return Baseline(accuracy=accuracy, final=final, rounds=number(fields["rounds"]), metrics=metrics)
    except ValueError as error:
        hint = "put the folder back as it was, or name another --out folder"
        raise ConfigError("target-only", "the run's state holds a result that is damaged", hint=hint) from error


def with_comparison(
    summary: Summary, alone: TargetAlone | None, records: Sequence[object], reporter: Reporter
) -> Summary:
    """Add the target's results alone to the summary of a finished run; where that training fails, a note says why.

    Args:
        summary: of the run.
        alone: None where nothing is to be compared.
        records: the run's round lines.
        reporter: hears what the target does now.
    """
    lines = [line for line in cast(Sequence[RoundLine], records) if line.get("status") == "finished"]
    if alone is None or not lines:
        return summary
    finished = [line["round"] for line in lines]
    warm = [number for number in finished if number > alone.warm_up] if alone.warm_up else []
    before = [metrics_in(line) for line in lines[-REPORTED_ROUNDS:] if line["round"] <= alone.warm_up]
    again = f", and {counted(len(warm), 'round')} from the model after warm-up" if warm else ""
    reporter.note(f"the run is over; the target trains alone for {counted(len(finished), 'round')}{again}, to compare")
    reporter.phase("training alone, to compare")
    run_rows = alone.run_rows(summary.run_id, finished[-1])

    def compared(trained: tuple[Baseline, Vector | None]) -> Baseline:
        (found, rows), name = trained, alone.task.chosen_metric.name
        own, other = summary.target_metrics.get(name), found["metrics"].get(name)
        if own is None or other is None:
            return found
        if run_rows is not None and rows is not None:
            paired = help_by_rows(alone.task, alone.test_data, run_rows, rows)
            if paired is not None and math.isclose(paired["difference"], own - other, rel_tol=1e-3, abs_tol=1e-5):
                return {**found, "help": paired}
        return {**found, "help": Help(difference=own - other, low=None, high=None, test_rows=len(alone.test_data))}

    try:
        summary = replace(summary, target_only=compared(alone.train(summary.run_id, finished)))
    except SecureFdaError as error:
        reporter.note(f"no comparison with the target alone: {error}")
    try:
        if warm:
            summary = replace(summary, warm_target=compared(alone.train_warm(summary.run_id, warm, before)))
    except SecureFdaError as error:
        reporter.note(f"no comparison with the warm-started target: {error}")
    return summary
