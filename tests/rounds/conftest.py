"""What tests of the rounds share: federations that are closed when a test ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from rounds_federation import OPEN, Build, Federation


@pytest.fixture(autouse=True)
def federations_are_closed() -> Iterator[None]:
    yield
    for federation in list(OPEN):
        federation.close()


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Makes federations, each in a folder of its own."""
    numbers = count()

    def make(*args: Any, **options: Any) -> Federation:
        return Federation(tmp_path / str(next(numbers)), *args, **options)

    return make
