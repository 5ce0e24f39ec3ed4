"""TLS between two sites agrees on X25519MLKEM768, as the bytes of the handshake say that a relay passes on."""

from __future__ import annotations

import struct

from transport_kit import CALM, Proxy, Sites, joined, note, number_of, scenario, soon

X25519MLKEM768 = 0x11EC
"""IANA's number of the group: draft-ietf-tls-ecdhe-mlkem."""

HANDSHAKE, CLIENT_HELLO, SERVER_HELLO, KEY_SHARE = 22, 1, 2, 51


class Recorder(Proxy):
    """Keeps what each direction of each connection said."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.said: list[bytearray] = []

    async def _forward(self, source, sink):
        said = bytearray()
        self.said.append(said)
        read = source.read

        async def recorded(length):
            data = await read(length)
            said.extend(data)
            return data

        source.read = recorded
        await super()._forward(source, sink)

    def handshakes(self) -> list[tuple[bytes, bytes]]:
        """The hellos of both sides of each connection, the oldest first."""
        pairs = zip(self.said[::2], self.said[1::2], strict=True)
        return [(hello(bytes(up), CLIENT_HELLO), hello(bytes(down), SERVER_HELLO)) for up, down in pairs]


def hello(stream: bytes, kind: int) -> bytes:
    """The body of the hello that a stream of TLS records begins with; it may go on in a second record."""
    handshake, place = b"", 0
    while len(handshake) < 4 or len(handshake) < 4 + int.from_bytes(handshake[1:4], "big"):
        record_type, _, length = struct.unpack_from(">BHH", stream, place)
        assert record_type == HANDSHAKE
        handshake += stream[place + 5 : place + 5 + length]
        place += 5 + length
    assert handshake[0] == kind
    return handshake[4 : 4 + int.from_bytes(handshake[1:4], "big")]


def key_share(body: bytes, kind: int) -> bytes:
    """The extension of a hello that holds its key shares (RFC 8446, section 4.2.8)."""
    place = 34
    place += 1 + body[place]
    if kind == CLIENT_HELLO:
        place += 2 + int.from_bytes(body[place : place + 2], "big")
        place += 1 + body[place]
    else:
        place += 3
    place += 2
    while place < len(body):
        number, length = struct.unpack_from(">HH", body, place)
        if number == KEY_SHARE:
            return body[place + 4 : place + 4 + length]
        place += 4 + length
    raise AssertionError("no key share")


@scenario
async def test_a_source_and_the_aggregator_agree_on_x25519_with_ml_kem() -> None:
    sites = Sites()
    async with sites.listening(CALM) as (server, upstream):
        relay = Recorder(upstream)
        async with relay.running() as address, sites.connected(1, address, CALM) as channel:
            await joined(server, 1)
            await server.send([(1, note(0, 7))])
            assert number_of(await soon(channel.receive())) == 7
        # The last one carries messages. The one before it only fetched the certificate, with Python's own TLS.
        offered, chosen = relay.handshakes()[-1]
        assert key_share(offered, CLIENT_HELLO)[2:4] == struct.pack(">H", X25519MLKEM768)
        group, length = struct.unpack_from(">HH", key_share(chosen, SERVER_HELLO))
        assert (group, length) == (X25519MLKEM768, 1088 + 32)
