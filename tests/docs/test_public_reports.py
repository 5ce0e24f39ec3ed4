"""Every row of the table of public reports names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/public-reports.md"
TEST = re.compile(r"`((?:tests|threat_model)/[\w/]+\.py)::(\w+)`")


def test_every_public_report_names_tests_that_exist() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| (?!report|---)", line)]
    assert len(rows) > 10
    for row in rows:
        report, verdict, tests = (cell.strip() for cell in row.strip("| ").split(" | "))
        assert verdict.startswith(("works", "refused, because")), report
        named = TEST.findall(tests)
        assert named, report
        for file, name in named:
            source = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"^ *(async )?def {name}\b", source, flags=re.MULTILINE), (
                f"{report}: {file} has no {name}"
            )
