"""T08: two halves of the sources are shown different sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from securefda.protocol.messages import (
    Consistency,
    KeyList,
    MasterShare,
    Parcel,
    SelfMaskShare,
    ShareDelivery,
    Signed,
    Survivors,
    SurvivorSignature,
)
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64
from threat_model.sites import AggregatorSeat

Parting = Literal["keys", "members", "survivors", "again"]


class SplitView(MaliciousAggregator):
    """Gets shares of the victim's self secret from one half and of its master from the other.

    Powers: the target's key, the relay, and the signing keys and shares of ``colluders``, which count in both halves.
    Goal: the victim's update, from its masked input without its self mask and its pairwise masks.
    Source: Bonawitz et al. 2017, section 6.2, the reason for the consistency round and its threshold.

    Args:
        seat: of the target.
        victim: roster index, in the first half.
        second: the honest sources that see the second view, in which the victim is dropped.
        parting: what is the first to differ: ``"keys"``, the order of the key list; ``"members"``, U2, of which the
            second view lacks ``missing``; ``"survivors"``, the lists. With ``"again"`` the second half is first shown
            the lists of the first one, and when it has signed those, its own.
        missing: roster index; not the victim.
        listed: whom lists name as survivors: those who gave their input in the ``"same"`` view, whose signed inputs
            can be shown, or ``"all"`` who gave one.
    """

    threat = "T08"

    def __init__(
        self,
        seat: AggregatorSeat,
        *,
        victim: int,
        second: frozenset[int],
        parting: Parting = "survivors",
        missing: int | None = None,
        listed: Literal["same", "all"] = "same",
    ) -> None:
        super().__init__(seat)
        self.victim, self.second, self.parting, self._missing = victim, second, parting, missing
        self._listed = listed

    def key_list_for(self, index: int) -> KeyList | None:
        """Return the same keys, for the second half in another order if the key lists are to differ."""
        keys = super().key_list_for(index)
        if keys is None or self.parting != "keys" or index not in self.second:
            return keys
        return KeyList(keys.advertisements[::-1])

    def delivery_for(self, index: int) -> ShareDelivery | None:
        """Return boxes of those who saw the same key list, for the second half without the missing source's."""
        delivery = super().delivery_for(index)
        return delivery and ShareDelivery(tuple(box for box in delivery.boxes if self._belongs(box.peer, index)))

    def _belongs(self, sender: int, index: int) -> bool:
        if self.parting == "keys":
            return (sender in self.second) == (index in self.second)
        return index not in self.second or sender != self._missing

    def survivors_for(self, index: int) -> Survivors | None:
        """Show in the first view that all survived; in the second, that the victim did not."""
        return self._lists(index, second=index in self.second and self.parting != "again")

    def _lists(self, index: int, *, second: bool) -> Survivors | None:
        lists, members = super().survivors_for(index), self.heard.views[index].members
        if lists is None:
            return None
        hidden = {self.victim} if second else set()
        alive = tuple(
            item
            for item in lists.survivors
            if item.index in members - hidden and (self._listed == "all" or self._masked_alike(item.index, index))
        )
        dropped = tuple(sorted(members - {item.index for item in alive}))
        return Survivors(alive, dropped, self.heard.views[index].reports)

    def _masked_alike(self, sender: int, index: int) -> bool:
        return self.heard.views[sender].ctx2 == self.heard.views[index].ctx2

    def outgoing(self, index: int, parcel: Parcel) -> list[Parcel]:
        """Ask the second half to sign twice, if ``parting`` says so."""
        lists = self._lists(index, second=True) if isinstance(parcel.message.body, Survivors) else None
        if lists is None or self.parting != "again" or index not in self.second:
            return [parcel]
        return [parcel, replace(parcel, message=self.sign(index, self.heard.views[index].ctx2, lists))]

    def consistency_for(self, index: int) -> Consistency | None:
        """Return the signatures over the lists that this source signed; colluders sign whatever is needed."""
        signed, view = self.heard.signatures, self.heard.views[index]
        own = signed[index]
        shown = [
            one
            for one in signed.values()
            if one.sender not in self.colluders and (one.body, one.envelope.context) == (own.body, own.envelope.context)
        ]
        shown += [self._signed_by(colluder, view.ctx2, own.body) for colluder in self.colluders]
        return Consistency(tuple(sorted(shown, key=lambda one: one.sender)), self.inputs_for(index))

    def _signed_by(self, colluder: int, context: bytes, body: SurvivorSignature) -> Signed[SurvivorSignature]:
        return self.colluders[colluder].signer.sign(self.heard.session_id, context, body)

    def opened_twice(self) -> set[int]:
        """Return the honest sources for whom t shares of either kind are held."""
        t = self.heard.header.share_threshold
        return {
            owner
            for owner in set(self.heard.bundles) - set(self.colluders)
            if len(self.held_shares(owner, SelfMaskShare)) >= t and len(self.held_shares(owner, MasterShare)) >= t
        }

    def attack(self) -> Vector64 | None:
        """Return the victim's input without all masks that could be opened."""
        return self.estimate(self.victim)
