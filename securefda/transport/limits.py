"""Every limit of the transport, in one place, and gRPC's options that follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from secrets import SystemRandom

from securefda.errors import ConfigError

GRPC_PREFIX_BYTES = 5
"""Bytes that gRPC puts before every message: a flag and a length."""

SILENT_HEARTBEATS = 3
"""A connection on which the peer says nothing for so many heartbeats is broken; a source has as many to come back."""

MAX_HEARTBEAT_S = 60.0
MIN_CHUNK_BYTES = 1024
FRAME_OVERHEAD_BYTES = 1024
UNREAD_MESSAGES = 16
"""Messages of one peer that may wait to be read; then its stream is not read on."""

HANDSHAKE_S = 10.0
"""A connection that has not finished its TLS handshake and greeting by then is closed."""

_SPARE_CONNECTIONS, _SPARE_OF_AN_ADDRESS = 512, 32
_CONNECTIONS_OF_A_SOURCE = 8
"""The one it uses, and broken ones that nobody has closed yet; half of that where all sources share an address."""

UNTAKEN_MESSAGES = 8
"""A source for which more bytes wait than so many of the largest messages have is gone. A round has about as many
for one source, and nearly all of them come only after its answer to the one before."""

COMPLETED_UPLOADS = 16
"""Finished uploads of one site that are remembered, so that none is handed up twice."""

_UNIFORM = SystemRandom().uniform
_IDENTITY_ONLY = 1  # bit 0 of gRPC's set of compression algorithms: no compression
_NEVER_MS = 2**31 - 1
_CONCURRENT_STREAMS = 8  # control, one upload, one download, and their successors after a broken connection


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """The sizes and times of the transport.

    Attributes:
        chunk_bytes: bytes of a vector per frame.
        max_message_bytes: largest frame that is sent or read; also bounds a message without vectors.
        heartbeat_s: seconds between signs of life; a connection silent for three of them is broken.
        reconnect_deadline_s: seconds for which a source tries to reach the aggregator before it gives up.

    Raises:
        ConfigError: a value is out of its range; the key is the one in the configuration file.
    """

    chunk_bytes: int = 1 << 20
    max_message_bytes: int = 4 << 20
    heartbeat_s: float = 5.0
    reconnect_deadline_s: float = 60.0

    def __post_init__(self) -> None:
        if self.chunk_bytes < MIN_CHUNK_BYTES:
            raise ConfigError("transport.chunk-bytes", f"{self.chunk_bytes} is below {MIN_CHUNK_BYTES}")
        if self.max_message_bytes < self.chunk_bytes + FRAME_OVERHEAD_BYTES:
            raise ConfigError(
                "transport.max-message-bytes",
                f"{self.max_message_bytes} does not hold a chunk of {self.chunk_bytes} bytes and its frame",
                hint=f"set it to at least chunk-bytes + {FRAME_OVERHEAD_BYTES}",
            )
        if self.max_message_bytes >= 1 << 31:
            raise ConfigError("transport.max-message-bytes", "must be below 2 GiB")
        if not 0.001 <= self.heartbeat_s <= MAX_HEARTBEAT_S:
            raise ConfigError("transport.heartbeat-s", f"must lie between 0.001 and {MAX_HEARTBEAT_S:g}")
        if not 0 <= self.reconnect_deadline_s < float("inf"):
            raise ConfigError("transport.reconnect-deadline-s", "must be a number of seconds, not below 0")

    @property
    def heartbeat_ms(self) -> int:
        """The heartbeat as it is announced to the peer, in milliseconds."""
        return round(self.heartbeat_s * 1000)

    @property
    def max_untaken_bytes(self) -> int:
        """The bytes of waiting messages above which a source is treated as gone."""
        return UNTAKEN_MESSAGES * self.max_message_bytes

    @property
    def silence_s(self) -> float:
        """Seconds of silence after which a peer is lost."""
        return SILENT_HEARTBEATS * self.heartbeat_s


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections the aggregator's port holds at once; what comes beyond is closed unheard.

    Attributes:
        total: of all peers.
        per_address: of one IPv4 address, or of one IPv6 network of 64 bits.
    """

    total: int
    per_address: int

    @classmethod
    def of(cls, sources: int, descriptors: int) -> ConnectionLimits:
        """Return the limits for so many sources; half of the process's ``descriptors`` stay for its files."""
        total = min(_SPARE_CONNECTIONS + _CONNECTIONS_OF_A_SOURCE * sources, descriptors // 2)
        return cls(total, min(_SPARE_OF_AN_ADDRESS + _CONNECTIONS_OF_A_SOURCE * sources // 2, total))


def server_options(settings: TransportSettings, connections: int) -> list[tuple[str, int]]:
    """Return gRPC options of the aggregator: explicit sizes and counts, no compression, no shared port."""
    return [
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_S * 1000)),
        *_common_options(settings),
        ("grpc.so_reuseport", 0),  # else a second aggregator would silently share the port
        ("grpc.max_concurrent_streams", _CONCURRENT_STREAMS),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]


def channel_options(settings: TransportSettings, server_name: str) -> list[tuple[str, int | str]]:
    """Return gRPC options of a source: as :func:`server_options`, and the name that the certificate must carry."""
    return [
        *_common_options(settings),
        ("grpc.ssl_target_name_override", server_name),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),  # a new channel means a new connection, never a cached one
    ]


def _common_options(settings: TransportSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
        # gRPC's own pings wait behind a vector on a slow line, as heartbeats do, and it would count that as a silence
        ("grpc.keepalive_time_ms", _NEVER_MS),
        ("grpc.http2.ping_timeout_ms", _NEVER_MS),
    ]


def backoff_s() -> Iterator[float]:
    """Yield waiting times in seconds between attempts to connect: doubling from 0.1 to 5, each times 0.5 to 1.

    The factor is random so that sources that lost the same aggregator do not come back all at once.
    """
    delay = 0.1
    while True:
        yield delay * _UNIFORM(0.5, 1.0)
        delay = min(delay * 2, 5.0)
