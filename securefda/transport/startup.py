"""From a startup kit and the [transport] settings to the arguments of the two ends of the transport."""

from __future__ import annotations

from securefda.site.config import TransportSection
from securefda.site.kit import Kit
from securefda.transport.dialer import Endpoint
from securefda.transport.limits import TransportSettings
from securefda.transport.tls import Credentials


def transport_settings(section: TransportSection) -> TransportSettings:
    """Sizes and times of the transport.

    Raises:
        ConfigError: a value is out of its range.
    """
    return TransportSettings(
        chunk_bytes=section.chunk_bytes,
        max_message_bytes=section.max_message_bytes,
        heartbeat_s=section.heartbeat_s,
        reconnect_deadline_s=section.reconnect_deadline_s,
    )


def credentials_of(kit: Kit) -> Credentials:
    """The kit's certificates and TLS key."""
    return Credentials(kit.ca.pem, kit.certificate_pem, kit.tls_key_pem.reveal())


def endpoint_of(kit: Kit) -> Endpoint:
    """Where the kit says that the aggregator is, and the identity that the roster gives it."""
    target = kit.roster.target
    return Endpoint(str(kit.endpoints.aggregator), kit.endpoints.server_name, target.tls_pin, target.index)


def source_of_pin(kit: Kit, pin: bytes) -> int | None:
    """Roster index of the source with this TLS pin; None for an unknown one, and for the target itself."""
    try:
        entry = kit.roster.by_tls_pin(pin)
    except KeyError:
        return None
    return entry.index if entry.role == "source" else None
