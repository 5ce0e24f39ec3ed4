"""T09: whichever sources collude, the aggregator learns one sum over the victim and at least min-others others."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from securefda.protocol.messages import Advertise, MaskedInput, ShareBundle, Visibility
from securefda.site.policy import default_policy
from threat_model.adversaries.colluders import SubtractsColluders
from threat_model.adversaries.sources import ColludingSource
from threat_model.scores import NOTHING_LEARNT_COSINE, cosine, cosine_of_one_in, is_recovered
from threat_model.sites import CLIP, MAX_SAMPLES
from threat_model.stage import MakesStage, Stage

VICTIM, MIN_OTHERS = 1, 2


def colluding_stage(staged: MakesStage, n: int, colluders: set[int], max_colluders: int, **options: Any) -> Stage:
    """A stage with ``colluders``; every policy allows for ``max_colluders`` of them, with min-others = 2."""
    return staged(
        n,
        aggregator=partial(SubtractsColluders, victim=VICTIM),
        sources=dict.fromkeys(colluders, ColludingSource),
        settings={"max_colluders": max_colluders, "min_others": MIN_OTHERS},
        **options,
    )


CASES = [
    (5, set(), Visibility.SUM),
    (7, {6, 7}, Visibility.SUM),
    (10, {8, 9, 10}, Visibility.SUM),
    (10, {10}, Visibility.COHORT),
]


@pytest.mark.threat("T09")
@pytest.mark.parametrize(("n", "colluders", "visibility"), CASES, ids=str)
def test_aggregator_and_all_colluders_learn_one_sum_and_no_part(
    staged: MakesStage, n: int, colluders: set[int], visibility: Visibility
) -> None:
    stage = colluding_stage(staged, n, colluders, len(colluders), visibility=visibility).play()
    rest = stage.adversary.summed - colluders
    assert VICTIM in rest
    assert len(rest) >= 1 + MIN_OTHERS
    assert len(stage.adversary.summed) < n
    opened = stage.adversary.attack().update
    assert is_recovered(opened, stage.mean_of(rest), 2 * len(rest) * stage.precision(VICTIM))
    for index in stage.sources:
        bound = cosine_of_one_in(len(rest)) if index in rest else NOTHING_LEARNT_COSINE
        assert abs(cosine(opened, stage.update(index))) < bound


@pytest.mark.threat("T09")
@pytest.mark.parametrize("allowed_for", [1, 2, 3])
def test_header_over_too_few_honest_others_is_refused_before_training(staged: MakesStage, allowed_for: int) -> None:
    """Four sources of which three collude; the run says that none does, the victim's policy knows better."""
    policy = default_policy("sum", MIN_OTHERS, allowed_for, 2, clip=CLIP, max_samples=MAX_SAMPLES, kappa=0.0)
    stage = colluding_stage(staged, 4, {2, 3, 4}, 0, policies={VICTIM: policy}).play()
    assert stage.refusals(VICTIM) == ["min-others"]
    assert not any(stage.said(VICTIM, kind) for kind in (Advertise, ShareBundle, MaskedInput))
    assert stage.adversary.attack() is None


@pytest.mark.threat("T09")
@pytest.mark.control
@pytest.mark.parametrize("n", [4, 7])
def test_all_others_colluding_recover_the_input_of_a_victim_that_allows_for_no_colluder(
    staged: MakesStage, n: int
) -> None:
    """No switch: the victim's own max-colluders is 0."""
    stage = colluding_stage(staged, n, set(range(2, n + 1)), 0).play()
    assert stage.refusals(VICTIM) == []
    assert is_recovered(stage.adversary.attack().update, stage.update(VICTIM), n * stage.precision(VICTIM))
    assert not is_recovered(stage.adversary.attack().update, stage.update(2), n * stage.precision(VICTIM))
