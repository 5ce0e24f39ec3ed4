"""The common part of tasks that distinguish classes by logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from securefda.tasks.base import Task


class Classification(Task):
    """A task whose model outputs logits and whose labels are class numbers; subclasses add data and model."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of the logits."""
        return nn.functional.cross_entropy(outputs, labels)

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of each row's logits."""
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return the accuracy, in [0, 1]."""
        return {"accuracy": float((outputs.argmax(dim=1) == labels).double().mean())}

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


def class_metrics(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Return accuracy and balanced accuracy, and of two classes the AUROC if the rows have both, in [0, 1]."""
    right = (outputs.argmax(dim=1) == labels).double()
    metrics = {"accuracy": float(right.mean()), "balanced_accuracy": balanced_accuracy(outputs, labels)}
    if outputs.shape[1] == 2 and len(torch.unique(labels)) == 2:
        metrics["auroc"] = auroc(outputs[:, 1] - outputs[:, 0], labels == 1)
    return metrics


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Return how often a positive row has the higher score of a positive and a negative one; equal scores count half.

    Args:
        scores: ``(n,)``.
        positive: which rows are positive, ``(n,)``; some are, and some are not.
    """
    _, place, equal = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = (equal.cumsum(0) - (equal - 1) / 2.0)[place].double()
    count = int(positive.sum())
    pairs = count * (len(scores) - count)
    return (float(ranks[positive].sum()) - count * (count + 1) / 2) / pairs


def balanced_accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean, over the classes that occur, of the share of their rows that is right, in [0, 1]."""
    right = (outputs.argmax(dim=1) == labels).double()
    by_class = [float(right[labels == number].mean()) for number in torch.unique(labels)]
    return sum(by_class) / len(by_class)


def distinct_classes(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a task's classes; ValueError unless they are two or more, each once."""
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise ValueError("must name at least two classes, each once")
    return names
