"""Whether a row was in a site's data: three attackers' scores, and how often they are right.

Likelihood ratio on opened sums (after Ngo et al. 2024): of every round the attacker estimates, by the best linear
estimate, how much of each candidate's gradient the opened vector holds, given the gradients of all candidates and of
all other sources' rows at that round's model, which it knows. The rounds are added up by weights that shadow runs give.
Of sums with strangers it knows the candidates alone.

Matched filter, for an attacker who knows the models and the row, and no other row: the cosine of the row's gradient
with what was opened, mean over rounds. It has no shadow runs.

LiRA on the final model (Carlini et al. 2022): the logit of the probability that the model gives the row's class.

For the first and the last a Gaussian for "in" and one for "out" is fitted to the shadow runs for each candidate, and
the score is the logarithm of their ratio. Coins of target runs are used to count what was right, and for nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from attacks_play import CLIP_NORM, STRANGERS, TARGET, Coins, Game, Seen, Vector, accuracy, all_rows, play, throw
from numpy.typing import NDArray
from scipy.stats import beta
from torch import Tensor, nn

from securefda.privacy.empirical_audit import correct_guesses, epsilon_lower_bound
from securefda.tasks import Samples, Task
from securefda.training import build_model, derive_seed, vector_to_model

FALSE_ALARMS = (0.01, 0.001)
PER_SIDE = 8  # one in so many coins is guessed "in", and as many "out"
RESAMPLES = 500
SUMS, FILTER, MODEL = "likelihood ratio", "matched filter", "final model"

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Found:
    """What an attacker found of the candidates in all target runs.

    Attributes:
        auc: probability that a member scores above another row.
        rates: at each of `FALSE_ALARMS`, the share of members found, in percent, and the ends of its 95 % interval.
        bound: epsilon is at least that, with 95 % confidence.
    """

    auc: float
    rates: list[tuple[float, float, float]]
    bound: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What the runs of one cell gave.

    Attributes:
        found: attacker -> what it found.
        members: rows of target runs that were in; ``others`` that were not.
        ledger: the epsilon that the victim's ledger is charged; None without noise.
        cosine: of what was opened with the victim's own part, median over rounds and runs.
        accuracy: of the final model on the target's test rows, mean over target runs, in percent.
    """

    found: dict[str, Found]
    members: int
    others: int
    ledger: float | None
    cosine: float
    accuracy: float


def attacked(game: Game, shadows: int, targets: int, seed: int) -> Figures:
    """Play shadow runs and target runs, and attack the latter."""
    rng = np.random.default_rng(seed)
    coins = np.stack([throw(game, rng) for _ in range(shadows + targets)])
    runs = [play(_own(game, rng), one, derive_seed(seed, "run", number)) for number, one in enumerate(coins)]
    attacker = Attacker(game)
    parts, filters = (np.stack(scores) for scores in zip(*(attacker.scores(run) for run in runs), strict=True))
    logits = np.stack([attacker.logits(run.models[-1]) for run in runs])
    known, hidden = coins[:shadows], coins[shadows:]
    weights = round_weights(parts[:shadows], known)
    sums = np.einsum("srn,r->sn", parts, weights)
    scores = {
        SUMS: likelihood_ratio(sums[:shadows], known, sums[shadows:]),
        FILTER: filters[shadows:].mean(axis=1),
        MODEL: likelihood_ratio(logits[:shadows], known, logits[shadows:]),
    }
    delta = 0.0 if game.plan is None else game.plan.delta
    found = {name: judged(of_runs, hidden, delta, rng) for name, of_runs in scores.items()}
    cosine = float(np.median([cosine for run in runs for cosine in run.cosines]))
    correct = float(np.mean([accuracy(game, run.models[-1]) for run in runs[shadows:]]))
    ledger = None if game.plan is None else game.plan.epsilon
    return Figures(found, int(hidden.sum()), int((~hidden).sum()), ledger, cosine, correct)


