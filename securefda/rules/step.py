"""How much of a round's update the target takes: all of it, or the share that does best on rows that never train.

With g_T the target's update and Delta the rule's, the target may move the model by

    Delta(s) = (1 - s) g_T + s Delta,        s in [0, 1]

with the s whose model has the least loss on rows that it keeps out. For one round that is at most the loss of
target_only there (s = 0) and of the rule (s = 1). On fresh rows, with n kept out and a loss between 0 and 1, it is
above the best of the K shares tried by more than ``sqrt(2 log(2 K / delta) / n)`` with a probability of at most delta
(Hoeffding's inequality, for all shares at once).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from securefda.rules import checks
from securefda.rules.blocks import Vector, add_scaled


class Step(StrEnum):
    """How much of a round's update the target takes. The values stand in configurations, in no header."""

    FULL = "full"
    """All of it."""

    VALIDATED = "validated"
    """The share that does best on rows that the target keeps out."""


STEP_SHARES = tuple(number / 10 for number in range(11))
"""The shares that are tried, 0 to 1."""


def partial_step(target_update: npt.ArrayLike, update: npt.ArrayLike, share: float) -> Vector:
    """Return ``(1 - share) target_update + share update``, float64 ``(n_params,)``.

    Args:
        target_update: g_T, ``(n_params,)``.
        update: that of the round's rule, ``(n_params,)``.
        share: in [0, 1]; 0 and 1 give the one and the other to the last bit.

    Raises:
        ValueError: an argument has a wrong shape or value, or is not finite; the message starts with its name.
    """
    own = checks.vector("target_update", target_update)
    of_the_rule = checks.vector("update", update, size=own.size)
    part = checks.number_between("share", share, 0, 1)
    step: Vector = np.multiply(of_the_rule, part, dtype=np.float64)
    add_scaled(step, own, 1.0 - part)
    return step


def best_share(losses: Sequence[float]) -> float:
    """Return the one of `STEP_SHARES` with the least loss; of equal ones the least share, which trusts the target.

    Args:
        losses: of each of them, in their order; one that is not finite is worse than any that is.

    Raises:
        ValueError: there are more or fewer; the message starts with ``losses``.
    """
    if len(losses) != len(STEP_SHARES):
        raise ValueError(f"losses: must be {len(STEP_SHARES)}, are {len(losses)}")
    finite = [loss if math.isfinite(loss) else math.inf for loss in losses]
    return STEP_SHARES[finite.index(min(finite))]
