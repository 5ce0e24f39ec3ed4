"""Training on pseudo-labels: which rows count, what a step is made of, and what happens where too few count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from securefda.errors import ConfigError, TrainingError
from securefda.tasks import Samples, TaskSettings, Unlabelled
from securefda.tasks.digits import Digits
from securefda.tasks.rbf import RadialBasis
from securefda.tasks.variation import placed, recoloured, shifted
from securefda.training import Vector, train_local
from securefda.training.pseudo import PseudoLabelSettings, PseudoTrainer, balanced_row_weights, predict_labels
from securefda.training.seeds import round_seed
from securefda.training.training_settings import TrainingSettings

SETTINGS = TaskSettings("target", ("source-1",), labelled_target=False)
SGD = TrainingSettings(optimizer="sgd", learning_rate=0.5, batch_size=10, device="cpu")


class Still(Digits):
    """Digits whose rows stay as they are."""

    def varied(self, features: Tensor, generator: torch.Generator) -> Tensor:
        return features


def rows_of(task: Digits) -> Unlabelled:
    return Unlabelled(task.train_data("target").features)


def trainer(
    task: Digits, rows: Unlabelled | None = None, *, threshold: float = 0.12, share: float = 0.01
) -> PseudoTrainer:
    return PseudoTrainer(task, "target", rows or rows_of(task), SGD, 3, pseudo=PseudoLabelSettings(threshold, share))


def sureness(task: Digits, model: Vector) -> tuple[Tensor, Tensor]:
    """What a model says of the target's rows: their labels, and how sure it is."""
    first, last = model[: 128 * 65], model[128 * 65 :]
    features = task.train_data("target").features
    hidden = torch.relu(features @ torch.from_numpy(first[: 128 * 64]).view(128, 64).T + torch.from_numpy(first[-128:]))
    outputs = hidden @ torch.from_numpy(last[:1280]).view(10, 128).T + torch.from_numpy(last[1280:])
    sure, labels = torch.softmax(outputs, dim=1).max(dim=1)
    return labels, sure


@pytest.fixture
def steps() -> list[Vector]:
    return []


def test_only_rows_that_count_have_a_part_and_labels_are_the_models(steps: list[Vector]) -> None:
    task = Still(SETTINGS)
    site = trainer(task)
    model = site.initial_model()
    labels, sure = sureness(task, model)
    counts = sure >= 0.12
    assert 0 < int(counts.sum()) < len(counts)

    result = site.train(model, 2, 1.0, on_step=lambda step: steps.append(step.copy()))

    expected = train_local(
        task,
        task.model(),
        model,
        Samples(task.train_data("target").features, labels),
        settings=SGD,
        seed=round_seed(3, "target", "", 2),
        site="target",
        row_weights=balanced_row_weights(labels, counts),
    )
    assert np.array_equal(result.update, expected.update)
    assert (result.confident, result.loss, result.accuracy) == (int(counts.sum()), None, None)
    assert len(steps) == result.steps == 10  # as of a target with labels, however many rows count


def test_a_row_that_does_not_count_changes_nothing() -> None:
    task = Still(SETTINGS)
    rows = rows_of(task)
    model = trainer(task).initial_model()
    _, sure = sureness(task, model)
    least = int(sure.argmin())
    changed = rows.features.clone()
    changed[least] *= 0.9  # not surer by that
    original, other = (
        trainer(task, given, threshold=0.13).train(model, 1, 1.0) for given in (rows, Unlabelled(changed))
    )
    assert original.confident == other.confident
    assert np.array_equal(original.update, other.update)


def test_steps_of_plain_training_are_means_without_weights() -> None:
    task = Still(SETTINGS)
    data = task.train_data("target")
    assert isinstance(data, Samples)
    model = trainer(task).initial_model()
    plain, weighted = (
        train_local(task, task.model(), model, data, settings=SGD, seed=1, site="t", row_weights=weights).update
        for weights in (None, torch.ones(len(data)))
    )
    np.testing.assert_allclose(plain, weighted, atol=1e-6)


@pytest.mark.parametrize(("threshold", "share"), [(0.999, 0.01), (0.12, 1.0)], ids=["none counts", "too few count"])
def test_with_too_few_rows_no_step_is_taken(threshold: float, share: float, steps: list[Vector]) -> None:
    site = trainer(Digits(SETTINGS), threshold=threshold, share=share)
    result = site.train(site.initial_model(), 1, 1.0, on_step=steps.append, fewest_steps=2)
    assert (result.steps, steps) == (0, [])
    assert not result.update.any()


def test_of_a_model_that_gives_nan_no_row_counts() -> None:
    site = trainer(Digits(SETTINGS))
    broken = np.full_like(site.initial_model(), np.nan)
    result = site.train(broken, 1, 1.0)
    assert (result.confident, result.steps) == (0, 0)
    assert np.isfinite(result.update).all()


