"""Freed vectors leave the process; what is imported is not searched for garbage."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from securefda.cli import main
from securefda.machine import without_collections

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


@pytest.fixture
def frozen():
    """How many objects are left out of collections; afterwards there are none."""
    yield gc.get_freeze_count
    gc.unfreeze()


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_in_a_block_nor_what_it_leaves(frozen, enabled):
    gc.collect()
    (gc.enable if enabled else gc.disable)()
    before = gc.get_stats()
    try:
        with without_collections():
            made = [[] for _ in range(100_000)]
            assert not gc.isenabled()
            assert gc.get_stats() == before
        assert gc.isenabled() is enabled
        assert frozen() > len(made)
        assert not any(one is made[0] for one in gc.get_objects())
    finally:
        gc.enable()


@without_collections()
def importing_what_is_not_there():
    assert not gc.isenabled()
    raise ImportError


def test_after_an_error_there_are_collections_again(frozen):
    with pytest.raises(ImportError):
        importing_what_is_not_there()
    assert gc.isenabled()


IMPORTS = """
import gc, sys
from securefda.cli import main
code = main({arguments})
print(code, "torch" in sys.modules, gc.get_freeze_count())
"""


@pytest.mark.parametrize("command", ["source start", "aggregator start"])
def test_a_process_that_starts_has_frozen_what_it_imported(tmp_path, command):
    kits = tmp_path / "kits"
    assert main(["federation", "init", "digits", "--out", str(kits)]) == 0
    site = "target" if command.startswith("aggregator") else "source-1"
    other = "source" if site == "target" else "aggregator"
    settings = kits / site / "local" / "settings.toml"
    kit = kits / ("source-1" if site == "target" else "target")
    settings.write_text(settings.read_text().replace('kit = ".."', f"kit = {str(kit)!r}"))  # of the wrong role
    arguments = [*command.split(), "--config", str(settings)]
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(arguments=arguments)], capture_output=True, text=True, check=False
    )
    assert other in ran.stderr
    code, has_torch, frozen = ran.stdout.split()
    assert (code != "0", has_torch) == (True, "True")
    assert int(frozen) > 100_000
