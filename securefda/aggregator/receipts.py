"""The last result of a run and the sources' receipts for it, for sources that missed that result."""

from __future__ import annotations

from collections.abc import Iterable

from securefda.aggregator.site import TargetSite
from securefda.aggregator.store import AggregatorStore, KeptResult
from securefda.errors import FaultySourceError
from securefda.protocol.envelope_checks import envelope_fault
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    Body,
    Envelope,
    MissedResult,
    Parcel,
    Receipt,
    Result,
    Send,
    Signed,
)


class Receipts:
    """The last result of a run and the receipts for it, kept in the store so that they survive a restart."""

    def __init__(self, site: TargetSite, store: AggregatorStore, run_id: bytes) -> None:
        self._site, self._store, self._run_id = site, store, run_id
        self._last: KeptResult | None = None
        self._given: dict[int, Signed[Receipt]] = {}

    def restore(self) -> None:
        """Load the last result and its receipts from the store."""
        self._last = self._store.last_result()
        if self._last is None:
            return
        outside, body = self._last.result.envelope, self._expected(self._last)
        for sender, signed_bytes, signature in self._store.receipts():
            envelope = Envelope(session_id=outside.session_id, sender=sender, context=outside.context, body=body)
            self._given[sender] = Signed(envelope, signed_bytes, signature)

    def numbered(self, round_number: int, result: Signed[Result]) -> KeptResult:
        """The next result with its number, before it is stored."""
        return KeptResult(round_number, 1 if self._last is None else self._last.number + 1, result)

    def replace_last(self, kept: KeptResult) -> None:
        """Note that the result is in the store. Receipts for the one before are no longer needed."""
        self._last, self._given = kept, {}

    def take(self, message: Signed[Body]) -> None:
        """Take a receipt for the last result. A late receipt for an earlier result is discarded.

        Raises:
            FaultySourceError: it is malformed, or for the last result's session but not for that result.
        """
        last, index = self._last, message.sender
        if last is None or message.envelope.session_id != last.result.envelope.session_id:
            return
        name, roster = self._site.name(index), self._site.roster
        outside = {"session_id": last.result.envelope.session_id, "context": last.result.envelope.context}
        fault = envelope_fault(message, kind=Receipt, roster=roster, sender=index, **outside)
        if fault:
            raise FaultySourceError(name, fault, "Receipt")
        if message.body != self._expected(last):
            raise FaultySourceError(name, "RECEIPT", "not for the last result")
        receipt = message.of(Receipt)
        if receipt and index not in self._given:
            self._given[index] = receipt
            self._store.keep_receipt(receipt)

    def missed_results_for(self, participants: Iterable[int]) -> list[Send]:
        """The last result with all its receipts, to be sent to participants of the next attempt that missed it."""
        missing = [index for index in participants if index not in self._given]
        if self._last is None or not missing:
            return []
        body = MissedResult(self._last.result, tuple(self._given[index] for index in sorted(self._given)))
        message = self._site.signer.sign(NO_SESSION, NO_CONTEXT, body)
        return [Send(index, Parcel(message)) for index in missing]

    def _expected(self, last: KeptResult) -> Receipt:
        result = last.result
        return Receipt(self._run_id, last.round, last.number, result.digest(), result.body.model_digest)
