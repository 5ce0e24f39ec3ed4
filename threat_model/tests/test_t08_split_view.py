"""T08: no two views of a session make the sources give away both kinds of shares of one source."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import product
from random import Random
from typing import Any

import pytest

from securefda.errors import FaultyAggregatorError
from securefda.protocol.header_checks import threshold_is_sound
from securefda.protocol.messages import Advertise, Consistency, MaskedInput, SurvivorSignature, Unmask
from securefda.protocol.session_checks import check_consistency
from securefda.site.policy import default_policy
from threat_model.adversaries.sources import ColludingSource
from threat_model.adversaries.split_view import SplitView
from threat_model.scores import NOTHING_LEARNT_COSINE, cosine, is_recovered
from threat_model.sites import CLIP, MAX_SAMPLES, roster_of, signer_of
from threat_model.stage import MakesStage, Stage
from threat_model.switches import THRESHOLD_BOUND, checks_off, switched_off

VICTIM = 1
MOST = 7


def split_stage(
    staged: MakesStage,
    n: int,
    *,
    second: set[int],
    colluders: set[int] = frozenset(),  # type: ignore[assignment]
    max_colluders: int | None = None,
    threshold: int = 0,
    policies: Any = None,
    **options: Any,
) -> Stage:
    """A stage of n sources of which ``second`` see the second view; every policy allows for some colluders."""
    settings = {"max_colluders": len(colluders) if max_colluders is None else max_colluders, "threshold": threshold}
    return staged(
        n,
        aggregator=partial(SplitView, victim=VICTIM, second=frozenset(second), **options),
        sources=dict.fromkeys(colluders, ColludingSource),
        settings=settings,
        policies=policies,
    )


def assert_nothing_was_learnt(stage: Stage) -> None:
    assert stage.adversary.opened_twice() == set()
    assert abs(cosine(stage.adversary.attack(), stage.update(VICTIM))) < NOTHING_LEARNT_COSINE


PLAYS = [(5, {4}, set()), (5, {4, 5}, set()), (6, {4, 5, 6}, set()), (7, {3, 4}, {6, 7}), (7, {2, 3, 4}, {7})]


@pytest.mark.threat("T08")
@pytest.mark.parametrize(("n", "second", "colluders"), PLAYS, ids=str)
def test_half_that_is_shown_that_the_victim_dropped_gives_no_share_of_its_master(
    staged: MakesStage, n: int, second: set[int], colluders: set[int]
) -> None:
    stage = split_stage(staged, n, second=second, colluders=colluders).play()
    for index in second:
        assert stage.alarms(index) == ["CONSISTENCY_QUORUM"]
        assert stage.said(index, Unmask) == []
    assert_nothing_was_learnt(stage)


@pytest.mark.threat("T08")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_random_split_of_20_sources_opens_the_victim(staged: MakesStage, seed: int) -> None:
    numbers = Random(seed)
    others = numbers.sample(range(2, 21), 19)
    max_colluders = numbers.randint(1, 5)
    colluders, honest = set(others[:max_colluders]), others[max_colluders:]
    second = set(honest[: numbers.randint(4, len(honest) - 4)])
    stage = split_stage(staged, 20, second=second, colluders=colluders).play()
    silent = [index for index in {VICTIM, *honest} if not stage.said(index, Unmask)]
    assert silent
    assert {check for index in silent for check in stage.alarms(index)} == {"CONSISTENCY_QUORUM"}
    assert_nothing_was_learnt(stage)


@pytest.mark.threat("T08")
def test_half_that_is_shown_another_u2_gives_nothing_and_the_others_sum_without_it(staged: MakesStage) -> None:
    stage = split_stage(staged, 5, second={5}, parting="members", missing=2).play()
    assert stage.alarms(5) == ["SURVIVOR_QUORUM"]
    assert [len(stage.said(index, Unmask)) for index in (1, 2, 3, 4)] == [1] * 4
    assert_nothing_was_learnt(stage)


@pytest.mark.threat("T08")
def test_source_whose_input_was_masked_in_another_u2_is_no_survivor_to_the_others(staged: MakesStage) -> None:
    stage = split_stage(staged, 5, second={5}, parting="members", missing=2, listed="all").play()
    assert [stage.alarms(index) for index in (1, 2, 3, 4)] == [["CONSISTENCY_INPUT"]] * 4
    assert stage.alarms(5) == ["SURVIVOR_QUORUM"]
    assert not any(stage.said(index, Unmask) for index in stage.sources)
    assert_nothing_was_learnt(stage)


@pytest.mark.threat("T08")
def test_masks_of_another_u2_do_not_cancel_though_the_input_was_accepted(staged: MakesStage) -> None:
    stage = split_stage(staged, 5, second={5}, parting="members", missing=2, listed="all")
    with switched_off(checks_off("CONSISTENCY_INPUT"), roster=stage.roster):
        stage.play()
    assert [len(stage.said(index, Unmask)) for index in (1, 2, 3, 4)] == [1] * 4
    assert_nothing_was_learnt(stage)
    assert abs(cosine(stage.adversary.aggregate().update, stage.mean_of(stage.sources))) < NOTHING_LEARNT_COSINE


@pytest.mark.threat("T08")
def test_half_that_is_shown_another_key_list_cannot_open_the_boxes_of_the_first(staged: MakesStage) -> None:
    """Even with a threshold that both halves reach: the two sums open, and no input of either."""
    stage = split_stage(staged, 6, second={4, 5, 6}, threshold=3, parting="keys")
    with switched_off(THRESHOLD_BOUND, roster=stage.roster):
        stage.play()
    assert [len(stage.said(index, Unmask)) for index in stage.sources] == [1] * 6
    assert_nothing_was_learnt(stage)


@pytest.mark.threat("T08")
def test_source_that_has_signed_lists_signs_no_second_ones(staged: MakesStage) -> None:
    stage = split_stage(staged, 5, second={2, 3, 4, 5}, parting="again").play()
    for index in (2, 3, 4, 5):
        assert stage.alarms(index) == ["ORDER"]
        assert len(stage.said(index, SurvivorSignature)) == 1
        assert stage.said(index, Unmask) == []
    assert_nothing_was_learnt(stage)


@pytest.mark.threat("T08")
def test_header_with_a_threshold_that_two_halves_reach_is_refused(staged: MakesStage) -> None:
    stage = split_stage(staged, 6, second={4, 5, 6}, threshold=3).play()
    for index in stage.sources:
        assert stage.refusals(index) == ["max-colluders"]
        assert not stage.said(index, Advertise)
        assert not stage.said(index, MaskedInput)


@pytest.mark.threat("T08")
@pytest.mark.control
@pytest.mark.parametrize("parting", ["survivors", "members"])
def test_two_halves_open_the_victim_with_a_threshold_that_both_reach(staged: MakesStage, parting: Any) -> None:
    stage = split_stage(staged, 6, second={4, 5, 6}, threshold=3, parting=parting, missing=2)
    with switched_off(THRESHOLD_BOUND, roster=stage.roster):
        stage.play()
    assert VICTIM in stage.adversary.opened_twice()
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))


@pytest.mark.threat("T08")
@pytest.mark.control
def test_two_halves_open_the_victim_with_one_colluder_more_than_it_allows_for(staged: MakesStage) -> None:
    """No switch: max-colluders = 0 in every policy, and one of seven colludes."""
    stage = split_stage(staged, 7, second={4, 5, 6}, colluders={7}, max_colluders=0, threshold=4).play()
    assert [stage.refusals(index) for index in stage.sources] == [[]] * 7
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))


@pytest.mark.threat("T08")
def test_one_colluder_more_opens_nothing_where_policies_allow_for_it(staged: MakesStage) -> None:
    """The companion: the same seven, the same split, and the victim's own max-colluders is 1."""
    careful = default_policy("sum", 2, 1, 2, clip=CLIP, max_samples=MAX_SAMPLES)
    stage = split_stage(
        staged, 7, second={4, 5, 6}, colluders={7}, max_colluders=0, threshold=4, policies={VICTIM: careful}
    ).play()
    assert stage.refusals(VICTIM) == ["max-colluders"]
    assert stage.said(VICTIM, MaskedInput) == []


