"""Row support: a site withholds the parts of an update that too few of its rows moved.

A one-hot feature, a row of an embedding or a hidden unit can be active for a single row. The update of its parameters
then shows that row alone, and a sum in which no other site moved them shows it unchanged.

Rows are counted in fixed groups, each of which counts once, so that a batch passes through the model in a few parts and
not row by row. The count can be too small, never too large.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from securefda.protocol.encoding import Vector

_GROUPS = 8
"""Groups for each required row, so that few rows share a group."""


class RowSupport:
    """Counts, for each parameter, the groups of rows whose gradient moved it; ``_GROUPS * least`` bytes a parameter.

    Args:
        least: fewest rows, at least 2.
        samples: number of rows that the site trains on.
        gradient: the model's gradient, float32 (m,), to which backward passes add.
    """

    def __init__(self, least: int, samples: int, gradient: Tensor) -> None:
        self._least, self._gradient = least, gradient
        self._n_groups = min(samples, _GROUPS * least)
        self._moved = torch.zeros((self._n_groups, len(gradient)), dtype=torch.bool, device=gradient.device)

    def parts(self, batch: Tensor) -> Iterator[Tensor]:
        """Yield the row numbers of a batch, (b,), group by group; add the gradient of each before taking the next."""
        groups = batch % self._n_groups
        for group in torch.unique(groups).tolist():
            before = self._gradient.clone()
            yield batch[groups == group]
            self._moved[group] |= self._gradient != before

    def hold_back(self, update: Vector) -> int:
        """Set to zero the parameters of an update, float32 (m,), that too few rows moved; count those that changed."""
        few = (self._moved.sum(dim=0) < self._least).cpu().numpy()
        held = int((update[few] != 0).sum())
        update[few] = 0
        return held
