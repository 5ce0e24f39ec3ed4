"""The command ``securefda`` for scripts that a test runs, each call a copy of a fork server.

A script of many commands spends most of its time importing torch anew for each of them. The tool that it finds in
``PATH`` here hands its arguments, folder, environment and streams to the test, which runs a copy of the fork server of
:mod:`fork_server` with them, and ends with its exit code. Ctrl-C at the tool reaches its copy; a tool that is killed
takes its copy with it. What a copy cannot show, :mod:`fork_server` says; ``exec`` of the command itself is tested in
``tests/cli/test_cli_entry.py``, in ``tests/end_to_end/test_readme_walkthrough.py``, and from the wheel by ``.ci/run``.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shlex
import shutil
import socket
import struct
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

import fork_server

from securefda.local.fork_server import ForkServer

TOOL = Path(__file__).with_name("typed_command_tool.py")
_LENGTH = struct.Struct("!q")
_WATCH_S = 0.02


@cache
def forked_line() -> str:
    """The shell's line that runs ``securefda`` with ``"$@"`` as a copy; the server lasts as long as this process."""
    if sys.platform != "linux":
        return exec_line()
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(fork_server.REPOSITORY)}
    server = ForkServer(fork_server.MODULES, os.environ | own, safe_path=True, grace_s=0)
    atexit.register(server.close)
    folder = Path(tempfile.mkdtemp(prefix="securefda-"))  # a socket's name is short, and this folder its owner's alone
    atexit.register(shutil.rmtree, folder)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    listener.listen()
    threading.Thread(target=_serve, args=(listener, server), daemon=True).start()
    return f'exec {shlex.join([sys.executable, "-I", "-S", str(TOOL), str(folder / "socket")])} "$@"'


def exec_line() -> str:
    """The shell's line that runs ``securefda`` with ``"$@"`` as a process that shares nothing with another."""
    # -P: as the installed command does, `securefda` finds no module in the current folder by itself.
    return f'exec {shlex.quote(sys.executable)} -P -m securefda.cli "$@"'


def _serve(listener: socket.socket, server: ForkServer) -> None:
    while True:
        caller, _ = listener.accept()
        threading.Thread(target=_run, args=(caller, server), daemon=True).start()


def _run(caller: socket.socket, server: ForkServer) -> None:
    """One command: from the streams and the request of the tool to its exit code."""
    with caller:
        header, streams, _, _ = socket.recv_fds(caller, _LENGTH.size, 3)
        arguments, folder, environment = json.loads(caller.recv(*_LENGTH.unpack(header), socket.MSG_WAITALL))
        try:
            process = server.start("securefda.cli", arguments, cwd=Path(folder), env=environment, descriptors=streams)
        finally:
            for stream in streams:
                os.close(stream)
        while (code := process.poll()) is None:
            if select.select([caller], [], [], _WATCH_S)[0]:
                if sent := caller.recv(1):  # Ctrl-C
                    process.send_signal(sent[0])
                    continue
                process.kill()  # as the tool was
                process.wait()
                return
        caller.sendall(_LENGTH.pack(code))
