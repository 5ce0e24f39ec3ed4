"""Synthetic rows with the shape of a task's rows: Gaussian numbers, or handwritten digits scaled to the image size."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefda.errors import ConfigError
from securefda.tasks.base import Samples, Task
from securefda.tasks.digits import digits_and_labels, turned
from securefda.tasks.image_folder import ImageFolder
from securefda.tasks.tabular import Tabular
from securefda.tasks.task_code import task_code
from securefda.tasks.variation import placed

_CALIBRATED_ON = 4000
_WIDEST = 64.0
_HALVINGS = 40
_SITE_SHIFT = 0.5
"""The shift of a site's rows, in lengths of the classes' centres."""

_MOST_LABEL_NOISE = 0.9
_SURE = 20.0
"""A logit with which a model is sure."""

_DIGITS = 10
_HELD_OUT_EVERY = 4
_TURNS = (30.0, 0.0, 10.0, -10.0, 20.0, -20.0)
"""Degrees by which a site's digits are turned: the target's first; sources take turns with the others."""

_CENTRES, _SITE, _ROWS = range(3)
"""Purposes of random draws, each with a separate generator."""

_PUBLIC = "name public rows of the same kind by --stand-in"

Reals = NDArray[np.float64]


def drawn_rows(task: Task, shape: Sequence[int], seed: int, best_accuracy: float) -> DrawnRows | DrawnDigits:
    """Return a generator of rows with features of ``shape`` and labels in the task's form.

    Args:
        task: its model says how many classes there are, and `Task.guesses` how labels are written.
        shape: of the features of one row. One or three channels of height and width are an image.
        seed: settles all rows.
        best_accuracy: that the best of all models would have on rows of Gaussians, in (0, 1).

    Raises:
        ConfigError: no rows can be drawn for this task.
    """
    if isinstance(task, Tabular) and task.options.label.event:
        raise ConfigError("task.options.label", "is a time to an event, and no rows are drawn with one", hint=_PUBLIC)
    if isinstance(task, Tabular) and not task.options.label.classes:
        label = task.options.label
        reach = (label.tolerance or 0) / (label.scale or 1)
        noise = min(_MOST_LABEL_NOISE, reach / NormalDist().inv_cdf((1 + best_accuracy) / 2))
        return DrawnRows(_layout(task, shape), shape, seed, noise)
    labels = ClassLabels(task, shape)
    if len(shape) == 3 and shape[0] in (1, 3):
        return DrawnDigits(labels, shape, seed, black=-1.0 if isinstance(task, ImageFolder) else 0.0)
    return DrawnRows(_layout(task, shape), shape, seed, labels, best_accuracy)


class ClassLabels:
    """The number of classes that a task's model distinguishes, and how the task writes their labels.

    Raises:
        ConfigError: the model gives no logits.
    """

    def __init__(self, task: Task, shape: Sequence[int]) -> None:
        self._task = task
        with task_code(type(task), "a forward pass"), torch.random.fork_rng(devices=[]), torch.no_grad():
            outputs = task.model().eval()(torch.zeros(1, *shape))
        if not (isinstance(outputs, Tensor) and outputs.ndim == 2):
            raise ConfigError(f"task {type(task).__name__}", "its model gives no logits of classes", hint=_PUBLIC)
        self._width = outputs.shape[1]
        self.count = max(2, self._width)

    def of(self, classes: NDArray[np.int64]) -> Tensor:
        """Return the labels of rows of these classes, as the task reads them from confident outputs."""
        numbers = torch.from_numpy(classes)
        sure = 2 * numbers[:, None] - 1 if self._width == 1 else nn.functional.one_hot(numbers, self._width)
        return self._task.guesses(_SURE * sure.float())[0]


class DrawnRows:
    """Rows of Gaussian numbers with variance 1; each site's are moved in a direction of its own.

    Rows of a class lie around its centre. The centres, in random directions, are as far from the origin as the accuracy
    of the best model demands. A label that is a number is linear in the row, with noise.

    Args:
        layout: of each column of a table how many values its category has; 1 for a number, 0 for a mark that nothing
            is missing, which is 0.
        shape: of the features of a row.
        seed: settles all rows.
        labels: classes; or the share of noise in a label that is a number.
        best_accuracy: of the best of all models, where there are classes.
    """

    def __init__(
        self,
        layout: Sequence[int],
        shape: Sequence[int],
        seed: int,
        labels: ClassLabels | float,
        best_accuracy: float = 0.0,
    ) -> None:
        self._layout, self._shape, self._seed, self._labels = layout, tuple(shape), seed, labels
        self._best_accuracy = best_accuracy
        self._width = sum(layout)
        generator = np.random.default_rng([seed, _CENTRES])
        if isinstance(labels, ClassLabels):
            directions = _directions(labels.count, self._width, generator)
            self._radius = _radius_for(best_accuracy, directions, generator)
            self._centres = self._radius * directions
        else:
            self._radius, self._centres = 1.0, np.zeros((1, self._width))
            self._weights = _directions(1, self._width, generator)[0]

    def text(self) -> str:
        """Describe the rows for people."""
        if isinstance(self._labels, ClassLabels):
            best = f"at best {self._best_accuracy:.0%} accuracy"
            return f"drawn: {self._labels.count} classes, {self._width} Gaussian numbers a row, {best}"
        return f"drawn: {self._width} Gaussian numbers a row, a label linear in them with {self._labels:.0%} noise"

    def rows(self, place: int, count: int, *, held_out: bool) -> Samples:
        """Return ``count`` rows of a site, the target being 0 and the first source 1; with ``held_out`` a different
        set.
        """
        moved = _directions(1, self._width, np.random.default_rng([self._seed, _SITE, place]))
        generator = np.random.default_rng([self._seed, _ROWS, place, int(held_out)])
        classes = generator.integers(len(self._centres), size=count)
        noise = generator.standard_normal((count, self._width))
        numbers = self._centres[classes] + _SITE_SHIFT * self._radius * moved + noise
        if isinstance(self._labels, ClassLabels):
            labels = self._labels.of(classes)
        else:
            share = self._labels
            label = np.sqrt(1 - share**2) * (numbers @ self._weights) + share * generator.standard_normal(count)
            labels = torch.from_numpy(label.astype(np.float32))[:, None]
        return Samples(torch.from_numpy(self._features(numbers)), labels)

    def _features(self, numbers: Reals) -> NDArray[np.float32]:
        """Turn random numbers into features; a category takes the value whose number is the largest."""
        columns, start = [], 0
        for values in self._layout:
            mine = numbers[:, start : start + values]
            start += values
            if values == 0:
                columns.append(np.zeros((len(numbers), 1)))
            else:
                columns.append(mine if values == 1 else np.eye(values)[mine.argmax(axis=1)])
        return np.concatenate(columns, axis=1).reshape(-1, *self._shape).astype(np.float32)


class DrawnDigits:
    """The handwritten digits of scikit-learn at the size of the task's images, scaled, turned and shifted at random.

    Each site's are turned by an angle of its own. Those that are held out are of other hands' digits than the others.

    Args:
        labels: classes, of which there is a digit each.
        shape: channels, height and width.
        seed: settles all rows.
        black: value of a pixel without ink; 1 is full ink.

    Raises:
        ConfigError: there are more classes than digits.
    """

    def __init__(self, labels: ClassLabels, shape: Sequence[int], seed: int, *, black: float) -> None:
        if labels.count > _DIGITS:
            why = f"has {labels.count} classes, and there are {_DIGITS} digits to stand in for them"
            raise ConfigError("task", why, hint=_PUBLIC)
        self._labels, self._shape, self._seed, self._black = labels, tuple(shape), seed, black

    def text(self) -> str:
        """Describe the rows for people."""
        size = " x ".join(map(str, self._shape))
        return f"handwritten digits of scikit-learn, {self._labels.count} classes, made {size} and varied at random"

    def rows(self, place: int, count: int, *, held_out: bool) -> Samples:
        """Return rows of a site as :meth:`DrawnRows.rows` does."""
        generator = np.random.default_rng([self._seed, _ROWS, place, int(held_out)])
        images, digits = digits_and_labels()
        fitting = digit_rows(digits, self._labels.count, held_out=held_out)
        chosen = fitting[generator.integers(len(fitting), size=count)]
        channels, height, width = self._shape
        angle = _TURNS[0] if place == 0 else _TURNS[1 + (place - 1) % (len(_TURNS) - 1)]
        enlarged = nn.functional.interpolate(images[chosen][:, None], max(height, width), mode="bilinear")
        varying = torch.Generator().manual_seed(int(generator.integers(2**31)))
        varied = placed(enlarged, varying, most=1 / 16, scales=(0.8, 1.1), turn=10.0)
        ink = nn.functional.interpolate(turned(varied, angle), (height, width), mode="bilinear")
        features = self._black + (1 - self._black) * ink
        return Samples(features.repeat(1, channels, 1, 1), self._labels.of(digits[chosen]))


def digit_rows(digits: NDArray[np.int64], classes: int, *, held_out: bool) -> NDArray[np.int64]:
    """Return the numbers of the images of the first ``classes`` digits: the held-out quarter, or the others."""
    fitting = np.flatnonzero(digits < classes)
    chosen: NDArray[np.int64] = fitting[(fitting % _HELD_OUT_EVERY == 0) == held_out]
    return chosen


def _layout(task: Task, shape: Sequence[int]) -> tuple[int, ...]:
    """Describe the columns of a task's features, as :class:`DrawnRows` takes them."""
    if not isinstance(task, Tabular):
        return (1,) * int(np.prod(shape))
    widths: list[int] = []
    for column in task.options.read.values():
        widths.append(len(column.values) or 1)
        if column.type == "number" and column.missing == "fill":
            widths.append(0)
    return tuple(widths)


def _radius_for(accuracy: float, directions: Reals, generator: np.random.Generator) -> float:
    """Find the length of the centres with which the nearest centre is the right one this often, at variance 1."""
    truth = generator.integers(len(directions), size=_CALIBRATED_ON)
    noise = generator.standard_normal((_CALIBRATED_ON, directions.shape[1])) @ directions.T
    inner = (directions @ directions.T)[truth]
    low, high = 0.0, _WIDEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        right = (middle * inner + noise).argmax(axis=1) == truth
        low, high = (low, middle) if right.mean() >= accuracy else (middle, high)
    return high


def _directions(count: int, width: int, generator: np.random.Generator) -> Reals:
    """Return random directions, (count, width), of length 1; two are opposite ones."""
    drawn = generator.standard_normal((count, width))
    if count == 2:
        drawn[1] = -drawn[0]
    lengths: Reals = np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn / lengths
