"""An acknowledgement travels with the next message, and by itself only where there is none."""

from __future__ import annotations

import asyncio

from transport_kit import note, scenario

from securefda.transport.delivery import ACKNOWLEDGE_WITHIN_S, Link

ROOM = 1 << 20


@scenario
async def test_an_acknowledgement_travels_with_the_next_message_and_not_again() -> None:
    link = Link(ROOM)
    link.take(1)
    assert link.next_frame() is None
    link.push(note(1, 1).message)
    frame = link.next_frame()
    assert frame is not None
    assert (frame.WhichOneof("content"), frame.acknowledged) == ("delivery", 1)
    await asyncio.sleep(2 * ACKNOWLEDGE_WITHIN_S)
    assert link.next_frame() is None


@scenario
async def test_without_a_message_it_leaves_by_itself_in_time() -> None:
    link = Link(ROOM)
    link.take(1)
    link.take(2)
    assert link.next_frame() is None
    await link.something_to_say(60.0)
    frame = link.next_frame()
    assert frame is not None
    assert (frame.WhichOneof("content"), frame.acknowledged) == ("heartbeat", 2)
    assert link.next_frame() is None


@scenario
async def test_on_a_new_stream_what_was_taken_is_acknowledged_at_once() -> None:
    link = Link(ROOM)
    link.take(3)
    link.rewind()
    frame = link.next_frame()
    assert frame is not None
    assert frame.acknowledged == 3
