"""Federations in which a coin decides for each candidate row whether its site has it, and what is seen of them.

All runs of a cell differ in the coins, the order of batches, the noise, and which rows a private step drew, and in
nothing else: the attacker knows the first model, all candidates, and the rows of all other sources. There is no
network, no mask and no rounding here: what is seen is the sum that masks leave.

Without noise the victim trains on the rows that its coins left it, as any site does. With noise a blank row, whose loss
is zero, stands for a row that is out: the number of rows, which counts as public, then tells nothing of the coins, and
what changes with a coin is one row that is in the data or not, as the ledger has it. The victim alone adds noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefda.privacy.dp_events import Budget
from securefda.privacy.planning import Plan, plan_noise, schedule_of
from securefda.privacy.private_training import train_private
from securefda.rules import ContributionSum, RoundPlan, Rule, contribute, fedda
from securefda.tasks import Samples, Task, TaskSettings
from securefda.tasks.digits import Digits
from securefda.tasks.fashion_mnist import NoisyFashionMnist
from securefda.tasks.fed_heart import FedHeart
from securefda.training import (
    TrainingSettings,
    build_model,
    derive_seed,
    evaluate,
    model_to_vector,
    train_local,
    vector_to_model,
)
from securefda.training.training_settings import NoiseSettings

Vector = NDArray[np.float32]
Vector64 = NDArray[np.float64]
Coins = NDArray[np.bool_]

SUM, STRANGERS, DIFFERENCE, TARGET = "sum", "sum with strangers", "difference", "target's update"
"""What the attacker sees of a round: the sum, two sums that differ in the victim, or g_T. In a sum with strangers the
other sources' rows are drawn anew in every run, and it knows none of them."""

ONE_STEP, TWO_STEPS, EXAMPLE = "one step", "two steps", "example"
"""How sites train: one or two steps of SGD a round, with noise as without; or as the example of the task has it."""

BLANK = -1
DELTA = 1e-5
CLIP_NORM = 1.0
ROUNDS = 10
FIRST_MODEL = 0
ROWS = 44
"""Of each source of digits and of Fashion-MNIST; the victim has about as many of twice as many candidates."""
HEART_SOURCES = ("cleveland", "hungarian", "va")


class _WithBlanks(Task):
    """A row with the label ``BLANK`` has no loss and so no gradient."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.row_losses(outputs, labels).mean()

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        present = (labels != BLANK).reshape(len(labels), -1)[:, 0]
        return super().row_losses(outputs, labels.clamp(min=0)) * present


class DigitsWithBlanks(_WithBlanks, Digits):
    pass


class FedHeartWithBlanks(_WithBlanks, FedHeart):
    pass


class FashionWithBlanks(_WithBlanks, NoisyFashionMnist):
    pass


@dataclass(frozen=True, slots=True)
class Federation:
    """The rows of a task's sites.

    Attributes:
        task: with blanks.
        candidates: rows of which the victim has some.
        others: the rows of each other source, in their order; ``pools`` are those that they are drawn from.
        test: rows that the target tests on.
        spare: all rows of the victim's source, candidates among them.
    """

    task: Task
    candidates: Samples
    others: tuple[Samples, ...]
    pools: tuple[Samples, ...]
    test: Samples
    spare: Samples

    def among(self, sources: int) -> Federation:
        """The same with as many sources, the victim among them."""
        return replace(self, others=self.others[: sources - 1], pools=self.pools[: sources - 1])

    def with_strangers(self, rng: np.random.Generator) -> Federation:
        """The same with other rows at the other sources, as many as there were."""
        drawn = zip(self.others, self.pools, strict=True)
        return replace(self, others=tuple(some(pool, len(rows), rng) for rows, pool in drawn))

    def of_rows(self, candidates: int) -> Federation:
        """The same with as many candidates."""
        return replace(self, candidates=_first(self.candidates, candidates))

    def of_target(self, sources: int) -> Federation:
        """The same where the target is the victim, beside so many sources; the last of all is the former victim."""
        former = _first(self.candidates, len(self.candidates) // 2)
        return replace(
            self,
            candidates=_first(self.task.oracle_data(), len(self.candidates)),
            others=(*self.others, former)[:sources],
        )


@cache
def federation(data: str, folder: Path | None = None) -> Federation:
    """The sites of a data set, as many as it gives; ``folder`` holds the data sets' folders."""
    match data:
        case "digits":
            sources = _names(10)
            task: Task = DigitsWithBlanks(TaskSettings("target", sources))
            spare = _joined(task.train_data(sources[0]), task.test_data(sources[0]))
            candidates, rows = _first(spare, 2 * ROWS), ROWS
        case "fed-heart":
            sources = HEART_SOURCES
            place = None if folder is None else folder / "fed_heart"
            options = {"scaling": "public"}
            task = FedHeartWithBlanks(TaskSettings("switzerland", sources, data_dir=place, options=options))
            spare = candidates = task.train_data(sources[0])
            rows = 10**6
        case "fashion-mnist":
            sources = _names(10)
            place = None if folder is None else folder / "fashion_mnist"
            task = FashionWithBlanks(TaskSettings("target", sources, data_dir=place))
            spare = task.train_data(sources[0])
            candidates, rows = _first(spare, 2 * ROWS), ROWS
        case _:
            raise ValueError(f"no data set is named {data}")
    pools = tuple(task.train_data(source) for source in sources[1:])
    others = tuple(_first(rows_there, rows) for rows_there in pools)
    return Federation(task, candidates, others, pools, task.test_data(task.settings.target), spare)


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"source-{number}" for number in range(1, count + 1))


