"""Float64 linear algebra over long vectors, in blocks, so that a float32 vector is never copied to float64 as a whole.

A block is so small that numpy's BLAS computes its inner product in one thread. So the results do not depend on the
number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.float64]
"""Float64 array, ``(n_params,)`` unless a docstring says otherwise."""

Reals: TypeAlias = npt.NDArray[np.floating[Any]]
"""Float32 or float64 array, ``(n_params,)`` unless a docstring says otherwise."""

BLOCK = 8192
"""Elements in a block: 64 KiB in float64. OpenBLAS starts a second thread above 10 000 elements."""


def blocks(size: int) -> Iterator[slice]:
    """Yield the slices that cover ``range(size)`` in order, each of at most `BLOCK` elements."""
    for start in range(0, size, BLOCK):
        yield slice(start, min(start + BLOCK, size))


def squared_norm(vector: Reals) -> float:
    """Return the squared Euclidean norm, multiplied and summed in float64.

    It is NaN or infinite if an element is, or if an element is beyond about 1e154.
    """
    total = 0.0
    for block in blocks(vector.size):
        values = _double(vector[block])
        total += float(np.dot(values, values))
    return total


def inner_products(left: Reals, right: Reals) -> tuple[float, float, float]:
    """Return ``||left||^2, <left, right>, ||right||^2`` of two vectors of equal length, summed in float64."""
    left_squared = inner = right_squared = 0.0
    for block in blocks(left.size):
        left_block, right_block = _double(left[block]), _double(right[block])
        left_squared += float(np.dot(left_block, left_block))
        inner += float(np.dot(left_block, right_block))
        right_squared += float(np.dot(right_block, right_block))
    return left_squared, inner, right_squared


def add_scaled(total: Vector, vector: Reals, factor: float) -> None:
    """Add ``factor * vector`` to ``total`` in place."""
    for block in blocks(total.size):
        total[block] += np.multiply(vector[block], factor, dtype=np.float64)


def step_products(steps: Reals, direction: Reals) -> Vector:
    """Return ``<x_j, direction>`` for every row ``x_j`` of ``steps (B, n_params)``; shape ``(B,)``."""
    products = np.zeros(steps.shape[0])
    for block in blocks(direction.size):
        direction_block = _double(direction[block])
        # row by row, as BLAS would start threads for the matrix
        products += [float(np.dot(_double(step[block]), direction_block)) for step in steps]
    return products


def _double(block: Reals) -> Vector:
    return block.astype(np.float64, copy=False)
