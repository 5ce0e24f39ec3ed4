"""The energy rule: no source's contribution to a sum may dwarf those of the others.

Every source publishes its row, a_i[l] = the norm of its weighted contribution in layer l. From the same rows every
source computes the same cap A[l], and scales its own contribution down to it. With a' = min(a, A) and k = ``others``,
every source i then has in each layer

    sum of the k smallest a'_j^2, j != i   >=   kappa * a'_i^2

and A[l] is the largest cap for which that holds. Only the k smallest count, so it holds as well for those who are left
when up to N - 1 - k others are lost, or collude and claim what they like.

What this gives: energies, not directions. For contributions that are orthogonal to each other, the cosine of the sum
with one of them is at most 1 / sqrt(1 + kappa). Correlated ones share a direction, about which it says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from securefda.adaptation import checks
from securefda.adaptation.blocks import Vector, squared_norm
from securefda.adaptation.projection import layer_slices


@dataclass(frozen=True, slots=True)
class CapEffect:
    """What the caps did to one contribution.

    Attributes:
        capped: indices of the layers that were scaled down, and are not zero.
        zeroed: indices of the layers that had energy and whose cap is 0, so that nothing of them is left.
    """

    capped: tuple[int, ...]
    zeroed: tuple[int, ...]


def energy_row(vector: npt.ArrayLike, sizes: Sequence[int], weight: float) -> npt.NDArray[np.float32]:
    """Return the norm of ``weight * vector`` in each layer.

    It is the same to the last bit whatever the number of threads.

    Args:
        vector: a source's contribution v_i, ``(n_params,)``.
        sizes: the layers' sizes, which sum to n_params; one size of n_params is the whole model as one layer.
        weight: n_i in the units in which the sum weights it, not negative.

    Returns:
        Float32 ``(n_layers,)``, rounded to nearest: relative error of a norm at most 6e-8.

    Raises:
        ValueError: an argument has a wrong shape or value, is not finite, or a norm is beyond float32; the message
            starts with the argument's name.
    """
    contribution = checks.vector("vector", vector)
    layers = checks.layer_sizes(sizes, contribution.size, name="sizes")
    factor = checks.number_between("weight", weight, 0, math.inf)
    norms = [factor * math.sqrt(squared_norm(contribution[part])) for part in layer_slices(layers)]
    if max(norms) > float(np.finfo(np.float32).max):
        raise ValueError("vector: its norm is beyond float32")
    return np.array(norms, dtype=np.float32)


def energy_caps(rows: npt.ArrayLike, *, kappa: float, others: int) -> Vector:
    """Return the largest cap of each layer under which no source dwarfs the others.

    Only the inequality of the largest row r can fail: every other i has a'_i <= a'_r, and the k smallest beside i sum
    to no less than the k smallest beside r, in which i stands for r. With b_1 <= b_2 <= ... the squares and x = A^2 it
    reads

        sum_(j <= k) min(b_j, x) - kappa x >= 0    for x below r's square.

    The left side is the smallest of the k + 1 lines P_p - (kappa - k + p) x, where P_p = b_1 + ... + b_p. So it holds
    up to the smallest root of the falling lines. If that is not below r's square, nothing needs a cap.

    Each column is sorted before it is summed, in sequence and in float64. So the caps are the same to the last bit in
    whatever order the rows come, at every source.

    Args:
        rows: a_i[l], ``(N, n_layers)``, one row for each source, not negative; below 1e-150 counts as zero.
        kappa: how many times a source's energy the others must have, positive.
        others: k, how many of the other sources count, the smallest ones; at least 1.

    Returns:
        Float64 ``(n_layers,)``: inf where no row needs a cap (all zero is such a layer), 0 where no cap above 0 does:
        all of a layer's energy is in too few sources, or kappa > k. With fewer than k + 1 rows 0 everywhere.

    Raises:
        ValueError: an argument is out of its range, or not finite; the message starts with its name.
    """
    table = checks.matrix("rows", rows)
    if np.any(table < 0):
        raise ValueError("rows: must not be negative")
    share = checks.number_between("kappa", kappa, 0, math.inf, open_below=True)
    count = checks.whole_number("others", others, least=1)
    if table.shape[0] <= count:
        return np.zeros(table.shape[1])
    squares = np.sort(np.square(table, dtype=np.float64), axis=0)
    partial_sums = np.zeros((count + 1, table.shape[1]))
    np.add.accumulate(squares[:count], axis=0, out=partial_sums[1:])
    falls = share - np.arange(count, -1, -1.0)
    with np.errstate(over="ignore"):  # a tiny kappa: no cap
        roots = partial_sums[falls > 0] / falls[falls > 0, np.newaxis]
    largest = np.min(roots, axis=0)
    return np.where(largest >= squares[-1], np.inf, np.sqrt(largest))


def scale_to_caps(vector: Vector, sizes: Sequence[int], row: npt.ArrayLike, caps: npt.ArrayLike) -> CapEffect:
    """Scale a contribution in place to the caps: each layer by min(1, A / a), to zero where A is 0.

    Args:
        vector: the contribution, float64 ``(n_params,)``, writable; in any weighting, since only a factor is applied.
        sizes: the layers' sizes, which sum to n_params.
        row: its energies a_i[l] as published, ``(n_layers,)``, not negative.
        caps: A[l] as from `energy_caps`, ``(n_layers,)``, not negative; inf is no cap.

    Returns:
        Which layers were capped or zeroed.

    Raises:
        ValueError: an argument has a wrong shape or value; the message starts with its name, the vector is as before.
    """
    if not isinstance(vector, np.ndarray) or vector.dtype != np.float64 or not vector.flags.writeable:
        raise ValueError("vector: must be a writable float64 array")
    checks.vector("vector", vector)
    layers = checks.layer_sizes(sizes, vector.size, name="sizes")
    energies = checks.vector("row", row, size=len(layers)).astype(np.float64)
    if np.any(energies < 0):
        raise ValueError("row: must not be negative")
    limits = _caps("caps", caps, len(layers))
    capped = np.flatnonzero((energies > limits) & (limits > 0))
    zeroed = np.flatnonzero((energies > limits) & (limits == 0))
    for index, part in enumerate(layer_slices(layers)):
        if limits[index] == 0:
            vector[part] = 0.0
        elif energies[index] > limits[index]:
            vector[part] *= limits[index] / energies[index]
    return CapEffect(capped=tuple(capped.tolist()), zeroed=tuple(zeroed.tolist()))


def _caps(name: str, value: npt.ArrayLike, count: int) -> Vector:
    try:
        caps = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: must be numbers") from None
    if caps.shape != (count,) or not np.all(caps >= 0):
        raise ValueError(f"{name}: must be {count} numbers that are not negative")
    return caps
