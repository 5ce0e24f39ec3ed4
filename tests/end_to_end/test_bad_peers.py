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
    another_nonce,
    broken_key_list,
    first_header_only,
    honest,
    mute,
    no_witness,
    of_suite_2,
)
from e2e_processes import assert_one_clear_line, kits

from securefda.errors import ExitCode

SETTINGS = (
    "strategy.rounds=4",
    "strategy.warm-up-rounds=0",
    "session.attempts=1",
    "transport.heartbeat-s=20",
    "transport.phase-deadline-s=60",
)
"""No deadline here is short enough to expire on a slow machine."""
FROM_SHORT_TO_LONG_S = (1, 4, 16, 64)


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


def test_a_source_without_which_no_round_works_ends_the_run_and_is_named(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SETTINGS) as federation, Peers(federation) as peers:
        aggregator = federation.start("target", "strategy.rounds=1")
        for site in federation.names[:2]:
            peers.source(site)
        peers.source("source-3", another_nonce)
        fault = "missing: source-3 (fails check SHARE_NONCE at shares)"
        expected = ("sources train and send shares of their keys", "2 of at least 3", fault)
        assert_one_clear_line(aggregator, ExitCode.QUORUM, *expected)
        assert federation.summary()["error"]["code"] == "QuorumLost"


def test_a_source_that_cosigns_nothing_ends_the_run_and_is_named(tmp_path: Path) -> None:
    """It alone is waited for: where the two others were not in time, the run is tried again with a longer deadline."""
    for deadline_s in FROM_SHORT_TO_LONG_S:
        settings = (*SETTINGS, f"transport.join-deadline-s={deadline_s}", "transport.phase-deadline-s=1")
        with kits(tmp_path / str(deadline_s), settings=settings) as federation, Peers(federation) as peers:
            aggregator = federation.start("target").until("listens on")
            for site in federation.names:
                peers.source(site, no_witness if site == "source-3" else honest)
            aggregator.end()
            if "2 of at least 3" in aggregator.text:
                break
    missing = "missing: source-3 (has not cosigned the aggregator's log)"
    assert_one_clear_line(aggregator, ExitCode.QUORUM, "gathering sources", "2 of at least 3", missing)


def test_a_source_that_stands_still_is_noticed(tmp_path: Path) -> None:
    with kits(tmp_path) as federation:
        often = "transport.heartbeat-s=0.2"
        aggregator = federation.start("target", often, "transport.join-deadline-s=600")
        source = federation.start("source-3", often)
        aggregator.until("source-3 joined")
        source.process.send_signal(signal.SIGSTOP)
        aggregator.until("source-3: silent for 0.6 s")


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        (broken_key_list, ("aggregator fails check KEY_SIGNATURE", "(round 3, advertise)")),
        (of_suite_2, ("aggregator fails check WIRE: suite 2 is not known here", "(between rounds)")),
    ],
    ids=["lying", "of another version"],
)
def test_a_source_leaves_an_aggregator_that_breaks_the_protocol_and_names_it(
    tmp_path: Path, lie: Lie, expected: tuple[str, ...]
) -> None:
    with kits(tmp_path, settings=SETTINGS) as federation, Peers(federation) as peers:
        peers.aggregator(lie)
        for site in federation.names[1:]:
            peers.source(site)
        source = federation.start("source-1")
        assert_one_clear_line(source, ExitCode.CONNECTION, *expected, hint="target")


def test_a_source_names_an_aggregator_that_is_late_in_a_round(tmp_path: Path) -> None:
    """Its deadline is that of the header, and begins when it has sent its keys: no other site has to be fast."""
    hasty = ("transport.phase-deadline-s=0.1", "transport.training-deadline-s=0.1")
    with kits(tmp_path, settings=(*SETTINGS, *hasty)) as federation, Peers(federation) as peers:
        peers.aggregator(first_header_only())
        for site in federation.names[1:]:
            peers.source(site)
        source = federation.start("source-1")
        source.until("aggregator fails check DEADLINE: no message in time (round 1, advertise)")


def test_a_source_leaves_an_aggregator_that_says_nothing_between_rounds(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SETTINGS) as federation, Peers(federation) as peers:
        peers.aggregator(mute)
        source = federation.start("source-1", "transport.idle-deadline-s=0.5")
        expected = "aggregator fails check DEADLINE: no message from the aggregator for 0.5 s"
        assert_one_clear_line(source, ExitCode.CONNECTION, expected, "(between rounds)", hint="target")


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
