"""Secrets live no longer than the step that needs them, and none outlives a session, however it ends."""

from __future__ import annotations

import pytest
from cohort import PHASES, Cohort, leaving, secrets_in

from securefda.protocol import source_session as src
from securefda.protocol.header_checks import quantisation

VICTIM = 2
DROPS = {5: 2}


def cohort_after(answers: int) -> Cohort:
    """Six sources that have sent their messages of phases R0 up to number ``answers - 1``."""
    cohort = Cohort(6, leaving(DROPS), {"threshold": 4})
    cohort.exchange(answers - 1)
    cohort.answer()
    return cohort


@pytest.mark.parametrize("answers", range(1, 6), ids=PHASES)
def test_session_that_dies_in_a_phase_leaves_no_secret(answers: int) -> None:
    phase = cohort_after(answers).phases[VICTIM]
    held = len(list(secrets_in(phase)))
    assert held == {1: 4, 2: 6, 3: 12, 4: 12, 5: 0}[answers]
    src.erase(phase)
    assert list(secrets_in(phase)) == []


def test_session_that_dies_before_it_masks_leaves_no_secret() -> None:
    cohort = cohort_after(2)
    cohort.collect()
    cohort.close()
    ready = src.receive_shares(cohort.phases[VICTIM], cohort.inbox[VICTIM])
    assert len(list(secrets_in(ready))) == 2 + 12
    src.erase(ready)
    assert list(secrets_in(ready)) == []


@pytest.mark.parametrize("answers", [1, 3, 4], ids=["R1 shares", "R3 signature", "R4 unmask"])
def test_phase_that_was_left_holds_no_secret(answers: int) -> None:
    cohort = cohort_after(answers)
    cohort.collect()
    cohort.close()
    left = cohort.phases[VICTIM]
    cohort.answer()
    assert list(secrets_in(left)) == []


def test_keys_are_gone_once_the_masked_input_is_made() -> None:
    cohort = cohort_after(2)
    cohort.collect()
    cohort.close()
    left = cohort.phases[VICTIM]
    ready = src.receive_shares(left, cohort.inbox[VICTIM])
    keys = {ready.secrets.master.reveal(), ready.secrets.self_secret.reveal()}
    assert keys <= set(secrets_in(ready))
    following, _, _ = src.masked_input(ready, cohort.encoded(VICTIM), quantisation(cohort.header.body))
    assert list(secrets_in(left)) == []
    assert keys.isdisjoint(secrets_in(following))
