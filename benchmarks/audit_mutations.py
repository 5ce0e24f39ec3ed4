"""Does verification find what is falsified in an audit log? Many mutations of good logs, no two alike, all by chance.

    python benchmarks/audit_mutations.py --measure [--count N] [--seed S]    go through them, write audit_mutations.json
    python benchmarks/audit_mutations.py                                     print the table from audit_mutations.json

Every mutation has to be found, with its kind and the first record that is not to be trusted. Both follow from what was
done and from nothing that verification says (``tests/audit/falsified.py``). Ends with 1 on any miss.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studies import this_machine

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "audit"))  # the good logs, and the ways to falsify them

from falsified import CLASSES, drawn  # noqa: E402
from log_builder import LARGE, NAME, SMALL, grow, opened  # noqa: E402
from mutations import Bench  # noqa: E402

FIGURES = HERE / "audit_mutations.json"
BORDER = (130, 256)
LOGS = (SMALL, LARGE, BORDER)
"""Sizes at which the good logs have checkpoints; the first has six of eight mutations, the others one each."""

COUNT, SEED = 50_000, 2026
_MEMORY = Path("/dev/shm")


def measure(count: int, seed: int) -> dict[str, Any]:
    """Go through so many mutations; every miss is named on stderr."""
    began, processor = time.monotonic(), time.process_time()
    made, missed, kinds, total = Counter[str](), Counter[str](), dict[str, Counter[str]](), 0
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        for group, bench, mutation in drawn(_logs(Path(name)), seed, count):
            finding = bench.verify(mutation).finding
            total += 1
            made[group] += 1
            kinds.setdefault(group, Counter())[mutation.kind or "any"] += 1
            if not mutation.is_found(finding):
                missed[group] += 1
                print(
                    f"MISSED: {group}: {mutation.what}: {mutation.kind} {mutation.index}, not {finding}",
                    file=sys.stderr,
                )
            if total % 5000 == 0:
                print(f"{total} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    rows = [
        {"class": group, "mutations": made[group], "missed": missed[group], "kinds": dict(sorted(kinds[group].items()))}
        for group in CLASSES
    ]
    took = {"seconds": round(time.monotonic() - began), "processor_s": round(time.process_time() - processor)}
    return {"machine": this_machine(), "seed": seed, "logs": LOGS, "mutations": total, **took, "classes": rows}


def _logs(folder: Path) -> list[Bench]:
    benches = []
    for sizes in LOGS:
        parent = folder / str(sizes[-1])
        with opened(parent) as log:
            grow(log, *sizes)
        benches.append(Bench(parent / NAME.run, NAME))
    return benches


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many of each class there were, as Markdown."""
    lines = ["| what was done | mutations | missed | to be found as |", "|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['class']} | {row['mutations']} | {row['missed']} | {', '.join(row['kinds'])} |")
    return "\n".join(lines)


def misses(figures: Mapping[str, Any]) -> list[str]:
    """A line for every requirement that does not hold."""
    found = [
        f"MISSED: {row['missed']} of {row['mutations']}: {row['class']}" for row in figures["classes"] if row["missed"]
    ]
    if figures["mutations"] < COUNT:
        found.append(f"MISSING: {figures['mutations']} mutations, {COUNT} are asked for")
    return found


def main() -> int:
    """Measure where asked to, then say what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="go through the mutations first")
    parser.add_argument("--count", type=int, default=COUNT, help="how many")
    parser.add_argument("--seed", type=int, default=SEED, help="which")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="what was found, JSON")
    given = parser.parse_args()
    if given.measure:
        given.figures.write_text(json.dumps(measure(given.count, given.seed), indent=1) + "\n")
    figures = json.loads(given.figures.read_text())
    print(table(figures["classes"]))
    wrong = misses(figures)
    print("\n".join(wrong) or f"All {figures['mutations']} were found as what they are.", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
