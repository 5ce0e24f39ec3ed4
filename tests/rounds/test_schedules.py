"""Which rounds a strategy makes, who takes part in them, and what they leave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rounds_federation import TARGET, Build, Federation, is_header, trainer_of

from securefda.errors import ConfigError, TrainingError
from securefda.protocol.messages import Update, Visibility

LEVELS = [Visibility.SUM, Visibility.INDIVIDUAL]
NO_CAPS = {"kappa": 0.0}


@pytest.fixture
def play(build: Build) -> Build:
    """Runs a federation to its end."""
    return lambda *args, **options: build(*args, **options).open().go()


def test_target_only_is_the_targets_training_and_needs_no_source(play: Build) -> None:
    federation = play(rule="target_only", rounds=2)
    assert federation.statuses == ["finished"] * 2
    assert federation.names(sender=TARGET) == ["Goodbye"] * 3
    assert all(line["survivors"] == [] and line["mean_beta"] is None for line in federation.watch.lines)
    trainer = trainer_of(3, TARGET)
    model = trainer.initial_model()
    for number in (1, 2):
        model = model + trainer.train(model, number, 1.0).update
    assert np.array_equal(federation.run.model, model)


def test_target_only_ends_also_where_no_source_is(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rule="target_only", rounds=2)
    federation.reached.clear()
    federation.open().go()
    assert federation.statuses == ["finished"] * 2
    assert federation.now == 0.0


def test_oracle_trains_on_all_labelled_rows_of_the_target(play: Build) -> None:
    federation = play(rule="oracle", rounds=1)
    trainer = trainer_of(3, TARGET, oracle=True)
    model = trainer.initial_model()
    assert np.array_equal(federation.run.model, model + trainer.train(model, 1, 1.0).update)
    assert not np.array_equal(federation.run.model, play(rule="target_only", rounds=1).run.model)


def test_finetune_offline_is_source_only_and_then_the_target_alone(play: Build) -> None:
    federation = play(rule="finetune_offline", rounds=3, finetune_rounds=2)
    assert [line["rule"] for line in federation.watch.lines] == ["source_only", "target_only", "target_only"]
    assert [len(line["survivors"]) for line in federation.watch.lines] == [3, 0, 0]
    assert federation.watch.lines[1]["attempts"] == 0
    start = play(rule="source_only", rounds=1).run.model
    trainer = trainer_of(3, TARGET)
    for number in (2, 3):
        start = start + trainer.train(start, number, 1.0).update
    assert np.max(np.abs(federation.run.model - start)) < 1e-6


def test_warm_up_is_source_only_and_then_both_learning_rates_drop(play: Build) -> None:
    federation = play(rule="fedda_auto", rounds=3, warm_up_rounds=2, lr_after_warm_up=0.5)
    assert [line["rule"] for line in federation.watch.lines] == ["source_only", "source_only", "fedda_auto"]
    factors = {m.body.round: m.body.rule.learning_rate_factor for *_, m in federation.passed if is_header(m)}
    assert factors == {1: 1.0, 2: 1.0, 3: 0.5}
    rates = [m.body.target.learning_rate for *_, m in federation.passed if is_header(m) and m.body.target]
    assert rates == [pytest.approx(0.025)] * 3


@pytest.mark.parametrize("rule", ["fedda_auto", "fedgp_auto", "auto"])
def test_unaligned_updates_have_the_beta_of_aligned_ones_at_every_level(play: Build, rule: str) -> None:
    masked, clear = (play(rule=rule, align=False, rounds=2, visibility=at, settings=NO_CAPS) for at in LEVELS)
    aligned = play(rule=rule, rounds=1, settings=NO_CAPS)
    assert np.array_equal(masked.run.model, clear.run.model)
    assert masked.watch.lines[0]["mean_beta"] == pytest.approx(aligned.watch.lines[0]["mean_beta"], abs=1e-6)
    assert masked.watch.lines[0].get("delta_errors") == pytest.approx(aligned.watch.lines[0].get("delta_errors"))
    same_model = masked.watch.lines[0]["model_digest"] == aligned.watch.lines[0]["model_digest"]
    assert same_model == (rule != "fedda_auto"), "the orthogonal projection has no scale"
    factors = [m.body.alignment for *_, m in clear.passed if isinstance(m.body, Update)]
    steps = {m.body.target.steps for *_, m in clear.passed if is_header(m) and m.body.target}
    assert factors
    assert all(factor and factor < max(steps) for factor in factors)


def test_in_clear_a_source_does_not_report_the_beta_that_it_cannot_know(play: Build) -> None:
    federation = play(rule="fedgp_auto", rounds=1, visibility=Visibility.INDIVIDUAL)
    assert [records[0]["beta"] for records in federation.watch.records.values()] == [None] * 3


def test_a_rule_that_needs_single_steps_is_refused_at_sum_and_runs_in_clear(tmp_path: Path, play: Build) -> None:
    for rule, estimator, mean_field_helps in (
        ("fedgp_auto", "exact", True),
        ("fedgp_filtered_auto", "exact", False),
        ("fedgp_filtered_auto", "mean-field", False),
    ):
        with pytest.raises(ConfigError, match="single steps") as caught:
            Federation(tmp_path / "refused", rule=rule, rounds=1, estimator=estimator)
        assert ("mean-field" in caught.value.hint) == mean_field_helps
        assert "individual" in caught.value.hint
        clear = play(rule=rule, rounds=1, estimator=estimator, visibility=Visibility.INDIVIDUAL)
        assert clear.statuses == ["finished"]


def test_clipped_coordinates_are_counted_and_clipped_the_same_at_every_level(play: Build) -> None:
    settings = {"clip": 0.28, **NO_CAPS}
    masked, clear = (play(rule="source_only", rounds=1, visibility=level, settings=settings) for level in LEVELS)
    assert np.array_equal(masked.run.model, clear.run.model)
    start = trainer_of(3, TARGET).initial_model()
    assert np.max(np.abs(masked.run.model - start)) <= 0.28 + 1e-6
    assert [records[0]["clipped"] for records in masked.watch.records.values()] == [1, 0, 0]


def test_training_that_diverges_at_the_target_ends_the_run_with_a_hint(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rule="target_only", rounds=2)
    site = federation.run._site
    object.__setattr__(site, "trainer", trainer_of(3, TARGET, optimizer="sgd", weight_decay=1e38))
    with pytest.raises(TrainingError, match="target: training diverges: the loss is nan") as caught:
        federation.run.open()
    assert caught.value.hint
    federation.post(federation.run.fail(caught.value))
    assert federation.run.done
