"""IDX files, the format of MNIST and similar data: a header with the sizes, then bytes, plain or gzipped.

A file may come from a stranger: sizes are bounded before anything is allocated, and at most one byte more than the
header promises is read, or unpacked.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from securefda.errors import DataError

SIDE = 28
"""Images have this many rows and columns."""

CLASSES = 10

MOST_ITEMS = 1_000_000
"""A header that says more is refused: 784 MB of images."""

# Two zero bytes, 8 for "unsigned bytes", then the number of dimensions.
_LABELS_MAGIC, _IMAGES_MAGIC = b"\0\0\x08\x01", b"\0\0\x08\x03"
_KINDS = {_LABELS_MAGIC: "labels", _IMAGES_MAGIC: "images"}
_IMAGES_NAMES = ("{}-images-idx3-ubyte", "{}-images.idx3-ubyte")
_LABELS_NAMES = ("{}-labels-idx1-ubyte", "{}-labels.idx1-ubyte")

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Origin:
    """The publisher of a collection's files, for messages.

    Attributes:
        name: of the collection.
        address: where it is published.
        sha256: file name, with .gz, -> digest of the published file.
    """

    name: str
    address: str
    sha256: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha256", MappingProxyType(dict(self.sha256)))

    def where_from(self, file: str) -> str:
        """Return how to get ``file``."""
        name = file if file.endswith(".gz") else f"{file}.gz"
        digest = f"; SHA-256 of {name}: {self.sha256[name]}" if name in self.sha256 else ""
        return f"{self.name} is published at {self.address}{digest}"


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """``images`` (n, 28, 28) and ``labels`` (n,) in 0..9, bytes; n >= 1."""

    images: Bytes
    labels: Bytes

    def __len__(self) -> int:
        return len(self.labels)


def read_labelled_images(folder: Path, name: str, origin: Origin) -> LabelledImages:
    """Read the images and labels of one set, complete or a part of the published one.

    Args:
        folder: holds the two files, plain or with .gz; of both, the plain one is read.
        name: of the set, with which its files begin: "train", "t10k", "train3600".
        origin: of the collection.

    Raises:
        DataError: a file is missing, is no IDX file of its kind, is shorter or longer than its header says, or its gzip
            is damaged; or the two do not go together. ``key`` is the file; the hint says from where it can be had.
    """
    images_file, labels_file = _find(folder, name, _IMAGES_NAMES, origin), _find(folder, name, _LABELS_NAMES, origin)
    images, labels = _read(images_file, _IMAGES_MAGIC, origin), _read(labels_file, _LABELS_MAGIC, origin)
    if len(images) != len(labels):
        why = f"{len(labels)} labels, but {images_file.name} beside it has {len(images)} images"
        raise DataError(str(labels_file), why, hint=f"take both from one place; {origin.where_from(labels_file.name)}")
    if int(labels.max()) >= CLASSES:
        why = f"holds the label {labels.max()}, and labels are 0 to {CLASSES - 1}"
        raise DataError(str(labels_file), why, hint=origin.where_from(labels_file.name))
    return LabelledImages(images, labels)


def _find(folder: Path, name: str, patterns: tuple[str, ...], origin: Origin) -> Path:
    """Find the first of the usual names that exists."""
    plain = [pattern.format(name) for pattern in patterns]
    for file in (folder / (stem + ending) for stem in plain for ending in ("", ".gz")):
        if file.is_file():
            return file
    why = f"there is no {plain[0]} or {plain[0]}.gz in this folder"
    raise DataError(str(folder), why, hint=f"put it there; {origin.where_from(plain[0])}")


def _read(path: Path, magic: bytes, origin: Origin) -> Bytes:
    """Return the bytes of one file in their shape."""
    try:
        with path.open("rb") as file:
            if path.suffix != ".gz":
                return _array(path, file, magic)
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _array(path, unpacked, magic)
    except DataError as error:
        raise DataError(error.key, error.why, hint=f"get it again; {origin.where_from(path.name)}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        why = f"its gzip is damaged or cut short: {error}"
        raise DataError(str(path), why, hint=f"get it again; {origin.where_from(path.name)}") from error
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise DataError(str(path), why, hint=origin.where_from(path.name)) from error


def _array(path: Path, stream: BinaryIO | gzip.GzipFile, magic: bytes) -> Bytes:
    shape = _shape(path, stream, magic)
    size = int(np.prod(shape))
    content = stream.read(size + 1)
    if len(content) != size:
        fault = f"has only {len(content)}" if len(content) < size else "goes on after that"
        raise DataError(str(path), f"its header says {size} bytes of {_KINDS[magic]}, and it {fault}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _shape(path: Path, stream: BinaryIO | gzip.GzipFile, magic: bytes) -> tuple[int, ...]:
    """Read the header."""
    dimensions = magic[3]
    header = stream.read(4 + 4 * dimensions)
    if header[:4] != magic:
        raise DataError(str(path), f"{_look_of(header[:4])}, and an IDX file of {_KINDS[magic]} with {magic.hex()}")
    if len(header) < 4 + 4 * dimensions:
        raise DataError(str(path), f"is cut short in its header, after {len(header)} bytes")
    items, *sides = (int(size) for size in np.frombuffer(header, dtype=">u4", offset=4))
    if not 1 <= items <= MOST_ITEMS:
        raise DataError(str(path), f"its header says {items} {_KINDS[magic]}, and 1 to {MOST_ITEMS} can be read")
    if any(side != SIDE for side in sides):
        shape = " x ".join(str(side) for side in sides)
        raise DataError(str(path), f"its images have {shape} pixels, and {SIDE} x {SIDE} are expected")
    return (items, *sides)


def _look_of(beginning: bytes) -> str:
    if beginning in _KINDS:
        return f"is an IDX file of {_KINDS[beginning]}: it begins with {beginning.hex()}"
    return f"begins with {beginning.hex()}" if beginning else "is empty"
