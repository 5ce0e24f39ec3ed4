"""Switches that remove the basis of differential privacy, one at a time: the ledger's memory, the noise and its
scale.
"""

from __future__ import annotations

from contextlib import nullcontext

from securefda.privacy import ledger_storage, noise
from securefda.training import seeds
from threat_model.switches import Switch, replaced

LEDGER_MEMORY = replaced("rounds that were charged before", ledger_storage, "charged", lambda _: lambda _: ())
"""A round is paid for by itself, as where an accountant is made anew with each round."""

NOISE_OF_A_CSPRNG = replaced("noise of a CSPRNG", noise, "take_noise_from", lambda _: lambda *_: None)
"""Opacus draws its noise itself, from torch's generator."""

SECRET_SEED = replaced("a state of the CSPRNG for layers", seeds, "secret_torch", lambda _: lambda *_: nullcontext())
"""torch's generator stays as the process seeded it, with the run's seed."""


def noise_scaled(factor: float) -> Switch:
    """Return a switch that scales noise to ``factor`` times the standard deviation that is charged."""
    return replaced(
        f"noise at its scale, not {factor:g} of it",
        noise,
        "_std",
        lambda original: lambda optimizer: factor * original(optimizer),
    )
