"""Maximum mean discrepancy of several kernels (Long, Cao, Wang, Jordan, ICML 2015)."""

from __future__ import annotations

import torch
from torch import Tensor

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Squared widths of the kernels, in units of the median squared distance."""


def median_distance(own: Tensor, target: Tensor) -> Tensor:
    """Return the median squared distance between two different rows of both sets together, a scalar above 0.

    Args:
        own: features of the source's rows, (n, d).
        target: features of the target's rows, (T, d).
    """
    rows = torch.cat([own, target]).detach()
    squared = torch.pdist(rows).square()
    return squared.median().clamp_min(torch.finfo(rows.dtype).tiny * 1e6)


def discrepancy(own: Tensor, target: Tensor, scale: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy, summed over Gaussian kernels; at least 0 up to rounding.

    Args:
        own: features of the source's rows, (n, d).
        target: features of the target's rows, (T, d).
        scale: see :func:`median_distance`.
    """
    return _mean_kernel(own, own, scale) + _mean_kernel(target, target, scale) - 2 * _mean_kernel(own, target, scale)


def _mean_kernel(first: Tensor, second: Tensor, scale: Tensor) -> Tensor:
    squared = first.square().sum(1)[:, None] + second.square().sum(1)[None, :] - 2 * first @ second.T
    exponents = squared.clamp_min(0) / scale
    return torch.stack([torch.exp(-exponents / factor).mean() for factor in FACTORS]).sum()
