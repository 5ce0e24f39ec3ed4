from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from training_tasks import Line, WithDropout

from securefda.errors import TrainingError
from securefda.rules import StepStatistics, TargetStatistics
from securefda.tasks import Samples
from securefda.training import (
    FEWEST_TARGET_STEPS,
    TrainingSettings,
    build_model,
    choose_device,
    evaluate,
    model_to_vector,
    train_local,
    vector_to_model,
)
from securefda.training.local import batches, require_steps

SGD = TrainingSettings(optimizer="sgd", learning_rate=0.05, batch_size=6, epochs=2, device="cpu")
ADAM = TrainingSettings(optimizer="adam", learning_rate=0.05, batch_size=6, epochs=2, device="cpu")


def train(task=None, *, settings=ADAM, seed=11, data=None, received=None, **arguments):
    task = task if task is not None else Line()
    model = build_model(task, 0)
    received = received if received is not None else model_to_vector(model)
    data = data if data is not None else task.train_data("source-1")
    return train_local(task, model, received, data, settings=settings, seed=seed, site="source-1", **arguments)


@pytest.mark.parametrize("task", [Line(), WithDropout()], ids=["plain", "dropout"])
@pytest.mark.parametrize("settings", [SGD, ADAM], ids=["sgd", "adam"])
def test_same_seed_repeats_to_the_last_bit_whatever_the_global_generator(task, settings):
    torch.manual_seed(1)
    first = train(task, settings=settings)
    torch.manual_seed(2)
    again, other = train(task, settings=settings), train(task, settings=settings, seed=12)
    assert first.update.tobytes() == again.update.tobytes()
    assert first.loss == again.loss
    assert first.update.tobytes() != other.update.tobytes()


def test_training_leaves_the_global_generator_alone():
    torch.manual_seed(4)
    undisturbed = torch.rand(2)
    torch.manual_seed(4)
    train(WithDropout())
    assert torch.equal(torch.rand(2), undisturbed)


def test_state_left_in_the_model_by_a_round_does_not_reach_the_next():
    task, received = WithDropout(), model_to_vector(build_model(WithDropout(), 0))
    used = build_model(task, 5)
    data = task.train_data("source-1")
    for seed in (1, 2, 11):
        result = train_local(task, used, received, data, settings=ADAM, seed=seed, site="source-1")
        evaluate(task, used, data)  # switches dropout off
    assert result.update.tobytes() == train(task, received=received).update.tobytes()


def test_one_full_batch_of_sgd_is_one_gradient_step():
    task, settings = Line(), TrainingSettings(optimizer="sgd", learning_rate=0.1, batch_size=20, device="cpu")
    data = task.train_data("source-1")
    received = np.zeros(4, np.float32)
    result = train(task, settings=settings, received=received)
    residual = -data.labels  # of the zero model; the gradient of its mean square is 2/n X^T r
    weights = 2 / 20 * (data.features.T @ residual).flatten()
    expected = -0.1 * torch.cat([weights, 2 / 20 * residual.sum(dim=0)])
    assert np.allclose(result.update, expected.numpy(), rtol=1e-5)
    assert result.loss == pytest.approx(float((data.labels**2).mean()), rel=1e-6)


def test_update_is_float32_from_a_received_model_that_stays_as_it_is():
    received = np.full(4, 0.25, np.float32)
    result = train(received=received)
    assert result.update.dtype == np.float32
    assert received.tolist() == [0.25] * 4
    assert (result.steps, result.samples, result.learning_rate) == (8, 20, 0.05)


def test_bounded_steps_are_the_first_of_the_unbounded_round():
    """Four steps of an epoch, in the order that whole epochs have."""
    whole, bounded = replace(SGD, epochs=2), replace(SGD, epochs=2, max_steps=5)
    every, first = ([rows.tolist() for rows in batches(20, sizes, 7)] for sizes in (whole, bounded))
    assert first == every[:5]
    assert train(settings=bounded).steps == 5


def test_a_bound_below_the_fewest_steps_is_named():
    with pytest.raises(TrainingError, match=r"for 1 epoch, at most 1 step, make 1 step in a round") as caught:
        require_steps("target", 20, replace(SGD, epochs=1, max_steps=1))
    assert caught.value.hint == "raise max-steps in the site's training settings"


class Doubled(Line):
    """Rows vary by a factor of two."""

    def varied(self, features, generator):
        return 2 * features


def test_rows_are_varied_where_the_settings_say_so():
    varying, plain = replace(SGD, vary=True), train(Doubled(), settings=SGD)
    assert plain.update.tobytes() == train(Line(), settings=SGD).update.tobytes()
    data = Line().train_data("source-1")
    doubled = train(Line(), settings=SGD, data=Samples(2 * data.features, data.labels))
    assert train(Doubled(), settings=varying).update.tobytes() == doubled.update.tobytes() != plain.update.tobytes()


