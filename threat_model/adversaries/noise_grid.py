"""T20: an attacker who knows how floating-point noise is made checks whether the rest of an update can be such
noise.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from securefda.privacy.private_training import train_private
from securefda.tasks import Samples, Task
from securefda.training import NoiseSettings, TrainingSettings, Vector
from threat_model.adversaries.known_seed import without_row

_BLOCK = 16
"""torch makes so many normals at a time: the first half from radius and cosine, the second from the same and sine."""

_STEPS = 1 << 24
"""torch makes radii from uniform numbers that are multiples of one over this."""

_LONGEST = 1 << 16
"""Radii of the smallest multiples are far enough from each other that float32 tells them apart."""

_ON_THE_GRID = 0.125
"""Bound on the mean distance from a multiple: of 2^15 weights it is 0.07 for torch's noise and 0.25 for any other, each
more than five standard deviations away."""


class ReadsTheGrid:
    """Takes a row's gradient off an update, or not, and looks whether the rest is a noise that torch can make.

    torch's normals are made by Box and Muller's transform from uniform numbers of 24 bits. A pair of them has a radius,
    and the radius a uniform number, which is a multiple of 2^-24: where it is not, the rest still holds a gradient.

    Powers: the code, the settings, the model, all rows of the site but whether one of them is in, and the update of one
    step. It knows no seed.
    Goal: whether the row is in, with certainty.
    Source: Mironov, On significance of the least significant bits for differential privacy, CCS 2012; Jin, McMurtry,
    Rubinstein and Ohrimenko, Are we there yet? Timing and floating-point attacks on differential privacy, S&P 2022.

    Args:
        task: of the site. Its first layer has a multiple of 16 weights, the more the better.
        data: the site's rows, with the one in question among them.
        row: its place.
        settings: of the site's training: one step over all rows.
        weights: number of weights in the first layer.
    """

    threat = "T20"

    def __init__(self, task: Task, data: Samples, row: int, settings: TrainingSettings, weights: int) -> None:
        self._task, self._data, self._row, self._settings, self._weights = task, data, row, settings, weights
        if settings.dp is None or weights % _BLOCK:
            raise ValueError("there is no noise to look at")
        self._dp: NoiseSettings = settings.dp

    def attack(self, received: Vector, update: Vector) -> bool | None:
        """Tell whether the row is in the data: True or False if one of the two leaves torch's noise, else None."""
        fits = [is_in for is_in in (True, False) if self.distance(received, update, is_in) < _ON_THE_GRID]
        return fits[0] if len(fits) == 1 else None

    def distance(self, received: Vector, update: Vector, is_in: bool) -> float:
        """Return the mean distance of the remaining radii from those that torch makes: 0 to 0.5, in steps."""
        pairs = self._left(received, update, is_in).reshape(-1, 2, _BLOCK // 2)
        multiples = _STEPS * np.exp(-np.square(pairs).sum(axis=1) / 2).ravel()
        multiples = multiples[multiples < _LONGEST]
        return float(np.abs(multiples - np.round(multiples)).mean())

    def _left(self, received: Vector, update: Vector, is_in: bool) -> NDArray[np.float64]:
        """Return the noise in the first layer's weights, in standard deviations, assuming that the row is in or
        is not.
        """
        data = self._data if is_in else without_row(self._data, self._row)
        quiet = replace(self._settings, dp=replace(self._dp, noise_multiplier=1e-6))
        gradient = train_private(self._task, self._task.model(), received, data, settings=quiet, site="site").update
        std = self._settings.learning_rate * self._dp.noise_multiplier * self._dp.max_grad_norm / len(data)
        return ((gradient.astype(np.float64) - update) / std)[: self._weights]
