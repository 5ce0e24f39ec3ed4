"""The features of a target's rows: released to the sources, moved along their pull, or clustered without labels."""

from __future__ import annotations

import numpy as np
import torch

from securefda.errors import TrainingError
from securefda.protocol.encoding import Vector, Vector64
from securefda.tasks.inputs import Inputs, row_count, take
from securefda.training.alignment import AlignmentRule, require_alignable
from securefda.training.model_features import (
    ClusterGap,
    cluster_count,
    cluster_features,
    cluster_means,
    clustering_gap,
    clustering_gap_gradient,
    extract_features,
    pull_gradient,
    require_trained_features,
)
from securefda.training.seeds import new_generator
from securefda.training.site_model import SiteModel

_LEAST_LENGTH = 1e-30  # against a division by zero


class SiteFeatures:
    """The features of a target's rows, for rules that compare or cluster features. No labels are used.

    Each method draws rows for a round; every attempt at the round draws the same.

    Args:
        site: the target's model and rows.
    """

    def __init__(self, site: SiteModel) -> None:
        self._site = site

    def require_releasable(self, rows: int, rule: AlignmentRule) -> None:
        """Check that :meth:`release` can give features of ``rows`` rows for this rule.

        Raises:
            TrainingError: the model has no features or does not fit the rule, or there are fewer rows.
        """
        require_alignable(rule, self._site.module)
        if rows > self._site.samples:
            raise TrainingError(
                f"there are {self._site.samples} training rows, and features of {rows} are to be released",
                hint=f"lower strategy.feature-rows to {self._site.samples} or less",
            )

    def release(self, vector: Vector, round_number: int, run_id: str, *, rows: int, clip: float) -> Vector:
        """Return features of some of this site's rows under a model, float32 (T, d), to publish to the sources.

        Args:
            vector: the model with which the round begins, float32 (m,).
            round_number: number of that round.
            run_id: id of the run.
            rows: number of rows, T.
            clip: longest L2 norm of a row's features; longer ones are scaled down. 0 for no bound.

        Raises:
            TrainingError: a feature is NaN or infinite, or of another width than the model's last linear layer.
        """
        site = self._site
        site.before_round()
        site.prepare_to_evaluate(vector)
        features = extract_features(site.task, site.module, self._released_rows(round_number, run_id, rows))
        if features.shape[1] != site.feature_width:
            raise TrainingError(
                f"the model's last linear layer takes {features.shape[1]} numbers of a row, "
                f"in pieces of {site.feature_width}",
                hint="flatten what it takes, or set another strategy.rule",
            )
        if clip:
            lengths = np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
            features = (features * np.minimum(1.0, clip / np.maximum(lengths, _LEAST_LENGTH))).astype(np.float32)
        return features

    def pull_gradient(self, vector: Vector, round_number: int, run_id: str, pull: Vector, *, rows: int) -> Vector:
        """Return the step that moves the released features along a pull: (1/T) sum_t J_t^T pull_t, float32 (m,).

        Args:
            vector, round_number, run_id, rows: as for :meth:`release`.
            pull: pull on the features of :meth:`release`, (T, d).

        Raises:
            TrainingError: the gradient is not finite.
        """
        site = self._site
        site.prepare_to_evaluate(vector)
        return pull_gradient(site.task, site.module, self._released_rows(round_number, run_id, rows), pull)

    def _released_rows(self, round_number: int, run_id: str, rows: int) -> Inputs:
        draws = new_generator(self._site.round_seed(run_id, round_number, "released features"))
        return self._drawn(draws, rows)

    def _drawn(self, draws: torch.Generator, rows: int) -> Inputs:
        """Return at most ``rows`` rows at random, in their order, (T, ...)."""
        chosen = torch.randperm(self._site.samples, generator=draws)[:rows].sort().values
        return take(self._site.rows.features, chosen)

    def require_clusters(self, rows: int) -> None:
        """Check that :meth:`cluster_gap` can cluster the features of at most ``rows`` rows.

        Raises:
            TrainingError: the model has no linear layer, or there are too few rows.
        """
        require_trained_features(self._site.module)
        cluster_count(self._site.module, min(rows, self._site.samples))

    def cluster_gap(self, vector: Vector, round_number: int, run_id: str, *, rows: int) -> ClusterGap:
        """Return the gap statistic of the clusters of this site's rows under a model, with its gradient.

        Args:
            vector: the model with which a round begins, float32 (m,).
            round_number: number of that round.
            run_id: id of the run.
            rows: most rows to draw.

        Raises:
            TrainingError: the rows cannot be clustered, or a feature is not finite.
        """
        site = self._site
        site.before_round()
        draws = new_generator(site.round_seed(run_id, round_number, "clusters"))
        drawn, first = self._drawn(draws, rows), int(torch.randint(2**31, (1,), generator=draws))
        site.prepare_to_evaluate(vector)
        count = cluster_count(site.module, row_count(drawn))
        features = extract_features(site.task, site.module, drawn)
        clusters = cluster_features(features, count, first)
        gap = clustering_gap(features, clusters)

        def gain_of(update: Vector | Vector64) -> float:
            site.prepare_to_evaluate((vector + update).astype(np.float32))
            moved = extract_features(site.task, site.module, drawn)
            again = cluster_features(moved, count, first, centres=cluster_means(moved, clusters, count))
            return gap - clustering_gap(moved, again)

        return ClusterGap(gap, clustering_gap_gradient(site.task, site.module, drawn, features, clusters), gain_of)
