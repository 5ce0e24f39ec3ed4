"""Seeds: every random choice of a run has its own, derived from the run's seed and from what the choice is for."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

_SEED_BITS = 63
_LABEL = "securefda/1/seed"
_GLOBAL_GENERATORS = threading.Lock()
_TWISTER_AT, _TWISTER_WORDS = 24, 624
"""Where torch's state of the CPU generator holds that of the Mersenne Twister, each word of 32 bits in 8 bytes."""


def derive_seed(seed: int, *parts: str | int) -> int:
    """Return a seed in [0, 2**63) for the purpose that ``parts`` names, for example (site, round, "training").

    SHA-256 over the label, the seed and the parts, each with its type and length, so that no two purposes share
    bytes: ("ab", "c"), ("a", "bc") and ("abc",) differ, and so do 1 and "1". Not for secrets.

    Raises:
        TypeError: a part is neither str nor int.
    """
    digest = hashlib.sha256()
    for part in (_LABEL, seed, *parts):
        if not isinstance(part, (str, int)) or isinstance(part, bool):
            raise TypeError(f"a seed is derived from str and int, not {type(part).__name__}")
        kind = "s" if isinstance(part, str) else "i"
        content = str(part).encode()
        digest.update(f"{kind}{len(content)}:".encode())
        digest.update(content)
    return int.from_bytes(digest.digest()[:8], "big") >> (64 - _SEED_BITS)


@contextmanager
def seeded_torch(seed: int, device: torch.device) -> Iterator[None]:
    """Run a block with torch's global generators seeded, and put those of the CPU and of a CUDA ``device`` back.

    Layers draw their first weights, and dropout its masks, from the global generators. These belong to the process,
    so blocks in other threads wait for this one. Generators of accelerators other than CUDA are left seeded.
    """
    with _own_generators(device):
        _seed(seed, device)
        yield


@contextmanager
def secret_torch(random_bytes: Callable[[int], bytes], device: torch.device) -> Iterator[None]:
    """As :func:`seeded_torch`, with generators that nobody can guess: ``random_bytes(n)`` returns n bytes.

    Of a seed the CPU's generator keeps 32 bits, which can all be tried. So its whole state, a Mersenne Twister's, is
    drawn. A GPU's keeps the 64 bits of its seed.
    """
    with _own_generators(device):
        _seed(int.from_bytes(random_bytes(8), "little"), device)
        words = np.frombuffer(random_bytes(4 * _TWISTER_WORDS), dtype="<u4").astype(np.int64)
        state = torch.get_rng_state()
        state[_TWISTER_AT : _TWISTER_AT + 8 * _TWISTER_WORDS].view(torch.int64).copy_(torch.from_numpy(words))
        torch.set_rng_state(state)
        yield


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generators that layers on ``device`` draw from: the CPU's, and where it is not the CPU its own."""
    if device.type == "cpu":  # torch's own function prepares accelerators too, for 0.3 ms each time
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def _own_generators(device: torch.device) -> Iterator[None]:
    with _GLOBAL_GENERATORS, torch.random.fork_rng(devices=_saved_gpus(device)):
        yield


def _saved_gpus(device: torch.device) -> list[int]:
    """Only the GPU in use: to ask all for their state would start them."""
    if device.type != "cuda":
        return []
    return [torch.cuda.current_device() if device.index is None else device.index]
