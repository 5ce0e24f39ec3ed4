"""Read the pages as an editor would, by the rules of ``prose.toml``: words to avoid, and sentences that are too long.

    python docs/prose.py [PAGE ...]

Exit code 1 where a page has a word of the list, or a sentence with more words than ``most-words``. Blocks of code,
comments, formulas and the targets of links are not read. Of a table, each cell is read by itself, and each part of a
list in it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

_UNREAD = re.compile(
    r"^ *(?P<fence>`{3,}|~{3,}|\${2}).*?^ *(?P=fence) *$|<!--.*?-->|\$\$.*?\$\$", re.DOTALL | re.MULTILINE
)
_OPENS = re.compile(r"^(?:[-*+]|\d+\.|#+|>) +")
_SHORT = (
    (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"`[^`]+`"), "CODE"),
    (re.compile(r"\$[^$]+\$"), "MATH"),
    (re.compile(r"(?<!\w)(\*{1,2}|_)(?=\S)(.+?)(?<=\S)\1(?!\w)"), r"\2"),
)
_ENDS = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<!\bal\.)(?<=[.!?])[\"')]*\s+|: +(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, and the line at which its paragraph begins."""

    line: int
    text: str

    @property
    def words(self) -> int:
        """How many words it has; code and a formula count as one."""
        return sum(any(letter.isalnum() for letter in word) for word in self.text.split())


def paragraphs(text: str, unread: Collection[str] = ()) -> Iterator[tuple[int, str]]:
    """Each paragraph, item of a list, heading and cell of a table but in ``unread`` columns, with its first line."""
    text = _UNREAD.sub(lambda found: "\n" * found[0].count("\n"), text)
    begun, lines, head = 0, list[str](), list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        bare = line.strip()
        if lines and (not bare or bare.startswith("|") or _OPENS.match(bare)):
            yield begun, " ".join(lines)
            lines = []
        if bare.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", bare)]
            head = head or cells
            read = (cell for name, cell in zip(head, cells, strict=False) if name not in unread)
            yield from ((number, part) for cell in read for part in cell.split("; ") if part.strip(" -:"))
            continue
        head = []
        if bare:
            begun = begun if lines else number
            lines.append(_OPENS.sub("", bare, count=1) if not lines else bare)


def sentences(text: str, unread: Collection[str] = ()) -> Iterator[Sentence]:
    """Every sentence of a page but in ``unread`` columns, with CODE and MATH in place of code and formulas."""
    for line, paragraph in paragraphs(text, unread):
        plain = paragraph
        for pattern, short in _SHORT:
            plain = pattern.sub(short, plain)
        yield from (Sentence(line, one) for one in _ENDS.split(plain))


def faults(sentence: Sentence, rules: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a sentence."""
    for pattern, better in rules["words"].items():
        if found := re.search(pattern, sentence.text, re.IGNORECASE):
            yield f'"{found[0][:40]}": {better}'
    if sentence.words > rules["sentence"]["most-words"]:
        yield f"{sentence.words} words: {sentence.text}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is wrong with the pages; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="instead of those that prose.toml names")
    given = parser.parse_args(arguments)
    rules = tomllib.loads((HERE / "prose.toml").read_text(encoding="utf-8"))
    named = {path for pattern in rules["pages"]["read"] for path in ROOT.glob(pattern)}
    pages = given.pages or sorted(
        path for path in named if "_build" not in path.parts and path.name not in rules["pages"]["leave-out"]
    )
    wrong = 0
    for page in pages:
        name = page.resolve().relative_to(ROOT).as_posix()
        for sentence in sentences(page.read_text(encoding="utf-8"), rules["pages"]["unread-columns"]):
            for fault in faults(sentence, rules):
                wrong += 1
                print(f"{name}:{sentence.line}: {fault}")
    print(f"{len(pages)} pages; {wrong} to correct")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
