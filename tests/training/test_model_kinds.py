"""The kinds of models that people bring: each trains, with noise and without, or is refused by the layer's name.

Each refusal's hint is followed in a model beside it, which trains. Numbers in comments are of issues of Opacus, where
users met the same kind.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest
import torch
from opacus.layers import DPMultiheadAttention
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_linear_bn_eval
from training_private import ROWS, SGD, fixed, train
from training_tasks import SETTINGS, Line

from securefda.errors import TrainingError
from securefda.privacy.private_training import require_separate_rows
from securefda.tasks import Inputs, Samples, Task
from securefda.training import build_model, model_to_vector, train_local

WORDS, LENGTH, WIDTH = 7, 3, 4


class Kind(Line):
    """A model and the rows that it takes; labels are one number each."""

    def __init__(self, network: Callable[[], nn.Module], features: Inputs) -> None:
        super().__init__(None, SETTINGS)
        self.made, self.features = network, features

    def model(self) -> nn.Module:
        return self.made()

    def train_data(self, site: str) -> Samples:
        return Samples(self.features, torch.linspace(-1, 1, ROWS).reshape(ROWS, 1))


class Sentence(nn.Module):
    """Ids of words, (n, LENGTH), to a vector for each, to one number."""

    def __init__(
        self, *, padding: int | None = None, longest: float | None = None, positions: str = "", tied: bool = False
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=padding, max_norm=longest)
        self.places = nn.Embedding(LENGTH, WIDTH) if positions else None
        self.positions, self.between = positions, nn.Linear(WIDTH, WORDS, bias=False) if tied else None
        if self.between is not None:
            self.between.weight = self.words.weight
        self.head = nn.Linear(WORDS if tied else WIDTH, 1)

    def forward(self, ids: Tensor) -> Tensor:
        seen = self.words(ids.long())
        if self.places is not None:
            at = torch.arange(LENGTH)
            seen = seen + self.places(at if self.positions == "shared" else at.expand(len(ids), LENGTH))
        seen = self.mixed(ids, seen).mean(dim=1)
        outputs: Tensor = self.head(seen if self.between is None else self.between(seen))
        return outputs

    def mixed(self, _ids: Tensor, seen: Tensor) -> Tensor:
        return seen


class Masked(Sentence):
    def mixed(self, ids: Tensor, seen: Tensor) -> Tensor:
        return seen * (ids != 0).unsqueeze(-1)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(WORDS, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, ids: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.words(ids))
        return outputs


class Attending(Sentence):
    """A transformer's encoder layer; ``fit`` has the attention that Opacus knows."""

    def __init__(self, *, fit: bool) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 1, 8, batch_first=True)
        if fit:
            self.encoder.self_attn = DPMultiheadAttention(WIDTH, 1, batch_first=True)

    def mixed(self, _ids: Tensor, seen: Tensor) -> Tensor:
        outputs: Tensor = self.encoder(seen)
        return outputs


class Recurrent(nn.Module):
    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.memory, self.head = layer(1, WIDTH, batch_first=True), nn.Linear(WIDTH, 1)

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.memory(rows.unsqueeze(-1))[0][:, -1])
        return outputs


class Residual(nn.Module):
    """What a layer gives, plus more; added in place or not."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.first, self.more, self.head, self.in_place = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1), in_place

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.first(rows)
        more = torch.tanh(self.more(rows))
        if self.in_place:
            hidden += more
        else:
            hidden = hidden + more
        outputs: Tensor = self.head(hidden)
        return outputs


class Bounded(nn.Module):
    """Shortens its weights before it uses them: in their memory, or in memory of their own."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.first, self.head, self.in_place = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 1), in_place

    def forward(self, rows: Tensor) -> Tensor:
        bounded = torch.renorm(self.first.weight.data, 2, 0, 0.5)
        if self.in_place:
            self.first.weight.data.copy_(bounded)
        else:
            self.first.weight.data = bounded
        outputs: Tensor = self.head(torch.tanh(self.first(rows)))
        return outputs


class Frozen(nn.Module):
    """An encoder that stays as it is; with a norm that ``steady`` keeps in evaluation mode, or that is folded in."""

    def __init__(self, norm: Literal["none", "moving", "steady", "folded"]) -> None:
        super().__init__()
        first, layers, self.norm = nn.Linear(3, WIDTH), list[nn.Module](), norm
        if norm == "folded":
            layers = [fuse_linear_bn_eval(first.eval(), nn.BatchNorm1d(WIDTH).eval())]
        elif norm == "none":
            layers = [first]
        else:
            layers = [first, nn.BatchNorm1d(WIDTH)]
        self.encoder = nn.Sequential(*layers, nn.Tanh()).requires_grad_(False)
        self.head = nn.Linear(WIDTH, 1)

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        if self.norm == "steady":
            self.encoder.eval()
        return self

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.encoder(rows))
        return outputs


