"""Alignment of a source's update with the target's learning rate and number of steps (Appendix C.9 of the paper)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from securefda.adaptation import checks
from securefda.adaptation.blocks import Vector

LARGEST_RATIO = 1e9
"""Of two learning rates. One that is further from 1 is a mistake in a configuration."""


def alignment_factor(*, target_steps: int, source_steps: int, learning_rate_ratio: float) -> float:
    """Return a > 0 such that ``a * u_i`` is a source's round aligned update.

    A source that took more steps, or longer ones, than the target has moved further in the same direction; the factor
    brings its update to what the target's schedule would have made of it. One aligned step is ``a * u_i / B``.

    Args:
        target_steps: steps (batches) of the target in the round, B >= 1.
        source_steps: steps of the source in the round, s_i >= 1.
        learning_rate_ratio: the target's learning rate of the round over the source's, within 1e-9 and 1e9.

    Raises:
        ValueError: an argument is out of its range; the message starts with its name.
    """
    steps = checks.whole_number("target_steps", target_steps, least=1)
    own_steps = checks.whole_number("source_steps", source_steps, least=1)
    ratio = checks.number_between("learning_rate_ratio", learning_rate_ratio, 1 / LARGEST_RATIO, LARGEST_RATIO)
    return steps * ratio / own_steps


def align_update(update: npt.ArrayLike, *, target_steps: int, source_steps: int, learning_rate_ratio: float) -> Vector:
    """Return the round aligned update ``g_i`` of a source, float64 ``(n_params,)``, see `alignment_factor`.

    Raises:
        ValueError: an argument is out of its range, or ``update`` is not a finite vector; the message starts with the
            argument's name.
    """
    factor = alignment_factor(
        target_steps=target_steps, source_steps=source_steps, learning_rate_ratio=learning_rate_ratio
    )
    return np.multiply(checks.vector("update", update), factor, dtype=np.float64)
