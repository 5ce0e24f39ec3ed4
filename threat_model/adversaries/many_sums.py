"""T12: sums of many rounds with different weights or different sources, which together separate the sources."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from securefda.aggregator.headers import AttemptPosition, SessionPlan
from securefda.aggregator.target import TargetRound
from securefda.protocol.messages import Header, Result
from securefda.rules import RoundPlan, TargetStatistics
from securefda.training import LocalResult
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Decoded, Vector64
from threat_model.sites import AggregatorSeat

_STEPS, _RATE, _LENGTH = 4, 0.1, 0.01
_STARTS, _WIDE, _BENT, _TRUST = 40, 8, 1e-4, 100.0
_ROUNDED = 1e-3
"""The largest difference between two sums of the same parts, relative to their length; each is rounded at random."""

_RIDGES = (0.0, *np.geomspace(1e-12, 10, 40))
_ABOVE_ALL = 1e6
"""A variance beyond the squared length of any step: every source then has a beta of 1."""


class AsksOneModelAgain(MaliciousAggregator):
    """Sends one model in every round of a run, and keeps what each round opened.

    Args:
        seat: of the target.
        moves: goes on instead from the model that each sum gives, as an honest target does.

    Attributes:
        opened: the sums of the rounds so far; ``asked`` are the places of those that came to one.
    """

    threat = "T12"

    def __init__(self, seat: AggregatorSeat, *, moves: bool = False) -> None:
        super().__init__(seat)
        self._moves = moves
        self.opened: list[Decoded] = []
        self.asked: list[int] = []

    def result_for(self, index: int) -> Result | None:
        """Return the honest result, after keeping the sum."""
        place = len(self.sessions) - 1
        opened = None if place in self.asked else self.aggregate()
        if opened is not None:
            self.opened.append(opened)
            self.asked.append(place)
            if self._moves:
                self.model = self.model + opened.update.astype(np.float32)
        return super().result_for(index)


class WeighsAnew(AsksOneModelAgain):
    """Invents another variance of its steps in each round, so that each source weighs differently each time.

    Under fedda_auto with a g_T of zero, a source whose step has the squared length L has a beta of min(1, v / L) under
    a published variance v. So sums under many v are known functions of one unknown number for each source, and of the
    updates. Where updates repeat, the numbers are found as those that explain all sums, and then the updates.

    Powers: the target's key, and what a target publishes. It knows how many sources are in the sums, controls none, and
    sees no single source's share of anything.
    Goal: every source's update, weighted by its rows.
    Source: our own; separable least squares after Golub and Pereyra 1973.
    """

    def train(self, place: AttemptPosition, plan: RoundPlan) -> TargetRound:  # noqa: ARG002 - of the base
        """Return an update of zeros and a matching scatter of steps, without training."""
        scatter = _STEPS * self._variance()
        update = np.zeros(self.seat.site.trainer.n_params, np.float32)
        result = LocalResult(update, _STEPS, 1, loss=0.0, accuracy=0.0, learning_rate=_RATE)
        return TargetRound(result, TargetStatistics(_STEPS, scatter * (_STEPS - 1) / _STEPS, scatter), None)

    def _variance(self) -> float:
        """Choose a variance: first above all lengths; then on a wide grid; then where the sums still bend, in the
        widest gap.
        """
        known = self._variances()
        if not self.opened:
            return _ABOVE_ALL
        mean_squared = float(np.sum(self.opened[0].update ** 2)) / _STEPS**2
        sources = len(self.participants())
        if len(known) <= _WIDE:
            return float(np.geomspace(mean_squared / 4, 4 * sources * mean_squared, _WIDE)[len(known) - 1])
        tried, order = known[1:], np.argsort(known[1:])
        shares = np.array([one.weight - one.kept for one in self.opened[1:]])[order] / self.opened[0].weight
        slopes = shares / tried[order]
        straight = np.flatnonzero(slopes < (1 - _BENT) * slopes[0])[0] - 1  # up to here no beta is 1
        flat = np.flatnonzero(shares > 1 - _BENT)[0]  # from here on all are
        between = tried[order][max(0, straight) : flat + 1]
        gap = int(np.argmax(np.diff(np.log(between))))
        return float(np.sqrt(between[gap] * between[gap + 1]))

    def _variances(self) -> NDArray[np.float64]:
        """The variances that it published in the rounds with a sum, (R,)."""
        targets = [self.sessions[place].header.target for place in self.asked]
        return np.array([one.scatter / one.steps for one in targets if one is not None])

    def attack(self) -> Vector64:
        """Return estimates of all sources' weighted updates, (n, m), in arbitrary order."""
        shares = np.array([one.weight - one.kept for one in self.opened])
        sums = np.array([one.vector for one in self.opened])
        return separated(self._variances(), sums, shares, len(self.participants()))


