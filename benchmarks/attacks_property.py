"""How many of a source's rows have a property, guessed from opened sums by regression on shadow federations.

In every run the number of the victim's rows with the property is drawn anew, and so are its rows and those of the other
sources: the attacker knows where they are drawn from, not which they are. It sees the last layer's part of each round's
sum, and the number of rows behind it. The guess is ridge regression, its strength chosen on the shadow runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from attacks_play import Coins, Federation, Game, Seen, play, some
from numpy.typing import NDArray
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from securefda.training import build_model, derive_seed, layer_sizes, layer_table

RESAMPLES = 500
SEX = 1
"""The column of Fed-Heart's features; below 0 for women where scaling is public."""


@dataclass(frozen=True, slots=True)
class Figures:
    """How near guesses of a share come.

    Attributes:
        explained: share of the variance that the guesses explain, R^2 over target runs, and its 95 % interval.
        error: mean distance of the guess from the share, in points; ``blind`` that of guessing the mean share.
        shares: the smallest and the largest share that was drawn, in percent.
    """

    explained: tuple[float, float, float]
    error: float
    blind: float
    shares: tuple[float, float]


def guessed(game: Game, shadows: int, targets: int, seed: int) -> Figures:
    """Play shadow runs and target runs, and guess the shares of the latter."""
    rng = np.random.default_rng(seed)
    has = property_of(game)
    shares, features = [], []
    for number in range(shadows + targets):
        coins = drawn(has, rng)
        run = play(replace(game, sites=with_fewer(game, rng)), coins, derive_seed(seed, "run", number))
        shares.append(has[coins].mean())
        features.append(seen_features(game, run))
    y, x = 100 * np.array(shares), np.stack(features)
    model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 5, 15)))
    guesses = model.fit(x[:shadows], y[:shadows]).predict(x[shadows:])
    truth, blind = y[shadows:], np.full(targets, y[:shadows].mean())
    again = [_explained(truth[rows], guesses[rows]) for rows in rng.integers(targets, size=(RESAMPLES, targets))]
    low, high = np.quantile(again, [0.025, 0.975])
    return Figures(
        (_explained(truth, guesses), float(low), float(high)),
        float(np.mean(np.abs(truth - guesses))),
        float(np.mean(np.abs(truth - blind))),
        (float(y.min()), float(y.max())),
    )


def property_of(game: Game) -> Coins:
    """Which candidates have it: the commonest class of digits, or women."""
    rows = game.candidates
    if game.data == "fed-heart":
        return (rows.features[:, SEX] < 0).numpy()
    labels = rows.labels.numpy()
    return labels == np.bincount(labels).argmax()


def drawn(has: Coins, rng: np.random.Generator) -> Coins:
    """Half as many rows as have not the property; of them, any number have it up to as many as there are."""
    count = int((~has).sum()) // 2
    most = min(int(has.sum()), count)
    number = int(rng.integers(most + 1))
    chosen = np.zeros(len(has), dtype=bool)
    chosen[rng.choice(np.flatnonzero(has), number, replace=False)] = True
    chosen[rng.choice(np.flatnonzero(~has), count - number, replace=False)] = True
    return chosen


def with_fewer(game: Game, rng: np.random.Generator) -> Federation:
    """The federation in which each other source has half of its rows, drawn anew."""
    halves = tuple(some(rows, len(rows) // 2, rng) for rows in game.sites.others)
    return replace(game.sites, others=halves)


def seen_features(game: Game, run: Seen) -> NDArray[np.float64]:
    """The last layer's part of every round's sum; of a model of one layer, all of it."""
    sizes = layer_sizes(layer_table(build_model(game.sites.task, 0)))
    width = sizes[-1] if len(sizes) > 2 else sum(sizes)
    return np.concatenate([opened[-width:] for opened in run.opened])


def _explained(truth: NDArray[np.float64], guesses: NDArray[np.float64]) -> float:
    return float(1 - np.sum((truth - guesses) ** 2) / np.sum((truth - truth.mean()) ** 2))
