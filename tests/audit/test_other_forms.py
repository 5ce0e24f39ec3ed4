"""Messages of another form than this version reads: they are not damaged, and what they hide is not called fine."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from depth import at_depth
from run_builder import (
    MEMBERS,
    ROSTER,
    RUN,
    SITES,
    SOURCES,
    TARGET,
    OfForm1,
    Run,
    folder_of,
    in_form_1,
    read_together,
    sign,
)
from run_lies import B, Lie, but

from securefda.audit.kept import FILE, KeptMessages, read_kept
from securefda.audit.kept_check import KeptVerdict, check_kept
from securefda.audit.reading import open_log
from securefda.audit.statements import KeptStatements, StatementReader
from securefda.audit.verify import verify_log
from securefda.protocol import messages as m
from securefda.transport import wire

A = SOURCES[0]
READER = StatementReader(ROSTER)


@pytest.fixture
def older(tmp_path: Path) -> Path:
    return OfForm1(tmp_path / "run").write()


def judge(folder: Path, site: str = A) -> KeptVerdict:
    log = folder_of(folder, site)
    return check_kept(log, site, RUN, open_log(log).records(), READER.read_any_form)


def kinds(verdict: KeptVerdict) -> list[str]:
    return [found.kind for found in verdict.findings]


@pytest.mark.parametrize("site", SITES)
def test_an_unaltered_log_of_form_1_cannot_be_judged(older: Path, site: str) -> None:
    log = folder_of(older, site)
    assert verify_log(log, MEMBERS.log_of(site), MEMBERS.keys).finding is None

    verdict = judge(older, site)

    (found,) = verdict.findings
    assert found.kind == "evidence-unread"
    number = 12 if site == TARGET else 4  # headers and updates: it sent and got one of each source
    assert f"in form 1 of messages, {number} messages kept as signed and recorded, the first a Header of" in found.what
    assert "this version reads form 2, and compared nothing of what is in them" in found.what
    first = next(record.seq for record in open_log(log).records() if record.entry.type == "Header")
    assert found.index == first
    assert verdict.messages == len(list(read_kept(log)))


def test_the_logs_together_cannot_be_judged_and_accuse_no_site(older: Path) -> None:
    statements = KeptStatements(READER, [folder_of(older, site) for site in SITES])

    types = {statement.type for statement in statements.transcript()}

    assert ("Header" in types, "Result" in types, statements.unreadable) == (False, True, 0)
    assert read_together(older).findings == ()


def test_no_process_takes_a_message_of_form_1(older: Path) -> None:
    data = next(one for one in read_kept(folder_of(older, A)) if READER.read_any_form(one).type == "Header")

    with pytest.raises(wire.WireError, match="range must be above 0"):
        wire.decode_signed(data)
    with pytest.raises(wire.WireError, match="range must be above 0"):
        READER.read(data)


def test_every_flipped_byte_of_an_unread_message_is_damage(older: Path) -> None:
    log = folder_of(older, A)
    good = (log / FILE).read_bytes()
    at, header = 0, b""
    for data in read_kept(log):
        if READER.read_any_form(data).type == "Header":
            header = data
            break
        at += 4 + len(data)
    whole = range(at + 4, at + 4 + len(header))
    for place in at_depth(random.Random(1).sample(whole, 30), whole):
        changed = bytearray(good)
        changed[place] ^= 1
        (log / FILE).write_bytes(changed)

        assert kinds(judge(older))[0] in ("evidence-damaged", "evidence-missing"), place


def test_a_message_of_form_1_that_no_record_names_is_no_evidence(tmp_path: Path) -> None:
    folder = Run(tmp_path / "run").write()
    kept = KeptMessages(folder_of(folder, A))
    kept.keep(
        wire.encode_signed(in_form_1(sign(A, m.Update(bytes(32), 16, 100, bytes(32)), bytes([7] * 32), bytes(32))))
    )
    kept.close()

    assert kinds(judge(folder)) == ["evidence-unrecorded"]


def test_one_in_the_place_of_another_message_does_not_hide_it(tmp_path: Path) -> None:
    folder = Run(tmp_path / "run").write()
    log = folder_of(folder, A)
    kept = list(read_kept(log))
    place = next(number for number, data in enumerate(kept) if READER.read(data).type == "Update")
    kept[place] = wire.encode_signed(in_form_1(wire.decode_signed(kept[place])))
    (log / FILE).write_bytes(b"".join(len(one).to_bytes(4, "big") + one for one in kept))

    assert sorted(kinds(judge(folder))) == ["evidence-missing", "evidence-unrecorded"]


def test_a_lie_beside_unread_messages_is_found_as_ever(tmp_path: Path) -> None:
    class Both(OfForm1, Lie):
        kind, sender = "MaskedInput", B
        change = staticmethod(but(logs_sent=False))  # type: ignore[assignment]

    findings = read_together(Both(tmp_path / "run").write()).findings

    assert [(one.kind, one.severity) for one in findings][:1] == [("never-sent", "tampering")]
