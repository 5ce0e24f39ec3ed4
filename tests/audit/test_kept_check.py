"""Kept messages are evidence: what is changed, taken, moved or put in is found; what a crash leaves is not."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from depth import at_depth
from message_mutations import CLASSES, Kept
from run_builder import KEYS, MEMBERS, ROSTER, RUN, SITES, SOURCES, TARGET, Clock, Passing, Run, Site, folder_of, sign

from securefda.audit.kept import FILE, MOST_DAMAGED, KeptMessages, Piece, read_kept, read_pieces
from securefda.audit.kept_check import KeptVerdict, check_kept
from securefda.audit.log import AuditLog
from securefda.audit.log_records import Entry
from securefda.audit.reading import open_log
from securefda.audit.statements import KeptStatements, StatementReader
from securefda.audit.verify import verify_log
from securefda.protocol import messages as m
from securefda.transport import wire
from securefda.v1 import messages_pb2 as pb

A = SOURCES[0]
READ = StatementReader(ROSTER).read


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of source A's log of a whole run."""
    return folder_of(Run(tmp_path_factory.mktemp("run")).write(), A)


@pytest.fixture
def log(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "copy")


def judge(log: Path, **bounds: int) -> KeptVerdict:
    return check_kept(log, A, RUN, open_log(log).records(), READ, live_size=bounds.get("live_size"))


def kinds(verdict: KeptVerdict) -> list[str]:
    return [found.kind for found in verdict.findings]


def pieces(log: Path) -> list[Piece]:
    return list(read_pieces(log / FILE))


def framed(*messages: bytes) -> bytes:
    return b"".join(len(one).to_bytes(4, "big") + one for one in messages)


def put(log: Path, *messages: bytes) -> None:
    (log / FILE).write_bytes(framed(*messages))


def is_sound(log: Path) -> bool:
    return verify_log(log, MEMBERS.log_of(A), MEMBERS.keys).finding is None


@pytest.mark.parametrize("site", SITES)
def test_an_honest_site_has_no_finding(finished: Path, site: str) -> None:
    folder = folder_of(finished.parents[4], site)

    verdict = check_kept(folder, site, RUN, open_log(folder).records(), READ)

    assert (verdict.findings, verdict.notes) == ((), ())
    assert verdict.messages == len(list(read_kept(folder))) > 20


def test_every_flipped_byte_is_found_and_leaves_the_log_sound(log: Path) -> None:
    good, rng = (log / FILE).read_bytes(), random.Random(1)
    whole, step = range(len(good)), at_depth(5, 1)
    for at in sorted({*whole[:120:step], *rng.sample(whole, at_depth(24, 120)), *whole[-1:-81:-step]}):
        changed = bytearray(good)
        changed[at] ^= rng.randint(1, 255)
        (log / FILE).write_bytes(changed)

        found = judge(log).findings

        assert found, at
        assert found[0].kind in ("evidence-damaged", "evidence-missing"), at
    assert is_sound(log)


def test_a_flip_names_the_record_and_the_place(log: Path) -> None:
    place = next(number for number, data in enumerate(read_kept(log)) if READ(data).type == "MaskedInput")
    at = pieces(log)[place].offset
    data = bytearray((log / FILE).read_bytes())
    data[at + 40] ^= 1
    (log / FILE).write_bytes(data)
    record = next(one for one in open_log(log).records() if one.entry.type == "MaskedInput")

    (found,) = judge(log).findings

    assert (found.kind, found.index) == ("evidence-damaged", record.seq)
    assert f"record {record.seq} (MaskedInput sent to {TARGET} in round 1) has lost its evidence" in found.what
    assert f"byte {at} of {FILE}" in found.what


def test_a_message_cut_out_names_its_record(log: Path) -> None:
    kept = list(read_kept(log))
    place = next(number for number, data in enumerate(kept) if READ(data).type == "Result")
    put(log, *kept[:place], *kept[place + 1 :])
    record = next(one for one in open_log(log).records() if one.entry.type == "Result")

    (found,) = judge(log).findings

    assert (found.kind, found.index) == ("evidence-missing", record.seq)


