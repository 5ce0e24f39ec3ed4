"""A stage whose state files are closed when the test ends; what sites that really train need."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

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
def ledgers(tmp_path: Path) -> Path:
    """A folder for ledgers."""
    folder = tmp_path / "ledgers"
    folder.mkdir()
    return folder