def _own(game: Game, rng: np.random.Generator) -> Game:
    """A run's own game: with strangers each has other rows at the other sources."""
    return replace(game, sites=game.sites.with_strangers(rng)) if game.seen == STRANGERS else game


class Attacker:
    """Knows all rows, and scores candidates by what it sees."""

    def __init__(self, game: Game) -> None:
        self._game, self._task = game, game.sites.task
        self._net = build_model(self._task, 0)
        others = () if game.seen in {TARGET, STRANGERS} else game.sites.others
        self._known = all_rows([game.candidates, *others])
        self._count = len(game.candidates)
        self._ridge = 1e-2 if game.seen == STRANGERS else 1e-3  # strangers' rows are noise as well
        noisy = game.noisy
        victims = noisy or game.settings(self._count // 2)
        # What a row adds to what is opened, in the mean, is its gradient times this; a noisy step divides by more rows.
        rows = [self._count if noisy else self._count // 2, *(len(part) for part in others)]
        how = [victims, *(game.settings(count) for count in rows[1:])]
        each = [
            count * one.learning_rate * one.epochs / min(one.batch_size, count)
            for count, one in zip(rows, how, strict=True)
        ]
        if game.seen == TARGET:
            each[0] /= rows[0]
        self._unit = each[0]
        size = [self._count, *rows[1:]]
        relative = np.repeat(np.array(each) / each[0], size)
        candidates = np.arange(len(relative)) < self._count
        self._mean = torch.from_numpy(np.where(candidates, 0.5, 1.0) * relative).float()
        self._spread = torch.from_numpy(np.where(candidates, 0.5, 0.3) * relative).float()
        steps = victims.steps(rows[0])
        self._noise = 0.0 if noisy is None else noisy.dp.noise_multiplier * CLIP_NORM * np.sqrt(steps) / victims.epochs

    def scores(self, run: Seen) -> tuple[Scores, Scores]:
        """How much of each candidate's gradient every round holds, (rounds, n), and the cosines, (rounds, n)."""
        parts, filters = [], []
        for model, opened in zip(run.models, run.opened, strict=False):
            step = torch.from_numpy(-opened / self._unit).float()
            gradients = row_gradients(self._task, self._net, model, self._known)
            own = gradients[: self._count]
            filters.append((own @ step / (own.norm(dim=1) * step.norm() + 1e-12)).double().numpy())
            if self._noise:
                norms = own.norm(dim=1, keepdim=True)
                gradients = torch.cat([own * (CLIP_NORM / (norms + 1e-6)).clamp(max=1.0), gradients[self._count :]])
            parts.append(self._held(gradients, step))
        return np.stack(parts), np.stack(filters)

    def _held(self, gradients: Tensor, step: Tensor) -> Scores:
        """The best linear estimate of the candidates' weights, (n,)."""
        surprise = step - self._mean @ gradients
        scaled = self._spread[:, None] * gradients
        products = (scaled @ scaled.T).double()
        products.diagonal().add_(self._noise**2 + self._ridge * float(products.diagonal().mean()))
        found = self._spread * torch.linalg.solve(products, (scaled @ surprise).double()).float()
        return found[: self._count].double().numpy()

    def logits(self, model: Vector) -> Scores:
        """log(p / (1 - p)) for the probability p of each candidate's class, (n,)."""
        vector_to_model(model, self._net)
        rows = self._game.candidates
        with torch.no_grad():
            losses = self._task.row_losses(self._net(rows.features), rows.labels).double()
        return (-losses - torch.log1p(-torch.exp(-losses).clamp(max=1 - 1e-12))).numpy()


def row_gradients(task: Task, net: nn.Module, model: Vector, rows: Samples) -> Tensor:
    """The gradient of each row's loss at a model, (n, m)."""
    vector_to_model(model, net)
    parameters = {name: value.detach() for name, value in net.named_parameters() if value.requires_grad}

    def loss(values: dict[str, Tensor], features: Tensor, label: Tensor) -> Tensor:
        outputs = torch.func.functional_call(net, values, (features[None],))
        return task.loss(outputs, label[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, rows.features, rows.labels)
    return torch.cat([part.flatten(1) for part in each.values()], dim=1)


def round_weights(parts: Scores, coins: Coins) -> Scores:
    """How much each round counts, (rounds,): the distance of "in" from "out" over the variance, over all candidates."""
    inside = np.where(coins[:, None], parts, np.nan)
    outside = np.where(coins[:, None], np.nan, parts)
    distance = (np.nanmean(inside, axis=0) - np.nanmean(outside, axis=0)).mean(axis=1)
    variance = 0.5 * (np.nanvar(inside, axis=0) + np.nanvar(outside, axis=0)).mean(axis=1)
    return distance / (variance + 1e-12)


def likelihood_ratio(shadows: Scores, coins: Coins, targets: Scores) -> Scores:
    """Logarithm of the odds of "in" for each candidate in each target run, (targets, n).

    Both Gaussians of a candidate have one variance. As far as chance explains how much the distances of "in" from "out"
    differ between candidates, they are drawn to their mean.

    Args:
        shadows: (shadows, n); ``coins`` of the same shape.
        targets: (targets, n).
    """
    inside, outside = np.where(coins, shadows, np.nan), np.where(coins, np.nan, shadows)
    high, low = np.nanmean(inside, axis=0), np.nanmean(outside, axis=0)
    variance = 0.5 * (np.nanvar(inside, axis=0, ddof=1) + np.nanvar(outside, axis=0, ddof=1)) + 1e-12
    count = coins.sum(axis=0)
    chance = variance * (1 / count + 1 / (len(coins) - count))
    distance = high - low
    real = max(0.0, float(distance.var() - chance.mean()))
    distance = (real * distance + chance * distance.mean()) / (real + chance)
    return distance / variance * (targets - 0.5 * (high + low))


def judged(scores: Scores, coins: Coins, delta: float, rng: np.random.Generator) -> Found:
    """What scores (runs, n) find of the coins (runs, n)."""
    per_side = scores.size // PER_SIDE
    right = correct_guesses(scores.ravel(), coins.ravel(), per_side)
    bound = epsilon_lower_bound(2 * per_side, right, scores.size, delta)
    rates = [with_interval(scores, coins, alarms, rng) for alarms in FALSE_ALARMS]
    return Found(auc(scores[coins], scores[~coins]), rates, bound)


def rate(scores: Scores, coins: Coins, alarms: float) -> float:
    """The share of members above the score that at most a share ``alarms`` of the others exceeds."""
    others = np.sort(scores[~coins])[::-1]
    return float(np.mean(scores[coins] > others[int(alarms * len(others))]))


def with_interval(scores: Scores, coins: Coins, alarms: float, rng: np.random.Generator) -> tuple[float, float, float]:
    """The rate in percent and its 95 % interval: Clopper and Pearson's or that of runs drawn again, whichever is wider.

    The first takes rows as independent and the threshold as given; the second does not, and says nothing at 0 or 1.
    """
    found, members = rate(scores, coins, alarms), int(coins.sum())
    hits = round(found * members)
    low = float(beta.ppf(0.025, hits, members - hits + 1)) if hits else 0.0
    high = float(beta.ppf(0.975, hits + 1, members - hits)) if hits < members else 1.0
    again = []
    for _ in range(RESAMPLES):
        drawn = rng.integers(len(scores), size=len(scores))
        again.append(rate(scores[drawn], coins[drawn], alarms))
    ends = np.quantile(again, [0.025, 0.975])
    return 100 * found, 100 * min(low, float(ends[0])), 100 * max(high, float(ends[1]))


def auc(members: Scores, others: Scores) -> float:
    """Probability that a member scores above another, ties counting half."""
    order = np.sort(others)
    below, upto = np.searchsorted(order, members, "left"), np.searchsorted(order, members, "right")
    return float(np.mean(0.5 * (below + upto)) / len(others))
