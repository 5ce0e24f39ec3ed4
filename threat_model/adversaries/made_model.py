"""T40: a crafted model whose updates answer questions about rows.

An update depends on the rows and on the model that the source was sent. The party that chooses the model therefore
chooses the question, and masks do not help: the answer is just as visible in a sum over all sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from securefda.aggregator.headers import AttemptPosition
from securefda.protocol.encoding import vector_to_wire
from securefda.protocol.messages import Parcel, Receipt, Result, Send, Step
from securefda.source.model_bound import Units
from securefda.training import Vector
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.sites import AggregatorSeat

Rows = NDArray[np.float64]
Reach = Callable[[Vector], Units]
"""For the model of a round: how far from it every source lets each group of layers be in the next."""


class AsksByModel(MaliciousAggregator):
    """Publishes a model of its own making in one round, opens the sum as it should, and reads it.

    Powers: the target's key, and the choice of who takes part. It follows the protocol in all else; in the rounds
    before it publishes the model as it is, whatever the updates were.
    Goal: rows of the sources, or counts of their labels, from one sum.
    Source: "Robbing the Fed": Fowl, Geiping, Czaja, Goldblum and Goldstein 2022, with several sites in one sum.

    Args:
        seat: of the target.
        made: the model, float32 (m,).
        at_round: in which it is published.
        halves: who takes part in each round from the second on; all where it is empty. Receipts of one half are shown
            to the next.
        called: the number that it gives this round, if not its own; as if rounds lay between that never were.
    """

    threat = "T40"

    def __init__(
        self,
        seat: AggregatorSeat,
        *,
        made: Vector,
        at_round: int = 1,
        halves: Sequence[frozenset[int]] = (),
        called: int = 0,
    ) -> None:
        super().__init__(seat)
        self._made, self._at_round, self._halves = made, at_round, tuple(halves)
        self._called = called
        self._waits = False
        if at_round == 1:
            self.model = made

    def next_place(self) -> AttemptPosition | None:
        """Play rounds until the sum over the made model has come."""
        place = super().next_place() if len(self.sessions) < self._at_round else None
        if place is None or place.round < self._at_round:
            return place
        return replace(place, round=max(place.round, self._called))

    def participants(self) -> set[int]:
        """Return all sources, or the half whose turn it is."""
        number = len(self.sessions) + 1
        return set(self._halves[number - 2]) if self._halves and number > 1 else super().participants()

    def result_for(self, index: int) -> Result | None:
        """Return a result that announces the crafted model, in the round before it."""
        if len(self.sessions) + 1 == self._at_round:
            self.model = self._made
        return super().result_for(index)

    def receive(self, parcel: Parcel) -> list[Send]:
        """Go on when the sources that were sent a result have returned receipts."""
        sends = super().receive(parcel)
        if self._waits and isinstance(parcel.message.body, Receipt) and self.had_result <= set(self.receipts):
            self._waits = False
            sends += super()._begin()
        return sends

    def _begin(self) -> list[Send]:
        """Begin the next round, once there are receipts for the sources that were not in the last one."""
        self._waits = bool(self._halves) and not self.had_result <= set(self.receipts)
        return [] if self._waits else super()._begin()

    def attack(self) -> Rows | None:
        """Return the sum over the crafted model, weighted by rows, float64 (m,); None if there is none."""
        opened = self.aggregate() if len(self.sessions) == self._at_round else None
        return None if opened is None else opened.vector


class AsksAndAborts(MaliciousAggregator):
    """Begins with the true model, ends the round with a signed abort, and asks by a made model in each later round.

    Powers: the target's key, and when a round ends. A round that nobody finished moves the model, if that is let pass.
    Goal: as :class:`AsksByModel`, of what sources send before their fuse.
    Source: our own.

    Args:
        seat: of the target.
        made: the models of its rounds from the second on, float32 (m,).
    """

    threat = "T40"

    def __init__(self, seat: AggregatorSeat, *, made: Sequence[Vector]) -> None:
        super().__init__(seat)
        self._made = tuple(made)

    def next_place(self) -> AttemptPosition | None:
        """Return one round for each model; none of them continues a result."""
        number = len(self.sessions) + 1
        if number > len(self._made) + 1:
            return None
        if number > 1:
            self.model = self._made[number - 2]
        return AttemptPosition(self.run, number, 1, b"")

    def _send_key_list(self, index: int) -> list[Send]:
        return self.abort(index, Step.ADVERTISE)


class WalksThere(AsksByModel):
    """Moves the model to the made one as fast as the bound on steps lets it, and then reads the sum.

    Powers: as :class:`AsksByModel`; and it knows how far each source's training moves the model, from the rounds that
    it leads. The test gives it what it cannot know here, for the strongest target.

    Args:
        seat: of the target.
        made: the model, float32 (m,).
        groups: sizes of the groups of layers.
        reach: called once for each round, with its model.
    """

    def __init__(self, seat: AggregatorSeat, *, made: Vector, groups: Sequence[int], reach: Reach) -> None:
        super().__init__(seat, made=made, at_round=seat.settings.strategy.rounds)
        self._groups, self._reach = tuple(groups), reach
        self._moved_after = 0

    def next_place(self) -> AttemptPosition | None:
        """Play rounds until a sum over the made model has come."""
        return None if self.arrived else super().next_place()

    @property
    def arrived(self) -> bool:
        """Return whether the last round was over the crafted model."""
        digest = sha256(vector_to_wire(self._made)).digest()
        return bool(self.sessions) and self.heard.header.model_digest == digest

    def result_for(self, index: int) -> Result | None:
        """Return a result that announces the next model on the way."""
        if self._moved_after < len(self.sessions):
            self._moved_after = len(self.sessions)
            self.model = one_step_towards(self._made, self.model, self._groups, self._reach(self.model))
        return MaliciousAggregator.result_for(self, index)

    def attack(self) -> Rows | None:
        """Return the sum over the crafted model; None if it was not reached."""
        opened = self.aggregate() if self.arrived else None
        return None if opened is None else opened.vector


def one_step_towards(made: Vector, model: Vector, groups: Sequence[int], most: Sequence[float]) -> Vector:
    """Return the model on the way from ``model`` to ``made``, float32 (m,), within the step limit of each group."""
    following, start = model.copy(), 0
    for size, length in zip(groups, most, strict=True):
        place = slice(start, start + size)
        way = made[place].astype(np.float64) - model[place]
        whole = float(np.linalg.norm(way))
        following[place] = made[place] if whole <= length else model[place] + 0.999 * length / whole * way
        start += size
    return following


def imprinting_model(inputs: int, units: int, *, mean: float, deviation: float) -> Vector:
    """A model that imprints rows: a linear layer of ``units`` units, ReLU, a linear layer to one output.

    All units measure the same, the mean of a row, and each is active above another quantile of it, so that the
    differences of neighbours hold the rows between two quantiles. What follows weights all units alike.

    Args:
        inputs: features of a row.
        units: of the first layer, K.
        mean, deviation: of the mean of a row, over rows; anybody who knows the kind of data knows these.

    Returns:
        float32 ``(K * inputs + K + K + 1,)``: weights (K, inputs), biases (K,), weights (1, K), bias (1,).
    """
    quantiles = [NormalDist(mean, deviation).inv_cdf((unit + 0.5) / units) for unit in range(units)]
    weights = np.full(units * inputs, 1 / inputs)
    return np.concatenate([weights, -np.array(quantiles), np.ones(units), [0.0]]).astype(np.float32)


def imprinted_rows(total: Rows, inputs: int, units: int) -> Rows:
    """Return the rows in a sum of updates of :func:`imprinting_model`, (K, inputs); the mean of rows that coincide.

    A unit whose neighbour has the same is left as NaN.
    """
    weights = total[: units * inputs].reshape(units, inputs)
    biases = total[units * inputs : units * (inputs + 1)]
    apart = np.concatenate([biases[:-1] - biases[1:], biases[-1:]])
    of_each = np.concatenate([weights[:-1] - weights[1:], weights[-1:]])
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Rows = of_each / apart[:, None]
    found[np.abs(apart) < 1e-7] = np.nan
    return found


def counting_model(inputs: int, units: int) -> Vector:
    """Return a model of the same layers that answers "no" to every row: the update of its last bias counts the
    labels.
    """
    return np.concatenate([np.zeros(units * (inputs + 2)), [-30.0]]).astype(np.float32)