def test_result_shows_no_value_of_the_update():
    text = repr(train())
    assert text == "LocalResult(update=<4 values>, steps=8, samples=20)"


def test_training_learns():
    task = Line()
    settings = TrainingSettings(optimizer="adam", learning_rate=0.05, batch_size=5, epochs=60, device="cpu")
    model = build_model(task, 0)
    received = model_to_vector(model)
    before = evaluate(task, model, task.test_data("target")).loss
    result = train(task, settings=settings)
    vector_to_model(received + result.update, model)
    after = evaluate(task, model, task.test_data("target"))
    assert after.loss < 0.01 * before
    assert after.metrics["accuracy"] == 1.0


@pytest.mark.parametrize("settings", [SGD, ADAM], ids=["sgd", "adam"])
def test_observed_steps_are_the_rounds_steps_and_sum_to_the_update(settings):
    steps = []
    result = train(settings=settings, on_step=lambda step: steps.append(step.copy()))
    assert len(steps) == result.steps == 8
    assert {step.dtype for step in steps} == {np.dtype(np.float32)}
    assert np.allclose(np.sum(steps, axis=0, dtype=np.float64), result.update, atol=1e-6)
    first_epoch_only = train(settings=TrainingSettings(settings.optimizer, 0.05, batch_size=6, epochs=1, device="cpu"))
    assert np.allclose(np.sum(steps[:4], axis=0), first_epoch_only.update, atol=1e-6)


def test_observing_changes_nothing():
    assert train(on_step=lambda _: None).update.tobytes() == train().update.tobytes()


def test_streamed_statistics_are_those_of_all_steps():
    steps, streamed = [], StepStatistics(4)

    def observe(step):
        steps.append(step.copy())
        streamed.add(step)

    result = train(on_step=observe)
    expected, streaming = TargetStatistics.from_batches(np.array(steps)), streamed.finish()
    assert streaming.steps == result.steps
    assert streaming.mean_square == pytest.approx(expected.mean_square, rel=1e-9)
    assert streaming.scatter == pytest.approx(expected.scatter, rel=1e-9)
    streaming.require_agreement(float(np.sum((result.update.astype(np.float64) / result.steps) ** 2)))


@pytest.mark.parametrize("epochs", [1, 3])
def test_every_epoch_sees_every_row_once(epochs):
    seen = []

    class Recorder(Line):
        def loss(self, outputs, labels):
            seen.extend(labels.flatten().tolist())
            return super().loss(outputs, labels)

    train(Recorder(), settings=TrainingSettings(batch_size=6, epochs=epochs, device="cpu"))
    rows = Line().train_data("source-1").labels.flatten().tolist()
    epoch_orders = [seen[start : start + 20] for start in range(0, len(seen), 20)]
    assert len(epoch_orders) == epochs
    assert all(sorted(order) == sorted(rows) for order in epoch_orders)
    assert len({tuple(order) for order in epoch_orders}) == epochs  # each in an order of its own


def test_too_few_steps_at_the_target_are_refused_before_training():
    settings = TrainingSettings(batch_size=20, device="cpu")
    steps = []
    with pytest.raises(TrainingError, match=r"source-1: 20 rows in batches of 20 .* make 1 step") as caught:
        train(settings=settings, fewest_steps=FEWEST_TARGET_STEPS, on_step=steps.append)
    assert "lower batch-size" in caught.value.hint
    assert "raise epochs" in caught.value.hint
    assert not steps


def test_loss_that_explodes_names_site_step_and_hint():
    settings = TrainingSettings(optimizer="sgd", learning_rate=1e30, batch_size=5, device="cpu")
    with pytest.raises(
        TrainingError, match=r"^source-1: training diverges: the loss is (nan|inf) at step [23]$"
    ) as caught:
        train(settings=settings)
    assert "learning-rate" in caught.value.hint


def test_update_that_explodes_in_the_last_step_is_refused():
    settings = TrainingSettings(optimizer="sgd", learning_rate=3e38, batch_size=20, device="cpu")
    with pytest.raises(TrainingError, match=r"^source-1: training diverges: the update is not finite after step 1$"):
        train(settings=settings, received=np.array([1e3, 0, 0, 0], np.float32))


def test_model_of_another_length_is_refused():
    with pytest.raises(TrainingError, match="the vector received is float32"):
        train(received=np.zeros(5, np.float32))


