"""Gaussian noise from AES-256-CTR, with a new key from the operating system for each draw.

torch's generators are not used: whoever knows or sets their seeds can neither predict nor change this noise.

**Law.** Each value is half the sum of four standard normals (Holohan & Braghin, ESORICS 2021). They come from the
Box-Muller transform, whose pair (r cos a, r sin a) goes to two *different* values: the sum of both halves would be one
normal again, with its angle turned. So two values are made of four radii of 64 bits and four angles of 32 bits. To list
all the ways in which a value can arise is beyond reach; for one float64 normal it is not.

**Precision.** Radii, products and sums are float64: the radius alone decides how far out a value can be, and its law
has a resolution of 2^-63 in probability. Angles, sines and cosines are float32, which takes a fifth of the time; of an
angle's 32 bits, 27 are left. That moves a value by 5e-8 standard deviations (root mean square), and by 1.1e-7 times the
sum of its four radii at most: half a step of the grid in the worst of three million. As products keep 53 bits, it
leaves no lattice in the low bits of a value.

**Sum.** Release only results of :meth:`NoiseSource.added_to`. Simply adding float32 noise to a float32 gradient leaks:
if they nearly cancel, the low bits of the sum reveal the exponent of the gradient (Mironov 2012; Jin et al. 2022). So
the sum is made in float64 and rounded to a grid that depends only on the standard deviation.

This is not a proof of differential privacy in floating point, as a discrete Gaussian would allow. Nor does it protect
against a reader of this process's memory, which holds noise and gradients.

**Opacus.** :func:`take_noise_from` gives Opacus's DP-SGD step the noise of a :class:`NoiseSource`. Opacus itself draws
noise from torch's generator, which a seed predicts; its ``secure_mode`` needs a package that no longer installs, and
adds noise in the gradient's own type. Import this module only where training needs it, as it imports Opacus.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from torch import Tensor

from securefda.protocol.secret import RandomBytes
from securefda.training.team import Team

KEY_BYTES = 32
SAMPLES = 4
"""Standard normals in each value."""

PAIRS = 16 * 1024
"""Pairs of values made at a time: few calls, and the working set of each nearly fits in a 1 MiB level-2 cache."""

LARGEST = 19.0
"""Bound of every value, in standard deviations. A true normal exceeds it with a probability below 1e-79."""

GRID_BITS = 20
"""The grid of ``added_to`` is the power of two at or below the standard deviation, over 2 to this."""

_RADIUS_BYTES, _ANGLE_BYTES = 8, 4
_RADIANS_PER_STEP = math.pi / 2**31
_SMALLEST_SQUARE = torch.tensor(2.0**-130, dtype=torch.float64)  # keeps the logarithm finite when all 64 bits are zero


@dataclass(frozen=True, slots=True)
class NoiseSource:
    """Draws Gaussian noise; holds no key, no counter and no seed.

    Each draw takes a new 32-byte key from ``random_bytes`` and forgets it. So as long as ``random_bytes`` does not
    repeat itself, noise never repeats: not after a restart, in a forked process or in another thread.

    Args:
        random_bytes: source of the keys, on which all security depends; anything but ``os.urandom`` is for tests.
    """

    random_bytes: RandomBytes = field(default=os.urandom, repr=False)

    def normal(
        self,
        shape: Sequence[int],
        std: float,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Return independent draws from N(0, std²), made on the host in float64 and rounded once to ``dtype``.

        To hide a value, use :meth:`added_to`: adding this tensor in float32 leaks (see the module).

        Args:
            shape: of the result; may hold no element.
            std: standard deviation, above zero.
            dtype: a floating-point type.
            device: where the result goes.

        Raises:
            ValueError: ``dtype`` is no floating-point type; ``std`` is zero, negative, not finite, or such that
                ``dtype`` cannot hold the noise; ``random_bytes`` gave another number of bytes.
        """
        _check_std(std, dtype)
        noise = torch.empty(tuple(shape), dtype=dtype)
        flat = noise.view(-1)
        for start, unit in self._blocks(flat.numel()):
            flat[start : start + unit.numel()] = unit.mul_(std)
        return noise.to(device)

    def added_to(self, tensor: Tensor, std: float, *, overwrite: bool = False) -> Tensor:
        """Return ``tensor`` plus independent N(0, std²), on a grid that reveals nothing about ``tensor``.

        The sum is made on the host in float64, rounded to a multiple of :func:`grid_of` ``(std)``, then to the type of
        ``tensor``. Whatever the tensor was, the result is such a multiple (before the last rounding).

        Args:
            tensor: dense, floating point, any device.
            std: standard deviation, above zero.
            overwrite: the result may take the place of ``tensor``; else that is unchanged.

        Returns:
            A tensor with the shape, type and device of ``tensor``, outside any autograd graph.

        Raises:
            ValueError: as for :meth:`normal`; ``tensor`` is sparse, or holds a value that is not finite, which no noise
                hides.
        """
        _check_std(std, tensor.dtype)
        if tensor.layout != torch.strided:
            raise ValueError(f"noise is added to dense tensors, not to {tensor.layout}")
        hidden = tensor.detach().to("cpu", copy=not overwrite).contiguous()
        if hidden.numel() and not all(math.isfinite(end) for end in torch.aminmax(hidden)):
            raise ValueError("the tensor holds a value that is not finite, and no noise hides that")
        flat, grid = hidden.view(-1), grid_of(std)
        for start, steps in self._blocks(flat.numel(), std / grid):  # noise in steps of the grid, 2^20 to 2^21
            part = flat[start : start + steps.numel()]
            # The grid is a power of two, so dividing and multiplying by it rounds nothing.
            part.copy_(steps.add_(part, alpha=1 / grid).round_().mul_(grid))
        return hidden.to(tensor.device)

    def _blocks(self, count: int, scale: float = 1.0) -> Iterator[tuple[int, Tensor]]:
        """Yield ``(start, values)`` up to ``count`` normals of deviation ``scale``; each block reuses one tensor."""
        if count == 0:
            return
        block = _Block(min(PAIRS, -(-count // 2)), _keystream(self.random_bytes))
        for start in range(0, count, block.values.numel()):
            block.renew(scale)
            yield start, block.values[: count - start]


def grid_of(std: float) -> float:
    """Return the spacing of the values that ``added_to`` returns: a power of two, at most ``std`` / 2^20."""
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - GRID_BITS)


def _check_std(std: float, dtype: torch.dtype) -> None:
    if not dtype.is_floating_point:
        raise ValueError(f"noise is drawn in a floating-point type, not {dtype}")
    limits = torch.finfo(dtype)
    smallest = max(limits.tiny, torch.finfo(torch.float32).tiny)  # below it, float64 itself runs out on the grid
    if not smallest <= std <= limits.max / LARGEST:  # also false for a std that is no number
        raise ValueError(f"{dtype} cannot hold noise of standard deviation {std:g}")


def _keystream(random_bytes: RandomBytes) -> CipherContext:
    key = random_bytes(KEY_BYTES)
    if len(key) != KEY_BYTES:
        raise ValueError(f"the random source returned {len(key)} bytes instead of {KEY_BYTES}")
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()  # one key, one stream: it starts at zero


class _Block:
    """Working memory of one draw: ``values`` holds 2 * ``pairs`` standard normals, times a scale, after each ``renew``.

    A block takes 12 bytes of keystream for each of SAMPLES * ``pairs`` Box-Muller pairs: first all radii, int64, then
    all angles, int32, little-endian. Pair number ``i`` of each sample goes to the values ``i`` and ``pairs + i``.
    """

    def __init__(self, pairs: int, keystream: CipherContext) -> None:
        self._keystream = keystream
        shape = SAMPLES, pairs
        self._bits = bytearray(SAMPLES * pairs * (_RADIUS_BYTES + _ANGLE_BYTES))
        self._zeros = bytes(len(self._bits))
        self._radius_bits = torch.frombuffer(self._bits, dtype=torch.int64, count=SAMPLES * pairs).view(shape)
        self._angle_bits = np.frombuffer(self._bits, np.int32, offset=SAMPLES * pairs * _RADIUS_BYTES).reshape(shape)
        self._radius = np.empty(shape)
        self._angle, self._turned = np.empty((2, *shape), np.float32)
        self._halves = np.empty((2, pairs))
        self.values = torch.from_numpy(self._halves).view(-1)

    def renew(self, scale: float = 1.0) -> None:
        self._keystream.update_into(self._zeros, self._bits)
        self._transform(scale)
        for half, turn in zip(self._halves, (np.cos, np.sin), strict=True):
            turn(self._angle, out=self._turned)
            np.einsum("ij,ij->j", self._radius, self._turned, out=half)  # in float64

    def _transform(self, scale: float) -> None:
        """Turn the bits into radii, halved and scaled, and into angles."""
        # In place throughout: beside another array of its size, the block would not fit in the cache.
        radius = torch.from_numpy(self._radius).copy_(self._radius_bits)
        # the square of a uniform on (0, 1], fine near zero: the sign is gone, and no offset lost
        torch.addcmul(_SMALLEST_SQUARE, radius, radius, value=2.0**-126, out=radius)
        np.log(self._radius, out=self._radius)
        np.multiply(self._radius, -0.25 * scale**2, out=self._radius)
        np.sqrt(self._radius, out=self._radius)  # sqrt(-2 log u) / 2 * scale
        # in float64, rounded once: pi of float32 would make a turn too long, and the mean of cosines less than zero
        np.multiply(self._angle_bits, _RADIANS_PER_STEP, out=self._angle, casting="same_kind")


_KNOWN = (DPOptimizer, DPOptimizerFastGradientClipping)


def take_noise_from(source: NoiseSource, optimizer: DPOptimizer, team: Team | None = None) -> None:
    """Make ``optimizer`` add noise of ``source`` in every step from now on; clipping and scaling stay Opacus' own.

    The standard deviation is read in each step, as Opacus reads it: the noise multiplier of that moment times the
    clip norm. A step whose noise cannot be made raises and changes no parameter.

    Args:
        source: where noise comes from.
        optimizer: as ``PrivacyEngine.make_private`` returns it, for flat clipping in one process, with per-sample
            gradients or with ghost clipping; changed in place, so a loss that refers to it stays valid.
        team: of processes that each clipped a part of the step's rows. Their sums are summed, the leader adds noise
            once, and all take the same step.

    Raises:
        ValueError: another optimizer of Opacus (adaptive or per-layer clipping, several processes), which draws
            noise in places of its own; or the noise multiplier or the clip norm is not above zero.
    """
    # Not isinstance: subclasses clip by layers or adaptively, and draw noise in places of their own.
    if type(optimizer) not in _KNOWN:
        names = " and ".join(known.__name__ for known in _KNOWN)
        raise ValueError(f"noise can be replaced in {names}, not in {type(optimizer).__name__}")
    if not _std(optimizer) > 0:
        raise ValueError("the noise multiplier and the clip norm must both be above zero")
    optimizer.add_noise = partial(_add_noise, source, optimizer, team)


def _std(optimizer: DPOptimizer) -> float:
    # Ghost clipping with an adaptive norm keeps the multiplier that it draws with apart from the accounted one.
    multiplier = getattr(optimizer, "_adjusted_noise_multiplier", optimizer.noise_multiplier)
    return float(multiplier) * float(optimizer.max_grad_norm)


def _add_noise(source: NoiseSource, optimizer: DPOptimizer, team: Team | None) -> None:
    for parameter in optimizer.params:
        _check_processed_flag(parameter.summed_grad)  # refuses to use a sum of gradients twice
    sums = [parameter.summed_grad.reshape(-1) for parameter in optimizer.params]
    # One draw for all layers: most have few values, and each draw has its price.
    noisy = torch.cat(sums)
    if team is not None:
        team.sum(noisy)
    # Once for all processes: each adding its own would add up to more than the ledger accounts for.
    if team is None or team.leads:
        noisy = source.added_to(noisy, _std(optimizer), overwrite=True)
    if team is not None:
        team.broadcast_step(noisy)
    for parameter, part in zip(optimizer.params, torch.split(noisy, [len(values) for values in sums]), strict=True):
        parameter.grad = part.view_as(parameter)
        _mark_as_processed(parameter.summed_grad)
