"""A model as one vector: its federated parameters, flattened and joined in order, and the table of their shapes.

Federated parameters are those of ``named_parameters()`` that require a gradient, in that order. One layer is one named
parameter. Buffers, such as the running statistics of a BatchNorm, are not federated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import sha256
from operator import itemgetter
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from securefda.errors import TrainingError
from securefda.protocol.encoding import Vector
from securefda.tasks import Task, task_code
from securefda.training.batch_norm import require_fit_norms
from securefda.training.seeds import seeded_torch

LayerTable: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]


def build_model(task: Task, seed: int) -> nn.Module:
    """Return a new model of the task on the CPU, its first weights a function of ``seed`` alone.

    Raises:
        TrainingError: the model is no ``torch.nn.Module``; it has a norm over rows that sites cannot federate, see
            :func:`securefda.training.batch_norm.require_fit_norms`, no trainable parameter, or a trainable parameter
            that is lazy, not float32 or not on the CPU.
        DataError: the task's own code fails.
    """
    with seeded_torch(seed, torch.device("cpu")), task_code(type(task), "model"):
        model: object = task.model()
    if not isinstance(model, nn.Module):
        hint = "model() returns a torch.nn.Module"
        raise TrainingError(f"task {type(task).__name__}: its model is of type {type(model).__name__}", hint=hint)
    require_fit_norms(model)
    federated = _federated(model)
    if not federated:
        raise TrainingError("model: it has no trainable parameter", hint="leave requires_grad on")
    for name, parameter in federated:
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise TrainingError(f"model: parameter {name} has no shape yet", hint="give the layer its input size")
        if parameter.dtype != torch.float32:
            raise TrainingError(f"model: parameter {name} is {parameter.dtype}", hint="make it torch.float32")
        if parameter.device.type != "cpu":  # a GPU draws other first weights than the CPUs of other sites
            raise TrainingError(
                f"model: parameter {name} is on {parameter.device}",
                hint="build it on the CPU; training.device says where it is trained",
            )
    return model


def layer_table(model: nn.Module) -> LayerTable:
    """Return ((name, shape), ...) of the federated parameters, in their order."""
    return tuple((name, tuple(parameter.shape)) for name, parameter in _federated(model))


def frozen_digest(model: nn.Module) -> bytes:
    """Return the SHA-256 of names, shapes and values of the parameters that are not federated; empty without any.

    Buffers may differ from site to site and do not count.
    """
    frozen = {name: parameter for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return digest_of(frozen) if frozen else b""


def digest_of(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the SHA-256 of names, types, shapes and values, in the order of names."""
    digest = sha256()
    for name, tensor in sorted(tensors.items(), key=itemgetter(0)):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


def layer_sizes(table: LayerTable) -> tuple[int, ...]:
    """Return the number of elements of each layer; they sum to m."""
    return tuple(math.prod(shape) for _, shape in table)


def model_to_vector(model: nn.Module) -> Vector:
    """Return a new float32 vector (m,) with the federated parameters."""
    parts = [parameter.detach().reshape(-1).cpu() for _, parameter in _federated(model)]
    vector: Vector = torch.cat(parts).numpy()
    return vector


def gradient_to_vector(model: nn.Module) -> Vector:
    """Return a new float32 vector (m,) with the gradients of the federated parameters; 0 for those without one."""
    parts = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for _, parameter in _federated(model)
    ]
    vector: Vector = torch.cat([part.reshape(-1).cpu() for part in parts]).numpy()
    return vector


def vector_to_model(vector: Vector, model: nn.Module) -> None:
    """Write ``vector`` (m,) into the federated parameters of ``model``, in place.

    Raises:
        TrainingError: the vector has another length than the model.
    """
    sizes = layer_sizes(layer_table(model))
    require_length(vector, sum(sizes))
    with torch.no_grad():
        for (_, parameter), part in zip(_federated(model), np.split(vector, np.cumsum(sizes)[:-1]), strict=True):
            parameter.copy_(_tensor(part).view(parameter.shape))


class FlatModel:
    """A model whose federated parameters and gradients are views into two flat tensors, ``values`` and ``gradient``.

    A step is then a few operations on whole vectors, and memory is counted in vectors of length m. The model keeps the
    views: writing ``values`` moves the model.
    """

    def __init__(self, model: nn.Module, vector: Vector, device: torch.device) -> None:
        """Move ``model`` to ``device`` and set its parameters to a copy of ``vector`` (m,)."""
        sizes = layer_sizes(layer_table(model))
        require_length(vector, sum(sizes))
        self.model = model.to(device)
        self.values: Tensor = torch.empty(len(vector), dtype=torch.float32, device=device)
        self.values.copy_(_tensor(vector))
        self.gradient: Tensor = torch.zeros_like(self.values)
        parts = zip(torch.split(self.values, list(sizes)), torch.split(self.gradient, list(sizes)), strict=True)
        self._views: list[tuple[nn.Parameter, Tensor]] = []
        for (_, parameter), (values, gradient) in zip(_federated(model), parts, strict=True):
            # Views, no copies: an optimizer steps on one vector, and the model has moved.
            parameter.data = view = values.view(parameter.shape)
            parameter.grad = gradient.view(parameter.shape)
            self._views.append((parameter, view))

    def take_back(self) -> None:
        """Put parameters back into ``values`` to which the model's code gave other memory, by ``.data = ...``."""
        for parameter, view in self._views:
            if parameter.data_ptr() != view.data_ptr():
                view.copy_(parameter.data)
                parameter.data = view

    def release_gradient(self) -> None:
        """Free the memory of the gradient."""
        for _, parameter in _federated(self.model):
            parameter.grad = None
        self.gradient = torch.empty(0)


def require_length(vector: Vector, parameters: int) -> None:
    """Raise TrainingError unless ``vector`` is float32 of the shape (parameters,)."""
    if vector.shape != (parameters,) or vector.dtype != np.float32:
        raise TrainingError(
            f"model: it has {parameters} float32 parameters but the vector received is {vector.dtype} {vector.shape}",
            hint="run the same version of the task at every site",
        )


def _federated(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _tensor(vector: Vector) -> Tensor:
    # torch warns about read-only memory, such as a view of a received message, though nothing here writes it.
    return torch.from_numpy(vector if vector.flags.writeable else vector.copy())
