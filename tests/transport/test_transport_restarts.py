"""A source that is started again before anybody missed it hears nothing that was meant for its old process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from driver_kit import Driven, Process
from transport_kit import TARGET, Proxy, Sites, header, joined, next_event, note, number_of, scenario, soon

from securefda.protocol.messages import Advertise, MaskedInput
from securefda.transport.event_queue import Received
from securefda.transport.limits import UNREAD_MESSAGES
from securefda.transport.observer import Direction

VICTIM, HELD = 4, 3
TRAINING = "training at the target"
A_NEW_ONE = "source-4: a new process of it has connected"


@scenario
async def test_what_is_sent_before_a_new_process_was_reported_neither_reaches_it_nor_is_recorded() -> None:
    sites, shown = Sites(), []

    observer = lambda direction, peer, signed, size, more=False: shown.append((direction, peer, more))  # noqa: E731
    async with sites.listening(observer=observer) as (server, upstream):
        proxy = Proxy(upstream)
        async with proxy.running() as through, sites.connected(2, upstream) as other:
            await joined(server, 2)
            first = sites.channel(1, through)
            await first.open()
            await joined(server, 1)
            proxy.freeze()  # as if the process were dead: nothing arrives, nothing is closed
            async with sites.connected(1, upstream) as second:
                opening = header(os.urandom(10_000))
                await server.send([(2, note(TARGET, 1)), (1, note(TARGET, 1)), (1, opening)])
                assert shown == [(Direction.SENT, 2, False)]
                assert server._table.attachments.held_bytes == 0
                await joined(server, 1)
                await server.send([(1, note(TARGET, 2))])
                assert number_of(await soon(second.receive())) == 2
                assert number_of(await soon(other.receive())) == 1
            first._task.cancel()


@scenario
async def test_nothing_of_an_old_process_is_handed_up_after_the_new_one() -> None:
    sites = Sites()
    async with sites.listening() as (server, upstream):
        proxy = Proxy(upstream)
        async with proxy.running() as through:
            first = sites.channel(1, through)
            await first.open()
            before = await joined(server, 1)
            for number in range(UNREAD_MESSAGES + 1):
                await first.send(note(1, number))
            while not server._table.events._slots.get(1) or not server._table.events._slots[1]._waiters:
                await asyncio.sleep(0)  # until the last of them waits to be handed up
            opening = asyncio.create_task(sites.channel(1, upstream).open())
            while server._table.site(1).instance_id == before.instance_id:
                await asyncio.sleep(0)
            for number in range(UNREAD_MESSAGES):  # makes space for it at this very moment
                assert number_of((await next_event(server, Received)).parcel) == number
            await joined(server, 1)
            await soon(opening)
            assert not server._table.events._events
            await first.close(0.0)


async def _begun(federation: Driven) -> tuple[Process, list[Process]]:
    """Sources 1 and 2 and the victim have answered the first header, source 3 has its answer ready."""
    others = [await federation.process(index) for index in (1, 2)]
    others.append(await federation.process(HELD, Advertise))
    victim = await federation.process(VICTIM, Advertise)
    for process in (*others, victim):
        process.start()
    await soon(victim.channel.held.acquire())
    victim.channel.let_go()
    await soon(others[-1].channel.held.acquire())
    while not victim.channel._link.taken or victim.channel._link._pending:  # until its answer has been taken
        await asyncio.sleep(0.01)
    return victim, others


@scenario
async def test_a_source_that_restarts_before_it_was_missed_is_out_of_the_round_and_joins_again(tmp_path: Path) -> None:
    federation = Driven(tmp_path, rounds=3)
    async with federation.driven() as (_, driving):
        victim, others = await _begun(federation)
        await victim.kill()
        sent_before = len(federation.sent)
        again = await federation.process(VICTIM)
        others[-1].channel.let_go()  # the last answer: the run goes on with those that it believes are there
        await soon(federation.rounds_over(1))
        assert A_NEW_ONE in federation.watch.notes
        assert VICTIM not in {peer for peer, _ in federation.sent[sent_before:]}
        ended = again.start()
        await soon(federation.note("source-4 joined (4 of 4)"))
        for _ in range(2):
            others[-1].channel.let_go()
        await soon(driving)
        await soon(ended)
        survivors = [line["survivors"] for line in federation.watch.lines]
        assert survivors[0] == ["source-1", "source-2", "source-3"]
        assert survivors[1:] == [["source-1", "source-2", "source-3", "source-4"]] * 2, "it is waited for"
        assert again.watch.alarms == []
        assert again.watch.lines[-1]["round"] == 3
        assert not [text for text in federation.watch.notes if "alarm" in text]


@scenario
async def test_a_new_process_gets_nothing_before_it_has_joined(tmp_path: Path) -> None:
    federation = Driven(tmp_path, rounds=1)
    async with federation.driven() as (_, driving):
        victim, others = await _begun(federation)
        await victim.kill()
        sent_before = len(federation.sent)
        again = await federation.process(VICTIM)
        before = again.channel._connection
        again.channel._link.leave()
        while again.channel._connection in (None, before):  # it has dialled again: the same process is back
            await asyncio.sleep(0.01)
        others[-1].channel.let_go()
        await soon(driving)
        assert federation.watch.lines[0]["survivors"] == ["source-1", "source-2", "source-3"]
        assert VICTIM not in {peer for peer, _ in federation.sent[sent_before:]}


@pytest.mark.parametrize("number", [1, 2])
@scenario
async def test_a_source_that_restarts_while_the_target_trains_is_in_the_round(tmp_path: Path, number: int) -> None:
    """In round 1 the target trains after all have cosigned, later meanwhile; in both, before the header."""
    federation = Driven(tmp_path, rounds=2)
    async with federation.driven() as (_, driving):
        with federation.watch.hold(TRAINING, number):
            *_, victim = processes = [await federation.process(index) for index in (1, 2, 3, VICTIM)]
            for process in processes:
                process.start()
            while federation.watch.phases.count(TRAINING) < number:
                await asyncio.sleep(0.01)
            while [kind for _, kind in federation.received].count("Cosigned") < number * len(processes):
                await asyncio.sleep(0.01)
            await victim.kill()
            again = await federation.process(VICTIM)
        again.start()
        await soon(driving)
        assert A_NEW_ONE in federation.watch.notes
        assert [line["survivors"] for line in federation.watch.lines] == [
            ["source-1", "source-2", "source-3", "source-4"]
        ] * 2
        assert not [text for text in federation.watch.notes if "without a result" in text]


@scenario
async def test_a_source_that_is_late_with_its_upload_is_not_accused(tmp_path: Path) -> None:
    federation = Driven(tmp_path, rounds=2, phase_deadline_s=3.0)
    async with federation.driven() as (_, driving):
        others = [await federation.process(index) for index in (1, 2, VICTIM)]
        late = await federation.process(HELD, MaskedInput)
        for process in (*others, late):
            process.start()
        await soon(federation.rounds_over(1))
        late.channel.let_go()
        while not late.watch.notes:
            await asyncio.sleep(0.01)
        assert late.watch.notes[0].startswith("too late for this round: ")
        late.channel.let_go()
        await soon(driving)
        assert [line["status"] for line in federation.watch.lines] == ["finished", "finished"]
        assert federation.watch.lines[0]["dropped"] == ["source-3"]
        assert not [text for text in federation.watch.notes if "alarm" in text]
