"""FedGP and FedDA on pseudo-labels: rounds, restarts, levels, and what is said of the rows that count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_pseudo import PseudoFederation

from securefda.errors import ConfigError
from securefda.local.simulator import simulate
from securefda.local.task_check import check_federation
from securefda.operations.progress import SilentReporter
from securefda.operations.records import Summary
from securefda.operations.report import write_report
from securefda.operations.run_folder import read_run
from securefda.operations.summary_text import run_text
from securefda.operations.tracking import figures_of
from securefda.protocol.messages import Visibility
from securefda.rules import Rule, TargetLabels
from securefda.samples import sample
from securefda.site.config import FederationConfig, load_federation
from securefda.tasks import Samples
from securefda.tasks.digits import Digits

PSEUDO = "training.target.labels=pseudo"
FEW, NONE = "training.target.pseudo-threshold=0.15", "training.target.pseudo-threshold=0.9999999"
ALONE = "strategy.compare-target-only=false"
SHORT = ("strategy.rounds=3", "strategy.warm-up-rounds=1", ALONE, "training.target.pseudo-share=0.01")
NO_CAPS = "privacy.norm-cap-kappa=0"


def digits(*settings: str) -> FederationConfig:
    return load_federation(sample("digits"), settings)


def play(folder: Path, *settings: str) -> Summary:
    return simulate(digits(*SHORT, PSEUDO, *settings), folder, 5, SilentReporter())


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    """The folder and the summary of a run in which some rows of the target count."""
    folder = tmp_path_factory.mktemp("pseudo")
    return folder, play(folder, FEW)


class Wrong(Digits):
    """Digits whose target has only wrong labels to train on."""

    def train_data(self, site: str) -> Any:
        rows = super().train_data(site)
        return Samples(rows.features, (rows.labels + 1) % 10) if site == self.settings.target else rows


class TestARun:
    @pytest.mark.parametrize("rule", [rule for rule in Rule if TargetLabels.PSEUDO in rule.target_labels])
    def test_trains_the_target_after_the_warm_up(self, tmp_path: Path, rule: Rule) -> None:
        level = "individual" if rule is Rule.FEDGP_FILTERED_AUTO else "sum"
        summary = play(tmp_path, FEW, f"strategy.rule={rule}", f"privacy.visibility={level}")
        lines = read_run(tmp_path).rounds
        assert summary.status == "finished"
        assert [line["rule"] for line in lines] == ["source_only", *[str(rule)] * 2]
        assert ["confident_rows" in line for line in lines] == [False, True, True]
        assert all(np.isfinite(line["loss"]) for line in lines)

    def test_depends_on_no_label_of_the_targets_training_rows(
        self, tmp_path: Path, played: tuple[Path, Summary]
    ) -> None:
        config = digits(*SHORT, PSEUDO, FEW)
        task = config.task.model_copy(update={"factory": f"{Wrong.__module__}:Wrong"})
        wrong = simulate(config.model_copy(update={"task": task}), tmp_path, 5, SilentReporter())
        assert wrong.model_digest == played[1].model_digest

    def test_gives_one_model_at_every_level_without_caps(self, tmp_path: Path) -> None:
        clear = ("privacy.visibility=individual", "privacy.max-colluders=0")
        digests = {
            play(tmp_path / name, FEW, NO_CAPS, *level).model_digest
            for name, level in (("sum", ()), ("individual", clear))
        }
        assert len(digests) == 1

    def test_without_a_row_that_counts_is_one_long_warm_up(self, tmp_path: Path) -> None:
        summary = play(tmp_path / "pseudo", NONE)
        lines = read_run(tmp_path / "pseudo").rounds
        assert [line["rule"] for line in lines] == ["source_only"] * 3
        assert [line.get("confident_rows") for line in lines] == [None, 0, 0]
        assert (summary.status, summary.rounds_lost, summary.target_releases["headers"]) == ("finished", 0, 0)
        average = ("strategy.rule=source_only", "training.target.labels=none", "strategy.warm-up-rounds=0")
        expected = simulate(digits("strategy.rounds=3", ALONE, *average), tmp_path / "average", 5, SilentReporter())
        assert summary.model_digest == expected.model_digest


class TestWhatIsSaidOfIt:
    def test_rows_that_count_stay_in_the_targets_own_records(self, played: tuple[Path, Summary]) -> None:
        folder, summary = played
        lines = read_run(folder).rounds
        assert all(0 < line["confident_rows"] <= 100 for line in lines[1:])
        of_sources = [path for path in (folder / "sites").glob("source-*/**/*") if path.is_file()]
        assert any(path.name == "metrics.jsonl" for path in of_sources)
        assert not any(b"confident" in path.read_bytes() for path in of_sources)
        said = run_text(summary, folder)
        assert "made by the model in each round, where it finds one at least 0.15 probable" in said
        write_report(folder)
        assert "Confident rows of the target" in (folder / "report.html").read_text()
        assert json.loads((folder / "summary.json").read_text())["setting"]["training"]["labels"] == "pseudo"
        assert figures_of(lines[-1])["target/confident_rows"] == lines[-1]["confident_rows"]

    def test_as_much_leaves_as_of_a_labelled_target(self, tmp_path: Path, played: tuple[Path, Summary]) -> None:
        simulate(digits(*SHORT[:3]), tmp_path, 5, SilentReporter())
        pseudo, given = (read_run(folder).rounds for folder in (played[0], tmp_path))
        assert [line["target_update_to"] for line in pseudo] == [line["target_update_to"] for line in given]


ROUNDS: dict[str, Any] = {"rounds": 3, "warm_up_rounds": 1}


@pytest.mark.parametrize("level", [Visibility.SUM, Visibility.COHORT, Visibility.INDIVIDUAL])
def test_too_few_rows_lose_no_round_at_any_level(tmp_path: Path, level: Visibility) -> None:
    federation = PseudoFederation(tmp_path, threshold=0.9999999, visibility=level, **ROUNDS).open().go()
    assert federation.statuses == ["finished"] * 3
    assert {line["rule"] for line in federation.watch.lines} == {"source_only"}
    assert "too few: warm-up goes on" in federation.watch.text
    assert not federation.watch.refusals[1]


class TestSettings:
    @pytest.mark.parametrize("rule", [rule for rule in Rule if TargetLabels.PSEUDO not in rule.target_labels])
    def test_other_rules_are_refused(self, rule: Rule) -> None:
        parts = {
            "analytic": ["strategy.rounds=1"],
            "finetune_offline": ["strategy.finetune-rounds=1"],
            "personalized_fedavg": ["strategy.reptile-rounds=1"],
            "fedrep": ["training.target.personal-layers=1", "training.source.personal-layers=1"],
        }
        with pytest.raises(ConfigError, match=f'{rule} .*labels is "pseudo"'):
            digits(f"strategy.rule={rule}", *parts.get(str(rule), []), PSEUDO)

    def test_the_sources_make_a_model_first(self) -> None:
        with pytest.raises(ConfigError, match=r'is 0, and training\.target\.labels is "pseudo"') as refusal:
            digits(PSEUDO, "strategy.warm-up-rounds=0")
        assert refusal.value.key == "strategy.warm-up-rounds"


def test_task_check_tries_a_step_on_guesses() -> None:
    found = check_federation(digits(PSEUDO), ["target"], 0).sites[0]
    assert found.error is None
    assert found.batch.keys() == {"rows", "gradient_norm", "loss", "accuracy"}
