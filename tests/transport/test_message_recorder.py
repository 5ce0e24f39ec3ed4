"""Every message in the log of its sender and of its receiver, before it leaves and before it is handed up."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from recorder_kit import NAMES, RUN, SECRET, SESSION, Log, round_header, signed, size_of
from transport_kit import (
    CALM,
    TARGET,
    Sites,
    header,
    header_body,
    joined,
    masked_input,
    message,
    next_event,
    note,
    scenario,
    soon,
)

from securefda.audit import journal as recorder_module
from securefda.audit.kept import FILE
from securefda.audit.log_files import AuditError
from securefda.audit.log_records import Decision, Disclosure
from securefda.errors import FaultyAggregatorError
from securefda.protocol.messages import (
    NO_SESSION,
    Advertise,
    Body,
    DeliveredBox,
    Goodbye,
    MaskedInput,
    Parcel,
    Refusal,
    SelfMaskShare,
    ShareBox,
    ShareBundle,
    ShareDelivery,
    Unmask,
    Update,
    Visibility,
)
from securefda.transport.event_queue import Received
from securefda.transport.observer import Direction, ignore
from securefda.transport.wire import encode_signed


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[list[Log]]:
    with ExitStack() as stack:
        made = [Log(tmp_path, own) for own in range(4)]
        for log in made:
            stack.enter_context(closing(log.journal))
        yield made


@scenario
async def test_sender_and_receiver_record_the_same_digest_and_number_of_bytes(tmp_path: Path) -> None:
    sites, target, source = Sites(), Log(tmp_path, 0), Log(tmp_path, 1)
    with closing(target.journal), closing(source.journal):
        async with (
            sites.listening(observer=target.recorder()) as (server, address),
            sites.connected(1, address, observer=source.recorder()) as channel,
        ):
            await joined(server, 1)
            server.expect_upload(1, 5000)
            down = [note(TARGET, 1), header(bytes(70_000), bytes([1]) * 300), header(bytes([2]) * 9)]
            up = [note(1, 2), masked_input(1, bytes(5000)), masked_input(1, bytes([3]) * 5000)]
            for parcel in down:
                await server.send([(1, parcel)])
                await soon(channel.receive())
            for parcel in up:
                await channel.send(parcel)
                await next_event(server, Received)

    def lines(way: str, parcels: list[Parcel]) -> list[tuple[str, str, str, int]]:
        return [
            (
                way,
                parcel.message.type_name,
                parcel.message.digest().hex(),
                size_of(parcel.message, sum(map(len, parcel.vectors))),
            )
            for parcel in parcels
        ]

    assert target.lines == lines("sent", down) + lines("received", up)
    assert source.lines == lines("received", down) + lines("sent", up)
    assert {entry.peer for entry in target.entries} == {"source-1"}
    assert {entry.peer for entry in source.entries} == {"target"}


def test_a_message_is_in_the_log_before_anybody_else_hears_of_it(logs: list[Log]) -> None:
    seen: list[list[tuple[str, str, str, int]]] = []
    recorder = logs[1].recorder(then=lambda *_, more: seen.append(logs[1].lines))
    recorded, other = signed(1, Refusal("min-others")), round_header()
    recorder(Direction.SENT, TARGET, recorded, size_of(recorded))
    recorder(Direction.RECEIVED, TARGET, other, size_of(other, 12))
    first = ("sent", "Refusal", recorded.digest().hex(), size_of(recorded))
    second = ("received", "Header", other.digest().hex(), size_of(other, 12))
    assert seen == [[first], [first, second]]


def bodies_of_a_source() -> dict[str, Body]:
    return {
        "Update": Update(bytes(32), 4, 1, bytes(32)),
        "MaskedInput": MaskedInput(bytes(32), 4),
        "Unmask": Unmask((SelfMaskShare(1, SECRET),)),
        "Advertise": Advertise(*[bytes([n]) * 32 for n in range(4)]),
        "ShareBundle": ShareBundle((ShareBox(2, SECRET),), bytes(32)),
        "Refusal": Refusal("min-others"),
    }


@pytest.mark.parametrize("name", bodies_of_a_source())
def test_what_releases_something_is_on_the_disk_before_it_leaves(
    logs: list[Log], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    recorder, forced = logs[1].recorder(), []
    logs[1].journal.begin(RUN)
    real = os.fsync
    recorded = signed(1, bodies_of_a_source()[name])

    def fsync(descriptor: int) -> None:
        forced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    recorder(Direction.RECEIVED, TARGET, recorded, size_of(recorded))
    tail = (logs[1].folder / RUN / "tail").stat().st_ino
    assert tail not in forced
    recorder(Direction.SENT, TARGET, recorded, size_of(recorded))
    assert (tail in forced) == (name in ("Update", "MaskedInput", "Unmask"))


@pytest.mark.parametrize("with_update", [False, True], ids=["model", "model and update of the target"])
def test_a_header_with_what_the_target_learned_is_on_the_disk_before_it_leaves(
    logs: list[Log], monkeypatch: pytest.MonkeyPatch, with_update: bool
) -> None:
    logs[0].journal.begin(RUN)
    forced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (forced.append(os.fstat(descriptor).st_ino), real(descriptor)))
    logs[0].recorder()(Direction.SENT, 1, round_header(with_update=with_update), 1000)
    assert ((logs[0].folder / RUN / "tail").stat().st_ino in forced) == with_update


def test_releases_that_leave_together_are_forced_once_and_before_the_first_leaves(
    logs: list[Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs[0].journal.begin(RUN)
    recorder, tail = logs[0].recorder(), (logs[0].folder / RUN / "tail").stat().st_ino
    on_the_disk: list[int] = []
    released = round_header(with_update=True)

    def fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == tail:
            on_the_disk.append(len(logs[0].entries))

    monkeypatch.setattr(os, "fsync", fsync)
    for sent, more in ((released, True), (released, True), (round_header(), False), (round_header(), False)):
        recorder(Direction.SENT, 1, sent, 1000, more=more)
    assert on_the_disk == [3]


class FullDisk:
    """Writing to a log fails while this is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on, self._real = False, os.write
        monkeypatch.setattr(os, "write", self._write)

    def _write(self, descriptor: int, data: bytes) -> int:
        if self.on:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._real(descriptor, data)


