"""No repr, text, format or traceback of a phase, a message or an error holds a key, a seed or a share."""

from __future__ import annotations

import base64
import traceback
from typing import Any

import pytest
from cohort import Bytes, Cohort, identity, leaving, resigned, secrets_in
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from lies_of_aggregator import LIES, VICTIM, Lie

from securefda.errors import ProtocolError
from securefda.protocol.messages import Parcel, Unmask

DROPS = {5: 2}


def spellings(secret: bytes) -> list[str]:
    """Ways in which bytes may be printed; a third of them is enough to be found."""
    part = secret[8:20]
    return [repr(part)[2:-1], part.hex(), ", ".join(map(str, part)), base64.b64encode(secret[:12]).decode()]


def assert_nothing_shows(text: str, secrets: set[bytes]) -> None:
    for secret in secrets:
        for spelling in spellings(secret):
            assert spelling not in text


def printed(value: Any) -> str:
    return f"{value!r}\n{value!s}\n{value}"


class Watched:
    """A cohort whose random bytes are kept: keys, seeds, coefficients and nonces, all of it."""

    def __init__(self) -> None:
        self.cohort = Cohort(6, leaving(DROPS), {"threshold": 4})
        self.nonces: set[bytes] = set()
        self.secrets = {identity(i).private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption()) for i in range(7)}
        for index in self.cohort.indices:
            drawn = Bytes("source", index)  # the same bytes as the source draws: master, self secret, channel key
            self.secrets |= {drawn(32) for _ in range(3)}
            self.nonces.add(drawn(32))

    def look(self) -> None:
        for value in (*self.cohort.phases.values(), self.cohort.aggregator):
            self.secrets |= set(secrets_in(value)) - self.nonces  # which R1 reveals
        for value in (*self.cohort.phases.values(), self.cohort.aggregator, *self.cohort.outbox.values()):
            assert_nothing_shows(printed(value), self.secrets)


def test_no_phase_or_message_of_a_session_shows_a_secret() -> None:
    watched = Watched()
    counts = []
    for _ in range(5):
        watched.cohort.answer()
        watched.look()
        watched.cohort.collect()
        watched.look()
        watched.cohort.close()
        counts.append(len(watched.secrets))
    assert counts == sorted(counts)
    identities, drawn, reports, shares = 7, 3 * 6, 6, 2 * 6 * 6  # shares: two of each of six owners, at six holders
    assert counts[-1] == identities + drawn + reports + shares


def test_unmasking_message_shows_no_share_but_carries_it() -> None:
    cohort = Cohort(6, leaving(DROPS), {"threshold": 4}).until(4)
    message = cohort.outbox[0]
    shares = {share.share for share in message.body.shares}
    assert len(shares) == 6
    assert_nothing_shows(printed(message) + printed(Parcel(message)) + printed(message.body), shares)
    assert all(share in message.signed_bytes for share in shares)


def test_vectors_of_a_parcel_do_not_show() -> None:
    cohort = Cohort(3).until(2)
    update = bytes(range(100, 200))
    assert_nothing_shows(printed(Parcel(cohort.outbox[0], (update,))), {update})


def test_search_for_secrets_finds_one_that_shows() -> None:
    secret = bytes(range(120, 152))
    for text in (repr(secret), secret.hex(), str(list(secret)), base64.b64encode(secret).decode()):
        with pytest.raises(AssertionError):
            assert_nothing_shows(text, {secret})


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_traceback_of_a_refusal_shows_no_secret(lie: Lie) -> None:
    cohort = Cohort(5, **lie.setup)
    cohort.exchange(lie.slot)
    secrets = set(secrets_in(cohort.phases[VICTIM]))
    with pytest.raises(ProtocolError) as refused:
        cohort.step(VICTIM, lie.tell(cohort, cohort.inbox[VICTIM]))
    assert_nothing_shows("".join(traceback.format_exception(refused.value)), secrets)


def test_traceback_of_a_failed_opening_shows_no_share() -> None:
    cohort = Cohort(3).until(4)
    honest = cohort.outbox[2]
    broken = tuple(type(share)(share.owner, bytes(33)) for share in honest.body.shares)
    cohort.outbox[2] = resigned(honest, Unmask(broken))
    cohort.collect()
    shares = set(secrets_in(cohort.aggregator))
    with pytest.raises(ProtocolError) as refused:
        cohort.close()
    assert_nothing_shows("".join(traceback.format_exception(refused.value)), {s for s in shares if any(s)})
