"""The link between a site's process and ``securefda run``: it sends events, and ends when the launcher does.

Both use one socket, whose other end only the launcher holds. The process writes JSON lines to it and reads only its
end, which comes however and whenever the launcher ends, even while this process starts.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from securefda.errors import SecureFdaError
from securefda.operations.notes import Note
from securefda.operations.pace import Pace
from securefda.operations.progress import Reporter
from securefda.operations.records import RoundLine
from securefda.operations.run_folder import finite

_ORDERLY_S = 10.0
"""How long a process without a launcher may take to end in order, with its state written."""


class Launcher:
    """The launcher, as seen by a process that it started; ``descriptor`` is None if the process was started by hand."""

    def __init__(self, descriptor: int | None) -> None:
        self._socket: socket.socket | None = None
        self._one_at_a_time = threading.Lock()
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
            self._socket = socket.socket(fileno=descriptor)
            threading.Thread(target=self._end_with, args=(self._socket,), daemon=True).start()

    def relay(self, shown: Reporter) -> Reporter:
        """Return a reporter that passes everything on to ``shown`` and to the launcher."""
        return shown if self._socket is None else _Relay(self, shown)

    def say(self, **what: Any) -> None:
        """Send one line; without a launcher it is dropped."""
        if self._socket is not None:
            with self._one_at_a_time, suppress(OSError):
                self._socket.sendall(json.dumps(finite(what), allow_nan=False).encode() + b"\n")

    @staticmethod
    def _end_with(launcher: socket.socket) -> None:
        with suppress(OSError):
            launcher.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(_ORDERLY_S)
        os._exit(1)


@contextmanager
def launched(descriptor: int | None) -> Iterator[Launcher]:
    """Report an error that ends the block to the launcher, if there is one."""
    launcher = Launcher(descriptor)
    try:
        yield launcher
    except SecureFdaError as error:
        words = {"message": str(error), "hint": error.hint}
        launcher.say(failed={"exit_code": int(error.exit_code), "error_code": error.code, **words})
        raise


class _Relay:
    """A reporter that passes on to both; of phases that follow each other quickly, the launcher gets only the last."""

    def __init__(self, launcher: Launcher, shown: Reporter) -> None:
        self._launcher, self._shown = launcher, shown
        self._phase: tuple[str, Sequence[str], int] = ("", (), 0)
        self._pace = Pace(lambda: launcher.say(phase=list(self._phase)))

    def round_started(self, round_number: int, rounds: int) -> None:
        """A round begins."""
        self._shown.round_started(round_number, rounds)
        self._pace.catch_up()
        self._launcher.say(round_started=[round_number, rounds])

    def phase(self, name: str, waiting_for: Sequence[str] = (), asked: int = 0) -> None:
        """The run enters a phase, or goes on waiting in it."""
        self._shown.phase(name, waiting_for, asked)
        self._phase = (name, list(waiting_for), asked)
        self._pace.due()

    def steps(self, site: str, done: int, of: int) -> None:
        """A site trains."""
        self._shown.steps(site, done, of)
        self._launcher.say(steps=[site, done, of])

    def round_finished(self, line: RoundLine) -> None:
        """A round is over."""
        self._shown.round_finished(line)
        self._pace.catch_up()
        self._launcher.say(round_finished=line)

    def note(self, note: Note | str) -> None:
        """Something an operator should read."""
        self._shown.note(note)
        self._pace.catch_up()
        self._launcher.say(note=str(note))
