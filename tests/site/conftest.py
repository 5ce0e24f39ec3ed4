"""A small federation in files, made once per session and copied for the tests that change it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from federation_builder import make


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation that no test may change."""
    return make(tmp_path_factory.mktemp("federation") / "fed").root


@pytest.fixture
def federation(pristine: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    return Path(shutil.copytree(pristine, tmp_path / "fed"))


@pytest.fixture(scope="session")
def other_federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another federation with the same site names."""
    return make(tmp_path_factory.mktemp("federation") / "other", "lung-study").root


@pytest.fixture(scope="session")
def namesake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another federation that even has the same name."""
    return make(tmp_path_factory.mktemp("federation") / "namesake").root
