"""Does a logistic refit at the target gain anything over the head of the rule ``analytic``? No site sends more for it.

    python benchmarks/logistic_refit.py --data-dir DIR [--seeds 5] [--data NAME ...]    write logistic_refit.json

The head, scaled as a run scales it, is where the refit begins and what it is pulled to: it has the least loss of the
target's rows with labels, plus half the pull times the squared distance. Five folds of these rows choose the pull, or
no refit at all; a head that fits labels is fitted again without those of a fold. DIR is that of one_round.py.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from one_round import DATA, KINDS, Data, Drawn, samples
from studies import as_text, markdown, this_machine
from torch import Tensor

from securefda.rules import Head, Moments, fit_head

FIGURES = Path(__file__).parent / "logistic_refit.json"
TRIED = [name for name, data in DATA.items() if data.metric != "concordance"]
PULLS = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, math.inf)
SCALES = 2.0 ** np.arange(-2.0, 6.1, 0.25)


def figures(data: Data, target: str, seed: int, folder: Path) -> dict[str, float]:
    """Return the metric in percent of the head by kind, and after the refit."""
    drawn = Drawn.of(data, target, seed, folder)
    task, (features, codes) = drawn.task, drawn.own
    labels = samples(task.train_data(target)).labels
    rows = torch.from_numpy(np.column_stack([features, np.ones(len(features))]))
    parts = [Moments.of(*part, bound=data.bound) for part in drawn.sources]
    sums = Moments(sum(p.gram for p in parts), sum(p.cross for p in parts), sum(p.rows for p in parts))
    folds = np.random.default_rng(seed).permutation(len(rows)) % 5

    def loss(outputs: Tensor, of: NDArray[np.bool_]) -> Tensor:
        return task.loss(outputs.float(), labels[torch.from_numpy(of)]).double()

    def fitted(kind: str, kept: NDArray[np.bool_]) -> tuple[Head, Tensor]:
        """Return the head of the sources, or of these rows too, and its weights as logits."""
        head = fit_head(sums, *((features[kept], codes[kept]) if kind == "labels" else ()), bound=data.bound)
        outputs = rows[torch.from_numpy(kept)] @ torch.from_numpy(head.weights).T
        if head.left_out is not None:
            outputs = torch.from_numpy(head.left_out)
        return head, torch.from_numpy(head.weights) * min(SCALES, key=lambda scale: float(loss(outputs * scale, kept)))

    def refit(start: Tensor, kept: NDArray[np.bool_], pull: float) -> Tensor:
        """Return the weights after the refit."""
        if math.isinf(pull):
            return start
        weights = start.clone(memory_format=torch.contiguous_format).requires_grad_()
        solver = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            solver.zero_grad()
            whole = loss(rows[torch.from_numpy(kept)] @ weights.T, kept) + pull / 2 * (weights - start).square().sum()
            whole.backward()  # type: ignore[no-untyped-call]
            return whole

        solver.step(closure)  # type: ignore[arg-type]
        return weights.detach()

    found = {}
    for kind in KINDS[:2]:
        losses = dict.fromkeys(PULLS, 0.0)
        for fold in range(5):
            kept, left = folds != fold, folds == fold
            _, start = fitted(kind, kept)
            for pull in PULLS:
                outputs = rows[torch.from_numpy(left)] @ refit(start, kept, pull).T
                losses[pull] += float(loss(outputs, left)) * left.sum()
        head, start = fitted(kind, np.ones(len(rows), np.bool_))
        best = min(PULLS, key=lambda pull: losses[pull])
        refitted = replace(head, weights=refit(start, np.ones(len(rows), np.bool_), best).numpy())
        found |= {kind: drawn.metrics(head)[data.metric], f"{kind}, refit": drawn.metrics(refitted)[data.metric]}
    return found


def table(rows: list[Mapping[str, object]]) -> str:
    """Return the means over targets and seeds in Markdown."""
    columns = [f"{kind}{ending}" for kind in KINDS[:2] for ending in ("", ", refit")]
    return markdown(("data", *columns), ((row["data"], *(f"{row[one]:.1f}" for one in columns)) for row in rows))


def main() -> None:
    """Measure, and write the means over targets and seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", nargs="+", choices=TRIED, default=TRIED, metavar="NAME")
    given = parser.parse_args()
    torch.set_num_threads(1)
    known = {row["data"]: row for row in json.loads(FIGURES.read_text())["rows"]} if FIGURES.exists() else {}
    for name in given.data:
        data = DATA[name]
        places = [(target, seed) for target in data.targets or data.sites for seed in range(given.seeds)]
        runs = [figures(data, target, seed, given.data_dir) for target, seed in places]
        known[name] = {"data": name, "seeds": given.seeds} | {one: fmean(run[one] for run in runs) for one in runs[0]}
        FIGURES.write_text(as_text([known[one] for one in TRIED if one in known], this_machine()))
        print(table([known[name]]), flush=True)


if __name__ == "__main__":
    main()
