"""No second input of one round, whatever is lost, killed, restarted or full."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rounds_federation import TARGET, Federation, secrets_in, signer, until

from securefda.errors import SecureFdaError
from securefda.protocol.messages import (
    NO_CONTEXT,
    SESSION_ID_BYTES,
    Advertise,
    Consistency,
    Header,
    KeyList,
    Parcel,
    Refusal,
    Result,
    ShareBundle,
    ShareDelivery,
    Survivors,
    Visibility,
)
from securefda.source.source_run import SourceRun

ME = 2
BEFORE_RELEASE = [KeyList, ShareDelivery]
AFTER_RELEASE = [Survivors, Consistency, Result]


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path).open()


@pytest.fixture
def me(federation: Federation) -> SourceRun:
    return federation.sources[ME]


def bodies(answers: list[Parcel]) -> list[Any]:
    return [answer.message.body for answer in answers]


def again(header: Parcel, *, session: bytes = b"t", **changes: Any) -> Parcel:
    """The header of another session of the same round, really signed by the target."""
    message = signer(TARGET).sign(session * SESSION_ID_BYTES, NO_CONTEXT, replace(header.message.body, **changes))
    return Parcel(message, header.vectors)


def restarted(federation: Federation) -> SourceRun:
    """The source as a new process on the old state; what the old one had in memory is gone."""
    federation.sources[ME] = federation.source(ME)
    return federation.sources[ME]


def header_until(federation: Federation, next_is: type) -> tuple[Parcel, Parcel]:
    """The header of round 1, and the message of this kind that comes next to the source."""
    header = until(federation, ME, Header)
    for answer in federation.sources[ME].handle(header):
        federation.submit(ME, answer)
    return header, until(federation, ME, next_is)


# When a round may be tried again


def test_a_header_that_was_refused_leaves_the_round_open(federation: Federation, me: SourceRun) -> None:
    header = until(federation, ME, Header)
    model, *others = header.vectors
    other = Parcel(again(header, session=b"l").message, (bytes(len(model)), *others))
    assert bodies(me.handle(other)) == [Refusal("HEADER_MODEL")]
    assert isinstance(bodies(me.handle(again(header, attempt=2)))[0], Advertise)
    assert not federation.released(ME)


def test_a_header_of_another_model_than_came_with_it_is_not_remembered(federation: Federation, me: SourceRun) -> None:
    header = until(federation, ME, Header)
    assert bodies(me.handle(again(header, session=b"l", model_digest=bytes(32)))) == [Refusal("HEADER_MODEL")]
    assert isinstance(bodies(me.handle(again(header, attempt=2)))[0], Advertise)


def _secrets(rounds: SourceRun) -> list[bytes]:
    secrets = secrets_in(rounds._round.phase if rounds._round else None)
    return [secret.reveal() for secret in secrets if len(secret)]


def _public(advertise: Advertise) -> tuple[bytes, ...]:
    return advertise.mask_key, advertise.box_key, advertise.self_mask_commitment, advertise.nonce_commitment


def test_secrets_never_repeat_over_attempts_and_rounds(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rounds=4, settings={"attempts": 3}).open()
    seen: list[bytes] = []
    keys: list[bytes] = []

    attempt = {"number": 0}

    def first_attempts_fail(sender: int, recipient: int, message: Any) -> Any:
        if isinstance(message.body, Header):
            attempt["number"] = message.body.attempt
        if isinstance(message.body, Advertise):
            keys.extend(_public(message.body))
            seen.extend(_secrets(federation.sources[sender]))
        lost = isinstance(message.body, ShareBundle) and sender == ME and attempt["number"] == 1
        return None if lost else message

    federation.link = first_attempts_fail
    federation.go()
    assert federation.statuses == ["finished"] * 4
    assert len(keys) == 4 * 3 * 2 * 4  # four in an Advertise, three sources, two attempts, four rounds
    assert len(seen) == len(keys)
    assert len(set(keys) | set(seen)) == 2 * len(keys)


@pytest.mark.parametrize("how", ["silence", "crash", "a new header"])
@pytest.mark.parametrize("lost_at", AFTER_RELEASE)
def test_a_session_lost_after_r2_is_followed_by_none_of_its_round(
    federation: Federation, me: SourceRun, lost_at: type, how: str
) -> None:
    header, _ = header_until(federation, lost_at)
    if how == "silence":
        me.expire()
    elif how == "crash":
        me = restarted(federation)
    assert bodies(me.handle(again(header, attempt=2))) == [Refusal("RELEASE_FUSE")]
    assert federation.watch.checks(ME)[-1:] == ["RELEASE_FUSE"]
    assert federation.released(ME)


@pytest.mark.parametrize("visibility", [Visibility.SUM, Visibility.INDIVIDUAL])
def test_a_crash_between_the_fuse_and_the_sending_closes_the_round(tmp_path: Path, visibility: Visibility) -> None:
    federation = Federation(tmp_path, visibility=visibility).open()
    if visibility is Visibility.SUM:
        header, last = header_until(federation, ShareDelivery)
    else:
        header = last = until(federation, ME, Header)
    assert federation.sources[ME].handle(last)[0].vectors  # never sent: the process dies here
    me = restarted(federation)
    assert bodies(me.handle(again(header, attempt=2))) == [Refusal("RELEASE_FUSE")]


@pytest.mark.parametrize("next_is", [*BEFORE_RELEASE, *AFTER_RELEASE])
def test_a_restarted_source_does_not_resume_the_session(federation: Federation, next_is: type) -> None:
    _, message = header_until(federation, next_is)
    before = federation.released(ME)
    me = restarted(federation)
    assert me.handle(message) == []
    assert federation.watch.checks(ME) == ["ORDER"]
    assert me.current is None
    assert federation.released(ME) == before


# A disk that is full


@contextmanager
def full_for(path: Path) -> Iterator[None]:
    """No file can grow beyond this one's length: the system's own way to a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_at_the_fuse_lets_nothing_out_and_says_so_in_one_line(
    federation: Federation, me: SourceRun, tmp_path: Path
) -> None:
    header, delivery = header_until(federation, ShareDelivery)
    secrets = secrets_in(me._round.phase if me._round else None)
    with full_for(tmp_path / f"source-{ME}.sqlite-wal"):
        answers = me.handle(delivery)
    assert bodies(answers) == [Refusal("STORAGE")]
    assert answers[0].vectors == ()
    assert isinstance(me.standing.failure, SecureFdaError)
    assert "\n" not in str(me.standing.failure)
    assert "free disk space" in me.standing.failure.hint
    assert secrets
    assert all(len(secret) == 0 for secret in secrets)
    assert not federation.released(ME)
    assert isinstance(bodies(restarted(federation).handle(again(header, attempt=2)))[0], Advertise)


def test_a_marker_that_cannot_be_moved_on_lets_nothing_out(
    federation: Federation, me: SourceRun, tmp_path: Path
) -> None:
    _, delivery = header_until(federation, ShareDelivery)
    (tmp_path / f"source-{ME}.sqlite.releases-0").unlink()
    assert bodies(me.handle(delivery)) == [Refusal("STORAGE")]
    assert federation.released(ME)  # burnt in vain: the round is closed, and nothing of it has left
