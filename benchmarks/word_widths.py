"""What narrow words cost: the target's accuracy by the width of a parameter's word.

    python benchmarks/word_widths.py --measure --data-dir DIR --cache FOLDER    run what FOLDER lacks, write the figures
    python benchmarks/word_widths.py [--check]    from word_widths.json: print the tables

Every run is a simulated federation of an example with another ``session.bits`` (`word_widths_runs.py` has the grid).
All widths share seeds, and so data, first model and batches. The cost of a width is the accuracy at 32 bits less that
at the width, of the same seed.

``--check`` ends with 1 where the default width of a federation costs too much: in one task and rule if the mean cost
less two standard errors is above 0.3 points, over all tasks and rules if the mean cost itself is above 0.3 points. It
also does where a default width loses a round or makes a source refuse one, or where a run is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from federated import workers
from studies import Cache, as_text, measure, shown, this_machine
from word_widths_runs import RULES, STUDIES, WIDE, Cell, Figures, cells, default_width, run_cell, sources_of

from securefda.protocol.packing import WORD_BITS

HERE = Path(__file__).parent
FIGURES = HERE / "word_widths.json"
BAR = 0.3
"""Most points of accuracy that a default width may cost."""
ERRORS = 2.0
"""Standard errors that one rule of one task is allowed beyond the bar."""
COUNTS = ("lost", "refused", "sums", "emptied", "parts", "zeroed", "capped", "clipped")

Row = Mapping[str, Any]
"""A rule of a task at one width: accuracy by seed, and what became of its rounds, over all seeds."""


def rows_of(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each task, rule and width, of the seeds that were run at every width, from figures by cell."""
    rows = []
    for name, study in STUDIES.items():
        for rule in RULES:
            seeds = [
                seed
                for seed in range(study.seeds)
                if all(Cell(name, rule, bits, seed).key in known for bits in WORD_BITS)
            ]
            for bits in WORD_BITS if seeds else ():
                runs = [known[Cell(name, rule, bits, seed).key] for seed in seeds]
                rows.append(
                    {"study": name, "sources": sources_of(name), "rule": rule, "bits": bits, "seeds": seeds}
                    | {"accuracy": [round(run["accuracy"], 3) for run in runs]}
                    | {count: sum(run[count] for run in runs) for count in COUNTS}
                )
    return rows


def costs_of(row: Row, rows: Sequence[Row]) -> list[float]:
    """Points that its width costs against 32 bits, for each seed."""
    [wide] = [one for one in rows if (one["study"], one["rule"], one["bits"]) == (row["study"], row["rule"], WIDE)]
    return [before - after for before, after in zip(wide["accuracy"], row["accuracy"], strict=True)]


def standard_error(values: Sequence[float]) -> float:
    """Of their mean; 0 where there is one."""
    return float(stdev(values) / len(values) ** 0.5) if len(values) > 1 else 0.0


