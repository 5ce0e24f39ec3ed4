"""The benchmarks that are repeated run, each in its smallest form; what they measure is on their pages."""

import os
import subprocess
import sys

import pytest
from benchmark_studies import BENCHMARKS

SMALLEST = {
    "dp_noise.py": "--values 1024 --repeats 1",
    "dp_step.py": "--device cpu --repeats 1 --cases digits",
    "memory.py": "source --rounds 1 --width 10",
}


@pytest.mark.parametrize("script", SMALLEST)
def test_a_benchmark_runs(script: str) -> None:
    command = [sys.executable, str(BENCHMARKS / script), *SMALLEST[script].split()]
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS.parent)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