def test_evaluation_covers_all_rows_in_pieces(monkeypatch):
    task, model = Line(), nn.Linear(3, 1)
    data = task.test_data("target")
    whole = evaluate(task, model, data)
    monkeypatch.setattr("securefda.training.local._EVALUATION_ROWS", 7)
    pieces = evaluate(task, model, data)
    assert whole.samples == 20
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-6)
    assert pieces.metrics == whole.metrics
    assert whole.loss == pytest.approx(task.loss(model(data.features), data.labels).item(), rel=1e-6)


def test_evaluation_gives_the_accuracy_of_each_row():
    task, model = Line(), nn.Linear(3, 1)
    data = task.test_data("target")
    evaluation = evaluate(task, model, data)
    right = ((model(data.features) > 0) == (data.labels > 0)).float().flatten().numpy()
    np.testing.assert_array_equal(evaluation.by_row(), right)
    assert evaluation.by_row().mean() == pytest.approx(evaluation.metrics["accuracy"])


class Explained(Line):
    """Its figure is no mean over rows."""

    def metrics(self, outputs, labels):
        return {"accuracy": max(0.0, 1.0 - float((outputs - labels).square().sum() / labels.square().sum()))}


class NeedsRows(Line):
    """Its figure cannot be computed of one row."""

    def metrics(self, outputs, labels):
        if len(labels) < 2:
            raise ValueError("too few rows")
        return super().metrics(outputs, labels)


class Squares(Line):
    """Rows that are no shares, with the right mean."""

    def row_accuracies(self, outputs, labels):
        accuracy = self.metrics(outputs, labels)["accuracy"]
        return torch.full((len(labels),), accuracy) + torch.tensor([2.0, -2.0]).repeat(len(labels) // 2)


@pytest.mark.parametrize("task", [Explained(), NeedsRows(), Squares()])
def test_an_accuracy_that_is_no_mean_over_rows_has_none_of_each(task):
    model, data = nn.Linear(3, 1), task.test_data("target")
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, -1.0, 0.2]]))
        model.bias.fill_(0.4)  # with none the model may be right in all rows
    evaluation = evaluate(task, model, data)
    assert 0 < evaluation.metrics["accuracy"] < 1
    assert evaluation.by_row() is None


def test_evaluation_switches_dropout_off():
    task = WithDropout()
    model = build_model(task, 0).train()
    losses = {evaluate(task, model, task.test_data("target")).loss for _ in range(3)}
    assert len(losses) == 1


def test_task_without_accuracy_is_refused():
    class Silent(Line):
        def metrics(self, outputs, labels):
            return {"error": 0.0}

    with pytest.raises(TrainingError, match="task Silent: its metrics lack accuracy"):
        evaluate(Silent(), nn.Linear(3, 1), Silent().test_data("target"))


def test_chosen_device_trains():
    # On a machine without an accelerator this is the CPU again; with one, its result need only be close.
    settings = TrainingSettings(optimizer="adam", learning_rate=0.05, batch_size=6, epochs=2, device="auto")
    assert np.allclose(train(settings=settings).update, train(settings=ADAM).update, atol=1e-3)
    assert choose_device(settings.device).type in {"cpu", "cuda", "mps"}


def test_labels_of_whole_numbers_train_a_classifier():
    class Classifier(Line):
        def model(self):
            return nn.Linear(3, 2)

        def loss(self, outputs, labels):
            return nn.functional.cross_entropy(outputs, labels)

        def metrics(self, outputs, labels):
            return {"accuracy": float((outputs.argmax(dim=1) == labels).double().mean())}

    data = Line().train_data("source-1")
    labels = (data.labels.flatten() > 0).long()
    assert train(Classifier(), data=Samples(data.features, labels)).update.shape == (8,)


def test_the_accuracy_is_that_of_each_row_before_the_step_that_used_it():
    """One step an epoch: the accuracy of the last epoch is that of the model after all steps but one."""
    whole = TrainingSettings(optimizer="sgd", learning_rate=0.1, batch_size=20, epochs=3, device="cpu")
    task = Line()
    model = build_model(task, 0)
    data = task.train_data("source-1")
    before_the_last = train(task, settings=replace(whole, epochs=2), data=data).update + model_to_vector(model)
    vector_to_model(before_the_last.astype(np.float32), model)
    assert train(task, settings=whole, data=data).accuracy == evaluate(task, model, data).metrics["accuracy"]


@pytest.mark.parametrize("metrics", [{}, {"accuracy": 1.5}, {"accuracy": float("nan")}])
def test_a_task_whose_metrics_hold_no_accuracy_is_refused(metrics):
    class Odd(Line):
        def metrics(self, outputs, labels):
            return metrics

    with pytest.raises(TrainingError, match="accuracy"):
        train(Odd())
