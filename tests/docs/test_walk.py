"""The two walks through the code are true: each file is imported by one before it, or by a process across the wire."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "walk.md").read_text(encoding="utf-8")
WALKS = {
    part.split("\n", 1)[0]: re.findall(r"^\d+\. `([^`]+)`: ", part, flags=re.MULTILINE)
    for part in PAGE.split("\n## ")[1:]
}
MOST = {"One update, from a row to the model": 12, "One command, from the shell to a socket": 15}
STARTS = {"securefda/source/source_round.py", "securefda/cli/__init__.py", "securefda/transport/aggregator_server.py"}
"""The first file of each walk, and where the update arrives."""


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_of(path: str) -> set[str]:
    """Modules that a file imports, also inside a function; a package stands for what it re-exports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            package = ROOT / node.module.replace(".", "/") / "__init__.py"
            if package.is_file() and path != package.relative_to(ROOT).as_posix():
                names |= imports_of(package.relative_to(ROOT).as_posix())
            found |= names
    return found


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_has_few_files_and_none_twice(walk):
    assert 10 <= len(WALKS[walk]) <= MOST[walk]
    assert len(set(WALKS[walk])) == len(WALKS[walk])


@pytest.mark.parametrize("walk", WALKS)
def test_the_files_of_a_walk_can_be_imported_in_their_order(walk):
    for path in WALKS[walk]:
        importlib.import_module(module_of(path))


@pytest.mark.parametrize("walk", WALKS)
def test_each_file_is_used_by_one_of_the_walk_or_of_its_process(walk):
    """Later files of the walk count as well: rows meet the trainer before the code that calls it."""
    used = set().union(*(imports_of(path) for path in WALKS[walk]))
    processes = ("source/source_run.py", "source/source_process.py", "source/source_site.py", "aggregator/run.py")
    used |= set().union(*(imports_of(f"securefda/{name}") for name in processes))
    missing = [path for path in WALKS[walk] if module_of(path) not in used and path not in STARTS]
    assert missing == []