def separated(variances: NDArray[np.float64], sums: Vector64, shares: NDArray[np.float64], n: int) -> Vector64:
    """The n vectors (n, m) behind sums (R, m), in each of which one weighs ``min(1, variance / L)`` with its own L.

    ``shares`` (R,) are the sums of the sources' rows with the same weights, on which no norm cap acts. Of many starts
    the one counts that leaves least of all these sums unexplained. A ridge keeps noise from being blown up,
    where sources weigh alike: of several the one under which the sums foretell each other best.
    """
    left, values, _ = np.linalg.svd(sums, full_matrices=False)
    # Turned so that they have no more numbers than there are of them. The shares count most, as none of them is capped.
    short = np.column_stack([left * values / np.linalg.norm(sums), _TRUST * shares / np.linalg.norm(shares)])
    bounds = float(np.log(variances.min())), float(np.log(np.sort(variances)[-2]))

    def weights(logs: Vector64) -> Vector64:
        of_rounds: Vector64 = np.minimum(1.0, variances[:, None] / np.exp(logs))
        return of_rounds

    def unexplained(logs: Vector64) -> Vector64:
        basis = np.linalg.qr(weights(logs))[0]
        rest: Vector64 = (short - basis @ (basis.T @ short)).ravel()
        return rest

    draws = np.random.default_rng(n)
    starts = [np.sort(draws.uniform(*bounds, n)) for _ in range(_STARTS)]
    found = [least_squares(unexplained, start, bounds=bounds, xtol=1e-14, ftol=1e-14, gtol=1e-14) for start in starts]
    best = weights(min(found, key=lambda one: float(one.cost)).x)
    return min((_with_ridge(best, sums, ridge) for ridge in _RIDGES), key=lambda one: one[1])[0]


def _with_ridge(weights: Vector64, sums: Vector64, ridge: float) -> tuple[Vector64, float]:
    """Solve least squares with a ridge; also return the squared error with which the other sums predict each sum."""
    solve = np.linalg.solve(weights.T @ weights + ridge * np.eye(weights.shape[1]), weights.T)
    estimates, leverage = solve @ sums, np.diag(weights @ solve)
    apart = (sums - weights @ estimates) / (1 - leverage)[:, None]
    return estimates, float(np.sum(apart**2))


class TurnsTarget(AsksOneModelAgain):
    """Publishes an update in a random direction, another one in each round.

    Under FedGP with its filter a source hands in, in each layer, its update times the inner product with what the
    target published, if that is positive. Sums under many of them are those of a layer of ReLU units whose weights are
    the directions of the updates: they are found as those that explain all sums.

    Powers: the target's key, and what a target publishes. It knows how many sources are in the sums, and controls none.
    Goal: the direction of every source's update in the largest layer.
    Source: our own; that the units of a layer follow from its answers is known of models (Carlini, Jagielski and
    Mironov 2020).
    """

    def __init__(self, seat: AggregatorSeat) -> None:
        super().__init__(seat)
        self._published: list[NDArray[np.float64]] = []

    def train(self, place: AttemptPosition, plan: RoundPlan) -> TargetRound:  # noqa: ARG002 - of the base
        """Return a random update and a matching scatter of steps, without training."""
        draws = np.random.default_rng(place.round)
        update = (_LENGTH * draws.standard_normal(self.seat.site.trainer.n_params)).astype(np.float32)
        self._published.append(update.astype(np.float64))
        mean_squared = float(np.sum(self._published[-1] ** 2)) / _STEPS**2
        result = LocalResult(update, _STEPS, 1, loss=0.0, accuracy=0.0, learning_rate=_RATE)
        return TargetRound(result, TargetStatistics(_STEPS, mean_squared + (_STEPS - 1) / _STEPS, 1.0), None)

    def attack(self) -> Vector64:
        """Return estimates of the directions of all sources' updates in the largest layer, (n, size), in arbitrary
        order.
        """
        size = max(self.seat.site.trainer.sizes)
        sums = np.array([one.vector[:size] for one in self.opened])
        published = np.array([self._published[place][:size] for place in self.asked])
        return units_behind(published, sums, len(self.participants()))


