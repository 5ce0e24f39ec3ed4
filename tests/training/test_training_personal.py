"""Models of the target's own: each by a reference of a few lines, with torch's autograd on a small problem."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_tasks import SETTINGS, Line

from securefda.errors import ConfigError, TrainingError
from securefda.tasks import Samples
from securefda.training import PersonalTrainer, TrainingSettings, build_model, evaluate, model_to_vector, train_local
from securefda.training.local import batches
from securefda.training.neighbours import KnnSettings
from securefda.training.personal import (
    Apfl,
    Ditto,
    FedRepHead,
    FineTuned,
    KnnPer,
    head_size,
    train_with_head,
    vector_from_bytes,
)
from securefda.training.seeds import derive_seed

RUN = "0" * 32
ALL_AT_ONCE = TrainingSettings(optimizer="sgd", learning_rate=0.1, batch_size=20, epochs=3, device="cpu")
RECEIVED = [np.array([0.5, -0.5, 1.0, 0.25], np.float32), np.array([0.0, -1.0, 0.5, 0.5], np.float32)]
"""What the target is sent in rounds 1 and 2."""


class Memory:
    """What a site keeps, as its store does, until the process ends."""

    def __init__(self) -> None:
        self.states: dict[int, bytes] = {}

    def personal(self, run_id: str, before: int) -> bytes | None:
        known = [number for number in self.states if number < before]
        return self.states[max(known)] if known else None

    def keep_personal(self, run_id: str, round_number: int, state: bytes) -> None:
        self.states[round_number] = state


class Classes(Line):
    """Three classes of points in three dimensions, 30 rows, with a hidden layer of 4."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))

    def train_data(self, site: str) -> Samples:
        generator = torch.Generator().manual_seed(7 if site == "target" else 8)
        features = torch.randn(30, 3, generator=generator)
        return Samples(features, (features + 0.5 * torch.randn(30, 3, generator=generator)).argmax(dim=1))

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {"accuracy": float((outputs.argmax(dim=1) == labels).double().mean())}


class YesOrNo(Classes):
    """One logit for each row, as Fed-Heart has it."""

    def model(self) -> nn.Module:
        return nn.Linear(3, 1)

    def train_data(self, site: str) -> Samples:
        data = super().train_data(site)
        return Samples(data.features, (data.labels == 1).float()[:, None])

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {"accuracy": float(((outputs > 0) == (labels > 0.5)).double().mean())}


def rows(task: Line | None = None, settings: TrainingSettings = ALL_AT_ONCE) -> PersonalTrainer:
    task = task or Line(settings=SETTINGS)
    return PersonalTrainer(task, "target", task.train_data("target"), settings, 3)


def loss_at(vector: Tensor, own: PersonalTrainer) -> Tensor:
    """The mean square error of a linear model of three weights and a bias, as a function of its vector."""
    return nn.functional.mse_loss(own.data.features @ vector[:3, None] + vector[3], own.data.labels)


def test_ditto_descends_its_own_loss_and_the_pull_to_the_common_model() -> None:
    own, memory, strength = rows(), Memory(), 0.7
    ditto = Ditto(own, memory, epochs=3, strength=strength)
    v = torch.tensor(RECEIVED[0]).requires_grad_()
    for number, received in enumerate(RECEIVED, start=1):
        ditto.train(received, RUN, number, 0.5)
        for _ in range(3):
            loss = loss_at(v, own) + strength / 2 * ((v - torch.tensor(received)) ** 2).sum()
            (slope,) = torch.autograd.grad(loss, v)
            v = (v - 0.5 * 0.1 * slope).detach().requires_grad_()
        kept = vector_from_bytes(memory.personal(RUN, number + 1), received)
        assert np.allclose(kept, v.detach().numpy(), rtol=1e-5, atol=1e-6)
    expected = float(loss_at(v, own).detach())
    assert ditto.evaluate(RECEIVED[1], RUN, 2, own.data).loss == pytest.approx(expected, rel=1e-5)


