"""Recording of a run in its folder while it goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from safetensors.numpy import save
from safetensors.torch import save as save_tensors

from securefda import __version__
from securefda.operations.progress import PassingReporter, Reporter
from securefda.operations.records import RoundLine, best_round
from securefda.operations.run_folder import BEST_FILE, MODEL_FILE, RunFolder, read_run
from securefda.tasks import Samples
from securefda.training import LayerTable, Vector
from securefda.training.batch_norm import Statistic


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """The run that a model file belongs to, for the file's metadata."""

    task: str
    run_id: str
    architecture_digest: bytes

    def after(self, line: RoundLine | None) -> str:
        """Return the JSON for the model after a round of the run; None means before the first."""
        return self.of(line["round"], line["model_digest"], line.get("rule", "")) if line else self.of(0)

    def of(self, round_number: int, digest: str = "", rule: str = "") -> str:
        """Return the JSON for the model of a round, with its digest and the round's rule if these are known."""
        said = {
            "task": self.task,
            "run": self.run_id,
            "round": round_number,
            "digest": digest,
            "rule": rule,
            "architecture": self.architecture_digest.hex(),
            "securefda": __version__,
        }
        return json.dumps({name: one for name, one in said.items() if one != ""}, sort_keys=True)


def model_file(
    layers: LayerTable, model: Vector, origin: str = "", *, statistics: Mapping[str, Statistic] = MappingProxyType({})
) -> bytes:
    """Return a model, float32 (m,), in the safetensors format: one tensor per layer and per running statistic, by name.

    ``origin`` is kept among the file's metadata, under ``securefda``: in one value, since the order of several would
    differ from file to file. ``statistics`` are those that the target measures the model with.
    """
    bounds = np.cumsum([0, *(int(np.prod(shape)) for _, shape in layers)])
    parts = zip(layers, bounds[:-1], bounds[1:], strict=True)
    tensors = {name: model[start:stop].reshape(shape) for (name, shape), start, stop in parts}
    return save({**tensors, **statistics}, metadata={"securefda": origin} if origin else None)


def rows_file(rows: Samples, run_id: str) -> bytes:
    """Return labelled rows in the safetensors format, with the id of their run."""
    tensors = {"features": rows.features.contiguous(), "labels": rows.labels.contiguous()}
    return save_tensors(tensors, metadata={"run": run_id})


class RecordingReporter(PassingReporter):
    """Writes each round to the run folder, then passes the report on.

    ``model_bytes`` gives the model file after a round, the last that was finished; the run's process sets it.
    """

    def __init__(self, folder: RunFolder, shown: Reporter) -> None:
        super().__init__(shown)
        self._folder = folder
        self.model_bytes: Callable[[RoundLine | None], bytes] = lambda _: b""
        self._lines: list[RoundLine] = []

    def catch_up(self, lines: Sequence[RoundLine]) -> None:
        """Write what a killed process did not: the lines of rounds that ended, and the model after them."""
        written = {line["round"] for line in read_run(self._folder.path).rounds} if self._folder.has_rounds() else set()
        for line in lines:
            if line["round"] not in written:
                self._folder.append_round(line)
        self._lines = list(lines)
        self._write_model()

    def _write_model(self) -> None:
        """Write the model of the last finished round, and a copy if it is the best so far."""
        finished = [line for line in self._lines if line.get("status") != "lost"]
        last = finished[-1] if finished else None
        data = self.model_bytes(last)
        self._folder.write(MODEL_FILE, data)
        if last is not None and best_round(finished) is last:
            self._folder.write(BEST_FILE, data)

    def round_finished(self, line: RoundLine) -> None:
        """Write the round's line and the model after it, then pass the report on."""
        self._folder.append_round(line)
        self._lines.append(line)
        self._write_model()
        self._shown.round_finished(line)
