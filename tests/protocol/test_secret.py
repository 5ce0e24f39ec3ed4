import copy
import logging
import pickle
import traceback
from dataclasses import dataclass

import pytest
import secagg_oracles as oracle

from securefda.protocol import agreement, masking, shamir
from securefda.protocol.secret import Secret, draw

CANARY = b"canary-canary-canary-canary-cana"


def shows(text: str) -> bool:
    """Whether the canary is in the text in any form that Python prints."""
    number = int.from_bytes(CANARY, "big")
    return any(form in text for form in ("canary", CANARY.hex(), str(number), f"{number:x}", str(list(CANARY))))


def test_the_detector_of_the_following_tests_finds_each_form() -> None:
    number = int.from_bytes(CANARY, "big")
    assert all(shows(form) for form in (repr(CANARY), CANARY.hex(), str(number), hex(number), str(list(CANARY))))
    assert not shows(repr(bytes(32)))


def test_no_way_of_printing_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass(frozen=True)
    class Holder:
        secret: Secret

    secret = Secret(CANARY)
    logging.getLogger("secagg").warning("%s %r", secret, Holder(secret))
    printed = [repr(secret), str(secret), f"{secret}", f"{secret!r:>40}", repr(Holder(secret)), repr([secret])]
    printed += [repr(agreement.KeyPair(secret)), repr(masking.Mask(secret)), caplog.text]
    assert caplog.text
    assert not any(shows(text) for text in printed)


def test_no_traceback_with_locals_shows_a_secret() -> None:
    share = Secret(shamir.PRIME.to_bytes(33, "big"))
    with pytest.raises(shamir.ShareError) as caught:
        shamir.reconstruct({1: share, 2: Secret(b"\0" + CANARY)}, 2)
    lines = traceback.TracebackException.from_exception(caught.value, capture_locals=True).format()
    text = "".join(lines)
    assert "shares" in text
    assert not shows(text)


def test_secret_compares_by_value_and_with_secrets_only() -> None:
    assert Secret(CANARY) == Secret(bytearray(CANARY))
    assert Secret(CANARY) != Secret(CANARY[:-1] + b"!")
    assert Secret(CANARY) != Secret(CANARY + b"\0")
    assert Secret(CANARY) != CANARY


def test_secret_is_neither_hashed_pickled_nor_copied() -> None:
    secret = Secret(CANARY)
    for leak in (hash, pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            leak(secret)  # type: ignore[operator]


def test_erased_secret_is_gone_and_equals_nothing() -> None:
    secret = Secret(CANARY)
    secret.erase()
    secret.erase()
    assert (len(secret), repr(secret)) == (0, "Secret(erased)")
    assert secret != Secret(CANARY)
    assert secret != secret
    with pytest.raises(ValueError, match="erased"):
        secret.reveal()


def test_erasing_overwrites_the_bytes_before_it_frees_them() -> None:
    secret = Secret(CANARY)
    window = memoryview(secret._buffer)  # holds the memory, so that freeing it fails
    with pytest.raises(BufferError):
        secret.erase()
    assert bytes(window) == bytes(32)


def test_secret_keeps_its_own_copy() -> None:
    original = bytearray(CANARY)
    secret = Secret(original)
    original[:] = bytes(32)
    assert secret.reveal() == CANARY


def test_empty_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        Secret(b"")


@pytest.mark.parametrize("given", [b"", bytes(31), bytes(33)])
def test_random_source_of_the_wrong_length_is_refused(given: bytes) -> None:
    with pytest.raises(ValueError, match="random source"):
        draw(lambda _: given, 32)
    with pytest.raises(ValueError, match="random source"):
        Secret.random(lambda _: given)


def test_random_secret_is_what_the_source_gave() -> None:
    assert Secret.random(oracle.tape("a"), 48).reveal() == oracle.tape("a")(48)
