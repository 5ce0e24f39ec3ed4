"""The study of varied rows: its grid, and its table."""

import pytest
from benchmark_studies import imported_study


@pytest.fixture(scope="module")
def study():
    with imported_study("varied_rows") as module:
        yield module


def test_every_cell_is_a_federation_of_the_other_three_domains_that_varies_as_it_says(study):
    jobs = {cell: cell.job([]) for cell in study.cells(1)}
    assert len(jobs) == len(study.DOMAINS) * len(study.VARIANTS)
    for cell, job in jobs.items():
        sites, training = job.config.federation, job.config.training
        assert sites.target == cell.study
        assert {sites.target, *sites.sources} == set(study.DOMAINS)
        assert training.source.vary == ("varied" in cell.variant)
        assert training.target.labels == ("pseudo" if "pseudo" in cell.variant else "none")


def test_a_mean_needs_every_target(study):
    known = {cell.key: {"accuracy": 50.0 + 4 * cell.seed, "confident": None} for cell in study.cells(2)}
    first, beside, *others = study.VARIANTS
    del known[f"usps/{first}/0"], known[f"usps/{first}/1"], known[f"mnist/{others[0]}/1"]
    lines = study.tables(study.rows_of(known))["accuracy"].splitlines()
    assert f"| {first} | 52.0 ± 2.8 | 52.0 ± 2.8 | 52.0 ± 2.8 | – | – | – |" in lines
    assert f"| {beside} | 52.0 ± 2.8 | 52.0 ± 2.8 | 52.0 ± 2.8 | 52.0 ± 2.8 | 52.0 | 0.0 |" in lines
    assert f"| {others[0]} | 52.0 ± 2.8 | 52.0 ± 2.8 | 50.0 | 52.0 ± 2.8 | 51.5 | -0.5 |" in lines
