"""Epsilon of rounds by another way than the accountants': numerical integration, no code of Opacus or Google.

The Rényi divergence of one step at order a is log E[((1-q) + q exp((2z-1) / 2s²))^a] / (a-1) with z ~ N(0, s²)
(Mironov, Talwar, Zhang 2019, Section 3.3). The integrand is smooth and dies off at both ends, so the trapezoid rule is
exact to rounding for noise of 0.5 and more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from securefda.privacy.accountants import ORDERS
from securefda.privacy.dp_events import DpEvent

_POINTS = 6_001
_WIDTH = 14.0


def independent_epsilon(events: Iterable[DpEvent], delta: float) -> float:
    """Epsilon at ``delta``, round by round in the order given."""
    total = np.zeros(len(ORDERS))
    for event in events:
        total += event.steps * np.array(_divergences(event.noise_multiplier, event.sampling_rate))
    if not total.any():
        return 0.0
    # Balle et al. 2020, Theorem 21, written out another way.
    bounds = [
        rdp + (math.log(1 / delta) + (order - 1) * math.log(1 - 1 / order) - math.log(order)) / (order - 1)
        for order, rdp in zip(ORDERS, total, strict=True)
    ]
    return max(0.0, min(bounds))


@lru_cache(maxsize=256)
def _divergences(noise: float, rate: float) -> tuple[float, ...]:
    return tuple(_divergence(noise, rate, order) for order in ORDERS)


def _divergence(noise: float, rate: float, order: float) -> float:
    # The mass lies around 0 and, tilted by the power, around the order; both belong to the grid.
    z = np.linspace(-_WIDTH * noise, order + _WIDTH * noise, _POINTS)
    density = -(z**2) / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi)) + math.log(z[1] - z[0])
    ratio = (2 * z - 1) / (2 * noise**2)
    power = order * (ratio if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + ratio))
    exponent = density + power
    largest = exponent.max()
    return float((largest + math.log(np.exp(exponent - largest).sum())) / (order - 1))
