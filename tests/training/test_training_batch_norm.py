"""BatchNorm in plain training: its weights are federated, its running statistics stay at the site."""

import numpy as np
import pytest
import torch
from torch import nn
from training_tasks import Line

from securefda.errors import TrainingError
from securefda.tasks import Samples, Unlabelled
from securefda.training import (
    PersonalTrainer,
    TrainingSettings,
    build_model,
    evaluate,
    layer_table,
    model_to_vector,
    train_local,
    vector_to_model,
)
from securefda.training.batch_norm import (
    bytes_to_statistics,
    estimate_statistics,
    running_statistics,
    settings_for_model,
    statistics_to_bytes,
)
from securefda.training.local import batches, require_steps
from securefda.training.memory import statistics_key
from securefda.training.neighbours import KnnSettings
from securefda.training.personal import Apfl, FineTuned, KnnPer
from securefda.training.trainer import SiteTrainer

SETTINGS = TrainingSettings(optimizer="sgd", learning_rate=0.001, batch_size=4)
RUN = "run"


class Normed(Line):
    """Rows of three features, far from 0 and of unlike scales, and two BatchNorm layers around a dropout."""

    def __init__(self, rows=18, momentum=0.1, network=None):
        super().__init__(network)
        self.rows, self.momentum = rows, momentum

    def model(self):
        if self.network is not None:
            return super().model()
        return nn.Sequential(
            nn.BatchNorm1d(3, momentum=self.momentum),
            nn.Linear(3, 4),
            nn.Dropout(0.5),
            nn.BatchNorm1d(4, momentum=self.momentum),
            nn.Linear(4, 1),
        )

    def train_data(self, site):
        generator = torch.Generator().manual_seed(len(site))
        features = torch.randn(self.rows, 3, generator=generator) * torch.tensor([1.0, 5.0, 0.2]) + 7
        return Samples(features, features.sum(dim=1, keepdim=True))


class Memory:
    """Keeps what a site keeps, and lets a test look."""

    def __init__(self):
        self.states = {}

    def personal(self, run_id, before):
        rounds = [number for run, number in self.states if run == run_id and number < before]
        return self.states[run_id, max(rounds)] if rounds else None

    def keep_personal(self, run_id, round_number, state):
        self.states[run_id, round_number] = state


def trainer(task=None, memory=None, settings=SETTINGS):
    task = task or Normed()
    return SiteTrainer(task, "source-1", task.train_data("source-1"), settings, 5, memory=memory)


def rounds(site, count, start=1, factor=1.0):
    """Updates of rounds in which the model stays the run's first."""
    received = site.initial_model()
    return [site.train(received, number, factor, run_id=RUN).update for number in range(start, start + count)]


def test_weight_and_bias_are_federated_and_the_statistics_are_not():
    model = build_model(Normed(), 0)
    names = [name for name, _ in layer_table(model)]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias", "4.weight", "4.bias"]
    assert model_to_vector(model).size == 3 + 3 + 12 + 4 + 4 + 4 + 4 + 1
    assert list(running_statistics(model)) == [
        f"{layer}.{kind}" for layer in (0, 3) for kind in ("running_mean", "running_var", "num_batches_tracked")
    ]


def test_no_update_depends_on_the_running_statistics():
    task, received = Normed(), model_to_vector(build_model(Normed(), 5))
    results = []
    for scale in (1.0, 1000.0):
        model = build_model(task, 5)
        running_statistics(model)["0.running_mean"].fill_(scale)
        results.append(
            train_local(task, model, received, task.train_data("a"), settings=SETTINGS, seed=3, site="a").update
        )
    assert np.array_equal(*results)
    assert results[0][:6].any()  # the first layer's weight and bias are trained


