"""A small head on features that a frozen encoder made of each site's rows beforehand: classification without code.

A row has one of the classes, or with :class:`MultiLabelFeatures` any number of them.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field
from torch import Tensor, nn

from securefda.errors import ConfigError, DataError
from securefda.settings import Settings, check, parse_options
from securefda.tasks.base import Samples, Task, TaskSettings, Unlabelled
from securefda.tasks.classification import Classification, distinct_classes
from securefda.tasks.features_file import NO_LABEL, SUFFIXES, FeatureFile, read_features
from securefda.tasks.held_out import HeldOut
from securefda.tasks.metric_functions import auroc, balanced_accuracy, confusion_matrix
from securefda.text import printable

FACTORY = "securefda.tasks.features:Features"
MULTI_LABEL_FACTORY = "securefda.tasks.features:MultiLabelFeatures"
_MOST_CLASSES = 10_000
_TARGET_FRACTION = 0.8


def _numbered(value: object) -> object:
    """Return the names of classes that are given by their number."""
    if isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= _MOST_CLASSES:
        return tuple(map(str, range(value)))
    return value


def _file_name(prefix: str) -> str:
    if prefix and Path(prefix).name != prefix:
        raise ValueError("must be the beginning of a file's name")
    return prefix


class FeaturesOptions(Settings):
    """The options of a task of features."""

    classes: Annotated[
        tuple[str, ...], BeforeValidator(_numbered), Field(strict=False), AfterValidator(distinct_classes)
    ]
    """All classes, in order; or their number, which names them 0, 1 and so on. A site may lack some of them."""

    width: Annotated[int, Field(ge=1, le=65_536)]
    """Features of a row, d."""

    encoder: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    """SHA-256 in hex of the encoder, which every file must name; empty if that is not checked."""

    unit_rows: bool = True
    """Whether the model first scales each row to length 1."""

    hidden: Annotated[int, Field(ge=0, le=65_536)] = 0
    """Units of a layer before the last one; 0: there is none, as the rule ``analytic`` needs it."""

    dropped: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a row's features that are 0 where the row is varied, about."""

    prefix: Annotated[str, AfterValidator(_file_name)] = ""
    """Beginning of the names of files, before the site id. It may differ between sites."""

    target_rows: Annotated[int, Field(ge=0)] = 0
    """Number of the target's rows that it trains on; 0: one of the next two says it, or they are about 0.8 of all."""

    target_rows_per_class: Annotated[int, Field(ge=0)] = 0
    """The same for each class."""

    target_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The same as a share of its rows, about."""

    source_test_fraction: Annotated[float, Field(ge=0.01, le=0.9)] = 0.1
    """Share of each source's rows that it holds out for tests of its own, about."""

    @check
    def _one_says_how_many(self) -> Self:
        if sum(map(bool, (self.target_rows, self.target_rows_per_class, self.target_fraction))) > 1:
            why = "only one of target-rows, target-rows-per-class and target-fraction can say how many rows train"
            raise ConfigError("task.options", why, hint="keep one of them")
        return self


class EncodedRows(nn.Module):
    """Rows as an encoder made them, each scaled to length 1 if ``unit``; a row of zeros stays one.

    Its parameter is frozen and has no part in what it returns: the digest of ``description``, which makes a source
    refuse to join a run whose target describes its encoder, classes or scaling otherwise.
    """

    def __init__(self, description: bytes, *, unit: bool) -> None:
        super().__init__()
        digest = torch.tensor(list(hashlib.sha256(description).digest()), dtype=torch.float32)
        self.description = nn.Parameter(digest, requires_grad=False)
        self._unit = unit

    def forward(self, rows: Tensor) -> Tensor:
        """Return the rows, (n, d)."""
        return nn.functional.normalize(rows) if self._unit else rows