def test_ditto_without_pull_is_training_alone_and_a_strong_pull_stays_with_the_common_model() -> None:
    own = rows(settings=replace(ALL_AT_ONCE, epochs=1))
    ends = []
    for strength in (0.0, 9.5):
        memory = Memory()
        for number, received in enumerate(RECEIVED, start=1):
            Ditto(own, memory, epochs=40, strength=strength).train(received, RUN, number, 1.0)
        ends.append(vector_from_bytes(memory.personal(RUN, 3), RECEIVED[1]))
    alone, drawn = (np.linalg.norm(end - RECEIVED[1]) for end in ends)
    assert drawn < 0.5 * alone


@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl_moves_both_models_and_an_adaptive_alpha_by_their_gradients(adaptive: bool) -> None:
    own, memory, rate = rows(), Memory(), 0.1
    apfl = Apfl(own, memory, alpha=0.4, adaptive=adaptive)
    v, alpha = torch.tensor(RECEIVED[0]), torch.tensor(0.4)
    for number, received in enumerate(RECEIVED, start=1):
        apfl.train(received, RUN, number, 1.0)
        w = torch.tensor(received)
        for step in range(3):
            w, v, alpha = (leaf.detach().requires_grad_() for leaf in (w, v, alpha))
            (of_w,) = torch.autograd.grad(loss_at(w, own), w)
            of_v, of_alpha = torch.autograd.grad(loss_at(alpha * v + (1 - alpha) * w, own), [v, alpha])
            w, v = w - rate * of_w, v - rate * of_v
            alpha = (alpha - rate * of_alpha).clamp(0, 1) if adaptive and step == 0 else alpha
        state = memory.personal(RUN, number + 1)
        assert state is not None
        assert struct.unpack_from("<d", state)[0] == pytest.approx(float(alpha.detach()), rel=1e-5)
        assert np.allclose(vector_from_bytes(state[8:], received), v.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert (float(alpha.detach()) != pytest.approx(0.4)) is adaptive
    mixture = (alpha * v + (1 - alpha) * torch.tensor(RECEIVED[1])).detach()
    expected = float(loss_at(mixture, own))
    assert apfl.evaluate(RECEIVED[1], RUN, 2, own.data).loss == pytest.approx(expected, rel=1e-5)


class Tripled(Line):
    """Rows vary by a factor of three."""

    def varied(self, features: Tensor, generator: torch.Generator) -> Tensor:
        return 3 * features


def test_apfl_trains_on_varied_rows_where_the_settings_say_so() -> None:
    def kept(task: Line, *, vary: bool, data: Samples | None = None) -> bytes | None:
        own, memory = rows(task, replace(ALL_AT_ONCE, vary=vary)), Memory()
        own = own if data is None else replace(own, data=data)
        Apfl(own, memory, alpha=0.4, adaptive=True).train(RECEIVED[0], RUN, 1, 1.0)
        return memory.personal(RUN, 2)

    plain = rows().data
    tripled = Samples(3 * plain.features, plain.labels)
    varied = kept(Tripled(settings=SETTINGS), vary=True)
    assert varied == kept(Line(settings=SETTINGS), vary=False, data=tripled)
    assert varied != kept(Tripled(settings=SETTINGS), vary=False)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_apfl_of_weight_one_is_training_alone_over_the_rounds_own_batches(optimizer: str) -> None:
    settings = TrainingSettings(optimizer=optimizer, learning_rate=0.05, batch_size=6, epochs=2, device="cpu")
    own, memory = rows(settings=settings), Memory()
    Apfl(own, memory, alpha=1.0, adaptive=False).train(RECEIVED[0], RUN, 1, 1.0)
    state = memory.personal(RUN, 2)
    seed = derive_seed(3, "target", 1)
    plain = train_local(own.task, own.model, RECEIVED[0], own.data, settings=settings, seed=seed, site="target")
    assert state is not None
    assert np.allclose(vector_from_bytes(state[8:], RECEIVED[0]), RECEIVED[0] + plain.update, atol=1e-6)


def test_fine_tuning_is_measured_after_its_epochs_and_keeps_nothing() -> None:
    own = rows(Classes())
    model = model_to_vector(build_model(own.task, 1))
    test = own.task.test_data("source-1")
    seen = FineTuned(own, 5).evaluate(model, RUN, 2, test)
    seed, settings = derive_seed(3, "target", 2, "personal"), replace(ALL_AT_ONCE, epochs=5)
    result = train_local(own.task, own.model, model, own.data, settings=settings, seed=seed, site="target")
    assert seen == own.evaluate(model + result.update, test)
    assert seen.loss < own.evaluate(model, test).loss
    assert FineTuned(own, 5).evaluate(model, RUN, 2, test) == seen


def nearest_by_definition(task: Classes, model: nn.Module, k: int, weight: float, scale: float) -> list[list[float]]:
    """Probabilities of each test row, one at a time."""
    known, asked = task.train_data("target"), task.test_data("source-1")
    body = nn.Sequential(*list(model)[:-1]) if isinstance(model, nn.Sequential) else nn.Identity()
    with torch.no_grad():
        there, here, outputs = body(known.features), body(asked.features), model(asked.features)
    mixed = []
    for row, output in zip(here, outputs, strict=True):
        distances = ((there - row) ** 2).sum(dim=1).sqrt().tolist()
        order = sorted(range(len(distances)), key=distances.__getitem__)[:k]
        votes = {number: np.exp(-distances[number] / scale) for number in order}
        total = sum(votes.values())
        if len(output) == 1:
            near = [sum(vote for number, vote in votes.items() if known.labels[number] == 1) / total]
            own = [float(output.sigmoid())]
        else:
            near = [
                sum(vote for number, vote in votes.items() if known.labels[number] == label) / total
                for label in range(len(output))
            ]
            own = output.softmax(dim=0).tolist()
        mixed.append([weight * a + (1 - weight) * b for a, b in zip(near, own, strict=True)])
    return mixed


@pytest.mark.parametrize("task", [Classes(), YesOrNo()], ids=["classes", "one logit"])
def test_knn_per_mixes_the_models_probabilities_with_those_of_the_nearest_rows(task: Classes) -> None:
    own = rows(task)
    model = build_model(task, 1)
    asked = task.test_data("source-1")
    expected = torch.tensor(nearest_by_definition(task, model, 4, 0.3, 0.5))
    knn = KnnPer(own, KnnSettings(4, 0.3, 0.5))
    seen = knn.evaluate(model_to_vector(model), RUN, 1, asked)
    outputs = expected.log() if expected.shape[1] > 1 else expected.logit()
    assert seen.loss == pytest.approx(float(task.loss(outputs, asked.labels)), rel=1e-4)
    assert seen.metrics == task.metrics(outputs, asked.labels)


def test_knn_per_of_no_weight_is_the_model_and_more_neighbours_than_rows_are_all_rows() -> None:
    task = Classes()
    own, vector = rows(task), model_to_vector(build_model(task, 1))
    asked = task.test_data("source-1")
    plain = own.evaluate(vector, asked)
    assert KnnPer(own, KnnSettings(1, 0.0, 1.0)).evaluate(vector, RUN, 1, asked).loss == pytest.approx(
        plain.loss, rel=1e-5
    )
    losses = [KnnPer(own, KnnSettings(k, 1.0, 1.0)).evaluate(vector, RUN, 1, asked).loss for k in (30, 500)]
    assert losses[0] == losses[1]


def test_knn_per_refuses_a_task_whose_outputs_are_no_probabilities_before_the_first_round() -> None:
    with pytest.raises(TrainingError, match="one output for each class") as caught:
        KnnPer(rows(), KnnSettings(4, 0.3, 0.5))
    assert caught.value.hint


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.layer(features))
        return outputs


