"""Rows that stand in for a site's own, drawn or public, to try settings on.

Trying settings on the rows themselves would spend some of their budget before training starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from securefda.errors import DataError
from securefda.settings import Settings, parse_options
from securefda.tasks.base import Samples, Task, TaskSettings, load_task
from securefda.tasks.drawn_rows import DrawnDigits, DrawnRows, drawn_rows
from securefda.tasks.rows import rows_of
from securefda.tasks.tabular import Tabular

FACTORY = "securefda.tasks.stand_in:StandIn"
_TEST_SHARE, _FEWEST_TEST_ROWS = 0.2, 20
_HALF = 0.5

Count = Annotated[int, Field(ge=1)]


class StandInOptions(Settings):
    """The purpose of a stand-in, and where its rows come from."""

    factory: str
    """The class of the task whose model, loss and metrics are taken, as `package.module:Class`."""

    options: Annotated[Mapping[str, Any], Field(strict=False)] = Field(default_factory=dict)
    """Options of that task."""

    rows: Annotated[Mapping[str, Count], Field(strict=False)]
    """Site id = how many rows it trains on."""

    shape: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    """The shape of one row's features, if rows are drawn."""

    test_rows: Count = 2000
    """How many rows a site holds out, if rows are drawn."""

    best_accuracy: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Accuracy that the best of all models would have, where rows are drawn from Gaussians."""

    file: str = ""
    """A CSV file, or a folder of folders of images, whose rows are dealt out; empty where rows are drawn."""

    first: str = ""
    """The site that gets all of its rows where those of the file are too few; the others share the rest."""


class StandIn(Task):
    """Another task's model, loss and metrics, on rows that are no site's: see `securefda budget advise`.

    Without a ``file`` rows are drawn as :func:`securefda.tasks.drawn_rows.drawn_rows` says. The rows of a ``file``, of
    the tasks `tabular` and `image_folder`, are dealt out at random: a fifth to the test, to ``first`` as many as it
    asks for, and of the rest an equal part to each other site, at most what it asks for.

    Options: those of `StandInOptions`.

    Raises:
        ConfigError: an option is wrong, or no rows can be drawn for the task.
        DataError: the rows of the file cannot be read or are too few.
    """

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self.options = parse_options(StandInOptions, settings.options)
        file, own = self.options.file, dict(self.options.options)
        if file:
            place = Path(file).absolute()
            name = place.stem if place.is_file() else place.name
            inner = TaskSettings(name, ("other",), settings.seed, place.parent, own | {"test-share": _HALF})
        else:
            inner = TaskSettings(settings.target, settings.sources, settings.seed, settings.data_dir, own)
        self._task = load_task(self.options.factory, inner)
        self.separate_rows = self._task.separate_rows
        self.metric, self.own_metrics = self._task.metric, self._task.own_metrics

    def model(self) -> nn.Module:
        """Return the task's model."""
        return self._task.model()

    def train_data(self, site: str) -> Samples:
        """Return the rows that stand in for those on which ``site`` trains."""
        self.require_site(site)
        return self._dealt[site] if self.options.file else self._drawn_at(site, held_out=False)

    def test_data(self, site: str) -> Samples:
        """Return other rows of the same kind; those of a file are the same at every site."""
        self.require_site(site)
        return self._dealt[""] if self.options.file else self._drawn_at(site, held_out=True)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the task's loss."""
        return self._task.loss(outputs, labels)

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the task's loss of each row."""
        return self._task.row_losses(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return the task's metrics."""
        return self._task.metrics(outputs, labels)

    def head_targets(self, labels: Tensor, outputs: int) -> Tensor:
        """Return what a linear head of the task fits."""
        return self._task.head_targets(labels, outputs)

    def guesses(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the task's guesses."""
        return self._task.guesses(outputs)

    def varied(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Return rows that are changed in the task's way."""
        varied: Tensor = self._task.varied(features, generator)
        return varied

    def counts(self) -> dict[str, int]:
        """Return how many rows each site trains on, the target first."""
        sites = (self.settings.target, *self.settings.sources)
        return {site: len(self._dealt[site]) if self.options.file else self.options.rows[site] for site in sites}

    def text(self) -> str:
        """Return where the rows come from, for people."""
        return f"rows of {self.options.file}, dealt out at random" if self.options.file else self._drawn.text()

    @cached_property
    def _drawn(self) -> DrawnRows | DrawnDigits:
        return drawn_rows(self._task, self.options.shape, self.settings.seed, self.options.best_accuracy)

    def _drawn_at(self, site: str, *, held_out: bool) -> Samples:
        count = self.options.test_rows if held_out else self.options.rows[site]
        return self._drawn.rows((self.settings.target, *self.settings.sources).index(site), count, held_out=held_out)

    @cached_property
    def _dealt(self) -> dict[str, Samples]:
        """Deal out the rows of the file to the sites; "" stands for those held out."""
        asked, first, name = self.options.rows, self.options.first, self._task.settings.target
        parts = [rows_of(self._task, name, "train"), rows_of(self._task, name, "test")]
        features, labels = (torch.cat(both) for both in zip(*(part.tensors for part in parts), strict=True))
        held_out = max(_FEWEST_TEST_ROWS, int(_TEST_SHARE * len(features)))
        others = len(asked.keys() - {first})
        needed = held_out + asked.get(first, 0) + others
        if len(features) < needed:
            why = f"has {len(features)} rows, and a test, {first} and {others} other sites need {needed}"
            are_times = isinstance(self._task, Tabular) and self._task.options.label.event
            instead = "" if are_times else ", or leave --stand-in out: rows are drawn"
            raise DataError(self.options.file, why, hint=f"name more public rows{instead}")
        share = (len(features) - held_out - asked.get(first, 0)) // max(1, others)
        counts = {"": held_out} | {site: rows if site == first else min(rows, share) for site, rows in asked.items()}
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(self.settings.seed))
        ends = dict(zip(counts, accumulate(counts.values()), strict=True))
        places = {site: order[end - counts[site] : end] for site, end in ends.items()}
        return {site: Samples(features[rows], labels[rows]) for site, rows in places.items()}
