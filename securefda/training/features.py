"""The features of a site's rows under a model, how well they cluster without labels, and in which direction better.

A model's features are what its last linear layer takes. Under some rules the target releases those of some rows, and
follows through the model what pulls them. k-means puts the rows into as many clusters as that layer has
outputs. The gap statistic of the clusters (:mod:`securefda.rules.gap`) says how well that works; its gradient with
respect to the model, the clusters being fixed, is what a target publishes under ``fada_attention``.
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
from securefda.tasks import Task, task_code
from securefda.training.batch_norm import normalising_by_batch
from securefda.training.vectors import gradient_to_vector

Clusters = NDArray[np.int32]
"""Number of each row's cluster, (T,)."""

_ROWS = 1024
"""The most in a pass through the model."""

_STARTS = 4


@dataclass(frozen=True, slots=True, repr=False)
class SeenGap:
    """How the features of a site's rows cluster under a model.

    Attributes:
        gap: the gap statistic, in [0, 1].
        gradient: its gradient with respect to the federated parameters, float32 (m,).
        gain_of: by how much an update, (m,), lowers the statistic, the rows being clustered again after it.
    """

    gap: float
    gradient: Vector
    gain_of: Callable[[Vector | Vector64], float]


def last_linear(model: nn.Module) -> nn.Linear:
    """The layer whose input are the features.

    Raises:
        TrainingError: there is none.
    """
    found = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not found:
        raise TrainingError(
            "the model has no linear layer, and features are what the last one takes",
            hint="end it with torch.nn.Linear, or set another strategy.rule",
        )
    return found[-1]


def require_trained_features(model: nn.Module) -> None:
    """Refuse a model whose features nothing is learnt of. Raises TrainingError."""
    own = {id(parameter) for parameter in last_linear(model).parameters()}
    if all(id(parameter) in own for parameter in model.parameters() if parameter.requires_grad):
        raise TrainingError(
            "the model is one linear layer, and so its features are the rows themselves",
            hint="put a layer before it, or set another strategy.rule",
        )


def feature_width(model: nn.Module) -> int:
    """How many numbers the features of a row have, d. Raises TrainingError where the model has no linear layer."""
    return last_linear(model).in_features


def clusters_wanted(model: nn.Module, rows: int) -> int:
    """How many clusters a model's features are put into: one for each class.

    Raises:
        TrainingError: the model has no linear layer, or there are too few ``rows``.
    """
    classes = max(last_linear(model).out_features, 2)
    if rows <= classes:
        raise TrainingError(
            f"{rows} rows cannot be put into {classes} clusters",
            hint="raise strategy.attention-rows, or set another strategy.rule",
        )
    return classes


def features_of(task: Task, model: nn.Module, rows: Tensor) -> Vector:
    """The features of ``rows`` under ``model``, as it stands and where it stands; float32 (T, d).

    Raises:
        TrainingError: the model has no linear layer, or a feature is NaN or infinite.
        DataError: the task's own code, or torch on its behalf, fails.
    """
    model.eval()
    with torch.no_grad():
        parts = [part.cpu() for part in _parts(task, model, rows)]
    features: Vector = torch.cat(parts).numpy()
    if not np.all(np.isfinite(features)):
        raise TrainingError("features of this site's rows hold NaN or infinity", hint="lower training.learning-rate")
    return features


def cluster(features: Vector, count: int, seed: int, *, centres: Vector | None = None) -> Clusters:
    """Put features, float32 (T, d), into ``count`` clusters by k-means.

    The same features give the same clusters on one machine: one thread computes.

    Args:
        features: more than ``count`` rows.
        count: of clusters.
        seed: of the first centres, where none are given.
        centres: to begin with, (count, d).

    Raises:
        TrainingError: there are fewer than ``count`` different rows, as where a layer gives the same for every row.
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

    how = {"init": "k-means++", "n_init": _STARTS} if centres is None else {"init": centres, "n_init": 1}
    with threadpool_limits(limits=1):
        found: Clusters = KMeans(count, random_state=seed % 2**32, **how).fit_predict(features)
    return found


def gap_of(features: Vector, clusters: Clusters) -> float:
    """The gap statistic of features, (T, d).

    Raises:
        TrainingError: all rows have the same features.
    """
    try:
        return gap_statistic(features, clusters)
    except ValueError as error:
        raise TrainingError(f"the target's rows cannot be clustered: {error}") from None


def followed_pull(task: Task, model: nn.Module, rows: Tensor, pull: Vector) -> Vector:
    """The gradient of (1/T) sum_t <pull_t, features_t> with respect to the federated parameters, float32 (m,).

    Args:
        task: of the model.
        model: as it stood when it gave the features.
        rows: (T, ...).
        pull: (T, d).

    Raises:
        TrainingError: the gradient holds NaN or infinity.
    """
    model.eval()
    direction = torch.from_numpy(pull.astype(np.float32)) / len(rows)
    return _gradient_along(task, model, rows, direction, "what the sources' pull comes to")


def gap_direction(task: Task, model: nn.Module, rows: Tensor, features: Vector, clusters: Clusters) -> Vector:
    """The gradient of the gap statistic with respect to the federated parameters of ``model``, float32 (m,).

    The statistics of BatchNorm layers move with the parameters, since a site evaluates a model with moments of its own
    rows under that model. So the gradient goes through these moments, those of ``rows`` in parts of at most 1,024.

    Args:
        task: of the model.
        model: as it stood when it gave the ``features``, (T, d), of ``rows``.
        rows: (T, ...).
        features: as above.
        clusters: of the rows, (T,).

    Raises:
        TrainingError: the gradient holds NaN or infinity.
    """
    model.eval()
    direction = torch.from_numpy(gap_gradient(features, clusters).astype(np.float32))
    with normalising_by_batch(model):
        return _gradient_along(task, model, rows, direction, "the gradient of the gap")


def _gradient_along(task: Task, model: nn.Module, rows: Tensor, direction: Tensor, what: str) -> Vector:
    """The gradient of the inner product of a direction, (T, d), and the features, float32 (m,)."""
    model.zero_grad(set_to_none=True)
    start = 0
    for part in _parts(task, model, rows):
        torch.autograd.backward(part, direction[start : start + len(part)].to(part.device))
        start += len(part)
    gradient = gradient_to_vector(model)
    model.zero_grad(set_to_none=True)
    if not np.all(np.isfinite(gradient)):
        raise TrainingError(f"{what} holds NaN or infinity", hint="lower training.learning-rate")
    return gradient


def moved_centres(features: Vector, clusters: Clusters, count: int) -> Vector:
    """The means of clusters that hold these rows, (count, d): where k-means begins once the model has moved."""
    centres: Vector = np.stack([features[clusters == number].mean(axis=0) for number in range(count)])
    return centres


def _parts(task: Task, model: nn.Module, rows: Tensor) -> Iterator[Tensor]:
    """The features of some rows after the other, (T_i, d), with whatever gradients are on."""
    layer, device = last_linear(model), next(model.parameters()).device
    with _inputs_of(layer) as taken, task_code(type(task), "a forward pass"):
        for some in torch.tensor_split(rows, -(-len(rows) // _ROWS)):
            taken.clear()
            model(some.to(device))
            if len(taken) != 1 or len(taken[0]) != len(some):
                raise TrainingError("the model's last linear layer does not take each row once")
            yield taken[0].flatten(1)


@contextmanager
def _inputs_of(layer: nn.Linear) -> Iterator[list[Tensor]]:
    taken: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
    try:
        yield taken
    finally:
        handle.remove()
