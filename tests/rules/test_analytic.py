"""The analytic rule's arithmetic, against plain least squares and models that are really fitted without a row."""

from __future__ import annotations

import math

import numpy as np
import pytest
from depth import DEEP, at_depth
from hypothesis import example, given, settings
from hypothesis import strategies as st

from securefda.rules import (
    Moments,
    RoundPlan,
    Rule,
    Strategy,
    combine,
    fit_head,
    moments_length,
    sources_part,
    tightest,
)
from securefda.rules.analytic import bounded_rows, without_noise

D, C, WIDE = 5, 3, 1e9


def rows(seed: int, n: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Features and codes of three classes, whose means move by ``shift``."""
    random = np.random.default_rng(seed)
    labels = random.integers(C, size=n)
    features = random.standard_normal((n, D)) + 2 * np.eye(D)[labels] + shift
    return features, 2.0 * np.eye(C)[labels] - 1


def with_constant(features: np.ndarray) -> np.ndarray:
    return np.column_stack([features, np.ones(len(features))])


def test_moments_of_two_sites_are_those_of_their_rows_together() -> None:
    one, other = rows(1, 30), rows(2, 50)
    sums = np.zeros(C * (D + 1) + moments_length(D))
    for features, codes in (one, other):
        moments = Moments.of(features, codes, bound=WIDE)
        sums += moments.rows * moments.means()
    together = Moments.from_means(sums / 80, width=D, outputs=C, rows=80)
    z = with_constant(np.vstack([one[0], other[0]]))
    assert together.gram == pytest.approx(z.T @ z)
    assert together.cross == pytest.approx(np.vstack([one[1], other[1]]).T @ z)


def test_a_row_adds_no_more_than_the_bound_and_a_head_that_fits_stays() -> None:
    features = rows(3, 40)[0] * np.geomspace(0.1, 1.0, 40)[:, None]
    head = np.random.default_rng(4).standard_normal((2, D + 1)) / 5
    targets = with_constant(features) @ head.T
    apart = features[:, None], targets[:, None]
    z, y, scales = bounded_rows(features, targets, bound=2.0)
    sent = [np.linalg.norm(Moments.of(one, other, bound=2.0).means()) for one, other in zip(*apart, strict=True)]
    assert max(sent) == pytest.approx(2.0)
    assert min(sent) < 1.9
    assert 0 < scales.min() < scales.max() <= 1
    fitted = np.linalg.solve(z.T @ z, z.T @ y).T
    assert fitted == pytest.approx(head)


@pytest.mark.parametrize(("alone", "balanced"), [(False, False), (True, False), (True, True)])
def test_the_head_and_what_was_left_out_are_those_of_plain_ridge_regression(alone: bool, balanced: bool) -> None:
    features, codes = rows(5, 24, shift=0.5)
    sources = None if alone else Moments.of(*rows(6, 200), bound=WIDE)
    head = fit_head(sources, features, codes, bound=WIDE, balanced=balanced)
    z = with_constant(features)
    of_class = np.array([8 / np.sum(codes.argmax(1) == one) for one in codes.argmax(1)])
    weights = (of_class if balanced else np.ones(24))[:, None]
    gram = np.zeros((D + 1, D + 1)) if sources is None else head.source_weight * sources.gram
    cross = np.zeros((C, D + 1)) if sources is None else head.source_weight * sources.cross

    def solved(kept: np.ndarray) -> np.ndarray:
        weighted = z[kept] * weights[kept]
        own = gram + z[kept].T @ weighted + head.ridge * np.eye(D + 1)
        return np.linalg.solve(own, (cross + codes[kept].T @ weighted).T)

    assert head.weights == pytest.approx(solved(np.arange(24)).T, abs=1e-9)
    for row in range(24):
        expected = z[row] @ solved(np.delete(np.arange(24), row))
        assert head.left_out[row] == pytest.approx(expected, abs=1e-6)
    assert (head.source_weight == 0) is alone


def test_classes_that_spread_alike_are_balanced_as_if_each_row_had_its_weight() -> None:
    random, counts = np.random.default_rng(30), np.array([40, 10, 20])
    spread = random.standard_normal((10, D))
    spread -= spread.mean(axis=0)
    features = np.vstack(
        [mean + np.tile(spread, (count // 10, 1)) for mean, count in zip(np.eye(C, D), counts, strict=True)]
    )
    labels = np.repeat(np.arange(C), counts)
    codes = np.eye(C)[labels] - 1 / C
    found = Moments.of(features, codes, bound=WIDE).balanced()
    z, weights = with_constant(features), (70 / C / counts)[labels]
    assert found.gram == pytest.approx((z.T * weights) @ z)
    assert found.cross == pytest.approx((codes.T * weights) @ z)


def test_a_class_without_rows_stays_without() -> None:
    features, codes = rows(31, 300)
    kept = codes[:, 2] < 0
    moments = Moments.of(features[kept], (codes[kept] + 1) / 2 - 1 / C, bound=WIDE)
    rounded = Moments(moments.gram, moments.cross + 1e-7, moments.rows)
    assert rounded.balanced().gram == pytest.approx(moments.balanced().gram, rel=1e-4)
    assert (with_constant(features) @ fit_head(rounded, bound=WIDE, balanced=True).weights.T).argmax(1).max() == 1


@pytest.mark.parametrize("labels", [0, 60])
def test_a_rare_class_is_named_as_often_as_it_should_if_classes_are_balanced(labels: int) -> None:
    random = np.random.default_rng(32)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        label = (random.random(count) < 0.1).astype(int)
        return random.standard_normal((count, D)) + 0.7 * np.eye(2, D)[label], np.eye(2)[label] - 0.5

    sources, own, (test, wanted) = Moments.of(*drawn(4000), bound=WIDE), drawn(labels) if labels else (), drawn(4000)
    recalls = []
    for balanced in (False, True):
        guesses = with_constant(test) @ fit_head(sources, *own, bound=WIDE, balanced=balanced).weights.T
        right = guesses.argmax(1) == wanted.argmax(1)
        recalls.append([right[wanted[:, one] > 0].mean() for one in (0, 1)])
    assert recalls[0][1] < 0.05
    assert min(recalls[1]) > 0.6


def test_leave_one_out_takes_sources_that_are_alike_and_leaves_those_that_are_not() -> None:
    features, codes = rows(7, 30)
    test, wanted = rows(8, 2000)

    def accuracy(sources: Moments | None) -> float:
        head = fit_head(sources, features, codes, bound=WIDE)
        return float(((with_constant(test) @ head.weights.T).argmax(1) == wanted.argmax(1)).mean())

    alike = Moments.of(*rows(9, 1000), bound=WIDE)
    turned, codes_of_turned = rows(10, 1000)
    unlike = Moments.of(turned, np.roll(codes_of_turned, 1, axis=1), bound=WIDE)
    assert accuracy(alike) > accuracy(None) + 0.01
    assert accuracy(unlike) > accuracy(None) - 0.02
    weights = [fit_head(one, features, codes, bound=WIDE).source_weight for one in (alike, unlike)]
    assert weights[0] > 10 * weights[1]


def test_without_labels_the_sources_alone_make_the_head() -> None:
    sources = Moments.of(*rows(11, 300), bound=WIDE)
    head = fit_head(sources, bound=WIDE)
    z, codes = with_constant(rows(11, 300)[0]), rows(11, 300)[1]
    ridge = 0.5 * np.square(z).sum() / 300
    expected = np.linalg.solve(z.T @ z + ridge * np.eye(D + 1), z.T @ codes).T
    assert head.weights == pytest.approx(expected, abs=1e-9)
    assert head.left_out is None
    assert sources_part(head, head) == 0.0


def test_sources_moved_to_the_targets_mean_are_as_if_their_rows_had_been_moved() -> None:
    features, codes = rows(11, 300)
    shift = np.arange(1.0, D + 1) / 10
    moved = fit_head(Moments.of(features, codes, bound=WIDE), bound=WIDE, mean_of=features[::-1] + shift)
    expected = fit_head(Moments.of(features + shift, codes, bound=WIDE), bound=WIDE)
    assert moved.weights == pytest.approx(expected.weights, abs=1e-9)


@pytest.mark.parametrize("labels", [0, 20])
def test_noise_on_the_moments_costs_little(labels: int) -> None:
    # Seed 17. Noise of a tenth of the mean eigenvalue, in a space where most directions matter little.
    random = np.random.default_rng(17)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        features, codes = rows(int(random.integers(1000)), count)
        return np.column_stack([features, 0.3 * random.standard_normal((count, 60))]), codes

    sources, (test, wanted) = Moments.of(*drawn(3000), bound=4.0), drawn(2000)
    sent = sources.means() * sources.rows
    noisy = (sent + random.normal(scale=25.0, size=sent.size)) / sources.rows
    noisy_sources = Moments.from_means(noisy, width=D + 60, outputs=C, rows=sources.rows)
    own = drawn(labels) if labels else ()
    heads = [fit_head(one, *own, bound=4.0) for one in (sources, noisy_sources)]
    right = [((with_constant(test) @ one.weights.T).argmax(1) == wanted.argmax(1)).mean() for one in heads]
    assert right[1] > right[0] - 0.03


def test_noise_is_taken_off_moments_of_few_directions_and_rounding_is_not_noise() -> None:
    random = np.random.default_rng(20)
    direction = random.standard_normal(60) / np.sqrt(60)
    gram = np.diag(random.uniform(1, 30, size=60)) + 900 * np.outer(direction, direction)
    noise = np.triu(random.normal(scale=10, size=gram.shape))
    noise += np.triu(noise, 1).T
    found, largest = without_noise(gram + noise)
    assert np.linalg.norm(found - gram) < 0.4 * np.linalg.norm(noise)
    assert np.linalg.eigvalsh(found)[0] > 0
    assert largest == pytest.approx(2 * 10 * np.sqrt(60), rel=0.25)
    rounded = np.outer(direction, direction) - 1e-8 * np.eye(60)
    assert without_noise(rounded)[0] == pytest.approx(rounded, abs=1e-7)
    assert without_noise(rounded)[1] == 0


def test_noise_that_is_known_is_taken_off_even_where_no_eigenvalue_is_negative() -> None:
    """Such a draw looks as if it had none: what noise leaves of weak directions then decides the head."""
    random, width, scale = np.random.default_rng(21), 13, 10.0
    spread, true = np.geomspace(1, 0.3, width), random.standard_normal(width + 1)
    far = np.zeros(2)
    for _ in range(200):
        features = spread * random.standard_normal((400, width))
        exact = Moments.of(features, np.sign(with_constant(features) @ true)[:, None], bound=4.0)
        sent = exact.means() * exact.rows + random.normal(scale=scale, size=exact.means().size)
        noisy = Moments.from_means(sent / exact.rows, width=width, outputs=1, rows=exact.rows)
        if np.linalg.eigvalsh(noisy.scaled().gram)[0] > 0:
            expected = fit_head(exact, bound=4.0).weights
            heads = (fit_head(noisy, bound=4.0, noise=known).weights for known in (0.0, scale))
            found = [np.linalg.norm(head - expected) / np.linalg.norm(expected) for head in heads]
            far = np.maximum(far, found)
    assert far[0] > 5
    assert far[1] < 0.7


def test_caps_scale_both_moments_by_one_factor() -> None:
    caps = tightest(np.array([4.0, 3.0, 2.0]), np.array([2.0, 6.0, np.inf]))
    assert caps == pytest.approx([2.0, 1.5, 1.0])
    assert np.array_equal(tightest(np.array([1.0, 1.0]), np.array([2.0, np.inf])), [2.0, np.inf])
    assert np.array_equal(tightest(np.array([1.0, 0.0]), np.array([0.0, 5.0])), [0.0, 0.0])


def test_the_round_is_the_mean_of_the_moments_and_the_run_is_that_round() -> None:
    plan = RoundPlan(rule=Rule.ANALYTIC)
    assert plan.needs_sources
    assert not plan.uses_target_statistics
    assert np.array_equal(combine(Rule.ANALYTIC, [2.0, 4.0], 0.0, 2.0), [1.0, 2.0])
    with pytest.raises(ValueError, match=r"^rule: analytic has one round, and rounds is 2"):
        Strategy(rule=Rule.ANALYTIC, rounds=2)


LENGTH = 2 * 3 + moments_length(2)
NUMBERS = st.floats(-3.4e38, 3.4e38) | st.sampled_from([0.0, 1.0, -1.0, 1e-300, -1e-300, math.nan, math.inf])


@settings(max_examples=at_depth(50, 5000), derandomize=not DEEP, database=None, deadline=None)
@example([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1e-300], 1.0, 0)
@example([0.0, 0.0, 0.0, 0.0, 0.0, 1797693135.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1e-300], 1.0, None)
@given(
    means=st.lists(NUMBERS, min_size=LENGTH - 1, max_size=LENGTH + 1)
    | st.lists(st.floats(-2, 2), min_size=LENGTH, max_size=LENGTH),
    sent_rows=st.floats(1e-9, 1e12),
    seed=st.none() | st.integers(0, 99),
)
def test_whatever_the_sources_say_are_their_moments_the_head_is_finite_or_the_sum_is_refused(
    means: list[float], sent_rows: float, seed: int | None
) -> None:
    """Sums of float32, of another length, of no finite number, of rows that cannot be, with negative eigenvalues."""
    if len(means) != LENGTH or not np.isfinite(means).all():
        with pytest.raises(ValueError, match=r"^means: must"):
            Moments.from_means(means, width=2, outputs=2, rows=sent_rows)
        return
    sources, own = Moments.from_means(means, width=2, outputs=2, rows=sent_rows), ()
    features, codes = rows(seed or 0, 6)
    if seed is not None:
        own = features[:, :2], codes[:, :2]
    refused = ""
    try:
        head = fit_head(sources, *own, bound=1.0, mean_of=features[:, :2] if seed and seed % 2 else None)
    except ValueError as error:
        refused = str(error)
    if refused:
        assert refused.startswith(("sources: there are no moments", "sources: no head of finite numbers"))
        return
    assert np.isfinite(head.weights).all()
    assert 0 <= head.source_weight < math.inf
    assert 0 < head.ridge < math.inf


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: Moments.of(np.ones((3, 2)), np.ones((4, 1)), bound=1.0), "targets: must be of 3 rows, are of 4"),
        (lambda: Moments.of(np.ones((3, 2)), np.ones((3, 1)), bound=0.0), "bound: "),
        (lambda: Moments.of(np.full((3, 2), np.nan), np.ones((3, 1)), bound=1.0), "features: "),
        (lambda: Moments.from_means(np.ones(3), width=2, outputs=1, rows=3), "means: "),
        (lambda: fit_head(None, bound=1.0), "sources: there are no moments"),
        (lambda: fit_head(Moments(np.zeros((3, 3)), np.zeros((1, 3)), 9), bound=1.0), "sources: there are no moments"),
        (
            lambda: fit_head(Moments.of(*rows(1, 9), bound=1.0), np.ones((3, 2)), np.ones((3, 3)), bound=1.0),
            "features: of another width",
        ),
        (
            lambda: fit_head(Moments.of(*rows(1, 9), bound=1.0), bound=1.0, mean_of=np.ones((3, 2))),
            "mean_of: of another width",
        ),
    ],
)
def test_bad_arguments_are_named(call: object, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}"):
        call()  # type: ignore[operator]
