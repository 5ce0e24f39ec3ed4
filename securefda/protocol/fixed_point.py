"""Fixed point in the ring Z/2^b: the one module that owns rounding, range and overflow.

A coordinate x of layer l is clipped to [-clip_l, clip_l] and becomes ``q = round(x / step_l)`` with
``step_l = clip_l / q_max``, ties to even; negative q sits in the upper half of the ring. With
``n_max * q_max < 2^(b-1)`` a sum of at most n_max encoded vectors never wraps, so the centred value of the
ring sum is the exact sum of the q.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefda.protocol.masking import RingVector, check_ring_vector

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
class Encoded:
    """Ring vector of one party and how many of its coordinates the clip changed."""

    values: RingVector
    clipped: int


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
    def dtype(self) -> np.dtype[np.uint32] | np.dtype[np.uint64]:
        """Element type of the ring."""
        return np.dtype(np.uint32) if self.modulus_bits == 32 else np.dtype(np.uint64)

    def step(self, layer: int) -> float:
        """Distance of neighbouring values of a layer: ``clip / q_max``."""
        return self.layers[layer].clip / self.q_max

    def encode(self, vector: NDArray[np.floating[Any]], tail: NDArray[np.floating[Any]] | None = None) -> Encoded:
        """Clip and round a vector into the ring.

        Of a coordinate within its clip, ``|q * step - x| <= step / 2 * (1 + 2^-10)``; the last factor is float64's.

        Args:
            vector: float32 or float64, shape ``(layer_length,)``; not changed.
            tail: the extra elements in [0, 1], float32 or float64, shape ``(tail,)``; left out where there are none.

        Returns:
            A new ring vector, shape ``(length,)``, and the number of clipped coordinates. Beyond the result the
            peak extra memory is bounded, whatever the length.

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
        clipped = 0
        for number, (start, stop) in enumerate(self._bounds()):
            clip = self.layers[number].clip
            clipped += _encode_layer(vector[start:stop], values[start:stop], clip, self.q_max, number)
        _encode_layer(extra, values[self.layer_length :], 1.0, self.q_max, len(self.layers))
        return Encoded(values, clipped)

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
        centred = _centred(total)
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


def _centred(total: RingVector) -> NDArray[np.signedinteger[Any]]:
    """The same words as two's complement: every value in [-2^(b-1), 2^(b-1))."""
    return total.view(np.int32) if total.dtype == np.dtype(np.uint32) else total.view(np.int64)


def _check_range(centred: NDArray[np.signedinteger[Any]], low: int, high: int) -> None:
    if centred.size and not low <= int(centred.min()) <= int(centred.max()) <= high:
        outside = int(np.count_nonzero((centred < low) | (centred > high)))
        raise RangeAlarm(f"{outside} of {centred.size} sums lie beyond what the inputs can reach")


def _encode_layer(source: NDArray[np.floating[Any]], out: RingVector, clip: float, q_max: int, layer: int) -> int:
    """Encode one layer block by block; return how many coordinates were clipped."""
    block = np.empty(min(_BLOCK, source.size), dtype=np.float64)
    clipped = 0
    for start in range(0, source.size, _BLOCK):
        part = block[: min(_BLOCK, source.size - start)]
        np.copyto(part, source[start : start + part.size])
        low, high = float(part.min()), float(part.max())
        if not (math.isfinite(low) and math.isfinite(high)):  # min and max hand on a NaN
            raise ValueError(f"layer {layer} holds NaN or infinity")
        if low < -clip or high > clip:
            clipped += int(np.count_nonzero(np.abs(part) > clip))
            np.clip(part, -clip, clip, out=part)
        np.multiply(part, q_max / clip, out=part)
        np.rint(part, out=part)
        np.copyto(out[start : start + part.size], part.astype(np.int64).view(np.uint64), casting="same_kind")
    return clipped
