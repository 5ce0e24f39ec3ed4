"""The losses of features that are alike, as formulas of a few lines.

A domain identifier cannot tell the features apart, or the discrepancy of the two sets is small; a class identifier
learns nothing from the domain-specific part, which shares no information with the other one, and both together give
back the features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, softplus

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Squared widths of the kernels of :func:`discrepancy`, in units of the median squared distance."""

# --- a domain identifier gives one number for the features of a row, the logit of "this row is the source's"
# (Peng et al., ICLR 2020, Eqs. 4 and 5; Ganin, Lempitsky 2015) -------------------------------------------------------


def identification_loss(own: Tensor, target: Tensor) -> Tensor:
    """Return the loss of a domain identifier, Eq. 4: -E log DI(own) - E log(1 - DI(target)), a scalar.

    Args:
        own: logits of the source's rows, (n,).
        target: logits of the target's rows, (T,).
    """
    return softplus(-own).mean() + softplus(target).mean()


def source_confusion_loss(own: Tensor) -> Tensor:
    """Return the loss of a source's extractor, from logits (n,): -E log(1 - DI(own)), a scalar.

    Eq. 5 prints -E log DI here, which would help the identifier; the text of the paper wants it confused.
    """
    return softplus(own).mean()


def target_confusion_loss(target: Tensor) -> Tensor:
    """Return the target's term of Eq. 5, from logits (T,): -E log DI(target), a scalar."""
    return softplus(-target).mean()


def reversed_source_loss(own: Tensor) -> Tensor:
    """Return a source's term under gradient reversal, from logits (n,): minus its term of the identifier's loss."""
    return -softplus(-own).mean()


def reversed_target_loss(target: Tensor) -> Tensor:
    """Return the target's term under gradient reversal, from logits (T,): minus its term of the identifier's loss."""
    return -softplus(target).mean()


# --- maximum mean discrepancy of several kernels (Long, Cao, Wang, Jordan, ICML 2015) ---------------------------------


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


# --- model III: Peng et al. (ICLR 2020), section 3, Eqs. 7 and 8; Belghazi et al. (ICML 2018) -------------------------


def mean_entropy(outputs: Tensor) -> Tensor:
    """Return the mean entropy of the predictions of a class identifier, in nats.

    The extractor and the disentangler maximise it. Eq. 7 prints a likelihood; the text of the paper wants the entropy.

    Args:
        outputs: logits, (n, classes), or (n, 1) for two classes.
    """
    if outputs.shape[1] == 1:
        outputs = torch.cat([outputs, torch.zeros_like(outputs)], dim=1)
    logs = log_softmax(outputs, dim=1)
    return -(logs.exp() * logs).sum(dim=1).mean()


def information_bound(together: Tensor, apart: Tensor) -> Tensor:
    """Return a lower bound of the mutual information, in nats: E T(p, q) - log E exp T(p, q').

    Args:
        together: outputs of an estimator T for both parts of the same row, (n,).
        apart: its outputs for parts of different rows, (n,).
    """
    return together.mean() - (torch.logsumexp(apart, dim=0) - math.log(len(apart)))


def reconstruction_loss(reconstruction: Tensor, features: Tensor) -> Tensor:
    """Return the mean squared distance of features, (n, d), from their reconstruction, in units of their variance."""
    spread = features.detach().var(dim=0, unbiased=False).mean().clamp_min(1e-12)
    return (reconstruction - features).square().mean() / spread
