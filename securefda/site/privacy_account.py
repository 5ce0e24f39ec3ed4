"""A site's privacy account: the ledger of the rows that it trains on, and the budget that its policy sets.

The kit holds one ledger for each named data set, in ``local/ledgers``. The site makes a ledger once (``securefda budget
init``); training never does, so a missing ledger is a lost one.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.disk import locked, make_folder
from securefda.errors import BudgetExhausted, ConfigError
from securefda.privacy.dp_events import Budget, DpEvent, delta_warning
from securefda.privacy.ledger import Ledger, Reservation, Sign, fingerprints_of, rows_of
from securefda.privacy.ledger_storage import (
    HINT_ROWS,
    LACKS,
    DataSet,
    Head,
    Kind,
    LedgerError,
    Recorded,
    Row,
    RowMarkers,
    lacking,
    last_reset,
    ledgers_of,
)
from securefda.privacy.reservations import DAY_S, RunReservation
from securefda.protocol.envelope import sign_bytes, signature_is_valid
from securefda.rules import Rule
from securefda.site.kit import LOCAL
from securefda.text import bound_text, counted

if TYPE_CHECKING:
    from securefda.tasks import Rows

LEDGERS = "ledgers"
STATEMENT = "LedgerStatement"
"""Message type under which a site signs that it accepts or resets a ledger."""

_FINGERPRINT = b"securefda/1/rows\0"
_HINT_TWO = (
    "move the ledger without charges, and its marker, out of the folder; if both have charges, their epsilons add up, "
    "and neither can go on"
)


def ledger_file(kit: Path, data_set: str) -> Path:
    """Return the path of a data set's ledger in a site's kit."""
    return kit / LOCAL / LEDGERS / f"{data_set}.sqlite"


def data_set_of(site_id: str, name: str, rows: Rows) -> DataSet:
    """Describe the rows to a ledger: the owner, the name, the number of rows and a digest of all of them.

    Rows without labels have another digest than the same rows with labels.
    """
    digest = hashlib.sha256(_FINGERPRINT)
    # Type and shape first: the same bytes can be other rows.
    for part in rows.tensors:
        digest.update(f"{part.dtype} {tuple(part.shape)}\0".encode())
        digest.update(part.detach().contiguous().cpu().numpy().tobytes())
    return DataSet(site_id, name, digest.hexdigest(), len(rows))


def make_ledger(file: Path, data: DataSet, *, now: int, recorded: Sequence[Recorded] = ()) -> Ledger:
    """Make the ledger, and its folder, for rows that were never trained on.

    Args:
        file: as :func:`ledger_file` names it.
        data: the rows.
        now: Unix time in seconds.
        recorded: the charges that the site's audit logs record.

    Raises:
        LedgerError: there is one, or was, as its folder or a log knows; it cannot be written.
        ConfigError: another ledger of the folder is of the same rows.
    """
    try:
        make_folder(file.parent)
    except OSError as error:
        hint = "check the folders above it, their permissions and the free disk space"
        raise LedgerError(file, f"cannot be made: {error.strerror or error}", hint=hint) from error
    with only_ledger(file, data):
        if not file.exists() and (doubt := lacking(charges_for(file, recorded), ())).what:
            raise LedgerError(file, f"is missing, and a new one {doubt.what}", hint=HINT_ROWS)
        return Ledger.create(file, data, now=now)


@contextmanager
def only_ledger(file: Path, data: DataSet) -> Iterator[None]:
    """Keep other processes from making or binding a ledger in the folder of ``file``.

    Raises:
        ConfigError, LedgerError: as :func:`require_one_ledger`; or the folder cannot be locked.
    """
    with _folder_locked(file):
        require_one_ledger(file, data)
        yield


@contextmanager
def _folder_locked(file: Path) -> Iterator[None]:
    with ExitStack() as held:
        with _readable(file):
            held.enter_context(locked(file.parent, wait=True))
        yield


def require_one_ledger(file: Path, data: DataSet) -> None:
    """Refuse a second ledger of rows that have, or had, one under another name: the two would count apart.

    Raises:
        ConfigError: the same rows, to the bit, are in another ledger beside ``file``; only these are looked at.
        LedgerError: one beside it cannot be read.
    """
    other = _other_ledger(file, data)
    if other is not None:
        why = f"{data.name} is another name for the rows of {other.stem}: two ledgers would count them apart"
        both = file.exists() and data.fingerprint in fingerprints_of(rows_of(file))
        raise ConfigError("data-set", why, hint=_HINT_TWO if both else f'set data-set = "{other.stem}"')


def _other_ledger(file: Path, data: DataSet) -> Path | None:
    """Find another ledger beside ``file`` that is, or was, of exactly the same rows.

    Raises:
        LedgerError: one beside it cannot be read, or was deleted: it may be of the same rows.
    """
    return next((other for other, rows in _rows_beside(file) if data.fingerprint in fingerprints_of(rows)), None)


def _rows_beside(file: Path) -> Iterator[tuple[Path, tuple[Row, ...]]]:
    for other in _ledgers_beside(file):
        try:
            rows = rows_of(other)
        except LedgerError as error:
            what = f"is refused, for {other.name} beside it may be of the same rows, and {error.what}"
            raise LedgerError(file, what, hint=f"of {other.name}: {error.hint}") from error
        yield other, rows


def charges_for(file: Path, recorded: Sequence[Recorded]) -> tuple[Recorded, ...]:
    """Return the charges in a site's audit logs that the ledger at ``file`` must hold.

    A log names no data set. So these are all charges that no other ledger of the folder holds, but for those that a
    signed reset of another ledger has overruled.

    Raises:
        LedgerError: a ledger beside it cannot be read, or was deleted.
    """
    held: set[bytes] = set()
    overruled = 0
    for _, rows in _rows_beside(file) if recorded else ():
        held |= {row.digest for row in rows}
        resets = (row.time for row in rows if row.kind == "reset" and row.fields["doubt"].startswith(LACKS))
        overruled = max(overruled, *resets, 0)
    return tuple(charge for charge in recorded if charge.time > overruled and charge.head.digest not in held)


def _ledgers_beside(file: Path) -> list[Path]:
    with _readable(file):
        return [other for other in ledgers_of(file.parent) if other.name != file.name]


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "check the folder and its permissions"
        raise LedgerError(file, f"cannot be looked for: {error.strerror or error}", hint=hint) from error


def signer_of(key: Ed25519PrivateKey) -> Sign:
    """Return a function that signs a ledger's statements with a site's key."""
    return lambda said: sign_bytes(key, STATEMENT, said)


def check_statements(ledger: Ledger, public_key: bytes) -> tuple[int, ...]:
    """Check that the site with this raw public key, 32 bytes, signed the last reset or acceptance.

    Returns:
        Numbers of earlier ones that it did not sign with this key, and went on with: an older key's, as a rule.

    Raises:
        LedgerError: the last one is not signed by it, or the ledger is missing, cannot be read, or is in doubt.
        ConfigError: the rows have changed since they were last used.
    """
    return ledger.check_signatures(lambda said, signature: signature_is_valid(public_key, STATEMENT, said, signature))


def _no_log(*_: object) -> None:
    """Ignore a charge or a reservation: the default for sites without a log."""


@dataclass(frozen=True, slots=True)
class Reserving:
    """How the runs of a site reserve what their rounds will cost.

    Attributes:
        days: how long a reservation counts; 0 for none.
        one_run: whether the site takes part in one run at a time, so that a new run ends the reservations of others.
        on_change: hears of each reservation, and of each one that is released, with the kind of its row.
    """

    days: int = 0
    one_run: bool = False
    on_change: Callable[[Kind, RunReservation], None] = _no_log


_RESERVES_NOTHING = Reserving()


@dataclass(frozen=True, slots=True)
class PrivacyAccount:
    """The budget of a site's rows, and the ledger of what they have cost.

    Attributes:
        ledger: of the rows.
        data: the rows, as the ledger knows them.
        budget: what the site's policy lets them cost over all rounds and runs.
        reserving: how its runs reserve what they will cost.
        public_key: the site's, raw, 32 bytes: of the one who may accept or reset the ledger.
        unix_time: seconds.
        on_charge: hears of each charge, before the round trains.
    """

    ledger: Ledger
    data: DataSet
    budget: Budget
    public_key: bytes
    unix_time: Callable[[], float] = field(default=time.time, repr=False)
    on_charge: Callable[[DpEvent, Reservation], None] = field(default=_no_log, repr=False)
    reserving: Reserving = field(default=_RESERVES_NOTHING, repr=False)

    def require(self, event: DpEvent) -> None:
        """Check before anything is promised that the budget pays for one round like ``event``.

        Raises:
            LedgerError: the ledger is missing, cannot be read, or is in doubt.
            ConfigError: the rows have changed since they were last used.
            BudgetExhausted: the budget does not pay for a round.
        """
        check_statements(self.ledger, self.public_key)
        self.ledger.require(event, self.budget)

    def reserve_run(self, event: DpEvent, rounds: int) -> None:
        """Reserve a run's rounds. Raises what :meth:`securefda.privacy.ledger.Ledger.reserve_run` does."""
        reserving = self.reserving
        if not reserving.days:
            return
        check_statements(self.ledger, self.public_key)
        now = int(self.unix_time())
        expires = now + DAY_S * reserving.days
        made = self.ledger.reserve_run(event, rounds, self.budget, now=now, expires=expires, alone=reserving.one_run)
        if made is not None:
            reserving.on_change("run-reserved", made)

    def release_run(self, run: str) -> None:
        """Free what a run that has ended did not use. Raises LedgerError, ConfigError."""
        released = self.ledger.release_run(run, "ended", now=int(self.unix_time()))
        if released is not None:
            self.reserving.on_change("run-released", released)

    def reserve(self, event: DpEvent) -> Reservation:
        """Charge a round before it trains. Raises what :meth:`securefda.privacy.ledger.Ledger.reserve` does.

        A reset that the site did not sign gives nothing back, also where it was written while the process runs.
        """
        check_statements(self.ledger, self.public_key)
        reservation = self.ledger.reserve(event, self.budget, now=int(self.unix_time()))
        self.on_charge(event, reservation)
        return reservation

    def commit(self, reservation: Reservation, steps: int) -> Head:
        """Record that a round is over. Raises what :meth:`securefda.privacy.ledger.Ledger.commit` does."""
        return self.ledger.commit(reservation, steps=steps, now=int(self.unix_time()))

    def still_counts(self, reservation: Reservation) -> bool:
        """Return whether a charge still counts, that is, no reset followed it. Raises LedgerError, ConfigError."""
        return reservation.number > last_reset(self.ledger.rows())

    def require_ahead(self, training: DpEvent | None, moments: DpEvent | None) -> list[str]:
        """Check as :meth:`require` does before the first round, and return lines for the operator.

        Args:
            training: what a round that trains is charged for; None where no rule that trains is permitted.
            moments: the same of a release of second moments. Where a rule that trains is permitted, it is unknown
                which the target asks for, and a budget that does not pay for moments is a warning.
        """
        if training is None:
            if moments is not None:
                self.require(moments)
            return self.lines(None, moments)
        self.require(training)
        lines = self.lines(training, moments)
        if moments is not None:
            try:
                self.require(moments)
            except BudgetExhausted as error:
                lines.append(f"warning: under the rule {Rule.ANALYTIC} this site could not take part: {error}")
        return lines

    def lines(self, training: DpEvent | None, moments: DpEvent | None = None) -> list[str]:
        """Return lines for the operator before the first round; arguments as of :meth:`require_ahead`."""
        budget, spent = self.budget, self.ledger.spent(self.budget.delta, self.budget.accountant)
        told = [
            f"privacy of data set {self.data.name}: epsilon {bound_text(spent)} of {budget.epsilon:g} is spent at "
            f"delta {budget.delta:g} by {budget.accountant}"
        ]
        if training is not None:
            told.append(
                f"a round is {counted(training.steps, 'step')} at noise multiplier {training.noise_multiplier:g} and "
                f"sampling rate {training.sampling_rate:.4g}"
            )
        if moments is not None:
            told.append(
                f"under the rule {Rule.ANALYTIC}, a run is one release of second moments of all rows at noise "
                f"multiplier {moments.noise_multiplier:g}"
            )
        lines = ["; ".join(told)]
        warning = delta_warning(budget.delta, self.data.samples)
        return lines if warning is None else [*lines, f"warning: {warning}"]


