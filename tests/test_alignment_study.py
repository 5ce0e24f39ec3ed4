"""The study of features that are alike: its grid, and its table."""

import pytest
from benchmark_studies import imported_study


@pytest.fixture(scope="module")
def study():
    with imported_study("alignment") as module:
        yield module


def test_every_cell_is_a_federation_of_the_other_three_domains_under_its_rule(study):
    jobs = {cell: cell.job([]) for cell in study.cells(1)}
    assert len(jobs) == len(study.DOMAINS) * len(study.VARIANTS)
    for cell, job in jobs.items():
        sites = job.config.federation
        assert {sites.target, *sites.sources} == set(study.DOMAINS)
        assert sites.target == cell.study
        assert job.config.strategy.rule == cell.variant
        assert job.config.training.target.release_features


def test_only_seeds_that_every_variant_was_run_with_count(study):
    known = {cell.key: {"accuracy": 50.0 + cell.seed, "accuracies": [40.0, 60.0]} for cell in study.cells(2)}
    del known["usps/fada/1"], known["mnist/source_only/0"], known["mnist/f_dan/1"]
    rows = study.rows_of(known)
    assert {row["target"]: row["seeds"] for row in rows} == {"mnist-m": [0, 1], "synthetic": [0, 1], "usps": [0]}
    lines = study.tables(rows)["accuracy"].splitlines()
    assert lines[0] == "| | mnist-m | synthetic | usps | mean |"
    assert "| fada | 50.5 ± 0.7 | 50.5 ± 0.7 | 50.0 | 50.3 |" in lines
    assert lines[-1] == "| seeds | 2 | 2 | 1 | |"
