"""The work of ``securefda budget plan``: a plan, its table, its JSON and its curve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securefda.cli.budget_site import BudgetSite, draw, filled, up
from securefda.errors import ConfigError
from securefda.privacy.events import ASSUMPTIONS, GUARANTEE, Budget, DpEvent, require_accountant, require_delta
from securefda.privacy.planning import Plan, Schedule, plan_epsilon, plan_noise
from securefda.site.privacy_account import TERMS
from securefda.text import aligned

_OPTIONS = {
    "samples": "--samples",
    "batch-size": "--batch",
    "epochs": "--epochs",
    "rounds": "--rounds",
    "dp.target-epsilon": "--epsilon",
    "dp.target-delta": "--delta",
    "dp.noise-multiplier": "--noise",
    "dp.accountant": "--accountant",
}
"""What the planner calls a value -> what it is called here."""

_SETTINGS = {"batch-size": "training.batch-size", "epochs": "training.epochs"}
"""Likewise, where a site's settings gave it."""

_SPENDS_NOTHING = "A plan spends nothing; training charges each round to the ledger of its rows before the first step."
_UNCOUNTED = "What the rows have cost already is not counted here; --config FILE counts it."

_MOST_STEPS = 10**9
"""Of one event of the accountants."""

_MOST_ROWS = 11


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the planner.

    Attributes:
        schedule: the rounds that are planned.
        epsilon: the budget, where the noise is asked for.
        noise: the noise multiplier, where epsilon is asked for.
        delta: at which epsilon holds.
        accountant: ``"rdp"`` or ``"prv"``.
        past: rounds that count already.
        data_set: name of the rows whose ledger holds these; empty where no site was named.
    """

    schedule: Schedule
    epsilon: float | None
    noise: float | None
    delta: float
    accountant: str
    past: tuple[DpEvent, ...] = ()
    data_set: str = ""


def question_of_options(given: Mapping[str, Any]) -> Question:
    """What the options ask, by the names of the planner. Raises ConfigError: one is missing or out of bounds."""
    for key in ("samples", "batch-size", "dp.target-delta"):
        if given[key] is None:
            hint = "give it, or name a site's settings with --config FILE"
            raise ConfigError("arguments", f"missing option '{_OPTIONS[key]}'", hint=hint)
    epochs, accountant = given["epochs"], given["dp.accountant"] or "rdp"
    schedule = Schedule(given["samples"], given["batch-size"], 1 if epochs is None else epochs, given["rounds"])
    return _sound(
        Question(
            schedule, given["dp.target-epsilon"], given["dp.noise-multiplier"], given["dp.target-delta"], accountant
        )
    )


def question_of_site(given: Mapping[str, Any], site: BudgetSite, budget: Budget) -> Question:
    """What the options ask of a site: its rows, its past, and for what was not given its settings and its ``budget``.

    Raises:
        ConfigError: an option is out of bounds, or contradicts the site; the ledger is of other rows.
        LedgerError: the ledger is in doubt.
    """
    if given["samples"] is not None:
        raise ConfigError("--samples", "is what --config says already", hint="leave one of the two out")
    training = site.config.training
    batch, epochs, noise = given["batch-size"], given["epochs"], given["dp.noise-multiplier"]
    epsilon, delta = given["dp.target-epsilon"], given["dp.target-delta"]
    if epsilon is None and noise is None:
        epsilon = budget.epsilon
    if site.file.exists():
        site.check_statements()
    schedule = Schedule(
        site.data.samples,
        training.batch_size if batch is None else batch,
        training.epochs if epochs is None else epochs,
        given["rounds"],
    )
    return _sound(
        Question(
            schedule,
            epsilon,
            noise,
            budget.delta if delta is None else delta,
            given["dp.accountant"] or budget.accountant,
            site.ledger.events() if site.file.exists() else (),
            site.data.name,
        )
    )


def _sound(question: Question) -> Question:
    steps = question.schedule.steps_per_round * question.schedule.rounds
    if steps > _MOST_STEPS:
        raise ConfigError("rounds", f"make {steps} steps, more than {_MOST_STEPS}", hint="plan fewer steps")
    if (question.epsilon is None) == (question.noise is None):
        why = "one of the two is needed" if question.epsilon is None else "only one of the two can be given"
        hint = "--epsilon asks for the noise multiplier, --noise for the epsilon"
        raise ConfigError("--epsilon, --noise", why, hint=hint)
    return question


def planned(question: Question) -> Plan:
    """Answer. Raises ConfigError: a value is out of bounds, or no noise keeps the budget."""
    if question.epsilon is not None:
        budget = Budget(question.epsilon, question.delta, question.accountant)
        return plan_noise(question.schedule, budget, past=question.past)
    require_delta(question.delta)
    require_accountant(question.accountant)
    noise: Any = question.noise
    found = plan_epsilon(question.schedule, noise, question.delta, accountant=question.accountant, past=question.past)
    if not math.isfinite(found.epsilon):
        raise ConfigError("--noise", f"with {noise!r} no finite epsilon is known", hint="0.5 to 10 are usual")
    return found


@contextmanager
def options_named(given: Mapping[str, Any]) -> Iterator[None]:
    """Name the option, where the planner names a value that was given by one by the key it has in a policy."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(_name(error.key, given), error.why, hint=error.hint) from error


