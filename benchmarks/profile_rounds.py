"""Where the time of a round goes: processor time of the target and of a source by kind of work, and counts.

    python benchmarks/profile_rounds.py --measure --tree before=DIR --tree after=DIR    run, write profile_rounds.json
    python benchmarks/profile_rounds.py                                                  print the tables

A tree is a folder with the package, such as a git worktree; all run in this Python, at visibility ``sum`` with rule
fedgp_auto. Every cell is one ``securefda run``, a process for each site, in which `profile_rounds_kinds.py` times the
work from inside, call by call; the trees take turns, cell by cell. A figure is the median over the rounds but the first
ones; a source's is the median over the sources. A round's time beside that is waiting: for a core, or for a site.
Timing each call makes a round a few percent longer. Take a machine without other work.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from profile_rounds_kinds import COUNTED, SWITCHES, TIMED
from round_cost import params_text
from round_cost_runs import Load
from round_cost_task import params_of
from studies import shown, this_machine

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "profile_rounds.json"
ROUNDS, LEFT_OUT = 16, 3
"""Of a run; the first are the model's first sums and words of 32 bits."""
DIGITS = "digits"
DIGITS_PARAMS = 9610
LIMIT_S = 240.0

KINDS = (*TIMED, "event loop", "gRPC, TLS", "rest")
"""What makes up a process's time: calls that are timed, the event loop's own, threads of gRPC, and other work."""
COUNTS = (*COUNTED, "commits", *SWITCHES)

FEDERATION = """
[federation]
name = "profile"
target = "target"
sources = {sources}

[task]
factory = "{factory}"

[task.options]
{options}

[strategy]
rule = "fedgp_auto"
rounds = {rounds}
warm-up-rounds = 0

[training.target]
optimizer = "adam"
learning-rate = 0.005
batch-size = {target_batch}
epochs = {epochs}

[training.source]
optimizer = "adam"
learning-rate = 0.005
batch-size = {source_batch}
epochs = {epochs}

[privacy]
visibility = "sum"

[transport]
join-deadline-s = 600.0
phase-deadline-s = 120.0
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """A size; ``params`` is None for the digits as their sample has them."""

    sources: int
    params: int | None

    @classmethod
    def parse(cls, text: str) -> Cell:
        """From ``SOURCES:PARAMS`` or ``SOURCES:digits``."""
        sources, _, params = text.partition(":")
        return cls(int(sources), None if params == DIGITS else int(params))

    @property
    def title(self) -> str:
        """As tables have it."""
        return f"N = {self.sources}, {DIGITS if self.params is None else f'm = {params_text(self.params)}'}"

    @property
    def model_params(self) -> int:
        """How many parameters the model has."""
        return DIGITS_PARAMS if self.params is None else params_of(self.params)

    def federation(self) -> str:
        """Its file, in keys that older trees know too."""
        names = json.dumps([f"source-{number + 1}" for number in range(self.sources)])
        if self.params is None:
            factory, options = (
                "securefda.tasks.digits:Digits",
                'target-rows = 100\ntarget-shift = "rotate"\nnoise = 0.2',
            )
            training = {"target_batch": 20, "source_batch": 32, "epochs": 2}
        else:
            factory, options = "round_cost_task:Wide", f"parameters = {self.params}"
            training = {"target_batch": 4, "source_batch": 8, "epochs": 1}
        return FEDERATION.format(sources=names, factory=factory, options=options, rounds=ROUNDS, **training)


CELLS = ("5:digits", "5:10000", "10:100000", "20:100000", "5:1100000")


def main() -> int:
    """Measure where asked to, then print the tables."""
    given = _arguments()
    if given.measure:
        trees = dict(tree.split("=", 1) for tree in given.tree)
        given.figures.write_text(
            json.dumps(measured(trees, [Cell.parse(cell) for cell in given.cells]), indent=1) + "\n"
        )
    print(shown(tables(json.loads(given.figures.read_text()))))
    return 0


def measured(trees: Mapping[str, str], cells: Sequence[Cell]) -> dict[str, Any]:
    """All figures, a row for each cell and tree."""
    rows = []
    for cell in cells:
        for name, folder in trees.items():
            load = Load()
            row = {"tree": name, **profile(Path(folder).resolve(), cell)}
            row |= {"load": round(load.at_first, 1), "others": round(load.of_others(), 2)}
            rows.append(row)
            print(f"{cell.title}, {name}: {row['round_ms']:.0f} ms a round", file=sys.stderr, flush=True)
    revisions = {name: _revision(Path(folder)) for name, folder in trees.items()}
    return {"machine": this_machine(), "rounds": ROUNDS, "left_out": LEFT_OUT, "trees": revisions, "rows": rows}


def _revision(tree: Path) -> str:
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def profile(tree: Path, cell: Cell) -> dict[str, Any]:
    """Run one federation in a tree to its end, and say what its rounds took.

    Raises:
        RuntimeError: the run failed, or a process left no figures; what it said is in the error.
    """
    with tempfile.TemporaryDirectory(dir=HERE) as name:  # on the disk of this folder: /tmp may be memory
        file, out, left = Path(name) / "profile.toml", Path(name) / "run", Path(name) / "left"
        left.mkdir()
        file.write_text(cell.federation())
        found = (HERE / "profile_rounds_probe", tree, tree / "benchmarks")
        ours = {
            "PYTHONPATH": os.pathsep.join(map(str, found)),
            "SECUREFDA_PROFILE": str(left),
            "SECUREFDA_BENCHMARKS": str(HERE),
            "OMP_NUM_THREADS": "1",  # or a part of training would be work of threads that nothing times
        }
        command = [sys.executable, "-m", "securefda.cli", "run", str(file), "--out", str(out)]
        done = subprocess.run(
            command, cwd=tree, env=os.environ | ours, check=False, capture_output=True, text=True, timeout=LIMIT_S
        )
        if done.returncode:
            raise RuntimeError(f"{tree}: {cell.title} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return figures_of([json.loads(file.read_text()) for file in left.iterdir()], cell)


def figures_of(sites: Sequence[Mapping[str, Any]], cell: Cell) -> dict[str, Any]:
    """What a round took, from what the processes of a run left.

    Raises:
        RuntimeError: a process left no figures, or not of every round.
    """
    target = [site["rounds"] for site in sites if "aggregator" in site["command"]]
    sources = [site["rounds"] for site in sites if "source" in site["command"]]
    lengths = {len(rounds) for rounds in (*target, *sources)}
    if len(target) != 1 or len(sources) != cell.sources or len(lengths) != 1 or min(lengths) <= LEFT_OUT:
        raise RuntimeError(f"rounds of {len(target)} targets and {len(sources)} sources: {sorted(lengths)}")
    absent = [kind for kind, places in TIMED.items() if not set(places) & set(sites[0]["found"])]
    own = _medians(target[0])
    each = [_medians(rounds) for rounds in sources]
    source = {
        name: {key: median(one[name][key] for one in each) for key in each[0][name]}
        for name in ("processor_ms", "wall_ms", "counts")
    }
    of_all = [
        sum(rounds[place]["processor"] for rounds in (*target, *sources)) for place in range(LEFT_OUT, min(lengths))
    ]
    return {
        "sources": cell.sources,
        "task": DIGITS if cell.params is None else "wide",
        "params": cell.model_params,
        "round_ms": round(1e3 * median(one["wall"] for one in target[0][LEFT_OUT:]), 1),
        "processor_of_all_ms": round(1e3 * median(of_all), 1),
        "not_timed": absent,
        "target": _rounded(own),
        "source": _rounded(source),
    }


def _medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Of one process, over its rounds: processor time by kind, waiting included in "wall", and counts."""
    used = [_parts(one) for one in rounds[LEFT_OUT:]]
    return {name: {key: median(one[name][key] for one in used) for key in used[0][name]} for name in used[0]}


