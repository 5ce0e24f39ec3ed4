"""The model after a round as the definitions of the rules give it: from every site's own training, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rounds_federation import TARGET, Federation, trainer_of

from securefda.rules import align_update, auto_beta, fedda, fedgp

Vector64 = NDArray[np.float64]
AUTO = {"fedda_auto": "fedda", "fedgp_auto": "fedgp"}


@dataclass(frozen=True)
class Trained:
    """What the sites of a federation train in a round from ``model``, at the usual settings.

    Attributes:
        model: the model that the round begins with, float32 (m,).
        target: g_T, float64 (m,).
        steps: the target's single steps, float64 (B, m).
        samples: rows by roster index, the target's too.
        updates: u_i by roster index, float64 (m,).
        aligned: g_i by roster index, float64 (m,).
        losses, accuracies: means over the training rows, by roster index.
        layers: sizes.
    """

    model: Any
    target: Vector64
    steps: Vector64
    samples: dict[int, int]
    updates: dict[int, Vector64]
    aligned: dict[int, Vector64]
    losses: dict[int, float]
    accuracies: dict[int, float]
    layers: tuple[int, ...]


def trained(federation: Federation, others: Mapping[int, dict[str, Any]] = MappingProxyType({})) -> Trained:
    """Train every site of a federation its first round once more; ``others`` are settings that differ, by index."""
    trainer, steps = trainer_of(federation.n, TARGET), []
    model = trainer.initial_model()
    target = trainer.train(model, 1, 1.0, on_step=lambda step: steps.append(step.astype(np.float64)))
    results = {
        index: trainer_of(federation.n, index, **others.get(index, {})).train(model, 1, 1.0)
        for index in range(1, federation.n + 1)
    }
    aligned = {
        index: align_update(
            result.update,
            target_steps=target.steps,
            source_steps=result.steps,
            learning_rate_ratio=target.learning_rate / result.learning_rate,
        )
        for index, result in results.items()
    }
    return Trained(
        model=model,
        target=target.update.astype(np.float64),
        steps=np.array(steps),
        samples={index: result.samples for index, result in results.items()} | {TARGET: target.samples},
        updates={index: result.update.astype(np.float64) for index, result in results.items()},
        aligned=aligned,
        losses={index: result.loss for index, result in results.items()},
        accuracies={index: result.accuracy for index, result in results.items()},
        layers=trainer.sizes,
    )


def mean_of(vectors: dict[int, Vector64], samples: dict[int, int], members: Sequence[int]) -> Vector64:
    """Mean by samples."""
    total = sum(samples[index] for index in members)
    return np.asarray(sum(samples[index] * vectors[index] for index in members) / total)


def update_by_definition(rule: str, sites: Trained, groups: Sequence[Sequence[int]], *, beta: float = 0.5) -> Vector64:
    """The round's update where the rule sees one input for each group: the mean of its members by samples.

    A group of one is a source as it is.
    """
    weights = np.array([sum(sites.samples[index] for index in group) for group in groups], np.float64)
    if rule in ("source_only", "fedavg"):
        means = np.array([mean_of(sites.updates, sites.samples, group) for group in groups])
        own = sites.samples[TARGET] if rule == "fedavg" else 0
        return np.asarray((weights @ means + own * sites.target) / (weights.sum() + own))
    inputs = np.array([mean_of(sites.aligned, sites.samples, group) for group in groups])
    betas: Any = beta
    if rule in AUTO:
        betas = betas_of(rule, sites, inputs)
    if rule.startswith("fedda"):
        return fedda(sites.target, inputs, betas, weights)
    return fedgp(sites.target, inputs, betas, weights, layers=sites.layers)


def betas_of(rule: str, sites: Trained, inputs: Vector64) -> Vector64:
    """Auto-beta of each input, (N, m)."""
    return auto_beta(sites.steps, inputs / len(sites.steps), AUTO[rule], estimator="mean-field")
