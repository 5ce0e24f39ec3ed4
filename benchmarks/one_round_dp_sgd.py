"""DP-SGD beside the noisy moments of one_round.py: the sources train the same linear head over several rounds.

    python benchmarks/one_round_dp_sgd.py --data-dir DIR [--seeds N] [--data NAME ...]    measure, add to the figures

Settings are chosen on the sources' own rows. The target uses the head as it is, or fits the nearest head to its labels.
Classes are trained by their likelihood; what the head fits for survival is no class, and is trained by least squares.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch
from numpy.typing import NDArray
from one_round import DATA, EPSILONS, FIGURES, Data, multiplier_for, of_head, samples, task_of
from studies import as_text, this_machine

from securefda.tasks import Samples

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """Rows of a site.

    Attributes:
        features: (n, d).
        codes: what the head fits, (n, c).
        metric: of the data, by what the head puts out for the rows, a fraction.
    """

    features: Matrix
    codes: Matrix
    metric: Callable[[torch.Tensor], float]

    def reached(self, head: Matrix) -> float:
        """Return the metric of a head, (c, d + 1), in percent."""
        return 100 * self.metric(torch.from_numpy(_with_constant(self.features) @ head.T))


ROUNDS, CLIPS, STEPS = (40, 160), (0.1, 0.5), (1.0, 4.0, 16.0, 64.0)
"""Settings that are tried; a step is at most so long, in units of 1 over the squared length of a row."""
LONG, CONSTANT = 4.0, 0.3
"""Length of a row that is not scaled to length 1, about; and the constant behind a row of length 1."""


@dataclass(frozen=True)
class DpSgd:
    """A linear head that the sources train by DP-SGD, a step of all rows in each round."""

    rounds: int
    clip: float
    step: float
    constant: float
    classes: bool

    def head(self, parts: Sequence[Part], multiplier: float, random: np.random.Generator) -> Matrix:
        """Return the mean head of the last half of the rounds, (c, d + 1).

        Args:
            parts: each source's rows.
            multiplier: noise multiplier with which one round alone would cost what all of them may.
            random: of the noise; each source adds its own.
        """
        rows = np.concatenate([_with_constant(part.features) for part in parts]).astype(np.float32)
        rows[:, -1] = self.constant
        codes, lengths = np.concatenate([part.codes for part in parts]), np.linalg.norm(rows, axis=1)
        deviation = multiplier * math.sqrt(self.rounds) * math.sqrt(len(parts)) * self.clip
        head, total = np.zeros((2, codes.shape[1], rows.shape[1]))
        for number in range(self.rounds):
            logits = rows @ head.astype(np.float32).T
            if not self.classes:
                wrong = logits - codes
            elif codes.shape[1] > 1:
                wrong = np.exp(logits - logits.max(axis=1, keepdims=True))
                wrong = wrong / wrong.sum(axis=1, keepdims=True) - (codes > 0)
            else:
                wrong = 1 / (1 + np.exp(-np.clip(logits, -30, 30))) - (codes > 0)
            norms = np.maximum(np.linalg.norm(wrong, axis=1) * lengths, 1e-12)
            clipped = wrong * np.minimum(1.0, self.clip / norms)[:, None].astype(np.float32)
            gradient = clipped.T @ rows + random.normal(size=head.shape) * deviation
            head -= self.step / self.clip / len(rows) * gradient
            total += head if number >= self.rounds // 2 else 0.0
        total[:, -1] *= self.constant
        return total / (self.rounds - self.rounds // 2)


@cache
def best_dp_sgd(name: str, target: str, folder: Path, wanted: float) -> DpSgd:
    """Return the settings whose head is best on the sources' own rows with the noise of ε; this costs no ε here."""
    data = DATA[name]
    _, _, parts = _parts(data, target, 0, folder)
    steps, constant = (STEPS, CONSTANT) if data.unit else ([one / LONG**2 for one in STEPS], 1.0)
    tried = [DpSgd(*one, constant, data.metric != "concordance") for one in itertools.product(ROUNDS, CLIPS, steps)]
    scores = []
    for one in tried:
        head = one.head(parts, multiplier_for(wanted), np.random.default_rng(99))
        scores.append(fmean(part.reached(head) for part in parts))
    return tried[int(np.argmax(scores))]


def _first_of(name: str) -> str:
    """Return the first data with the same sources: labels of the target change nothing there."""
    return next(other for other, data in DATA.items() if data.folder == DATA[name].folder)


def mixed(head: Matrix, features: Matrix, codes: Matrix) -> Matrix:
    """Return the head nearest to another, scaled to the target's codes, that fits its rows, by leave-one-out."""
    rows = _with_constant(features)
    put_out = rows @ head.T
    before = head * max(0.0, float((put_out * codes).sum() / np.square(put_out).sum()))
    missing, kernel = codes - rows @ before.T, rows @ rows.T
    errors = {}
    for ridge in 10.0 ** np.arange(-3.0, 5.1, 0.5):
        inverse = np.linalg.inv(kernel + ridge * np.eye(len(rows)))
        errors[ridge] = float(np.square(inverse @ missing / np.diag(inverse)[:, None]).mean())
    ridge = min(errors, key=lambda one: errors[one])
    return before + (rows.T @ np.linalg.solve(kernel + ridge * np.eye(len(rows)), missing)).T


def _with_constant(features: Matrix) -> Matrix:
    return np.column_stack([features, np.ones(len(features))])


def _parts(data: Data, target: str, seed: int, folder: Path) -> tuple[Part, Part, list[Part]]:
    """Return the target's rows that train, its test rows, and each source's rows."""
    task = task_of(data, target, seed, folder)

    def part(rows: Samples) -> Part:
        return Part(*of_head(task, data, rows), lambda outputs: task.metrics(outputs, rows.labels)[data.metric])

    own, test = (part(samples(of(target))) for of in (task.train_data, task.test_data))
    return own, test, [part(samples(task.train_data(site))) for site in task.settings.sources]


def dp_sgd(name: str, target: str, seed: int, folder: Path) -> dict[str, float]:
    """Return the metric of the columns of DP-SGD in percent."""
    own, test, rows_of = _parts(DATA[name], target, seed, folder)
    found, random = {}, np.random.default_rng((seed, 1))
    for one in EPSILONS:
        trained = best_dp_sgd(_first_of(name), target, folder, one).head(rows_of, multiplier_for(one), random)
        found[f"DP-SGD, no labels, ε = {one:g}"] = test.reached(trained)
        found[f"DP-SGD, labels, ε = {one:g}"] = test.reached(mixed(trained, own.features, own.codes))
    return found


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=Path())
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA), metavar="NAME")
    asked = parser.parse_args()
    for name in asked.data:
        sites, seeds = DATA[name].targets or DATA[name].sites, range(asked.seeds)
        runs = [[dp_sgd(name, target, seed, asked.data_dir) for target in sites] for seed in seeds]
        rows = json.loads(FIGURES.read_text())["rows"]
        for column in runs[0][0]:
            means = [fmean(one[column] for one in of_seed) for of_seed in runs]
            row = next(row for row in rows if row["data"] == name)
            row[column] = {"mean": fmean(means), "deviation": stdev(means)}
        FIGURES.write_text(as_text(rows, this_machine()))


if __name__ == "__main__":
    main()
