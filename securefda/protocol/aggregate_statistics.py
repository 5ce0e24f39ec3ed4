"""The numbers behind the parameters in the vector that is summed: what each means, and in which unit it travels.

A ring element of the tail holds a weight in [0, 1]. So each number is divided by a bound, and weighted by samples as
the layers are; a number beyond its bound counts as the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefda.protocol.checks import TAIL
from securefda.rules import DeltaErrors, TargetStatistics

Vector64 = NDArray[np.float64]

LOSS_BOUND = 64.0
"""Largest mean loss that shows."""

DISTANCE_BOUND = 1024.0
"""Largest squared distance between target and source that shows, in units of the mean square of the target's steps."""


@dataclass(frozen=True, slots=True)
class ErrorUnits:
    """In what estimated errors travel: ``distance`` that of source_only, ``variance`` those of the auto rules.

    The auto rules' errors are at most sigma^2, the error of target_only.
    """

    distance: float
    variance: float

    @classmethod
    def of(cls, target: TargetStatistics) -> ErrorUnits:
        """The units of a round, from what the target publishes."""
        return cls(DISTANCE_BOUND * target.mean_square, target.mean_variance)


@dataclass(frozen=True, slots=True, repr=False)
class AggregateStatistics:
    """Numbers of one source, or their sums over several, weighted by samples in units of ``max_samples``.

    Attributes:
        kept: w of the rules, the share 1 - beta of the target's update; 0 where no rule was evaluated yet.
        weight: n, in units of ``max_samples``.
        loss: mean loss over the training rows; 0 where the header has no metrics.
        accuracy: over the training rows, in [0, 1]; 0 likewise.
        errors: estimated Delta errors of the rules; None where they are not asked for.
    """

    kept: float
    weight: float
    loss: float
    accuracy: float
    errors: DeltaErrors | None = None


def encode_statistics(statistics: AggregateStatistics, units: ErrorUnits | None) -> Vector64:
    """The tail of a source's vector, float64 (TAIL,), each element in [0, 1].

    Args:
        statistics: of the source, weighted.
        units: of the round's estimated errors; None where they are not asked for.

    Raises:
        ValueError: a number is NaN.
    """
    weight = statistics.weight
    loss = _within(statistics.loss / LOSS_BOUND, weight)
    errors = [0.0, 0.0, 0.0]
    if statistics.errors is not None and units is not None and units.variance > 0:
        distance = statistics.errors.source_only / units.distance
        of_rules = (distance, statistics.errors.fedda / units.variance, statistics.errors.fedgp / units.variance)
        errors = [_within(error, weight) for error in of_rules]
    return np.array([statistics.kept, weight, loss, _within(statistics.accuracy, weight), *errors])


def decode_statistics(tail: Vector64, units: ErrorUnits | None) -> AggregateStatistics:
    """The sums of a decoded tail, float64 (TAIL,)."""
    if tail.shape != (TAIL,):
        raise ValueError(f"a tail of {tail.shape}, not {TAIL} elements")
    kept, samples, loss, accuracy, *errors = (float(element) for element in tail)
    of_rules = None
    if units is not None:
        of_rules = DeltaErrors(errors[0] * units.distance, errors[1] * units.variance, errors[2] * units.variance)
    return AggregateStatistics(kept, samples, loss * LOSS_BOUND, accuracy, of_rules)


def _within(value: float, weight: float) -> float:
    """A weighted number within [0, weight]."""
    if math.isnan(value):
        raise ValueError("a figure of the round is NaN")
    return min(max(value, 0.0), weight)
