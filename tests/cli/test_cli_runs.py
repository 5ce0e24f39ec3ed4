"""``securefda runs``, ``predict`` and ``export``, on runs that were simulated over CSV files."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import json
import os
import pkgutil
import shutil
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from interrupting import ctrl_c_in
from plain_user import plain_user
from stand_ins import Terminal

import securefda.tasks
from securefda.cli import main
from securefda.dashboard.place import find_place
from securefda.operations.records import SiteLine, best_round
from securefda.operations.run_folder import METRICS_FILE, append_line, read_run
from securefda.operations.run_list import FoundRun, comparison, differences, found_run
from securefda.operations.state import ENDED, StateWriter, state_file
from securefda.operations.summary_text import READ_ROWS, help_text
from securefda.operations.trained import predict, trained_model
from securefda.protocol.encoding import vector_to_wire
from securefda.tasks import Task
from securefda.training import model_to_vector

SITES = ("clinic", "hospital-a", "hospital-b", "hospital-c")
FEDERATION = """
[federation]
name = "patients"
target = "clinic"
sources = ["hospital-a", "hospital-b", "hospital-c"]
[task]
factory = "securefda.tasks.tabular:Tabular"
data-dir = "{folder}"
[task.options]
label = {{ column = "ill", classes = ["no", "yes"] }}
[task.options.columns]
age = {{ type = "number", center = 50.0, scale = 20.0 }}
sex = {{ type = "category", values = ["f", "m"] }}
[strategy]
rounds = 3
warm-up-rounds = 1
[training.target]
batch-size = 8
[training.source]
batch-size = 8
"""
Row = tuple[int, str]


def rows(seed: int, count: int = 60) -> list[Row]:
    generator = np.random.default_rng(seed)
    return [(int(generator.integers(20, 80)), "fm"[int(generator.integers(2))]) for _ in range(count)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs ``a`` and ``b``, which differ in their rule."""
    folder = tmp_path_factory.mktemp("runs")
    data = folder / "data"
    data.mkdir()
    for seed, site in enumerate(SITES):
        lines = [f"{age},{sex},{'yes' if age > 50 else 'no'}" for age, sex in rows(seed)]
        (data / f"{site}.csv").write_text("\n".join(["age,sex,ill", *lines, ""]))
    file = folder / "federation.toml"
    file.write_text(FEDERATION.format(folder=data))
    for name, rule in (("a", "fedgp_auto"), ("b", "fedda_auto")):
        command = ["simulate", str(file), "--out", str(folder / name), "--set", f"strategy.rule={rule}"]
        assert main(command) == 0
    (folder / "new.csv").write_text("age,sex\n" + "".join(f"{age},{sex}\n" for age, sex in rows(9, 5)))
    return folder


def copied(runs: Path, tmp_path: Path) -> Path:
    """Run ``a``, for a test to do with as it likes."""
    return Path(shutil.copytree(runs / "a", tmp_path / "run"))


def printed(capsys: pytest.CaptureFixture[str], *command: str | Path) -> str:
    capsys.readouterr()
    assert main([str(part) for part in command]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *command: str | Path) -> str:
    capsys.readouterr()
    assert main([str(part) for part in command]) == 4
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"][: len(lines)]
    return "\n".join(lines)


