"""Rows a little changed, in ways that change no label: what pseudo-labels are trained on."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def shifted(images: Tensor, most: int, generator: torch.Generator, *, empty: float = 0.0) -> Tensor:
    """Shift each of the images (n, channels, height, width) by up to ``most`` pixels each way, at random.

    Args:
        images: the images.
        most: how far at most, at least 0.
        generator: on the CPU; every shift is equally likely.
        empty: value of the pixels that come in.
    """
    count, channels, height, width = images.shape
    down, right = torch.randint(2 * most + 1, (2, count), generator=generator)
    rows = (torch.arange(height) + down[:, None])[:, None, :, None]
    columns = (torch.arange(width) + right[:, None])[:, None, None, :]
    padded = nn.functional.pad(images, (most,) * 4, value=empty)
    return padded[torch.arange(count)[:, None, None, None], torch.arange(channels)[:, None, None], rows, columns]
