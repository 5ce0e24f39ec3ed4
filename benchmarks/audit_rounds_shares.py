"""Times every call of a process's audit log from inside: what ``audit_rounds.py`` and the processes it starts share."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as made_anew
from functools import wraps
from typing import Any

from securefda.audit.kept import KeptMessages
from securefda.audit.log import AuditLog
from securefda.audit.names import LogName
from securefda.audit.records import Entry
from securefda.rounds.journal import Journal
from securefda.rounds.witness import Witness
from securefda.transport.recorder import MessageRecorder

LOGGING = ((Journal, "append"), (Journal, "event"), (Journal, "keep"), (MessageRecorder, "_entry"))
WITNESSING = (*((Witness, name) for name in ("renew", "show", "cosign", "take", "check_header")), (Journal, "save"))


class Shares:
    """Seconds by kind; what is called inside another kind's call counts once, as its own.

    ``clock`` is that of `time`: ``perf_counter``, or ``thread_time`` for what the processor does, without waiting for
    the disk, nor for a core that another site has.
    """

    def __init__(self, clock: str = "perf_counter") -> None:
        self._clock: Callable[[], float] = lambda: getattr(time, clock)()  # noqa: PLW0108 - as it is when it is read
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._inner: list[float] = []

    def timed(self, kind: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        @wraps(work)
        def timed(*args: Any, **options: Any) -> Any:
            self._inner.append(0.0)
            began = self._clock()
            try:
                return work(*args, **options)
            finally:
                whole = self._clock() - began
                self.seconds[kind] += whole - self._inner.pop()
                self.calls[f"{kind}.{work.__name__}"] += 1
                if self._inner:
                    self._inner[-1] += whole

        return timed


def replace(shares: Shares) -> list[tuple[type, str, Any]]:
    """Have the calls of this process's log timed; returns what was there before."""
    before = [(kind, name, getattr(kind, name)) for kind, name in LOGGING + WITNESSING]
    for kind, name, work in before:
        setattr(kind, name, shares.timed("logging" if (kind, name) in LOGGING else "witnessing", work))
    return before


@contextmanager
def timing() -> Iterator[Shares]:
    """Time the calls of logs in this block."""
    shares = Shares()
    before = replace(shares)
    try:
        yield shares
    finally:
        for kind, name, work in before:
            setattr(kind, name, work)


class _Second:
    """A second log of the same records and messages, in a folder of its own beside the first."""

    def __init__(self, journal: Journal) -> None:
        parent = journal.folder.parent.with_name("audit-again")
        name = LogName("again", "site", "again")
        self.log = AuditLog.open(parent, name, journal._key, journal._clock)
        self.kept = KeptMessages(parent / name.run)


def write_twice() -> None:
    """Have every record and every kept message of this process written a second time, also as durably."""
    append, keep = Journal.append, Journal.keep
    seconds: dict[int, _Second] = {}

    def second_of(journal: Journal) -> _Second:
        if id(journal) not in seconds:
            seconds[id(journal)] = _Second(journal)
        return seconds[id(journal)]

    def append_twice(self: Journal, entry: Entry, *, durable: bool = False) -> None:
        append(self, entry, durable=durable)
        if self.run:  # not while it is being opened
            second_of(self).log.append(made_anew(entry), durable=durable)

    def keep_twice(self: Journal, round_number: int, message: bytes) -> None:
        keep(self, round_number, message)
        second_of(self).kept.keep(round_number, message)

    Journal.append, Journal.keep = append_twice, keep_twice  # type: ignore[method-assign]