def test_a_round_begun_again_is_the_same_and_another_is_not() -> None:
    site = trainer(Digits(SETTINGS))
    model = site.initial_model()
    first, again, other = (site.train(model, number, 1.0).update for number in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_rows_are_varied_before_they_are_trained_on() -> None:
    model = trainer(Digits(SETTINGS)).initial_model()
    still, varied = (trainer(kind(SETTINGS)).train(model, 1, 1.0) for kind in (Still, Digits))
    assert still.confident == varied.confident  # labels are those of the rows as they are
    assert not np.array_equal(still.update, varied.update)


def test_every_label_has_one_weight() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    counts = torch.tensor([True, True, True, True, False, False, False])
    weights = balanced_row_weights(labels, counts)
    torch.testing.assert_close(weights, torch.tensor([2 / 3, 2 / 3, 2 / 3, 2.0, 0.0, 0.0, 0.0]))
    torch.testing.assert_close(
        balanced_row_weights(labels[:, None].float(), counts), weights
    )  # labels as numbers in a column


class Odd(Digits):
    answer: Any = None

    def guesses(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.answer(outputs)


@pytest.mark.parametrize(
    "answer",
    [lambda outputs: (outputs.argmax(1), outputs), lambda outputs: (outputs.argmax(1)[1:], outputs[:, 0])],
    ids=["sureness of each class", "a label too few"],
)
def test_guesses_of_another_shape_are_refused(answer: Any) -> None:
    task = Odd(SETTINGS)
    task.answer = answer
    with pytest.raises(TrainingError, match="its guesses for 2 rows have the shapes"):
        trainer(task)


def test_a_task_that_is_never_sure_is_refused_before_it_trains() -> None:
    task = RadialBasis(SETTINGS)
    rows = Unlabelled(task.train_data("target").features)
    with pytest.raises(ConfigError, match="does not say how sure a model is") as refusal:
        PseudoTrainer(task, "target", rows, TrainingSettings(), 0, pseudo=PseudoLabelSettings(0.9, 0.3))
    assert "define guesses" in refusal.value.hint


class TestWhatATaskGuesses:
    def test_classes_have_their_probability(self) -> None:
        labels, sure = predict_labels(Digits(SETTINGS), torch.log(torch.tensor([[0.2, 0.7, 0.1], [0.6, 0.3, 0.1]])))
        assert labels.tolist() == [1, 0]
        torch.testing.assert_close(sure, torch.tensor([0.7, 0.6]))


class TestShifts:
    def test_each_image_moves_by_at_most_so_far_and_every_way_occurs(self) -> None:
        images = torch.zeros(400, 2, 7, 9)
        images[:, 1, 3, 4] = 1.0
        moved = shifted(images, 1, torch.Generator().manual_seed(1))
        assert moved.shape == images.shape
        assert not moved[:, 0].any()
        places = moved[:, 1].flatten(1).argmax(dim=1)
        assert {(int(place) // 9 - 3, int(place) % 9 - 4) for place in places} == {
            (down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)
        }

    def test_what_comes_in_is_empty(self) -> None:
        moved = shifted(torch.ones(50, 1, 4, 4), 2, torch.Generator().manual_seed(1), empty=-1.0)
        assert set(moved.unique().tolist()) == {-1.0, 1.0}

    def test_no_shift_changes_nothing(self) -> None:
        images = torch.rand(3, 1, 5, 5)
        assert torch.equal(shifted(images, 0, torch.Generator()), images)


def blob(side: int, down: int, right: int) -> Tensor:
    """An image of a bright square of 4 x 4 pixels."""
    image = torch.zeros(1, 1, side, side)
    image[..., down : down + 4, right : right + 4] = 1.0
    return image


class TestPlaces:
    def test_bounds_of_nothing_change_nothing(self) -> None:
        images = torch.rand(3, 2, 8, 8)
        still = placed(images, torch.Generator().manual_seed(1), most=0.0, scales=(1.0, 1.0), turn=0.0)
        assert torch.allclose(still, images, atol=1e-5)

    def test_a_factor_makes_what_is_seen_larger(self) -> None:
        twice = placed(blob(32, 14, 14), torch.Generator().manual_seed(1), most=0.0, scales=(2.0, 2.0), turn=0.0)
        assert float(twice.sum()) == pytest.approx(4 * 16, rel=0.05)

    def test_shifts_stay_within_their_share_of_the_side_and_go_each_way(self) -> None:
        images = blob(32, 14, 14).expand(300, -1, -1, -1)
        moved = placed(images, torch.Generator().manual_seed(1), most=1 / 8, scales=(1.0, 1.0), turn=0.0)[:, 0]
        places = torch.arange(32, dtype=torch.float32)
        centres = torch.stack([(moved.sum(axis) * places).sum(1) / moved.sum((1, 2)) for axis in (1, 2)]) - 15.5
        assert float(centres.max()) == pytest.approx(4, abs=0.2)
        assert float(centres.min()) == pytest.approx(-4, abs=0.2)

    def test_a_quarter_turn_to_either_side_is_the_most(self) -> None:
        images = blob(32, 14, 26).expand(300, -1, -1, -1)
        moved = placed(images, torch.Generator().manual_seed(1), most=0.0, scales=(1.0, 1.0), turn=90.0)[:, 0]
        assert float(moved[:, :, :12].max()) == 0.0  # nothing is turned beyond the middle
        assert float(moved[:, :4].max()) > 0.5
        assert float(moved[:, -4:].max()) > 0.5

    def test_edges_go_on_beyond_the_image(self) -> None:
        whole = torch.ones(20, 1, 8, 8)
        moved = placed(whole, torch.Generator().manual_seed(1), most=0.5, scales=(0.5, 1.0), turn=45.0)
        assert torch.allclose(moved, whole)


class TestColours:
    def test_each_channel_keeps_its_order_or_turns_it_around_and_at_least_that_contrast(self) -> None:
        images = torch.linspace(0, 1, 5).view(1, 1, 1, 5).expand(200, 3, 1, 5)
        channels = recoloured(images, 0.3, torch.Generator().manual_seed(1)).view(600, 5)
        ends = channels[:, -1] - channels[:, 0]
        assert 0.4 < float((ends < 0).float().mean()) < 0.6
        assert 0.3 <= float(ends.abs().min()) < 0.32
        assert float(ends.abs().max()) > 0.98
        assert float(channels.min()) >= 0.0
        assert float(channels.max()) <= 1.0
        assert torch.allclose(channels[:, 2], (channels[:, 0] + channels[:, -1]) / 2)  # in between in proportion