def misses(rows: Sequence[Row]) -> list[str]:
    """A line for each requirement that does not hold or cannot be judged."""
    wrong = []
    default = {(row["study"], row["rule"]): row for row in rows if row["bits"] == default_width(row["sources"])}
    for name, study in STUDIES.items():
        for rule in RULES:
            row = default.get((name, rule))
            if row is None or len(row["seeds"]) < study.seeds:
                wrong.append(f"MISSING: {name}, {rule}: not all seeds at every width")
                continue
            costs = costs_of(row, rows)
            at_least = fmean(costs) - ERRORS * standard_error(costs)
            where = f"{name}, {rule}, {row['bits']} bits"
            if at_least > BAR:
                wrong.append(f"MISSED: {where}: costs {_points(costs)} points, {BAR} are allowed")
            if row["lost"] or row["refused"]:
                wrong.append(f"MISSED: {where}: {row['lost']} rounds lost, {row['refused']} refusals")
    if default and (overall := fmean(fmean(costs_of(row, rows)) for row in default.values())) > BAR:
        wrong.append(f"MISSED: all tasks and rules: default widths cost {overall:.2f} points, {BAR} are allowed")
    return wrong


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Every table as Markdown, by name."""
    return {"accuracy": _accuracy_table(rows), "caps": _caps_table(rows)} if rows else {}


def _accuracy_table(rows: Sequence[Row]) -> str:
    narrow = [bits for bits in reversed(WORD_BITS) if bits != WIDE]
    heads = [f"cost at {bits} bits" for bits in narrow]
    lines = [f"| task | N | rule | seeds | accuracy at {WIDE} bits, % | {' | '.join(heads)} |"]
    lines.append(f"|---|---|---|{'---|' * (2 + len(heads))}")
    for name, sources, rule in dict.fromkeys((row["study"], row["sources"], row["rule"]) for row in rows):
        at = {row["bits"]: row for row in rows if (row["study"], row["rule"]) == (name, rule)}
        wide = at[WIDE]["accuracy"]
        spread = f" ± {stdev(wide):.1f}" if len(wide) > 1 else ""
        cells_of_row = [_cost(at[bits], rows) for bits in narrow]
        lines.append(
            f"| {name} | {sources} | {rule} | {len(wide)} | {fmean(wide):.1f}{spread} | {' | '.join(cells_of_row)} |"
        )
    of_all = [_points_over_all(bits, rows) for bits in narrow]
    lines.append(f"| all | | | | | {' | '.join(of_all)} |")
    return "\n".join(lines)


def _cost(row: Row, rows: Sequence[Row]) -> str:
    text = _points(costs_of(row, rows))
    return f"**{text}**" if row["bits"] == default_width(row["sources"]) else text


def _points(costs: Sequence[float]) -> str:
    """Mean and standard error."""
    return f"{fmean(costs):+.2f} ± {standard_error(costs):.2f}"


def _points_over_all(bits: int, rows: Sequence[Row]) -> str:
    """Mean of the mean costs of every task and rule, with its standard error from those of each."""
    every = [costs_of(row, rows) for row in rows if row["bits"] == bits]
    error = sum(standard_error(costs) ** 2 for costs in every) ** 0.5 / len(every)
    return f"{fmean(fmean(costs) for costs in every):+.2f} ± {error:.2f}"


def _caps_table(rows: Sequence[Row]) -> str:
    """What norm caps empty, at every width."""
    heads = [f"{bits} bits" for bits in reversed(WORD_BITS)]
    lines = [f"| emptied layers of sums; zeroed layers of parts, % | {' | '.join(heads)} |"]
    lines.append(f"|---|{'---|' * len(heads)}")
    for name, rule in dict.fromkeys((row["study"], row["rule"]) for row in rows):
        at = {row["bits"]: row for row in rows if (row["study"], row["rule"]) == (name, rule)}
        shares = [_shares(at[bits]) for bits in reversed(WORD_BITS)]
        lines.append(f"| {name}, {rule} | {' | '.join(shares)} |")
    return "\n".join(lines)


def _shares(row: Row) -> str:
    emptied = f"{100 * row['emptied'] / row['sums']:.1f}" if row["sums"] else "–"
    zeroed = f"{100 * row['zeroed'] / row['parts']:.1f}" if row["parts"] else "–"
    return f"{emptied}; {zeroed}"


def _measure(given: argparse.Namespace) -> None:
    """Run what the cache lacks, and write the figures."""
    folders = {name: study.data for name, study in STUDIES.items()}
    settings = {
        name: [f"task.data-dir={given.data_dir.absolute() / folder}"] if folder and given.data_dir else []
        for name, folder in folders.items()
    }
    due = [cell for cell in cells() if given.data_dir or not folders[cell.study]]
    cache = Cache(given.cache, "word_widths")

    def done(cell: Cell, figures: Figures) -> None:
        print(f"{cell.key}: {figures.accuracy:.1f} %", file=sys.stderr, flush=True)

    with workers(given.workers) as pool:
        measure(pool, run_cell, due, cache, settings, done)
    given.figures.write_text(as_text(rows_of(cache.read()), this_machine()))


def main() -> int:
    """Measure where asked to, then say what was measured."""
    given = _arguments()
    if given.measure:
        _measure(given)
    rows = json.loads(given.figures.read_text())["rows"]
    print(shown(tables(rows)))
    wrong = misses(rows)
    print("\n".join(wrong) or "Every requirement holds.", file=sys.stderr)
    return 1 if given.check and wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run what the cache lacks first")
    parser.add_argument("--data-dir", type=Path, help="holds fed_heart and fashion_mnist; without it digits alone run")
    parser.add_argument("--cache", type=Path, default=Path("word-widths-cache"), help="folder for what was run already")
    parser.add_argument("--workers", type=int, default=1, help="federations beside each other")
    parser.add_argument("--check", action="store_true", help="end with 1 where a requirement does not hold")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
