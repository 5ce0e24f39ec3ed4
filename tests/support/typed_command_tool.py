"""What ``securefda`` is for a script that :mod:`typed_commands` serves: ``python typed_command_tool.py SOCKET ...``.

It imports next to nothing: that is what it is for.
"""

import json
import os
import signal
import socket
import struct
import sys

LENGTH = struct.Struct("!q")

with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    request = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()  # noqa: PTH109 - it imports pathlib
    socket.send_fds(server, [LENGTH.pack(len(request))], [0, 1, 2])
    server.sendall(request)
    signal.signal(signal.SIGINT, lambda *_: server.sendall(bytes([signal.SIGINT])))
    answer = server.recv(LENGTH.size, socket.MSG_WAITALL)
if not answer:
    sys.exit("no copy of the fork server runs this command")
(code,) = LENGTH.unpack(answer)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
