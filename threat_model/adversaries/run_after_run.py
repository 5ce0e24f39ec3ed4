"""T38: a question in each of many runs, and none of them goes on after its answer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from securefda.adaptation import RoundPlan, TargetStatistics
from securefda.rounds.attempts import Send
from securefda.rounds.headers import Place
from securefda.rounds.target import TargetRound
from securefda.secagg.messages import RUN_ID_BYTES, Join, KeyList, Parcel
from securefda.secagg.secret import draw
from securefda.training import LocalResult
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64
from threat_model.sites import AggregatorSeat

_STEPS, _RATE, _LENGTH = 4, 0.1, 0.5


class RunAfterRun(MaliciousAggregator):
    """Reads a layer of every source from energy rows: two questions for each coordinate, each in a run of its own.

    Powers: the target's key, what a target publishes, and to begin runs as it likes. It goes no further than R0: no
    masked input leaves, no fuse is burnt and no run has a second round.
    Goal: the updates of all sources in one layer.
    Source: our own; that a server's questions, and not its view of the sums, break secure aggregation is known from
    models made for it (Boenisch et al. 2023; Fowl et al. 2022, "Robbing the Fed").

    Args:
        seat: of the target.
        layer: which one, in the order of the model.
    """

    threat = "T38"

    def __init__(self, seat: AggregatorSeat, *, layer: int) -> None:
        super().__init__(seat)
        sizes = seat.site.trainer.sizes
        self._layer, self._size, self._start = layer, sizes[layer], sum(sizes[:layer])
        self._missing: set[int] = set()

    def next_place(self) -> Place | None:
        """Round 1, of another run each time; it begins when the sources have joined that."""
        if len(self.sessions) == 2 * self._size:
            return None
        if self.sessions and self.heard.header.run_id == self.run:
            self.run = draw(self.seat.site.random_bytes, RUN_ID_BYTES)
            self.witness.enter(self.run_id)
            self.witness.renew()
            self._missing = set(self.seat.site.sources)
            self.instance += 1
        return None if self._missing else Place(self.run, 1, 1, b"")

    def ready(self) -> bool:
        """Also in a further run, when the last source is back and all have cosigned its log."""
        if not self.sessions:
            return super().ready()
        is_asked = self.heard.header.run_id == self.run
        return not is_asked and not self._missing and self.witnesses.vouching == self.seat.site.sources

    def receive(self, parcel: Parcel) -> list[Send]:
        """As always; who joins is back."""
        if isinstance(parcel.message.body, Join):
            self._missing.discard(parcel.message.sender)
        return super().receive(parcel)

    def train(self, place: Place, plan: RoundPlan) -> TargetRound | None:  # noqa: ARG002 - of the base
        """Nothing is trained: g_T is one coordinate, and then the same turned round, and its statistics fit it."""
        coordinate, is_turned = divmod(len(self.sessions), 2)
        update = np.zeros(sum(self.seat.site.trainer.sizes), np.float32)
        update[self._start + coordinate] = -_LENGTH if is_turned else _LENGTH
        mean_square = _LENGTH**2 / _STEPS**2 + (_STEPS - 1) / _STEPS
        result = LocalResult(update, _STEPS, 1, loss=0.0, accuracy=0.0, learning_rate=_RATE)
        return TargetRound(result, TargetStatistics(_STEPS, mean_square, 1.0), None)

    def key_list_for(self, index: int) -> KeyList | None:  # noqa: ARG002 - of the base
        """None: it has what it asked for."""
        return None

    def attack(self) -> Mapping[int, Vector64]:
        """What it read of each source's layer, up to a factor: a part is as long as g_T points the update's way."""
        read = {index: np.zeros(self._size) for index in self.seat.site.sources}
        for number, session in enumerate(self.sessions):
            coordinate, is_turned = divmod(number, 2)
            for index, advertised in session.advertised.items():
                row = advertised.body.energy[self._layer]
                read[index][coordinate] += -row if is_turned else row
        return read
