"""The best model by the target's validation rows, and runs that end early when none gets better."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from securefda.aggregator.site import without_share
from securefda.errors import ConfigError
from securefda.local.simulator import simulate
from securefda.operations.notes import Note
from securefda.operations.progress import Reporter, SilentReporter
from securefda.operations.records import RoundLine, Summary, best_round
from securefda.operations.run_folder import read_run
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import Samples

SHARE = "strategy.validation-share=0.4"
STANDS_STILL = ("strategy.rule=fedavg", "training.source.learning-rate=1e-20", "training.target.learning-rate=1e-20")


class Notes(SilentReporter):
    """Keeps what an operator reads."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def note(self, note: Note | str) -> None:
        self.read.append(str(note))


def play(folder: Path, *settings: str, reporter: Reporter | None = None) -> Summary:
    short = ("strategy.rounds=6", "strategy.warm-up-rounds=1", "strategy.compare-target-only=false")
    return simulate(load_federation(sample("digits"), [*short, *settings]), folder, 5, reporter or SilentReporter())


def test_the_best_model_is_chosen_by_rows_that_neither_train_nor_test(tmp_path: Path) -> None:
    summary = play(tmp_path, SHARE)
    lines = read_run(tmp_path).rounds
    best = max(lines, key=lambda line: (line["validation_accuracy"], -line["validation_loss"]))
    with safe_open(tmp_path / "best.safetensors", "np") as file:
        assert json.loads(file.metadata()["securefda"])["round"] == best["round"]
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        assert json.loads(file.metadata()["securefda"])["round"] == 6
    assert summary.best == {
        "round": best["round"],
        "validation_accuracy": best["validation_accuracy"],
        "accuracy": best["accuracy"],
        "validation_metrics": best["validation_metrics"],
        "metrics": best["metrics"],
    }


def test_without_such_rows_there_is_no_best_model(tmp_path: Path) -> None:
    assert play(tmp_path, "strategy.rounds=2").best is None
    assert not (tmp_path / "best.safetensors").exists()


def test_a_run_ends_early_and_whole_when_no_model_is_better(tmp_path: Path) -> None:
    notes = Notes()
    summary = play(tmp_path, SHARE, "strategy.patience=2", *STANDS_STILL, reporter=notes)
    assert (summary.status, summary.rounds, summary.rounds_planned) == ("finished", 4, 6)  # 1 to warm up, 1 the best
    assert summary.best is not None
    assert summary.best["round"] == 1  # that of the warm-up is no worse
    why = "the best model after warm-up is of round 2, and none of the 2 after it was better"
    assert f"the run ends early: {why}" in notes.read


def test_under_a_rule_without_warm_up_the_first_rounds_count(tmp_path: Path) -> None:
    still = ("strategy.rule=target_only", *STANDS_STILL[1:], "strategy.warm-up-rounds=2")
    notes = Notes()
    assert play(tmp_path, SHARE, "strategy.patience=2", *still, reporter=notes).rounds == 3
    assert "the run ends early: the best model is of round 1, and none of the 2 after it was better" in notes.read


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (("strategy.patience=2",), "strategy.patience"),
        ((SHARE, "training.target.dp.noise-multiplier=1"), "strategy.validation-share"),
        ((SHARE, "strategy.rule=ditto", "strategy.warm-up-rounds=0"), "strategy.validation-share"),
        (("strategy.validation-share=1",), "strategy.validation-share"),
    ],
)
def test_settings_that_cannot_choose_a_model_are_refused(settings: tuple[str, ...], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load_federation(sample("digits"), settings)


def test_a_split_leaves_each_row_in_one_part_and_is_the_same_again() -> None:
    rows = Samples(torch.arange(10.0)[:, None], torch.arange(10))
    left, taken = without_share(rows, 0.3, "target", 7)
    assert sorted([*left.labels.tolist(), *taken.labels.tolist()]) == list(range(10))
    assert len(taken) == 3
    assert torch.equal(without_share(rows, 0.3, "target", 7)[1].labels, taken.labels)
    assert not torch.equal(without_share(rows, 0.3, "target", 8)[1].labels, taken.labels)
    for share in (0.01, 0.99):
        with pytest.raises(ConfigError, match="leaves none to"):
            without_share(rows, share, "target", 7)


def test_of_equal_models_the_earliest_is_the_best_and_lost_rounds_do_not_count() -> None:
    def line(number: int, accuracy: float, loss: float, status: str = "finished") -> RoundLine:
        return RoundLine(round=number, validation_accuracy=accuracy, validation_loss=loss, status=status)  # type: ignore[typeddict-item]

    lines = [line(1, 0.5, 0.3), line(2, 0.7, 0.3), line(3, 0.7, 0.3), line(4, 0.7, 0.4), line(5, 0.9, 0.1, "lost")]
    assert best_round(lines) == lines[1]
    assert best_round([*lines, line(6, 0.7, 0.2)]) == line(6, 0.7, 0.2)
    assert best_round([]) is None
