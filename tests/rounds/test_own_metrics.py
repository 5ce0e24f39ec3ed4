"""Tasks with metrics of their own, with accuracy or without: what chooses the best model, and what every page shows.

Users of other systems asked for them: Flower, pull request 1958; SSL-FL, issue 19; GaNDLF, issue 246.
"""

from __future__ import annotations

import io
import json
from html import unescape
from pathlib import Path

import pytest
import torch
from rounds_tasks import Points
from torch import Tensor, nn

from securefda.cli import main
from securefda.cli.console import console_reporter
from securefda.errors import ConfigError, SecureFdaError, TrainingError
from securefda.local.simulator import simulate
from securefda.operations.records import Summary, best_round
from securefda.operations.report import write_report
from securefda.operations.run_folder import read_run
from securefda.operations.run_list import found_run
from securefda.operations.summary_text import help_text, run_text
from securefda.operations.tracking import figures_of
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.task_metric import TaskMetric
from securefda.tasks import Samples, TaskSettings, load_task
from securefda.tasks.metric_functions import class_metrics, number_metrics
from securefda.training.local import evaluation_of

SETTINGS = ("strategy.rounds=3", "strategy.warm-up-rounds=1", "strategy.validation-share=0.5")


class Lengths(Points):
    """The same points with a number as label, and no accuracy."""

    metric = "rmse"

    def model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return number_metrics(outputs, labels)

    def _points(self, site: str, rows: int, part: int) -> Samples:
        points = super()._points(site, rows, part)
        return Samples(points.features, points.features.norm(dim=1, keepdim=True))


class Classes(Points):
    """The same points with all metrics of classes, and a metric of its own of which lower is better."""

    own_metrics = (TaskMetric("cost", "mean cost", better="lower"),)

    def class_names(self) -> tuple[str, ...]:
        return ("near", "far", "beyond")

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        missed = (outputs.argmax(dim=1) != labels) & (labels == 0)
        return class_metrics(outputs, labels) | {"cost": 10 * float(missed.double().mean())}


def play(folder: Path, task: type[Points], *settings: str) -> tuple[Summary, str]:
    """Return the summary of a run on this task, and what a console without a terminal shows of it."""
    stream = io.StringIO()
    chosen = (f"task.factory=test_own_metrics:{task.__name__}", "task.options={}", *SETTINGS, *settings)
    with console_reporter(stream) as reporter:
        summary = simulate(load_federation(sample("digits"), chosen), folder, 0, reporter)
    write_report(folder)
    return summary, stream.getvalue()


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Summary, str, Path]:
    folder = tmp_path_factory.mktemp("lengths")
    return *play(folder, Lengths), folder


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Summary, str, Path]:
    folder = tmp_path_factory.mktemp("classes")
    return *play(folder, Classes, "task.metric=cost"), folder


def test_a_task_without_accuracy_is_measured_in_its_own_metrics_everywhere(lengths: tuple[Summary, str, Path]) -> None:
    """Flower 1958: a regression has errors and no accuracy."""
    summary, console, folder = lengths
    last, means = read_run(folder).rounds[-1], summary.target_metrics
    assert (summary.target_accuracy, summary.final_accuracy, "accuracy" in last) == (None, None, False)
    assert set(means) == set(last["metrics"]) == {"rmse", "mae", "r2"}
    assert {seen["accuracy"] for line in read_run(folder).rounds for seen in line["seen"]} == {None}
    assert all(seen["loss"] for line in read_run(folder).rounds for seen in line["seen"])
    assert summary.metric == {"name": "rmse", "words": "RMSE", "better": "lower", "percent": False}
    assert f"RMSE {last['metrics']['rmse']:.3f}, validation " in console
    text = run_text(summary, folder)
    assert f"RMSE {means['rmse']:.3f} (mean of the last rounds" in " ".join(text.split())
    assert f"other metrics MAE {means['mae']:.3f}, R² {means['r2']:.3g} (mean of the last rounds)" in " ".join(
        text.split()
    )
    page = unescape((folder / "report.html").read_text())
    for shown in ("test rows, mean of the last 3 rounds", "Target RMSE", "Target MAE", ">RMSE<"):
        assert shown in page
    assert not any(shown in page for shown in ("arget accuracy", "accuracy after", ">accuracy"))
    assert {"metrics/rmse", "metrics/r2", "validation/mae"} <= set(figures_of(last))


def test_the_best_model_has_the_lowest_error_on_the_validation_rows(lengths: tuple[Summary, str, Path]) -> None:
    summary, _, folder = lengths
    rounds = read_run(folder).rounds
    best = min(rounds, key=lambda line: line["validation_metrics"]["rmse"])
    assert summary.best is not None
    assert (summary.best["round"], summary.best["accuracy"]) == (best["round"], None)
    assert summary.best["metrics"] == best["metrics"]
    worst = max(rounds, key=lambda line: line["validation_metrics"]["rmse"])
    assert best_round(reversed(rounds)) == best != worst


