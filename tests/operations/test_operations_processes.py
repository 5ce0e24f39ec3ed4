"""Real processes with logs and metrics on: each site's files and port, read while they run, and no secret in any."""

from __future__ import annotations

import base64
import json
import os
import socket
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_processes import REPOSITORY, Kits, assert_one_clear_line, kits
from free_ports import free_port
from operations_tasks import OPTION_VALUE, ROW_VALUE

from securefda.cli import main
from securefda.errors import ExitCode
from securefda.site.kit import SECRET_FILES

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
SITES = ("target", "source-1", "source-2", "source-3")
LOGS = ("logging.file=site.log", "logging.json-file=site.jsonl", "logging.level=debug")
PATHS = {"PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, Path(__file__).parent, REPOSITORY / "tests/end_to_end")))}


def scrape(port: int) -> list[str]:
    with DIRECT.open(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return text.splitlines()


def json_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "site.jsonl").read_text().splitlines()]


class Watched:
    """A federation whose training was held until its metrics were read; it has ended since."""

    def __init__(self, root: Path, federation: Kits, port: int, scraped: dict[str, list[str]]) -> None:
        self.root, self.federation, self.port, self.scraped = root, federation, port, scraped

    def folder(self, site: str) -> Path:
        return self.federation.kit(site) / "local" / "run"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    root = tmp_path_factory.mktemp("watched")
    (root / "data").mkdir()
    (root / "data" / "hold").write_text("")
    port = free_port(len(SITES))
    settings = (
        f"metrics.port={port}",
        "strategy.rounds=2",
        "strategy.warm-up-rounds=0",
        "strategy.rule=source_only",
        f"task.data-dir={root / 'data'}",
        f"task.options.planted={OPTION_VALUE}",
        *LOGS,
    )
    with kits(root, 3, settings=settings, task="operations_tasks:Planted") as federation:
        processes = {site: federation.start(site, env=PATHS) for site in SITES}
        for site in SITES[1:]:
            processes[site].until("round 1")
        scraped = {site: scrape(port + number) for number, site in enumerate(SITES)}
        (root / "data" / "hold").unlink()
        for site in SITES:
            assert processes[site].end() == 0, processes[site].text
        yield Watched(root, federation, port, scraped)


def test_the_targets_metrics_can_be_read_while_a_round_is_on(watched: Watched) -> None:
    lines = watched.scraped["target"]
    assert not any(line.startswith("securefda_rounds_total{") for line in lines)  # no round has ended
    assert {"securefda_current_round 1.0", "securefda_planned_rounds 2.0", "securefda_connected_sources 3.0"} <= {
        *lines
    }


def test_a_sources_metrics_can_be_read_while_it_trains(watched: Watched) -> None:
    for site in SITES[1:]:
        assert "securefda_current_round 1.0" in watched.scraped[site]


def test_every_site_logs_its_own_run_with_rounds_and_phases(watched: Watched) -> None:
    runs = set()
    for site in SITES:
        lines = json_lines(watched.folder(site))
        assert {line["site"] for line in lines} == {site}
        assert {line["round"] for line in lines} == {0, 1, 2}
        assert lines[-1]["message"] == "ends: the run is over"
        runs |= {line["run"] for line in lines if line["round"]}
    assert runs == {watched.federation.summary()["run_id"]}
    target = json_lines(watched.folder("target"))
    assert {"source-1", "source-2", "source-3"} <= {line["peer"] for line in target}
    assert {"join", "training and R1 shares"} <= {line["phase"] for line in target}
    source = json_lines(watched.folder("source-1"))
    phases = [line["phase"] for line in source if "begins" in line["message"] or "is over" in line["message"]]
    assert phases == ["training", "R4 unmask", "training", "R4 unmask", ""]


def test_the_text_log_has_a_line_for_each_json_line(watched: Watched) -> None:
    for site in SITES:
        text = (watched.folder(site) / "site.log").read_text().splitlines()
        messages = [line["message"] for line in json_lines(watched.folder(site))]
        assert [line.split(" | ", 1)[1] for line in text] == messages


def test_logs_are_their_owners_alone(watched: Watched) -> None:
    for site in SITES:
        for name in ("site.log", "site.jsonl"):
            assert stat.S_IMODE((watched.folder(site) / name).stat().st_mode) == 0o600


