"""Mutual information of two parts of the features (Peng et al., ICLR 2020, Eq. 8; Belghazi et al., ICML 2018)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def information_bound(together: Tensor, apart: Tensor) -> Tensor:
    """Return a lower bound of the mutual information, in nats: E T(p, q) - log E exp T(p, q').

    Args:
        together: outputs of an estimator T for both parts of the same row, (n,).
        apart: its outputs for parts of different rows, (n,).
    """
    return together.mean() - (torch.logsumexp(apart, dim=0) - math.log(len(apart)))
