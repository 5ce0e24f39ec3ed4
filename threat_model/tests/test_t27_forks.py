"""T27: no site gets two histories of its log cosigned, and no round goes on from a log that too few have seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from securefda.audit.reconcile.reconciled_runs import reconcile_folder
from securefda.protocol.messages import Advertise, Checkpoint, Cosigned, MaskedInput, Update, Visibility
from securefda.rules import Strategy
from threat_model.adversaries.log_forks import ForksLater, SplitsLog, TwoFacedSource, Way
from threat_model.adversaries.sources import ColludingSource
from threat_model.sites import TARGET
from threat_model.stage import MakesStage, Stage
from threat_model.switches import switched_off
from threat_model.unwitnessed import LOG_IN_CONTEXT, NUMBER_OF_WITNESSES, WITNESS_MEMORY, WITNESSED_HEADER
from threat_model.watched import WatchedAggregator

ALL, FIRST, SECOND, COLLUDER = [1, 2, 3, 4, 5], [1, 2], [3, 4], 5
TWO_ROUNDS = {"strategy": Strategy(rule="source_only", rounds=2)}
ONE_COLLUDES = {"max_colluders": 1, "min_others": 1}


def split(
    staged: MakesStage,
    hidden: Path,
    header: str,
    *,
    second: Iterable[int] = SECOND,
    colluders: Iterable[int] = (COLLUDER,),
    **options: Any,
) -> Stage:
    """Two honest sources see the first history, two the second, a colluder cosigns both; four of five are needed."""
    adversary = partial(SplitsLog, second=frozenset(second), hidden=hidden, header=header)
    return staged(5, aggregator=adversary, sources=dict.fromkeys(colluders, ColludingSource), **options)


@pytest.mark.threat("T27")
@pytest.mark.parametrize(("header", "second"), [("own", "WITNESSES"), ("first", "CHECKPOINT_HEADER")])
def test_no_round_begins_where_the_target_shows_two_histories_of_its_log(
    staged: MakesStage, tmp_path: Path, header: str, second: str
) -> None:
    stage = split(staged, tmp_path, header, settings=ONE_COLLUDES).play()
    assert [stage.refusals(index) for index in FIRST] == [["WITNESSES"]] * 2
    assert [stage.refusals(index) for index in SECOND] == [[second]] * 2
    assert all(stage.said(index, Cosigned) for index in ALL)
    assert not any(stage.said(index, Advertise) for index in [*FIRST, *SECOND])


@pytest.mark.threat("T27")
def test_sources_that_were_shown_two_logs_derive_other_masks_where_their_own_cosignature_is_enough(
    staged: MakesStage, tmp_path: Path
) -> None:
    stage = split(staged, tmp_path, "own")
    with switched_off(NUMBER_OF_WITNESSES, roster=stage.roster):
        stage.play()
    assert [stage.alarms(index) for index in [*FIRST, *SECOND]] == [["KEY_SIGNATURE"]] * 4
    assert not any(stage.said(index, MaskedInput) for index in ALL)


def split_by_three(staged: MakesStage, hidden: Path) -> Stage:
    """One honest source sees each history, and three collude, where policies allow for none: both have enough."""
    return split(staged, hidden, "own", second=[2], colluders=[3, 4, 5])


@pytest.mark.threat("T27")
def test_sources_that_were_shown_two_logs_derive_other_masks_where_too_many_sources_collude(
    staged: MakesStage, tmp_path: Path
) -> None:
    """More cosign both histories than witnesses are counted for; what is left is the log in every derivation."""
    stage = split_by_three(staged, tmp_path).play()
    assert [stage.refusals(index) for index in FIRST] == [[]] * 2
    assert [stage.alarms(index) for index in FIRST] == [["KEY_SIGNATURE"]] * 2
    assert not any(stage.said(index, MaskedInput) for index in ALL)
    assert stage.adversary.aggregate() is None


@pytest.mark.threat("T27")
@pytest.mark.control
def test_round_is_finished_over_two_logs_where_no_mask_depends_on_them(staged: MakesStage, tmp_path: Path) -> None:
    stage = split_by_three(staged, tmp_path)
    with switched_off(LOG_IN_CONTEXT, roster=stage.roster):
        stage.play()
    assert [stage.alarms(index) for index in ALL] == [[]] * 5
    assert stage.adversary.aggregate() is not None


@pytest.mark.threat("T27")
def test_no_update_leaves_in_clear_where_the_target_shows_two_histories_of_its_log(
    staged: MakesStage, tmp_path: Path
) -> None:
    """At ``individual`` t is one; so many are asked for that two sets of witnesses share an honest site."""
    stage = split(staged, tmp_path, "own", visibility=Visibility.INDIVIDUAL, settings=ONE_COLLUDES).play()
    assert [stage.refusals(index) for index in [*FIRST, *SECOND]] == [["WITNESSES"]] * 4
    assert not any(stage.said(index, Update) for index in [*FIRST, *SECOND])


@pytest.mark.threat("T27")
@pytest.mark.control
def test_two_histories_in_clear_are_found_only_where_logs_are_compared_if_one_witness_is_enough(
    staged: MakesStage, tmp_path: Path
) -> None:
    in_clear: dict[str, Any] = {"visibility": Visibility.INDIVIDUAL, "settings": ONE_COLLUDES}
    stage = split(staged, tmp_path, "own", recorded=True, **in_clear)
    with switched_off(NUMBER_OF_WITNESSES, roster=stage.roster):
        stage.play()
    assert [stage.accepted(index) for index in ALL] == [1] * 5
    stage.close()
    found = reconcile_folder(stage.folder / "logs").outcome.findings[0]
    assert (found.kind, found.accused) == ("forked-log", ("target",))


# One history after the other.

REFUSED: dict[Way, tuple[str, str]] = {
    "longer": ("CHECKPOINT_FORK", "CHECKPOINT_HEADER"),
    "as long": ("CHECKPOINT_FORK", "CHECKPOINT_HEADER"),
    "shorter": ("CHECKPOINT_SHRINKS", "CHECKPOINT_HEADER"),
    "unheard": ("", "CHECKPOINT_HEADER"),
    "old": ("", "CHECKPOINT_HEADER"),
    "bare": ("", "WITNESSES"),
}
"""A source's answer to the checkpoint, if any, and to the header."""


