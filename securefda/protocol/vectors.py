"""Vectors of a model's length, float32 in memory and little-endian on the wire, and what a round of training gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True, repr=False)
class LocalResult:
    """What a round of training at a site gave.

    Attributes:
        update: local model minus received model, (m,) float32, finite.
        steps: number of optimizer steps taken.
        samples: number of rows trained on (n of the rules), counted once whatever the epochs.
        loss: mean loss per row over the round; None with DP-SGD, where nothing is made of rows but noisy gradients.
        accuracy: over the rows of the last epoch, each as the model stood before the step that used it; in [0, 1].
            None with DP-SGD.
        learning_rate: the effective one.
        epsilon: spent of the data set's privacy with this round, all rounds before it included; None without DP-SGD.
    """

    update: Vector
    steps: int
    samples: int
    loss: float | None
    accuracy: float | None
    learning_rate: float
    epsilon: float | None = None

    def __repr__(self) -> str:
        # The update is what the protocol hides; it must not reach a log by way of a traceback.
        return f"LocalResult(update=<{len(self.update)} values>, steps={self.steps}, samples={self.samples})"


def vector_from_wire(data: bytes | bytearray | memoryview) -> Vector:
    """A received vector as a float32 array, without a copy; wire vectors are little-endian."""
    return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)


def vector_to_wire(vector: Vector) -> memoryview:
    """The bytes of a float32 vector as they travel, without a copy where the machine is little-endian."""
    return np.ascontiguousarray(vector, dtype="<f4").data.cast("B")
