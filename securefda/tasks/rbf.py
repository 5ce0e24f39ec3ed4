"""RBF: a regression on synthetic data, with a shift and sample sizes to choose.

It follows the synthetic experiment of Jiang et al. 2024 (Figure 5 and Appendix C.1), which asks when the estimated
errors of the rules show which rule is best.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefda.tasks.base import Samples, Task, TaskSettings

_INPUTS = 50
_OUTPUTS = 10
_BASES = 100
_CENTRES = 10
_WIDEST = 100.0
_TEST_ROWS = 2000
_POOL_ROWS = 2500
_SOURCE_TEST_ROWS = 200
# What a generator is seeded with beside the settings' seed: one for each purpose, and for each source one more.
_FUNCTION, _TARGET_TEST, _TARGET_POOL, _SOURCE = range(4)

_Reals = NDArray[np.float64]


class RadialBasis(Task):
    """50 numbers in, 10 out; sources see one function, the target a shifted one. Any site ids, any number of sources.

    Inputs are a mixture of 10 Gaussians of variance 1, alike everywhere. The outputs are linear in 100 radial basis
    functions exp(-|x - mu|^2 / s), without noise. At the target each mu is moved by up to ``shift`` in each coordinate,
    and each s widened by up to 100 times ``shift``: d^2 grows with it. The fewer its ``target-rows``, the larger is the
    variance sigma^2 of its update. Every source draws ``source-rows`` of its own.

    The model is the authors': one layer of 100 sigmoids, trained by least squares. What differs: several sources rather
    than one; inputs that are drawn for each site, where theirs are the same at source and target; and mini-batches and
    rounds rather than 300 steps on all rows, for which see the sample ``rbf``.

    The loss is the figure that counts: the mean over rows of the squared error, summed over outputs. ``accuracy`` is
    the share of the labels' squares that the model explains, 1 - |error|^2 / |labels|^2 over all rows given, and 0
    where it explains none. (R^2, which takes a mean off the labels first, is 0 nearly everywhere: the outputs vary
    little about their means, and the shift moves the means.)

    Options: ``shift`` (0 to 1, default 0.3), ``target-rows`` (2 to 2500, default 100), ``source-rows`` (10 to 5000,
    default 1000).

    Raises:
        ConfigError: an unknown option, or a value out of bounds.
    """

    separate_rows = True
    public_rows = True

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        settings.reject_unknown_options("shift", "target-rows", "source-rows")
        self._shift = settings.number("shift", 0.3, low=0.0, high=1.0)
        self._target_rows = settings.count("target-rows", 100, low=2, high=_POOL_ROWS)
        self._source_rows = settings.count("source-rows", 1000, low=10, high=5000)

    def model(self) -> nn.Module:
        """Return 50 -> 100 sigmoids -> 10: 6,110 parameters, uniform in [-0.5, 0.5]."""
        model = nn.Sequential(nn.Linear(_INPUTS, _BASES), nn.Sigmoid(), nn.Linear(_BASES, _OUTPUTS))
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
        return model

    def train_data(self, site: str) -> Samples:
        """Return the site's training rows: features (n, 50) and labels (n, 10), float32."""
        if site == self.settings.target:
            pool = self.oracle_data()
            return Samples(pool.features[: self._target_rows], pool.labels[: self._target_rows])
        return self._rows(site, slice(self._source_rows))

    def test_data(self, site: str) -> Samples:
        """Return the site's held-out rows, of the same form."""
        if site == self.settings.target:
            return self._draw(_TEST_ROWS, self._shift, _TARGET_TEST)
        return self._rows(site, slice(self._source_rows, None))

    def oracle_data(self) -> Samples:
        """Return the target's 2,500 training rows."""
        return self._draw(_POOL_ROWS, self._shift, _TARGET_POOL)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean squared error, summed over the outputs."""
        return self.row_losses(outputs, labels).mean()

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return each row's squared error, summed over the outputs."""
        return (outputs - labels).square().sum(dim=1)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return the explained share of the labels' squares as ``accuracy``; labels of nothing but zeros have 0."""
        squares, unexplained = float(labels.square().sum()), float((outputs - labels).square().sum())
        return {"accuracy": max(0.0, 1.0 - unexplained / squares) if squares > 0 else 0.0}

    @cached_property
    def _function(self) -> _Function:
        return _Function(np.random.default_rng([self.settings.seed, _FUNCTION]))

    def _rows(self, site: str, part: slice) -> Samples:
        """Return rows of a source: those for training come first, then those held out."""
        self.require_site(site)
        number = _SOURCE + self.settings.sources.index(site)
        rows = self._draw(self._source_rows + _SOURCE_TEST_ROWS, 0.0, number)
        return Samples(rows.features[part], rows.labels[part])

    def _draw(self, count: int, shift: float, purpose: int) -> Samples:
        inputs = self._function.inputs(count, np.random.default_rng([self.settings.seed, purpose]))
        outputs = self._function.outputs(inputs, shift)
        return Samples(torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(outputs.astype(np.float32)))


class _Function:
    """The function to learn and the distribution of its inputs, all drawn from the generator."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._centres = generator.random((_CENTRES, _INPUTS)) - 0.5
        self._means = generator.random((_BASES, _INPUTS)) - 0.5
        self._widths = _WIDEST * generator.random(_BASES)
        self._moves, self._widens = generator.random((_BASES, _INPUTS)), _WIDEST * generator.random(_BASES)
        self._weights, self._offset = generator.random((_BASES, _OUTPUTS)) - 0.5, generator.random(_OUTPUTS) - 0.5

    def inputs(self, count: int, generator: np.random.Generator) -> _Reals:
        """Return (count, 50) draws of the mixture."""
        centres: _Reals = self._centres[generator.integers(_CENTRES, size=count)]
        return centres + generator.standard_normal((count, _INPUTS))

    def outputs(self, inputs: _Reals, shift: float) -> _Reals:
        """Return (n, 10) values of the function, shifted."""
        means, widths = self._means + shift * self._moves, self._widths + shift * self._widens
        squares = (inputs**2).sum(axis=1)[:, np.newaxis] - 2 * inputs @ means.T + (means**2).sum(axis=1)
        features: _Reals = np.exp(-np.maximum(squares, 0.0) / widths)
        outputs: _Reals = features @ self._weights + self._offset
        return outputs
