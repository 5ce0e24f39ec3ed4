"""What tests of commands share: owners of sites with a privacy ledger, or without one yet."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from budget_owner import Owner, found_noisy


@pytest.fixture
def no_disk_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that write many logs: nothing here survives a power cut, or needs to."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture(scope="session")
def noisy_kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return found_noisy(tmp_path_factory.mktemp("founded") / "kits")


@pytest.fixture
def bare(noisy_kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Owner:
    """The owner of a source without a ledger."""
    return Owner(Path(shutil.copytree(noisy_kits, tmp_path / "kits")) / "source-1", capsys)


@pytest.fixture
def owner(bare: Owner) -> Owner:
    assert bare.run("init")[0] == 0
    return bare
