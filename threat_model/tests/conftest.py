"""A stage whose state files are closed when the test ends; what sites that really train need."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from threat_model.stage import MakesStage, Stage


@contextmanager
def quick_folder(otherwise: Path) -> Iterator[Path]:
    """A folder in memory where the system has that: state and logs are written often, and no power is cut."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else otherwise) as name:
        yield Path(name)


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[MakesStage]:
    """Makes a stage in a folder of its own."""
    with quick_folder(tmp_path) as parent, ExitStack() as stages:

        def make(*args: Any, **options: Any) -> Stage:
            folder = parent / f"stage-{len(list(parent.iterdir()))}"
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
    """A folder for ledgers."""
    with quick_folder(tmp_path) as folder:
        yield folder
