"""No second input of one round, and no session that goes on elsewhere: after a crash, in a fork, on a full disk."""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rounds_federation import TARGET, Federation, secrets_in, signer, until

from securefda.errors import SecureFdaError
from securefda.rounds.process_guard import CopiedProcess, ProcessGuard
from securefda.rounds.source import SourceRounds
from securefda.secagg import source as session_steps
from securefda.secagg.messages import (
    NO_CONTEXT,
    SESSION_ID_BYTES,
    Advertise,
    Consistency,
    Header,
    KeyList,
    MaskedInput,
    Parcel,
    Refusal,
    Result,
    ShareBundle,
    ShareDelivery,
    Survivors,
    Visibility,
)

ME = 2
BEFORE_RELEASE = [KeyList, ShareDelivery]
AFTER_RELEASE = [Survivors, Consistency, Result]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    federation = Federation(tmp_path).open()
    yield federation
    federation.close()


@pytest.fixture
def me(federation: Federation) -> SourceRounds:
    return federation.sources[ME]


def checks(federation: Federation) -> list[str]:
    """What failed at the source, by name."""
    return [getattr(error, "check", type(error).__name__) for error in federation.watch.alarms[ME]]


def bodies(answers: list[Parcel]) -> list[Any]:
    return [answer.message.body for answer in answers]


def released(federation: Federation, number: int = 1) -> bool:
    run_id = bytes.fromhex(federation.run.run_id)
    return federation.stores[ME].history(bytes(SESSION_ID_BYTES), run_id, number).released


def again(header: Parcel, *, session: bytes = b"t", **changes: Any) -> Parcel:
    """The header of another session of the same round, really signed by the target."""
    message = signer(TARGET).sign(session * SESSION_ID_BYTES, NO_CONTEXT, replace(header.message.body, **changes))
    return Parcel(message, header.vectors)


def restarted(federation: Federation) -> SourceRounds:
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


def test_a_header_that_was_refused_leaves_the_round_open(federation: Federation, me: SourceRounds) -> None:
    header = until(federation, ME, Header)
    assert bodies(me.handle(again(header, session=b"l", model_digest=bytes(32)))) == [Refusal("HEADER_MODEL")]
    assert isinstance(bodies(me.handle(again(header, attempt=2)))[0], Advertise)
    assert not released(federation)


@pytest.mark.parametrize("how", ["silence", "crash", "a new header"])
@pytest.mark.parametrize("lost_at", BEFORE_RELEASE)
def test_a_session_lost_before_r2_is_followed_by_one_with_fresh_secrets(
    federation: Federation, me: SourceRounds, lost_at: type, how: str
) -> None:
    header, _ = header_until(federation, lost_at)
    first = _secrets(me)
    if how == "silence":
        me.expire()
    elif how == "crash":
        me = restarted(federation)
    (advertise,) = bodies(me.handle(again(header, attempt=2)))
    assert isinstance(advertise, Advertise)
    assert len(first) >= 3
    assert not set(first) & set(_secrets(me))
    sent = [m.body for sender, _, m in federation.passed if sender == ME and isinstance(m.body, Advertise)]
    assert len(sent) == 1
    assert not set(_public(sent[0])) & set(_public(advertise))
    assert not released(federation)


def _secrets(rounds: SourceRounds) -> list[bytes]:
    return [secret.reveal() for secret in secrets_in(rounds._round.phase if rounds._round else None)]


def _public(advertise: Advertise) -> tuple[bytes, ...]:
    return (advertise.mask_key, advertise.box_key, advertise.self_mask_commitment, advertise.nonce_commitment)


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
    federation.close()
    assert len(keys) == 4 * 3 * 2 * 4  # four in an Advertise, three sources, two attempts, four rounds
    assert len(seen) == len(keys)
    assert len(set(keys) | set(seen)) == 2 * len(keys)


@pytest.mark.parametrize("how", ["silence", "crash", "a new header"])
@pytest.mark.parametrize("lost_at", AFTER_RELEASE)
def test_a_session_lost_after_r2_is_followed_by_none_of_its_round(
    federation: Federation, me: SourceRounds, lost_at: type, how: str
) -> None:
    header, _ = header_until(federation, lost_at)
    if how == "silence":
        me.expire()
    elif how == "crash":
        me = restarted(federation)
    assert bodies(me.handle(again(header, attempt=2))) == [Refusal("RELEASE_FUSE")]
    assert checks(federation) == ["RELEASE_FUSE"]
    assert released(federation)


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
    federation.close()


