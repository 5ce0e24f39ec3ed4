"""What the aggregator's transport reports, in the order in which it happened."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass

from securefda.secagg.messages import Parcel
from securefda.transport.limits import UNREAD_MESSAGES


@dataclass(frozen=True, slots=True)
class Joined:
    """A source is connected.

    ``resumed`` says that it is the same process as before, back after a ``Left``, and nothing was lost on the way;
    otherwise it has just started and knows nothing of the run.
    """

    site: int
    instance_id: bytes
    resumed: bool


@dataclass(frozen=True, slots=True)
class Left:
    """A source hung up, or has been silent or away for three heartbeats. ``why`` is one line for the operator."""

    site: int
    why: str


@dataclass(frozen=True, slots=True)
class Received:
    """A message of a source; its vectors are complete and have the digests that the message names."""

    site: int
    parcel: Parcel


@dataclass(frozen=True, slots=True)
class Misbehaved:
    """A connection broke a rule of the transport and was refused.

    ``site`` is the roster index that its certificate stands for, None where the roster does not know it; ``check`` is
    a stable name, ``detail`` one line for the operator.
    """

    site: int | None
    check: str
    detail: str


Event = Joined | Left | Received | Misbehaved


class EventQueue:
    """Events on their way to the aggregator. What peers can make it hold is bounded."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._slots: dict[int, asyncio.Semaphore] = {}
        self._vectors: Counter[int] = Counter()
        self._failure: BaseException | None = None

    def put(self, event: Event) -> None:
        """Add an event; a :class:`Received` needs a :meth:`slot`.

        A misbehaviour like one that still waits is not added again.
        """
        if isinstance(event, Misbehaved) and any(_alike(event, other) for other in self._events):
            return
        if isinstance(event, Received):
            self._vectors[event.site] += len(event.parcel.vectors)
        self._events.append(event)
        self._changed.set()

    async def slot(self, site: int) -> None:
        """Wait until fewer than ``UNREAD_MESSAGES`` messages of a site wait, and claim a place for the next."""
        await self._slots.setdefault(site, asyncio.Semaphore(UNREAD_MESSAGES)).acquire()

    def give_back_slot(self, site: int) -> None:
        """The place that :meth:`slot` claimed is not needed."""
        self._slots[site].release()

    def unread_vectors(self, site: int) -> int:
        """How many vectors of a site wait."""
        return self._vectors[site]

    def fail(self, error: BaseException) -> None:
        """Make every later :meth:`get` raise ``error``."""
        self._failure = self._failure or error
        self._changed.set()

    async def get(self) -> Event:
        """Wait for the next event.

        Raises:
            BaseException: what :meth:`fail` was told; that comes before waiting events.
        """
        while not self._events or self._failure is not None:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        event = self._events.popleft()
        if isinstance(event, Received):
            self.give_back_slot(event.site)
            self._vectors[event.site] -= len(event.parcel.vectors)
        return event


def _alike(one: Misbehaved, other: Event) -> bool:
    return isinstance(other, Misbehaved) and (one.site, one.check) == (other.site, other.check)
