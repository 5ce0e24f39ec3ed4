"""What a study has measured is kept, so that one that was stopped goes on where it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from benchmark_studies import imported_study


@dataclass(frozen=True)
class Cell:
    key: str


@dataclass(frozen=True)
class Figures:
    seconds: float


@pytest.fixture(scope="module")
def studies() -> Iterator[ModuleType]:
    with imported_study("studies") as module:
        yield module


@pytest.mark.parametrize("torn", ["", '{"cell": "b", "fig', '{"cell": "b", "figures": {"seconds": 2.0}}'])
def test_a_line_that_was_cut_off_takes_no_later_one_with_it(studies: ModuleType, tmp_path: Path, torn: str) -> None:
    cache = studies.Cache(tmp_path, "study")
    cache.add(Cell("a"), Figures(1.0))
    with (tmp_path / "study.jsonl").open("a") as file:
        file.write(torn)

    assert studies.Cache(tmp_path, "study").read() == {"a": {"seconds": 1.0}}
    studies.Cache(tmp_path, "study").add(Cell("c"), Figures(3.0))

    assert studies.Cache(tmp_path, "study").read() == {"a": {"seconds": 1.0}, "c": {"seconds": 3.0}}
