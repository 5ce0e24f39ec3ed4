"""What DP-SGD refuses to train, and what it leaves of a round on the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from opacus.layers import DPLSTM
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.rnn import pack_padded_sequence
from training_private import NOISE, ROWS, SGD, WHOLE, Coupled, Net, by, fixed, silent, train, ways
from training_tasks import Line, WithDropout

from securefda.errors import ConfigError, DataError, TrainingError
from securefda.privacy.private_training import fitting, require_separate_rows
from securefda.tasks import Samples, Task
from securefda.training import build_model, evaluate, model_to_vector, train_local


class Mixing(nn.Module):
    """Each row minus the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, rows: Tensor) -> Tensor:
        return ((rows - rows.mean(dim=0)) * self.weight).sum(dim=1, keepdim=True)


class OneOf(nn.Module):
    """The first of what a layer returns."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, rows: Tensor) -> Tensor:
        sequence = rows[:, None, :]
        is_attention = isinstance(self.layer, nn.MultiheadAttention)
        outputs: Tensor = self.layer(sequence, sequence, sequence)[0] if is_attention else self.layer(sequence)[0]
        return outputs[:, 0, :1]


class Shifted(nn.Linear):
    """A layer with a buffer beside its parameters."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.register_buffer("shift", torch.ones(3))

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows + self.shift)


@pytest.mark.parametrize(
    ("layer", "named", "instead"),
    [
        (nn.BatchNorm1d(3), "layer 0 is BatchNorm1d", "torch.nn.GroupNorm"),
        (
            nn.Sequential(nn.InstanceNorm1d(3, affine=True, track_running_stats=True)),
            "layer 0.0 is InstanceNorm1d",
            "GroupNorm",
        ),
        (OneOf(nn.LSTM(3, 4, batch_first=True)), "layer 0.layer is LSTM", "opacus.layers.DPLSTM"),
        (OneOf(nn.GRU(3, 4, batch_first=True)), "layer 0.layer is GRU", "opacus.layers.DPGRU"),
        (OneOf(nn.RNN(3, 4, batch_first=True)), "layer 0.layer is RNN", "opacus.layers.DPRNN"),
        (OneOf(nn.MultiheadAttention(3, 1)), "layer 0.layer is Mul", "opacus.layers.DPMultiheadAttention"),
        (OneOf(type("Mine", (nn.GRU,), {})(3, 4)), "layer 0.layer is GRU", "opacus.layers.DPGRU"),
        (nn.LSTMCell(3, 4), "layer 0 is LSTMCell", "opacus.layers.DPLSTM"),
        (type("GRUNet", (nn.Sequential,), {})(nn.BatchNorm1d(3)), "layer 0.0 is BatchNorm1d", "torch.nn.GroupNorm"),
        (nn.BatchNorm1d(3, affine=False), "layer 0 is a norm without parameters", "torch.nn.GroupNorm"),
        (nn.LayerNorm(3, bias=False), "layer 0 has a weight and no bias", "leave bias=False out"),
        (spectral_norm(nn.Linear(3, 1)), "layer 0 has parameters that are trained and buffers", "weight_norm"),
        (Shifted(), "layer 0 has parameters that are trained and buffers (shift)", "neither inside the other"),
    ],
    ids=[
        *("batch norm", "instance norm", "lstm", "gru", "rnn", "attention", "own gru", "lstm cell", "in a GRUNet"),
        *("norm without parameters", "layer norm without bias", "spectral norm", "own buffer"),
    ],
)
def test_layer_that_dp_sgd_cannot_train_is_refused_with_what_to_use_instead(
    layer: nn.Module, named: str, instead: str
) -> None:
    model = nn.Sequential(layer)
    with pytest.raises(TrainingError) as refusal:
        require_separate_rows(Line(), model, Line().train_data("source-1"), SGD)
    assert named in str(refusal.value)
    assert instead in refusal.value.hint


