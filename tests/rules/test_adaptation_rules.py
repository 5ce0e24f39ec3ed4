"""FedDA, FedGP and the projection against the definitions, and the properties the paper gives them."""

from __future__ import annotations

import itertools

import adaptation_definitions as definitions
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefda.rules import align_update, fedda, fedgp, project
from securefda.rules.blocks import BLOCK

LAYERS = (3, 1, 5)
SIZE = sum(LAYERS)
VARIANTS = list(itertools.product(["orthogonal", "cosine"], [True, False]))

numbers = st.floats(-1e3, 1e3, allow_nan=False).map(lambda value: 0.0 if abs(value) < 1e-6 else value)
vectors = st.lists(numbers, min_size=SIZE, max_size=SIZE).map(np.array)


def updates(seed: int, count: int = 4, size: int = SIZE):
    generator = np.random.default_rng(seed)
    return generator.normal(size=size), generator.normal(size=(count, size)), generator.uniform(size=count)


@pytest.mark.parametrize("weights", [None, [1, 0, 5, 2.5]])
def test_fedda_is_definition_4_1(weights):
    target, sources, betas = updates(1)

    result = fedda(target, sources, betas, weights)

    np.testing.assert_allclose(
        result, definitions.mixture(target, sources, betas, weights or [1] * 4), rtol=1e-13, atol=1e-14
    )
    assert result.dtype == np.float64


@pytest.mark.parametrize(("projection", "filtered"), VARIANTS)
@pytest.mark.parametrize("layers", [None, LAYERS, (SIZE,), (1,) * SIZE])
@pytest.mark.parametrize("weights", [None, [1, 0, 5, 2.5]])
def test_fedgp_is_definition_4_3_layer_by_layer(projection, filtered, layers, weights):
    target, sources, betas = updates(2)

    result = fedgp(target, sources, betas, weights, layers=layers, projection=projection, filter=filtered)

    parts = [definitions.projected(target, s, layers or (SIZE,), projection, not filtered) for s in sources]
    expected = definitions.mixture(target, parts, betas, weights or [1] * 4)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-14)
    assert result.dtype == np.float64


def test_one_beta_stands_for_all_sources():
    target, sources, _ = updates(3)

    assert np.array_equal(fedgp(target, sources, 0.3), fedgp(target, sources, [0.3] * 4))
    assert np.array_equal(fedda(target, sources, 0.3), fedda(target, sources, [0.3] * 4))


def test_a_layer_longer_than_a_block_is_still_one_layer():
    target, sources, betas = updates(7, count=2, size=2 * BLOCK + 17)
    layers = (BLOCK + 9, BLOCK + 8)

    result = fedgp(target, sources, betas, layers=layers)

    parts = [definitions.projected(target, s, layers, "orthogonal", False) for s in sources]
    np.testing.assert_allclose(result, definitions.mixture(target, parts, betas, [1, 1]), rtol=1e-11, atol=1e-14)


@given(target=vectors, source=vectors, filtered=st.booleans())
def test_orthogonal_projection_is_never_longer_than_the_target_in_any_layer(target, source, filtered):
    result = project(target, source, layers=LAYERS, filter=filtered)

    for t, p in zip(definitions.split(target, LAYERS), definitions.split(result, LAYERS), strict=True):
        assert np.linalg.norm(p) <= np.linalg.norm(t) * (1 + 1e-12)


@given(update=vectors, beta=st.floats(0, 1), projection=st.sampled_from(["orthogonal", "cosine"]))
def test_fedgp_of_identical_updates_returns_them(update, beta, projection):
    result = fedgp(update, [update] * 3, beta, layers=LAYERS, projection=projection)

    np.testing.assert_allclose(result, update, rtol=1e-12, atol=1e-12 * np.linalg.norm(update))


@pytest.mark.parametrize(("projection", "filtered"), VARIANTS)
def test_a_layer_in_which_the_source_did_not_move_is_projected_to_zero(projection, filtered):
    target, sources, _ = updates(9)
    source = sources[0].copy()
    source[3:4] = 0.0

    result = project(target, source, layers=LAYERS, projection=projection, filter=filtered)

    assert result[3] == 0.0
    np.testing.assert_allclose(
        result, definitions.projected(target, source, LAYERS, projection, not filtered), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize(("projection", "filtered"), VARIANTS)
def test_a_layer_in_which_the_target_did_not_move_is_projected_to_zero(projection, filtered):
    target, sources, _ = updates(10)
    target[:3] = 0.0

    result = project(target, sources[0], layers=LAYERS, projection=projection, filter=filtered)

    assert not result[:3].any()
    assert np.isfinite(result).all()


def test_filter_zeroes_layers_that_disagree_and_no_others():
    target = np.array([1.0, 1.0, 1.0, 1.0])
    source = np.array([-1.0, -2.0, 3.0, 1.0])

    np.testing.assert_allclose(project(target, source, layers=(2, 2)), [0, 0, 1.2, 0.4])
    np.testing.assert_allclose(project(target, source, layers=(2, 2), filter=False), [0.6, 1.2, 1.2, 0.4])


def test_alignment_undoes_steps_and_learning_rate():
    one_step = np.array([0.5, -2.0, 1.0])
    source_update = 12 * 0.1 * one_step

    aligned = align_update(source_update, target_steps=4, source_steps=12, learning_rate_ratio=0.01 / 0.1)

    np.testing.assert_allclose(aligned, 4 * 0.01 * one_step, rtol=1e-15)