class TwoHeads(nn.Module):
    """An image and a table in, two numbers out, each by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.table = convolutions(nn.Identity), nn.Linear(3, 1)

    def forward(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"risk": self.image(rows["image"]), "stay": self.table(rows["table"])}


class TwoLabels(Kind):
    def loss(self, outputs: dict[str, Tensor], labels: Tensor) -> Tensor:
        return super().loss(outputs["risk"], labels) + super().loss(outputs["stay"], -labels)

    def metrics(self, outputs: dict[str, Tensor], labels: Tensor) -> dict[str, float]:
        return super().metrics(outputs["risk"], labels)


def network(*, between: Callable[[], nn.Module] = nn.Tanh) -> nn.Module:
    return nn.Sequential(nn.Linear(3, WIDTH), between(), nn.Linear(WIDTH, 1))


def convolutions(norm: Callable[[], nn.Module]) -> nn.Module:
    layers = (nn.Conv2d(1, WIDTH, 3), norm(), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 1))
    return nn.Sequential(*layers)


def pairs_of_channels(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, WIDTH, 3), nn.ReLU(), *more, nn.Flatten(), nn.Linear(9 * WIDTH, 1))


class Scaled(nn.Module):
    """A scale of its own, one number, beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.tensor(1.5)), nn.Linear(3, 1)

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.head(rows) * self.scale
        return outputs