# --- a batch of one row -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "sizes"), [(17, [4, 4, 4, 5]), (18, [4, 4, 4, 4, 2]), (16, [4] * 4), (5, [5])])
def test_a_last_batch_of_one_row_joins_the_one_before_it(rows, sizes):
    with_norm = settings_for_model(SETTINGS, build_model(Normed(), 0))
    taken = list(batches(rows, with_norm, 1))
    assert [len(batch) for batch in taken] == sizes
    assert sorted(torch.cat(taken).tolist()) == list(range(rows))
    assert with_norm.steps(rows) == len(sizes)
    assert settings_for_model(SETTINGS, build_model(Line(), 0)) == SETTINGS


def test_every_row_is_trained_on_where_the_last_batch_would_be_one():
    task = Normed(rows=17)
    result = rounds_result(task)
    assert (result.steps, result.samples) == (4, 17)


def rounds_result(task, **settings):
    site = trainer(task, settings=TrainingSettings(**({"batch_size": 4} | settings)))
    return site.train(site.initial_model(), 1, 1.0, run_id=RUN)


@pytest.mark.parametrize(("rows", "batch_size"), [(18, 1), (1, 4)])
def test_batches_of_one_row_are_refused_before_the_first_round(rows, batch_size):
    with pytest.raises(TrainingError, match="the model has BatchNorm, for which a batch needs at least 2") as caught:
        trainer(Normed(rows=rows), settings=TrainingSettings(batch_size=batch_size))
    assert "raise batch-size" in caught.value.hint


def test_steps_of_a_target_are_counted_with_the_joined_batch():
    settings = settings_for_model(SETTINGS, build_model(Normed(), 0))
    with pytest.raises(TrainingError, match="make 1 step"):
        require_steps("target", 5, settings)
    require_steps("target", 5, SETTINGS)


# --- statistics of a site, from round to round ------------------------------------------------------------------------


def test_a_site_keeps_its_statistics_from_round_to_round_and_across_restarts():
    memory, again = Memory(), Memory()
    undisturbed = rounds(trainer(memory=memory), 3)
    parts = [rounds(trainer(memory=again), 1, start=number)[0] for number in (1, 2, 3)]  # each in a new process
    assert [part.tobytes() for part in parts] == [update.tobytes() for update in undisturbed]
    assert memory.states == again.states
    kept = [memory.states[statistics_key(RUN), number] for number in (1, 2, 3)]
    assert len(set(kept)) == 3


def test_a_round_that_is_trained_again_leaves_the_same_statistics():
    memory = Memory()
    site = trainer(memory=memory)
    first, second = rounds(site, 2)
    kept = dict(memory.states)
    site.evaluate(site.initial_model(), Normed().train_data("b"))  # measures with other statistics
    assert np.array_equal(site.train(site.initial_model(), 2, 1.0, run_id=RUN).update, second)
    assert memory.states == kept
    assert not np.array_equal(first, second)


def test_they_begin_with_those_of_the_model_and_move_with_its_momentum():
    memory, task = Memory(), Normed(rows=4, momentum=0.25)  # one step
    rounds(trainer(task, memory), 1)
    model, rows = build_model(task, 5), task.train_data("source-1").features
    bytes_to_statistics(memory.states[statistics_key(RUN), 1], model)
    kept = running_statistics(model)
    assert torch.allclose(kept["0.running_mean"], 0.25 * rows.mean(dim=0))
    assert torch.allclose(kept["0.running_var"], 0.75 + 0.25 * rows.var(dim=0))
    assert int(kept["0.num_batches_tracked"]) == 1


def test_without_momentum_they_are_the_mean_over_all_batches_of_all_rounds():
    memory, task = Memory(), Normed(rows=18, momentum=None)
    rounds(trainer(task, memory, TrainingSettings(batch_size=6)), 2)
    model = build_model(task, 5)
    bytes_to_statistics(memory.states[statistics_key(RUN), 2], model)
    kept = running_statistics(model)
    assert int(kept["0.num_batches_tracked"]) == 6
    assert torch.allclose(kept["0.running_mean"], task.train_data("source-1").features.mean(dim=0), rtol=1e-4)


