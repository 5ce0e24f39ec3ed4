"""T08 at ``cohort``: nobody helps to open an input that was masked in another cohort than the one it knows."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from securefda.protocol.messages import MaskedInput, SurvivorSignature, Unmask, Visibility
from threat_model.adversaries.cohort_isolation import CohortIsolation
from threat_model.scores import NOTHING_LEARNT_COSINE, cosine, is_recovered
from threat_model.stage import MakesStage, Stage
from threat_model.switches import checks_off, switched_off

N, VICTIM = 15, 5
"""Numbers by default: t = 11, cohorts of 4 that open over 3.

About every fourth of 1470 choices of boxes isolates the victim; that none does was not seen in 300 sets of nonces.
"""


def isolated(staged: MakesStage, **options: Any) -> Stage:
    adversary = partial(CohortIsolation, victim=VICTIM, **options)
    return staged(N, aggregator=adversary, visibility=Visibility.COHORT, settings={"attempts": 1})


def signers(stage: Stage) -> set[int]:
    """Return the sources that are shown lists: all but the victim and its mates."""
    mates = stage.adversary.plan.mates
    assert len(mates) == 3
    return set(stage.sources) - {VICTIM, *mates}


@pytest.mark.threat("T08")
@pytest.mark.parametrize("shown", ["verbatim", "left out"])
def test_nobody_unmasks_a_source_that_masked_in_another_cohort(staged: MakesStage, shown: Any) -> None:
    stage = isolated(staged, shown=shown).play()
    assert [len(stage.said(index, MaskedInput)) for index in stage.sources] == [1] * N
    for index in signers(stage):
        assert len(stage.said(index, SurvivorSignature)) == 1
        assert stage.alarms(index) == ["CONSISTENCY_INPUT"]
    assert not any(stage.said(index, Unmask) for index in stage.sources)
    assert not any(stage.accepted(index) for index in stage.sources)
    assert abs(cosine(stage.adversary.attack(), stage.update(VICTIM))) < NOTHING_LEARNT_COSINE


@pytest.mark.threat("T08")
@pytest.mark.control
def test_source_in_a_cohort_of_its_own_is_opened_where_inputs_are_not_looked_at(staged: MakesStage) -> None:
    stage = isolated(staged)
    with switched_off(checks_off("CONSISTENCY_INPUT"), roster=stage.roster):
        stage.play()
    assert {index for index in stage.sources if stage.said(index, Unmask)} == signers(stage)
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))
