"""Fed-Heart: is a patient's coronary artery narrowed? Four hospitals, one logistic regression. The data are bundled.

Data: Heart Disease (Janosi, Steinbrunn, Pfisterer, Detrano 1988, UCI, https://doi.org/10.24432/C52P4X, CC BY 4.0), one
CSV file per hospital with the 14 usual columns, prepared as the FLamby benchmark does (du Terrail et al. 2022,
Fed-Heart-Disease). ``data/fed_heart/NOTICE`` says what was changed in the files.
"""

from __future__ import annotations

import csv
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from securefda.disk import read_whole
from securefda.errors import DataError, reading_hint
from securefda.tasks.base import Rows, Samples, Task, TaskSettings
from securefda.tasks.metric_functions import class_metrics

ORIGIN = "https://archive.ics.uci.edu/dataset/45/heart+disease"

SHA256 = {
    "cleveland": "53411b0a9e7b7734e7ac199a1082e4aa10bd525609427083cc3b526d8d8503a5",
    "hungarian": "1506f92f81c49064090d325d282a6caf833d8b8e8add51b3523276d9c7c514ef",
    "switzerland": "c7d6add28de76c020c521de5f0615c6e481d7637c1e32749b18ab717bc3d7668",
    "va": "4763e816b12ddc48698291e2ba0e32665b65655557967dcc0b351a79dcfbcbea",
}

HOSPITALS = tuple(SHA256)

BUNDLED = Path(__file__).with_name("data") / "fed_heart"
"""Folder of the four files that come with the package."""

COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "target",
)  # fmt: skip
# Missing in most rows outside Cleveland, so FLamby drops the columns rather than the rows.
_DROPPED = ("slope", "ca", "thal")
# A hospital sees only its own levels, so all of them are written down here; the first level has no column.
_LEVELS = {"cp": (2.0, 3.0, 4.0), "restecg": (1.0, 2.0)}

FEATURES = 13
_Numbers = tuple[float, ...]
# In the order of _features: age, sex, resting blood pressure (mm Hg), cholesterol (mg/dl), fasting blood sugar above
# 120 mg/dl, largest heart rate, angina on exertion, ST depression (mm), then the levels: textbook values for adults in
# round numbers, halves for yes or no. docs/how-to/built-in-data.md says where each is from.
_PUBLIC_SCALING: tuple[_Numbers, _Numbers] = (
    (50.0, 0.5, 130.0, 200.0, 0.5, 150.0, 0.5, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5),
    (10.0, 0.5, 20.0, 50.0, 0.5, 25.0, 0.5, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5),
)
_TRAIN_FRACTION = 0.66
_SPLIT_SEED = 43
_TARGET_FRACTION = 0.2


@dataclass(frozen=True, slots=True)
class _Hospital:
    train: Samples
    test: Samples


