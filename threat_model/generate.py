"""Write what follows from other files of this folder, or with --check fail where it is stale.

- ``threats/``: a page for each threat of threats.toml with the tests that name it, and an index of them by status.
- The guarantee: README.md of this folder words it, and every other page that states it quotes those words.

Run as ``python -m threat_model.generate``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from os.path import relpath
from pathlib import Path, PurePosixPath
from typing import get_args

from securefda.threat_register import Attacker, Level, Register, Status, Threat, by_status, load_register
from threat_model.register import ROOT, files_by_threat

WORDED_IN = "threat_model/README.md"
QUOTED_IN = (
    "README.md",
    "SECURITY.md",
    "docs/index.md",
    "docs/explanation/limits.md",
    "docs/explanation/protocol.md",
)
BEGIN, END = "<!-- the guarantee -->", "<!-- end of the guarantee -->"

_THREATS = PurePosixPath("threat_model/threats")
_NOTE = "<!-- `python -m threat_model.generate` writes this page from threats.toml; edit that. -->"
_ATTACKERS: Mapping[Attacker, tuple[str, str]] = {
    "HbC-A": ("curious aggregator", "aggregator"),
    "Mal-A": ("malicious aggregator", "aggregator"),
    "COL": ("aggregator with colluding sources", "colluding-sources"),
    "CS": ("curious source", "source"),
    "MS": ("malicious source", "source"),
    "NET": ("network", "network"),
    "OUT": ("outsider", "outsider"),
    "INS": ("insider", "insider"),
}
"""Code of an attacker -> who that is in words, and the name of its page."""
_WHAT_THERE_IS: Mapping[Status, str] = {
    "mitigated": "What prevents it",
    "accepted": "What limits it",
    "planned": "What there is so far",
    "out of scope": "What there is",
}


def pages(known: Register, files: Mapping[str, Sequence[str]], decisions: Sequence[str]) -> dict[str, str]:
    """Return every page of the register by its path in the tree.

    Args:
        known: the register.
        files: test files of each threat, as paths in the tree.
        decisions: names of the files of the decisions, each of which begins with its number.
    """
    links = {f"decision {name[:4]}": f"../decisions/{name}" for name in decisions}
    links |= {threat.id: f"{threat.id}.md" for threat in known.threat}
    made = {threat.id: _page(threat, files.get(threat.id, ()), links) for threat in known.threat}
    return {f"{_THREATS}/{name}.md": text for name, text in {"README": _index(known), **made}.items()}


def _index(known: Register) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in by_status(known).items())
    conditional = sum(bool(threat.condition) for threat in known.threat)
    parts = [
        _NOTE,
        "# The threats",
        f"{len(known.threat)} threats: {counts}. Of the mitigated, {conditional} are so only on a condition, which "
        "the list names. A page for each says what prevents or limits it today, what remains, and which tests attack "
        "it. [The threat model](../README.md#the-register) says what each status means; "
        "`securefda threats` prints how the tests ended in the last run.",
    ]
    for status in get_args(Status):
        rows = [
            f"| [{threat.id}: {threat.title}]({threat.id}.md){_condition(threat)} | {_by(threat)} | {_at(threat)} |"
            for threat in known.threat
            if threat.status == status
        ]
        if rows:
            table = "\n".join(["| threat | by | at visibility |", "|---|---|---|", *rows])
            parts += [f"## {_capital(status)}", table]
    return "\n\n".join(parts) + "\n"


def _page(threat: Threat, files: Sequence[str], links: Mapping[str, str]) -> str:
    others = {text: link for text, link in links.items() if text != threat.id}
    facts = {
        "Status": f"[{threat.status}](../README.md#the-register){_condition(threat)}",
        "By": _by(threat),
        "What is lost": threat.asset,
        "At visibility": _at(threat),
    }
    parts = [
        _NOTE,
        f"# {threat.id}: {threat.title}",
        "\n".join(f"- **{name}:** {fact}" for name, fact in facts.items()),
        f"## {_WHAT_THERE_IS[threat.status]}",
        _linked(threat.mitigation, others),
        "## What remains",
        _linked(threat.residual, others),
        "## Where to look",
        "\n".join(f"- {what}: {listed}" for what, listed in _places(threat, files)),
        "[All threats](README.md)",
    ]
    return "\n\n".join(parts) + "\n"


def _places(threat: Threat, files: Sequence[str]) -> Iterator[tuple[str, str]]:
    for what, paths in (("code", threat.modules), ("tests", files)):
        if paths:
            yield what, ", ".join(f"[{path}]({_beside(path)})" for path in paths)


def _by(threat: Threat) -> str:
    named = (_ATTACKERS[code] for code in threat.attackers)
    return ", ".join(f"[{words}](../attackers/{page}.md)" for words, page in named) or "chance"


def _condition(threat: Threat) -> str:
    return f", **{threat.condition}**" if threat.condition else ""


def _at(threat: Threat) -> str:
    return "any" if len(threat.levels) == len(get_args(Level)) else ", ".join(f"`{level}`" for level in threat.levels)


def _linked(text: str, links: Mapping[str, str]) -> str:
    """Return the text with links for the threats, decisions and pages that it names."""
    known = re.compile(rf"\b(?:{'|'.join(map(re.escape, links))})\b|\bdocs/[\w/.-]+\.md\b")
    return known.sub(lambda named: f"[{named[0]}]({links.get(named[0]) or _beside(named[0])})", text)


def _beside(path: str) -> str:
    return PurePosixPath(relpath(path, _THREATS)).as_posix()


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _split(page: Path) -> tuple[str, str, str]:
    """Return what stands before the guarantee, the guarantee, and what stands after it.

    Raises:
        ValueError: a marker is not there exactly once.
    """
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{page}: {BEGIN} and {END} are not there exactly once")
    before, rest = text.split(BEGIN)
    words, after = rest.split(END)
    return before, words, after


def wanted(root: Path) -> dict[str, str]:
    """Return the text of every file that this writes, by its path in the tree at ``root``.

    Raises:
        ConfigError: the register is malformed.
        ValueError: a page has no place for the guarantee.
    """
    folder = root / "threat_model"
    decisions = sorted(path.name for path in (folder / "decisions").glob("[0-9]*.md"))
    made = pages(load_register(folder), files_by_threat(root), decisions)
    _, words, _ = _split(root / WORDED_IN)
    for path in QUOTED_IN:
        before, _, after = _split(root / path)
        made[path] = f"{before}{BEGIN}{words}{END}{after}"
    return made


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file is stale")
    check = parser.parse_args(arguments).check
    made = wanted(root)
    there = {path.relative_to(root).as_posix() for path in (root / _THREATS).glob("*.md")}
    present = {path: (root / path).read_text(encoding="utf-8") for path in there | set(QUOTED_IN)}
    stale = sorted(path for path in {*made, *present} if made.get(path) != present.get(path))
    for path in stale:
        if check:
            print(f"stale: {path}; run python -m threat_model.generate", file=sys.stderr)
        elif path in made:
            (root / path).parent.mkdir(exist_ok=True)
            (root / path).write_text(made[path], encoding="utf-8")
        else:
            (root / path).unlink()
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
