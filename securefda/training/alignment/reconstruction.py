"""Reconstruction of features from their two parts (Peng et al., ICLR 2020, section 3)."""

from __future__ import annotations

from torch import Tensor


def reconstruction_loss(reconstruction: Tensor, features: Tensor) -> Tensor:
    """Return the mean squared distance of features, (n, d), from their reconstruction, in units of their variance."""
    spread = features.detach().var(dim=0, unbiased=False).mean().clamp_min(1e-12)
    return (reconstruction - features).square().mean() / spread
