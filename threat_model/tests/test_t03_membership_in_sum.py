"""T03: what a sum over few sources tells of whose rows are behind it, with and without noise at the sources.

Secure aggregation alone does not hide members: the masks are whole here, and the aggregator opens the sum as it should.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from securefda.protocol.messages import Visibility
from securefda.training.trainer import SiteTrainer
from threat_model.adversaries.membership import TellsMembers
from threat_model.privacy_bounds import auc_bound
from threat_model.private_sites import DELTA, Candidates, fixed_bytes, plain_trainer, private_trainer, sgd, spent
from threat_model.scores import RECOVERED_AUC, auc
from threat_model.stage import MakesStage, Stage

VICTIM, K = 2, 3
ROWS, NOISE = 200, 4.0
CANDIDATES = Candidates.drawn(ROWS, seed=3)
SETTINGS: dict[str, Any] = {"max_samples": ROWS}
PLAIN, NOISY = sgd(0.5, ROWS), sgd(0.5, ROWS, noise=NOISE)


def rows_at(index: int) -> Candidates:
    """The victim's are the candidates; the others have as many of the same kind, which the attacker does not know."""
    return CANDIDATES if index == VICTIM else Candidates.drawn(ROWS, seed=30 + index)


def area(stage: Stage) -> float:
    scores = stage.adversary.matches(CANDIDATES)
    return auc(scores[CANDIDATES.members], scores[~CANDIDATES.members])


@pytest.mark.threat("T03")
@pytest.mark.control
@pytest.mark.parametrize("visibility", [Visibility.COHORT, Visibility.SUM])
def test_members_are_found_in_a_sum_over_three_sources_without_noise(
    staged: MakesStage, visibility: Visibility
) -> None:
    sites: dict[int, SiteTrainer] = {index: plain_trainer(rows_at(index).data, PLAIN) for index in range(1, K + 1)}
    stage = staged(K, aggregator=TellsMembers, trainers=sites, settings=SETTINGS, visibility=visibility).play()
    assert len(stage.adversary.heard.vectors) == K
    assert area(stage) > RECOVERED_AUC


@pytest.mark.threat("T03")
@pytest.mark.parametrize("private", [(VICTIM,), (1, 2, 3)], ids=["the victim alone", "all"])
@pytest.mark.parametrize("visibility", [Visibility.COHORT, Visibility.SUM])
def test_members_are_found_in_a_sum_no_better_than_epsilon_allows(
    staged: MakesStage, ledgers: Path, visibility: Visibility, private: tuple[int, ...]
) -> None:
    """Noise is a fixed stream, so there is no false alarm; with a fresh one the area has a deviation of 0.04."""
    noisy = {
        index: private_trainer(
            ledgers, rows_at(index).data, NOISY, random_bytes=fixed_bytes(300 + index), name=f"rows-{index}"
        )
        for index in private
    }
    plain = {index: plain_trainer(rows_at(index).data, PLAIN) for index in range(1, K + 1) if index not in private}
    stage = staged(K, aggregator=TellsMembers, trainers=noisy | plain, settings=SETTINGS, visibility=visibility).play()
    bound = auc_bound(spent(noisy[VICTIM]), DELTA)
    assert len(stage.adversary.heard.vectors) == K
    assert area(stage) < bound < RECOVERED_AUC
