"""Kills of real processes at drawn points: that nothing is released twice, no ledger is low, and runs go on.

    python benchmarks/kills.py --measure --kills 1000 [--minutes 60]
    python benchmarks/kills.py --measure --team --kills 300 [--minutes 25]
    python benchmarks/kills.py             from kills.json: print the tables

Federations of a target and four sources, two of them with noise, are killed one process after the other: before an
operation on the disk, at a message, at the begin or end of a training with noise, or at any moment
(``tests/end_to_end/killings.py``). With ``--team`` one of the sources with noise trains in two processes, and these two
alone are killed, also before what they do together; then the site is started again. The sites, kinds and counts follow
from the seed; what the other processes do at that moment does not. Each federation is checked when its kills are over,
and the first thing that does not hold ends the study with a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from studies import as_text, shown, this_machine

TESTS = Path(__file__).resolve().parents[1] / "tests"

FIGURES = Path(__file__).with_suffix(".json")
PER_FEDERATION = 40
KINDS = {
    "disk": "before an operation on the disk",
    "message": "at a message",
    "training": "before or after training with noise",
    "moment": "at any moment",
}
RANKS = {"leader": "the leading process", "follower": "the other"}
KINDS_OF_RANKS = {
    **{kind: KINDS[kind] for kind in ("disk", "message")},
    "training": "before or after training",
    "exchange": "before something that both do together",
    "moment": KINDS["moment"],
}


def measure(kills: int, seed: int, minutes: float, keep: Path, *, team: bool) -> None:
    """Kill until ``kills`` or the time is reached; the figures so far are kept after each federation."""
    sys.path[:0] = [str(TESTS / "support"), str(TESTS / "end_to_end")]
    from killings import NOISY, Account, kill_a_federation  # noqa: PLC0415 - printing the table needs no federation

    began, total, federations = time.monotonic(), Account(), 0
    while total.struck.total() < kills and time.monotonic() - began < 60 * minutes:
        count = min(PER_FEDERATION, kills - total.struck.total())
        with tempfile.TemporaryDirectory(dir=_memory()) as folder, contextlib.redirect_stdout(io.StringIO()):
            total.add(kill_a_federation(Path(folder), seed + federations, count, NOISY[0] if team else ""))
        federations += 1
        counted = {one.name: getattr(total, one.name) for one in fields(total)}
        row = {"team": team, "seed": seed, "federations": federations, "kills": total.struck.total(), **counted}
        row["minutes"] = round((time.monotonic() - began) / 60, 1)
        others = [one for one in json.loads(keep.read_text())["rows"] if one["team"] != team] if keep.exists() else []
        keep.write_text(as_text(sorted([row, *others], key=lambda one: one["team"]), this_machine()))
        print(f"{row['kills']} kills in {row['minutes']} minutes", file=sys.stderr, flush=True)


def _memory() -> str | None:
    """A folder in memory, since sites force every release to the disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The tables as Markdown, of kills of processes and, where they were measured, of ranks."""
    found = {}
    for row in rows:
        if row["team"]:
            found |= {"ranks": _ranks_table(row["struck"]), "ranks-held": _held_table(row)}
        else:
            found |= {"points": _points_table(row["struck"]), "held": _held_table(row)}
    return found


def _points_table(struck: Mapping[str, int]) -> str:
    lines = ["| killed | aggregator | sources |", "|---|---|---|"]
    for kind, words in KINDS.items():
        of_aggregator = struck.get(f"aggregator {kind}", "") if kind != "training" else "-"
        lines.append(f"| {words} | {of_aggregator or 0} | {struck.get(f'source {kind}', 0)} |")
    by_role = [sum(n for name, n in struck.items() if name.startswith(role)) for role in ("aggregator", "source")]
    lines.append(f"| all | {by_role[0]} | {by_role[1]} |")
    return "\n".join(lines)


def _ranks_table(struck: Mapping[str, int]) -> str:
    lines = [f"| killed | {' | '.join(RANKS.values())} |", "|---|---|---|"]
    for kind, words in KINDS_OF_RANKS.items():
        of_follower = struck.get(f"follower {kind}", 0) if kind not in ("disk", "message") else "-"
        lines.append(f"| {words} | {struck.get(f'leader {kind}', 0)} | {of_follower} |")
    by_role = [sum(n for name, n in struck.items() if name.startswith(role)) for role in RANKS]
    lines.append(f"| all | {by_role[0]} | {by_role[1]} |")
    return "\n".join(lines)


def _held_table(row: Mapping[str, Any]) -> str:
    rounds = row["rounds"]
    held = [
        ("kills", row["kills"]),
        ("federations", row["federations"]),
        ("rounds with a result; lost", f"{rounds.get('finished', 0)}; {rounds.get('lost', 0)}"),
        ("vectors that left, each of another round or source", row["released"]),
        ("trainings with noise, each charged", row["trained"]),
        ("charged and never trained, because of a kill", row["charged"] - row["trained"]),
        ("logs, each verified", row["logs"]),
        ("ends of others by themselves, with an error line, and started again", sum(row["ended"].values())),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {figure} |" for name, figure in held)])


def main() -> int:
    """Measure where asked to, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="kill first")
    parser.add_argument("--team", action="store_true", help="kill the two processes of one source")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="of the first federation; each later one has the next")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no further federation after that time")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    given = parser.parse_args()
    if given.measure:
        measure(given.kills, given.seed, given.minutes, given.figures, team=given.team)
    print(shown(tables(json.loads(given.figures.read_text())["rows"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
