"""The common part of tasks that distinguish classes by logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from securefda.tasks.base import Task
from securefda.tasks.metric_functions import class_metrics


class Classification(Task):
    """A task whose model outputs logits and whose labels are class numbers; subclasses add data and model."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of the logits."""
        return nn.functional.cross_entropy(outputs, labels)

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of each row's logits."""
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return what :func:`securefda.tasks.metric_functions.class_metrics` does."""
        return class_metrics(outputs, labels)

    def row_accuracies(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return 1 for each row whose class is right, else 0."""
        return (outputs.argmax(dim=1) == labels).float()

    def guesses(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the most probable class of each row, and its probability."""
        sure, classes = torch.softmax(outputs, dim=1).max(dim=1)
        return classes, sure

    def predictions(self, outputs: Tensor) -> list[dict[str, str | float]]:
        """Return the most probable class of each row, and the probability of every class."""
        names = self.class_names() or tuple(map(str, range(outputs.shape[1])))
        rows: list[list[float]] = torch.softmax(outputs.double(), dim=1).tolist()
        return [
            {"class": names[row.index(max(row))]}
            | {f"probability {name}": value for name, value in zip(names, row, strict=True)}
            for row in rows
        ]


def distinct_classes(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a task's classes; ValueError unless they are two or more, each once."""
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise ValueError("must name at least two classes, each once")
    return names