class Classed(nn.Module):
    """What it is given, and a vector of its own before that."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.ones(1, 1, WIDTH))

    def forward(self, seen: Tensor) -> Tensor:
        return torch.cat([self.own.expand(len(seen), 1, -1), seen], dim=1)


class Beside(Sentence):
    """Such a vector beside a dropout, in the model itself or in a layer."""

    def __init__(self, *, fit: bool) -> None:
        super().__init__()
        self.dropped, self.classed = nn.Dropout(0.5), Classed()
        self.own = None if fit else nn.Parameter(torch.ones(WIDTH))

    def mixed(self, _ids: Tensor, seen: Tensor) -> Tensor:
        outputs: Tensor = self.dropped(self.classed(seen if self.own is None else seen + self.own))
        return outputs


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(1, 1, 5)

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.image(input=rows).flatten(1)
        return outputs


def one_pixel() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(WIDTH, 1))


def reflected() -> nn.Module:
    layers = (nn.Conv2d(1, WIDTH, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(25 * WIDTH, 1))


def reflected_before() -> nn.Module:
    layers = (nn.ReflectionPad2d(1), nn.Conv2d(1, WIDTH, 3), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(25 * WIDTH, 1))


def biases_alone() -> nn.Module:
    model = network()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return model


TABLE = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(5))
IMAGES = torch.randn(ROWS, 1, 5, 5, generator=torch.Generator().manual_seed(5))
TWO_CHANNELS = torch.randn(ROWS, 2, 5, 5, generator=torch.Generator().manual_seed(5)).to(
    memory_format=torch.channels_last
)
IDS = torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % WORDS


@dataclass(frozen=True)
class Expected:
    """A kind of model; where noise cannot train it, parts of the message and of the hint."""

    task: Task
    refused: str = ""
    instead: str = ""


KINDS = {
    "linear": Expected(Kind(lambda: nn.Linear(3, 1), TABLE)),
    "mlp": Expected(Kind(network, TABLE)),
    "cnn": Expected(Kind(lambda: convolutions(nn.Identity), IMAGES)),
    "cnn on channels last": Expected(Kind(pairs_of_channels, TWO_CHANNELS)),
    "cnn with dropout on channels last": Expected(Kind(lambda: pairs_of_channels(nn.Dropout(0.5)), TWO_CHANNELS)),
    "cnn on one pixel, channels last": Expected(
        Kind(one_pixel, TABLE.reshape(ROWS, 3, 1, 1).to(memory_format=torch.channels_last))
    ),
    "a scale": Expected(Kind(Scaled, TABLE)),
    "reflected borders": Expected(Kind(reflected, IMAGES), "layer 0 pads by padding_mode 'reflect'", "ReflectionPad"),
    "reflected borders before": Expected(Kind(reflected_before, IMAGES)),
    "batch norm": Expected(
        Kind(lambda: convolutions(lambda: nn.BatchNorm2d(WIDTH)), IMAGES), "layer 1 is BatchNorm2d", "GroupNorm"
    ),
    "group norm": Expected(Kind(lambda: convolutions(lambda: nn.GroupNorm(2, WIDTH)), IMAGES)),
    "residual in place": Expected(
        Kind(lambda: Residual(in_place=True), TABLE), "layer first gives what the model then changes", "x = x + f(x)"
    ),
    "residual": Expected(Kind(lambda: Residual(in_place=False), TABLE)),
    "relu in place": Expected(
        Kind(lambda: network(between=lambda: nn.ReLU(inplace=True)), TABLE), "layer 0 gives what", "ReLU() for ReLU"
    ),
    "embedding": Expected(Kind(Sentence, IDS)),
    "embedding bag": Expected(Kind(Bag, IDS), "layer words is EmbeddingBag", "torch.nn.Embedding and a mean"),
    # 618
    "embedding of floats": Expected(Kind(Sentence, IDS.float())),
    "padding": Expected(Kind(lambda: Sentence(padding=0), IDS), "layer words has a padding_idx", "(ids != padding)"),
    "bound lengths": Expected(
        Kind(lambda: Sentence(longest=1.0), IDS), "layer words has a max_norm", "leave max_norm out"
    ),
    "padding by a mask": Expected(Kind(Masked, IDS)),
    "positions": Expected(
        Kind(lambda: Sentence(positions="shared"), IDS), "layer places has no gradient of each row", ".expand("
    ),
    "positions of each row": Expected(Kind(lambda: Sentence(positions="own"), IDS)),
    # 123, 596
    "attention": Expected(
        Kind(lambda: Attending(fit=False), IDS), "layer encoder.self_attn is Multi", "opacus.layers.DPMultiheadAtt"
    ),
    "attention of opacus": Expected(Kind(lambda: Attending(fit=True), IDS)),
    # 205, 717, 783
    "gru": Expected(Kind(lambda: Recurrent(nn.GRU), TABLE), "layer memory is GRU", "opacus.layers.DPGRU"),
    "lstm": Expected(Kind(lambda: Recurrent(nn.LSTM), TABLE), "layer memory is LSTM", "opacus.layers.DPLSTM"),
    # 412, 413
    "tied weights": Expected(Kind(lambda: Sentence(tied=True), IDS)),
    "frozen encoder": Expected(Kind(lambda: Frozen("none"), TABLE)),
    "frozen encoder with a norm": Expected(
        Kind(lambda: Frozen("moving"), TABLE), "layer encoder.1 is a frozen norm", "fuse_linear_bn_eval"
    ),
    "frozen encoder with a norm in evaluation mode": Expected(
        Kind(lambda: Frozen("steady"), TABLE), "layer encoder.1 is a frozen norm", "fuse_linear_bn_eval"
    ),
    "frozen encoder with its norm folded in": Expected(Kind(lambda: Frozen("folded"), TABLE)),
    "two inputs and two outputs": Expected(TwoLabels(TwoHeads, {"image": IMAGES, "table": TABLE})),
    # 542
    "biases alone": Expected(Kind(biases_alone, TABLE)),
    "a vector beside dropout": Expected(
        Kind(lambda: Beside(fit=False), IDS), "layer (the model) has no gradient of each row", "parameter of your own"
    ),
    "a vector in a layer": Expected(Kind(lambda: Beside(fit=True), IDS)),
    "layer norm without bias": Expected(
        Kind(lambda: network(between=lambda: nn.LayerNorm(WIDTH, bias=False)), TABLE),
        "layer 1 has a weight and no bias",
        "bias=False",
    ),
    "keywords": Expected(Kind(Named, IMAGES), "layer image has no gradient of each row", "by position"),
    "compiled": Expected(
        Kind(lambda: torch.compile(network(), backend="eager"), TABLE), "layer (the model) is compiled", "torch.compile"
    ),
    "torchscript": Expected(
        Kind(lambda: torch.jit.script(network()), TABLE), "layer (the model) is TorchScript", "torch.nn modules"
    ),
}

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@each_kind
def test_a_kind_of_model_trains_without_noise(kind: Expected) -> None:
    model = build_model(kind.task, 0)
    first, rows = model_to_vector(model), kind.task.train_data("source-1")
    trained = train_local(kind.task, model, first, rows, settings=replace(SGD, dp=None), seed=1, site="source-1")
    assert trained.steps == 8
    assert trained.update.any()


@each_kind
def test_a_kind_of_model_trains_with_noise_or_is_refused_by_its_layer(kind: Expected) -> None:
    model, rows = build_model(kind.task, 0), kind.task.train_data("source-1")
    if kind.refused:
        with pytest.raises(TrainingError) as refusal:
            require_separate_rows(kind.task, model, rows, SGD)
        assert kind.refused in str(refusal.value)
        assert kind.instead in refusal.value.hint
        return
    require_separate_rows(kind.task, model, rows, SGD)
    trained = train(kind.task, data=rows)
    assert trained.steps == 8
    assert np.count_nonzero(trained.update) == len(trained.update)  # noise moves every parameter


@pytest.mark.parametrize("noise", [False, True])
def test_weights_in_memory_of_the_models_own_are_trained_like_others(noise: bool) -> None:
    updates = []
    for in_place in (True, False):
        task = Kind(lambda in_place=in_place: Bounded(in_place=in_place), TABLE)
        model, rows = build_model(task, 0), task.train_data("source-1")
        if noise:
            updates.append(train(task, model=model, data=rows, random_bytes=fixed(1)).update)
            continue
        settings = replace(SGD, dp=None)
        first = model_to_vector(model)
        updates.append(train_local(task, model, first, rows, settings=settings, seed=1, site="source-1").update)
    assert updates[0].tobytes() == updates[1].tobytes()


def test_steps_without_rows_are_noise_alone() -> None:
    """Poisson sampling can draw no row in a step; here it does in each. Issues 161, 522."""
    kind = KINDS["embedding"].task

    def none_drawn(count: int) -> bytes:
        return b"\xff" * count if count == 8 * ROWS else os.urandom(count)

    trained = train(kind, data=kind.train_data("source-1"), random_bytes=none_drawn)
    assert trained.steps == 8
    assert np.count_nonzero(trained.update) == len(trained.update)
