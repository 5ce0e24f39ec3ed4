"""How runs of tests go, unless a test says otherwise."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from securefda.protocol.messages import SourcesKeep, Visibility
from securefda.rules import Strategy
from securefda.site.config import SourceTrainingSection, TrainingSection

if TYPE_CHECKING:
    from securefda.aggregator.site import RunSettings


def run_settings(strategy: Strategy, visibility: Visibility = Visibility.SUM, **changes: Any) -> RunSettings:
    """A run in which three sources are enough, with two attempts at a round."""
    from securefda.aggregator.site import RunSettings  # it imports torch

    usual: dict[str, Any] = {
        "min_others": 2,
        "max_colluders": 0,
        "threshold": 0,
        "bits": 32,
        "clip": 1.0,
        "max_samples": 100,
        "attempts": 2,
        "join_deadline_s": 60.0,
        "training_deadline_s": 600.0,
        "phase_deadline_s": 30.0,
        "config_digest": sha256(b"the settings").digest(),
        "sources_keep": SourcesKeep.NONE,
    }
    return RunSettings(strategy=strategy, visibility=visibility, **(usual | changes))


def as_source(section: TrainingSection) -> SourceTrainingSection:
    """The same training at a source."""
    return SourceTrainingSection(**{name: getattr(section, name) for name in TrainingSection.model_fields})
