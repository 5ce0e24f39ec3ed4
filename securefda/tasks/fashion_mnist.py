"""Fashion-MNIST under two shifts: noise on the target's images, and other labels at the target than at the sources.

Data: Fashion-MNIST in IDX files (Xiao, Rasul, Vollgraf 2017). The shifts, the model and the sizes are those of the
semi-synthetic experiments of Jiang et al. 2024 (Appendix C.7, Tables 12 to 16), as far as a part of the data allows.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load
from torch import Tensor, nn

from securefda.errors import DataError
from securefda.tasks.base import Samples, TaskSettings, Unlabelled
from securefda.tasks.classification import Classification
from securefda.tasks.idx import CLASSES, LabelledImages
from securefda.tasks.images import FASHION_MNIST, SETS, joined, read_parts
from securefda.tasks.variation import shifted

_BRIGHTEST = 255.0
_SOURCE_TRAIN_FRACTION = 0.9
_FEWEST_IMAGES = 600
_TEST_FRACTION = 0.25
_LABEL_SHIFT_TEST_FRACTION = 0.6
_FEATURES = 32 * 3 * 3
_MAJORITY = (0, 1, 2)
"""T-shirts, trousers and pullovers."""

FEATURES_FILE = Path(__file__).with_name("fashion_from_mnist.safetensors")
"""Made by ``benchmarks/frozen_layers.py fashion``."""

_Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Deal:
    """The owner of each image, by its place in the file.

    Attributes:
        test: the target's test rows.
        pool: the target's training rows, of which it has labels for the first few.
        sources: a number in 0..N-1 for each row of the file, or -1 for the target's: which source trains on it.
        source_tests: likewise, which source tests on it.
    """

    test: _Rows
    pool: _Rows
    sources: _Rows
    source_tests: _Rows


class _ChannelsLast(nn.Sequential):
    """Layers that take images (n, 1, h, w) with the channels last in memory, which takes a CPU less time."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the output of the last layer."""
        # by a view: with one channel, torch takes both orders for the same and would leave the strides as they are
        last = images.reshape(len(images), *images.shape[2:], 1).permute(0, 3, 1, 2)
        outputs: Tensor = super().forward(last)  # type: ignore[no-untyped-call]
        return outputs


