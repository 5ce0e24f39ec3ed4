"""How long a round takes in two source trees, in turns: six processes, one model, visibility ``sum``.

    python benchmarks/round_pairs.py BEFORE AFTER [--pairs N] [--params M,M] [--rounds R] [--out FILE.json]

BEFORE and AFTER are folders with the package, such as git worktrees; both run in this Python. A run's figure is the
median over its rounds, but for the first three. A pair is one run of each, in turns which comes first. Take a machine
without other work.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from studies import this_machine

HERE = Path(__file__).resolve().parent
LEFT_OUT = 3
"""Rounds at the start: two of them are warm-up, and one is the first of the rule."""
FEDERATION = """
[federation]
name = "pairs"
target = "target"
sources = ["source-1", "source-2", "source-3", "source-4", "source-5"]

[task]
factory = "round_cost_task:Wide"

[task.options]
parameters = {params}

[strategy]
rule = "fedgp_auto"
rounds = {rounds}
warm-up-rounds = 2

[training.target]
learning-rate = 0.005
batch-size = 4

[training.source]
learning-rate = 0.005
batch-size = 4
"""


def round_ms(tree: Path, params: int, rounds: int) -> float:
    """Median milliseconds of a round of one run in a tree.

    Raises:
        subprocess.CalledProcessError: the run failed; its output says why.
    """
    with tempfile.TemporaryDirectory(dir=HERE) as name:  # on the disk of the tree: /tmp may be memory
        file, out = Path(name) / "pairs.toml", Path(name) / "run"
        file.write_text(FEDERATION.format(params=params, rounds=rounds))
        command = "import sys; from securefda.cli import main; sys.exit(main())"
        subprocess.run(
            [sys.executable, "-c", command, "run", str(file), "--out", str(out)],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": os.pathsep.join((str(tree), str(HERE))), "OMP_NUM_THREADS": "1"},
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return 1000 * median(sum(line["seconds"].values()) for line in lines[LEFT_OUT:])


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--params", default="10000,100000,1100000")
    parser.add_argument("--rounds", type=int, default=22)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    trees = {"before": given.before.resolve(), "after": given.after.resolve()}
    rows = []
    for params in map(int, given.params.split(",")):
        found: dict[str, list[float]] = {"before": [], "after": []}
        for pair in range(given.pairs):
            for name in ("before", "after") if pair % 2 == 0 else ("after", "before"):
                found[name].append(round_ms(trees[name], params, given.rounds))
        ratios = [after / before for before, after in zip(found["before"], found["after"], strict=True)]
        rows.append({"params": params, **found, "ratio": median(ratios)})
        print(
            f"{params:>8}  before {median(found['before']):6.1f} ms  after {median(found['after']):6.1f} ms  "
            f"ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )
    if given.out:
        result = {"machine": this_machine(), "rounds": given.rounds, "pairs": given.pairs, "rows": rows}
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
