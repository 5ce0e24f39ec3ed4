"""The vectors of a round: float32 in memory and on the wire, and fixed point in the ring Z/2^b, where they are summed.

This is the one module that owns rounding, range and overflow. A coordinate x of layer l is clipped to
[-clip_l, clip_l] and becomes ``q = round(x / step_l)`` with ``step_l = clip_l / q_max``, ties to even; negative q sits
in the upper half of the ring. With ``n_max * q_max < 2^(b-1)`` a sum of at most n_max encoded vectors never wraps, so
the centred value of the ring sum is the exact sum of the q.

Behind the parameters travels a tail of aggregate statistics. A ring element of it holds a weight in [0, 1]. So each
number is divided by a bound, and weighted by samples as the layers are; a number beyond its bound counts as the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefda.protocol.masking import RingVector, check_ring_vector
from securefda.rules import DeltaErrors, TargetStatistics

Vector = NDArray[np.float32]
Vector64 = NDArray[np.float64]


def vector_from_wire(data: bytes | bytearray | memoryview) -> Vector:
    """A received vector as a float32 array, without a copy; wire vectors are little-endian."""
    return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)


def vector_to_wire(vector: Vector) -> memoryview:
    """The bytes of a float32 vector as they travel, without a copy where the machine is little-endian."""
    return np.ascontiguousarray(vector, dtype="<f4").data.cast("B")


# --- fixed point ------------------------------------------------------------------------------------------------------

Q_MAX_CAP = 2**40
"""Finest resolution, reached in the 64-bit ring only: beyond it float64 itself would round by more than 2^-12 step."""

_BLOCK = 1 << 15  # float64 temporaries of 256 KiB, whatever the length of the vector
_TINY = float(np.finfo(np.float64).tiny)


class RangeAlarm(ValueError):
    """A decoded sum holds values that no sum of honest inputs reaches: a wrap, a fault or masks that do not cancel."""


@dataclass(frozen=True, slots=True)
class ClippedLayer:
    """Coordinates that share one clip: how many, and the largest magnitude kept.

    Raises:
        ValueError: no coordinate, or a clip that is not positive and finite.
    """

    size: int
    clip: float

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError("a layer has at least one coordinate")
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise ValueError(f"clip {self.clip} is not positive and finite")


@dataclass(frozen=True, slots=True)
class Decoded:
    """A sum in real numbers, float64: the layers, shape ``(layer_length,)``, and the tail, shape ``(tail,)``."""

    vector: NDArray[np.float64]
    tail: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Map between real vectors and the ring, agreed in the header and the same for every party of a session.

    Args:
        layers: size and clip of each layer, in the order of the vector.
        n_max: most inputs that may be summed.
        modulus_bits: b, 32 or 64.
        tail: number of extra elements behind the layers, weights in [0, 1] that are encoded with clip 1.

    Raises:
        ValueError: another modulus, no layer, a negative tail, n_max so large that no resolution is left, or a clip
            whose step is no normal float64.
    """

    layers: tuple[ClippedLayer, ...]
    n_max: int
    modulus_bits: int = 32
    tail: int = 0

    def __post_init__(self) -> None:
        if self.modulus_bits not in (32, 64):
            raise ValueError(f"a ring of {self.modulus_bits} bits is not supported: 32 or 64")
        if not self.layers or self.tail < 0:
            raise ValueError("a vector has at least one layer, and its tail no negative length")
        if self.n_max < 1 or self.q_max < 1:
            raise ValueError(f"n_max {self.n_max} leaves no resolution in {self.modulus_bits} bits")
        for number, layer in enumerate(self.layers):
            if self.step(number) < _TINY or not math.isfinite(self.q_max / layer.clip):
                raise ValueError(f"clip {layer.clip} of layer {number} is beyond the steps of float64")

    @property
    def q_max(self) -> int:
        """Largest magnitude of an encoded coordinate: ``floor((2^(b-1) - 1) / n_max)``, at most ``Q_MAX_CAP``."""
        largest: int = ((1 << (self.modulus_bits - 1)) - 1) // self.n_max
        return min(largest, Q_MAX_CAP)

    @property
    def layer_length(self) -> int:
        """Number of coordinates of all layers, without the tail."""
        return sum(layer.size for layer in self.layers)

    @property
    def length(self) -> int:
        """Number of ring elements of an encoded vector: layers, then tail."""
        return self.layer_length + self.tail

    @property
    def nbytes(self) -> int:
        """Length of an encoded vector in bytes."""
        return self.length * self.dtype.itemsize

    @property
    def dtype(self) -> np.dtype[np.uint32] | np.dtype[np.uint64]:
        """Element type of the ring."""
        return np.dtype(np.uint32) if self.modulus_bits == 32 else np.dtype(np.uint64)

    def step(self, layer: int) -> float:
        """Distance of neighbouring values of a layer: ``clip / q_max``."""
        return self.layers[layer].clip / self.q_max

    def encode(self, vector: NDArray[np.floating[Any]], tail: NDArray[np.floating[Any]] | None = None) -> RingVector:
        """Clip and round a vector into the ring.

        Of a coordinate within its clip, ``|q * step - x| <= step / 2 * (1 + 2^-10)``; the last factor is float64's.

        Args:
            vector: float32 or float64, shape ``(layer_length,)``; not changed.
            tail: the extra elements in [0, 1], float32 or float64, shape ``(tail,)``; left out where there are none.

        Returns:
            A new ring vector, shape ``(length,)``. Beyond the result the peak extra memory is bounded, whatever the
            length.

        Raises:
            ValueError: another shape or type, NaN or infinity (the layer is named, no value shown), or a tail element
                outside [0, 1]: that would be a wrong weight, so it is not clipped.
        """
        extra = np.zeros(0) if tail is None else tail
        _require_floats("vector", vector, self.layer_length)
        _require_floats("tail", extra, self.tail)
        if not np.all((extra >= 0) & (extra <= 1)):
            raise ValueError("an element of the tail lies outside [0, 1]")
        values: RingVector = np.empty(self.length, dtype=self.dtype)
        for number, (start, stop) in enumerate(self._bounds()):
            _encode_layer(vector[start:stop], values[start:stop], self.layers[number].clip, self.q_max, number)
        _encode_layer(extra, values[self.layer_length :], 1.0, self.q_max, len(self.layers))
        return values

    def decode(self, total: RingVector, count: int) -> Decoded:
        """Turn the ring sum of ``count`` encoded vectors into real numbers.

        Each coordinate is off by at most ``count`` times the error of one encoding.

        Args:
            total: ring vector, shape ``(length,)``; not changed.
            count: number of inputs in it, 1 to n_max.

        Raises:
            RangeAlarm: a coordinate exceeds ``count * q_max`` in magnitude, or a sum of the tail is negative.
            ValueError: another shape, type or count.
        """
        check_ring_vector(total)
        if total.shape != (self.length,) or total.dtype != self.dtype:
            raise ValueError(f"the sum has shape {total.shape} of {total.dtype}, not ({self.length},) of {self.dtype}")
        if not 1 <= count <= self.n_max:
            raise ValueError(f"a sum of {count} inputs where 1 to {self.n_max} were agreed")
        # The same words as two's complement: every value in [-2^(b-1), 2^(b-1)).
        centred: NDArray[np.signedinteger[Any]] = total.view(np.int32 if self.modulus_bits == 32 else np.int64)
        _check_range(centred, -count * self.q_max, count * self.q_max)
        _check_range(centred[self.layer_length :], 0, count * self.q_max)
        vector = np.empty(self.layer_length, dtype=np.float64)
        for number, (start, stop) in enumerate(self._bounds()):
            np.multiply(centred[start:stop], self.step(number), out=vector[start:stop])
        return Decoded(vector, np.true_divide(centred[self.layer_length :], self.q_max))

    def _bounds(self) -> Iterator[tuple[int, int]]:
        start = 0
        for layer in self.layers:
            yield start, start + layer.size
            start += layer.size


