"""What waits for the aggregator is bounded, and what is left of it still tells what happened."""

from __future__ import annotations

import asyncio

import pytest
from transport_kit import note, scenario

from securefda.transport.event_queue import Event, EventQueue, Joined, Left, Misbehaved, Received

OLD, NEW = b"o" * 16, b"n" * 16
JOINED, BACK, LEFT = Joined(1, NEW, resumed=False), Joined(1, NEW, resumed=True), Left(1, "hung up")
LEFT_AGAIN, BEFORE = Left(1, "silent for 15 s"), Joined(1, OLD, resumed=False)
MESSAGE = Received(1, note(1, 1))


async def _waiting(queue: EventQueue) -> list[Event]:
    return [await queue.get() for _ in range(len(queue._events))]


async def _left_of(events: list[Event]) -> list[Event]:
    queue = EventQueue()
    for event in events:
        if isinstance(event, Received):
            await queue.slot(event.index)
        queue.put(event)
    return await _waiting(queue)


@pytest.mark.parametrize(
    ("happened", "kept"),
    [
        ([LEFT, BACK], [LEFT, BACK]),
        ([JOINED, LEFT, BACK], [JOINED, LEFT, BACK]),
        ([LEFT, BACK, LEFT_AGAIN], [LEFT_AGAIN]),
        ([JOINED, LEFT, BACK, LEFT_AGAIN, BACK], [JOINED, LEFT_AGAIN, BACK]),
        ([LEFT, JOINED], [JOINED]),
        ([BEFORE, LEFT, BACK, JOINED], [JOINED]),
        ([BEFORE, JOINED, LEFT], [JOINED, LEFT]),
    ],
    ids=[
        "a return does not undo the going before it",
        "one process came, went and is back",
        "the last going counts",
        "that it is new is kept",
        "a new process makes the going of the old one the past",
        "and its coming and its return",
        "what the new one does comes after it",
    ],
)
def test_of_comings_and_goings_that_wait_only_the_newest_is_kept(happened: list[Event], kept: list[Event]) -> None:
    assert asyncio.run(_left_of(happened)) == kept


def test_what_is_dropped_is_of_the_same_site_and_no_message() -> None:
    others = [Left(2, "hung up"), Joined(2, OLD, resumed=True), Misbehaved(1, "WIRE", "a")]
    assert asyncio.run(_left_of([BEFORE, MESSAGE, *others, JOINED])) == [MESSAGE, *others, JOINED]


def test_a_message_stays_where_it_was_between_those_that_stay() -> None:
    assert asyncio.run(_left_of([JOINED, MESSAGE, LEFT, MESSAGE, BACK])) == [JOINED, MESSAGE, LEFT, MESSAGE, BACK]


@scenario
async def test_a_new_process_waits_until_its_coming_is_read() -> None:
    queue = EventQueue()
    for event in (BEFORE, LEFT, JOINED):
        queue.put(event)
        assert queue.new_process_waits(1)
    assert not queue.new_process_waits(2)
    await queue.get()
    assert not queue.new_process_waits(1)


@scenario
async def test_a_misbehaviour_is_reported_once_until_it_was_read_and_then_again() -> None:
    queue = EventQueue()
    for detail in ("first", "second"):
        for check in ("WIRE", "SENDER", "WIRE"):
            queue.put(Misbehaved(1, check, detail))
        assert await _waiting(queue) == [Misbehaved(1, "WIRE", detail), Misbehaved(1, "SENDER", detail)]


@scenario
async def test_messages_that_wait_are_taken_together_up_to_an_event_of_another_kind() -> None:
    queue, other = EventQueue(), Received(2, note(2, 2))
    for event in (MESSAGE, other, JOINED, MESSAGE):
        if isinstance(event, Received):
            await queue.slot(event.index)
        queue.put(event)
    assert await queue.get() == MESSAGE
    assert queue.more_messages() == [other]
    assert queue.more_messages() == []
    assert queue.new_process_waits(1)
    assert await _waiting(queue) == [JOINED, MESSAGE]


@scenario
async def test_after_a_failure_no_more_messages_are_given() -> None:
    queue = EventQueue()
    await queue.slot(1)
    queue.put(MESSAGE)
    queue.fail(RuntimeError("the log is full"))
    assert queue.more_messages() == []
