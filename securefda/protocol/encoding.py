"""Fixed-point encoding: real vectors become ring vectors, which are summed, and ring sums become real vectors again.

This is the one module in which a sum could overflow. The aggregator chooses the ranges that it is given
(:mod:`securefda.aggregator.ranges`), and :mod:`.down_link` rounds on the way down.

A coordinate x of layer l is clipped to [-range_l, range_l] and becomes ``q = floor(x / step_l + d)`` with
``step_l = range_l / q_max`` and d drawn from (0, 1), so that q is x / step_l on average. With ``n_max * q_max <
2^(k-1)`` a sum of at most n_max encoded vectors never wraps in k bits, so the centred value of the ring sum is the
exact sum of the q.

The parameters are followed by the aggregate statistics. Each lies in [0, 1]: it is divided by its bound (and clipped
to it) and weighted by samples, as the layers are. A statistic always has a word of 32 bits and is rounded to nearest,
because the sum of the weights is a denominator and needs the resolution.

In memory each element of a ring vector has 32 bits. On the wire the parameters have k bits each, without gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import CipherContext
from numpy.typing import NDArray

from securefda.protocol.masking import RingVector, check_ring_vector, keystream
from securefda.protocol.packing import WORD_BITS, pack_into, packed_bytes, unpack
from securefda.protocol.secret import Secret
from securefda.rules import DeltaErrors, TargetStatistics

Vector = NDArray[np.float32]
Vector64 = NDArray[np.float64]


def vector_from_wire(data: bytes | bytearray | memoryview) -> Vector:
    """Read a received vector, little-endian float32, without a copy where the machine is little-endian."""
    return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)


def vector_to_wire(vector: Vector) -> memoryview:
    """The wire bytes of a float32 vector, little-endian, without a copy where the machine is little-endian."""
    return np.ascontiguousarray(vector, dtype="<f4").data.cast("B")


# --- fixed point ------------------------------------------------------------------------------------------------------

STATISTIC_BITS = 32
"""Width of a word of a statistic."""

_BLOCK = 1 << 15  # float64 temporaries of 256 KiB, whatever the length of the vector
_SMALLEST_NORMAL = float(np.finfo(np.float64).tiny)
# d = (2 u + 1) / 2^17 of SFDA-SA/1, section 9: symmetric about one half, and never 0 or 1.
_DITHER_STEP, _DITHER_LEAST = 2.0**-16, 2.0**-17
_ZEROS = memoryview(bytes(2 * _BLOCK))


class RangeAlarm(ValueError):
    """A decoded sum is beyond any sum of honest inputs: it wrapped, an input is wrong, or masks did not cancel."""


@dataclass(frozen=True, slots=True)
class EncodedLayer:
    """Coordinates that share one range: how many, and the largest magnitude that is encoded.

    Raises:
        ValueError: the size is below 1, or the range is not positive and finite.
    """

    size: int
    range: float

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError("a layer has at least one coordinate")
        if not (math.isfinite(self.range) and self.range > 0):
            raise ValueError(f"range {self.range} is not positive and finite")


@dataclass(frozen=True, slots=True)
class Decoded:
    """A sum in real numbers, float64: the layers, ``(layer_length,)``, and the statistics, ``(n_statistics,)``."""

    vector: NDArray[np.float64]
    statistics: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Map between real vectors and the ring, fixed by the header and the same at every site of a session.

    Args:
        layers: size and range of each layer, in the order of the vector.
        n_max: the most inputs that can be summed.
        modulus_bits: k, the width of a parameter's word: 16, 20, 24 or 32.
        n_statistics: number of statistics behind the layers, in [0, 1], in words of 32 bits.

    Raises:
        ValueError: the width is not supported; there is no layer; n_statistics is negative; n_max leaves no resolution;
            or a range's step is not a normal float64.
    """

    layers: tuple[EncodedLayer, ...]
    n_max: int
    modulus_bits: int = 32
    n_statistics: int = 0

    def __post_init__(self) -> None:
        if self.modulus_bits not in WORD_BITS:
            widths = ", ".join(map(str, WORD_BITS))
            raise ValueError(f"words of {self.modulus_bits} bits are not supported: {widths}")
        if not self.layers or self.n_statistics < 0:
            raise ValueError("a vector has at least one layer, and no negative number of statistics")
        if self.n_max < 1 or self.q_max < 1:
            raise ValueError(f"n_max {self.n_max} leaves no resolution in {self.modulus_bits} bits")
        for number, layer in enumerate(self.layers):
            # A subnormal step would lose bits in every product, and an infinite factor
            # would turn a coordinate of 0 into NaN.
            if self.step(number) < _SMALLEST_NORMAL or not math.isfinite(self.q_max / layer.range):
                raise ValueError(f"range {layer.range} of layer {number} is beyond the steps of float64")

    @property
    def q_max(self) -> int:
        """Largest magnitude of an encoded coordinate: ``floor((2^(k-1) - 1) / n_max)``."""
        # By n_max, which the header fixes for the session, and not by how many answer: no sum of it can wrap (T16).
        return ((1 << (self.modulus_bits - 1)) - 1) // self.n_max

    @property
    def statistic_q_max(self) -> int:
        """Largest encoded statistic, by the same formula with 32 bits."""
        return ((1 << (STATISTIC_BITS - 1)) - 1) // self.n_max

    @property
    def layer_length(self) -> int:
        """Number of coordinates of all layers, without the statistics."""
        return sum(layer.size for layer in self.layers)

    @property
    def length(self) -> int:
        """Number of ring elements of an encoded vector: layers, then statistics."""
        return self.layer_length + self.n_statistics

    @property
    def nbytes(self) -> int:
        """Length of an encoded vector on the wire, in bytes."""
        return packed_bytes(self.layer_length, self.modulus_bits) + self.n_statistics * STATISTIC_BITS // 8

    def step(self, layer: int) -> float:
        """Distance between neighbouring values of a layer: ``range / q_max``."""
        return self.layers[layer].range / self.q_max

    def encode(
        self,
        vector: NDArray[np.floating[Any]],
        rounding: Secret,
        statistics: NDArray[np.floating[Any]] | None = None,
    ) -> RingVector:
        """Clip and round a vector into the ring.

        For a coordinate within its range, ``|q * step - x| < step``, and the mean of ``q * step`` over all keys differs
        from x by at most 2^-17 of a step.

        Args:
            vector: float32 or float64, shape ``(layer_length,)``; not changed.
            rounding: 32-byte key that determines d: 16 bits of its AES-256-CTR keystream per coordinate. Keep it
                secret, as it reveals the side to which each coordinate was rounded.
            statistics: in [0, 1], float32 or float64, shape ``(n_statistics,)``; None if there are none.

        Returns:
            A new ring vector, shape ``(length,)``. Apart from it, the extra memory is bounded, whatever the length.

        Raises:
            ValueError: another shape or type; NaN or infinity (the message names the layer and shows no value); or a
                statistic outside [0, 1], which is a wrong weight and therefore not clipped.
        """
        given = np.zeros(0) if statistics is None else statistics
        _require_floats("vector", vector, self.layer_length)
        _require_floats("statistics", given, self.n_statistics)
        if not np.all((given >= 0) & (given <= 1)):
            raise ValueError("a statistic lies outside [0, 1]")
        values: RingVector = np.empty(self.length, dtype=np.uint32)
        # One stream through all layers: begun anew for each, it would round layers alike.
        stream = keystream(rounding)
        for number, (start, stop) in enumerate(self._bounds()):
            limit = self.layers[number].range
            _encode_layer(vector[start:stop], values[start:stop], limit, self.q_max, stream=stream, layer=number)
        # To nearest: the sum of the weights divides the sum of the vectors, and chance in it would scale the update.
        values[self.layer_length :] = np.rint(given.astype(np.float64) * self.statistic_q_max).astype(np.uint32)
        return values

    def pack(self, vector: RingVector, behind: bytes = b"") -> memoryview:
        """The wire bytes of a ring vector, little-endian: k bits of each parameter without gaps, then the statistics.

        Args:
            vector: shape ``(length,)``; if k is 32, the result can share its memory, and with ``behind`` takes it.
            behind: what follows, a multiple of 4 bytes.

        Returns:
            ``nbytes`` bytes, and those behind.
        """
        self._require_vector(vector)
        if self.modulus_bits == STATISTIC_BITS:
            words = np.ascontiguousarray(vector, dtype="<u4")
            if behind:
                # Only an array that owns its memory can grow.
                words = words if words.flags.owndata else words.copy()
                words.resize(len(words) + len(behind) // 4, refcheck=False)  # grows in place: no second vector
                words[self.length :] = np.frombuffer(behind, "<u4")
            return words.data.cast("B")
        packed = np.empty(self.nbytes + len(behind), np.uint8)
        of_layers = packed_bytes(self.layer_length, self.modulus_bits)
        pack_into(vector[: self.layer_length], self.modulus_bits, packed[:of_layers])
        packed[of_layers : self.nbytes].view("<u4")[:] = vector[self.layer_length :]
        packed[self.nbytes :] = np.frombuffer(behind, np.uint8)
        return packed.data

    def unpack(self, data: bytes | bytearray | memoryview) -> RingVector:
        """Read a received ring vector; returns shape ``(length,)``.

        Raises:
            ValueError: the data has not ``nbytes`` bytes, or a padding bit in the parameters' last byte is set.
        """
        if len(data) != self.nbytes:
            raise ValueError(f"{len(data)} bytes where {self.nbytes} are due")
        vector = np.empty(self.length, np.uint32)
        of_layers = packed_bytes(self.layer_length, self.modulus_bits)
        vector[: self.layer_length] = unpack(memoryview(data)[:of_layers], self.layer_length, self.modulus_bits)
        vector[self.layer_length :] = np.frombuffer(data, np.uint8)[of_layers:].view("<u4")
        return vector

    def decode(self, total: RingVector, count: int) -> Decoded:
        """Turn the ring sum of ``count`` encoded vectors into real numbers.

        Each coordinate is off by less than ``count`` steps.

        Args:
            total: the sum, a ring vector, shape ``(length,)``; not changed.
            count: number of inputs in the sum, 1 to n_max.

        Raises:
            RangeAlarm: a coordinate exceeds ``count * q_max`` in magnitude, or a sum of statistics is negative.
            ValueError: another shape, type or count.
        """
        self._require_vector(total)
        # A sum of more inputs can have wrapped, and then the range of each coordinate shows nothing.
        if not 1 <= count <= self.n_max:
            raise ValueError(f"a sum of {count} inputs where 1 to {self.n_max} were agreed")
        # Sign-extends the low k bits: every value lies in [-2^(k-1), 2^(k-1)).
        unused = STATISTIC_BITS - self.modulus_bits
        centred = np.left_shift(total[: self.layer_length], np.uint32(unused)).view(np.int32)
        np.right_shift(centred, unused, out=centred)
        # Masks that did not cancel leave uniform words. With n_max twice the number of sources, these pass here with a
        # probability below 2^-m (decision 0004).
        _check_range(centred, -count * self.q_max, count * self.q_max)
        of_statistics = total[self.layer_length :].view(np.int32)
        # No input has a negative statistic; a negative sum of weights would turn the update around.
        _check_range(of_statistics, 0, count * self.statistic_q_max)
        vector = np.empty(self.layer_length, dtype=np.float64)
        for number, (start, stop) in enumerate(self._bounds()):
            # Whole numbers up to here, so the sum is exact. This product is the only rounding.
            np.multiply(centred[start:stop], self.step(number), out=vector[start:stop])
        return Decoded(vector, np.true_divide(of_statistics, self.statistic_q_max))

    def _require_vector(self, vector: RingVector) -> None:
        check_ring_vector(vector)
        if vector.shape != (self.length,):
            raise ValueError(f"a ring vector of shape {vector.shape}, not ({self.length},)")

    def _bounds(self) -> Iterator[tuple[int, int]]:
        start = 0
        for layer in self.layers:
            yield start, start + layer.size
            start += layer.size


def _require_floats(name: str, array: NDArray[np.floating[Any]], length: int) -> None:
    if array.shape != (length,) or array.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"the {name} has shape {array.shape} of {array.dtype}, not ({length},) of float32 or float64")


