"""What the target comes to alone: measured after the run, at the target, as a run of ``target_only`` measures it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from securefda import __version__
from securefda.aggregator.comparison import TargetAlone, with_comparison
from securefda.errors import TrainingError
from securefda.local.simulator import simulate
from securefda.operations.notes import Note
from securefda.operations.progress import SilentReporter
from securefda.operations.records import Baseline, Summary
from securefda.operations.run_folder import read_run
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import TaskSettings, load_task
from securefda.training import TrainingSettings
from securefda.training.trainer import SiteTrainer

SHORT = ("strategy.rounds=2", "strategy.warm-up-rounds=1")
SEED = 5


def play(folder: Path, *settings: str) -> Summary:
    return simulate(load_federation(sample("digits"), [*SHORT, *settings]), folder, SEED, SilentReporter())


def test_it_is_what_a_run_of_target_only_comes_to(tmp_path: Path) -> None:
    alone = play(tmp_path / "alone", "strategy.rule=target_only")
    summary = play(tmp_path / "run")
    assert alone.target_only is None
    found = dict(summary.target_only or {})
    helped = found.pop("help")
    assert found.pop("metrics") == alone.target_metrics
    assert found == {"accuracy": alone.target_accuracy, "final": alone.final_accuracy, "rounds": 2}
    difference = (summary.target_accuracy or 0) - (alone.target_accuracy or 0)
    assert helped["difference"] == pytest.approx(difference, abs=1e-6)
    assert helped["low"] < difference < helped["high"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["target_only"] == summary.target_only


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Baseline | None:
    """What the target comes to alone beside a run of the usual rule."""
    return play(tmp_path_factory.mktemp("usual"), "strategy.warm-up-rounds=0").target_only


@pytest.mark.parametrize("rule", ["oracle", "ditto"])
def test_it_has_the_targets_own_rows_and_the_common_model(tmp_path: Path, expected: Baseline | None, rule: str) -> None:
    assert expected is not None
    summary = play(tmp_path, f"strategy.rule={rule}", "strategy.warm-up-rounds=0")
    assert {**(summary.target_only or {}), "help": None} == {**expected, "help": None}
    assert summary.warm_target is None


def test_it_can_be_left_out(tmp_path: Path) -> None:
    assert play(tmp_path, "strategy.compare-target-only=false").target_only is None


def test_it_is_left_out_where_it_would_be_charged_to_a_ledger(tmp_path: Path) -> None:
    noise = (
        "training.target.dp.noise-multiplier=1",
        "training.target.batch-size=4",
        "privacy.budget.target-delta=0.01",
    )
    assert play(tmp_path, *noise, "strategy.rounds=2", "privacy.budget.target-epsilon=1000").target_only is None


class Kept:
    """A memory as the store's, of one place."""

    def __init__(self) -> None:
        self.states: dict[str, bytes] = {}

    def personal(self, run_id: str, before: int) -> bytes | None:
        assert before > 0
        return self.states.get(run_id)

    def keep_personal(self, run_id: str, round_number: int, state: bytes) -> None:
        assert round_number > 0
        self.states[run_id] = state


class Notes(SilentReporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, note: Note | str) -> None:
        self.notes.append(str(note))


def fails() -> SiteTrainer:
    raise TrainingError("target: the loss is NaN")


def test_a_process_that_starts_again_does_not_train_again(tmp_path: Path) -> None:
    task = load_task("securefda.tasks.digits:Digits", TaskSettings("target", ("source-1",)))
    rows, memory = task.train_data("target"), Kept()
    trains = TargetAlone(lambda: SiteTrainer(task, "target", rows, TrainingSettings(), 0), rows, task, memory)
    (found, by_row), trained = trains.train("ab", [1, 2]), trains.train("ab", [1, 2, 3])[0]
    assert found["rounds"] == 2
    assert trained["rounds"] == 3  # of another number of rounds it is no answer
    again, rows_again = TargetAlone(fails, rows, task, memory).train("ab", [1, 2, 3])
    assert again == trained
    assert by_row is not None
    assert rows_again is not None
    assert by_row.mean() == pytest.approx(found["accuracy"])
    assert rows_again.mean() == pytest.approx(trained["accuracy"])


def test_where_it_fails_the_run_is_as_it_was_and_a_note_says_why(tmp_path: Path) -> None:
    summary, notes = play(tmp_path, "strategy.compare-target-only=false"), Notes()
    task = load_task("securefda.tasks.digits:Digits", TaskSettings("target", ("source-1",)))
    alone = TargetAlone(fails, task.test_data("target"), task, Kept())
    assert with_comparison(summary, alone, read_run(tmp_path).rounds, notes) == summary
    assert notes.notes[-1] == "no comparison with the target alone: target: the loss is NaN"


def test_without_the_model_after_warm_up_a_note_says_so(tmp_path: Path) -> None:
    """Of a run that began under an earlier release, say."""
    task = load_task("securefda.tasks.digits:Digits", TaskSettings("target", ("source-1",)))
    rows, notes = task.train_data("target"), Notes()
    alone = TargetAlone(lambda: SiteTrainer(task, "target", rows, TrainingSettings(), 0), rows, task, Kept(), warm_up=1)
    summary = play(tmp_path, "strategy.compare-target-only=false")
    compared = with_comparison(summary, alone, read_run(tmp_path).rounds, notes)
    assert (compared.target_only is None, compared.warm_target) == (False, None)
    assert notes.notes[-1].startswith("no comparison with the warm-started target: warm-target: the run's state holds")


def test_a_model_file_says_which_model_it_is(tmp_path: Path) -> None:
    summary = play(tmp_path, "strategy.compare-target-only=false")
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        said = json.loads(file.metadata()["securefda"])
    assert (said["task"], said["run"]) == (summary.task, summary.run_id)
    assert (said["round"], said["rule"], said["securefda"]) == (2, "fedda_auto", __version__)
    assert len(bytes.fromhex(said["architecture"])) == 32