def units_behind(inputs: Vector64, sums: Vector64, n: int) -> Vector64:
    """The n directions (n, m) of units u with ``sum_i max(<input, u_i>, 0) u_i``, of inputs and sums (R, m).

    All of them lie in the span of the sums, so it is enough to look there.
    """
    span = np.linalg.svd(sums, full_matrices=False)[2][:n]
    given, told = inputs @ span.T, sums @ span.T
    scale = float(np.sqrt(np.linalg.norm(told) / np.linalg.norm(given)))

    def unexplained(flat: Vector64) -> Vector64:
        units = flat.reshape(n, n)
        rest: Vector64 = (np.maximum(given @ units.T, 0.0) @ units - told).ravel() / np.linalg.norm(told)
        return rest

    draws = np.random.default_rng(n)
    starts = [scale * draws.standard_normal(n * n) for _ in range(_STARTS // 4)]
    found = [least_squares(unexplained, start, xtol=1e-14, ftol=1e-14, gtol=1e-14, max_nfev=200) for start in starts]
    best = min(found, key=lambda one: float(one.cost))
    units: Vector64 = best.x.reshape(n, n) @ span
    return units


class LeavesOneOut(AsksOneModelAgain):
    """Asks all sources in half of the rounds, and all but the victim in the others; then it subtracts.

    Powers: the target's key, and that a target says who takes part in a round.
    Goal: the victim's update, weighted by its rows.
    Source: differencing of sums (Dinur and Nissim 2003); for secure aggregation over rounds So et al. 2023.

    Args:
        seat: of the target.
        victim: roster index.
        moves: as for :class:`AsksOneModelAgain`.
    """

    def __init__(self, seat: AggregatorSeat, *, victim: int, moves: bool = False) -> None:
        super().__init__(seat, moves=moves)
        self._victim = victim

    def participants(self) -> set[int]:
        """Return all sources, and later all but one."""
        return set(self.joined) - ({self._victim} if self._is_without(len(self.sessions)) else set())

    def session_plan(self, members: set[int]) -> SessionPlan:
        """Return a plan with a threshold that the participants can reach."""
        plan = super().session_plan(members)
        fewest = min(plan.threshold, len(members))
        return replace(plan, threshold=fewest, sum_quorum=min(plan.sum_quorum, fewest))

    def _is_without(self, place: int) -> bool:
        return 2 * place >= self.seat.settings.strategy.rounds

    def attack(self) -> Vector64 | None:
        """Return the mean of the sums with the victim less that of the others, (m,); None if one of them is missing."""
        sums = [(self._is_without(place), one.vector) for place, one in zip(self.asked, self.opened, strict=True)]
        parts = [[vector for is_without, vector in sums if is_without is left] for left in (False, True)]
        if not all(parts):
            return None
        with_victim, without = (np.mean(part, axis=0) for part in parts)
        difference: Vector64 = with_victim - without
        return difference


class RaisesCap(AsksOneModelAgain):
    """Raises the norm cap a little in each round, until the sum changes.

    The first part that a higher kappa scales down is the longest one, and by that alone two sums then differ.

    Powers: the target's key, and the numbers of a header.
    Goal: the update of the source whose contribution is longest.
    Source: our own.

    Args:
        seat: of the target.
        most: kappa of the last round; the first has that of the run's settings.
        gives_up: every round after the second has the first one's kappa again.
    """

    def __init__(self, seat: AggregatorSeat, *, most: float, gives_up: bool = False) -> None:
        super().__init__(seat)
        self._most, self._gives_up = most, gives_up

    def header_for(self, index: int) -> Header | None:
        """Return a header with the kappa of this round."""
        header = super().header_for(index)
        if header is None or header.norm_cap is None or (self._gives_up and len(self.sessions) > 2):
            return header
        rounds = self.seat.settings.strategy.rounds
        kappas = np.linspace(header.norm_cap.kappa, self._most, rounds)
        return replace(header, norm_cap=replace(header.norm_cap, kappa=float(kappas[len(self.sessions) - 1])))

    def attack(self) -> Vector64 | None:
        """Return the first sum less the first one that differs from it, (m,); None if all are alike."""
        first = self.opened[0].vector
        apart = [first - one.vector for one in self.opened]
        changed = [one for one in apart if np.linalg.norm(one) > _ROUNDED * np.linalg.norm(first)]
        return changed[0] if changed else None
