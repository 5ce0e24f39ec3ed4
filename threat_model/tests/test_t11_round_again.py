"""T11: no source takes part twice in the same round, whatever the second session is called."""

from __future__ import annotations

from functools import partial

import pytest

from securefda.protocol.messages import Advertise, MaskedInput, Update, Visibility
from threat_model.adversaries.round_again import RoundAgain, Way
from threat_model.scores import is_recovered
from threat_model.stage import MakesStage, Stage
from threat_model.switches import ONE_RUN, RELEASE_FUSE, Switch, checks_off, switched_off

VICTIM, OTHERS = 2, [1, 3, 4, 5]
REFUSALS: dict[Way, str] = {
    "attempt": "RELEASE_FUSE",
    "place": "HEADER_ORDER",
    "unannounced run": "HEADER_RUN",
    "header": "HEADER_REPLAY",
}


def play_twice(stage: Stage, *, restart: bool) -> Stage:
    """The first session and, where sources are to start anew in between, what follows on that."""
    stage.play()
    if restart:
        for index in sorted(stage.sources):
            stage.restart(index)
        stage.go()
    return stage


def assert_only_the_first_sum_was_had(stage: Stage) -> None:
    assert len(stage.adversary.sessions) == 2
    for index in OTHERS:
        assert len(stage.said(index, Advertise)) == 1
        assert len(stage.said(index, MaskedInput)) == 1
    assert next(iter(stage.adversary.sums.values())) is not None
    assert stage.adversary.attack() is None


@pytest.mark.threat("T11")
@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("way", REFUSALS)
def test_round_that_is_asked_for_again_without_one_source_is_refused_by_the_others(
    staged: MakesStage, way: Way, restart: bool
) -> None:
    adversary = partial(RoundAgain, victim=VICTIM, way=way, after_restart=restart)
    stage = play_twice(staged(aggregator=adversary), restart=restart)
    for index in OTHERS:
        assert stage.refusals(index) == [REFUSALS[way]]
        # No result came either, which is an alarm of its own.
        assert [check for check in stage.alarms(index) if check != "DEADLINE"] == [REFUSALS[way]]
    assert_only_the_first_sum_was_had(stage)


@pytest.mark.threat("T11")
@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_round_that_is_asked_for_again_in_another_run_finds_no_source(staged: MakesStage, restart: bool) -> None:
    stage = staged(aggregator=partial(RoundAgain, victim=VICTIM, way="run", after_restart=restart))
    play_twice(stage, restart=restart)
    assert set(stage.not_joined) == {*OTHERS, VICTIM}
    assert all("belongs to run" in str(error) for error in stage.not_joined.values())
    assert all(len(stage.said(index, MaskedInput)) == 1 for index in OTHERS)
    assert stage.adversary.attack() is None


@pytest.mark.threat("T11")
def test_state_file_itself_burns_no_fuse_twice_where_the_header_is_not_asked(staged: MakesStage) -> None:
    stage = staged(aggregator=partial(RoundAgain, victim=VICTIM))
    with switched_off(checks_off("RELEASE_FUSE"), roster=stage.roster):
        stage.play()
    for index in OTHERS:
        assert stage.refusals(index) == ["STORAGE"]
        assert len(stage.said(index, MaskedInput)) == 1
    assert stage.adversary.attack() is None


@pytest.mark.threat("T11")
@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_header_of_a_run_that_was_not_joined_is_refused_also_where_no_fuse_is_burnt(
    staged: MakesStage, restart: bool
) -> None:
    stage = staged(aggregator=partial(RoundAgain, victim=VICTIM, way="unannounced run", after_restart=restart))
    with switched_off(RELEASE_FUSE, roster=stage.roster):
        play_twice(stage, restart=restart)
    assert [stage.refusals(index) for index in OTHERS] == [["HEADER_RUN"]] * 4
    assert_only_the_first_sum_was_had(stage)


@pytest.mark.threat("T11")
@pytest.mark.parametrize("visibility", [Visibility.COHORT, Visibility.INDIVIDUAL])
def test_round_is_not_repeated_at_the_other_levels_either(staged: MakesStage, visibility: Visibility) -> None:
    stage = staged(6, aggregator=partial(RoundAgain, victim=VICTIM), visibility=visibility).play()
    kind = MaskedInput if visibility is Visibility.COHORT else Update
    assert len(stage.said(VICTIM, kind)) == 1
    for index in [*OTHERS, 6]:
        assert stage.refusals(index) == ["RELEASE_FUSE"]
        assert len(stage.said(index, kind)) == 1


@pytest.mark.threat("T11")
@pytest.mark.control
@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize(("way", "off"), [("attempt", RELEASE_FUSE), ("run", ONE_RUN)], ids=["attempt", "run"])
def test_two_sums_give_the_update_of_the_one_between_them_where_a_round_or_a_run_may_follow(
    staged: MakesStage, way: Way, off: Switch, restart: bool
) -> None:
    stage = staged(aggregator=partial(RoundAgain, victim=VICTIM, way=way, after_restart=restart))
    with switched_off(off, roster=stage.roster):
        play_twice(stage, restart=restart)
    assert all(len(stage.said(index, MaskedInput)) == 2 for index in OTHERS)
    assert len(stage.said(VICTIM, MaskedInput)) == 1
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))
    assert not is_recovered(stage.adversary.attack(), stage.update(3), stage.precision(VICTIM))
