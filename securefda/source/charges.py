"""What a source looks at before a round is charged to its privacy ledger: whether the round can come to anything.

A charge is never given back. An aggregator that sends numbers that no update fits would empty a budget for nothing. One
that begins rounds and finishes none of them is left after a few, see :mod:`securefda.source.run_book`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from securefda.errors import FaultyAggregatorError
from securefda.protocol.contribution import published_statistics, weight_of
from securefda.protocol.messages import Header, Visibility
from securefda.rules import alignment_factor
from securefda.training import Vector
from securefda.training.trainer import Planned


@runtime_checkable
class Charging(Protocol):
    """A trainer whose rounds are charged to a ledger."""

    def planned(self, factor: float) -> Planned:
        """What a round with this factor of the learning rate will take."""


def require_worth_charging(trainer: object, header: Header, level: Visibility, target_update: Vector | None) -> None:
    """Refuse, uncharged, a round that cannot come to a release.

    Args:
        trainer: of the site; of one that charges nothing, nothing is asked.
        header: of the attempt; all that does not need the update was checked.
        level: at which this source takes part.
        target_update: g_T, float32 (m,), where it came with the header.

    Raises:
        FaultyAggregatorError: HEADER_TARGET, the published numbers contradict each other, g_T or this site's schedule.
        ConfigError: this site has more rows than the run allows for.
        LedgerError: the ledger cannot be read, or is in doubt.
    """
    if not isinstance(trainer, Charging):
        return
    planned = trainer.planned(header.rule.learning_rate_factor)
    weight_of(header, planned.samples)
    try:
        _require_sound_target(header, level, target_update, planned)
    except ValueError as error:
        raise FaultyAggregatorError("HEADER_TARGET", str(error)) from None


def _require_sound_target(header: Header, level: Visibility, target_update: Vector | None, planned: Planned) -> None:
    """Raises ValueError, as the rule does on the update of the round once it is trained."""
    target = header.target
    if target is None:
        return
    if header.rule.align:
        ratio = target.learning_rate / planned.learning_rate
        alignment_factor(target_steps=target.steps, source_steps=planned.steps, learning_rate_ratio=ratio)
    if level is Visibility.SUM and target_update is not None:
        squared = float(np.dot(target_update.astype(np.float64), target_update))
        if not np.isfinite(squared):
            raise ValueError("target_update: holds NaN or infinity")
        published_statistics(target).require_agreement(squared / target.steps**2)
