"""The independent re-implementation in benchmarks/independent computes what the product computes."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from securefda.rules import auto_beta, fedda, fedgp

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/independent/authors_schedule.py"


@pytest.fixture(scope="module")
def script():
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


@pytest.mark.parametrize("rule", ["fedda", "fedgp"])
def test_beta_of_random_vectors_is_the_products(script, rule):
    draws = np.random.default_rng(1)
    steps, sources = 0.3 + draws.standard_normal((25, 400)), 0.2 + 0.1 * draws.standard_normal((6, 400))
    found = [script.auto_beta(rule, torch.from_numpy(steps), torch.from_numpy(source)) for source in sources]
    assert found == pytest.approx(auto_beta(steps, sources, rule), rel=1e-9)
    assert 0.05 < min(found) < max(found) < 0.95


@pytest.mark.parametrize("rule", ["fedda", "fedgp"])
def test_a_round_on_a_few_images_gives_the_products_model(script, rule):
    draws = torch.Generator().manual_seed(2)
    images, labels = torch.rand((3, 16, 1, 28, 28), generator=draws), torch.randint(10, (3, 16), generator=draws)
    sites = [script.Site(*rows) for rows in zip(images, labels, strict=True)]
    model, betas = script.Network(), torch.tensor([0.3, 0.6])
    start = model.vector.clone()
    target = [after.clone() for after in script.train(model, start, sites[0], 4, 0.001, draws)][-1] - start
    sources = script.updates_of(model, start, sites[1:], 0.01, draws)
    found = script.combined(rule, target, sources, betas, 0.5, model.sizes).double()
    if rule == "fedda":
        expected = fedda(target.numpy(), sources.numpy(), betas.numpy())
    else:
        aligned = 0.5 * sources.numpy()
        expected = fedgp(target.numpy(), aligned, betas.numpy(), layers=model.sizes, projection="cosine")
    assert float((found - torch.from_numpy(expected)).norm() / found.norm()) < 1e-5
