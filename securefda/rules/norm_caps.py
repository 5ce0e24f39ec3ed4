"""The norm cap: no source's contribution to a sum may dwarf those of the others.

Every source sends the others its norm report: the norm a_i[l] of its weighted contribution in each layer l, rounded
down to a code on a coarse grid. From the same codes every source computes the same cap A[l], and uses its exact norm to
scale its own contribution down to that cap. With a' = min(a, A) and k = ``others``, every source i then has in each
layer

    sum of the k smallest a'_j^2, j != i   >=   kappa * a'_i^2

and A[l] is the largest cap for which the codes guarantee this. A norm is at least what its code says, so rounding can
only lower the cap. As only the k smallest others count, the inequality still holds if up to N - 1 - k others drop out,
or collude and report any norms.

The guarantee is about norms, not directions. For contributions that are orthogonal to each other, the cosine of the sum
with one of them is at most 1 / sqrt(1 + kappa). Correlated contributions share a direction, about which it says
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from securefda.rules import checks
from securefda.rules.blocks import Vector, squared_norm
from securefda.rules.projection import layer_slices

SMALL_LAYER = 256
"""Layers with fewer parameters get the coarser grid, since their norm alone reveals much about a source."""

_QUARTER_STEPS = (1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429)
"""2^(0/4) to 2^(3/4), written out so that every machine has the same grid to the last bit."""


def _parts_of_the_limit(step_down: Callable[[int], float]) -> Vector:
    """The value of each code as a fraction of the layer's limit: 0, then 255 steps up to 1."""
    return np.array([0.0, *(1.0 / step_down(steps) for steps in range(254, -1, -1))])


