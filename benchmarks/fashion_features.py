"""Make the frozen layers of ``task.options.features = "mnist"`` of the Fashion-MNIST tasks, from MNIST.

    python benchmarks/fashion_features.py --data-dir DIR [--out FILE]

DIR holds the files of MNIST, which is public: what is learnt from it costs no site anything. While the network trains,
images are turned by a multiple of 90 degrees, made darker or lighter, and noisy; it names the digit and the turn. To
tell turns apart it needs edges and their directions, which clothes have, too. Then a linear map is fitted that makes
the features of such images white: uncorrelated, and of the same variance.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from securefda.tasks.fashion_mnist import FEATURES_FILE, frozen_layers
from securefda.tasks.idx import read_labelled_images
from securefda.tasks.images import MNIST

STEPS, BATCH, LEARNING_RATE = 2000, 128, 1e-3
CONTRASTS, NOISE = (0.5, 1.5), 0.1
WHITENED, LEAST_VARIANCE = 20_000, 1e-3
"""Images that the linear map is fitted to; what is added to each variance, in units of their mean."""


def changed(images: Tensor, turns: int, draws: torch.Generator) -> Tensor:
    """Images (n, 1, 28, 28), turned by so many times 90 degrees, each in another contrast, and noisy."""
    low, high = CONTRASTS
    contrast = low + (high - low) * torch.rand(len(images), 1, 1, 1, generator=draws)
    turned = contrast * torch.rot90(images, turns, (2, 3))
    return turned + NOISE * torch.randn(turned.shape, generator=draws)


@torch.no_grad()
def fit_whitening(layer: nn.Linear, features: Tensor) -> None:
    """Have ``layer`` make these features (n, d) white."""
    mean = features.mean(0)
    variances, axes = torch.linalg.eigh(torch.cov(features.T).double())
    scales = (variances + LEAST_VARIANCE * variances.mean()).rsqrt()
    layer.weight.copy_(axes @ torch.diag(scales) @ axes.T)
    layer.bias.copy_(-layer.weight @ mean)


def main() -> int:
    """Train, and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the files of MNIST")
    parser.add_argument("--out", type=Path, default=FEATURES_FILE, help="where the layers go")
    parser.add_argument("--steps", type=int, default=STEPS, help="of training")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(0)
    data = read_labelled_images(given.data_dir, "train", MNIST)
    images, labels = torch.tensor(data.images)[:, None] / 255, torch.tensor(data.labels).long()
    layers = frozen_layers()
    features = layers[:6]
    shared = nn.Sequential(nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU())
    digit, turn = nn.Linear(128, 10), nn.Linear(128, 4)
    learnt = nn.ModuleList([features, shared, digit, turn]).parameters()
    optimizer = torch.optim.Adam(learnt, LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
    for step in range(given.steps):
        rows = torch.randint(len(images), (BATCH,), generator=draws)
        optimizer.zero_grad()
        found = shared(features(changed(images[rows], step % 4, draws)))
        loss = cross_entropy(digit(found), labels[rows]) + cross_entropy(turn(found), torch.full((BATCH,), step % 4))
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        parts = images[:WHITENED].chunk(4)
        pooled = [layers[:8](changed(part, turns, draws)) for turns, part in enumerate(parts)]
    fit_whitening(layers[8], torch.cat(pooled))
    save_file({name: part.half() for name, part in layers.state_dict().items()}, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
