"""T02: what one update, which a site sends at `individual`, tells of who is in its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from securefda.protocol.messages import MaskedInput, Update, Visibility
from securefda.site.policy import default_policy
from securefda.training.trainer import SiteTrainer
from threat_model.adversaries.membership import TellsMembers
from threat_model.privacy_bounds import auc_bound
from threat_model.private_sites import DELTA, Candidates, fixed_bytes, plain_trainer, private_trainer, sgd, spent
from threat_model.scores import auc
from threat_model.stage import MakesStage, Stage

VICTIM, ROWS = 1, 100
FOUND = 0.8
CANDIDATES = Candidates.drawn(ROWS, seed=2)
EPOCHS, RATE, NOISE = 20, 10.0, 16.0
CLIP = 64.0
SETTINGS: dict[str, Any] = {"max_samples": ROWS, "clip": CLIP}


def played(staged: MakesStage, site: SiteTrainer) -> Stage:
    return staged(
        3,
        aggregator=TellsMembers,
        trainers={VICTIM: site},
        visibility=Visibility.INDIVIDUAL,
        settings=SETTINGS,
    ).play()


def area(stage: Stage) -> float:
    scores = stage.adversary.losses(VICTIM, CANDIDATES)
    return auc(scores[CANDIDATES.members], scores[~CANDIDATES.members])


@pytest.mark.threat("T02")
@pytest.mark.control
def test_members_are_found_by_their_loss_under_an_update_fitted_to_them(staged: MakesStage) -> None:
    stage = played(staged, plain_trainer(CANDIDATES.data, sgd(RATE, ROWS, epochs=EPOCHS)))
    assert area(stage) > FOUND


@pytest.mark.threat("T02")
def test_members_are_found_no_better_than_epsilon_allows(staged: MakesStage, ledgers: Path) -> None:
    """Noise is a fixed stream, so there is no false alarm; with a fresh one the area has a deviation of 0.06."""
    settings = sgd(RATE, ROWS, epochs=EPOCHS, noise=NOISE)
    site = private_trainer(ledgers, CANDIDATES.data, settings, random_bytes=fixed_bytes(2))
    stage = played(staged, site)
    bound = auc_bound(spent(site), DELTA)
    assert area(stage) < bound


@pytest.mark.threat("T02", "T01")
def test_sites_with_the_default_policy_send_no_update_in_clear_though_the_run_would_have_it(
    staged: MakesStage,
) -> None:
    """T33 shows that a header which demands it is refused."""
    policies = dict.fromkeys((1, 2, 3), default_policy(clip=CLIP, max_samples=ROWS, kappa=0.0))
    stage = staged(
        3, aggregator=TellsMembers, policies=policies, visibility=Visibility.INDIVIDUAL, settings=SETTINGS
    ).play()
    assert [len(stage.said(index, MaskedInput)) for index in policies] == [1, 1, 1]
    assert [stage.said(index, Update) for index in policies] == [[], [], []]
