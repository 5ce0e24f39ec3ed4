"""T08 to T10 on a ring: the aggregator knows the neighbourhoods before the sources do."""

from __future__ import annotations

from dataclasses import replace

from securefda.aggregator.headers import AttemptPosition, SessionPlan
from securefda.protocol.graph import Ring
from securefda.protocol.messages import Consistency, KeyList, Survivors
from securefda.protocol.transcript import drawn_ring, ring_context
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Decoded, Vector64
from threat_model.adversaries.split_view import SplitView
from threat_model.sites import AggregatorSeat


def with_shares(plan: SessionPlan, shares: int) -> SessionPlan:
    """Return the plan with another number of holders that open a secret; 0 for the honest one."""
    graph = plan.graph and replace(plan.graph, threshold=shares or plan.graph.threshold)
    return replace(plan, graph=graph)


def ring_of(adversary: MaliciousAggregator, index: int) -> Ring:
    """Return the ring that a source was shown."""
    view = adversary.heard.views[index]
    if view.neighbours is None:
        raise ValueError(f"source {index} was shown no ring")
    return drawn_ring(adversary.heard.header, view.ctx1, view.neighbours.body.members)


class SplitsNeighbours(SplitView):
    """Shows half of the victim's neighbours that it was dropped, and the other half that it survived.

    Powers: the target's key, the relay, and the signing keys and shares of ``colluders``, which count in both halves.
    Goal: the victim's update, from its masked input, its self secret and its master.
    Source: Bell et al. 2020, section 4, on why the threshold is a majority of a neighbourhood.

    Args:
        seat: of the target.
        victim: roster index.
        shares: how many holders open a secret, as its header says; 0 for the honest number.
    """

    def __init__(self, seat: AggregatorSeat, *, victim: int, shares: int = 0) -> None:
        super().__init__(seat, victim=victim, second=frozenset())
        self._shares = shares

    def session_plan(self, members: set[int]) -> SessionPlan:
        """Return an honest plan, except for the number of shares."""
        return with_shares(super().session_plan(members), self._shares)

    def survivors_for(self, index: int) -> Survivors | None:
        """Show the second half, which is before the victim on the ring, that the victim was dropped."""
        if not self.second:
            order, half = ring_of(self, self.victim).order, self.heard.header.graph.degree // 2  # type: ignore[union-attr]
            place = order.index(self.victim)
            before = {order[(place - step) % len(order)] for step in range(1, half + 1)}
            self.second = frozenset(before - set(self.colluders))
        return super().survivors_for(index)


class CutsRing(MaliciousAggregator):
    """Declares two runs of members dropped, so that no mask joins the two arcs that are left, and opens one alone.

    Powers: the target's key and the relay; no source colludes.
    Goal: the sum over one arc, which is a part of the survivors.
    Source: Bell et al. 2020, section 3.2: a graph of survivors that falls apart gives away the sum of each part.

    Args:
        seat: of the target.
        shares: how many holders open a secret, as its header says; 0 for the honest number.

    Attributes:
        arc: the members whose sum it is after, once they are settled.
    """

    threat = "T08"

    def __init__(self, seat: AggregatorSeat, *, shares: int = 0) -> None:
        super().__init__(seat)
        self._shares = shares
        self.arc: frozenset[int] = frozenset()
        self._cut: frozenset[int] = frozenset()

    def session_plan(self, members: set[int]) -> SessionPlan:
        """Return an honest plan, except for the number of shares."""
        return with_shares(super().session_plan(members), self._shares)

    def survivors_for(self, index: int) -> Survivors | None:
        """Declare the members of both cuts dropped, and send them nothing."""
        if not self._cut:
            order, half = ring_of(self, index).order, self.heard.header.graph.degree // 2  # type: ignore[union-attr]
            middle = len(order) // 2
            self._cut = frozenset(order[:half] + order[middle : middle + half])
            self.arc = frozenset(order[half:middle])
        lists = super().survivors_for(index)
        if lists is None or index in self._cut:
            return None
        alive = tuple(item for item in lists.survivors if item.index not in self._cut)
        return Survivors(alive, tuple(sorted({*lists.dropped, *self._cut})))

    def attack(self) -> Vector64 | None:
        """Return the weighted mean over the arc; None if some mask of it stayed on."""
        return opened.update if (opened := self.sum_of_arc()) is not None else None

    def sum_of_arc(self) -> Decoded | None:
        """Return the sum over the arc, without the masks that its members share with each other."""
        return self.sum_over(self.arc) if self.arc else None