def _check_range(centred: NDArray[np.int32], low: int, high: int) -> None:
    if centred.size and not low <= int(centred.min()) <= int(centred.max()) <= high:
        outside = int(np.count_nonzero((centred < low) | (centred > high)))
        raise RangeAlarm(f"{outside} of {centred.size} sums lie beyond what the inputs can reach")


def _encode_layer(
    source: NDArray[np.floating[Any]], out: RingVector, limit: float, q_max: int, *, stream: CipherContext, layer: int
) -> None:
    """Encode one layer, block by block, with the next bytes of a keystream."""
    block, above = (np.empty(min(_BLOCK, source.size), dtype=np.float64) for _ in range(2))
    drawn = bytearray(2 * block.size)
    for start in range(0, source.size, _BLOCK):
        chunk = block[: min(_BLOCK, source.size - start)]
        # To float64 block by block: the whole vector in it would take twice its memory.
        np.copyto(chunk, source[start : start + chunk.size])
        low, high = float(chunk.min()), float(chunk.max())
        if not (math.isfinite(low) and math.isfinite(high)):  # min and max propagate NaN
            raise ValueError(f"layer {layer} holds NaN or infinity")
        # Again, even if it was clipped before: without this line a sum could wrap.
        if low < -limit or high > limit:
            np.clip(chunk, -limit, limit, out=chunk)
        # One division, one multiplication, one addition, in the order of SFDA-SA/1, section 9: the
        # published vectors hold to the last bit.
        np.multiply(chunk, q_max / limit, out=chunk)
        stream.update_into(_ZEROS[: 2 * chunk.size], memoryview(drawn)[: 2 * chunk.size])
        # d in [2^-17, 1 - 2^-17] keeps q within q_max despite the float64 rounding of the product.
        dither = above[: chunk.size]
        np.multiply(np.frombuffer(drawn, "<u2", chunk.size), _DITHER_STEP, out=dither)
        np.add(dither, _DITHER_LEAST, out=dither)
        np.add(chunk, dither, out=chunk)
        np.floor(chunk, out=chunk)
        # Two's complement is the residue modulo 2^32 of a negative whole number.
        out[start : start + chunk.size] = chunk.astype(np.int32).view(np.uint32)


