"""The target keeps the rule's model, or that of its own training since the warm-up, as folds of its rows say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import SEED, TARGET, Federation, is_header, trainer_of
from rounds_tasks import TARGET_ROWS

from securefda.aggregator.folds import Folds, chosen
from securefda.cli.console import ProgressEstimate
from securefda.errors import ConfigError, TrainingError
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.records import RoundLine, summarise
from securefda.operations.report import write_report
from securefda.operations.run_folder import read_run
from securefda.operations.summary_text import run_text
from securefda.operations.tracking import figures_of
from securefda.operations.trained import trained_model
from securefda.protocol.messages import SourcesKeep, Visibility
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import Samples
from securefda.training import NoiseSettings, model_to_vector

NO_CAPS = {"kappa": 0.0}
SHORT = ("strategy.rounds=4", "strategy.warm-up-rounds=2", "strategy.compare-target-only=false")
FOLDS = 3


class Memory:
    """Keeps what it is given, each round of it."""

    def __init__(self) -> None:
        self.kept: dict[int, bytes] = {}

    def personal(self, key: str, before: int) -> bytes | None:
        assert key == "run folds"
        return self.kept[max(earlier)] if (earlier := [number for number in self.kept if number < before]) else None

    def keep_personal(self, key: str, round_number: int, state: bytes) -> None:
        assert key == "run folds"
        self.kept[round_number] = state


def federation(folder: Path, *, folds: int = FOLDS, level: Visibility = Visibility.SUM, **strategy: Any) -> Federation:
    settings = NO_CAPS | {"sources_keep": SourcesKeep.FINAL}
    how = {"rule": "fedda", "beta": 1.0} | strategy
    return Federation(folder, visibility=level, settings=settings, folds=folds, **how)


def test_each_row_is_left_out_of_training_once() -> None:
    folds = Folds.of(trainer_of(3, TARGET), 5, SEED, Memory())
    rows = trainer_of(3, TARGET).labelled_rows().features
    assert [len(fold.left_out) for fold in folds.folds] == [3, 3, 2, 2, 2]
    for fold in folds.folds:
        both = np.concatenate([fold.left_out.features, fold.others.features])
        assert sorted(map(tuple, both)) == sorted(map(tuple, rows.numpy()))
    again = Folds.of(trainer_of(3, TARGET), 5, SEED, Memory())
    other = Folds.of(trainer_of(3, TARGET), 5, SEED + 1, Memory())
    first, second, third = (one.folds[0].left_out.features.numpy() for one in (folds, again, other))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, third)


def test_candidates_are_played_as_they_are_defined() -> None:
    """The definition once more: each candidate with trainers of its own, round by round from the same model."""
    memory, pull = Memory(), np.random.default_rng(SEED).normal(0, 0.1, 15)
    folds = Folds.of(trainer_of(3, TARGET), FOLDS, SEED, memory)
    start = folds.trainer.initial_model()

    def rule(update: np.ndarray) -> np.ndarray:
        return 0.7 * update + pull

    def without(rows: Samples) -> Any:
        trainer = trainer_of(3, TARGET)
        trainer.rows = rows
        return trainer

    models = {"warm_target": [start] * FOLDS, "rule": [start] * FOLDS}
    alone, whole = start, trainer_of(3, TARGET)
    for number in (4, 5):
        trained = folds.train("run", number, 0.5, start if number == 4 else np.ones_like(start))  # it has its own now
        played = folds.finish("run", number, trained, rule)
        alone = alone + whole.train(alone, number, 0.5, run_id="run").update
        for name, of_candidate in models.items():
            losses = []
            for place, fold in enumerate(folds.folds):
                model, trainer = of_candidate[place], without(fold.others)
                update = trainer.train(model, number, 0.5, run_id="run").update
                of_candidate[place] = (model + (update if name == "warm_target" else rule(update))).astype(np.float32)
                losses.append(trainer.evaluate(of_candidate[place], fold.left_out).loss * len(fold.left_out))
            assert played.losses[name] == pytest.approx(sum(losses) / TARGET_ROWS, rel=1e-5)
        np.testing.assert_allclose(played.alone, alone, atol=1e-6)
    assert played.losses["rule"] != pytest.approx(played.losses["warm_target"], rel=1e-3)
    assert len(memory.kept[5]) == (1 + 2 * FOLDS) * 4 * len(start)


def lines(*pairs: tuple[float, float]) -> list[Mapping[str, Any]]:
    return [{"fold_losses": {"rule": rule, "warm_target": alone}} for rule, alone in pairs]


@pytest.mark.parametrize(
    ("records", "losses", "expected"),
    [
        ([], (0.5, 0.6), "rule"),
        ([], (0.6, 0.5), "warm_target"),
        ([], (0.5, 0.5), "rule"),
        (lines((1.0, 0.5), (1.0, 0.5)), (0.5, 0.9), "warm_target"),
        (lines((9.0, 0.5), *[(0.4, 0.5)] * 4), (0.4, 0.5), "rule"),
        ([{"status": "lost"}, *lines((9.0, 0.5))], (0.4, 0.5), "warm_target"),
        ([], (math.nan, 0.5), "warm_target"),
        (lines((0.1, math.inf)), (0.2, 0.1), "rule"),
    ],
    ids=[
        "rule",
        "alone",
        "tie",
        "earlier rounds count",
        "five count",
        "a lost round",
        "not a number",
        "infinite",
    ],
)
def test_the_smaller_loss_over_five_rounds_is_chosen(
    records: list[Mapping[str, Any]], losses: tuple[float, float], expected: str
) -> None:
    assert chosen({"rule": losses[0], "warm_target": losses[1]}, records) == expected


@pytest.mark.parametrize(("folds", "expected"), [(3, "rule"), (6, "warm_target")])
def test_a_target_keeps_one_and_the_sources_the_rules_model(tmp_path: Path, folds: int, expected: str) -> None:
    plain = federation(tmp_path / "plain", folds=0).open().go()
    folded = federation(tmp_path / "folded", folds=folds).open().go()
    headers = [[m.body.model_digest for *_, m in one.passed if is_header(m)] for one in (plain, folded)]
    assert headers[0] == headers[1]
    assert folded.watch.lines[-1]["chosen"] == expected
    assert ("evaluated" in folded.watch.lines[-1]) is (expected == "warm_target")
    assert np.array_equal(folded.store.result_model(), plain.run.model)
    assert np.array_equal(folded.kept[1][0], plain.run.model)
    assert np.array_equal(folded.store.model(), folded.run.model)
    assert np.array_equal(folded.run.model, plain.run.model) is (expected == "rule")
    assert ("chosen" in plain.watch.lines[-1]) is False
    digests = [one.watch.lines[-1]["model_digest"] for one in (plain, folded)]
    assert (digests[0] == digests[1]) is (expected == "rule")


def test_a_whole_run_says_what_it_keeps(tmp_path: Path) -> None:
    settings = [*SHORT, "strategy.folds=2", "strategy.rule=fedda", "strategy.beta=1"]
    summary = simulate(load_federation(sample("digits"), settings), tmp_path, 5, SilentReporter())
    assert summary.status == "finished"
    rounds = read_run(tmp_path).rounds
    assert ["chosen" in line for line in rounds] == [False, False, True, True]
    assert rounds[-1]["chosen"] == "warm_target"
    _, model = trained_model(tmp_path)
    assert len(model_to_vector(model))
    assert figures_of(rounds[-1])["folds/rule"] == rounds[-1]["fold_losses"]["rule"]
    assert "figures of the target's own model, better on its folds" in ProgressEstimate().text(rounds[-1])
    report = write_report(tmp_path)
    assert report is not None
    page = report.read_text()
    assert "the target keeps its own model, better on its folds" in page
    own = sum("evaluated" in line for line in rounds)
    assert f"the target&#39;s own, not the common one, in {own} of the 4 rounds" in page
    assert "of the common model's steps on average, warm-up apart" in run_text(summary, tmp_path)
    assert "the sources' share of the common model's steps:" in (tmp_path / "model-card.md").read_text()


def test_a_run_that_keeps_the_rules_model_in_the_end_measured_that() -> None:
    rounds = [RoundLine(round=1, status="finished", evaluated="personal"), RoundLine(round=2, status="finished")]
    for count, expected in ((1, "personal"), (2, "global")):
        summary = summarise(
            rounds[:count],
            run_id="ab" * 16,
            task="a:B",
            strategy={"rule": "fedda"},
            visibility={},
            rounds_planned=2,
            status="finished",
        )
        assert summary.evaluated == expected


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("strategy.folds=1",), "is 1, and the target trains on all folds but one"),
        (("training.target.dp.noise-multiplier=1",), "its ledger does not count training beside that of the round"),
        (("training.target.labels=pseudo",), "compares models by labels"),
        (("strategy.step=validated", "strategy.validation-share=0.2"), "is one choice, and strategy.step"),
    ],
)
def test_what_does_not_go_with_folds_is_refused(settings: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        load_federation(sample("digits"), ["strategy.folds=5", *settings])
    assert refused.value.key == "strategy.folds"


def test_fewer_rows_than_folds_are_refused() -> None:
    with pytest.raises(ConfigError, match="the 12 training rows at target do not make 13 folds") as refused:
        Folds.of(trainer_of(3, TARGET), 13, SEED, Memory())
    assert refused.value.key == "strategy.folds"


def test_no_training_beside_a_round_with_noise() -> None:
    trainer = trainer_of(3, TARGET, dp=NoiseSettings(noise_multiplier=1.0))
    with pytest.raises(TrainingError, match="ledger does not count training beside that of the round"):
        trainer.train_on(trainer.labelled_rows(), trainer.initial_model(), 1, 1.0)


def test_rules_that_do_not_take_the_targets_update_leave_folds_alone() -> None:
    settings = ["strategy.folds=5", "strategy.rule=source_only", "training.target.labels=none"]
    assert load_federation(sample("digits"), settings).strategy.folds == 5