@scenario
async def test_what_cannot_be_recorded_does_not_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites, source = Sites(), Log(tmp_path, 1)
    source.journal.begin(RUN)
    disk = FullDisk(monkeypatch)
    with closing(source.journal):
        async with (
            sites.listening() as (server, address),
            sites.connected(1, address, observer=source.recorder()) as lost,
            sites.connected(2, address) as other,
        ):
            await next_event(server, type(await joined(server, 1)))
            server.expect_upload(1, 8)
            for parcel in (note(1, 1), masked_input(1, bytes(8))):
                disk.on = True
                with pytest.raises(AuditError, match="No space left"):
                    await lost.send(parcel)
                disk.on = False
            await lost.close(1.0)
            await other.send(note(2, 3))
            heard = [await soon(server.receive())]
            while not (isinstance(heard[-1], Received) and heard[-1].index == 2):
                heard.append(await soon(server.receive()))
    assert [event.index for event in heard if isinstance(event, Received)] == [2]
    assert source.lines == []


@scenario
async def test_what_cannot_be_recorded_is_not_handed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites, source, target = Sites(), Log(tmp_path, 1), Log(tmp_path, 0)
    source.journal.begin(RUN)
    target.journal.begin(RUN)
    disk = FullDisk(monkeypatch)
    settings = replace(CALM, heartbeat_s=2.0)  # one who hangs up waits for three of them for what was not taken
    with closing(source.journal), closing(target.journal):
        async with (
            sites.listening(settings, observer=target.recorder()) as (server, address),
            sites.connected(1, address, settings, observer=source.recorder()) as channel,
            sites.connected(2, address, settings) as other,
        ):
            await next_event(server, type(await joined(server, 1)))
            await server.send([(1, note(TARGET, 1))])
            await soon(channel.receive())
            disk.on = True
            await other.send(note(2, 1))
            with pytest.raises(AuditError, match="No space left"):
                await soon(server.receive())
            with pytest.raises(AuditError, match="No space left"):
                await server.send([(1, note(TARGET, 2))])
            server._table._observer = ignore  # so that it leaves, to a source that cannot write it down
            await server.send([(1, note(TARGET, 3))])
            with pytest.raises(AuditError, match="No space left"):
                await soon(channel.receive())
            disk.on = False
    assert [line[:2] for line in target.lines] == [("sent", "Goodbye")]
    assert [line[:2] for line in source.lines] == [("received", "Goodbye")]


