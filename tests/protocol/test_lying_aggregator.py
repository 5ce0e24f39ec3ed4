"""A source refuses each lie of the aggregator by name, and continues with the truth as if no lie had come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from cohort import PHASES, AnySigned, Cohort, over_the_wire, refused_for, resigned, secrets_in
from lies_of_aggregator import COLLUDER, LIES, OUTSIDE, VICTIM, Lie
from phases import OVER
from test_session import assert_sum_is_exact

from securefda.protocol import source_session as src


def cohort_before(slot: int, **setup: object) -> Cohort:
    """Five sources, of which the victim has the aggregator's message of a slot in its inbox."""
    cohort = Cohort(5, **setup)  # type: ignore[arg-type]
    cohort.exchange(slot)
    return cohort


def assert_refused(cohort: Cohort, lie: object, check: str) -> None:
    """The victim names the check, answers nothing, and its phase accepts the honest message afterwards."""
    phase = cohort.phases[VICTIM]
    with refused_for(check):
        cohort.step(VICTIM, lie)  # type: ignore[arg-type]
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


def test_shares_are_erased_where_a_box_cannot_be_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    lie = next(lie for lie in LIES if "box key of low order" in lie.name)
    cohort, split, made = cohort_before(lie.slot, **lie.setup), src._split, []
    monkeypatch.setattr(src, "_split", lambda *args: made.append(split(*args)) or made[-1])
    with refused_for("KEY_INVALID"):
        cohort.step(VICTIM, over_the_wire(lie.tell(cohort, cohort.inbox[VICTIM])))
    assert len(made[0]) == 5
    assert list(secrets_in(tuple(made[0].values()))) == []


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
    with refused_for("KEY_INVALID"):
        cohort.step(VICTIM, cohort.inbox[VICTIM])
    assert VICTIM not in cohort.vectors


def _same(honest: AnySigned) -> AnySigned:
    return honest


def _other_lists(honest: AnySigned) -> AnySigned:
    *alive, last = honest.body.survivors
    return resigned(honest, replace(honest.body, survivors=tuple(alive), dropped=(last.index,)))


def _fewer_boxes(honest: AnySigned) -> AnySigned:
    return resigned(honest, type(honest.body)(honest.body.boxes[:-1]))


@pytest.mark.parametrize(
    ("slot", "second"),
    [(1, _same), (2, _same), (2, _fewer_boxes), (3, _same), (3, _other_lists), (4, _same)],
    ids=["key list", "shares", "other shares", "survivors", "other survivors", "consistency"],
)
def test_source_uses_a_phase_once_so_that_a_second_message_gets_no_answer(
    slot: int, second: Callable[[AnySigned], AnySigned]
) -> None:
    cohort = cohort_before(slot)
    message = cohort.inbox[VICTIM]
    cohort.step(VICTIM, message)
    with pytest.raises(ValueError, match=r"erased|not 0"):
        cohort.step(VICTIM, second(message))


def test_every_phase_but_the_first_has_lies() -> None:
    assert {lie.slot for lie in LIES} == set(range(1, len(PHASES) + 1))
