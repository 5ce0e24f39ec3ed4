"""The norm cap: caps are the largest feasible, the same for everybody, and hold whichever sources are lost."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from itertools import combinations

import adaptation_definitions as definitions
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from securefda.rules import caps_for, contribution_norms, norm_codes, norms_of, scale_to_caps

ROUNDING = Fraction(1, 10**12)
NORMS = st.one_of(
    st.sampled_from([0.0, 1.0, 2.0]),  # zeros and equal reports
    st.floats(2.0**-10, 2.0**10, width=32),
    st.floats(0, 2.0**100, width=32),
)
KAPPAS = st.one_of(st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.floats(0.01, 8))


def tables(least: int = 2, most: int = 8, layers: int = 3):
    counts = st.integers(least, most)
    return counts.flatmap(lambda count: st_numpy.arrays(np.float32, (count, layers), elements=NORMS))


@st.composite
def rules(draw, least: int = 2, most: int = 8):
    """Norm reports of some sources, kappa, and how many others count."""
    reports = draw(tables(least, most))
    return reports, draw(KAPPAS), draw(st.integers(1, len(reports) - 1))


@given(rule=rules())
def test_caps_are_feasible(rule):
    reports, kappa, others = rule

    for column, cap in zip(reports.T, caps_for(reports, kappa=kappa, others=others), strict=True):
        assert definitions.norm_cap_holds(column, cap, kappa * (1 - ROUNDING), others)


@given(rule=rules())
def test_no_larger_cap_is_feasible(rule):
    reports, kappa, others = rule

    for column, cap in zip(reports.T, caps_for(reports, kappa=kappa, others=others), strict=True):
        if cap >= max(column):
            continue  # the reports are below it
        if cap == 0:
            beyond = [min(float(value) for value in column if value > 0) / 1e9, 1.0, np.inf]
        else:
            beyond = [cap * (1 + 1e-9), cap * 1.5, np.inf]
        for larger in beyond:
            assert not definitions.norm_cap_holds(column, larger, kappa, others)


@given(data=st.data(), rule=rules())
def test_rule_holds_for_norms_that_are_larger_than_the_reports_say(data, rule):
    """Reports are rounded down; a contribution is scaled to the cap by its exact norm, however far above its report."""
    reports, kappa, others = rule
    norms = reports * (1 + data.draw(st_numpy.arrays(np.float64, reports.shape, elements=st.floats(0, 1))))

    capped = np.minimum(norms, caps_for(reports, kappa=kappa, others=others))

    for column in capped.T:
        squares = [Fraction(value) ** 2 for value in column.tolist()]
        assert definitions.squares_hold(squares, kappa * (1 - ROUNDING), others)


@given(rule=rules(), seed=st.integers(0, 10**6))
def test_caps_are_the_same_to_the_last_bit_in_whatever_order_the_rows_come(rule, seed):
    reports, kappa, others = rule
    shuffled = np.random.default_rng(seed).permutation(reports, axis=0)

    caps = caps_for(reports, kappa=kappa, others=others)

    assert caps_for(shuffled, kappa=kappa, others=others).tobytes() == caps.tobytes()


@given(rule=rules())
def test_the_rule_in_every_layer_is_the_rule_for_the_model(rule):
    reports, kappa, others = rule

    capped = np.minimum(reports.astype(np.float64), caps_for(reports, kappa=kappa, others=others))

    squares = [sum(Fraction(value) ** 2 for value in norms) for norms in capped.tolist()]
    assert definitions.squares_hold(squares, kappa * (1 - ROUNDING), others)


@given(rule=rules(least=3, most=6))
def test_the_cap_holds_for_those_left_after_any_loss(rule):
    reports, kappa, others = rule

    capped = np.minimum(reports.astype(np.float64), caps_for(reports, kappa=kappa, others=others))

    for left in combinations(range(len(reports)), others + 1):
        for column in capped.T:
            squares = [Fraction(column[index]) ** 2 for index in left]
            assert definitions.squares_hold(squares, kappa * (1 - ROUNDING), others)


@given(data=st.data(), rule=rules(least=3, most=7))
def test_whatever_others_claim_the_rule_holds_among_the_rest(data, rule):
    true, kappa, others = rule
    liars = len(true) - 1 - others
    assume(liars > 0)
    claimed = true.copy()
    claimed[:liars] = data.draw(st_numpy.arrays(np.float32, (liars, true.shape[1]), elements=NORMS))

    caps = caps_for(claimed, kappa=kappa, others=others)

    for column in np.minimum(true[liars:].astype(np.float64), caps).T:
        squares = [Fraction(value) ** 2 for value in column.tolist()]
        assert definitions.squares_hold(squares, kappa * (1 - ROUNDING), others)


def test_one_liar_more_breaks_the_rule_among_the_rest():
    """Companion to the test above: the bound on the number of liars is needed."""
    true = np.array([[0.0], [0.0], [1.0], [10.0]])
    claimed = np.array([[10.0], [10.0], [1.0], [10.0]])

    caps = caps_for(claimed, kappa=1.0, others=2)

    assert not definitions.norm_cap_holds(true[2:, 0], caps[0], 1.0, 1)


@pytest.mark.parametrize(
    ("reports", "kappa", "others", "expected"),
    [
        ([0.0, 0.0, 0.0], 1.0, 2, 0.0),
        ([0.0, 0.0, 5.0], 1.0, 2, 0.0),
        ([0.0, 5.0, 5.0], 1.0, 2, 5.0),
        ([0.0, 5.0, 5.0], 1.0, 1, 0.0),
        ([2.0, 2.0, 2.0], 2.0, 2, 2.0),
        ([2.0, 2.0, 2.0], 1.0, 2, np.sqrt(8)),
        ([2.0, 2.0, 2.0], 2.5, 2, 0.0),
        ([0.0, 0.0, 0.0], 2.5, 2, 0.0),
        ([3.0, 4.0, 9.0], 1.0, 2, 5.0),
        ([3.0, 4.0, 5.0], 1.0, 2, 5.0),
        ([3.0, 4.0, 5.0], 2.0, 2, 3.0),
        ([3.0, 4.0, 9.0], 1.5, 2, np.sqrt(50 / 3)),
        ([3.0, 4.0, 9.0], 1.875, 2, np.sqrt(9 / 0.875)),
        ([1.0, 1.0, 1.0, 50.0], 3.0, 3, 1.0),
        ([3.0, 4.0], 1.0, 2, 0.0),
        ([0.0, 0.0], 1.0, 2, 0.0),
        ([7.0], 1.0, 1, 0.0),
    ],
)
def test_caps_worked_by_hand(reports, kappa, others, expected):
    assert caps_for(np.array(reports)[:, np.newaxis], kappa=kappa, others=others).tolist() == [expected]


@pytest.mark.parametrize("kappa", [5e-324, 1e-300, 1e300])
def test_an_extreme_kappa_gives_no_nan(kappa):
    reports = np.array([[1e38], [1e38], [2e38], [3e38]], dtype=np.float32)

    assert caps_for(reports, kappa=kappa, others=2).tolist() == [np.inf if kappa < 1 else 0.0]


def test_norms_are_the_norms_of_the_weighted_layers():
    vector = np.array([3.0, 4.0, 0.0, -2.0])

    norms = contribution_norms(vector, (2, 1, 1), 0.5)

    assert norms.dtype == np.float64
    assert norms.tolist() == [2.5, 0.0, 1.0]
    assert contribution_norms(vector, (4,), 1.0).tolist() == [np.sqrt(29.0)]


SIZES = st.sampled_from([1, 255, 256, 10**6])


@given(size=SIZES, limit=st.floats(1e-3, 1e6), part=st.floats(0, 1))
def test_codes_are_the_norm_rounded_down_by_less_than_a_step(size, limit, part):
    (said,) = norms_of(norm_codes([part * limit], [size], [limit]), [size], [limit])

    step = 2**0.5 if size < 256 else 2**0.25
    smallest = limit * step**-254
    assert said <= part * limit
    assert part * limit < said * step * (1 + 1e-12) or part * limit < smallest * (1 + 1e-12)


@pytest.mark.parametrize("size", [255, 256])
def test_every_code_is_that_of_the_norm_that_it_stands_for(size):
    codes = bytes(range(256))
    sizes, limits = [size] * 256, [3.7] * 256

    norms = norms_of(codes, sizes, limits)

    assert norm_codes(norms, sizes, limits) == codes
    assert np.all(np.diff(norms) > 0)
    assert (norms[0], norms[-1]) == (0, 3.7)


def test_a_norm_above_its_limit_is_reported_as_the_limit():
    assert norm_codes([3.0, 4.0], [1, 1000], [2.0, 2.0]) == bytes([255, 255])


HASHED_ROW = """
import numpy as np
from securefda.rules import contribution_norms

