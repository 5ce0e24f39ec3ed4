"""Kits for the tests of the dashboard, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from watched_sites import SOURCES, TARGET, Site, copied, make_kits


@pytest.fixture(scope="session")
def first_kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_kits(tmp_path_factory.mktemp("federation") / "kits")


@pytest.fixture
def kits(first_kits: Path, tmp_path: Path) -> Path:
    return copied(first_kits, tmp_path)


@pytest.fixture
def target(kits: Path) -> Site:
    return Site(kits, TARGET)


@pytest.fixture
def source(kits: Path) -> Site:
    return Site(kits, SOURCES[0])
