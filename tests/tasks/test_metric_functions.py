"""Metrics of a model's outputs: each beside scikit-learn's or beside its formula in numpy, and with one class only."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as theirs

from securefda.task_metric import METRICS, TaskMetric, metrics_text
from securefda.tasks import metric_functions as ours

ROWS = 200


@pytest.fixture(params=[2, 4], ids=["two classes", "four classes"])
def rows(request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of some skill, a few of them equal, and labels in unequal numbers."""
    random = np.random.default_rng(request.param)
    labels = random.choice(request.param, ROWS, p=np.arange(1, request.param + 1) / sum(range(request.param + 1)))
    logits = np.round(random.normal(size=(ROWS, request.param)), 1)
    logits[np.arange(ROWS), labels] += 0.7
    return torch.from_numpy(logits).float(), torch.from_numpy(labels)


def test_metrics_of_classes_are_those_of_scikit_learn(rows: tuple[torch.Tensor, torch.Tensor]) -> None:
    outputs, labels = rows
    found, truth, classes = ours.class_metrics(outputs, labels), labels.numpy(), outputs.shape[1]
    logits = outputs.double().numpy()
    predicted, weights = logits.argmax(axis=1), np.exp(logits)
    sure = weights / weights.sum(axis=1, keepdims=True)
    expected = {
        "accuracy": theirs.accuracy_score(truth, predicted),
        "balanced_accuracy": theirs.balanced_accuracy_score(truth, predicted),
        "brier": theirs.brier_score_loss(truth, sure[:, 1] if classes == 2 else sure, scale_by_half=True),
        "expected_calibration_error": calibration_error(sure, truth),
    }
    if classes == 2:
        expected |= {
            "auroc": theirs.roc_auc_score(truth, logits[:, 1] - logits[:, 0]),
            "f1": theirs.f1_score(truth, predicted),
            "sensitivity": theirs.recall_score(truth, predicted),
            "specificity": theirs.recall_score(truth, predicted, pos_label=0),
        }
    else:
        expected |= {
            "auroc": theirs.roc_auc_score(truth, sure, multi_class="ovr"),
            "f1": theirs.f1_score(truth, predicted, average="macro"),
        }
    assert found == pytest.approx(expected, abs=1e-9)
    table = ours.confusion_matrix(torch.from_numpy(predicted), labels, classes)
    assert table.tolist() == theirs.confusion_matrix(truth, predicted).tolist()
    assert set(found) < set(METRICS)


def calibration_error(sure: np.ndarray, truth: np.ndarray) -> float:
    """Return the error as Guo et al. write it down, bin by bin: those of ((m - 1) / 15, m / 15]."""
    confidence, right, error = sure.max(axis=1), sure.argmax(axis=1) == truth, 0.0
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        if inside.any():
            error += inside.sum() / len(truth) * abs(right[inside].mean() - confidence[inside].mean())
    return error


def defined(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not math.isnan(value)}


def test_a_metric_that_rows_of_one_class_do_not_define_is_none() -> None:
    outputs, none, all_of_it = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2).long(), torch.ones(2).long()
    assert set(METRICS) >= set(defined(ours.class_metrics(outputs, none))) == {
        "accuracy", "balanced_accuracy", "f1", "expected_calibration_error", "brier", "specificity"
    }  # fmt: skip
    found = defined(ours.class_metrics(outputs, all_of_it))
    assert (found["balanced_accuracy"], found["sensitivity"], "specificity" in found) == (0.5, 0.5, False)
    table = ours.confusion_matrix(none, none, 2)
    assert math.isnan(ours.sensitivity(table))
    assert math.isnan(ours.f1(table))
    assert math.isnan(ours.auroc(torch.rand(3), torch.zeros(3).bool()))
    assert math.isnan(ours.macro_auroc(outputs, none))


def test_a_class_that_no_row_has_counts_in_no_mean() -> None:
    outputs, labels = torch.eye(3)[[0, 1, 1]], torch.tensor([0, 1, 0])
    found = ours.class_metrics(outputs, labels)
    assert found["balanced_accuracy"] == pytest.approx(0.75)
    assert found["f1"] == pytest.approx(2 / 3)
    assert found["auroc"] == pytest.approx(0.75)


