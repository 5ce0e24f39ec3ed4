"""T11: a round is asked for again without one source; what the two sums differ by is that source's update."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from securefda.aggregator.headers import AttemptPosition
from securefda.protocol.messages import RUN_ID_BYTES, Header, Join, Parcel, Result, Send
from securefda.protocol.secret import draw
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Decoded, Vector64
from threat_model.sites import AggregatorSeat

Way = Literal["attempt", "place", "run", "unannounced run", "header"]


class RoundAgain(MaliciousAggregator):
    """Subtracts two sums over the same updates, the second without the victim: training from one model repeats.

    Powers: the target's key and the relay. It follows every step of both sessions, but for the first one's result,
    which it keeps: a header behind a result would have to continue it. The victim has no part in the second session.
    Goal: the victim's update, exactly.
    Source: tracker attacks on statistical databases (Denning, Denning and Schwartz 1979); for secure aggregation the
    reason that Bonawitz et al. 2017 ask for fresh inputs in every execution.

    Args:
        seat: of the target.
        victim: roster index, in the first session only.
        way: how the second session is named: the next ``"attempt"`` at the round, the same ``"place"``, another
            ``"run"``, which the sources join and whose log they cosign before, or an ``"unannounced run"``; or by the
            first session's own ``"header"``, word for word.
        after_restart: whether it waits for every source to have restarted.
    """

    threat = "T11"

    def __init__(self, seat: AggregatorSeat, *, victim: int, way: Way = "attempt", after_restart: bool = False) -> None:
        super().__init__(seat)
        self.victim, self.way = victim, way
        self.sums: dict[bytes, Decoded | None] = {}
        self._headers: dict[int, Parcel] = {}
        self._missing = set(seat.site.sources) if after_restart else set()

    def next_place(self) -> AttemptPosition | None:
        """Return round 1, and round 1 again; in another run, once the sources have joined it."""
        if not self.sessions:
            return super().next_place()
        self.sums[self.heard.session_id] = self.aggregate()
        if self.way == "run" and self.heard.header.run_id == self.run:
            self._change_run()
        if self._missing or len(self.sessions) > 1:
            return None
        run = draw(self.seat.site.random_bytes, RUN_ID_BYTES) if self.way == "unannounced run" else self.run
        return AttemptPosition(run, 1, 2 if self.way == "attempt" else 1, b"")

    def _change_run(self) -> None:
        """Begin a log of another run, and make the sources connect again unless they restart anyway."""
        self.run = draw(self.seat.site.random_bytes, RUN_ID_BYTES)
        self.witness.enter(self.run_id)
        self.witness.renew()
        if not self._missing:
            self._missing = set(self.seat.site.sources)
            self.instance += 1

    def participants(self) -> set[int]:
        """Return all sources, then all but the victim."""
        return set(self.joined) - {self.victim} if self.sessions else set(self.joined)

    def result_for(self, index: int) -> Result | None:
        """Return None: the round stays open."""

    def outgoing(self, index: int, parcel: Parcel) -> list[Parcel]:
        """Send the first header in place of the second, if ``way`` says so."""
        if not isinstance(parcel.message.body, Header) or self.way != "header":
            return [parcel]
        return [self._headers.setdefault(index, parcel)]

    def receive(self, parcel: Parcel) -> list[Send]:
        """Receive as usual; a source that joins is back."""
        if self.sessions and isinstance(parcel.message.body, Join):
            self._missing.discard(parcel.message.sender)
        return super().receive(parcel)

    def ready(self) -> bool:
        """Return whether the second session may begin, too: when the last source is back and all have cosigned."""
        if not self.sessions:
            return super().ready()
        waits = self.done and len(self.sessions) == 1 and not self._missing
        return waits and self.witnesses.cosigned == self.seat.site.sources

    def attack(self) -> Vector64 | None:
        """Return the difference of the sums; None if one of them is missing."""
        sums = [one for one in self.sums.values() if one is not None]
        if len(sums) < 2:
            return None
        with_victim, without = sums
        weight = with_victim.weight - without.weight
        return replace(with_victim, vector=with_victim.vector - without.vector, weight=weight).update
