"""Checkpoints with signatures of ML-DSA: when sites make them, and what each answers where one is missing or wrong."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from known_sites import known_key
from rounds_federation import TARGET, Federation, identity, known, outside, site_id, until

from securefda.audit import signed_notes, witness
from securefda.audit.reading import open_log
from securefda.audit.signed_notes import ML_DSA_65, LogName, Note, Signature, witness_name
from securefda.audit.verify import Verification, verify_log
from securefda.protocol.messages import Checkpoint, Cosigned, Header, Parcel
from securefda.protocol.ml_dsa import ml_dsa_key
from securefda.protocol.roster import Roster
from securefda.site.throwaway import throwaway_roster

ME, OTHER = 1, 3
SITES = [site_id(index) for index in range(5)]
ROSTER: Roster = throwaway_roster("study", {site: known_key(site) for site in SITES}, with_ml_dsa=True)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, 4, rounds=2, recorded=True, roster=ROSTER)


def sign(index: int, text: str, name: str, *, context: bytes | None = None) -> Signature:
    """The line of a site's ML-DSA key; with another context as FIPS 204 lets anybody choose it."""
    key = ml_dsa_key(identity(index))
    line = signed_notes.sign_ml_dsa(text, name, key, 1)
    if context is None:
        return line
    return replace(line, value=struct.pack(">Q", 1) + key.sign(f"{name}\ntime 1\n{text}".encode(), context))


Lie = Callable[[int, str, str], list[Signature]]
"""(who signs, text, its name as a signer) to what stands in place of its line of ML-DSA."""

LIES: dict[str, tuple[str, Lie]] = {
    "none": ("ML_DSA", lambda _who, _text, _name: []),
    "of another site's key": ("ML_DSA", lambda _who, text, name: [sign(OTHER, text, name)]),
    "by a wrong signature": (
        "SIGNATURE",
        lambda who, text, name: [replace(sign(who, text, name), value=bytes(8 + 3309))],
    ),
    "cut": ("SIGNATURE", lambda who, text, name: [replace(sign(who, text, name), value=bytes(8 + 3308))]),
    "of another checkpoint": (
        "SIGNATURE",
        lambda who, text, name: [sign(who, text.replace("\n", "\n1", 1), name)],
    ),
    "of another run": (
        "SIGNATURE",
        lambda who, text, name: [sign(who, text.replace("/", "/x", 1), name)],
    ),
    "with another context": ("SIGNATURE", lambda who, text, name: [sign(who, text, name, context=b"")]),
    "with its time changed": (
        "SIGNATURE",
        lambda who, text, name: [replace(line := sign(who, text, name), value=bytes(8) + line.value[8:])],
    ),
    "under another name": (
        "SIGNATURE",
        lambda who, text, name: [replace(sign(who, text, name), value=sign(who, text, f"{name}/x").value)],
    ),
}


def lied(shown: Checkpoint, who: int, lie: Lie) -> Checkpoint:
    note = Note.parse(shown.note)
    name = note.signatures[0].name
    return replace(shown, note=replace(note, signatures=(note.signatures[0], *lie(who, note.text, name))).to_bytes())


def shown_first(federation: Federation) -> Parcel:
    """The target's checkpoint on its way to a source that has joined and cosigned nothing yet."""
    federation.post(federation.run.open())
    federation.join(ME)
    return until(federation, ME, Checkpoint)


def answers_of(federation: Federation) -> tuple[Checkpoint, Cosigned]:
    own, cosigned = [parcel.message.body for parcel in federation.sources[ME].handle(shown_first(federation))]
    assert isinstance(own, Checkpoint)
    assert isinstance(cosigned, Cosigned)
    return own, cosigned


@pytest.mark.parametrize("name", LIES)
def test_source_cosigns_no_first_checkpoint_without_its_ml_dsa_line(federation: Federation, name: str) -> None:
    check, lie = LIES[name]
    body = shown_first(federation).message.body

    answers = federation.sources[ME].handle(outside(TARGET, lied(body, TARGET, lie)))

    assert answers == []
    assert federation.watch.checks(ME) == [f"CHECKPOINT_{check}"]
    assert known(federation, ME, TARGET) is None


@pytest.mark.parametrize("name", LIES)
def test_target_cosigns_no_first_checkpoint_without_its_ml_dsa_line(federation: Federation, name: str) -> None:
    check, lie = LIES[name]
    own, _ = answers_of(federation)

    sends = federation.run.receive(outside(ME, lied(own, ME, lie)))

    assert not [send for send in sends if isinstance(send.parcel.message.body, Cosigned)]
    assert f"alarm: source {site_id(ME)} fails check CHECKPOINT_{check}" in federation.watch.text
    assert known(federation, TARGET, ME) is None


@pytest.mark.parametrize("name", LIES)
def test_cosignature_without_its_ml_dsa_line_makes_a_source_faulty(federation: Federation, name: str) -> None:
    check, lie = LIES[name]
    own, cosigned = answers_of(federation)
    federation.run.receive(outside(ME, own))
    before = federation.run._site.witness._note
    text = Note.parse(federation.run._site.witness.note).text
    first = cosigned.signature.splitlines(keepends=True)[0]
    lines = "".join(line.to_line() for line in lie(ME, text, witness_name("study", site_id(ME))))

    federation.run.receive(outside(ME, replace(cosigned, signature=first + lines)))

    # A line of another key is not even one of the sender's
    check = "COSIGNATURE_ML_DSA" if not lines else "COSIGNATURE"
    assert f"{site_id(ME)} fails check {check}" in federation.watch.text
    assert ME not in federation.run._cosigners.cosigned
    assert federation.run._site.witness._note == before


