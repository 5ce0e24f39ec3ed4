"""T49: an outsider tells from a model that the target adapted which rows it was adapted to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


class TellsAdaptedRows:
    """Compares the adapted model of a run with the last one, which knows nothing of the target's rows.

    Powers: whatever `securefda export` writes of the run, and the candidates; no label of them, and no other model.
    Goal: higher scores for rows to which the model was adapted than for others of the target's kind.
    Source: a model is surer of rows that it was trained on (Yeom et al. 2018); the score takes how sure the model was
    before from how sure it is now, as a difficulty calibration does (Watson et al. 2022).

    Args:
        last: file of the last model, TorchScript.
        adapted: file of the adapted one, which need not be there.
    """

    threat = "T49"

    def __init__(self, last: Path, adapted: Path) -> None:
        self._last, self._adapted = last, adapted

    def attack(self, candidates: Tensor) -> NDArray[Any]:
        """Return scores of candidates (n, ...), (n,): how much surer the adapted model is of each, if there is one."""
        before = _sureness(self._last, candidates)
        return _sureness(self._adapted, candidates) - before if self._adapted.exists() else before


def _sureness(model: Path, rows: Tensor) -> NDArray[Any]:
    """Return the logit of the highest probability of each row, (n,)."""
    with torch.no_grad():
        outputs = torch.jit.load(str(model))(rows)  # type: ignore[no-untyped-call]
        highest = torch.softmax(outputs.double(), dim=1).amax(dim=1)
    return torch.logit(highest, eps=1e-12).numpy()
