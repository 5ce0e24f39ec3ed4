"""Witnessing: what each side answers to a lie about a log, and that nothing else changes by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rounds_federation import TARGET, Federation, identity, is_header, known, outside, signer, site_id, until

from securefda.audit import signed_notes
from securefda.audit.log_records import MAX_INTEGER, Record
from securefda.audit.reading import open_log
from securefda.audit.signed_notes import LogName, Note, witness_name
from securefda.audit.verify import verify_log
from securefda.audit.witness import MOST_SHOWN
from securefda.protocol.messages import (
    NO_CONTEXT,
    Checkpoint,
    Cosigned,
    Goodbye,
    Header,
    Parcel,
    Refusal,
    Schedule,
    Visibility,
)

ME = 1
Lie = Callable[[Federation, int, Checkpoint], Checkpoint]


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, 4, rounds=2, recorded=True)


def note_of(
    federation: Federation, index: int, size: int, root: bytes, *, key: int | None = None, run: str = ""
) -> bytes:
    """A checkpoint of a site's log as the site could sign it, true or not."""
    origin = LogName(federation.roster.federation_id, site_id(index), run or federation.run.run_id).origin
    text = signed_notes.Checkpoint(origin, size, root).to_text()
    return Note(text, (signed_notes.sign(text, origin, identity(index if key is None else key)),)).to_bytes()


def head_of(note: bytes) -> signed_notes.Checkpoint:
    return signed_notes.Checkpoint.parse(Note.parse(note).text)


LIES: dict[str, tuple[str, Lie]] = {
    "no note": ("CHECKPOINT_NOTE", lambda _, __, shown: replace(shown, note=b"no note\n")),
    "more records than a record can say": (
        "CHECKPOINT_NOTE",
        lambda f, who, shown: replace(shown, note=note_of(f, who, MAX_INTEGER + 1, bytes(32))),
    ),
    "of another run": (
        "CHECKPOINT_ORIGIN",
        lambda f, who, shown: replace(shown, note=note_of(f, who, 50, bytes(32), run="0" * 32)),
    ),
    "of another site": (
        "CHECKPOINT_ORIGIN",
        lambda f, who, shown: replace(shown, note=note_of(f, 2, 50, bytes(32))),
    ),
    "signed by another": (
        "CHECKPOINT_SIGNATURE",
        lambda f, who, shown: replace(shown, note=note_of(f, who, 50, bytes(32), key=3)),
    ),
    "shorter": ("CHECKPOINT_SHRINKS", lambda f, who, shown: replace(shown, note=note_of(f, who, 1, bytes(32)))),
    "another history": (
        "CHECKPOINT_FORK",
        lambda f, who, shown: replace(shown, note=note_of(f, who, head_of(shown.note).size, bytes(32))),
    ),
    "a proof from what was never cosigned": (
        "CHECKPOINT_OLD_SIZE",
        lambda f, who, shown: replace(shown, old_size=head_of(shown.note).size),
    ),
}


def shown_by(federation: Federation, who: int, to: int) -> Checkpoint:
    """What a site would show next, after it has been witnessed once."""
    witness = (federation.run._site if who == TARGET else federation.sources[who]._site).witness
    witness.journal.event("restarted", lost_bytes=0)
    witness.renew()
    shown = witness.show(to).message.body
    assert isinstance(shown, Checkpoint)
    return shown


def events(federation: Federation, index: int) -> list[Record]:
    return list(open_log(federation.folder / "audit" / site_id(index) / federation.run.run_id).records())


@pytest.mark.parametrize("name", LIES)
def test_source_cosigns_no_false_checkpoint_of_the_target(federation: Federation, name: str) -> None:
    check, lie = LIES[name]
    until(federation.open(), ME, Header, round_number=2)
    before = known(federation, ME, TARGET)

    answers = federation.sources[ME].handle(outside(TARGET, lie(federation, TARGET, shown_by(federation, TARGET, ME))))

    assert answers == []
    assert federation.watch.checks(ME) == [check]
    assert known(federation, ME, TARGET) == before
    alarm = next(record.entry for record in events(federation, ME) if record.entry.type == "alarm")
    assert alarm.facts == {"check": check, "accused": [site_id(TARGET)]}


@pytest.mark.parametrize("name", LIES)
def test_target_cosigns_no_false_checkpoint_of_a_source_and_goes_on_without_it(
    federation: Federation, name: str
) -> None:
    check, lie = LIES[name]
    until(federation.open(), ME, Header)
    before = known(federation, TARGET, ME)

    sends = federation.run.receive(outside(ME, lie(federation, ME, shown_by(federation, ME, TARGET))))

    assert sends == []
    assert known(federation, TARGET, ME) == before
    assert f"alarm: source {site_id(ME)} fails check {check}" in federation.watch.text
    alarm = next(record.entry for record in events(federation, TARGET) if record.entry.type == "alarm")
    assert alarm.facts == {"check": check, "accused": [site_id(ME)]}
    federation.go()
    headers = [message.body for _, to, message in federation.passed if is_header(message) and to == 2]
    assert [ME in header.participants for header in headers] == [True, False]


