"""Processes that one command starts, watches and ends: the sites of a run, or runs side by side.

Each runs ``securefda`` in a separate session, reports events over a socket, and ends when that socket does
(:mod:`securefda.local.launched`). If the system supports it, they are copies of one process that has imported torch and
nothing specific to a site; :mod:`securefda.local.fork_server` explains why copies are isolated. Otherwise each starts
by itself.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from securefda.errors import ExitCode, RunEnded, SecureFdaError
from securefda.local.fork_server import ForkedProcess, ForkServer, ForkServerError
from securefda.machine import usable_cores
from securefda.parse import json_value
from securefda.site.config import child_environment
from securefda.text import said_of

_MODULE = "securefda.cli"
_PRELOADED = (
    *("torch", "rich.console", "rich.progress", "securefda.cli.app", "securefda.settings"),
    *("securefda.site.kit", "securefda.audit.journal", "securefda.transport.wire"),
)
"""The modules that take longest to import, without gRPC, which each process imports by itself."""
STOP_S = 10.0
_RESULT, _LOG = "result.json", "log.txt"
_ENVELOPE_BYTES = 1 << 16
_READ_BYTES = 1 << 16


class ProcessFailed(SecureFdaError):
    """A child process ended with an error; message, hint and exit code are its own."""

    def __init__(self, name: str, result: Mapping[str, Any]) -> None:
        super().__init__(said_of(name, result["message"]), hint=result["hint"])
        self.exit_code = ExitCode(result["exit_code"])
        self.name = str(result.get("error_code", ""))
        """The error's own name, where it has one."""

    @property
    def follows(self) -> bool:
        """Whether the process ended only because the aggregator did."""
        return self.name == RunEnded.__name__

    @property
    def blames_another(self) -> bool:
        """Whether the cause may be at another site: a peer that does not answer, or sends something wrong."""
        return self.follows or self.exit_code.blames_another

    @property
    def is_a_refusal(self) -> bool:
        """Whether this site may not go on although the others may go on without it."""
        return self.exit_code in (ExitCode.POLICY, ExitCode.BUDGET)


_Process = subprocess.Popen[bytes] | ForkedProcess


class Starter:
    """Starts processes, which share this machine's cores.

    Args:
        processes: how many at once. More threads than cores would only get in each other's way.
        as_copies: whether they are copies of one that has imported torch, where the system has such copies.
        modules: further folders from which they import.
    """

    def __init__(self, processes: int, *, as_copies: bool, modules: Sequence[Path] = ()) -> None:
        self._environment = child_environment(os.environ)
        if modules:
            known = filter(None, [self._environment.get("PYTHONPATH")])
            self._environment["PYTHONPATH"] = os.pathsep.join([*known, *(str(one.absolute()) for one in modules)])
        self._environment.setdefault("OMP_THREAD_LIMIT", str(max(1, usable_cores() // processes)))
        self._environment.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's, which else start as it is imported
        self._server: ForkServer | None = None
        if as_copies and sys.platform == "linux":
            self._server = ForkServer(
                _PRELOADED, self._environment, safe_path=True, grace_s=STOP_S, stderr=subprocess.DEVNULL
            )

    def start(
        self, arguments: Sequence[str], *, out: int, log: int, link: int, with_settings: bool = False
    ) -> _Process:
        """Run ``securefda`` with these arguments and ``--launcher``, in a session of its own.

        Ctrl-C reaches this process first then, which ends the others in order. What lies in the folder that the command
        was typed in does not stand in for a module. Settings in this process's own environment reach it only
        ``with_settings``.
        """
        environment = {**os.environ, **self._environment} if with_settings else self._environment
        if self._server is not None:
            copied = [*arguments, "--launcher", "3"]
            try:
                with Path(os.devnull).open("rb") as nothing:
                    descriptors = (nothing.fileno(), out, log, link)
                    return self._server.start(_MODULE, copied, cwd=Path.cwd(), env=environment, descriptors=descriptors)
            except ForkServerError:  # what keeps it from copying itself does not keep a process from starting
                self.close()
        return subprocess.Popen(  # noqa: S603 - this interpreter, with arguments made here
            [sys.executable, "-P", "-m", _MODULE, *arguments, "--launcher", str(link)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            env=environment,
            pass_fds=(link,),
            start_new_session=True,
        )

    def close(self) -> None:
        """End the process that starts them; processes that still run end with it."""
        if self._server is not None:
            self._server.close()
            self._server = None


@dataclass(slots=True)
class Child:
    """A running process: a site's, or one of a whole run in memory."""

    name: str
    process: _Process
    folder: Path
    link: socket.socket
    """The socket with the process's events; at its end once the process has ended."""
    failed: ProcessFailed | None = None
    """The error that the process said it ends with."""
    has_ended: bool = False
    _unread: bytearray = field(default_factory=bytearray)

    @classmethod
    def start(
        cls, name: str, command: Sequence[str], folder: Path, starter: Starter, *, with_settings: bool = False
    ) -> Child:
        """Run ``securefda`` with ``command``; its output and logs go to files in ``folder``."""
        link, theirs = socket.socketpair()
        with (folder / _RESULT).open("wb") as result, (folder / _LOG).open("ab") as log, theirs:
            ends = {"out": result.fileno(), "log": log.fileno(), "link": theirs.fileno()}
            process = starter.start([*command, "--format", "json"], **ends, with_settings=with_settings)
        return cls(name, process, folder, link)

    def events(self) -> list[dict[str, Any]]:
        """Return the events that the process has sent since; call it when there is something to read.

        Raises:
            SecureFdaError: it said what no process of this package says.
        """
        try:
            data = self.link.recv(_READ_BYTES)
        except ConnectionError:
            data = b""
        self.has_ended = not data
        self._unread += data
        *lines, rest = self._unread.split(b"\n")
        self._unread = bytearray(rest)
        try:
            events = [json_value(bytes(line)) for line in lines]
        except ValueError as error:
            raise SecureFdaError(f"{self.name}: its process says what cannot be read") from error
        found = [event for event in events if isinstance(event, dict)]
        for event in found:
            if (failed := event.get("failed")) is not None:
                self.failed = ProcessFailed(self.name, failed)
        return found

    def result(self) -> dict[str, Any]:
        """Return the envelope that the process printed, or one that says that it was killed."""
        try:
            envelope = json_value((self.folder / _RESULT).read_bytes())
        except ValueError:
            envelope = None
        if isinstance(envelope, dict):
            return envelope
        message, hint = f"ended without a result (exit code {self.process.returncode})", f"see {self.folder / _LOG}"
        if shutil.disk_usage(self.folder).free < _ENVELOPE_BYTES:
            message, hint = f"{self.folder}: the disk is full", "free disk space, then start again"
        return {"exit_code": int(ExitCode.FAILED), "message": message, "hint": hint}

    def failure(self) -> ProcessFailed | None:
        """Return why the process ends, as soon as it reports it or has ended with an error."""
        if self.failed is None and self.process.poll() not in (None, 0):
            self.failed = ProcessFailed(self.name, self.result())
        return self.failed


def stop(children: Sequence[Child], *, at_once: bool) -> None:
    """Wait until all have ended; ``at_once`` asks them to end. Kill those still running after ten seconds."""
    deadline = time.monotonic() + STOP_S
    if at_once:
        for child in children:
            child.process.terminate()
    for child in children:
        try:
            child.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        child.link.close()
