"""A stage whose state files are closed when the test ends; what sites that really train need."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import torch

from threat_model.stage import MakesStage, Stage


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[MakesStage]:
    """Makes a stage in a folder of its own."""
    with ExitStack() as stages:

        def make(*args: Any, **options: Any) -> Stage:
            folder = tmp_path / f"stage-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return stages.enter_context(closing(Stage(folder, *args, **options)))

        yield make


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small models train faster on one thread, above all where other tests run at the same time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[Path]:
    """A folder for ledgers, in memory where the system has that: they are written often, and no power is cut."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as name:
        yield Path(name)
