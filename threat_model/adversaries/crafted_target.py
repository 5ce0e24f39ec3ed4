"""T22: a target that makes up its own update, so that one source fills the sum.

Under FedGP a source hands in the projection of the target's update on its own: a multiple of its own update, by layers,
and the target chooses the multiples. Under auto-beta it chooses the weights, through the distances that it pretends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from securefda.aggregator.headers import AttemptPosition
from securefda.aggregator.target import TargetRound
from securefda.protocol.header_checks import quantisation
from securefda.protocol.messages import Granularity, Parcel, Visibility
from securefda.protocol.transcript import quorum_of
from securefda.protocol.weighed_contribution import NormReport, RoundTerms, contribution_at_source
from securefda.rules import RoundPlan, TargetStatistics, caps_for, contribution_norms, norm_codes
from securefda.source.source_run import SourceReporter, SourceSite
from securefda.training import LocalResult, Vector
from threat_model.adversaries.colluders import SubtractsColluders
from threat_model.adversaries.sources import ColludingSource
from threat_model.sites import AggregatorSeat

Multiples = NDArray[np.float64]
"""(n_layers, n_sources): by what each source is to multiply each layer of its update; sources in order."""

_STEPS, _RATE = 4, 0.1


def target_update_for(multiples: Multiples, updates: Mapping[int, Vector], sizes: tuple[int, ...]) -> Vector:
    """Return the update g_T, float32 (m,), whose projection on each source's update has these multiples, layer by
    layer.

    Of all such vectors it is the shortest; with 1 for the victim and 0 for the others it is orthogonal to the others.
    """
    known = np.stack([updates[index] for index in sorted(updates)]).astype(np.float64)
    parts, start = [], 0
    for size, wanted in zip(sizes, multiples, strict=True):
        block = known[:, start : start + size]
        gram = block @ block.T
        parts.append(np.linalg.lstsq(gram, wanted * np.diag(gram), rcond=None)[0] @ block)
        start += size
    return np.concatenate(parts).astype(np.float32)


class CraftsTarget(SubtractsColluders):
    """Publishes an update of its own making, loses those whose contribution is largest, and reads what is left.

    Powers: the target's key, what a target publishes, the relay, the loss of as many sources as the threshold allows;
    the strongest knowledge there is: every source's update and row count beforehand; the inputs, secrets and claims of
    ``colluders``.
    Goal: a sum that is the victim's contribution, or near it in direction.
    Source: our own; a sum in which one term dwarfs the others is one that secure aggregation does not hide, as active
    attacks that zero the other sources' gradients show (Pasquini, Francati and Ateniese 2022, for models).

    Args:
        seat: of the target.
        victim: roster index.
        update: what it publishes as its update.
        known: every source's update, by roster index.
        weights: rows of each in units of ``max_samples``.
        scatter: S_x, as it publishes it.
    """

    threat = "T22"

    def __init__(
        self,
        seat: AggregatorSeat,
        *,
        victim: int,
        update: Vector,
        known: Mapping[int, Vector],
        weights: Mapping[int, float],
        scatter: float = 1.0,
    ) -> None:
        super().__init__(seat, victim=victim)
        self._update, self._scatter = update, scatter
        self._known, self._weights = known, weights

    def train(self, place: AttemptPosition, plan: RoundPlan) -> TargetRound | None:  # noqa: ARG002 - of the base
        """Return a made-up update with consistent statistics, without training."""
        mean_squared = float(np.sum(self._update.astype(np.float64) ** 2)) / _STEPS**2
        mean_square = mean_squared + self._scatter * (_STEPS - 1) / _STEPS
        result = LocalResult(self._update, _STEPS, 1, loss=0.0, accuracy=0.0, learning_rate=_RATE)
        return TargetRound(result, TargetStatistics(_STEPS, mean_square, self._scatter), None)

    def _choose(self) -> None:
        """Keep the honest others with the smallest norms, as few as the quorum permits."""
        heard = self.heard
        if self.victim not in heard.inputs:
            return
        cohort = frozenset(heard.inputs)
        left = self._norms_after_caps()
        honest = sorted(cohort - {self.victim} - set(self.colluders), key=lambda index: left[index])
        needed = max(0, quorum_of(heard.header, cohort) - len(cohort - set(honest)))
        self._lost = set(honest[needed:])
        self.summed = set(cohort - self._lost)

    def _norms_after_caps(self) -> dict[int, float]:
        """Return the norm of each source's contribution, computed from the known updates."""
        header, left = self.heard.header, {}
        terms = RoundTerms.of(header, quantisation(header))
        sizes = [layer.size for layer in header.layers]
        whole = header.norm_cap is not None and header.norm_cap.granularity is Granularity.MODEL
        norms = []
        for index in sorted(self.heard.advertised):
            contribution = contribution_at_source(terms, Visibility.SUM, self._update, self._known[index])
            groups = [sum(sizes)] if whole else sizes
            norms.append(contribution_norms(contribution.vector, groups, self._weights[index]))
        table = np.array(norms)
        if header.norm_cap is not None:
            table = np.minimum(table, caps_for(table, kappa=header.norm_cap.kappa, others=header.norm_cap.others))
        for index, of_source in zip(sorted(self.heard.advertised), table, strict=True):
            left[index] = float(np.sum(of_source**2))
        return left


