"""The last linear layer of a model, fitted by least squares: the rows of a site for it, and the fit at the target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from securefda.errors import ConfigError, TrainingError
from securefda.protocol.encoding import Vector, Vector64
from securefda.rules import Head, Moments, fit_head, sources_part
from securefda.tasks import Samples, Task, Unlabelled, task_code
from securefda.training.local import LocalResult
from securefda.training.model_features import extract_features, last_linear, require_frozen_features
from securefda.training.site_model import SiteModel

_SCALES = 2.0 ** np.arange(-2.0, 6.1, 0.25)
"""Factors of the head that are tried, so that its outputs are logits of the right size."""


def head_rows(site: SiteModel, vector: Vector) -> tuple[Vector, Vector64]:
    """Return the features of a site's rows, float32 (n, d), and what the head fits to them, float64 (n, c).

    Args:
        site: the site's model and rows, with labels.
        vector: the model, float32 (m,).

    Raises:
        TrainingError: the rows have no labels; the model trains more than its last linear layer; or a feature is not
            finite.
        ConfigError: the labels do not fit the model's outputs.
        DataError: the task's own code fails.
    """
    rows = site.labelled_rows()
    require_frozen_features(site.module)
    site.prepare_to_evaluate(vector)
    features, outputs = extract_features(site.task, site.module, rows.features), last_linear(site.module).out_features
    with task_code(type(site.task), "head_targets"):
        targets: Vector64 = site.task.head_targets(rows.labels, outputs).double().numpy()
    if targets.shape != (len(rows), outputs):
        raise TrainingError(f"head_targets() gives {targets.shape}, and {(len(rows), outputs)} is needed")
    return features, targets


def require_right_targets(site: SiteModel) -> None:
    """Check that a model which nearly puts out what its head fits by default is right; raise ConfigError if not.

    Labels of 0 and 1 are not if logits decide, at 0: half of what the model puts out for a 0 lies above it.
    """
    rows, task = site.rows, site.task
    if isinstance(rows, Unlabelled) or type(task).head_targets is not Task.head_targets:
        return
    with task_code(type(task), "head_targets and metrics"):
        targets = task.head_targets(rows.labels, last_linear(site.module).out_features).float()
        above, below = targets + 1e-4 * targets.abs().max(), targets - 1e-4 * targets.abs().max()
        accuracy = min(task.metrics(outputs, rows.labels).get("accuracy", 1.0) for outputs in (above, below))
    if accuracy < 1 - 1e-3:
        why = f"the analytic rule fits its labels as they are, and outputs near them have an accuracy of {accuracy:.3f}"
        hint = "define head_targets(self, labels, outputs), such as 2 * labels - 1 for logits of labels of 0 and 1"
        raise ConfigError(f"task {type(task).__name__}", why, hint=hint)


def require_classes(site: SiteModel) -> None:
    """Check that labels are class numbers and that the head fits one output to each; raise ConfigError if not."""
    outputs = last_linear(site.module).out_features
    labels = site.rows.labels if isinstance(site.rows, Samples) else None
    numbers = bool(site.task.class_names()) if labels is None else labels.ndim == 1 and not labels.is_floating_point()
    if numbers and outputs > 1:
        with task_code(type(site.task), "head_targets"):
            fitted = site.task.head_targets(torch.arange(outputs), outputs)
        if torch.allclose(fitted.double(), torch.eye(outputs).double() - 1 / outputs, atol=1e-6):
            return
    why = f'is "balanced", and the labels of task {type(site.task).__name__} are not known to be classes'
    hint = 'set it to "none"; a task whose labels are class numbers defines class_names() and no head_targets()'
    raise ConfigError("strategy.class-weights", why, hint=hint)


@dataclass(frozen=True, slots=True)
class HeadFitter:
    """Fits the model's last linear layer at the target.

    Attributes:
        site: the target's model and rows, with labels or without.
        bound: as of :meth:`securefda.rules.Moments.of`; the same at every site.
        balanced: whether all classes weigh the same, see :func:`securefda.rules.fit_head` and :func:`require_classes`.
        moves_mean: whether the sources' rows are moved to the mean of the target's rows, where these have no labels.
        source_noise: noise multiplier of the sources' moments, as far as the target knows it; 0 where there is none.
    """

    site: SiteModel
    bound: float
    balanced: bool = False
    moves_mean: bool = False
    source_noise: float = 0.0

    def fit(self, vector: Vector, means: Vector64, rows: float, sources: int) -> FittedHead:
        """Fit it to the sources' moments and the target's own rows.

        Args:
            vector: the model with which the round began, float32 (m,).
            means: the mean of the sources' moments, weighted by rows, in the order of :meth:`Moments.means`.
            rows: number of the sources' rows.
            sources: number of the sources.

        Raises:
            ValueError: no head fits such moments; the message starts with the name of an argument.
        """
        head = last_linear(self.site.module)
        moments = Moments.from_means(means, width=head.in_features, outputs=head.out_features, rows=rows)
        if self.site.task.sums_only:
            constants = np.zeros_like(moments.cross)
            constants[:, -1] = moments.cross[:, -1] / rows
            mean = Head(constants, 1.0, 0.0)
            return FittedHead(_flat(mean), mean, 1.0)
        noise = self.source_noise * self.bound * math.sqrt(sources)
        fitting = partial(fit_head, bound=self.bound, balanced=self.balanced, noise=noise)
        if isinstance(self.site.rows, Unlabelled):
            like = None
            if self.moves_mean:
                self.site.prepare_to_evaluate(vector)
                like = extract_features(self.site.task, self.site.module, self.site.rows.features)
            fitted = fitting(moments, mean_of=like)
            return FittedHead(_flat(fitted), fitted, 1.0)
        features, targets = head_rows(self.site, vector)
        fitted, alone = (fitting(of_sources, features, targets) for of_sources in (moments, None))
        part = sources_part(fitted, alone)
        return FittedHead(_flat(fitted, self._scale(fitted)), fitted, part)

    def alone(self, vector: Vector) -> Vector:
        """Return the model, float32 (m,), with the head that fits the target's rows alone."""
        fitted = fit_head(None, *head_rows(self.site, vector), bound=self.bound, balanced=self.balanced)
        return _flat(fitted, self._scale(fitted))

    def _scale(self, head: Head) -> float:
        """The factor of the head with the least loss on the rows that were left out."""
        if head.left_out is None or head.chosen is None:
            return 1.0
        task, outputs = self.site.task, torch.from_numpy(head.left_out).float()
        labels = self.site.labelled_rows().labels[torch.from_numpy(head.chosen)]
        groups = [labels == label for label in torch.unique(labels)] if self.balanced else [slice(None)]
        with torch.no_grad(), task_code(type(task), "loss"):
            losses = [sum(float(task.loss(outputs[of] * scale, labels[of])) for of in groups) for scale in _SCALES]
        return float(_SCALES[int(np.argmin(losses))])


