"""How far the tests go: ``make test`` is quick, ``make test-deep`` and a part of ``.ci/run`` are deep.

A quick run leaves out what ``tests/deep.toml`` lists as deep, tries the first and the last case of what it lists under
``[[ends]]``, and tries fewer seeds, mutations and examples of the rest. A test that is named with ``::`` on the command
line runs at either depth. With ``-k``, files in whose name and text no word of it occurs are not even imported, so that
one test starts in a second or two.

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
PROCESSES = "tests/end_to_end"


def at_depth(quick: Value, deep: Value) -> Value:
    """``quick`` in ``make test``, ``deep`` in ``make test-deep``."""
    return deep if DEEP else quick


def listed(table: str) -> dict[str, str]:
    """The entries of a table of ``tests/deep.toml`` with their reasons: files, tests, or cases of one."""
    groups = tomllib.loads(LIST.read_text(encoding="utf-8"))[table]
    return {entry: group["because"] for group in groups for entry in group["tests"]}


def is_listed(test: str, entries: dict[str, str]) -> bool:
    """Whether a test is listed by itself, by its function without parameters, by its class, or by its file."""
    names = {test, test.split("[", 1)[0]}
    names |= {name.rsplit("::", count)[0] for name in set(names) for count in (1, 2)}
    return not names.isdisjoint(entries)


def left_out_of_quick(tests: list[str]) -> set[str]:
    """Which of the tests, in the order in which they were collected, a quick run leaves out."""
    deep, cases = listed("deep"), {function: [] for function in listed("ends")}
    for test in tests:
        cases.get(test.split("[", 1)[0], []).append(test)
    middle = {case for of_one in cases.values() for case in of_one[1:-1]}
    return middle | {test for test in tests if is_listed(test, deep)}


def in_part(file: str, part: str) -> bool:
    """Whether a file is in a part such as ``2/4``."""
    number, parts = map(int, part.split("/"))
    return zlib.crc32(file.encode()) % parts == number - 1


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of another part or pool, and those that ``-k`` cannot match: imports take seconds."""
    if not collection_path.name.startswith("test_") or collection_path.is_dir():
        return None
    file = collection_path.relative_to(config.rootpath).as_posix()
    part, pool = os.environ.get("SECUREFDA_TEST_PART"), os.environ.get("SECUREFDA_TEST_POOL")
    if (part and not in_part(file, part)) or (pool and (pool == "processes") != file.startswith(f"{PROCESSES}/")):
        return True
    words = set(re.findall(r"[\w.-]+", config.option.keyword.lower())) - {"and", "or"}
    if not words or "not" in words:
        return None
    text = f"{file}\n{collection_path.read_text(encoding='utf-8')}".lower()
    return True if all(word not in text for word in words) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests on the list to a deep run."""
    if DEEP or any("::" in argument for argument in config.args):
        return
    left_out = left_out_of_quick([item.nodeid for item in items])
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]
