"""``securefda dashboard`` as a process, for the tests of its server and of its page in a browser."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

WAIT_S = 60.0


class Answer:
    """An answer to one request."""

    def __init__(self, found: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.text = found.status, found.headers, found.read().decode()


class Served:
    """The process, and where it listens."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        parts = urlsplit(url)
        self.host, self.port, self.path = parts.netloc, parts.port or 0, parts.path

    def ask(self, path: str | None = None, method: str = "GET", **headers: str) -> Answer:
        """Send one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.putrequest(method, self.path if path is None else path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": self.host, **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        try:
            return Answer(connection.getresponse())
        finally:
            connection.close()

    @contextmanager
    def stream(self) -> Iterator[http.client.HTTPResponse]:
        """The answer to a request for events; open until the block ends."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request("GET", f"{self.path}events", headers={"Host": self.host})
        answer = connection.getresponse()
        try:
            yield answer
        finally:
            connection.close()
            answer.close()


def event(stream: IO[bytes]) -> dict[str, Any]:
    """The next page that a stream brings."""
    while not (line := stream.readline()).startswith(b"data: "):
        assert line, "the stream has ended"
    found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
    return found


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Served]:
    """The process, until the block ends."""
    command = [sys.executable, "-m", "securefda.cli", "dashboard", str(folder), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            url = process.stdout.readline().strip()
            assert url, process.stderr.read()
            yield Served(process, url)
        finally:
            if process.poll() is None:
                process.kill()
