"""The rules of ``docs/prose.py`` find what they are for, and read nothing that is no prose."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import prose  # noqa: E402

RULES = tomllib.loads((DOCS / "prose.toml").read_text("utf-8"))
LONG = " ".join(["word"] * 26)


def faults(text: str) -> list[str]:
    return [fault for one in prose.sentences(text) for fault in prose.faults(one, RULES)]


@pytest.mark.parametrize(
    "text",
    [
        "Nothing bounds what an update tells of a row.",
        "It says of the run what it is.",
        "Was the key stolen, the thief can sign.",
        "Who has a sealed file can try passphrases.",
        "FedGP stands 3.0 points above it.",
        "Whoever\nhas it may look.",
        "Noise that a client adds.",
        "| a cell | it bears noise best |",
        f"{LONG}.",
        f"- {LONG}",
    ],
)
def test_a_habit_or_a_long_sentence_is_found(text: str) -> None:
    assert len(faults(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Rows that stand in for the site's.",
        "Was the key stolen?",
        "Who has it?",
        f"`{LONG}`",
        f"```text\n{LONG}\n```",
        f"<!-- {LONG} -->",
        f"$${LONG}$$",
        f"[a link]({LONG})",
        f"{LONG[:100]}. {LONG[:100]}.",
        f"| {LONG[:100]}; {LONG[:100]} |",
        "See Kairouz et al. and e.g. the others.",
    ],
)
def test_code_comments_and_short_sentences_are_not(text: str) -> None:
    assert faults(text) == []


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/how-to/bad-networks.md",
        "docs/explanation/results/bad-networks.md",
        "threat_model/sfda-sa-1.md",
        "tests/vectors/README.md",
    ],
)
def test_a_long_sentence_is_found_on_every_page(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / page).write_text(f"{LONG}.\n", "utf-8")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    assert prose.main([]) == 1
    assert f"{page}:1: 26 words" in capsys.readouterr().out


def test_a_column_that_is_left_out_is_not_read() -> None:
    text = "| word | elsewhere |\n|---|---|\n| site | node |\n\n| elsewhere | word |\n|---|---|\n| client | source |\n"
    assert [one.text for one in prose.sentences(text, ["elsewhere"])] == ["word", "site", "word", "source"]


def test_a_sentence_is_named_by_the_line_of_its_paragraph() -> None:
    found = list(prose.sentences("# A title\n\n```sh\ncode\n```\n\nOne. Two\nlines.\n"))
    assert [(one.line, one.text) for one in found] == [(1, "A title"), (7, "One."), (7, "Two lines.")]