@dataclass(frozen=True, slots=True, repr=False)
class FittedHead:
    """A model with a fitted head.

    Attributes:
        vector: the model, float32 (m,).
        head: how its head was chosen.
        sources_part: the sources' share of it, see :func:`securefda.rules.sources_part`.
    """

    vector: Vector
    head: Head
    sources_part: float


class HeadAlone:
    """The target alone under the analytic rule, in the form of a trainer: one round fits the head to its rows.

    Args:
        fitter: at the target.
    """

    def __init__(self, fitter: HeadFitter) -> None:
        self._fitter, self._site = fitter, fitter.site
        self.initial_model, self.evaluate = self._site.initial_model, self._site.evaluate

    def train(self, received: Vector, round_number: int, factor: float, *, run_id: str = "") -> LocalResult:  # noqa: ARG002
        """Return the step from ``received``, float32 (m,), to the model with the fitted head."""
        site = self._site
        step = self._fitter.alone(received) - received
        return LocalResult(step, 1, site.samples, None, None, site.settings.learning_rate)


def _flat(head: Head, scale: float = 1.0) -> Vector:
    """Return the model, float32 (m,); raises ValueError where that has no room for the head."""
    weights = head.weights * scale
    if not np.abs(weights).max() <= np.finfo(np.float32).max:
        raise ValueError("sources: the head that fits their moments is beyond float32")
    return np.concatenate([weights[:, :-1].ravel(), weights[:, -1]]).astype(np.float32)
