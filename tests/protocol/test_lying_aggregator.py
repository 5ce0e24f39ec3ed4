"""A source refuses each lie of the aggregator by name, and continues with the truth as if no lie had come."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cohort import OVER, PHASES, Cohort, over_the_wire, resigned
from lies_of_aggregator import COLLUDER, LIES, OUTSIDE, VICTIM, Lie
from test_session import assert_sum_is_exact

from securefda.errors import FaultyAggregatorError
from securefda.protocol.messages import Survivors


def cohort_before(slot: int, **setup: object) -> Cohort:
    """Five sources, of which the victim has the aggregator's message of a slot in its inbox."""
    cohort = Cohort(5, **setup)  # type: ignore[arg-type]
    for _ in range(slot):
        cohort.exchange()
    return cohort


def assert_refused(cohort: Cohort, lie: object, check: str) -> None:
    """The victim names the check, answers nothing, and its phase accepts the honest message afterwards."""
    phase = cohort.phases[VICTIM]
    with pytest.raises(FaultyAggregatorError) as refused:
        cohort.step(VICTIM, lie)  # type: ignore[arg-type]
    assert refused.value.check == check
    assert cohort.phases[VICTIM] is phase
    if cohort.opened is None:
        assert_sum_is_exact(cohort, {})
    else:
        cohort.answer()
    assert cohort.phases[VICTIM] is OVER


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_source_refuses_lie_and_nothing_else_changes(lie: Lie) -> None:
    cohort = cohort_before(lie.slot, **lie.setup)
    assert_refused(cohort, over_the_wire(lie.tell(cohort, cohort.inbox[VICTIM])), lie.check)


@pytest.mark.parametrize("slot", range(1, 6), ids=["key list", "shares", "survivors", "consistency", "result"])
@pytest.mark.parametrize("check", OUTSIDE)
def test_source_refuses_false_outside_of_every_message(check: str, slot: int) -> None:
    cohort = cohort_before(slot)
    assert_refused(cohort, OUTSIDE[check](cohort.inbox[VICTIM]), check)


def test_source_refuses_mask_key_of_low_order_and_its_input_stays_as_it_was() -> None:
    """A colluding source signs the key and the aggregator lets it pass, so it is found when the masks are made."""
    cohort = Cohort(5).until(0)
    own = cohort.outbox[COLLUDER]
    low_order = resigned(own, replace(own.body, mask_key=bytes(32)))
    cohort.phases[COLLUDER] = replace(cohort.phases[COLLUDER], own=low_order)
    del cohort.outbox[COLLUDER]
    cohort.collect()
    received = {**cohort.aggregator.received, COLLUDER: low_order}
    cohort.aggregator = type(cohort.aggregator)(cohort.session, received)
    cohort.close()
    cohort.exchange()
    with pytest.raises(FaultyAggregatorError) as refused:
        cohort.step(VICTIM, cohort.inbox[VICTIM])
    assert refused.value.check == "KEY_INVALID"
    assert VICTIM not in cohort.vectors


@pytest.mark.parametrize("slot", range(1, 5), ids=["key list", "shares", "survivors", "consistency"])
def test_source_uses_a_phase_once_so_that_a_second_honest_message_gets_no_answer(slot: int) -> None:
    cohort = cohort_before(slot)
    message = cohort.inbox[VICTIM]
    cohort.step(VICTIM, message)
    with pytest.raises(ValueError, match=r"erased|not 0"):
        cohort.step(VICTIM, message)


def test_source_signs_no_second_pair_of_survivor_lists() -> None:
    cohort = cohort_before(3)
    honest = cohort.inbox[VICTIM]
    cohort.step(VICTIM, honest)
    alive = honest.body.survivors
    other = resigned(honest, Survivors(alive[:-1], (alive[-1].index,)))
    with pytest.raises(ValueError, match="erased"):
        cohort.step(VICTIM, other)


def test_source_makes_no_second_masked_input_for_other_members() -> None:
    cohort = cohort_before(2)
    honest = cohort.inbox[VICTIM]
    cohort.step(VICTIM, honest)
    other = resigned(honest, type(honest.body)(honest.body.boxes[:-1]))
    with pytest.raises(ValueError, match="erased"):
        cohort.step(VICTIM, other)


def test_every_phase_but_the_first_has_lies() -> None:
    assert {lie.slot for lie in LIES} == set(range(1, len(PHASES) + 1))
