"""T17: an aggregator reads the coordinates of a sum to which only one source, or one row, contributes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64

_MOVED = 1e-9


class ReadsLoneCoordinates(MaliciousAggregator):
    """Follows the protocol, and reads the parts of the sum that belong to one row.

    Powers: what an honest aggregator sees at ``sum``. It knows the model, whose first layer has a weight for each
    feature and unit, and a bias; and which features one source alone has, such as the code of a disease that only one
    hospital treats. It controls no source.
    Goal: what that source made of such a feature, and with one row the row's class; rows that alone turn a unit on.
    Source: rows of an embedding: Zhu et al. 2019 (which rows of it moved tells the words); units: Phong et al. 2018,
    Boenisch et al. 2023 ("When the Curious Abandon Honesty"), here of a model that nobody made for it.
    """

    threat = "T17"

    def of_feature(self, feature: int) -> Vector64:
        """Return the sum at a feature's weights, (outputs,): weighted by rows, and of one source if only it has the
        feature.
        """
        return self._layer()[0][:, feature]

    def classes(self, features: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the class of the one row that has each feature, for a model that begins at zero."""
        return np.array([int(np.argmax(self.of_feature(int(feature)))) for feature in features])

    def images(self) -> Vector64:
        """Return the row behind each unit that moved, scaled to length one, (units, inputs).

        A unit's gradient is its error times the row, and its bias's is the error: one over the other is the row.
        """
        weights, bias = self._layer()
        moved = np.abs(bias) > _MOVED
        images = weights[moved] / bias[moved, None]
        scaled: Vector64 = images / np.linalg.norm(images, axis=1, keepdims=True)
        return scaled

    def _layer(self) -> tuple[Vector64, Vector64]:
        """Return weights (outputs, inputs) and bias (outputs,) of the first layer, of what was opened."""
        (_, shape), (_, (outputs,)) = self.seat.site.trainer.layers[:2]
        size = int(np.prod(shape))
        opened = self.opened()
        return opened[:size].reshape(shape), opened[size : size + outputs]

    def opened(self) -> Vector64:
        """Return the sum, (m,)."""
        opened: Any = self.aggregate()
        vector: Vector64 = opened.vector
        return vector


class ReadsLoneRows(ReadsLoneCoordinates):
    """Reads the same of one source's update, which it gets in clear.

    Powers: what an honest aggregator sees at ``individual`` of one source.
    Goal: rows that alone turn a unit of the first layer on.
    Source: as of :class:`ReadsLoneCoordinates`.
    """

    def opened(self) -> Vector64:
        """Return the update, (m,)."""
        (update,) = self.heard.clear.values()
        return update.astype(np.float64)
