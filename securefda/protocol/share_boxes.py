"""Share boxes under the key agreement that a header names: one type for each, with the same methods."""

from __future__ import annotations

from dataclasses import dataclass

from securefda.protocol import agreement, hybrid
from securefda.protocol.agreement import BOX_BYTES, BoxAddress, BoxError, KeyPair, LoadedKey, SharePair
from securefda.protocol.header import Header
from securefda.protocol.hybrid import BoxKey, Half
from securefda.protocol.secret import RandomBytes, Secret


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class OpenedBox:
    """What a box holds: shares, the pair secret of a hybrid one, and the norm report with its opening, where due."""

    shares: SharePair
    pair_secret: Secret | None
    report: Secret | None


class X25519Boxes:
    """Boxes whose keys derive from X25519.

    Args:
        private: the source's private box key, of which the library holds a copy while this object lives.
    """

    def __init__(self, private: Secret) -> None:
        self._key = LoadedKey.of(private)
        self.public = KeyPair(private).public

    def seal(
        self,
        address: BoxAddress,
        peer_public: bytes,
        shares: SharePair,
        report: Secret | None,
        *,
        master: Secret,
        random_bytes: RandomBytes,
    ) -> bytes:
        """Seal shares, and a norm report where there is one, to the owner of ``peer_public``.

        Raises:
            KeyAgreementError: that key gives no shared secret.
        """
        # The caller need not know which kind of box it seals: only hybrid ones hold
        # what follows from the master secret.
        del master
        key = agreement.sealing_key(self._key, peer_public, address)
        box = agreement.seal_box(key, address, shares, random_bytes, report)
        key.erase()
        return box

    def open(self, address: BoxAddress, peer_public: bytes, box: bytes, report_bytes: int) -> OpenedBox:
        """Open a box; ``report_bytes`` is the length of the report in it.

        Raises:
            BoxError, KeyAgreementError: it is not a box of that sender to here.
        """
        key = agreement.sealing_key(self._key, peer_public, address)
        shares, report = agreement.open_box(key, address, box, report_bytes)
        key.erase()
        return OpenedBox(shares, None, report)


class HybridBoxes:
    """Boxes of :mod:`.hybrid`: behind the KEM's ciphertext and a commitment, with a pair secret beside the shares.

    Args and methods as :class:`X25519Boxes`.
    """

    def __init__(self, private: Secret) -> None:
        self._key = BoxKey.of(private)
        self.public = self._key.public

    def seal(
        self,
        address: BoxAddress,
        peer_public: bytes,
        shares: SharePair,
        report: Secret | None,
        *,
        master: Secret,
        random_bytes: RandomBytes,
    ) -> bytes:
        """Seal shares, the pair secret that follows from ``master``, and a norm report where there is one."""
        half = Half.of_master(master, owner=address.sender, peer=address.recipient, ctx1=address.ctx1)
        address = address.with_commitment(half.commitment)
        key, ciphertext = self._key.encapsulate(peer_public, address)
        extra = Secret(half.pair_secret.reveal() + (report.reveal() if report else b""))
        box = agreement.seal_box(key, address, shares, random_bytes, extra)
        for secret in (key, extra):
            secret.erase()
        half.erase()
        return ciphertext + address.commitment + box

    def open(self, address: BoxAddress, peer_public: bytes, box: bytes, report_bytes: int) -> OpenedBox:
        """Open a box.

        Raises:
            BoxError, KeyAgreementError: it is not a box of that sender to here.
            CommitmentError: it is, and holds another pair secret than its sender committed to.
        """
        if len(box) != hybrid.FRONT_BYTES + BOX_BYTES + hybrid.PAIR_SECRET_BYTES + report_bytes:
            raise BoxError(f"a hybrid share box has another length than {len(box)} bytes here")
        address = address.with_commitment(hybrid.commitment_in(box))
        key = self._key.decapsulate(peer_public, address, box[: hybrid.CIPHERTEXT_BYTES])
        sealed, extra_bytes = box[hybrid.FRONT_BYTES :], hybrid.PAIR_SECRET_BYTES + report_bytes
        shares, extra = agreement.open_box(key, address, sealed, extra_bytes)
        key.erase()
        content = extra.reveal() if extra else b""
        secret, report = Secret(content[: hybrid.PAIR_SECRET_BYTES]), content[hybrid.PAIR_SECRET_BYTES :]
        half = Half.of_pair_secret(secret, owner=address.sender, peer=address.recipient, ctx1=address.ctx1)
        # Checked now, while its sender is the suspect (SHARE_HALF). Later a wrong half would cost the sum.
        half.require(address.commitment)
        for derived in (half.half, half.recovery_key):
            derived.erase()
        return OpenedBox(shares, secret, Secret(report) if report else None)


ShareBoxes = X25519Boxes | HybridBoxes


def boxes_of(header: Header, private: Secret) -> ShareBoxes:
    """The boxes of a session, for the owner of this private box key."""
    return HybridBoxes(private) if header.is_hybrid else X25519Boxes(private)


def private_key(header: Header, random_bytes: RandomBytes) -> Secret:
    """A fresh private box key. It depends on nothing that is ever reconstructed."""
    return Secret.random(random_bytes, hybrid.BOX_PRIVATE_BYTES if header.is_hybrid else agreement.KEY_BYTES)


def box_bytes(header: Header) -> int:
    """Length of a box without a norm report."""
    return BOX_BYTES + (hybrid.FRONT_BYTES + hybrid.PAIR_SECRET_BYTES if header.is_hybrid else 0)


def check_box_key(header: Header, public: bytes) -> None:
    """Refuse a public box key that gives no shared secret under the header's key agreement.

    Raises:
        KeyAgreementError: wrong length, a point of low order, or no key of ML-KEM-768.
    """
    (hybrid.check_box_key if header.is_hybrid else agreement.check_public_key)(public)