def test_kept_statistics_of_another_model_are_refused():
    memory = Memory()
    memory.keep_personal(statistics_key(RUN), 1, b"\0" * 12)
    with pytest.raises(TrainingError, match="BatchNorm statistics has 12 bytes, and 72 are needed"):
        rounds(trainer(memory=memory), 1, start=2)


def test_layers_that_stay_at_the_site_and_statistics_are_kept_apart():
    memory = Memory()
    settings = TrainingSettings(batch_size=4, personal_layers=2, head_epochs=1)
    rounds(trainer(memory=memory, settings=settings), 1)
    assert sorted(memory.states) == [(RUN, 1), (statistics_key(RUN), 1)]


# --- statistics of evaluation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_model_is_evaluated_with_moments_of_the_rows_of_its_site(momentum):
    task = Normed(momentum=momentum)
    model, rows = build_model(task, 2), task.train_data("a")
    estimate_statistics(task, model, rows)
    statistics = running_statistics(model)
    first = rows.features
    hidden = model[1]((first - first.mean(dim=0)) / (first.var(dim=0, correction=0) + 1e-5).sqrt())
    for layer, seen in (("0", rows.features), ("3", hidden)):  # without dropout
        assert torch.allclose(statistics[f"{layer}.running_mean"], seen.mean(dim=0), atol=1e-5)
        assert torch.allclose(statistics[f"{layer}.running_var"], seen.var(dim=0), rtol=1e-4)
    assert not any(module.training for module in model.modules())
    assert {model[0].momentum, model[3].momentum} == {momentum}


def test_many_rows_are_averaged_over_parts_of_at_most_1024():
    task = Normed(rows=2050)
    model, rows = build_model(task, 2), task.train_data("a")
    estimate_statistics(task, model, rows)
    parts = [rows.features[:684], rows.features[684:1367], rows.features[1367:]]
    mean = torch.stack([part.mean(dim=0) for part in parts]).mean(dim=0)
    variance = torch.stack([part.var(dim=0) for part in parts]).mean(dim=0)
    statistics = running_statistics(model)
    assert torch.allclose(statistics["0.running_mean"], mean, rtol=1e-5)
    assert torch.allclose(statistics["0.running_var"], variance, rtol=1e-4)
    assert int(statistics["0.num_batches_tracked"]) == 3


def test_a_site_measures_with_its_own_rows_whatever_it_trained_before():
    task = Normed()
    site, other = trainer(task, Memory()), task.train_data("another site")
    vector = site.initial_model() + np.float32(0.1)
    fresh = site.evaluate(vector, other)
    rounds(site, 2)
    assert site.evaluate(vector, other) == fresh
    model = build_model(task, 5)
    vector_to_model(vector, model)
    plain = evaluate(task, model, other)
    estimate_statistics(task, model, task.train_data("source-1"))
    assert evaluate(task, model, other) == fresh
    assert plain != fresh
    given = site.statistics(vector)
    assert {name: values.tolist() for name, values in given.items()} == {
        name: values.tolist() for name, values in running_statistics(model).items()
    }


def test_each_model_has_statistics_of_its_own():
    task = Normed()
    site, asked = trainer(task), task.train_data("another site")
    vectors = [site.initial_model() * np.float32(factor) for factor in (1, 3)]
    in_turns = [site.evaluate(vector, asked) for vector in (*vectors, *vectors)]
    assert in_turns[:2] == in_turns[2:] == [trainer(task).evaluate(vector, asked) for vector in vectors]


def test_a_mixture_is_trained_where_the_last_batch_would_be_one_row():
    task = Normed(rows=17)
    own, memory = PersonalTrainer(task, "target", task.train_data("target"), SETTINGS, 5), Memory()
    Apfl(own, memory, alpha=0.5, adaptive=False).train(model_to_vector(build_model(task, 5)), RUN, 1, 1.0)
    assert (RUN, 1) in memory.states


