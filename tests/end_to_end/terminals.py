"""Processes on a terminal of their own, and what ``securefda status`` says of them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fork_server
from e2e_processes import WAIT_S, Kits
from fork_server import REPOSITORY

from securefda.cli import main

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A process whose stderr is a terminal of 200 columns; what it has shown can be waited for."""

    def __init__(self, command: Sequence[str]):
        own = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)]), "OMP_NUM_THREADS": "1"}
        self._screen, theirs = pty.openpty()
        environment = {**os.environ, **own, "COLUMNS": "200", "TERM": "xterm"}
        self.process = fork_server.start("securefda.cli", command, cwd=REPOSITORY, env=environment, stderr=theirs)
        os.close(theirs)
        self._shown, self._news, self._ended = "", threading.Condition(), False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._screen, 1 << 16)
            except OSError:  # the other end is closed
                data = b""
            with self._news:
                self._shown += data.decode(errors="replace")
                self._ended = not data
                self._news.notify_all()
            if not data:
                return

    @property
    def text(self) -> str:
        return _CONTROL.sub("", self._shown)

    def shows(self, pattern: str, after: int = 0) -> int:
        """Wait until it has shown this, behind so many characters; returns where it ends."""
        with self._news:
            self._news.wait_for(lambda: self._ended or re.search(pattern, self.text[after:]), WAIT_S)
            found = re.search(pattern, self.text[after:])
        assert found, (
            f"no {pattern!r} behind {after} in the end of:\n{self.text[-3000:]}\nexit code {self.process.poll()}"
        )
        return after + found.end()

    def end(self) -> tuple[int, str]:
        """Wait for the end; its exit code and what it printed."""
        code = self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        return code, self.process.stdout.read()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self._reader.join(WAIT_S)  # else it may read from what next has the number of this screen
        os.close(self._screen)


@contextmanager
def terminal(federation: Kits, site: str, *settings: str) -> Iterator[Terminal]:
    sets = [part for text in (*federation.data, *settings) for part in ("--set", text)]
    config = federation.kit(site) / "local" / "settings.toml"
    role = "aggregator" if site == "target" else "source"
    with terminal_of([role, "start", "--config", str(config), *sets]) as shown:
        yield shown


@contextmanager
def terminal_of(command: Sequence[str]) -> Iterator[Terminal]:
    shown = Terminal(command)
    try:
        yield shown
    finally:
        shown.stop()


def eventually(holds: Callable[[], bool]) -> None:
    """Look at something that has no event of its own until it is so."""
    until, pause = time.monotonic() + WAIT_S, threading.Event()
    while not holds():
        assert time.monotonic() < until
        pause.wait(0.1)


def status_of(capsys: Any, place: Path, doing: str, text: str = "") -> tuple[str, dict[str, Any]]:
    """What ``securefda status`` says as soon as the process is doing this, with such a text; a file follows in time.

    Text and JSON are read one after the other, so both must say it.
    """
    found = status(capsys, place)

    def holds() -> bool:
        nonlocal found
        found = status(capsys, place)
        said, state = found
        return doing in said and state["doing"] == doing and re.search(text, said) is not None

    eventually(holds)
    return found


def status(capsys: Any, place: Path) -> tuple[str, dict[str, Any]]:
    """What ``securefda status`` says of one process: to people and to programs."""
    capsys.readouterr()
    assert main(["status", str(place)]) == 0
    text = capsys.readouterr().out
    assert main(["status", str(place), "--format", "json"]) == 0
    (process,) = json.loads(capsys.readouterr().out)["data"]["processes"]
    return text, process