VIEW = SurvivorSignature(bytes(32))


@cache
def unmasks(signers: frozenset[int], threshold: int) -> bool:
    """Whether a source answers R3' when these, itself among them, have signed the lists that it was shown."""
    signatures = {index: signer_of(index).sign(bytes(32), bytes(32), VIEW) for index in signers}
    try:
        check_consistency(
            Consistency(tuple(signatures.values()), ()),
            own=signatures[min(signers)],
            survivors=range(1, MOST + 1),
            threshold=threshold,
            roster=roster_of(MOST),
        )
    except FaultyAggregatorError as error:
        if error.check != "CONSISTENCY_QUORUM":
            raise
        return False
    return True


def splits(n: int) -> Iterator[tuple[set[int], set[int], set[int]]]:
    """Every choice of colluders, first and second half out of n sources; the rest is shown nothing."""
    for parts in product(range(4), repeat=n):
        yield tuple({index for index, part in enumerate(parts, 1) if part == which} for which in range(3))  # type: ignore[misc]


def opens(colluders: set[int], first: set[int], second: set[int], threshold: int) -> bool:
    """Whether both halves answer, and each answer together with the colluders' shares makes t."""
    views = [frozenset(first | colluders), frozenset(second | colluders)]
    return bool(first and second) and all(len(view) >= threshold and unmasks(view, threshold) for view in views)


@pytest.mark.threat("T08")
@pytest.mark.parametrize("n", range(3, MOST + 1))
def test_no_split_among_up_to_seven_sources_gets_both_kinds_of_shares_at_any_sound_threshold(n: int) -> None:
    tried = 0
    for colluders, first, second in splits(n):
        for threshold in range(1, n + 1):
            if threshold_is_sound(threshold, n, len(colluders)):
                tried += 1
                assert not opens(colluders, first, second, threshold)
    assert tried >= 4**n


@pytest.mark.threat("T08")
@pytest.mark.control
@pytest.mark.parametrize("n", range(3, MOST + 1))
def test_some_split_gets_both_kinds_of_shares_at_every_threshold_that_is_not_sound(n: int) -> None:
    found: set[tuple[int, int]] = set()
    for colluders, first, second in splits(n):
        found |= {(t, len(colluders)) for t in range(1, n + 1) if opens(colluders, first, second, t)}
    two_honest = range(n - 1)  # with fewer there is nobody to split
    unsound = {
        (t, max_colluders)
        for max_colluders in two_honest
        for t in range(1, n + 1)
        if not threshold_is_sound(t, n, max_colluders)
    }
    assert found == unsound
