"""A disk that is full from some moment on, for one folder; sites that end when they cannot write; what logs say."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest
from rounds_federation import TARGET, Federation, identity, site_id

from securefda.aggregator.store import AggregatorStore
from securefda.audit.journal import RunInfo
from securefda.audit.log_files import AuditError
from securefda.audit.log_records import Entry
from securefda.audit.reading import LogFolder, NoLog, find_logs, open_log
from securefda.audit.witness import Witness
from securefda.bootstrap import Member, witness_of
from securefda.protocol.messages import Parcel
from securefda.source.source_store import SourceStore
from securefda.transport.in_memory import UnderWay
from securefda.transport.observer import Direction


class FullDisk:
    """Counts writes that take space below ``folder``, and refuses them from number ``space`` on; without one, never.

    That is: bytes at the end of a file, a new file, a new folder, and what must be on the disk now. Where the first to
    be refused is an odd one, half of its bytes are in the file before, as on a disk that had a little space left.
    Files can be read, cut and renamed all the time.
    """

    def __init__(self, folder: Path, space: int | None = None) -> None:
        self._folder, self._space = str(folder), space
        self._paths: dict[int, str] = {}
        self.taken, self.refused = 0, 0
        self._open, self._write, self._fsync, self._mkdir = os.open, os.write, os.fsync, os.mkdir

    def free(self) -> None:
        """From now on there is space."""
        self._space = None

    @contextmanager
    def mounted(self) -> Iterator[Self]:
        """System calls of the block go to this disk. Nothing is really synchronised: the machine keeps its power."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "open", self._opening)
            patch.setattr(os, "write", self._writing)
            patch.setattr(os, "fsync", self._syncing)
            patch.setattr(os, "mkdir", self._making)
            yield self

    def _is_here(self, path: object) -> bool:
        return str(path).startswith(self._folder)

    def _is_refused(self) -> bool:
        full = self._space is not None and self.taken >= self._space
        self.taken += 1
        self.refused += full
        return full

    def _opening(self, path: Any, flags: int, *more: Any, **named: Any) -> int:
        is_new = bool(flags & os.O_CREAT) and self._is_here(path) and not Path(path).exists()
        if is_new and self._is_refused():
            raise _no_space()
        descriptor = self._open(path, flags, *more, **named)
        self._paths[descriptor] = str(path)
        return descriptor

    def _writing(self, descriptor: int, data: bytes) -> int:
        if not self._is_here(self._paths.get(descriptor, "")) or not self._is_refused():
            return self._write(descriptor, data)
        if self.refused == 1 and self.taken % 2:
            return self._write(descriptor, data[: len(data) // 2])
        raise _no_space()

    def _syncing(self, descriptor: int) -> None:
        if self._is_here(self._paths.get(descriptor, "")) and self._is_refused():
            raise _no_space()

    def _making(self, path: Any, *more: Any, **named: Any) -> None:
        if self._is_here(path) and self._is_refused():
            raise _no_space()
        self._mkdir(path, *more, **named)


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class EndingFederation(Federation):
    """Sites write their messages down, and one that cannot ends, as its process does.

    ``ended`` has the errors by roster index. The connection of a source ends with it. The aggregator tells its run,
    unless it could not write what it received, and sends what this has to say if that can be written. ``left`` has
    sender, recipient and digest of every message that has left.
    """

    def __init__(self, folder: Path, n: int = 3, **options: Any) -> None:
        self.ended: dict[int, AuditError] = {}
        self.left: list[tuple[int, int, bytes]] = []
        self._unread = False
        super().__init__(folder, n, recorded=True, **options)

    def logs_of(self, index: int) -> Path:
        """Where a site's logs lie."""
        return self.folder / "audit" / site_id(index)

    def witness_of(self, index: int, memory: AggregatorStore | SourceStore, key: Any = None) -> Witness:
        member = Member(self.roster, site_id(index), key or identity(index))
        info = RunInfo("1", "points", str(self.settings.strategy.rule), "" if index == TARGET else "5d" * 32)
        return witness_of(self.logs_of(index), member, memory, info, lambda: self.unix_s)

    def open(self) -> Self:
        self._do(lambda: self.at_target(self.run.open))
        for index in sorted(self.reached):
            if TARGET not in self.ended:
                self._do(lambda one=index: self.join(one))
        return self

    def go(self, *, steps: int = 10_000) -> Self:
        """Until the run is over, or its process, and what had left has arrived."""
        for _ in range(steps):
            if not self.under_way and (self.run.done or TARGET in self.ended):
                return self
            self._do(self.step)
        raise AssertionError("the run does not end")

    def deliver(self) -> None:
        if self.under_way[0].to == TARGET and TARGET in self.ended:
            self.under_way.popleft()
            return
        super().deliver()

    def put(self, parcel: UnderWay) -> None:
        self.left.append((parcel.sender, parcel.to, parcel.read().message.digest()))
        super().put(parcel)

    def observe(self, site: int, direction: Direction, peer: int, parcel: Parcel, *, more: bool = False) -> None:
        self._unread = direction is Direction.RECEIVED
        super().observe(site, direction, peer, parcel, more=more)
        self._unread = False

    def start_anew(self) -> None:
        """All sites that have ended come back as new processes, and the aggregator does; everyone joins."""
        gone, self.ended = set(self.ended), {}
        for index in gone - {TARGET}:
            self.sources[index] = self.source(index)
            self.reached.add(index)
        self.restart_aggregator()

    def _do(self, step: Any) -> None:
        """What a process does next; one that cannot write it down ends."""
        try:
            step()
        except AuditError as error:
            self._end(self._whose(error), error)
        for index in self.reached - set(self.ended):
            if isinstance(failure := self.sources[index].standing.failure, AuditError):
                self._end(index, failure)
        if TARGET not in self.ended and self.run.done and isinstance(self.run.error, AuditError):
            self.ended[TARGET] = self.run.error

    def _whose(self, error: AuditError) -> int:
        name = Path(error.file).relative_to(self.folder / "audit").parts[0]
        return self.roster.by_id(name).index

    def _end(self, index: int, error: AuditError) -> None:
        unread, self._unread = self._unread, False
        if index != TARGET:
            self.ended[index] = error
            self.reached.discard(index)
            if TARGET not in self.ended:
                self._do(lambda: self.post(self.run.left(index)))
        elif unread or self.run.done:
            self.ended[TARGET] = error
        else:
            try:
                self.post(self.run.fail(error))
            except AuditError as last:
                self.ended[TARGET] = last


def logs_below(folder: Path) -> list[LogFolder]:
    """All logs that have a record."""
    found = []
    for log in find_logs(folder) if folder.exists() else ():
        with suppress(NoLog):
            found.append(open_log(log))
    return found


def entries_of(federation: EndingFederation, index: int) -> list[Entry]:
    """What the whole records of a site's logs say: of the run, and of one before that could not begin."""
    return [record.entry for log in logs_below(federation.logs_of(index)) for record in log.records()]


def is_all_logged(federation: EndingFederation, index: int) -> bool:
    """Whether every message that has left a site is in its log as sent, and every one that it handled as received."""
    logged = Counter((one.direction, one.peer, one.digest) for one in entries_of(federation, index))
    left = Counter(("sent", site_id(to), digest.hex()) for one, to, digest in federation.left if one == index)
    handled = Counter(
        ("received", site_id(sender), message.digest().hex())
        for sender, to, message in federation.passed
        if to == index
    )
    return left + handled <= logged