def _first(rows: Samples, count: int) -> Samples:
    return Samples(rows.features[:count], rows.labels[:count])


def some(rows: Samples, count: int, rng: np.random.Generator) -> Samples:
    """So many of the rows, drawn at random, in their order."""
    kept = np.sort(rng.choice(len(rows), count, replace=False))
    return Samples(rows.features[kept], rows.labels[kept])


def _joined(one: Samples, other: Samples) -> Samples:
    return Samples(torch.cat([one.features, other.features]), torch.cat([one.labels, other.labels]))


EXAMPLES = {
    "digits": TrainingSettings("adam", 0.005, 32, epochs=2, device="cpu"),
    "fed-heart": TrainingSettings("sgd", 0.3, 4, device="cpu"),
    "fashion-mnist": TrainingSettings("adam", 0.004, 32, device="cpu"),
}
"""How sources train in the examples."""

RATES = {"digits": 0.5, "fed-heart": 0.3, "fashion-mnist": 0.1}
"""Learning rates of `TWO_STEPS`."""


@dataclass(frozen=True, slots=True)
class Game:
    """A federation, what the attacker sees of it, and how its sites train; noise where an epsilon is set.

    Attributes:
        sites: the federation; of `TARGET` the victim is the target, and all sources are others.
    """

    sites: Federation
    data: str
    seen: str
    schedule: str
    epsilon: float | None = None
    rounds: int = ROUNDS

    @property
    def candidates(self) -> Samples:
        return self.sites.candidates

    def settings(self, rows: int) -> TrainingSettings:
        """How a site with so many rows trains, without noise."""
        if self.schedule == EXAMPLE:
            return EXAMPLES[self.data]
        steps = 1 if self.schedule == ONE_STEP else 2
        return TrainingSettings("sgd", RATES[self.data], math.ceil(rows / steps), device="cpu")

    @property
    def plan(self) -> Plan | None:
        """Noise that keeps the victim's ledger within epsilon over all rounds, and what it is charged; None without."""
        if self.epsilon is None:
            return None
        rows = len(self.candidates)
        return _planned(schedule_of(self.settings(rows), rows, self.rounds), Budget(self.epsilon, DELTA))

    @property
    def noisy(self) -> TrainingSettings | None:
        """How the victim trains with noise."""
        plan = self.plan
        if plan is None:
            return None
        return replace(self.settings(len(self.candidates)), dp=NoiseSettings(plan.noise_multiplier, CLIP_NORM))


