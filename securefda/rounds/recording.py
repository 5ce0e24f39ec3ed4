"""Writing a run down while it goes on: the run folder of the target, and a source's own lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from safetensors.numpy import save

from securefda.errors import SecureFdaError
from securefda.rounds.progress import Reporter
from securefda.rounds.records import RoundLine, RunStatus, Summary, summarise
from securefda.rounds.run_folder import MODEL_FILE, RunFolder
from securefda.training import LayerTable, Vector


def model_file(layers: LayerTable, model: Vector) -> bytes:
    """A model, float32 (m,), in the safetensors format: one tensor per layer, by name."""
    bounds = np.cumsum([0, *(int(np.prod(shape)) for _, shape in layers)])
    parts = zip(layers, bounds[:-1], bounds[1:], strict=True)
    return save({name: model[start:stop].reshape(shape) for (name, shape), start, stop in parts})


class RecordingReporter:
    """Writes each round to the run folder, then tells the reporter that shows it.

    What was recorded before a restart is read from the folder, so that the summary covers the whole run.
    """

    def __init__(self, folder: RunFolder, shown: Reporter) -> None:
        self._folder = folder
        self._shown = shown
        self.lines: list[RoundLine] = []
        self.model_bytes: Callable[[], bytes] = bytes

    def round_started(self, round_number: int, rounds: int) -> None:
        """Pass it on."""
        self._shown.round_started(round_number, rounds)

    def phase(self, name: str, waiting_for: Sequence[str] = ()) -> None:
        """Pass it on."""
        self._shown.phase(name, waiting_for)

    def round_finished(self, line: RoundLine) -> None:
        """Write the round's line and the model after it, then pass it on."""
        self.lines.append(line)
        self._folder.append_round(line)
        self._folder.write(MODEL_FILE, self.model_bytes())
        self._shown.round_finished(line)

    def note(self, text: str) -> None:
        """Pass it on."""
        self._shown.note(text)

    def write_summary(
        self,
        *,
        run_id: str,
        task: str,
        strategy: Mapping[str, Any],
        visibility: Mapping[str, str],
        rounds_planned: int,
        status: RunStatus,
        error: SecureFdaError | None,
        earlier: Sequence[RoundLine] = (),
    ) -> Summary:
        """Write and return the summary of the run, ``earlier`` being the rounds before a restart."""
        summary = summarise(
            [*earlier, *self.lines],
            run_id=run_id,
            task=task,
            strategy=strategy,
            visibility=visibility,
            rounds_planned=rounds_planned,
            status=status,
            error=error,
        )
        self._folder.write_summary(summary)
        return summary
