"""Peers that lie, fall silent, are slow or of another version: the honest side ends in time, and says who and why.

The honest side is a process, started as people start it; it ends with 12 or 2 and one line that names the phase, the
check and the accused, or goes on without the accused where enough others are left.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from bad_peers import (
    Lie,
    Peers,
    another_history,
    another_nonce,
    broken_key_list,
    first_header_only,
    made_first_model,
    no_witness,
    of_suite_2,
    stalled,
)
from e2e_processes import assert_one_clear_line, kits

from securefda.errors import ExitCode

SHORT = (
    "strategy.rounds=4",
    "strategy.warm-up-rounds=0",
    "session.attempts=1",
    "transport.heartbeat-s=2",
    "transport.training-deadline-s=5",
    "transport.phase-deadline-s=5",
    "transport.join-deadline-s=10",
)
PATIENT = (*SHORT, "transport.join-deadline-s=60")  # a source's process takes its time to start on a busy machine
HASTY = (*PATIENT, "transport.training-deadline-s=1", "transport.phase-deadline-s=1")


def test_a_source_that_lies_is_named_and_the_round_goes_on_without_it(tmp_path: Path) -> None:
    settings = ("strategy.rounds=1", "strategy.warm-up-rounds=0")
    with kits(tmp_path, 4, settings=settings) as federation, Peers(federation) as peers:
        aggregator = federation.start("target")
        for site in federation.names[:3]:
            peers.source(site)
        peers.source("source-4", another_nonce)
        assert aggregator.end() == ExitCode.OK, aggregator.text
        assert "alarm: source source-4 fails check SHARE_NONCE (shares)" in aggregator.text
        (line,) = federation.rounds()
        assert (line["survivors"], line["dropped"], line["attempts"]) == (federation.names[:3], ["source-4"], 1)


@pytest.mark.parametrize(
    ("lie", "phase", "fault"),
    [
        (another_nonce, "collecting shares of the keys", "fails check SHARE_NONCE at shares"),
        (stalled, "sources train and send their keys", "no answer in time"),
        (no_witness, "gathering sources", "has not cosigned the aggregator's log"),
        (another_history, "gathering sources", "fails check CHECKPOINT_ORIGIN"),
        (of_suite_2, "gathering sources", "fails check WIRE: suite 2 is not known here"),
    ],
    ids=["lying", "slow", "without a cosignature", "with another log", "of another version"],
)
def test_a_source_without_which_no_round_works_ends_the_run_and_is_named(
    tmp_path: Path, lie: Lie, phase: str, fault: str
) -> None:
    with kits(tmp_path, settings=SHORT) as federation, Peers(federation) as peers:
        aggregator = federation.start("target", "strategy.rounds=1")
        for site in federation.names[:2]:
            peers.source(site)
        peers.source("source-3", lie)
        expected = (phase, "2 of at least 3", f"missing: source-3 ({fault})")
        assert_one_clear_line(aggregator, ExitCode.QUORUM, *expected)
        assert federation.summary()["error"]["code"] == "QuorumLost"


def test_a_source_that_falls_silent_ends_the_run_and_is_named(tmp_path: Path) -> None:
    settings = (*SHORT, "transport.heartbeat-s=1")
    with kits(tmp_path, settings=settings) as federation, Peers(federation) as peers:
        aggregator = federation.start("target")
        silent = federation.start("source-3")
        aggregator.until("source-3 joined")
        silent.process.send_signal(signal.SIGSTOP)
        for site in federation.names[:2]:
            peers.source(site)
        assert_one_clear_line(aggregator, ExitCode.QUORUM, "gathering sources", "missing: source-3 (silent for 3 s)")


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        (broken_key_list, ("aggregator fails check KEY_SIGNATURE", "(round 3, advertise)")),
        (
            made_first_model,
            ("aggregator fails check HEADER_INITIAL_MODEL", "not the task's own first model", "(header of round 3)"),
        ),
        (of_suite_2, ("aggregator fails check WIRE: suite 2 is not known here", "(between rounds)")),
        (
            first_header_only(),
            ("aggregator fails check DEADLINE: no message from the aggregator for 6 s", "(between rounds)"),
        ),
    ],
    ids=["lying", "asking by a made model", "of another version", "slow"],
)
def test_a_source_leaves_an_aggregator_that_breaks_the_protocol_and_names_it(
    tmp_path: Path, lie: Lie, expected: tuple[str, ...]
) -> None:
    slow = "DEADLINE" in expected[0]
    settings = HASTY if slow else PATIENT
    with kits(tmp_path, settings=settings) as federation, Peers(federation) as peers:
        peers.aggregator(lie)
        for site in federation.names[1:]:
            peers.source(site)
        source = federation.start("source-1", "transport.idle-deadline-s=6")
        assert_one_clear_line(source, ExitCode.CONNECTION, *expected, hint="target")
        if slow:
            assert "aggregator fails check DEADLINE: no message in time (round 1, advertise)" in source.text


@pytest.mark.threat("T38")
def test_a_source_that_was_asked_in_one_run_joins_no_other_until_its_operator_says_so(tmp_path: Path) -> None:
    """F1: a question in one run, and then the aggregator hangs up and names another."""
    settings = ("privacy.visibility=individual", "strategy.warm-up-rounds=0", "strategy.rounds=5000")
    with kits(tmp_path, 1, settings=settings) as federation:
        aggregator = federation.start("target")
        source = federation.start("source-1").until("round 1 of ")
        aggregator.kill()
        federation.start("target", f"aggregator.out={tmp_path / 'other-run'}")
        assert_one_clear_line(source, ExitCode.CONFIG, "belongs to run", hint="--out FOLDER")
        new_folder = f"source.out={tmp_path / 'again'}"
        again = federation.start("source-1", new_folder)
        assert_one_clear_line(again, ExitCode.POLICY, "release.max-runs", "after 1 in 24 hours", hint="--accept-run")
        settings_file = federation.kit("source-1") / "local" / "settings.toml"
        consenting = federation.start_command("source", settings_file, new_folder, flags=["--accept-run"])
        printed = consenting.until("round 1 of ")
        assert "--accept-run: one run beyond release.max-runs may begin" in printed.text


def test_a_source_gives_up_on_an_aggregator_that_falls_silent(tmp_path: Path) -> None:
    with kits(tmp_path) as federation:
        aggregator = federation.start("target").until("listens on")
        source = federation.start("source-1", "transport.reconnect-deadline-s=2")
        aggregator.until("source-1 joined")
        aggregator.process.send_signal(signal.SIGSTOP)
        assert_one_clear_line(source, ExitCode.CONNECTION, str(federation.port), "gave up after 2 s", hint="runs")
