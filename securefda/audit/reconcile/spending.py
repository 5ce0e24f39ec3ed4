"""What the logs say of privacy budgets: epsilon computed anew from the charges, and ledgers that only grow. Pure.

A ledger counts over all runs, and a log has one run. Where the ledger began in this run and has no rows that the log
does not know, epsilon must be what the charges come to; else it must be at least that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from securefda.audit.reconcile.check import Check, RunLogs
from securefda.audit.reconcile.suspicion import Mark, RunFinding, RunKind, Suspicion
from securefda.audit.records import DpSpent, Record
from securefda.errors import ConfigError
from securefda.privacy.accountants import epsilon
from securefda.privacy.events import DpEvent

TOLERANCE: Final = 1e-6
"""Relative; epsilons are written so that they read back as the same float."""
_FIRST_ROWS: Final = 2
"""Of a ledger at its first charge: it was opened, and the charge."""
_MOST_ROWS: Final = 2
"""Between two charges: that the one before is finished, and the charge."""
_MOST_SLOW: Final = 24
"""By PRV an epsilon takes seconds: of one log so many are computed anew, evenly, and always the last."""


@dataclass(frozen=True, slots=True)
class _Spent:
    mark: Mark
    round: int
    attempt: int
    dp: DpSpent


class Spending(Check):
    """Collects what the logs say of their ledgers."""

    name = "spending"
    compares = "the epsilon of each log with what its charges come to, and the rows of its ledger with those before"

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._by_party: dict[str, list[_Spent]] = {}
        self._recomputed = 0
        self._unknown: list[str] = []

    def counts(self) -> Mapping[str, int]:
        """How many charges there are, and how many epsilons were computed anew."""
        return {
            "ledger updates": sum(map(len, self._by_party.values())),
            "epsilons computed anew": self._recomputed,
        }

    def notices(self) -> list[str]:
        """Ledgers with rows from outside their logs."""
        return self._unknown

    def see(self, record: Record) -> None:
        """Take a record; all but ``ledger-updated`` are passed over."""
        entry = record.entry
        if entry.type == "ledger-updated" and entry.dp is not None:
            spent = _Spent(Mark.of(record), entry.round, entry.attempt, entry.dp)
            self._by_party.setdefault(record.party, []).append(spent)

    def suspicions(self) -> Iterator[Suspicion]:
        """Epsilons that are wrong, and ledgers that went back."""
        for party, updates in sorted(self._by_party.items()):
            yield from self._rows(updates)
            yield from self._epsilons(party, updates)

    def _rows(self, updates: list[_Spent]) -> Iterator[Suspicion]:
        for before, after in pairwise(updates):
            if after.dp.ledger_rows <= before.dp.ledger_rows:
                rows = f"{after.dp.ledger_rows} rows after {before.dp.ledger_rows}"
                yield _suspicion(
                    "ledger-went-back", f"the privacy ledger of {after.mark.party} has {rows}", after, before
                )
            elif after.dp.ledger_digest == before.dp.ledger_digest:
                what = f"two rows of the privacy ledger of {after.mark.party} have one digest"
                yield _suspicion("ledger-went-back", what, after, before)

    def _epsilons(self, party: str, updates: list[_Spent]) -> Iterator[Suspicion]:
        steps: Counter[tuple[float, float]] = Counter()
        exact, rows = True, 0
        wanted = _sample(updates)
        for place, update in enumerate(updates):
            dp = update.dp
            steps[float(dp.noise_multiplier), float(dp.sampling_rate)] += dp.steps
            gap = dp.ledger_rows - rows
            if exact and (gap > (_MOST_ROWS if place else _FIRST_ROWS)):
                exact = False
                self._unknown.append(
                    f"{party}: its privacy ledger has rows of which this log knows nothing, before row "
                    f"{dp.ledger_rows}; epsilon is checked to be at least what the log comes to"
                )
            rows = dp.ledger_rows
            if place in wanted:
                yield from self._check(update, steps, exact=exact)

    def _check(self, update: _Spent, steps: Counter[tuple[float, float]], *, exact: bool) -> Iterator[Suspicion]:
        dp, stated = update.dp, float(update.dp.epsilon)
        try:
            charges = [DpEvent("-", 1, 0, noise, rate, count, 1.0) for (noise, rate), count in sorted(steps.items())]
            value = epsilon(charges, float(dp.delta), dp.accountant)
        except ConfigError as error:
            yield _suspicion("wrong-epsilon", f"no accountant gives an epsilon for the charge: {error}", update)
            return
        self._recomputed += 1
        slack = TOLERANCE * max(value, stated)
        if stated < value - slack:
            what = f"{update.mark.party} says that epsilon {stated:.6g} is spent; its charges come to {value:.6g}"
            yield _suspicion("wrong-epsilon", f"{what}, unless its ledger was reset in this run", update)
        elif exact and stated > value + slack:
            what = f"{update.mark.party} says that epsilon {stated:.6g} is spent; its charges come to {value:.6g}"
            yield _suspicion("wrong-epsilon", f"{what}, and its ledger has no others", update)


def _sample(updates: list[_Spent]) -> set[int]:
    slow = [place for place, update in enumerate(updates) if update.dp.accountant != "rdp"]
    quick = {place for place, update in enumerate(updates) if update.dp.accountant == "rdp"}
    every = max(1, -(-len(slow) // _MOST_SLOW))
    return quick | set(slow[::-1][::every])


def _suspicion(kind: RunKind, what: str, update: _Spent, *others: _Spent) -> Suspicion:
    party, marks = update.mark.party, (*(other.mark for other in others), update.mark)
    place = update.round, update.attempt
    return Suspicion(RunFinding(kind, what, (party,), (party, ""), "ledger-updated", *place, records=marks))
