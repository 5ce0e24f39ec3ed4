"""T19: a target that finishes no round is left by a source before much of its budget is gone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefda.privacy.dp_events import Budget
from securefda.protocol.messages import Advertise, MaskedInput
from securefda.rules import Strategy
from securefda.site.private_trainer import PrivateTrainer
from threat_model.adversaries.drains_budgets import AbortsRounds, DrainsBudget, PaysWithWords
from threat_model.private_sites import DELTA, private_trainer, rows_of, sgd, spent
from threat_model.sites import INPUTS
from threat_model.stage import MakesStage, Stage
from threat_model.switches import ANSWERED_SESSION, switched_off

N, VICTIM = 3, 1
BUDGET = Budget(8.0, DELTA)
ROWS = rows_of(np.eye(20, INPUTS), np.arange(20))
NOISY = sgd(0.01, 20, noise=4.0)
"""About thirty rounds of it cost an epsilon of 8."""

FINISHES_NONE = pytest.mark.parametrize(
    "adversary", [DrainsBudget, partial(AbortsRounds, after=MaskedInput)], ids=["drops", "aborts"]
)


def private_stage(
    staged: MakesStage, ledgers: Path, adversary: Any = DrainsBudget, **options: Any
) -> tuple[Stage, PrivateTrainer]:
    site = private_trainer(ledgers, ROWS, NOISY, budget=BUDGET)
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
