"""``securefda budget``: what differential privacy would cost, before anything is trained."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.options import OutputFormat
from securefda.cli.output import Format, aligned, print_result
from securefda.dp.events import ACCOUNTANTS, GUARANTEE, Budget, require_accountant, require_delta
from securefda.errors import ConfigError

if TYPE_CHECKING:
    from securefda.dp.planning import Plan, Schedule

app = typer.Typer(help="Plan a budget of differential privacy; no command spends one in this version.")

_ASSUMPTIONS = (
    "a step clips the gradient of each row and adds this noise, no setting was chosen by looking at the rows, "
    "nothing was spent of the data set before, and arithmetic is exact"
)
_NOTE = "This plans a budget; training with noise is not part of this version, so no run has this guarantee."
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

_MOST_ROUNDS = 10_000
"""Epsilon is computed after every round."""

_MOST_STEPS = 10**9
"""Of one event of the accountants."""

_MOST_ROWS = 11
_WIDTH = 100
_SVG_START = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'


@app.callback()
def _budget() -> None:
    """Plan a budget of differential privacy; no command spends one in this version."""


@app.command("plan")
def plan(
    delta: Annotated[float, typer.Option("--delta", help="Should be below one over the number of rows.")],
    rounds: Annotated[int, typer.Option("--rounds", max=_MOST_ROUNDS, help="Rounds of training.")],
    samples: Annotated[int, typer.Option("--samples", help="Rows of the site's data set.")],
    batch: Annotated[int, typer.Option("--batch", help="Expected rows of a step.")],
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the rows per round.")] = 1,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Budget; asks for the noise multiplier.")] = None,
    noise: Annotated[float | None, typer.Option("--noise", help="Noise multiplier; asks for the epsilon.")] = None,
    accountant: Annotated[
        str,
        typer.Option("--accountant", metavar="|".join(ACCOUNTANTS), help="prv: tighter for larger epsilons, and slow."),
    ] = ACCOUNTANTS[0],
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw epsilon over the rounds.")
    ] = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Plan a site's budget of differential privacy: the noise for an epsilon, or the epsilon of a noise.

    It is a planning tool. It plans a budget; training with noise is not part of this version, which adds no noise.

    Every epsilon is of one row that is added or removed, with batches drawn by Poisson sampling at one over the
    batches of an epoch.
    """
    if plot is not None and plot.exists():
        raise ConfigError("--plot", f"{plot} exists already", hint="name a new file, or remove that one")
    with _options_named():
        found = _planned((samples, batch, epochs, rounds), epsilon, noise, delta, accountant)
    if plot is not None:
        _draw(plot, found)
    data = _as_json(found, samples, batch, epochs, epsilon) | {"plot": None if plot is None else str(plot)}
    print_result(output, data, _text(found, epsilon, plot))


def _planned(
    counts: tuple[int, int, int, int], epsilon: float | None, noise: float | None, delta: float, accountant: str
) -> Plan:
    """The plan; ``counts`` are those of a schedule, in its order. Raises ConfigError."""
    if epsilon is not None and noise is None:
        from securefda.dp.planning import plan_noise

        budget = Budget(epsilon, delta, accountant)
        return plan_noise(_schedule(counts), budget)
    if noise is not None and epsilon is None:
        return _costed(counts, noise, delta, accountant)
    why = "one of the two is needed" if epsilon is None else "only one of the two can be given"
    hint = "--epsilon asks for the noise multiplier, --noise for the epsilon"
    raise ConfigError("--epsilon, --noise", why, hint=hint)


def _costed(counts: tuple[int, int, int, int], noise: float, delta: float, accountant: str) -> Plan:
    from securefda.dp.planning import plan_epsilon

    require_delta(delta)
    require_accountant(accountant)
    found = plan_epsilon(_schedule(counts), noise, delta, accountant=accountant)
    if not math.isfinite(found.epsilon):
        raise ConfigError("--noise", f"with {noise!r} no finite epsilon is known", hint="0.5 to 10 are usual")
    return found