def test_a_round_that_is_closed_leaves_the_next_one_open(federation: Federation, me: SourceRounds) -> None:
    header, _ = header_until(federation, Survivors)
    me = restarted(federation)
    answers = me.handle(again(header, round=2))
    assert isinstance(bodies(answers)[0], Advertise)
    assert (released(federation, 1), released(federation, 2)) == (True, False)


@pytest.mark.parametrize(
    ("session", "changes", "key"),
    [
        (b"t", {}, "HEADER_ORDER"),
        (b"", {"attempt": 2}, "HEADER_REPLAY"),
        (b"", {"round": 2}, "HEADER_REPLAY"),
    ],
    ids=["the same attempt in a new session", "the next attempt in the old one", "the next round in it"],
)
def test_a_restart_brings_back_neither_an_attempt_nor_a_session(
    federation: Federation, me: SourceRounds, session: bytes, changes: dict[str, int], key: str
) -> None:
    header = until(federation, ME, Header)
    me.handle(header)
    body, session_id = replace(header.message.body, **changes), header.message.envelope.session_id
    retry = signer(TARGET).sign(session * SESSION_ID_BYTES or session_id, NO_CONTEXT, body)
    assert bodies(restarted(federation).handle(Parcel(retry, header.vectors))) == [Refusal(key)]
    assert checks(federation) == [key]


@pytest.mark.parametrize("next_is", [*BEFORE_RELEASE, *AFTER_RELEASE])
def test_a_restarted_source_does_not_resume_the_session(federation: Federation, next_is: type) -> None:
    _, message = header_until(federation, next_is)
    before = released(federation)
    me = restarted(federation)
    assert me.handle(message) == []
    assert checks(federation) == ["ORDER"]
    assert me.deadline_s() is None
    assert released(federation) == before


# A copy of the process


def in_a_fork(work: Callable[[], Any], fork: Callable[[], int] = os.fork) -> Any:
    """What ``work`` returns in a forked copy of this process, which ends with it."""
    reading, writing = os.pipe()
    child = fork()
    if child == 0:
        try:
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(work(), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data)