def test_true_checkpoints_of_both_are_cosigned(federation: Federation) -> None:
    """Companion of the two tests above."""
    until(federation.open(), ME, Header)

    answers = federation.sources[ME].handle(outside(TARGET, shown_by(federation, TARGET, ME)))
    sends = federation.run.receive(outside(ME, shown_by(federation, ME, TARGET)))

    assert {type(answer.message.body) for answer in answers} == {Checkpoint, Cosigned}
    assert Cosigned in {type(send.parcel.message.body) for send in sends}
    assert federation.watch.alarms[ME] == []


def test_cosignature_that_is_none_makes_a_source_faulty(federation: Federation) -> None:
    federation.post(federation.run.open())
    federation.join(ME)
    checkpoint = until(federation, ME, Checkpoint).message.body
    text = Note.parse(checkpoint.note).text
    line = signed_notes.cosign(
        text, witness_name(federation.roster.federation_id, site_id(ME)), identity(2), 1
    ).to_line()

    federation.run.receive(outside(ME, Cosigned(head_of(checkpoint.note).size, line)))

    assert f"{site_id(ME)} fails check COSIGNATURE" in federation.watch.text
    assert ME not in federation.run._cosigners.cosigned


def test_source_that_cosigns_without_showing_its_own_log_is_faulty(federation: Federation) -> None:
    federation.post(federation.run.open())
    federation.join(ME)
    answers = federation.sources[ME].handle(until(federation, ME, Checkpoint))
    (cosigned,) = [answer for answer in answers if isinstance(answer.message.body, Cosigned)]

    federation.run.receive(cosigned)

    assert f"{site_id(ME)} fails check CHECKPOINT_MISSING" in federation.watch.text


def test_a_faulty_source_that_joins_anew_or_comes_back_is_asked_nothing_more(federation: Federation) -> None:
    federation.open()
    federation.run._cosigners.faulty.add(ME)
    joins = federation.run.receive(federation.source(ME).join(federation.run.run_id))
    federation.run.left(ME)
    asked = [send for send in joins + federation.run.returned(ME) if send.to == ME]
    assert [type(send.parcel.message.body) for send in asked] == [Schedule]
    assert not [send for send in federation.run.returned(2) if send.to == 2], "it has not left"


def with_note(header: Parcel, keep: set[str]) -> Parcel:
    """The header with the cosignatures of these sites alone, and a threshold that lets one source suffice."""
    body = header.message.body
    note = Note.parse(body.previous_checkpoint)
    kept = tuple(line for line in note.signatures if line.name.split("/")[-1] in keep or line is note.signatures[0])
    changed = replace(body, previous_checkpoint=Note(note.text, kept).to_bytes())
    return Parcel(signer(TARGET).sign(b"w" * 32, NO_CONTEXT, changed), header.vectors)


@pytest.mark.parametrize("visibility", [Visibility.INDIVIDUAL, Visibility.SUM])
def test_header_that_only_this_source_vouches_for_is_refused(tmp_path: Path, visibility: Visibility) -> None:
    """Also where updates travel in clear, and the threshold of the session is one."""
    federation = Federation(tmp_path, 4, visibility=visibility, rounds=1)
    header = until(federation.open(), ME, Header)

    (answer,) = federation.sources[ME].handle(with_note(header, {site_id(ME), "run"}))

    assert answer.message.body == Refusal("WITNESSES")
    assert not federation.stores[ME].history(bytes(32), header.message.body.run_id, 1).last_position


def test_header_with_the_cosignatures_of_most_participants_is_taken(tmp_path: Path) -> None:
    """Companion: three of four, with a threshold of three."""
    federation = Federation(tmp_path, 4, rounds=1)
    header = until(federation.open(), ME, Header)

    (answer,) = federation.sources[ME].handle(with_note(header, {site_id(1), site_id(2), site_id(3)}))

    assert answer.message.type_name == "Advertise"


@pytest.mark.parametrize(
    "lie",
    [
        lambda f, header: b"",
        lambda f, header: note_of(f, TARGET, 1, bytes(32)),
        lambda f, header: note_of(f, TARGET, head_of(header.previous_checkpoint).size, bytes(32)),
    ],
    ids=["none", "an older one", "another history"],
)
def test_header_with_another_checkpoint_than_was_cosigned_is_refused(federation: Federation, lie: Any) -> None:
    header = until(federation.open(), ME, Header)
    body = replace(header.message.body, previous_checkpoint=lie(federation, header.message.body))

    (answer,) = federation.sources[ME].handle(Parcel(signer(TARGET).sign(b"l" * 32, NO_CONTEXT, body), header.vectors))

    assert answer.message.body.key in ("CHECKPOINT_HEADER", "CHECKPOINT_NOTE")


