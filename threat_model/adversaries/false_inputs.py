"""T16: inputs beyond what an honest source can send, and a ring too small for honest ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import numpy as np

from securefda.protocol import source_session as steps
from securefda.protocol.encoding import vector_from_wire, vector_to_wire
from securefda.protocol.header_checks import quantisation
from securefda.protocol.masking import RingVector
from securefda.protocol.messages import Header, Parcel, Update
from securefda.source.source_round import capped_and_encoded, release_masked
from securefda.source.source_run import SourceReporter, SourceSite
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64
from threat_model.adversaries.sources import MaliciousSource
from threat_model.sites import AggregatorSeat

Falsify = Callable[[Header, RingVector], None]
"""Changes an encoded input in place, before it is masked."""


class FalseInput(MaliciousSource):
    """A source that masks another vector than its training gave, but follows the protocol otherwise.

    Powers: the real key of its site.
    Goal: a wrong sum, or a model further off than the clip allows, without an alarm.
    Source: Bonawitz et al. 2017, section 6: nothing is proven of what is masked.

    Args:
        site: its site.
        reporter: hears nothing of it.
        falsify: what it does to its encoded input.
    """

    threat = "T16"

    def __init__(self, site: SourceSite, reporter: SourceReporter, *, falsify: Falsify) -> None:
        super().__init__(site, reporter)
        self._falsify = falsify

    def handle(self, parcel: Parcel) -> list[Parcel]:
        """Answer as an honest source, but mask another vector."""
        current, message = self._round, parcel.message
        if current is None or not isinstance(current.phase, steps.AwaitingShares):
            return super().handle(parcel)
        ready = steps.receive_shares(current.phase, message)  # type: ignore[arg-type]
        current, encoded = capped_and_encoded(self._site, current, ready)
        self._falsify(current.header.body, encoded)
        self._round, answer = release_masked(self._site, current, encoded, ready)
        return [answer]


def added(amount: int, coordinates: int) -> Falsify:
    """Return a change that adds an amount of the ring to the first coordinates."""

    def falsify(_: Header, encoded: RingVector) -> None:
        encoded[:coordinates] += np.asarray(amount % 2**32, encoded.dtype)

    return falsify


def at_the_limit(header: Header, encoded: RingVector) -> None:
    """Fill in the largest possible input: every coordinate at plus or minus the clip by turns, at the largest
    weight.
    """
    encoding = quantisation(header)
    parameters, statistics = encoded[: header.n_params], encoded[header.n_params :]
    parameters[::2] = encoding.q_max
    parameters[1::2] = 2**32 - encoding.q_max
    statistics[:] = 0
    statistics[1] = encoding.statistic_q_max  # n


def other_share(factor: float) -> Falsify:
    """Return a change that multiplies the share of the target's update, or of attention, by a factor."""

    def falsify(header: Header, encoded: RingVector) -> None:
        statistics = encoded[header.n_params :]
        claimed = round(factor * int(statistics[1]))  # statistics[1] is n
        statistics[0] = np.asarray(claimed % 2**32, encoded.dtype)

    return falsify


class TightRing(MaliciousAggregator):
    """Encodes the ring for fewer inputs than it sums.

    Powers: the target's key and the relay; no source colludes.
    Goal: a sum that wraps, so that it is wrong although every source is honest.
    Source: a modulus that is taken from the server without a floor, in implementations in use elsewhere.

    Args:
        seat: of the target.
        n_max: what the header says.
    """

    threat = "T16"

    def __init__(self, seat: AggregatorSeat, *, n_max: int) -> None:
        super().__init__(seat)
        self._n_max = n_max

    def header_for(self, index: int) -> Header | None:
        """Return the same header for all; the attacker decodes by it."""
        self.heard.header = replace(self.heard.header, n_max=self._n_max)
        return super().header_for(index)

    def attack(self) -> Vector64 | None:
        """Return the sum of all inputs as the header decodes it, each weighted."""
        total = self.aggregate()
        return None if total is None else total.vector


class NotFinite(MaliciousSource):
    """Sends an update in clear, at visibility ``individual``, with one coordinate that is not a number.

    Powers: the real key of its site.
    Goal: a model that is of no use to anybody, since whatever is added to NaN is NaN.
    Source: known of every averaging of floats.

    Args:
        site: its site.
        reporter: hears nothing of it.
        value: NaN or an infinity.
    """

    threat = "T16"

    def __init__(self, site: SourceSite, reporter: SourceReporter, *, value: float) -> None:
        super().__init__(site, reporter)
        self._value = value

    def answers(self, parcel: Parcel, honest: list[Parcel]) -> list[Parcel]:  # noqa: ARG002 - of the base
        """Return the honest answers except for one coordinate of the update."""
        return [self._spoilt(one) for one in honest]

    def _spoilt(self, parcel: Parcel) -> Parcel:
        body = parcel.message.body
        if not isinstance(body, Update):
            return parcel
        vector = vector_from_wire(bytes(parcel.vectors[0])).copy()
        vector[7] = self._value
        data = vector_to_wire(vector).tobytes()
        return self.resigned(parcel, replace(body, digest=sha256(data).digest()), data)
