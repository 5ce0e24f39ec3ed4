"""A model mixed with the labels of nearest known rows, as in kNN-Per (Marfoq, Neglia, Vidal, Kameni 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from securefda.errors import TrainingError
from securefda.tasks import Samples
from securefda.training.parameter_vectors import layer_table

_ROWS = 1024
_LEAST_PROBABILITY = 1e-12
_HINT = 'set strategy.head = "none"; under knn_per, another strategy.rule'


@dataclass(frozen=True, slots=True)
class KnnSettings:
    """Number and weight of the neighbours.

    Attributes:
        neighbours: number of nearest rows, >= 1; all known rows if there are fewer.
        weight: weight of the neighbours' labels in the mixture, in [0, 1]; the model has the rest.
        scale: distance over which a neighbour's weight falls by the factor e, > 0.
    """

    neighbours: int = 10
    weight: float = 0.5
    scale: float = 1.0


class KnnModel(nn.Module):
    """A model whose probabilities are ``weight p_kNN + (1 - weight) p_model``.

    p_kNN is the mean of the labels of the nearest known rows, weighted in proportion to ``exp(-d / scale)``, where d is
    the Euclidean distance between the inputs of the last layer. Nothing is trained.

    Args:
        model: the model with its final parameters; it is put into evaluation mode.
        known: the rows with known labels.
        settings: number and weight of the neighbours.

    Raises:
        TrainingError: the outputs are not probabilities of labels, or the last layer does not run once in each pass.
    """

    def __init__(self, model: nn.Module, known: Samples, settings: KnnSettings) -> None:
        super().__init__()
        self.model = model
        self._settings = settings
        if not isinstance(known.features, Tensor):
            raise TrainingError("the labels of nearest rows need rows of one tensor in memory", hint=_HINT)
        outputs, self._known = _last_layer_pass(model, known.features)
        self._probabilities = _label_probabilities(known.labels, outputs)

    def forward(self, features: Tensor) -> Tensor:
        """Return logarithms of probabilities, (n, classes), or of odds, (n, 1), on the CPU, without a gradient."""
        outputs, queries = _last_layer_pass(self.model, features)
        near = torch.cat([self._nearest(rows) for rows in torch.split(queries, _ROWS)])
        binary, weight = outputs.shape[1] == 1, self._settings.weight
        by_model = outputs.double().sigmoid() if binary else outputs.double().softmax(dim=1)
        both = (weight * near + (1 - weight) * by_model).clamp(_LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
        return (both.logit() if binary else both.log()).to(outputs.dtype)

    def _nearest(self, queries: Tensor) -> Tensor:
        """Return p_kNN of rows from their last-layer inputs, (n, d); (n, classes) float64."""
        distances = torch.cdist(queries, self._known)
        nearest, rows = distances.topk(min(self._settings.neighbours, len(self._known)), dim=1, largest=False)
        weights = (-nearest / self._settings.scale).softmax(dim=1)
        return torch.einsum("nk,nkc->nc", weights, self._probabilities[rows])


def _last_layer_pass(model: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of a model and the inputs of its last layer with parameters, (n, d) float64, on the CPU."""
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
            hint=f"rows must stay in dimension 0; or {_HINT}",
        )
    return outputs, torch.cat(seen)


def _label_probabilities(labels: Tensor, outputs: Tensor) -> Tensor:
    """Return labels as probabilities, (n, classes) float64, or (n, 1) for label 1 if the model has a single output."""
    classes = outputs.shape[1] if outputs.dim() == 2 else 0
    if classes > 1 and labels.dim() == 1 and not labels.is_floating_point():
        if int(labels.min()) >= 0 and int(labels.max()) < classes:
            return nn.functional.one_hot(labels.long(), classes).double()
    elif classes == 1 and labels.shape == (len(labels), 1) and bool(((labels == 0) | (labels == 1)).all()):
        return labels.double()
    raise TrainingError(
        f"the labels of nearest rows need one output for each class and whole numbers as labels, or one output and "
        f"labels of 0 and 1; outputs are {tuple(outputs.shape)} and labels {labels.dtype} {tuple(labels.shape)}",
        hint=_HINT,
    )
