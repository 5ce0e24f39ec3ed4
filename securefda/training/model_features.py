"""The features of rows under a model: their extraction, their clusters without labels, and gradients through them.

The features of a row are the input of the model's last linear layer. Under some rules the target releases the features
of some rows and moves its model along the sources' pull on them. Under others k-means puts the rows into as many
clusters as that layer has outputs. The gap statistic (:mod:`securefda.rules.gap`) measures the clusters. Its gradient
with respect to the model, for fixed clusters, is the vector that a target publishes under ``fada_attention``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefda.errors import TrainingError
from securefda.protocol.encoding import Vector, Vector64
from securefda.rules import gap_gradient, gap_statistic
from securefda.tasks import Inputs, Task, task_code
from securefda.tasks.inputs import batched, in_memory, row_count
from securefda.training.batch_norm import normalising_by_batch
from securefda.training.parameter_vectors import gradient_to_vector

Clusters = NDArray[np.int32]
"""Index of each row's cluster, int32 (T,)."""

_ROWS = 1024
"""Most rows in a pass through the model."""

_KMEANS_STARTS = 4
"""Random starts of k-means, of which the best counts."""


@dataclass(frozen=True, slots=True, repr=False)
class ClusterGap:
    """The gap statistic of the clustered features of a site's rows under a model.

    Attributes:
        gap: the statistic, in [0, 1].
        gradient: its gradient with respect to the federated parameters, float32 (m,).
        gain_of: returns by how much an update, (m,), lowers the statistic; the rows are clustered again for it.
    """

    gap: float
    gradient: Vector
    gain_of: Callable[[Vector | Vector64], float]