def test_layer_of_ones_own_in_which_rows_mix_is_refused() -> None:
    with pytest.raises(TrainingError, match="depends on the rows beside it") as refusal:
        require_separate_rows(Line(), Mixing(), Line().train_data("source-1"), SGD)
    assert "GroupNorm" in refusal.value.hint


class OwnLayer(nn.Module):
    """A layer that Opacus does not know, with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.ones(3)), nn.Linear(3, 1)

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.inner(rows * self.scale)
        return outputs


class Words(Net):
    """Rows of three words out of seven."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(7, 2), nn.Flatten(), nn.Linear(6, 1))

    def train_data(self, site: str) -> Samples:
        return Samples(torch.arange(ROWS * 3).view(ROWS, 3) % 7, super().train_data(site).labels)


class FrozenWords(Words):
    """The same with vectors that stay as they are, of which one stands for padding."""

    def model(self) -> nn.Module:
        words = nn.Embedding(7, 2, padding_idx=0).requires_grad_(False)
        return nn.Sequential(words, nn.Flatten(), nn.Linear(6, 1))


FIT: dict[str, Task] = {
    "line": Line(),
    "net": Net(),
    "dropout": WithDropout(),
    "coupled": Coupled(),
    "own layer": Line(OwnLayer()),
    "words": Words(),
    "frozen words": FrozenWords(),
    "frozen gru": Line(nn.Sequential(OneOf(nn.GRU(3, 4, batch_first=True)).requires_grad_(False), nn.Linear(1, 1))),
    "lstm": Line(OneOf(DPLSTM(3, 4, batch_first=True))),
    "group norm": Line(nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.Linear(4, 1))),
}


LINEAR = ("line", "net", "dropout", "coupled", "frozen words", "frozen gru")
"""What ghost clipping takes."""


@pytest.mark.parametrize(("ghost", "name"), [*((False, name) for name in FIT), *((True, name) for name in LINEAR)])
def test_model_in_which_rows_stay_apart_is_taken_and_left_as_it_was(ghost: bool, name: str) -> None:
    task = FIT[name]
    model = build_model(task, 0)
    before = model_to_vector(model)
    require_separate_rows(task, model, task.train_data("source-1"), by(SGD, ghost))
    assert model_to_vector(model).tobytes() == before.tobytes()
    assert traces(model) == []
    assert train(task, by(SGD, ghost), model=model).steps == 8


@pytest.mark.parametrize("name", sorted(set(FIT) - set(LINEAR)))
def test_ghost_clipping_takes_linear_layers_alone(name: str) -> None:
    task = FIT[name]
    with pytest.raises(TrainingError, match="ghost clipping takes Linear alone") as refused:
        require_separate_rows(task, task.model(), task.train_data("source-1"), by(SGD, True))
    assert refused.value.hint == "set training.dp.ghost-clipping = false"


def test_ghost_clipping_takes_one_vector_of_each_row() -> None:
    """Of several, Opacus measures differences of large numbers, and can take a large gradient for none."""
    task = Line(nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Linear(1, 2), nn.Flatten(), nn.Linear(6, 1)))
    with pytest.raises((TrainingError, DataError)) as refused:
        require_separate_rows(task, task.model(), task.train_data("source-1"), by(SGD, True))
    assert "one vector of each row" in str(refused.value)
    require_separate_rows(task, task.model(), task.train_data("source-1"), by(SGD, False))


@pytest.mark.parametrize("way", [None, True, False], ids=["auto", "true", "false"])
@pytest.mark.parametrize("name", sorted(FIT))
def test_ghost_clipping_is_taken_where_the_model_fits_unless_the_settings_say(name: str, way: bool | None) -> None:
    task, settings = FIT[name], replace(SGD, dp=replace(NOISE, ghost_clipping=way))
    taken, why = None, ""
    try:
        taken = fitting(task, task.model(), task.train_data("source-1"), settings).dp
    except TrainingError as error:
        why = str(error)
    fits = name in LINEAR
    assert ("takes Linear alone" in why) == (way is True and not fits)
    assert (taken is None) == bool(why)
    assert taken is None or taken.ghost_clipping == (fits if way is None else way)