_FINE = _parts_of_the_limit(lambda steps: math.ldexp(_QUARTER_STEPS[steps % 4], steps // 4))
_COARSE = _parts_of_the_limit(lambda steps: math.ldexp(_QUARTER_STEPS[2 * steps % 4], steps // 2))


@dataclass(frozen=True, slots=True)
class CapEffect:
    """Effect of the caps on one contribution.

    Attributes:
        capped: indices of the layers that were scaled down by a positive cap.
        zeroed: indices of the layers that were set to zero by a cap of 0.
    """

    capped: tuple[int, ...]
    zeroed: tuple[int, ...]


def contribution_norms(vector: npt.ArrayLike, sizes: Sequence[int], weight: float) -> Vector:
    """Return the norm of ``weight * vector`` in each layer.

    The result does not depend on the number of threads, to the last bit.

    Args:
        vector: a source's contribution v_i, ``(n_params,)``.
        sizes: the layers' sizes, which sum to n_params; one size of n_params is the whole model as one layer.
        weight: n_i in the units in which the sum weights it, not negative.

    Returns:
        Float64 ``(n_layers,)``.

    Raises:
        ValueError: an argument has a wrong shape or value or is not finite, or a norm is beyond float32; the message
            starts with the argument's name.
    """
    contribution = checks.vector("vector", vector)
    layers = checks.layer_sizes(sizes, contribution.size, name="sizes")
    factor = checks.number_between("weight", weight, 0, math.inf)
    norms = [factor * math.sqrt(squared_norm(contribution[part])) for part in layer_slices(layers)]
    if max(norms) > float(np.finfo(np.float32).max):
        raise ValueError("vector: its norm is beyond float32")
    return np.array(norms)


def norm_codes(norms: npt.ArrayLike, sizes: Sequence[int], limits: npt.ArrayLike) -> bytes:
    """Round norms down to the grid on which they are reported, one byte for each layer.

    Code 255 stands for the layer's limit. Each code below it is smaller by a factor of 2^(1/4), or of 2^(1/2) in a
    layer of fewer than `SMALL_LAYER` parameters. Code 0 stands for zero and for every norm below the grid.

    Args:
        norms: ``(n_layers,)``, not negative; a norm above its limit is reported as the limit.
        sizes: the layers' sizes, ``n_layers`` of them.
        limits: the largest norms that the clips allow, ``(n_layers,)``, positive.

    Raises:
        ValueError: an argument has a wrong shape or value; the message starts with its name.
    """
    bounds, exact = _limits(limits, len(sizes)), _norms(norms, len(sizes))
    grids = (limit * (_COARSE if size < SMALL_LAYER else _FINE) for size, limit in zip(sizes, bounds, strict=True))
    # The largest code whose value is not above the norm. A norm that is rounded up could raise a cap (decision 0015).
    return bytes(int(np.searchsorted(grid, norm, side="right")) - 1 for grid, norm in zip(grids, exact, strict=True))


def norms_of(codes: bytes, sizes: Sequence[int], limits: npt.ArrayLike) -> Vector:
    """Return the norms that codes stand for, float64 ``(n_layers,)``; each is at most the norm that was rounded.

    Args:
        codes: from `norm_codes`, with the same ``sizes`` and ``limits``.
        sizes: the layers' sizes.
        limits: the largest norms that the clips allow, ``(n_layers,)``, positive.

    Raises:
        ValueError: an argument has a wrong shape or value; the message starts with its name.
    """
    bounds = _limits(limits, len(sizes))
    if len(codes) != len(sizes):
        raise ValueError(f"codes: must be {len(sizes)} bytes, is {len(codes)}")
    places = np.frombuffer(codes, np.uint8)
    return bounds * np.where(np.array(sizes) < SMALL_LAYER, _COARSE[places], _FINE[places])


def caps_for(reports: npt.ArrayLike, *, kappa: float, others: int) -> Vector:
    """Return the largest cap of each layer under which no source dwarfs the others.

    It suffices to check the inequality for the largest contribution r: for every other i, a'_i <= a'_r, and the k
    smallest contributions besides i sum to at least the k smallest besides r. With b_1 <= b_2 <= ... the squares and
    x = A^2 it reads

        sum_(j <= k) min(b_j, x) - kappa x >= 0.

    The left side is the minimum of the k + 1 lines P_p - (kappa - k + p) x, where P_p = b_1 + ... + b_p. So it holds up
    to the smallest root of the falling lines, and there is always one. It also holds if a contribution is larger than
    its report says, since x bounds every contribution.

    Each column is sorted before it is summed in sequence in float64. So the caps are the same to the last bit at every
    source, whatever the order of the reports.

    Args:
        reports: a_i[l], ``(N, n_layers)``, one row for each source, not negative; below 1e-150 counts as zero.
        kappa: least ratio of the others' squared norms to a source's own, positive.
        others: k, the number of other sources that count, the smallest ones; at least 1.

    Returns:
        Float64 ``(n_layers,)``: inf if kappa is too small for any cap in float64; 0 if no positive cap satisfies the
        inequality, as too few sources have any norm in the layer, or kappa > k. With fewer than k + 1 reports, all 0.

    Raises:
        ValueError: an argument is out of its range, or not finite; the message starts with its name.
    """
    table = checks.matrix("reports", reports)
    if np.any(table < 0):
        raise ValueError("reports: must not be negative")
    share = checks.number_between("kappa", kappa, 0, math.inf, open_below=True)
    count = checks.whole_number("others", others, least=1)
    if table.shape[0] <= count:
        return np.zeros(table.shape[1])
    # Only the smallest others count: the aggregator may drop the large ones after the inputs have left (decision 0013).
    squares = np.sort(np.square(table, dtype=np.float64), axis=0)
    partial_sums = np.zeros((count + 1, table.shape[1]))
    np.add.accumulate(squares[:count], axis=0, out=partial_sums[1:])
    falls = share - np.arange(count, -1, -1.0)
    with np.errstate(over="ignore"):  # a tiny kappa: no cap
        roots = partial_sums[falls > 0] / falls[falls > 0, np.newaxis]
    caps: Vector = np.sqrt(np.min(roots, axis=0))
    return caps


def tightest(norms: npt.ArrayLike, caps: Vector) -> Vector:
    """Return caps under which `scale_to_caps` scales all layers by one factor, the least of those under ``caps``.

    Args:
        norms, caps: as for `scale_to_caps`.
    """
    own = _norms(norms, len(caps))
    factors = np.minimum(1.0, np.divide(caps, own, out=np.ones_like(own), where=own > caps))
    factor = float(factors.min())
    return caps if factor == 1.0 else own * factor


def scale_to_caps(vector: Vector, sizes: Sequence[int], norms: npt.ArrayLike, caps: npt.ArrayLike) -> CapEffect:
    """Scale a contribution in place to the caps: each layer by min(1, A / a), or to zero if A is 0.

    Args:
        vector: the contribution, float64 ``(n_params,)``, writable, weighted or not, since only a factor is applied.
        sizes: the layers' sizes, which sum to n_params.
        norms: its own exact norms a_i[l] from `contribution_norms`, ``(n_layers,)``, not negative.
        caps: A[l] from `caps_for`, ``(n_layers,)``, not negative; inf is no cap.

    Returns:
        Which layers were capped or zeroed.

    Raises:
        ValueError: an argument has a wrong shape or value; the message starts with its name, the vector is as before.
    """
    if not isinstance(vector, np.ndarray) or vector.dtype != np.float64 or not vector.flags.writeable:
        raise ValueError("vector: must be a writable float64 array")
    checks.vector("vector", vector)
    layers = checks.layer_sizes(sizes, vector.size, name="sizes")
    own = _norms(norms, len(layers))
    limits = _caps(caps, len(layers))
    capped = np.flatnonzero((own > limits) & (limits > 0))
    zeroed = np.flatnonzero((own > limits) & (limits == 0))
    for index, part in enumerate(layer_slices(layers)):
        if limits[index] == 0:
            vector[part] = 0.0
        elif own[index] > limits[index]:
            vector[part] *= limits[index] / own[index]
    return CapEffect(capped=tuple(capped.tolist()), zeroed=tuple(zeroed.tolist()))


def _norms(value: npt.ArrayLike, count: int) -> Vector:
    norms = checks.vector("norms", value, size=count).astype(np.float64)
    if np.any(norms < 0):
        raise ValueError("norms: must not be negative")
    return norms


def _limits(value: npt.ArrayLike, count: int) -> Vector:
    limits = checks.vector("limits", value, size=count).astype(np.float64)
    if np.any(limits <= 0):
        raise ValueError("limits: must be positive")
    return limits


def _caps(value: npt.ArrayLike, count: int) -> Vector:
    try:
        caps = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("caps: must be numbers") from None
    if caps.shape != (count,) or not np.all(caps >= 0):
        raise ValueError(f"caps: must be {count} numbers that are not negative")
    return caps
