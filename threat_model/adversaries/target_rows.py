"""T21: a source reconstructs rows of the target from what the target sends it."""

from __future__ import annotations

from securefda.protocol.encoding import vector_from_wire
from securefda.protocol.messages import Header, Parcel
from securefda.source.source_run import SourceReporter, SourceSite
from securefda.training import Vector
from threat_model.adversaries.inversion import Row, inverted
from threat_model.adversaries.sources import ColludingSource


class InvertsTarget(ColludingSource):
    """Follows the protocol, keeps what it is sent, and inverts it.

    Powers: what every source gets: the models, and at ``sum`` the target's update. It talks to nobody.
    Goal: a row of the target and its class.
    Source: see :func:`threat_model.adversaries.inversion.inverted`.

    Args:
        site: its site.
        reporter: hears nothing of it.

    Attributes:
        models: what it was sent, one for each header.
        target_updates: likewise the target's updates.
    """

    threat = "T21"

    def __init__(self, site: SourceSite, reporter: SourceReporter) -> None:
        super().__init__(site, reporter)
        self.models: list[Vector] = []
        self.target_updates: list[Vector] = []

    def handle(self, parcel: Parcel) -> list[Parcel]:
        """Answer as an honest source; keep what came beside a header."""
        if isinstance(parcel.message.body, Header):
            vectors = [vector_from_wire(bytes(vector)) for vector in parcel.vectors]
            self.models += vectors[:1]
            self.target_updates += vectors[1:]
        return super().handle(parcel)

    def from_update(self) -> Row | None:
        """Return the row behind the target's first update; None if none was sent."""
        return inverted(self.target_updates[0]) if self.target_updates else None

    def from_models(self) -> Row | None:
        """Return the row behind the difference of the first two models, with the sources' updates as noise."""
        return inverted(self.models[1] - self.models[0]) if len(self.models) > 1 else None