def forked_later(staged: MakesStage, hidden: Path, way: Way) -> Stage:
    adversary = partial(ForksLater, hidden=hidden, way=way)
    return staged(5, aggregator=adversary, settings=TWO_ROUNDS, recorded=True)


def cosigned_after_the_first_round(stage: Stage, index: int) -> int:
    return len(stage.said(index, Cosigned)) - 1


@pytest.mark.threat("T27")
@pytest.mark.parametrize("way", REFUSED)
def test_no_round_goes_on_from_another_log_than_the_newest_that_its_sources_cosigned(
    staged: MakesStage, tmp_path: Path, way: Way
) -> None:
    stage = forked_later(staged, tmp_path, way).play()
    to_checkpoint, to_header = REFUSED[way]
    for index in ALL:
        assert stage.alarms(index) == [name for name in (to_checkpoint, to_header) if name]
        assert stage.refusals(index) == [to_header]
        assert cosigned_after_the_first_round(stage, index) == (way in {"old", "bare"})
        assert stage.accepted(index) == 1
        assert len(stage.said(index, Advertise)) == 1


@pytest.mark.threat("T27")
@pytest.mark.control
@pytest.mark.parametrize("way", ["longer", "as long", "shorter", "unheard"])
def test_round_goes_on_from_another_history_where_witnesses_remember_no_history(
    staged: MakesStage, tmp_path: Path, way: Way
) -> None:
    stage = forked_later(staged, tmp_path, way)
    with switched_off(WITNESS_MEMORY, roster=stage.roster):
        stage.play()
    assert [stage.alarms(index) for index in ALL] == [[]] * 5
    assert [stage.accepted(index) for index in ALL] == [2] * 5


