"""How much one part of the features tells of the other (Peng et al., ICLR 2020, Eq. 8; Belghazi et al., ICML 2018)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def information_bound(together: Tensor, apart: Tensor) -> Tensor:
    """A lower bound of the mutual information, in nats: E T(p, q) - log E exp T(p, q').

    Args:
        together: what an estimator T gives for pairs as they belong together, (n,).
        apart: for pairs of rows that were shuffled, (n,).
    """
    return together.mean() - (torch.logsumexp(apart, dim=0) - math.log(len(apart)))