def last_linear(model: nn.Module) -> nn.Linear:
    """Return the model's last linear layer, whose inputs are the features.

    Raises:
        TrainingError: the model has none.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise TrainingError(
            "the model has no linear layer, and features are what the last one takes",
            hint="end it with torch.nn.Linear, or set another strategy.rule",
        )
    return layers[-1]


def require_trained_features(model: nn.Module) -> None:
    """Check that the model trains a layer before its last linear one; raise TrainingError if not."""
    own = {id(parameter) for parameter in last_linear(model).parameters()}
    if all(id(parameter) in own for parameter in model.parameters() if parameter.requires_grad):
        raise TrainingError(
            "the model is one linear layer, and so its features are the rows themselves",
            hint="put a layer before it, or set another strategy.rule",
        )


def require_frozen_features(model: nn.Module) -> None:
    """Check that the model trains its last linear layer, with a bias, and nothing else; raise TrainingError if not."""
    head = last_linear(model)
    if head.bias is None or not (head.weight.requires_grad and head.bias.requires_grad):
        raise TrainingError(
            "the analytic rule solves for the last linear layer, and that has no bias or is frozen",
            hint="give torch.nn.Linear its bias, or set another strategy.rule",
        )
    own = {id(head.weight), id(head.bias)}
    others = [
        name for name, parameter in model.named_parameters() if parameter.requires_grad and id(parameter) not in own
    ]
    if others:
        raise TrainingError(
            f"the analytic rule solves for the last linear layer alone, and the model also trains {others[0]}",
            hint="set task.options.hidden-units = 0 for a table and task.options.hidden = 0 for features, freeze all "
            "before that layer in a model of your own (requires_grad_(False)), or set another strategy.rule",
        )


def feature_width(model: nn.Module) -> int:
    """Return the number of features of a row, d; raise TrainingError if the model has no linear layer."""
    return last_linear(model).in_features


def cluster_count(model: nn.Module, rows: int) -> int:
    """Return the number of clusters of a model's features: one for each class, at least two.

    Raises:
        TrainingError: the model has no linear layer, or ``rows`` is not larger than the number of clusters.
    """
    classes = max(last_linear(model).out_features, 2)
    if rows <= classes:
        raise TrainingError(
            f"{rows} rows cannot be put into {classes} clusters",
            hint="raise strategy.attention-rows, or set another strategy.rule",
        )
    return classes


def extract_features(task: Task, model: nn.Module, rows: Inputs) -> Vector:
    """Return the features of ``rows``, (T, ...), under ``model`` with its present parameters; float32 (T, d).

    Raises:
        TrainingError: the model has no linear layer, or a feature is NaN or infinite.
        DataError: the task's own code, or torch on its behalf, fails.
    """
    model.eval()
    with torch.no_grad():
        parts = [part.cpu() for part in _feature_batches(task, model, rows)]
    features: Vector = torch.cat(parts).numpy()
    if not np.all(np.isfinite(features)):
        raise TrainingError("features of this site's rows hold NaN or infinity", hint="lower training.learning-rate")
    return features


def cluster_features(features: Vector, count: int, seed: int, *, centres: Vector | None = None) -> Clusters:
    """Cluster features by k-means; return the cluster of each row, int32 (T,).

    The same features give the same clusters on one machine, since one thread computes.

    Args:
        features: float32 (T, d), T > ``count``.
        count: number of clusters.
        seed: seed of the first centres, if none are given.
        centres: first centres, (count, d).

    Raises:
        TrainingError: fewer than ``count`` rows differ, as when a layer has the same output for every row.
    """
    different = len(np.unique(features, axis=0))
    if different < count:
        raise TrainingError(
            f"the features of the target's {len(features)} rows have {different} different values, "
            f"and {count} clusters are wanted",
            hint="lower training.learning-rate, or set another strategy.rule",
        )
    # Only a target under a rule with attention needs them, and they take as long to import as torch.
    from sklearn.cluster import KMeans  # noqa: PLC0415
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    how = {"init": "k-means++", "n_init": _KMEANS_STARTS} if centres is None else {"init": centres, "n_init": 1}
    with threadpool_limits(limits=1):
        clusters: Clusters = KMeans(count, random_state=seed % 2**32, **how).fit_predict(features)
    return clusters


def clustering_gap(features: Vector, clusters: Clusters) -> float:
    """Return the gap statistic of features, (T, d), in clusters, (T,).

    Raises:
        TrainingError: all rows have the same features.
    """
    try:
        return gap_statistic(features, clusters)
    except ValueError as error:
        raise TrainingError(f"the target's rows cannot be clustered: {error}") from None


def pull_gradient(task: Task, model: nn.Module, rows: Inputs, pull: Vector) -> Vector:
    """Return the gradient of (1/T) sum_t <pull_t, features_t> with respect to the federated parameters, float32 (m,).

    Args:
        task: the model's task.
        model: the model under which the features were extracted.
        rows: the rows of the features, (T, ...).
        pull: (T, d).

    Raises:
        TrainingError: the gradient holds NaN or infinity.
    """
    model.eval()
    direction = torch.from_numpy(pull.astype(np.float32)) / row_count(rows)
    return _feature_gradient(task, model, rows, direction, "what the sources' pull comes to")


def clustering_gap_gradient(task: Task, model: nn.Module, rows: Inputs, features: Vector, clusters: Clusters) -> Vector:
    """Return the gradient of the gap statistic with respect to the federated parameters, float32 (m,).

    The statistics of BatchNorm layers move with the parameters, since a site evaluates a model with moments of its own
    rows under that model. So the gradient goes through moments: those of ``rows`` in parts of at most 1,024, where a
    site evaluates with moments of all its rows.

    Args:
        task: the model's task.
        model: the model under which the features were extracted.
        rows: the rows of the features, (T, ...).
        features: (T, d).
        clusters: cluster of each row, (T,); fixed.

    Raises:
        TrainingError: the gradient holds NaN or infinity.
    """
    model.eval()
    direction = torch.from_numpy(gap_gradient(features, clusters).astype(np.float32))
    with normalising_by_batch(model):
        return _feature_gradient(task, model, rows, direction, "the gradient of the gap")


def _feature_gradient(task: Task, model: nn.Module, rows: Inputs, direction: Tensor, what: str) -> Vector:
    """Return the gradient of <direction, features>, both (T, d), float32 (m,); ``what`` names it in the error."""
    model.zero_grad(set_to_none=True)
    start = 0
    for part in _feature_batches(task, model, rows):
        torch.autograd.backward(part, direction[start : start + len(part)].to(part.device))
        start += len(part)
    gradient = gradient_to_vector(model)
    model.zero_grad(set_to_none=True)
    if not np.all(np.isfinite(gradient)):
        raise TrainingError(f"{what} holds NaN or infinity", hint="lower training.learning-rate")
    return gradient


def cluster_means(features: Vector, clusters: Clusters, count: int) -> Vector:
    """Return the mean features of each cluster, (count, d): first centres for k-means after the model has moved."""
    centres: Vector = np.stack([features[clusters == number].mean(axis=0) for number in range(count)])
    return centres


def _feature_batches(task: Task, model: nn.Module, rows: Inputs) -> Iterator[Tensor]:
    """Yield the features of the rows batch by batch, (T_i, d), with their graph if gradients are enabled."""
    layer, device = last_linear(model), next(model.parameters()).device
    with _captured_inputs(layer) as taken, task_code(type(task), "a forward pass"):
        for some in batched(rows, _ROWS, even=True):
            taken.clear()
            model(in_memory(some, device))
            if len(taken) != 1 or len(taken[0]) != row_count(some):
                raise TrainingError("the model's last linear layer does not take each row once")
            yield taken[0].flatten(1)


@contextmanager
def _captured_inputs(layer: nn.Linear) -> Iterator[list[Tensor]]:
    """Collect the inputs of a layer in the block."""
    taken: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
    try:
        yield taken
    finally:
        handle.remove()
