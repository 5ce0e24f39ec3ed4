"""Starts processes as ``python -m MODULE`` does, without the seconds that importing torch takes.

A server imports once what a site imports and runs a copy of itself for each process: :mod:`fork_server_program` says
how. There is one for each pytest process; it ends when that does, however it does, and takes its copies with it.

A copy is like a process of its own in what tests look at: environment, arguments, folder, session, streams, signals,
randomness and its end through Python's shutdown. Start a process by exec (:func:`start_by_exec`) where a test is about
what a copy cannot show:

* the start itself: import errors, the time until the first line, signals in the first seconds;
* what exec hands down from pytest: limits, umask, signals that are ignored;
* variables that act when Python or a library starts, such as ``OMP_NUM_THREADS`` (those of the server are the only
  ones allowed) and the seed of ``hash``, which all copies share;
* the command line in ``/proc``, and memory, of which copies share most.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from multiprocessing import connection
from pathlib import Path
from typing import IO

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = (
    "jinja2",
    "matplotlib.backends.backend_svg",
    "securefda.cli.app",
    "securefda.cli.console",
    "securefda.operations.figures",
    "securefda.operations.report",
    "securefda.operations.summary_text",
    "securefda.operations",
    "securefda.bootstrap",
    "securefda.site.private_trainer",
    "securefda.operations.recording",
    "securefda.tasks.digits",
    "securefda.transport.client",
    "securefda.source.process",
    "securefda.aggregator.process",
    "securefda.audit.journal",
    "securefda.transport.server",
)
"""What the server imports: all that a site does, and torch, Opacus and gRPC with it."""

_RECORD = struct.Struct("!q")


class ForkServer:
    """A process that has imported ``modules``, found in ``paths`` or installed, and forks."""

    def __init__(self, modules: Sequence[str] = MODULES, paths: Sequence[Path] = (REPOSITORY,)) -> None:
        self._control, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("fork_server_program.py"), str(theirs.fileno()), *modules],
                cwd="/",
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.pid = self._process.pid

    def start(self, module: str, arguments: Iterable[str], *, cwd: Path, env: Mapping[str, str]) -> ForkedProcess:
        """Run ``python -m module`` with these arguments in a copy of the server; its stdin is empty.

        Raises:
            RuntimeError: the server has ended, or refuses: it has threads, or a variable of the environment comes too
                late for a process that has started.
        """
        args = [sys.executable, "-m", module, *arguments]
        request = json.dumps([module, args[3:], str(cwd), dict(env)]).encode()
        channel, theirs = socket.socketpair()
        out, to_out = os.pipe()
        err, to_err = os.pipe()
        stdin = os.open(os.devnull, os.O_RDONLY)
        handed = [stdin, to_out, to_err, theirs.detach()]
        try:
            with self._lock:
                socket.send_fds(self._control, [_RECORD.pack(len(request))], handed)
                self._control.sendall(request)
        except OSError as error:
            raise RuntimeError(f"the fork server ended with {self._process.wait()}") from error
        finally:
            for descriptor in handed:
                os.close(descriptor)
        return ForkedProcess(args, channel, out, err)

    def close(self) -> None:
        """End the server and every copy that still runs."""
        self._control.close()
        self._process.wait()


class ForkedProcess:
    """A copy of the server, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, args: list[str], channel: socket.socket, out: int, err: int) -> None:
        self.args, self._channel = args, channel
        self.stdin = None
        self.stdout: IO[str] = os.fdopen(out, "r")
        self.stderr: IO[str] = os.fdopen(err, "r")
        self.returncode: int | None = None
        self.pid = self._hear()
        if not self.pid:
            raise RuntimeError(channel.makefile().read())

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended."""
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Through the server, which knows whether the process is still there to get it."""
        if self.poll() is None:
            self._channel.sendall(bytes([number]))

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended_within(self, timeout: float | None) -> int | None:
        if self.returncode is None and connection.wait([self._channel], timeout):
            self.returncode = self._hear()
        return self.returncode

    def _hear(self) -> int:
        record = self._channel.recv(_RECORD.size, socket.MSG_WAITALL)
        if len(record) < _RECORD.size:
            raise RuntimeError("the fork server has ended; what it says is on stderr")
        number: int = _RECORD.unpack(record)[0]
        return number


@cache
def _server() -> ForkServer:
    server = ForkServer()
    atexit.register(server.close)
    return server


def start(
    module: str, arguments: Iterable[str], *, cwd: Path, env: Mapping[str, str]
) -> ForkedProcess | subprocess.Popen[str]:
    """Run ``python -m module`` as a copy of the fork server, or by exec where libraries cannot bear a fork: macOS."""
    if sys.platform != "linux":
        return start_by_exec(module, arguments, cwd=cwd, env=env)
    return _server().start(module, arguments, cwd=cwd, env=env)


def start_by_exec(module: str, arguments: Iterable[str], *, cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Run ``python -m module`` as a process that shares nothing with another."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
