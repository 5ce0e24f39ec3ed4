"""Optimisers of the aggregator: the round's update as a gradient that points the other way (Reddi et al. 2021).

They know nothing but the rounds' updates, which everybody can tell from the models, so they change nothing in what
travels or in who sees what.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

import numpy as np
import numpy.typing as npt

from securefda.rules import checks
from securefda.rules.blocks import Vector


class ServerOptimizer(StrEnum):
    """How the aggregator moves the model by the mean of a round."""

    NONE = "none"
    """By the mean itself."""

    MOMENTUM = "momentum"
    """By a heavy ball: FedAvgM (Hsu et al. 2019)."""

    ADAM = "adam"
    """By Adam (Kingma and Ba 2015) with its bias correction. FedAdam (Reddi et al. 2021, algorithm 2) has none."""


USUAL_RATES = {ServerOptimizer.MOMENTUM: 1.0, ServerOptimizer.ADAM: 0.01}
_VECTORS = {ServerOptimizer.MOMENTUM: 1, ServerOptimizer.ADAM: 2}
_CODES = {ServerOptimizer.MOMENTUM: 1, ServerOptimizer.ADAM: 2}
_HEAD = struct.Struct("<BQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """An optimiser, momentum or adam, with its numbers: `Strategy` has their defaults, bounds and meanings."""

    optimizer: ServerOptimizer
    learning_rate: float
    momentum: float
    second_momentum: float
    epsilon: float


@dataclass(frozen=True, slots=True, eq=False)
class ServerState:
    """The state of an optimiser between rounds.

    Attributes:
        optimizer: whose state it is.
        steps: rounds so far, at least 1.
        vectors: float64 ``(n_params,)`` each: of momentum the velocity; of adam the means of update and of its square.
    """

    optimizer: ServerOptimizer
    steps: int
    vectors: tuple[Vector, ...] = field(repr=False)

    def to_bytes(self) -> bytes:
        """The state as a site stores it."""
        return _HEAD.pack(_CODES[self.optimizer], self.steps) + b"".join(
            vector.astype("<f8").tobytes() for vector in self.vectors
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the output of :meth:`to_bytes`, exact to the last bit.

        Raises:
            ValueError: ``data`` are not a state.
        """
        code, steps = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (0, 0)
        optimizer = next((one for one, number in _CODES.items() if number == code), None)
        body = np.frombuffer(data[_HEAD.size :], dtype=np.uint8)
        if optimizer is None or steps < 1 or not body.size or body.size % (8 * _VECTORS[optimizer]):
            raise ValueError("data: hold no state of a server optimiser")
        values = body.view("<f8").astype(np.float64)
        return cls(optimizer, steps, tuple(np.split(values, _VECTORS[optimizer])))


def server_step(plan: ServerPlan, state: ServerState | None, update: npt.ArrayLike) -> tuple[Vector, ServerState]:
    """Take one step by the update of a round.

    With g = -update, momentum does ``b = momentum b + g``, ``h <- h - learning_rate b``; adam is algorithm 1 of Kingma
    and Ba.

    Args:
        plan: the optimiser.
        state: after the last round; None, or that of another optimiser, starts afresh.
        update: the mean of the round, ``(n_params,)``.

    Returns:
        What to add to the model, float64 ``(n_params,)``, and the state after it; nothing given is changed.

    Raises:
        ValueError: ``update`` is not a finite vector, or has another length than the state.
    """
    moved = checks.vector("update", update).astype(np.float64)
    if state is None or state.optimizer is not plan.optimizer:
        state = ServerState(plan.optimizer, 0, (np.zeros(moved.size),) * _VECTORS[plan.optimizer])
    if state.vectors[0].size != moved.size:
        raise ValueError(f"update: must have {state.vectors[0].size} elements, has {moved.size}")
    steps = state.steps + 1
    if plan.optimizer is ServerOptimizer.MOMENTUM:
        velocity = plan.momentum * state.vectors[0] + moved
        return plan.learning_rate * velocity, ServerState(plan.optimizer, steps, (velocity,))
    mean = plan.momentum * state.vectors[0] + (1 - plan.momentum) * moved
    square = plan.second_momentum * state.vectors[1] + (1 - plan.second_momentum) * moved**2
    divisor = np.sqrt(square / (1 - plan.second_momentum**steps)) + plan.epsilon
    step = plan.learning_rate / (1 - plan.momentum**steps) * mean / divisor
    return step, ServerState(plan.optimizer, steps, (mean, square))
