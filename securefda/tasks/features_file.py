"""Files of features that a frozen encoder made of a site's rows: reading them, from wherever they come, and writing.

A ``.safetensors`` file has a tensor ``features`` (n, d), and ``labels`` where labels are known: (n,) class numbers, or
(n, C) of 0 and 1 where a row can have several labels. Its metadata can
have ``encoder``, the SHA-256 of what made it in hex, and as lists in JSON ``classes``, the names of the labels 0, 1 and
so on, and ``rows``, a name for each row. A ``.npz`` file of NumPy has arrays of the same names, and no metadata.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from securefda.disk import MAX_DATA_BYTES, read_whole
from securefda.errors import DataError
from securefda.parse import items, json_value, text, texts
from securefda.text import printable

SUFFIXES = (".safetensors", ".npz")
NO_LABEL = -1
"""Label of a row whose class is not known."""

_KEYS = ("features", "labels")
_WHOLE = (torch.uint8, torch.uint16, torch.uint32, torch.int8, torch.int16, torch.int32, torch.int64)
_HINT = "`securefda features` writes such files"


@dataclass(frozen=True, slots=True, repr=False)
class FeatureFile:
    """The content of a file of features.

    Attributes:
        features: float32 (n, d), finite, n and d at least 1.
        labels: int64 (n,), class numbers, or (n, C), 1 for each label that a row has; `NO_LABEL` for a row without a
            label; None if no row has one.
        encoder: SHA-256 in hex of what made the features; empty if the file does not say.
        classes: the names of labels 0, 1 and so on; empty if the file does not say.
        rows: a name for each row; empty if the file does not say.
    """

    features: Tensor
    labels: Tensor | None = None
    encoder: str = ""
    classes: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the file, in the safetensors format."""
        tensors = {"features": self.features.contiguous()}
        if self.labels is not None:
            tensors["labels"] = self.labels.contiguous()
        lists = {"classes": self.classes, "rows": self.rows}
        named = {key: json.dumps(names, ensure_ascii=False) for key, names in lists.items() if names}
        return safetensors.torch.save(tensors, {"encoder": self.encoder} | named)


def read_features(path: Path) -> FeatureFile:
    """Read a file of features; its name says which format it has.

    Raises:
        DataError: it is missing, larger than 1 GiB, in neither format, damaged, or its tensors are not as `FeatureFile`
            has them. The message names the file and counts rows; no value of one is in it.
    """
    if path.is_dir():
        raise DataError(str(path), "is a folder", hint=f"name a file of features; {_HINT} of a folder of images")
    try:
        content = read_whole(path)
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror}", hint="check the path") from error
    if path.suffix not in SUFFIXES:
        raise DataError(str(path), f"is named neither *{' nor *'.join(SUFFIXES)}", hint=_HINT)
    try:
        tensors, entries = (_of_safetensors if path.suffix == SUFFIXES[0] else _of_npz)(content)
        classes, rows = (_names(entries.get(key, "[]")) for key in ("classes", "rows"))
    except Exception as error:  # whatever the libraries meet in a damaged file
        words = printable(" ".join(str(error).split()).partition(". ")[0][:200])
        why = f"is no {path.suffix} file of features, or it is damaged"
        raise DataError(str(path), why, hint=f"get or make it again; it says: {words}") from error
    features, labels = _fit(path, tensors)
    if rows and len(rows) != len(features):
        raise DataError(str(path), f"names {len(rows)} rows, and has {len(features)}", hint=f"make it again; {_HINT}")
    return FeatureFile(features, labels, entries.get("encoder", ""), classes, rows)


def _of_safetensors(content: bytes) -> tuple[Mapping[str, Tensor], Mapping[str, str]]:
    """Return tensors and metadata."""
    tensors = safetensors.torch.load(content)  # which checks the header's length
    header = json_value(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return tensors, texts(header.get("__metadata__", {}))


def _names(listed: str) -> tuple[str, ...]:
    return tuple(text(entry) for entry in items(json_value(listed)))


def _of_npz(content: bytes) -> tuple[Mapping[str, Tensor], Mapping[str, str]]:
    """Return arrays as tensors; one that is packed is unpacked to no more than 1 GiB."""
    tensors = {}
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        for key in _KEYS:
            if key not in archive:
                continue
            # NumPy reads an entry without the suffix in place of one with it
            sizes = [one.file_size for one in archive.zip.infolist() if one.filename in (key, f"{key}.npy")]
            if max(sizes) > MAX_DATA_BYTES:
                raise ValueError(f"{key} would have more than {MAX_DATA_BYTES >> 20} MiB")
            tensors[key] = torch.from_numpy(archive[key])
    return tensors, {}


def _fit(path: Path, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Check shapes, types and values."""
    features, labels = (tensors.get(key) for key in _KEYS)
    if features is None:
        raise DataError(str(path), "has no features", hint=f"name the array `features`; {_HINT}")
    if features.ndim != 2 or 0 in features.shape or not (features.is_floating_point() or features.dtype in _WHOLE):
        why = f"its features are {str(features.dtype).removeprefix('torch.')} {tuple(features.shape)}"
        raise DataError(str(path), why, hint="they are numbers, a row for each row, a column for each feature")
    features = features.float()
    unfit = ~torch.isfinite(features).all(dim=1)
    if bool(unfit.any()):
        why = f"a feature is NaN or infinite in {int(unfit.sum())} of {len(features)} rows"
        hint = f"row {int(unfit.int().argmax()) + 1} is the first; leave such rows out, and look at what made them"
        raise DataError(str(path), why, hint=hint)
    if labels is None:
        return features, None
    if labels.ndim not in (1, 2) or len(labels) != len(features) or labels.dtype not in _WHOLE:
        why = f"its labels are {str(labels.dtype).removeprefix('torch.')} {tuple(labels.shape)}"
        hint = (
            f"they are class numbers, one for each of the {len(features)} rows, or 0 and 1 in a column for each label"
        )
        raise DataError(str(path), why, hint=hint)
    return features, labels.long()
