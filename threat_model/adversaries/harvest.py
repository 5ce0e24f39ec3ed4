"""T36: keep what passes today, and open it once X25519 can be broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from securefda.protocol.agreement import KEY_BYTES, BoxAddress, BoxError, KeyPair
from securefda.protocol.hybrid import BOX_PRIVATE_BYTES
from securefda.protocol.messages import MasterShare
from securefda.protocol.secret import Secret
from securefda.protocol.share_boxes import box_bytes, boxes_of
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64
from threat_model.adversaries.opens import ShareKind
from threat_model.sites import AggregatorSeat


class BrokenX25519:
    """A computer to come, which finds the private key of any public key of X25519; here it has seen them made."""

    def __init__(self) -> None:
        self._private: dict[bytes, bytes] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note every key pair that is made meanwhile, at any site."""
        made = KeyPair.__post_init__

        def noted(pair: KeyPair) -> None:
            made(pair)
            self._private[pair.public] = pair.private.reveal()

        with mock.patch.object(KeyPair, "__post_init__", noted):
            yield

    def private_of(self, public: bytes) -> bytes:
        """Return the private key, 32 bytes."""
        return self._private[public]


class Harvest(MaliciousAggregator):
    """Follows the protocol, keeps every message and masked input, and opens the boxes years later.

    Powers: the target's key, all that passes through it, and then a computer that breaks X25519.
    Goal: the victim's update.
    Source: "harvest now, decrypt later", the reason for draft-ietf-tls-ecdhe-mlkem and NIST IR 8547.

    Args:
        seat: of the target.
        victim: roster index.
        computer: that breaks X25519.
    """

    threat = "T36"

    def __init__(self, seat: AggregatorSeat, *, victim: int, computer: BrokenX25519) -> None:
        super().__init__(seat)
        self.victim, self.computer = victim, computer

    def held_shares(self, owner: int, kind: ShareKind) -> dict[int, bytes]:
        """Return also the shares in those boxes of the victim that open."""
        shares, view, header = super().held_shares(owner, kind), self.heard.views[owner], self.heard.header
        for box in self.heard.bundles[owner].body.boxes if owner == self.victim else ():
            x25519 = self.computer.private_of(view.keys[box.peer].box_key[:KEY_BYTES])
            # Of ML-KEM it has the public key and the ciphertext, and no better way than to guess the seed.
            guess = self.seat.site.random_bytes(BOX_PRIVATE_BYTES - KEY_BYTES) if header.is_hybrid else b""
            committed = self.heard.bundles[owner].body.report_commitment
            address = BoxAddress(view.ctx1, owner, box.peer, report_commitment=committed)
            boxes = boxes_of(header, Secret(x25519 + guess))
            try:
                opened = boxes.open(address, view.keys[owner].box_key, box.box, len(box.box) - box_bytes(header))
            except BoxError:
                continue
            pair = opened.shares
            shares[box.peer] = (pair.master if kind is MasterShare else pair.self_secret).reveal()
        return shares

    def attack(self) -> Vector64 | None:
        """Return the victim's update, or the best guess; None if no input of it came."""
        return self.estimate(self.victim)