@pytest.mark.parametrize("claimed", [0, 1, 600])
def test_a_witness_cannot_talk_its_line_away_by_what_it_says_it_knows(federation: Federation, claimed: int) -> None:
    """Records 1 to 640 are one block: with one cosigned, a witness owes a line there only if it is shown one."""
    shown = shown_first(federation).message.body
    own, _ = federation.sources[ME].handle(outside(TARGET, replace(shown, known=claimed)))
    text = Note.parse(own.message.body.note).text
    line = signed_notes.cosign(text, witness_name("study", site_id(TARGET)), identity(TARGET), 1)
    federation.sources[ME].handle(outside(TARGET, Cosigned(int(text.split("\n")[1]), line.to_line())))
    assert federation.watch.checks(ME) == ["COSIGNATURE_ML_DSA"]


def test_a_third_line_is_no_cosignature(federation: Federation) -> None:
    own, cosigned = answers_of(federation)
    federation.run.receive(outside(ME, own))
    first = cosigned.signature.splitlines(keepends=True)[0]
    federation.run.receive(outside(ME, replace(cosigned, signature=cosigned.signature + first)))
    assert f"{site_id(ME)} fails check COSIGNATURE" in federation.watch.text


def test_lasting_checkpoints_of_both_are_cosigned_with_ml_dsa(federation: Federation) -> None:
    """Companion of the tests above."""
    own, cosigned = answers_of(federation)
    assert len(Note.parse(own.note).signatures) == len(cosigned.signature.splitlines()) == 2
    federation.run.receive(outside(ME, own))
    federation.run.receive(outside(ME, cosigned))
    assert ME in federation.run._cosigners.cosigned
    assert federation.watch.alarms[ME] == []


def verified(federation: Federation, index: int, *, needed: int = 1) -> Verification:
    name = LogName("study", site_id(index), federation.run.run_id)
    keys = {entry.site_id: entry.signing_key for entry in ROSTER.entries}
    return verify_log(folder_of(federation, index), name, keys, ROSTER.ml_dsa_keys, witnesses_needed=needed)


def folder_of(federation: Federation, index: int) -> Path:
    return federation.folder / "audit" / site_id(index) / federation.run.run_id


def lasting_sizes(federation: Federation, index: int) -> list[int]:
    """Sizes of the checkpoints in a log that its own site and at least one other signed with ML-DSA."""
    log = open_log(folder_of(federation, index))
    key = LogName("study", site_id(index), federation.run.run_id).key(ROSTER.ml_dsa_keys[site_id(index)], ML_DSA_65)
    notes = {size: log.head(size) for size in log.heads()}
    lines = {
        size: [line for line in head.note.signatures if len(line.value) > 3309] for size, head in notes.items() if head
    }
    return [size for size, of in lines.items() if len(of) > 1 and any(line.is_of(key) for line in of)]


def test_the_first_and_the_last_checkpoint_of_a_run_are_lasting_and_those_between_are_not(
    federation: Federation,
) -> None:
    federation.open().go()
    federation.run._site.witness.journal.close()
    federation.sources[ME]._site.witness.journal.close()
    for index, needed in ((TARGET, 4), (ME, 1)):
        state = verified(federation, index, needed=needed)
        assert (state.finding, len(state.witnesses)) == (None, needed)
        assert not [note for note in state.notes if "Ed25519" in note]
        heads = open_log(folder_of(federation, index)).heads()
        sizes = lasting_sizes(federation, index)
        assert sizes[-1] == heads[-1]
        assert len(sizes) < len(heads)


def test_a_minute_later_the_next_checkpoint_is_lasting(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "LASTING_S", 0)
    federation.open().go()
    federation.run._site.witness.journal.close()
    heads = open_log(folder_of(federation, TARGET)).heads()
    assert len(heads) == 3
    assert lasting_sizes(federation, TARGET) == list(heads)


def test_headers_carry_no_line_of_ml_dsa(federation: Federation) -> None:
    header = until(federation.open(), ME, Header).message.body
    lines = Note.parse(header.previous_checkpoint).signatures
    assert {len(line.value) for line in lines} == {64, 72}
    assert len(base64.b64encode(lines[0].value)) < 100


def test_sites_without_keys_of_ml_dsa_sign_and_ask_for_none(tmp_path: Path) -> None:
    """A federation whose authority has not renewed all keys yet: one that has one signs, and asks only such sites."""
    entries = tuple(replace(entry, ml_dsa_key=b"") if entry.index == ME else entry for entry in ROSTER.entries)
    federation = Federation(tmp_path, 4, rounds=1, recorded=True, roster=replace(ROSTER, entries=entries))
    federation.open().go()
    assert federation.watch.statuses == ["finished"]
    assert "alarm" not in federation.watch.text
    log = open_log(folder_of(federation, ME)).head()
    assert log is not None
    assert {len(line.value) for line in log.note.signatures} == {64, 72}
