"""What every message travels in: an envelope, and the exact bytes that were signed.

Sizes of fields, and what every message checks of its own: a value that is out of bounds is never built.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Generic, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.protocol.signatures import sign_bytes, signature_is_valid

DIGEST_BYTES = 32
SESSION_ID_BYTES = 32
RUN_ID_BYTES = 16
SIGNATURE_BYTES = 64
MAX_NOTE_BYTES = 512 * 1024
MAX_BOX_BYTES = 8192
"""Of a share box with a norm report: one byte for each of at most 4096 layers, and less than 200 beside it."""

MAX_PROOF_HASHES = 128
MAX_LINE_CHARACTERS = 1024


def expect(condition: bool, what: str) -> None:
    """Raise a ValueError that says ``what`` must be, unless it is."""
    if not condition:
        raise ValueError(what)


def expect_bytes(value: bytes, length: int, name: str) -> None:
    """Likewise for the length of a field of bytes."""
    expect(len(value) == length, f"{name} must be {length} bytes, not {len(value)}")


def expect_finite(value: float, name: str, *, positive: bool = False) -> None:
    """Likewise for a number that is neither infinite nor NaN; with ``positive``, above zero."""
    expect(math.isfinite(value), f"{name} must be finite")
    expect(not positive or value > 0, f"{name} must be above 0")


SUITE = 1
NO_SESSION = bytes(SESSION_ID_BYTES)
NO_CONTEXT = b""

BodyT = TypeVar("BodyT")
BodyT_co = TypeVar("BodyT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Envelope(Generic[BodyT_co]):
    """A body with what ties it to one session, one sender and one view of the protocol so far."""

    session_id: bytes
    sender: int
    context: bytes
    body: BodyT_co
    suite: int = SUITE

    def __post_init__(self) -> None:
        expect_bytes(self.session_id, SESSION_ID_BYTES, "session_id")
        expect(len(self.context) in (0, DIGEST_BYTES), "context must be empty or 32 bytes")
        expect(0 <= self.sender < 2**31, "sender must be a roster index")


@dataclass(frozen=True, slots=True)
class Signed(Generic[BodyT_co]):
    """An envelope with the exact bytes that were signed.

    The one who builds it guarantees that ``envelope`` is what ``signed_bytes`` parse to. The signature counts as valid
    only after :meth:`verify` has said so. The repr leaves the bytes out: those of an ``Unmask`` hold
    shares.
    """

    envelope: Envelope[BodyT_co]
    signed_bytes: bytes = field(repr=False)
    signature: bytes

    @property
    def body(self) -> BodyT_co:
        """The message itself."""
        return self.envelope.body

    @property
    def sender(self) -> int:
        """Roster index of the site that claims to have signed."""
        return self.envelope.sender

    @property
    def type_name(self) -> str:
        """Name of the message type, also the label inside the signature."""
        return type(self.envelope.body).__name__

    def digest(self) -> bytes:
        """SHA-256 of the signed bytes, verbatim."""
        return sha256(self.signed_bytes).digest()

    def verify(self, public_key: bytes) -> bool:
        """Whether the signature is valid under ``public_key`` (32 bytes, Ed25519)."""
        return signature_is_valid(public_key, self.type_name, self.signed_bytes, self.signature)


@dataclass(frozen=True, slots=True, repr=False)
class Signer:
    """Signs as one site. ``encode`` turns an envelope into the bytes that travel."""

    index: int
    private_key: Ed25519PrivateKey
    encode: Callable[[Envelope[Any]], bytes]

    def sign(self, session_id: bytes, context: bytes, body: BodyT) -> Signed[BodyT]:
        """Serialise once, sign those bytes, keep them."""
        envelope = Envelope(session_id=session_id, sender=self.index, context=context, body=body)
        data = self.encode(envelope)
        return Signed(envelope, data, sign_bytes(self.private_key, type(body).__name__, data))

    def __repr__(self) -> str:
        return f"Signer(index={self.index}, private_key=<redacted>)"
