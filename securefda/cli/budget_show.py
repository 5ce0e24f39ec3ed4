"""The work of ``securefda budget show``: what a ledger says of its rows, against the budget as it is now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from securefda.cli.budget_site import BudgetSite, down, draw, filled, finite, up
from securefda.privacy.accountants import epsilon
from securefda.privacy.events import ASSUMPTIONS, GUARANTEE, Budget, DpEvent, delta_warning
from securefda.privacy.ledger_storage import CLOCK_SLACK_S, Row, charged, last_reset
from securefda.privacy.planning import plan_epsilon, rounds_within
from securefda.site.privacy_account import TERMS
from securefda.text import aligned, printable

_MOST_ROUNDS = 1000
"""More of them are not counted: by PRV it would take minutes."""

_LATE = "finished after a reset"


@dataclass(frozen=True, slots=True)
class Ahead:
    """The next round, as the site's settings have it.

    Attributes:
        noise_multiplier, sampling_rate, steps, max_grad_norm: as it would be charged.
        spent: epsilon with it.
        rounds: how many like it the budget pays for, at most ``_MOST_ROUNDS``.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    max_grad_norm: float
    spent: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Standing:
    """A ledger against a budget.

    Attributes:
        site: whose.
        budget: as the site's policy, or the target's settings, have it now.
        rows: of the ledger, checked.
        spent: epsilon of all that counts.
        ahead: None where the site's settings train without noise.
        warnings: lines for the user.
    """

    site: BudgetSite
    budget: Budget
    rows: tuple[Row, ...]
    spent: float
    ahead: Ahead | None
    warnings: tuple[str, ...]


_TAKEN_OVER = "row {} is not signed with the site's present key; the site went on with it in a later one"


@dataclass(frozen=True, slots=True)
class Charge:
    """A row that charges, and epsilon from the reset before it up to it, by the budget's accountant."""

    row: Row
    event: DpEvent
    state: str
    counts: bool
    spent: float


def standing_of(site: BudgetSite, budget: Budget, now: int) -> Standing:
    """Read a ledger, check all that can be checked of it, and hold it against a budget. Nothing is written.

    Raises:
        LedgerError: it is missing, cannot be read, or is in doubt.
        ConfigError: the rows have changed since they were last used; the settings do not fit the rows.
    """
    taken_over = site.check_statements()
    rows = site.ledger.rows()
    past = charged(rows)
    spent = epsilon(past, budget.delta, budget.accountant)
    found = Standing(site, budget, rows, spent, _ahead(site, budget, past), ())
    return replace(found, warnings=(*(_TAKEN_OVER.format(row) for row in taken_over), *_warnings(found, now)))


def _ahead(site: BudgetSite, budget: Budget, past: Sequence[DpEvent]) -> Ahead | None:
    dp = site.config.training.dp
    if dp.noise_multiplier == 0:
        return None
    one = plan_epsilon(site.schedule(), dp.noise_multiplier, budget.delta, accountant=budget.accountant, past=past)
    rounds = rounds_within(site.schedule(_MOST_ROUNDS), dp.noise_multiplier, budget, past=past)
    return Ahead(dp.noise_multiplier, one.sampling_rate, one.steps_per_round, dp.max_grad_norm, one.epsilon, rounds)


def _warnings(found: Standing, now: int) -> Iterator[str]:
    limit, written = found.budget.epsilon, found.rows[-1].time
    of_delta = delta_warning(found.budget.delta, found.site.data.samples)
    if of_delta is not None:
        yield f"{found.site.delta_key()}:{of_delta.partition(':')[2]}"
    if found.ahead is None:
        yield "training.dp.noise-multiplier is 0: rows with a privacy ledger are not trained on without noise"
    elif found.spent > limit:
        yield f"more is spent than the budget of {limit:g} allows now: nothing trains on these rows"
    elif found.ahead.rounds == 0:
        yield "the budget is exhausted: what is left does not pay for a round as set"
    if now < written - CLOCK_SLACK_S:
        yield f"the clock says {_when(now)}, and the ledger was written at {_when(written)}: nothing trains"
    if last_reset(found.rows):
        yield "rows that trained before the last reset have lost the protection that this epsilon states"


