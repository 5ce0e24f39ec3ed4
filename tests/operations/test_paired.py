"""The paired interval of two accuracies, against arithmetic of its own and against what it claims."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from securefda.operations.paired import Z, bootstrap_help, paired_help


def agresti_and_min(only_run: int, only_baseline: int, rows: int) -> tuple[float, float]:
    """Their interval of matched proportions: half a row more in each of the four cells of the table."""
    b, c, n = Fraction(only_run) + Fraction(1, 2), Fraction(only_baseline) + Fraction(1, 2), Fraction(rows + 2)
    middle = (b - c) / n
    variance = ((b + c) - (b - c) ** 2 / n) / n**2
    margin = 1.959964 * math.sqrt(variance)
    return max(-1.0, float(middle) - margin), min(1.0, float(middle) + margin)


def rows_of(both: int, only_run: int, only_baseline: int, neither: int) -> tuple[list[int], list[int]]:
    run = [1] * both + [1] * only_run + [0] * only_baseline + [0] * neither
    baseline = [1] * both + [0] * only_run + [1] * only_baseline + [0] * neither
    return run, baseline


@pytest.mark.parametrize("table", [(10, 3, 1, 2), (0, 16, 0, 0), (16, 0, 0, 0), (300, 40, 10, 150), (0, 0, 1, 0)])
def test_of_one_round_it_is_the_interval_of_agresti_and_min(table: tuple[int, int, int, int]) -> None:
    run, baseline = rows_of(*table)
    found = paired_help(run, baseline)
    assert found["difference"] == pytest.approx((table[1] - table[2]) / sum(table))
    assert (found["low"], found["high"]) == pytest.approx(agresti_and_min(table[1], table[2], sum(table)), abs=1e-6)
    assert found["test_rows"] == sum(table)


def test_rows_that_are_right_in_some_of_the_rounds_count_by_their_mean() -> None:
    differences = [Fraction(1, 5), Fraction(-2, 5), Fraction(1), Fraction(0)]
    run, baseline = [1.0, 0.2, 1.0, 0.4], [0.8, 0.6, 0.0, 0.4]
    count, total = 6, sum(differences)
    variance = (sum(one**2 for one in differences) + 1) / Fraction(count) - (total / count) ** 2
    margin = 1.959964 * math.sqrt(float(variance) / count)
    found = paired_help(run, baseline)
    assert found["difference"] == pytest.approx(0.2)
    assert found["low"] == pytest.approx(float(total) / count - margin, abs=1e-6)
    assert found["high"] == pytest.approx(float(total) / count + margin, abs=1e-6)


@pytest.mark.parametrize("table", [(10, 5, 1, 3), (0, 7, 2, 1)])
def test_the_other_way_round_it_has_the_other_sign(table: tuple[int, int, int, int]) -> None:
    run, baseline = rows_of(*table)
    there, back = paired_help(run, baseline), paired_help(baseline, run)
    assert (there["low"], there["high"]) == pytest.approx((-(back["high"] or 0), -(back["low"] or 0)))


@pytest.mark.parametrize("rows", [16, 100])
@pytest.mark.parametrize(("only_run", "only_baseline"), [(0.05, 0.05), (0.2, 0.05), (0.3, 0.3)])
def test_it_covers_the_truth_with_few_rows_too(rows: int, only_run: float, only_baseline: float) -> None:
    """4,000 draws, seed 1: an interval of 95 % covers fewer than 92.5 % of them less than once in a million times."""
    chance = np.random.default_rng(1)
    drawn = chance.choice([1.0, -1.0, 0.0], (4000, rows), p=[only_run, only_baseline, 1 - only_run - only_baseline])
    found = [paired_help(one, np.zeros(rows)) for one in drawn]
    truth = only_run - only_baseline
    covered = np.mean([(one["low"] or 0) <= truth <= (one["high"] or 0) for one in found])
    assert covered > 0.925
    narrow = np.mean([abs(one["difference"] - truth) <= ((one["high"] or 0) - (one["low"] or 0)) / 5 for one in found])
    assert narrow < 0.925  # companion: an interval of two fifths of the width does not


def test_the_bootstrap_of_a_mean_has_the_width_of_its_standard_error_and_is_the_same_each_time() -> None:
    rows = np.random.default_rng(3).normal(0.2, 1.0, 400)
    found = bootstrap_help(lambda chosen: float(rows[chosen].mean()), len(rows))
    assert found is not None
    assert found["low"] is not None
    assert (found["difference"], found["test_rows"]) == (pytest.approx(rows.mean()), 400)
    assert found["difference"] - found["low"] == pytest.approx(Z * rows.std(ddof=1) / 20, rel=0.15)
    assert found == bootstrap_help(lambda chosen: float(rows[chosen].mean()), len(rows))


def test_rows_of_which_some_draw_defines_no_metric_give_no_interval() -> None:
    """One positive row of eight is missing in a third of the draws."""
    assert bootstrap_help(lambda chosen: 0.5 if 0 in chosen else math.nan, 8) is None
