"""Where to train: CUDA if there is a usable GPU, else Apple's MPS, else the CPU; or what the config says."""

from __future__ import annotations

import torch

from securefda.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda", "mps")


def choose_device(name: str = "auto") -> torch.device:
    """Return the device called ``name``; "auto" takes the first of cuda, mps and cpu that this machine has.

    Raises:
        ConfigError: an unknown name, or a device that this machine does not have.
    """
    if name not in DEVICES:
        raise ConfigError("training.device", f"{name!r} is not one of {', '.join(DEVICES)}")
    usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in usable.items() if there)
    elif not usable[name]:
        have = ", ".join(kind for kind, there in usable.items() if there)
        raise ConfigError("training.device", f"this machine has no usable {name} (it has {have})", hint='use "auto"')
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def describe_device(device: torch.device, threads: int = 0) -> str:
    """Return a line for people, for example "cuda:0 (NVIDIA H200)" or, with ``threads``, "cpu (2 threads)"."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    if device.type == "cpu" and threads:
        return f"cpu ({threads} thread{'s' if threads > 1 else ''})"
    return str(device)
