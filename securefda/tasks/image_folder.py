"""Image classification without code: each site has one folder per class, and all images get the same size."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from securefda.disk import read_whole
from securefda.errors import ConfigError, DataError
from securefda.settings import Settings, parse_options
from securefda.tasks.base import Samples, TaskSettings, Unlabelled, seed_with
from securefda.tasks.classification import Classification, distinct_classes
from securefda.tasks.held_out import HeldOut
from securefda.tasks.variation import shifted

FACTORY = "securefda.tasks.image_folder:ImageFolder"
SUFFIXES = (".png", ".jpg", ".jpeg")
_FORMATS = ("PNG", "JPEG")
_GROUPS = 8
UNLABELLED = "unlabelled"
"""The folder of a target's images without labels."""
UNLABELLED_HINT = (
    f'{UNLABELLED} holds images without labels: set labels = "none" in the target\'s training settings '
    "(securefda config explain training.labels), or put labelled ones into folders of classes beside it"
)


def _class_folders(names: tuple[str, ...]) -> tuple[str, ...]:
    if not all(name and Path(name).name == name for name in names):
        raise ValueError("must be names of folders")
    return distinct_classes(names)


class ImageFolderOptions(Settings):
    """The options of a task of images; all but the last three must be the same at every site."""

    classes: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_class_folders)]
    """All classes, in order: the names of the folders. A site may lack some of them."""

    size: Annotated[int, Field(ge=8, le=512)] = 64
    """Side in pixels of the square that every image becomes; its shape is kept, and the rest is black."""

    colour: Literal["grey", "rgb"] = "grey"
    """Whether the model sees one channel or three."""

    channels: Annotated[int, Field(ge=_GROUPS, le=512, multiple_of=_GROUPS)] = 16
    """Channels of the model's first layer, a multiple of 8; the next two have twice and four times as many."""

    group_separator: str = ""
    """Images whose names are equal before this text stay on one side of the split: `_` for `PATIENT_NUMBER.png`."""

    test_share: float = 0.2
    """Share of the target's images that are held out, about."""

    source_test_share: float = 0.1
    """The same at every source."""

    split_seed: int = 0
    """Another number holds out other images."""

    stratify: bool = False
    """Whether the target holds out the same share of each class; one more row can then move another one."""


