"""One round by DP-SGD: what bounds a row's part in it, and where its randomness comes from."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from depth import at_depth
from torch import Tensor, nn
from training_private import NO_NOISE, NOISE, ROWS, SGD, WAYS, WHOLE, Coupled, Net, by, fixed, silent, train, ways
from training_tasks import Line, WithDropout

from securefda.errors import ConfigError
from securefda.privacy.noise import NoiseSource
from securefda.privacy.planning import schedule_of
from securefda.privacy.private_training import optimizer_of
from securefda.tasks import Samples, Task
from securefda.training import TrainingSettings, build_model, model_to_vector, train_local
from securefda.training.training_settings import NoiseSettings

PLAIN = [
    WHOLE,
    replace(WHOLE, epochs=3, momentum=0.9, weight_decay=0.1),
    replace(WHOLE, epochs=3, weight_decay=0.1),
    replace(WHOLE, optimizer="adam", epochs=3, weight_decay=0.1),
]


@ways
@pytest.mark.parametrize("settings", PLAIN, ids=["sgd", "momentum", "decay", "adam"])
def test_without_noise_and_clipping_it_is_plain_training_on_whole_batches(
    ghost: bool, settings: TrainingSettings
) -> None:
    task = Net()
    received = model_to_vector(build_model(task, 0))
    plain = train_local(
        task,
        build_model(task, 0),
        received,
        task.train_data("source-1"),
        settings=replace(settings, dp=None),
        seed=1,
        site="source-1",
    )

    private = train(task, by(settings, ghost, NO_NOISE))

    np.testing.assert_allclose(private.update, plain.update, rtol=0, atol=2e-6)
    assert (private.steps, private.samples, private.learning_rate) == (plain.steps, plain.samples, plain.learning_rate)
    clipped = train(task, by(settings, ghost, NoiseSettings(1e-9, 0.1)))
    assert np.abs(clipped.update - plain.update).max() > 1e-3  # the companion: clipping would be seen


@ways
@pytest.mark.parametrize("label", [5.0, 1e6, -1e12])
def test_one_row_moves_a_step_by_the_clip_norm_over_the_batch_and_no_more(ghost: bool, label: float) -> None:
    """Over all layers together, whatever the row holds; the noise is the same in both."""
    without, with_row = (
        train(Net(), by(WHOLE, ghost), data=silent(Net(), 4, value), random_bytes=fixed(1)) for value in (None, label)
    )

    moved = np.linalg.norm((with_row.update - without.update).astype(np.float64)) * ROWS / WHOLE.learning_rate

    assert 0.999 * NOISE.max_grad_norm <= moved <= 1.001 * NOISE.max_grad_norm


@ways
def test_a_row_moves_a_step_by_its_own_gradient_where_that_is_below_the_clip_norm(ghost: bool) -> None:
    task, wide = Net(), NoiseSettings(1.0, 100.0)
    model, data = build_model(task, 0), silent(Net(), 4, 2.0)
    task.loss(model(data.features[4:5]), data.labels[4:5]).backward()
    own = np.concatenate([parameter.grad.flatten().numpy() for parameter in model.parameters()])
    assert np.linalg.norm(own) < wide.max_grad_norm

    without, with_row = (
        train(task, by(WHOLE, ghost, wide), data=silent(task, 4, value), random_bytes=fixed(1)) for value in (None, 2.0)
    )

    moved = (with_row.update - without.update) * -ROWS / WHOLE.learning_rate
    np.testing.assert_allclose(moved, own, atol=2e-3)


@ways
def test_a_loss_that_couples_rows_is_taken_row_by_row(ghost: bool) -> None:
    task = Coupled()
    model, data = build_model(task, 0), task.train_data("source-1")
    mean = torch.stack([task.loss(model(data.features[[row]]), data.labels[[row]]) for row in range(ROWS)]).mean()
    mean.backward()
    expected = np.concatenate([parameter.grad.flatten().numpy() for parameter in model.parameters()])
    model.zero_grad()
    task.loss(model(data.features), data.labels).backward()
    of_batch = np.concatenate([parameter.grad.flatten().numpy() for parameter in model.parameters()])

    gradient = train(task, by(WHOLE, ghost, NO_NOISE)).update / -WHOLE.learning_rate

    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(of_batch - expected).max() > 0.1  # the companion: they do differ


@ways
def test_one_row_moves_a_step_of_a_coupled_loss_by_the_clip_norm_and_no_more(ghost: bool) -> None:
    """Two values of one row, whose gradients point to opposite sides: twice the clip norm."""
    updates = [
        train(Coupled(), by(WHOLE, ghost), data=silent(Net(), 4, label), random_bytes=fixed(1)).update
        for label in (-1e6, 1e6)
    ]
    moved = np.linalg.norm((updates[0] - updates[1]).astype(np.float64)) * ROWS / WHOLE.learning_rate
    assert 1.998 * NOISE.max_grad_norm <= moved <= 2.002 * NOISE.max_grad_norm


@pytest.mark.parametrize("task", [Line(), Net(), WithDropout(), Coupled()], ids=lambda task: type(task).__name__)
@pytest.mark.parametrize("clip", [0.1, 1e3], ids=["clipped", "not clipped"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_both_ways_give_the_same_round(task: Task, optimizer: str, clip: float) -> None:
    settings, quiet = replace(SGD, optimizer=optimizer), NoiseSettings(1e-6, clip)
    hooks, ghost = (train(task, by(settings, way, quiet), random_bytes=fixed(3)).update for way in WAYS)
    np.testing.assert_allclose(ghost, hooks, rtol=1e-3, atol=1e-5)


def test_a_row_that_rounding_lengthens_as_it_is_scaled_counts_as_one_without_gradient() -> None:
    """A hundred numbers, each the smallest that float32 has, times the largest: half of each rounds up to all of it."""
    smallest, bound = float(np.finfo(np.float32).smallest_subnormal), 3e-6

    class Tiny(Line):
        def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
            return self.row_losses(outputs, labels).mean()

        def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
            return (outputs * smallest).sum(dim=1)

    network = nn.Linear(1, 100, bias=False)
    rows = Samples(torch.full((1, 1), 3e38), torch.zeros(1, 1))
    settings = replace(by(WHOLE, True, NoiseSettings(1.0, bound)), batch_size=1)
    with optimizer_of(Tiny(network), network, rows, settings) as (optimizer, backward):
        backward(rows.features, rows.labels)
        optimizer.pre_step()
        assert 0 <= float(network.weight.summed_grad.norm()) <= bound


@ways
def test_observed_steps_are_those_of_the_schedule_and_sum_to_the_update(ghost: bool) -> None:
    steps: list[Any] = []

    result = train(Net(), by(SGD, ghost), on_step=lambda step: steps.append(step.copy()))

    assert len(steps) == result.steps == schedule_of(SGD, ROWS).steps_per_round == 8
    assert {step.dtype for step in steps} == {np.dtype(np.float32)}
    np.testing.assert_allclose(np.sum(steps, axis=0, dtype=np.float64), result.update, atol=1e-6)


@ways
def test_observing_changes_nothing(ghost: bool) -> None:
    seen, unseen = (
        train(Net(), by(SGD, ghost), on_step=watch, random_bytes=fixed(3)) for watch in (lambda _: None, None)
    )
    assert seen.update.tobytes() == unseen.update.tobytes()


@ways
def test_no_seed_predicts_or_repeats_a_round(ghost: bool) -> None:
    updates = []
    for _ in range(2):
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        updates.append(train(Net(), by(SGD, ghost)).update)
    assert (updates[0] == updates[1]).mean() < 0.1


def test_the_seed_is_enough_to_repeat_a_plain_round() -> None:
    """Companion of the test above."""
    task, settings = Net(), replace(SGD, dp=None)
    model, received = build_model(task, 0), model_to_vector(build_model(task, 0))
    data = task.train_data("source-1")
    updates = [
        train_local(task, model, received, data, settings=settings, seed=11, site="source-1").update for _ in "12"
    ]
    assert updates[0].tobytes() == updates[1].tobytes()


@ways
@pytest.mark.parametrize("task", [Net(), WithDropout()], ids=["plain", "dropout"])
def test_all_that_differs_between_equal_rounds_is_the_random_bytes(ghost: bool, task: Task) -> None:
    """And so no other generator has a part in it: neither torch's, nor numpy's, nor Opacus' own."""
    updates = []
    for number in (3, 3, 4):
        torch.manual_seed(len(updates))
        updates.append(train(task, by(SGD, ghost), random_bytes=fixed(number)).update)
    assert updates[0].tobytes() == updates[1].tobytes() != updates[2].tobytes()