class ClaimsNorm(ColludingSource):
    """A source that follows the protocol except that it signs false norms.

    Powers: its own keys.
    Goal: caps that let the victim dwarf the others (it over-claims, to stand in for them), or that scale the others
    down and not the victim (it under-claims).

    Args:
        site: its site.
        reporter: hears nothing of it.
        factor: what it claims, as a multiple of its norms; beyond what the clip allows it claims that.
    """

    threat = "T22"

    def __init__(self, site: SourceSite, reporter: SourceReporter, *, factor: float) -> None:
        super().__init__(site, reporter)
        self._factor = factor

    def train(self) -> list[Parcel]:
        """Train as an honest source, but go on with another norm report."""
        trained = self._round is None or self._round.accepted is None
        answers, current = super().train(), self._round
        if trained or current is None or current.pending is None or current.pending.report is None:
            return answers
        layers = current.header.body.layers
        limits, sizes = [layer.clip * layer.size**0.5 for layer in layers], [layer.size for layer in layers]
        if len(current.pending.report.exact) == 1:
            limits, sizes = [float(np.linalg.norm(limits))], [sum(sizes)]
        claimed = np.minimum(self._factor * current.pending.report.exact, limits)
        codes = norm_codes(claimed, sizes, limits)
        self._round = replace(current, pending=replace(current.pending, report=NormReport(claimed, codes)))
        return answers


