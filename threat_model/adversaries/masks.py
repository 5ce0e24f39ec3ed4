"""Use of known secrets by an attacker: open them from shares, derive mask keys, remove masks from one input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefda.protocol.header_checks import quantisation
from securefda.protocol.masking import Mask, RingVector, add_masks
from securefda.protocol.messages import Header
from securefda.protocol.secret import Secret
from securefda.protocol.shamir import ShareError, reconstruct, x_of

Vector64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A ring vector in real numbers, whatever it holds: ``vector`` (m,) is weighted, ``weight`` its divisor.

    ``kept`` is what travels beside the weight: rows times the share of the target's update, or that of attention.
    """

    vector: Vector64
    weight: float
    kept: float = 0.0

    @property
    def update(self) -> Vector64:
        """The update behind it, (m,): exact if every mask is off, noise if one is left."""
        return self.vector / self.weight if self.weight else self.vector


def open_secret(shares: Mapping[int, bytes], threshold: int) -> Secret | None:
    """Return the secret of ``threshold`` shares, by roster index of their holders; None with fewer or with
    wrong ones.
    """
    if len(shares) < threshold:
        return None
    try:
        return reconstruct({x_of(holder): Secret(share) for holder, share in shares.items()}, threshold)
    except ShareError:
        return None


def peel(masked: RingVector, *, own: int, self_seed: Secret | None, pair_seeds: Mapping[int, Secret]) -> RingVector:
    """Take off those masks of an input of party ``own`` whose seeds are known; the input itself is not changed."""
    vector = masked.copy()
    masks = [Mask(seed, -1 if peer < own else 1) for peer, seed in pair_seeds.items()]
    add_masks(vector, masks + ([Mask(self_seed, -1)] if self_seed is not None else []))
    return vector


def ring_vector(header: Header, data: bytes) -> RingVector:
    """Return a vector that a source sent, as a ring vector."""
    encoding = quantisation(header)
    return encoding.unpack(data[: encoding.nbytes])


def behind_vector(header: Header, data: bytes) -> bytes:
    """Return what a source sent behind its vector."""
    return data[quantisation(header).nbytes :]


def decode(header: Header, vector: RingVector) -> Decoded:
    """Read a ring vector as the header's encoding, without the range checks of an honest aggregator."""
    encoding = quantisation(header)
    steps = np.repeat([encoding.step(place) for place in range(len(header.layers))], [x.size for x in header.layers])
    unused = 32 - header.modulus_bits
    centred = np.left_shift(vector[: steps.size], np.uint32(unused)).view(np.int32) >> unused
    kept, weight, *_ = vector[steps.size :].view(np.int32)  # the statistics: w, n, and figures that travel with them
    return Decoded(centred * steps, float(weight) / encoding.statistic_q_max, float(kept) / encoding.statistic_q_max)
