"""Freed vectors leave the process."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import numpy as np
from securefda.machine import give_free_memory_back, map_large_blocks

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS:")) / 1024

assert map_large_blocks()
before = resident()
small = []
for _ in range(8):
    vector = np.ones(5 << 20, np.float32)
    small.append(bytes(100_000))
    del vector
after_vectors = resident()
chunks = [(bytes(1 << 20), small.append(bytes(100))) for _ in range(60)]
del chunks
give_free_memory_back()
print(after_vectors - before, resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_freed_vectors_and_chunks_go_back_to_the_system():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    if "assert map_large_blocks()" in ran.stderr:
        pytest.skip("the C library has no setting for it")
    assert ran.returncode == 0, ran.stderr
    after_vectors, after_chunks = map(float, ran.stdout.split())
    assert after_vectors < 10
    assert after_chunks < 10
