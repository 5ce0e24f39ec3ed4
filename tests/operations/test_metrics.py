"""Metrics: what is counted, over HTTP on 127.0.0.1 or where a site says, and a port that somebody has."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from operations_roster import FINISHED, SITES, Console, roster
from prometheus_client.parser import text_string_to_metric_families

from securefda.errors import (
    ConfigError,
    ExitCode,
    FaultyAggregatorError,
    FaultySourceError,
    PolicyRefusal,
    ProtocolError,
    SourceAborted,
)
from securefda.operations import SourceWatch, TargetWatch, watch_source, watch_target
from securefda.operations.metrics import MOST_CHECKS, TargetMetrics
from securefda.operations.notes import Note
from securefda.operations.records import RoundLine
from securefda.site.config import LoggingSection, MetricsSection

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
Samples = dict[tuple[str, tuple[str, ...]], float]


def read(port: int) -> str:
    with DIRECT.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def samples(port: int) -> Samples:
    """(name, label values) -> value, without the times at which series began."""
    families = text_string_to_metric_families(read(port))
    every = (sample for family in families for sample in family.samples)
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for sample in every
        if not sample.name.endswith("_created")
    }


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def target(tmp_path: Path, port: int) -> Iterator[TargetWatch]:
    with watch_target(Console(), LoggingSection(), MetricsSection(port=port), out=tmp_path, roster=roster()) as watch:
        yield watch


@pytest.fixture
def source(tmp_path: Path, port: int) -> Iterator[SourceWatch]:
    settings = MetricsSection(port=port)
    with watch_source(Console(), LoggingSection(), settings, out=tmp_path, roster=roster(), site=SITES[1]) as watch:
        yield watch


def test_a_round_counts_with_its_phases_bytes_attempts_refusals_and_epsilon(target: TargetWatch, port: int) -> None:
    target.round_started(3, 50)
    target.round_finished(FINISHED)
    found = samples(port)
    expected: Samples = {
        ("securefda_rounds_total", ("finished",)): 1,
        ("securefda_current_round", ()): 3,
        ("securefda_planned_rounds", ()): 50,
        ("securefda_attempts_total", ()): 2,
        ("securefda_retries_total", ()): 1,
        ("securefda_round_phase_seconds_count", ("training",)): 1,
        ("securefda_round_phase_seconds_sum", ("training",)): 2.5,
        ("securefda_round_phase_seconds_sum", ("masked input",)): 0.25,
        ("securefda_received_bytes_total", ("hospital-a",)): 1000,
        ("securefda_received_bytes_total", ("hospital-b",)): 2000,
        ("securefda_sent_bytes_total", ("hospital-b",)): 501,
        ("securefda_refusals_total", ("release.max-rounds",)): 1,
        ("securefda_epsilon_spent", ()): 1.25,
        ("securefda_connected_sources", ()): 0,
    }
    assert {key: found.get(key) for key in expected} == expected


def test_the_end_of_the_certificate_is_a_metric(tmp_path: Path, port: int) -> None:
    ends = datetime(2027, 3, 1, tzinfo=UTC)
    watching = watch_target(
        Console(), LoggingSection(), MetricsSection(port=port), out=tmp_path, roster=roster(), certificate_ends=ends
    )
    with watching:
        assert samples(port)["securefda_certificate_ends_seconds", ()] == ends.timestamp()


def test_rounds_add_up_and_a_lost_one_counts_as_lost(target: TargetWatch, port: int) -> None:
    lost: RoundLine = {"round": 4, "status": "lost", "attempts": 1, "bytes_up": {"hospital-a": 7}, "refused": {}}
    for line in (FINISHED, lost):
        target.round_finished(line)
    found = samples(port)
    assert found["securefda_rounds_total", ("lost",)] == 1
    assert found["securefda_received_bytes_total", ("hospital-a",)] == 1007
    assert found["securefda_attempts_total", ()] == 3


def test_alarms_and_aborts_count_by_check(target: TargetWatch, port: int) -> None:
    target.note(Note("alarm: hospital-a fails check WIRE: too long", "error", "hospital-a", alarm="WIRE"))
    target.note(Note.alarm_of(FaultySourceError("hospital-a", "RANGE")))
    target.note(Note.alarm_of(SourceAborted("hospital-b", "KEY_ORDER", "source hospital-b aborted")))
    target.note("hospital-a left")
    found = {key: value for key, value in samples(port).items() if key[0].endswith(("alarms_total", "aborts_total"))}
    assert found == {
        ("securefda_alarms_total", ("WIRE",)): 1,
        ("securefda_alarms_total", ("RANGE",)): 1,
        ("securefda_aborts_total", ("KEY_ORDER",)): 1,
    }


def test_connected_sources_are_asked_for_at_every_reading(target: TargetWatch, port: int) -> None:
    connected: set[int] = set()
    target.follow(lambda: "ab" * 16, lambda: connected)
    before = samples(port)["securefda_connected_sources", ()]
    connected.update((1, 3))
    assert (before, samples(port)["securefda_connected_sources", ()]) == (0, 2)


def test_a_source_counts_its_rounds_refusals_alarms_aborts_and_epsilon(source: SourceWatch, port: int) -> None:
    rounds = source.rounds(Console())
    rounds.round_started(1, "sum", "fedgp_auto")
    rounds.round_finished({"round": 1, "epsilon": 0.5, "samples": 40417, "loss": 0.51513, "beta": 0.31931})
    rounds.alarm(FaultyAggregatorError("HEADER_MODEL"))
    rounds.alarm(ProtocolError("QUORUM", "the aggregator aborted at shares: QUORUM"))
    rounds.alarm(PolicyRefusal("min-others", 1, 2))
    expected: Samples = {
        ("securefda_rounds_total", ("finished",)): 1,
        ("securefda_current_round", ()): 1,
        ("securefda_epsilon_spent", ()): 0.5,
        ("securefda_alarms_total", ("HEADER_MODEL",)): 1,
        ("securefda_aborts_total", ("QUORUM",)): 1,
        ("securefda_refusals_total", ("min-others",)): 1,
    }
    assert samples(port) == expected


def test_a_site_without_noise_shows_no_epsilon(target: TargetWatch, port: int) -> None:
    target.round_finished({"round": 1, "status": "finished"})
    assert not any(name == "securefda_epsilon_spent" for name, _ in samples(port))


def test_loss_accuracy_beta_and_row_counts_are_not_among_the_metrics(target: TargetWatch, port: int) -> None:
    target.round_finished({**FINISHED, "seen": [{"level": "individual", "members": ["hospital-a"], "rows": 40417,
                                                 "loss": 0.61613, "accuracy": 0.80817}]})  # fmt: skip
    text = read(port)
    assert not [figure for figure in ("0.70717", "0.51513", "0.31931", "40417", "0.61613", "0.80817") if figure in text]


def test_a_peer_that_makes_up_checks_cannot_make_up_series_without_end() -> None:
    metrics = TargetMetrics()
    for number in range(10 * MOST_CHECKS):
        metrics.alarm(f"CHECK_{number}")
    metrics.alarm("CHECK_0")
    (family,) = [family for family in metrics.registry.collect() if family.name == "securefda_alarms"]
    counts = {sample.labels["check"]: sample.value for sample in family.samples if sample.name.endswith("_total")}
    assert len(counts) == MOST_CHECKS + 1
    assert (counts["CHECK_0"], counts["other"]) == (2, 9 * MOST_CHECKS)


def test_the_port_is_open_on_the_loopback_address_alone(target: TargetWatch, port: int) -> None:
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if " 0A " in line]
    assert [address for address in listening if address.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]
    assert f":{port:04X} " not in Path("/proc/net/tcp6").read_text() if Path("/proc/net/tcp6").exists() else True


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
def test_only_reading_is_possible(target: TargetWatch, port: int, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="405"):
        DIRECT.open(f"http://127.0.0.1:{port}{path}", data=b"securefda_rounds_total 7", timeout=10)


def test_probes_hear_whether_the_process_lives_and_is_ready_and_nothing_else(target: TargetWatch, port: int) -> None:
    def answer(path: str) -> tuple[int, str]:
        try:
            with DIRECT.open(f"http://127.0.0.1:{port}{path}", timeout=10) as found:
                return found.status, found.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    assert (answer("/healthz"), answer("/readyz")) == ((200, "ok\n"), (503, "not ready\n"))
    target.ready.set()
    assert (answer("/healthz"), answer("/readyz")) == ((200, "ok\n"), (200, "ok\n"))


def test_the_port_is_free_again_when_the_process_is_done(tmp_path: Path, port: int) -> None:
    for _ in range(2):
        with watch_target(Console(), LoggingSection(), MetricsSection(port=port), out=tmp_path, roster=roster()):
            read(port)
    with pytest.raises(urllib.error.URLError):
        read(port)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    with ExitStack() as stack:
        yield lambda port, **more: stack.enter_context(
            watch_target(Console(), LoggingSection(), MetricsSection(port=port, **more), out=tmp_path, roster=roster())
        )


def test_a_port_that_somebody_has_is_one_clear_line_and_exit_code_4(start: Callable[..., Any], port: int) -> None:
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ConfigError) as caught:
        start(port)
    assert str(caught.value) == f"metrics.port: {port} on 127.0.0.1 cannot be opened: Address already in use"
    assert caught.value.hint == "set another port, or 0 for no metrics"
    assert caught.value.exit_code is ExitCode.CONFIG


def test_an_address_of_another_machine_is_one_clear_line_and_exit_code_4(start: Callable[..., Any], port: int) -> None:
    with pytest.raises(ConfigError) as caught:
        start(port, host="192.0.2.7")
    assert str(caught.value) == "metrics.host: 192.0.2.7 is no address of this machine"
    assert caught.value.hint == "name one of its addresses, or 0.0.0.0 for all"
    assert caught.value.exit_code is ExitCode.CONFIG


@pytest.mark.parametrize(("host", "others"), [("127.0.0.1", False), ("0.0.0.0", True), ("::", True)])
def test_metrics_are_on_no_address_but_the_named_one(
    start: Callable[..., Any], port: int, host: str, others: bool
) -> None:
    if ":" in host and not Path("/proc/net/if_inet6").exists():
        pytest.skip("needs IPv6")
    start(port, host=host)
    for address, answers in (("127.0.0.1", True), ("127.0.0.2", others)):
        with socket.socket() as probe:
            assert (probe.connect_ex((address, port)) == 0) is answers