def _require_floats(name: str, array: NDArray[np.floating[Any]], length: int) -> None:
    if array.shape != (length,) or array.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"the {name} has shape {array.shape} of {array.dtype}, not ({length},) of float32 or float64")


def _check_range(centred: NDArray[np.signedinteger[Any]], low: int, high: int) -> None:
    if centred.size and not low <= int(centred.min()) <= int(centred.max()) <= high:
        outside = int(np.count_nonzero((centred < low) | (centred > high)))
        raise RangeAlarm(f"{outside} of {centred.size} sums lie beyond what the inputs can reach")


def _encode_layer(source: NDArray[np.floating[Any]], out: RingVector, clip: float, q_max: int, layer: int) -> None:
    """Encode one layer, block by block."""
    block = np.empty(min(_BLOCK, source.size), dtype=np.float64)
    for start in range(0, source.size, _BLOCK):
        part = block[: min(_BLOCK, source.size - start)]
        np.copyto(part, source[start : start + part.size])
        low, high = float(part.min()), float(part.max())
        if not (math.isfinite(low) and math.isfinite(high)):  # min and max hand on a NaN
            raise ValueError(f"layer {layer} holds NaN or infinity")
        if low < -clip or high > clip:
            np.clip(part, -clip, clip, out=part)
        np.multiply(part, q_max / clip, out=part)
        np.rint(part, out=part)
        np.copyto(out[start : start + part.size], part.astype(np.int64).view(np.uint64), casting="same_kind")


# --- the tail ---------------------------------------------------------------------------------------------------------

TAIL = 7
"""Elements behind the parameters in the vector that is summed, weighted by samples: the share 1 - β_i of the target's
update, 1, mean loss, accuracy, and the estimated errors of source_only, fedda_auto and fedgp_auto."""

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
        accuracy: over the training rows, in [0, 1]; 0 there too.
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