def _schedule(counts: tuple[int, int, int, int]) -> Schedule:
    from securefda.dp.planning import Schedule

    schedule = Schedule(*counts)
    steps = schedule.steps_per_round * schedule.rounds
    if steps > _MOST_STEPS:
        raise ConfigError("rounds", f"make {steps} steps, more than {_MOST_STEPS}", hint="plan fewer steps")
    return schedule


@contextmanager
def _options_named() -> Iterator[None]:
    """Name the option, where the planner names a value by the key it has in a policy."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(_OPTIONS.get(error.key, error.key), error.why, hint=error.hint) from error


def _draw(path: Path, found: Plan) -> None:
    from securefda.cli.figures import lines_figure
    from securefda.federation.files import write_file, writing_errors

    label = f"epsilon at delta {found.delta:g},\none row added or removed"
    svg = lines_figure({"epsilon": list(enumerate(found.curve))}, label, "budget")
    # A figure of the report takes names and colours from its page; a file has to bring them.
    start = f'{_SVG_START} style="background: #fff; color: #000"'
    about = f"<desc>{GUARANTEE}. Holds where {_ASSUMPTIONS}. {_NOTE}</desc>"
    opening, end, rest = svg.replace("<svg", start, 1).partition(">")
    with writing_errors(path):
        write_file(path, f"{opening}{end}{about}{rest}".encode(), 0o644)


def _as_json(found: Plan, samples: int, batch: int, epochs: int, target: float | None) -> dict[str, Any]:
    rounds = len(found.cost_per_round)
    return {
        "noise_multiplier": found.noise_multiplier,
        "sampling_rate": found.sampling_rate,
        "steps_per_round": found.steps_per_round,
        "steps": found.steps_per_round * rounds,
        "epsilon": found.epsilon,
        "target_epsilon": target,
        "delta": found.delta,
        "accountant": found.accountant,
        "samples": samples,
        "batch": batch,
        "epochs": epochs,
        "rounds": rounds,
        "mean_epsilon_per_round": found.epsilon / rounds,
        "epsilon_of_round": list(found.cost_per_round),
        "epsilon_after_round": list(found.curve),
        "guarantee": GUARANTEE,
        "assumptions": _ASSUMPTIONS,
        "note": _NOTE,
        "warnings": _warnings(found),
    }


def _text(found: Plan, target: float | None, plot: Path | None) -> str:
    rounds = len(found.cost_per_round)
    asked = "" if target is None else f" (asked for: at most {target:g})"
    rows = [
        ("noise multiplier", str(found.noise_multiplier)),
        ("sampling rate", f"{found.sampling_rate:.6g} = 1/{round(1 / found.sampling_rate)}"),
        ("steps", f"{found.steps_per_round} per round, {found.steps_per_round * rounds} in all"),
        ("epsilon", f"{_up(found.epsilon)} at delta {found.delta:g} after {rounds} rounds{asked}"),
        ("epsilon per round", f"{_up(found.epsilon / rounds)} on average"),
        ("accountant", found.accountant),
    ]
    said = [f"Epsilon is of {GUARANTEE}. It holds where {_ASSUMPTIONS}.", _NOTE]
    said += [f"warning: {line}" for line in _warnings(found)]
    words = "\n".join(textwrap.fill(line, _WIDTH, break_long_words=False) for line in said)
    drawn = [] if plot is None else [f"drawn: {plot}"]
    return "\n\n".join([aligned(rows), aligned(_curve_rows(found)), words, *drawn])


def _curve_rows(found: Plan) -> list[tuple[str, str, str]]:
    """The curve, or some of its rounds, the first and the last among them."""
    last = len(found.cost_per_round)
    shown = sorted({1 + round(place * (last - 1) / (_MOST_ROWS - 1)) for place in range(_MOST_ROWS)})
    head = ("after round", "epsilon", "of this round")
    return [head, *((str(number), _up(found.curve[number]), _up(found.cost_per_round[number - 1])) for number in shown)]


def _warnings(found: Plan) -> list[str]:
    keys = [line.partition(":") for line in found.warnings]
    return [f"{_OPTIONS.get(key, key)}:{why}" for key, _, why in keys]


def _up(epsilon: float) -> str:
    """Four decimals, rounded up: what is printed of an upper bound is one."""
    return f"{math.ceil(epsilon * 10_000) / 10_000:.4f}"