@ways
def test_training_leaves_the_global_generator_alone(ghost: bool) -> None:
    torch.manual_seed(4)
    undisturbed = torch.rand(2)
    torch.manual_seed(4)
    train(WithDropout(), by(SGD, ghost))
    assert torch.equal(torch.rand(2), undisturbed)


@ways
@pytest.mark.parametrize(("task", "draws"), [(WithDropout(), True), (Net(), False)])
def test_layers_that_draw_do_so_from_bytes_of_the_csprng(ghost: bool, task: Task, draws: bool) -> None:
    """Not from a seed, of which torch keeps 32 bits: here the seed is the same, and all that comes after it."""
    updates = []
    for state in (fixed(1), fixed(2)):
        stream, begun = fixed(3), []

        def bytes_of(length: int, state: Any = state, stream: Any = stream, begun: list[int] = begun) -> bytes:
            begun.append(length)
            return state(length) if len(begun) == 2 else stream(length)

        updates.append(train(task, by(SGD, ghost), random_bytes=bytes_of).update)
    assert np.allclose(*updates, atol=1e-4) is not draws


def drawing_nothing(length: int) -> bytes:
    """Bytes with which a step draws no row, as long as the sampling rate is below one."""
    return b"\xff" * length


@ways
def test_a_step_that_drew_no_row_adds_noise_all_the_same_to_every_layer(ghost: bool) -> None:
    task, settings = Net(), by(replace(SGD, epochs=1), ghost)
    std = NOISE.noise_multiplier * NOISE.max_grad_norm
    expected_rows = 5  # four batches of an epoch over 20 rows
    one_step = NoiseSource(drawing_nothing).normal((26,), std).numpy()

    update = train(task, settings, random_bytes=drawing_nothing).update

    expected = -settings.learning_rate / expected_rows * 4 * one_step
    np.testing.assert_allclose(update, expected, atol=1e-5)
    other_rows = train(task, settings, data=silent(task, 0, 100.0), random_bytes=drawing_nothing).update
    assert update.tobytes() == other_rows.tobytes()