class _FashionMnist(Classification):
    """Ten classes, 1 x 28 x 28 pixels, the paper's network; subclasses decide which site has which images."""

    separate_rows = True
    public_rows = True
    _noise = 0.0

    def __init__(self, settings: TaskSettings, *options: str) -> None:
        super().__init__(settings)
        settings.reject_unknown_options("target-rows", "images", "features", *options)
        self._features = settings.choice("features", "none", ("none", "mnist"))
        self._target_rows = settings.count("target-rows", 100, low=CLASSES, high=5000)
        self._set = settings.choice("images", "train3600", SETS)

    @abstractmethod
    def _shares(self, generator: np.random.Generator) -> _Deal:
        """Deal out the images."""

    def model(self) -> nn.Module:
        """Return two convolutions of 5 x 5 with pooling, 6 and 16 channels, then 120, 84 and 10: 44,426 parameters.

        With ``features`` = "mnist", frozen convolutions and a last layer of 2,890 parameters.
        """
        if self._features == "mnist":
            return _pretrained()
        return _ChannelsLast(
            # pooled before the ReLU: the same values to the last bit, from a quarter of its work
            *(nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)),
        )

    def train_data(self, site: str) -> Samples:
        """Return the site's training rows: features (n, 1, 28, 28) float32, labels (n,) int64 in 0..9."""
        if site != self.settings.target:
            return self._clean(self._of_source(site, self._deal.sources))
        pool = self.oracle_data()
        if len(pool) < self._target_rows:
            why = f"the target has {len(pool)} training rows in set {self._set}, and labels for {self._target_rows}"
            raise DataError("task.options.target-rows", why, hint="lower it, or take a larger set")
        return Samples(pool.features[: self._target_rows], pool.labels[: self._target_rows])

    def test_data(self, site: str) -> Samples:
        """Return the site's held-out rows, of the same form; the target's have its shift."""
        if site != self.settings.target:
            return self._clean(self._of_source(site, self._deal.source_tests))
        return self._noisy(self._deal.test, part=0)

    def oracle_data(self) -> Samples:
        """Return all training rows of the target with their labels."""
        return self._noisy(self._deal.pool, part=1)

    def unlabelled_data(self) -> Unlabelled | None:
        """Return the target's training rows for which it has no labels."""
        rows = self.oracle_data().features[self._target_rows :]
        return Unlabelled(rows) if len(rows) else None

    def varied(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images shifted by at most two pixels each way."""
        return shifted(features, 2, generator)

    @cached_property
    def _images(self) -> LabelledImages:
        return joined(self._parts)

    @cached_property
    def _parts(self) -> list[LabelledImages]:
        return read_parts(self.settings, self._set, FASHION_MNIST, fewest=_FEWEST_IMAGES)

    @cached_property
    def _deal(self) -> _Deal:
        return self._shares(np.random.default_rng(self.settings.seed))

    def _of_source(self, site: str, dealt: _Rows) -> _Rows:
        self.require_site(site)
        number = self.settings.sources.index(site)
        count = np.count_nonzero((self._deal.sources == number) | (self._deal.source_tests == number))
        if count < CLASSES:
            why = f"set {self._set} leaves {site} {count} images, and it needs at least {CLASSES}"
            raise DataError("task", why, hint="take a larger set, or fewer sources")
        rows: _Rows = np.flatnonzero(dealt == number)
        return rows

    def _clean(self, rows: _Rows) -> Samples:
        pixels = self._images.images[rows, np.newaxis] / np.float32(_BRIGHTEST)
        return Samples(torch.from_numpy(pixels), torch.from_numpy(self._images.labels[rows].astype(np.int64)))

    def _noisy(self, rows: _Rows, *, part: int) -> Samples:
        """Return the target's rows with noise; the noise of a row depends only on the seed and its place."""
        clean = self._clean(rows)
        noise = np.random.default_rng([self.settings.seed, part]).standard_normal(clean.features.shape, np.float32)
        return Samples(clean.features + self._noise * torch.from_numpy(noise), clean.labels)


class NoisyFashionMnist(_FashionMnist):
    """Clean images at the sources, noisy ones at the target; any number of sources, any site ids.

    The seed deals out the images: a quarter to the target's test, the rest in equal parts to the target and the
    sources, at random as in the paper. A source trains on nine tenths of its part. The target has labels for the
    first ``target-rows`` of its own, the oracle for all. Gaussian noise of standard deviation ``noise``, where a pixel
    is in [0, 1], is added to the target's training and test images.

    With ``images = "all"`` the split is the paper's: all of train is dealt out, to nine sources 6,000 each, on all of
    which a source trains; the target tests on all of t10k, and the sources on equal parts of it, without noise.

    In the paper an image has new noise whenever it is used; here it is drawn once, as for rows that a target has.
    With ``noise-drawn = "at-use"`` the target's training rows are clean, and `varied` draws the noise: set
    ``training.target.vary`` as well. Its test images keep the noise that was drawn once.

    What else differs from the paper: in the other sets, fewer images, by default 3,600, of which a source trains on 243
    and the oracle on 270; the schedule, which is in the sample ``noisy_fashion_mnist``.

    With ``features`` = "mnist" the first layers were trained on MNIST beforehand, and sites train the last one alone.

    Options: ``noise`` (0 to 2, default 0.4), ``noise-drawn`` ("once", the default, or "at-use"), ``target-rows`` (10 to
    5000, default 100), ``images`` ("train3600", the default, "train", "t10k" or "all"), ``features`` ("none", the
    default, or "mnist").

    Raises:
        ConfigError: an unknown option, a value out of bounds, or no data folder.
        DataError: on first use of the data, a file is missing or not what it should be, or the rows do not suffice.
    """

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings, "noise", "noise-drawn")
        self._noise = settings.number("noise", 0.4, low=0.0, high=2.0)
        self._at_use = settings.choice("noise-drawn", "once", ("once", "at-use")) == "at-use"

    def oracle_data(self) -> Samples:
        """Return all training rows of the target, without noise where it is drawn at use."""
        return self._clean(self._deal.pool) if self._at_use else super().oracle_data()

    def varied(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images with new noise where it is drawn at use, else shifted."""
        if not self._at_use:
            return super().varied(features, generator)
        return features + self._noise * torch.randn(features.shape, generator=generator).to(features.device)

    def _shares(self, generator: np.random.Generator) -> _Deal:
        count, sites = len(self._images), len(self.settings.sources)
        if self._set == "all":
            trained = len(self._parts[0])
            order, test = generator.permutation(trained), np.arange(trained, count)
            pool, *parts = np.array_split(order, 1 + sites)
            return _Deal(test, pool, _numbered(parts, count), _numbered(np.array_split(test, sites), count))
        order = generator.permutation(count)
        tested = int(count * _TEST_FRACTION)
        pool, *parts = np.array_split(order[tested:], 1 + sites)
        return _Deal(order[:tested], pool, *_train_and_test(_numbered(parts, count)))


def frozen_layers() -> nn.Sequential:
    """Return the layers that ``features`` = "mnist" freezes, with new weights: images -> features (n, 288).

    Convolutions; the means of their channels in 3 x 3 places; and a linear map, which whitens these.
    """
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AvgPool2d(3, stride=2), nn.Flatten(), nn.Linear(_FEATURES, _FEATURES)),
    )


def _pretrained() -> nn.Sequential:
    """Return the layers as trained on MNIST, frozen, and a new last layer.

    Features are alike in length from row to row, so that one clip takes little from the gradient of any. As they are
    white, few steps of gradient descent suffice, and each step costs budget.
    """
    frozen = frozen_layers()
    frozen.load_state_dict({name: part.float() for name, part in load(FEATURES_FILE.read_bytes()).items()})
    frozen.requires_grad_(requires_grad=False)
    alike = nn.LayerNorm(_FEATURES, elementwise_affine=False)
    return nn.Sequential(frozen, alike, nn.Linear(_FEATURES, CLASSES))


def _numbered(parts: list[_Rows], count: int) -> _Rows:
    """Return for each of ``count`` rows the number of the part that contains it, or -1."""
    numbers = np.full(count, -1)
    for number, part in enumerate(parts):
        numbers[part] = number
    return numbers


def _train_and_test(sources: _Rows) -> tuple[_Rows, _Rows]:
    """Split each source's rows, in the order of the file: the first nine tenths for training, the rest for testing."""
    train, test = sources.copy(), sources.copy()
    for number in range(sources.max(initial=-1) + 1):
        rows = np.flatnonzero(sources == number)
        trained = int(len(rows) * _SOURCE_TRAIN_FRACTION)
        train[rows[trained:]], test[rows[:trained]] = -1, -1
    return train, test


class LabelShiftFashionMnist(_FashionMnist):
    """Three classes mostly at the target and seven mostly at the sources; any number of sources, any site ids.

    Of the three classes an image is a source's with probability ``eta``, and of the other seven with 1 - ``eta``; else
    it is the target's. So ``eta`` = 0.5 is no shift, and at 0 no source has ever seen the target's classes. Which
    source has an image is drawn too. Of the target's images 60 % are its test, and of the others it has labels for the
    first ``target-rows``, the oracle for all. All images are clean.

    What differs from the paper: 3,600 images rather than 60,000 (see ``images``), of which a source trains on 60 to
    250; 100 labelled rows whatever ``eta``, where theirs are 15 % of the target's; and the three classes,
    which are the first ones here: the paper does not name them, and the authors' published code lacks the part that
    splits by ``eta``. (That the paper has 98 % at ``eta`` = 0 rules out T-shirts, pullovers and shirts.)

    Options: ``eta`` (0 to 0.5, default 0.1), ``target-rows``, ``images`` and ``features`` as for `NoisyFashionMnist`.

    Raises:
        ConfigError: an unknown option, a value out of bounds, or no data folder.
        DataError: on first use of the data, a file is missing or not what it should be, or the rows do not suffice.
    """

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings, "eta")
        self._eta = settings.number("eta", 0.1, low=0.0, high=0.5)

    def _shares(self, generator: np.random.Generator) -> _Deal:
        count = len(self._images)
        order, draws = generator.permutation(count), generator.random(count)
        sources = generator.integers(len(self.settings.sources), size=count)
        majority = np.isin(self._images.labels, _MAJORITY)
        sources[draws >= np.where(majority, self._eta, 1.0 - self._eta)] = -1
        mine = order[sources[order] == -1]
        tested = int(len(mine) * _LABEL_SHIFT_TEST_FRACTION)
        return _Deal(mine[:tested], mine[tested:], *_train_and_test(sources))
