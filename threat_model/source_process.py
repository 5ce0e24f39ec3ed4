"""A source in a separate process, forked from the test's, that can be killed at any moment, and be copied.

The process runs the real :class:`SourceRun` on its own state file. The stage sees an endpoint like any other.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from securefda.errors import SecureFdaError
from securefda.protocol.messages import Parcel
from securefda.site.policy.schema import ReleaseLimits
from securefda.source.run_book import RunBook
from securefda.source.source_run import SourceRun, SourceSite
from securefda.source.source_store import SourceStore
from securefda.transport import wire
from threat_model.sites import SiteWatch, witness_at

_FORK = multiprocessing.get_context("fork")
Sent = list[tuple[bytes, tuple[bytes, ...]]]


class SourceProcess:
    """The endpoint of a source that runs in a process of its own.

    Attributes:
        alarms: names of the checks that failed in the process.
        refused_to_copy: names of the errors with which the copy of the process answered.
    """

    def __init__(self, site: SourceSite, reporter: Any, *, forks_before: type | None = None) -> None:
        """Start the process; ``reporter`` hears nothing, since its events happen elsewhere.

        With ``forks_before`` the process is copied just before it gets its first message of this type. From then on a
        message of a type that the original has had goes to the copy.
        """
        del reporter
        path = Path(site.store._path)  # the file is for the process to open
        site.store.close()
        self.alarms: list[str] = []
        self.refused_to_copy: list[str] = []
        self._forks_before, self._has_had = forks_before, set[type]()
        self._original, theirs = _FORK.Pipe()
        self._copy, copys = _FORK.Pipe()
        self._process = _FORK.Process(
            target=_serve, args=(site, path, (theirs, copys), (self._original, self._copy)), daemon=True
        )
        self._process.start()
        theirs.close()
        copys.close()
        with contextlib.suppress(EOFError):
            self._original.recv()  # its state file is open: from now on the folder is as the process has it

    def join(self, run: str) -> Parcel:
        """Return the process's first message in a run."""
        (parcel,) = self._ask(self._original, "join", run)
        return parcel

    def handle(self, parcel: Parcel) -> list[Parcel]:
        """Return the process's answer; nothing once it is dead."""
        kind = type(parcel.message.body)
        if kind is self._forks_before and kind not in self._has_had:
            self._ask(self._original, "fork")
        to = self._copy if self._forks_before in self._has_had and kind in self._has_had else self._original
        self._has_had.add(kind)
        return self._ask(to, "handle", _packed([parcel]))

    def train(self) -> list[Parcel]:
        """Train in the process; a copy of it trains when it has to."""
        return self._ask(self._original, "train")

    def expire(self) -> list[Parcel]:
        """Nothing came for too long."""
        return self._ask(self._original, "expire")

    def kill(self) -> None:
        """Kill the process with ``kill -9`` and wait until it is dead; a copy ends by itself when its pipe closes."""
        self._process.kill()
        self._process.join()
        self._original.close()
        self._copy.close()

    def _ask(self, to: Connection, what: str, message: Sent | str | None = None) -> list[Parcel]:
        try:
            to.send((what, message))
            sent, alarms, error = to.recv()
        except (EOFError, OSError):
            return []
        self.alarms += alarms
        self.refused_to_copy += [error] if error else []
        return _unpacked(sent)


def _packed(parcels: list[Parcel]) -> Sent:
    return [(wire.encode_signed(one.message), tuple(bytes(vector) for vector in one.vectors)) for one in parcels]


def _unpacked(sent: Sent) -> list[Parcel]:
    return [Parcel(wire.decode_signed(data), vectors) for data, vectors in sent]


def _serve(
    site: SourceSite, path: Path, ends: tuple[Connection, Connection], others: tuple[Connection, Connection]
) -> None:
    """Serve in the process until the other end of its pipe is closed."""
    gc.freeze()  # to collect what the parent has left, such as a channel of gRPC, can wait for its threads for ever
    for other in others:
        other.close()  # inherited; while it is open here, this end would never hear that the test is over
    watch = SiteWatch()
    store = SourceStore(path, RunBook(path.with_suffix(".runs"), ReleaseLimits()))
    logs = site.witness.journal.folder  # of all runs, before there is one
    witness = witness_at(logs, site.signer.index, site.roster, store)
    rounds = SourceRun(replace(site, store=store, witness=witness), watch)
    connection, copy = ends
    connection.send("open")
    while True:
        try:
            what, message = connection.recv()
        except EOFError:
            os._exit(0)
        if what == "fork" and os.fork() == 0:
            connection = copy
            continue
        known, answers, error = len(watch.alarms), [], ""
        try:
            answers = _answers(rounds, what, message)
        except (SecureFdaError, ValueError) as caught:
            error = type(caught).__name__
        connection.send((_packed(answers), [getattr(one, "check", "") for one in watch.alarms[known:]], error))


def _answers(rounds: SourceRun, what: str, message: Any) -> list[Parcel]:
    if what == "join":
        return [rounds.join(message)]
    if what in ("train", "expire"):
        return rounds.train() if what == "train" else rounds.expire()
    return [answer for parcel in _unpacked(message or []) for answer in rounds.handle(parcel)]
