"""Offers the aggregator TLS 1.2 at most and calls it all the same. Run as a program, it prints what came of it.

Usage: ``tls12_peer.py (securefda|grpc)``: which of the two this process imports first. gRPC reads its settings when it
is imported, so the order decides whether the handshake or only the call is refused.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import ssl
import sys
import tempfile
import threading
from pathlib import Path

FIRST = {"securefda": "securefda.transport", "grpc": "grpc"}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":path", b"/securefda.v1.FederationService/Download"),
    (b":authority", b"target"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _request() -> bytes:
    """HTTP/2: preface, empty SETTINGS, HEADERS as plain literals, and an empty gRPC message that ends the stream."""
    block = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in HEADERS)
    return PREFACE + _frame(4, 0, 0, b"") + _frame(1, 4, 1, block) + _frame(0, 1, 1, bytes(5))


def _call(address: str, own: object, asked_to_stop: threading.Event) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=own.ca.decode())
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        pair[0].write_bytes(own.certificate)
        pair[1].write_bytes(own.private_key)
        context.load_cert_chain(*pair)
    host, port = address.rsplit(":", 1)
    try:
        with (
            socket.create_connection((host, int(port)), 10) as raw,
            context.wrap_socket(raw, server_hostname="target") as wrapped,
        ):
            wrapped.sendall(_request())
            while wrapped.recv(65536):
                if asked_to_stop.is_set():
                    break
            return str(wrapped.version())
    except (ssl.SSLError, ConnectionError):
        return "refused"


async def _main() -> dict[str, str | None]:
    sites, stop = importlib.import_module("transport_kit").Sites(), threading.Event()
    async with sites.listening() as (server, address):
        handshake = asyncio.create_task(asyncio.to_thread(_call, address, sites.sources[1], stop))
        event = asyncio.create_task(server.receive())
        await asyncio.wait({handshake, event}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        stop.set()
        check = event.result().check if event.done() else None
        event.cancel()
        await server.stop(0.0)
        return {"handshake": await handshake, "misbehaviour": check}


if __name__ == "__main__":
    importlib.import_module(FIRST[sys.argv[1]])
    print(json.dumps(asyncio.run(_main())))
