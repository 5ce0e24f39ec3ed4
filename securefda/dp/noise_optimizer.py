"""Opacus' DP-SGD step with noise from a :class:`NoiseSource`. Import it where training needs it: it imports Opacus.

Opacus draws noise from torch's generator, which a seed predicts; its ``secure_mode`` wants a package that no longer
installs, and adds in the gradient's own type.
"""

from __future__ import annotations

from functools import partial

import torch
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed

from securefda.dp.noise import NoiseSource

_KNOWN = (DPOptimizer, DPOptimizerFastGradientClipping)


def take_noise_from(source: NoiseSource, optimizer: DPOptimizer) -> None:
    """Make ``optimizer`` add noise of ``source`` in every step from now on; clipping and scaling stay Opacus' own.

    The standard deviation is read in each step, as Opacus reads it: the noise multiplier of that moment times the
    clip norm. A step whose noise cannot be made raises and changes no parameter.

    Args:
        source: where noise comes from.
        optimizer: as ``PrivacyEngine.make_private`` returns it, for flat clipping in one process, with per-sample
            gradients or with ghost clipping; changed in place, so a loss that refers to it stays valid.

    Raises:
        ValueError: another optimizer of Opacus (adaptive or per-layer clipping, several processes), which draws
            noise in places of its own; or the noise multiplier or the clip norm is not above zero.
    """
    if type(optimizer) not in _KNOWN:
        names = " and ".join(known.__name__ for known in _KNOWN)
        raise ValueError(f"noise can be replaced in {names}, not in {type(optimizer).__name__}")
    if not _std(optimizer) > 0:
        raise ValueError("the noise multiplier and the clip norm must both be above zero")
    optimizer.add_noise = partial(_add_noise, source, optimizer)


def _std(optimizer: DPOptimizer) -> float:
    # Ghost clipping with an adaptive norm keeps the multiplier that it draws with apart from the accounted one.
    multiplier = getattr(optimizer, "_adjusted_noise_multiplier", optimizer.noise_multiplier)
    return float(multiplier) * float(optimizer.max_grad_norm)


def _add_noise(source: NoiseSource, optimizer: DPOptimizer) -> None:
    for parameter in optimizer.params:
        _check_processed_flag(parameter.summed_grad)  # refuses to use a sum of gradients twice
    sums = [parameter.summed_grad.reshape(-1) for parameter in optimizer.params]
    # One draw for all layers: most have few values, and each draw has its price.
    noisy = source.added_to(torch.cat(sums), _std(optimizer))
    for parameter, part in zip(optimizer.params, torch.split(noisy, [len(values) for values in sums]), strict=True):
        parameter.grad = part.view_as(parameter)
        _mark_as_processed(parameter.summed_grad)
