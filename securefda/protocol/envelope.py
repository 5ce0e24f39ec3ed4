"""The frame of every message: an envelope, the exact bytes that were signed, and the signature.

What is signed is ``b"securefda/1/" + message_type + b"\\0" + SHA-256(signed_bytes)``: with the message type inside, no
signature can stand in for another message. The signed bytes travel verbatim next to the signature; a message is never
serialised again in order to check it.

Sizes of fields, and what every message checks of its own: a value that is out of bounds is never built.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Generic, TypeVar, cast

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

DIGEST_BYTES = 32
SESSION_ID_BYTES = 32
RUN_ID_BYTES = 16
MAX_NOTE_BYTES = 512 * 1024
MAX_BOX_BYTES = 8192
"""Most bytes of a share box with a norm report: one for each of at most 4096 layers, and less than 200 others."""

MAX_PROOF_HASHES = 128
MAX_LINE_CHARACTERS = 6144
"""Most characters of a cosignature: a line of Ed25519 and one of ML-DSA-65."""


def expect(condition: bool, what: str) -> None:
    """Raise a ValueError with the message ``what`` unless ``condition`` holds."""
    if not condition:
        raise ValueError(what)


def expect_bytes(value: bytes, length: int, name: str) -> None:
    """Raise a ValueError unless ``value`` has ``length`` bytes."""
    expect(len(value) == length, f"{name} must be {length} bytes, not {len(value)}")


def expect_rising(members: tuple[int, ...]) -> None:
    """Raise a ValueError unless the roster indices are strictly increasing."""
    expect(all(member < following for member, following in itertools.pairwise(members)), "members must rise strictly")


def expect_finite(value: float, name: str, *, positive: bool = False) -> None:
    """Raise a ValueError unless ``value`` is finite and, with ``positive``, above zero."""
    expect(math.isfinite(value), f"{name} must be finite")
    expect(not positive or value > 0, f"{name} must be above 0")


PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64

_PREFIX = b"securefda/1/"
# Printable ASCII without the NUL that ends the type: the encoding has exactly one reading.
_MESSAGE_TYPE = re.compile(r"[!-~]{1,64}")


def sign_bytes(key: Ed25519PrivateKey, message_type: str, signed_bytes: bytes) -> bytes:
    """Sign a message of one type.

    Args:
        key: the signer's identity key.
        message_type: 1 to 64 printable ASCII characters without blanks, for example ``"Roster"``.
        signed_bytes: the message exactly as it travels, any length.

    Returns:
        The signature, 64 bytes; deterministic (RFC 8032).

    Raises:
        ValueError: ``message_type`` is not of that form.
    """
    return key.sign(_statement(message_type, signed_bytes))


def signature_is_valid(public_key: bytes, message_type: str, signed_bytes: bytes, signature: bytes) -> bool:
    """Tell whether ``signature`` is ``public_key``'s over these bytes as a message of this type.

    Args:
        public_key: raw Ed25519 public key, 32 bytes.
        message_type: the type that the verifier expects; never one that the message itself claims.
        signed_bytes: the message exactly as received.
        signature: the signature as received; a wrong length counts as invalid.

    Raises:
        ValueError: ``message_type`` is malformed (the verifier's own mistake, never the peer's).
    """
    statement = _statement(message_type, signed_bytes)
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, statement)
    except (InvalidSignature, ValueError):  # ValueError: the 32 bytes are no public key
        return False
    return True


def _statement(message_type: str, signed_bytes: bytes) -> bytes:
    if not _MESSAGE_TYPE.fullmatch(message_type):
        raise ValueError(f"message_type must be 1 to 64 printable ASCII characters, got {message_type!r}")
    return _PREFIX + message_type.encode("ascii") + b"\0" + sha256(signed_bytes).digest()


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
    _valid_under: dict[bytes, bool] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Public key -> whether the signature is valid: the log and the session both ask, of bytes that never change."""

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

    def of(self, kind: type[BodyT]) -> Signed[BodyT] | None:
        """This message, if its body is of the kind."""
        return cast("Signed[BodyT]", self) if type(self.body) is kind else None

    def digest(self) -> bytes:
        """SHA-256 of the signed bytes, verbatim."""
        return sha256(self.signed_bytes).digest()

    def verify(self, public_key: bytes) -> bool:
        """Whether the signature is valid under ``public_key`` (32 bytes, Ed25519)."""
        # Kept by key, never as one bit: what is valid under one site's key says nothing about another's.
        valid = self._valid_under.get(public_key)
        if valid is None:
            valid = signature_is_valid(public_key, self.type_name, self.signed_bytes, self.signature)
            self._valid_under[public_key] = valid
        return valid


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
