"""Starts the processes of tests as copies of a fork server: see :mod:`securefda.local.fork_server`.

There is one server for each pytest process; it ends when that does, however it does, and takes its copies with it. It
imports all that a site does, gRPC too, which the server of ``securefda run`` leaves to its copies.

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
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from securefda.local import fork_server

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = (
    "jinja2",
    "securefda.cli.app",
    "securefda.cli.console",
    "securefda.operations.report",
    "securefda.operations.summary_text",
    "securefda.operations",
    "securefda.bootstrap",
    "securefda.site.private_trainer",
    "securefda.operations.recording",
    "securefda.tasks.digits",
    "securefda.transport.client",
    "securefda.source.source_process",
    "securefda.aggregator.process",
    "securefda.audit.journal",
    "securefda.transport.aggregator_server",
)
"""What the server imports: all that a site does, and torch, Opacus and gRPC with it."""


class ForkServer(fork_server.ForkServer):
    """A process that has imported ``modules``, found in ``paths`` or installed, and forks."""

    def __init__(self, modules: Sequence[str] = MODULES, paths: Sequence[Path] = (REPOSITORY,)) -> None:
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))}
        super().__init__(modules, os.environ | own, safe_path=False, grace_s=0)

    def run(
        self, module: str, arguments: Iterable[str], *, cwd: Path, env: Mapping[str, str], stderr: int | None = None
    ) -> PipedProcess:
        """Run ``python -m module``, with its streams at hand; its stdin is empty. Raises ForkServerError.

        What it has for ``stderr``, a descriptor such as that of a terminal, is not at hand; it stays open here.
        """
        out, to_out = os.pipe()
        err, to_err = os.pipe() if stderr is None else (os.open(os.devnull, os.O_RDONLY), os.dup(stderr))
        theirs = [os.open(os.devnull, os.O_RDONLY), to_out, to_err]
        try:
            process = self.start(module, arguments, cwd=cwd, env=env, descriptors=theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return PipedProcess(process, os.fdopen(out, "r"), os.fdopen(err, "r"))


class PipedProcess:
    """A copy of the server, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, process: fork_server.ForkedProcess, stdout: IO[str], stderr: IO[str]) -> None:
        self._process, self.args, self.pid = process, process.args, process.pid
        self.stdin, self.stdout, self.stderr = None, stdout, stderr
        self.poll, self.wait = process.poll, process.wait
        self.send_signal, self.terminate, self.kill = process.send_signal, process.terminate, process.kill

    @property
    def returncode(self) -> int | None:
        """The exit code, once it is known."""
        return self._process.returncode


@cache
def _server() -> ForkServer:
    server = ForkServer()
    atexit.register(server.close)
    return server


def start(
    module: str, arguments: Iterable[str], *, cwd: Path, env: Mapping[str, str], stderr: int | None = None
) -> PipedProcess | subprocess.Popen[str]:
    """Run ``python -m module`` as a copy of the fork server, or by exec where libraries cannot bear a fork: macOS."""
    if sys.platform != "linux":
        return start_by_exec(module, arguments, cwd=cwd, env=env, stderr=stderr)
    return _server().run(module, arguments, cwd=cwd, env=env, stderr=stderr)


def start_by_exec(
    module: str, arguments: Iterable[str], *, cwd: Path, env: Mapping[str, str], stderr: int | None = None
) -> subprocess.Popen[str]:
    """Run ``python -m module`` as a process that shares nothing with another."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if stderr is None else stderr,
        text=True,
        start_new_session=True,
    )
