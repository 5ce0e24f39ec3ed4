"""Digit domains: one digit out of ten, printed, written by hand or photographed; each site has a domain of its own.

Of the five domains with which Peng et al. 2020 (Federated Adversarial Domain Adaptation, ICLR) compare methods for a
target without labels, four are available or made here; the fifth, SVHN, is read from its files. The model is that of
the paper's Tables 7 and 8, with a width to choose.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefda.errors import ConfigError, DataError
from securefda.tasks.base import Samples, TaskSettings, Unlabelled
from securefda.tasks.classification import Classification
from securefda.tasks.disentangled import Disentangled
from securefda.tasks.idx import CLASSES, LabelledImages, read_labelled_images
from securefda.tasks.images import MNIST
from securefda.tasks.made_digits import SIDE, Images, drawn, over_photographs
from securefda.tasks.variation import placed, recoloured

DOMAINS = ("mnist", "usps", "mnist-m", "synthetic", "svhn")
"""Site ids."""

Split = Literal["train", "test"]
_SPLITS: tuple[Split, Split] = ("train", "test")
_ROWS, _MOST_ROWS = 2000, 20_000
_TEST_ROWS, _MOST_TEST_ROWS = 1000, 5000
_BRIGHTEST = 255

_USPS_SIDE, _MOST_USPS_ROWS = 16, 100_000
_USPS = "USPS (LeCun et al. 1989, for research) is published as usps.h5 at kaggle.com/datasets/bistaumanga/usps-dataset"
_SVHN = "SVHN (Netzer et al. 2011, for non-commercial use) is published at http://ufldl.stanford.edu/housenumbers/"

_EIGHTHS = 8
_CHANNELS = (64, 64, 128)
_HIDDEN = (3072, 2048)
_GROUPS = 8

_MOST_SHIFT, _SCALES, _TURN, _LEAST_CONTRAST = 1 / 8, (0.6, 1.3), 10.0, 0.3
"""Bounds for :meth:`DigitDomains.varied`: share of the side, factors, degrees, factor."""

Labels = NDArray[np.int64]


class DigitDomains(Classification):
    """Ten classes, 3 x 32 x 32 pixels in [0, 1]; sites are mnist, usps, mnist-m, synthetic, svhn, any one the target.

    mnist: MNIST, with a margin of two black pixels. usps: USPS, 16 x 16, enlarged bilinearly. mnist-m: for each of
    other digits of MNIST, |patch - digit| over a patch of one of scikit-learn's two photographs. synthetic: digits in
    fonts that matplotlib ships, whose place, size, turn, colours, clutter and blur are drawn. svhn: house numbers, as
    they are published. Images have 32 x 32 pixels because the paper's model takes 8,192 = 128 x 8 x 8 features of them.

    The seed draws ``rows`` of a domain's training set and ``test-rows`` of its test set. All have labels. The target
    trains on the first ``target-rows``, or on all ``rows`` where its settings say that it uses no labels. The oracle
    trains on all.

    What differs from the paper: its MNIST-M is made of BSDS500's photographs and its synthetic digits are those of
    Ganin and Lempitsky, neither of which is licensed for others to pass on; and sites have fewer rows.

    Options: ``rows`` (100 to 20,000, default 2,000; USPS has 7,291), ``test-rows`` (50 to 5,000, default 1,000; USPS
    has 2,007), ``target-rows`` (20 to ``rows``, the default), ``width`` (of the model, an eighth of the paper's, the
    default, to 1 in steps of an eighth), ``norm`` ("batch", the default and the paper's, or "group", which goes with
    noise), ``model`` ("plain", the default, or "disentangled", which the rule ``fada`` needs: with D's second branch).

    Raises:
        ConfigError: an unknown site or option, a value out of bounds, or no data folder where the domain needs one.
        DataError: on first use of the data, a file is missing or not what it should be, or has too few rows.
    """

    separate_rows = True
    public_rows = True

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        settings.reject_unknown_options("rows", "test-rows", "target-rows", "width", "norm", "model")
        settings.require_sites(DOMAINS, "domain of digits")
        train = settings.count("rows", _ROWS, low=100, high=_MOST_ROWS)
        test = settings.count("test-rows", _TEST_ROWS, low=50, high=_MOST_TEST_ROWS)
        self._rows: dict[Split, int] = {"train": train, "test": test}
        self._target_rows = settings.count("target-rows", train, low=20, high=train)
        eighths = settings.number("width", 1 / _EIGHTHS, low=1 / _EIGHTHS, high=1.0) * _EIGHTHS
        if not eighths.is_integer():
            raise ConfigError("task.options.width", f"{eighths / _EIGHTHS:g} is no multiple of an eighth")
        self._eighths = int(eighths)
        self._norm = settings.choice("norm", "batch", ("batch", "group"))
        self._parted = settings.choice("model", "plain", ("plain", "disentangled")) == "disentangled"

    def model(self) -> nn.Module:
        """Return ``extractor`` (G), ``disentangler`` (its branch D_inv) and ``classifier`` (C) in a row, to 10 logits.

        G has three convolutions of 5 x 5 with 64, 64 and 128 channels, of which the first two are pooled; D_inv layers
        of 3,072 and 2,048 units with dropout between them; C is linear. All counts are times ``width``. With both
        branches of D, return them as :class:`Disentangled`.
        """
        channels = [3, *(count * self._eighths // _EIGHTHS for count in _CHANNELS)]
        extractor: list[nn.Module] = []
        for number, (before, after) in enumerate(pairwise(channels), start=1):
            extractor += [nn.Conv2d(before, after, 5, padding=2), self._norm_of(nn.BatchNorm2d, after)]
            # pooled before the ReLU: the same values to the last bit, from a quarter of its work
            extractor += [*([nn.MaxPool2d(2)] if number < len(_CHANNELS) else []), nn.ReLU()]
        features = channels[-1] * (SIDE // 4) ** 2
        first, second = (count * self._eighths // _EIGHTHS for count in _HIDDEN)

        def branch() -> nn.Module:
            return nn.Sequential(
                *(nn.Linear(features, first), self._norm_of(nn.BatchNorm1d, first), nn.ReLU(), nn.Dropout(0.5)),
                *(nn.Linear(first, second), self._norm_of(nn.BatchNorm1d, second), nn.ReLU()),
            )

        parts = OrderedDict[str, nn.Module](extractor=nn.Sequential(*extractor, nn.Flatten()))
        parts["disentangler"] = branch()
        parts["classifier"] = classifier = nn.Linear(second, CLASSES)
        if not self._parted:
            return nn.Sequential(parts)
        return Disentangled(parts["extractor"], parts["disentangler"], branch(), classifier)

    def _norm_of(self, batch_norm: Callable[[int], nn.Module], channels: int) -> nn.Module:
        return batch_norm(channels) if self._norm == "batch" else nn.GroupNorm(_GROUPS, channels)

    def train_data(self, site: str) -> Samples:
        """Return the site's training rows: features (n, 3, 32, 32) float32, labels (n,) int64 in 0..9."""
        train = self._samples(site, "train")
        if site != self.settings.target or self.settings.lacks_labels(site):
            return train
        return Samples(train.features[: self._target_rows], train.labels[: self._target_rows])

    def test_data(self, site: str) -> Samples:
        """Return rows of the domain's test set, of the same form."""
        return self._samples(site, "test")

    def oracle_data(self) -> Samples:
        """Return all training rows of the target with their labels."""
        return self._samples(self.settings.target, "train")

    def unlabelled_data(self) -> Unlabelled | None:
        """Return the target's training rows for which it has no labels."""
        rows = self.oracle_data().features[self._target_rows :]
        return Unlabelled(rows) if len(rows) else None

    def varied(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images smaller or larger, turned, shifted and in other colours."""
        moved = placed(features, generator, most=_MOST_SHIFT, scales=_SCALES, turn=_TURN)
        return recoloured(moved, _LEAST_CONTRAST, generator)

    def _samples(self, site: str, split: Split) -> Samples:
        self.require_site(site)
        images: Images
        match site:
            case "mnist":
                digits, labels = self._digits_of_mnist(split, part=0)
                images = _three_channels(digits)
            case "mnist-m":
                digits, labels = self._digits_of_mnist(split, part=1)
                images = over_photographs(digits, self._generator("mnist-m", split))
            case "synthetic":
                generator = self._generator("synthetic", split)
                labels = generator.integers(CLASSES, size=self._rows[split])
                images = drawn(labels, generator)
            case "usps":
                images, labels = self._of_usps(split)
            case _:
                images, labels = self._of_svhn(split)
        features = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().float() / _BRIGHTEST
        return Samples(features, torch.from_numpy(labels))

    # --- domains ------------------------------------------------------------------------------------------------------

    def _digits_of_mnist(self, split: Split, *, part: int) -> tuple[NDArray[np.uint8], Labels]:
        """Return digits (n, 32, 32) and their labels; the two parts share none."""
        mnist = self._mnist[split]
        order = self._order("mnist", split, len(mnist), parts=2)
        rows = order[part * self._rows[split] :][: self._rows[split]]
        margin = (SIDE - mnist.images.shape[1]) // 2
        digits = np.pad(mnist.images[rows], ((0, 0), (margin, margin), (margin, margin)))
        return digits, mnist.labels[rows].astype(np.int64)

    @cached_property
    def _mnist(self) -> dict[Split, LabelledImages]:
        folder = self._folder("mnist", "train-* and t10k-*, the four files of MNIST,")
        return {
            "train": read_labelled_images(folder, "train", MNIST),
            "test": read_labelled_images(folder, "t10k", MNIST),
        }

    def _of_usps(self, split: Split) -> tuple[Images, Labels]:
        path = self._file("usps", "usps.h5", _USPS)
        pixels, digits = _read_usps(path, split)
        count = len(digits)
        if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
            raise DataError(str(path), f"its {split}/data has a pixel outside [0, 1]", hint=f"get it again; {_USPS}")
        rows = self._order("usps", split, count)
        small = torch.from_numpy(pixels[rows].astype(np.float32)).reshape(-1, 1, _USPS_SIDE, _USPS_SIDE)
        large = nn.functional.interpolate(small, (SIDE, SIDE), mode="bilinear", align_corners=False)[:, 0]
        return _three_channels((large * _BRIGHTEST).round().byte().numpy()), digits[rows].astype(np.int64)

    def _of_svhn(self, split: Split) -> tuple[Images, Labels]:
        path = self._file("svhn", f"{split}_32x32.mat", _SVHN)
        pixels, digits = _read_svhn(path)
        rows = self._order("svhn", split, len(digits))
        return np.ascontiguousarray(pixels[..., rows].transpose(3, 0, 1, 2)), digits[rows] % CLASSES

    # --- which rows, and where from -----------------------------------------------------------------------------------

    def _generator(self, domain: str, split: Split) -> np.random.Generator:
        return np.random.default_rng([self.settings.seed, DOMAINS.index(domain), _SPLITS.index(split)])

    def _order(self, domain: str, split: Split, count: int, *, parts: int = 1) -> NDArray[np.int64]:
        """Draw which of ``count`` images to use, by the seed: ``parts`` times the number of rows per domain."""
        needed = parts * self._rows[split]
        if count < needed:
            domains = "mnist and mnist-m" if parts > 1 else domain
            why = f"the {split} set of {domains} has {count} images, and {needed} are needed"
            option = "rows" if split == "train" else "test-rows"
            raise DataError(f"task.options.{option}", why, hint=f"lower task.options.{option}, at every site")
        order: NDArray[np.int64] = self._generator(domain, split).permutation(count)[:needed]
        return order

    def _file(self, name: str, file: str, where_from: str) -> Path:
        path = self._folder(name, file) / file
        if not path.is_file():
            raise DataError(str(path.parent), f"there is no {file} in this folder", hint=f"put it there; {where_from}")
        return path

    def _folder(self, name: str, files: str) -> Path:
        """Return the folder ``name`` in ``task.data-dir``, or else ``task.data-dir`` itself."""
        folder = self.settings.data_dir
        if folder is None:
            hint = f"set task.data-dir to the folder that holds {files} or has them in a folder {name}"
            raise ConfigError("task.data-dir", f"the domain {name} is not bundled", hint=hint)
        return folder / name if (folder / name).is_dir() else folder


def _three_channels(grey: NDArray[np.uint8]) -> Images:
    return np.repeat(grey[..., None], 3, axis=3)


def _are_digits(labels: NDArray[Any]) -> bool:
    return labels.dtype.kind in "iu" and len(labels) > 0 and int(labels.min()) >= 0 and int(labels.max()) < CLASSES


def _read_usps(path: Path, split: Split) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read pixels (n, 256) and labels (n,) in 0..9; shapes are compared before anything is read."""
    try:
        import h5py  # noqa: PLC0415 - an extra
    except ImportError as error:
        hint = "pip install 'securefda[hdf5]'"
        raise ConfigError("task.factory", "the domain usps needs the package h5py", hint=hint) from error
    hint = f"get it again; {_USPS}"
    try:
        with h5py.File(path) as file:
            pixels, labels = file[f"{split}/data"], file[f"{split}/target"]
            count = len(labels)
            fits = pixels.shape == (count, _USPS_SIDE**2) and labels.shape == (count,) and count <= _MOST_USPS_ROWS
            data, digits = (pixels[()], labels[()]) if fits else (np.empty(0), np.empty(0))
    except Exception as error:  # whatever h5py meets in a damaged file
        raise DataError(str(path), "is no HDF5 file of USPS", hint=hint) from error
    if not _are_digits(digits):
        why = f"its {split}/data and {split}/target are no images of {_USPS_SIDE} x {_USPS_SIDE} with digits"
        raise DataError(str(path), why, hint=hint)
    return data, digits


def _read_svhn(path: Path) -> tuple[NDArray[np.uint8], Labels]:
    """Read images (32, 32, 3, n) and labels (n,) in 1..10, where 10 is the digit 0."""
    try:
        from scipy.io import loadmat  # noqa: PLC0415 - it takes as long as the rest of the task
    except ImportError as error:
        raise ConfigError("task.factory", "the domain svhn needs SciPy", hint="pip install scipy") from error
    try:
        content = loadmat(path)
        pixels, labels = content["X"], content["y"].reshape(-1).astype(np.int64)
    except Exception as error:  # whatever SciPy meets in a damaged file
        raise DataError(str(path), "is no MATLAB file of SVHN", hint=f"get it again; {_SVHN}") from error
    if pixels.dtype != np.uint8 or pixels.shape != (SIDE, SIDE, 3, len(labels)) or not _are_digits(labels % CLASSES):
        raise DataError(str(path), "its X and y are no images of 32 x 32 with digits", hint=f"get it again; {_SVHN}")
    return pixels, labels
