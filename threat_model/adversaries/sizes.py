"""T18: lengths of messages, and what an observer can infer from them alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from securefda.protocol.messages import MaskedInput, Parcel
from securefda.source.source_run import SourceRun
from securefda.transport import wire
from securefda.transport.in_memory import Passed
from threat_model.sites import TARGET

Sizes = dict[tuple[int, str], tuple[int, ...]]
"""(roster index of a source, type of message) to the length in bytes of each such message that it sent, in order."""


@dataclass
class WatchesSizes:
    """Listens on the wire and infers from the lengths of a site's messages how many rows it trains on.

    Powers: sees who sends how many bytes, under TLS, and no content; runs a federation of its own beforehand, with the
    same model and row counts that it chooses, for comparison. Stands in the place of the stage's network.
    Goal: the row count of every source.
    Source: traffic analysis; metrics that grow with the data are what federated learning systems commonly report.

    Attributes:
        sizes: what was seen.
    """

    sizes: Sizes = field(default_factory=dict)

    threat = "T18"

    def __call__(self, passed: Passed) -> list[Passed]:
        """Record what a source sends, and pass it on."""
        if passed.sender != TARGET:
            length = len(wire.encode_signed(passed.message)) + sum(len(vector) for vector in passed.vectors)
            place = passed.sender, passed.message.type_name
            self.sizes[place] = (*self.sizes.get(place, ()), length)
        return [passed]

    def totals(self) -> Counter[int]:
        """Return the bytes that each source sent."""
        sent: Counter[int] = Counter()
        for (sender, _), lengths in self.sizes.items():
            sent[sender] += sum(lengths)
        return sent

    def attack(self, own: WatchesSizes, own_rows: Mapping[int, int]) -> dict[int, int]:
        """Return the row count of every source, by a straight line through the attacker's own; empty if that is level.

        Args:
            own: what it saw of its own federation.
            own_rows: the row counts there, by roster index; the smallest and the largest are used.
        """
        low, high = min(own_rows, key=own_rows.__getitem__), max(own_rows, key=own_rows.__getitem__)
        level, rise = own.totals()[low], own.totals()[high] - own.totals()[low]
        if rise == 0:
            return {}
        rows_per_byte = (own_rows[high] - own_rows[low]) / rise
        return {index: round(own_rows[low] + (sent - level) * rows_per_byte) for index, sent in self.totals().items()}


class ReportsMetrics(SourceRun):
    """No attacker, but the victim of the control: a source that sends the loss of every row along with its input."""

    def handle(self, parcel: Parcel) -> list[Parcel]:
        """Answer as the real source, with metrics beside the masked vector."""
        answers = super().handle(parcel)
        return [self._with_metrics(one) if isinstance(one.message.body, MaskedInput) else one for one in answers]

    def _with_metrics(self, parcel: Parcel) -> Parcel:
        rows = self._round.record["samples"] if self._round is not None else 0
        metrics = json.dumps({"loss": ["0.6931"] * rows}).encode()
        return Parcel(parcel.message, (*parcel.vectors, metrics))
