"""T20: whoever knows every seed and all rows but one takes the noise off an update."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from securefda.tasks import Samples
from securefda.training import TrainingSettings, Vector
from securefda.training.private import train_private
from threat_model.private_sites import ABSENT, Rows


class KnowsTheSeed:
    """Trains as the site did, once with the row in question and once without, and compares.

    Powers: the code, the settings, the run's seed, which every site of a federation is told, the model, all rows of
    the site but whether one of them is in, and the update. It seeds torch as the site's process was seeded. It has no
    part of the site's operating system's random bytes.
    Goal: whether the row is in, with certainty.
    Source: Opacus draws from torch's generator unless told otherwise; Mironov 2012 for noise that can be taken off.

    Args:
        data: the site's rows, with the one in question among them.
        row: its place.
        settings: of the site's training.
        seed: of the site in this round.
    """

    threat = "T20"

    def __init__(self, data: Samples, row: int, settings: TrainingSettings, seed: int) -> None:
        self._data, self._row, self._settings, self._seed = data, row, settings, seed

    def attack(self, received: Vector, update: Vector) -> bool | None:
        """Whether the row is in the data: True or False where one of the two gives the very update, else None."""
        for is_in in (True, False):
            if np.array_equal(self._trained(received, is_in), update):
                return is_in
        return None

    def noise(self, received: Vector, update: Vector) -> NDArray[np.float64]:
        """What the update has that the attacker's own, with the row in, does not: (m,), in units of parameters."""
        return np.asarray(update, np.float64) - self._trained(received, True)

    def _trained(self, received: Vector, is_in: bool) -> Vector:
        labels = self._data.labels.clone()
        labels[self._row] = labels[self._row] if is_in else ABSENT
        data = replace(self._data, labels=labels)
        task = Rows()
        torch.manual_seed(self._seed)
        return train_private(task, task.model(), received, data, settings=self._settings, site="site").update
