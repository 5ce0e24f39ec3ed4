"""The independent FADA in benchmarks/independent has the losses and the gap statistic of the product."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from securefda.rules import gap_statistic
from securefda.training.alignment.losses import (
    discrepancy,
    identification_loss,
    information_bound,
    mean_entropy,
    median_distance,
    reversed_source_loss,
    reversed_target_loss,
    source_confusion_loss,
    target_confusion_loss,
)

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/independent/fada.py"
CLASSES = 3


@pytest.fixture(scope="module")
def script():
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


@pytest.fixture
def parts(script):
    """Two sources' modules and features: own, specific, whole, the target's."""
    torch.manual_seed(3)
    private = script.Private(2, CLASSES)
    return private, *(torch.randn(2, 24, script.INVARIANT) for _ in range(4))


def logits(private, rows):
    return private.domain(rows)[:, :, 0]


def test_discrepancy_is_the_products(script, parts):
    _, own, _, _, theirs = parts
    expected = [discrepancy(a, b, median_distance(a, b)) for a, b in zip(own, theirs, strict=True)]
    assert script.discrepancy(own, theirs).tolist() == pytest.approx(torch.stack(expected).tolist(), rel=1e-4)


def test_an_identifiers_loss_is_the_products(script, parts):
    private, own, specific, whole, theirs = parts
    loss = private.own_loss("f_dann", own, specific, whole, theirs, torch.zeros(2, 24, dtype=torch.long))
    pairs = zip(logits(private, own), logits(private, theirs), strict=True)
    assert loss.item() == pytest.approx(sum(identification_loss(a, b) for a, b in pairs).item(), rel=1e-5)


@pytest.mark.parametrize(
    ("method", "of_source", "of_target"),
    [
        ("f_dann", reversed_source_loss, reversed_target_loss),
        ("fada_adversarial", source_confusion_loss, target_confusion_loss),
    ],
)
def test_an_extractors_loss_is_the_products(script, parts, method, of_source, of_target):
    private, own, specific, whole, theirs = parts
    pairs = zip(logits(private, own), logits(private, theirs), strict=True)
    expected = sum(of_source(a) + of_target(b) for a, b in pairs).item()
    assert script.added(private, method, own, specific, whole, theirs).item() == pytest.approx(expected, rel=1e-5)


def test_model_three_adds_the_products_terms(script, parts):
    private, own, specific, whole, theirs = parts
    plain = script.added(private, "fada_adversarial", own, specific, whole, theirs)
    torch.manual_seed(5)
    added = script.added(private, "fada", own, specific, whole, theirs) - plain
    torch.manual_seed(5)
    shuffled = specific[:, torch.randperm(24)]
    outputs = private.classes(specific)
    rebuilt = private.parts(torch.cat([own, specific], dim=2))
    expected = torch.zeros(())
    for source in range(2):
        scores = [
            private.out(torch.nn.functional.leaky_relu(private.first(own) + private.second(part)))[source, :, 0]
            for part in (specific, shuffled)
        ]
        expected = expected - script.ENTROPY * mean_entropy(outputs[source])
        expected = expected + script.INFORMATION * information_bound(*scores)
        expected = expected + script.RECONSTRUCTION * (rebuilt[source] - whole[source]).square().mean()
    assert added.item() == pytest.approx(expected.item(), rel=1e-4)


def test_the_gap_is_the_products(script):
    torch.manual_seed(4)
    model, rows = script.Model(2, 10, CLASSES), torch.randn(2, 40, 10)
    gaps, centres = script.gaps(model, rows, None, CLASSES)
    features = model.features(rows).detach()
    for source in range(2):
        clusters = torch.cdist(features[source], centres[source]).argmin(1).numpy()
        assert gaps[source].item() == pytest.approx(gap_statistic(features[source].numpy(), clusters), rel=1e-3)
