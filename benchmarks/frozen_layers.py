"""Make the frozen layers of ``task.options.features = "mnist"``, of the digits example or of the Fashion-MNIST tasks.

    python benchmarks/frozen_layers.py digits|fashion --data-dir DIR [--out FILE]

DIR holds the files of MNIST, which is public: what is learnt from it costs no site anything. Images are changed while a
network trains, so that its features hold for many domains.

``digits``: each image is brought to the form of the digits that the example has: cut to its box, stretched to the full
height, made black and white at 32 x 32 pixels, and averaged to 8 x 8. In training it is turned by up to 50 degrees,
shifted, and made darker, lighter and noisy.

``fashion``: images are turned by a multiple of 90 degrees, made darker or lighter, and noisy; the network names the
digit and the turn. To tell turns apart it needs edges and their directions, which clothes have, too. Then a linear map
is fitted that makes the features of such images white: uncorrelated, and of the same variance.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy, grid_sample, interpolate, pad

from securefda.tasks import digits, fashion_mnist
from securefda.tasks.idx import read_labelled_images
from securefda.tasks.images import MNIST

BATCH, LEARNING_RATE = 128, 1e-3
MOST_DEGREES, MOST_SHIFT, CONTRASTS, MOST_NOISE = 50.0, 0.2, (0.5, 1.6), 0.25
"""Of a change of a digit: a shift in halves of the image, a pixel being in [0, 1]."""

FASHION_CONTRASTS, FASHION_NOISE = (0.5, 1.5), 0.1
WHITENED, LEAST_VARIANCE = 20_000, 1e-3
"""Images that the linear map is fitted to; what is added to each variance, in units of their mean."""

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


def changed_digits(images: Tensor, draws: torch.Generator) -> Tensor:
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


def changed_images(images: Tensor, turns: int, draws: torch.Generator) -> Tensor:
    """Images (n, 1, 28, 28), turned by so many times 90 degrees, each in another contrast, and noisy."""
    low, high = FASHION_CONTRASTS
    contrast = low + (high - low) * torch.rand(len(images), 1, 1, 1, generator=draws)
    turned = contrast * torch.rot90(images, turns, (2, 3))
    return turned + FASHION_NOISE * torch.randn(turned.shape, generator=draws)


@torch.no_grad()
def fit_whitening(layer: nn.Linear, features: Tensor) -> None:
    """Have ``layer`` make these features (n, d) white."""
    mean = features.mean(0)
    variances, axes = torch.linalg.eigh(torch.cov(features.T).double())
    scales = (variances + LEAST_VARIANCE * variances.mean()).rsqrt()
    layer.weight.copy_(axes @ torch.diag(scales) @ axes.T)
    layer.bias.copy_(-layer.weight @ mean)


def train(parameters: Iterable[nn.Parameter], steps: int, loss_of: Callable[[int], Tensor]) -> None:
    """Take so many steps; ``loss_of`` gives the loss of each."""
    optimizer = torch.optim.Adam(parameters, LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def of_digits(images: Tensor, labels: Tensor, steps: int, draws: torch.Generator) -> dict[str, Tensor]:
    """The network for the digits example, from images (n, 28, 28) in [0, 1]."""
    images, model = as_digits(images), digits.featured_model()

    def loss_of(_: int) -> Tensor:
        rows = torch.randint(len(images), (BATCH,), generator=draws)
        return cross_entropy(model(changed_digits(images[rows], draws).flatten(1)), labels[rows])

    train(model.parameters(), steps, loss_of)
    return model.state_dict()


def of_fashion(images: Tensor, labels: Tensor, steps: int, draws: torch.Generator) -> dict[str, Tensor]:
    """The layers for the Fashion-MNIST tasks, in half precision, from images (n, 28, 28) in [0, 1]."""
    images, layers = images[:, None], fashion_mnist.frozen_layers()
    features = layers[:6]
    shared = nn.Sequential(nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU())
    digit, turn = nn.Linear(128, 10), nn.Linear(128, 4)

    def loss_of(step: int) -> Tensor:
        rows = torch.randint(len(images), (BATCH,), generator=draws)
        found = shared(features(changed_images(images[rows], step % 4, draws)))
        return cross_entropy(digit(found), labels[rows]) + cross_entropy(turn(found), torch.full((BATCH,), step % 4))

    train(nn.ModuleList([features, shared, digit, turn]).parameters(), steps, loss_of)
    with torch.no_grad():
        parts = images[:WHITENED].chunk(4)
        pooled = [layers[:8](changed_images(part, turns, draws)) for turns, part in enumerate(parts)]
    fit_whitening(layers[8], torch.cat(pooled))
    return {name: part.half() for name, part in layers.state_dict().items()}


KINDS = {"digits": (of_digits, digits.FEATURES_FILE, 8000), "fashion": (of_fashion, fashion_mnist.FEATURES_FILE, 2000)}
"""What makes them, where they go, and after how many steps of training."""


def main() -> int:
    """Train, and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the files of MNIST")
    parser.add_argument("--out", type=Path, help="where the layers go, in place of the package's own file")
    parser.add_argument("--steps", type=int, help="of training")
    given = parser.parse_args()
    make, file, steps = KINDS[given.kind]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = read_labelled_images(given.data_dir, "train", MNIST)
    images, labels = torch.tensor(data.images) / 255, torch.tensor(data.labels).long()
    layers = make(images, labels, given.steps or steps, torch.Generator().manual_seed(0))
    save_file(layers, given.out or file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
