"""A stage whose state files are closed when the test ends; what sites that really train need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from threat_model.stage import MakesStage, Stage


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[MakesStage]:
    """Makes a stage in a folder of its own."""
    from threat_model.stage import Stage  # noqa: PLC0415 - every run of pytest loads this file, and torch takes seconds

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
