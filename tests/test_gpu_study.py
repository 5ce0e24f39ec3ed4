"""The measurements on a GPU, tried on the CPU: every part in its smallest size, what stops them, and their tables."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "gpu.py"
SMALLEST = ("--measure", "--device", "cpu", "--size", "smallest")
PARTS = ("tests", "run", "training", "dp", "accuracy", "memory")


@pytest.fixture(scope="module")
def gpu():
    sys.path.insert(0, str(SCRIPT.parent))
    before = list(sys.path)
    yield importlib.import_module("gpu")
    sys.path[:] = before
    sys.path.remove(str(SCRIPT.parent))
    sys.modules.pop("gpu", None)


def command(*arguments, python=(sys.executable,)):
    return subprocess.run([*python, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False)


def begun(parts=(), lacking=()):
    """Figures before the first part is measured."""
    return {"device": {"kind": "cpu"}, "size": "smallest", "lacking": dict(lacking), "parts": dict(parts)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_measured_in_its_smallest_size_on_the_cpu(gpu, tmp_path, part):
    file = tmp_path / "figures.json"
    done = command(*SMALLEST, "--figures", file, "--parts", part)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())
    assert figures["parts"][part]["status"] == "ok", done.stderr
    assert f"{part}: ok" in done.stderr
    table = gpu.tables(figures)[part]
    assert table.startswith("| ")
    assert table in done.stdout
    assert not [line for line in gpu.misses(figures) if line.startswith(part) and "over opacus" not in line]
    # Asked again, it has nothing to measure: without time for a part, it would say that it was not reached.
    again = command(*SMALLEST, "--figures", file, "--parts", part, "--limit", 0)
    assert (again.returncode, json.loads(file.read_text())["parts"]) == (0, figures["parts"])


def test_every_part_has_a_bound_and_its_packages_and_there_is_time_for_most(gpu):
    parts = importlib.import_module("gpu_parts").PARTS
    assert tuple(parts) == tuple(gpu.BOUNDS_S) == PARTS
    assert gpu.NEEDS.keys() == parts.keys()
    assert {package for needs in gpu.NEEDS.values() for package in needs} <= gpu.requirements().keys()
    assert gpu.LIMIT_S + 2 * gpu._END_S <= 480


def test_a_machine_without_a_gpu_is_one_line():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = command("--measure")
    assert done.returncode == 4
    error, hint = [line for line in done.stderr.splitlines() if not line.startswith("missing packages")]
    assert error.startswith(f"error: no GPU: torch {torch.__version__} is a build")
    assert "--device cpu" in hint


def test_a_part_whose_packages_are_missing_is_recorded_and_the_next_one_is_measured(gpu):
    figures, saved = begun(lacking={"opacus": "opacus==1.6.0"}), []
    gpu.measure(figures, ["dp", "memory"], 300, lambda: saved.append(list(figures["parts"])))
    assert figures["parts"]["dp"] == {"status": "missing", "error": "missing packages: opacus==1.6.0"}
    assert figures["parts"]["memory"]["status"] == "ok"
    assert saved == [["dp"], ["dp", "memory"]]


def test_a_part_that_fails_is_recorded_with_its_error(gpu):
    failed = gpu.one_part("unknown", "cpu", "smallest", 200)
    assert (failed["status"], failed["error"]) == ("failed", "KeyError: 'unknown'")


def test_a_part_that_takes_too_long_is_ended_and_one_without_time_is_not_begun(gpu):
    assert gpu.one_part("memory", "cpu", "smallest", 0.001)["status"] == "too long"
    figures = begun()
    gpu.measure(figures, ["memory"], 0, lambda: None)
    assert figures["parts"]["memory"]["status"] == "not reached"


def test_figures_of_another_device_or_size_are_not_replaced_unasked(tmp_path):
    file = tmp_path / "figures.json"
    assert command(*SMALLEST, "--figures", file, "--parts", "memory", "--limit", 0).returncode == 0
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "size": "full"}))
    refused = command(*SMALLEST, "--figures", file)
    assert refused.returncode == 4
    assert "has figures of another size" in refused.stderr
    assert json.loads(file.read_text())["size"] == "full"
    assert command(*SMALLEST, "--figures", file, "--parts", "memory", "--limit", 0, "--again").returncode == 0
    assert json.loads(file.read_text())["size"] == "smallest"


def case(ratio):
    return {"ratios": {"ours over opacus, hooks": ratio, "ours over plain, hooks": 9.0}}


def test_what_does_not_hold_is_named(gpu):
    accuracy = {"difference": -0.004, "noise": 0.01}
    parts = {part: {"status": "ok", "figures": {}} for part in PARTS}
    parts["dp"]["figures"] = {"allowed": 1.3, "cases": {"wide": case(1.3)}}
    parts["accuracy"]["figures"] = accuracy
    assert gpu.misses({"parts": parts}) == []
    parts["dp"]["figures"]["cases"]["wide"] = case(1.31)
    accuracy["noise"] = 0.003
    del parts["run"]
    parts["tests"] = {"status": "failed", "error": "1 tests failed"}
    assert gpu.misses({"parts": parts}) == [
        "tests: 1 tests failed",
        "run: it was not asked for",
        "dp: wide: ours over opacus, hooks is 1.31, allowed is 1.3",
        "accuracy: differs by -0.0040, seeds by 0.0030",
    ]
