"""The aggregator's end of the transport: the only listener of a federation."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import grpc

from securefda.errors import ConfigError, ConnectionFailed
from securefda.secagg.messages import Parcel
from securefda.transport.attachments import digests_beside
from securefda.transport.events import Event
from securefda.transport.limits import TransportSettings, server_options
from securefda.transport.observer import Direction, MessageObserver, ignore, wire_size
from securefda.transport.servicer import FederationServicer
from securefda.transport.site import SiteTable, Traffic
from securefda.transport.tls import Credentials, server_credentials, split_address
from securefda.v1.federation_pb2_grpc import add_FederationServiceServicer_to_server


class AggregatorServer:
    """Listens for the sources of a roster; everything that happens comes out of :meth:`receive`, in order.

    A source is known by the public key of its TLS certificate, and may send messages of its own roster index only.
    A connection that breaks and comes back within the same process of the source loses and repeats no message; a new
    process of the source begins anew (``Joined`` with ``resumed`` false). Messages for the old one are discarded, and
    whatever is sent before :meth:`receive` has told of the new one is for the old one.

    Args:
        listen: ``host:port``; port 0 picks a free one.
        credentials: the aggregator's certificate and key, and the federation's CA.
        site_of_pin: roster index of the source with this TLS pin (32 bytes), None where there is none.
        run_id: the run that it is in, 16 bytes; sources hear it first.
        settings: sizes and times.
        observer: sees every message once, before it leaves or is handed up.
        random_bytes: source of randomness for the instance id.
    """

    def __init__(
        self,
        listen: str,
        credentials: Credentials,
        site_of_pin: Callable[[bytes], int | None],
        *,
        run_id: bytes,
        settings: TransportSettings | None = None,
        observer: MessageObserver = ignore,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._listen = listen
        self._credentials = credentials
        self._settings = settings or TransportSettings()
        self._table = SiteTable(self._settings, site_of_pin, observer, random_bytes, run_id)
        self._server: grpc.aio.Server | None = None

    async def start(self) -> str:
        """Begin to listen; return ``host:port`` with the port that was bound.

        Raises:
            ConfigError: the address is malformed, not of this machine, or taken.
        """
        host, _ = split_address("transport.listen", self._listen)
        server = grpc.aio.server(options=server_options(self._settings), compression=grpc.Compression.NoCompression)
        add_FederationServiceServicer_to_server(FederationServicer(self._table), server)
        try:
            port = server.add_secure_port(self._listen, server_credentials(self._credentials))
        except RuntimeError as error:  # all that gRPC says of an address it cannot bind
            raise ConfigError(
                "transport.listen",
                f"cannot listen on {self._listen}: the port is taken or the address is not of this machine",
                hint="stop what listens there, or choose another port",
            ) from error
        await server.start()
        self._server = server
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def receive(self) -> Event:
        """Wait for the next event. One caller at a time; safe to cancel.

        Raises:
            ConnectionFailed: the server was stopped.
            BaseException: what the observer raised, if it did.
        """
        return await self._table.events.get()

    async def send(self, sends: Sequence[tuple[int, Parcel]]) -> None:
        """Queue messages for sources and offer their vectors for download.

        All of them are shown to the observer before the first leaves, and none where one of them cannot leave. A
        message leaves at once where its source is connected, else when it is back. A vector is held once, however many
        messages name it, until every source it was sent to has taken its message; it must not be changed meanwhile.

        Messages for a process that a new one has replaced are left out, and shown to nobody. So are those for a source
        that takes nothing: when more than ``settings.max_untaken_bytes`` wait for it, it is hung up on and has left.

        Args:
            sends: roster index of the source, and the message with the vectors that its body names; a header may go
                with the first one alone.

        Raises:
            ConnectionFailed: a source has not joined.
            ConfigError: a message is larger than ``transport.max-message-bytes``.
            ValueError: the vectors are not the ones that the body names.
        """
        sends = self._deliverable(sends)
        digests = [digests_beside(parcel.message.body, len(parcel.vectors)) for _, parcel in sends]
        lengths = [tuple(memoryview(vector).nbytes for vector in parcel.vectors) for _, parcel in sends]
        for at, (site, parcel) in enumerate(sends):
            self._table.sites[site].link.require_room(parcel.message, lengths[at])
        offered: list[tuple[bytes, int]] = []
        try:
            for at, (site, parcel) in enumerate(sends):
                for digest, vector in zip(digests[at], parcel.vectors, strict=True):
                    self._table.attachments.publish(digest, vector, site)
                    offered.append((digest, site))
            for at, (site, parcel) in enumerate(sends):
                size = wire_size(parcel.message, sum(lengths[at]))
                self._table.note(Direction.SENT, site, parcel.message, size, more=at + 1 < len(sends))
        except BaseException:
            for digest, site in offered:
                self._table.attachments.release((digest,), site)
            raise
        for at, (site, parcel) in enumerate(sends):
            self._table.sites[site].link.push(parcel.message, lengths[at])

    def _deliverable(self, sends: Sequence[tuple[int, Parcel]]) -> list[tuple[int, Parcel]]:
        """Those of them that are for the present process of a source that takes its messages."""
        unreachable: set[int] = set()
        for index in {index for index, _ in sends}:
            site, limit = self._table.sites.get(index), self._settings.max_untaken_bytes
            if site is None or not site.instance_id:
                raise ConnectionFailed(f"source {index} has not joined")
            if self._table.events.new_process_waits(index):
                unreachable.add(index)
            elif site.link.untaken_bytes > limit:
                site.hang_up()
                self._table.lose(site, f"it takes no messages: more than {limit} bytes wait for it")
                unreachable.add(index)
        return [(index, parcel) for index, parcel in sends if index not in unreachable]

    def drop_attachments(self) -> None:
        """Withdraw every vector, and the messages with vectors that a source has not taken yet."""
        for entry in self._table.sites.values():
            entry.link.discard(only_with_vectors=True)
        self._table.attachments.clear()

    def expect_upload(self, site: int, length: int) -> None:
        """Let a source upload vectors of exactly ``length`` bytes from now on; 0 allows none (as at the start)."""
        if length < 0:
            raise ValueError("length must not be negative")
        self._table.site(site).desk.expected_bytes = length

    def connected(self) -> set[int]:
        """Roster indices of the sources that have joined and not left."""
        return {site.index for site in self._table.sites.values() if site.is_connected}

    def traffic(self) -> Mapping[int, Traffic]:
        """Bytes of every source so far, both ways; a snapshot."""
        return {site.index: replace(site.traffic) for site in self._table.sites.values()}

    async def stop(self, grace: float = 5.0) -> None:
        """Wait at most ``grace`` seconds until connected sources have taken their messages, then hang up."""
        waiting = [site.link.settled() for site in self._table.sites.values() if site.is_connected]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*waiting)
        self._table.events.fail(ConnectionFailed("the aggregator's server was stopped"))
        for site in self._table.sites.values():
            site.cancel_timer()
            site.stop.set()
        if self._server is not None:
            await self._server.stop(1.0)
            self._server = None
        for site in self._table.sites.values():
            site.cancel_timer()