def test_labels_play_no_part_in_the_statistics():
    task = Normed()
    rows, asked = task.train_data("target"), task.train_data("another site")
    with_labels, without = (
        SiteTrainer(task, "target", given, SETTINGS, 5) for given in (rows, Unlabelled(rows.features))
    )
    vector = with_labels.initial_model()
    assert with_labels.evaluate(vector, asked) == without.evaluate(vector, asked)


def test_the_models_of_the_targets_own_are_measured_with_its_rows_too():
    task = Normed()
    own, vector = (
        PersonalTrainer(task, "target", task.train_data("target"), SETTINGS, 5),
        model_to_vector(build_model(task, 5)),
    )
    asked, model = task.train_data("another site"), build_model(task, 5)
    estimate_statistics(task, model, own.data)
    assert own.evaluate(vector, asked) == evaluate(task, model, asked)
    tuned = own.train(vector, RUN, 1, epochs=2)
    vector_to_model(tuned, model)
    estimate_statistics(task, model, own.data)
    assert FineTuned(own, 2).evaluate(vector, RUN, 1, asked) == evaluate(task, model, asked)


def test_a_model_without_batch_norm_has_no_statistics():
    site = SiteTrainer(Line(), "source-1", Line().train_data("source-1"), SETTINGS, 5)
    assert site.statistics(site.initial_model()) == {}
    assert statistics_to_bytes(build_model(Line(), 0)) == b""


# --- layers that are taken, and those that are refused ----------------------------------------------------------------


def test_a_layer_without_weights_and_one_that_is_frozen_are_trained_around():
    frozen = nn.BatchNorm1d(4)
    frozen.weight.requires_grad_(False)
    task = Normed(network=nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 4), frozen, nn.Linear(4, 1)))
    model = build_model(task, 0)
    assert [name for name, _ in layer_table(model)] == ["1.weight", "1.bias", "2.bias", "3.weight", "3.bias"]
    site = trainer(task, Memory())
    assert np.isfinite(rounds(site, 2)).all()
    assert site.evaluate(site.initial_model(), task.train_data("a")).samples == 18


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.BatchNorm1d(3, track_running_stats=False), "BatchNorm1d with track_running_stats=False"),
        (nn.SyncBatchNorm(3), "SyncBatchNorm, which takes its statistics over several processes"),
        (nn.InstanceNorm1d(3, track_running_stats=True), "InstanceNorm1d, whose running statistics are not federated"),
        (nn.BatchNorm1d(3, affine=False, dtype=torch.float64), "whose running statistics are torch.float64 on cpu"),
        (nn.LazyBatchNorm1d(affine=False), "which has no shape yet"),
    ],
)
def test_a_norm_that_sites_cannot_federate_is_refused_with_a_hint(layer, why):
    with pytest.raises(TrainingError, match=f"layer 1.0 is .*{why}") as caught:
        build_model(Line(nn.Sequential(nn.Linear(3, 3), nn.Sequential(layer), nn.Linear(3, 1))), 0)
    assert caught.value.hint


def test_neighbours_are_found_with_the_statistics_of_the_targets_rows():
    task = Binary()
    own, vector = (
        PersonalTrainer(task, "target", task.train_data("target"), SETTINGS, 5),
        model_to_vector(build_model(task, 5)),
    )
    alone = KnnPer(own, KnnSettings(neighbours=1, weight=0.0, scale=1.0))  # the model's own probabilities
    asked = task.train_data("another site")
    model = build_model(task, 5)
    estimate_statistics(task, model, own.data)
    assert alone.evaluate(vector, RUN, 1, asked).loss == pytest.approx(evaluate(task, model, asked).loss, rel=1e-4)


class Binary(Normed):
    """Whether the features sum to more than 21."""

    def train_data(self, site):
        rows = super().train_data(site)
        return Samples(rows.features, (rows.labels > 21).float())

    def loss(self, outputs, labels):
        return nn.functional.binary_cross_entropy_with_logits(outputs, labels)
