"""Metrics of a model's outputs, as plain functions of tensors. A metric that the rows do not define is NaN.

They are formulas of a few lines: scikit-learn has them too, but to import its metrics takes every site seconds and
80 MB. The tests compare the two.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_CALIBRATION_BINS = 15


def class_metrics(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the metrics of a classifier, by name.

    Accuracy, balanced accuracy, AUROC, F1, expected calibration error and Brier score; of two classes also sensitivity
    and specificity, of which class 1 is the positive one, as of F1. With rows of one class only AUROC is NaN, and so is
    sensitivity or specificity.

    Args:
        outputs: logits, ``(n, C)``, C at least 2, n at least 1.
        labels: class numbers, ``(n,)`` int64.
    """
    logits = outputs.double()
    table = confusion_matrix(logits.argmax(dim=1), labels, logits.shape[1])
    probabilities = torch.softmax(logits, dim=1)
    metrics = {
        "accuracy": float(table.diagonal().sum()) / len(labels),
        "balanced_accuracy": balanced_accuracy(table),
        "auroc": macro_auroc(logits, labels),
        "f1": f1(table),
        "expected_calibration_error": expected_calibration_error(probabilities, labels),
        "brier": brier(probabilities, labels),
    }
    if len(table) == 2:
        metrics["sensitivity"], metrics["specificity"] = sensitivity(table), specificity(table)
    return metrics


