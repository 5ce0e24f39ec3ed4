"""Updates in clear, by the sources' consent: the aggregator evaluates the rule on each and adds it to their sum."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np

from securefda.aggregator.sums import PartialSum
from securefda.aggregator.target import TargetOutput, evaluate_at_target
from securefda.errors import FaultySourceError
from securefda.protocol.aggregator_session import AggregatorSession
from securefda.protocol.encoding import ErrorUnits, Vector, decode_statistics, vector_from_wire
from securefda.protocol.masking import accumulate
from securefda.protocol.messages import Parcel, Signed, Update, Visibility
from securefda.protocol.secret import Secret
from securefda.protocol.weighed_contribution import RoundTerms, WeighedContribution


class ClearUpdates:
    """The updates of the sources at ``individual``, of which only the sum is kept.

    They are encoded and summed in the ring like masked inputs, so that all levels compute the same.

    Attributes:
        answered: the message of each source whose update is in the sum.
    """

    def __init__(
        self, session: AggregatorSession, terms: RoundTerms, target: TargetOutput | None, units: ErrorUnits | None
    ) -> None:
        """Expect the updates.

        Args:
            session: the session of a published header.
            terms: the computation that the header asks for.
            target: what the target computed in this round; None if the rule uses nothing of it.
            units: units in which estimated errors are encoded, if the header asks for them.
        """
        self._session, self._terms, self._target, self._units = session, terms, target, units
        self._total = np.zeros(terms.encoding.length, np.uint32)
        self._clipped: dict[int, int] = {}
        self.answered: dict[int, Update] = {}

    def add(self, message: Signed[Any], parcel: Parcel) -> None:
        """Check an update, and add it to the sum.

        Raises:
            FaultySourceError: a check fails; nothing was added.
        """
        header, index, session = self._terms.header, message.sender, self._session
        session.admit(message, session.ctx, header.at(Visibility.INDIVIDUAL), self.answered, kind=Update)
        name = session.name(index)
        body, vector = message.body, parcel.vectors[0] if parcel.vectors else b""
        if not len(vector) == body.length_bytes == 4 * header.n_summed:
            raise FaultySourceError(name, "INPUT_LENGTH", f"{len(vector)} bytes")
        if sha256(vector).digest() != body.digest:
            raise FaultySourceError(name, "INPUT_DIGEST")
        # A larger number would give the update more weight than any source can have.
        if body.samples > header.max_samples:
            raise FaultySourceError(name, "INPUT_SAMPLES", f"{body.samples} of at most {header.max_samples}")
        self._clipped[index] = self._evaluate(name, vector_from_wire(vector), body)
        self.answered[index] = body

    def _evaluate(self, name: str, update: Vector, body: Update) -> int:
        """Do what a source at ``sum`` does with its own update: evaluate the rule, clip, encode; then add it.

        Returns:
            How many coordinates of the contribution the clip or a range changed.
        """
        terms = self._terms
        if not np.all(np.isfinite(update)):
            raise FaultySourceError(name, "INPUT_FINITE", "the update holds NaN or infinity")
        if (body.alignment is not None) is not terms.plan.aligns_estimates_only:
            raise FaultySourceError(name, "INPUT_VALUE", "a factor of alignment for which no rule asks, or none")
        try:
            alignment = 1.0 if body.alignment is None else body.alignment
            contribution = evaluate_at_target(terms, self._target, update, alignment)
        except ValueError as error:
            raise FaultySourceError(name, "INPUT_VALUE", str(error)) from None
        level, rounding = Visibility.INDIVIDUAL, Secret(body.rounding_key)
        # By the source's own key: with the same rounding, every level gives the same model (decision 0005).
        weighed = WeighedContribution.clipped(terms, level, contribution, body.samples, rounding=rounding)
        accumulate(self._total, weighed.encoded(self._units))
        return sum(weighed.at_bounds)

    def sum(self) -> PartialSum:
        """The sum of the updates that have arrived: at least one."""
        decoded = self._terms.encoding.decode(self._total, len(self.answered))
        statistics = decode_statistics(decoded.statistics, self._units)
        members = frozenset(self.answered)
        return PartialSum(
            Visibility.INDIVIDUAL, decoded.vector, statistics, members, self.answered, clipped=self._clipped
        )