@pytest.mark.parametrize("cut", [1, 5, 100, 5000])
def test_a_finished_log_whose_messages_end_sooner_has_a_finding(log: Path, cut: int) -> None:
    os.truncate(log / FILE, (log / FILE).stat().st_size - cut)

    assert {"evidence-damaged", "evidence-missing"} >= set(kinds(judge(log)))
    assert judge(log).findings


def test_without_the_file_all_evidence_is_missing(log: Path) -> None:
    (log / FILE).unlink()

    (found,) = judge(log).findings

    assert (found.kind, found.index) == ("evidence-missing", 2)
    assert "no messages are kept beside the log" in found.what


def test_swapped_messages_and_one_that_is_there_twice_are_moved(log: Path) -> None:
    kept = list(read_kept(log))
    for one, other in ((3, 4), (2, len(kept) - 1), (0, 20)):
        changed = list(kept)
        changed[one], changed[other] = kept[other], kept[one]
        put(log, *changed)
        assert kinds(judge(log)) == ["evidence-moved"]

    put(log, *kept[:9], kept[2], *kept[9:])
    assert kinds(judge(log)) == ["evidence-moved"]


def other_run(kind: str) -> bytes:
    header = sign(TARGET, Run.header(_Other(), 1, 1, m.Visibility.SUM).body, b"o" * 32)
    one = {"Header": header, "Update": sign(A, m.Update(bytes(32), 16, 100, bytes(32)), b"o" * 32)}[kind]
    return wire.encode_signed(one)


class _Other(Run):
    """Headers of another run."""

    def __init__(self) -> None:
        self.model, self.result, self.note, self.run = b"m" * 32, b"", b"", "ff" * 16


@pytest.mark.parametrize("kind", ["Header", "Update"])
@pytest.mark.parametrize("place", [0, 7, -1])
def test_a_message_of_another_run_is_unrecorded(log: Path, kind: str, place: int) -> None:
    kept = list(read_kept(log))
    at = place % (len(kept) + 1)
    put(log, *kept[:at], other_run(kind), *kept[at:])

    (found,) = judge(log).findings

    assert found.kind == "evidence-unrecorded"
    assert found.index is None
    assert kind in found.what


@pytest.mark.parametrize(
    "junk", [framed(b"hello"), b"\xff" * 64, b"\x00\x00\x00\x09abc", bytes(64), b"\x00\x00\x00\x00junk"]
)
def test_rubbish_behind_the_messages_of_a_finished_log_is_unrecorded(log: Path, junk: bytes) -> None:
    with (log / FILE).open("ab") as file:
        file.write(junk)

    assert kinds(judge(log)) == ["evidence-unrecorded"]


def test_a_file_of_ten_gigabytes_is_not_read_whole(log: Path) -> None:
    os.truncate(log / FILE, 10 * 2**30)

    (found,) = judge(log).findings

    assert found.kind == "evidence-unrecorded"


def test_a_file_that_cannot_be_read_is_a_finding(log: Path) -> None:
    (log / FILE).unlink()
    os.mkfifo(log / FILE)

    assert "evidence-damaged" in kinds(judge(log))


def test_a_record_that_says_otherwise_than_its_message_is_named(tmp_path: Path) -> None:
    run = _Misrecorded(tmp_path)
    folder = folder_of(run.write(), A)

    (found,) = judge(folder).findings

    assert found.kind == "evidence-differs"
    assert "says that it has" in found.what


class _Misrecorded(Run):
    """Source A counts seven bytes too many of one message."""

    def alter(self, passing: Passing) -> list[Passing]:
        if passing.message.type_name == "Survivors" and passing.receiver == A and passing.place[0] == 1:
            passing.received_bytes = 7
        return [passing]


# -- what a crash leaves ---------------------------------------------------------------------------------------------


