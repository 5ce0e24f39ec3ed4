"""T38: a question in each of many runs, none of which goes on after its answer."""

from __future__ import annotations

from collections.abc import Mapping

from securefda.aggregator.headers import AttemptPosition
from securefda.protocol import agreement
from securefda.protocol.agreement import BoxAddress
from securefda.protocol.messages import RUN_ID_BYTES, Join, Parcel, Send, ShareDelivery
from securefda.protocol.secret import draw
from securefda.protocol.session_checks import report_bytes
from securefda.protocol.share_boxes import boxes_of
from threat_model.adversaries.asks_by_coordinate import AsksByCoordinate
from threat_model.adversaries.heard import Heard
from threat_model.sites import AggregatorSeat


class AsksInManyRuns(AsksByCoordinate):
    """Asks each question in a run of its own, and goes no further than the boxes of R1.

    No masked input leaves, no fuse is burnt, no run has a second round. One source of its own opens the norm
    reports that are sealed to it.
    """

    threat = "T38"

    def delivery_for(self, index: int) -> ShareDelivery | None:  # noqa: ARG002 - of the base
        """Return None: it has its answer."""
        return None

    def codes_in(self, session: Heard) -> Mapping[int, bytes]:
        """Return the contents of the boxes for the colluding source, opened with its key of the session."""
        ((colluder, source),) = self.colluders.items()
        box_private, length, found = source.secrets_of(session.session_id).box_private, report_bytes(session.header), {}
        if box_private is None:
            return {}
        for sender, bundle in session.bundles.items():
            for box in bundle.body.boxes:
                if box.peer != colluder:
                    continue
                view = session.views[sender]
                committed = bundle.body.report_commitment
                address = BoxAddress(view.ctx1, sender, colluder, report_commitment=committed)
                boxes = boxes_of(session.header, box_private)
                report = boxes.open(address, view.keys[sender].box_key, box.box, length).report
                found[sender] = report.reveal()[agreement.REPORT_OPENING_BYTES :] if report else b""
        return found


class RunAfterRun(AsksInManyRuns):
    """Hangs up after each question, and begins another run.

    Powers: the target's key, what a target publishes, to begin runs as it likes, and all that one colluding source is
    sent.
    Goal: the updates of all other sources in one layer.
    Source: our own; that a server's questions, and not its view of the sums, break secure aggregation is known from
    models made for it (Boenisch et al. 2023; Fowl et al. 2022, "Robbing the Fed").

    Args:
        seat: of the target.
        layer: which one, in the order of the model.
    """

    def __init__(self, seat: AggregatorSeat, *, layer: int) -> None:
        super().__init__(seat, layer=layer)
        self._missing: set[int] = set()

    def next_place(self) -> AttemptPosition | None:
        """Return round 1, of another run each time; it begins when the sources have joined it."""
        if len(self.sessions) == self.questions:
            return None
        if self.sessions and self.heard.header.run_id == self.run:
            self.run = draw(self.seat.site.random_bytes, RUN_ID_BYTES)
            self.witness.enter(self.run_id)
            self.witness.renew()
            self._missing = set(self.seat.site.sources)
            self.instance += 1
        return None if self._missing else AttemptPosition(self.run, 1, 1, b"")

    def ready(self) -> bool:
        """Return whether a further run may begin, too: when the last source is back and all have cosigned its log."""
        if not self.sessions:
            return super().ready()
        is_asked = self.heard.header.run_id == self.run
        return not is_asked and not self._missing and self.witnesses.cosigned == self.seat.site.sources

    def receive(self, parcel: Parcel) -> list[Send]:
        """Receive as usual; a source that joins is back."""
        if isinstance(parcel.message.body, Join):
            self._missing.discard(parcel.message.sender)
        return super().receive(parcel)


class RenamesRun(AsksInManyRuns):
    """Names another run in each header, and keeps the connection of the first.

    Powers, goal and source: as :class:`RunAfterRun`.
    """

    def next_place(self) -> AttemptPosition | None:
        """Return round 1, of another run each time."""
        run = draw(self.seat.site.random_bytes, RUN_ID_BYTES) if self.sessions else self.run
        return AttemptPosition(run, 1, 1, b"") if len(self.sessions) < self.questions else None
