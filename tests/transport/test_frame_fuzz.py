"""Malformed frames through the code that reads them at either end: refused with the transport's own errors."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from depth import at_depth
from google.protobuf.message import DecodeError, Message
from transport_kit import masked_input, note
from wire_fields import SIZED, VARINT, tagged
from wire_mutations import Mutator

from securefda.transport.delivery import Link, Pace, content_of, pump
from securefda.transport.vector_transfer import Assembly, Refused, UploadDesk
from securefda.transport.wire import WireError, refuse_unknown_fields, signed_from_proto, signed_to_proto
from securefda.v1 import federation_pb2 as pb

COUNT = at_depth(2_500, 20_000)
VECTOR = bytes(range(64))
PACE = Pace(heartbeat_s=60.0, silence_s=60.0)
DELIVERY = pb.Delivery(sequence=1, message=signed_to_proto(note(1, 1).message))
FRAMES = (
    pb.Frame(acknowledged=1, heartbeat=pb.Heartbeat()),
    pb.Frame(acknowledged=1, delivery=DELIVERY),
    pb.Frame(leave=pb.Leave()),
    pb.Frame(acknowledged=1, hello=pb.Hello(instance_id=bytes(16), aggregator_instance_id=bytes(16), heartbeat_ms=1)),
    pb.Frame(welcome=pb.Welcome(instance_id=bytes(16), heartbeat_ms=60_000, run_id=bytes(16))),
)
START = pb.UploadStart(
    instance_id=bytes(16), message=signed_to_proto(masked_input(1, VECTOR).message), total_bytes=len(VECTOR)
)


class OneFrame:
    """A control stream on which one frame comes, and nothing is said."""

    def __init__(self, frame: pb.Frame) -> None:
        self._frames = [frame]

    async def read(self) -> pb.Frame | None:
        return self._frames.pop() if self._frames else None

    async def write(self, frame: pb.Frame) -> None:
        pass


def _read_control(request: pb.ControlRequest | pb.ControlResponse) -> None:
    """A frame as the first of a stream, where it may be one, else as a later one."""
    content = content_of(request.frame)
    if content in ("hello", "welcome"):
        Pace.agreed(1000, getattr(request.frame, content).heartbeat_ms)
        return
    link = Link(1 << 20)
    link.push(note(0, 1).message)

    async def accept(delivery: pb.Delivery) -> None:
        signed_from_proto(delivery.message)

    asyncio.run(pump(OneFrame(request.frame), link, PACE, accept))


def _read_upload(request: pb.UploadRequest) -> None:
    desk = UploadDesk()
    desk.expected_bytes = len(VECTOR)
    if request.WhichOneof("step") == "start":
        desk.begin(signed_from_proto(request.start.message), request.start.total_bytes)
    else:
        Assembly(len(VECTOR), sha256(VECTOR).digest()).add(request.chunk.offset, request.chunk.data)


def _read_download(response: pb.DownloadResponse) -> None:
    Assembly(len(VECTOR), sha256(VECTOR).digest()).add(response.offset, response.data)


READERS: dict[str, tuple[list[Message], Callable[[Any], None]]] = {
    "ControlRequest": ([pb.ControlRequest(frame=frame) for frame in FRAMES], _read_control),
    "ControlResponse": ([pb.ControlResponse(frame=frame) for frame in FRAMES], _read_control),
    "UploadRequest": (
        [pb.UploadRequest(start=START), pb.UploadRequest(chunk=pb.UploadChunk(offset=0, data=VECTOR))],
        _read_upload,
    ),
    "DownloadResponse": ([pb.DownloadResponse(total_bytes=64, data=VECTOR[:32])], _read_download),
}


def _verdict(kind: type[Message], read: Callable[[Any], None], data: bytes) -> str:
    """What becomes of the bytes; whatever is raised but the transport's own errors is raised here, too."""
    try:
        frame = kind.FromString(data)
    except DecodeError:
        return "not parsed"  # gRPC parses, and hands up nothing
    try:
        refuse_unknown_fields(frame)
        read(frame)
    except (WireError, Refused):
        return "refused"
    return "read"


def _verdicts(valid: Message, read: Callable[[Any], None], count: int) -> Counter[str]:
    kind, verdicts = type(valid), Counter[str]()
    mutator = Mutator(
        valid.SerializeToString(), kind.DESCRIPTOR, lambda data: _verdict(kind, read, data) == "read", seed=0
    )
    for data in mutator.messages(count):
        try:
            verdicts[_verdict(kind, read, data)] += 1
        except BaseException as error:
            error.add_note(data.hex())
            raise
    return verdicts


@pytest.mark.parametrize("name", READERS)
def test_a_malformed_frame_is_refused_with_an_error_of_the_transport(name: str) -> None:
    frames, read = READERS[name]
    for frame in frames:
        verdicts = _verdicts(frame, read, COUNT // len(frames))
        assert set(verdicts) == {"not parsed", "refused", "read"}


UNKNOWN = tagged(15, VARINT, b"\x01")


@pytest.mark.parametrize(
    "data",
    [
        tagged(1, SIZED, FRAMES[1].SerializeToString()) + UNKNOWN,
        tagged(1, SIZED, FRAMES[1].SerializeToString() + UNKNOWN),
        tagged(1, SIZED, tagged(4, SIZED, DELIVERY.SerializeToString() + UNKNOWN)),
    ],
    ids=["around the frame", "in the frame", "in the delivery"],
)
def test_an_unknown_field_at_any_depth_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="unknown field"):
        refuse_unknown_fields(pb.ControlRequest.FromString(data))
