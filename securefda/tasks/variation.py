"""Data augmentation: random changes of rows that leave the label true."""

from __future__ import annotations

import math

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


def placed(
    images: Tensor, generator: torch.Generator, *, most: float, scales: tuple[float, float], turn: float
) -> Tensor:
    """Scale, turn and shift each of the images (n, channels, height, width) at random; edges go on beyond the image.

    Args:
        images: the images, of as many rows of pixels as columns.
        generator: on the CPU; every shift, scale and angle within the bounds is equally likely.
        most: shift each way, at most, as a share of the side.
        scales: the least and the greatest factor by which what is seen grows.
        turn: angle each way, at most, in degrees.
    """
    scale, angle, down, right = torch.rand(4, len(images), generator=generator)
    back = 1 / (scales[0] + (scales[1] - scales[0]) * scale)
    radians = math.radians(turn) * (2 * angle - 1)
    along, across = back * radians.cos(), back * radians.sin()
    to_right, to_bottom = (2 * most * back * (2 * way - 1) for way in (right, down))
    maps = torch.stack([along, -across, to_right, across, along, to_bottom], dim=1).view(-1, 2, 3)
    grid = nn.functional.affine_grid(maps, list(images.shape), align_corners=False).to(images.device)
    placed_anew: Tensor = nn.functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return placed_anew


def recoloured(images: Tensor, least: float, generator: torch.Generator) -> Tensor:
    """Give each channel of each of the images (n, channels, height, width), in [0, 1], another contrast at random.

    Half of the channels are inverted. Each is then scaled by a factor between ``least`` and 1, and brightened by any
    amount that leaves it in [0, 1].
    """
    inverted, contrast, light = torch.rand(3, *images.shape[:2], 1, 1, generator=generator).to(images.device)
    contrast = least + (1 - least) * contrast
    coloured: Tensor = torch.where(inverted < 0.5, 1 - images, images) * contrast + light * (1 - contrast)
    return coloured
