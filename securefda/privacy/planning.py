"""Planning before a run: the noise multiplier for a budget, or the epsilon for a noise multiplier, and its curve.

A plan depends only on the schedule, so it spends nothing. It can continue from rounds that were charged before, as the
ledger will.

The noise that keeps six rounds on 239 rows within epsilon = 4, and what another noise multiplier costs:

    >>> from securefda.privacy.dp_events import Budget
    >>> schedule = Schedule(samples=239, batch_size=32, epochs=2, rounds=6)
    >>> budget = Budget(epsilon=4.0, delta=1e-5)
    >>> plan_noise(schedule, budget).noise_multiplier
    1.715
    >>> round(plan_epsilon(schedule, 1.2, budget.delta).epsilon, 2)
    7.0
    >>> rounds_within(schedule, 1.2, budget)
    1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from securefda.errors import ConfigError
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import Budget, DpEvent, delta_warning, require, require_accountant, require_delta
from securefda.text import bound_text

if TYPE_CHECKING:
    from securefda.training.training_settings import TrainingSettings

_MOST_STEPS = 10**9
"""Most steps of one event of the accountants."""

_UNIT = 0.001
_LARGEST = 1_000_000
_GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of a run over a site's rows.

    Attributes:
        samples: rows of the data set, >= 1.
        batch_size: expected rows per step, 1 to ``samples``.
        epochs: passes over the rows per round, >= 1.
        rounds: >= 1.

    Raises:
        ConfigError: a value outside these bounds; ``key`` is the kebab-case name.
    """

    samples: int
    batch_size: int
    epochs: int
    rounds: int

    def __post_init__(self) -> None:
        for key in ("samples", "batch_size", "epochs", "rounds"):
            value = getattr(self, key)
            require(type(value) is int and value >= 1, key.replace("_", "-"), f"must be at least 1, not {value!r}")
        fits = self.batch_size <= self.samples
        require(fits, "batch-size", f"{self.batch_size} is larger than the data, which have {self.samples} rows")

    @property
    def sampling_rate(self) -> float:
        """One over the batches of an epoch: what Opacus' ``PrivacyEngine`` makes of the batch size."""
        return 1 / self._batches

    @property
    def steps_per_round(self) -> int:
        """Noisy gradients of one round."""
        return self.epochs * self._batches

    @property
    def _batches(self) -> int:
        return -(-self.samples // self.batch_size)


def schedule_of(settings: TrainingSettings, samples: int, rounds: int = 1) -> Schedule:
    """Return the schedule by which each round of a site with these settings is charged.

    Raises:
        ConfigError: ``training.batch-size`` is larger than the data.
    """
    if settings.batch_size > samples:
        why = f"{settings.batch_size} is larger than the data, which have {samples} rows"
        raise ConfigError("training.batch-size", why, hint=f"set it to {samples} or less")
    return Schedule(samples, settings.batch_size, settings.epochs, rounds)


@dataclass(frozen=True, slots=True)
class Plan:
    """The privacy cost of a run.

    Attributes:
        noise_multiplier: of every step.
        sampling_rate: of every step.
        steps_per_round: noisy gradients of one round.
        delta: at which the epsilons hold.
        accountant: ``"rdp"`` or ``"prv"``.
        curve: epsilon after 0, 1, ... rounds, shape ``(rounds + 1,)``; the first is the epsilon spent before.
        warnings: lines for the user; can be empty.
    """

    noise_multiplier: float
    sampling_rate: float
    steps_per_round: int
    delta: float
    accountant: str
    curve: tuple[float, ...]
    warnings: tuple[str, ...]

    @property
    def epsilon(self) -> float:
        """Epsilon after the last round, including all epsilon spent before."""
        return self.curve[-1]

    @property
    def cost_per_round(self) -> tuple[float, ...]:
        """Epsilon that each round adds, shape ``(rounds,)``."""
        return tuple(after - before for before, after in zip(self.curve, self.curve[1:], strict=False))


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A request for the least noise within an epsilon, or for the epsilon of a noise multiplier.

    Attributes:
        schedule: the rounds that are planned.
        epsilon: the budget if the noise is wanted, else None.
        noise: the noise multiplier if epsilon is wanted, else None.
        delta: at which epsilon holds.
        accountant: ``"rdp"`` or ``"prv"``.
        past: rounds over the same data set that are charged already.

    Raises:
        ConfigError: ``rounds``, the schedule has too many steps.
    """

    schedule: Schedule
    epsilon: float | None
    noise: float | None
    delta: float
    accountant: str
    past: Sequence[DpEvent] = ()

    def __post_init__(self) -> None:
        steps = self.schedule.steps_per_round * self.schedule.rounds
        if steps > _MOST_STEPS:
            raise ConfigError("rounds", f"make {steps} steps, more than {_MOST_STEPS}", hint="plan fewer steps")


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a user asks of a plan; None where it is left to the site's settings and budget, or to a default.

    Attributes:
        rounds: that are planned.
        samples: rows of the data set.
        batch_size: expected rows of a step.
        epochs: passes over the rows per round.
        epsilon: asks for the noise multiplier.
        noise: asks for the epsilon.
        delta: at which epsilon holds.
        accountant: ``"rdp"`` or ``"prv"``.
    """

    rounds: int
    samples: int | None = None
    batch_size: int | None = None
    epochs: int | None = None
    epsilon: float | None = None
    noise: float | None = None
    delta: float | None = None
    accountant: str | None = None

    def request(
        self,
        samples: int = 0,
        batch_size: int = 0,
        epochs: int = 1,
        budget: Budget | None = None,
        past: Sequence[DpEvent] = (),
    ) -> PlanRequest:
        """Return the plan that is asked for; the arguments are a site's and count where nothing else was asked for.

        Raises:
            ConfigError: a value is missing or out of bounds.
        """
        schedule = Schedule(
            samples if self.samples is None else self.samples,
            batch_size if self.batch_size is None else self.batch_size,
            epochs if self.epochs is None else self.epochs,
            self.rounds,
        )
        wanted, delta, accountant = (
            (0.0, 0.0, "rdp") if budget is None else (budget.epsilon, budget.delta, budget.accountant)
        )
        wants_noise = self.epsilon is None and self.noise is None
        return PlanRequest(
            schedule,
            wanted if wants_noise else self.epsilon,
            self.noise,
            delta if self.delta is None else self.delta,
            self.accountant or accountant,
            past,
        )


def plan_for(request: PlanRequest) -> Plan:
    """Answer a request. Raises ConfigError: a value is out of bounds, or no noise keeps the budget."""
    if request.epsilon is not None:
        budget = Budget(request.epsilon, request.delta, request.accountant)
        return plan_noise(request.schedule, budget, past=request.past)
    require_delta(request.delta)
    require_accountant(request.accountant)
    noise: Any = request.noise
    plan = plan_epsilon(request.schedule, noise, request.delta, accountant=request.accountant, past=request.past)
    if not math.isfinite(plan.epsilon):
        why = f"with {noise!r} no finite epsilon is known"
        raise ConfigError("dp.noise-multiplier", why, hint="0.5 to 10 are usual")
    return plan


def plan_epsilon(
    schedule: Schedule,
    noise_multiplier: float,
    delta: float,
    *,
    accountant: str = "rdp",
    past: Sequence[DpEvent] = (),
) -> Plan:
    """Return the plan of ``schedule`` with this noise multiplier.

    Args:
        schedule: the rounds that are planned.
        noise_multiplier: > 0.
        delta: in (0, 1); there is a warning unless it is below 1/samples.
        accountant: ``"rdp"`` or ``"prv"``.
        past: rounds over the same data set that are charged already.

    Raises:
        ConfigError: a value is out of bounds; ``key`` names it.
    """
    round_event = event_of(schedule, noise_multiplier)
    curve = tuple(
        epsilon([*past, *repeated(round_event, number)], delta, accountant) for number in range(schedule.rounds + 1)
    )
    warning = delta_warning(delta, schedule.samples)
    warnings = () if warning is None else (warning,)
    steps = schedule.steps_per_round
    return Plan(noise_multiplier, schedule.sampling_rate, steps, delta, accountant, curve, warnings)


def plan_noise(schedule: Schedule, budget: Budget, *, past: Sequence[DpEvent] = ()) -> Plan:
    """Return the plan with the smallest noise multiplier, in steps of 0.001, that stays within ``budget``.

    Args:
        schedule: the rounds that are planned.
        budget: the total budget, ``past`` included.
        past: rounds over the same data set that are charged already.

    Raises:
        ConfigError: no noise multiplier up to 1000 stays within it.
    """
    guess = _smallest(lambda units: _fits(schedule, units, budget, past, "rdp"), 1000)
    if budget.accountant != "rdp":  # RDP's quick answer is a good first guess
        guess = _smallest(lambda units: _fits(schedule, units, budget, past, budget.accountant), guess or _LARGEST)
    if guess is None:
        raise ConfigError(
            "dp.target-epsilon",
            f"{budget.epsilon:g} cannot be kept over {schedule.rounds} rounds with any noise multiplier up to "
            f"{_LARGEST * _UNIT:g}; spent before: {bound_text(epsilon(past, budget.delta, budget.accountant))}",
            hint="plan fewer rounds or epochs, or ask the owner of the data for a larger epsilon",
        )
    return plan_epsilon(schedule, _noise(guess), budget.delta, accountant=budget.accountant, past=past)


def rounds_within(schedule: Schedule, noise_multiplier: float, budget: Budget, *, past: Sequence[DpEvent] = ()) -> int:
    """Return how many of ``schedule``'s rounds the budget pays for, 0 to ``schedule.rounds``. Raises ConfigError."""
    return rounds_paid(event_of(schedule, noise_multiplier), schedule.rounds, budget, past=past)


def rounds_paid(event: DpEvent, rounds: int, budget: Budget, *, past: Sequence[DpEvent] = ()) -> int:
    """Return how many rounds like ``event`` the budget pays for beside ``past``, 0 to ``rounds``."""
    low, high = 0, min(rounds, _MOST_STEPS // event.steps) + 1  # low is paid for, high is not
    middle = high - 1  # most plans fit, and PRV takes seconds
    while high - low > 1:
        cost = epsilon([*past, *repeated(event, middle)], budget.delta, budget.accountant)
        low, high = (middle, high) if cost <= budget.epsilon else (low, middle)
        middle = (low + high) // 2
    return low


def _fits(schedule: Schedule, units: int, budget: Budget, past: Sequence[DpEvent], accountant: str) -> bool:
    events = [*past, *repeated(event_of(schedule, _noise(units)), schedule.rounds)]
    return epsilon(events, budget.delta, accountant) <= budget.epsilon


def _smallest(fits: Callable[[int], bool], guess: int) -> int | None:
    """Smallest number in [1, _LARGEST] that fits, if all larger ones fit too; None if none fits."""
    # Up from the guess until a number fits, down until one does not, then by halves: each trial takes a while.
    high = guess
    low = 0  # does not fit; 0 is no noise
    while not fits(high):
        if high >= _LARGEST:
            return None
        low, high = high, min(_LARGEST, math.ceil(high * _GROWTH))
    while low == 0 and high > 1:
        below = max(1, int(high / _GROWTH))
        if not fits(below):
            low = below
        else:
            high = below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _noise(units: int) -> float:
    return round(units * _UNIT, 3)


def event_of(schedule: Schedule, noise_multiplier: float) -> DpEvent:
    """One round of ``schedule`` as an event of the accountants. Raises ConfigError: ``dp.noise-multiplier``."""
    return DpEvent("plan", 1, 0, noise_multiplier, schedule.sampling_rate, schedule.steps_per_round, 1.0)


def repeated(event: DpEvent, number: int) -> list[DpEvent]:
    """So many rounds like ``event``, as one event; none for 0."""
    return [replace(event, steps=event.steps * number)] if number else []
