"""The study of dynamic attention: its grid, how gains become weights and rows, and what its check asks."""

import json
import math
import sys

import numpy as np
import pytest
from benchmark_studies import imported_study

from securefda.rules.attention import DEFAULT_BOUND, DEFAULT_TEMPERATURE
from securefda.site.config.sections import StrategySection


@pytest.fixture(scope="module")
def study():
    with imported_study("attention") as module:
        yield module


def gains(*by_source):
    """A round: for each source its exact and its first-order gain, in units of the default temperature."""
    return [[DEFAULT_TEMPERATURE * gain for gain in of_source] for of_source in by_source]


AGREEING = gains((0.6, 0.5), (0.0, 0.1), (-0.1, -0.1))
OPPOSED = gains((0.6, -0.6), (0.0, 0.0), (-0.1, 0.1))


def known_of(study, *rounds):
    """Figures of every cell of two seeds, all alike."""
    return {
        cell.key: {"accuracy": 50.0, "gains": [] if cell.variant == "source_only" else list(rounds)}
        for cell in study.cells(2)
    }


def checked(study, known, folder, monkeypatch):
    path = folder / "figures.json"
    path.write_text(sys.modules["studies"].as_text(study.rows_of(known), {}))
    json.loads(path.read_text())
    monkeypatch.setattr(sys, "argv", ["attention.py", "--check", "--figures", str(path)])
    return study.main()


def test_every_cell_is_a_federation_of_the_other_three_domains(study):
    jobs = {cell: cell.job([]) for cell in study.cells(1)}
    assert len(jobs) == len(study.DOMAINS) * len(study.VARIANTS)
    for cell, job in jobs.items():
        sites = job.config.federation
        assert {sites.target, *sites.sources} == set(study.DOMAINS)
        assert sites.target == cell.study
        assert job.config.strategy.attention_gain == ("exact" if cell.variant.endswith("exact") else "first-order")


def test_a_temperature_above_all_gains_leaves_source_only(study):
    def played(*settings):
        given = ["training.target.labels=none", "strategy.rounds=3", "strategy.warm-up-rounds=1", *settings]
        return study.run_cell(study.VariantCell("digits", "", 0, "digits", tuple(given)).job([]))

    plain = played("strategy.rule=source_only")
    alike = played("strategy.rule=fada_attention", "strategy.attention-temperature=1e9")
    sharp = played("strategy.rule=fada_attention", "strategy.attention-temperature=1e-9")
    assert plain.gains == []
    assert alike.accuracy == pytest.approx(plain.accuracy, abs=0.5)
    assert np.shape(alike.gains) == np.shape(sharp.gains) == (2, 5, 2)
    assert alike.gains[0] == sharp.gains[0]  # the round after the warm-up begins with the same model
    assert alike.gains[1] != sharp.gains[1]


def test_gains_that_agree_pass_and_are_shown(study, tmp_path, monkeypatch, capsys):
    assert checked(study, known_of(study, AGREEING), tmp_path, monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "| source_only | 50.0 ± 0.0 | 50.0 ± 0.0 | 50.0 ± 0.0 | 50.0 ± 0.0 |" in shown
    assert "| mnist-m, exact | 2 | 1.00 | 0.04 |" in shown


def test_gains_that_do_not_agree_are_found(study, tmp_path, monkeypatch, capsys):
    assert checked(study, known_of(study, OPPOSED), tmp_path, monkeypatch) == 1
    assert capsys.readouterr().err.startswith("MISSED: rank correlations")


def test_weights_too_far_apart_for_the_default_temperature_are_found(study, tmp_path, monkeypatch, capsys):
    assert checked(study, known_of(study, gains((1, 1), (0, 0), (-1, -1))), tmp_path, monkeypatch) == 1
    assert "ratios of weights [7.389, 7.389, 7.389, 7.389], 1.5 to 3.0 is asked" in capsys.readouterr().err


def test_weights_are_those_of_a_softmax_within_the_bound(study):
    within, beyond = study.weights_of(np.array([gains((0.5, 0), (0.0, 0)), gains((9.0, 0), (-9.0, 0))]))[..., 0]
    assert within.tolist() == pytest.approx([math.exp(0.5) / (1 + math.exp(0.5)), 1 / (1 + math.exp(0.5))])
    assert beyond[0] / beyond[1] == pytest.approx(math.exp(2 * DEFAULT_BOUND))


def test_ranks_are_compared_round_by_round(study):
    found = study.comparison(np.array([AGREEING, OPPOSED]))
    assert (found["rounds"], found["correlation"]) == (2, 0)  # 1 and -1
    assert found["bitten"] == [0, 0]


def test_the_bound_bites_where_a_gain_goes_beyond_it(study):
    assert study.comparison(np.array([gains((1.5, 0.5), (0, 0), (0, 0), (-2, 0))]))["bitten"] == [0.5, 0]


def test_only_seeds_that_every_variant_was_run_with_count(study):
    known = known_of(study, AGREEING)
    del known["usps/source_only/1"], known["mnist/source_only/0"], known["mnist/fada_attention, exact/1"]
    rows = study.rows_of(known)
    assert {row["target"]: row["seeds"] for row in rows} == {"mnist-m": [0, 1], "synthetic": [0, 1], "usps": [0]}
    assert "| | mnist-m | synthetic | usps |" in study.tables(rows)["accuracy"]


def test_configurations_have_the_temperature_that_was_chosen():
    settings = StrategySection()
    assert (settings.attention_temperature, settings.attention_bound) == (DEFAULT_TEMPERATURE, DEFAULT_BOUND)