def test_knn_per_refuses_a_model_whose_last_layer_is_used_twice() -> None:
    task = Classes()
    task.model = _Twice  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match="is not given each row once"):
        KnnPer(rows(task), KnnSettings(4, 0.3, 0.5))


SPLIT = TrainingSettings(
    optimizer="sgd", learning_rate=0.1, batch_size=7, epochs=2, momentum=0.5, weight_decay=0.01, device="cpu"
)


def split_by_definition(task: Classes, received: np.ndarray, head: np.ndarray, seed: int) -> nn.Module:
    """Head, then body, with torch's optimiser and parameters that need no gradient."""
    model = build_model(task, 0)
    whole = np.concatenate([received[: -len(head)], head])
    nn.utils.vector_to_parameters(torch.from_numpy(whole.copy()), model.parameters())
    data = task.train_data("target")
    parameters = list(model.parameters())
    settings = replace(SPLIT, personal_layers=2, head_epochs=3)
    for part, epochs, own_seed in ((parameters[2:], 3, derive_seed(seed, "head")), (parameters[:2], 2, seed)):
        for parameter in parameters:
            parameter.requires_grad_(any(parameter is trained for trained in part))
        optimizer = torch.optim.SGD(part, lr=0.1, momentum=0.5, weight_decay=0.01)
        for batch in batches(len(data), replace(settings, epochs=epochs), derive_seed(own_seed, "batches")):
            optimizer.zero_grad()
            task.loss(model(data.features[batch]), data.labels[batch]).backward()
            optimizer.step()
    return model


