"""What listens: of every command that opens a port the addresses, and of the package the modules that can open one."""

from __future__ import annotations

import ast
import re
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from depth import at_depth
from e2e_processes import REPOSITORY, Process, kits
from free_ports import free_port
from listening import listening

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc/net")

HERE = "127.0.0.1"
TABLE = (REPOSITORY / "threat_model" / "ports.md").read_text()
OPENING = {
    *("listen", "bind", "create_server", "create_unix_server", "start_server", "start_unix_server", "make_server"),
    *("add_secure_port", "add_insecure_port", "HTTPServer", "ThreadingHTTPServer", "start_http_server", "Listener"),
    *("init_process_group", "TCPStore", "SyncManager", "BaseManager", "ray.init", "uvicorn.run", "uvicorn.Server"),
}
"""Names of calls that open a port, here or in a library."""


def calls_of(module: Path) -> set[str]:
    """Names of what a module calls, with and without what is before the dot."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Call):
            whole = ast.unparse(node.func)
            found |= {whole, whole.rpartition(".")[2]}
    return found


def test_the_modules_that_open_a_port_are_those_of_the_table() -> None:
    package = REPOSITORY / "securefda"
    opening = {
        ".".join(module.relative_to(package).with_suffix("").parts)
        for module in package.rglob("*.py")
        if calls_of(module) & OPENING
    }
    rows = [line.split("|") for line in TABLE.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall("`([^`]+)`", row[-2])}
    assert opening - {"site.preflight"} == named - {"site.preflight"}
    assert "site.preflight" in opening & named


def test_sites_listen_as_the_table_says_also_a_source_in_two_processes(tmp_path: Path) -> None:
    ports = {site: free_port() for site in ("target", "source-1")}
    with kits(tmp_path, settings=("strategy.rounds=5000",)) as federation:
        target = federation.start("target", f"metrics.port={ports['target']}").until("listens on")
        source = federation.start("source-1", f"metrics.port={ports['source-1']}", "training.processes=2")
        others = [federation.start(site) for site in ("source-2", "source-3")]
        target.until("round 1 of")
        found = {site: listening(process.process.pid) for site, process in (("target", target), ("source-1", source))}
        assert found["target"] == {("tcp", HERE, federation.port), ("tcp", HERE, ports["target"])}
        assert found["source-1"] == {("tcp", HERE, ports["source-1"])}
        assert listening(others[0].process.pid) == set()


def test_a_run_listens_on_one_port_of_the_loopback_address_and_a_dashboard_too(tmp_path: Path) -> None:
    with kits(tmp_path / "kits") as federation:
        out = tmp_path / "out"
        run = Process(["run", str(federation.file), "--out", str(out), "--set", "strategy.rounds=5000"])
        run.until("round 1 of")
        assert [(kind, address) for kind, address, _ in listening(run.process.pid)] == [("tcp", HERE)]
        if find_spec("starlette") is not None:
            dashboard = Process(["dashboard", str(out), "--port", str(port := free_port())])
            while not (found := listening(dashboard.process.pid)) and dashboard.process.poll() is None:
                time.sleep(0.05)
            assert found == {("tcp", HERE, port)}
            dashboard.kill()
        run.kill()


def test_a_simulation_listens_on_nothing_and_on_every_address_where_ray_may(tmp_path: Path) -> None:
    with kits(tmp_path / "kits") as federation:
        command = ["simulate", str(federation.file), "--set", "strategy.rounds=5000"]
        alone = Process([*command, "--out", str(tmp_path / "alone")]).until("round 1 of")
        assert listening(alone.process.pid) == set()
        alone.kill()
        if at_depth(False, find_spec("ray") is not None):
            ray = Process([*command, "--out", str(tmp_path / "ray"), "--engine", "ray", "--ray-exposed"])
            ray.until("round 1 of")
            assert {"0.0.0.0", "::"} & {address for _, address, _ in listening(ray.process.pid)}
            ray.kill()
