"""Sum of claims: whatever happens to runs, the ledger's epsilon is that of the raw events, computed another way.

A trace is one data set's life: rounds of two runs that take turns, kills at every point of a round, second attempts,
restarts, policies that change epsilon and delta, settings that change noise, sampling rate, steps and clip norm, and
the site's own word, by which the ledger is accepted or begins anew, also while a round is in progress. What began to
train is written down beside the ledger and composed by numerical integration (independent.py), event by event.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from independent import independent_epsilon
from ledger_site import NOON, Site, sign

from securefda.errors import BudgetExhausted
from securefda.privacy.dp_events import Budget, DpEvent
from securefda.privacy.ledger import Ledger, Reservation

TRACES, CHUNK = 200, 20
TOLERANCE = 1e-6
DELTAS = (1e-5, 1e-3)
# noise multiplier, sampling rate
SETTINGS = ((0.8, 0.05), (1.0, 0.1), (1.3, 0.02), (2.0, 0.25), (4.0, 1.0), (1.0, 0.01))


@dataclass
class Life:
    """One trace: its ledger, its policy, and what happened."""

    site: Site
    chance: random.Random
    budget: Budget = field(default_factory=lambda: Budget(20.0, DELTAS[0]))
    charged: list[DpEvent] = field(default_factory=list)
    training: dict[str, Reservation] = field(default_factory=dict)
    before_reset: set[int] = field(default_factory=set)
    refusals: int = 0
    clock: Iterator[int] = field(default_factory=lambda: count(NOON))

    def change_policy(self) -> None:
        self.budget = Budget(self.chance.choice([2.0, 6.0, 20.0, 60.0]), self.chance.choice(DELTAS))

    def begin_round(self, run: str) -> None:
        """A run reserves; it may be killed before, or right after the row was written."""
        noise, rate = self.chance.choice(SETTINGS)
        clip = self.chance.choice([0.1, 1.0, 10.0])
        event = DpEvent(run, 1, self.chance.randrange(3), noise, rate, self.chance.randint(1, 40), clip)
        markers = set(self.site.path.parent.glob("*.rows-*"))
        try:
            reservation = self.ledger.reserve(event, self.budget, now=next(self.clock))
        except BudgetExhausted as error:
            self.refusals += 1
            self.check_refusal(error, event)
            return
        self.charged.append(event)
        if self.chance.random() < 0.2:  # killed between the commit of the row and the new marker
            for path in set(self.site.path.parent.glob("*.rows-*")) - markers:
                path.unlink()
            for path in markers:
                path.touch()
        else:
            self.training[run] = reservation

    def end_round(self, run: str) -> None:
        """The run finishes its round, or is killed in it."""
        reservation = self.training.pop(run)
        if self.chance.random() < 0.6:
            self.ledger.commit(reservation, steps=reservation.event.steps, now=next(self.clock))
            if reservation.number in self.before_reset:  # it trained on, and what it costs counts anew
                self.charged.append(reservation.event)

    def speak(self) -> None:
        """The site signs that it goes on with the ledger as it is, or that nothing counts as spent any more."""
        if self.chance.random() < 0.6:
            self.ledger.accept("moved to another disk", sign, now=next(self.clock))
            return
        self.ledger.reset("other rows", sign, now=next(self.clock))
        self.charged.clear()
        self.before_reset |= {reservation.number for reservation in self.training.values()}

    @property
    def ledger(self) -> Ledger:
        return self.site.ledger  # a new object each time: every step is one of a process that was just started

    def check_refusal(self, error: BudgetExhausted, event: DpEvent) -> None:
        spent = independent_epsilon(self.charged, self.budget.delta)
        after = independent_epsilon([*self.charged, event], self.budget.delta)
        assert error.spent == pytest.approx(spent, abs=TOLERANCE)
        assert error.cost == pytest.approx(after - spent, abs=TOLERANCE)
        assert after > self.budget.epsilon - TOLERANCE


def live(site: Site, seed: int) -> Life:
    life = Life(site, random.Random(seed))
    for _ in range(life.chance.randint(4, 16)):
        run = life.chance.choice(["run-1", "run-2"])
        if life.chance.random() < 0.15:
            life.change_policy()
        if life.chance.random() < 0.07:
            life.speak()
        (life.end_round if run in life.training else life.begin_round)(run)
    return life


@pytest.mark.parametrize("first", range(0, TRACES, CHUNK))
def test_ledger_is_the_sum_of_what_was_charged_after_rounds_kills_restarts_and_policies(
    tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + CHUNK):
        place = tmp_path / str(seed)
        place.mkdir()

        life = live(Site.new(place), seed)

        assert life.ledger.events() == tuple(life.charged), seed
        for delta in DELTAS:
            expected = independent_epsilon(life.charged, delta)
            assert life.ledger.spent(delta) == pytest.approx(expected, abs=TOLERANCE), seed
        check_every_row(life)


def check_every_row(life: Life) -> None:
    """Each reservation's row says what was spent with it, and never more than its limit."""
    so_far: list[DpEvent] = []
    for row in life.ledger.rows():
        if row.kind == "reset":
            so_far.clear()
        if row.event is not None:
            so_far.append(row.event)
        if row.kind != "reserved":
            continue
        spent = float(row.fields["spent"])
        assert spent == pytest.approx(independent_epsilon(so_far, float(row.fields["delta"])), abs=TOLERANCE)
        assert spent <= float(row.fields["limit"])


def test_traces_hold_every_kind_of_thing_that_is_claimed(tmp_path: Path) -> None:
    lives = []
    for seed in range(40):
        (tmp_path / str(seed)).mkdir()
        lives.append(live(Site.new(tmp_path / str(seed)), seed))
    kinds = [[row.kind for row in life.ledger.rows()] for life in lives]

    assert sum(life.refusals for life in lives) > 10
    assert sum(life.budget != Budget(20.0, DELTAS[0]) for life in lives) > 10
    assert sum(kind.count("reserved") - kind.count("committed") for kind in kinds) > 40  # killed
    assert sum({"run-1", "run-2"} <= {event.run_id for event in life.charged} for life in lives) > 10
    assert sum(kind.count("accepted") for kind in kinds) > 5
    assert sum(kind.count("reset") for kind in kinds) > 5
    assert sum(len({event.max_grad_norm for event in life.charged}) > 1 for life in lives) > 10
    assert sum(kind.count("charged") for kind in kinds) > 0  # finished after a reset


def test_accountant_that_begins_anew_with_each_run_understates_what_was_spent(tmp_path: Path) -> None:
    """The companion: what an engine made anew would say is found by the same comparison."""
    life = live(Site.new(tmp_path), 6)
    last_run = [event for event in life.charged if event.run_id == life.charged[-1].run_id]
    assert last_run != life.charged

    assert independent_epsilon(last_run, DELTAS[0]) < life.ledger.spent(DELTAS[0]) - 0.1