def test_a_layer_that_sees_several_vectors_of_a_row_is_clipped_by_gradients_of_each_row() -> None:
    task = Line(nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Linear(1, 2), nn.Flatten(), nn.Linear(6, 1)))
    settings = fitting(task, task.model(), task.train_data("source-1"), replace(SGD, dp=NOISE))
    assert settings.dp is not None
    assert settings.dp.ghost_clipping is False


class InPlace(nn.Module):
    """Writes to what a layer has made, to what another has read, or uses a layer twice."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.first, self.last = way, nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.first(input=rows).mul_(2.0)
        if self.way == "twice":
            hidden = self.first(hidden)
        outputs: Tensor = self.last(hidden)
        if self.way == "read":
            rows.add_(1.0)
        return outputs


def test_ghost_clipping_takes_the_gradient_of_a_layer_whose_output_is_written_to() -> None:
    task = Line(InPlace("made"))
    require_separate_rows(task, task.model(), task.train_data("source-1"), by(SGD, True))  # compares it with torch's


@pytest.mark.parametrize("way", ["read", "twice"])
def test_ghost_clipping_refuses_what_it_would_get_wrong(way: str) -> None:
    """Torch refuses the first itself where it makes the gradient of the weight, which ghost clipping leaves out."""
    with pytest.raises(TrainingError, match="no gradient of each row, or more than one"):
        train(Line(InPlace(way)), by(SGD, True))


class MixedLosses(Net):
    """Says the losses of rows in a quicker way, in which they mix."""

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return ((outputs - outputs.mean(dim=0)) - labels).square().flatten()


class TurnedLosses(Net):
    """Says the losses of rows in another order."""

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return super().row_losses(outputs, labels).flip(0)


@pytest.mark.parametrize("task", [MixedLosses(), TurnedLosses()], ids=["mixed", "turned"])
def test_losses_of_rows_in_which_others_have_a_part_are_refused(task: Task) -> None:
    with pytest.raises(TrainingError, match="depends on the rows beside it"):
        require_separate_rows(task, build_model(task, 0), task.train_data("source-1"), SGD)


def test_losses_that_are_not_one_for_each_row_are_refused() -> None:
    class Summed(Net):
        def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
            return super().row_losses(outputs, labels).mean(dim=0, keepdim=True)

    with pytest.raises(TrainingError, match=r"losses of \d+ rows have the shape \(1,\)"):
        train(Summed())


class Tied(nn.Module):
    """Uses the weight of a layer once more beside it, where Opacus does not look."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.last = nn.Linear(3, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(nn.functional.linear(self.first(rows), 3 * self.first.weight))


class Pieces(nn.Module):
    """Treats each number of a row as a row of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(rows.reshape(-1, 1)).reshape(rows.shape).sum(dim=1, keepdim=True)


@ways
@pytest.mark.parametrize("model", [Tied, Pieces])
def test_model_whose_rows_would_escape_the_clip_norm_is_refused_before_the_first_round(
    ghost: bool, model: type[nn.Module]
) -> None:
    task = Line(model())
    with pytest.raises(TrainingError, match=r"gradient of (a|each) row"):
        require_separate_rows(task, task.model(), task.train_data("source-1"), by(SGD, ghost))
    assert traces(task.model()) == []


class Sorted(nn.Module):
    """Shows a layer the rows in another order than the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, rows: Tensor) -> Tensor:
        order = rows[:, 0].argsort()
        outputs: Tensor = self.last(self.first(rows[order]).tanh()[order.argsort()])
        return outputs