_planned = cache(plan_noise)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run gave away.

    Attributes:
        models: of every round, and the last one, each (m,).
        opened: of every round what was opened, weighted by rows, (m,).
        cosines: of each round, of what was opened with the victim's own part.
    """

    models: list[Vector]
    opened: list[Vector64]
    cosines: list[float]


def play(game: Game, coins: Coins, seed: int) -> Seen:
    """Play all rounds with the rows that the coins leave the victim; ``seed`` gives batches and noise."""
    task, sites = game.sites.task, game.sites
    net = build_model(task, FIRST_MODEL)
    model, noisy = model_to_vector(net), game.noisy
    own = _left(sites.candidates, coins, blanks=noisy is not None)
    models, opened, cosines = [model], list[Vector64](), list[float]()
    for number in range(1, game.rounds + 1):
        victims = _victims(task, net, model, own, game, noisy, derive_seed(seed, "victim", number))
        total, update = ContributionSum(model.size), victims
        if game.seen == TARGET:
            others = _add_others(total, game, net, model, seed, number)
            vector, part = victims.astype(np.float64), victims
            update = fedda(victims, np.stack(others), 0.5)
        else:
            total.add(contribute(_PLAN, None, None, victims), len(own))
            _add_others(total, game, net, model, seed, number)
            vector, part, update = total.vector, victims, total.combine(Rule.SOURCE_ONLY)
        if game.seen == DIFFERENCE:  # the same model once more, to all but the victim, whose batches differ
            without = ContributionSum(model.size)
            _add_others(without, game, net, model, derive_seed(seed, "again"), number)
            vector = vector - without.vector
        opened.append(vector)
        cosines.append(_cosine(vector, part))
        model = (model + update).astype(np.float32)
        models.append(model)
    return Seen(models, opened, cosines)


_PLAN = RoundPlan(rule=Rule.SOURCE_ONLY)


def _left(candidates: Samples, coins: Coins, *, blanks: bool) -> Samples:
    """The rows that are in; where ``blanks``, with blank rows in the places of the others."""
    inside = torch.from_numpy(coins)
    if not blanks:
        return Samples(candidates.features[inside], candidates.labels[inside])
    features, labels = candidates.features.clone(), candidates.labels.clone()
    features[~inside], labels[~inside] = 0, BLANK
    return Samples(features, labels)


def _victims(
    task: Task, net: nn.Module, model: Vector, own: Samples, game: Game, noisy: TrainingSettings | None, seed: int
) -> Vector:
    """The victim's update of a round."""
    if noisy is None:
        how = game.settings(len(own))
        return train_local(task, net, model, own, settings=how, seed=seed, site="victim").update
    random_bytes = np.random.default_rng(seed).bytes
    return train_private(task, net, model, own, settings=noisy, site="victim", random_bytes=random_bytes).update


def _add_others(
    total: ContributionSum, game: Game, net: nn.Module, model: Vector, seed: int, number: int
) -> list[Vector]:
    """Add the other sources' parts, which they train without noise; return their updates."""
    updates = []
    for place, rows in enumerate(game.sites.others):
        how, draws = game.settings(len(rows)), derive_seed(seed, "other", place, number)
        result = train_local(game.sites.task, net, model, rows, settings=how, seed=draws, site=f"other-{place}")
        total.add(contribute(_PLAN, None, None, result.update), len(rows))
        updates.append(result.update)
    return updates


def _cosine(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    a, b = one.astype(np.float64), other.astype(np.float64)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms else 0.0


def accuracy(game: Game, model: Vector) -> float:
    """Of a model on the target's test rows, in percent."""
    net = build_model(game.sites.task, FIRST_MODEL)
    vector_to_model(model, net)
    return 100 * evaluate(game.sites.task, net, game.sites.test).metrics["accuracy"]


def throw(game: Game, rng: np.random.Generator) -> Coins:
    """A fair coin for each candidate."""
    return rng.random(len(game.candidates)) < 0.5


def all_rows(parts: Sequence[Samples]) -> Samples:
    """The rows of several sites, one after the other."""
    return Samples(torch.cat([part.features for part in parts]), torch.cat([part.labels for part in parts]))
