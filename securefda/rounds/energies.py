"""The energy rule between a header and its mathematics: what a source tells of its part, and what the caps do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from securefda.adaptation import Contribution, energies_of, energy_caps, energy_codes, energy_row, scale_to_caps
from securefda.errors import FaultyAggregatorError
from securefda.rounds.tail import Vector64
from securefda.secagg.checks import quantisation
from securefda.secagg.messages import Granularity, Header, Visibility

LEAST_STEPS = 8.0
"""Fewest steps of the encoding that a part must be long per coordinate, in root mean square, to count for the caps."""


@dataclass(frozen=True, slots=True, repr=False)
class EnergyRow:
    """The norms of a source's part: ``exact``, float64, which stay here, and the ``codes`` that the others are told."""

    exact: Vector64
    codes: bytes


@dataclass(frozen=True, slots=True)
class AppliedCaps:
    """What the energy rule did to a source's own part: numbers of layers, and the SHA-256 of the caps in hex."""

    layers: int
    caps: str
    capped: int
    zeroed: int


def row_of(header: Header, own: int, contribution: Contribution, weight: float) -> EnergyRow | None:
    """The energy row of a source at ``sum``; None at another level, or without an energy rule.

    Raises:
        FaultyAggregatorError: HEADER_ENERGY, with these clips a norm is beyond float32.
    """
    if header.energy is None or header.level_of(own) is not Visibility.SUM:
        return None
    sizes = _sizes(header)
    try:
        exact = energy_row(contribution.vector, sizes, weight)
    except ValueError as error:
        raise FaultyAggregatorError("HEADER_ENERGY", str(error)) from None
    return EnergyRow(exact, energy_codes(exact, sizes, _limits(header)))


def apply_caps(
    header: Header, row: EnergyRow | None, rows: Mapping[int, bytes], contribution: Contribution
) -> AppliedCaps | None:
    """Scale a source's contribution in place to the caps; None without an energy rule.

    Args:
        header: of the attempt.
        row: of this source.
        rows: codes of all members of the sum that have shared, this source's among them, by roster index.
        contribution: of this source, clipped.
    """
    if row is None:
        return None
    sizes, limits = _sizes(header), _limits(header)
    caps = _caps(header, np.array([energies_of(codes, sizes, limits) for codes in rows.values()]))
    effect = scale_to_caps(contribution.vector, sizes, row.exact, caps)
    return AppliedCaps(
        len(caps), sha256(caps.astype("<f8").tobytes()).hexdigest(), len(effect.capped), len(effect.zeroed)
    )


def _caps(header: Header, table: Vector64) -> Vector64:
    """The caps of those parts that are still there once they are rounded to the ring.

    The aggregator chooses the steps. Parts that are spread out vanish below them sooner than one that is concentrated,
    which would then be alone in the sum though the energies of all were as asked. So a row below the floor counts as
    zero; and where no row is above it, nothing is released.
    """
    if header.energy is None:
        raise ValueError("the header has no energy rule")
    counted = np.where(table < _floors(header), 0.0, table)
    return energy_caps(counted, kappa=header.energy.kappa, others=header.energy.others)


def _floors(header: Header) -> Vector64:
    """The smallest energy that counts, of each layer or of the model as a whole."""
    encoding = quantisation(header)
    steps = (encoding.step(number) for number in range(len(header.layers)))
    floors = [LEAST_STEPS * step * math.sqrt(layer.size) for step, layer in zip(steps, header.layers, strict=True)]
    return np.array([math.hypot(*floors)] if len(_sizes(header)) == 1 else floors)


def _limits(header: Header) -> Vector64:
    """The most that the clips let a norm be at full weight, of each layer or of the model as a whole."""
    squares = [layer.clip**2 * layer.size for layer in header.layers]
    return np.sqrt([math.fsum(squares)] if len(_sizes(header)) == 1 else squares)


def _sizes(header: Header) -> list[int]:
    if header.energy is not None and header.energy.granularity is Granularity.MODEL:
        return [header.n_params]
    return [layer.size for layer in header.layers]