def canaries_of(federation: Kits) -> list[bytes]:
    """Secrets as somebody might have written them: keys, a row's value, an option of the task."""
    found = [str(ROW_VALUE).encode(), str(ROW_VALUE)[:7].encode(), OPTION_VALUE.encode()]
    for site in SITES:
        for name in SECRET_FILES:
            key = (federation.kit(site) / "startup" / name).read_bytes()
            lines = [line for line in key.splitlines() if line and b"-----" not in line]
            found += lines
            if b"-----" in key:
                secret = base64.b64decode(b"".join(lines))[-32:]
                found += [secret, secret.hex().encode(), base64.b64encode(secret)]
    return found


def test_no_key_no_value_of_a_row_and_no_option_is_in_any_log_or_metric(watched: Watched) -> None:
    canaries = canaries_of(watched.federation)
    assert len(canaries) > 3 + 2 * len(SITES)
    files = [watched.folder(site) / name for site in SITES for name in ("site.log", "site.jsonl")]
    everything = b"\n".join(file.read_bytes() for file in files)
    everything += "\n".join(line for lines in watched.scraped.values() for line in lines).encode()
    assert len(everything) > 5000
    assert [canary for canary in canaries if canary in everything] == []


def test_an_error_that_quotes_a_row_is_logged_without_its_words(tmp_path: Path) -> None:
    settings = ("strategy.rounds=1", "strategy.warm-up-rounds=0", "strategy.rule=source_only", *LOGS)
    with kits(tmp_path, 3, settings=settings, task="operations_tasks:Quoting") as federation:
        processes = {site: federation.start(site, env=PATHS) for site in SITES}
        assert processes["source-1"].end() == ExitCode.CONFIG, processes["source-1"].text
        folder = federation.kit("source-1") / "local" / "run"
        last = json_lines(folder)[-1]
        assert last["level"] == "error"
        assert "DataError" in last["message"]
        assert "ValueError" in last["message"]
        text = (folder / "site.log").read_bytes() + (folder / "site.jsonl").read_bytes()
        assert [canary for canary in canaries_of(federation) if canary in text] == []
        assert str(ROW_VALUE) in processes["source-1"].text  # on the site's own console, for its operator


def test_a_run_on_one_machine_keeps_each_sites_log_in_its_own_folder(tmp_path: Path) -> None:
    file, out = tmp_path / "federation.toml", tmp_path / "run"
    file.write_text(
        '[federation]\nname = "study"\nsources = ["source-1", "source-2", "source-3"]\n'
        '[task]\nfactory = "securefda.tasks.digits:Digits"\n'
        "[strategy]\nrounds = 2\nwarm-up-rounds = 1\n"
        '[logging]\nfile = "site.log"\njson-file = "site.jsonl"\n'
        f"[metrics]\nport = {free_port(len(SITES))}\n"
    )
    assert main(["run", str(file), "--out", str(out)]) == 0
    for site in SITES:
        lines = json_lines(out if site == "target" else out / "sites" / site)
        assert {line["site"] for line in lines} == {site}
        assert lines[-1]["message"] == "ends: the run is over"


def test_a_port_that_another_process_has_ends_a_site_with_one_line(tmp_path: Path) -> None:
    with kits(tmp_path) as federation, socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        for site in ("target", "source-1"):
            process = federation.start(site, f"metrics.port={taken}")
            assert_one_clear_line(process, ExitCode.CONFIG, f"metrics.port: {taken} on 127.0.0.1", hint="another port")


def test_a_log_that_cannot_be_written_ends_a_site_with_one_line(tmp_path: Path) -> None:
    with kits(tmp_path) as federation:
        for site in ("target", "source-1"):
            process = federation.start(site, "logging.file=/dev/null/site.log")
            assert_one_clear_line(process, ExitCode.CONFIG, "logging.file: /dev/null/site.log", hint="another file")


def test_a_log_on_a_full_disk_does_not_end_a_run(tmp_path: Path) -> None:
    settings = ("strategy.rule=target_only", "strategy.rounds=3", "logging.file=site.log")
    with kits(tmp_path, settings=settings) as federation:
        federation.run_folder.mkdir()
        (federation.run_folder / "site.log").symlink_to("/dev/full")
        target = federation.start("target")
        assert target.end() == 0, target.text
        assert sum("site.log cannot be written (No space left on device)" in line for line in target.err) == 1
        assert len(federation.rounds()) == 3
