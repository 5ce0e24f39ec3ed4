"""Ed25519 signatures with the message type inside, so that no signature can stand in for another message.

What is signed is ``b"securefda/1/" + message_type + b"\\0" + SHA-256(signed_bytes)``. The signed bytes travel
verbatim next to the signature; a message is never serialised again in order to check it.
"""

from __future__ import annotations

import hashlib
import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

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
    return _PREFIX + message_type.encode("ascii") + b"\0" + hashlib.sha256(signed_bytes).digest()
