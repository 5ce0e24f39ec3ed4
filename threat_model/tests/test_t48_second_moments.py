"""T48: rows behind a sum of second moments, of a source that checks its rows first and of one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securefda.protocol.messages import MaskedInput, Refusal, ShareBundle
from securefda.rules import Strategy
from securefda.site.policy import MomentBounds, SourcePolicy, default_policy
from threat_model.adversaries.second_moments import ReadsSecondMoments
from threat_model.private_sites import plain_trainer, private_trainer, rows_of, sgd
from threat_model.scores import auc, relative_error
from threat_model.sites import CLIP, INPUTS, MAX_SAMPLES, OUTPUTS
from threat_model.stage import MakesStage, Stage

VICTIM, N, NOISE = 2, 3, 3.0
RARE_CLASS, CATEGORY = 5, 10
ENOUGH, FEW = INPUTS + 1, 16
"""Rows of each source: as many as a row has numbers, and so few that all sources together have fewer."""


def features_of(index: int, count: int = ENOUGH) -> NDArray[np.float64]:
    """Rows of a site, of which none has the category."""
    features = np.random.default_rng((48, index)).normal(size=(count, INPUTS)) / 8
    features[:, CATEGORY] = 0.0
    return features


def policy_with(**changes: float) -> SourcePolicy:
    """The default policy with other bounds of moments, and no norm cap."""
    policy = default_policy(clip=CLIP, max_samples=MAX_SAMPLES, kappa=0.0)
    return policy.model_copy(update={"moments": MomentBounds.model_validate(changes)})


def played(
    staged: MakesStage,
    policy: SourcePolicy,
    *,
    count: int = ENOUGH,
    rare: int | None = None,
    category: int | None = None,
    ledgers: Path | None = None,
) -> Stage:
    """A round in which one row of the victim may be the only one of a class, and one of a category.

    With ``ledgers`` the victim adds noise.
    """
    trainers: dict[int, Any] = {}
    for index in range(N + 1):
        features, labels = features_of(index, count), np.arange(count) % 2
        if index == VICTIM and rare is not None:
            labels[rare] = RARE_CLASS
        if index == VICTIM and category is not None:
            features[category, CATEGORY] = 0.5
        rows = rows_of(features, labels)
        if index == VICTIM and ledgers is not None:
            trainers[index] = private_trainer(ledgers, rows, sgd(0.1, count, noise=NOISE))
        else:
            trainers[index] = plain_trainer(rows, sgd(0.1, count))
    others = policy_with(**{"min-rows": 0.0})
    policies = dict.fromkeys(range(1, N + 1), others) | {VICTIM: policy}
    strategy = Strategy(rule="analytic", rounds=1)  # type: ignore[arg-type]
    settings = {"strategy": strategy}
    return staged(N, aggregator=ReadsSecondMoments, trainers=trainers, policies=policies, settings=settings).play()


def assert_only_a_refusal_left_the_victim(stage: Stage, key: str) -> None:
    assert stage.alarms(VICTIM) == stage.refusals(VICTIM) == [key]
    assert stage.said(VICTIM, Refusal)[0].message.body == Refusal(key)
    assert not any(stage.said(VICTIM, kind) for kind in (ShareBundle, MaskedInput))
    assert stage.accepted(VICTIM) == 0
    header = stage.adversary.heard.views[VICTIM].header.body
    assert not stage.store(VICTIM).history(bytes(32), header.run_id, header.round).released


# The only row of a class.


@pytest.mark.threat("T48")
@pytest.mark.control
def test_only_row_of_a_class_is_read_from_a_sum(staged: MakesStage) -> None:
    stage = played(staged, policy_with(**{"min-rows-per-class": 1}), rare=7)
    assert relative_error(stage.adversary.row_of_class(RARE_CLASS), features_of(VICTIM)[7]) < 1e-3


@pytest.mark.threat("T48")
def test_source_with_one_row_of_a_class_takes_no_part(staged: MakesStage) -> None:
    stage = played(staged, policy_with(), rare=7)
    assert_only_a_refusal_left_the_victim(stage, "moments.min-rows-per-class")


@pytest.mark.threat("T48")
def test_source_with_noise_takes_part_and_no_row_of_it_is_read(staged: MakesStage, ledgers: Path) -> None:
    """It does not refuse, since no noise would cover what a refusal tells. False alarms: below 1e-6.

    The row has a length of about 1, and the noise on its 63 numbers one of about 34.
    """
    stage = played(staged, policy_with(), rare=7, ledgers=ledgers)
    assert stage.refusals(VICTIM) == []
    assert stage.accepted(VICTIM) == 1
    total = stage.adversary.moments()
    row = total.cross[RARE_CLASS] + total.gram[-1] / OUTPUTS
    assert relative_error(row[:-1], features_of(VICTIM)[7]) > 1


# The only row of a category.


def with_category(row: int) -> NDArray[np.float64]:
    features = features_of(VICTIM)[row]
    features[CATEGORY] = 0.5
    return features


@pytest.mark.threat("T48")
@pytest.mark.control
def test_only_row_of_a_category_is_read_from_a_sum(staged: MakesStage) -> None:
    stage = played(staged, policy_with(**{"min-rows-per-category": 1}), category=9)
    assert relative_error(stage.adversary.row_of_category(CATEGORY), with_category(9)) < 1e-3


@pytest.mark.threat("T48")
def test_nothing_is_read_of_a_category_that_few_rows_have(staged: MakesStage) -> None:
    stage = played(staged, policy_with(), category=9)
    assert stage.accepted(VICTIM) == 1
    assert abs(stage.adversary.moments().gram[CATEGORY]).max() < 1e-6
    assert relative_error(stage.adversary.row_of_category(CATEGORY), with_category(9)) > 0.5


# Fewer rows than numbers in a row.


def told_apart(stage: Stage) -> float:
    others = features_of(N + 1, 100)
    return auc(stage.adversary.likeness(features_of(VICTIM, FEW)), stage.adversary.likeness(others))


@pytest.mark.threat("T48")
@pytest.mark.control
def test_rows_behind_a_sum_of_few_are_told_from_others(staged: MakesStage) -> None:
    assert told_apart(played(staged, policy_with(**{"min-rows": 0.0}), count=FEW)) == 1.0


@pytest.mark.threat("T48")
def test_source_with_fewer_rows_than_numbers_in_a_row_takes_no_part(staged: MakesStage) -> None:
    stage = played(staged, policy_with(), count=FEW)
    assert_only_a_refusal_left_the_victim(stage, "moments.min-rows")
