"""T21: what sources are sent tells the target's rows, unless the target trains by DP-SGD.

The target makes two steps on one row, the worst case there is: the least that a round of it can have. Without noise,
mitigated is only who is sent the target's update at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefda.protocol.messages import Header, Visibility
from securefda.rules import Strategy
from securefda.site.policy import default_policy
from securefda.tasks import Samples
from securefda.training import Vector
from securefda.training.trainer import SiteTrainer
from threat_model.adversaries.inversion import inverted
from threat_model.adversaries.target_rows import InvertsTarget
from threat_model.privacy_bounds import guess_bound, too_many_right
from threat_model.private_sites import DELTA, asked, plain_trainer, private_trainer, rows_of, sgd, spent
from threat_model.scores import RECOVERED_COSINE, cosine
from threat_model.sites import CLIP, INPUTS, MAX_SAMPLES, OUTPUTS, TARGET, known_update
from threat_model.stage import MakesStage, Stage
from threat_model.watched import WatchedAggregator

LABEL, RATE, STEPS = 17, 0.02, 2
ROW = np.random.default_rng(21).uniform(-1, 1, INPUTS)
CURIOUS = 2
NOISE = 4.0
GAMES = 40
AUTO, HALF = Strategy(rule="fedgp_auto", rounds=2), Strategy(rule="fedgp", rounds=2, beta=0.5)
"""By the estimated errors, a target whose steps are mostly noise has hardly a part in the model; by the other, half."""

FAR_COSINE = 0.8
"""Cosine of a fixed vector and a random direction in 63 dimensions: beyond 0.75 with a probability of at most 4e-8, and
four are looked at. The row's own part in the noisy update adds less than 0.05 to it."""


def row_of(label: int) -> Samples:
    return rows_of(ROW[None], np.array([label]))


def small_updates(index: int, round_number: int, received: Vector) -> Vector:
    """Return small updates of the sources, unrelated to the target's row."""
    return np.float32(0.001) * known_update(index, round_number, received)


def without_noise() -> SiteTrainer:
    return plain_trainer(row_of(LABEL), sgd(RATE, 1, epochs=STEPS))


def with_noise(folder: Path, label: int = LABEL, name: str = "rows") -> SiteTrainer:
    return private_trainer(folder, row_of(label), sgd(RATE, 1, epochs=STEPS, noise=NOISE), name=name)


def with_curious_source(staged: MakesStage, target: SiteTrainer, **options: Any) -> Stage:
    settings = {"strategy": options.pop("strategy", AUTO), "kappa": 1.0}
    return staged(
        aggregator=WatchedAggregator,
        sources=dict.fromkeys(options.pop("curious", [CURIOUS]), InvertsTarget),
        updates=small_updates,
        trainers={TARGET: target},
        settings=settings,
        model_step=1e6,  # the sources' updates are next to nothing here
        **options,
    ).play()


@pytest.mark.threat("T21")
@pytest.mark.control
def test_row_is_rebuilt_exactly_from_the_update_of_a_target_without_noise(staged: MakesStage) -> None:
    stage = with_curious_source(staged, without_noise())
    row = stage.sources[CURIOUS].from_update()
    np.testing.assert_allclose(row.features, ROW, atol=1e-5)
    assert row.label == LABEL


@pytest.mark.threat("T21")
@pytest.mark.control
@pytest.mark.parametrize("visibility", Visibility)
def test_row_is_rebuilt_from_two_models_at_every_level(staged: MakesStage, visibility: Visibility) -> None:
    stage = with_curious_source(staged, without_noise(), visibility=visibility)
    row = stage.sources[CURIOUS].from_models()
    assert cosine(row.features, ROW) > RECOVERED_COSINE
    assert row.label == LABEL
    for line in stage.aggregator.operator.lines:
        assert line["target_cosine"] > RECOVERED_COSINE  # the log says how near the update of the model comes


@pytest.mark.threat("T21")
@pytest.mark.parametrize("visibility", Visibility)
def test_row_of_a_target_with_noise_is_rebuilt_from_neither_its_update_nor_two_models(
    staged: MakesStage, ledgers: Path, visibility: Visibility
) -> None:
    stage = with_curious_source(staged, with_noise(ledgers), visibility=visibility, strategy=HALF)
    curious = stage.sources[CURIOUS]
    rebuilt = [row for row in (curious.from_update(), curious.from_models()) if row is not None]
    assert len(rebuilt) == (2 if visibility is Visibility.SUM else 1)
    for row in rebuilt:
        assert abs(cosine(row.features, ROW)) < FAR_COSINE


def classes_found(targets: list[tuple[int, SiteTrainer]]) -> int:
    """For how many targets the class of the one row is read off their update, as a source is sent it."""
    model = targets[0][1].initial_model()
    return sum(inverted(asked(target, model).update).label == label for label, target in targets)


def drawn_classes() -> list[int]:
    return [int(label) for label in np.random.default_rng().integers(0, OUTPUTS, GAMES)]


@pytest.mark.threat("T21")
def test_class_of_a_targets_row_is_found_no_more_often_than_its_epsilon_allows(ledgers: Path) -> None:
    """False alarms: 1e-6, by the binomial law under the bound."""
    targets = [(label, with_noise(ledgers, label, f"rows-{game}")) for game, label in enumerate(drawn_classes())]
    found = classes_found(targets)
    epsilon = max(spent(target) for _, target in targets)  # type: ignore[arg-type]
    assert epsilon < 2
    assert found < too_many_right(GAMES, guess_bound(epsilon, DELTA, OUTPUTS)) < GAMES / 2


@pytest.mark.threat("T21")
@pytest.mark.control
def test_class_of_a_targets_row_is_always_found_without_noise() -> None:
    settings = sgd(RATE, 1, epochs=STEPS)
    assert classes_found([(label, plain_trainer(row_of(label), settings)) for label in drawn_classes()]) == GAMES


@pytest.mark.threat("T21")
def test_target_update_goes_to_sources_at_sum_and_to_no_other(staged: MakesStage) -> None:
    levels = [Visibility.INDIVIDUAL, *[Visibility.COHORT] * 3, *[Visibility.SUM] * 3]
    policies = {
        index: default_policy(level.label, 2, 0, 2, clip=CLIP, max_samples=MAX_SAMPLES)  # type: ignore[arg-type]
        for index, level in enumerate(levels, 1)
    }
    stage = with_curious_source(
        staged, without_noise(), n=7, curious=range(1, 8), policies=policies, visibility=Visibility.INDIVIDUAL
    )
    assert [len(stage.sources[index].target_updates) for index in policies] == [0] * 4 + [2] * 3
    assert [len(stage.said(TARGET, Header, to=index)[0].vectors) for index in policies] == [1] * 4 + [2] * 3
    (first, _) = stage.aggregator.operator.lines
    assert first["target_update_to"] == ["source-5", "source-6", "source-7"]
