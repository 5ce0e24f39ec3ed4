"""Make the frozen layers of ``task.options.features = "mnist"`` of the digits example, from MNIST.

    python benchmarks/digit_features.py --data-dir DIR [--out FILE]

DIR holds the files of MNIST, which is public: what is learnt from it costs no site anything. Each image is brought to
the form of the digits that the example has: cut to its box, stretched to the full height, made black and white at 32 x
32 pixels, and averaged to 8 x 8. While the network trains it is turned by up to 50 degrees, shifted, and made darker,
lighter and noisy, so that its features hold for many domains. Printed: how many of MNIST's test images, changed in the
same way, the network names.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy, grid_sample, interpolate, pad

from securefda.tasks.digits import FEATURES_FILE, featured_model
from securefda.tasks.idx import read_labelled_images
from securefda.tasks.images import MNIST

STEPS, BATCH, LEARNING_RATE = 8000, 128, 1e-3
MOST_DEGREES, MOST_SHIFT, CONTRASTS, MOST_NOISE = 50.0, 0.2, (0.5, 1.6), 0.25
"""Of a change: a shift in halves of the image, a pixel being in [0, 1]."""

_INK, _SIDE, _BLOCK = 0.4, 32, 4


def as_digits(images: Tensor) -> Tensor:
    """Images of any size in [0, 1], (n, h, w), in the form of the example's, (n, 1, 8, 8)."""
    return torch.cat([_as_digit(image) for image in images])


def _as_digit(image: Tensor) -> Tensor:
    rows, columns = (image > _INK).any(1).nonzero(), (image > _INK).any(0).nonzero()
    box = image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    width = max(_SIDE // 4, min(_SIDE, round(_SIDE * box.shape[1] / box.shape[0])))
    stretched = interpolate(box[None, None], (_SIDE, width), mode="bilinear", align_corners=False)
    left = (_SIDE - width) // 2
    inked = (pad(stretched, (left, _SIDE - width - left)) > _INK).float()
    return avg_pool2d(inked, _BLOCK)


def changed(images: Tensor, draws: torch.Generator) -> Tensor:
    """Images (n, 1, 8, 8), each turned, shifted, in another contrast, and noisy."""

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(images), generator=draws)

    angle, right, down = (
        math.radians(1) * between(-MOST_DEGREES, MOST_DEGREES),
        *(between(-MOST_SHIFT, MOST_SHIFT) for _ in range(2)),
    )
    rows = [torch.stack([angle.cos(), -angle.sin(), right], 1), torch.stack([angle.sin(), angle.cos(), down], 1)]
    grid = nn.functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    turned = grid_sample(images, grid, align_corners=False) * between(*CONTRASTS)[:, None, None, None]
    noise = between(0, MOST_NOISE)[:, None, None, None] * torch.randn(images.shape, generator=draws)
    return turned + noise


def main() -> int:
    """Train, write the file, and say how good it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the files of MNIST")
    parser.add_argument("--out", type=Path, default=FEATURES_FILE, help="where the layers go")
    parser.add_argument("--steps", type=int, default=STEPS, help="of training")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(0)
    data = read_labelled_images(given.data_dir, "train", MNIST)
    images, labels = as_digits(torch.tensor(data.images) / 255), torch.tensor(data.labels).long()
    model = featured_model()
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
    for _ in range(given.steps):
        rows = torch.randint(len(images), (BATCH,), generator=draws)
        optimizer.zero_grad()
        cross_entropy(model(changed(images[rows], draws).flatten(1)), labels[rows]).backward()
        optimizer.step()
        schedule.step()
    save_file(model.state_dict(), given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