class Killed(Run):
    """Source A's process dies in round 2, right behind the record of its MaskedInput; `restart` goes on."""

    at = "MaskedInput"

    def write(self) -> Path:
        try:
            return super().write()
        except _Kill:
            for site in self.sites.values():
                site.log.close()
                site.kept.close()
            return self.folder

    def alter(self, passing: Passing) -> list[Passing]:
        if (passing.message.type_name, passing.sender, passing.place[0]) == (self.at, A, 2):
            passing.keeps = passing.logs_received = False
            self.sites[A].message("sent", passing, passing.message)
            raise _Kill
        return [passing]


class _Kill(Exception):
    pass


def restart(folder: Path, *later: str) -> None:
    """Source A goes on in the same run, and keeps some messages more."""
    site = Site.__new__(Site)
    site.name, site.folder, site.known = A, folder, {}
    site.log = AuditLog.open(folder.parent, MEMBERS.log_of(A), KEYS[A], Clock())
    site.kept = KeptMessages(folder)
    site.event("restarted", lost_bytes=site.log.lost_bytes)
    for version in later:
        join = sign(A, m.Join(bytes(32), m.Visibility.SUM, False, 0, m.Build(1, version, ())))
        site.message("sent", Passing(A, TARGET, join), join)
    site.event("run-ended", outcome="completed", rounds=2)
    site.log.close()
    site.kept.close()


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    return folder_of(Killed(tmp_path / "killed").write(), A)


def test_a_kill_between_record_and_copy_is_no_finding(killed: Path) -> None:
    verdict = judge(killed)

    assert verdict.findings == ()
    assert verdict.notes[0].startswith("1 records behind the newest checkpoint")
    restart(killed, "2", "3")
    assert judge(killed).findings == ()


@pytest.mark.parametrize("tear", [1, 30, 66])
def test_a_copy_that_a_kill_tore_is_no_finding(killed: Path, tear: int) -> None:
    os.truncate(killed / FILE, (killed / FILE).stat().st_size - tear)

    assert judge(killed).findings == ()
    restart(killed, "2")
    assert (killed / "messages-0001.bin").exists()
    assert judge(killed).findings == ()


def test_zeros_that_a_power_cut_left_are_no_finding(killed: Path) -> None:
    data = (killed / FILE).read_bytes()
    (killed / FILE).write_bytes(data[:-70] + bytes(70))

    assert judge(killed).findings == ()


def test_a_copy_whose_record_a_power_cut_took_is_no_finding(killed: Path) -> None:
    lost = sign(A, m.Join(bytes(32), m.Visibility.SUM, False, 7))
    with (killed / FILE).open("ab") as file:
        file.write(framed(wire.encode_signed(lost)))

    assert judge(killed).findings == ()
    restart(killed, "2", "3")
    assert judge(killed).findings == ()
    with (killed / FILE).open("ab") as file:  # behind the restart, in a run that ended, it is put in
        file.write(framed(wire.encode_signed(sign(A, m.Join(bytes(32), m.Visibility.SUM, False, 8)))))
    assert kinds(judge(killed)) == ["evidence-unrecorded"]


def test_a_crash_takes_the_last_messages_and_none_before_them_or_that_a_checkpoint_covers(killed: Path) -> None:
    kept = list(read_kept(killed))
    put(killed, *kept[:-2], kept[-1])
    assert kinds(judge(killed)) == ["evidence-missing"]

    first = next(number for number, data in enumerate(kept) if READ(data).type == "Result")
    put(killed, *kept[: first + 1])
    assert set(kinds(judge(killed))) == {"evidence-missing"}


def test_a_changed_message_and_one_of_another_run_are_found_where_a_process_died_too(killed: Path) -> None:
    data = (killed / FILE).read_bytes()
    (killed / FILE).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert kinds(judge(killed)) == ["evidence-damaged"]

    (killed / FILE).write_bytes(data + framed(other_run("Header")))
    assert kinds(judge(killed)) == ["evidence-unrecorded"]


