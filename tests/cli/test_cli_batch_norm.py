"""A run whose model holds BatchNorm, from the command line: what its files hold, and that they give its accuracy."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from securefda.cli import main
from securefda.operations.records import best_round
from securefda.operations.run_folder import read_run
from securefda.operations.trained import trained_model
from securefda.tasks import rows_of
from securefda.training import build_model, estimate_statistics

PARAMETERS = {f"{layer}.{kind}" for layer in (0, 1, 2, 5) for kind in ("weight", "bias")}
STATISTICS = {f"{layer}.{kind}" for layer in (0, 2) for kind in ("running_mean", "running_var", "num_batches_tracked")}
FACTORY = "normed_tasks:NormedDigits"
FEDERATION = f"""
[federation]
name = "normed"
target = "target"
sources = ["source-1", "source-2", "source-3"]
[task]
factory = "{FACTORY}"
[strategy]
rule = "source_only"
rounds = 4
warm-up-rounds = 0
validation-share = 0.3
[training.source]
learning-rate = 0.01
batch-size = 32
"""


@pytest.fixture(scope="module", autouse=True)
def _tasks_here() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a simulated run."""
    folder = tmp_path_factory.mktemp("normed")
    (folder / "federation.toml").write_text(FEDERATION)
    assert main(["simulate", str(folder / "federation.toml"), "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.mark.parametrize("which", ["last", "best"])
def test_predict_and_export_give_the_accuracy_of_the_report(
    run: Path, tmp_path: Path, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record = read_run(run)
    line = record.rounds[-1] if which == "last" else best_round(record.rounds)
    assert line is not None
    task, _ = trained_model(run, task=FACTORY)
    test = rows_of(task, "target", "test")
    np.save(tmp_path / "rows.npy", test.features.numpy())
    out, export = tmp_path / "predictions.csv", tmp_path / "model.pt"
    command = [
        "predict",
        str(run),
        "--data",
        str(tmp_path / "rows.npy"),
        "--out",
        str(out),
        "--model",
        which,
        "--task",
        FACTORY,
    ]
    assert main(command) == 0
    with out.open() as file:
        said = [int(row["class"]) for row in csv.DictReader(file)]
    assert np.mean(np.array(said) == test.labels.numpy()) == line["accuracy"]
    assert (
        main(["export", str(run), "--format", "torchscript", "--model", which, "--out", str(export), "--task", FACTORY])
        == 0
    )
    exported = torch.jit.load(str(export))(test.features).argmax(dim=1)  # type: ignore[no-untyped-call]
    assert exported.tolist() == said


def test_the_targets_files_hold_statistics_of_its_rows_and_the_sources_files_none(run: Path) -> None:
    tensors = load_file(run / "model.safetensors")
    assert set(tensors) == PARAMETERS | STATISTICS
    assert set(load_file(run / "best.safetensors")) == PARAMETERS | STATISTICS
    for source in ("source-1", "source-2", "source-3"):
        assert set(load_file(run / "sites" / source / "model.safetensors")) == PARAMETERS
    task, _ = trained_model(run, task=FACTORY)
    rows = task.train_data("target").features  # those that are not left out to choose a model are 70 of 100
    assert torch.allclose(tensors["0.running_mean"], rows.mean(dim=0), atol=0.2)
    assert int(tensors["0.num_batches_tracked"]) == 1


def test_a_source_can_use_its_model_with_statistics_of_its_own_rows(run: Path) -> None:
    task, _ = trained_model(run, task=FACTORY)
    model = build_model(task, seed=0)
    model.load_state_dict(load_file(run / "sites" / "source-1" / "model.safetensors"), strict=False)
    estimate_statistics(task, model, rows_of(task, "source-1", "train"))
    held_out = rows_of(task, "source-1", "test")
    with torch.no_grad():
        right = model(held_out.features).argmax(dim=1) == held_out.labels
    assert float(right.double().mean()) > 0.7


def test_a_model_file_without_its_statistics_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    save_file(
        {name: one for name, one in load_file(run / "model.safetensors").items() if name in PARAMETERS},
        copy / "model.safetensors",
    )
    assert main(["predict", str(copy), "--data", "rows.npy", "--task", FACTORY]) == 4
    assert f"has other layers than the model of {FACTORY}" in capsys.readouterr().err


def test_the_same_run_again_leaves_the_same_file(run: Path, tmp_path: Path) -> None:
    assert main(["simulate", str(run.parent / "federation.toml"), "--out", str(tmp_path)]) == 0
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (run, tmp_path))
    assert all(torch.equal(ours[name], theirs[name]) for name in PARAMETERS | STATISTICS)
