"""How far the tests go: ``make test`` is quick, ``make test-deep`` and a part of ``.ci/run`` are deep.

A quick run leaves out what ``tests/deep.toml`` lists, and tries fewer seeds, mutations and examples of the rest. A test
that is named with ``::`` on the command line runs at either depth. With ``-k``, files in whose name and text no word of
it occurs are not even imported, so that one test starts in a second or two.

Variables:
    SECUREFDA_TEST_DEPTH: ``deep``, or not set.
    SECUREFDA_TEST_PART: ``2/4`` keeps the second of four parts; files fall into parts by their names.
    SECUREFDA_TEST_POOL: ``processes`` keeps ``tests/end_to_end``, ``memory`` keeps the rest.
"""

from __future__ import annotations

import os
import re
import tomllib
import zlib
from pathlib import Path
from typing import TypeVar

import pytest

Value = TypeVar("Value")

DEEP = os.environ.get("SECUREFDA_TEST_DEPTH") == "deep"
LIST = Path(__file__).resolve().parents[1] / "deep.toml"
PROCESSES = "tests/end_to_end/"


def at_depth(quick: Value, deep: Value) -> Value:
    """``quick`` in ``make test``, ``deep`` in ``make test-deep``."""
    return deep if DEEP else quick


def listed(table: str) -> dict[str, str]:
    """The entries of ``deep`` or ``slow`` in ``tests/deep.toml`` with their reasons: files, tests, or cases of one."""
    groups = tomllib.loads(LIST.read_text(encoding="utf-8"))[table]
    return {entry: group["because"] for group in groups for entry in group["tests"]}


def is_listed(test: str, entries: dict[str, str]) -> bool:
    """Whether a test is listed by itself, by its function without parameters, by its class, or by its file."""
    names = {test, test.split("[", 1)[0]}
    names |= {name.rsplit("::", count)[0] for name in set(names) for count in (1, 2)}
    return not names.isdisjoint(entries)


def in_part(test: str, part: str) -> bool:
    """Whether a test is in a part such as ``2/4``."""
    number, parts = map(int, part.split("/"))
    return zlib.crc32(test.split("::", 1)[0].encode()) % parts == number - 1


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that ``-k`` cannot match; importing torch and Opacus takes seconds."""
    words = set(re.findall(r"[\w.-]+", config.option.keyword.lower())) - {"and", "or"}
    if not words or "not" in words or not collection_path.name.startswith("test_") or collection_path.is_dir():
        return None
    text = f"{collection_path}\n{collection_path.read_text(encoding='utf-8')}".lower()
    return True if all(word not in text for word in words) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of this depth, part and pool."""
    deep = {} if DEEP or any("::" in argument for argument in config.args) else listed("deep")
    part, pool = os.environ.get("SECUREFDA_TEST_PART"), os.environ.get("SECUREFDA_TEST_POOL")

    def runs(test: str) -> bool:
        in_pool = pool is None or (pool == "processes") == test.startswith(PROCESSES)
        return in_pool and (part is None or in_part(test, part)) and not is_listed(test, deep)

    kept = [item for item in items if runs(item.nodeid)]
    config.hook.pytest_deselected(items=[item for item in items if not runs(item.nodeid)])
    items[:] = kept
