"""What a round costs under each rule for a target without labels: seconds and bytes, masked and in clear.

    python benchmarks/domain_rounds.py --measure --data-dir DIR [--check]
    python benchmarks/domain_rounds.py [--check]    from domain_rounds.json: print the table

Every run is ``securefda run`` with the settings of ``bench accuracy --suite digit-domains``: four processes, mutual TLS
over loopback, target mnist-m. Both levels of a rule follow each other, so that a ratio compares runs of the same time
of day. Only rounds after the warm-up count, since in a warm-up all rules are source_only; a round in which too few
pseudo-labels count goes on with it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from studies import as_text, shown, this_machine

from securefda.bench.accuracy.columns import RULES
from securefda.bench.accuracy.suites import DATA, SUITES
from securefda.operations.run_folder import read_run
from securefda.samples import sample
from securefda.site.config import load_federation

FIGURES = Path(__file__).with_suffix(".json")
SUITE, TARGET = "digit-domains", "mnist-m"
LEVELS = ("individual", "sum")
WARM_UP, ROUNDS = 1, 6
MOST_RATIO = 1.3
"""Of a round at sum to one at individual, says ``--check``."""

MOST_MINUTES = 10.0
"""Of a run of ``fada`` of as many rounds as the suite has."""


def run_of(rule: str, level: str, data_dir: Path) -> dict[str, Any]:
    """Run one federation of processes: median seconds of a round, mean bytes of a source up and down in it."""
    data = DATA[SUITE]
    settings = (
        f"privacy.visibility={level}",
        *data.settings,
        *data.target_settings(TARGET),
        *RULES[rule].settings,
        f"strategy.rule={RULES[rule].rule or rule}",
        f"strategy.rounds={ROUNDS}",
        f"strategy.warm-up-rounds={WARM_UP}",
        "strategy.compare-target-only=false",
        f"task.data-dir={data_dir}",
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "securefda.cli", "run", data.example, "--out", str(out)]
        command += [word for setting in settings for word in ("--set", setting)]
        subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
        lines = read_run(out).rounds[WARM_UP:]
    return {
        "rule": rule,
        "level": level,
        "seconds": round(median(sum(line["seconds"].values()) for line in lines), 3),
        "bytes_up": round(median(fmean(line["bytes_up"].values()) for line in lines)),
        "bytes_down": round(median(fmean(line["bytes_down"].values()) for line in lines)),
    }


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The table as Markdown."""
    at = {(row["rule"], row["level"]): row for row in rows}
    lines = [
        "| | seconds of a round, individual | sum | sum over individual "
        "| kB from a source, individual | sum | kB to it, individual | sum |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for rule in dict.fromkeys(row["rule"] for row in rows):
        both = [at[rule, level] for level in LEVELS]
        seconds = [f"{row['seconds']:.2f}" for row in both]
        sent = [f"{row[way] / 1000:,.0f}" for way in ("bytes_up", "bytes_down") for row in both]
        lines.append(f"| {' | '.join([rule, *seconds, f'{ratio_of(both):.2f}', *sent])} |")
    return {"rounds": "\n".join(lines)}


def ratio_of(both: Sequence[Mapping[str, Any]]) -> float:
    """Seconds at sum over those at individual."""
    clear, masked = both
    return float(masked["seconds"] / clear["seconds"])


def misses(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each bar that does not hold."""
    at = {(row["rule"], row["level"]): row for row in rows}
    found = []
    for rule in dict.fromkeys(row["rule"] for row in rows):
        if (ratio := ratio_of([at[rule, level] for level in LEVELS])) > MOST_RATIO:
            found.append(
                f"MISSED: {rule}: a round at sum takes {ratio:.2f} times one at individual, may {MOST_RATIO:g}"
            )
    rounds = load_federation(sample(DATA[SUITE].example), DATA[SUITE].settings).strategy.rounds
    minutes = at["fada", "sum"]["seconds"] * rounds / 60
    if minutes > MOST_MINUTES:
        found.append(f"MISSED: a run of fada takes {minutes:.1f} minutes, may {MOST_MINUTES:g}")
    return found


def main() -> int:
    """Measure where asked to, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run all first")
    parser.add_argument("--data-dir", type=Path, help="folder with mnist and usps")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    parser.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    given = parser.parse_args()
    if given.measure:
        if given.data_dir is None:
            parser.error("--measure needs --data-dir")
        rows = []
        for rule in SUITES[SUITE].rules:
            for level in LEVELS:
                rows.append(run_of(rule, level, given.data_dir.absolute()))
                print(rows[-1], file=sys.stderr, flush=True)
        given.figures.write_text(as_text(rows, this_machine()))
    rows = json.loads(given.figures.read_text())["rows"]
    print(shown(tables(rows)))
    missed = misses(rows)
    print("\n".join(missed) or "Every requirement holds.", file=sys.stderr)
    return 1 if given.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