class ListsByArc(MaliciousAggregator):
    """Shows each half of the ring lists in which other sources are dropped, so that fewer than t are in the sum.

    Powers: the target's key and the relay; no source colludes.
    Goal: the sum over fewer sources than any list that a source was shown.
    Source: this protocol, in which a source sees the signatures of its neighbours alone.

    Attributes:
        summed: whose inputs are in the sum, once that is settled.
    """

    threat = "T09"

    def __init__(self, seat: AggregatorSeat) -> None:
        super().__init__(seat)
        self.summed: frozenset[int] = frozenset()
        self._dropped: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())

    def survivors_for(self, index: int) -> Survivors | None:
        """Drop as many as t permits from the middle of the reader's half; the dropped ones get no lists."""
        order = ring_of(self, index).order
        half, fewer = len(order) // 2, len(order) - self.heard.header.threshold
        first = (half - fewer) // 2
        if not self.summed:
            self._dropped = (
                frozenset(order[first : first + fewer]),
                frozenset(order[half + first : half + first + fewer]),
            )
            self.summed = frozenset(order) - self._dropped[0] - self._dropped[1]
        lists, gone = super().survivors_for(index), self._dropped[order.index(index) >= half]
        if lists is None or index not in self.summed:
            return None
        alive = tuple(item for item in lists.survivors if item.index not in gone)
        return Survivors(alive, tuple(sorted({*lists.dropped, *gone})))

    def consistency_for(self, index: int) -> Consistency | None:
        """Return the signatures over the lists that this source was shown; None if too few of its holders signed."""
        signed, holders = self.heard.signatures, ring_of(self, index).holders(index)
        alike = [one for _, one in sorted(signed.items()) if one.body == signed[index].body]
        if len([one for one in alike if one.sender in holders]) < self.heard.header.share_threshold:
            return None
        return Consistency(tuple(alike), self.inputs_for(index))

    def attack(self) -> Vector64 | None:
        """Return the weighted mean over those in the sum; None if some mask stayed on."""
        return opened.update if (opened := self.sum_over(self.summed)) is not None else None


class RedrawsRing(SplitView):
    """Gives up attempts at a round until a ring has sources of its own alone beside the victim.

    These hold the other end of each of the victim's masks, and enough shares of its self secret.

    Powers: the target's key, the relay, and all secrets of the ``colluders``, which may be made-up sites. It knows a
    ring before the sources do, as soon as it has their nonces.
    Goal: the victim's update.
    Source: Bell et al. 2020, section 3: a graph is safe where no honest source has too many colluders beside it.

    Args:
        seat: of the target.
        victim: roster index.
        most: attempts after which it gives up; it gives up as well when the victim refuses one.
    """

    threat = "T10"

    def __init__(self, seat: AggregatorSeat, *, victim: int, most: int = 400) -> None:
        super().__init__(seat, victim=victim, second=frozenset())
        self._most = most

    def next_place(self) -> AttemptPosition | None:
        """Return the next attempt at round 1, unless the last one had the ring that it waits for."""
        tried = len(self.sessions)
        is_over = tried == self._most or (tried > 0 and (self.victim in self.heard.refusals or self._has_its_ring()))
        return None if is_over else AttemptPosition(self.run, 1, tried + 1, b"")

    def key_list_for(self, index: int) -> KeyList | None:
        """Return all keys, and nothing once the nonces have come and the ring is not the one that it waits for."""
        return None if self.heard.nonces and not self._has_its_ring() else super().key_list_for(index)

    def wants(self, ring: Ring) -> bool:
        """Return whether this is the ring that it waits for."""
        return ring.neighbours(self.victim) <= self.colluders.keys()

    def _has_its_ring(self) -> bool:
        nonces = self.nonces_for(self.victim)
        if self.victim not in nonces:
            return False
        context = ring_context(self.heard.views[self.victim].ctx0, nonces)
        return self.wants(drawn_ring(self.heard.header, context, nonces))


class SplitsAmongColluders(RedrawsRing):
    """Waits for a ring on which colluders stand on both sides of the victim, and splits the ring there.

    They count in both views. So those who are shown that the victim survived and those who are shown that it was
    dropped are each enough, with a graph that is made for fewer colluders.

    Powers, goal and source: as :class:`RedrawsRing` and :class:`SplitsNeighbours`, with fewer colluders.
    """

    threat = "T09"

    def wants(self, ring: Ring) -> bool:
        """Return whether enough holders of the victim help in either view: each needs signatures of its own holders."""
        second, enough = self._before(ring), self.heard.header.share_threshold

        def of_view(holders: frozenset[int], *, dropped: bool) -> set[int]:
            return {one for one in holders if one in self.colluders or (one in second) is dropped}

        def helps(index: int) -> bool:
            alike = of_view(ring.holders(index), dropped=index in second)
            return index in self.colluders or len(alike) >= enough

        helpers = [of_view(ring.holders(self.victim), dropped=dropped) for dropped in (False, True)]
        return all(len(part) >= enough and all(map(helps, part)) for part in helpers)

    def survivors_for(self, index: int) -> Survivors | None:
        """Show those before the victim on the ring that it was dropped."""
        self.second = self._before(ring_of(self, self.victim))
        return super().survivors_for(index)

    def _before(self, ring: Ring) -> frozenset[int]:
        """Return the honest ones of the half of the ring before the victim."""
        place, size = ring.order.index(self.victim), len(ring.order)
        return frozenset(ring.order[(place - step) % size] for step in range(1, size // 2)) - self.colluders.keys()
