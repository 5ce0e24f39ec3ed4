"""The device and the number of threads that train.

The device is CUDA if there is a usable GPU, else Apple's MPS, else the CPU, unless the settings name one. A step uses
as many threads as its work is worth, not as many as there are cores.

A step of a small model takes microseconds. Handing parts of it to other threads, and waiting for them, takes longer,
and far longer where other processes use the same cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from securefda.errors import ConfigError
from securefda.machine import usable_cores
from securefda.tasks.inputs import Inputs, in_memory, take
from securefda.tasks.task_code import OTHER_DEVICE

DEVICES = ("auto", "cpu", "cuda", "mps")


def choose_device(name: str = "auto") -> torch.device:
    """Return the device called ``name``; "auto" takes the first of cuda, mps and cpu that this machine has.

    Raises:
        ConfigError: an unknown name, or a device that this machine does not have or cannot use.
    """
    if name not in DEVICES:
        raise ConfigError("training.device", f"{name!r} is not one of {', '.join(DEVICES)}")
    usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in usable.items() if there)
    elif not usable[name]:
        have = ", ".join(kind for kind, there in usable.items() if there)
        without = name == "cuda" and torch.version.cuda is None and torch.version.hip is None
        hint = 'use "auto"' + (f", or install PyTorch with CUDA (this is {torch.__version__})" if without else "")
        raise ConfigError("training.device", f"this machine has no usable {name} (it has {have})", hint=hint)
    if name != "cuda":
        return torch.device(name)
    try:
        device = torch.device("cuda", torch.cuda.current_device())
        torch.ones(1, device=device).item()  # a GPU may be seen that is too old for this PyTorch, full, or another's
    except (AssertionError, RuntimeError) as error:
        why = f"the GPU cannot be used: {str(error).splitlines()[0]}"
        raise ConfigError("training.device", why, hint=OTHER_DEVICE) from error
    return device


def describe_device(device: torch.device, threads: int = 0) -> str:
    """Return the device for display, such as "cuda:0 (NVIDIA H200)" or, with ``threads``, "cpu (2 threads)"."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    if device.type == "cpu" and threads:
        return f"cpu ({threads} thread{'s' if threads > 1 else ''})"
    return str(device)


WORK_PER_THREAD = 20_000_000
"""Multiply-adds of a forward pass that are worth a thread: some milliseconds of a step. The manual's page on threads
measures the effect of more threads."""


def choose_threads(setting: int, work: Callable[[], int], env: Mapping[str, str] = os.environ) -> int:
    """Return the number of threads that a step of training uses.

    Args:
        setting: ``training.threads``; 0 leaves the choice to the environment, and then to the work.
        work: counts the multiply-adds of one forward pass over a batch, see :func:`multiply_adds`; called if needed.
        env: environment; ``OMP_NUM_THREADS`` is the number and ``OMP_THREAD_LIMIT`` the most, as in OpenMP.
    """
    if setting:
        return setting
    if env.get("OMP_NUM_THREADS"):
        return torch.get_num_threads()  # torch has read it
    limit = env.get("OMP_THREAD_LIMIT", "")
    most = min(usable_cores(), int(limit)) if limit.isdecimal() else usable_cores()
    return max(1, min(work() // WORK_PER_THREAD, most))


def multiply_adds(model: nn.Module, features: Inputs) -> int:
    """Return the number of multiply-adds of a forward pass for one row.

    It counts layers with a ``weight`` of two dimensions or more, once for each position of their output, and returns at
    least the number of parameters. Functions without a layer do not count.

    Args:
        model: the model, on the CPU; it runs once in evaluation mode, and then returns to its own mode.
        features: rows, as of ``Samples``; only the first passes through the model.
    """
    counted = 0

    def count(layer: nn.Module, _: Any, output: Any) -> None:
        nonlocal counted
        weight = getattr(layer, "weight", None)
        looks_up = isinstance(layer, (nn.Embedding, nn.EmbeddingBag))
        if isinstance(weight, Tensor) and weight.dim() > 1 and isinstance(output, Tensor) and not looks_up:
            counted += weight.numel() * output.numel() // weight.shape[0]

    hooks = [layer.register_forward_hook(count) for layer in model.modules()]
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(in_memory(take(features, slice(1))))
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return max(counted, sum(parameter.numel() for parameter in model.parameters()))