# --- the aggregate statistics -----------------------------------------------------------------------------------------

N_STATISTICS = 7
"""Number of statistics behind the parameters, weighted by samples: the share 1 - β_i of the target's update, 1, mean
loss, accuracy, and the estimated errors of source_only, fedda_auto and fedgp_auto."""

LOSS_BOUND = 64.0
"""Mean losses above it are encoded as this bound."""

DISTANCE_BOUND = 1024.0
"""Squared distances of target and source above it, in units of the mean square of the target's steps, are encoded as
this bound."""


@dataclass(frozen=True, slots=True)
class ErrorUnits:
    """The values that an encoded error of 1 stands for: ``distance`` for source_only, ``variance`` for the auto rules.

    The auto rules' errors are at most sigma^2, the error of target_only.
    """

    distance: float
    variance: float

    @classmethod
    def of(cls, target: TargetStatistics) -> ErrorUnits:
        """The units of a round, from the target's published statistics."""
        return cls(DISTANCE_BOUND * target.mean_square, target.mean_variance)


@dataclass(frozen=True, slots=True, repr=False)
class AggregateStatistics:
    """Numbers of one source, or their sums over several, weighted by samples in units of ``max_samples``.

    Attributes:
        kept: w of the rules, the share 1 - beta of the target's update; 0 if no rule was evaluated yet.
        weight: n, in units of ``max_samples``.
        loss: mean loss over the training rows; 0 if the header asks for no metrics.
        accuracy: over the training rows, in [0, 1]; 0 if the header asks for no metrics, or the task has
            none.
        errors: estimated Delta errors of the rules; None if the header asks for none.
    """

    kept: float
    weight: float
    loss: float
    accuracy: float
    errors: DeltaErrors | None = None


