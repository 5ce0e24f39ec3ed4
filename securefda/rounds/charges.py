"""What a source looks at before a round is charged to its privacy ledger: whether the round can come to anything.

A charge is never given back. An aggregator that begins rounds and finishes none of them, or sends numbers that no
update fits, would empty a budget for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from securefda.adaptation import alignment_factor
from securefda.errors import FaultyAggregatorError
from securefda.rounds.patience import UNRELEASED
from securefda.rounds.store import SourceStore
from securefda.rounds.terms import published_statistics, weight_of
from securefda.secagg.messages import Header, Visibility
from securefda.training import Vector

MOST_UNRELEASED_IN_A_ROW = 3
"""After so many rounds in a row that were charged and of which nothing left, no further one is. An aggregator that is
honest gives its run up after as many lost rounds."""

_MEND = (
    "ask the target's site; where it was this site that was stopped or too slow, say so, and start again: "
    "securefda budget accept --config FILE --reason WHY"
)


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known of a round before it trains: rows, steps, and the effective learning rate."""

    samples: int
    steps: int
    learning_rate: float


@runtime_checkable
class Charging(Protocol):
    """A trainer whose rounds are charged to a ledger."""

    def charged_rounds(self) -> Sequence[tuple[str, int]]:
        """Run (hex) and round of every charge since the site's last word in the ledger, in order."""

    def planned(self, factor: float) -> Planned:
        """What a round with this factor of the learning rate will take."""


def require_worth_charging(
    trainer: object, header: Header, level: Visibility, target_update: Vector | None, store: SourceStore
) -> None:
    """Refuse, uncharged, a round that cannot come to a release, or one more of an aggregator that finishes none.

    Args:
        trainer: of the site; of one that charges nothing, nothing is asked.
        header: of the attempt; all that does not need the update was checked.
        level: at which this source takes part.
        target_update: g_T, float32 (m,), where it came with the header.
        store: knows of which rounds an update left.

    Raises:
        FaultyAggregatorError: UNRELEASED; HEADER_TARGET where the published numbers contradict each other, g_T or this
            site's schedule.
        ConfigError: this site has more rows than the run allows for.
        LedgerError: the ledger cannot be read, or is in doubt.
    """
    if not isinstance(trainer, Charging):
        return
    _require_releases(trainer.charged_rounds(), header, store)
    planned = trainer.planned(header.rule.learning_rate_factor)
    weight_of(header, planned.samples)
    try:
        _require_sound_target(header, level, target_update, planned)
    except ValueError as error:
        raise FaultyAggregatorError("HEADER_TARGET", str(error)) from None


def _require_releases(charged: Sequence[tuple[str, int]], header: Header, store: SourceStore) -> None:
    """Of the rounds of this folder's runs; those of other folders have their fuses there. This round is not counted."""
    unreleased = 0
    for run, number in dict.fromkeys(reversed(charged)):
        run_id = _run_id(run)
        if (run_id, number) == (header.run_id, header.round):
            continue
        known = store.history(b"", run_id, number)
        if known.released:
            return
        unreleased += known.last_position is not None
        if unreleased >= MOST_UNRELEASED_IN_A_ROW:
            what = (
                f"{unreleased} rounds in a row were charged to this site's privacy budget, and none came to a release"
            )
            error = FaultyAggregatorError(UNRELEASED, what)
            error.hint = _MEND
            raise error


def _run_id(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""  # no run of this protocol: its rounds are in no store


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