@pytest.mark.threat("T27")
@pytest.mark.control
@pytest.mark.parametrize("way", ["old", "bare"])
def test_round_goes_on_from_a_log_that_nobody_vouches_for_where_the_header_is_not_checked(
    staged: MakesStage, tmp_path: Path, way: Way
) -> None:
    stage = forked_later(staged, tmp_path, way)
    with switched_off(WITNESSED_HEADER, roster=stage.roster):
        stage.play()
    assert [stage.alarms(index) for index in ALL] == [[]] * 5
    assert [stage.accepted(index) for index in ALL] == [2] * 5


def shown_another_history_after_a_restart(stage: Stage) -> tuple[list[str], int]:
    """Return the first source's answers afterwards, and how often it cosigns."""
    before = len(stage.said(1, Cosigned))
    stage.aggregator.go_on()
    stage.restart(1)
    stage.go()
    return [one for one in stage.alarms(1) if one != "DEADLINE"], len(stage.said(1, Cosigned)) - before


@pytest.mark.threat("T27")
def test_source_that_began_anew_still_knows_what_it_cosigned(staged: MakesStage, tmp_path: Path) -> None:
    stage = staged(5, aggregator=partial(ForksLater, hidden=tmp_path, way="longer")).play()
    assert shown_another_history_after_a_restart(stage) == (["CHECKPOINT_FORK"], 0)


@pytest.mark.threat("T27")
@pytest.mark.control
def test_source_that_began_anew_cosigns_another_history_where_witnesses_remember_none(
    staged: MakesStage, tmp_path: Path
) -> None:
    stage = staged(5, aggregator=partial(ForksLater, hidden=tmp_path, way="longer")).play()
    with switched_off(WITNESS_MEMORY, roster=stage.roster):
        assert shown_another_history_after_a_restart(stage) == ([], 1)


# A source that does it.

LIAR = 3


def with_two_faces(staged: MakesStage, hidden: Path, *, longer: bool) -> Stage:
    liar: Callable[..., Any] = partial(TwoFacedSource, hidden=hidden, longer=longer)
    return staged(5, aggregator=WatchedAggregator, sources={LIAR: liar}, settings=TWO_ROUNDS)


@pytest.mark.threat("T27")
@pytest.mark.parametrize(("longer", "check"), [(True, "CHECKPOINT_FORK"), (False, "CHECKPOINT_SHRINKS")])
def test_source_that_shows_two_histories_is_named_and_takes_no_part_any_more(
    staged: MakesStage, tmp_path: Path, longer: bool, check: str
) -> None:
    stage = with_two_faces(staged, tmp_path, longer=longer).play()
    (alarm,) = stage.aggregator.operator.alarms
    assert alarm.startswith(f"alarm: source source-{LIAR} fails check {check}")
    assert [stage.accepted(index) for index in ALL] == [2, 2, 1, 2, 2]
    assert len(stage.said(TARGET, Cosigned, to=LIAR)) == 1
    assert len(stage.said(LIAR, Checkpoint)) == 2


@pytest.mark.threat("T27")
@pytest.mark.control
@pytest.mark.parametrize("longer", [True, False])
def test_source_that_shows_two_histories_has_both_cosigned_where_the_target_remembers_none(
    staged: MakesStage, tmp_path: Path, longer: bool
) -> None:
    stage = with_two_faces(staged, tmp_path, longer=longer)
    with switched_off(WITNESS_MEMORY, roster=stage.roster):
        stage.play()
    assert stage.aggregator.operator.alarms == []
    assert [stage.accepted(index) for index in ALL] == [2] * 5
    assert len(stage.said(TARGET, Cosigned, to=LIAR)) == 3
