"""A site with a data set and its ledger, for the tests of the ledger."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from securefda.privacy.dp_events import Budget, DpEvent
from securefda.privacy.ledger import Ledger
from securefda.privacy.ledger_storage import DataSet

NOON = 1_800_000_000
DATA = DataSet("site-a", "hearts", "ab" * 32, 300)
EVENT = DpEvent("run-1", 1, 0, noise_multiplier=1.0, sampling_rate=0.1, steps=10, max_grad_norm=1.0)
WIDE = Budget(1000.0, 1e-5)


def sign(statement: bytes) -> bytes:
    """Stands for the site's key: what is tested is what gets signed."""
    return b"signed:" + statement[-8:]


@dataclass
class Site:
    """A folder with a ledger."""

    path: Path

    @classmethod
    def new(cls, folder: Path) -> Site:
        Ledger.create(folder / "ledger.sqlite", DATA, now=NOON)
        return cls(folder / "ledger.sqlite")

    @property
    def ledger(self) -> Ledger:
        """As a process finds it that was started just now."""
        return Ledger(self.path, DATA)

    def rounds(self, *numbers: int, budget: Budget = WIDE) -> None:
        for number in numbers:
            reservation = self.ledger.reserve(replace(EVENT, round=number), budget, now=NOON + number)
            self.ledger.commit(reservation, steps=EVENT.steps, now=NOON + number)

    def state(self) -> dict[str, bytes]:
        """Everything in the folder, to show that nothing has changed."""
        return {file.name: file.read_bytes() for file in sorted(self.path.parent.iterdir())}
