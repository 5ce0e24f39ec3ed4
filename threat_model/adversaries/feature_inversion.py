"""T42: a source reconstructs rows of the target from the features that it was sent."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from securefda.tasks import Task
from securefda.training import Vector, build_model, derive_seed, vector_to_model
from securefda.training.model_features import extract_features

Rows = NDArray[np.float64]


class InvertsFeatures:
    """Learns from its own rows to turn features back into rows, and applies this to those of the target.

    Powers: a source's rows, each model of the run, and the features that come with it; it knows how these are clipped
    and how much noise they have, as the target's settings may be known.
    Goal: the rows behind the features, near enough to tell which they are.
    Source: the principle of Dosovitskiy and Brox 2016 ("Inverting visual representations"), with a linear inverter.

    Args:
        task: of the run.
        model: of the round, float32 (m,).
        rows: its own, float32 (n, ...).
        seed: of the run.
    """

    threat = "T42"

    def __init__(self, task: Task, model: Vector, rows: NDArray[np.float32], seed: int) -> None:
        network = build_model(task, derive_seed(seed, "model"))
        vector_to_model(model, network)
        self._features = extract_features(task, network, torch.from_numpy(rows)).astype(np.float64)
        self._rows = rows.reshape(len(rows), -1).astype(np.float64)

    def rebuilt(self, features: Vector, *, clip: float, noise: float) -> Rows:
        """Estimate the rows behind features, (T, d), released with this clip and noise: (T, numbers of a row)."""
        own, width = self._features, self._features.shape[1]
        if clip:
            own = own * np.minimum(1.0, clip / np.linalg.norm(own, axis=1, keepdims=True))
        with_one = np.column_stack([own, np.ones(len(own))])
        # Noise in what is inverted acts as a ridge of its variance, once for each row that the inverter learns from.
        ridge = (1e-3 + len(own) * (noise * clip) ** 2) * np.eye(width + 1)
        inverter = np.linalg.solve(with_one.T @ with_one + ridge, with_one.T @ self._rows)
        rebuilt: Rows = np.column_stack([features.astype(np.float64), np.ones(len(features))]) @ inverter
        return rebuilt


def recognised(estimates: Rows, rows: NDArray[np.float32]) -> float:
    """Return the share of estimates, (T, numbers of a row), that are nearer to their own row than to any other of the
    T.
    """
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    distances = np.sum((estimates[:, None, :] - flat[None, :, :]) ** 2, axis=2)
    return float(np.mean(np.argmin(distances, axis=1) == np.arange(len(flat))))
