"""What passed between sites, put together from the bytes that were seen, and what their audit logs say of it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from google.protobuf.message import Message
from wire_tap import Seen, read_tap

from securefda.audit.reading import open_log
from securefda.protocol.messages import Body, Signed
from securefda.transport.vector_transfer import digests_beside
from securefda.transport.wire import refuse_unknown_fields, signed_from_proto
from securefda.v1 import federation_pb2 as pb

Line = tuple[str, str, str, str, int]
"""Of a message, as a site has it: sent or received, the other site, type, digest in hex, bytes."""

KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (
        pb.ControlRequest,
        pb.ControlResponse,
        pb.DownloadRequest,
        pb.DownloadResponse,
        pb.UploadRequest,
        pb.UploadResponse,
    )
}
IDLE = {"hello", "welcome", "heartbeat", "leave"}


class Proxy:
    """Forwards TCP connections to a port of this machine, counts their bytes, and can cut them.

    Attributes:
        up, down: bytes from and to those who dial.
        ports: local ports of its connections to the other side.
        cuts: bytes from those who dial, rising, after which all connections are cut.
    """

    def __init__(self, port: int, upstream: int) -> None:
        self._port, self._upstream = port, upstream
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: list[asyncio.StreamWriter] = []
        self.up = self.down = 0
        self.ports: list[int] = []
        self.cuts: list[int] = []

    def __enter__(self) -> Proxy:
        self._thread.start()
        listening = asyncio.start_server(self._serve, "127.0.0.1", self._port)
        asyncio.run_coroutine_threadsafe(listening, self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.transport.abort()
            return
        self.ports.append(far_writer.get_extra_info("sockname")[1])
        self._writers += [writer, far_writer]
        both = self._forward(reader, far_writer, self._count_up), self._forward(far_reader, writer, self._count_down)
        await asyncio.gather(*both)

    async def _forward(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, count: Callable[[int], None]
    ) -> None:
        try:
            while data := await source.read(1 << 16):
                count(len(data))
                if self.cuts and self.up > self.cuts[0]:
                    del self.cuts[0]
                    for writer in self._writers:
                        writer.transport.abort()
                    self._writers.clear()
                    return
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    def _count_up(self, size: int) -> None:
        self.up += size

    def _count_down(self, size: int) -> None:
        self.down += size


@dataclass
class Wire:
    """What one source's connections carried, from its side: every byte belongs to something that is named here.

    Attributes:
        lines: every application message once, however often the transport sent it again.
        vectors: vectors that travelled beside them, by digest.
        again: how often the transport said a message once more.
    """

    lines: list[Line] = field(default_factory=list)
    vectors: dict[bytes, bytearray] = field(default_factory=dict)
    again: int = 0
    _named: list[tuple[Line, tuple[bytes, ...], tuple[int, ...]]] = field(default_factory=list)
    _sent: dict[tuple[str, int], bytes] = field(default_factory=dict)
    _asked: bytes = b""

    @classmethod
    def of(cls, seen: Iterable[Seen], target: str) -> Wire:
        """Take apart all that a source's tap saw, in its order."""
        wire = cls()
        for one in seen:
            if one.way in ("out", "in"):
                wire._add("sent" if one.way == "out" else "received", target, _whole(one))
        wire._match_vectors()
        return wire

    def _add(self, way: str, other: str, proto: Message) -> None:
        match proto:
            case pb.ControlRequest() | pb.ControlResponse():
                self._frame(way, other, proto.frame)
            case pb.UploadRequest(start=start) if proto.WhichOneof("step") == "start":
                (self._asked,) = self._name(way, other, signed_from_proto(start.message), (start.total_bytes,))
            case pb.UploadRequest(chunk=piece):
                self._piece(piece.offset, piece.data)
            case pb.DownloadRequest():
                self._asked = proto.digest
            case pb.DownloadResponse():
                self._piece(proto.offset, proto.data)
            case _:
                assert isinstance(proto, pb.UploadResponse)  # two numbers

    def _frame(self, way: str, other: str, frame: pb.Frame) -> None:
        if frame.WhichOneof("content") != "delivery":
            assert frame.WhichOneof("content") in IDLE
            return
        place, data = (way, frame.delivery.sequence), frame.delivery.SerializeToString(deterministic=True)
        if place in self._sent:
            assert self._sent[place] == data
            self.again += 1
            return
        self._sent[place] = data
        self._name(way, other, signed_from_proto(frame.delivery.message), tuple(frame.delivery.attachment_bytes))

    def _name(self, way: str, other: str, message: Signed[Body], lengths: tuple[int, ...]) -> tuple[bytes, ...]:
        digests = digests_beside(message.body, len(lengths))
        size = len(message.signed_bytes) + len(message.signature) + sum(lengths)
        named = ((way, other, message.type_name, message.digest().hex(), size), digests, lengths)
        if way == "sent" and digests and named in self._named:  # an upload that is taken up again
            self.again += 1
        else:
            self._named.append(named)
        return digests

    def _piece(self, offset: int, data: bytes) -> None:
        vector = self.vectors.setdefault(self._asked, bytearray())
        assert data
        assert offset <= len(vector), "a gap"
        assert data.startswith(bytes(vector[offset : offset + len(data)])), "other bytes than before"
        vector[offset : offset + len(data)] = data

    def _match_vectors(self) -> None:
        """Every vector is whole, one that a message names, and as long as the messages say."""
        for digest, vector in self.vectors.items():
            assert sha256(vector).digest() == digest, "pieces that are no whole vector"
        for line, digests, lengths in self._named:
            assert tuple(len(self.vectors[digest]) for digest in digests) == lengths, f"the vectors of {line}"
            self.lines.append(line)
        assert set(self.vectors) == {digest for _, digests, _ in self._named for digest in digests}


def _whole(one: Seen) -> Message:
    """The parsed payload, with no byte that is not one of its fields'."""
    proto = KINDS[one.name].FromString(one.data)
    refuse_unknown_fields(proto)
    assert proto.SerializeToString(deterministic=True) == one.data, (
        "there is more than fields, or they are written oddly"
    )
    return proto


def lines_of_log(folder: Path, other: str | None = None) -> list[Line]:
    """A record of each message that a site sent or received, with one other site or with any."""
    entries = [record.entry for record in open_log(folder).records()]
    return [
        (entry.direction, entry.peer, entry.type, entry.digest, entry.bytes)
        for entry in entries
        if entry.direction in ("sent", "received") and other in (None, entry.peer)
    ]


def seen_from_the_other(lines: Iterable[Line], own: str) -> list[Line]:
    """The same messages as the site at the other end has them."""
    turned = {"sent": "received", "received": "sent"}
    return [(turned[way], own, kind, digest, size) for way, _, kind, digest, size in lines]


def differences(wire: Iterable[Line], log: Iterable[Line]) -> list[str]:
    """Messages without a record, and records without a message; each counts."""
    on_wire, in_log = Counter(wire), Counter(log)
    unlogged = [f"no record: {line}" for line in (on_wire - in_log).elements()]
    return unlogged + [f"no message: {line}" for line in (in_log - on_wire).elements()]


def payloads(path: Path, way: str) -> Counter[tuple[str, bytes]]:
    """What gRPC carried one way, as types and bytes."""
    return Counter((one.name, one.data) for one in read_tap(path) if one.way == way)
