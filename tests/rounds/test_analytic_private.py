"""Second moments with noise: one charge of one release, noise as long as it says, and nothing without a budget."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rounds_federation import TARGET, trainer_of
from rounds_private import PrivateFederation, enough_for

from securefda.errors import BudgetExhausted
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import DpEvent
from securefda.protocol.messages import Advertise, Visibility
from securefda.rules import Moments
from securefda.training.head import head_rows

SOURCES = (1, 2, 3)
RELEASE = DpEvent("run", 1, 1, noise_multiplier=1.0, sampling_rate=1.0, steps=1, max_grad_norm=1.0)


def federation(folder: Path, **options: object) -> PrivateFederation:
    how = {"rule": "analytic", "rounds": 1, "private": SOURCES, "settings": {"kappa": 0.0}} | options
    return PrivateFederation(folder, **how)  # type: ignore[arg-type]


def test_a_round_charges_one_release_of_all_rows(tmp_path: Path) -> None:
    played = federation(tmp_path).open().go()
    assert played.statuses == ["finished"]
    assert played.charged(TARGET) == []
    for index in SOURCES:
        (event,) = played.ledger_of(index).events()
        assert (event.sampling_rate, event.steps, event.max_grad_norm) == (1.0, 1, 1.0)
        (record,) = played.watch.records[index]
        assert record["epsilon"] == pytest.approx(epsilon([event], 1e-5), rel=0.2)


def test_epsilon_of_a_release_is_that_of_the_gaussian_mechanism() -> None:
    """At order a its Renyi divergence is a / (2 sigma^2) (Mironov 2017, Proposition 7)."""
    orders = np.linspace(1.01, 60, 6000)
    for sigma in (0.8, 2.0, 5.0):
        event = DpEvent("run", 1, 1, noise_multiplier=sigma, sampling_rate=1.0, steps=1, max_grad_norm=1.0)
        bounds = orders / (2 * sigma**2) + np.log1p(-1 / orders) - np.log(1e-5 * orders) / (orders - 1)
        assert epsilon([event], 1e-5) == pytest.approx(bounds.min(), rel=1e-3)


def test_the_noise_on_the_sums_is_the_multiplier_times_what_a_row_can_change(tmp_path: Path) -> None:
    played = federation(tmp_path)
    trainer = played.trainer_of(1)
    model = trainer.initial_model()
    exact = Moments.of(*head_rows(trainer, model), bound=0.5).means()
    releases = (trainer.moments(model, 1, bound=0.5, run_id=f"run-{number}") for number in range(40))
    drawn = [(one.update - exact) * trainer.samples for one in releases]
    noise = np.concatenate(drawn)
    expected = played.training.dp.noise_multiplier * 0.5
    assert np.std(noise) == pytest.approx(expected, rel=0.1)
    assert abs(np.mean(noise)) < 4 * expected / math.sqrt(noise.size)


def test_one_row_changes_the_sums_by_no_more_than_the_noise_is_for() -> None:
    trainer = trainer_of(3, 1)
    features, targets = head_rows(trainer, trainer.initial_model())
    for scale in (0.1, 1.0, 100.0):
        all_rows, without = (
            Moments.of(scale * features[kept], targets[kept], bound=0.5) for kept in (slice(None), slice(1, None))
        )
        change = all_rows.means() * all_rows.rows - without.means() * without.rows
        assert np.linalg.norm(change) <= 0.5 + 1e-9
    assert np.linalg.norm(change) == pytest.approx(0.5)  # of a long row


def test_an_aggregator_that_dies_gets_the_same_release_for_one_charge(tmp_path: Path) -> None:
    killed = federation(tmp_path, visibility=Visibility.SUM).open().kill_aggregator_at(Advertise, 1)
    killed.start_aggregator()
    killed.open().go()
    assert killed.statuses == ["finished"]
    assert all(len(killed.charged(index)) == 1 for index in SOURCES)


def test_moments_are_never_taken_for_an_update_of_the_same_round(tmp_path: Path) -> None:
    played = federation(tmp_path)
    trainer = played.trainer_of(1)
    model = trainer.initial_model()
    moments = trainer.moments(model, 1, bound=1.0, run_id="run", attempt=1)
    update = trainer.train(model, 1, 1.0, run_id="run", attempt=2)
    assert (len(moments.update), len(update.update)) == (30, 15)
    assert len(played.charged(1)) == 2


def test_before_a_run_a_source_hears_whether_its_budget_pays_for_moments(tmp_path: Path) -> None:
    rounds = replace(RELEASE, sampling_rate=0.01)  # costs less than a release of all rows
    with_little = {index: enough_for(1, rounds) for index in SOURCES}
    poor, rich = (federation(tmp_path / name, budgets=how) for name, how in (("poor", with_little), ("rich", {})))
    accounts = [one.trainer_of(1).account for one in (poor, rich)]
    (line, warning), (only,) = (account.require_ahead(rounds, RELEASE) for account in accounts)
    said = "under the rule analytic, a run is one release of second moments of all rows at noise multiplier 1"
    assert said in line
    assert said in only
    assert warning.startswith(
        "warning: under the rule analytic this site could not take part: privacy budget of data set"
    )
    with pytest.raises(BudgetExhausted, match="the next round"):  # its policy permits nothing else
        accounts[0].require_ahead(None, RELEASE)
    assert accounts[1].require_ahead(None, RELEASE)[0].count("a round is") == 0
    assert accounts[0].require_ahead(rounds, None) == [line.split("; under the rule")[0]]


def test_without_a_budget_nothing_leaves(tmp_path: Path) -> None:
    played = federation(tmp_path, budgets={1: enough_for(1, RELEASE)})
    trainer = played.trainer_of(1)
    model = trainer.initial_model()
    first = trainer.moments(model, 1, bound=1.0, run_id="one", attempt=1)
    assert trainer.moments(model, 1, bound=1.0, run_id="one", attempt=2) is first
    with pytest.raises(BudgetExhausted):
        trainer.moments(model, 1, bound=1.0, run_id="two", attempt=1)
    assert len(played.charged(1)) == 1
