"""Real processes of a federation, each started from its startup kit with the command that people type.

They are copies of the fork server, which saves the import of torch; ``by_exec`` starts one as a shell does, for what
:mod:`fork_server` says that a copy cannot show.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fork_server
import pytest
from fork_server import REPOSITORY
from free_ports import free_port

from securefda.cli import main
from securefda.errors import ExitCode

WAIT_S = 90.0
QUICK = ("transport.heartbeat-s=0.5", "transport.join-deadline-s=60", "transport.reconnect-deadline-s=30")


class Process:
    """A process whose lines on stderr can be waited for."""

    def __init__(
        self,
        arguments: Iterable[str],
        *,
        env: Mapping[str, str] | None = None,
        module: str = "securefda.cli",
        by_exec: bool = False,
    ):
        own = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)]), "OMP_NUM_THREADS": "1"}
        start = fork_server.start_by_exec if by_exec else fork_server.start
        self.process = start(module, arguments, cwd=REPOSITORY, env={**os.environ, **own, **(env or {})})
        self.out: list[str] = []
        self.err: list[str] = []
        self._news = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, lines: list[str]) -> None:
        for line in stream:
            with self._news:
                lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def until(self, text: str, count: int = 1) -> Process:
        """Wait for ``count`` lines on stderr that contain ``text``."""

        def there() -> bool:
            return sum(text in line for line in self.err) >= count or not self._readers[1].is_alive()

        with self._news:
            self._news.wait_for(there, WAIT_S)
        assert sum(text in line for line in self.err) >= count, f"no {text!r} in:\n" + "\n".join(self.err)
        return self

    def end(self, timeout: float = WAIT_S) -> int:
        """Wait for the end; the exit code."""
        code = self.process.wait(timeout)
        for reader in self._readers:
            reader.join(10)
        return code

    def kill(self) -> None:
        """End it with SIGKILL, so that it can do nothing about it."""
        self.process.kill()
        self.end()

    def interrupt(self, number: signal.Signals) -> None:
        """Send a signal and wait for the end, which must come well before training does, or any deadline of a round."""
        self.process.send_signal(number)
        self.end()

    @property
    def text(self) -> str:
        return "\n".join([*self.out, *self.err])


def assert_one_clear_line(process: Process, code: ExitCode, *words: str, hint: str = "") -> None:
    """The process ended with this code, one error line with these words, a hint, and no traceback."""
    assert process.end() == code, process.text
    errors = [line for line in process.err if line.startswith("error: ")]
    hints = [line for line in process.err if line.startswith("hint: ")]
    assert len(errors) == 1, process.text
    assert len(hints) == 1, process.text
    assert hint in hints[0], hints
    for word in words:
        assert word in errors[0], errors
    assert "Traceback" not in process.text


def runs(process: int) -> bool:
    """Whether a process of this number is there and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def children_of(pid: int) -> list[int]:
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc")
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        if parent == pid:
            found.append(int(folder.name))
    return found


class Kits:
    """A federation's kits in a folder, and the processes that were started from them."""

    def __init__(
        self,
        root: Path,
        sources: int = 3,
        *,
        sites: tuple[str, ...] = (),
        settings: Iterable[str] = (),
        task: str = "",
        port: int = 0,
        host: str = "127.0.0.1",
        by_exec: bool = False,
    ):
        self.root, self.by_exec = root, by_exec
        root.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        sites = sites or ("target", *(f"source-{number}" for number in range(1, sources + 1)))
        self.target, self.names = sites[0], list(sites[1:])
        self.file = root / "federation.toml"
        self.file.write_text(
            f'[federation]\nname = "study"\ntarget = "{self.target}"\nsources = {json.dumps(self.names)}\n'
            f'[task]\nfactory = "{task or "securefda.tasks.digits:Digits"}"\n'
        )
        # A kit names a data folder of the site's own; here all sites share one
        self.data = [text for text in settings if text.startswith("task.data-dir=")]
        sets = [part for text in (*QUICK, *settings) for part in ("--set", text)]
        address = f"{host}:{self.port}"
        command = ["federation", "init", str(self.file), "--out", str(root / "kits"), "--address", address, *sets]
        assert main(command) == 0
        self.processes: list[Process] = []

    def kit(self, site: str) -> Path:
        return self.root / "kits" / site

    @property
    def run_folder(self) -> Path:
        """Where the aggregator of this federation writes."""
        return self.kit(self.target) / "local" / "run"

    def allow_any_task(self, site: str) -> None:
        """The owner of a site lets its settings name any task."""
        policy = self.kit(site) / "local" / "policy.toml"
        policy.write_text(re.sub(r"(?m)^allowed-tasks = \[[^]]*\]", "allowed-tasks = []", policy.read_text()))
        assert main(["policy", "sign", str(self.kit(site))]) == 0

    def start(self, site: str, *settings: str, kit: Path | None = None, **options: Any) -> Process:
        """Start the process of a site, from its own kit unless another is named."""
        role = "aggregator" if site == self.target else "source"
        return self.start_command(role, (kit or self.kit(site)) / "local" / "settings.toml", *settings, **options)

    def start_command(
        self, role: str, config: Path, *settings: str, flags: Iterable[str] = (), **options: Any
    ) -> Process:
        """Start ``securefda aggregator`` or ``source`` with a settings file."""
        sets = [part for text in (*self.data, *settings) for part in ("--set", text)]
        command = [role, "start", "--config", str(config), *sets, *flags]
        process = Process(command, **{"by_exec": self.by_exec, **options})
        self.processes.append(process)
        return process

    def start_all(self, *settings: str) -> dict[str, Process]:
        """Start every site with the same extra settings."""
        return {site: self.start(site, *settings) for site in (self.target, *self.names)}

    def rounds(self) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl so far."""
        return [json.loads(line) for line in (self.run_folder / "metrics.jsonl").read_text().splitlines()]

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.run_folder / "summary.json").read_text())
        return summary

    def stop(self) -> None:
        for process in self.processes:
            if process.process.poll() is None:
                process.kill()


@contextmanager
def kits(root: Path, sources: int = 3, **options: Any) -> Iterator[Kits]:
    """A federation whose processes are gone when the block ends, however it ends."""
    federation = Kits(root, sources, **options)
    try:
        yield federation
    except BaseException:
        for process in federation.processes:
            print(" ".join(map(str, process.process.args)), process.text, sep="\n", end="\n\n")
        raise
    finally:
        federation.stop()
