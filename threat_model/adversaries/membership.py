"""T02, T03: an aggregator tells from an update, or from a sum of updates, which rows were trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefda.training import Vector
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.private_sites import Candidates
from threat_model.sites import INPUTS, OUTPUTS

Vector64 = NDArray[np.float64]


class TellsMembers(MaliciousAggregator):
    """Follows the protocol, and scores rows that it knows by what it has learnt of the victim's update.

    Powers: what an honest aggregator sees: at ``individual`` the update, at ``sum`` the aggregate. It knows each
    candidate row, its class and the model, and not whether the row is in the data. It controls no source.
    Goal: higher scores for members than for others.
    Source: loss: Yeom et al. 2018. Matched filter: Ngo et al. 2024 (secure aggregation is not private), Dwork et al.
    2015 (tracing by inner products).
    """

    threat = "T02, T03"

    def losses(self, victim: int, candidates: Candidates) -> Vector64:
        """Return minus the loss of each candidate (n,) under the victim's local model, which is at ``individual``."""
        return -losses_under(self.model_for(victim) + self.heard.clear[victim], candidates)

    def matches(self, candidates: Candidates) -> Vector64:
        """Return how well the aggregate fits each candidate, (n,), by a matched filter."""
        opened: Any = self.aggregate()
        return matched(opened.vector, candidates)


def matched(update: Vector | Vector64, candidates: Candidates) -> Vector64:
    """Return the inner product of an update (m,) with the step that each candidate's row alone would make, (n,)."""
    scores: Vector64 = -gradients_of(candidates) @ np.asarray(update, np.float64)
    return scores


def gradients_of(candidates: Candidates) -> Vector64:
    """Return the gradient of each candidate's loss at the model of zeros, (n, m); 0 at biases, equal within a class."""
    wrong = np.full((len(candidates.labels), OUTPUTS), 1 / OUTPUTS) - np.eye(OUTPUTS)[candidates.labels]
    weights = np.einsum("no,ni->noi", wrong, candidates.features).reshape(len(wrong), -1)
    return np.concatenate([weights, np.zeros_like(wrong)], axis=1)


def losses_under(model: Vector, candidates: Candidates) -> Vector64:
    """Return the loss of each candidate under a model, (n,)."""
    weights, bias = model[: INPUTS * OUTPUTS].reshape(OUTPUTS, INPUTS), model[INPUTS * OUTPUTS :]
    scores = np.asarray(candidates.features @ weights.T + bias, np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(scores).sum(axis=1))
    losses: Vector64 = log_sum - scores[np.arange(len(scores)), candidates.labels]
    return losses
