"""T01: an aggregator reconstructs rows from an update; T21 uses the same method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64
from threat_model.sites import INPUTS, OUTPUTS


@dataclass(frozen=True, slots=True)
class Row:
    """A reconstructed row: its features (inputs,), up to rounding, and its class."""

    features: Vector64
    label: int


def inverted(update: Any) -> Row:
    """Reconstruct the row behind an update (m,) of one linear layer that was trained on one row.

    The layer's gradient is d x^T and d for an input x: one divided by the other is the row, exactly. Every step raises
    the bias of the row's class, and lowers the others.

    Source: Phong et al. 2018, section 3 (a gradient of one row gives the row); Zhao et al. 2020 (labels from signs).
    """
    weights, bias = layers_of(update)
    label = int(np.argmax(bias))
    return Row(weights[label] / (bias[label] or 1.0), label)  # nothing moved where the bias did not


def layers_of(update: Any) -> tuple[Vector64, Vector64]:
    """Return weights (outputs, inputs) and bias (outputs,) of a vector (m,)."""
    flat = np.asarray(update, np.float64)
    return flat[: INPUTS * OUTPUTS].reshape(OUTPUTS, INPUTS), flat[INPUTS * OUTPUTS :]


class InvertsUpdates(MaliciousAggregator):
    """Follows the protocol and inverts the updates or sums that it gets.

    Powers: what an honest aggregator sees: at ``individual`` each update, at ``sum`` the aggregate. It knows the model
    and controls no source.
    Goal: a row of each source, and its class.
    """

    threat = "T01"

    def attack(self) -> dict[int, Row]:
        """Return the row behind each update that came in clear, by roster index."""
        return {index: inverted(update) for index, update in sorted(self.heard.clear.items())}

    def from_sum(self, label: int) -> Row:
        """Return the row of a class from the aggregate: the change of the class's weights over that of its bias.

        At the model of zeros each row lowers the other classes alike. A class that no row has shows what that was, and
        it can be taken off: what is left of a class is its own rows, each with its weight.
        """
        opened: Any = self.aggregate()
        weights, bias = layers_of(opened.vector)
        nobodys = int(np.argmin(bias))
        return Row((weights[label] - weights[nobodys]) / (bias[label] - bias[nobodys]), label)
