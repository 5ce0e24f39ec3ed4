"""Messages both ways, over real sockets with mutual TLS."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import grpc
import numpy as np
import pytest
from transport_kit import (
    CALM,
    FAST,
    HELLO,
    TARGET,
    Sites,
    header,
    joined,
    masked_input,
    meeting,
    meeting_of_two,
    message,
    next_event,
    note,
    number_of,
    raw_channel,
    scenario,
    soon,
    status_of,
)

from securefda.errors import ConfigError, ConnectionFailed, SecureFdaError
from securefda.protocol.down_link import rounded
from securefda.protocol.messages import DownLink, Parcel
from securefda.transport.dialer import UploadRefusedError
from securefda.transport.event_queue import Joined, Left, Misbehaved, Received
from securefda.transport.observer import Direction, wire_size
from securefda.transport.wire import encode_signed
from securefda.v1 import federation_pb2 as pb
from securefda.v1.federation_pb2_grpc import FederationServiceStub
from securefda.v1.messages_pb2 import SignedMessage


@scenario
async def test_messages_arrive_in_order_in_both_directions() -> None:
    async with meeting() as (server, channel):
        for number in range(50):
            await channel.send(note(1, number))
            await server.send([(1, note(TARGET, number))])
        for number in range(50):
            event = await next_event(server, Received)
            assert (event.index, number_of(event.parcel)) == (1, number)
            assert number_of(await soon(channel.receive())) == number


@scenario
async def test_a_header_arrives_with_its_vectors_and_they_are_not_kept_longer() -> None:
    vectors = (os.urandom(100_001), os.urandom(50_000))
    async with meeting_of_two() as (server, first, second):
        sent = header(*vectors)
        for index in (1, 2):
            await server.send([(index, sent)])
        store = server._table.attachments
        assert store.held_bytes == 150_001
        for channel in (first, second):
            received = await soon(channel.receive())
            assert received.message == sent.message
            assert tuple(map(bytes, received.vectors)) == vectors
        for index in (1, 2):
            await soon(server._table.site(index).link.settled())
        assert store.held_bytes == 0


@scenario
@pytest.mark.parametrize("down_link", [DownLink.BFLOAT16, DownLink.FLOAT16])
async def test_vectors_in_2_bytes_arrive_as_float32_and_are_offered_at_half_the_length(down_link: DownLink) -> None:
    drawn = np.random.default_rng(1).normal(size=(2, 40_001)).astype(np.float32)
    vectors = tuple(bytes(rounded(vector, down_link, "it").tobytes()) for vector in drawn)
    seen: list[int] = []

    observer = lambda direction, peer, signed, size, more=False: seen.append(size)  # noqa: E731
    async with meeting(observer=observer) as (server, channel):
        sent = header(*vectors, down_link=down_link)
        await server.send([(1, sent)])
        assert server._table.attachments.held_bytes == 4 * 40_001
        received = await soon(channel.receive())
        assert received.message == sent.message
        assert tuple(map(bytes, received.vectors)) == vectors
        assert seen[-1] == wire_size(sent.message, 4 * 40_001)
        await soon(server._table.site(1).link.settled())
        assert server._table.attachments.held_bytes == 0


@scenario
async def test_a_vector_that_is_not_rounded_does_not_leave_in_2_bytes() -> None:
    async with meeting() as (server, _):
        vector = np.full(10, 0.1, np.float32).tobytes()
        with pytest.raises(ValueError, match="bfloat16"):
            await server.send([(1, header(vector, down_link=DownLink.BFLOAT16))])
        assert server._table.attachments.held_bytes == 0


@scenario
async def test_a_masked_input_arrives_with_its_vector_once() -> None:
    vector = os.urandom(300_000)
    async with meeting() as (server, channel):
        server.expect_upload(1, len(vector))
        sent = masked_input(1, vector)
        await channel.send(sent)
        await channel.send(sent)
        await channel.send(note(1, 1))
        event = await next_event(server, Received)
        assert event.parcel.message == sent.message
        assert bytes(event.parcel.vectors[0]) == vector
        assert number_of((await next_event(server, Received)).parcel) == 1


@scenario
@pytest.mark.parametrize("expected", [9_999, 10_001])
async def test_an_upload_of_another_length_than_expected_is_refused(expected: int) -> None:
    async with meeting() as (server, channel):
        server.expect_upload(1, expected)
        with pytest.raises(UploadRefusedError, match=f"10000 bytes declared, {expected} expected"):
            await channel.send(masked_input(1, bytes(10_000)))
        event = await next_event(server, Misbehaved)
        assert (event.index, event.check) == (1, "UPLOAD_LENGTH")
        await channel.send(note(1, 3))  # the connection is still good
        assert number_of((await next_event(server, Received)).parcel) == 3


@scenario
async def test_an_upload_that_nobody_expects_is_refused_and_accuses_nobody() -> None:
    async with meeting() as (server, channel):
        server.expect_upload(1, 10_000)
        server.expect_upload(1, 0)  # the phase is over
        with pytest.raises(UploadRefusedError, match="10000 bytes declared, 0 expected"):
            await channel.send(masked_input(1, bytes(10_000)))
        await channel.send(note(1, 3))
        assert number_of((await next_event(server, Received)).parcel) == 3


@scenario
async def test_a_site_cannot_download_what_was_sent_to_another() -> None:
    vector = os.urandom(10_000)
    async with meeting_of_two() as (server, _, second):
        sent = header(vector)
        await server.send([(1, sent)])
        store = server._table.attachments
        digest = sent.message.body.model_digest
        assert store.find(digest, 1) is not None
        assert store.find(digest, 2) is None
        # Site 2 is shown the same message without being offered the vector: it is left out, the next one arrives.
        server._table.site(2).link.push(sent.message, (len(vector),))
        await server.send([(2, note(TARGET, 5))])
        assert number_of(await soon(second.receive())) == 5


@scenario
async def test_withdrawn_vectors_take_their_untaken_messages_with_them() -> None:
    async with meeting() as (server, channel):
        await server.send([(1, header(os.urandom(1000)))])
        server.drop_attachments()
        assert server._table.attachments.held_bytes == 0
        await soon(server._table.site(1).link.settled())  # nothing is left to be sent again
        await server.send([(1, note(TARGET, 2))])
        assert number_of(await soon(channel.receive())) == 2


@scenario
async def test_of_messages_that_leave_together_none_does_before_all_are_recorded() -> None:
    seen = []

    def full_at_the_third(direction: Direction, peer: int, signed: object, size: int, *, more: bool = False) -> None:
        if direction is Direction.SENT:
            seen.append((peer, more))
            if len(seen) == 3:
                raise OSError(28, "No space left on device")

    async with meeting_of_two(at_target=full_at_the_third) as (server, first, second):
        await server.send([(1, note(TARGET, 1))])
        with pytest.raises(OSError, match="No space left"):
            await server.send([(1, note(TARGET, 2)), (2, note(TARGET, 2))])
        await server.send([(1, note(TARGET, 3)), (2, note(TARGET, 3))])
        assert [number_of(await soon(first.receive())) for _ in range(2)] == [1, 3]
        assert number_of(await soon(second.receive())) == 3
    assert seen == [(1, False), *2 * [(1, True), (2, False)]]


@scenario
async def test_what_the_aggregator_could_not_write_does_not_leave() -> None:
    def full_disk(direction: Direction, peer: int, signed: object, size: int, *, more: bool = False) -> None:
        raise SecureFdaError("audit log /home/clinic/kit/local/audit: cannot be written: No space left on device")

    sites = Sites()
    async with sites.listening(observer=full_disk) as (server, address), raw_channel(sites, address) as channel:
        control = FederationServiceStub(channel).Control()
        await control.write(pb.ControlRequest(frame=HELLO))
        assert (await soon(control.read())).frame.WhichOneof("content") == "welcome"
        signed = SignedMessage.FromString(encode_signed(note(1, 1).message))
        await control.write(pb.ControlRequest(frame=pb.Frame(delivery=pb.Delivery(sequence=1, message=signed))))
        assert await status_of(control) is grpc.StatusCode.ABORTED
        assert await control.details() == "the aggregator cannot go on"
        with pytest.raises(SecureFdaError, match="No space left"):
            await soon(server.receive())


@scenario
async def test_a_source_that_closes_leaves_at_once_and_what_it_sent_last_arrives() -> None:
    sites = Sites()
    async with sites.listening() as (server, address):
        async with sites.connected(1, address) as channel:
            await joined(server, 1)
            assert server.connected() == {1}
            await channel.send(note(1, 9))
        assert number_of((await next_event(server, Received)).parcel) == 9
        event = await next_event(server, Left)
        assert event == Left(1, "hung up")
        assert server.connected() == set()
        with pytest.raises(ConnectionFailed, match="not open"):
            await channel.send(note(1, 10))


@scenario
async def test_stop_waits_until_sources_have_taken_their_messages() -> None:
    async with meeting() as (server, channel):
        await server.send([(1, header(os.urandom(200_000)))])
        await server.send([(1, note(TARGET, 4))])
        received, _ = await asyncio.gather(_two(channel), server.stop(10.0))
        assert number_of(received[1]) == 4
        with pytest.raises(ConnectionFailed, match="stopped"):
            await server.receive()


async def _two(channel) -> list[Parcel]:
    return [await soon(channel.receive()) for _ in range(2)]


@scenario
async def test_traffic_counts_vectors_and_framing() -> None:
    vector = os.urandom(100_000)
    async with meeting() as (server, channel):
        server.expect_upload(1, len(vector))
        await channel.send(masked_input(1, vector))
        traffic = server.traffic()[1]
        assert 100_000 < traffic.up < 103_000
        assert traffic.down < 3_000
        assert abs(channel.traffic().up - traffic.up) < 200  # a heartbeat may be under way


@scenario
async def test_an_aggregator_cannot_send_to_a_source_that_never_joined() -> None:
    sites = Sites()
    async with sites.listening() as (server, _):
        with pytest.raises(ConnectionFailed, match="source 2 has not joined"):
            await server.send([(2, note(TARGET, 1))])


@scenario
async def test_a_header_goes_with_the_targets_update_to_some_and_without_it_to_others() -> None:
    sites, (model, update) = Sites(), (os.urandom(100_001), os.urandom(50_000))
    async with (
        sites.listening() as (server, address),
        sites.connected(1, address) as first,
        sites.connected(2, address) as second,
    ):
        assert {(await next_event(server, Joined)).index for _ in range(2)} == {1, 2}
        sent = header(model, update)
        await server.send([(1, sent)])
        await server.send([(2, Parcel(sent.message, (model,)))])
        digest = sent.message.body.target.update_digest
        store = server._table.attachments
        assert store.find(digest, 1) is not None
        assert store.find(digest, 2) is None
        assert tuple(map(bytes, (await soon(first.receive())).vectors)) == (model, update)
        assert tuple(map(bytes, (await soon(second.receive())).vectors)) == (model,)
        for index in (1, 2):
            await soon(server._table.site(index).link.settled())
        assert store.held_bytes == 0


@scenario
async def test_vectors_that_the_message_does_not_name_are_refused_before_anything_leaves() -> None:
    async with meeting() as (server, channel):
        good = header(b"model")
        for wrong in ((), (b"model", b"model"), (b"other",)):
            with pytest.raises(ValueError, match=r"names 1 vectors|does not have the digest"):
                await server.send([(1, Parcel(good.message, wrong))])
        with pytest.raises(ValueError, match="does not go with 1 vectors"):
            await channel.send(Parcel(note(1, 1).message, (b"x",)))
        await server.send([(1, note(TARGET, 6))])
        assert number_of(await soon(channel.receive())) == 6


@scenario
async def test_of_what_leaves_together_nothing_is_shown_where_one_cannot_leave() -> None:
    """What will not leave is not said to have left, and no vector stays on offer; a large message names the setting."""
    shown = []

    def observer(direction: Direction, peer: int, signed: object, size: int, *, more: bool = False) -> None:
        del signed, size, more
        if direction is Direction.SENT:
            shown.append(peer)

    async with meeting_of_two(FAST, at_target=observer) as (server, _, _):
        good = header(b"model")
        body = good.message.body
        layers = tuple(type(body.layers[0])(f"layer{i}" + "x" * 180, (1,), 1.0, 1.0) for i in range(400))
        large = Parcel(message(TARGET, replace(body, layers=layers)).message, (b"model",))
        with pytest.raises(ConfigError, match=r"transport\.max-message-bytes"):
            await server.send([(1, good), (2, large)])
        with pytest.raises(ValueError, match="does not have the digest"):
            await server.send([(1, good), (2, Parcel(header(b"another").message, (b"other",)))])
        assert shown == []
        assert server._table.attachments.held_bytes == 0
        await server.send([(1, good), (2, good)])
        assert shown == [1, 2]


@scenario
async def test_a_hundred_sources_are_served_by_one_aggregator() -> None:
    sites, vector = Sites(100), os.urandom(20_000)
    async with sites.listening(CALM) as (server, address):
        channels = {index: sites.channel(index, address, CALM) for index in sites.sources}
        await asyncio.gather(*(channel.open() for channel in channels.values()))
        assert {(await next_event(server, Joined)).index for _ in channels} == set(channels)
        sent = header(vector)
        for index in channels:
            server.expect_upload(index, len(vector))
            await server.send([(index, sent)])
        assert server._table.attachments.held_bytes == len(vector)

        async def take_part(index: int) -> None:
            received = await channels[index].receive()
            assert bytes(received.vectors[0]) == vector
            await channels[index].send(masked_input(index, vector[::-1]))

        await asyncio.gather(*map(take_part, channels))
        senders = {(await next_event(server, Received)).index for _ in channels}
        assert senders == set(channels)
        await asyncio.gather(*(channel.close() for channel in channels.values()))
