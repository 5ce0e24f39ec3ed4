"""A site's process with a tap: everything that gRPC sends and receives for it, as bytes, is written to a file.

Run as ``python -m wire_tap ARGUMENTS`` in the place of ``python -m securefda.cli ARGUMENTS``. The tap lies where gRPC
turns messages into bytes and back, below all code of this project and above TLS, and takes any method of any service.
It also writes down where the process connects to, and from where it is called. ``SECUREFDA_TAP`` names the file.

``SECUREFDA_TAP_SMUGGLES=1`` makes the site a liar for a control: it sends its first message once more, past its log.
"""

from __future__ import annotations

import functools
import os
import struct
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEAD = struct.Struct(">B I I")
WAYS = ("out", "in", "connects", "listens", "is called by")
CALLS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


@dataclass(frozen=True, slots=True)
class Seen:
    """One entry: which way, the type of message or the address, and the bytes."""

    way: str
    name: str
    data: bytes = b""


def read_tap(path: Path) -> Iterator[Seen]:
    """What a tap wrote, in its order."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        way, name_length, length = HEAD.unpack_from(data, at)
        start = at + HEAD.size + name_length
        yield Seen(WAYS[way], data[at + HEAD.size : start].decode(), data[start : start + length])
        at = start + length


class Tap:
    """Writes down what passes."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()

    def note(self, way: str, name: str, data: bytes = b"") -> None:
        entry = HEAD.pack(WAYS.index(way), len(name.encode()), len(data)) + name.encode() + data
        with self._lock:
            while entry:  # a write may stop short
                entry = entry[os.write(self._file, entry) :]

    def serialiser(self, real: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
        def serialise(message: Any) -> bytes:
            data = message if real is None else real(message)
            self.note("out", type(message).__name__, data)
            return data

        return serialise

    def reader(self, real: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
        def read(data: bytes) -> Any:
            message = data if real is None else real(data)
            self.note("in", type(message).__name__, data)
            return message

        return read

    def behaviour(self, real: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        @functools.wraps(real)
        async def behave(request: Any, context: Any) -> Any:
            self.note("is called by", context.peer())
            return await real(request, context)

        return behave

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """What Python's own sockets do."""
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            self.note("connects", repr(arguments[1]))
        elif event == "socket.bind":
            self.note("listens", repr(arguments[1]))


def install(tap: Tap) -> None:
    """Put the tap between gRPC and its users, before anything imports it."""
    import grpc.aio  # nothing is imported before the tap is in place
    from grpc.aio import _channel

    sys.addaudithook(tap.audit)
    kind = _channel.Channel
    real_init = kind.__init__

    def init(self: Any, target: str, *args: Any, **options: Any) -> None:
        tap.note("connects", target)
        real_init(self, target, *args, **options)

    kind.__init__ = init
    for name in CALLS:
        _tap_caller(tap, kind, name)
        _tap_handler(tap, grpc, f"{name}_rpc_method_handler")


def _tap_caller(tap: Tap, kind: Any, name: str) -> None:
    real = getattr(kind, name)

    def call(
        self: Any, method: str, request_serializer: Any = None, response_deserializer: Any = None, **rest: Any
    ) -> Any:
        return real(self, method, tap.serialiser(request_serializer), tap.reader(response_deserializer), **rest)

    setattr(kind, name, call)


def _tap_handler(tap: Tap, module: Any, name: str) -> None:
    real = getattr(module, name)

    def handler(behaviour: Any, request_deserializer: Any = None, response_serializer: Any = None) -> Any:
        return real(tap.behaviour(behaviour), tap.reader(request_deserializer), tap.serialiser(response_serializer))

    setattr(module, name, handler)


def smuggle() -> None:
    """Have the source's transport send its first message once more, without a word to the log."""
    from securefda.transport.client import SourceChannel

    real = SourceChannel.send

    async def send(self: Any, parcel: Any) -> None:
        await real(self, parcel)
        SourceChannel.send = real  # type: ignore[method-assign]
        self._link.push(parcel.message)

    SourceChannel.send = send  # type: ignore[method-assign]


def main() -> int:
    install(Tap(Path(os.environ["SECUREFDA_TAP"])))
    if os.environ.get("SECUREFDA_TAP_SMUGGLES"):
        smuggle()
    from securefda.cli import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
