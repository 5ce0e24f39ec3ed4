"""The events of the aggregator's transport, in the order in which they happened."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass
from typing import cast

from securefda.protocol.messages import Parcel
from securefda.transport.limits import UNREAD_MESSAGES


@dataclass(frozen=True, slots=True)
class Joined:
    """A source is connected.

    ``resumed`` says that it is the same process as before, back after a ``Left``, and nothing was lost on the way;
    otherwise it has just started and knows nothing of the run.
    """

    index: int
    instance_id: bytes
    resumed: bool


@dataclass(frozen=True, slots=True)
class Left:
    """A source hung up, or has been away for three heartbeats. ``why`` is one line for the operator.

    ``may_return`` says that it did not hang up: the same process may be back, and what is sent to it waits till then.
    """

    index: int
    why: str
    may_return: bool = False


@dataclass(frozen=True, slots=True)
class Received:
    """A message of a source; its vectors are complete and have the digests that the message names."""

    index: int
    parcel: Parcel


@dataclass(frozen=True, slots=True)
class Misbehaved:
    """A connection broke a rule of the transport and was refused.

    ``index`` is the roster index that its certificate stands for, None where the roster does not know it; ``check`` is
    a stable name, ``detail`` one line for the operator.
    """

    index: int | None
    check: str
    detail: str


@dataclass(frozen=True, slots=True)
class Incompatible:
    """A source's Join was refused unread: it runs another build. ``theirs`` and ``ours`` are the builds, in words."""

    index: int
    theirs: str
    ours: str


Event = Joined | Left | Received | Misbehaved | Incompatible


class EventQueue:
    """Events on their way to the aggregator.

    What peers can make it hold is bounded: for each site ``UNREAD_MESSAGES`` messages, three of its comings and
    goings, and one misbehaviour of each kind; another build counts as one.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._new_processes: set[int] = set()
        self._refused: set[tuple[int | None, str]] = set()
        self._changed = asyncio.Event()
        self._slots: dict[int, asyncio.Semaphore] = {}
        self._vectors: Counter[int] = Counter()
        self._failure: BaseException | None = None

    def put(self, event: Event) -> None:
        """Add an event; a :class:`Received` needs a :meth:`slot`.

        A misbehaviour like one that still waits is not added again. Comings and goings of the same site that still
        wait are dropped where this one says all that they did.
        """
        match event:
            case Misbehaved() | Incompatible():
                # A peer can fail as often as it likes, so each kind of failure waits once (T28).
                if _kind(event) in self._refused:
                    return
                self._refused.add(_kind(event))
            case Received(index=index, parcel=parcel):
                self._vectors[index] += len(parcel.vectors)
            case Joined() | Left():
                self._events = deque(other for other in self._events if not _is_outdated(other, event))
                if isinstance(event, Joined) and not event.resumed:
                    self._new_processes.add(event.index)
        self._events.append(event)
        self._changed.set()

    def new_process_waits(self, index: int) -> bool:
        """Return whether a new process of a site has connected and its event has not been read yet."""
        return index in self._new_processes

    async def slot(self, index: int) -> None:
        """Wait until fewer than ``UNREAD_MESSAGES`` messages of a site wait, and claim a place for the next."""
        await self._slots.setdefault(index, asyncio.Semaphore(UNREAD_MESSAGES)).acquire()

    def give_back_slot(self, index: int) -> None:
        """Release the place that :meth:`slot` claimed."""
        self._slots[index].release()

    def unread_vectors(self, index: int) -> int:
        """Return how many vectors of a site wait."""
        return self._vectors[index]

    def fail(self, error: BaseException) -> None:
        """Make every later :meth:`get` raise ``error``."""
        self._failure = self._failure or error
        self._changed.set()

    async def get(self) -> Event:
        """Wait for the next event.

        Raises:
            BaseException: what :meth:`fail` was given; that comes before waiting events.
        """
        while not self._events or self._failure is not None:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        return self._take()

    def more_messages(self) -> list[Received]:
        """Return the messages that wait now, up to the first event of another kind; empty after :meth:`fail`."""
        messages = []
        while self._failure is None and self._events and isinstance(self._events[0], Received):
            messages.append(cast(Received, self._take()))
        return messages

    def _take(self) -> Event:
        event = self._events.popleft()
        match event:
            case Received(index=index, parcel=parcel):
                self.give_back_slot(index)
                self._vectors[index] -= len(parcel.vectors)
            case Misbehaved() | Incompatible():
                self._refused.discard(_kind(event))
            case Joined(index=index, resumed=False):
                self._new_processes.discard(index)
        return event


def _kind(event: Misbehaved | Incompatible) -> tuple[int | None, str]:
    return event.index, event.check if isinstance(event, Misbehaved) else ""


def _is_outdated(waiting: Event, event: Joined | Left) -> bool:
    """Return whether a waiting event adds nothing to this one.

    A new process makes everything before it the past. Of one process the last going counts, which takes the place of
    those before it: a reader that missed them would have forgotten the source by now just the same. That a process is
    new is never dropped for what it did later, and a return never takes the going before it away, since what was said
    to the source meanwhile has not reached it.
    """
    if not isinstance(waiting, Joined | Left) or waiting.index != event.index:
        return False
    if isinstance(event, Joined):
        return not event.resumed
    return isinstance(waiting, Left) or waiting.resumed
