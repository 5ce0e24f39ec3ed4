"""Which parameters enough of a site's rows moved in a round; what fewer moved does not leave the site.

A one-hot feature of one row, a row of an embedding, a unit that one row alone turns on: what an update holds of these
is that row's own, and a sum in which no other site has it shows it as it is.

Rows are counted in fixed groups, each of which counts once, so that a batch passes through the model in a few parts and
not row by row. The count can be too small, never too large.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from securefda.protocol.encoding import Vector

_GROUPS = 8
"""For each row that is asked for, so that few rows fall into one group."""


class RowSupport:
    """Counts, for each parameter, the groups of rows whose gradient moved it; ``_GROUPS * least`` bytes a parameter.

    Args:
        least: fewest rows, at least 2.
        samples: number of rows that the site trains on.
        gradient: of the model, (m,): backward passes add to it.
    """

    def __init__(self, least: int, samples: int, gradient: Tensor) -> None:
        self._least, self._gradient = least, gradient
        self._groups = min(samples, _GROUPS * least)
        self._moved = torch.zeros((self._groups, len(gradient)), dtype=torch.bool, device=gradient.device)

    def parts(self, batch: Tensor) -> Iterator[Tensor]:
        """Yield the row numbers of a batch (b,) group by group; their gradient is to be added before the next."""
        group_of = batch % self._groups
        for group in torch.unique(group_of).tolist():
            before = self._gradient.clone()
            yield batch[group_of == group]
            self._moved[group] |= self._gradient != before

    def hold_back(self, update: Vector) -> int:
        """Set to zero what too few rows moved of an update, float32 (m,); return how many parameters that were."""
        few = (self._moved.sum(dim=0) < self._least).cpu().numpy()
        held = int((update[few] != 0).sum())
        update[few] = 0
        return held
