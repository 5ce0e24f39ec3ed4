"""A site's privacy account: the ledger of the rows that it trains on, and the budget that its policy sets.

The kit holds one ledger for each named data set, in ``local/ledgers``. A ledger is made once, by the site
(``securefda budget init``), and never by training: a ledger that is missing is one that was lost.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from securefda.dp.events import ASSUMPTIONS, GUARANTEE, Budget, DpEvent, delta_warning
from securefda.dp.ledger import Ledger, Reservation
from securefda.dp.ledger_rows import DataSet, Head
from securefda.errors import ConfigError
from securefda.federation.kit import LOCAL
from securefda.secagg.signatures import signature_is_valid
from securefda.tasks import Samples

LEDGERS = "ledgers"
STATEMENT = "LedgerStatement"
"""Message type under which a site signs that it accepts or resets a ledger."""

TERMS = f"epsilon is of {GUARANTEE}; it holds where {ASSUMPTIONS}"
"""Shown to every operator to whom an epsilon is shown."""

_FINGERPRINT = b"securefda/1/rows\0"


def ledger_file(kit: Path, data_set: str) -> Path:
    """Where the ledger of a data set lies in a site's kit."""
    return kit / LOCAL / LEDGERS / f"{data_set}.sqlite"


def data_set_of(site_id: str, name: str, rows: Samples) -> DataSet:
    """Return what a ledger knows of the rows: whose, under which name, how many, and a digest of all of them."""
    digest = hashlib.sha256(_FINGERPRINT)
    for part in (rows.features, rows.labels):
        digest.update(f"{part.dtype} {tuple(part.shape)}\0".encode())
        digest.update(part.detach().contiguous().cpu().numpy().tobytes())
    return DataSet(site_id, name, digest.hexdigest(), len(rows))


@dataclass(frozen=True, slots=True)
class PrivacyAccount:
    """What a site's rows may cost, and the ledger that says what they have cost.

    Attributes:
        ledger: of the rows.
        data: the rows, as the ledger knows them.
        budget: what the site's policy lets them cost over all rounds and runs.
        unix_time: seconds.
    """

    ledger: Ledger
    data: DataSet
    budget: Budget
    unix_time: Callable[[], float] = field(default=time.time, repr=False)

    def require(self, event: DpEvent, public_key: bytes) -> None:
        """Check, before anything is promised to anybody, that one round like ``event`` is paid for.

        Args:
            event: a round as it will be charged.
            public_key: the site's, raw, 32 bytes: of whoever may accept or reset the ledger.

        Raises:
            LedgerError: the ledger is missing, cannot be read, or is in doubt.
            ConfigError: it is the ledger of other rows.
            BudgetExhausted: the budget does not pay for a round.
        """
        self.ledger.check_signatures(lambda said, signature: signature_is_valid(public_key, STATEMENT, said, signature))
        self.ledger.require(event, self.budget)

    def reserve(self, event: DpEvent) -> Reservation:
        """Charge a round before it trains; errors as :meth:`securefda.dp.ledger.Ledger.reserve`."""
        return self.ledger.reserve(event, self.budget, now=int(self.unix_time()))

    def commit(self, reservation: Reservation, steps: int) -> Head:
        """Write that a round is over; errors as :meth:`securefda.dp.ledger.Ledger.commit`."""
        return self.ledger.commit(reservation, steps=steps, now=int(self.unix_time()))

    def lines(self, event: DpEvent) -> list[str]:
        """What an operator should know before the first round like ``event``."""
        budget, spent = self.budget, self.ledger.spent(self.budget.delta, self.budget.accountant)
        said = [
            f"privacy of data set {self.data.name}: epsilon {spent:.4f} of {budget.epsilon:g} is spent at delta "
            f"{budget.delta:g} by {budget.accountant}; a round is {event.steps} steps at noise multiplier "
            f"{event.noise_multiplier:g} and sampling rate {event.sampling_rate:.4g}",
        ]
        warning = delta_warning(budget.delta, self.data.samples)
        return said if warning is None else [*said, f"warning: {warning}"]


def require_unledgered(file: Path, data_set: str) -> None:
    """Refuse to train without noise on rows that have a ledger: no number in it would be true any more.

    Raises:
        ConfigError: ``training.dp.noise-multiplier``.
    """
    if file.exists():
        why = f"is 0, and data set {data_set} has a privacy ledger ({file}), which training without noise would belie"
        hint = "set it above 0; for rows without a ledger, give them their own name with data-set"
        raise ConfigError("training.dp.noise-multiplier", why, hint=hint)
