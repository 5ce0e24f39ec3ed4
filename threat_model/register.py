"""The register of this source tree, the tests that name its threats, and the gaps between the two."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from securefda.threat_register import Kind, LastRun, Register, load_register, unproven, verdict

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
TEST_FOLDERS = ("threat_model/tests", "tests")

THREAT_MARK = "threat"
CONTROL_MARK = "control"
MACHINERY_MARK = "machinery"
MARKS = (
    f"{THREAT_MARK}(id, ...): what this test shows belongs to these threats of threat_model/threats.toml",
    f"{CONTROL_MARK}: a positive control: the adversary with the mitigation switched off, which has to succeed",
    f"{MACHINERY_MARK}: a test in threat_model/tests of the register, the stage or the switches, so of no threat",
)

_NEEDED: dict[Kind, str] = {"adversary": "the tests of it", "control": "its positive control"}


def register() -> Register:
    """Read the register of this tree.

    Raises:
        ConfigError: it is malformed.
    """
    return load_register(FOLDER)


def files_by_threat(root: Path = ROOT) -> dict[str, tuple[str, ...]]:
    """Return threat id -> the test files with a mark that names it, relative to ``root``. Reads the source; nothing
    runs.
    """
    found: dict[str, set[str]] = {}
    for folder in TEST_FOLDERS:
        for path in sorted((root / folder).rglob("test_*.py")):
            for threat_id in _marked(path.read_text(encoding="utf-8")):
                found.setdefault(threat_id, set()).add(path.relative_to(root).as_posix())
    return {threat_id: tuple(sorted(files)) for threat_id, files in sorted(found.items())}


def _marked(source: str) -> Iterator[str]:
    if f"mark.{THREAT_MARK}(" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{THREAT_MARK}":
            yield from (str(item.value) for item in node.args if isinstance(item, ast.Constant))


def unshown(known: Register, run: LastRun) -> list[str]:
    """Return a line for each claim that a full run did not show: the tests that every mitigation needs."""
    return [
        f"{threat.id} is mitigated, and {_NEEDED[kind]}: {verdict(run, threat.id, kind).outcome}"
        for kind in _NEEDED
        for threat in unproven(known, run, kind)
    ]


def misnamed(known: Register, run: LastRun, unmarked: Iterable[str]) -> list[str]:
    """Return a line for each test that names no threat of the register, or has no mark although it needs one."""
    ids = {threat.id for threat in known.threat}
    unknown = [
        f"{name} is marked {threat_id}, which is no threat of the register"
        for name, record in sorted(run.tests.items())
        for threat_id in sorted(set(record.threats) - ids)
    ]
    return unknown + [f"{name} names no threat: mark it so" for name in sorted(unmarked)]