def require_unledgered(file: Path, name: str, data: Callable[[], DataSet]) -> None:
    """Refuse to train without noise on rows that have a ledger, since its total would become false.

    It is cheap enough for every round if ``data`` is: it reads the ledgers beside ``file`` and no rows.

    Args:
        file: where the ledger of the rows would be.
        name: what the site calls the rows.
        data: gives the rows, and is asked only where there are other ledgers beside ``file``: one of the same rows, to
            the bit, is found under any name.

    Raises:
        ConfigError: ``training.dp.noise-multiplier``; they have a ledger, or had one.
        LedgerError: a ledger beside ``file`` cannot be read, or was deleted: it may be of the same rows.
    """
    require_no_ledger_at(file, name)
    if not _ledgers_beside(file):
        return
    with _folder_locked(file):  # one that is being made says nothing yet
        other = _other_ledger(file, data())
    if other is not None:
        raise _ledger_would_be_wrong(name, f"under the name {other.stem} a privacy ledger ({other})", f'"{other.stem}"')


def require_no_ledger_at(file: Path, name: str) -> None:
    """Refuse as :func:`require_unledgered` does, but look at one file only.

    Raises:
        ConfigError: it exists, or did.
        LedgerError: its folder cannot be read.
    """
    with _readable(file):
        highest = RowMarkers(file).highest() if file.parent.is_dir() else None
        exists = file.exists()
    if exists:
        raise _ledger_would_be_wrong(name, f"a privacy ledger ({file})", f'"{name}"')
    if highest is not None and highest[0] > 0:
        was = f"a privacy ledger ({file}), which was deleted after {counted(highest[0], 'row')},"
        raise _ledger_would_be_wrong(name, was, f'"{name}", with its newest ledger put back')


def _ledger_would_be_wrong(name: str, ledger: str, data_set: str) -> ConfigError:
    why = f"is 0, and data set {name} has {ledger} that training without noise would falsify"
    hint = f"set it above 0 for data-set {data_set}; rows that have a ledger are not trained on without noise"
    return ConfigError("training.dp.noise-multiplier", why, hint=hint)
