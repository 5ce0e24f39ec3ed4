"""Rounds of rules that compare features: one model at every level, restarts, and what is refused."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import FEATURES, TARGET, Federation, is_header, site_id, task_of, trainer_of, training_of

from securefda.aggregator.store import AggregatorStore
from securefda.aggregator.target import (
    FeatureSettings,
    OutputFromFeatures,
    TargetFeatures,
    TargetOutput,
    UnlabelledTarget,
)
from securefda.audit.reading import open_log
from securefda.errors import FaultyAggregatorError, TrainingError
from securefda.protocol.messages import DownLink, MaskedInput, Visibility
from securefda.rules import Strategy, round_plan
from securefda.training import Vector
from securefda.training.alignment import AlignmentRule, FeatureAlignment
from securefda.training.site_features import SiteFeatures
from securefda.training.trainer import SiteTrainer

N, ROUNDS = 4, 3
NO_CAPS = {"kappa": 0.0}


def federation(folder: Path, rule: str, level: Visibility = Visibility.SUM, **options: Any) -> Federation:
    norm = "parts" if rule == "fada" else "batch"
    strategy = {"warm_up_rounds": 1, "rounds": ROUNDS, "attention_temperature": 0.002}
    settings = NO_CAPS | options.pop("settings", {})
    return Federation(folder, N, norm=norm, visibility=level, settings=settings, rule=rule, **strategy | options)


def played(folder: Path, rule: str, level: Visibility = Visibility.SUM, **options: Any) -> Federation:
    found = federation(folder, rule, level, **options).open().go()
    assert set(found.statuses) == {"finished"}
    return found


@pytest.mark.parametrize("rule", ["f_dann", "f_dan"])
def test_a_round_is_the_mean_of_the_updates_and_the_targets_step_along_the_mean_pull(rule: str, tmp_path: Path) -> None:
    found = played(tmp_path, rule, rounds=1, warm_up_rounds=0)
    target = trainer_of(N, TARGET, norm="batch")
    model = target.initial_model()
    site_features = SiteFeatures(target)
    features = site_features.release(model, 1, "", rows=FEATURES.rows, clip=0.0)
    rows, moved, pull = 0, np.zeros(len(model)), np.zeros(features.shape)
    for index in range(1, N + 1):
        trained = trainer_of(N, index, norm="batch").train(
            model, 1, 1.0, align=FeatureAlignment(AlignmentRule(rule), features)
        )
        assert trained.pull is not None
        rows += trained.samples
        moved += trained.samples * trained.update.astype(np.float64)
        lengths = np.linalg.norm(trained.pull.astype(np.float64), axis=1, keepdims=True)
        pull += trained.samples * trained.pull * np.minimum(1.0, found.settings.clip / lengths)
    mean = moved / rows
    gradient = site_features.pull_gradient(model, 1, "", (pull / rows).astype(np.float32), rows=FEATURES.rows)
    gradient = gradient.astype(np.float64)
    expected = mean - FEATURES.step * np.linalg.norm(mean) * gradient / np.linalg.norm(gradient)

    assert np.linalg.norm(gradient) > 0
    assert np.max(np.abs(found.run.model - (model + expected))) < 1e-5
    assert np.max(np.abs(found.run.model - (model + mean))) > 1e-4


@pytest.mark.parametrize("level", [Visibility.SUM, Visibility.INDIVIDUAL])
def test_features_go_to_every_source_and_that_is_recorded_before(level: Visibility, tmp_path: Path) -> None:
    found = federation(tmp_path, "fada_adversarial", level, recorded=True).open().go()

    everyone = [f"source-{index}" for index in range(1, N + 1)]
    assert [line["target_update_to"] for line in found.watch.lines] == [[], everyone, everyone]
    records = open_log(tmp_path / "audit" / site_id(TARGET) / found.run.run_id).records()
    log = [record.entry for record in records if record.entry.type in ("features-released", "Header")]
    kinds = [(record.round, record.type) for record in log]
    for number in (2, 3):
        assert kinds.count((number, "features-released")) == 1
        assert kinds.index((number, "features-released")) < kinds.index((number, "Header"))
    facts = next(record.facts for record in log if record.type == "features-released")
    assert (facts["rows"], facts["width"], facts["clip"], facts["noise"]) == (FEATURES.rows, 4, "0.0", "0.0")


def released(memory: AggregatorStore, round_number: int, *, run_id: str = "run", noise: float = 0.5) -> Vector:
    """What a target releases that was just started over what it kept."""
    trainer = trainer_of(N, TARGET, norm="batch")
    how = FeatureSettings(rows=8, clip=1.0, noise=noise, step=0.1)
    target = UnlabelledTarget(SiteFeatures(trainer), 1000, how, DownLink.FLOAT32, memory, os.urandom)
    plan = round_plan(Strategy(rule="f_dann", rounds=3, warm_up_rounds=0), round_number)
    part = target.output(trainer.initial_model(), round_number, run_id, plan)
    assert isinstance(part, TargetFeatures)
    return part.values


def test_features_with_noise_are_released_again_as_they_were_where_a_round_is_tried_again(tmp_path: Path) -> None:
    with closing(AggregatorStore(tmp_path / "target.sqlite")) as memory:
        first, later, again = (released(memory, number) for number in (2, 3, 2))
        other_run = released(memory, 2, run_id="another run")
        bare = released(memory, 2, noise=0.0)

    assert np.array_equal(first, again)
    assert not np.array_equal(first, later)
    assert not np.array_equal(first, other_run)
    assert np.all(np.linalg.norm(bare, axis=1) <= 1 + 1e-6)
    assert 0.2 < float(np.std(first - bare)) < 0.8


def test_noise_on_features_does_not_follow_from_the_seed_of_the_run(tmp_path: Path) -> None:
    values = []
    for name in ("one", "two"):
        with closing(AggregatorStore(tmp_path / f"{name}.sqlite")) as memory:
            values.append(released(memory, 1))

    assert values[0].shape == values[1].shape
    assert not np.array_equal(*values)


class OtherWidth(Federation):
    """Its target releases one number less of each row than the model of the run has."""

    def output_from_features(self, trainer: SiteTrainer) -> OutputFromFeatures:
        compute = super().output_from_features(trainer)
        assert compute is not None

        def narrow(*place: Any) -> TargetOutput:
            part = compute(*place)
            return replace(part, values=part.values[:, 1:].copy()) if isinstance(part, TargetFeatures) else part

        return narrow


def test_features_of_another_width_than_the_model_has_are_refused_by_every_source(tmp_path: Path) -> None:
    how = {"settings": NO_CAPS, "rule": "f_dann", "rounds": 1, "warm_up_rounds": 0}
    found = OtherWidth(tmp_path, N, norm="batch", **how).open().go()

    assert "finished" not in found.statuses
    for index in range(1, N + 1):
        (alarm, *_) = found.watch.alarms[index]
        assert isinstance(alarm, FaultyAggregatorError)
        assert (alarm.check, "another width" in str(alarm)) == ("HEADER_FEATURES", True)
    assert not any(isinstance(message.body, MaskedInput) for _, _, message in found.passed)


def test_more_rows_than_there_are_are_refused_with_their_number() -> None:
    target = SiteFeatures(trainer_of(N, TARGET, norm="batch"))
    with pytest.raises(TrainingError, match="there are 12 training rows, and features of 13 are") as refused:
        target.require_releasable(13, AlignmentRule.F_DANN)
    assert "strategy.feature-rows to 12" in refused.value.hint
    target.require_releasable(12, AlignmentRule.F_DANN)


@pytest.mark.parametrize("kind", [AlignmentRule.F_DANN, AlignmentRule.F_DAN, AlignmentRule.FADA_ADVERSARIAL])
def test_a_model_whose_features_are_its_rows_releases_none(kind: AlignmentRule) -> None:
    target = SiteFeatures(trainer_of(N, TARGET))
    for refuses in (lambda: target.require_releasable(8, kind), lambda: target.require_clusters(1000)):
        with pytest.raises(TrainingError, match="one linear layer, and so its features are the rows themselves"):
            refuses()


def test_a_model_without_two_parts_is_refused_under_fada() -> None:
    with pytest.raises(TrainingError, match="fada needs one that tells features of all domains from others") as refused:
        SiteFeatures(trainer_of(N, TARGET)).require_releasable(8, AlignmentRule.FADA)
    assert "Disentangled" in refused.value.hint
    SiteFeatures(trainer_of(N, TARGET, norm="parts")).require_releasable(8, AlignmentRule.FADA)


def test_a_source_takes_features_that_are_longer_than_the_model_where_its_policy_allows_the_rule(
    tmp_path: Path,
) -> None:
    many = replace(FEATURES, rows=16)
    found = federation(tmp_path, "f_dann", features=many).open().go()
    sent = next(message.body.features for *_, message in found.passed if is_header(message) and message.body.features)
    source, model_bytes = found.sources[1], 4 * found.sources[1]._site.trainer.n_params
    assert model_bytes < 4 * sent.rows * sent.width <= source.vector_bytes()
    without = found.policy(2).model_copy(update={"allowed_rules": ("source_only",)})

    other = federation(tmp_path / "other", "f_dann")
    assert other.source(2, policy=without).vector_bytes() == model_bytes


def test_what_has_to_hold_before_rows_are_touched_is_asked_before_their_features_leave() -> None:
    def refused() -> None:
        raise TrainingError("a ledger was made for these rows")

    task, settings = task_of(N), training_of()
    target = SiteTrainer(task, "target", task.train_data("target"), settings, 0, before_round=refused)
    model = target.initial_model()
    with pytest.raises(TrainingError, match="a ledger was made"):
        SiteFeatures(target).release(model, 1, "", rows=8, clip=0.0)
    with pytest.raises(TrainingError, match="a ledger was made"):
        SiteFeatures(target).cluster_gap(model, 1, "", rows=8)
