"""Canaries: rows that a model takes, blanks that add nothing, and evidence that is the likelihood's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from securefda.errors import ConfigError
from securefda.privacy.canaries import (
    TaskWithBlanks,
    canaries_like,
    clipped_gradients,
    evidence_in_step,
    evidence_of_rows,
    together,
)
from securefda.tasks import RowsOnDisk, Samples
from securefda.training import build_model, model_to_vector
from threat_model.private_sites import Rows, rows_of, sgd


def made(rows: Samples, count: int = 300) -> Samples:
    return canaries_like(rows, count, torch.Generator().manual_seed(1))


def test_canaries_have_noise_for_measurements_and_values_that_occur_for_codes() -> None:
    codes, ages = torch.tensor([[0.0], [4.0], [4.0], [9.0]]), torch.tensor([[40.5], [50.0], [61.0], [70.25]])
    words = torch.tensor([[3, 7], [3, 8], [5, 7], [3, 7]])
    rows = Samples({"table": torch.cat([codes, ages], dim=1), "words": words}, torch.tensor([0, 0, 0, 2]))

    canaries = made(rows)

    table, drawn = canaries.features["table"], canaries.features["words"]
    assert set(table[:, 0].tolist()) == {0.0, 4.0, 9.0}
    assert len(set(table[:, 1].tolist())) == 300
    assert float(table[:, 1].std()) == pytest.approx(3 * float(ages.std(correction=0)), rel=0.15)
    assert drawn.dtype == words.dtype
    assert [set(column.tolist()) for column in drawn.T] == [{3, 5}, {7, 8}]
    assert set(canaries.labels.tolist()) == {0, 2}
    assert 100 < int((canaries.labels == 2).sum()) < 200


@pytest.mark.parametrize("labels", [torch.rand(5, 3), torch.rand(5), torch.rand(5, 1).round()])
def test_canaries_have_labels_in_the_form_of_the_rows(labels: Tensor) -> None:
    canaries = made(Samples(torch.rand(5, 1, 4, 4), labels))

    assert canaries.features.shape == (300, 1, 4, 4)
    assert (canaries.labels.shape[1:], canaries.labels.dtype) == (labels.shape[1:], labels.dtype)
    assert all(any(torch.equal(label, own) for own in labels) for label in canaries.labels)


def test_rows_on_disk_take_no_canary() -> None:
    data = torch.utils.data.TensorDataset(torch.rand(5, 3), torch.tensor([0, 1, 0, 1, 0]))
    with pytest.raises(ConfigError, match=r"task\.factory: its rows are on disk"):
        made(Samples(RowsOnDisk(data), data.tensors[1]))


def test_a_blank_adds_nothing_and_every_other_row_what_it_adds_in_the_sites_own_task() -> None:
    numbers = np.random.default_rng(1)
    task, counts = Rows(6, 3), torch.tensor([True, False, True, True, False])
    rows = together(*(rows_of(numbers.normal(size=(n, 6)), numbers.integers(0, 3, n)) for n in (2, 3)))
    blanked = TaskWithBlanks(task, rows, counts)
    model, settings = build_model(task, 0), sgd(0.1, 5, noise=1.0, clip=0.8)
    at = model_to_vector(model) + np.float32(0.1)

    own, seen = (
        clipped_gradients(one, model, at, data, settings) for one, data in ((task, rows), (blanked, blanked.rows))
    )

    assert torch.equal(seen[~counts], torch.zeros(2, 21))
    assert torch.allclose(seen[counts], own[counts])
    assert torch.allclose(own.norm(dim=1), torch.full((5,), 0.8), rtol=1e-4)
    outputs = model(rows.features)
    assert torch.allclose(
        blanked.loss(outputs, blanked.rows.labels), (task.row_losses(outputs, rows.labels) * counts).mean()
    )


def test_evidence_for_one_row_in_noise_is_the_logarithm_of_the_ratio_of_two_normal_densities() -> None:
    part, total, std, chance = torch.tensor([[1.0, -2.0, 0.5]]), torch.tensor([0.3, -1.0, 2.0]).double(), 1.5, 0.25

    evidence = evidence_of_rows(part, total - chance * part[0].double(), torch.tensor([chance]).double(), std)

    without, within = (
        float(-(total - shift).square().sum()) / 2 / std**2 for shift in (torch.zeros(3), part[0].double())
    )
    assert float(evidence) == pytest.approx(within - without, rel=1e-5)


@pytest.mark.parametrize("numbers", [4, 40])  # fewer and more than rows
def test_evidence_for_a_row_among_others_takes_them_for_gaussian(numbers: int) -> None:
    generator = torch.Generator().manual_seed(1)
    parts = torch.randn(12, numbers, generator=generator).double()
    chance = torch.rand(12, generator=generator).double() * 0.5 + 0.2
    total = torch.randn(numbers, generator=generator).double() * 3

    evidence = evidence_of_rows(parts, total - chance @ parts, chance, 0.7)

    for row in range(12):
        others = [other for other in range(12) if other != row]
        weights = chance[others] * (1 - chance[others])
        covariance = parts[others].T @ (weights[:, None] * parts[others]) + 0.49 * torch.eye(numbers).double()
        law = torch.distributions.MultivariateNormal(chance[others] @ parts[others], covariance)
        expected = law.log_prob(total - parts[row]) - law.log_prob(total)
        assert float(evidence[row]) == pytest.approx(float(expected), rel=1e-4, abs=1e-3)


def test_evidence_in_a_step_that_may_not_have_drawn_a_canary_is_bounded_below() -> None:
    canaries, rows = torch.eye(8)[:3] * 4, torch.eye(8)[3:6]
    absent = evidence_in_step(canaries, rows, torch.zeros(8).double(), 0.25, 0.1)
    present = evidence_in_step(canaries, rows, canaries.sum(0).double(), 0.25, 0.1)

    assert absent == pytest.approx(math.log(0.75), abs=1e-6)
    assert bool((present > 50).all())
    assert bool((evidence_in_step(canaries, rows, rows.sum(0).double(), 1.0, 0.1) < -50).all())
