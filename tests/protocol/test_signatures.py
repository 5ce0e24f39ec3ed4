"""Typed signatures: what is signed, and what a signature can never be used for."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from securefda.protocol.envelope import NO_CONTEXT, NO_SESSION, Signer, sign_bytes, signature_is_valid
from securefda.protocol.messages import Refusal
from securefda.transport import wire

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()


def test_signature_is_ed25519_over_prefix_type_and_digest() -> None:
    expected = KEY.sign(b"securefda/1/Advertise\x00" + hashlib.sha256(b"body").digest())
    assert sign_bytes(KEY, "Advertise", b"body") == expected


@given(st.binary(max_size=200))
def test_own_signature_is_valid_for_any_bytes(data: bytes) -> None:
    assert signature_is_valid(PUBLIC, "Header", data, sign_bytes(KEY, "Header", data))


def test_signature_of_one_type_is_invalid_for_every_other_type() -> None:
    signature = sign_bytes(KEY, "Survivors", b"x")
    for other in ("Survivor", "Survivorss", "survivors", "Header"):
        assert not signature_is_valid(PUBLIC, other, b"x", signature)


def test_signature_is_invalid_for_other_bytes_and_other_keys() -> None:
    signature = sign_bytes(KEY, "Header", b"x")
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
    assert not signature_is_valid(PUBLIC, "Header", b"y", signature)
    assert not signature_is_valid(other, "Header", b"x", signature)


@given(place=st.integers(0, 63), bit=st.integers(0, 7))
def test_signature_with_one_flipped_bit_is_invalid(place: int, bit: int) -> None:
    signature = bytearray(sign_bytes(KEY, "Header", b"x"))
    signature[place] ^= 1 << bit
    assert not signature_is_valid(PUBLIC, "Header", b"x", bytes(signature))


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(64), bytes(65)])
def test_malformed_signature_is_invalid_and_raises_nothing(signature: bytes) -> None:
    assert not signature_is_valid(PUBLIC, "Header", b"x", signature)


@pytest.mark.parametrize("public_key", [b"", bytes(31), b"\xff" * 32, bytes(33)])
def test_malformed_public_key_is_invalid_and_raises_nothing(public_key: bytes) -> None:
    assert not signature_is_valid(public_key, "Header", b"x", sign_bytes(KEY, "Header", b"x"))


@pytest.mark.parametrize("message_type", ["", "a\0b", "a b", "ä", "x" * 65, "a\n"])
def test_message_type_with_two_readings_is_refused(message_type: str) -> None:
    with pytest.raises(ValueError, match="message_type"):
        sign_bytes(KEY, message_type, b"x")
    with pytest.raises(ValueError, match="message_type"):
        signature_is_valid(PUBLIC, message_type, b"x", bytes(64))


def test_a_message_is_valid_only_under_its_key_however_often_that_is_asked() -> None:
    signed = Signer(1, KEY, wire.encode).sign(NO_SESSION, NO_CONTEXT, Refusal("k-min"))
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
    for _ in range(2):
        assert signed.verify(PUBLIC)
        assert not signed.verify(other)
    for changed in (replace(signed, signature=bytes(64)), replace(signed, signed_bytes=b"other")):
        assert not changed.verify(PUBLIC)
    assert signed.verify(PUBLIC)