def _parts(one: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Milliseconds by kind, of one round of one process; all kinds together are its processor time."""
    work = {kind: 1e3 * one["work"].get(kind, 0.0) for kind in TIMED}
    rest = 1e3 * one["work"].get("rest of the work", 0.0)
    loop = 1e3 * one["loop"]
    threads = 1e3 * one["processor"] - loop - rest - sum(work.values())
    processor = work | {"event loop": loop, "gRPC, TLS": max(0.0, threads), "rest": rest}
    waited = {kind: 1e3 * one["waited"].get(kind, 0.0) for kind in TIMED}
    counts = {count: float(one["counts"].get(count, 0)) for count in COUNTS}
    return {"processor_ms": processor, "wall_ms": waited, "counts": counts}


def _rounded(figures: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {name: {key: round(value, 2) for key, value in part.items()} for name, part in figures.items()}


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """Every table as Markdown, by name."""
    rows = figures["rows"]
    return {
        "rounds": _rounds_table(figures),
        "target": _kinds_table(rows, "target"),
        "source": _kinds_table(rows, "source"),
        "counts": _counts_table(rows),
    }


def _rounds_table(figures: Mapping[str, Any]) -> str:
    lines = []
    for row in figures["rows"]:
        own, each = (sum(row[site]["processor_ms"].values()) for site in ("target", "source"))
        of_all = row["processor_of_all_ms"]
        cells = (
            f"{row['round_ms']:.0f}",
            f"{own:.0f}",
            f"{each:.0f}",
            f"{of_all:.0f}",
            f"{of_all / row['round_ms']:.1f}",
        )
        lines.append((*_place(row), *cells, f"{row['load']:g}; {row['others']:g}"))
    names = ", ".join(f"{name} is `{revision}`" for name, revision in figures["trees"].items())
    head = (
        f"ms of a round ({names})",
        "tree",
        "by the clock",
        "processor: target",
        "one source",
        "all sites",
        "cores busy",
        "load at first; cores others took",
    )
    return _markdown(head, lines)


def _kinds_table(rows: Iterable[Mapping[str, Any]], site: str) -> str:
    lines = []
    for row in rows:
        parts = row[site]["processor_ms"]
        shown = ["–" if kind in row["not_timed"] else _short(parts[kind]) for kind in KINDS]
        lines.append((*_place(row), _short(sum(parts.values())), *shown))
    who = "the target" if site == "target" else "one source"
    return _markdown((f"processor ms a round, {who}", "tree", "all", *KINDS), lines)


def _counts_table(rows: Iterable[Mapping[str, Any]]) -> str:
    lines = [
        (*_place(row), site, *(f"{row[site]['counts'][count]:.0f}" for count in COUNTS))
        for row in rows
        for site in ("target", "source")
    ]
    return _markdown(("counts a round", "tree", "site", *COUNTS), lines)


def _place(row: Mapping[str, Any]) -> tuple[str, str]:
    size = DIGITS if row["task"] == DIGITS else f"m = {params_text(row['params'])}"
    return f"N = {row['sources']}, {size}", row["tree"]


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.1f}"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run first")
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=DIR", help="a tree to run; repeat it")
    parser.add_argument("--cells", nargs="+", default=CELLS, metavar="SOURCES:PARAMS", help="or SOURCES:digits")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    given = parser.parse_args()
    if given.measure and not given.tree:
        parser.error("--measure needs at least one --tree NAME=DIR")
    return given


if __name__ == "__main__":
    sys.exit(main())