def test_a_log_that_is_being_written_may_be_ahead_of_its_messages(log: Path) -> None:
    size = sum(1 for _ in open_log(log).records())
    kept = list(read_kept(log))
    put(log, *kept[:-3])

    assert kinds(judge(log)) == ["evidence-missing"] * 3
    assert judge(log, live_size=size // 2).findings == ()


# -- what was not kept on purpose ------------------------------------------------------------------------------------


class NotKept(Run):
    """Source A keeps no copy of one message of round 1, and says so."""

    kind, direction, check = "KeyList", "received", "SIGNATURE"

    def alter(self, passing: Passing) -> list[Passing]:
        own = passing.sender if self.direction == "sent" else passing.receiver
        if (passing.message.type_name, own, passing.place[0]) != (self.kind, A, 1):
            return [passing]
        site, facts = self.sites[A], {"check": self.check}
        passing.keeps = False
        site.message(self.direction, passing, passing.message)
        digest = passing.message.digest().hex()
        site.log.append(Entry("event", "message-not-kept", peer=TARGET, digest=digest, facts=facts))
        passing.keeps = True
        passing.logs_sent, passing.logs_received = self.direction != "sent", self.direction == "sent"
        return [passing]


def not_kept(folder: Path, check: str = "SIGNATURE", kind: str = "KeyList", direction: str = "received") -> Path:
    run = NotKept(folder)
    run.kind, run.direction, run.check = kind, direction, check
    return folder_of(run.write(), A)


def test_a_message_that_its_sender_did_not_sign_need_not_be_kept(tmp_path: Path) -> None:
    verdict = judge(not_kept(tmp_path))

    assert verdict.findings == ()
    assert verdict.notes == ("1 messages that others sent were not kept, as the log says of each",)


def test_the_bound_excuses_only_a_site_that_sent_as_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = not_kept(tmp_path, "BOUND")

    assert kinds(judge(log)) == ["evidence-missing"]
    monkeypatch.setattr("securefda.audit.kept_check.MOST_KEPT_BYTES", 500)
    assert judge(log).findings == ()


def test_what_a_site_sent_itself_is_always_kept(tmp_path: Path) -> None:
    assert kinds(judge(not_kept(tmp_path, kind="MaskedInput", direction="sent"))) == ["evidence-missing"]


# -- by the hundred --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "count"), at_depth([(0, 100)], [(part, 2_000) for part in range(4)]))
def test_falsified_files_of_every_class_are_found_and_named(log: Path, part: int, count: int) -> None:
    kept, draws = Kept(log), [(name, random.Random(f"{part} {name}")) for name in CLASSES]
    for _ in range(count // len(draws)):
        for name, rng in draws:
            change = CLASSES[name](kept, rng)
            if change.data is None:
                (log / FILE).unlink()
            else:
                (log / FILE).write_bytes(change.data)

            found = judge(log).findings

            assert change.is_found(found), (change.what, [str(one) for one in found[:3]])
    (log / FILE).write_bytes(kept.file())
    assert judge(log).findings == ()


def test_no_more_is_read_behind_a_thousand_pieces_that_are_no_messages(log: Path) -> None:
    good, rubbish = list(read_kept(log)), [b"\0"] * MOST_DAMAGED
    put(log, *rubbish, *good)
    statements = KeptStatements(StatementReader(ROSTER), [log])

    verdict, said = judge(log), list(statements.transcript())

    assert (verdict.messages, said, statements.unreadable) == (0, [], MOST_DAMAGED)
    assert any("1000 pieces up to here are no messages" in one.what for one in verdict.findings)
    assert "1000 kept pieces up to here are no messages" in statements.faults[log]

    put(log, *rubbish[1:], *good)
    assert judge(log).messages == len(good)
    assert list(statements.transcript())


def test_an_envelope_that_is_too_long_is_no_message_before_it_is_parsed(log: Path) -> None:
    envelope = pb.Envelope(key_list=pb.KeyList(advertisements=[pb.SignedMessage()] * (wire.MAX_ENVELOPE_BYTES // 2)))
    put(log, pb.SignedMessage(signed_bytes=envelope.SerializeToString(), signature=bytes(64)).SerializeToString())
    statements = KeptStatements(StatementReader(ROSTER), [log])

    assert (list(statements.transcript()), statements.unreadable) == ([], 1)
