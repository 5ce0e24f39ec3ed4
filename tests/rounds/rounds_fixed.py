"""A trainer whose updates a test chooses, so that signs, lengths and losses are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rounds_federation import TARGET, Federation

from securefda.training import LocalResult, Vector
from securefda.training.trainer import SiteTrainer

STEPS = 2
LEARNING_RATE = 0.05
"""The same at every site, as is the number of steps, so that nothing is left to align."""


class Fixed(SiteTrainer):
    """Reports an update of the test's choice, made of equal steps, instead of its own."""

    def __init__(self, real: SiteTrainer, update: Sequence[float], changes: dict[str, Any]) -> None:
        self.__dict__.update(real.__dict__)
        self._update = np.array(update, np.float32)
        self._changes = changes

    def train(
        self,
        received: Vector,
        round_number: int,
        factor: float,
        *,
        on_step: Callable[[Vector], None] | None = None,
        **_options: Any,
    ) -> LocalResult:
        result = super().train(received, round_number, factor)
        for _ in range(STEPS if on_step else 0):
            on_step(self._update / STEPS)  # type: ignore[misc]  # it is not None
        return replace(result, update=self._update, steps=STEPS, learning_rate=LEARNING_RATE, **self._changes)


def fix(federation: Federation, index: int, update: Sequence[float], **changes: Any) -> None:
    """Let a site of a federation that has not begun report this update, and ``changes`` of its result."""
    site = federation.run._site if index == TARGET else federation.sources[index]._site
    object.__setattr__(site, "trainer", Fixed(site.trainer, update, changes))  # type: ignore[arg-type]
