"""Every sample file in the package and the repository is a valid one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from securefda.cli import main
from securefda.samples import sample, sample_names
from securefda.site.config import load_aggregator, load_federation, load_source
from securefda.tasks.mapping import read_table

ROOT = Path(__file__).parents[1]
FEDERATIONS = [sample(name) for name in sample_names()]
TABLES = ROOT / "examples" / "heart_tables"


@pytest.mark.parametrize("file", [*FEDERATIONS, TABLES / "federation.toml"], ids=lambda file: file.stem)
def test_sample_federation_is_read(file: Path) -> None:
    config = load_federation(file)
    assert config.federation.sources
    assert config.privacy.visibility == "sum"
    assert config.strategy.filter or file.stem == "fed_heart"  # without it, every site's policy has to allow that


def test_there_are_samples_of_each_bundled_task() -> None:
    factories = {load_federation(file).task.factory for file in FEDERATIONS}
    assert {"securefda.tasks.digits:Digits", "securefda.tasks.fed_heart:FedHeart"} <= factories


def test_sample_settings_of_both_processes_are_read_and_fit_each_other() -> None:
    aggregator = load_aggregator(ROOT / "services/aggregator/aggregator.toml")
    source = load_source(ROOT / "services/source/source.toml")
    assert aggregator.task == source.task
    assert aggregator.aggregator.seed == source.source.seed


@pytest.mark.data
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("colored_mnist", "mnist"),
        ("noisy_fashion_mnist", "fashion_mnist"),
        ("label_shift_fashion_mnist", "fashion_mnist"),
    ],
)
def test_what_a_sample_says_of_the_whole_set_runs_as_it_stands(
    name: str, folder: str, real_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [said] = [line for line in sample(name).read_text().splitlines() if line.startswith("# The whole set")]
    flags = said.partition(": ")[2].split()
    assert flags[0] == "--set"
    one_round = ("strategy.rounds=1", "strategy.warm-up-rounds=0", "strategy.rule=fedda", "training.source.epochs=1")
    settings = (*one_round, "strategy.compare-target-only=false", f"task.data-dir={real_data / folder}")
    command = ["simulate", name, "--out", str(tmp_path), *flags]
    assert main([*command, *(part for setting in settings for part in ("--set", setting))]) == 0
    assert "1 of 1" in capsys.readouterr().out


def test_a_sample_is_run_by_its_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    one_round = [
        "--set",
        "strategy.rounds=1",
        "--set",
        "strategy.warm-up-rounds=0",
        "--set",
        "strategy.rule=target_only",
    ]
    assert main(["simulate", "digits", "--out", str(tmp_path), *one_round]) == 0
    assert "1 of 1" in capsys.readouterr().out


def test_the_tables_are_what_their_script_writes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, TABLES / "make_tables.py", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_bytes() for path in TABLES.glob("*.csv")}


def test_the_dialects_are_what_their_script_writes(tmp_path: Path) -> None:
    dialects = ROOT / "examples" / "heart_dialects"
    done = subprocess.run(
        [sys.executable, dialects / "make_dialects.py", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for kept in (*dialects.glob("*.csv"), *dialects.glob("*.xlsx")):
        if kept.suffix == ".csv":
            assert kept.read_bytes() == (tmp_path / kept.name).read_bytes()
        else:  # a workbook holds the moment in which it was written
            tables = [read_table(path, sheet="Export") for path in (kept, tmp_path / kept.name)]
            assert tables[0].cells == tables[1].cells


def test_the_tables_can_be_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task", "check", str(TABLES / "federation.toml")]) == 0
    assert capsys.readouterr().out.count("ok: ") == 4
