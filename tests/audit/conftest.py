"""Good logs, which the tests of verification falsify."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from log_builder import LARGE, SMALL, grow, opened


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, ...], Path]:
    made = {}
    for sizes in (SMALL, LARGE):
        parent = tmp_path_factory.mktemp("logs")
        with opened(parent) as log:
            grow(log, *sizes)
        made[sizes] = parent / "run-1"
    return made


@pytest.fixture
def small(folders: dict[tuple[int, ...], Path], tmp_path: Path) -> Path:
    return shutil.copytree(folders[SMALL], tmp_path / "copy")


@pytest.fixture
def no_disk_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of whole runs, where nothing is asked about power cuts, need not wait for the disk."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
