"""The audit of a site's noise: no honest site is above its ledger, and one that adds a quarter of its noise is.

Coins and noise are the operating system's, so every run differs. The bound of an honest site exceeds its epsilon with a
probability of at most 1e-6, since that is the confidence it is made with, at a small delta: with a large one, luck is
too likely for such a confidence. The bound of the faulty site has the confidence and the delta of the command; it is
missed if the number of right guesses, about 850 of 1000, is eight standard deviations below its mean.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from securefda.errors import ConfigError, DataError, ExitCode, TrainingError
from securefda.local.privacy_audit import ABOVE, BELOW, AuditedSite, Question, Release, audit_privacy
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import Budget, DpEvent
from securefda.tasks import Unlabelled
from securefda.text import left_text
from securefda.training import TrainingSettings
from threat_model.private_sites import Rows, rows_of, sgd

SURE = 1 - 1e-6
ROWS = 20
MANY = Question(canaries=4000, trainings=40)
FEW = Question(canaries=100, trainings=1, guesses=40)
RELEASES = pytest.mark.parametrize("release", list(Release))


def site_of(settings: TrainingSettings, task: Rows | None = None, **changes: Any) -> AuditedSite:
    """A site that trains one linear layer, 512 to 2."""
    task = task or Rows(512, 2)
    numbers = np.random.default_rng(3)
    inputs = next(layer for layer in task.model().modules() if isinstance(layer, nn.Linear)).in_features
    rows = rows_of(numbers.normal(size=(ROWS, inputs)), numbers.integers(0, 2, ROWS))
    return AuditedSite(
        task, "site", **{"rows": rows, "settings": settings, "seed": 0, "budget": Budget(8, 1e-5)} | changes
    )


def small(noise: float, release: Release = Release.TRAINING, **changes: Any) -> AuditedSite:
    """A site whose audit is quick: in second moments, rows of 40 features have 943 numbers."""
    return site_of(sgd(0.1, ROWS, noise=noise), Rows(40, 2) if release is Release.MOMENTS else None, **changes)


@RELEASES
def test_no_honest_site_is_above_its_ledger(release: Release) -> None:
    asked = Question(canaries=2000, trainings=20, delta=1e-10, confidence=SURE, release=release)
    audited = audit_privacy(small(4.0, release), asked)

    assert audited.epsilon == epsilon([DpEvent("r", 1, 0, 4.0, 1.0, 1, 1.0)], 1e-10)
    assert (audited.is_above, audited.verdict, audited.error) == (False, BELOW, None)


@RELEASES
def test_a_quarter_of_the_noise_that_is_charged_is_found(release: Release) -> None:
    audited = audit_privacy(small(1.0, release), replace(MANY, release=release), charged_as=4.0)

    assert audited.epsilon == epsilon([DpEvent("r", 1, 0, 4.0, 1.0, 1, 1.0)], 1e-5)
    assert (audited.is_above, audited.verdict) == (True, ABOVE)
    assert audited.error is not None
    assert audited.error.exit_code is ExitCode.PRIVACY
    assert str(audited.error).startswith(f"site is {ABOVE}; epsilon is at least {left_text(audited.bound)}")


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_audit_with_next_to_no_noise_recognises_nearly_every_canary(optimizer: str) -> None:
    """In 12 steps that draw a row with 1/4 each, one in 32 canaries is never drawn, and looks as if it were out."""
    settings = replace(sgd(0.1, 5, epochs=3, noise=0.01), optimizer=optimizer)
    audited = audit_privacy(site_of(settings), Question(canaries=200, guesses=100, trainings=2))

    assert audited.strength == pytest.approx(1, abs=0.01)
    assert audited.correct >= 85


@pytest.mark.parametrize("batch", [1, 3, 7, 20])
def test_what_is_charged_is_what_the_sites_own_rounds_are_charged(batch: int) -> None:
    """Canaries change neither the sampling rate nor the number of steps."""
    settings = sgd(0.1, batch, epochs=2, noise=2.0, clip=0.7)
    audited = audit_privacy(site_of(settings), replace(FEW, rounds=3, delta=1e-7))

    batches = -(-ROWS // batch)
    event = DpEvent("audit", 1, 0, 2.0, 1 / batches, 2 * batches, 0.7)
    assert replace(audited.event, run_id="audit") == event
    assert audited.epsilon == epsilon([event] * 3, 1e-7)
    assert (audited.delta, audited.rows) == (1e-7, ROWS)


def test_an_audit_that_cannot_show_more_than_the_ledger_counts_is_known_beforehand() -> None:
    audited = audit_privacy(small(0.1), FEW)

    assert audited.most < audited.epsilon
    assert audited.bound <= audited.most


@pytest.mark.parametrize(
    ("question", "line"),
    [
        ({"canaries": 12}, "--guesses: 2 guesses prove nothing, even if all are right"),
        ({"canaries": 3}, "--guesses: 0 guesses prove nothing, even if all are right"),
        ({"guesses": 1001}, "--guesses: must be from 1 to the number of canaries, 1000, not 1001"),
        ({"guesses": -2}, "--guesses: must be from 1 to the number of canaries, 1000, not -2"),
        ({"trainings": 1001}, "--trainings: must be from 1 to the number of canaries, 1000, not 1001"),
        ({"delta": 0.0}, "--delta: must be between 0 and 1, not 0"),
        ({"delta": float("nan")}, "--delta: must be between 0 and 1, not nan"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused_by_its_option(question: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Question(**question)
    assert str(refused.value) == line


def unlabelled() -> AuditedSite:
    site = small(1.0)
    return replace(site, rows=Unlabelled(site.rows.features))


class Deaf(Rows):
    """A loss that no row moves."""

    def row_losses(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return outputs.sum(dim=1) * 0


class Narrow(Rows):
    """A model that refuses the values of canaries."""

    def model(self) -> nn.Module:
        return nn.Sequential(_Range(), super().model())


class _Range(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if bool((rows.abs() > 5).any()):
            raise OverflowError("out of range")
        return rows


class Together(Rows):
    separate_rows = False


@pytest.mark.parametrize(
    ("site", "question", "error", "line"),
    [
        (
            site_of(sgd(0.1, ROWS)),
            FEW,
            ConfigError,
            "training.dp.noise-multiplier: is 0 at site: no epsilon",
        ),
        (
            small(1.0, releases=()),
            FEW,
            ConfigError,
            "strategy.rule: no updates are asked of site: there is nothing to audit",
        ),
        (
            small(1.0, releases=(Release.TRAINING,)),
            replace(FEW, release=Release.MOMENTS),
            ConfigError,
            "strategy.rule: no second moments are asked of site: there is nothing to audit",
        ),
        (small(1.0), replace(FEW, release=Release.MOMENTS, rounds=2), ConfigError, "--rounds: must be 1"),
        (site_of(sgd(0.1, 21, noise=1.0)), FEW, ConfigError, "training.batch-size: 21 is larger than the data"),
        (unlabelled(), FEW, DataError, "site, train: training with noise needs labels"),
        (site_of(sgd(0.1, 5, noise=1.0), Together(512, 2)), FEW, TrainingError, "task Together: it does not say that"),
        (site_of(sgd(0.1, 5, noise=1.0), Deaf(512, 2)), FEW, ConfigError, "task.factory: no canary can be made for it"),
        (
            site_of(sgd(0.1, 5, noise=1.0), Narrow(512, 2)),
            FEW,
            ConfigError,
            "task Narrow: no canary can be made for it: training raised OverflowError (test_privacy_audit.py, line ",
        ),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(
    site: AuditedSite, question: Question, error: type[Exception], line: str
) -> None:
    with pytest.raises(error) as refused:
        audit_privacy(site, question)
    assert str(refused.value).startswith(line)
