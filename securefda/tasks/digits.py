"""Digits: hand-written digits, turned and noisy at the target. The images are bundled, so it runs anywhere.

Data: Optical Recognition of Handwritten Digits (Alpaydin and Kaynak 1998, UCI, CC BY 4.0), the 1,797 images of
8 x 8 pixels that scikit-learn carries. The shift is in the spirit of the noisy-features experiments of
Jiang et al. 2024 (Appendix C.7).
"""

from __future__ import annotations

import math
from functools import cache, cached_property
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load
from torch import Tensor, nn

from securefda.tasks.base import Samples, TaskSettings, Unlabelled
from securefda.tasks.classification import Classification
from securefda.tasks.variation import shifted

FEATURES_FILE = Path(__file__).with_name("digits_from_mnist.safetensors")
"""Made by ``benchmarks/frozen_layers.py digits``."""

_SIDE = 8
_PIXELS = _SIDE * _SIDE
_CLASSES = 10
_DARKEST = 16.0
_HIDDEN = 128

_TARGET_TEST_ROWS = 500
_TARGET_TRAIN_ROWS = 400
_SOURCE_TRAIN_FRACTION = 0.8
# Contrast, rows down, columns right. Sources take turns, in the order of the federation.
_SOURCE_VARIATIONS = ((1.0, 0, 0), (0.7, 0, 1), (1.3, 0, -1), (0.5, 1, 0), (1.5, -1, 0))


