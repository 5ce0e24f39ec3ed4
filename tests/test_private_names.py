"""Tests replace private functions by name, many of them deep ones alone: each of these names must still exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATCHED = re.compile(r"\b(?:setattr|replaced|Replacement)\((?:\s*\"[^\"]*\",)?[^()\"]*\"(_[a-zA-Z]\w*)\"")


def test_every_private_name_that_a_test_replaces_exists() -> None:
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "securefda").rglob("*.py"))
    known = set(re.findall(r"\b_[a-zA-Z]\w*", code))
    files = (file for folder in ("threat_model", "tests") for file in (ROOT / folder).rglob("*.py"))
    patched = {(name, file.name) for file in files for name in PATCHED.findall(file.read_text(encoding="utf-8"))}
    assert len(patched) > 10
    assert [(name, file) for name, file in sorted(patched) if name not in known] == []