class Again(nn.Module):
    """Shows a layer all rows, and then some of them once more."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, rows: Tensor) -> Tensor:
        hidden, some = self.first(rows), rows[:, 0] > 0
        outputs: Tensor = self.last(hidden.index_put((some,), self.first(hidden[some])))
        return outputs


class Packed(nn.Module):
    """Packs each row as a sequence of its own length, which sorts them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = DPLSTM(1, 2, batch_first=True)
        self.last = nn.Linear(2, 1)

    def forward(self, rows: Tensor) -> Tensor:
        lengths = 1 + (rows[:, 1:] > 0).sum(dim=1)
        packed = pack_padded_sequence(rows[:, :, None], lengths, batch_first=True, enforce_sorted=False)
        outputs: Tensor = self.last(self.layer(packed)[1][0][-1])
        return outputs


@pytest.mark.parametrize(
    ("ghost", "model", "why"),
    [
        (False, Sorted, "the gradient of a row that Opacus clips is not the row's gradient"),
        (True, Sorted, "the gradient of a row that Opacus clips is not the row's gradient"),
        (False, Again, "layer first has no gradient of each row, or more than one"),
        (False, Packed, "layer layer is given packed rows, whose order DP-SGD loses"),
    ],
)
def test_rows_that_change_places_between_layers_are_refused(ghost: bool, model: type[nn.Module], why: str) -> None:
    """A gradient would be clipped in parts, each beside a part of another row's."""
    task = Line(model())
    with pytest.raises(TrainingError, match=why):
        require_separate_rows(task, task.model(), task.train_data("source-1"), by(SGD, ghost))
    assert traces(task.model()) == []


@pytest.mark.parametrize("model", [Again, Packed])
def test_rows_that_change_places_end_a_round(model: type[nn.Module]) -> None:
    """Also where the rows on which the model was tried were seen by all layers alike."""
    with pytest.raises(TrainingError, match="layer"):
        train(Line(model()), by(WHOLE, False))


@ways
def test_pieces_of_a_row_that_would_be_clipped_each_by_itself_end_the_round(ghost: bool) -> None:
    with pytest.raises((TrainingError, DataError)):
        train(Line(Pieces()), by(replace(SGD, batch_size=1), ghost))


class Idle(nn.Module):
    """Has a parameter that says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.used(rows)


@ways
def test_parameter_without_a_part_in_the_loss_is_refused_by_name(ghost: bool) -> None:
    task = Line(Idle())
    with pytest.raises(TrainingError, match=r"parameter idle\.weight has no part in the loss"):
        require_separate_rows(task, task.model(), task.train_data("source-1"), by(SGD, ghost))


@ways
@pytest.mark.parametrize("label", [3e38, float("nan")])
def test_row_whose_gradient_is_not_finite_counts_as_one_without_gradient(ghost: bool, label: float) -> None:
    """A refusal would reveal to the author of crafted weights that such a row exists."""
    data = silent(Net(), 4, 1.0)
    object.__setattr__(data, "labels", data.labels.clone().index_fill_(0, torch.tensor([4]), label))
    without, with_row = (
        train(Net(), by(WHOLE, ghost), data=rows, random_bytes=fixed(1)).update
        for rows in (silent(Net(), 4, None), data)
    )
    np.testing.assert_allclose(with_row, without, atol=1e-6)


@ways
def test_a_round_of_rows_without_any_finite_gradient_is_noise(ghost: bool) -> None:
    data = silent(Net(), 4, None)
    object.__setattr__(data, "labels", torch.full_like(data.labels, float("nan")))
    update = train(Net(), by(WHOLE, ghost), data=data, random_bytes=fixed(1)).update
    noise = train(Net(), by(WHOLE, ghost), data=AGREEING, random_bytes=fixed(1)).update
    np.testing.assert_allclose(update, noise, atol=1e-6)


def test_batch_that_is_larger_than_the_data_is_refused_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"^training\.batch-size: 21 is larger than the data, which have 20 rows"):
        train(settings=replace(SGD, batch_size=ROWS + 1))


def test_too_few_steps_are_refused_before_training() -> None:
    steps: list[Any] = []
    with pytest.raises(TrainingError, match="make 1 step"):
        train(settings=WHOLE, fewest_steps=2, on_step=steps.append)
    assert steps == []


def agreeing() -> Samples:
    """Rows of which the first model says the label: no gradient."""
    data = Net().train_data("source-1")
    with torch.no_grad():
        return Samples(data.features, build_model(Net(), 0)(data.features))


AGREEING = agreeing()


def traces(model: nn.Module) -> list[str]:
    """What of Opacus, or of rows, is still on a model: hooks, gradients, activations."""
    left = []
    for module in model.modules():
        left += [f"{name} of {type(module).__name__}" for name in vars(module) if name in ADDED]
        hooks = (module._forward_hooks, module._backward_hooks, module._forward_pre_hooks, module._backward_pre_hooks)
        left += [f"hook of {type(module).__name__}" for kind in hooks if kind]
    for name, parameter in model.named_parameters():
        left += [f"{key} of {name}" for key in vars(parameter)]
        left += [f"grad of {name}"] if parameter.grad is not None else []
    return left


ADDED = {"activations", "max_batch_len", "autograd_grad_sample_hooks", "ft_compute_sample_grad"}


@pytest.mark.parametrize(
    ("ghost", "task"), [(False, Net()), (True, Net()), (False, Line(Mixing()))], ids=["hooks", "ghost", "own layer"]
)
def test_nothing_of_opacus_and_of_rows_stays_on_the_model(ghost: bool, task: Task) -> None:
    model = build_model(task, 0)
    train(task, by(SGD, ghost), model=model)
    assert traces(model) == []


class Failing(Net):
    """Fails in the loss, in the gradient, or in the model, from its third call on."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place, self.calls = place, 0

    def model(self) -> nn.Module:
        return Breaking(self) if self.place != "loss" else super().model()

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self.place == "loss":
            self.fail()
        return super().loss(outputs, labels)

    def fail(self) -> None:
        self.calls += 1
        if self.calls > 2:
            raise RuntimeError("a row says 7")


