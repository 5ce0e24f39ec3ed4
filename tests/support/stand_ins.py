"""Stand-ins for what a process finds around it: a clock, and a terminal."""

from __future__ import annotations

import io
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


@dataclass
class Ticks:
    """A clock that goes on by ``step`` whenever it is looked at."""

    now: datetime = datetime(2026, 11, 21, 12, tzinfo=UTC)
    step: timedelta = timedelta(seconds=1)

    def __call__(self) -> datetime:
        self.now += self.step
        return self.now


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True
