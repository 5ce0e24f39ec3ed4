"""T19: a target that finishes no round is left by a source before much of its budget is gone; one that opens runs and
begins none keeps the budget from other runs for less than two weeks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefda.privacy import reservations
from securefda.privacy.dp_events import Budget
from securefda.privacy.reservations import DAY_S
from securefda.protocol.messages import Advertise, MaskedInput
from securefda.rules import Strategy
from securefda.site.privacy_account import Reserving
from securefda.site.private_trainer import PrivateTrainer
from threat_model.adversaries.drains_budgets import AbortsRounds, DrainsBudget, HoldsBudget, PaysWithWords
from threat_model.private_sites import DELTA, NOON, private_trainer, rows_of, sgd, spent
from threat_model.sites import INPUTS
from threat_model.stage import MakesStage, Stage, honest_aggregator
from threat_model.switches import ANSWERED_SESSION, Switch, replaced, switched_off

N, VICTIM = 3, 1
HOLDS = 10
WHOLE_TIME = replaced("less time after what was not used", reservations, "unused", lambda _: lambda _: 0)
"""Every run reserves for the whole of dp.reserve-days, whatever the runs before it did with theirs."""
BUDGET = Budget(8.0, DELTA)
ROWS = rows_of(np.eye(20, INPUTS), np.arange(20))
NOISY = sgd(0.01, 20, noise=4.0)
"""About thirty rounds of it cost an epsilon of 8."""

FINISHES_NONE = pytest.mark.parametrize(
    "adversary", [DrainsBudget, partial(AbortsRounds, after=MaskedInput)], ids=["drops", "aborts"]
)


def private_stage(
    staged: MakesStage, ledgers: Path, adversary: Any = DrainsBudget, *, how: Mapping[str, Any] = {}, **options: Any
) -> tuple[Stage, PrivateTrainer]:
    site = private_trainer(ledgers, ROWS, NOISY, budget=BUDGET, **how)
    settings = {"strategy": Strategy(rule="source_only", rounds=100)}  # type: ignore[arg-type]
    return staged(N, aggregator=adversary, trainers={VICTIM: site}, settings=settings, **options), site


def drained(staged: MakesStage, ledgers: Path, **options: Any) -> tuple[Stage, PrivateTrainer]:
    stage, site = private_stage(staged, ledgers, **options)
    return stage.play(), site


@pytest.mark.threat("T19")
@FINISHES_NONE
def test_target_that_finishes_no_round_gets_three_of_them(staged: MakesStage, ledgers: Path, adversary: Any) -> None:
    stage, site = drained(staged, ledgers, adversary=adversary)
    assert len(stage.said(VICTIM, MaskedInput)) == 3
    assert stage.accepted(VICTIM) == 0
    assert stage.refusals(VICTIM) == ["release.max-unfinished"]
    assert 0 < spent(site) < BUDGET.epsilon / 3


@pytest.mark.threat("T19")
@pytest.mark.control
@FINISHES_NONE
def test_budget_is_gone_for_no_result_where_nobody_counts_rounds(
    staged: MakesStage, ledgers: Path, adversary: Any
) -> None:
    """No switch: the policies' own ``release.max-unfinished``."""
    stage, site = drained(staged, ledgers, adversary=adversary, max_unfinished=1000)
    assert stage.accepted(VICTIM) == 0
    assert 0.95 * BUDGET.epsilon < spent(site) <= BUDGET.epsilon
    assert len(stage.said(VICTIM, MaskedInput)) > 20


@pytest.mark.threat("T19")
def test_result_that_never_was_pays_for_no_round(staged: MakesStage, ledgers: Path) -> None:
    """In the second round it is a model of no result that this source knows of; that accuses nobody."""
    stage, site = drained(staged, ledgers, adversary=PaysWithWords)
    assert len(stage.said(VICTIM, Advertise)) == 1
    assert stage.refusals(VICTIM) == ["HEADER_CHAIN"]
    assert spent(site) < BUDGET.epsilon / 3


@pytest.mark.threat("T19")
@pytest.mark.control
def test_budget_is_gone_where_results_count_however_far_their_sessions_came(staged: MakesStage, ledgers: Path) -> None:
    stage, site = private_stage(staged, ledgers, PaysWithWords)
    with switched_off(ANSWERED_SESSION, roster=stage.roster):
        stage.play()
    assert stage.said(VICTIM, MaskedInput) == []
    assert 0.95 * BUDGET.epsilon < spent(site) <= BUDGET.epsilon


@dataclass
class Held:
    """A source whose budget runs reserve, and the clock of its ledger, in Unix seconds."""

    staged: MakesStage
    ledgers: Path
    off: Switch | None = None
    now: int = NOON

    def on_a_stage(self, aggregator: Any) -> tuple[Stage, PrivateTrainer]:
        how = {"reserving": Reserving(days=7), "unix_time": lambda: self.now}
        return private_stage(self.staged, self.ledgers, aggregator, how=how, model_step=1e9)

    def days_held(self, runs: int) -> float:
        """The attacker opens a run whenever nothing is reserved; returns for how many days most of the budget was."""
        stage, site = self.on_a_stage(HoldsBudget)
        stage.open()
        days = 0.0
        with switched_off(self.off, roster=stage.roster) if self.off else nullcontext():
            for _ in range(runs):
                while stage.under_way:
                    stage.deliver()
                ends = [one.expires for one in site.account.ledger.reservations(self.now) if one.left > 20]
                days += sum(ends) / DAY_S - len(ends) * self.now / DAY_S
                self.now = max(ends, default=self.now + DAY_S)
                stage.at_target(stage.adversary.open_another)
            while stage.under_way:
                stage.deliver()
        assert spent(site) == 0
        return days

    def honest_run(self) -> Stage:
        """A run of the honest target a day later."""
        self.now += DAY_S
        stage, _ = self.on_a_stage(honest_aggregator)
        stage.open()
        while not stage.accepted(VICTIM) and stage.step():
            pass
        return stage


@pytest.mark.threat("T19")
def test_runs_that_only_reserve_hold_a_budget_for_less_than_two_weeks(staged: MakesStage, ledgers: Path) -> None:
    held = Held(staged, ledgers)
    assert 13 < held.days_held(HOLDS) < 14
    assert held.honest_run().accepted(VICTIM) == 1


@pytest.mark.threat("T19")
@pytest.mark.control
def test_runs_that_only_reserve_hold_it_for_ever_where_each_has_the_whole_time(
    staged: MakesStage, ledgers: Path
) -> None:
    held = Held(staged, ledgers, off=WHOLE_TIME)
    assert held.days_held(HOLDS) == 7 * HOLDS
    refused = held.honest_run()
    assert refused.refusals(VICTIM) == ["dp.reserve-days"]
    assert refused.accepted(VICTIM) == 0
