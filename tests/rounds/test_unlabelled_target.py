"""A run whose target has no labels: it trains no rows there, and says what it cannot measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rounds_tasks import Points

from securefda.errors import ConfigError, TrainingError
from securefda.local.simulator import simulate
from securefda.local.task_check import check_federation
from securefda.operations.progress import SilentReporter
from securefda.operations.records import Summary
from securefda.operations.report import write_report
from securefda.operations.run_folder import read_run
from securefda.operations.summary_text import run_text
from securefda.operations.trained import trained_model
from securefda.rules import Rule, TargetLabels
from securefda.samples import sample
from securefda.site.config import (
    FederationConfig,
    kit_settings_toml,
    load_federation,
)
from securefda.tasks import TaskSettings, Unlabelled
from securefda.training import TrainingSettings
from securefda.training.trainer import SiteTrainer

NO_LABELS = "training.target.labels=none"
SOURCE_ONLY = ("strategy.rule=source_only", "strategy.rounds=2", "strategy.warm-up-rounds=0")


def digits(*settings: str) -> FederationConfig:
    return load_federation(sample("digits"), settings)


def play(folder: Path, *settings: str) -> Summary:
    return simulate(digits(*SOURCE_ONLY, *settings), folder, 5, SilentReporter())


Played = tuple[Path, Summary]


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The folder and the summary of a run whose target uses no labels."""
    folder = tmp_path_factory.mktemp("hidden")
    return folder, play(folder, NO_LABELS)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """And of one whose target has them."""
    folder = tmp_path_factory.mktemp("given")
    return folder, play(folder)


class Bare(Points):
    """A task whose target knows no label at all."""

    def train_data(self, site: str) -> Any:
        rows = super().train_data(site)
        return Unlabelled(rows.features) if site == self.settings.target else rows

    def test_data(self, site: str) -> Any:
        return None if site == self.settings.target else super().test_data(site)


def unmeasured(folder: Path) -> Summary:
    config = digits(*SOURCE_ONLY, NO_LABELS)
    task = config.task.model_copy(update={"factory": f"{Bare.__module__}:Bare", "options": {}})
    return simulate(config.model_copy(update={"task": task}), folder, 5, SilentReporter())


def test_the_model_is_that_of_source_only_and_is_measured(hidden: Played, given: Played) -> None:
    (_, without), (_, usual) = hidden, given
    assert without.model_digest == usual.model_digest
    assert without.target_accuracy == usual.target_accuracy


def test_the_target_alone_is_no_comparison(hidden: Played, given: Played) -> None:
    assert given[1].target_only is not None
    assert hidden[1].target_only is None


def test_its_headers_are_those_of_a_labelled_target(hidden: Played, given: Played) -> None:
    """What sources hear does not say that labels are missing: the rule is all that they learn."""
    one, other = (
        [(line["rule"], line["bytes_down"]) for line in read_run(folder).rounds] for folder, _ in (hidden, given)
    )
    assert one == other


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The folder and the summary of a run whose target has no label at all."""
    folder = tmp_path_factory.mktemp("unmeasured")
    return folder, unmeasured(folder)


class TestWithoutALabelAnywhere:
    def test_a_run_finishes_without_accuracy(self, played: Played) -> None:
        folder, summary = played
        assert (summary.status, summary.rounds) == ("finished", 2)
        assert (summary.target_accuracy, summary.final_accuracy, summary.best) == (None, None, None)
        assert all(not {"accuracy", "loss", "metrics"} & line.keys() for line in read_run(folder).rounds)

    def test_reports_say_why(self, played: Played) -> None:
        folder, summary = played
        said = "no accuracy, for no test row has a label"
        assert said in run_text(summary, folder)
        write_report(folder)
        assert said in (folder / "report.html").read_text()

    def test_the_model_can_be_loaded(self, played: Played) -> None:
        task, _ = trained_model(played[0], task=f"{Bare.__module__}:Bare")
        assert task.settings.labelled_target is False


@pytest.mark.parametrize("rule", [rule for rule in Rule if TargetLabels.NONE not in rule.target_labels])
def test_rules_that_need_labels_are_refused(rule: Rule) -> None:
    parts = {"finetune_offline": ["strategy.finetune-rounds=1"], "personalized_fedavg": ["strategy.reptile-rounds=1"]}
    parts["fedgp_filtered_auto"] = ["privacy.visibility=individual"]
    if rule is Rule.FEDREP:
        parts["fedrep"] = ["training.target.personal-layers=1", "training.source.personal-layers=1"]
    settings = [f"strategy.rule={rule}", "strategy.warm-up-rounds=0", *parts.get(str(rule), [])]
    digits(*settings)
    with pytest.raises(ConfigError, match=f"{rule} needs the labels of the target's training rows") as refusal:
        digits(*settings, NO_LABELS)
    assert refusal.value.key == "strategy.rule"
    assert "source_only" in refusal.value.hint


def test_rule_that_reads_no_labels_is_not_said_to_need_them() -> None:
    said = "source_only makes no use of the labels of the target's training rows"
    with pytest.raises(ConfigError, match=f'{said}, and training.target.labels is "pseudo"') as refusal:
        digits("strategy.rule=source_only", "training.target.labels=pseudo")
    assert "fedgp_auto" in refusal.value.hint


def test_rows_without_labels_train_nothing() -> None:
    task = Bare(TaskSettings("target", ("source-1",), options={}))
    trainer = SiteTrainer(task, "target", task.train_data("target"), TrainingSettings(), 0)
    with pytest.raises(TrainingError, match="its 12 rows have no labels to train on"):
        trainer.train(trainer.initial_model(), 1, 1.0)


class TestTaskCheck:
    def test_a_target_is_tried_forward_and_measured(self) -> None:
        config = digits(*SOURCE_ONLY, NO_LABELS)
        found = check_federation(config, ["target"], 0).sites[0]
        assert found.error is None
        assert [(split.split, split.labels == "none") for split in found.splits] == [("train", True), ("test", False)]
        assert found.batch.keys() == {"rows", "loss", "accuracy"}
        assert "the labels of its training rows are not used" in found.notes

    def test_a_target_without_any_label_says_so(self) -> None:
        config = digits(*SOURCE_ONLY, NO_LABELS)
        task = config.task.model_copy(update={"factory": f"{Bare.__module__}:Bare", "options": {}})
        found = check_federation(config.model_copy(update={"task": task}), ["target"], 0).sites[0]
        assert found.error is None
        assert found.batch.keys() == {"rows"}
        assert any("there will be no accuracy" in note for note in found.notes)


def test_a_targets_kit_says_it_and_a_sources_does_not() -> None:
    config = digits(*SOURCE_ONLY, NO_LABELS)
    assert 'labels = "none"' in kit_settings_toml(config, "target", "127.0.0.1:0")
    assert "labels" not in kit_settings_toml(config, "source-1", "")