def test_a_round_with_a_head_trains_the_head_first_and_then_the_body_under_it() -> None:
    task = Classes()
    received = model_to_vector(build_model(task, 1))
    head = model_to_vector(build_model(task, 2))[-15:]
    settings = replace(SPLIT, personal_layers=2, head_epochs=3)
    result, trained = train_with_head(
        task, build_model(task, 0), received, head, task.train_data("target"), settings=settings, seed=9, site="target"
    )
    model = split_by_definition(task, received, head, 9)
    expected = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    assert np.allclose(trained, expected[-15:], atol=1e-6)
    assert np.allclose(received[:-15] + result.update[:-15], expected[:-15], atol=1e-6)
    assert not result.update[-15:].any()
    assert result.update[:-15].all()
    assert (result.steps, result.samples) == (10, 30)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_is_not_trained_stays_to_the_last_bit_whatever_the_optimizer(optimizer: str) -> None:
    task = Classes()
    received = model_to_vector(build_model(task, 1))
    settings = replace(SPLIT, optimizer=optimizer, momentum=0.0)
    result = train_local(
        task,
        build_model(task, 0),
        received,
        task.train_data("target"),
        settings=settings,
        seed=1,
        site="target",
        trained=slice(0, 16),
    )
    assert result.update[:16].all()
    assert not result.update[16:].any()


def test_the_received_head_does_not_matter_where_a_site_has_its_own() -> None:
    task = Classes()
    received = model_to_vector(build_model(task, 1))
    other = received.copy()
    other[-15:] = 0
    ends = [
        train_with_head(
            task,
            build_model(task, 0),
            start,
            received[-15:],
            task.train_data("target"),
            settings=SPLIT,
            seed=9,
            site="t",
        )
        for start in (received, other)
    ]
    assert ends[0][0].update.tobytes() == ends[1][0].update.tobytes()
    assert ends[0][1].tobytes() == ends[1][1].tobytes()


def test_the_target_is_measured_with_the_head_that_the_round_left() -> None:
    task, memory = Classes(), Memory()
    own = rows(task, replace(SPLIT, personal_layers=2))
    model, other = (model_to_vector(build_model(task, seed)) for seed in (1, 2))
    memory.keep_personal(RUN, 1, bytes(60))
    memory.keep_personal(RUN, 2, other[-15:].tobytes())
    seen = FedRepHead(own, memory).evaluate(model, RUN, 2, task.test_data("source-1"))
    network = build_model(task, 0)
    nn.utils.vector_to_parameters(torch.from_numpy(np.concatenate([model[:-15], other[-15:]])), network.parameters())
    assert seen == evaluate(task, network, task.test_data("source-1"))


def test_a_head_of_every_layer_is_refused_by_its_key() -> None:
    assert head_size((12, 4, 12, 3), 2) == 15
    assert head_size((12, 4), 0) == 0
    with pytest.raises(ConfigError) as caught:
        head_size((12, 4), 2)
    assert caught.value.key == "training.personal-layers"


def test_a_state_of_another_model_is_refused() -> None:
    with pytest.raises(TrainingError, match="8 bytes, and 16 are needed"):
        vector_from_bytes(bytes(8), RECEIVED[0])


def test_a_model_of_its_own_that_diverges_is_one_clear_line() -> None:
    own = rows(settings=replace(ALL_AT_ONCE, learning_rate=1e30))
    with pytest.raises(TrainingError, match="target: its own model is not finite in round 1") as caught:
        Apfl(own, Memory(), alpha=0.5, adaptive=False).train(RECEIVED[0], RUN, 1, 1.0)
    assert caught.value.hint
