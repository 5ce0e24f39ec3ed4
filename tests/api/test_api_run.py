"""``Run``: what it says is what its folder holds, and its model predicts as the command does."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from api_rows import SHORT, SOURCES, data, federation, linear, rows
from torch import nn

import securefda
from securefda.api.run import round_row
from securefda.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> securefda.Run:
    folder = tmp_path_factory.mktemp("api")
    return federation().simulate(rounds=3, out=folder / "run", quiet=True)


def test_a_run_says_what_its_summary_holds(run: securefda.Run) -> None:
    summary = json.loads((run.path / "summary.json").read_text())
    assert run.summary == summary
    assert (run.status, run.rule) == ("finished", "fedda_auto")
    assert run.accuracy == summary["target_accuracy"]
    assert run.metrics == summary["target_metrics"]
    assert run.settings["training.learning-rate"] == 0.001
    assert [line["round"] for line in run.rounds] == [1, 2, 3]


def test_help_has_both_baselines_with_their_intervals(run: securefda.Run) -> None:
    for name in ("target_only", "warm_target"):
        found, kept = getattr(run.help, name), run.summary[name]
        assert found.baseline == kept["accuracy"]
        assert found.difference == pytest.approx(run.accuracy - found.baseline)
        assert (found.low, found.high, found.test_rows) == (kept["help"]["low"], kept["help"]["high"], 40)
    assert run.help
    assert "the warm-started target" in repr(run.help)


def test_without_a_comparison_help_is_empty(tmp_path: Path) -> None:
    found = federation(strategy={"rounds": 1, "warm_up_rounds": 0, "compare_target_only": False})
    run = found.simulate(out=tmp_path / "run", quiet=True)
    assert (bool(run.help), run.help.target_only, repr(run.help)) == (False, None, "not compared with the target alone")
    assert re.search(r"finished, 1 of 1 rounds, fedda_auto; accuracy [\d.]+ %", repr(run))


def test_a_folder_is_opened_with_the_same_figures(run: securefda.Run) -> None:
    again = securefda.Run.open(run.path)
    assert (again.accuracy, again.metrics, again.summary) == (run.accuracy, run.metrics, run.summary)
    assert [one.path for one in securefda.runs(run.path.parent)] == [run.path]


def test_a_folder_without_a_run_is_refused_as_by_the_command(tmp_path: Path) -> None:
    with pytest.raises(securefda.ConfigError, match="is no run folder") as caught:
        securefda.Run.open(tmp_path)
    assert traceback.format_exception(caught.value)[-1] == "hint: a run folder holds metrics.jsonl\n"


def test_no_code_runs_because_of_what_a_folder_says(run: securefda.Run) -> None:
    with pytest.raises(securefda.ConfigError, match="a task that does not come with securefda"):
        _ = securefda.Run.open(run.path).model
    task = securefda.task_from(linear, data(), rows(seed=9))
    assert isinstance(securefda.Run.open(run.path, task=task).model, nn.Linear)


def test_predictions_are_those_of_the_model(run: securefda.Run) -> None:
    given, _ = rows(seed=5)
    with torch.no_grad():
        outputs = run.model(torch.tensor(given).float()).double()
    assert np.allclose(run.predict_proba(given), torch.softmax(outputs, dim=1).numpy())
    assert run.predict(given).tolist() == outputs.argmax(dim=1).tolist()
    assert run.predict(torch.tensor(given)).tolist() == outputs.argmax(dim=1).tolist()
    assert run.classes is None


def test_classes_are_predicted_by_their_names(tmp_path: Path) -> None:
    x, y = rows()
    labels = np.where(y == 1, "yes", "no")
    task = securefda.task_from(linear, dict.fromkeys(("clinic", *SOURCES), (x, labels)), (x, labels))
    run = securefda.Federation(task, "clinic", **SHORT).simulate(out=tmp_path / "run", quiet=True)
    assert run.classes is not None
    assert run.classes.tolist() == ["no", "yes"]
    assert run.predict(x).tolist() == run.classes[run.predict_proba(x).argmax(axis=1)].tolist()


def test_numbers_are_predicted_as_they_are(tmp_path: Path) -> None:
    x, _ = rows()
    task = securefda.task_from(regression, dict.fromkeys(("clinic", *SOURCES), (x, x[:, 0])), (x, x[:, 0]))
    run = securefda.Federation(task, "clinic", **SHORT).simulate(out=tmp_path / "run", quiet=True)
    with torch.no_grad():
        assert run.predict(x).tolist() == run.model(torch.tensor(x).float())[:, 0].tolist()
    assert set(run.metrics) == {"rmse", "mae", "r2"}
    assert run.accuracy is None
    with pytest.raises(securefda.ConfigError, match="predict_proba: task Given predicts no probabilities"):
        run.predict_proba(x)


def regression() -> nn.Module:
    """Two features in, one number out."""
    return nn.Linear(2, 1)


@pytest.mark.parametrize(
    ("given", "why"),
    [([[1.0, float("nan")]], "a feature is NaN or infinite in 1 of 1 rows"), ([["a", "b"]], "are not numbers")],
)
def test_unfit_rows_are_not_predicted(run: securefda.Run, given: Any, why: str) -> None:
    with pytest.raises(securefda.DataError, match=why):
        run.predict(given)


def test_files_are_predicted_as_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["age,ill", *(f"{age},{'yes' if age > 50 else 'no'}" for age in range(20, 80))]
    for site in ("clinic", *SOURCES):
        (tmp_path / f"{site}.csv").write_text("\n".join(lines))
    options = {
        "columns": {"age": {"type": "number", "center": 50, "scale": 15}},
        "label": {"column": "ill", "classes": ["no", "yes"]},
    }
    made = securefda.Federation(
        "securefda.tasks.tabular:Tabular", "clinic", SOURCES, options=options, data_dir=tmp_path, **SHORT
    )
    run = made.simulate(out=tmp_path / "run", quiet=True)
    (tmp_path / "new.csv").write_text("age\n30\n70\n")
    assert main(["predict", str(run.path), "--data", str(tmp_path / "new.csv")]) == 0
    by_command = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert run.predict(tmp_path / "new.csv").tolist() == [row["ill"] for row in by_command]
    assert run.predict_proba(tmp_path / "new.csv")[:, 1].tolist() == [
        pytest.approx(float(row["probability yes"])) for row in by_command
    ]


def test_a_data_frame_needs_pandas_and_says_so(run: securefda.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(securefda.ConfigError, match="pandas: is not installed") as caught:
        run.to_frame()
    assert "pip install pandas" in caught.value.hint


def test_a_round_is_a_row_of_plain_values(run: securefda.Run) -> None:
    first = round_row(run.rounds[0])
    assert first["accuracy"] == run.rounds[0]["accuracy"]
    assert (first["round"], first["status"], first["sources"]) == (1, "finished", 3)
    assert first["bytes_up"] > 0
    assert all(isinstance(value, str | int | float | None) for value in first.values())


def test_a_plot_has_the_rounds_and_both_baselines(run: securefda.Run) -> None:
    axes = run.plot()
    metric, *baselines = axes.get_lines()
    assert list(metric.get_ydata()) == pytest.approx([100 * line["accuracy"] for line in run.rounds])
    assert [line.get_label() for line in baselines] == ["warm-started target", "target alone"]
    assert run.plot(axes) is axes


def test_the_report_is_written_anew(run: securefda.Run) -> None:
    (run.path / "report.html").unlink()
    assert run.report() == run.path / "report.html"
    assert "fedda_auto" in run.report().read_text()


def test_a_notebook_shows_a_short_table_with_everything_escaped(tmp_path: Path, run: securefda.Run) -> None:
    strange = tmp_path / "<script>alert(1)<"
    strange.symlink_to(run.path)
    shown = securefda.Run.open(strange)._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert ">over the warm-started target</th>" in shown
    assert repr(run).startswith(f"<Run {run.path}: finished, 3 of 3 rounds, fedda_auto; accuracy")
