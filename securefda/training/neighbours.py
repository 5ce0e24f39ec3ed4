"""The labels of the nearest of the target's own rows beside the common model: kNN-Per (Marfoq et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from securefda.errors import TrainingError
from securefda.protocol.encoding import Vector
from securefda.tasks import Samples, task_code
from securefda.training.local import Evaluation, accuracy_in
from securefda.training.personal import OwnRows
from securefda.training.vectors import layer_table, vector_to_model

_ROWS = 1024
_LEAST_PROBABILITY = 1e-12


class Neighbours:
    """Probabilities ``weight p_kNN + (1 - weight) p_model``.

    A row's representation is what the last layer is given. Of the nearest rows by Euclidean distance d, each says its
    label with a weight in proportion to ``exp(-d / scale)``. Nothing is trained, and nothing kept.

    Raises:
        TrainingError: the task's outputs are no probabilities of labels, or the last layer is not used once in each
            pass.
    """

    def __init__(self, rows: OwnRows, *, neighbours: int, weight: float, scale: float) -> None:
        """``neighbours`` at least 1; more than there are rows means all of them."""
        self._rows = rows
        self._neighbours, self._weight, self._scale = neighbours, weight, scale
        self._mixed(rows.data)  # what does not fit is found before the first round

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Nothing: the model is the common one."""

    def evaluate(self, model: Vector, run_id: str, round_number: int, data: Samples) -> Evaluation:  # noqa: ARG002
        """Of both together; the outputs that the task sees are logarithms of probabilities, or of odds."""
        vector_to_model(model, self._rows.model)
        outputs, task = self._mixed(data), self._rows.task
        with task_code(type(task), "evaluation"):
            loss = float(task.loss(outputs, data.labels))
            metrics = task.metrics(outputs, data.labels)
        accuracy_in(metrics, task)
        return Evaluation(loss, metrics, len(data))

    def _mixed(self, data: Samples) -> Tensor:
        """The outputs for each row of ``data``, by the model as it stands."""
        model, own = self._rows.model, self._rows.data
        with torch.no_grad(), task_code(type(self._rows.task), "evaluation"):
            _, known = _seen_by_the_last_layer(model, own)
            outputs, asked = _seen_by_the_last_layer(model, data)
        said = _probabilities_of(own.labels, outputs)
        near = torch.cat([self._nearest(rows, known, said) for rows in torch.split(asked, _ROWS)])
        binary = outputs.shape[1] == 1
        by_model = outputs.double().sigmoid() if binary else outputs.double().softmax(dim=1)
        both = (self._weight * near + (1 - self._weight) * by_model).clamp(_LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
        return (both.logit() if binary else both.log()).to(outputs.dtype)

    def _nearest(self, asked: Tensor, known: Tensor, said: Tensor) -> Tensor:
        """What the nearest of the known rows say of the asked ones, (n, classes)."""
        distances = torch.cdist(asked, known)
        nearest, rows = distances.topk(min(self._neighbours, len(known)), dim=1, largest=False)
        weights = (-nearest / self._scale).softmax(dim=1)
        return torch.einsum("nk,nkc->nc", weights, said[rows])


def _seen_by_the_last_layer(model: nn.Module, data: Samples) -> tuple[Tensor, Tensor]:
    """Outputs, and what the last layer with parameters was given, (n, d) float64, both on the CPU."""
    name = layer_table(model)[-1][0].rpartition(".")[0]
    seen: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_pre_hook(
        lambda _module, given: seen.append(given[0].flatten(1).cpu().double())
    )
    device = next(model.parameters()).device
    model.eval()
    try:
        outputs = torch.cat([model(rows.to(device)).cpu() for rows in torch.split(data.features, _ROWS)])
    finally:
        hook.remove()
    if [len(rows) for rows in seen] != [len(rows) for rows in torch.split(data.features, _ROWS)]:
        raise TrainingError(
            f"model {type(model).__name__}: its last layer {name or '(the model)'} is not given each row once",
            hint='rows must stay in dimension 0; use another strategy.rule than "knn_per"',
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
        f"knn_per needs one output for each class and whole numbers as labels, or one output and labels of 0 and 1; "
        f"outputs are {tuple(outputs.shape)} and labels {labels.dtype} {tuple(labels.shape)}",
        hint="use another strategy.rule",
    )