def encode_statistics(statistics: AggregateStatistics, units: ErrorUnits | None) -> Vector64:
    """The statistics behind a source's vector, float64 (N_STATISTICS,), each element in [0, 1].

    Args:
        statistics: of the source, weighted.
        units: of the round's estimated errors; None if the header asks for none.

    Raises:
        ValueError: a number is NaN.
    """
    weight = statistics.weight
    loss = _within(statistics.loss / LOSS_BOUND, weight)
    # Zeros, and no shorter vector: inputs of one session are equally long whatever the header asks for.
    errors = [0.0, 0.0, 0.0]
    # Where the target's steps have no scatter, the errors of the auto rules have no
    # unit: 0 travels (SFDA-SA/1, section 9).
    if statistics.errors is not None and units is not None and units.variance > 0:
        distance = statistics.errors.source_only / units.distance
        of_rules = (distance, statistics.errors.fedda / units.variance, statistics.errors.fedgp / units.variance)
        errors = [_within(error, weight) for error in of_rules]
    return np.array([statistics.kept, weight, loss, _within(statistics.accuracy, weight), *errors])


def decode_statistics(decoded: Vector64, units: ErrorUnits | None) -> AggregateStatistics:
    """The sums of statistics in a decoded vector, float64 (N_STATISTICS,)."""
    if decoded.shape != (N_STATISTICS,):
        raise ValueError(f"statistics of shape {decoded.shape}, not ({N_STATISTICS},)")
    kept, samples, loss, accuracy, *errors = (float(value) for value in decoded)
    of_rules = None
    if units is not None:
        of_rules = DeltaErrors(errors[0] * units.distance, errors[1] * units.variance, errors[2] * units.variance)
    return AggregateStatistics(kept, samples, loss * LOSS_BOUND, accuracy, of_rules)


def _within(value: float, weight: float) -> float:
    """Clip a weighted number to [0, weight]."""
    if math.isnan(value):
        raise ValueError("a figure of the round is NaN")
    return min(max(value, 0.0), weight)
