"""Which sources have cosigned the aggregator's newest checkpoint. Only these can take part in an attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from securefda.aggregator.settings import TargetSite
from securefda.audit.witness import MOST_SHOWN, CheckpointError
from securefda.errors import FaultySourceError
from securefda.protocol.checks import envelope_fault
from securefda.protocol.messages import NO_CONTEXT, NO_SESSION, Body, Checkpoint, Cosigned, Send, Signed


class CosignerTracker:
    """Asks the sources of one run to cosign the aggregator's log, and keeps which have, by roster index.

    Sources in ``cosigned`` have cosigned the checkpoint that is shown now and shown their own log. Those in ``faulty``
    have shown two histories, or signed what they should not; this process asks them nothing more.
    """

    def __init__(self, site: TargetSite) -> None:
        self._site, self._witness = site, site.witness
        self._have_shown: set[int] = set()
        self._asked: dict[int, int] = {}
        self._times_shown: Counter[int] = Counter()
        self._unanswered: Counter[int] = Counter()
        self.cosigned: set[int] = set()
        self.faulty: set[int] = set()

    def renew(self, present: Iterable[int]) -> list[Send]:
        """Make a checkpoint and ask these sources to cosign it. Raises AuditError."""
        self._witness.renew()
        self.cosigned.clear()
        self._have_shown.clear()
        self._times_shown.clear()
        asked = sorted(set(present) - self.faulty)
        self._unanswered.update(asked)
        return [self.ask(index) for index in asked]

    def ask(self, index: int) -> Send:
        """Show the newest checkpoint to a source. Raises AuditError."""
        self._asked[index] = self._witness.heard_of(index)
        return Send(index, self._witness.show(index))

    def ask_again(self, index: int) -> list[Send]:
        """Likewise, to one that came or came back, if it may be asked. Raises AuditError."""
        return [] if index in self.faulty else [self.ask(index)]

    def reported(self, index: int, known: int) -> None:
        """A new process of a source said how much of the aggregator's log it has cosigned."""
        self.cosigned.discard(index)
        self._have_shown.discard(index)
        self._times_shown.pop(index, None)
        self._witness.hear(index, known)

    def receive(self, message: Signed[Body]) -> list[Send]:
        """A source shows its checkpoint, or cosigns the aggregator's.

        Raises:
            FaultySourceError: no honest source sends this; nothing more is asked of it.
            AuditError, SecureFdaError: it cannot be written down.
        """
        index, body = message.sender, message.body
        if index not in self._site.sources or index in self.faulty:
            return []
        fault = envelope_fault(
            message, roster=self._site.roster, sender=index, session_id=NO_SESSION, context=NO_CONTEXT
        )
        try:
            if fault:
                raise CheckpointError(fault, message.type_name)
            return self._answer(index, body)
        except CheckpointError as error:
            self.faulty.add(index)
            self.cosigned.discard(index)
            raise FaultySourceError(self._site.name(index), error.check, error.detail) from error

    def _answer(self, index: int, body: Body) -> list[Send]:
        if isinstance(body, Checkpoint):
            if self._unanswered[index]:  # one that was busy for some rounds answers all that it was asked meanwhile
                self._unanswered[index] -= 1
            else:
                self._times_shown[index] += 1
            if self._times_shown[index] > MOST_SHOWN:
                raise CheckpointError("CHECKPOINT_AGAIN", f"its log, more than {MOST_SHOWN} times in a row")
            answer = self._witness.cosign(index, body)
            # It could not cosign the newest one: a proof from what it knows was not there when that was sent.
            unheard = body.known != self._witness.size and body.known != self._asked.get(index)
            again = [self.ask(index)] if unheard else []
            if answer is None:
                return again
            self._have_shown.add(index)
            return [Send(index, answer), *again]
        if isinstance(body, Cosigned) and self._witness.take(index, body):
            if index not in self._have_shown:
                raise CheckpointError("CHECKPOINT_MISSING", "it cosigns without showing its own log")
            self.cosigned.add(index)
        return []
