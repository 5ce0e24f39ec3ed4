"""Features that can be put together again of their two parts (Peng et al., ICLR 2020, section 3)."""

from __future__ import annotations

from torch import Tensor


def reconstruction_loss(made: Tensor, features: Tensor) -> Tensor:
    """Mean squared distance of features from what was made of their parts, (n, d) both, in units of their variance."""
    spread = features.detach().var(dim=0, unbiased=False).mean().clamp_min(1e-12)
    return (made - features).square().mean() / spread
