"""The study of alignment in one place: its grid, its losses, and its table."""

import pytest
import torch
from benchmark_studies import imported_study


@pytest.fixture(scope="module")
def study():
    with imported_study("pooled_alignment") as module:
        yield module


def test_every_cell_has_its_rule_and_its_rows(study):
    jobs = {cell: cell.job([]) for cell in study.cells(1)}
    assert len(jobs) == len(study.DOMAINS) * len(study.VARIANTS)
    for cell, job in jobs.items():
        assert job.config.federation.target == cell.study
        assert job.config.strategy.rule == cell.variant.partition(",")[0]
        assert job.config.training.source.vary == cell.variant.endswith(", varied")


@pytest.mark.parametrize("rule", ["f_dann", "f_dan", "fada_adversarial"])
def test_descending_the_loss_brings_features_together(study, rule):
    torch.manual_seed(0)
    target = torch.randn(64, 8)
    own = [(torch.randn(64, 8) + shift).requires_grad_() for shift in (1.0, -1.0)]
    aligned = study.Aligned(rule, 8, len(own))

    def apart():
        return [float((one.detach().mean(0) - target.mean(0)).norm()) for one in own]

    before = apart()
    for _ in range(100):
        loss = aligned.loss(own, target)  # its identifiers learn
    loss.backward()
    with torch.no_grad():
        for one in own:
            one.sub_(one.grad / one.grad.abs().max())
    assert all(after < first for after, first in zip(apart(), before, strict=True))


def test_every_row_of_a_site_passes_once_before_one_passes_again(study):
    batches = study.Batches(3 * study.BATCH + 5, torch.Generator().manual_seed(0))
    passed = torch.cat([next(batches) for _ in range(3)])
    assert len(passed.unique()) == 3 * study.BATCH
    assert len(next(batches)) == study.BATCH  # of a new order: the five that are left make no batch


def test_a_gain_is_that_over_source_only_on_the_same_rows(study):
    known = {cell.key: {"accuracy": 50.0 + 10 * ("varied" in cell.variant)} for cell in study.cells(1)}
    known["usps/f_dann/0"]["accuracy"] = 58.0
    del known["mnist/f_dan/0"]
    lines = study.tables(study.rows_of(known))["accuracy"].splitlines()
    assert lines[0] == "| | mnist-m | synthetic | usps | mean | above source_only |"
    assert "| f_dann | 50.0 | 50.0 | 58.0 | 52.7 | +2.7 |" in lines
    assert "| f_dann, varied | 60.0 | 60.0 | 60.0 | 60.0 | +0.0 |" in lines