class FedHeart(Task):
    """Fed-Heart with any of the four hospitals as the target; site ids are the hospitals' names.

    The four files come with the package; a hospital that sets ``task.data-dir`` has its file there.

    A hospital's rows are standardised with the mean and the standard deviation of its own training rows, as in the
    paper, or, with ``scaling = "public"``, with round numbers that are the same everywhere and come from no record
    here. The second serves the federation better: a hospital's own mean hides from the model how its patients differ
    from others'. With DP-SGD no other will do. Sources train on all of their training rows. The target keeps a random
    ``target-fraction`` of its own (default 0.2, and 1.0 at switzerland, which has 30 rows), drawn by the seed, as in
    Jiang et al. 2024, Table 17.

    Options: ``target-fraction`` in (0, 1]; ``scaling``, "site" (default) or "public".

    Raises:
        ConfigError: an unknown site or option.
        DataError: on first use of a site's data, its file is missing or not the published one.
    """

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        settings.reject_unknown_options("target-fraction", "scaling")
        settings.require_sites(SHA256, "hospital of Fed-Heart")
        default = 1.0 if settings.target == "switzerland" else _TARGET_FRACTION
        self._fraction = settings.number("target-fraction", default, low=0.01, high=1.0)
        self.separate_rows = settings.choice("scaling", "site", ("site", "public")) == "public"
        self._hospitals: dict[str, _Hospital] = {}

    def model(self) -> nn.Module:
        """Return logistic regression: 13 weights and a bias, one logit per row."""
        return nn.Linear(FEATURES, 1)

    def train_data(self, site: str) -> Samples:
        """Return the site's training rows: features (n, 13) float32, labels (n, 1) float32 in {0, 1}."""
        train = self._hospital(site).train
        if site != self.settings.target:
            return train
        kept = int(len(train) * self._fraction)
        order = np.random.default_rng(self.settings.seed).permutation(len(train))[:kept]
        rows = torch.from_numpy(np.sort(order))
        return Samples(train.features[rows], train.labels[rows])

    def test_data(self, site: str) -> Samples:
        """Return the site's held-out rows, the same ones for every seed."""
        return self._hospital(site).test

    def oracle_data(self) -> Samples:
        """Return all training rows of the target."""
        return self._hospital(self.settings.target).train

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean binary cross-entropy of the logits."""
        return nn.functional.binary_cross_entropy_with_logits(outputs, labels)

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the binary cross-entropy of each row's logit."""
        return nn.functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none").mean(dim=1)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return the metrics of two classes, at the threshold 0.5."""
        return class_metrics(torch.cat([torch.zeros_like(outputs), outputs], dim=1), labels[:, 0].long())

    def scaling_caution(self, rows: Rows) -> str:  # noqa: ARG002 - its own mean hides how far off they are
        """Say what it can cost that each hospital standardises its rows with their own mean; else empty."""
        if self.separate_rows:
            return ""
        return (
            "each hospital scales its rows by their own mean and deviation, which hides how its patients differ from "
            "others' and can undo what the sources' models know; set task.options.scaling to \"public\" at every site"
        )

    def head_targets(self, labels: Tensor, outputs: int) -> Tensor:  # noqa: ARG002 - one
        """Return 1 for ill and -1 for healthy, (n, 1)."""
        return 2 * labels - 1

    def guesses(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1 or 0 for each row, by the threshold 0.5, and the probability of it."""
        ill = torch.sigmoid(outputs)
        return (ill > 0.5).float(), torch.maximum(ill, 1 - ill)[:, 0]

    def _hospital(self, site: str) -> _Hospital:
        self.require_site(site)
        if site not in self._hospitals:
            scaling = _PUBLIC_SCALING if self.separate_rows else None
            self._hospitals[site] = _prepare(*_read((self.settings.data_dir or BUNDLED) / f"{site}.csv", site), scaling)
        return self._hospitals[site]


def _read(path: Path, site: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return features (n, 13) and labels (n,) in {0, 1} of the complete rows, in the order of the file."""
    try:
        content = read_whole(path)
    except OSError as error:
        raise DataError(
            str(path), f"cannot be read: {error.strerror}", hint=reading_hint(error, _where_from(site))
        ) from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256[site]:
        raise DataError(str(path), f"SHA-256 is {digest}, not that of the published file", hint=_where_from(site))
    rows = [
        row
        for row in csv.DictReader(io.StringIO(content.decode("ascii")))
        if all(value != "" for name, value in row.items() if name not in _DROPPED)
    ]
    features = np.array([_features(row) for row in rows])
    labels = np.array([int(float(row["target"]) > 0) for row in rows])
    return features, labels


def _where_from(site: str) -> str:
    return f"securefda task convert-uci-heart makes {site}.csv from the files at {ORIGIN}; SHA-256 {SHA256[site]}"


def _features(row: dict[str, str]) -> list[float]:
    plain = [float(row[name]) for name in COLUMNS[:-1] if name not in _DROPPED and name not in _LEVELS]
    one_hot = [float(float(row[name]) == level) for name, levels in _LEVELS.items() for level in levels]
    return plain + one_hot


def _prepare(
    features: NDArray[np.float64], labels: NDArray[np.int64], scaling: tuple[_Numbers, _Numbers] | None
) -> _Hospital:
    """Split and standardise; ``scaling`` is the means and the deviations, None for those of the training rows."""
    train, test = train_test_split(
        np.arange(len(labels)),
        train_size=_TRAIN_FRACTION,
        test_size=1.0 - _TRAIN_FRACTION,
        random_state=_SPLIT_SEED,
        stratify=labels if np.bincount(labels, minlength=2).min() > 2 else None,
    )
    # FLamby keeps the file's order inside both parts.
    train, test = np.sort(train), np.sort(test)
    if scaling is None:
        mean, deviation = features[train].mean(axis=0), features[train].std(axis=0, ddof=1)
        # A column that never varies in training (a level no patient has) stays at zero.
        deviation[deviation == 0.0] = 1.0
    else:
        mean, deviation = (np.array(numbers) for numbers in scaling)
    standard = (features - mean) / deviation
    return _Hospital(_samples(standard, labels, train), _samples(standard, labels, test))


def _samples(features: NDArray[np.float64], labels: NDArray[np.int64], rows: NDArray[np.int64]) -> Samples:
    return Samples(
        torch.from_numpy(features[rows].astype(np.float32)), torch.from_numpy(labels[rows, None].astype(np.float32))
    )
