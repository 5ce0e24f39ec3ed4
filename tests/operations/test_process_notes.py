"""How notes are filed: level, peer and check come with the note from where it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rounds_federation import AnySigned, Federation

from securefda.errors import FaultySourceError, ProtocolError, QuorumLost, SecureFdaError, SourceAborted
from securefda.operations.notes import Note
from securefda.protocol.messages import ShareBundle, Survivors


@pytest.mark.parametrize(
    ("error", "peer", "alarm", "abort"),
    [
        (FaultySourceError("hospital-a", "RANGE"), "hospital-a", "RANGE", ""),
        (SourceAborted("hospital-a", "KEY_ORDER", "source hospital-a aborted"), "hospital-a", "", "KEY_ORDER"),
        (ProtocolError("SUM", "a source lied about its contribution"), "", "SUM", ""),
        (QuorumLost("R1 shares", 3, ["a"], ["b"]), "", "other", ""),
    ],
)
def test_an_alarm_names_its_check_and_its_peer(error: SecureFdaError, peer: str, alarm: str, abort: str) -> None:
    assert Note.alarm_of(error) == Note(f"alarm: {error}", "error", peer, alarm, abort)


def test_a_plain_text_is_information_about_no_site() -> None:
    assert Note.of("alarm: hospital-a fails check WIRE") == Note("alarm: hospital-a fails check WIRE", "info")
    note = Note("hospital-a left", "warning", "hospital-a")
    assert Note.of(note) is note
    assert str(note) == "hospital-a left"


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., Federation]]:
    made: list[Federation] = []

    def new(*args: Any, **options: Any) -> Federation:
        made.append(Federation(tmp_path, *args, **options))
        return made[-1]

    yield new
    for federation in made:
        federation.close()


def filed(federation: Federation) -> list[tuple[str, str, str, str]]:
    """Level, peer, alarm and abort of every note."""
    return [(note.level, note.peer, note.alarm, note.abort) for note in federation.watch.filed]


def test_a_source_that_a_run_finds_lying_is_an_alarm_with_peer_and_check(build: Callable[..., Federation]) -> None:
    federation = build(4, rounds=1)

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        return (
            replace(message, signature=bytes(64)) if isinstance(message.body, ShareBundle) and sender == 2 else message
        )

    federation.link = link
    federation.open().go()
    assert ("error", "source-2", "SIGNATURE", "") in filed(federation)


def test_a_session_that_a_source_ends_is_an_abort_with_peer_and_check(build: Callable[..., Federation]) -> None:
    federation = build(4, rounds=1)

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        return (
            replace(message, signature=bytes(64)) if isinstance(message.body, Survivors) and recipient == 2 else message
        )

    federation.link = link
    federation.open().go()
    assert ("error", "source-2", "", "SIGNATURE") in filed(federation)


def test_who_joins_leaves_and_returns_is_named(build: Callable[..., Federation]) -> None:
    federation = build(4, rounds=1).open()
    while federation.run.waiting_for() and federation.watch.text.count("joined") != 4:
        federation.deliver()
    federation.kill(3)
    federation.go()
    joined = [("info", f"source-{index}") for index in (1, 2, 3, 4)]
    assert [(note.level, note.peer) for note in federation.watch.filed if "joined" in note.text] == joined
    assert ("warning", "source-3", "", "") in filed(federation)
