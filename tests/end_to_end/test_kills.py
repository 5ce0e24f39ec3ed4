"""Processes are killed at drawn points: no second release, no ledger below what was trained, and the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from depth import at_depth
from killings import (
    NOISY,
    assert_charged,
    kill_a_federation,
    releases_once,
)

KILLS = at_depth(6, 60)
SITES = ("target", "source-1", "source-2", "source-3", "source-4")


@pytest.mark.parametrize("seed", at_depth([1], [1, 2, 3, 4]))
def test_a_federation_whose_processes_are_killed_releases_nothing_twice_and_goes_on(tmp_path: Path, seed: int) -> None:
    account = kill_a_federation(tmp_path, seed, KILLS)
    assert account.struck.total() + account.ended.total() >= KILLS
    assert account.logs == len(SITES)
    assert account.trained >= 2
    assert account.released >= 4
    assert account.rounds["finished"] >= 2


@pytest.mark.parametrize("seed", at_depth([1], [1, 2]))
def test_a_source_whose_ranks_are_killed_releases_nothing_twice_and_goes_on(tmp_path: Path, seed: int) -> None:
    kills = at_depth(3, 15)
    account = kill_a_federation(tmp_path, seed, kills, team=NOISY[0])
    assert account.struck.total() + account.ended.total() >= kills
    assert {name.split()[0] for name in account.struck} == {"leader", "follower"}
    assert account.logs == len(SITES)
    assert account.trained >= 2


def test_a_second_release_of_a_round_is_found() -> None:
    """Companion: two sessions of one round, each with a vector."""
    header = {"what": "header", "session": "a", "round": 3}
    sent = {"what": "released", "session": "a", "digest": "1"}
    assert releases_once([header, sent, sent]) == 1  # the same message again, on another connection
    for session, digest in (("a", "2"), ("b", "1")):
        other = [{**header, "session": session}, {**sent, "session": session, "digest": digest}]
        with pytest.raises(AssertionError, match="more than one release"):
            releases_once([header, sent, *other])


def test_a_ledger_below_what_was_trained_is_found() -> None:
    """Companion: an attempt that is not charged, and one that is charged for fewer steps."""
    assert_charged({("run", 1, 1): 4}, {("run", 1, 1): 4, ("run", 2, 1): 4})
    for charged in ({}, {("run", 1, 1): 3}, {("run", 1, 2): 4}):
        with pytest.raises(AssertionError, match="trained and not charged"):
            assert_charged({("run", 1, 1): 4}, charged)
