"""Adam and SGD on one flat vector, by torch's own update rules.

The functions under ``torch.optim`` do the arithmetic. Its classes are not used: making the first one imports torch's
compiler, which costs a second and 80 MB in every process of a federation, and per-parameter state would undo the
flat layout.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from securefda.protocol.encoding import Vector64
from securefda.training.training_settings import TrainingSettings

ADAM_BETA1, ADAM_BETA2, ADAM_EPSILON = 0.9, 0.999, 1e-8

_BLOCK = 1 << 18
"""Elements updated at a time on a CPU, so that the two temporaries of the rules are small and stay in the cache."""


class Optimizer(Protocol):
    """Moves a vector against a gradient, both (m,) float32."""

    def step(self, values: Tensor, gradient: Tensor) -> None:
        """Update ``values`` in place; the content of ``gradient`` may be lost."""


class Adam:
    """Adam with bias correction (Kingma and Ba 2015, algorithm 1); holds two vectors (m,)."""

    def __init__(self, size: int, settings: TrainingSettings, device: torch.device) -> None:
        self._settings = settings
        self._mean = _blocks(torch.zeros(size, device=device))
        self._square = _blocks(torch.zeros(size, device=device))
        self._steps = [torch.tensor(0.0) for _ in self._mean]

    def step(self, values: Tensor, gradient: Tensor) -> None:
        """Update ``values`` in place."""
        adam(
            _blocks(values),
            _blocks(gradient),
            self._mean,
            self._square,
            [],
            self._steps,
            foreach=False,
            amsgrad=False,
            beta1=ADAM_BETA1,
            beta2=ADAM_BETA2,
            lr=self._settings.learning_rate,
            weight_decay=self._settings.weight_decay,
            eps=ADAM_EPSILON,
            maximize=False,
        )


class Sgd:
    """Gradient descent with optional heavy-ball momentum, which holds one vector (m,)."""

    def __init__(self, size: int, settings: TrainingSettings, device: torch.device) -> None:
        self._settings = settings
        self._velocity: list[Tensor | None] = [None for _ in _blocks(torch.empty(size, device=device))]

    def step(self, values: Tensor, gradient: Tensor) -> None:
        """Update ``values`` in place."""
        sgd(
            _blocks(values),
            _blocks(gradient),
            self._velocity,
            foreach=False,
            weight_decay=self._settings.weight_decay,
            momentum=self._settings.momentum,
            lr=self._settings.learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


def new_optimizer(size: int, settings: TrainingSettings, device: torch.device) -> Optimizer:
    """Return the optimizer that ``settings`` names, its state at zero."""
    kind = Adam if settings.optimizer == "adam" else Sgd
    return kind(size, settings, device)


def gradient_weights(settings: TrainingSettings, steps: int) -> Vector64:
    """Return the weight of each step's gradient in the mean of ``steps`` steps, up to the sign, float64 (steps,).

    With Adam, the weight is that of the gradient over its root mean square, which is assumed constant.
    """
    left = steps - np.arange(steps)  # number of steps from each step to the last
    if settings.optimizer == "sgd":
        gain = (1 - settings.momentum**left) / (1 - settings.momentum)
    else:
        kept = ADAM_BETA1 ** np.arange(steps)
        share = (1 - ADAM_BETA1) / (1 - ADAM_BETA1 ** (np.arange(steps) + 1))
        gain = np.array([float(np.dot(kept[:count], share[steps - count :])) for count in left])
    weights: Vector64 = settings.learning_rate * gain / steps
    return weights


def _blocks(vector: Tensor) -> list[Tensor]:
    """Return views of a vector in order: the whole vector on a GPU, pieces on a CPU."""
    return list(torch.split(vector, _BLOCK if vector.device.type == "cpu" else max(1, len(vector))))
