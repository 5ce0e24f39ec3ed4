"""T05: the victim does not mask with keys that their owners have not signed."""

from functools import partial

import pytest

from securefda.protocol.messages import MaskedInput, ShareBundle
from threat_model.adversaries.key_substitution import ALL_KEYS, KeySubstitution
from threat_model.scores import is_recovered
from threat_model.stage import MakesStage, Stage
from threat_model.switches import checks_off, switched_off

VICTIM = 2


def assert_nothing_left_the_victim(stage: Stage, check: str) -> None:
    assert stage.alarms(VICTIM) == [check]
    assert [abort.check for abort in stage.aborts(VICTIM)] == [check]
    assert stage.said(VICTIM, ShareBundle) == []
    assert stage.said(VICTIM, MaskedInput) == []
    assert stage.adversary.attack() is None


@pytest.mark.threat("T05")
def test_victim_aborts_when_the_relay_puts_its_own_keys_in_place_of_everyone_elses(staged: MakesStage) -> None:
    stage = staged(aggregator=partial(KeySubstitution, victim=VICTIM)).play()
    assert_nothing_left_the_victim(stage, "KEY_SIGNATURE")


@pytest.mark.threat("T05")
@pytest.mark.parametrize("field", ALL_KEYS)
def test_one_replaced_field_of_one_source_is_enough_to_abort(staged: MakesStage, field: str) -> None:
    adversary = partial(KeySubstitution, victim=VICTIM, fields=(field,), only=frozenset({4}))
    stage = staged(aggregator=adversary).play()
    assert_nothing_left_the_victim(stage, "KEY_SIGNATURE")


@pytest.mark.threat("T05")
@pytest.mark.control
def test_relay_recovers_the_input_exactly_from_a_victim_that_does_not_check_the_signatures(staged: MakesStage) -> None:
    stage = staged(aggregator=partial(KeySubstitution, victim=VICTIM))
    with switched_off(checks_off("KEY_SIGNATURE"), roster=stage.roster):
        stage.play()
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))
    assert not is_recovered(stage.adversary.attack(), stage.update(3), stage.precision(VICTIM))
