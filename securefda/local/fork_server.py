"""Starts processes as ``python -m MODULE`` does, but without the second or more that each takes to import torch.

A server imports torch once and forks a copy of itself for each process (:mod:`securefda.local.fork_server_program`). A
copy is a separate process. It shares with the others only memory pages that none of them has written to, which hold
code and what modules set up on import:

* It is forked before there is anything to share: no key, row, connection, file or second thread. The server refuses to
  fork with two threads. The copy imports gRPC; no device is in use before it.
* Keys, masks, shares and noise come from the kernel (``os.urandom``), which has no state in a process. OpenSSL and
  ``random`` reseed themselves in a copy; torch's and NumPy's generators are reseeded.
* It does nothing before this side has its process id. If the server dies before it can send that, no copy runs, and the
  process may be started in another way.
* It has its own session, environment, folder and descriptors; a signal or a crash ends only this copy, and it exits as
  Python does.

Unlike processes started from a shell, copies of one server share the layout of their addresses and the seed of
``hash``, and ``ps`` shows the server's command line. Separate sites are therefore started by ``exec``, each by its
operator; copies are for processes of one user on one machine, who could read them all anyway. Only Linux has copies:
system libraries of macOS do not survive a fork.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path

from securefda.errors import SecureFdaError

_RECORD = struct.Struct("!q")


class ForkServerError(SecureFdaError):
    """The server has ended, or refuses: it has threads, or needs an environment variable that a copy gets too late."""


class ForkServer:
    """A process that has imported ``modules`` and forks.

    Args:
        modules: what every copy has imported. None may start a thread.
        environment: of the server. Those of its variables that act when a process starts are those of its copies too.
        safe_path: whether the folder in which a copy runs is kept out of its search path, as by ``python -P``.
        grace_s: how long copies may go on after this object, or its process, has come to its end.
        stderr: of the server, a descriptor; by default this process's own.
    """

    def __init__(
        self,
        modules: Sequence[str],
        environment: Mapping[str, str],
        *,
        safe_path: bool,
        grace_s: float,
        stderr: int | None = None,
    ) -> None:
        self._control, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._options = ["-P"] if safe_path else []
        program = Path(__file__).with_name("fork_server_program.py")
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, with arguments made here
                [sys.executable, *self._options, program, str(theirs.fileno()), str(grace_s), *modules],
                cwd="/",
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.pid = self._process.pid

    def start(
        self, module: str, arguments: Iterable[str], *, cwd: Path, env: Mapping[str, str], descriptors: Sequence[int]
    ) -> ForkedProcess:
        """Run ``python -m module`` with these arguments in a copy of the server.

        Args:
            module: name of what runs.
            arguments: its own.
            cwd: folder in which it runs.
            env: its environment.
            descriptors: of this process, three or more, which become 0, 1, 2 and so on in the copy.

        Raises:
            ForkServerError: there is no copy that runs, nor will there be.
        """
        args = [sys.executable, *self._options, "-m", module, *arguments]
        request = json.dumps([module, args[args.index(module) + 1 :], str(cwd), dict(env)]).encode()
        channel, theirs = socket.socketpair()
        waits, opens = os.pipe()
        try:
            try:
                with self._lock, theirs:
                    given = [*descriptors, waits, theirs.fileno()]
                    socket.send_fds(self._control, [_RECORD.pack(len(request))], given)
                    self._control.sendall(request)
            except OSError as error:
                channel.close()
                raise ForkServerError(f"the fork server ended with {self._process.wait()}") from error
            finally:
                os.close(waits)
            process = ForkedProcess(args, channel)
            with suppress(BrokenPipeError):  # it was ended meanwhile, and its exit code says so
                os.write(opens, b"\1")
            return process
        finally:
            os.close(opens)

    def close(self) -> None:
        """End the server and, when their grace is over, every copy that still runs."""
        self._control.close()
        self._process.wait()


class ForkedProcess:
    """A copy of the server, with a part of :class:`subprocess.Popen`.

    Raises:
        ForkServerError: the server refused to make it.
    """

    def __init__(self, args: list[str], channel: socket.socket) -> None:
        self.args, self._channel = args, channel
        self.returncode: int | None = None
        self.pid = self._hear()
        if not self.pid:
            raise ForkServerError(channel.makefile().read())

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, once it has ended; the timeout is in seconds.

        Raises:
            TimeoutExpired: of :mod:`subprocess`.
            ForkServerError: the server was killed, and the exit code is lost with it.
        """
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal through the server, which knows whether the process still exists."""
        if self.poll() is None:
            self._channel.sendall(bytes([number]))

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)

    def _ended_within(self, timeout: float | None) -> int | None:
        if self.returncode is None and connection.wait([self._channel], timeout):
            self.returncode = self._hear()
        return self.returncode

    def _hear(self) -> int:
        record = self._channel.recv(_RECORD.size, socket.MSG_WAITALL)
        if len(record) < _RECORD.size:
            raise ForkServerError("the fork server, which starts the processes, has ended")
        number: int = _RECORD.unpack(record)[0]
        return number