@dataclass(frozen=True, slots=True)
class Search:
    """A simulation by the attacker of a round of known updates, with the caps and its own choice of losses.

    Attributes:
        updates: of every source, by roster index.
        weights: rows of each in units of ``max_samples``.
        sizes: of the layers.
        victim: roster index.
        kappa: of the norm cap; 0 is none.
        others: how many others the rule counts.
        kept: how many honest others the smallest sum has.
        by_layer: whether the rule holds for layers, or for the model.
        negative: whether a contribution may be a negative multiple of the update: the rule's filter is off.
        colluders: whose terms are subtracted, and by what factor each overstates its norms.
    """

    updates: Mapping[int, Vector]
    weights: Mapping[int, float]
    sizes: tuple[int, ...]
    victim: int
    kappa: float
    others: int
    kept: int
    by_layer: bool = True
    negative: bool = True
    colluders: Mapping[int, float] | None = None

    @property
    def names(self) -> list[int]:
        """The roster indices, in the order of the columns."""
        return sorted(self.updates)

    def grams(self) -> NDArray[np.float64]:
        """The inner products of the weighted updates, (n_layers, n, n)."""
        known = np.stack([self.weights[index] * self.updates[index].astype(np.float64) for index in self.names])
        bounds = np.cumsum((0, *self.sizes))
        blocks = [known[:, start:end] for start, end in pairwise(bounds)]
        return np.stack([block @ block.T for block in blocks])

    def best(self, *, starts: int, sweeps: int, seed: int) -> tuple[Multiples, float]:
        """Return the best multiples for the attacker among all that it tries, and the cosine that they give.

        From both closed forms and from random multiples it goes up coordinate by coordinate, caps and losses included.
        """
        grams, draws = self.grams(), np.random.default_rng(seed)
        tried = [self._climb(start, grams, sweeps) for start in self._starts(starts, draws)]
        return max(tried, key=lambda one: one[1])

    def closed_forms(self) -> list[Multiples]:
        """Return two closed forms: the victim alone; and the victim against all others, whom a filter then
        leaves out.
        """
        alone = np.tile([float(index == self.victim) for index in self.names], (len(self.sizes), 1))
        return [alone, 2 * alone - 1]

    def _starts(self, count: int, draws: np.random.Generator) -> list[Multiples]:
        shape = len(self.sizes), len(self.names)
        signs = draws.choice([-1.0, 1.0], (count, *shape)) if self.negative else np.ones((count, *shape))
        drawn = signs * 10 ** draws.uniform(-2, 0, (count, *shape))
        drawn[:, :, self.names.index(self.victim)] = 1
        return [*self.closed_forms(), *drawn]

    def _climb(self, start: Multiples, grams: NDArray[np.float64], sweeps: int) -> tuple[Multiples, float]:
        best, score = start, self.score(start, grams)
        for _ in range(sweeps):
            before = score
            for place in np.ndindex(start.shape):
                for factor in (-1.0, 0.0, 0.5, 0.9, 1.1, 2.0):
                    other = best.copy()
                    other[place] = np.clip(factor * other[place], -1.5, 1.5)  # beyond that coordinates are clipped
                    found = self.score(other, grams)
                    best, score = (other, found) if found > score else (best, score)
            if score <= before + 1e-4:
                break
        return best, score

    def score(self, multiples: Multiples, grams: NDArray[np.float64]) -> float:
        """Return the cosine of what the attacker would open with the victim's contribution; 0 if that is zero."""
        parts = self._after_caps(multiples if self.negative else np.maximum(multiples, 0), grams)
        place = self.names.index(self.victim)
        total, own = parts * self._in_sum(parts, grams), np.zeros_like(parts)
        own[:, place] = parts[:, place]
        inner, squared, own_squared = (
            _product(one, two, grams) for one, two in ((total, own), (total, total), (own, own))
        )
        return inner / (squared * own_squared) ** 0.5 if squared > 0 and own_squared > 0 else 0.0

    def _after_caps(self, multiples: Multiples, grams: NDArray[np.float64]) -> Multiples:
        if not self.kappa:
            return multiples
        squares = multiples**2 * np.diagonal(grams, axis1=1, axis2=2)
        norms = np.sqrt(squares if self.by_layer else squares.sum(axis=0, keepdims=True)).T
        claimed = norms * np.array([(self.colluders or {}).get(index, 1.0) for index in self.names])[:, None]
        caps = caps_for(claimed, kappa=self.kappa, others=self.others)
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = np.where(claimed > caps, caps / claimed, 1.0)
        return multiples * factors.T

    def _in_sum(self, parts: Multiples, grams: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return 1 for the victim and the honest others with the least norm, (n,); the colluders' parts are known."""
        norms = (parts**2 * np.diagonal(grams, axis1=1, axis2=2)).sum(axis=0)
        honest = [
            i for i, index in enumerate(self.names) if index != self.victim and index not in (self.colluders or {})
        ]
        kept = sorted(honest, key=lambda place: norms[place])[: self.kept]
        chosen = np.zeros(len(self.names))
        chosen[[*kept, self.names.index(self.victim)]] = 1
        return chosen


def _product(one: Multiples, other: Multiples, grams: NDArray[np.float64]) -> float:
    return float(np.einsum("li,lij,lj->", one, grams, other))
