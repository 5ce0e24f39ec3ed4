"""T15: a header with numbers so weak that a sum of updates reveals the sign of every coordinate of every source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from securefda.aggregator.headers import AttemptPosition
from securefda.protocol.header_checks import quantisation
from securefda.protocol.messages import Header, Layer
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Decoded
from threat_model.sites import AggregatorSeat


@dataclass(frozen=True, slots=True)
class Signs:
    """The signs read from a sum: ``of`` has the best guess for each source, (m,) of -1 and 1, by roster index.

    ``certain`` (m,) marks the coordinates whose sum is, to the last step, one that bare signs give.
    """

    of: Mapping[int, NDArray[np.float64]]
    certain: NDArray[np.bool_]


class SignHeader(MaliciousAggregator):
    """Looks for the smallest clip that the sources accept, and reads signs from the sum.

    Where every coordinate is at its clip, a sum is one of 2^n combinations of the sources' weights. With row counts
    whose signed sums differ, the combination is the signs of all of them: masks hide nothing of it.

    Powers: the target's key, the relay, and every source's number of rows, which sites publish with their studies. It
    opens a round for each clip that it tries.
    Goal: the signs of each source's update, which are enough to invert it (as signSGD is enough to train).
    Source: the downgrade of parameters that an implementation in use elsewhere takes from its server without a floor.

    Args:
        seat: of the target.
        rows: number of rows of each source, by roster index.
        clips: what it tries, the worst first.
    """

    threat = "T15"

    def __init__(self, seat: AggregatorSeat, *, rows: Mapping[int, int], clips: Sequence[float]) -> None:
        super().__init__(seat)
        self.rows, self.clips = dict(rows), tuple(clips)

    def next_place(self) -> AttemptPosition | None:
        """Return the round of the next clip; None once one was accepted."""
        tried = len(self.sessions)
        if tried == len(self.clips) or (tried and self.heard.bundles):
            return None
        return AttemptPosition(self.run, tried + 1, 1, b"")

    @property
    def clip(self) -> float:
        """The clip of the session in progress."""
        return self.clips[len(self.sessions) - 1]

    def header_for(self, index: int) -> Header | None:
        """Return a header with this clip in every layer."""
        header = super().header_for(index)
        if header is None:
            return None
        self.heard.header = replace(self.heard.header, layers=self.layers_of(header))
        return replace(header, layers=self.heard.header.layers)

    def layers_of(self, header: Header) -> tuple[Layer, ...]:
        """Return the layer table of the session in progress."""
        return tuple(replace(layer, clip=self.clip, range=self.clip) for layer in header.layers)

    def attack(self) -> Signs | None:
        """Return the signs behind the sum; None without one."""
        total = self.aggregate() if self.sessions else None
        return None if total is None else self._read(total)

    def _read(self, total: Decoded) -> Signs:
        """Find the nearest combination of signs, each of which has a different sum of weights."""
        header, owners = self.heard.header, sorted(self.rows)
        weights = np.array([self.rows[owner] for owner in owners]) / header.max_samples
        choices = np.array(list(product((-1.0, 1.0), repeat=len(owners))))
        distances = np.abs((total.vector / self.clip)[:, None] - (choices @ weights)[None, :])
        nearest = np.argmin(distances, axis=1)
        rounding = len(owners) / quantisation(header).q_max
        signs = choices[nearest]
        certain = distances[np.arange(nearest.size), nearest] <= rounding
        return Signs({owner: signs[:, place] for place, owner in enumerate(owners)}, certain)


class LayerSigns(SignHeader):
    """Drives one layer to its clip and lets no coordinate of any other reach its own.

    Clips are named layer by layer, and a source scales its update to the target's learning rate: within the bounds of
    one factor that a policy sets, the two together put one layer where all is sign and leave the rest alone. A count
    of clipped coordinates over the whole model then stays below any bound that the layer's size does not reach.

    Powers, goal and source: as :class:`SignHeader`, with the rule as well, which is one that aligns updates.

    Args:
        seat: of the target.
        rows: number of rows of each source, by roster index.
        layer: name of the layer.
        clips: the clip of this layer and that of all others.
        rate: by how much the header overstates the target's learning rate.
    """

    def __init__(
        self, seat: AggregatorSeat, *, rows: Mapping[int, int], layer: str, clips: tuple[float, float], rate: float
    ) -> None:
        super().__init__(seat, rows=rows, clips=clips[:1])
        self.layer, self._others, self._rate = layer, clips[1], rate

    def header_for(self, index: int) -> Header | None:
        """Return a header with a raised rate in the target's terms."""
        header = super().header_for(index)
        if header is None or header.target is None:
            return header
        return replace(header, target=replace(header.target, learning_rate=self._rate * header.target.learning_rate))

    def layers_of(self, header: Header) -> tuple[Layer, ...]:
        """Return the layers with the smaller clip in one layer."""
        return tuple(
            replace(layer, clip=clip, range=clip)
            for layer in header.layers
            for clip in (self.clip if layer.name == self.layer else self._others,)
        )

    def attack(self) -> Signs | None:
        """Return the signs in the one layer; None without a sum."""
        signs = super().attack()
        if signs is None:
            return None
        layers = self.heard.header.layers
        part = np.repeat([layer.name == self.layer for layer in layers], [layer.size for layer in layers])
        return Signs({owner: of[part] for owner, of in signs.of.items()}, signs.certain[part])
