"""T20: an attacker with every seed and all rows but one subtracts the noise, or what layers draw, from an update."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from securefda.privacy.private_training import train_private
from securefda.tasks import Samples, Task
from securefda.training import NoiseSettings, TrainingSettings, Vector
from threat_model.private_sites import ABSENT

_FAR = 11.0
"""Two updates so many standard deviations of the noise apart are distinguished, with errors of at most 4e-8."""


def without_row(data: Samples, row: int) -> Samples:
    """Remove a row of a site; later rows move up and the last place is empty, since the number of rows is public."""
    order = [place for place in range(len(data)) if place != row] + [row]
    labels = data.labels[order].clone()
    labels[-1] = ABSENT
    return replace(data, features=data.features[order], labels=labels)


class KnowsTheSeed:
    """Trains as the site did, once with the row in question and once without, and compares.

    Where it predicts the noise, one of the two is the very update. Where it predicts what layers draw and not the
    noise, it trains with next to none: dropout draws by a row's place, so that without the row the gradients of all
    behind it are others, and the two updates are farther apart than noise for one row hides.

    Powers: the code, the settings, the run's seed, which every site of a federation knows, the model, all rows of
    the site but whether one of them is in, and the update. It seeds torch as the site's process was seeded. It has no
    part of the site's operating system's random bytes.
    Goal: whether the row is in, with certainty.
    Source: Opacus draws from torch's generator by default; Mironov 2012 for noise that can be subtracted.

    Args:
        task: of the site.
        data: the site's rows, with the one in question among them.
        row: its place.
        settings: of the site's training.
        seed: of the site in this round.
    """

    threat = "T20"

    def __init__(self, task: Task, data: Samples, row: int, settings: TrainingSettings, seed: int) -> None:
        self._task, self._data, self._row, self._settings, self._seed = task, data, row, settings, seed
        if settings.dp is None:
            raise ValueError("the site trains without noise")
        self._dp: NoiseSettings = settings.dp

    def attack(self, received: Vector, update: Vector) -> bool | None:
        """Tell whether the row is in the data: True or False if one of the two gives the update, else None."""
        for is_in in (True, False):
            if np.array_equal(self._trained(received, is_in, self._settings), update):
                return is_in
        return self._nearer(received, update)

    def noise(self, received: Vector, update: Vector) -> NDArray[np.float64]:
        """Return the update less the attacker's own update with the row in, (m,), in units of parameters."""
        return np.asarray(update, np.float64) - self._trained(received, True, self._settings)

    def _nearer(self, received: Vector, update: Vector) -> bool | None:
        """Return which of the two updates without noise is nearer, by the position between them; None far from both."""
        quiet = replace(self._settings, dp=replace(self._dp, noise_multiplier=1e-6))
        inside, outside = (self._trained(received, is_in, quiet).astype(np.float64) for is_in in (True, False))
        apart = inside - outside
        if np.linalg.norm(apart) < _FAR * self._std:
            return None
        place = 2 * float((update - (inside + outside) / 2) @ apart) / float(apart @ apart)  # 1 is in and -1 is out
        return place > 0 if abs(place) > 0.5 else None

    @property
    def _std(self) -> float:
        """The standard deviation of the noise in a parameter of the update."""
        settings, steps = self._settings, self._settings.epochs * (len(self._data) // self._settings.batch_size)
        step = settings.learning_rate * self._dp.noise_multiplier * self._dp.max_grad_norm / settings.batch_size
        return step * math.sqrt(steps)

    def _trained(self, received: Vector, is_in: bool, settings: TrainingSettings) -> Vector:
        data = self._data if is_in else without_row(self._data, self._row)
        torch.manual_seed(self._seed)
        return train_private(self._task, self._task.model(), received, data, settings=settings, site="site").update
