"""T05: the relay replaces all other sources' keys by its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from securefda.protocol import agreement
from securefda.protocol.agreement import KEY_BYTES, BoxAddress, SharePair
from securefda.protocol.hybrid import BOX_PRIVATE_BYTES
from securefda.protocol.messages import (
    Advertise,
    DeliveredBox,
    Header,
    KeyList,
    MasterShare,
    ShareDelivery,
    Signed,
    Signer,
)
from securefda.protocol.secret import Secret
from securefda.protocol.shamir import split, x_of
from securefda.protocol.share_boxes import ShareBoxes, box_bytes, boxes_of
from securefda.protocol.transcript import nonce_commitment
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64
from threat_model.adversaries.opens import ShareKind
from threat_model.sites import AggregatorSeat

ALL_KEYS = ("mask_key", "box_key", "self_mask_commitment", "nonce_commitment")


@dataclass(frozen=True, slots=True, repr=False)
class _Impostor:
    """The secrets behind the keys that are shown in the name of one source."""

    master: Secret
    self_secret: Secret
    box_private: Secret
    nonce: bytes

    def boxes(self, header: Header) -> ShareBoxes:
        """Return what seals and opens boxes with its key."""
        return boxes_of(header, self.box_private)


class KeySubstitution(MaliciousAggregator):
    """A relay between the victim and all others: the victim masks with the attacker and shares its secrets with it.

    Powers: the target's key and the relay; no source colludes.
    Goal: the victim's update, from its masked input and the share boxes that it sealed to the attacker's keys.
    Source: the server that relays unsigned keys in the honest-but-curious protocol of Bonawitz et al. 2017,
    section 6.2, against which its malicious variant signs them.

    Args:
        seat: of the target.
        victim: roster index.
        fields: which parts of the other sources' advertisements are replaced.
        only: the sources that are impersonated; all others by default.
    """

    threat = "T05"

    def __init__(
        self,
        seat: AggregatorSeat,
        *,
        victim: int,
        fields: tuple[str, ...] = ALL_KEYS,
        only: frozenset[int] | None = None,
    ) -> None:
        super().__init__(seat)
        self.victim, self.fields = victim, fields
        self.only = seat.site.sources - {victim} if only is None else only
        random_bytes = seat.site.random_bytes
        self._impostors = {
            index: _Impostor(
                Secret.random(random_bytes),
                Secret.random(random_bytes),
                Secret.random(random_bytes, BOX_PRIVATE_BYTES if seat.settings.key_agreement else KEY_BYTES),
                random_bytes(32),
            )
            for index in self.only
        }

    def key_list_for(self, index: int) -> KeyList | None:
        """Show the victim the impostors; no other source is needed any more."""
        if index != self.victim:
            return None
        advertised = self.heard.advertised
        return KeyList(tuple(self._shown(advertised[sender]) for sender in sorted(advertised)))

    def _shown(self, honest: Signed[Advertise]) -> Signed[Advertise]:
        index = honest.sender
        if index not in self.only:
            return honest
        impostor, ctx = self._impostors[index], self.heard.views[self.victim].ctx
        keys = Advertise(
            mask_key=agreement.mask_pair(impostor.master, own=index, ctx=ctx).public,
            box_key=impostor.boxes(self.heard.header).public,
            self_mask_commitment=agreement.self_secret_commitment(impostor.self_secret, own=index, ctx=ctx),
            nonce_commitment=nonce_commitment(impostor.nonce, own=index, ctx=ctx),
        )
        body = replace(honest.body, **{name: getattr(keys, name) for name in self.fields})
        in_its_name = Signer(index, self.signer.private_key, self.signer.encode)
        return in_its_name.sign(self.heard.session_id, ctx, body)

    def nonces_for(self, index: int) -> dict[int, bytes]:
        """Show the victim the impostors' nonces, if it was shown their commitments."""
        nonces = super().nonces_for(index)
        if index == self.victim and "nonce_commitment" in self.fields:
            nonces |= {sender: self._impostors[sender].nonce for sender in self.only}
        return nonces

    def members_for(self, index: int) -> tuple[int, ...]:
        """Claim that all impostors have shared."""
        return tuple(sorted({index, *self.only}))

    def delivery_for(self, index: int) -> ShareDelivery | None:
        """Return the impostors' shares for the victim."""
        return ShareDelivery(tuple(self._boxed(sender, index) for sender in sorted(self.only)))

    def _boxed(self, sender: int, victim: int) -> DeliveredBox:
        impostor, view = self._impostors[sender], self.heard.views[victim]
        threshold, random_bytes = self.heard.header.share_threshold, self.seat.site.random_bytes
        xs = [x_of(member) for member in sorted(view.keys)]
        master, self_secret = (
            split(secret, threshold, xs, random_bytes)[x_of(victim)]
            for secret in (impostor.master, impostor.self_secret)
        )
        opening, on_a_ring = Secret(impostor.nonce), self.heard.header.graph is not None
        committed = b"" if on_a_ring else agreement.report_commitment(opening, own=sender, ctx=view.ctx1)
        address = BoxAddress(view.ctx1, sender, victim, report_commitment=committed)
        shares, public = SharePair(master, self_secret), view.keys[victim].box_key
        boxes = impostor.boxes(self.heard.header)
        box = boxes.seal(address, public, shares, None, master=impostor.master, random_bytes=random_bytes)
        return DeliveredBox(sender, box, impostor.nonce, committed)

    def master_in_box(self, owner: int, *, seen_by: int) -> Secret | None:
        """Return the impostors' own, which their boxes for the victim follow from."""
        shown = seen_by == self.victim and owner in self.only
        return self._impostors[owner].master if shown else super().master_in_box(owner, seen_by=seen_by)

    def held_shares(self, owner: int, kind: ShareKind) -> dict[int, bytes]:
        """Return the shares of both kinds that the victim sealed to the impostors."""
        if owner != self.victim or owner not in self.heard.bundles:
            return super().held_shares(owner, kind)
        view, shares = self.heard.views[owner], {}
        for box in self.heard.bundles[owner].body.boxes:
            committed = self.heard.bundles[owner].body.report_commitment
            address = BoxAddress(view.ctx1, owner, box.peer, report_commitment=committed)
            boxes, header = self._impostors[box.peer].boxes(self.heard.header), self.heard.header
            pair = boxes.open(address, view.keys[owner].box_key, box.box, len(box.box) - box_bytes(header)).shares
            shares[box.peer] = (pair.master if kind is MasterShare else pair.self_secret).reveal()
        return shares

    def attack(self) -> Vector64 | None:
        """Return the victim's update; None if no input of it came."""
        return self.estimate(self.victim)
