"""The fork server itself: ``python fork_server_program.py CONTROL GRACE MODULE...``.

:mod:`securefda.local.fork_server` starts it and explains why its copies are isolated processes. It imports the modules
and then forks for each request on the socket CONTROL. A request is a length, with the child's descriptors from 0 on, a
gate and a channel; then this many bytes of JSON, a list of module, arguments, folder and environment. The answers on
the channel are the child's process id and, once the child has ended, its exit code, in 8 bytes each. A byte received on
the channel is a signal for the child. The child runs once a byte comes through the gate, and ends if the gate closes
without one, so that no child runs unknown to the other side. When CONTROL closes, the children have GRACE seconds to
end; the server kills the rest and ends.

It always has one thread: a fork copies no other thread, and locks that another thread holds would stay locked in the
child.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

_RECORD = struct.Struct("!q")
_MOST_DESCRIPTORS = 16
_POLL_S = 0.05
_CONTROL, _ENDED = "control", "ended"
_ACT_AT_START = ("GRPC_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "MPL", "OMP_", "OPEN", "PYTHON", "TORCH_")
"""Beginnings of names of variables that Python or a library reads once."""


class Request(NamedTuple):
    """What a child is to run, once the gate opens; ``descriptors`` become 0, 1, 2 and so on."""

    descriptors: list[int]
    gate: int
    channel: socket.socket
    module: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]


class Server:
    """A server that forks until its control socket closes. ``imported`` is what the imports set in the environment."""

    def __init__(self, control: socket.socket, grace_s: float, imported: dict[str, str]) -> None:
        self._control, self._grace_s, self._imported = control, grace_s, imported
        self._channels: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> Request | None:
        """Serve requests. Returns the request in every child, and None once in the server.

        All that the server has open is closed then, in the child too, and signals are as a process finds them.
        """
        with ExitStack() as stack:
            for thing in (self._control, self._selector):
                stack.enter_context(thing)
            stack.callback(self._close_channels)
            ended, woken = map(stack.enter_context, socket.socketpair())
            woken.setblocking(False)
            stack.callback(signal.signal, signal.SIGCHLD, signal.signal(signal.SIGCHLD, lambda *_: None))
            stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(woken.fileno()))
            self._selector.register(self._control, selectors.EVENT_READ, _CONTROL)
            self._selector.register(ended, selectors.EVENT_READ, _ENDED)
            while True:
                for key, _ in self._selector.select():
                    if key.data == _ENDED:
                        ended.recv(4096)
                        self._reap()
                    elif key.data != _CONTROL:
                        self._pass_signals_on(key.data)
                    elif (request := self._next()) is None:
                        self._outlive_children()
                        return None
                    elif self._fork(request):
                        return request

    def _close_channels(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def _outlive_children(self) -> None:
        deadline = time.monotonic() + self._grace_s
        while self._channels and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self._reap()
        for pid in self._channels:
            os.kill(pid, signal.SIGKILL)

    def _next(self) -> Request | None:
        """Return the next request; None at the end."""
        header, descriptors, _, _ = socket.recv_fds(
            self._control, _RECORD.size, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not header:
            return None
        (length,) = _RECORD.unpack(header)
        text = self._control.recv(length, socket.MSG_WAITALL)
        if len(text) < length:  # who asked was killed meanwhile
            return None
        module, arguments, folder, environment = json.loads(text)
        *own, gate, channel = descriptors
        return Request(
            own, gate, socket.socket(fileno=channel), module, arguments, folder, environment | self._imported
        )

    def _fork(self, request: Request) -> bool:
        """Fork for a request; returns whether this is the child."""
        channel = request.channel
        refusal = refused(request.environment)
        if refusal:
            with channel, suppress(BrokenPipeError):
                channel.sendall(_RECORD.pack(0) + refusal.encode())
        elif pid := os.fork():
            with suppress(BrokenPipeError):  # nobody waits for it, and the next event says so
                channel.sendall(_RECORD.pack(pid))
            self._channels[pid] = channel
            self._selector.register(channel, selectors.EVENT_READ, pid)
        else:
            channel.close()
            return True
        for descriptor in (*request.descriptors, request.gate):
            os.close(descriptor)
        return False

    def _pass_signals_on(self, pid: int) -> None:
        channel = self._channels.get(pid)
        if channel is None:  # it ended in this same moment
            return
        try:
            numbers = channel.recv(16)
        except ConnectionResetError:
            numbers = b""
        for number in numbers:
            os.kill(pid, number)
        if not numbers:
            self._selector.unregister(channel)  # nobody waits for this child any more

    def _reap(self) -> None:
        for pid, channel in list(self._channels.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self._channels[pid]
                with suppress(KeyError):
                    self._selector.unregister(channel)
                with channel, suppress(BrokenPipeError):
                    channel.sendall(_RECORD.pack(os.waitstatus_to_exitcode(status)))


def refused(environment: dict[str, str]) -> str:
    """Return why this process cannot be copied now, for this environment; empty if it can."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"the fork server has {threads} threads: one of its modules starts them when it is imported"
    for name in sorted(environment.keys() | os.environ.keys()):
        if name.startswith(_ACT_AT_START) and name != "PYTHONPATH" and environment.get(name) != os.environ.get(name):
            return f"{name} acts when a process starts, and what a fork server copies has started: start it by exec"
    return ""


def become(request: Request, installed: list[str]) -> None:
    """Make this child what ``python -m`` would have made it, with this interpreter's own options, if the gate opens."""
    os.setsid()
    if not os.read(request.gate, 1):
        os._exit(0)
    os.close(request.gate)
    # Move them above all targets first, since one may occupy the number that another needs.
    above = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _MOST_DESCRIPTORS) for descriptor in request.descriptors]
    for place, (descriptor, copy) in enumerate(zip(request.descriptors, above, strict=True)):
        if descriptor >= len(above):
            os.close(descriptor)
        os.dup2(copy, place)
        os.close(copy)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    paths = request.environment.get("PYTHONPATH", "")
    first = [] if sys.flags.safe_path else [str(Path.cwd())]
    sys.path[:] = [*first, *filter(None, paths.split(os.pathsep)), *installed]
    sys.argv[:] = [request.module, *request.arguments]
    # What is read or drawn once in the life of a process.
    importlib.invalidate_caches()
    time.tzset()
    tempfile.tempdir = None
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def main() -> None:
    """Run the server until it ends. In a child, run the requested module instead."""
    control, grace_s, *modules = sys.argv[1:]
    own = [] if sys.flags.safe_path else [sys.path.pop(0)]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    installed = [path for path in sys.path if path not in (*own, *paths)]
    before = dict(os.environ)
    gc.disable()  # what is imported stays: there is nothing to collect
    for module in modules:
        importlib.import_module(module)
    imported = {name: value for name, value in os.environ.items() if before.get(name) != value}
    gc.freeze()  # no collection in a child touches, and so copies, what all share
    gc.enable()
    request = Server(socket.socket(fileno=int(control)), float(grace_s), imported).serve()
    if request is None:
        os._exit(0)  # there is nothing to flush, and Python would take apart all that torch has made
    become(request, installed)
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
