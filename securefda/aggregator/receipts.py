"""The last result of a run with the receipts that sources gave for it; a source that missed it is shown both."""

from __future__ import annotations

from collections.abc import Iterable

from securefda.aggregator.settings import TargetSite
from securefda.aggregator.store import AggregatorStore, KeptResult
from securefda.errors import FaultySourceError
from securefda.protocol.checks import envelope_fault
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
    """Keeps the last result of a run with its receipts, in the store, so that another process goes on with them."""

    def __init__(self, site: TargetSite, store: AggregatorStore, run_id: bytes) -> None:
        self._site, self._store, self._run_id = site, store, run_id
        self._last: KeptResult | None = None
        self._given: dict[int, Signed[Receipt]] = {}

    def restore(self) -> None:
        """Go on with what is in the store."""
        self._last = self._store.last_result()
        if self._last is None:
            return
        outside, body = self._last.result.envelope, self._expected(self._last)
        for sender, signed_bytes, signature in self._store.receipts():
            envelope = Envelope(session_id=outside.session_id, sender=sender, context=outside.context, body=body)
            self._given[sender] = Signed(envelope, signed_bytes, signature)

    def following(self, round_number: int, result: Signed[Result]) -> KeptResult:
        """A result with its number, before it is written down."""
        return KeptResult(round_number, 1 if self._last is None else self._last.number + 1, result)

    def published(self, kept: KeptResult) -> None:
        """The result is in the store now; receipts for the one before it are of no more use."""
        self._last, self._given = kept, {}

    def take(self, message: Signed[Body]) -> None:
        """Take a receipt. One for an earlier result came late, and is discarded.

        Raises:
            FaultySourceError: it is in the session of the last result, and not what its participants give for it.
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
        if index not in self._given:
            self._given[index] = message  # type: ignore[assignment]  # its kind was checked
            self._store.keep_receipt(message)  # type: ignore[arg-type]

    def shown_to(self, participants: Iterable[int]) -> list[Send]:
        """The last result again, with all receipts, for those of a coming attempt that gave none for it."""
        missing = [index for index in participants if index not in self._given]
        if self._last is None or not missing:
            return []
        body = MissedResult(self._last.result, tuple(self._given[index] for index in sorted(self._given)))
        message = self._site.signer.sign(NO_SESSION, NO_CONTEXT, body)
        return [Send(index, Parcel(message)) for index in missing]

    def _expected(self, last: KeptResult) -> Receipt:
        result = last.result
        return Receipt(self._run_id, last.round, last.number, result.digest(), result.body.model_digest)
