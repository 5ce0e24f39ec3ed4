"""Seeds: every random choice has its own, derived from another seed and from what the choice is for.

What all sites must agree on, the split of the data and the first model, follows from the run's seed, an ``int`` that
each of them knows. What a site trains with, its batches and what its layers draw, follows from a :class:`SecretSeed`:
of the same run, round and site it is the same, and no other site can repeat it.
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
"""Where torch's state of the CPU generator holds that of the Mersenne Twister, each word of 32 bits in 8 bytes."""


class SecretSeed(Protocol):
    """A seed that one site alone knows; no text of it shows it."""

    def of(self, *parts: str | int) -> SecretSeed:
        """The seed for the purpose that ``parts`` names, as :func:`derive_seed` has it."""

    def stream(self) -> Callable[[int], bytes]:
        """A function that returns the next n bytes of a stream; the stream restarts with every call of this method."""


Seed = int | SecretSeed


@overload
def derive_seed(seed: int, *parts: str | int) -> int: ...
@overload
def derive_seed(seed: SecretSeed, *parts: str | int) -> SecretSeed: ...
def derive_seed(seed: Seed, *parts: str | int) -> Seed:
    """Return the seed for the purpose that ``parts`` names, for example (site, round, "training").

    Of an ``int`` it is one in [0, 2**63): SHA-256 over the label, the seed and the parts. A secret one derives it
    itself.

    Raises:
        TypeError: a part is neither str nor int.
    """
    if not isinstance(seed, int):
        return seed.of(*parts)
    digest = hashlib.sha256(encode_parts(_LABEL, seed, *parts)).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _SEED_BITS)


def round_seed(seed: Seed, site: str, run_id: str, round_number: int, *purpose: str) -> Seed:
    """Return the seed of a site's training in a round; of each attempt at the round it is the same.

    A public seed leaves the run id out, which is drawn at random: runs of one seed are to be alike, in a study say.
    """
    if isinstance(seed, int):
        return derive_seed(seed, site, round_number, *purpose)
    return seed.of(run_id, site, round_number, *purpose)


def encode_parts(*parts: str | int) -> bytes:
    """Return the parts, each with its type and length, so that no two lists share bytes.

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


def generator_of(seed: Seed) -> torch.Generator:
    """A generator on the CPU of its own. Of a secret seed it has the whole state, of an int 32 bits of it."""
    generator = torch.Generator()
    if isinstance(seed, int):
        return generator.manual_seed(seed)
    _fill(generator, seed.stream())
    return generator


@contextmanager
def seeded_torch(seed: Seed, device: torch.device) -> Iterator[None]:
    """Run a block with torch's global generators seeded, and put those of the CPU and of a CUDA ``device`` back.

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
    """As :func:`seeded_torch`, with generators that cannot be guessed: ``random_bytes(n)`` returns n bytes.

    Of a seed the CPU's generator keeps 32 bits, which can all be tried. So its whole state, a Mersenne Twister's, is
    drawn. A GPU's keeps the 64 bits of its seed.
    """
    with _own_generators(device):
        _seed(int.from_bytes(random_bytes(8), "little"), device)
        _fill(torch.default_generator, random_bytes)
        yield


def _fill(generator: torch.Generator, random_bytes: Callable[[int], bytes]) -> None:
    """Draw the whole state of a generator on the CPU, which has been seeded just now or was never drawn from."""
    words = np.frombuffer(random_bytes(4 * _TWISTER_WORDS), dtype="<u4").astype(np.int64)
    state = generator.get_state()
    state[_TWISTER_AT : _TWISTER_AT + 8 * _TWISTER_WORDS].view(torch.int64).copy_(torch.from_numpy(words))
    generator.set_state(state)


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generators that layers on ``device`` draw from: the CPU's, and where it is not the CPU its own."""
    if device.type == "cpu":  # torch's own function prepares accelerators too, for 0.3 ms each time
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def _own_generators(device: torch.device) -> Iterator[None]:
    with _GLOBAL_GENERATORS:
        cpu, gpus = torch.get_rng_state(), dict[int, torch.Tensor]()
        if device.type == "cuda":  # only the GPU in use: to ask all for their state would start them
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