@ways
def test_noise_of_every_parameter_has_the_scale_that_is_charged(ghost: bool) -> None:
    """The seeds are fixed; with others, a false alarm comes once in ten thousand times, by chi-square."""
    rounds, of_one, of_all = at_depth((80, 0.9, 0.15), (200, 0.6, 0.1))
    task, received = Net(), np.zeros(26, np.float32)  # says 0, as the labels do: there is no gradient
    data = Samples(task.train_data("source-1").features, torch.zeros(ROWS, 1))
    updates = [
        train(task, by(WHOLE, ghost), data=data, received=received, random_bytes=fixed(number)).update
        for number in range(rounds)
    ]

    unit = np.array(updates) * -ROWS / WHOLE.learning_rate / (NOISE.noise_multiplier * NOISE.max_grad_norm)

    assert np.all(np.abs(np.square(unit).mean(axis=0) - 1) < of_one)
    mean_square = float(np.square(unit).mean())
    assert abs(mean_square - 1) < of_all
    assert all(abs(mean_square * wrong**2 - 1) > of_all for wrong in (2 / 3, 3 / 2))


@ways
@pytest.mark.parametrize("drawn", [1, 5, 19])
def test_sum_is_divided_by_the_expected_number_of_rows_and_not_by_how_many_were_drawn(ghost: bool, drawn: int) -> None:
    """So a row counts for the same whichever rows are beside it, and so does the noise."""

    def these(length: int) -> bytes:
        rows = length // 8
        return bytes(8 * drawn) + b"\xff" * 8 * (rows - drawn) if rows == ROWS else b"\x07" * length

    steps: dict[float | None, Any] = {None: [], 1e6: []}
    for label, seen in steps.items():
        train(
            Net(),
            by(replace(SGD, epochs=1), ghost),
            data=silent(Net(), 0, label),
            random_bytes=these,
            on_step=lambda step, seen=seen: seen.append(step.copy()),
        )

    moved = np.linalg.norm(steps[1e6][0].astype(np.float64) - steps[None][0])
    assert 0.999 <= moved / (SGD.learning_rate * NOISE.max_grad_norm / 5) <= 1.001


