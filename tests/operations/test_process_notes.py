"""How notes are filed: level, peer and check come with the note from where it is made."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

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


def filed(federation: Federation) -> list[tuple[str, str, str, str]]:
    """Level, peer, alarm and abort of every note."""
    return [(note.level, note.peer, note.alarm, note.abort) for note in federation.watch.filed]


@pytest.mark.parametrize(
    ("body", "sends", "alarm", "abort"),
    [(ShareBundle, True, "SIGNATURE", ""), (Survivors, False, "", "SIGNATURE")],
    ids=["a source that the run finds lying", "a source that ends the session"],
)
def test_a_wrong_signature_is_noted_with_peer_and_check(
    tmp_path: Path, body: type, sends: bool, alarm: str, abort: str
) -> None:
    with closing(Federation(tmp_path, 4, rounds=1)) as federation:

        def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
            at_source_2 = (sender if sends else recipient) == 2
            return replace(message, signature=bytes(64)) if isinstance(message.body, body) and at_source_2 else message

        federation.link = link
        federation.open().go()
        assert ("error", "source-2", alarm, abort) in filed(federation)


def test_who_joins_leaves_and_returns_is_named(tmp_path: Path) -> None:
    with closing(Federation(tmp_path, 4, rounds=1)) as federation:
        federation.open()
        while federation.run.waiting_for() and federation.watch.text.count("joined") != 4:
            federation.deliver()
        federation.kill(3)
        federation.go()
        joined = [("info", f"source-{index}") for index in (1, 2, 3, 4)]
        assert [(note.level, note.peer) for note in federation.watch.filed if "joined" in note.text] == joined
        assert ("warning", "source-3", "", "") in filed(federation)
