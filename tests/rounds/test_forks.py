"""A copy of a source's process, made by fork, goes on with nothing; the original does as if nothing had been."""

from __future__ import annotations

import ctypes
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rounds_federation import Federation, secrets_in, until

from securefda.errors import SecureFdaError
from securefda.protocol import source_session as session_steps
from securefda.protocol.messages import (
    Consistency,
    Header,
    KeyList,
    MaskedInput,
    Parcel,
    Result,
    ShareDelivery,
    Survivors,
    Visibility,
)
from securefda.state_file import CopiedProcess, ProcessGuard

ME = 2
PHASES = [KeyList, ShareDelivery, Survivors, Consistency, Result]
"""What a source in a session waits for."""


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path).open()


def alarms(federation: Federation) -> list[SecureFdaError]:
    return federation.watch.alarms[ME]


def waiting_for(federation: Federation, kind: type) -> Parcel:
    """Take the source to where it waits for this message; the message."""
    for answer in federation.sources[ME].handle(until(federation, ME, Header)):
        federation.submit(ME, answer)
    return until(federation, ME, kind)


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


@pytest.mark.parametrize("next_is", PHASES)
def test_a_fork_cannot_go_on_with_the_session_and_the_original_can(federation: Federation, next_is: type) -> None:
    message = waiting_for(federation, next_is)
    me, state = federation.sources[ME], federation.stores[ME]
    secrets = secrets_in(me._round.phase if me._round else None)
    lengths = [len(secret) for secret in secrets]
    run_id = bytes.fromhex(federation.run.run_id)

    def try_all() -> dict[str, Any]:
        tried = {
            "handle": lambda: me.handle(message),
            "expire": me.expire,
            "join": lambda: me.join(federation.run.run_id),
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
    assert alarms(federation) == []


def test_a_fork_that_holds_all_secrets_still_masks_nothing(federation: Federation) -> None:
    """The phase itself, taken past the guard: what it would need has been erased."""
    message = waiting_for(federation, ShareDelivery)
    phase = federation.sources[ME]._round.phase  # type: ignore[union-attr]
    text = in_a_fork(lambda: outcome(lambda: session_steps.receive_shares(phase, message.message)))
    assert text == "ValueError: this secret has been erased"
    (answer,) = federation.sources[ME].handle(message)
    assert isinstance(answer.message.body, MaskedInput)


def test_a_fork_below_python_is_found_too(federation: Federation) -> None:
    """C code that forks runs none of Python's hooks: the number of the process tells."""
    message = waiting_for(federation, ShareDelivery)
    me = federation.sources[ME]
    text = in_a_fork(lambda: outcome(lambda: me.handle(message)), fork=ctypes.PyDLL(None).fork)
    assert text.startswith("CopiedProcess: ")
    assert not federation.released(ME)


def test_a_task_that_forks_in_training_gives_the_copy_no_secret_of_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At ``sum`` the keys have left by then, and what belongs to them is in memory."""
    federation = Federation(tmp_path).open()
    me, trainer = federation.sources[ME], federation.sources[ME]._site.trainer
    me.handle(until(federation, ME, Header))
    secrets, train, told = list(secrets_in(me._round.phase if me._round else None)), trainer.train, []

    def forking(*arguments: Any, **options: Any) -> Any:
        told.append(in_a_fork(lambda: str([len(secret) for secret in secrets])))
        return train(*arguments, **options)

    monkeypatch.setattr(trainer, "train", forking)
    assert me.train() == []
    assert told == ["[0, 0, 0, 0]"]
    assert all(len(secret) for secret in secrets)


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
        text = outcome(lambda: [answer.message.body for answer in me.handle(header)])
    finally:
        if children == [0]:
            os.write(writing, text.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read().startswith("CopiedProcess: ")
    os.waitpid(children[0], 0)
    assert text.startswith("[Update(")
    assert federation.released(ME)


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


def test_the_copy_of_a_copy_is_none_though_it_has_the_number_of_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    class Owner:
        def forget(self) -> None: ...

    owner = Owner()
    guard, number = ProcessGuard("the work", owner.forget), os.getpid()

    def with_the_number_of_the_original() -> bool:
        monkeypatch.setattr(os, "getpid", lambda: number)
        return guard.is_copy

    assert in_a_fork(with_the_number_of_the_original)
