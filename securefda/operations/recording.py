"""Writing a run down while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from safetensors.numpy import save

from securefda.operations.progress import Reporter
from securefda.operations.records import RoundLine
from securefda.operations.run_folder import MODEL_FILE, RunFolder, read_run
from securefda.training import LayerTable, Vector


def model_file(layers: LayerTable, model: Vector) -> bytes:
    """A model, float32 (m,), in the safetensors format: one tensor per layer, by name."""
    bounds = np.cumsum([0, *(int(np.prod(shape)) for _, shape in layers)])
    parts = zip(layers, bounds[:-1], bounds[1:], strict=True)
    return save({name: model[start:stop].reshape(shape) for (name, shape), start, stop in parts})


class RecordingReporter:
    """Writes each round to the run folder, then tells the reporter that shows it.

    ``model_bytes`` gives the model file after the round; the run's bootstrap sets it.
    """

    def __init__(self, folder: RunFolder, shown: Reporter) -> None:
        self._folder = folder
        self._shown = shown
        self.model_bytes: Callable[[], bytes] = bytes

    def catch_up(self, lines: Sequence[RoundLine]) -> None:
        """Write what a killed process had no time for: lines of rounds that ended, and the model after them."""
        written = {line["round"] for line in read_run(self._folder.path).rounds} if self._folder.has_rounds() else set()
        for line in lines:
            if line["round"] not in written:
                self._folder.append_round(line)
        self._folder.write(MODEL_FILE, self.model_bytes())

    def round_started(self, round_number: int, rounds: int) -> None:
        """Pass it on."""
        self._shown.round_started(round_number, rounds)

    def phase(self, name: str, waiting_for: Sequence[str] = ()) -> None:
        """Pass it on."""
        self._shown.phase(name, waiting_for)

    def round_finished(self, line: RoundLine) -> None:
        """Write the round's line and the model after it, then pass it on."""
        self._folder.append_round(line)
        self._folder.write(MODEL_FILE, self.model_bytes())
        self._shown.round_finished(line)

    def note(self, text: str) -> None:
        """Pass it on."""
        self._shown.note(text)
