"""Projection of the target's update onto a source's update, layer by layer.

Both forms of P(g_T | g_i) are multiples of g_i within a layer, and the multiple depends only on three inner products.
These are computed once: auto-beta uses their sums, the projection their values per layer.

Source: Jiang, Zhang, Koyejo, "Principled Federated Domain Adaptation: Gradient Projection and Auto-Weighting",
ICLR 2024, Definition 4.3 and Appendix C.9.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from securefda.rules import checks
from securefda.rules.blocks import Reals, Vector, inner_products

SMALLEST_SQUARED_NORM = 1e-280
"""A layer with a smaller squared norm counts as zero: its inner products are no longer accurate in float64."""


class Projection(StrEnum):
    """Form of P(g_T | g_i) within a layer."""

    ORTHOGONAL = "orthogonal"
    """``max(<g_T, g_i>, 0) g_i / ||g_i||^2`` (Definition 4.3); does not depend on the length of g_i."""

    COSINE = "cosine"
    """``max(cos(g_T, g_i), 0) g_i`` (Appendix C.9)."""


@dataclass(frozen=True, slots=True)
class Products:
    """Inner products of a target vector t and a source vector s in each layer.

    All three are float64 ``(n_layers,)``: ``target_squared`` is ||t||^2, ``inner`` is <t, s>, and ``source_squared``
    is ||s||^2.
    """

    target_squared: Vector
    inner: Vector
    source_squared: Vector

    @classmethod
    def of(cls, target: Reals, source: Reals, layers: Sequence[int]) -> Products:
        """Compute the products of each layer; ``layers`` are sizes that sum to the length of both vectors."""
        rows = [inner_products(target[part], source[part]) for part in layer_slices(layers)]
        columns = np.array(rows, dtype=np.float64).T
        return cls(*columns)

    def of_source_times(self, factor: float) -> Products:
        """Return the products of t and ``factor`` s."""
        return Products(self.target_squared, self.inner * factor, self.source_squared * factor**2)


def layer_slices(layers: Sequence[int]) -> Iterator[slice]:
    """Yield the slice of each layer within the flat vector."""
    start = 0
    for size in layers:
        yield slice(start, start + size)
        start += size


def without_noise(products: Products, layers: Sequence[int], variance: float) -> Products:
    """Correct the products of a noisy source vector s = u + n: replace ||s||^2 by an estimate of ||u||^2.

    Noise n with this variance in each coordinate, independent of t and u, adds ``size * variance`` to the expected
    squared norm of a layer and nothing to the expected inner product. So projection on s is shorter by the factor
    ``||u||^2 / ||s||^2``, close to zero in many dimensions. The estimate has two lower bounds: its standard deviation
    at u = 0, ``sqrt(2 size) * variance``, and the value at which the projection is as long as t.

    Args:
        products: of t and s.
        layers: sizes of the layers.
        variance: of the noise, in squared parameter units, at least 0; 0 leaves the products unchanged.

    Raises:
        ValueError: the variance is out of its range; the message starts with its name.
    """
    if checks.number_between("variance", variance, 0, math.inf) == 0:
        return products
    sizes, squares = np.asarray(layers, dtype=np.float64), products.source_squared
    least = np.minimum(np.sqrt(2 * sizes) * variance, squares)
    # The least squared norm for which ||P|| = |<t, s>| ||s|| / (squared norm) is at most ||t||.
    shortest = np.abs(products.inner) * np.sqrt(
        np.divide(squares, products.target_squared, out=np.zeros_like(squares), where=products.target_squared > 0)
    )
    left = np.maximum(np.maximum(squares - sizes * variance, least), np.minimum(shortest, squares))
    return replace(products, source_squared=left)


def layer_multiples(products: Products, form: Projection, *, negative: bool) -> Vector:
    """Return the factor c of each layer ``(n_layers,)`` such that P(t | s) = c s there.

    A layer in which s (or, for the cosine, t) is zero has c = 0. ``negative`` keeps layers in which <t, s> < 0,
    which the rule otherwise sets to zero.
    """
    inner = products.inner if negative else np.maximum(products.inner, 0.0)
    usable = products.source_squared > SMALLEST_SQUARED_NORM
    multiples = np.zeros_like(inner)
    if form is Projection.ORTHOGONAL:
        return np.divide(inner, products.source_squared, out=multiples, where=usable)
    usable &= products.target_squared > SMALLEST_SQUARED_NORM
    lengths = np.sqrt(products.target_squared) * np.sqrt(products.source_squared)
    np.divide(inner, lengths, out=multiples, where=usable)
    return np.clip(multiples, -1.0, 1.0, out=multiples)


def scale_layers(vector: Reals, layers: Sequence[int], factors: Vector) -> Vector:
    """Return a new float64 vector: each layer of ``vector`` times its own factor."""
    scaled = np.empty(vector.size)
    for part, factor in zip(layer_slices(layers), factors, strict=True):
        np.multiply(vector[part], factor, out=scaled[part], dtype=np.float64)
    return scaled


def project(
    target: npt.ArrayLike,
    source: npt.ArrayLike,
    *,
    layers: Sequence[int] | None = None,
    projection: str = Projection.ORTHOGONAL,
    filter: bool = True,  # noqa: A002 - the paper's word
) -> Vector:
    """Return P(target | source), layer by layer.

    Args:
        target: the target's update, ``(n_params,)``.
        source: a source's aligned update, ``(n_params,)``.
        layers: sizes that sum to n_params; None is one layer.
        projection: ``orthogonal`` (Definition 4.3) or ``cosine`` (Appendix C.9).
        filter: set layers with a negative inner product to zero; False keeps them (the paper's "w proj" ablation).

    Returns:
        Float64 ``(n_params,)``. For ``orthogonal``: its norm is at most that of ``target`` in every layer, and it is
        the same for every positive multiple of ``source``. A layer in which ``source`` is zero gives zero.

    Raises:
        ValueError: an argument has a wrong shape or value, or is not finite; the message starts with its name.
    """
    target_vector = checks.vector("target", target)
    source_vector = checks.vector("source", source, size=target_vector.size)
    sizes = checks.layer_sizes(layers, target_vector.size)
    form = checks.choice("projection", projection, Projection)
    products = Products.of(target_vector, source_vector, sizes)
    return scale_layers(
        source_vector, sizes, layer_multiples(products, form, negative=not checks.switch("filter", filter))
    )


def cosine(left: npt.ArrayLike, right: npt.ArrayLike) -> float | None:
    """Return the cosine of two vectors of equal length, in [-1, 1]; None where one of them is zero.

    Raises:
        ValueError: an argument is not a finite vector, or the lengths differ; the message starts with its name.
    """
    left_vector = checks.vector("left", left)
    right_vector = checks.vector("right", right, size=left_vector.size)
    left_squared, inner, right_squared = inner_products(left_vector, right_vector)
    if min(left_squared, right_squared) <= SMALLEST_SQUARED_NORM:
        return None
    return min(max(inner / math.sqrt(left_squared) / math.sqrt(right_squared), -1.0), 1.0)