def test_a_source_takes_no_message_before_it_has_joined_and_so_named_its_log(logs: list[Log]) -> None:
    recorder = logs[1].recorder(run=None)
    with pytest.raises(FaultyAggregatorError, match="Goodbye before this site has joined") as refused:
        recorder(Direction.RECEIVED, TARGET, note(TARGET, 1).message, 10)
    assert refused.value.check == "ORDER"
    assert not logs[1].folder.exists()
    logs[1].journal.begin(RUN)
    recorder(Direction.RECEIVED, TARGET, note(TARGET, 1).message, 10)
    assert [line[:2] for line in logs[1].lines] == [("received", "Goodbye")]


@pytest.mark.parametrize("way", Direction)
@pytest.mark.parametrize(
    "body",
    [
        ShareBundle((ShareBox(2, SECRET),), bytes(32)),
        ShareDelivery((DeliveredBox(2, SECRET, bytes(32)),)),
        Unmask((SelfMaskShare(1, SECRET),)),
    ],
    ids=lambda body: type(body).__name__,
)
def test_of_shares_there_is_a_record_and_no_copy(logs: list[Log], body: Body, way: Direction) -> None:
    recorded = signed(1, body)
    logs[1].recorder()(way, TARGET, recorded, size_of(recorded))
    assert logs[1].lines == [(way.value, recorded.type_name, recorded.digest().hex(), size_of(recorded))]
    assert logs[1].kept == []
    files = [path for path in logs[1].folder.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET in path.read_bytes()]


def test_every_other_message_is_kept_verbatim_and_vectors_are_not(logs: list[Log]) -> None:
    recorder, opening, reply = logs[1].recorder(), round_header(), signed(1, MaskedInput(bytes(32), 4))
    outside = note(1, 1).message
    for way, peer, message_ in (
        (Direction.SENT, TARGET, outside),
        (Direction.RECEIVED, TARGET, opening),
        (Direction.SENT, TARGET, reply),
    ):
        recorder(way, peer, message_, size_of(message_, 4))
        if message_ is opening:
            logs[1].journal.enter(opening)
    assert logs[1].kept == [encode_signed(outside), encode_signed(opening), encode_signed(reply)]


def test_a_header_to_three_sources_has_three_records_and_one_copy(logs: list[Log]) -> None:
    recorder, opening = logs[0].recorder(), round_header()
    for peer in (1, 2, 3):
        recorder(Direction.SENT, peer, opening, size_of(opening, 48))
    assert [entry.peer for entry in logs[0].entries] == NAMES[1:]
    assert {entry.digest for entry in logs[0].entries} == {opening.digest().hex()}
    assert logs[0].kept == [encode_signed(opening)]


def test_messages_are_placed_by_the_header_that_their_site_took_for_their_session(logs: list[Log]) -> None:
    recorder, opening = logs[1].recorder(), round_header()
    recorder(Direction.RECEIVED, TARGET, opening, 1)
    recorder(Direction.SENT, TARGET, signed(1, MaskedInput(bytes(32), 4)), 1)
    logs[1].journal.enter(opening)
    for body, session in ((MaskedInput(bytes(32), 4), SESSION), (MaskedInput(bytes(32), 4), b"x" * 32)):
        recorder(Direction.SENT, TARGET, signed(1, body, session), 1)
    recorder(Direction.RECEIVED, TARGET, note(TARGET, 1).message, 1)
    places = [(entry.round, entry.attempt, entry.session) for entry in logs[1].entries]
    here, session = (1, 1, SESSION.hex()), (0, 0, SESSION.hex())
    assert places == [here, session, here, (0, 0, (b"x" * 32).hex()), (0, 0, "")]


@pytest.mark.parametrize(
    ("body", "disclosure", "decision"),
    [
        (
            Update(bytes(32), 4, 1, bytes(32)),
            Disclosure("individual", "update", 1),
            Decision("allowed", "max-visibility"),
        ),
        (MaskedInput(bytes(32), 4), Disclosure("sum", "update", 3), Decision("allowed", "max-visibility")),
        (Advertise(*[bytes([n]) * 32 for n in range(4)]), None, None),
        (Refusal("min-others"), None, Decision("refused", "min-others")),
        (Refusal("HEADER_ORDER"), None, Decision("refused", "")),
    ],
)
def test_what_a_source_shows_is_said_of_what_it_sends(
    logs: list[Log], body: Body, disclosure: Disclosure | None, decision: Decision | None
) -> None:
    at_source, at_target, opening = logs[1].recorder(), logs[0].recorder(), round_header()
    at_source(Direction.RECEIVED, TARGET, opening, 1)
    at_target(Direction.SENT, 1, opening, 1)
    logs[1].journal.enter(opening)
    logs[0].journal.enter(opening)
    at_source(Direction.SENT, TARGET, signed(1, body), 1)
    at_target(Direction.RECEIVED, 1, signed(1, body), 1)
    at_sender, heard = logs[1].entries[-1], logs[0].entries[-1]
    assert (at_sender.disclosure, at_sender.decision) == (disclosure, decision)
    assert (heard.disclosure, heard.decision) == (None, None)
    assert (logs[1].entries[0].disclosure, logs[1].entries[0].decision) == (None, None)