class Features(Classification):
    """Files of features: ``SITE.safetensors`` or ``SITE.npz`` in the ``task.data-dir`` of each site.

    `securefda features` writes them; :mod:`securefda.tasks.features_file` says what is in them. Where a file names its
    classes, labels go by name.

    The seed draws which of the target's rows train; the others are its test rows. A target without labels trains on
    all its rows, and those that have a label all the same are its test rows. What is drawn depends on each row's own
    values, not on its place. With a fraction, one more row moves no other. With a number, it can take another's place,
    so that two of the rows that train differ: noise at the target does not cover that, and is refused.

    The model is linear, from 0. Its last layer is all that trains, as the rule ``analytic`` needs it. With ``hidden``
    a layer with ReLU is before it, which can be adapted to a target without labels if ``dropped`` is above 0.

    Its metrics are those of :func:`securefda.tasks.metric_functions.class_metrics`.

    Raises:
        ConfigError: an option is missing, unknown or wrong.
        DataError: on first use of a site's data, its file is missing or unfit. The message names the file and counts
            rows; the hint, which stays at the site, has the first one's number.
    """

    separate_rows = True
    labels_are: tuple[str, ...] = ()
    """What the description of the rows says beside the options."""

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self.options = parse_options(FeaturesOptions, settings.options)
        self._read_rows: dict[str, Samples] = {}

    def model(self) -> nn.Module:
        """Return features (n, d) -> rows of length 1 -> with ``hidden`` one more layer -> a logit for each class."""
        options = self.options
        head = nn.Linear(options.hidden or options.width, len(options.classes))
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        described = json.dumps([options.encoder, options.classes, options.unit_rows, *self.labels_are]).encode()
        layers = OrderedDict[str, nn.Module](rows=EncodedRows(described, unit=options.unit_rows))
        if options.hidden:
            # Layers are initialised for numbers about 1, and a row of length 1 has much smaller ones.
            layers["scaled"] = nn.RMSNorm(options.width, elementwise_affine=False)
            layers["hidden"], layers["relu"] = nn.Linear(options.width, options.hidden), nn.ReLU()
        return nn.Sequential(OrderedDict[str, nn.Module](layers, classifier=head))

    def varied(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Return the rows, in each of which a share ``dropped`` of the features is 0; unchanged if that is 0."""
        if not self.options.dropped:
            return features
        kept = torch.rand(features.shape, generator=generator) >= self.options.dropped
        return features * kept.to(features.device)

    def train_data(self, site: str) -> Samples | Unlabelled:
        """Return the site's training rows: features (n, d) float32, labels (n,) int64."""
        if self.settings.lacks_labels(site):
            return Unlabelled(self._rows(site).features)
        return self._part(site, held_out=False)

    def test_data(self, site: str) -> Samples | None:
        """Return the site's other rows; of a target without labels those with a label, None if there are none."""
        if not self.settings.lacks_labels(site):
            return self._part(site, held_out=True)
        rows = self._rows(site)
        known = (rows.labels != NO_LABEL).reshape(len(rows), -1).all(dim=1)
        return Samples(rows.features[known], rows.labels[known]) if bool(known.any()) else None

    def require_own_sides(self, site: str) -> None:
        """Raise ConfigError at a target that trains on a number of rows: one row more can take another one's place."""
        options = self.options
        if site == self.settings.target and (options.target_rows or options.target_rows_per_class):
            key = "target-rows" if options.target_rows else "target-rows-per-class"
            why = "with it one row more can take the place of another one, and noise covers one row alone"
            hint = "set target-fraction, or train without noise at the target"
            raise ConfigError(f"task.options.{key}", why, hint=hint)

    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes, in order."""
        return self.options.classes

    def inputs_from(self, path: Path) -> Tensor:
        """Return the features in a file, (n, d).

        Raises:
            DataError: the file is missing or unfit, or of another encoder or width.
        """
        return self._read(path).features

    def input_names(self, path: Path) -> tuple[str, ...]:
        """Return the names that the file gives its rows, if it does."""
        return self._read(path).rows

    def _read(self, path: Path) -> FeatureFile:
        """Read a file, and check that it is of this task's encoder and width."""
        file, options = read_features(path), self.options
        if file.features.shape[1] != options.width:
            why = f"has {file.features.shape[1]} features a row, and task.options.width is {options.width}"
            raise DataError(str(path), why, hint="take the features of the same encoder at every site")
        if options.encoder and file.encoder != options.encoder:
            named = f"names the encoder {printable(file.encoder[:16])}..." if file.encoder else "names no encoder"
            why = f"{named}, and task.options.encoder is {options.encoder[:16]}..."
            raise DataError(
                str(path), why, hint="make it with the encoder, and the scaling or columns, of the other sites"
            )
        return file

    def _rows(self, site: str) -> Samples:
        """Return all rows of a site's file, with labels that number this task's classes, or are `NO_LABEL`."""
        self.require_site(site)
        if site not in self._read_rows:
            path = self._path(site)
            file = self._read(path)
            self._read_rows[site] = Samples(file.features, self._labels(path, file, site))
        return self._read_rows[site]

    def _path(self, site: str) -> Path:
        folder, stems = self.settings.data_dir, dict.fromkeys((site, site.replace("-", "_")))  # ids have no underscore
        names = [f"{self.options.prefix}{stem}{suffix}" for stem in stems for suffix in SUFFIXES]
        hint = f"set task.data-dir to the folder that holds {' or '.join(names)}"
        if folder is None:
            raise ConfigError("task.data-dir", "each site's features lie in a file of its own", hint=hint)
        present = [folder / name for name in names if (folder / name).exists()]
        if len(present) != 1:
            why = f"holds both {' and '.join(names)}" if present else f"holds no {' or '.join(names)}"
            raise DataError(str(folder), why, hint="remove one of them" if present else hint)
        return present[0]

    def _labels(self, path: Path, file: FeatureFile, site: str) -> Tensor:
        """Return the file's labels as this task numbers its classes; only a target without labels may lack some."""
        optional, classes = self.settings.lacks_labels(site), self.options.classes
        labels = file.labels
        if labels is None:
            if optional:
                return torch.full((len(file.features),), NO_LABEL)
            why = "has no labels" + (f", and {site} is a source" if site != self.settings.target else "")
            hint = (
                "add the array `labels`, or give `securefda features` a folder of images for each class, or --label; "
                'a target without labels sets labels = "none" in its training settings'
            )
            raise DataError(str(path), why, hint=hint)
        unknown = [name for name in file.classes if name not in classes]
        if unknown:
            why = f"{len(unknown)} of its {len(file.classes)} classes are none of task.options.classes"
            raise DataError(str(path), why, hint=f"{unknown[0]} is the first; the task has {', '.join(classes[:20])}")
        return self._numbered(path, file, labels, optional=optional)

    def _numbered(self, path: Path, file: FeatureFile, labels: Tensor, *, optional: bool) -> Tensor:
        """Check labels, and return them as this task numbers its classes."""
        classes = self.options.classes
        if labels.ndim != 1:
            why = f"has {labels.shape[1]} labels a row, and task.factory is for one class a row"
            raise DataError(str(path), why, hint=f'for several labels set task.factory = "{MULTI_LABEL_FACTORY}"')
        count = len(file.classes or classes)
        unfit = (labels >= count) | (labels < (NO_LABEL if optional else 0))
        if bool(unfit.any()):
            why = f"{int(unfit.sum())} of {len(labels)} labels are no number of its {count} classes"
            hint = f"row {int(unfit.int().argmax()) + 1} is the first; classes are numbered from 0"
            raise DataError(str(path), why, hint=hint)
        if not file.classes:
            return labels
        numbers = torch.tensor([*map(classes.index, file.classes), NO_LABEL])  # the last one is that of NO_LABEL, -1
        return numbers[labels]

    def _part(self, site: str, *, held_out: bool) -> Samples:
        """Return the rows of a site's file that are held out, or are not."""
        rows = self._rows(site)
        part = torch.from_numpy(self._held_out(site, rows) == held_out)
        if not bool(part.any()):
            where, kind = f"{site}, {'test' if held_out else 'train'}", "tests" if held_out else "trains"
            hint = (
                "task.options.target-rows, target-rows-per-class, target-fraction and source-test-fraction say how many"
            )
            raise DataError(where, f"none of the {len(part)} rows {kind}", hint=hint)
        return Samples(rows.features[part], rows.labels[part])

    def _held_out(self, site: str, rows: Samples) -> NDArray[np.bool_]:
        """Return for each row whether it is held out."""
        options, is_target = self.options, site == self.settings.target
        fraction = options.target_fraction or _TARGET_FRACTION
        split = HeldOut(1 - fraction if is_target else options.source_test_fraction, self.settings.seed)
        contents = [row.tobytes() for row in rows.features.numpy()]
        count, groups = options.target_rows, [np.arange(len(rows))]
        if options.target_rows_per_class:
            count = options.target_rows_per_class
            groups = [np.flatnonzero(rows.labels.numpy() == each) for each in range(len(options.classes))]
        if not (count and is_target):
            return np.array([split.holds_out(content) for content in contents])
        places = np.array([split.place(content) for content in contents], np.uint64)
        held_out = np.ones(len(rows), np.bool_)
        for group in groups:
            held_out[group[np.argsort(places[group], kind="stable")[:count]]] = False
        return held_out


class MultiLabelFeatures(Features):
    """Files of features as of :class:`Features`, whose rows each have any number of labels.

    ``labels`` in a file are (n, C), 1 where a row has the label and else 0. The columns are those of
    ``task.options.classes``, or in the order of the file's own classes, which are then the same. At a target without
    labels all of a row can be -1.

    Under the rule ``analytic`` the head fits 1 and -1 for each label by itself.

    ``accuracy`` is the share of labels that are right over all rows. ``balanced_accuracy`` and ``auroc`` are means over
    the labels that some rows have and others lack, if there are any.

    Raises:
        ConfigError, DataError: as of :class:`Features`; ``target-rows-per-class`` is refused.
    """

    labels_are = ("several",)

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        if self.options.target_rows_per_class:
            why = "a row can have several labels, and no number of rows belongs to one"
            raise ConfigError("task.options.target-rows-per-class", why, hint="set target-rows or target-fraction")

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean binary cross-entropy of the logits."""
        return nn.functional.binary_cross_entropy_with_logits(outputs, labels)

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the binary cross-entropy of each row, the mean over its labels."""
        return nn.functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none").mean(dim=1)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return the accuracy, and the means of balanced accuracy and AUROC over the labels, in [0, 1]."""
        figures = {"accuracy": float(self.row_accuracies(outputs, labels).mean())}
        pairs = [pair for pair in zip(outputs.T, labels.T, strict=True) if len(torch.unique(pair[1])) == 2]
        if pairs:
            tables = [confusion_matrix((score > 0).long(), of.long(), 2) for score, of in pairs]
            figures["balanced_accuracy"] = sum(map(balanced_accuracy, tables)) / len(pairs)
            figures["auroc"] = sum(auroc(score, of > 0) for score, of in pairs) / len(pairs)
        return figures

    def row_accuracies(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the share of each row's labels that is right."""
        return ((outputs > 0) == (labels > 0)).double().mean(dim=1)

    def head_targets(self, labels: Tensor, outputs: int) -> Tensor:  # noqa: ARG002 - one for each label
        """Return 1 for each label that a row has and -1 for every other, (n, C)."""
        return 2 * labels - 1

    def guesses(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Raise ConfigError: a row has no single confidence."""
        return Task.guesses(self, outputs)

    def predictions(self, outputs: Tensor) -> list[dict[str, str | float]]:
        """Return the labels that are more probable than not, and the probability of each."""
        names, rows = self.options.classes, torch.sigmoid(outputs.double()).tolist()
        return [
            {"labels": ", ".join(name for name, value in zip(names, row, strict=True) if value > 0.5)}
            | {f"probability {name}": value for name, value in zip(names, row, strict=True)}
            for row in rows
        ]

    def class_names(self) -> tuple[str, ...]:
        """Return none: labels are no class numbers."""
        return ()

    def _numbered(self, path: Path, file: FeatureFile, labels: Tensor, *, optional: bool) -> Tensor:
        """Check labels, and return them in the order of this task's classes, float32 (n, C)."""
        names = file.classes or self.options.classes
        if labels.ndim != 2 or labels.shape[1] != len(names) or len(names) != len(self.options.classes):
            why = f"its labels are {tuple(labels.shape)}, and each of {len(self.options.classes)} labels has a column"
            raise DataError(str(path), why, hint=f'for one class a row set task.factory = "{FACTORY}"')
        unfit = ((labels != 0) & (labels != 1)).any(dim=1)
        if optional:
            unfit &= (labels != NO_LABEL).any(dim=1)
        if bool(unfit.any()):
            why = f"{int(unfit.sum())} of {len(labels)} rows have labels other than 0 and 1"
            raise DataError(str(path), why, hint=f"row {int(unfit.int().argmax()) + 1} is the first")
        return labels[:, [names.index(name) for name in self.options.classes]].float()