class Breaking(nn.Module):
    """Two layers, between which something fails on the way there or back."""

    def __init__(self, task: Failing) -> None:
        super().__init__()
        self.first, self.second, self.task = nn.Linear(3, 5), nn.Linear(5, 1), task

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.first(rows)
        if self.task.place == "model":
            self.task.fail()
        if self.task.place == "gradient":
            hidden.register_hook(lambda _: self.task.fail())
        outputs: Tensor = self.second(hidden)
        return outputs


@ways
@pytest.mark.parametrize("place", ["loss", "model", "gradient"])
def test_nothing_stays_on_the_model_after_an_error_either(ghost: bool, place: str) -> None:
    task = Failing(place)
    model = build_model(task, 0)
    with pytest.raises(DataError, match="training raised RuntimeError") as error:
        train(task, by(SGD, ghost), model=model)
    assert "a row says" not in str(error.value)
    assert traces(model) == []


@ways
def test_observer_that_fails_leaves_the_model_clean(ghost: bool) -> None:
    model = build_model(Net(), 0)

    def observe(step: Any) -> None:
        raise TrainingError("enough")

    with pytest.raises(TrainingError, match="enough"):
        train(Net(), by(SGD, ghost), model=model, on_step=observe)
    assert traces(model) == []


@ways
def test_model_can_be_evaluated_and_trained_without_noise_afterwards(ghost: bool) -> None:
    task, settings = Net(), replace(SGD, dp=None)
    used, received = build_model(task, 0), model_to_vector(build_model(task, 0))
    data = task.train_data("source-1")
    train(task, by(SGD, ghost), model=used)

    again, fresh = (
        train_local(task, model, received, data, settings=settings, seed=1, site="source-1")
        for model in (used, build_model(task, 0))
    )

    assert again.update.tobytes() == fresh.update.tobytes()
    assert evaluate(task, used, data).samples == ROWS
    assert train(task, by(SGD, ghost), model=used, random_bytes=fixed(1)).update.tobytes() == (
        train(task, by(SGD, ghost), random_bytes=fixed(1)).update.tobytes()
    )