def test_false_header_of_the_same_session_changes_no_place_in_the_log(federation: Federation) -> None:
    """Records say the place of the attempt that the site took, whatever else is called a header of it."""
    header = until(federation.open(), ME, Header)
    false = replace(header.message.body, round=77)
    session = header.message.envelope.session_id
    for parcel in (Parcel(signer(2).sign(session, NO_CONTEXT, false), header.vectors), header):
        federation.arrives_next(TARGET, ME, parcel)
        federation.deliver()
    federation.go()

    places = {record.entry.round for record in events(federation, ME) if record.entry.direction == "sent"}
    assert 77 not in places
    assert federation.statuses == ["finished", "finished"]


def test_log_that_is_shown_again_and_again_is_a_fault_at_either_side(federation: Federation) -> None:
    until(federation.open(), ME, Header)
    shown = outside(TARGET, shown_by(federation, TARGET, ME))
    for _ in range(MOST_SHOWN + 2):
        federation.sources[ME].handle(shown)
    own = shown_by(federation, ME, TARGET)
    for number in range(MOST_SHOWN + 1):
        federation.run.receive(outside(ME, replace(own, known=number)))

    assert "CHECKPOINT_AGAIN" in federation.watch.checks(ME)
    assert f"{site_id(ME)} fails check CHECKPOINT_AGAIN" in federation.watch.text


def test_a_source_that_joins_again_may_show_its_log_as_often_as_before(federation: Federation) -> None:
    until(federation.open(), ME, Header)
    own = shown_by(federation, ME, TARGET)
    cosigners = federation.run._cosigners
    for number in range(MOST_SHOWN - 1):
        federation.run.receive(outside(ME, replace(own, known=number)))
    assert ME not in cosigners.faulty
    cosigners.note_known(ME, 0)
    for number in range(MOST_SHOWN - 1):
        federation.run.receive(outside(ME, replace(own, known=number)))

    assert ME not in cosigners.faulty


def test_source_that_was_busy_for_rounds_and_then_answers_all_that_it_was_asked_is_no_fault(tmp_path: Path) -> None:
    """It reads nothing while it trains; the others finish rounds, before each of which it is asked to cosign."""
    federation = Federation(tmp_path, 4, rounds=12, rule="source_only", recorded=True)
    held: list[Any] = []
    busy = {"since": False, "over": False}
    hand_over = federation.hand_over

    def hold(passed: Any) -> None:
        if passed.to == ME and is_header(passed.message) and passed.message.body.round == 2:
            busy["since"] = not busy["over"]
        if passed.to == ME and busy["since"]:
            held.append(passed)
        else:
            hand_over(passed)

    federation.hand_over = hold  # type: ignore[method-assign]
    federation.open()
    while federation.step():
        if busy["since"] and len(federation.statuses) == MOST_SHOWN + 3:
            busy.update(since=False, over=True)
            for passed in held:
                hand_over(passed)
            held.clear()

    assert busy["over"]
    assert federation.run._cosigners.faulty == set()
    assert not [note for note in federation.watch.notes if "alarm" in note]
    assert federation.statuses == ["finished"] * 12
    assert len(federation.watch.records[ME]) >= 12 - MOST_SHOWN - 4


def test_second_goodbye_is_not_the_end_of_another_run(federation: Federation) -> None:
    federation.open().go()
    before = len(events(federation, ME))

    for _ in range(3):
        federation.sources[ME].handle(outside(TARGET, Goodbye(True, 2, "")))

    assert len(events(federation, ME)) == before


def test_log_of_a_run_that_all_sources_have_left_verifies_with_its_last_witnesses(federation: Federation) -> None:
    until(federation.open(), ME, Header, round_number=2)
    for index in (1, 2, 3, 4):
        federation.kill(index)
    federation.go()

    name = LogName(federation.roster.federation_id, site_id(TARGET), federation.run.run_id)
    keys = {entry.site_id: entry.signing_key for entry in federation.roster.entries}
    log = federation.folder / "audit" / site_id(TARGET) / federation.run.run_id
    verified = verify_log(log, name, keys, witnesses_needed=4)
    assert verified.finding is None
    assert verified.covered < verified.size


def test_every_header_carries_what_its_participants_cosigned(federation: Federation) -> None:
    federation.open().go()

    headers = [message.body for _, to, message in federation.passed if is_header(message) and to == ME]
    assert len(headers) == 2
    sizes = [head_of(header.previous_checkpoint).size for header in headers]
    assert sizes[0] < sizes[1]
    for header in headers:
        names = [line.name for line in Note.parse(header.previous_checkpoint).signatures[1:]]
        assert sorted(names) == [witness_name("study", site_id(index)) for index in (1, 2, 3, 4)]
