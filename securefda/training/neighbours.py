"""What the nearest of known rows say beside a model: the local head of kNN-Per (Marfoq, Neglia, Vidal, Kameni 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from securefda.errors import TrainingError
from securefda.tasks import Samples
from securefda.training.vectors import layer_table

_ROWS = 1024
_LEAST_PROBABILITY = 1e-12
_ANOTHER = 'set strategy.head = "none"; under knn_per, another strategy.rule'


@dataclass(frozen=True, slots=True)
class KnnSettings:
    """Who has a say, and how much.

    Attributes:
        neighbours: how many of the known rows; more than there are means all of them.
        weight: of what they say, in [0, 1]; the model has the rest.
        scale: distance over which what a row says falls by the factor e, above 0.
    """

    neighbours: int = 10
    weight: float = 0.5
    scale: float = 1.0


class WithNeighbours(nn.Module):
    """A model whose probabilities are ``weight p_kNN + (1 - weight) p_model``.

    A row's representation is what the last layer is given. Of the nearest known rows by Euclidean distance d, each says
    its label with a weight in proportion to ``exp(-d / scale)``. Nothing is trained.

    Args:
        model: with the parameters that it is to keep; it is put in evaluation mode.
        known: the rows whose labels have a say.
        settings: who, and how much.

    Raises:
        TrainingError: the outputs are no probabilities of labels, or the last layer is not used once in each pass.
    """

    def __init__(self, model: nn.Module, known: Samples, settings: KnnSettings) -> None:
        super().__init__()
        self.model = model
        self._settings = settings
        outputs, self._known = _seen_by_the_last_layer(model, known.features)
        self._said = _probabilities_of(known.labels, outputs)

    def forward(self, features: Tensor) -> Tensor:
        """Logarithms of probabilities, (n, classes), or of odds, (n, 1), on the CPU, without a gradient."""
        outputs, asked = _seen_by_the_last_layer(self.model, features)
        near = torch.cat([self._nearest(rows) for rows in torch.split(asked, _ROWS)])
        binary, weight = outputs.shape[1] == 1, self._settings.weight
        by_model = outputs.double().sigmoid() if binary else outputs.double().softmax(dim=1)
        both = (weight * near + (1 - weight) * by_model).clamp(_LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
        return (both.logit() if binary else both.log()).to(outputs.dtype)

    def _nearest(self, asked: Tensor) -> Tensor:
        """What the nearest of the known rows say of the asked ones, (n, classes)."""
        distances = torch.cdist(asked, self._known)
        nearest, rows = distances.topk(min(self._settings.neighbours, len(self._known)), dim=1, largest=False)
        weights = (-nearest / self._settings.scale).softmax(dim=1)
        return torch.einsum("nk,nkc->nc", weights, self._said[rows])


def _seen_by_the_last_layer(model: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs, and what the last layer with parameters was given, (n, d) float64, both on the CPU."""
    name = layer_table(model)[-1][0].rpartition(".")[0]
    seen: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_pre_hook(
        lambda _module, given: seen.append(given[0].flatten(1).cpu().double())
    )
    device = next(model.parameters()).device
    model.eval()
    try:
        with torch.no_grad():
            outputs = torch.cat([model(rows.to(device)).cpu() for rows in torch.split(features, _ROWS)])
    finally:
        hook.remove()
    if [len(rows) for rows in seen] != [len(rows) for rows in torch.split(features, _ROWS)]:
        raise TrainingError(
            f"model {type(model).__name__}: its last layer {name or '(the model)'} is not given each row once",
            hint=f"rows must stay in dimension 0; or {_ANOTHER}",
        )
    return outputs, torch.cat(seen)


def _probabilities_of(labels: Tensor, outputs: Tensor) -> Tensor:
    """Labels as probabilities, (n, classes) float64: of one class for each number, or of yes for a single output."""
    classes = outputs.shape[1] if outputs.dim() == 2 else 0
    if classes > 1 and labels.dim() == 1 and not labels.is_floating_point():
        if int(labels.min()) >= 0 and int(labels.max()) < classes:
            return nn.functional.one_hot(labels.long(), classes).double()
    elif classes == 1 and labels.shape == (len(labels), 1) and bool(((labels == 0) | (labels == 1)).all()):
        return labels.double()
    raise TrainingError(
        f"the labels of nearest rows need one output for each class and whole numbers as labels, or one output and "
        f"labels of 0 and 1; outputs are {tuple(outputs.shape)} and labels {labels.dtype} {tuple(labels.shape)}",
        hint=_ANOTHER,
    )