def test_every_run_is_listed_with_what_it_came_to_and_what_the_target_comes_to_alone(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = json.loads(printed(capsys, "runs", "ls", runs, "--format", "json"))["data"]["runs"]
    assert [(Path(run["run"]).name, run["rule"], run["rounds"], run["status"]) for run in listed] == [
        ("a", "fedgp_auto", 3, "finished"),
        ("b", "fedda_auto", 3, "finished"),
    ]
    summary = read_run(runs / "a").summary
    assert summary is not None
    assert (listed[0]["accuracy"], listed[0]["alone"]) == (
        summary["target_accuracy"],
        summary["target_only"]["accuracy"],
    )
    text = printed(capsys, "runs", "ls", runs).splitlines()
    assert text[0].split() == (
        ["run", "ended", "task", "rule", "rounds", "accuracy", "target", "alone", "warm-started", "target", "status"]
    )
    assert len(text) == 3


def test_by_how_much_each_run_helped_is_compared_with_intervals(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("runs", "compare", runs / "a", runs / "b")
    found = json.loads(printed(capsys, *given, "--format", "json"))["data"]["runs"]
    for run, name in zip(found, "ab", strict=True):
        summary = read_run(runs / name).summary or {}
        for baseline in ("warm_target", "target_only"):
            assert run["helped"][baseline] == summary[baseline]["help"]
            assert summary[baseline]["help"]["low"] < summary[baseline]["help"]["high"]
        assert (run["warm"], run["source_share"]) == (summary["warm_target"]["accuracy"], summary["source_share"])
    lines = printed(capsys, *given).splitlines()
    for words in (
        "warm-started target  ",
        "over the warm-started target  ",
        "over the target alone  ",
        "sources' share  ",
    ):
        assert any(line.startswith(words) for line in lines)


@pytest.mark.parametrize(
    ("error", "status"),
    [("", "finished"), ("interrupted", "interrupted"), ("the aggregator ended the run: quorum lost", "failed")],
    ids=["complete", "interrupted", "failed"],
)
def test_a_source_s_own_run_is_listed_as_its_process_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: str, status: str
) -> None:
    mine = tmp_path / "run"
    mine.mkdir()
    append_line(mine / METRICS_FILE, SiteLine(round=1, rule="fedda", refused={"key": "release.max-attempts"}))
    append_line(mine / METRICS_FILE, SiteLine(round=2, rule="fedda", samples=9))
    state = StateWriter(mine, "hospital-a", "source", interval_s=0)
    state.set("training", round=2, rounds=2)
    assert source_status(capsys, mine) == ("source", "open", 1, 2)
    state.set(ENDED, error=error)
    assert source_status(capsys, mine) == ("source", status, 1, 2)
    text = printed(capsys, "runs", "show", mine)
    assert "1 of 2" in text
    assert "this is a source's own record" in text


def test_a_source_of_a_simulated_run_has_its_own_record(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs / "a" / "sites" / "hospital-a"
    assert (folder / "model.safetensors").is_file()
    assert source_status(capsys, folder) == ("source", "open", 3, 0)
    assert "this is a source's own record" in printed(capsys, "runs", "show", folder)
    assert find_place(folder).role == "source"


def source_status(capsys: pytest.CaptureFixture[str], folder: Path) -> tuple[str, str, int, int]:
    (run,) = json.loads(printed(capsys, "runs", "ls", folder, "--format", "json"))["data"]["runs"]
    return run["role"], run["status"], run["rounds"], run["planned"]


def test_a_damaged_run_is_listed_as_such_beside_the_others(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(runs, tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "summary.json").write_text("{")
    listed = json.loads(printed(capsys, "runs", "ls", tmp_path, "--format", "json"))["data"]["runs"]
    assert {(Path(run["run"]).name, run["status"]) for run in listed} == {("broken", "damaged"), ("run", "finished")}
    (tmp_path / "broken").chmod(0)
    try:
        with plain_user():
            listed = json.loads(printed(capsys, "runs", "ls", tmp_path, "--format", "json"))["data"]["runs"]
    finally:
        (tmp_path / "broken").chmod(0o700)
    assert {(Path(run["run"]).name, run["status"]) for run in listed} == {("broken", "unreadable"), ("run", "finished")}


def test_a_run_is_shown_with_date_seed_rates_federation_and_sites(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "runs", "show", runs / "a")
    summary = read_run(runs / "a").summary
    gains = help_text(summary or {}).partition(": ")[2]
    assert " ".join(text.split()).endswith(
        f"gain {gains.replace('), ', ') ')} report {runs / 'a' / 'report.html'} "
        f"next securefda predict {runs / 'a'} --data FILE"
    )
    for words in (
        "target alone",
        "warm-started target",
        "sources' share",
        "UTC",
        "patients",
        "hospital-c",
        "learning rate 0.001",
        "seed  ",
        "securefda.Run.open",
    ):
        assert words in text


def test_predict_is_what_follows_where_a_task_that_comes_with_securefda_reads_rows() -> None:
    found = set()
    for module in pkgutil.iter_modules(securefda.tasks.__path__, "securefda.tasks."):
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, type) and issubclass(one, Task) and "inputs_from" in vars(one):
                found.add(one.__module__)
    assert found - {"securefda.tasks.base", "securefda.tasks.table_statistics"} == set(READ_ROWS)


def test_the_snippet_of_the_summary_loads_the_model(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "runs", "show", runs / "a").splitlines()
    line = next(line for line in lines if line.startswith("load the model"))
    found: dict[str, object] = {}
    exec(line.removeprefix("load the model").strip(), found)
    assert isinstance(found["model"], torch.nn.Module)


def test_runs_are_compared_by_the_settings_in_which_they_differ(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(printed(capsys, "runs", "compare", runs / "a", runs / "b", "--format", "json"))["data"]
    assert data["differences"] == {"strategy.rule": ["fedgp_auto", "fedda_auto"]}
    assert "strategy.rule" in printed(capsys, "runs", "compare", runs / "a", runs / "b")
    assert "no setting differs" in printed(capsys, "runs", "compare", runs / "a", runs / "a")
    assert "two or more" in refused(capsys, "runs", "compare", runs / "a")


def test_runs_are_compared_by_the_norm_cap_the_budget_and_the_data_too(runs: Path, tmp_path: Path) -> None:
    other = copied(runs, tmp_path)
    file = other / "summary.json"
    summary = json.loads(file.read_text())
    spent = {"epsilon": 1.0, "limit": 4.0, "delta": 1e-5, "accountant": "rdp"}
    summary |= {"norm_cap": None, "target_privacy": spent, "setting": summary["setting"] | {"data_dir": "/elsewhere"}}
    file.write_text(json.dumps(summary))
    assert differences([found_run(runs / "a"), found_run(other)]) == {
        "privacy.norm-cap-kappa": [1.0, 0.0],
        "privacy.norm-cap-granularity": ["layer", None],
        "privacy.budget.target-epsilon": [None, 4.0],
        "privacy.budget.target-delta": [None, 1e-5],
        "privacy.budget.accountant": [None, "rdp"],
        "task.data-dir": [str(runs / "data"), "/elsewhere"],
    }


def test_runs_are_compared_in_words_that_a_settings_file_takes() -> None:
    runs = [
        FoundRun(Path(name), "finished", "2026-11-24T08:21:50Z", "", "", 3, 3, None, None, {"strategy.filter": value})
        for name, value in (("a", True), ("b", False))
    ]
    lines = [line.split() for line in comparison(runs).splitlines()]
    assert lines[1] == ["ended", *["2026-11-24", "08:21:50", "UTC"] * 2]
    assert lines[-1] == ["strategy.filter", "true", "false"]


def test_a_run_that_was_interrupted_and_goes_on_is_shown_as_it_is_now(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(runs, tmp_path)
    file = run / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"status": "interrupted", "rounds": 2}))
    assert found_run(run).status == "open"  # it has three rounds now
    assert "no summary yet" in printed(capsys, "runs", "show", run)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rounds": 3}))
    assert found_run(run).status == "interrupted"
    StateWriter(run, "clinic", "target", interval_s=0).set("training", round=4, rounds=4)
    assert found_run(run).status == "open"


def test_a_run_without_its_rounds_has_the_figures_of_its_summary(runs: Path, tmp_path: Path) -> None:
    run, whole = copied(runs, tmp_path), found_run(runs / "a")
    (run / METRICS_FILE).unlink()
    left = found_run(run)
    assert (left.rounds, left.accuracy, left.metrics) == (3, whole.accuracy, whole.metrics)


def test_a_run_is_deleted_whole_and_only_when_told_to(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(runs, tmp_path)
    assert "--yes" in refused(capsys, "runs", "rm", run)
    (run / "notes.txt").write_text("mine")
    assert "notes.txt" in refused(capsys, "runs", "rm", run, "--yes")
    assert (run / "summary.json").exists()
    (run / "notes.txt").unlink()
    assert "deleted" in printed(capsys, "runs", "rm", run, "--yes")
    assert not run.exists()


def test_a_run_that_goes_on_is_not_deleted(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copied(runs, tmp_path)
    site = run / "sites" / "hospital-a"
    site.mkdir(parents=True, exist_ok=True)
    with state_file(site, site="hospital-a", role="source"):
        before = sorted(run.rglob("*"))
        for command in (("runs", "rm", run, "--yes"), ("simulate", "three_hospitals", "--fresh", "--out", run)):
            said = refused(capsys, *command)
            assert f"is in use by hospital-a (process {os.getpid()})" in said
            assert "Ctrl-C" in said
        assert sorted(run.rglob("*")) == before
    assert "deleted" in printed(capsys, "runs", "rm", run, "--yes")
    assert not run.exists()


@pytest.mark.parametrize(("answer", "is_deleted"), [("n", False), ("y", True)])
def test_whoever_is_asked_and_says_no_keeps_the_run(
    answer: str,
    is_deleted: bool,
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = copied(runs, tmp_path)
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
    said = printed(capsys, "runs", "rm", run)
    assert said.strip().startswith("deleted " if is_deleted else "nothing was deleted")
    assert run.exists() is not is_deleted


def test_the_run_of_a_startup_kit_is_not_deleted(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kit" / "startup").mkdir(parents=True)
    run = Path(shutil.copytree(runs / "a", tmp_path / "kit" / "local" / "run"))
    for confirmed in ((), ("--yes",)):  # nothing that is refused anyway is asked for
        assert "startup kit" in refused(capsys, "runs", "rm", run, *confirmed)
    assert (run / "summary.json").exists()


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        ("40,", "correct the value, or remove the row"),
        ("40,x", "correct the value, or remove the row"),
        ("2024-01-02,f", "correct the value, or remove the row"),
        ('"40,5",f', 'set task.options.decimal = ","'),
    ],
    ids=["no value", "another category", "a date", "another decimal mark"],
)
def test_no_hint_at_rows_to_predict_asks_for_another_model(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str, hint: str
) -> None:
    (tmp_path / "new.csv").write_text(f"age,sex\n30,f\n{row}\n")
    said = refused(capsys, "predict", runs / "a", "--data", tmp_path / "new.csv")
    assert f"hint: line 3 is the first; {hint}" in said
    assert "[task.options" not in said


def test_predictions_of_new_rows_are_a_csv_file_in_their_order(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, "predict", runs / "a", "--data", runs / "new.csv", "--out", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [row["row"] for row in found] == ["1", "2", "3", "4", "5"]
    task, model = trained_model(runs / "a")
    expected = torch.softmax(model(task.inputs_from(runs / "new.csv")).double(), dim=1)
    assert [float(row["probability yes"]) for row in found] == pytest.approx(expected[:, 1].tolist())
    assert {row["ill"] for row in found} <= {"yes", "no"}
    assert printed(capsys, "predict", runs / "a", "--data", runs / "new.csv") == (tmp_path / "out.csv").read_text()


@pytest.fixture(scope="module")
def with_head(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of ``a`` with a head on top, apart from the two that are listed."""
    folder = tmp_path_factory.mktemp("headed") / "run"
    settings = ("strategy.head=knn", "strategy.knn-neighbours=3", "strategy.validation-share=0.3")
    chosen = [part for setting in settings for part in ("--set", setting)]
    assert main(["simulate", str(runs / "federation.toml"), "--out", str(folder), *chosen]) == 0
    return folder


def test_predictions_ask_the_targets_nearest_rows_as_the_measured_figures_did(
    runs: Path, with_head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, model = trained_model(with_head)
    test = task.test_data("clinic")
    assert test is not None
    last = read_run(with_head).rounds[-1]
    assert last["loss"] == pytest.approx(float(task.loss(model(test.features), test.labels)), rel=1e-5)
    _, common = trained_model(with_head, head=False)
    with torch.no_grad():
        assert last["loss"] != pytest.approx(float(task.loss(common(test.features), test.labels)), rel=1e-2)

    new = runs / "new.csv"
    expected = model(task.inputs_from(new)).double().softmax(dim=1)[:, 1].tolist()
    said = printed(capsys, "predict", with_head, "--data", new)
    assert [float(row["probability yes"]) for row in csv.DictReader(io.StringIO(said))] == pytest.approx(expected)
    assert len(printed(capsys, "predict", with_head, "--data", new, "--model", "best").splitlines()) == 6
    plain = printed(capsys, "predict", with_head, "--data", new, "--without-head")
    by_model = common(task.inputs_from(new)).double().softmax(dim=1)[:, 1].tolist()
    assert [float(row["probability yes"]) for row in csv.DictReader(io.StringIO(plain))] == pytest.approx(by_model)


def test_the_rows_that_choose_the_best_model_are_measured_with_the_head_too(
    runs: Path, with_head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    share = ("--set", "strategy.validation-share=0.3")
    printed(capsys, "simulate", runs / "federation.toml", "--out", tmp_path / "plain", *share)
    plain, headed = (read_run(run).rounds for run in (tmp_path / "plain", with_head))
    assert [line["model_digest"] for line in plain] == [line["model_digest"] for line in headed]
    pairs = zip(plain, headed, strict=True)
    assert all(one["validation_loss"] != other["validation_loss"] for one, other in pairs)


def test_the_targets_rows_are_its_own_and_no_source_or_export_has_them(
    with_head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [file.relative_to(with_head).as_posix() for file in with_head.rglob("head*")] == ["head.safetensors"]
    assert (with_head / "head.safetensors").stat().st_mode & 0o777 == 0o600
    printed(capsys, "export", with_head, "--format", "torchscript", "--out", tmp_path / "model.pt")
    task, common = trained_model(with_head, head=False)
    test = task.test_data("clinic")
    assert test is not None
    exported = torch.jit.load(tmp_path / "model.pt")  # type: ignore[no-untyped-call]
    assert torch.allclose(exported(test.features), common(test.features))


def test_rows_that_are_not_of_the_run_are_refused(
    runs: Path, with_head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, asked = Path(shutil.copytree(with_head, tmp_path / "run")), ("--data", runs / "new.csv")
    kept = run / "head.safetensors"
    good = kept.read_bytes()
    of_run = json.loads((run / "summary.json").read_text())["run_id"]
    kept.write_bytes(good.replace(of_run.encode(), b"0" * len(of_run)))
    assert "is of another run than the summary" in refused(capsys, "predict", run, *asked)
    kept.write_bytes(good[:-8])
    assert "holds no labelled rows" in refused(capsys, "predict", run, *asked)
    kept.unlink()
    error = refused(capsys, "predict", run, *asked)
    assert "there are no rows of the target" in error
    assert "--without-head" in error
    assert len(printed(capsys, "predict", run, *asked, "--without-head").splitlines()) == 6


def test_a_row_that_does_not_fit_gets_no_prediction(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.csv").write_text("age,sex\nold,f\n")
    assert "age" in refused(capsys, "predict", runs / "a", "--data", tmp_path / "new.csv")
    assert "nowhere.csv" in refused(capsys, "predict", runs / "a", "--data", tmp_path / "nowhere.csv")


def test_a_model_that_is_not_the_summarys_is_refused(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(runs, tmp_path)
    shutil.copy(runs / "b" / "model.safetensors", run)
    assert "is not the model that the summary names" in refused(capsys, "predict", run, "--data", runs / "new.csv")
    (run / "model.safetensors").write_bytes(b"no model")
    assert "is no model file" in refused(capsys, "predict", run, "--data", runs / "new.csv")
    (run / "summary.json").unlink()
    assert "has no summary" in refused(capsys, "predict", run, "--data", runs / "new.csv")


def test_the_best_model_is_read_where_a_run_chose_one(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, new = tmp_path / "best", runs / "new.csv"
    command = ["simulate", runs / "federation.toml", "--out", run, "--set", "strategy.validation-share=0.3"]
    printed(capsys, *command)
    record = read_run(run)
    best = best_round(record.rounds)
    assert best is not None
    text = printed(capsys, "runs", "show", run)
    assert "of round 3: model.safetensors" in text
    assert f"of round {best['round']}, " in text
    assert "best.safetensors" in text
    for which, line in (("best", best), ("last", record.rounds[-1])):
        _, model = trained_model(run, which=which)  # type: ignore[arg-type]
        assert sha256(vector_to_wire(model_to_vector(model))).hexdigest() == line["model_digest"]
        assert len(printed(capsys, "predict", run, "--data", new, "--model", which).splitlines()) == 6
    out = tmp_path / "best.pt"
    printed(capsys, "export", run, "--format", "torchscript", "--model", "best", "--out", out)
    assert out.exists()
    shutil.copy(runs / "b" / "model.safetensors", run / "best.safetensors")
    error = refused(capsys, "predict", run, "--data", new, "--model", "best")
    assert f"is not the model that the line of round {best['round']} names" in error
    (run / METRICS_FILE).unlink()
    assert "lacks the round of the best model" in refused(capsys, "predict", run, "--data", new, "--model", "best")


def test_a_run_that_chose_no_best_model_says_so(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "predict", runs / "a", "--data", runs / "new.csv", "--model", "best")
    assert "chose no best model" in error
    assert "--model last" in error
    assert "best model" not in printed(capsys, "runs", "show", runs / "a")


def test_a_model_whose_last_layers_stayed_at_the_sites_predicts_nothing(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(runs, tmp_path)
    file = run / "summary.json"
    summary = json.loads(file.read_text())
    file.write_text(json.dumps(summary | {"strategy": summary["strategy"] | {"rule": "fedrep"}}))
    for command in (("predict", run, "--data", runs / "new.csv"), ("export", run, "--format", "torchscript")):
        assert "is of fedrep: the last layers stayed at each site, and its model has them untrained" in refused(
            capsys, *command
        )
    assert printed(capsys, "runs", "show", run).splitlines()[-1].endswith(f"securefda audit reconcile {run}")


def test_an_option_that_marks_a_secret_is_asked_for_by_name_and_given(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    file, run = tmp_path / "locked.toml", tmp_path / "locked"
    predict = ("predict", run, "--task", "locked_tasks:LockedTable", "--data")
    text = (runs / "federation.toml").read_text().replace("securefda.tasks.tabular:Tabular", "locked_tasks:LockedTable")
    secrets = '[task.options]\naccess-token = "sesame"\nstore = { password = 7, host = "here" }\n'
    file.write_text(text.replace("[task.options]\n", secrets))
    printed(capsys, "simulate", file, "--out", run)
    assert "sesame" not in (run / "summary.json").read_text()

    error = refused(capsys, *predict, runs / "new.csv")
    assert "task.options.access-token" in error
    assert "--set task.options.access-token=VALUE" in error
    token = ("--set", "task.options.access-token=sesame")
    assert "task.options.store.password" in refused(capsys, *predict, runs / "new.csv", *token)
    given = printed(capsys, *predict, runs / "new.csv", *token, "--set", "task.options.store.password=7")
    assert printed(capsys, *predict, runs / "new.csv", "--config", file) == given
    wrong = refused(capsys, *predict, runs / "new.csv", "--config", file, "--set", "task.options.access-token=open")
    assert "opens nothing" in wrong
    assert "only options of the task" in refused(capsys, *predict, runs / "new.csv", "--set", "strategy.rounds=3")
    (tmp_path / "empty.toml").write_text("[task]\n")
    assert "no table [task.options]" in refused(capsys, *predict, runs / "new.csv", "--config", tmp_path / "empty.toml")


def test_torchscript_gives_the_outputs_of_the_model_for_any_number_of_rows(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "export", runs / "a", "--format", "torchscript", "--out", tmp_path / "model.pt")
    assert "(rows, 3)" in text
    task, model = trained_model(runs / "a")
    inputs = task.inputs_from(runs / "new.csv")
    exported = torch.jit.load(str(tmp_path / "model.pt"))
    for part in (inputs, inputs[:1]):
        torch.testing.assert_close(exported(part), model(part))


@pytest.fixture(scope="module")
def exported(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run ``a`` as ONNX."""
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    file = tmp_path_factory.mktemp("exported") / "model.onnx"
    with contextlib.redirect_stdout(io.StringIO()) as printed_text:
        assert main(["export", str(runs / "a"), "--format", "onnx", "--out", str(file)]) == 0
    told = "takes `age` (rows, 1) float64, `sex` (rows, 1) text; gives `outputs` (rows, 2) float32"
    assert told in printed_text.getvalue()
    return file


def test_onnx_takes_raw_columns_by_name_and_gives_the_outputs_of_the_model(runs: Path, exported: Path) -> None:
    reference = pytest.importorskip("onnx.reference", reason="the extra onnx is not installed")
    task, model = trained_model(runs / "a")
    wanted = model(task.inputs_from(runs / "new.csv")).detach().numpy()
    with (runs / "new.csv").open() as file:
        table = list(csv.DictReader(file))
    ages, sexes = np.array([[float(row["age"])] for row in table]), np.array([[row["sex"]] for row in table], object)
    session = reference.ReferenceEvaluator(str(exported))
    for part in (slice(None), slice(1)):
        (outputs,) = session.run(None, {"age": ages[part], "sex": sexes[part]})
        np.testing.assert_allclose(outputs, wanted[part], rtol=1e-5, atol=1e-6)
    for unfit in ({"age": np.array([[np.nan]]), "sex": sexes[:1]}, {"age": ages[:1], "sex": np.array([["x"]], object)}):
        (outputs,) = session.run(None, unfit)  # training refuses such a row
        assert np.isnan(outputs).all()


def test_exports_hold_no_path_and_no_source_of_this_machine(
    runs: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, "export", runs / "a", "--format", "torchscript", "--out", tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "model.pt") as entries:
        script = b"".join(entries.read(name) for name in entries.namelist())
    for content in (exported.read_bytes(), script):
        for mark in (b".py", b"/site-packages", os.fsencode(Path.cwd()), os.fsencode(runs)):
            assert mark not in content


def test_an_onnx_file_says_in_its_metadata_what_its_numbers_stand_for(exported: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
    told = {entry.key: entry.value for entry in onnx.load(exported).metadata_props}
    assert json.loads(told["securefda"]) == {
        "task": "securefda.tasks.tabular:Tabular",
        "classes": ["no", "yes"],
        "features": ["age", "sex = f", "sex = m"],
    }


def test_a_card_lies_in_the_run_folder_and_beside_each_export(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, "export", runs / "a", "--format", "torchscript", "--out", tmp_path / "model.pt")
    beside = tmp_path / "model.pt.card.json"
    card = json.loads(beside.read_text())
    assert beside.read_text() == (runs / "a" / "model-card.json").read_text()
    record = read_run(runs / "a")
    assert record.summary is not None
    assert card["target"]["site"] == "clinic"
    assert [source["site"] for source in card["sources"]] == ["hospital-a", "hospital-b", "hospital-c"]
    assert all(source["samples"] and len(source["policy"]) == 64 for source in card["sources"])
    assert card["models"]["last"]["sha256"] == record.summary["model_digest"]
    assert card["metrics"]["last_rounds"]["accuracy"] == record.summary["target_accuracy"]
    assert (card["rounds"], card["rule"], card["status"]) == (3, "fedgp_auto", "finished")
    text = (tmp_path / "model.pt.card.md").read_text()
    assert text == (runs / "a" / "model-card.md").read_text()
    for said in ("`clinic` | target", card["sources"][0]["policy"], record.summary["model_digest"], "3 of 3 rounds"):
        assert said in text
    assert str(runs) not in text + beside.read_text()


def test_a_missing_package_is_named_with_its_extra(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    text = refused(capsys, "export", runs / "a", "--format", "onnx", "--out", tmp_path / "model.onnx")
    assert "pip install 'securefda[onnx]'" in text
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("function", [trained_model, predict])
def test_ctrl_c_ends_a_prediction_with_one_line_and_no_file(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], function: Callable[..., object]
) -> None:
    out = tmp_path / "predictions.csv"
    with ctrl_c_in(function):
        code = main(["predict", str(runs / "a"), "--data", str(runs / "new.csv"), "--out", str(out)])
    assert (code, capsys.readouterr()) == (130, ("", "error: interrupted\n"))
    assert list(tmp_path.iterdir()) == []