def confusion_matrix(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return how many rows of each class were predicted as each, ``(classes, classes)`` int64; a line is a true class.

    Args:
        predicted: class numbers, ``(n,)`` int64.
        labels: the true ones, ``(n,)`` int64.
        classes: how many there are.
    """
    return torch.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)


def balanced_accuracy(table: Tensor) -> float:
    """Return the mean, over the classes that occur, of the share of their rows that is right, in [0, 1].

    With rows of one class only it is the accuracy.

    Args:
        table: as `confusion_matrix` returns it, with at least one row.
    """
    rows = table.sum(dim=1)
    return float((table.diagonal()[rows > 0].double() / rows[rows > 0]).mean())


def sensitivity(table: Tensor) -> float:
    """Return the share of the rows of class 1 that is predicted as such, in [0, 1]; NaN without such rows.

    Args:
        table: as `confusion_matrix` returns it, of two classes.
    """
    return float(table[1, 1].double() / table[1].sum())


def specificity(table: Tensor) -> float:
    """Return the share of the rows of class 0 that is predicted as such, in [0, 1]; NaN without such rows.

    Args:
        table: as `confusion_matrix` returns it, of two classes.
    """
    return float(table[0, 0].double() / table[0].sum())


def f1(table: Tensor) -> float:
    """Return the harmonic mean of precision and recall, in [0, 1]: of two classes that of class 1.

    Of more classes the mean over those that occur or are predicted. NaN where no row is of class 1 or predicted as it.

    Args:
        table: as `confusion_matrix` returns it, with at least one row.
    """
    of_each = 2 * table.diagonal().double() / (table.sum(dim=0) + table.sum(dim=1))
    return float(of_each[1] if len(table) == 2 else of_each[~of_each.isnan()].mean())


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Return how often a positive row has the higher score of a positive and a negative one, in [0, 1].

    Equal scores count half. NaN where no row or every row is positive.

    Args:
        scores: ``(n,)``.
        positive: which rows are positive, ``(n,)`` bool.
    """
    _, place, equal = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = (equal.cumsum(0) - (equal - 1) / 2.0)[place].double()
    count = int(positive.sum())
    pairs = count * (len(scores) - count)
    return (float(ranks[positive].sum()) - count * (count + 1) / 2) / pairs if pairs else math.nan


def macro_auroc(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean AUROC of each class that occurs against all others, in [0, 1]; of two classes their one AUROC.

    NaN with rows of one class only.

    Args:
        outputs: logits, ``(n, C)``.
        labels: class numbers, ``(n,)`` int64.
    """
    areas = []
    for number in torch.unique(labels).tolist():
        others = torch.cat([outputs[:, :number], outputs[:, number + 1 :]], dim=1)
        areas.append(auroc(outputs[:, number] - torch.logsumexp(others, dim=1), labels == number))
    return sum(areas) / len(areas)


def expected_calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Return how far confidence and accuracy are apart, in [0, 1]: Guo et al. (ICML 2017), in 15 bins of equal width.

    Of each bin of the confidence, the largest probability, it takes the difference of mean confidence and accuracy,
    and weighs it by the bin's rows. Rows of one class only are no exception.

    Args:
        probabilities: ``(n, C)``, n at least 1.
        labels: class numbers, ``(n,)`` int64.
    """
    confidence, predicted = probabilities.double().max(dim=1)
    place = (confidence * _CALIBRATION_BINS).ceil().long().clamp(1, _CALIBRATION_BINS) - 1  # 1 for NaN too
    gaps = torch.zeros(_CALIBRATION_BINS, dtype=torch.float64)
    gaps.index_add_(0, place, confidence - (predicted == labels).double())
    return float(gaps.abs().sum() / len(labels))


def brier(probabilities: Tensor, labels: Tensor) -> float:
    """Return half the squared distance of the probabilities from the true class, mean over rows, in [0, 1].

    Of two classes it is the usual Brier score. Rows of one class only are no exception.

    Args:
        probabilities: ``(n, C)``, n at least 1.
        labels: class numbers, ``(n,)`` int64.
    """
    truth = torch.nn.functional.one_hot(labels, probabilities.shape[1])
    return float((probabilities.double() - truth).square().sum(dim=1).mean() / 2)


def number_metrics(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Return RMSE, MAE and R², by name; arguments as of `r2`."""
    return {"rmse": rmse(outputs, labels), "mae": mae(outputs, labels), "r2": r2(outputs, labels)}


def mae(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean absolute error over all numbers, at least 0, in the unit of the labels.

    Args:
        outputs: of the model, of any shape.
        labels: of the same shape.
    """
    return float((outputs.double() - labels).abs().mean())


def rmse(outputs: Tensor, labels: Tensor) -> float:
    """Return the root of the mean squared error, at least 0, in the unit of the labels; arguments as of `mae`."""
    return math.sqrt(float((outputs.double() - labels).square().mean()))


def r2(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of the labels' variance that the outputs explain, at most 1, below 0 if worse than their mean.

    Of several numbers in a row the variances are added up. NaN where the labels do not vary.

    Args:
        outputs: of the model, ``(n, ...)``.
        labels: of the same shape.
    """
    varies = float((labels.double() - labels.double().mean(dim=0)).square().sum())
    return 1 - float((outputs.double() - labels).square().sum()) / varies if varies else math.nan


def dice(predicted: Tensor, truth: Tensor) -> float:
    """Return twice the overlap of two masks over the sum of their sizes, mean over rows, in [0, 1].

    A row in which both masks are empty counts as 1.

    Args:
        predicted: bool, ``(n, ...)``, n at least 1.
        truth: of the same shape.
    """
    overlap = (predicted & truth).flatten(1).sum(dim=1).double()
    sizes = predicted.flatten(1).sum(dim=1) + truth.flatten(1).sum(dim=1)
    return float(torch.where(sizes > 0, 2 * overlap / sizes, 1.0).mean())


def concordance(risks: Tensor, times: Tensor, events: Tensor) -> float:
    """Return Harrell's concordance index: how often the row with the earlier event has the higher risk, in [0, 1].

    Two rows are compared if one had the event, and the other was seen longer, or as long without it. Equal risks count
    half; NaN with nothing to compare.

    Args:
        risks: ``(n,)``.
        times: of the event, or until when a row was seen without it, ``(n,)``.
        events: 1 for a row with the event, else 0, ``(n,)``.
    """
    right, compared = 0.0, 0
    for row in torch.nonzero(events == 1)[:, 0].tolist():
        others = risks[(times > times[row]) | ((times == times[row]) & (events == 0))]
        right += float((others < risks[row]).sum()) + float((others == risks[row]).sum()) / 2
        compared += len(others)
    return right / compared if compared else math.nan
