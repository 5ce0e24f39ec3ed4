"""The energy rule between a header and the rule's own mathematics: whose rows count, and what the caps do."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from securefda.adaptation import Contribution, energy_caps, energy_row, scale_to_caps
from securefda.errors import FaultyAggregatorError
from securefda.rounds.tail import Vector64
from securefda.secagg.checks import quantisation
from securefda.secagg.messages import Advertise, Granularity, Header, Visibility

LEAST_STEPS = 8.0
"""Fewest steps of the encoding that a part must be long per coordinate, in root mean square, to count for the caps."""


@dataclass(frozen=True, slots=True)
class EnergyReport:
    """What the energy rule did in a round, as anyone sees it who has the rows.

    Attributes:
        layers: number of layers that it holds for; 1 for the model as a whole.
        zeroed: numbers of those that contribute nothing, because too few sources have a part in them.
        capped: roster index -> number of layers in which the source was scaled down.
    """

    layers: int
    zeroed: tuple[int, ...]
    capped: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class AppliedCaps:
    """What the energy rule did to a source's own part: numbers of layers, and the SHA-256 of the caps in hex."""

    layers: int
    caps: str
    capped: int
    zeroed: int


def row_of(header: Header, contribution: Contribution, weight: float) -> tuple[float, ...]:
    """The energy row of a source at ``sum``, for its Advertise message; empty without an energy rule.

    Raises:
        FaultyAggregatorError: HEADER_ENERGY, with these clips a row is beyond float32.
    """
    if header.energy is None:
        return ()
    try:
        row = energy_row(contribution.vector, _sizes(header), weight)
    except ValueError as error:
        raise FaultyAggregatorError("HEADER_ENERGY", str(error)) from None
    return tuple(float(value) for value in row)


def apply_caps(header: Header, own: int, u1: Mapping[int, Advertise], contribution: Contribution) -> AppliedCaps | None:
    """Scale a source's contribution in place to the caps that follow from everyone's rows; None without a rule."""
    if header.energy is None or own not in header.at(Visibility.SUM):
        return None
    caps = _caps(header, _rows(header, u1))
    effect = scale_to_caps(contribution.vector, _sizes(header), u1[own].energy, caps)
    return AppliedCaps(
        len(caps), sha256(caps.astype("<f8").tobytes()).hexdigest(), len(effect.capped), len(effect.zeroed)
    )


def energy_report(header: Header, u1: Mapping[int, Advertise], survivors: Collection[int]) -> EnergyReport | None:
    """What the caps did to each member of the sum that was opened; None without an energy rule or without members.

    The caps follow from everyone's rows; what they did is said of those in the sum.
    """
    everyone = _rows(header, u1)
    rows = {index: row for index, row in everyone.items() if index in survivors}
    if header.energy is None or not rows:
        return None
    caps = _caps(header, everyone)
    zeroed = np.flatnonzero((caps == 0) & (np.max([*rows.values()], axis=0) > 0))
    capped = {index: int(np.count_nonzero((np.array(row) > caps) & (caps > 0))) for index, row in rows.items()}
    return EnergyReport(len(caps), tuple(zeroed.tolist()), capped)


def _rows(header: Header, u1: Mapping[int, Advertise]) -> dict[int, tuple[float, ...]]:
    return {index: u1[index].energy for index in header.at(Visibility.SUM) if index in u1}


def _caps(header: Header, rows: Mapping[int, tuple[float, ...]]) -> Vector64:
    """The caps of those parts that are still there once they are rounded to the ring.

    The aggregator chooses the steps. Parts that are spread out vanish below them sooner than one that is concentrated,
    which would then be alone in the sum though the energies of all were as asked. So a row below the floor counts as
    zero; and where no row is above it, nothing is released.
    """
    if header.energy is None:
        raise ValueError("the header has no energy rule")
    table = np.array([*rows.values()])
    counted = np.where(table < _floors(header), 0.0, table)
    caps = energy_caps(counted, kappa=header.energy.kappa, others=header.energy.others)
    return np.where(np.max(counted, axis=0) > 0, caps, 0.0)


def _floors(header: Header) -> Vector64:
    """The smallest energy that counts, of each layer or of the model as a whole."""
    encoding = quantisation(header)
    steps = (encoding.step(number) for number in range(len(header.layers)))
    floors = [LEAST_STEPS * step * math.sqrt(layer.size) for step, layer in zip(steps, header.layers, strict=True)]
    return np.array([math.hypot(*floors)] if len(_sizes(header)) == 1 else floors)


def _sizes(header: Header) -> list[int]:
    if header.energy is not None and header.energy.granularity is Granularity.MODEL:
        return [header.n_params]
    return [layer.size for layer in header.layers]
