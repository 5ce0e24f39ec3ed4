"""Signed messages of every type that a site keeps, for logs that tests write record by record."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from known_sites import known_key

from securefda.protocol import messages as m
from securefda.protocol.envelope import SIGNATURE_BYTES
from securefda.transport import wire

SIZE = 2_000
"""Bytes that a record may say of a message that vectors travel with: more than any of these has by itself."""


@cache
def signed_message(
    kind: str,
    sender: str,
    index: int,
    nonce: str,
    session: str = "",
    run: str = "",
    key: Ed25519PrivateKey | None = None,
) -> m.Signed[Any]:
    """A message that the wire takes; two with another nonce have another digest.

    Args:
        kind: name of its type, of those that are kept.
        sender: site id.
        index: the sender's in the roster.
        nonce: any text.
        session: 64 hex digits, or nothing.
        run: of headers, 32 hex digits.
        key: the sender's; its known key where none is given.
    """
    unique = sha256(f"{kind} {sender} {nonce}".encode()).digest()
    session_id = bytes.fromhex(session) or m.NO_SESSION
    return m.Signer(index, key or known_key(sender), wire.encode).sign(session_id, b"", _body(kind, unique, run))


def kept_form(message: m.Signed[Any]) -> bytes:
    """The bytes that a site keeps."""
    return wire.encode_signed(message)


def size_of(message: m.Signed[Any]) -> int:
    """What a record says of its bytes: with vectors `SIZE`."""
    return SIZE if m.vector_digests(message.body) else len(message.signed_bytes) + SIGNATURE_BYTES


def _body(kind: str, unique: bytes, run: str) -> m.Body:
    match kind:
        case "Join":
            return m.Join(unique, m.Visibility.SUM, False, 0)
        case "Header":
            return _header(unique, run)
        case "Advertise":
            return m.Advertise(unique, unique, unique, unique)
        case "MaskedInput":
            return m.MaskedInput(unique, 16)
        case "Update":
            return m.Update(unique, 16, 100, bytes(32))
        case "Result":
            return m.Result(unique, 3, unique)
        case "Refusal":
            return m.Refusal("min-others")
        case "Abort":
            return m.Abort(m.Step.HEADER, "QUORUM", None)
    raise ValueError(f"no test keeps a {kind}")


def _header(unique: bytes, run: str) -> m.Header:
    return m.Header(
        run_id=bytes.fromhex(run) or bytes(16),
        round=1,
        attempt=1,
        levels=(m.Visibility.SUM,) * 3,
        rule=m.RuleTerms("fedavg", 0.5, "orthogonal", True, True, "mean-field", 1.0),
        target=None,
        layers=(m.Layer("w", (4,), 1.0, 1.0),),
        architecture_digest=bytes(32),
        model_digest=unique,
        roster_digest=bytes(32),
        participants=(1, 2, 3),
        threshold=3,
        modulus_bits=32,
        n_max=6,
        max_samples=1000,
        training_deadline_ms=60_000,
        phase_deadline_ms=10_000,
        previous_result_digest=b"",
        previous_checkpoint=b"",
        sum_quorum=3,
        norm_cap=m.NormCapTerms(1.0, 2, m.Granularity.MODEL),
    )