class ImageFolder(Classification):
    """PNG and JPEG files: ``SITE/CLASS/*.png`` in the ``task.data-dir`` of each site. Other files are refused.

    A target has its images without labels in ``SITE/unlabelled/*.png``. Where it trains without labels, it may have
    folders of classes beside it, whose images may be held out; where it trains with them, it has both.

    An image is turned as its EXIF data say, made grey or RGB, fitted into a square, and scaled to [-1, 1]. Grey images
    of 16 bits keep their range; transparency is dropped. DICOM files are not read.

    The model has three convolutions with GroupNorm, whose means over the image go to one linear layer. Its first
    weights follow from the seed, the classes, the size and the colour.

    Raises:
        ConfigError: an option is missing, unknown or wrong.
        DataError: on first use of a site's data, a file is unfit. The message names site, split and number of images;
            the hint, which stays at the site, the first file.
    """

    separate_rows = True

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self.options = parse_options(ImageFolderOptions, settings.options)
        self._at_target, self._at_sources = HeldOut.of(settings)

    def model(self) -> nn.Module:
        """Return images (n, 1 or 3, size, size) -> a logit for each class."""
        options = self.options
        seed_with(json.dumps([options.classes, options.size, options.colour, options.channels]).encode())
        layers: list[nn.Module] = []
        before = len(_CHANNELS[options.colour])
        for width in (options.channels, 2 * options.channels, 4 * options.channels):
            layers += [nn.Conv2d(before, width, 3, stride=2, padding=1), nn.GroupNorm(_GROUPS, width), nn.ReLU()]
            before = width
        return nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, len(self.options.classes))
        )

    def train_data(self, site: str) -> Samples | Unlabelled:
        """Return the site's training images: features (n, 1 or 3, size, size) float32, labels (n,) int64."""
        if not self.settings.lacks_labels(site):
            return self._samples(site, held_out=False)
        paths, where = [*self._without_class(site), *self._classified(site, held_out=False)[0]], f"{site}, train"
        if not paths:
            hint = f"images without labels lie in {self._folder(site) / UNLABELLED}"
            raise DataError(where, "has no images", hint=hint)
        return Unlabelled(self._features(paths, where))

    def test_data(self, site: str) -> Samples | None:
        """Return the images that the site holds out, of the same form; None where none of a target has a label, and at
        sources that hold out the share 0.
        """
        if self.settings.lacks_labels(site) and not self._classified(site, held_out=True)[0]:
            return None
        return self._samples(site, held_out=True) if self._split_of(site).share else None

    def require_own_sides(self, site: str) -> None:
        """Raise ConfigError at a target that holds out by class."""
        self._split_of(site).require_own_sides(site)

    def unlabelled_data(self) -> Unlabelled | None:
        """Return the target's images in ``unlabelled``."""
        paths = self._without_class(self.settings.target)
        return Unlabelled(self._features(paths, f"{self.settings.target}, {UNLABELLED}")) if paths else None

    def varied(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images shifted by at most a sixteenth of their side each way, with black beside them."""
        return shifted(features, max(1, self.options.size // 16), generator, empty=-1.0)

    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes, in order."""
        return self.options.classes

    def inputs_from(self, path: Path) -> Tensor:
        """Return the image in a file, or all images in a folder in the order of their names, (n, 1 or 3, size, size).

        Raises:
            DataError: there is none, or one cannot be read.
        """
        return self._features(images_at(path), str(path))

    def input_names(self, path: Path) -> tuple[str, ...]:
        """Return the names of the files, in the order of :meth:`inputs_from`."""
        return tuple(file.name for file in images_at(path))

    def _without_class(self, site: str) -> list[Path]:
        """Return the target's images that lie in no folder of a class."""
        folder = self._folder(site) / UNLABELLED
        if UNLABELLED in self.options.classes or not folder.is_dir():
            return []
        return images_in(folder, f"{site}: {folder}")

    def _classified(self, site: str, *, held_out: bool) -> tuple[list[Path], list[int]]:
        """Return the images in class folders that are held out, or are not, each with its class."""
        folder, classes = self._folder(site), self.options.classes
        images = [
            (path, number)
            for number, name in enumerate(classes)
            if (folder / name).is_dir()
            for path in images_in(folder / name, f"{site}: {folder / name}")
        ]
        contents = (self._content(path) for path, _ in images)
        sides = self._split_of(site).sides(contents, (classes[number] for _, number in images))
        mine = [image for image, side in zip(images, sides, strict=True) if side == held_out]
        return [path for path, _ in mine], [number for _, number in mine]

    def _split_of(self, site: str) -> HeldOut:
        return self._at_target if site == self.settings.target else self._at_sources

    def _samples(self, site: str, *, held_out: bool) -> Samples:
        where = f"{site}, {'test' if held_out else 'train'}"
        paths, labels = self._classified(site, held_out=held_out)
        if not paths:
            count = len(self._classified(site, held_out=not held_out)[0])
            share = f"the share held out is {self._split_of(site).share:g}; another split-seed holds out other images"
            hint = share if count else f"the images of a class lie in {self._folder(site)}/CLASS"
            if (self._folder(site) / UNLABELLED).is_dir():
                hint = UNLABELLED_HINT
            raise DataError(where, f"has none of {count} images", hint=hint)
        return Samples(self._features(paths, where), torch.tensor(labels))

    def _folder(self, site: str) -> Path:
        """Return the site's folder, which may contain class folders only."""
        self.require_site(site)
        if self.settings.data_dir is None:
            hint = f"set task.data-dir to the folder that holds {site}/CLASS/*.png"
            raise ConfigError("task.data-dir", "each site's images lie in a folder of its own", hint=hint)
        folder = self.settings.data_dir / site
        try:
            folders = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")
        except OSError as error:
            hint = f"set task.data-dir to the folder that holds {site}/CLASS/*.png"
            raise DataError(f"{site}: {folder}", f"cannot be read: {error.strerror}", hint=hint) from error
        known = (*self.options.classes, *([UNLABELLED] if site == self.settings.target else []))
        unknown = [name for name in folders if name not in known]
        if unknown:
            why = f"{len(unknown)} of {len(folders)} folders are of no class"
            hint = f"{unknown[0]} is the first; task.options.classes lists {', '.join(self.options.classes)}"
            if UNLABELLED in unknown:
                hint = f"move {UNLABELLED} away: a source trains on labelled images alone"
            raise DataError(f"{site}: {folder}", why, hint=hint)
        return folder

    def _content(self, path: Path) -> bytes:
        """Return what decides whether an image is held out: its group, or the bytes of the file."""
        mark = self.options.group_separator
        if not mark:
            return content_of(path, str(path))
        group, separator, _ = path.name.partition(mark)
        return (group if separator else path.stem).encode()

    def _features(self, paths: Sequence[Path], where: str) -> Tensor:
        """Return the images as the model takes them, (n, 1 or 3, size, size)."""
        return read_images(paths, self.options.size, self.options.colour, where)


_CHANNELS = {"grey": "L", "rgb": "RGB"}
"""Colour -> the mode of an image with its channels, as Pillow names them."""


def read_images(paths: Sequence[Path], size: int, colour: Literal["grey", "rgb"], where: str) -> Tensor:
    """Return images as squares in [-1, 1], float32 (n, 1 or 3, size, size); errors say ``where``.

    Raises:
        DataError: one cannot be read.
    """
    pixels = np.empty((len(paths), len(_CHANNELS[colour]), size, size), dtype=np.float32)
    unfit: list[tuple[Path, str]] = []
    for place, path in enumerate(paths):
        try:
            pixels[place] = _pixels(path, size, colour)
        except UnidentifiedImageError:
            unfit.append((path, "it is neither PNG nor JPEG, whatever its name says"))
        except Image.DecompressionBombError:
            unfit.append((path, "it has more pixels than Pillow takes for an image"))
        except (OSError, ValueError, SyntaxError) as error:  # what Pillow raises for a damaged file
            unfit.append((path, getattr(error, "strerror", None) or "it is damaged"))
    if unfit:
        path, why = unfit[0]
        hint = f"{path} is the first: {why}"
        raise DataError(where, f"{len(unfit)} of {len(paths)} images cannot be read", hint=hint)
    return torch.from_numpy(pixels)


def images_at(path: Path) -> list[Path]:
    """Return the image in a file, or those in a folder. Raises what :func:`images_in` does."""
    return images_in(path, str(path)) if path.is_dir() else [path]


def images_in(folder: Path, where: str) -> list[Path]:
    """Return the images of a folder, by name; errors say ``where``.

    Raises:
        DataError: it holds something else, or nothing.
    """
    files = sorted(path for path in folder.iterdir() if path.name[0] != ".")
    others = [path for path in files if path.suffix.lower() not in SUFFIXES]
    if others:
        why = f"{len(others)} of {len(files)} files are named neither {', '.join(SUFFIXES[:-1])} nor {SUFFIXES[-1]}"
        kind = ", a folder, in which no images are looked for" if others[0].is_dir() else ""
        raise DataError(where, why, hint=f"{others[0].name} is the first{kind}")
    if not files:
        raise DataError(where, "holds no images", hint="put PNG or JPEG files there, or remove the folder")
    return files


def content_of(path: Path, where: str) -> bytes:
    """Return the bytes of an image's file; raise DataError, which says ``where``, if it cannot be read."""
    try:
        return read_whole(path)
    except OSError as error:
        raise DataError(where, f"an image cannot be read: {error.strerror}", hint=str(path)) from error


def _pixels(path: Path, size: int, colour: Literal["grey", "rgb"]) -> NDArray[np.float32]:
    """Return one image in [-1, 1], (1 or 3, size, size)."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(read_whole(path)), formats=_FORMATS) as opened:
                image: Any = ImageOps.exif_transpose(opened)
                image.load()
        except Image.DecompressionBombWarning as warning:
            raise Image.DecompressionBombError(str(warning)) from warning
    if image.mode.startswith("I"):  # grey, 16 bits: a conversion would cut all above 255
        image = Image.fromarray((np.asarray(image, dtype=np.float32) * (255 / 65535)).astype(np.float32))
    else:
        image = image.convert(_CHANNELS[colour])
    image = ImageOps.pad(image, (size, size), Image.Resampling.BILINEAR)
    array = np.asarray(image, dtype=np.float32) / 127.5 - 1
    array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return array if len(array) == len(_CHANNELS[colour]) else np.repeat(array, len(_CHANNELS[colour]), axis=0)
