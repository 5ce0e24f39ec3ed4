"""What a process shows on a terminal, and what ``securefda status`` says of it, in every state that lasts."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e_processes import WAIT_S, Kits, kits
from fork_server import REPOSITORY

from securefda.cli import main

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A process whose stderr is a terminal of 200 columns; what it has shown can be waited for."""

    def __init__(self, federation: Kits, site: str, *settings: str):
        sets = [part for text in (*federation.data, *settings) for part in ("--set", text)]
        config = federation.kit(site) / "local" / "settings.toml"
        role = "aggregator" if site == "target" else "source"
        command = [sys.executable, "-m", "securefda.cli", role, "start", "--config", str(config), *sets]
        own = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)]), "OMP_NUM_THREADS": "1"}
        self._screen, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, **own, "COLUMNS": "200", "TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
        )
        os.close(theirs)
        self._shown, self._news, self._ended = "", threading.Condition(), False
        threading.Thread(target=self._read, daemon=True).start()

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
        assert found, f"no {pattern!r} in:\n{self.text[after:]}"
        return after + found.end()

    def end(self) -> tuple[int, str]:
        """Wait for the end; its exit code and what it printed."""
        out, _ = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._screen)


@contextmanager
def terminal(federation: Kits, site: str, *settings: str) -> Iterator[Terminal]:
    shown = Terminal(federation, site, *settings)
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


def status(capsys: Any, place: Path) -> tuple[str, dict[str, Any]]:
    """What ``securefda status`` says of one process: to people and to programs."""
    capsys.readouterr()
    assert main(["status", str(place)]) == 0
    text = capsys.readouterr().out
    assert main(["status", str(place), "--format", "json"]) == 0
    (process,) = json.loads(capsys.readouterr().out)["data"]["processes"]
    return text, process


def test_a_source_says_why_it_has_no_connection_and_when_it_is_back(tmp_path: Path, capsys: Any) -> None:
    with kits(tmp_path, settings=("strategy.rounds=1", "strategy.warm-up-rounds=0")) as federation:
        address, me = f"127.0.0.1:{federation.port}", federation.kit("source-1")
        refused = rf"cannot reach {address}: connection refused; retrying until \d\d:\d\d"
        with terminal(federation, "source-1") as source:
            source.shows(refused)
            text, state = status(capsys, me)
            assert re.search(refused, text)
            assert (state["site"], state["process"], state["running"]) == ("source-1", source.process.pid, True)
            assert (state["doing"], state["waiting_for"]) == (f"connecting to {address}", ["target"])

            aggregator = federation.start("target")
            waiting = source.shows(f"connected to the aggregator at {address}")
            waiting = source.shows("joined; waiting for target to begin a round", waiting)
            source.shows(r"\d:\d\d:\d\d waiting for target to begin a round", waiting)
            text, state = status(capsys, me)
            assert (state["doing"], state["retrying"]) == ("waiting for target to begin a round", "")
            assert "waiting for target" in text
            lines = re.findall(rf"[\r\n]{refused}", source.text)  # behind the state's own words stands the time
            assert len(lines) == 1  # one for the reason, and none for each try

            aggregator.kill()
            lost = source.shows(
                rf"(lost the connection to|cannot reach) {address}: .*; retrying until \d\d:\d\d", waiting
            )
            source.shows(refused, waiting)
            # That the stream broke may be noticed after the first try to dial was refused; the next try says so again.
            until = time.monotonic() + WAIT_S
            text, state = status(capsys, me)
            while not re.search(refused, text) and time.monotonic() < until:
                text, state = status(capsys, me)
            assert re.search(refused, text)
            assert state["retrying_until"] > state["since"]
            assert "is gone without a word" in status(capsys, federation.kit("target"))[0]

            for site in ("target", "source-2", "source-3"):
                federation.start(site)
            again = source.shows(f"connected again to the aggregator at {address}", lost)
            source.shows("source-1: round 1 of 1: update sent inside a sum of 3", again)
            assert source.end()[0] == 0
        text, state = status(capsys, me)
        assert (state["doing"], state["running"], state["round"]) == ("ended", False, 1)
        assert "the run is over" in text


def test_a_source_says_what_it_does_in_a_round(tmp_path: Path, capsys: Any) -> None:
    settings = ("strategy.rounds=1", "strategy.warm-up-rounds=0", f"task.data-dir={tmp_path}")
    holds = {name: tmp_path / f"hold-{name}" for name in ("source-1", "source-2", "evaluation")}
    for hold in holds.values():
        hold.touch()
    with kits(tmp_path / "federation", settings=settings, task="e2e_tasks:Held") as federation:
        me = federation.kit("source-1")
        with terminal(federation, "source-1") as source:
            for site in ("target", "source-2", "source-3"):
                federation.start(site)
            training = source.shows(r"\d:\d\d:\d\d round 1 of 1: training")
            assert status(capsys, me)[1]["doing"] == "training"

            holds["source-1"].unlink()
            trained = source.shows("round 1 of 1: waiting for the keys of the other sources", training)
            _, state = status(capsys, me)
            assert (state["doing"], state["waiting_for"]) == ("waiting for the keys of the other sources", ["target"])

            eventually(lambda: status(capsys, federation.kit("target"))[1]["waiting_for"] == ["source-2"])

            holds["source-2"].unlink()
            source.shows("round 1 of 1: waiting for the result", trained)
            assert status(capsys, me)[1]["doing"] == "waiting for the result"

            holds["evaluation"].unlink()
            code, out = source.end()
            assert (code, "the run is over" in out) == (0, True)


def test_status_says_that_a_killed_process_is_gone(tmp_path: Path, capsys: Any) -> None:
    with kits(tmp_path) as federation, terminal(federation, "source-1") as source:
        source.shows("cannot reach ")
        source.process.kill()
        source.process.wait()
        text, state = status(capsys, federation.kit("source-1"))
    assert state["running"] is False
    assert f"its process {source.process.pid} is gone without a word; last it was connecting to 127.0.0.1" in text


def test_an_aggregator_waits_for_those_that_are_missing_and_names_no_other(tmp_path: Path, capsys: Any) -> None:
    with kits(tmp_path, 3, settings=("transport.join-deadline-s=600",)) as federation:
        me = federation.kit("target")

        def waits_for(target: Terminal, *sites: str) -> None:
            target.shows(f"join: waiting for {', '.join(sites)} *[\r\n]")
            text, state = status(capsys, me)
            assert (state["doing"], state["waiting_for"]) == ("join", list(sites))
            assert all(site in text for site in sites)

        with terminal(federation, "target") as target:
            waits_for(target, "source-1", "source-2", "source-3")
            federation.start("source-1")
            waits_for(target, "source-2", "source-3")
            federation.start("source-3")
            waits_for(target, "source-2")
        with terminal(federation, "target") as again:  # the other was killed; they come back
            again.shows(r"source-1 joined")
            again.shows(r"source-3 joined")
            waits_for(again, "source-2")


def test_an_aggregator_says_that_it_trains_itself_in_a_round_and_to_compare(tmp_path: Path, capsys: Any) -> None:
    slow = ("training.epochs=2000", "strategy.rule=fedavg", "strategy.rounds=1", "strategy.warm-up-rounds=0")
    with kits(tmp_path, 1, settings=("privacy.visibility=individual",)) as federation:
        me = federation.kit("target")
        with terminal(federation, "target", *slow) as target:
            federation.start("source-1")
            for doing in ("training at the target", "training alone, to compare"):
                target.shows(doing)
                assert status(capsys, me)[1]["doing"] == doing
            assert target.end()[0] == 0
