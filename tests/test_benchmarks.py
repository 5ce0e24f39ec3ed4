"""The benchmarks that are repeated run, each in its smallest form; what they measure is on their pages."""

import os
import subprocess
import sys

import pytest
from benchmark_studies import BENCHMARKS

SMALLEST = {
    "dp_noise.py": "--values 1024 --repeats 1",
    "dp_step.py": "--device cpu --repeats 1 --cases digits",
    "masks.py": "--params 1000 --repeats 1",
    "memory.py": "source --rounds 1 --width 10",
    "norm_caps.py": "--sources 3 --layers 2 --parameters 100 --runs 1",
    "policy.py": "--participants 3 --layers 2 --repetitions 1",
    "rule_evaluation.py": "--one --parameters 1000 --runs 1",
}


@pytest.mark.parametrize("script", SMALLEST)
def test_a_benchmark_runs(script: str) -> None:
    command = [sys.executable, str(BENCHMARKS / script), *SMALLEST[script].split()]
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS.parent)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
