"""Peers that speak the protocol's language badly: refused, reported, and never at the cost of memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
from pathlib import Path

import grpc
import numpy as np
import pytest
from transport_kit import (
    CALM,
    FAST,
    HELLO,
    INSTANCE,
    Sites,
    header,
    joined,
    masked_input,
    meeting,
    message,
    next_event,
    note,
    number_of,
    raw_channel,
    raw_meeting,
    scenario,
    soon,
    status_of,
)

from securefda.errors import FaultyAggregatorError
from securefda.protocol.down_link import packed
from securefda.protocol.messages import DownLink, MaskedInput, Parcel
from securefda.transport.event_queue import Misbehaved, Received
from securefda.transport.limits import UNREAD_MESSAGES
from securefda.transport.wire import signed_to_proto
from securefda.v1 import federation_pb2 as pb
from securefda.v1.federation_pb2_grpc import FederationServiceStub

GIB = 1 << 30
RAW_METHOD = "/securefda.v1.FederationService/"


def start_of(parcel: Parcel, total_bytes: int) -> pb.UploadRequest:
    start = pb.UploadStart(instance_id=INSTANCE, message=signed_to_proto(parcel.message), total_bytes=total_bytes)
    return pb.UploadRequest(start=start)


def chunk(offset: int, data: bytes) -> pb.UploadRequest:
    return pb.UploadRequest(chunk=pb.UploadChunk(offset=offset, data=data))


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@scenario
@pytest.mark.parametrize("expected", [4096, 0])
async def test_a_gigabyte_is_refused_when_it_is_declared_and_takes_no_memory(expected: int) -> None:
    async with raw_meeting() as (server, stub):
        server.expect_upload(1, expected)
        gc.collect()
        before = resident_bytes()
        for _ in range(5):
            upload = stub.Upload()
            parcel = message(1, MaskedInput(digest=b"d" * 32, length_bytes=GIB))
            await upload.write(start_of(parcel, GIB))
            assert await status_of(upload) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert resident_bytes() - before < 16 << 20
        assert server._table.site(1).desk._upload is None
        checks = [event.check for event in server._table.events._events]
        assert checks == (["UPLOAD_LENGTH"] if expected else [])


@scenario
async def test_a_frame_larger_than_the_limit_is_refused_by_grpc_itself() -> None:
    async with raw_meeting() as (_, stub):
        upload = stub.Upload()
        await upload.write(chunk(0, bytes(CALM.max_message_bytes + 1)))
        assert await status_of(upload) is grpc.StatusCode.RESOURCE_EXHAUSTED


@scenario
async def test_a_compressed_frame_is_refused_unread() -> None:
    sites = Sites()
    async with (
        sites.listening() as (server, address),
        raw_channel(sites, address, compression=grpc.Compression.Gzip) as channel,
    ):
        bomb = bytes(64 << 20)
        before = resident_bytes()
        call = channel.stream_stream(RAW_METHOD + "Upload")()
        with contextlib.suppress(grpc.aio.AioRpcError):  # it may be refused while it is being written
            await call.write(bomb)
        assert await status_of(call) in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED)
        assert resident_bytes() - before < 32 << 20
        assert server.connected() == set()


@scenario
@pytest.mark.parametrize(
    ("steps", "status", "check"),
    [
        ([chunk(0, b"x")], grpc.StatusCode.INVALID_ARGUMENT, "WIRE"),
        ([pb.UploadRequest()], grpc.StatusCode.INVALID_ARGUMENT, "WIRE"),
        ([start_of(note(1, 1), 8)], grpc.StatusCode.INVALID_ARGUMENT, "WIRE"),
        ([start_of(masked_input(2, bytes(8)), 8)], grpc.StatusCode.PERMISSION_DENIED, "SENDER"),
        ([start_of(masked_input(1, bytes(9)), 8)], grpc.StatusCode.INVALID_ARGUMENT, "WIRE"),
        ([start_of(masked_input(1, bytes(8)), 8), chunk(1, bytes(7))], grpc.StatusCode.INVALID_ARGUMENT, "WIRE"),
        ([start_of(masked_input(1, bytes(8)), 8), chunk(0, bytes(9))], grpc.StatusCode.INVALID_ARGUMENT, "WIRE"),
        ([start_of(masked_input(1, bytes(8)), 8), chunk(0, b"")], grpc.StatusCode.INVALID_ARGUMENT, "WIRE"),
        ([start_of(masked_input(1, bytes(8)), 8)] * 2, grpc.StatusCode.INVALID_ARGUMENT, "WIRE"),
        (
            [start_of(masked_input(1, bytes(8)), 8), chunk(0, b"12345678")],
            grpc.StatusCode.INVALID_ARGUMENT,
            "UPLOAD_DIGEST",
        ),
    ],
    ids=[
        "chunk first",
        "empty step",
        "message without a vector",
        "another sender",
        "another length in the message",
        "a gap",
        "too much",
        "an empty chunk",
        "two starts",
        "another vector",
    ],
)
async def test_a_malformed_upload_is_refused_and_reported(steps, status, check: str) -> None:
    async with raw_meeting() as (server, stub):
        server.expect_upload(1, 8)
        upload = stub.Upload()
        for step in steps:
            await upload.write(step)
        assert await status_of(upload) is status
        event = await next_event(server, Misbehaved)
        assert (event.index, event.check) == (1, check)


@scenario
async def test_after_a_wrong_vector_the_right_one_is_still_taken() -> None:
    async with raw_meeting() as (server, stub):
        server.expect_upload(1, 8)
        sent = masked_input(1, b"87654321")
        for data, status in ((b"12345678", grpc.StatusCode.INVALID_ARGUMENT), (b"87654321", grpc.StatusCode.OK)):
            upload = stub.Upload()
            await upload.write(start_of(sent, 8))
            await upload.write(chunk(0, data))
            await upload.done_writing()
            assert await status_of(upload) is status
        await next_event(server, Misbehaved)
        event = await next_event(server, Received)
        assert bytes(event.parcel.vectors[0]) == b"87654321"


@scenario
async def test_an_upload_without_a_control_stream_is_not_taken() -> None:
    sites = Sites()
    async with sites.listening() as (server, address), raw_channel(sites, address) as channel:
        server.expect_upload(1, 8)
        upload = FederationServiceStub(channel).Upload()
        await upload.write(start_of(masked_input(1, bytes(8)), 8))
        assert await status_of(upload) is grpc.StatusCode.ABORTED


@scenario
async def test_an_upload_that_stands_still_is_ended() -> None:
    async with raw_meeting(FAST) as (server, stub):
        server.expect_upload(1, 8)
        upload = stub.Upload()
        await upload.write(start_of(masked_input(1, bytes(8)), 8))
        assert await status_of(upload) is grpc.StatusCode.DEADLINE_EXCEEDED


HEARTBEAT = pb.Frame(heartbeat=pb.Heartbeat())
BAD_FRAMES = {
    "no hello": [HEARTBEAT],
    "empty": [pb.Frame()],
    "short instance": [pb.Frame(hello=pb.Hello(instance_id=b"short", heartbeat_ms=2000))],
    "no heartbeat": [pb.Frame(hello=pb.Hello(instance_id=INSTANCE))],
    "heartbeat of a day": [pb.Frame(hello=pb.Hello(instance_id=INSTANCE, heartbeat_ms=86_400_000))],
    "second hello": [HELLO, HELLO],
    "welcome from a source": [HELLO, pb.Frame(welcome=pb.Welcome(instance_id=INSTANCE, heartbeat_ms=2000))],
    "acknowledges the future": [HELLO, pb.Frame(acknowledged=1, heartbeat=pb.Heartbeat())],
    "no sequence": [HELLO, pb.Frame(delivery=pb.Delivery(message=signed_to_proto(note(1, 1).message)))],
    "no message": [HELLO, pb.Frame(delivery=pb.Delivery(sequence=1))],
    "attachments": [
        HELLO,
        pb.Frame(delivery=pb.Delivery(sequence=1, message=signed_to_proto(note(1, 1).message), attachment_bytes=[GIB])),
    ],
    "garbage": [HELLO, pb.Frame(delivery=pb.Delivery(sequence=1, message={"signed_bytes": b"\xff" * 40}))],
}


@scenario
@pytest.mark.parametrize("frames", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
async def test_a_malformed_frame_ends_the_stream_and_is_reported(frames: list[pb.Frame]) -> None:
    sites = Sites()
    async with sites.listening() as (server, address), raw_channel(sites, address) as channel:
        control = FederationServiceStub(channel).Control()
        for frame in frames:
            await control.write(pb.ControlRequest(frame=frame))
        assert await status_of(control) is grpc.StatusCode.INVALID_ARGUMENT
        while not isinstance(event := await soon(server.receive()), Misbehaved):
            pass
        assert (event.index, event.check) == (1, "WIRE")


@scenario
async def test_a_message_that_is_sent_again_is_handed_up_once() -> None:
    sites = Sites()
    async with sites.listening() as (server, address), raw_channel(sites, address) as channel:
        for sequence in (1, 1, 2):  # as if the connection broke before the first acknowledgement arrived
            control = FederationServiceStub(channel).Control()
            await control.write(pb.ControlRequest(frame=HELLO))
            delivery = pb.Delivery(sequence=sequence, message=signed_to_proto(note(1, sequence).message))
            await control.write(pb.ControlRequest(frame=pb.Frame(delivery=delivery)))
            while (await soon(control.read())).frame.acknowledged < sequence:
                pass
            control.cancel()
        await joined(server, 1)
        numbers = [number_of((await next_event(server, Received)).parcel) for _ in range(2)]
        assert numbers == [1, 2]


@scenario
@pytest.mark.parametrize("method", ["Control", "Upload"])
async def test_bytes_that_are_no_protobuf_end_the_stream_and_are_reported(method: str) -> None:
    sites = Sites()
    async with sites.listening() as (server, address), raw_channel(sites, address) as channel:
        call = channel.stream_stream(RAW_METHOD + method)()
        await call.write(b"\xff\xff\xff")
        assert await status_of(call) is grpc.StatusCode.INVALID_ARGUMENT
        event = await next_event(server, Misbehaved)
        assert (event.index, event.check) == (1, "WIRE")


UNKNOWN = b"\x78\x01"  # field 15


@scenario
@pytest.mark.parametrize(("inside", "outside"), [(UNKNOWN, b""), (b"", UNKNOWN)])
async def test_an_unknown_field_of_a_frame_is_refused(inside: bytes, outside: bytes) -> None:
    sites = Sites()
    async with sites.listening() as (server, address), raw_channel(sites, address) as channel:
        call = channel.stream_stream(RAW_METHOD + "Control")()
        frame = HELLO.SerializeToString() + inside
        await call.write(b"\x0a" + bytes([len(frame)]) + frame + outside)
        assert await status_of(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert (await next_event(server, Misbehaved)).check == "WIRE"


@scenario
async def test_a_source_that_floods_is_held_back_and_loses_nothing() -> None:
    count = 10 * UNREAD_MESSAGES
    async with meeting() as (server, channel):
        for number in range(count):
            await channel.send(note(1, number))
        while len(server._table.events._events) < UNREAD_MESSAGES:
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(server._table.events._events) == UNREAD_MESSAGES
        assert [number_of((await next_event(server, Received)).parcel) for _ in range(count)] == list(range(count))


@scenario
async def test_a_vector_waits_until_the_one_before_has_been_read() -> None:
    async with meeting(FAST) as (server, channel):
        server.expect_upload(1, 8)
        await channel.send(masked_input(1, b"11111111"))
        second = asyncio.create_task(channel.send(masked_input(1, b"22222222")))
        done, _ = await asyncio.wait({second}, timeout=0.3)
        assert not done
        assert bytes((await next_event(server, Received)).parcel.vectors[0]) == b"11111111"
        await soon(second)
        assert bytes((await next_event(server, Received)).parcel.vectors[0]) == b"22222222"


@scenario
async def test_a_source_does_not_download_more_than_it_takes() -> None:
    async with meeting(max_vector_bytes=1000) as (server, channel):
        await server.send([(1, header(os.urandom(1001)))])
        with pytest.raises(FaultyAggregatorError, match="1001 bytes announced, this site takes 1000"):
            await soon(channel.receive())


@scenario
@pytest.mark.parametrize("announced", [(), (GIB, GIB), (999,), (1001,)])
async def test_a_source_refuses_vectors_that_do_not_fit_their_message(announced: tuple[int, ...]) -> None:
    async with meeting(max_vector_bytes=2 * GIB) as (server, channel):
        sent, site = header(os.urandom(1000)), server._table.site(1)
        server._table.attachments.publish(sent.message.body.model_digest, sent.vectors[0], 1)
        site.link.push(sent.message, announced)
        with pytest.raises(FaultyAggregatorError) as caught:
            await soon(channel.receive())
        assert caught.value.check == "ATTACHMENT"


MODEL = np.arange(1, 101, dtype=np.float32).tobytes()
HALVED = bytes(packed(MODEL, DownLink.BFLOAT16))


def flipped(bit: int) -> bytes:
    """The model with one bit of its eighth number changed."""
    number = np.frombuffer(MODEL, np.uint32).copy()
    number[7] ^= 1 << bit
    return number.tobytes()


@scenario
@pytest.mark.parametrize(
    ("named", "travels", "down_link"),
    [
        (MODEL, flipped(0), DownLink.FLOAT32),
        (flipped(0), HALVED, DownLink.BFLOAT16),
        (flipped(15), HALVED, DownLink.BFLOAT16),
        (flipped(16), HALVED, DownLink.BFLOAT16),
        (MODEL, HALVED[:-1], DownLink.BFLOAT16),
    ],
    ids=["float32", "the lowest bit", "the highest bit that does not travel", "a bit that does", "half a number"],
)
async def test_a_source_refuses_a_vector_with_another_digest_than_its_header_names(
    named: bytes, travels: bytes, down_link: DownLink
) -> None:
    async with meeting() as (server, channel):
        sent, attachments = header(named, down_link=down_link), server._table.attachments
        digest = sent.message.body.model_digest
        attachments.publish(digest, named, 1)
        attachments._attachments[digest].view = memoryview(travels)
        server._table.site(1).link.push(sent.message, (len(travels),))
        with pytest.raises(FaultyAggregatorError) as caught:
            await soon(channel.receive())
        assert caught.value.check == "ATTACHMENT_DIGEST"
