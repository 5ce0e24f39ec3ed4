"""What runs have reserved of a budget: rows of a ledger say it, and a run's charges draw from its own reservation.

A reservation holds rounds, not an epsilon, since epsilons do not add up. It ends at its day, when it is released, when
all its rounds are charged, and by a reset of the ledger. Until then other runs can neither reserve nor spend it.

Reserving costs a target nothing. So each reservation that nothing was charged of halves the time of the next one.
However often runs reserve and spend nothing, they hold a budget for less than twice the time of the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from securefda.errors import BudgetExhausted
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import Budget, DpEvent
from securefda.privacy.ledger_storage import Row, charged, event_fields, last_reset
from securefda.privacy.planning import repeated, rounds_paid
from securefda.text import bound_text, utc_minute

DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class RunReservation:
    """What one run has reserved.

    Attributes:
        number: of its row in the ledger.
        event: of the first round; all have the same cost.
        rounds: that were reserved.
        left: those of them that are not charged yet.
        made: Unix time in seconds.
        expires: from this Unix time on it does not count.
    """

    number: int
    event: DpEvent
    rounds: int
    left: int
    made: int
    expires: int

    @property
    def run(self) -> str:
        """The run's id."""
        return self.event.run_id

    def pays_for(self, event: DpEvent) -> bool:
        """Whether a round costs what was reserved for one."""
        return _cost(self.event) == _cost(event)


def _cost(event: DpEvent) -> tuple[float, float, int]:
    return event.noise_multiplier, event.sampling_rate, event.steps


def reservations(rows: Sequence[Row], now: int) -> dict[str, RunReservation]:
    """Return the reservations that count at ``now``, by run."""
    held: dict[str, RunReservation] = {}
    for row in rows[last_reset(rows) :]:
        if (planned := row.planned) is not None:
            if row.fields["alone"]:
                held.clear()
            rounds = row.fields["rounds"]
            held[planned.run_id] = RunReservation(row.number, planned, rounds, rounds, row.time, row.fields["expires"])
        elif row.kind == "run-released":
            held.pop(row.fields["run"], None)
        elif row.kind == "reserved" and (event := row.event) is not None:
            own = held.get(event.run_id)
            if own is not None and own.pays_for(event):
                held[own.run] = replace(own, left=own.left - 1)
    return {run: one for run, one in held.items() if one.left > 0 and now < one.expires}


def unused(rows: Sequence[Row]) -> int:
    """Return how many reservations, over or not, no charge has made up for.

    A charge of the reservation's own run makes up for it, and one of a run that began later: a round was paid.
    """
    idle: list[tuple[str, int, frozenset[str]]] = []  # run, its day, and the runs that had begun before
    begun: frozenset[str] = frozenset()
    for row in rows[last_reset(rows) :]:
        if (planned := row.planned) is not None:
            run, until = planned.run_id, row.fields["expires"]
            if (run, until) not in {held[:2] for held in idle}:  # else made anew, for another cost
                idle.append((run, until, begun - {run}))
            begun |= {run}
        elif row.kind == "reserved" and (event := row.event) is not None:
            run = event.run_id
            idle = [held for held in idle if held[0] != run and run in held[2]]
            begun |= {run}
    return len(idle)


def was_released_by_hand(rows: Sequence[Row], run: str) -> bool:
    """Whether the operator has released what the run had reserved, since the last reset."""
    since = rows[last_reset(rows) :]
    return any(row.kind == "run-released" and row.fields == {"run": run, "why": "by-hand"} for row in since)


def events_of(held: Iterable[RunReservation]) -> list[DpEvent]:
    """What is reserved and not charged yet, as events."""
    return [event for one in held for event in repeated(one.event, one.left)]


def fields_of(event: DpEvent, rounds: int, expires: int, *, alone: bool) -> dict[str, Any]:
    """The fields of a reservation's row."""
    return {"event": event_fields(event), "rounds": rounds, "expires": expires, "alone": int(alone)}


def missing_rounds(rows: Sequence[Row], event: DpEvent, rounds: int, budget: Budget) -> int:
    """Return how many rounds of a plan are to be reserved.

    Rounds that the run has had need none, and what the budget would not pay for either way is left to the charges.

    Args:
        rows: of the ledger.
        event: a round of the run.
        rounds: of the whole run.
        budget: of the data set.
    """
    had = max((past.round for row in rows if (past := row.event) and past.run_id == event.run_id), default=0)
    return rounds_paid(event, rounds - had, budget, past=charged(rows)) if rounds > had else 0


def require_unreserved(
    past: Sequence[DpEvent],
    held: Mapping[str, RunReservation],
    wanted: Sequence[DpEvent],
    budget: Budget,
    *,
    what: str,
    needs: str,
    error: type[BudgetExhausted] = BudgetExhausted,
) -> None:
    """Refuse what fits into a budget, but not beside what other runs have reserved of it.

    Args:
        past: what is charged.
        held: the reservations beside which it has to fit.
        wanted: the rounds.
        budget: of the data set.
        what: whose budget, of which run and at which delta, for the line.
        needs: the rounds in words.
        error: what to raise.

    Raises:
        BudgetExhausted: it does not fit.
    """
    if not held:
        return
    # All together in one account: epsilons of parts do not add up to that of the whole.
    promised = [*past, *events_of(held.values())]
    spent, before, after = (
        epsilon(events, budget.delta, budget.accountant) for events in (past, promised, [*promised, *wanted])
    )
    if after <= budget.epsilon:
        return
    last = max(held.values(), key=lambda one: one.expires)
    runs = ", ".join(run[:12] for run in held)
    raise error(
        spent,
        budget.epsilon,
        after - before,
        what=what,
        needs=f"epsilon {bound_text(before - spent)} is reserved for run {runs} until {utc_minute(last.expires)}, and "
        + needs,
        hint=f"wait until then, release it (securefda budget release --config FILE --run {last.run[:12]}) if that run "
        "is over, or raise dp.target-epsilon in the signed policy",
    )