def charges_of(rows: Sequence[Row], budget: Budget) -> list[Charge]:
    """Every row that charges, in order, with epsilon computed anew under ``budget``."""
    committed = {row.fields["of"] for row in rows if row.kind == "committed"}
    reset = last_reset(rows)
    past: list[DpEvent] = []
    found = []
    for row in rows:
        if row.kind == "reset":
            past = []
        event = row.event
        if event is None:
            continue
        past.append(event)
        state = row.fields["why"] if row.kind == "charged" else "finished" if row.number in committed else "unfinished"
        spent = epsilon(past, budget.delta, budget.accountant)
        found.append(Charge(row, event, state, row.number > reset, spent))
    return found


def counts_of(rows: Sequence[Row]) -> dict[str, int]:
    """Rounds since the last reset: charged, finished, and those that were interrupted or are under way."""
    since = rows[last_reset(rows) :]
    committed = {row.fields["of"] for row in rows if row.kind == "committed"}
    late = sum(row.kind == "charged" and row.fields["why"] == _LATE for row in since)
    reserved = [row.number in committed for row in since if row.kind == "reserved"]
    return {"charged": len(reserved) + late, "finished": sum(reserved) + late, "unfinished": reserved.count(False)}


def statements_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every reset and acceptance, with what it overruled."""
    found = []
    bound = rows[0]
    for before, row in pairwise(rows):
        if not row.is_statement:
            continue
        overruled = list(_overruled(bound, before, row))
        shown = {"row": row.number, "kind": row.kind, "time": row.time, "reason": row.fields["reason"]}
        found.append(shown | {"overruled": overruled})
        bound = row
    return found


def _overruled(bound: Row, before: Row, row: Row) -> Iterator[str]:
    if row.fields["doubt"]:
        yield f"the ledger {row.fields['doubt']}"
    then, now = ((item.fields["fingerprint"], item.fields["samples"]) for item in (bound, row))
    if then != now:
        yield f"the rows have changed: {then[1]} of fingerprint {then[0][:12]} before, {now[1]} of {now[0][:12]} now"
    if row.time < before.time - CLOCK_SLACK_S:
        yield f"the clock went back from {_when(before.time)} to {_when(row.time)}"


def show_json(found: Standing, charges: Sequence[Charge] | None, plot: Path | None) -> dict[str, Any]:
    """For programs; ``charges`` is None where they were not asked for."""
    data, budget, ahead = found.site.data, found.budget, found.ahead
    return {
        "site": data.site_id,
        "data_set": data.name,
        "samples": data.samples,
        "fingerprint": data.fingerprint,
        "ledger": str(found.site.file),
        "accountant": budget.accountant,
        "delta": budget.delta,
        "limit": budget.epsilon,
        "spent": finite(found.spent),
        "left": finite(max(0.0, budget.epsilon - found.spent)),
        "rounds": counts_of(found.rows),
        "next_round": None if ahead is None else _ahead_json(ahead, found.spent),
        "statements": statements_of(found.rows),
        "spent_as_if_never_reset": finite(_never_reset(found)),
        "charges": None if charges is None else [_charge_json(charge) for charge in charges],
        "plot": None if plot is None else str(plot),
        "guarantee": GUARANTEE,
        "assumptions": ASSUMPTIONS,
        "warnings": list(found.warnings),
    }


def _never_reset(found: Standing) -> float:
    events = [event for row in found.rows if (event := row.event) is not None]
    return epsilon(events, found.budget.delta, found.budget.accountant)


def _ahead_json(ahead: Ahead, spent: float) -> dict[str, Any]:
    return {
        "noise_multiplier": ahead.noise_multiplier,
        "sampling_rate": ahead.sampling_rate,
        "steps": ahead.steps,
        "max_grad_norm": ahead.max_grad_norm,
        "epsilon": finite(ahead.spent - spent),
        "spent_after": finite(ahead.spent),
        "rounds_left": ahead.rounds,
        "rounds_left_or_more": ahead.rounds == _MOST_ROUNDS,
    }


def _charge_json(charge: Charge) -> dict[str, Any]:
    event = charge.event
    return {
        "row": charge.row.number,
        "time": charge.row.time,
        "run": event.run_id,
        "round": event.round,
        "attempt": event.attempt,
        "noise_multiplier": event.noise_multiplier,
        "sampling_rate": event.sampling_rate,
        "steps": event.steps,
        "max_grad_norm": event.max_grad_norm,
        "state": charge.state,
        "counts": charge.counts,
        "spent_after": finite(charge.spent),
    }


def show_text(found: Standing, charges: Sequence[Charge] | None, plot: Path | None) -> str:
    """For people."""
    parts = [aligned(list(_rows(found)))]
    if charges:
        parts += [_run_text(run, list(of_run)) for run, of_run in groupby(charges, key=lambda one: one.event.run_id)]
    elif charges is not None:
        parts.append("no round was charged yet")
    parts.append(filled([f"{TERMS[0].upper()}{TERMS[1:]}.", *(f"warning: {line}" for line in found.warnings)]))
    return "\n\n".join([*parts, *([] if plot is None else [f"drawn: {plot}"])])


def _rows(found: Standing) -> Iterator[tuple[str, str]]:
    data, budget, counts = found.site.data, found.budget, counts_of(found.rows)
    yield "data set", f"{data.name} of {data.site_id}, {data.samples} rows, fingerprint {data.fingerprint[:12]}"
    yield "ledger", str(found.site.file)
    yield "accountant", budget.accountant
    yield "delta", f"{budget.delta:g}"
    yield "limit", f"epsilon {budget.epsilon:g}"
    yield "spent", f"epsilon {up(found.spent)}"
    yield "left", f"epsilon {down(max(0.0, budget.epsilon - found.spent))}"
    how = f": {counts['finished']} finished, {counts['unfinished']} interrupted or under way"
    yield "rounds charged", f"{counts['charged']}{how if counts['charged'] else ''}"
    if found.ahead is not None:
        yield from _ahead_rows(found.ahead, found.spent)
    for said in statements_of(found.rows):
        overruled = "".join(f"; found then: {line}" for line in said["overruled"])
        yield said["kind"], printable(f"{_when(said['time'])}, row {said['row']}: {said['reason']}{overruled}")
    if last_reset(found.rows):
        yield "without any reset", f"epsilon {up(_never_reset(found))} would be spent"


def _ahead_rows(ahead: Ahead, spent: float) -> Iterator[tuple[str, str]]:
    how = f"{ahead.steps} steps, noise multiplier {ahead.noise_multiplier:g}, sampling rate {ahead.sampling_rate:.4g}"
    yield "next round as set", f"epsilon {up(ahead.spent - spent)} more: {how}, clip norm {ahead.max_grad_norm:g}"
    yield "rounds left as set", f"{ahead.rounds}{' or more' if ahead.rounds == _MOST_ROUNDS else ''}"


def _run_text(run: str, charges: Sequence[Charge]) -> str:
    head = ("row", "time", "round", "attempt", "steps", "noise", "state", "epsilon spent")
    rows = [
        (
            str(charge.row.number),
            _when(charge.row.time),
            str(charge.event.round),
            str(charge.event.attempt),
            str(charge.event.steps),
            f"{charge.event.noise_multiplier:g}",
            charge.state if charge.counts else f"{charge.state}, before the reset",
            up(charge.spent),
        )
        for charge in charges
    ]
    return f"run {run}\n{aligned([head, *rows])}"


def draw_charges(path: Path, found: Standing, charges: Sequence[Charge]) -> None:
    """Draw epsilon after every charge, and the limit, over the charges in order. Raises ConfigError."""
    points, resets = [(0, 0.0)], [row.number for row in found.rows if row.kind == "reset"]
    before = 0
    for place, charge in enumerate(charges, start=1):
        if any(before < reset < charge.row.number for reset in resets):
            points.append((place - 1, 0.0))
        points.append((place, charge.spent))
        before = charge.row.number
    limit = [(0, found.budget.epsilon), (max(1, len(charges)), found.budget.epsilon)]
    draw(path, {"spent": points, "limit": limit}, found.budget.delta, f"{TERMS}. By {found.budget.accountant}.")


def _when(time: int) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
