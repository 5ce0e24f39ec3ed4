"""T37: a question in each round of a run, and the answer in the norm reports that the target relays."""

from __future__ import annotations

from collections.abc import Mapping

from threat_model.adversaries.asks_by_coordinate import AsksByCoordinate
from threat_model.adversaries.heard import Heard


class ReadsRelayedReports(AsksByCoordinate):
    """Goes through a run of as many rounds as it has questions, finishes every one, and reads the boxes it relays.

    Powers: the target's key, what a target publishes, and every box that passes through it; no key of a source.
    Goal: the updates of all sources in one layer.
    Source: our own.
    """

    threat = "T37"

    def codes_in(self, session: Heard) -> Mapping[int, bytes]:
        """Return the end of a box, where its norm report would be if it were not sealed."""
        length = session.header.norm_report_length
        return {sender: bundle.body.boxes[0].box[-length:] for sender, bundle in session.bundles.items()}
