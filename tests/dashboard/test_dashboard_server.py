"""The server of the page: who gets an answer, with which headers, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from dashboard_process import WAIT_S, Served, event, serving
from watched_sites import Site

from securefda.dashboard.page_server import MOST_CONNECTIONS, MOST_STREAMS


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("nothing") / "yet") as running:
        yield running


def test_the_url_is_of_this_machine_and_has_a_long_token(served: Served) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[A-Za-z0-9_-]{43}/", served.url)


def test_the_page_is_sent_to_those_who_know_the_url(served: Served) -> None:
    answer = served.ask()
    assert answer.status == 200
    assert "No run yet" in answer.text
    assert served.ask(Host=f"localhost:{served.port}").status == 200


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:{port}",
            "127.0.0.1",
            "127.0.0.1:1",
            "localhost",
            "localhost:1",
            "[::1]:{port}",
        ),
        *("", "127.0.0.1:{port}.evil.example", "evil.example@127.0.0.1:{port}", "127.0.0.2:{port}", "127.1:{port}"),
    ],
)
@pytest.mark.parametrize("path", ["", "events", "icon.svg"])
def test_another_host_is_refused(served: Served, host: str, path: str) -> None:
    answer = served.ask(f"{served.path}{path}", Host=host.format(port=served.port))
    assert answer.status == 403
    assert "clinic" not in answer.text


def test_two_hosts_or_none_are_refused(served: Served) -> None:
    for hosts in ([], [served.host, served.host], [served.host, "evil.example"]):
        with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) as connection:
            lines = [f"GET {served.path} HTTP/1.1", *(f"Host: {host}" for host in hosts), "Connection: close", "", ""]
            connection.sendall("\r\n".join(lines).encode())
            assert re.match(rb"HTTP/1.1 40[03] ", connection.recv(100))


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/events", "/favicon.ico", "/icon.svg", "//", "/wrong/", "/wrong/events", "/%00/", "/%ff/", "/%C3%A9/"),
        *("/{start}/", "/{token}x/", "/{token}%20/", "/x/../{token}/", "/?token={token}", "/./{token}/"),
    ],
)
def test_a_wrong_or_missing_token_is_refused(served: Served, path: str) -> None:
    token = served.path.strip("/")
    assert served.ask(path.format(token=token, start=token[:-1])).status == 403


@pytest.mark.parametrize("path", ["nothing", "events/more", "../etc/passwd", "metrics.jsonl"])
def test_there_is_nothing_else(served: Served, path: str) -> None:
    assert served.ask(f"{served.path}{path}").status in (403, 404)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_it_is_for_reading_only(served: Served, method: str) -> None:
    answer = served.ask(method=method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize("path", ["", "icon.svg", "nothing"])
def test_every_answer_has_the_headers_that_close_the_page_in(served: Served, path: str) -> None:
    for answer in (served.ask(f"{served.path}{path}"), served.ask("/wrong/"), served.ask(method="POST")):
        headers = answer.headers
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert re.fullmatch(r"'sha256-[\w+/=]+'", policy["script-src"])
        assert re.fullmatch(r"'sha256-[\w+/=]+'", policy["style-src"])
        assert (policy["connect-src"], policy["frame-ancestors"]) == ("'self'", "'none'")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers
        assert "Server" not in headers
        assert "Set-Cookie" not in headers


def test_the_page_names_no_other_host(served: Served) -> None:
    text = served.ask().text
    assert not re.search(r"(?:https?:)?//[a-z0-9.]+\.[a-z]", text)


def test_events_bring_what_has_changed(target: Site) -> None:
    with serving(target.run) as served, served.stream() as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        assert event(stream)["state"] == "Not begun"
        target.target_round(1)
        later = event(stream)
        assert "rounds" in [key for key, _, _ in later["sections"]]
        target.summary(1)
        while later["state"] != "Finished":
            later = event(stream)


def test_so_many_pages_may_be_open_and_no_more(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(MOST_STREAMS):
            stream = stack.enter_context(served.stream())
            assert stream.status == 200
            event(stream)
        with served.stream() as refused:
            assert refused.status == 503
        assert served.ask().status == 200


def test_so_many_connections_are_taken_and_no_more(target: Site) -> None:
    with serving(target.kit) as served:
        kept = [socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) for _ in range(MOST_CONNECTIONS)]
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            served.ask()
        for connection in kept:
            assert connection.recv(1) == b""  # it said nothing, and was ended
            connection.close()
        assert served.ask().status == 200


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly_also_while_a_page_is_open(target: Site, ending: signal.Signals) -> None:
    with serving(target.kit) as served, served.stream() as stream:
        event(stream)
        served.process.send_signal(ending)
        out, err = served.process.communicate(timeout=WAIT_S)
        assert (served.process.returncode, out, err) == (0, "", "")


def test_the_url_is_printed_once_and_no_request_is_logged(target: Site) -> None:
    with serving(target.kit) as served:
        served.ask()
        served.ask("/wrong/")
        served.ask(Host="evil.example")
        with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) as connection:
            connection.sendall(b"\x00\x01\x02 nonsense\r\n\r\n")
            connection.recv(100)
        served.process.send_signal(signal.SIGINT)
        out, err = served.process.communicate(timeout=WAIT_S)
        assert (out, err) == ("", "")


def test_only_this_machine_is_listened_to(served: Served) -> None:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{served.port:04X}")]
    assert listening == [f"0100007F:{served.port:04X}"]


def test_each_start_draws_another_token(served: Served, tmp_path: Path) -> None:
    with serving(tmp_path / "run") as other:
        assert other.path != served.path
        assert other.ask(served.path).status == 403


def test_the_url_comes_as_json_also_before_there_is_a_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "securefda.cli", "dashboard", str(tmp_path / "run"), "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        envelope = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert err == f"{tmp_path / 'run'} does not exist yet: the page shows a run as soon as one begins there\n"
    assert envelope["data"]["url"].startswith("http://127.0.0.1:")


def _fails(*arguments: str, **environment: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "securefda.cli", "dashboard", *arguments]
    env = {**os.environ, **environment}
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WAIT_S, env=env)
    assert found.stdout == ""
    return found.returncode, found.stderr.splitlines()


def test_a_port_that_is_taken_is_one_clear_line(served: Served, tmp_path: Path) -> None:
    code, (error, hint) = _fails(str(tmp_path / "run"), "--port", str(served.port))
    assert code == 4
    assert error == f"error: --port: {served.port} on 127.0.0.1 cannot be opened: Address already in use"
    assert hint == "hint: name another port; 0, the default, takes one that is free"


def test_a_folder_of_something_else_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    code, (error, hint) = _fails(str(tmp_path))
    assert (code, error) == (4, f"error: {tmp_path}: is no run folder and no startup kit")
    assert hint == "hint: name a run folder, a folder sites/SITE of one, or a site's startup kit"


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_the_extra_one_line_names_it(tmp_path: Path, missing: str) -> None:
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('gone', name='{missing}')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    code, (error, hint) = _fails(str(tmp_path / "run"), PYTHONPATH=path)
    assert (code, error) == (4, f"error: securefda dashboard: needs {missing}, which is not installed")
    assert hint == "hint: pip install 'securefda[dashboard]'"
