"""The aggregator's memory of each source between its streams."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from securefda.protocol.messages import Body, Signed
from securefda.transport.delivery import INSTANCE_BYTES, Link
from securefda.transport.event_queue import EventQueue, Left
from securefda.transport.limits import TransportSettings
from securefda.transport.observer import Direction, MessageObserver
from securefda.transport.vector_transfer import AttachmentStore, UploadDesk
from securefda.v1 import federation_pb2 as pb


@dataclass(slots=True)
class Traffic:
    """The serialised bytes of one source, with gRPC's prefix of each message: ``up`` from the source, ``down``
    to it.
    """

    up: int = 0
    down: int = 0


class Site:
    """One source of the roster: its present process, link, uploads and traffic."""

    def __init__(self, index: int, new_link: Callable[[int], Link]) -> None:
        self.index = index
        self.instance_id = b""
        self.is_connected = False
        self.may_return = False
        self.desk = UploadDesk()
        self.traffic = Traffic()
        self.stop = asyncio.Event()
        self._new_link = new_link
        self.link = new_link(index)
        self._timer: asyncio.TimerHandle | None = None

    def restarted(self, instance_id: bytes) -> None:
        """Start over with a new process at the source: discard everything meant for the old one."""
        self.instance_id = instance_id
        self.link.discard()
        self.link = self._new_link(self.index)
        self.desk.forget()

    def new_stream(self) -> asyncio.Event:
        """Replace the old stream, which ends, by a new one. Returns the event that ends the new one."""
        self.stop.set()
        self.stop = asyncio.Event()
        self.cancel_timer()
        self.is_connected = True
        return self.stop

    def hang_up(self) -> None:
        """End the stream from this side and discard what waits for the source. The stream reports nothing more."""
        self.cancel_timer()
        self.stop.set()
        self.stop = asyncio.Event()
        self.link.discard()

    def lose_in(self, delay_s: float, lost: Callable[[], None]) -> None:
        """Call ``lost`` after a delay unless a new stream comes first."""
        self.cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(delay_s, lost)

    def cancel_timer(self) -> None:
        """Cancel the call that :meth:`lose_in` planned."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class SiteTable:
    """All sources, and the state that their calls share."""

    def __init__(
        self,
        settings: TransportSettings,
        site_of_pin: Callable[[bytes], int | None],
        observer: MessageObserver,
        run_id: bytes,
    ) -> None:
        self.run_id = run_id
        self.settings = settings
        self.site_of_pin = site_of_pin
        self.instance_id = os.urandom(INSTANCE_BYTES)
        self.events = EventQueue()
        self.attachments = AttachmentStore()
        self.sites: dict[int, Site] = {}
        self._observer = observer

    def site(self, index: int) -> Site:
        """Return the entry of a source; made on first use."""
        if index not in self.sites:
            self.sites[index] = Site(index, self._new_link)
        return self.sites[index]

    def _new_link(self, index: int) -> Link:
        return Link(self.settings.max_message_bytes, lambda digests: self.attachments.release(digests, index))

    def lose(self, site: Site, why: str, *, may_return: bool = False) -> None:
        """Record that a source is gone, or that it is away and may return."""
        site.is_connected, site.may_return = False, may_return
        self.events.put(Left(site.index, why, may_return))

    def welcome(self, site: Site) -> pb.Frame:
        """Return the first frame to a source."""
        frame = site.link.heartbeat()
        frame.welcome.instance_id = self.instance_id
        frame.welcome.heartbeat_ms = self.settings.heartbeat_ms
        frame.welcome.run_id = self.run_id
        return frame

    def note(
        self, direction: Direction, peer: int, message: Signed[Body], wire_bytes: int, *, more: bool = False
    ) -> None:
        """Show a message to the observer. If the observer raises, the aggregator's ``receive`` raises the same from
        then on.
        """
        try:
            self._observer(direction, peer, message, wire_bytes, more=more)
        except BaseException as error:
            self.events.fail(error)
            raise
