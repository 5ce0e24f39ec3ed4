"""Epsilon of any list of DP-SGD rounds, by the two accountants of Opacus. Pure: no disk, no clock, no randomness.

Rounds with the same noise multiplier and sampling rate are added up first. So epsilon does not depend on the order of
the rounds, and many equal rounds take no longer to account for than one.

Importing Opacus takes seconds, since it imports torch. RDP does not need it: its file with the formulas is loaded by
itself. PRV imports the package at its first call.

Every epsilon is an upper bound for the guarantee of :data:`securefda.privacy.dp_events.GUARANTEE`, in exact arithmetic.
The parameters of a round must not be chosen by looking at the data.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable
from functools import cache, lru_cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from securefda.privacy.dp_events import DpEvent, require_accountant, require_delta

# Opacus's orders end at 63, which overstates small epsilons: the best order grows as epsilon falls. So add larger ones.
_LARGE_ORDERS = (64, 80, 96, 128, 192, 256, 384, 512, 768, 1024)
ORDERS: tuple[float, ...] = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64), *_LARGE_ORDERS)

_ROUNDING = 1e-12
"""Opacus truncates a series at terms of e**-30 and subtracts nearly equal numbers. So for tiny sampling rates, log A of
an order can be too small by this much, and even negative."""

_PRV_LIMIT = 50.0
"""PRV is not tried if epsilon by RDP is above this, since its grid grows with epsilon until the memory is full."""

_LEAST_NOISE = 1e-100
"""Below it, epsilon is not computed. Opacus divides by the square, and where that overflows its series never ends."""

LEAST_PRV_DELTA = 1e-10
"""Smallest delta for PRV. The errors of its transforms are near 1e-16 per step and add up, so that below about 1e-11
it can be far below the exact epsilon."""

_Group = tuple[float, float, int]  # noise multiplier, sampling rate, steps


def epsilon(events: Iterable[DpEvent], delta: float, accountant: str = "rdp") -> float:
    """Return epsilon of all ``events`` together at ``delta``; 0 for none.

    Args:
        events: rounds over one data set, in any order.
        delta: in (0, 1).
        accountant: ``"rdp"``: Rényi DP of the sampled Gaussian mechanism (Mironov, Talwar, Zhang 2019), minimum over
            :data:`ORDERS`, converted by Balle et al. 2020, Theorem 21. ``"prv"``: numerical composition of privacy
            loss (Gopi, Lee, Wutschitz 2021), upper end of an interval that Opacus makes 0.02 wide; tighter for
            larger epsilons. The bound is RDP's if ``delta`` is below :data:`LEAST_PRV_DELTA`, or if PRV cannot be
            computed, which happens only for uselessly large epsilons.

    Raises:
        ConfigError: ``delta`` or ``accountant`` is out of bounds.
    """
    require_delta(delta)
    require_accountant(accountant)
    steps: Counter[tuple[float, float]] = Counter()
    for event in events:
        steps[event.noise_multiplier, event.sampling_rate] += event.steps
    groups = tuple(sorted((noise, rate, count) for (noise, rate), count in steps.items()))
    return _epsilon(groups, delta, accountant) if groups else 0.0


@lru_cache(maxsize=4096)
def _epsilon(groups: tuple[_Group, ...], delta: float, accountant: str) -> float:
    orders = np.array(ORDERS)
    total = np.zeros_like(orders)
    for noise_multiplier, sampling_rate, steps in groups:
        # Rényi divergences of the same order add up over steps (Mironov 2017, Proposition 1).
        total += steps * rdp_of_a_step(noise_multiplier, sampling_rate)
    # Balle et al. 2020, Theorem 21: less epsilon than Mironov 2017, Proposition 3, from the same divergences.
    values = total + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    # Every order gives a valid epsilon, so the least of them is one.
    by_rdp = max(0.0, float(np.min(values)))
    if accountant == "rdp" or by_rdp > _PRV_LIMIT or delta < LEAST_PRV_DELTA:
        return by_rdp
    by_prv = _by_prv(groups, delta)
    return by_rdp if by_prv is None else by_prv


@lru_cache(maxsize=4096)
def rdp_of_a_step(noise_multiplier: float, sampling_rate: float) -> NDArray[np.float64]:
    """Return an upper bound of the Rényi divergence of one step at each of :data:`ORDERS`; infinite where unknown."""
    with np.errstate(all="ignore"):
        values = [_rdp(noise_multiplier, sampling_rate, order) for order in ORDERS]
    bounds = np.array(values) + _ROUNDING / (np.array(ORDERS) - 1)
    bounds.flags.writeable = False  # it is remembered
    return bounds


@cache
def opacus_rdp() -> ModuleType:
    """``opacus.accountants.analysis.rdp``, without the packages around it; it imports NumPy and SciPy alone.

    Raises:
        ImportError: Opacus is not installed, or keeps its formulas elsewhere.
    """
    package = find_spec("opacus")  # of a package at the top, so that nothing is imported
    for folder in package.submodule_search_locations or () if package is not None else ():
        file = Path(folder, "accountants", "analysis", "rdp.py")
        spec = spec_from_file_location("opacus.accountants.analysis.rdp", file)
        if file.is_file() and spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise ImportError("opacus has no accountants/analysis/rdp.py", name="opacus")


def _rdp(noise_multiplier: float, sampling_rate: float, order: float) -> float:
    if noise_multiplier < _LEAST_NOISE:
        return math.inf
    compute_rdp = opacus_rdp().compute_rdp
    try:
        value = float(compute_rdp(q=sampling_rate, noise_multiplier=noise_multiplier, steps=1, orders=float(order)))
    except (ValueError, OverflowError, ZeroDivisionError):  # leaving an order out keeps the bound valid
        return math.inf
    return math.inf if math.isnan(value) else max(0.0, value)


def _by_prv(groups: tuple[_Group, ...], delta: float) -> float | None:
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = list(groups)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            # Opacus sizes its grid with its own shorter list of orders, and warns that the grid is therefore wider.
            warnings.simplefilter("ignore", UserWarning)
            value = float(accountant.get_epsilon(delta))
    except (ValueError, RuntimeError, OverflowError, MemoryError):  # the grid is too coarse or too large for it
        return None
    return max(0.0, value) if math.isfinite(value) else None
