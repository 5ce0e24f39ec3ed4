"""T45: connections without a certificate neither end the aggregator nor keep a source out."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from securefda.machine import raise_descriptor_limit
from tests.end_to_end.e2e_processes import Kits, Process, kits
from threat_model.adversaries.open_ports import OpensConnections

DESCRIPTORS, CONNECTIONS = 1024, 1500
"""What a process usually has, and more than that."""

pytestmark = [
    pytest.mark.threat("T45"),
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="sets the limit of another process"),
]


def attacked(federation: Kits, *, last_comes_late: bool, module: str = "securefda.cli") -> Process:
    """The aggregator of a run that is attacked from its first round on, or before its last source comes."""
    if raise_descriptor_limit() < CONNECTIONS + 200:
        pytest.skip(f"this process may not open {CONNECTIONS} connections")
    target = federation.start("target", module=module)
    resource.prlimit(target.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    target.until("listens on")
    *first, last = federation.names
    for site in first if last_comes_late else federation.names:
        federation.start(site)
    target.until("(2 of 3)" if last_comes_late else "round 1 of")
    with OpensConnections(federation.port, CONNECTIONS).holding():
        if last_comes_late:
            federation.start(last)
        target.end()
    return target


def test_a_run_goes_on_under_more_connections_than_there_are_descriptors(tmp_path: Path) -> None:
    with kits(tmp_path, settings=("strategy.rounds=3",)) as federation:
        target = attacked(federation, last_comes_late=True)
        assert [process.end() for process in federation.processes] == [0] * 4, target.text
        assert [line["survivors"] for line in federation.rounds()] == [federation.names] * 3


@pytest.mark.control
def test_they_end_the_aggregator_where_nothing_bounds_them(tmp_path: Path) -> None:
    with kits(tmp_path, settings=("strategy.rounds=5000",)) as federation:
        target = attacked(federation, last_comes_late=False, module="threat_model.unbounded")
        assert target.process.returncode != 0
        assert any("Too many open files" in line for line in target.err), target.text