@ways
@pytest.mark.parametrize("batch", [1, 2])
def test_49_batches_are_divided_by_as_many_rows_as_50_are(ghost: bool, batch: int) -> None:
    """In floating-point numbers, 49 times one over 49 is below 1, so that Opacus would divide by one row less."""
    first: dict[int, Any] = {}
    for rows in (49 * batch, 50 * batch):
        train(
            settings=by(replace(SGD, batch_size=batch, epochs=1), ghost),
            data=Samples(torch.zeros(rows, 3), torch.zeros(rows, 1)),
            random_bytes=lambda length, rows=rows: (b"\xff" if length == 8 * rows else b"\x07") * length,
            on_step=lambda step, rows=rows: first.setdefault(rows, step.copy()),
        )

    assert np.abs(first[50 * batch]).max() > 1e-3
    np.testing.assert_allclose(first[49 * batch], first[50 * batch], rtol=1e-4, atol=1e-6)


def test_a_round_yields_only_the_update_and_public_numbers() -> None:
    result = train()
    assert (result.loss, result.accuracy) == (None, None)
    assert (result.steps, result.samples, result.learning_rate) == (8, ROWS, 0.05)
    assert repr(result) == "LocalResult(update=<26 values>, steps=8, samples=20)"
    assert result.update.dtype == np.float32


def test_received_model_stays_as_it_is() -> None:
    received = np.full(26, 0.25, np.float32)
    train(received=received)
    assert received.tolist() == [0.25] * 26


@pytest.mark.parametrize("settings", [WHOLE, SGD])
def test_the_noise_of_an_update_has_the_variance_that_is_said(settings: TrainingSettings) -> None:
    """The seeds are fixed; with others, a false alarm comes once in ten thousand times, by chi-square."""
    rounds, bound = at_depth((24, 0.25), (60, 0.15))
    loud = replace(settings, dp=NoiseSettings(1e4, 0.5, correct_projection=True))
    results = [train(settings=loud, random_bytes=fixed(seed)) for seed in range(rounds)]

    variance = float(np.var([result.update for result in results])) / results[0].noise_variance

    assert abs(variance - 1) < bound
    assert all(abs(variance * wrong**2 - 1) > bound for wrong in (2 / 3, 3 / 2))
    assert train(settings=replace(settings, dp=NoiseSettings(1e4, 0.5))).noise_variance == 0


@pytest.mark.parametrize("changes", [{"optimizer": "adam"}, {"momentum": 0.5}])
def test_a_projection_is_corrected_for_sgd_without_momentum_alone(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r'training\.dp\.correct-projection: needs optimizer "sgd" without momentum'):
        replace(SGD, dp=NoiseSettings(1.0, correct_projection=True), **changes)
