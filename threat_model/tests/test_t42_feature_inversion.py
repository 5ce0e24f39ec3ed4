"""T42: features of the target's rows leave where its settings say so, and noise keeps rows from being made of them."""

from __future__ import annotations

import os
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from securefda.aggregator.store import AggregatorStore
from securefda.aggregator.target import FeatureSettings, TargetFeatures, UnlabelledTarget
from securefda.errors import ConfigError
from securefda.protocol.messages import DownLink
from securefda.rules import Rule, Strategy, round_plan
from securefda.site.config.sections import StrategySection, TargetTrainingSection, require_fit
from securefda.tasks import TaskSettings, Unlabelled
from securefda.tasks.digits import Digits
from securefda.training import TrainingSettings, Vector
from securefda.training.site_features import SiteFeatures
from securefda.training.trainer import SiteTrainer
from threat_model.adversaries.feature_inversion import InvertsFeatures, recognised

SEED, ROWS, ROUND = 7, 64, 3
BY_CHANCE = 1 / ROWS
RELEASING = sorted(rule.value for rule in Rule if rule.releases_features)
SITES = TaskSettings("target", ("source-1", "source-2", "source-3", "source-4"), SEED)


@cache
def trained() -> Vector:
    """A model after five rounds at the source that attacks."""
    task, settings = Digits(SITES), TrainingSettings(learning_rate=0.003, epochs=5)
    source = SiteTrainer(task, "source-1", task.train_data("source-1"), settings, SEED)
    model = source.initial_model()
    for number in range(1, 6):
        model = model + source.train(model, number, 1.0).update
    return model


def target() -> SiteFeatures:
    task = Digits(SITES)
    rows = Unlabelled(task.train_data("target").features)
    return SiteFeatures(SiteTrainer(task, "target", rows, TrainingSettings(), SEED))


def released(memory: AggregatorStore, clip: float, noise: float, round_number: int = ROUND) -> Vector:
    """Return the features that leave the target in a round, float32 (T, d)."""
    how = FeatureSettings(rows=ROWS, clip=clip, noise=noise, step=0.0)
    unlabelled = UnlabelledTarget(target(), 1000, how, DownLink.FLOAT32, memory, os.urandom)
    plan = round_plan(Strategy(rule="f_dann", rounds=5, warm_up_rounds=0), round_number)
    part = unlabelled.output(trained(), round_number, "", plan)
    assert isinstance(part, TargetFeatures)
    return part.values


def share_recognised(folder: Path, clip: float, noise: float) -> float:
    """Share of the released rows that the attacker tells apart."""
    task, site = Digits(SITES), target()
    attacker = InvertsFeatures(task, trained(), task.train_data("source-1").features.numpy(), SEED)
    with closing(AggregatorStore(folder / "target.sqlite")) as memory:
        sent = released(memory, clip, noise)
    estimates = attacker.rebuilt(sent, clip=clip, noise=noise)
    everything = task.train_data("target").features
    return recognised(estimates, everything[drawn_rows(site, everything)].numpy())


def drawn_rows(site: SiteFeatures, everything: torch.Tensor) -> torch.Tensor:
    """Return which rows were released: those whose features, without clip and noise, the site releases."""
    bare = torch.from_numpy(site.release(trained(), ROUND, "", rows=ROWS, clip=0.0))
    every = torch.from_numpy(site.release(trained(), ROUND, "", rows=len(everything), clip=0.0))
    return torch.cdist(bare, every).argmin(dim=1)


@pytest.mark.threat("T42")
@pytest.mark.parametrize("rule", RELEASING)
def test_features_are_not_released_unless_the_targets_settings_say_so(rule: str) -> None:
    strategy = StrategySection(rule=rule)
    with pytest.raises(ConfigError, match=r"release-features: is false, and .* sends features of 64 ") as refused:
        require_fit(strategy, TargetTrainingSection(labels="none"))
    assert "set it to true" in refused.value.hint
    require_fit(strategy, TargetTrainingSection(labels="none", release_features=True))


@pytest.mark.threat("T42")
@pytest.mark.parametrize("clip", [1.0, 5.0])
def test_noise_keeps_rows_from_being_recognised(clip: float, tmp_path: Path) -> None:
    assert share_recognised(tmp_path, clip, 1.0) < 8 * BY_CHANCE


@pytest.mark.threat("T42")
@pytest.mark.control
def test_rows_are_recognised_from_features_without_noise(tmp_path: Path) -> None:
    """No switch: the target's own ``feature-clip`` and ``feature-noise``, which are 0 unless it sets them."""
    assert share_recognised(tmp_path, 0.0, 0.0) > 0.7


@pytest.mark.threat("T42")
@pytest.mark.parametrize("changes", [{"feature_noise": 0.5}, {"feature_noise": 0.5, "feature_clip": 0.0}])
def test_noise_without_a_clip_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"feature-noise: is in units of feature-clip, which is 0"):
        TargetTrainingSection(**changes)


@pytest.mark.threat("T42")
def test_the_same_rows_and_noise_are_released_in_each_attempt_at_a_round(tmp_path: Path) -> None:
    with closing(AggregatorStore(tmp_path / "target.sqlite")) as memory:
        one, again = (released(memory, 1.0, 1.0) for _ in range(2))
        later = released(memory, 1.0, 1.0, ROUND + 1)
    assert np.array_equal(one, again)
    assert not np.array_equal(one, later)


@pytest.mark.threat("T42")
def test_who_knows_the_seed_of_the_run_cannot_take_the_noise_off(tmp_path: Path) -> None:
    """Training that is repeatable draws from the seed that every site has; noise on features does not."""
    with closing(AggregatorStore(tmp_path / "target.sqlite")) as memory:
        sent = released(memory, 1.0, 1.0)
    with closing(AggregatorStore(tmp_path / "attacker.sqlite")) as memory:
        repeated = released(memory, 1.0, 1.0)
    assert np.abs(sent - repeated).mean() > 0.5
