"""A linear head by least squares, from one sum over the sources: the analytic rule.

Each site adds the second moments of its rows, A = sum z z^T and B = sum y z^T. A row z is its features and a constant
1; y is what the head is to put out. From the sources' sums and its own rows the target has the head

    W = (B_T + s B) (A_T + s A + lambda I)^-1,

where s is the weight of a source's row beside one of its own. Leave-one-out on its rows, in closed form, chooses s and
lambda, so that it can try any number of settings and ask the sources for nothing more.

Rows are bounded: z and y are scaled by one number such that all that a row adds to A and B, as a vector of the numbers
that are sent, is no longer than a bound. That weighs a long row less, and a head that fits all rows stays as it is.
The numbers that are sent are those of z with 0.3 in place of 1, and of twice y: so a row is shorter, and the bound
leaves more of its features and of its code. Where sources add noise, as long as the bound asks for, less of it drowns.
The target undoes both before it solves: lambda shrinks all weights alike, the one of the constant 1 among them.

The noise is equal in all numbers, so the lowest eigenvalue of A says how large it is. What A may be without it is
estimated by a diagonal matrix and those directions that stand out from the noise (Benaych-Georges & Nadakuditi 2011).

Sums of moments in place of rounds are known from analytic federated learning (He et al. 2024, arXiv 2405.16240); there
all sites have one distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from securefda.rules import checks
from securefda.rules.blocks import Vector

Floats = NDArray[np.floating[Any]]
Matrix = NDArray[np.float64]

RIDGE_WITHOUT_LABELS = 0.5
"""Least lambda in units of the mean squared length of a row, where no row of the target has a label."""

_CONSTANT, _CODES = 0.3, 2.0
"""What is sent in place of the constant 1, and what y is multiplied with: fixed, as every site must take the same."""

_LEAST_NOISE = 1e-3
"""Negative eigenvalues of A, in units of the mean one, from which on they are taken for noise and not for rounding."""

_NO_NEGATIVE = 1e-6
"""Negative eigenvalues of A, in the same units, that may stay: well below the least lambda that is tried."""

_LEAST_DIAGONAL = 0.3
"""Least entry of the diagonal matrix in A without noise, in units of its mean."""

_MOST_OF_A_CLASS = 100.0
"""Most times that a row of a rare class counts: a class with noise alone in place of rows must not count for more."""

_RIDGES = 10.0 ** np.arange(-5.0, 3.1, 0.5)
"""Ratios lambda / s that leave-one-out tries, in units of the mean eigenvalue of A."""

_WEIGHTS = 10.0 ** np.arange(-4.0, 1.1, 0.25)
"""Weights s that leave-one-out tries."""

_MOST_LEFT_OUT = 1000
"""Most rows that are left out in turn, evenly spaced, since the time grows with the cube of their number."""


@dataclass(frozen=True, slots=True, repr=False)
class Moments:
    """Second moments of a site's rows, or the sums of several sites'. They are as private as the rows.

    Attributes:
        gram: A, float64 ``(p, p)``, symmetric; the last row and column belong to the constant.
        cross: B, float64 ``(c, p)``.
        rows: number of rows.
    """

    gram: Matrix
    cross: Matrix
    rows: float

    @classmethod
    def of(cls, features: npt.ArrayLike, targets: npt.ArrayLike, *, bound: float) -> Moments:
        """Return the moments of bounded rows.

        Args:
            features: ``(n, d)``, with n at least 1; p is d + 1.
            targets: y of each row, ``(n, c)``.
            bound: of the length of what each row adds to the sum that is sent, above 0.

        Raises:
            ValueError: an argument has a wrong shape or value; the message starts with its name.
        """
        rows, wanted, _ = bounded_rows(features, targets, bound=bound)
        return cls(rows.T @ rows, wanted.T @ rows, len(rows))

    @classmethod
    def from_means(cls, means: npt.ArrayLike, *, width: int, outputs: int, rows: float) -> Moments:
        """Return the moments whose :meth:`means` these are.

        Args:
            means: as :meth:`means` returns them.
            width: d, number of features.
            outputs: c, number of outputs of the head.
            rows: number of rows over which they are means.

        Raises:
            ValueError: ``means`` has another length or is not finite; the message starts with its name.
        """
        p = width + 1
        vector = checks.vector("means", means, size=outputs * p + moments_length(width)).astype(np.float64) * rows
        weights, biases, upper = np.split(vector, [outputs * width, outputs * p])
        gram = np.zeros((p, p))
        gram[np.triu_indices(p)] = upper
        gram += np.triu(gram, 1).T
        return cls(gram, np.column_stack([weights.reshape(outputs, width), biases]), rows).scaled(back=True)

    def means(self) -> Vector:
        """Return what is sent, divided by the number of rows, float64 ``(c p + p (p + 1) / 2,)``.

        That is 2 B and A, both with 0.3 in the place of the constant. B has the order of a linear layer's weight and
        bias; the upper triangle of A follows, row by row.
        """
        sent = self.scaled()
        upper = sent.gram[np.triu_indices(len(sent.gram))]
        return np.concatenate([sent.cross[:, :-1].ravel(), sent.cross[:, -1], upper]) / self.rows

    def balanced(self) -> Moments:
        """Return the moments as if all classes had equally many rows; y must be a class, 1 - 1/C and else -1/C.

        A and B hold the number and the sum of the rows of each class, and so B is exact. A is not split by class: it is
        exact where the rows of all classes spread alike about their class's mean, as in linear discriminant analysis.
        """
        sums = self.cross + self.gram[-1] / len(self.cross)
        equal = float(self.gram[-1, -1]) / len(self.cross)
        counts = np.maximum(sums[:, -1], equal / _MOST_OF_A_CLASS)
        weights = equal / counts
        gram = self.gram + (sums.T * ((weights - 1) / counts)) @ sums
        wanted = sums * weights[:, None]
        return Moments(_positive(*np.linalg.eigh(gram)), wanted - wanted.mean(axis=0), self.rows)

    def moved(self, mean: Vector) -> Moments:
        """Return the moments as if all rows were moved by one vector, such that their mean is ``mean``, ``(d,)``.

        The mean is weighted by the squares of the rows' last numbers, which bounded rows have below 1.
        """
        count = float(self.gram[-1, -1])
        by = np.append(mean - self.gram[-1, :-1] / count, 0.0)
        crossed = np.outer(by, self.gram[-1])
        gram = self.gram + crossed + crossed.T + count * np.outer(by, by)
        return Moments(gram, self.cross + np.outer(self.cross[:, -1], by), self.rows)

    def scaled(self, *, back: bool = False) -> Moments:
        """Return the moments of rows as they are sent, or with ``back`` those of rows with the constant 1."""
        units, codes = np.append(np.ones(len(self.gram) - 1), _CONSTANT), _CODES
        if back:
            units, codes = 1 / units, 1 / codes
        return Moments(self.gram * np.outer(units, units), self.cross * units * codes, self.rows)


def moments_length(width: int) -> int:
    """Return how many numbers the upper triangle of A has for rows of ``width`` features."""
    return (width + 1) * (width + 2) // 2


def rare_values(columns: Floats, least: int) -> tuple[NDArray[np.bool_], Floats]:
    """Find values that few rows have: of such a value, second moments show the other columns of these rows.

    Args:
        columns: ``(n, k)``, with n at least 1.
        least: fewest rows.

    Returns:
        Which entries differ from their column's usual value, in columns in which fewer than ``least`` rows do, ``(n,
        k)``; and each column's usual value ``(k,)``: its upper median, which is the value of most rows if there is one.
    """
    middle = len(columns) // 2
    usual: Floats = np.partition(columns, middle, axis=0)[middle]
    unusual = columns != usual
    return unusual & (unusual.sum(axis=0) < least), usual


def bounded_rows(features: npt.ArrayLike, targets: npt.ArrayLike, *, bound: float) -> tuple[Matrix, Matrix, Vector]:
    """Return z ``(n, p)`` and y ``(n, c)``, each row scaled as the bound asks, and the scales ``(n,)`` in (0, 1].

    Arguments and errors are those of `Moments.of`.
    """
    plain = checks.matrix("features", features)
    wanted = checks.matrix("targets", targets).astype(np.float64)
    if len(wanted) != len(plain):
        raise ValueError(f"targets: must be of {len(plain)} rows, are of {len(wanted)}")
    limit = checks.number_between("bound", bound, 0, math.inf, open_below=True)
    rows = np.column_stack([plain, np.ones(len(plain))])
    squares = np.square(rows)
    squares[:, -1] = _CONSTANT**2
    total = squares.sum(axis=1)
    diagonals = np.einsum("ij,ij->i", squares, squares)
    triangles = (np.square(total) + diagonals) / 2  # of the entries on and above the diagonal
    lengths = np.sqrt(triangles + total * np.square(_CODES * wanted).sum(axis=1))
    scales: Vector = np.sqrt(np.minimum(1.0, limit / lengths))
    rows *= scales[:, None]
    return rows, wanted * scales[:, None], scales


@dataclass(frozen=True, slots=True, repr=False)
class Head:
    """A linear head and how it was chosen.

    Attributes:
        weights: W, float64 ``(c, p)``; the last column is the bias.
        source_weight: s, the weight of a source's row beside one of the target's; 1 without the target's labels.
        ridge: lambda.
        left_out: what the head puts out for rows of the target that it was fitted without, ``(k, c)``; None without
            labels.
        chosen: which rows of the target these are, ``(k,)``.
    """

    weights: Matrix
    source_weight: float
    ridge: float
    left_out: Matrix | None = None
    chosen: NDArray[np.int64] | None = None


def fit_head(
    sources: Moments | None,
    features: npt.ArrayLike | None = None,
    targets: npt.ArrayLike | None = None,
    *,
    bound: float,
    balanced: bool = False,
    mean_of: npt.ArrayLike | None = None,
    noise: float = 0.0,
) -> Head:
    """Fit the head to the sources' moments and the target's rows.

    Args:
        sources: the sums over the sources; None fits the target's rows alone.
        features: of the target's rows with labels, ``(n, d)``; None if it has none.
        targets: y of these rows, ``(n, c)``; None as for ``features``.
        bound: as of `Moments.of`.
        balanced: whether each class counts as if it had as many rows as any other, among the sources' as in
            `Moments.balanced`, and among the target's exactly; ``targets`` must be as there.
        mean_of: rows of the target, with labels or without, ``(k, d)``, to whose mean the sources' rows are moved; None
            leaves them.
        noise: standard deviation of the noise in each number of the sums that are sent, as far as it is known; 0 where
            there is none or it is not known.

    Raises:
        ValueError: an argument has a wrong shape or value, there is nothing to fit, or no head of finite numbers fits;
            the message starts with its name.
    """
    with np.errstate(all="ignore"), suppress(np.linalg.LinAlgError):  # what a lying source adds may be of any size
        head = _fitted(sources, features, targets, bound=bound, balanced=balanced, mean_of=mean_of, deviation=noise)
        if np.isfinite([head.source_weight, head.ridge, *head.weights.flat]).all() and head.ridge > 0:
            return head
    raise ValueError("sources: no head of finite numbers fits their moments")


def _fitted(
    sources: Moments | None,
    features: npt.ArrayLike | None,
    targets: npt.ArrayLike | None,
    *,
    bound: float,
    balanced: bool,
    mean_of: npt.ArrayLike | None,
    deviation: float,
) -> Head:
    noise = 0.0
    if sources is not None:
        sent = sources.scaled()
        gram, noise = without_noise(sent.gram, deviation)
        sources = replace(sent, gram=gram).scaled(back=True)
        if mean_of is not None:
            like, _, _ = bounded_rows(mean_of, np.zeros((len(np.asarray(mean_of)), 1)), bound=bound)
            if like.shape[1] != len(sources.gram):
                raise ValueError("mean_of: of another width than the sources'")
            sums = like.T @ like[:, -1]
            sources = sources.moved(sums[:-1] / sums[-1])
        sources = sources.balanced() if balanced else sources
    if features is None or targets is None:
        if sources is None or not np.trace(sources.gram) > 0:
            raise ValueError("sources: there are no moments, and no rows of the target with labels")
        mean = float(np.trace(sources.gram)) / len(sources.gram)
        ridge = max(RIDGE_WITHOUT_LABELS * float(np.trace(sources.gram)) / sources.rows, min(mean, noise))
        return Head(_solved(sources.gram, sources.cross, ridge), 1.0, ridge)
    rows, wanted, scales = bounded_rows(features, targets, bound=bound)
    if balanced:
        _, places, counts = np.unique(wanted.argmax(axis=1), return_inverse=True, return_counts=True)
        weights = np.sqrt(len(rows) / wanted.shape[1] / counts[places])
        rows, wanted, scales = rows * weights[:, None], wanted * weights[:, None], scales * weights
    own = Moments(rows.T @ rows, wanted.T @ rows, len(rows))
    prior = sources or Moments(np.zeros_like(own.gram), np.zeros_like(own.cross), 0)
    if prior.gram.shape != own.gram.shape or prior.cross.shape != own.cross.shape:
        raise ValueError("features: of another width than the sources', or another number of targets")
    count = len(rows)
    chosen = np.unique(np.linspace(0, count - 1, min(count, _MOST_LEFT_OUT)).round().astype(np.int64))
    trial = _Trial.of(prior, rows[chosen], wanted[chosen])
    weight, ratio = trial.best_settings()
    left_out = (wanted[chosen] - next(trial.residuals(ratio, [weight]))) / scales[chosen, None]
    weights = _solved(own.gram + weight * prior.gram, own.cross + weight * prior.cross, weight * ratio)
    return Head(weights, 0.0 if sources is None else weight, weight * ratio, left_out, chosen)


@dataclass(frozen=True, slots=True, repr=False)
class _Trial:
    """Rows of the target that are left out in turn, beside the sources' moments.

    ``alone`` has the eigenvalues and eigenvectors of Z Z^T where there are no moments; None where there are.
    """

    values: Vector  # eigenvalues of A
    turned: Matrix  # the rows along its eigenvectors, (n, p)
    towards: Matrix  # B along them, (c, p)
    wanted: Matrix  # (n, c)
    unit: float
    alone: tuple[Vector, Matrix] | None = None

    @classmethod
    def of(cls, sources: Moments, rows: Matrix, wanted: Matrix) -> _Trial:
        of_rows = float(np.square(rows).sum()) / rows.shape[1]
        if not sources.gram.any():
            return cls(np.zeros(rows.shape[1]), rows, sources.cross, wanted, of_rows, np.linalg.eigh(rows @ rows.T))
        values, basis = np.linalg.eigh(sources.gram)
        values = np.maximum(values, 0.0)
        return cls(values, rows @ basis, sources.cross @ basis, wanted, float(values.mean()) or of_rows)

    def residuals(self, ratio: float, weights: Iterable[float]) -> Iterator[Matrix]:
        """Yield the residuals of the rows, each fitted without it, ``(n, c)``, for each weight s and lambda = ratio s.

        With W0 = B (A + ratio I)^-1 and K = Z (A + ratio I)^-1 Z^T, that of row i is
        ``[(K / s + I)^-1 (Y - Z W0^T)]_i / [(K / s + I)^-1]_ii``. One decomposition of K serves every s.
        """
        inverse = 1.0 / (self.values + ratio)
        missing = self.wanted - self.turned @ (self.towards * inverse).T
        if self.alone is None:
            shrunk_rows = self.turned * np.sqrt(inverse)
            lengths, axes = np.linalg.eigh(shrunk_rows @ shrunk_rows.T)  # by symmetry half the work
        else:
            lengths, axes = self.alone[0] / ratio, self.alone[1]
        lengths, along, squares = np.maximum(lengths, 0.0), axes.T @ missing, np.square(axes)
        for weight in weights:
            shrunk = 1.0 / (lengths / weight + 1.0)
            yield (axes @ (along * shrunk[:, None])) / (squares @ shrunk)[:, None]

    def best_settings(self) -> tuple[float, float]:
        """Return s and lambda / s: the geometric means over all that are tried, weighted by how likely they are.

        The likelihood of n normal residuals is their mean square to the power of -n / 2. Residuals of rows left out
        depend on each other, so they count half. Before any row is seen, ln s is normal about 0 with a deviation of
        ln 100. Few rows tell settings apart badly, so the mean is steadier than the best.
        """
        tried = [(weight, ratio) for ratio in _RIDGES * self.unit for weight in _WEIGHTS]
        errors = np.array(
            [np.square(one).mean() for ratio in _RIDGES * self.unit for one in self.residuals(ratio, _WEIGHTS)]
        )
        errors = np.maximum(errors, np.finfo(float).tiny)
        logs = np.log(tried)
        scores = -len(self.wanted) / 4 * np.log(errors) - np.square(logs[:, 0] / math.log(100)) / 2
        means = np.exp(np.average(logs, axis=0, weights=np.exp(scores - scores.max())))
        return float(means[0]), float(means[1])


def without_noise(gram: Matrix, deviation: float = 0.0) -> tuple[Matrix, float]:
    """Return A as it may be without noise, and the largest eigenvalue of noise alone; 0 if there is none.

    Noise of deviation d in each entry has eigenvalues from -2 d sqrt(p) to 2 d sqrt(p), so the lowest of A says how
    large d is at least. A larger one stands out: what it was before noise follows from it, in closed form.

    Args:
        gram: A in the numbers that are sent, ``(p, p)``, symmetric.
        deviation: d, where it is known; 0 takes only what the lowest eigenvalue says. With few numbers in a row that is
            often too little, and none if that eigenvalue is positive.
    """
    p, unit = len(gram), float(np.abs(gram).max()) or 1.0
    gram = gram / unit  # squares of what a lying source adds may be beyond float64
    mean = float(np.trace(gram)) / p
    edge = 2 * deviation / unit * math.sqrt(p)
    if not edge:
        with suppress(np.linalg.LinAlgError):  # far quicker than eigenvalues, and enough where none is negative
            np.linalg.cholesky(gram + _NO_NEGATIVE * mean * np.eye(p))
            return unit * gram, 0.0
    values, basis = np.linalg.eigh(gram)
    edge = max(edge, -float(values[0]))
    if edge <= _LEAST_NOISE * mean:
        return unit * _positive(values, basis), 0.0
    deviation = edge / (2 * math.sqrt(p))
    own, common = _diagonal(np.diag(gram), deviation), np.zeros_like(gram)
    for _ in range(2):
        values, basis = np.linalg.eigh(gram - np.diag(own))
        true = np.where(values > edge, (values + np.sqrt(np.maximum(np.square(values) - edge**2, 0.0))) / 2, 0.0)
        common = (basis * true) @ basis.T
        own = _diagonal(np.diag(gram) - np.diag(common), deviation)
    return unit * (common + np.diag(own)), unit * edge


def _positive(values: Vector, basis: Matrix) -> Matrix:
    """Return the matrix of these eigenvalues and eigenvectors with 0 in place of negative values."""
    return np.asarray((basis * np.maximum(values, 0.0)) @ basis.T, np.float64)


def _diagonal(noisy: Vector, deviation: float) -> Vector:
    """Return the entries, nearer to their mean by as much as noise has parted them, and none far below it."""
    mean, spread = float(noisy.mean()), max(float(noisy.var()) - deviation**2, 0.0)
    entries = mean + (noisy - mean) * spread / (spread + deviation**2)
    return np.maximum(entries, _LEAST_DIAGONAL * max(mean, 0.0))


def _solved(gram: Matrix, cross: Matrix, ridge: float) -> Matrix:
    return np.asarray(np.linalg.solve(gram + ridge * np.eye(len(gram)), cross.T).T, np.float64)


def sources_part(head: Head, alone: Head) -> float:
    """Return how far the head lies from that of the target alone, as a share of its length, at most 1."""
    length = float(np.linalg.norm(head.weights))
    return min(1.0, float(np.linalg.norm(head.weights - alone.weights)) / length) if length > 0 else 0.0
