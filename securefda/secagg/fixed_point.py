"""Fixed point in the ring Z/2^b: the one module that owns rounding, range and overflow.

A coordinate x of layer l is clipped to [-clip_l, clip_l] and becomes ``q = round(x / step_l)`` with
``step_l = clip_l / q_max``, ties to even; negative q sits in the upper half of the ring. With
``n_max * q_max < 2^(b-1)`` a sum of at most n_max encoded vectors never wraps, so the centred value of the
ring sum is the exact sum of the q.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefda.secagg.prg import RingVector, check_ring_vector

Q_MAX_CAP = 2**40
"""Finest resolution, reached in the 64-bit ring only: beyond it float64 itself would round by more than 2^-12 step."""

_BLOCK = 1 << 15  # float64 temporaries of 256 KiB, whatever the length of the vector
_TINY = float(np.finfo(np.float64).tiny)


class RangeError(ValueError):
    """A decoded sum holds values that no sum of honest inputs reaches: a wrap, a fault or masks that do not cancel."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Ring vector of one party and how many of its coordinates the clip changed."""

    values: RingVector
    clipped: int


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Map between real vectors and the ring, agreed in the header and the same for every party of a session.

    Args:
        clips: largest magnitude kept, per layer, in the order of the vector.
        sizes: number of coordinates of each layer.
        n_max: most inputs that may be summed.
        modulus_bits: b, 32 or 64.

    Raises:
        ValueError: another modulus, no layer or an empty one, clips and sizes of different length, a clip that is
            not positive or whose step is no normal float64, or n_max so large that no resolution is left.
    """

    clips: tuple[float, ...]
    sizes: tuple[int, ...]
    n_max: int
    modulus_bits: int = 32

    def __post_init__(self) -> None:
        if self.modulus_bits not in (32, 64):
            raise ValueError(f"a ring of {self.modulus_bits} bits is not supported: 32 or 64")
        if not self.sizes or min(self.sizes) < 1 or len(self.clips) != len(self.sizes):
            raise ValueError("every layer has a clip and at least one coordinate")
        if self.n_max < 1 or self.q_max < 1:
            raise ValueError(f"n_max {self.n_max} leaves no resolution in {self.modulus_bits} bits")
        for layer, clip in enumerate(self.clips):
            positive = math.isfinite(clip) and clip > 0
            if not positive or self.step(layer) < _TINY or not math.isfinite(self.q_max / clip):
                raise ValueError(f"clip {clip} of layer {layer} is not positive or beyond the steps of float64")

    @property
    def q_max(self) -> int:
        """Largest magnitude of an encoded coordinate: ``floor((2^(b-1) - 1) / n_max)``, at most ``Q_MAX_CAP``."""
        largest: int = ((1 << (self.modulus_bits - 1)) - 1) // self.n_max
        return min(largest, Q_MAX_CAP)

    @property
    def length(self) -> int:
        """Number of ring elements of an encoded vector."""
        return sum(self.sizes)

    @property
    def dtype(self) -> np.dtype[np.uint32] | np.dtype[np.uint64]:
        """Element type of the ring."""
        return np.dtype(np.uint32) if self.modulus_bits == 32 else np.dtype(np.uint64)

    def step(self, layer: int) -> float:
        """Distance of neighbouring values of a layer: ``clip / q_max``."""
        return self.clips[layer] / self.q_max

    def no_wrap(self, n: int) -> bool:
        """Whether a sum of ``n`` encoded inputs stays inside the centred ring: ``n * q_max < 2^(b-1)``."""
        return n * self.q_max < 1 << (self.modulus_bits - 1)

    def encode(self, *parts: NDArray[np.floating[Any]]) -> Encoded:
        """Clip and round a vector into the ring.

        Of a coordinate within its clip, ``|q * step - x| <= step / 2 * (1 + 2^-10)``; the last factor is float64's.

        Args:
            parts: the vector, cut at layer boundaries if at all; each piece float32 or float64 and flat, ``length``
                coordinates together. Pieces spare the caller a copy when it appends weights to an update.

        Returns:
            A new ring vector, shape ``(length,)``, and the number of clipped coordinates. Beyond the result the
            peak extra memory is bounded, whatever the length.

        Raises:
            ValueError: another shape, type or cut, NaN or infinity (the layer is named, no value shown).
        """
        values: RingVector = np.empty(self.length, dtype=self.dtype)
        clipped = start = 0
        for layer, source in enumerate(self._layers_of(parts)):
            out = values[start : start + source.size]
            clipped += _encode_layer(source, out, self.clips[layer], self.q_max, layer)
            start += source.size
        return Encoded(values, clipped)

    def decode(self, total: RingVector, count: int) -> NDArray[np.float64]:
        """Turn the ring sum of ``count`` encoded vectors into real numbers, float64, shape ``(length,)``.

        Each coordinate is off by at most ``count`` times the error of one encoding.

        Args:
            total: ring vector, shape ``(length,)``; not changed.
            count: number of inputs in it, 1 to n_max.

        Raises:
            RangeError: a coordinate exceeds ``count * q_max`` in magnitude.
            ValueError: another shape, type or count.
        """
        check_ring_vector(total)
        if total.shape != (self.length,) or total.dtype != self.dtype:
            raise ValueError(f"the sum has shape {total.shape} of {total.dtype}, not ({self.length},) of {self.dtype}")
        if not 1 <= count <= self.n_max:
            raise ValueError(f"a sum of {count} inputs where 1 to {self.n_max} were agreed")
        centred = _centred(total)
        _check_range(centred, count * self.q_max)
        decoded = np.empty(self.length, dtype=np.float64)
        start = 0
        for layer, size in enumerate(self.sizes):
            np.multiply(centred[start : start + size], self.step(layer), out=decoded[start : start + size])
            start += size
        return decoded

    def _layers_of(self, parts: tuple[NDArray[np.floating[Any]], ...]) -> list[NDArray[np.floating[Any]]]:
        """Cut the pieces into layers, or raise before anything is encoded."""
        layers: list[NDArray[np.floating[Any]]] = []
        for part in parts:
            if part.ndim != 1 or part.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
                raise ValueError(f"a vector is a flat array of float32 or float64, not {part.ndim}-d {part.dtype}")
            start = 0
            while start < part.size and len(layers) < len(self.sizes):
                layers.append(part[start : start + self.sizes[len(layers)]])
                start += self.sizes[len(layers) - 1]
            if start != part.size:
                raise ValueError(f"{part.size} coordinates do not end where a layer does")
        if len(layers) != len(self.sizes):
            raise ValueError(f"{len(layers)} layers where {len(self.sizes)} were agreed")
        return layers


def _centred(total: RingVector) -> NDArray[np.signedinteger[Any]]:
    """The same words as two's complement: every value in [-2^(b-1), 2^(b-1))."""
    return total.view(np.int32) if total.dtype == np.dtype(np.uint32) else total.view(np.int64)


def _check_range(centred: NDArray[np.signedinteger[Any]], bound: int) -> None:
    if int(centred.min()) < -bound or int(centred.max()) > bound:
        outside = int(np.count_nonzero((centred < -bound) | (centred > bound)))
        raise RangeError(f"{outside} of {centred.size} sums lie beyond what the inputs can reach")


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