class Digits(Classification):
    """Ten classes; a perceptron with one hidden layer, 9,610 parameters; any number of sources, any site ids.

    The seed deals out the rows: 500 to the target's test, 400 to the target's training, of which it has labels for
    the first ``target-rows`` (the oracle has all), and the other 897 in equal parts to the sources, which hold out a
    fifth. A source's images have a contrast and a shift by one pixel of its own. The target's are turned by
    ``target-angle`` degrees (or mirrored) and noisy: a domain that no source has seen.

    With ``features`` = "mnist" the model is a small convolutional network that was trained on MNIST beforehand, and
    sites train its last layer alone, 330 parameters, from what it was there. The frozen layers come with the package.

    Options: ``target-rows`` (10 to 400, default 100), ``target-shift`` ("rotate", the default, or "mirror"),
    ``target-angle`` (0 to 180, default 40), ``noise`` (standard deviation at the target, where a pixel is in [0, 1];
    default 0.2), ``features`` ("none", the default, or "mnist").

    Raises:
        ConfigError: an unknown option, or a value out of bounds.
    """

    separate_rows = True
    public_rows = True

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        settings.reject_unknown_options("target-rows", "target-shift", "target-angle", "noise", "features")
        self._target_rows = settings.count("target-rows", 100, low=_CLASSES, high=_TARGET_TRAIN_ROWS)
        self._shift = settings.choice("target-shift", "rotate", ("rotate", "mirror"))
        self._angle = settings.number("target-angle", 40.0, low=0.0, high=180.0)
        self._noise = settings.number("noise", 0.2, low=0.0, high=2.0)
        self._features = settings.choice("features", "none", ("none", "mnist"))

    def model(self) -> nn.Module:
        """Return 64 pixels -> 128 rectified units -> 10 logits; or frozen layers -> 32 rectified units -> 10 logits."""
        if self._features == "mnist":
            model = featured_model()
            model.load_state_dict(load(FEATURES_FILE.read_bytes()))
            model[:-1].requires_grad_(requires_grad=False)
            return model
        return nn.Sequential(nn.Linear(_PIXELS, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _CLASSES))

    def train_data(self, site: str) -> Samples:
        """Return the site's training rows: features (n, 64) float32, labels (n,) int64 in 0..9."""
        if site == self.settings.target:
            return _rows(self._target, slice(_TARGET_TEST_ROWS, _TARGET_TEST_ROWS + self._target_rows))
        source = self._source(site)
        return _rows(source, slice(int(len(source) * _SOURCE_TRAIN_FRACTION)))

    def test_data(self, site: str) -> Samples:
        """Return the site's held-out rows, of the same form."""
        if site == self.settings.target:
            return _rows(self._target, slice(_TARGET_TEST_ROWS))
        source = self._source(site)
        return _rows(source, slice(int(len(source) * _SOURCE_TRAIN_FRACTION), None))

    def oracle_data(self) -> Samples:
        """Return the target's 400 training rows with all of their labels."""
        return _rows(self._target, slice(_TARGET_TEST_ROWS, None))

    def unlabelled_data(self) -> Unlabelled | None:
        """Return those of the target's 400 training rows for which it has no labels."""
        rows = self.oracle_data().features[self._target_rows :]
        return Unlabelled(rows) if len(rows) else None

    def varied(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images shifted by at most a pixel each way."""
        images = features.view(-1, 1, _SIDE, _SIDE)
        return shifted(images, 1, generator).reshape(-1, _PIXELS)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """The numbers of all rows, the target's first."""
        order: NDArray[np.int64] = np.random.default_rng(self.settings.seed).permutation(len(digits_and_labels()[1]))
        return order

    @cached_property
    def _target(self) -> Samples:
        """Return the target's test rows, then its training rows."""
        images, labels = _images(self._order[: _TARGET_TEST_ROWS + _TARGET_TRAIN_ROWS])
        images = turned(images[:, None], self._angle)[:, 0] if self._shift == "rotate" else images.flip(-1)
        generator = torch.Generator().manual_seed(self.settings.seed)
        images = images + self._noise * torch.randn(images.shape, generator=generator)
        return Samples(images.reshape(-1, _PIXELS), labels)

    def _source(self, site: str) -> Samples:
        """Return all rows of a source."""
        self.require_site(site)
        position = self.settings.sources.index(site)
        shares = np.array_split(self._order[_TARGET_TEST_ROWS + _TARGET_TRAIN_ROWS :], len(self.settings.sources))
        images, labels = _images(shares[position])
        contrast, down, right = _SOURCE_VARIATIONS[position % len(_SOURCE_VARIATIONS)]
        return Samples(contrast * _shift(images, down, right).reshape(-1, _PIXELS), labels)


def featured_model() -> nn.Sequential:
    """The network of ``features`` = "mnist" with new weights: 64 pixels -> 32 rectified units -> 10 logits."""
    return nn.Sequential(
        nn.Unflatten(1, (1, _SIDE, _SIDE)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(_PIXELS // 4 * 16, 32),
        nn.ReLU(),
        nn.Linear(32, _CLASSES),
    )


@cache
def digits_and_labels() -> tuple[Tensor, NDArray[np.int64]]:
    """Return all images, (1797, 8, 8) float32 in [0, 1], and their labels, (1797,) in 0..9, in the file's order.

    The file is that of `sklearn.datasets.load_digits`. To import scikit-learn, and SciPy with it, would take every
    process almost as long as to import torch.
    """
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(file), delimiter=",")
    pixels = rows[:, :-1].reshape(-1, _SIDE, _SIDE) / _DARKEST
    return torch.from_numpy(pixels).float(), rows[:, -1].astype(np.int64)


def _images(rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Return images (n, 8, 8) float32 in [0, 1] and labels (n,) int64."""
    images, labels = digits_and_labels()
    return images[rows], torch.from_numpy(labels[rows]).long()


def turned(images: Tensor, degrees: float) -> Tensor:
    """Turn (n, channels, side, side) images counter-clockwise about their middle, bilinearly; empty surroundings."""
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]])
    grid = nn.functional.affine_grid(turn.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return nn.functional.grid_sample(images, grid, align_corners=False)


def _shift(images: Tensor, down: int, right: int) -> Tensor:
    """Shift (n, 8, 8) images by at most a pixel each way; pixels that come in are empty."""
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    return padded[:, 1 - down : 1 - down + _SIDE, 1 - right : 1 - right + _SIDE]


def _rows(samples: Samples, rows: slice) -> Samples:
    return Samples(samples.features[rows], samples.labels[rows])