@pytest.mark.parametrize(("with_update", "what"), [(False, "model"), (True, "model-and-target-update")])
def test_what_the_target_shows_is_said_of_its_headers(logs: list[Log], with_update: bool, what: str) -> None:
    logs[0].recorder()(Direction.SENT, 1, round_header(with_update=with_update), 1)
    assert [entry.disclosure for entry in logs[0].entries] == [Disclosure("individual", what, 1)]


def test_the_targets_update_is_said_to_reach_those_at_sum_alone(logs: list[Log]) -> None:
    levels = (Visibility.SUM, Visibility.SUM, Visibility.COHORT)
    opening = signed(TARGET, replace(header_body(bytes(32), b"u" * 32), levels=levels, sum_quorum=2))
    recorder = logs[0].recorder()
    for peer in (1, 3):
        recorder(Direction.SENT, peer, opening, 1)
    whats = [entry.disclosure and entry.disclosure.what for entry in logs[0].entries]
    assert whats == ["model-and-target-update", "model"]


def test_beyond_a_bound_others_messages_have_a_record_and_no_copy(
    logs: list[Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MOST_KEPT_BYTES", 300)
    recorder = logs[0].recorder()
    flood = [signed(1, Goodbye(True, number, ""), NO_SESSION) for number in range(20)]
    for refusal in flood:
        recorder(Direction.RECEIVED, 1, refusal, size_of(refusal))
    kept = len(logs[0].kept)
    assert len(logs[0].lines) == 20
    assert 0 < kept < 10
    assert logs[0].not_kept == [("source-1", refusal.digest().hex(), "BOUND") for refusal in flood[kept:]]
    logs[0].journal.enter(round_header())
    recorder(Direction.RECEIVED, 1, flood[-1], 1)  # another attempt, with a budget of its own
    recorder(Direction.SENT, 1, note(TARGET, 1).message, 1)
    assert logs[0].kept[-2] == encode_signed(flood[-1])
    assert len(logs[0].not_kept) == 20 - kept


@pytest.mark.parametrize("sender", [1, 2])
def test_what_its_sender_did_not_sign_is_recorded_and_not_kept(logs: list[Log], sender: int) -> None:
    recorder, good = logs[0].recorder(), signed(1, Goodbye(True, 1, ""), NO_SESSION)
    bad = replace(good, signature=bytes(64)) if sender == 1 else signed(2, Goodbye(True, 1, ""), NO_SESSION)
    recorder(Direction.RECEIVED, 1, bad, size_of(bad))

    assert (logs[0].kept, logs[0].not_kept) == ([], [("source-1", bad.digest().hex(), "SIGNATURE")])
    recorder(Direction.RECEIVED, 1, good, size_of(good))  # the wrong one does not hide the right one
    assert logs[0].kept == [encode_signed(good)]


def test_messages_are_on_the_disk_before_a_checkpoint_is_shown(
    logs: list[Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[str] = []
    fsync = os.fsync

    def watched(file: int) -> None:
        forced.append(str(Path(f"/proc/self/fd/{file}").readlink()))
        fsync(file)

    monkeypatch.setattr(os, "fsync", watched)
    recorded = round_header()
    logs[0].recorder()(Direction.SENT, 1, recorded, size_of(recorded))
    path = str(logs[0].folder / RUN / FILE)
    assert path not in forced

    logs[0].journal.checkpoint()
    logs[0].journal.checkpoint()

    assert forced.count(path) == 1


def test_a_message_that_is_sent_twice_has_two_records(logs: list[Log]) -> None:
    recorder, recorded = logs[1].recorder(), message(1, Refusal("min-others")).message
    for _ in range(2):
        recorder(Direction.SENT, TARGET, recorded, size_of(recorded))
    assert len(logs[1].lines) == 2
    assert len(set(logs[1].lines)) == 1
