"""The study of estimates beside the truth: its grid, what a run gives, and the tables."""

from __future__ import annotations

import json

import pytest
from benchmark_studies import imported_study

from securefda.rules import Rule


@pytest.fixture(scope="module")
def study():
    with imported_study("estimators") as module:
        yield module


def short(study, cell, monkeypatch, rounds=3):
    """A cell with fewer rounds."""
    settings_of = study.settings_of
    rest = [f"strategy.rounds={rounds}", "strategy.warm-up-rounds=1"]
    monkeypatch.setattr(study, "settings_of", lambda column: (settings_of(column)[0], [*settings_of(column)[1], *rest]))
    return cell.job([])


def test_every_cell_is_a_federation_with_its_estimate(study):
    jobs = {cell: cell.job([]) for cell in study.cells(1)}
    for cell, job in jobs.items():
        strategy = job.config.strategy
        assert strategy.rule == cell.rule
        assert strategy.beta_per_layer == ("per layer" in cell.variant)
        assert (strategy.step, strategy.validation_share > 0) == (
            ("validated", True) if "validated" in cell.variant else ("full", False)
        )
        assert strategy.variance == cell.variant.partition(",")[0]
    assert len(jobs) == len({cell.key for cell in jobs})


def test_a_run_beside_the_truth_has_every_estimate(study, monkeypatch):
    cell = study.Cell("truth", "digits", Rule.FEDDA_AUTO, "steps", 0)
    found = study.run_beside_the_truth(short(study, cell, monkeypatch))
    assert [one["round"] for one in found.truth] == [2]
    one = found.truth[0]
    assert {"true", "steps", "fixed-point", "cross-fitted"} < set(one)
    assert one["steps"][0] < 0.5 * one["true"][0] < one["fixed-point"][0]  # Adam, two epochs
    plain = study.run_cell(short(study, cell, monkeypatch))
    assert plain.truth == []
    assert plain.loss == found.loss  # to look does not change the run


def test_auto_has_errors_and_others_have_none(study, monkeypatch):
    column = next(iter(study.GRID))
    found = [
        study.run_cell(short(study, study.Cell("names", column, rule, "steps", 0), monkeypatch))
        for rule in (Rule.AUTO, Rule.FEDDA_AUTO, Rule.SOURCE_ONLY, Rule.TARGET_ONLY)
    ]
    assert set(found[0].errors) == set(study.CANDIDATES)
    assert [one.errors for one in found[1:]] == [{}] * 3


def test_a_validated_run_differs(study, monkeypatch):
    full, validated = (
        study.run_cell(short(study, study.Cell("accuracy", "digits", Rule.FEDGP_AUTO, variant, 0), monkeypatch))
        for variant in ("steps", "steps, validated")
    )
    assert full.loss != validated.loss


def figures(study, losses, named):
    """Of every run of the names: losses by rule, and estimates that name one rule."""
    known = {}
    for cell in study.cells(1):
        if cell.study != "names":
            continue
        errors = {str(rule): float(rule != named) for rule in study.CANDIDATES} if cell.rule is Rule.AUTO else {}
        known[cell.key] = {"accuracy": 50.0, "loss": losses[cell.rule], "errors": errors, "truth": []}
    return known


LOSSES = {
    Rule.TARGET_ONLY: 2.0,
    Rule.SOURCE_ONLY: 2.0,
    Rule.FEDDA_AUTO: 1.0,
    Rule.FEDGP_AUTO: 1.03,
    Rule.AUTO: 1.1,
}


@pytest.mark.parametrize(("named", "right"), [(Rule.FEDDA_AUTO, 10), (Rule.FEDGP_AUTO, 0)])
def test_names_count_where_the_named_rule_is_best_or_nearly(study, named, right):
    table = study.names_table(study.rows_of(figures(study, LOSSES, named), 1))
    assert f"| steps | {right} of 10 | 10.0 % | 0.0 % | 3.0 % |" in table
    near = LOSSES | {Rule.FEDGP_AUTO: 1.015}
    assert "| steps | 10 of 10 |" in study.names_table(study.rows_of(figures(study, near, named), 1))


def test_truths_are_shown_as_ratios(study):
    at = {"round": 4, "true": [2.0, 4.0], "error": 1.0, "steps": [4.0, 1.0], "fixed-point": [2.0, 4.0]}
    at["cross-fitted"] = [1.0, 2.0]
    key = study.Cell("truth", "digits", Rule.FEDDA_AUTO, "steps", 0).key
    known = {key: {"accuracy": 50.0, "loss": 1.0, "errors": {}, "truth": [at]}}
    table = study.truth_table(json.loads(study.as_text(study.rows_of(known, 1), {}))["rows"])
    assert table.splitlines()[-1] == (
        "| digits, first round | 2.0e+00 | 2.00 | 1.00 | 0.50 | 4.0e+00 | 0.25 | 1.00 | 0.50 | 0.50 |"
    )
