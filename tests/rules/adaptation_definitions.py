"""The paper's definitions, once more: plain loops over plain floats, sharing no code with securefda."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

Row = Sequence[float]


def inner(left: Row, right: Row) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


def split(vector: Row, layers: Sequence[int]) -> list[list[float]]:
    parts, start = [], 0
    for size in layers:
        parts.append([float(value) for value in vector[start : start + size]])
        start += size
    return parts


def projected(target: Row, source: Row, layers: Sequence[int], projection: str, keep_negative: bool) -> list[float]:
    result: list[float] = []
    for t, s in zip(split(target, layers), split(source, layers), strict=True):
        product = inner(t, s)
        if product < 0 and not keep_negative:
            product = 0.0
        norm_t, norm_s = math.sqrt(inner(t, t)), math.sqrt(inner(s, s))
        if norm_s == 0 or (projection == "cosine" and norm_t == 0):
            factor = 0.0
        elif projection == "cosine":
            factor = product / norm_t / norm_s
        else:
            factor = product / norm_s**2
        result += [factor * value for value in s]
    return result


def mixture(target: Row, parts: Sequence[Row], betas: Row, weights: Row) -> list[float]:
    """sum_i p_i [(1 - beta_i) g_T + beta_i part_i]"""
    total = math.fsum(weights)
    return [
        math.fsum(
            weight / total * ((1 - beta) * value + beta * part[index])
            for part, beta, weight in zip(parts, betas, weights, strict=True)
        )
        for index, value in enumerate(target)
    ]


def mean(rows: Sequence[Row]) -> list[float]:
    return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]


def total_sample_variance(rows: Sequence[Row]) -> float:
    centre = mean(rows)
    return math.fsum((v - c) ** 2 for row in rows for v, c in zip(row, centre, strict=True)) / (len(rows) - 1)


def without_direction(rows: Sequence[Row], direction: Row) -> list[list[float]]:
    """y_j = x_j - <x_j, u> u"""
    norm = math.sqrt(inner(direction, direction))
    if norm == 0:
        return [list(row) for row in rows]
    unit = [value / norm for value in direction]
    along = [inner(row, unit) for row in rows]
    return [[v - a * u for v, u in zip(row, unit, strict=True)] for row, a in zip(rows, along, strict=True)]


def distance(rows: Sequence[Row], source: Row) -> float:
    """mean_j ||x_j - gbar||^2 - S_x, not clipped"""
    apart = [[v - s for v, s in zip(row, source, strict=True)] for row in rows]
    return math.fsum(inner(row, row) for row in apart) / len(rows) - total_sample_variance(rows)


def projected_distance(rows: Sequence[Row], source: Row) -> float:
    """mean_j ||y_j||^2 - sample_var(y), not clipped"""
    across = without_direction(rows, source)
    return math.fsum(inner(row, row) for row in across) / len(rows) - total_sample_variance(across)


def mean_field_projected_distance(rows: Sequence[Row], source: Row) -> float:
    """M - <x-bar, u>^2 - S_p (B - 1) / B - (S_x - S_p) with S_p = S_x / m, not clipped"""
    count, scatter = len(rows), total_sample_variance(rows)
    along_variance = scatter / len(source)
    along_mean = inner(mean(rows), source) / math.sqrt(inner(source, source))
    mean_square = math.fsum(inner(row, row) for row in rows) / count
    return mean_square - along_mean**2 - along_variance * (count - 1) / count - (scatter - along_variance)


def beta(rows: Sequence[Row], source: Row, rule: str, estimator: str = "exact") -> float:
    count = len(rows)
    variance = total_sample_variance(rows) / count
    across = projected_distance if estimator == "exact" else mean_field_projected_distance
    estimate = distance if rule == "fedda" else across
    squared = max(estimate(rows, source), 0.0)
    if rule == "fedgp_filtered":
        agreeing = sum(inner(row, source) > 0 for row in rows) / count
        delta = 1 - (1 - agreeing) / count
        centre = mean(rows)
        squared = delta * squared + (1 - delta) * inner(centre, centre)
    return 1.0 if variance + squared == 0 else variance / (variance + squared)


def squares_hold(squares: Sequence[Fraction], kappa: float | Fraction, others: int) -> bool:
    """For every i: the sum of the ``others`` smallest of the rest is at least kappa times its own. Exact."""
    return all(
        sum(sorted(squares[:index] + squares[index + 1 :])[:others]) >= Fraction(kappa) * own
        for index, own in enumerate(squares)
    )


def norm_cap_holds(column: Row, cap: float, kappa: float | Fraction, others: int) -> bool:
    """The norm cap in one layer under a cap, from its definition. Exact."""
    return squares_hold([Fraction(min(float(value), float(cap))) ** 2 for value in column], kappa, others)


def delta_errors(rows: Sequence[Row], source: Row, layers: Sequence[int], estimator: str = "exact") -> dict[str, float]:
    """Definition 3.7 of the paper for one source's aligned step, with each rule's own beta.

    FedGP's noise in a layer is that of (1 - beta) x + beta <x, u> u, which is the whole of it along u.
    """
    variance = total_sample_variance(rows) / len(rows)
    noise_along = variance * sum(any(own) for own in split(source, layers)) / len(source)
    if estimator == "exact":
        by_layer = zip(zip(*(split(row, layers) for row in rows), strict=True), split(source, layers), strict=True)
        beside = [total_sample_variance(without_direction(part, own)) for part, own in by_layer]
        noise_along = variance - math.fsum(beside) / len(rows)
    across = projected_distance if estimator == "exact" else mean_field_projected_distance
    apart = max(distance(rows, source), 0.0)
    beyond = max(across(rows, source), 0.0)
    da, gp = beta(rows, source, "fedda", estimator), beta(rows, source, "fedgp", estimator)
    return {
        "target_only": variance,
        "source_only": apart,
        "fedda_auto": (1 - da) ** 2 * variance + da**2 * apart,
        "fedgp_auto": min(
            (1 - gp) ** 2 * (variance - noise_along) + noise_along + gp**2 * beyond,
            variance,
        ),
    }