def test_help_is_in_the_chosen_metric_with_an_interval_of_resampled_rows(lengths: tuple[Summary, str, Path]) -> None:
    summary, _, folder = lengths
    assert summary.target_only is not None
    assert summary.target_only["accuracy"] is None
    found = summary.target_only["help"]
    difference = summary.target_metrics["rmse"] - summary.target_only["metrics"]["rmse"]
    assert found["difference"] == pytest.approx(difference, rel=1e-4)
    assert found["low"] < difference < found["high"]
    assert help_text(summary.as_json()).startswith(f"RMSE {summary.target_metrics['rmse']:.3f}: ")
    assert found_run(folder).as_json()["metrics"] == summary.target_metrics


def test_metrics_of_classes_are_plotted_and_no_accuracy_is_without_its_balanced_one(
    classes: tuple[Summary, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """SSL-FL 19: plots of AUROC, recall and F1 beside the accuracy."""
    summary, _, folder = classes
    page = unescape((folder / "report.html").read_text())
    for shown in ("AUROC", "F1", "balanced accuracy", "Other metrics"):
        assert shown in page
    assert main(["runs", "show", str(folder)]) == 0
    assert f"balanced accuracy {100 * summary.target_metrics['balanced_accuracy']:.1f} %" in capsys.readouterr().out
    assert main(["runs", "compare", str(folder), str(folder)]) == 0
    out = capsys.readouterr().out
    assert "target balanced accuracy" in out
    assert "target mean cost" in out
    usual, _ = play(folder / "usual", Classes)
    balanced = f", balanced {100 * usual.target_metrics['balanced_accuracy']:.1f} %: "
    assert balanced in help_text(usual.as_json())


def test_which_class_rows_are_taken_for_is_in_each_round_and_in_the_report(classes: tuple[Summary, str, Path]) -> None:
    _, _, folder = classes
    line = read_run(folder).rounds[-1]
    taken_for = line["confusion"]["rows"]
    assert line["confusion"]["classes"] == ["near", "far", "beyond"]
    right, every = sum(of_class[place] for place, of_class in enumerate(taken_for)), sum(map(sum, taken_for))
    assert right / every == pytest.approx(line["accuracy"])
    page = unescape((folder / "report.html").read_text())
    assert "taken for far" in page
    assert f"{taken_for[0][0] / sum(taken_for[0]):.0%}" in page


def test_a_metric_that_the_task_declares_chooses_the_best_model(classes: tuple[Summary, str, Path]) -> None:
    """GaNDLF 246: a metric of one's own, whose direction the task declares."""
    summary, console, folder = classes
    assert summary.metric == {"name": "cost", "words": "mean cost", "better": "lower", "percent": False}
    assert "validation " in console
    assert json.loads((folder / "summary.json").read_text())["metric"]["better"] == "lower"
    best = min(read_run(folder).rounds, key=lambda line: (line["validation_metrics"]["cost"], line["validation_loss"]))
    assert summary.best is not None
    assert summary.best["round"] == best["round"]


def test_a_metric_that_is_not_declared_or_not_there_is_refused_before_an_update_leaves(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.metric: 'aurok' is no metric .* declares") as refused:
        play(tmp_path, Classes, "task.metric=aurok")
    assert refused.value.hint == "did you mean auroc?"
    with pytest.raises(SecureFdaError, match="task Lengths: its metrics lack auroc") as lacks:
        play(tmp_path, Lengths, "task.metric=auroc")
    assert not read_run(tmp_path).rounds
    assert "choose one of rmse, mae, r2 as task.metric" in lacks.value.hint


def test_a_share_outside_its_range_and_what_is_no_number_are_refused() -> None:
    class Odd(Classes):
        def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
            return super().metrics(outputs, labels) | self.odd

        odd: dict[str, float]

    task = Odd(TaskSettings("target", ("source-1",)))
    for odd, why in (
        ({"balanced_accuracy": 71.0}, "its balanced accuracy is 71"),
        ({"cost": "dear"}, "its mean cost is of type str, not one number"),
    ):
        task.odd = odd  # type: ignore[assignment]
        with pytest.raises(TrainingError, match=why):
            evaluation_of(task, torch.eye(3), torch.arange(3))
    task.odd = {"cost": float("nan"), "auroc": float("inf")}
    assert not {"cost", "auroc"} & set(evaluation_of(task, torch.eye(3), torch.arange(3)).metrics)


def test_the_chosen_metric_of_a_task_follows_the_federation() -> None:
    built = load_task("test_own_metrics:Classes", TaskSettings("target", ("source-1",), metric="auroc"))
    assert built.chosen_metric.name == "auroc"