def test_outputs_of_a_model_that_diverged_have_metrics() -> None:
    found = defined(ours.class_metrics(torch.tensor([[math.nan, 1.0], [math.inf, 0.0]]), torch.tensor([0, 1])))
    assert found["accuracy"] == 0.5
    assert "brier" not in found


def test_auroc_counts_equal_scores_half() -> None:
    random = np.random.default_rng(0)
    scores, labels = random.integers(0, 5, 40), random.integers(0, 2, 40)
    area = ours.auroc(torch.from_numpy(scores).double(), torch.from_numpy(labels) == 1)
    assert area == pytest.approx(theirs.roc_auc_score(labels, scores), abs=1e-12)


@pytest.mark.parametrize("width", [1, 3])
def test_metrics_of_numbers_are_those_of_scikit_learn(width: int) -> None:
    random = np.random.default_rng(width)
    truth = 1e4 + random.normal(size=(50, width))
    outputs = truth + random.normal(size=(50, width))
    found = ours.number_metrics(torch.from_numpy(outputs), torch.from_numpy(truth))
    assert found == pytest.approx(
        {
            "rmse": math.sqrt(theirs.mean_squared_error(truth, outputs)),
            "mae": theirs.mean_absolute_error(truth, outputs),
            "r2": theirs.r2_score(truth, outputs, multioutput="variance_weighted"),
        },
        rel=1e-9,
    )
    assert set(defined(ours.number_metrics(torch.ones(2, 1), torch.zeros(2, 1)))) == {"rmse", "mae"}


def test_dice_is_the_mean_over_rows_and_two_empty_masks_agree() -> None:
    predicted = torch.tensor([[[1, 1], [0, 0]], [[0, 0], [0, 0]], [[0, 1], [0, 0]]]).bool()
    truth = torch.tensor([[[1, 0], [0, 0]], [[0, 0], [0, 0]], [[1, 0], [0, 0]]]).bool()
    each = [theirs.f1_score(t.flatten(), p.flatten(), zero_division=1) for p, t in zip(predicted, truth, strict=True)]
    assert ours.dice(predicted, truth) == pytest.approx(np.mean(each)) == pytest.approx(5 / 9)


def test_concordance_of_a_hand_worked_example() -> None:
    """Comparable: A with B, C, D; C with D. A is above B and D and level with C; C is above D: 3.5 of 4."""
    times, events = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1, 0, 1, 0])
    assert ours.concordance(torch.tensor([2.0, 1.0, 2.0, 0.0]), times, events) == pytest.approx(3.5 / 4)


def test_concordance_is_that_of_all_pairs_in_turn() -> None:
    random = np.random.default_rng(1)
    times, events, risks = random.integers(1, 9, 40), random.integers(0, 2, 40), random.integers(0, 6, 40)
    right, pairs = 0.0, 0
    for one in range(40):
        for other in range(40):
            later = times[other] > times[one] or (times[other] == times[one] and not events[other])
            if events[one] and later:
                pairs += 1
                right += 1.0 if risks[one] > risks[other] else 0.5 if risks[one] == risks[other] else 0.0
    found = ours.concordance(*(torch.from_numpy(each) for each in (risks, times, events)))
    assert found == pytest.approx(right / pairs)


def test_concordance_with_nothing_to_compare_is_none() -> None:
    times, events = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([1, 1, 0])
    assert ours.concordance(torch.tensor([2.0, 0.0, 1.0]), times, events) == 0.5
    assert math.isnan(ours.concordance(torch.tensor([2.0, 0.0]), times[:2], events[:2]))


def test_metrics_in_words() -> None:
    assert metrics_text(
        {"accuracy": 0.858, "balanced_accuracy": 0.5, "auroc": 0.8125, "rmse": 1234.5, "own_one": None}
    ) == ("accuracy 85.8 %, balanced accuracy 50.0 %, AUROC 0.812, RMSE 1.23e+03, own one -")
    assert metrics_text({"accuracy": 1.0, "r2": -0.002}, apart_from=("accuracy",)) == "R² -0.002"
    assert METRICS["accuracy"].difference(-0.0001) == "+0.0"
    assert METRICS["auroc"].difference(-0.0312) == "-0.031"
    assert TaskMetric("x", better="lower").rank(2.0) < TaskMetric("x", better="lower").rank(1.0)