vector = np.random.default_rng(3).normal(size=300_001)
print(contribution_norms(vector, (200_000, 100_000, 1), 0.3).tobytes().hex())
"""


def test_norms_are_the_same_to_the_last_bit_on_one_thread_and_on_four():
    printed = set()
    for threads in ("1", "4"):
        environment = os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", HASHED_ROW], env=environment, capture_output=True, text=True, check=True
        )
        printed.add(done.stdout)

    assert len(printed) == 1


def test_scaling_brings_each_layer_to_its_cap_and_tells_which():
    vector = np.array([3.0, 4.0, 1.0, -2.0, 6.0, 0.0])
    sizes = (2, 1, 1, 1, 1)
    norms = contribution_norms(vector, sizes, 0.5)

    effect = scale_to_caps(vector, sizes, norms, [1.0, np.inf, 0.0, 3.0, 0.0])

    np.testing.assert_allclose(vector, [1.2, 1.6, 1.0, 0.0, 6.0, 0.0], rtol=1e-15)
    np.testing.assert_allclose(contribution_norms(vector, sizes, 0.5), [1.0, 0.5, 0.0, 3.0, 0.0])
    assert (effect.capped, effect.zeroed) == ((0,), (2,))


def test_a_layer_within_its_cap_is_left_to_the_last_bit():
    vector = np.random.default_rng(1).normal(size=10)
    before = vector.copy()
    norms = contribution_norms(vector, (4, 6), 1.0)

    effect = scale_to_caps(vector, (4, 6), norms, norms)

    assert np.array_equal(vector, before)
    assert (effect.capped, effect.zeroed) == ((), ())


def test_a_layer_with_cap_0_is_zeroed_even_where_its_norm_rounds_to_zero():
    vector = np.array([1e-200, 1.0])
    norms = contribution_norms(vector, (1, 1), 1.0)

    scale_to_caps(vector, (1, 1), norms, [0.0, np.inf])

    assert vector.tolist() == [0.0, 1.0]


@given(seed=st.integers(0, 10**6), kappa=st.floats(0.1, 4), spread=st.floats(0, 4), whole=st.booleans())
def test_sum_of_orthogonal_contributions_points_along_none_of_them(seed, kappa, spread, whole):
    """Cosine at most 1 / sqrt(1 + kappa) with each, for the smallest sum that can open: others + 1 of them."""
    count, size = 4, 8
    others = count - 1
    generator = np.random.default_rng(seed)
    sizes = (size,) if whole else (size // 2, size // 2)
    bases = [np.linalg.qr(generator.normal(size=(part, part)))[0][:count] for part in sizes]
    contributions = np.hstack([base * np.exp(spread * generator.normal(size=(count, 1))) for base in bases])
    reports = np.array([contribution_norms(vector, sizes, 1.0) for vector in contributions])

    caps = caps_for(reports, kappa=kappa, others=others)
    for vector, norms in zip(contributions, reports, strict=True):
        scale_to_caps(vector, sizes, norms, caps)

    total = contributions.sum(axis=0)
    for vector in contributions:
        longest = np.linalg.norm(vector) * np.linalg.norm(total) / np.sqrt(1 + kappa)
        assert vector @ total <= longest * (1 + 1e-6)


def test_the_bound_on_the_cosine_is_reached_without_slack():
    """Companion to the test above: with equal norms and kappa = others the bound is met, so it is not idle."""
    contributions = np.eye(4)
    caps = caps_for(np.ones((4, 1)), kappa=3.0, others=3)

    total = contributions.sum(axis=0)

    assert caps.tolist() == [1.0]
    assert contributions[0] @ total / np.linalg.norm(total) == pytest.approx(1 / np.sqrt(1 + 3.0))


def test_correlated_contributions_are_beyond_what_the_rule_says():
    """Equal norms in one direction are below their cap, and their sum points along each of them."""
    contributions = np.ones((3, 4))
    reports = [contribution_norms(vector, (4,), 1.0) for vector in contributions]

    caps = caps_for(reports, kappa=1.0, others=2)

    assert caps.tolist() == [pytest.approx(np.sqrt(8))]


GOOD = {
    caps_for: {"reports": np.ones((3, 2)), "kappa": 1.0, "others": 2},
    contribution_norms: {"vector": [1.0, 2.0, 3.0], "sizes": (1, 2), "weight": 1.0},
    norm_codes: {"norms": [1.0, 1.0], "sizes": [1, 1000], "limits": [2.0, 2.0]},
    norms_of: {"codes": b"12", "sizes": [1, 1], "limits": [1.0, 1.0]},
    scale_to_caps: {"vector": np.ones(3), "sizes": (1, 2), "norms": [1.0, 3.0], "caps": [0.0, 0.5]},
}
NO_NORM = [-1.0, np.nan, np.inf]
BAD = [
    *[(caps_for, "reports", [[1.0, bad], [1.0, 1.0]]) for bad in NO_NORM],
    *[(caps_for, "reports", bad) for bad in (np.empty((0, 2)), np.ones(3), [[1.0], [1.0, 2.0]])],
    *[(caps_for, "kappa", bad) for bad in (0.0, -1.0, np.nan, np.inf, "1")],
    *[(caps_for, "others", bad) for bad in (0, -1, 1.5, True)],
    *[(contribution_norms, "vector", bad) for bad in ([1.0, np.nan, 0.0], [1e100, 0.0, 0.0], [])],
    *[(contribution_norms, "sizes", bad) for bad in ((2,), (4, -1))],
    *[(contribution_norms, "weight", bad) for bad in NO_NORM],
    *[(norm_codes, "norms", bad) for bad in ([1.0], [1.0, -1.0], [1.0, np.nan])],
    *[(norm_codes, "limits", bad) for bad in ([1.0], [1.0, 0.0], [1.0, np.inf])],
    (norms_of, "codes", b"1"),
    (norms_of, "limits", [1.0, -1.0]),
    (scale_to_caps, "sizes", (2,)),
    *[(scale_to_caps, "norms", bad) for bad in ([1.0], [1.0, -1.0], [1.0, np.nan])],
    *[(scale_to_caps, "caps", bad) for bad in ([1.0], [1.0, -1.0], [1.0, np.nan], None, ["a", "b"])],
    *[(scale_to_caps, "vector", bad) for bad in ([1.0] * 3, np.ones(3, np.float32), np.broadcast_to(1.0, 3))],
    (scale_to_caps, "vector", np.ones((1, 3))),
]


@pytest.mark.parametrize(("function", "name", "bad"), BAD)
def test_bad_argument_is_named_and_nothing_is_scaled(function, name, bad):
    with pytest.raises(ValueError, match=rf"^{name}: "):
        function(**(GOOD[function] | {name: bad}))

    assert GOOD[scale_to_caps]["vector"].tolist() == [1.0, 1.0, 1.0]
