"""Seeds: every random choice has its own, derived from another seed and from the purpose of the choice.

Choices on which all sites must agree, such as the split of the data and the first model, follow from the run's seed, an
``int`` that all sites know. A site's training, its batches and random layers, follows from a :class:`SecretSeed`. For
the same run, round and site it is the same, and no other site can repeat it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol, overload

import numpy as np
import torch

_SEED_BITS = 63
_LABEL = "securefda/1/seed"
_GLOBAL_GENERATORS = threading.Lock()
_TWISTER_AT, _TWISTER_WORDS = 24, 624
"""Place and length of the Mersenne Twister's state in a CPU generator's: words of 32 bits in 8 bytes each."""


class SecretSeed(Protocol):
    """A seed that one site alone knows; its repr does not show it."""

    def of(self, *parts: str | int) -> SecretSeed:
        """Return the seed for the purpose that ``parts`` name, as in :func:`derive_seed`."""

    def stream(self) -> Callable[[int], bytes]:
        """Return a function that gives the next n bytes of a stream; every call of this method restarts the stream."""


Seed = int | SecretSeed


@overload
def derive_seed(seed: int, *parts: str | int) -> int: ...
@overload
def derive_seed(seed: SecretSeed, *parts: str | int) -> SecretSeed: ...
def derive_seed(seed: Seed, *parts: str | int) -> Seed:
    """Return the seed for the purpose that ``parts`` name, for example (site, round, "training").

    From an ``int`` it is an int in [0, 2**63), by SHA-256 over the label, the seed and the parts. A secret seed derives
    another secret seed.

    Raises:
        TypeError: a part is neither str nor int.
    """
    if not isinstance(seed, int):
        return seed.of(*parts)
    digest = hashlib.sha256(encode_parts(_LABEL, seed, *parts)).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _SEED_BITS)


def round_seed(seed: Seed, site: str, run_id: str, round_number: int, *purpose: str) -> Seed:
    """Return the seed of a site's training in a round, or of another purpose; it is the same at every attempt.

    A public seed leaves the run id out, since it is random, and runs of a study with one seed have to be alike.
    """
    if isinstance(seed, int):
        return derive_seed(seed, site, round_number, *purpose)
    return seed.of(run_id, site, round_number, *purpose)


def encode_parts(*parts: str | int) -> bytes:
    """Return an injective encoding of the parts: each with its type and length.

    ("ab", "c"), ("a", "bc") and ("abc",) differ, and so do 1 and "1".

    Raises:
        TypeError: a part is neither str nor int.
    """
    encoded = b""
    for part in parts:
        if not isinstance(part, (str, int)) or isinstance(part, bool):
            raise TypeError(f"a seed is derived from str and int, not {type(part).__name__}")
        kind = "s" if isinstance(part, str) else "i"
        content = str(part).encode()
        encoded += f"{kind}{len(content)}:".encode() + content
    return encoded


def new_generator(seed: Seed) -> torch.Generator:
    """Return a new CPU generator. A secret seed fills its whole state; an int only seeds it with 32 bits."""
    generator = torch.Generator()
    if isinstance(seed, int):
        return generator.manual_seed(seed)
    _fill(generator, seed.stream())
    return generator


@contextmanager
def seeded_torch(seed: Seed, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators for a block; then restore those of the CPU and of a CUDA ``device``.

    Layers draw their first weights, and dropout its masks, from the global generators. These belong to the process,
    so blocks in other threads wait for this one. Generators of accelerators other than CUDA are left seeded.
    """
    if not isinstance(seed, int):
        with secret_torch(seed.stream(), device):
            yield
        return
    with _own_generators(device):
        _seed(seed, device)
        yield


@contextmanager
def secret_torch(random_bytes: Callable[[int], bytes], device: torch.device) -> Iterator[None]:
    """Fill torch's global generators from ``random_bytes(n)`` for a block; then restore them. They cannot be guessed.

    The CPU's generator keeps only 32 bits of a seed, and all of them can be tried. So its whole state, a Mersenne
    Twister's, is drawn. A GPU's generator keeps 64 bits of its seed.
    """
    with _own_generators(device):
        # For the GPU, and so that the state that is filled next is that of a new generator.
        _seed(int.from_bytes(random_bytes(8), "little"), device)
        _fill(torch.default_generator, random_bytes)
        yield


def _fill(generator: torch.Generator, random_bytes: Callable[[int], bytes]) -> None:
    """Draw the whole state of a CPU generator, which must be newly seeded or unused."""
    words = np.frombuffer(random_bytes(4 * _TWISTER_WORDS), dtype="<u4").astype(np.int64)
    state = generator.get_state()
    state[_TWISTER_AT : _TWISTER_AT + 8 * _TWISTER_WORDS].view(torch.int64).copy_(torch.from_numpy(words))
    generator.set_state(state)


def _seed(seed: int, device: torch.device) -> None:
    """Seed the CPU's generator and, if ``device`` is not the CPU, the device's."""
    if device.type == "cpu":  # torch's own function prepares accelerators too, for 0.3 ms each time
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def _own_generators(device: torch.device) -> Iterator[None]:
    # Of the process: a block in another thread would draw from the middle of this one.
    with _GLOBAL_GENERATORS:
        cpu, gpus = torch.get_rng_state(), dict[int, torch.Tensor]()
        if device.type == "cuda":  # only the GPU in use: asking the others for their state would start them
            gpu = torch.cuda.current_device() if device.index is None else device.index
            gpus[gpu] = torch.cuda.get_rng_state(gpu)
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # after a kernel that failed all of CUDA fails; the block raised the cause
                _put_back(cpu, gpus)
            raise
        _put_back(cpu, gpus)


def _put_back(cpu: torch.Tensor, gpus: dict[int, torch.Tensor]) -> None:
    torch.set_rng_state(cpu)
    for gpu, state in gpus.items():
        torch.cuda.set_rng_state(state, gpu)