def draw_plan(path: Path, found: Plan, question: Question) -> None:
    """Draw epsilon over the rounds that are planned. Raises ConfigError."""
    about = f"{TERMS}. {' '.join(_notes(question))}"
    draw(path, {"epsilon": list(enumerate(found.curve))}, found.delta, about)


def plan_json(found: Plan, question: Question, given: Mapping[str, Any]) -> dict[str, Any]:
    """For programs."""
    schedule = question.schedule
    return {
        "noise_multiplier": found.noise_multiplier,
        "sampling_rate": found.sampling_rate,
        "steps_per_round": found.steps_per_round,
        "steps": found.steps_per_round * schedule.rounds,
        "epsilon": found.epsilon,
        "target_epsilon": question.epsilon,
        "delta": found.delta,
        "accountant": found.accountant,
        "samples": schedule.samples,
        "batch": schedule.batch_size,
        "epochs": schedule.epochs,
        "rounds": schedule.rounds,
        "data_set": question.data_set or None,
        "past_epsilon": found.curve[0],
        "past_charges": len(question.past),
        "mean_epsilon_per_round": (found.epsilon - found.curve[0]) / schedule.rounds,
        "epsilon_of_round": list(found.cost_per_round),
        "epsilon_after_round": list(found.curve),
        "guarantee": GUARANTEE,
        "assumptions": ASSUMPTIONS,
        "note": " ".join(_notes(question)),
        "warnings": _warnings(found, given),
    }


def plan_text(found: Plan, question: Question, given: Mapping[str, Any], plot: Path | None) -> str:
    """For people."""
    rounds, past = question.schedule.rounds, found.curve[0]
    asked = "" if question.epsilon is None else f" (asked for: at most {question.epsilon:g})"
    before = f"{up(past)} at delta {found.delta:g}, by {len(question.past)} charged rounds"
    rows = [
        *([("data set", f"{question.data_set}, {question.schedule.samples} rows")] if question.data_set else []),
        ("noise multiplier", str(found.noise_multiplier)),
        ("sampling rate", f"{found.sampling_rate:.6g} = 1/{round(1 / found.sampling_rate)}"),
        ("steps", f"{found.steps_per_round} per round, {found.steps_per_round * rounds} in all"),
        *([("epsilon before", before)] if question.data_set else []),
        ("epsilon", f"{up(found.epsilon)} at delta {found.delta:g} after {rounds} rounds{asked}"),
        ("epsilon per round", f"{up((found.epsilon - past) / rounds)} on average"),
        ("accountant", found.accountant),
    ]
    said = [f"{TERMS[0].upper()}{TERMS[1:]}.", *_notes(question)]
    said += [f"warning: {line}" for line in _warnings(found, given)]
    drawn = [] if plot is None else [f"drawn: {plot}"]
    return "\n\n".join([aligned(rows), aligned(_curve_rows(found)), filled(said), *drawn])


def _notes(question: Question) -> list[str]:
    return [_SPENDS_NOTHING] if question.data_set else [_SPENDS_NOTHING, _UNCOUNTED]


def _curve_rows(found: Plan) -> list[tuple[str, str, str]]:
    """The curve, or some of its rounds, the first and the last among them."""
    last = len(found.cost_per_round)
    shown = sorted({1 + round(place * (last - 1) / (_MOST_ROWS - 1)) for place in range(_MOST_ROWS)})
    head = ("after round", "epsilon", "of this round")
    return [head, *((str(number), up(found.curve[number]), up(found.cost_per_round[number - 1])) for number in shown)]


def _warnings(found: Plan, given: Mapping[str, Any]) -> list[str]:
    keys = [line.partition(":") for line in found.warnings]
    return [f"{_name(key, given)}:{why}" for key, _, why in keys]


def _name(key: str, given: Mapping[str, Any]) -> str:
    return (_SETTINGS if given.get(key) is None else _OPTIONS).get(key, key)
