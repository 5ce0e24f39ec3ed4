"""``/healthz`` and ``/readyz`` of real processes: alive; listening, or joined and connected."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_processes import REPOSITORY, Kits, kits
from free_ports import free_port

from securefda.errors import ExitCode

PATHS = {"PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, Path(__file__).parent, REPOSITORY / "tests/end_to_end")))}
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def status(port: int, path: str) -> int:
    try:
        with DIRECT.open(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            code: int = answer.status
    except urllib.error.HTTPError as error:
        return error.code
    return code


def health(port: int) -> tuple[int, int]:
    return status(port, "/healthz"), status(port, "/readyz")


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Kits]:
    (tmp_path / "hold").touch()
    settings = ("privacy.visibility=individual", "strategy.warm-up-rounds=1", f"task.data-dir={tmp_path}")
    with kits(tmp_path / "kits", 1, settings=settings, task="e2e_tasks:Endless") as one:
        yield one


def test_a_source_is_ready_while_it_has_joined_and_is_connected(federation: Kits) -> None:
    port = free_port()
    source = federation.start("source-1", f"metrics.port={port}").until("cannot reach")
    assert health(port) == (200, 503)
    target = federation.start("target")
    source.until("joined")
    assert health(port) == (200, 200)
    source.until("round 1")
    target.kill()
    source.until("lost the connection")
    assert health(port) == (200, 503)


def test_an_aggregator_is_ready_while_it_listens(federation: Kits) -> None:
    port = free_port()
    federation.start("target", f"metrics.port={port}").until("listens on")
    assert health(port) == (200, 200)
    assert status(port, "/metrics") == 200


def test_an_aggregator_that_loads_its_rows_is_alive_and_not_ready(tmp_path: Path) -> None:
    for name in ("loading", "go"):
        os.mkfifo(tmp_path / name)
    port, settings = free_port(), ("privacy.visibility=individual", f"task.data-dir={tmp_path}")
    with kits(tmp_path / "kits", 1, settings=settings, task="operations_tasks:Slow") as federation:
        target = federation.start("target", f"metrics.port={port}", env=PATHS)
        with (tmp_path / "loading").open():
            assert health(port) == (200, 503)
        (tmp_path / "go").write_text("")
        target.until("listens on")
        assert health(port) == (200, 200)


def test_a_source_that_ends_leaves_the_port(federation: Kits) -> None:
    port = free_port()
    source = federation.start("source-1", f"metrics.port={port}", "transport.reconnect-deadline-s=2")
    source.until("cannot reach")
    assert health(port) == (200, 503)
    assert source.end() == ExitCode.CONNECTION
    with pytest.raises(urllib.error.URLError, match="refused"):
        status(port, "/healthz")
