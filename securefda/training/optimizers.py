"""Adam and SGD on one flat vector.

torch.optim would do, but its first optimizer imports torch's compiler: a second and 80 MB in every process of a
federation. These few lines need neither, and no memory beyond the state. Tests compare them with torch.optim.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from securefda.training.settings import TrainingSettings

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


class Optimizer(Protocol):
    """Moves a vector against a gradient, both (m,) float32."""

    def step(self, values: Tensor, gradient: Tensor) -> None:
        """Update ``values`` in place. ``gradient`` serves as scratch space: its content is lost."""


class Adam:
    """Adam with bias correction (Kingma and Ba 2015, algorithm 1); holds two vectors (m,)."""

    def __init__(self, size: int, settings: TrainingSettings, device: torch.device) -> None:
        self._learning_rate = settings.learning_rate
        self._weight_decay = settings.weight_decay
        self._mean = torch.zeros(size, device=device)
        self._square = torch.zeros(size, device=device)
        self._steps = 0

    def step(self, values: Tensor, gradient: Tensor) -> None:
        """Update ``values`` in place, using ``gradient`` as scratch space."""
        self._steps += 1
        if self._weight_decay:
            gradient.add_(values, alpha=self._weight_decay)
        self._mean.lerp_(gradient, 1 - _BETA_1)
        self._square.mul_(_BETA_2).addcmul_(gradient, gradient, value=1 - _BETA_2)
        mean_correction = 1 - _BETA_1**self._steps
        square_correction = 1 - _BETA_2**self._steps
        divisor = torch.sqrt(self._square, out=gradient).div_(math.sqrt(square_correction)).add_(_EPSILON)
        values.addcdiv_(self._mean, divisor, value=-self._learning_rate / mean_correction)


class Sgd:
    """Gradient descent with optional heavy-ball momentum, which holds one vector (m,)."""

    def __init__(self, size: int, settings: TrainingSettings, device: torch.device) -> None:
        self._learning_rate = settings.learning_rate
        self._weight_decay = settings.weight_decay
        self._momentum = settings.momentum
        self._velocity = torch.zeros(size if self._momentum else 0, device=device)

    def step(self, values: Tensor, gradient: Tensor) -> None:
        """Update ``values`` in place, using ``gradient`` as scratch space."""
        if self._weight_decay:
            gradient.add_(values, alpha=self._weight_decay)
        if self._momentum:
            gradient = self._velocity.mul_(self._momentum).add_(gradient)
        values.add_(gradient, alpha=-self._learning_rate)


def new_optimizer(size: int, settings: TrainingSettings, device: torch.device) -> Optimizer:
    """Return the optimizer that ``settings`` names, its state at zero."""
    return Adam(size, settings, device) if settings.optimizer == "adam" else Sgd(size, settings, device)