def outcome(work: Callable[[], Any]) -> str:
    """The name of the error that ``work`` raises, or what it returns."""
    try:
        return repr(work())
    except (SecureFdaError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("next_is", [*BEFORE_RELEASE, *AFTER_RELEASE])
def test_a_fork_cannot_go_on_with_the_session_and_the_original_can(federation: Federation, next_is: type) -> None:
    _, message = header_until(federation, next_is)
    me, state = federation.sources[ME], federation.stores[ME]
    secrets = secrets_in(me._round.phase if me._round else None)
    lengths = [len(secret) for secret in secrets]
    run_id = bytes.fromhex(federation.run.run_id)

    def try_all() -> dict[str, Any]:
        tried = {
            "handle": lambda: me.handle(message),
            "expire": me.expire,
            "join": me.join,
            "fuse": lambda: state.burn_fuse(run_id, 3),
            "history": lambda: state.history(bytes(32), run_id, 1),
            "close": state.close,
        }
        return {name: outcome(work) for name, work in tried.items()} | {"left": [len(secret) for secret in secrets]}

    found = in_a_fork(try_all)
    assert found.pop("left") == [0] * len(secrets)
    assert found.pop("close") == "None"
    assert {text.split(":")[0] for text in found.values()} == {"CopiedProcess"}
    assert [len(secret) for secret in secrets] == lengths
    for answer in me.handle(message):
        federation.submit(ME, answer)
    federation.go()
    assert federation.statuses == ["finished"] * 3
    assert checks(federation) == []


def test_a_fork_that_holds_all_secrets_still_masks_nothing(federation: Federation) -> None:
    """The phase itself, taken past the guard: what it would need has been erased."""
    _, message = header_until(federation, ShareDelivery)
    phase = federation.sources[ME]._round.phase  # type: ignore[union-attr]
    text = in_a_fork(lambda: outcome(lambda: session_steps.receive_shares(phase, message.message)))
    assert text == "ValueError: this secret has been erased"
    (answer,) = federation.sources[ME].handle(message)
    assert isinstance(answer.message.body, MaskedInput)


def test_a_fork_below_python_is_found_too(federation: Federation) -> None:
    """C code that forks runs none of Python's hooks: the number of the process tells."""
    _, message = header_until(federation, ShareDelivery)
    me = federation.sources[ME]
    text = in_a_fork(lambda: outcome(lambda: me.handle(message)), fork=ctypes.PyDLL(None).fork)
    assert text.startswith("CopiedProcess: ")
    assert not released(federation)


def test_of_a_task_that_forks_in_training_only_the_original_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy returns from training as the original does, with the update and all that it needs to send it."""
    federation = Federation(tmp_path, visibility=Visibility.INDIVIDUAL).open()
    header = until(federation, ME, Header)
    me, trainer = federation.sources[ME], federation.sources[ME]._site.trainer
    train, children, (reading, writing) = trainer.train, [], os.pipe()

    def forking(*arguments: Any, **options: Any) -> Any:
        result = train(*arguments, **options)
        children.append(os.fork())
        return result

    monkeypatch.setattr(trainer, "train", forking)
    text = ""
    try:
        text = outcome(lambda: bodies(me.handle(header)))
    finally:
        if children == [0]:
            os.write(writing, text.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read().startswith("CopiedProcess: ")
    os.waitpid(children[0], 0)
    assert text.startswith("[Update(")
    assert released(federation)
    federation.close()


def test_a_guard_names_both_processes_and_keeps_nothing_alive() -> None:
    class Owner:
        def forget(self) -> None:
            raise AssertionError("an owner that is gone has nothing to forget")

    guard = ProcessGuard("the work", Owner().forget)
    guard.require_original()

    def refused() -> tuple[bool, str, str]:
        try:
            guard.require_original()
        except CopiedProcess as error:
            return guard.is_copy, str(error), error.hint
        return guard.is_copy, "", ""

    is_copy, text, hint = in_a_fork(refused)
    assert is_copy
    assert text.startswith(f"the work belongs to process {os.getpid()}; process ")
    assert hint
    assert not guard.is_copy


def test_the_copy_of_a_copy_is_none_though_it_has_the_number_of_the_original(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Owner:
        def forget(self) -> None: ...

    owner = Owner()
    guard, number = ProcessGuard("the work", owner.forget), os.getpid()

    def with_the_number_of_the_original() -> bool:
        monkeypatch.setattr(os, "getpid", lambda: number)
        return guard.is_copy

    assert in_a_fork(with_the_number_of_the_original)


# A disk that is full


@contextmanager
def no_room_to_grow(path: Path) -> Iterator[None]:
    """No file can grow beyond this one's length: the system's own way to a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_at_the_fuse_lets_nothing_out_and_says_so_in_one_line(
    federation: Federation, me: SourceRounds, tmp_path: Path
) -> None:
    header, delivery = header_until(federation, ShareDelivery)
    secrets = secrets_in(me._round.phase if me._round else None)
    with no_room_to_grow(tmp_path / f"source-{ME}.sqlite-wal"):
        answers = me.handle(delivery)
    assert bodies(answers) == [Refusal("STORAGE")]
    assert answers[0].vectors == ()
    assert isinstance(me.failure, SecureFdaError)
    assert "\n" not in str(me.failure)
    assert "free disk space" in me.failure.hint
    assert secrets
    assert all(len(secret) == 0 for secret in secrets)
    assert not released(federation)
    assert isinstance(bodies(restarted(federation).handle(again(header, attempt=2)))[0], Advertise)


def test_a_marker_that_cannot_be_moved_on_lets_nothing_out(
    federation: Federation, me: SourceRounds, tmp_path: Path
) -> None:
    _, delivery = header_until(federation, ShareDelivery)
    (tmp_path / f"source-{ME}.sqlite.releases-0").unlink()
    assert bodies(me.handle(delivery)) == [Refusal("STORAGE")]
    assert released(federation)  # burnt in vain: the round is closed, and nothing of it has left
