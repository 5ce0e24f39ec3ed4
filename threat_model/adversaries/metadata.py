"""T18: an aggregator reads numbers from the messages of each source, without opening a sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from securefda.protocol.messages import Signed
from securefda.transport.in_memory import Passed
from threat_model.sites import TARGET


@dataclass
class ReadsMetadata:
    """Reads every number in every message that a source sends, and looks for its row count, loss and accuracy.

    Powers: sees what the aggregator sees: all messages in clear, and vectors beside them as they travel. Stands in the
    place of the stage's network.
    Goal: row count, loss or accuracy of one source.
    Source: metrics in clear beside an update are what federated learning systems commonly report.

    Attributes:
        numbers: everything that stands as a number in the messages of a source, by its roster index.
    """

    numbers: dict[int, set[float]] = field(default_factory=dict)

    threat = "T18"

    def __call__(self, passed: Passed) -> list[Passed]:
        """Record what a source sends, and pass it on."""
        if passed.sender != TARGET:
            self.numbers.setdefault(passed.sender, set()).update(_numbers(passed.message.body))
        return [passed]

    def attack(self, secrets: Mapping[int, Mapping[str, float]]) -> dict[int, set[str]]:
        """Return which of each source's secret numbers it has seen, by name.

        Args:
            secrets: roster index -> name -> number.
        """
        return {
            index: {name for name, number in numbers.items() if number in self.numbers.get(index, set())}
            for index, numbers in secrets.items()
        }


def _numbers(value: Any) -> Iterator[float]:
    """Yield every number in a message, at any depth, except digests and keys."""
    if isinstance(value, Signed):
        yield from _numbers(value.body)
    elif is_dataclass(value):
        for one in fields(value):
            yield from _numbers(getattr(value, one.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield float(value)
