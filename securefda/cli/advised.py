"""The output of ``securefda budget advise``: the table of epsilons, what it rests on, and settings to paste."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from securefda.cli.output import filled
from securefda.privacy.dp_events import ASSUMPTIONS, GUARANTEE, TERMS
from securefda.text import aligned, bound_text, counted, duration, names

if TYPE_CHECKING:
    from securefda.local.advice import Advice, Cell
    from securefda.site.budget import BudgetSite

USED = (
    "Of the site's rows their number, their shape and their ledger were used; nothing was trained on them or charged."
)
OF_THE_STAND_IN = (
    "{} is of the stand-in, at its target. What carries over is the shape: how much noise costs, and which "
    "rounds and batch bear it best. How well a model does on the site's rows, only training on them says."
)


def advice_json(found: Advice, site: BudgetSite) -> dict[str, Any]:
    """Return the whole advice for programs."""
    return {
        "site": site.data.site_id,
        "data_set": site.data.name,
        "samples": site.data.samples,
        "past_epsilon": found.past_epsilon,
        "delta": found.plan.delta,
        "accountant": found.plan.accountant,
        "rule": found.rule,
        "metric": found.metric,
        "noise_at": found.noisy,
        "stand_in": found.stand_in,
        "stand_in_rows": dict(found.counts),
        "guess_accuracy": found.guess,
        "target_alone_accuracy": found.alone,
        "seconds": found.seconds,
        "out_of_time": found.out_of_time,
        "advised": _cell_json(found.advised, found)
        | {"epsilon_charged": found.plan.epsilon, "max_grad_norm": _clip(found, site)},
        "best": [_cell_json(cell, found) for cell in found.best.values()],
        "tried": [_cell_json(cell, found) for cell in found.cells],
        "note": f"{OF_THE_STAND_IN.format(found.metric.capitalize())} {USED}",
        "warnings": list(found.notes),
        "guarantee": GUARANTEE,
        "assumptions": ASSUMPTIONS,
    }


def _cell_json(cell: Cell, of: Advice) -> dict[str, Any]:
    return {
        "epsilon": cell.epsilon,
        "accuracy": cell.accuracy,
        "accuracies": cell.accuracies,
        "rounds": cell.rounds,
        "batch": None if of.of_moments else cell.batch,
        "noise_multiplier": None if cell.plan is None else cell.plan.noise_multiplier,
        "failed": cell.failed or None,
    }


def advice_text(found: Advice, site: BudgetSite, paste: Sequence[str]) -> str:
    """Return the whole advice as text for people."""
    target, *sources = found.counts
    rows = sorted({found.counts[one] for one in sources})
    each = f"{rows[0]}" if len(rows) == 1 else f"{rows[0]} to {rows[-1]}"
    runs = sum(len(cell.accuracies) for cell in found.cells)
    left_out = ", and the time limit kept others from beginning" if found.out_of_time else ""
    before = f"{bound_text(found.past_epsilon)} at delta {found.plan.delta:g}, by the ledger"
    heading = [
        ("data set", f"{site.data.name} of {site.data.site_id}, {site.data.samples} rows"),
        ("epsilon before", before),
        ("stand-in", found.stand_in),
        ("its sites", f"{target} with {found.counts[target]} rows, {names(sources)} with {each}"),
        ("training", f"{found.rule}, noise at {found.noisy}"),
        ("runs", f"{runs} in {duration(found.seconds)}{left_out}"),
    ]
    if found.alone is not None:
        heading.append(("target alone", f"{found.metric} {found.alone:.3f}, without any source"))
    plain, clip = found.best.get(None), _clip(found, site)
    table = [("epsilon", found.metric, "below no noise", "rounds", "batch", "noise multiplier", "clip norm", "runs")]
    for epsilon, cell in found.best.items():
        below = "" if plain is None or epsilon is None else f"{100 * _below(cell, plain):+.1f} points"
        table.append(
            (
                "no noise" if epsilon is None else f"{epsilon:g}",
                f"{cell.accuracy:.3f}",
                below,
                str(cell.rounds),
                "all rows" if found.of_moments else str(cell.batch),
                "" if cell.plan is None else f"{cell.plan.noise_multiplier:g}",
                "" if cell.plan is None or clip is None else f"{clip:g}",
                str(len(cell.accuracies)),
            )
        )
    advised = found.advised
    said = (
        f"Advised: epsilon {advised.epsilon:g}, the smallest within 2 points of the best with noise. "
        f"{_charged(found)} of {counted(found.plan.steps_per_round, 'step')} will be charged as epsilon "
        f"{bound_text(found.plan.epsilon)} in all."
    )
    lines = [
        said,
        OF_THE_STAND_IN.format(found.metric.capitalize()),
        USED,
        f"{TERMS[0].upper()}{TERMS[1:]}.",
        *(f"warning: {one}" for one in found.notes),
    ]
    return "\n\n".join([aligned(heading), aligned(table), filled(lines), *paste])


def _charged(found: Advice) -> str:
    """Return the rounds in which the site trains, of those of the run: a target does not in warm-up."""
    rounds, of = found.request.schedule.rounds, found.advised.rounds
    return counted(rounds, "round") if rounds == of else f"{rounds} of {counted(of, 'round')}, each"


def _below(cell: Cell, plain: Cell) -> float:
    return (plain.accuracy or 0.0) - (cell.accuracy or 0.0)


def _clip(found: Advice, site: BudgetSite) -> float | None:
    """Return the site's clip norm; None for second moments, whose clip the target sets."""
    return None if found.of_moments else site.config.training.dp.max_grad_norm
