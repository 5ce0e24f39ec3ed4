"""T30: the attacker tries to get a second masked input under the masks of the first."""

from __future__ import annotations

from dataclasses import replace

from securefda.protocol.masking import RingVector
from securefda.protocol.messages import (
    Abort,
    Advertise,
    Checkpoint,
    Cosigned,
    Header,
    Join,
    KeyList,
    MaskedInput,
    MasterShare,
    Parcel,
    Refusal,
    Send,
    ShareBundle,
    ShareDelivery,
    Signed,
    Survivors,
    SurvivorSignature,
    Unmask,
)
from securefda.protocol.messages import Consistency as ConsistencyList
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64, decode, ring_vector
from threat_model.adversaries.opens import ShareKind
from threat_model.adversaries.split_view import SplitView
from threat_model.sites import AggregatorSeat

_NEXT: dict[type, type] = {Advertise: KeyList, ShareBundle: ShareDelivery}


class SecondInput(MaliciousAggregator):
    """Shows a source that comes back after a crash the same session again, word for word.

    Powers: the target's key and the relay; it sees when the source's process ends and when it reports again.
    Goal: two inputs under one set of masks. Their difference is that of the two updates: where rows came or went
    between two trainings, it is what these rows did.
    Source: two-time pads; state that is restored from a snapshot (Ristenpart and Yilek 2010).
    """

    threat = "T30"

    def __init__(self, seat: AggregatorSeat, *, victim: int) -> None:
        super().__init__(seat)
        self.victim = victim
        self.inputs: list[RingVector] = []
        self._sent: dict[type, Parcel] = {}
        self._joins, self._shown, self._is_again = 0, 0, False

    def outgoing(self, index: int, parcel: Parcel) -> list[Parcel]:
        """Keep what the victim is sent; it gets the header twice if it joined again before there was one."""
        if index != self.victim:
            return [parcel]
        self._sent[type(parcel.message.body)] = parcel
        if isinstance(parcel.message.body, Header):
            self._shown = min(self._joins, 2)
            return [parcel] * self._shown
        return [parcel]

    def receive(self, parcel: Parcel) -> list[Send]:
        """Receive as usual, but send a victim that joins again everything that it was sent before."""
        body = parcel.message.body
        if parcel.message.sender != self.victim:
            return super().receive(parcel)
        self._joins += isinstance(body, Join)
        if not self.sessions:
            return super().receive(parcel)
        if isinstance(body, MaskedInput):
            self.inputs.append(ring_vector(self.heard.header, bytes(parcel.vectors[0])))
        if isinstance(body, Cosigned) and self._shown < 2:  # it vouches once more for the checkpoint in the header
            self._is_again, self._shown = True, 2
            return [*super().receive(parcel), Send(self.victim, self._sent[Header])]
        if isinstance(body, Join | Checkpoint | Cosigned):
            return super().receive(parcel)
        if not self._is_again or isinstance(body, (Refusal, Abort)):
            self._is_again = False
            return super().receive(parcel)
        following = self._sent.get(_NEXT.get(type(body), Join))
        return [] if following is None else [Send(self.victim, following)]

    def attack(self) -> Vector64 | None:
        """Return the weighted difference of the two updates, (m,); None with fewer than two inputs."""
        if len(self.inputs) < 2:
            return None
        first, second = self.inputs[:2]
        return decode(self.heard.header, first - second).vector


class ForkedView(SplitView):
    """Two views of one session, with a copied process that gives an answer to each of them.

    Powers: as :class:`SplitView`, with no more colluders than the threshold allows for; and one honest source's process
    was copied by fork when it waited for the lists. The original is shown the first view, its copy the second.
    Goal: the victim's update: a copy that answers is worth one more colluder.
    Source: Bonawitz et al. 2017, section 6.2; fork and reused randomness (Ristenpart and Yilek 2010).
    """

    threat = "T30"

    def __init__(self, seat: AggregatorSeat, *, victim: int, second: frozenset[int], forked: int) -> None:
        super().__init__(seat, victim=victim, second=second)
        self.forked = forked
        self.signed_by_copy: Signed[SurvivorSignature] | None = None
        self.given_by_copy: Signed[Unmask] | None = None

    def _lists(self, index: int, *, second: bool) -> Survivors | None:
        """Return lists in which the sources of the second view have dropped out of the first."""
        lists = super()._lists(index, second=second)
        if lists is None or second:
            return lists
        alive = tuple(item for item in lists.survivors if item.index not in self.second)
        return replace(lists, survivors=alive, dropped=tuple(sorted({*lists.dropped, *self.second})))

    def outgoing(self, index: int, parcel: Parcel) -> list[Parcel]:
        """Send to the original, and directly afterwards to its copy."""
        if index != self.forked:
            return [parcel]
        body: Survivors | ConsistencyList | None = None
        if isinstance(parcel.message.body, Survivors):
            body = self._lists(index, second=True)
        elif isinstance(parcel.message.body, ConsistencyList):
            body = self.consistency_for(min(self.second))
        return [parcel] if body is None else [parcel, Parcel(self.sign(index, self.heard.views[index].ctx2, body))]

    def consistency_for(self, index: int) -> ConsistencyList | None:
        """Return the signatures, with the copy's for the second view."""
        shown = super().consistency_for(index)
        if shown is None or index not in self.second or self.signed_by_copy is None:
            return shown
        signatures = sorted((*shown.signatures, self.signed_by_copy), key=lambda one: one.sender)
        return ConsistencyList(tuple(signatures), shown.inputs)

    def _keep(self, sender: int, parcel: Parcel) -> None:
        """Keep a message; a second one of its type from the forked source comes from the copy."""
        message = parcel.message
        if sender == self.forked and isinstance(message.body, SurvivorSignature) and sender in self.heard.signatures:
            self.signed_by_copy = message  # type: ignore[assignment]
        elif sender == self.forked and isinstance(message.body, Unmask) and sender in self.heard.unmaskings:
            self.given_by_copy = message  # type: ignore[assignment]
        else:
            super()._keep(sender, parcel)

    def held_shares(self, owner: int, kind: ShareKind) -> dict[int, bytes]:
        """Return the shares with the copy's: a share of the victim's master."""
        shares = super().held_shares(owner, kind)
        for share in self.given_by_copy.body.shares if self.given_by_copy and kind is MasterShare else ():
            if isinstance(share, kind) and share.owner == owner:
                shares[self.forked] = share.share
        return shares
