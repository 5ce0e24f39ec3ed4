"""T21: a source rebuilds rows of the target from what the target sends it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefda.rounds.site import vector_from_wire
from securefda.rounds.source import SourceReporter, SourceSite
from securefda.secagg.messages import Header, Parcel
from securefda.training import Vector
from threat_model.adversaries.masks import Vector64
from threat_model.adversaries.sources import ColludingSource


@dataclass(frozen=True, slots=True)
class Row:
    """A rebuilt row: its features (inputs,), up to rounding, and its class."""

    features: Vector64
    label: int


class InvertsTarget(ColludingSource):
    """Follows the protocol, keeps what it is sent, and inverts it.

    A layer that is linear in its input, with a bias, has the gradient x d^T and d for an input x: one divided by the
    other is the row, exactly, where a step was made on one row. The bias falls nowhere but at the row's class.

    Powers: what every source gets: the models, and at ``sum`` the target's update. It talks to nobody.
    Goal: a row of the target and its class.
    Source: Phong et al. 2018, section 3 (a gradient of one row gives the row); Zhao et al. 2020 (labels from signs).

    Args:
        site: its site.
        reporter: hears nothing of it.
        inputs: features of a row.
        outputs: classes; the model is one linear layer of this shape and its bias.

    Attributes:
        models: what it was sent, one for each header.
        target_updates: likewise the target's updates.
    """

    threat = "T21"

    def __init__(self, site: SourceSite, reporter: SourceReporter, *, inputs: int, outputs: int) -> None:
        super().__init__(site, reporter)
        self._shape = inputs, outputs
        self.models: list[Vector] = []
        self.target_updates: list[Vector] = []

    def handle(self, parcel: Parcel) -> list[Parcel]:
        """As an honest source; what came beside a header is kept."""
        if isinstance(parcel.message.body, Header):
            vectors = [vector_from_wire(bytes(vector)) for vector in parcel.vectors]
            self.models += vectors[:1]
            self.target_updates += vectors[1:]
        return super().handle(parcel)

    def from_update(self) -> Row | None:
        """The row behind the target's first update; None where none was sent."""
        return self._inverted(self.target_updates[0]) if self.target_updates else None

    def from_models(self) -> Row | None:
        """The row behind the difference of the first two models, with what the sources added to it as noise."""
        return self._inverted(self.models[1] - self.models[0]) if len(self.models) > 1 else None

    def _inverted(self, update: Vector) -> Row:
        inputs, outputs = self._shape
        weights = update[: inputs * outputs].reshape(inputs, outputs).astype(np.float64)
        bias = update[inputs * outputs :].astype(np.float64)
        label = int(np.argmax(bias))  # a step lowers every class but the row's own
        return Row(weights[:, label] / bias[label], label)
