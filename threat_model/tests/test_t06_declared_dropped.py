"""T06: nobody opens the input of a source that is declared dropped, though the others give away its master."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from securefda.protocol import agreement
from securefda.protocol.messages import MasterShare, SurvivorSignature, Unmask
from threat_model.adversaries.declared_dropped import DeclaredDropped
from threat_model.scores import NOTHING_LEARNT_COSINE, cosine, is_recovered
from threat_model.stage import MakesStage, Stage
from threat_model.switches import SELF_MASK, switched_off

VICTIM, OTHERS = 2, [1, 3, 4, 5]


def master_is_open(stage: Stage) -> bool:
    """Whether the attacker holds the victim's real master: as many sources believed it as that takes."""
    master, heard = stage.adversary.master_of(VICTIM), stage.adversary.heard
    if master is None:
        return False
    pair = agreement.mask_pair(master, own=VICTIM, ctx=heard.views[VICTIM].ctx)
    return bool(pair.public == heard.advertised[VICTIM].body.mask_key)


def assert_input_stays_hidden(stage: Stage) -> None:
    """The victim gave no share away, the others only shares of its master, and what is left is noise."""
    assert stage.said(VICTIM, Unmask) == []
    for index in OTHERS:
        (answer,) = stage.said(index, Unmask)
        kinds = {type(share) for share in answer.message.body.shares if share.owner == VICTIM}
        assert kinds == {MasterShare}
    assert master_is_open(stage)
    assert abs(cosine(stage.adversary.attack(), stage.update(VICTIM))) < NOTHING_LEARNT_COSINE


@pytest.mark.threat("T06")
def test_source_listed_as_dropped_alarms_and_its_input_stays_hidden(staged: MakesStage) -> None:
    stage = staged(aggregator=partial(DeclaredDropped, victim=VICTIM)).play()
    assert stage.alarms(VICTIM) == ["SURVIVOR_SELF"]
    assert stage.said(VICTIM, SurvivorSignature) == []
    assert_input_stays_hidden(stage)


@pytest.mark.threat("T06")
@pytest.mark.parametrize(("signatures", "check"), [("alike", "CONSISTENCY_QUORUM"), ("all", "CONSISTENCY_VIEW")])
def test_source_that_is_shown_other_lists_than_the_rest_unmasks_nobody(
    staged: MakesStage, signatures: Any, check: str
) -> None:
    adversary = partial(DeclaredDropped, victim=VICTIM, to_victim="true", signatures=signatures)
    stage = staged(aggregator=adversary).play()
    assert stage.alarms(VICTIM) == [check]
    assert_input_stays_hidden(stage)


@pytest.mark.threat("T06")
def test_others_that_are_fewer_than_the_threshold_do_not_believe_it(staged: MakesStage) -> None:
    adversary = partial(DeclaredDropped, victim=VICTIM)
    stage = staged(aggregator=adversary, settings={"threshold": 5}).play()
    assert [stage.alarms(index) for index in OTHERS] == [["SURVIVOR_QUORUM"]] * 4
    assert not any(stage.said(index, Unmask) for index in [VICTIM, *OTHERS])
    assert not master_is_open(stage)
    assert abs(cosine(stage.adversary.attack(), stage.update(VICTIM))) < NOTHING_LEARNT_COSINE


@pytest.mark.threat("T06")
@pytest.mark.control
@pytest.mark.parametrize("to_victim", ["true", "false"])
def test_input_under_pairwise_masks_alone_is_opened_by_the_master_that_the_others_give_away(
    staged: MakesStage, to_victim: Any
) -> None:
    stage = staged(aggregator=partial(DeclaredDropped, victim=VICTIM, to_victim=to_victim))
    with switched_off(SELF_MASK, roster=stage.roster):
        stage.play()
    assert master_is_open(stage)
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))
