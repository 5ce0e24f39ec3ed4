"""Write the table of threats into README.md, or with --check fail where it differs from threats.toml or the tests.

Run as ``python -m threat_model.generate``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from os.path import relpath
from pathlib import Path, PurePosixPath
from typing import get_args

from securefda.threat_register import Level, Register, Threat
from threat_model.register import FOLDER, ROOT, files_by_threat, register

README = FOLDER / "README.md"
BEGIN = "<!-- begin of the table that `python -m threat_model.generate` makes of threats.toml -->"
END = "<!-- end of the table -->"
_HEAD = ("", "threat", "by", "levels", "status", "what stands in the way today", "what remains", "tests")


def table(known: Register, files: Mapping[str, Sequence[str]]) -> str:
    """Return the register as a Markdown table; ``files`` are the tests of each threat, from the root of the tree."""
    rows = [_HEAD, ("---",) * len(_HEAD), *(_row(threat, files.get(threat.id, ())) for threat in known.threat)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(threat: Threat, files: Iterable[str]) -> tuple[str, ...]:
    every_level = len(threat.levels) == len(get_args(Level))
    return (
        threat.id,
        threat.title,
        ", ".join(threat.attackers) or "chance",
        "all" if every_level else ", ".join(threat.levels),
        threat.status,
        threat.mitigation,
        threat.residual,
        " ".join(f"[{PurePosixPath(file).stem}]({_beside(file)})" for file in files) or "-",
    )


def _beside(file: str) -> str:
    return Path(relpath(ROOT / file, FOLDER)).as_posix()


def with_table(text: str, made: str) -> str:
    """Return the README's text with ``made`` between its markers.

    Raises:
        ValueError: a marker is not there exactly once.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError("the markers of the table are not there exactly once")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the table is stale")
    check = parser.parse_args(arguments).check
    present = README.read_text(encoding="utf-8")
    wanted = with_table(present, table(register(), files_by_threat()))
    if present == wanted:
        return 0
    if check:
        print(f"stale: {README.relative_to(ROOT)}; run python -m threat_model.generate", file=sys.stderr)
        return 1
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
