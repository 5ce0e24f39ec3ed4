"""What comments in the package cite is there: threats, decisions, and sections of the specifications."""

from __future__ import annotations

import io
import re
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "threat_model"
COMMENTS = [
    (path.relative_to(ROOT), token.string)
    for path in sorted((ROOT / "securefda").rglob("*.py"))
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    if token.type == tokenize.COMMENT
]


def cited(pattern: str) -> set[tuple[Path, str]]:
    """(File, first group) of each match in a comment; there are some."""
    found = {(path, match[1]) for path, text in COMMENTS for match in re.finditer(pattern, text)}
    assert found
    return found


def test_threats_in_comments_are_in_the_register() -> None:
    threats = tomllib.loads((MODEL / "threats.toml").read_text(encoding="utf-8"))["threat"]
    ids = {threat["id"] for threat in threats}
    assert [one for one in cited(r"\b(T\d\d)\b") if one[1] not in ids] == []


def test_decisions_in_comments_are_on_record() -> None:
    numbers = {path.name[:4] for path in (MODEL / "decisions").glob("*.md")}
    assert [one for one in cited(r"\b[Dd]ecision (\d{4})") if one[1] not in numbers] == []


def test_sections_in_comments_are_in_the_specification() -> None:
    for suite in "12":
        page = (MODEL / f"sfda-sa-{suite}.md").read_text(encoding="utf-8")
        sections = set(re.findall(r"^## (\d+)\. ", page, flags=re.MULTILINE))
        assert [one for one in cited(rf"SFDA-SA/{suite}, section (\d+)") if one[1] not in sections] == []
