"""T27: a site that shows two histories of its log, or an older one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from securefda.aggregator.attendance import CosignerTracker
from securefda.aggregator.site import TargetSite
from securefda.audit import signed_notes
from securefda.audit.journal import RunInfo
from securefda.audit.signed_notes import witness_name
from securefda.audit.witness import Witness
from securefda.protocol.messages import NO_CONTEXT, NO_SESSION, Body, Checkpoint, Cosigned, Header, Parcel, Send, Signed
from securefda.source.source_run import SourceReporter, SourceSite
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.sources import MaliciousSource
from threat_model.sites import TARGET, AggregatorSeat, witness_at

Way = Literal["longer", "as long", "shorter", "unheard", "old", "bare"]


def another_history(site: TargetSite | SourceSite, hidden: Path, run: str, records: int) -> Witness:
    """Make a second log of the same run under the same key, with the given number of records, all different."""
    other = witness_at(hidden, site.signer.index, site.roster, site.witness._memory)
    other.journal._info = RunInfo("2", "task", "rule")
    other.enter(run)
    for _ in range(records - 1):
        other.journal.event("alarm", check="INVENTED", accused=[])
    other._note = other.journal.checkpoint()
    return other


class SplitsLog(MaliciousAggregator):
    """Shows some sources one history of its log, and the others another, from the first checkpoint on.

    Powers: the target's key and the relay; ``colluders`` cosign whatever it shows them.
    Goal: a round, with two groups of sources that each can later be shown a log which fits what they saw.
    Source: equivocation by a transparency log (RFC 6962, section 7.3); witnesses against it, C2SP tlog-witness.

    Args:
        seat: of the target.
        second: the sources that are shown the second history.
        hidden: folder for it.
        header: whether each source's header carries the history that it was shown, its ``"own"``, or all carry the
            ``"first"``.
    """

    threat = "T27"

    def __init__(
        self, seat: AggregatorSeat, *, second: frozenset[int], hidden: Path, header: Literal["own", "first"] = "own"
    ) -> None:
        super().__init__(seat)
        self.second, self._header = second, header
        self._other = another_history(seat.site, hidden, self.run_id, 3)
        self._others = CosignerTracker(replace(seat.site, witness=self._other))

    def close(self) -> None:
        """Close the second history."""
        self._other.journal.close()

    def witnesses_of(self, index: int) -> CosignerTracker:
        """Return the cosigners of the history that the source is shown."""
        return self._others if index in self.second else self.witnesses

    def ready(self) -> bool:
        """Return whether every source has cosigned one of them."""
        cosigned = self.witnesses.cosigned | self._others.cosigned
        return not self.sessions and set(self.joined) == self.seat.site.sources == cosigned

    def header_for(self, index: int) -> Header | None:
        """Return a header with the log that this source knows, cosigned by its group and by all colluders."""
        header = super().header_for(index)
        shown = self._other if index in self.second and self._header == "own" else self.witness
        return header and replace(header, previous_checkpoint=self._by_colluders(shown).note)

    def _by_colluders(self, shown: Witness) -> Witness:
        for index, colluder in self.colluders.items():
            name = witness_name(self.roster.federation_id, self.roster.by_index(index).site_id)
            line = signed_notes.cosign(signed_notes.Note.parse(shown.note).text, name, colluder.signer.private_key, 1)
            shown.take(index, Cosigned(shown.size, line.to_line()))
        return shown


class ForksLater(MaliciousAggregator):
    """Has its log cosigned, plays a round, and goes on with another history of that round.

    Powers: the target's key and the relay.
    Goal: that what its log says of the first round cannot be used as evidence: the sources cosigned another log.
    Source: as :class:`SplitsLog`.

    Args:
        seat: of the target.
        hidden: folder for the other history.
        way: the other history is ``"longer"`` than what was cosigned, ``"as long"`` or ``"shorter"``; or it is longer,
            and the target says that it has not heard of any cosignature (``"unheard"``). Else there is one history, and
            the header carries the ``"old"`` checkpoint in place of the newest, or the newest ``"bare"``, with one
            cosignature.
    """

    threat = "T27"

    def __init__(self, seat: AggregatorSeat, *, hidden: Path, way: Way) -> None:
        super().__init__(seat)
        self._hidden, self.way = hidden, way
        self._goes_on, self._old_note = False, b""

    def _begin(self) -> list[Send]:
        """Show all sources the present log before the second round."""
        rounds = self.seat.settings.strategy.rounds
        return self.go_on() if len(self.sessions) == 1 < rounds and not self._goes_on else super()._begin()

    def go_on(self) -> list[Send]:
        """Show all sources the other log from now on, or the next state of the one."""
        known, self._old_note, self._goes_on = self.witness.size, self.witness.note, True
        if self.way in {"old", "bare"}:
            return self.witnesses.renew(self.joined)
        self.witness = self._other_log()
        self.witnesses = CosignerTracker(replace(self.seat.site, witness=self.witness))
        for index in self.joined:
            self.witnesses.note_known(index, 0 if self.way == "unheard" else min(known, self.witness.size))
        return [self.witnesses.ask(index) for index in sorted(self.joined)]

    def _witnessed(self, message: Signed[Body]) -> list[Send]:
        """Answer as usual, but with ``unheard`` do not show the log again to sources that report a newer checkpoint."""
        sends = super()._witnessed(message)
        deaf = self._goes_on and self.way == "unheard"
        return [send for send in sends if not (deaf and isinstance(send.parcel.message.body, Checkpoint))]

    def close(self) -> None:
        """Close the log that was shown last."""
        self.witness.journal.close()

    def _other_log(self) -> Witness:
        size = self.witness.size + {"longer": 5, "unheard": 5, "as long": 0, "shorter": -1}[self.way]
        return another_history(self.seat.site, self._hidden, self.run_id, size)

    def ready(self) -> bool:
        """Return whether the second round may begin, too: when all sources have cosigned again."""
        again = len(self.sessions) == 1 and self._goes_on
        return super().ready() or (again and self.witnesses.cosigned == self.seat.site.sources)

    def expire(self) -> list[Send]:
        """Send the header although no source cosigns."""
        waits = len(self.sessions) == 1 and self._goes_on and not self._waits_for
        return self._begin() if waits else super().expire()

    def header_for(self, index: int) -> Header | None:
        """Return a header with the old checkpoint, or with one cosignature, as ``way`` says."""
        header = super().header_for(index)
        if header is None or len(self.sessions) == 1 or self.way not in {"old", "bare"}:
            return header
        note = signed_notes.Note.parse(self.witness.note)
        bare = replace(note, signatures=note.signatures[:2]).to_bytes()
        return replace(header, previous_checkpoint=self._old_note if self.way == "old" else bare)


class TwoFacedSource(MaliciousSource):
    """Follows the protocol, but shows the target another history of its log after the first checkpoint.

    Powers: its own key and files.
    Goal: a log that says something else of what left the site, with the target's cosignature.
    Source: as :class:`SplitsLog`.

    Args:
        site: its site.
        reporter: hears nothing of it.
        hidden: folder for the other history.
        longer: whether that is longer than what the target has cosigned, or shorter.
    """

    threat = "T27"

    def __init__(self, site: SourceSite, reporter: SourceReporter, *, hidden: Path, longer: bool) -> None:
        super().__init__(site, reporter)
        self._hidden, self._longer, self._shown = hidden, longer, 0

    def answers(self, parcel: Parcel, honest: list[Parcel]) -> list[Parcel]:  # noqa: ARG002 - of the base
        """Show another log in place of its own, the second time."""
        return [self._other(one) if isinstance(one.message.body, Checkpoint) else one for one in honest]

    def _other(self, honest: Parcel) -> Parcel:
        self._shown += 1
        if self._shown != 2:
            return honest
        body: Checkpoint = honest.message.body  # type: ignore[assignment]  # the caller has looked
        site = self._site
        size = body.old_size + (5 if self._longer else -1)
        other = another_history(site, self._hidden, site.witness.journal.run, size)
        other.hear(TARGET, min(body.old_size, size))
        shown: Checkpoint = other.show(TARGET).message.body  # type: ignore[assignment]
        forged = replace(shown, known=body.known)
        other.journal.close()
        return Parcel(site.signer.sign(NO_SESSION, NO_CONTEXT, forged))
