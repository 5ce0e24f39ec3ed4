"""The study of attacks: the games, each attack's control in small, what is judged, and the requirements."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from types import ModuleType

import numpy as np
import pytest
from benchmark_studies import BENCHMARKS, imported_study
from depth import at_depth

from securefda.site.policy.measured import MEMBERS_FOUND

SMOKE = {"shadows": 16, "targets": 8, "share_shadows": 40, "share_targets": 20, "repetitions": 3, "optimised": 1}


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with imported_study("attacks") as module:
        yield module


@pytest.fixture(scope="module")
def play(study):
    return importlib.import_module("attacks_play")


@pytest.fixture(scope="module")
def membership(study):
    return importlib.import_module("attacks_membership")


def game(study, **changes):
    """Digits, two rounds, without noise unless ``changes`` say otherwise."""
    cell = study.Cell(study.MEMBERSHIP, study.DIGITS, study.SUM, 1, study.TWO_STEPS)
    cell = replace(cell, **changes)
    return replace(cell.game(None), rounds=2)


def coins_of(study, found, seed=0):
    return np.random.default_rng(seed).random(len(found.candidates)) < 0.5


def test_every_cell_has_a_key_of_its_own(study):
    cells = study.cells()
    assert len({cell.key for cell in cells}) == len(cells)
    assert {cell.study for cell in cells} == set(study.STUDIES)


def test_a_blank_row_has_no_gradient(study, play, membership):
    found = game(study)
    blank = play._left(found.candidates, coins_of(study, found), blanks=True)
    net = play.build_model(found.sites.task, 0)
    norms = membership.row_gradients(found.sites.task, net, play.model_to_vector(net), blank).norm(dim=1)
    assert np.array_equal((norms > 0).numpy(), coins_of(study, found))


def test_a_sum_over_one_is_its_update_and_moves_the_model(study, play):
    found = game(study)
    coins = coins_of(study, found)
    run = play.play(found, coins, seed=1)
    np.testing.assert_allclose(run.opened[0] / coins.sum(), run.models[1] - run.models[0], atol=1e-6)
    assert run.cosines == pytest.approx([1.0, 1.0])
    assert len(run.models) == 3


def test_others_hide_a_part_and_a_difference_shows_it(study, play):
    coins = coins_of(study, game(study))
    within = play.play(game(study, sources=5), coins, seed=1).cosines[0]
    apart = play.play(game(study, sources=5, seen=study.DIFFERENCE), coins, seed=1).cosines[0]
    assert within < apart - 0.05


def test_strangers_have_other_rows_in_every_run_and_as_many(study, play):
    sites = game(study, seen=study.STRANGERS, sources=3).sites
    one, other = (sites.with_strangers(np.random.default_rng(seed)) for seed in (0, 1))
    assert [len(rows) for rows in one.others] == [len(rows) for rows in sites.others] == [play.ROWS] * 2
    assert not np.array_equal(one.others[0].features, other.others[0].features)


def test_what_the_target_publishes_is_its_own_update(study, play):
    found = game(study, seen=study.TARGET, sources=3)
    run = play.play(found, coins_of(study, found), seed=1)
    assert run.cosines == pytest.approx([1.0, 1.0])
    assert len(found.sites.others) == 3
    assert not np.allclose(run.opened[0], run.models[1] - run.models[0])  # the sources move the model too


def test_a_target_beside_all_sources_has_the_former_victim_among_them(study, play):
    sites = game(study, seen=study.TARGET, sources=10).sites
    former = game(study, sources=1).candidates
    assert [len(rows) for rows in sites.others] == [play.ROWS] * 10
    assert np.array_equal(sites.others[9].features, former.features[: play.ROWS])
    assert not any(np.array_equal(rows.features, sites.others[9].features) for rows in sites.others[:9])


@pytest.mark.parametrize(
    "changes",
    [{"sources": 1}, {"sources": 3}, {"seen": "target's update", "sources": 3}],
    ids=["alone", "in a sum", "of the target"],
)
def test_members_are_found_in_what_is_opened_without_noise(study, membership, changes):
    found = membership.attacked(game(study, **changes), 16, 8, seed=1)
    assert found.found[membership.SUMS].auc > 0.9
    assert found.found[membership.SUMS].bound > 2
    assert found.ledger is None


def test_noise_hides_members_and_no_bound_is_above_the_ledger(study, membership):
    found = membership.attacked(game(study, epsilon=1.0), 16, 8, seed=1)
    assert found.ledger == pytest.approx(1.0, abs=0.02)
    assert all(one.bound <= found.ledger for one in found.found.values())
    assert found.found[membership.SUMS].auc < 0.8


def made(rng, runs, distance, rows=50):
    """Scores of runs whose members are ``distance`` standard deviations above the others, and their coins."""
    coins = rng.random((runs, rows)) < 0.5
    return rng.standard_normal((runs, rows)) + distance * coins, coins


def test_a_likelihood_ratio_undoes_what_rows_differ_in(membership):
    rng = np.random.default_rng(0)
    scores, coins = made(rng, 128, 2.0)
    shifted = scores + 10 * rng.standard_normal(50)  # rows that are easier or harder, in or out
    ratio = membership.likelihood_ratio(shifted[:64], coins[:64], shifted[64:])
    raw = membership.auc(shifted[64:][coins[64:]], shifted[64:][~coins[64:]])
    assert raw < 0.6 < 0.9 < membership.auc(ratio[coins[64:]], ratio[~coins[64:]])


def test_coins_of_another_run_are_found_no_better_than_by_chance(membership):
    rng = np.random.default_rng(0)
    scores, coins = made(rng, 64, 5.0)
    right = membership.judged(scores, coins, 0.0, rng)
    wrong = membership.judged(scores, np.roll(coins, 1, axis=0), 0.0, rng)
    assert right.rates[0][0] > 95
    assert right.bound > 4
    assert wrong.rates[0][0] < 5
    assert wrong.bound < 0.3


def test_intervals_hold_the_true_rate(membership):
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(40):
        scores, coins = made(rng, 64, 0.0)  # the rate is that of false alarms
        found, low, high = membership.with_interval(scores, coins, 0.01, rng)
        assert low <= found <= high
        held += low <= 1.0 <= high
    assert held >= 34  # of 40 at 95 %: fewer with a chance of 3e-3


def test_a_row_alone_is_rebuilt_and_noise_prevents_it(study):
    inversion = importlib.import_module("attacks_inversion")
    alone = study.Cell(study.DIVISION, study.DIGITS, study.SUM, 1, study.ONE_STEP, None, 1)
    assert asdict(inversion.divided(alone.game(None), 1, 3, seed=0)) == {"found": 3, "rows_seen": 3}
    noisy = replace(alone, epsilon=8.0, rows=8)
    assert inversion.divided(noisy.game(None), 8, 3, seed=0).found == 0


def test_optimisation_names_a_row_alone(study):
    inversion = importlib.import_module("attacks_inversion")
    cell = study.Cell(study.OPTIMISATION, study.DIGITS, study.SUM, 1, study.ONE_STEP, None, 1)
    found = inversion.optimised(cell.game(None), 1, 2, seed=0, iterations=200)
    assert found.named == found.rows_seen == 2
    assert found.psnr > found.blind + 3


def test_decoys_are_other_rows_of_the_class_and_the_fewest_are_told(study):
    inversion = importlib.import_module("attacks_inversion")
    found = study.Cell(study.OPTIMISATION, study.DIGITS, study.SUM, 1, study.ONE_STEP, None, 1).game(None)
    one_class = found.sites.candidates.labels == 3
    alike = type(found.candidates)(found.candidates.features[one_class], found.candidates.labels[one_class])
    sites = replace(found.sites, candidates=alike, spare=alike)
    assert inversion.optimised(replace(found, sites=sites), 1, 2, seed=0, iterations=1).decoys == len(alike) - 1


def test_a_share_is_guessed_from_an_update(study):
    shares = importlib.import_module("attacks_property")
    cell = study.Cell(study.PROPERTY, study.DIGITS, study.SUM, 1, study.EXAMPLE)
    found = shares.guessed(replace(cell.game(None), rounds=2), 60, 40, seed=0)
    assert found.explained[0] > 0.5
    assert found.error < 0.8 * found.blind


def test_a_guess_of_nothing_explains_nothing(study):
    shares = importlib.import_module("attacks_property")
    truth = np.arange(10.0)
    assert shares._explained(truth, truth) == 1.0
    assert shares._explained(truth, np.full(10, truth.mean())) == 0.0


@pytest.mark.parametrize("name", at_depth(["division"], ["membership", "property", "division"]))
def test_every_attack_on_digits_runs_in_small(study, name):
    """The smoke form: each cell of the grid on bundled data, with few runs; its row goes into the tables."""
    scale = study.Scale(**SMOKE)
    cells = [cell for cell in study.cells() if (cell.study, cell.data) == (name, study.DIGITS)]
    known = {cell.key: asdict(cell.run(None, scale)) for cell in cells}
    rows = json.loads(study.as_text(study.rows_of(known), {}))["rows"]
    assert len(rows) == len(cells)
    assert study.tables(rows)[{"membership": "sums"}.get(name, name)].count("\n") >= 2
    assert not [line for line in study.misses(rows) if line.startswith("MISSED") and "ledger" in line]


def committed(study):
    return json.loads((BENCHMARKS / "attacks.json").read_text())["rows"]


def test_the_whole_grid_is_committed(study):
    names = [study.Cell(*(row[name] for name in study._KEY)) for row in committed(study)]
    assert names == study.cells()


def test_committed_figures_meet_the_requirements(study):
    assert study.misses(committed(study)) == []


def test_what_policies_say_is_what_was_measured(study):
    assert study.told(committed(study)) == MEMBERS_FOUND


def test_a_bound_above_the_ledger_is_a_miss(study):
    rows = committed(study)
    row = next(row for row in rows if row.get("ledger"))
    row["found"]["final model"]["bound"] = row["ledger"] + 0.1
    (line,) = study.misses(rows)
    assert line.startswith("MISSED: membership/")
    assert "final model shows epsilon >= " in line


def test_a_control_that_fails_or_lacks_is_a_miss(study):
    rows = committed(study)
    control = next(row for row in rows if (row["study"], row["sources"], row["rows"]) == (study.DIVISION, 1, 1))
    control["found"] = 0
    key = "division/digits/sum/1/one step/None/1/1"
    assert study.misses(rows) == [f"MISSED: {key}: share rebuilt 0.00, at least 1 for a control"]
    rows.remove(control)
    assert study.misses(rows) == [f"MISSING: {key}: the control was not run"]
