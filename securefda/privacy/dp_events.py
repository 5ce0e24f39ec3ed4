"""The inputs of the accountants: one round of DP-SGD and the budget; and the words of the guarantee of an epsilon."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from securefda.errors import ConfigError

MECHANISM = "dp-sgd"
ACCOUNTANTS = ("rdp", "prv")
GUARANTEE = (
    "(epsilon, delta)-differential privacy of one row of the data set, which is added or removed; "
    "each step draws every row by itself with the sampling rate (Poisson sampling)"
)
"""Printed with every epsilon: an epsilon without its neighbouring relation says nothing."""

ASSUMPTIONS = (
    "the task prepares each row by itself, its gradient or its part of second moments is clipped before this noise is "
    "added, the number of rows is public, no setting was chosen by looking at the rows, all training on them is in the "
    "ledger, and arithmetic is exact"
)
"""Printed with every epsilon: its assumptions."""

TERMS = f"epsilon is of {GUARANTEE}; it holds where {ASSUMPTIONS}"
"""Shown to every operator to whom an epsilon is shown."""

_RUN_ID = re.compile(r"[!-~]{1,128}")
_MAX_STEPS = 10**9


@dataclass(frozen=True, slots=True)
class DpEvent:
    """The DP-SGD of one site in one attempt at a round. It is charged as a whole, whether it finishes or not.

    Attributes:
        run_id: the run, 1 to 128 printable ASCII characters without blanks.
        round: 1-based.
        attempt: number of the attempt within the round, >= 0.
        noise_multiplier: standard deviation of the noise over ``max_grad_norm``, > 0.
        sampling_rate: probability with which a step draws a row, in (0, 1].
        steps: number of noisy gradients, >= 1; a step that drew no row counts too.
        max_grad_norm: clip norm of a row's gradient, > 0.
        mechanism: ``"dp-sgd"``, the Poisson-sampled Gaussian mechanism.

    Raises:
        ConfigError: a value outside these bounds; ``key`` is the kebab-case name.
    """

    run_id: str
    round: int
    attempt: int
    noise_multiplier: float
    sampling_rate: float
    steps: int
    max_grad_norm: float
    mechanism: str = MECHANISM

    def __post_init__(self) -> None:
        require(self.mechanism == MECHANISM, "dp.mechanism", f"must be {MECHANISM!r}, not {self.mechanism!r}")
        require(bool(_RUN_ID.fullmatch(self.run_id)), "run-id", "must be 1 to 128 printable characters without blanks")
        _require_whole(self.round, 1, "round")
        _require_whole(self.attempt, 0, "attempt")
        require_positive(self.noise_multiplier, "dp.noise-multiplier")
        require_sampling_rate(self.sampling_rate)
        _require_whole(self.steps, 1, "steps")
        require_positive(self.max_grad_norm, "dp.max-grad-norm")


@dataclass(frozen=True, slots=True)
class Budget:
    """The privacy budget of a data set, from the site's policy.

    Attributes:
        epsilon: > 0.
        delta: in (0, 1); it should be below one over the number of rows, see :func:`delta_warning`.
        accountant: ``"rdp"`` or ``"prv"``.

    Raises:
        ConfigError: a value outside these bounds; ``key`` is the kebab-case name.
    """

    epsilon: float
    delta: float
    accountant: str = "rdp"

    def __post_init__(self) -> None:
        require_positive(self.epsilon, "dp.target-epsilon")
        require_delta(self.delta)
        require_accountant(self.accountant)


def delta_warning(delta: float, samples: int) -> str | None:
    """Return a warning if ``delta`` is so large that publishing one of ``samples`` rows would pass, else None."""
    if delta * samples < 1:
        return None
    return (
        f"dp.target-delta: {delta:g} is not below 1/{samples} = {1 / samples:.3g}: "
        f"publishing one row of {samples} as it is would pass; choose {0.1 / samples:.1g} or less"
    )


def require(holds: bool, key: str, why: str) -> None:
    """Raise ConfigError about ``key`` unless ``holds``."""
    if not holds:
        raise ConfigError(key, why)


def require_positive(value: float, key: str) -> None:
    """Raise ConfigError unless ``value`` is a finite number above 0."""
    require(_is_number(value) and value > 0, key, f"must be a number above 0, not {value!r}")


def require_delta(delta: float) -> None:
    """Raise ConfigError unless ``delta`` is in (0, 1)."""
    require(_is_number(delta) and 0 < delta < 1, "dp.target-delta", f"must be between 0 and 1, not {delta!r}")


def require_sampling_rate(rate: float) -> None:
    """Raise ConfigError unless ``rate`` is in (0, 1]."""
    why = f"must be above 0 and at most 1, not {rate!r}; a batch cannot be larger than the data"
    require(_is_number(rate) and 0 < rate <= 1, "dp.sampling-rate", why)


def require_accountant(name: str) -> None:
    """Raise ConfigError for an accountant that does not exist."""
    require(name in ACCOUNTANTS, "dp.accountant", f"{name!r} is not one of {', '.join(ACCOUNTANTS)}")


def _require_whole(value: int, least: int, key: str) -> None:
    holds = type(value) is int and least <= value <= _MAX_STEPS
    require(holds, key, f"must be a whole number of at least {least}, not {value!r}")


def _is_number(value: float) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
