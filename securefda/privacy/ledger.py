"""The privacy ledger: the budget that a data set has spent over all runs and restarts, in one SQLite file per data set.

A round is reserved, trained, committed. It is charged in full before its first step; a round that is killed, fails or
is tried again gets nothing back. A run can reserve its rounds beforehand, so that no other run spends what they will
cost (:mod:`securefda.privacy.reservations`).

Every change is on the disk (write-ahead log, ``synchronous=FULL``) before the call returns. Several processes can use
one ledger: each change reads all rows, decides and writes under one lock, so that two processes cannot both spend, or
reserve, the last of a budget.

A ledger in doubt refuses every charge. It is in doubt if it was changed, shortened, copied, restored from an older
state, or belongs to other data. The chain of rows and the markers beside the file
(:mod:`securefda.privacy.ledger_storage`) reveal this. If both were rewritten or put back together, the charges that the
site's audit logs record reveal it.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from securefda.disk import await_descriptors
from securefda.errors import OWNERS_ALONE, BudgetExhausted, BudgetReserved, ConfigError, TrainingError
from securefda.formats import LEDGER
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import Budget, DpEvent, delta_warning
from securefda.privacy.ledger_storage import (
    ACCEPT,
    HINT_CHAIN,
    HINT_SIGNATURE,
    NO_ROWS,
    DataSet,
    Doubt,
    Head,
    Kind,
    LedgerError,
    LedgerState,
    Recorded,
    Row,
    RowMarkers,
    bound_to,
    charged,
    event_fields,
    lacking,
    last_reset,
    make_file,
    number_of,
    read_chain,
    statement,
)
from securefda.privacy.planning import repeated
from securefda.privacy.reservations import (
    RunReservation,
    fields_of,
    missing_rounds,
    require_unreserved,
    reservations,
    unused,
    was_released_by_hand,
)
from securefda.text import counted

_TABLE = "CREATE TABLE rows (number INTEGER PRIMARY KEY, body TEXT NOT NULL, digest BLOB NOT NULL)"
_MAX_REASON = 500
_USE_IT = "use it: securefda budget show --config FILE says what is spent"
_PUT_BACK = f"put the newest copy back, then: {ACCEPT}"

# Closing a file drops all locks of the process on it, so no two threads may have a ledger open.
_ONE_AT_A_TIME = [threading.RLock()]
os.register_at_fork(after_in_child=lambda: _ONE_AT_A_TIME.__setitem__(0, threading.RLock()))

Sign = Callable[[bytes], bytes]
"""Signs a statement with the site's key."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A round that has been charged and may train now.

    Attributes:
        number: of its row in the ledger.
        event: the charged event.
        spent: spent epsilon, including this round.
        cost: epsilon that this round added.
        warning: a line for the user, or None.
        head: the ledger's head with this row, for the audit log.
    """

    number: int
    event: DpEvent
    spent: float
    cost: float
    warning: str | None
    head: Head


def check_reason(reason: str) -> None:
    """Check the length of a statement's reason. Raises ConfigError: ``reason``."""
    if not 1 <= len(reason.strip()) <= _MAX_REASON:
        raise ConfigError("reason", f"must be 1 to {_MAX_REASON} characters, which stay in the ledger for ever")


class Ledger:
    """The ledger of one data set. It opens the file anew in every call.

    Args:
        path: the file, made by :meth:`create`.
        data: the data set as it is now.
        recorded: the charges of it that the site's audit logs record.
        wait_s: how long to wait for another process that is writing.

    Raises:
        LedgerError: from every method: the ledger is missing, cannot be read or written, was changed, is a copy, is
            older than it was, belongs to another data set, or is locked by another process. Nothing may train then.
        ConfigError: from every method: the data have changed; or ``clock``, a method is given a time well before that
            of the last row.
    """

    def __init__(self, path: Path, data: DataSet, *, recorded: Sequence[Recorded] = (), wait_s: float = 30.0) -> None:
        self._path = path
        self._data = data
        self._recorded = recorded
        self._wait_s = wait_s
        self._markers = RowMarkers(path)

    @classmethod
    def create(
        cls, path: Path, data: DataSet, *, now: int, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> Ledger:
        """Make the ledger of a data set that has never been trained on; its folder exists.

        Raises:
            LedgerError: there is one, or one was here and is gone.
        """
        markers = RowMarkers(path)
        with _clear_errors(path, 0):
            highest = markers.highest()
            is_there = path.exists()
            # A file without any marker is in doubt, and must stay so: a marker made here would clear the doubt.
            if is_there and (highest is None or highest[0] > 0):
                raise LedgerError(path, "exists already", hint=_USE_IT, is_sound=True)
            if highest is not None and highest[0] > 0:
                raise LedgerError(path, f"was deleted after {counted(highest[0], 'row')}", hint=_PUT_BACK)
            # The marker first: stopped in between, there is one of no rows, beside which a ledger may still be made.
            markers.advance(NO_ROWS)
            make_file(path)
        ledger_id = random_bytes(16).hex()
        with _connection(path, 1) as (database, number):
            database.execute("PRAGMA journal_mode = WAL")
            with _transaction(database):
                if database.execute("PRAGMA user_version").fetchone()[0]:
                    raise LedgerError(path, "exists already", hint=_USE_IT, is_sound=True)
                database.execute(_TABLE)
                state = LedgerState(path, database, (), number, Doubt())
                state.append("opened", now, {"ledger": ledger_id, **bound_to(data, number)})
                database.execute(f"PRAGMA user_version = {LEDGER.number}")
            RowMarkers(path).advance(state.head)
        return cls(path, data)

    def reserve(self, event: DpEvent, budget: Budget, *, now: int) -> Reservation:
        """Charge a round before it trains. Every call charges: a second attempt costs as much as the first.

        Args:
            event: the whole round.
            budget: the present budget of the policy; all rounds since the last reset count against it.
            now: Unix time in seconds.

        Raises:
            BudgetExhausted: the round would exceed the budget, or what other runs left of it; nothing was charged.
        """
        # First without the lock: this takes seconds, and other processes should not wait. It fills a cache.
        _before_and_after(self.events(), event, budget)
        with self._changing() as state:
            state.check(self._data, now)
            past, of = charged(state.rows), f"round {event.round} of run {event.run_id}"
            before, after = _before_and_after(past, event, budget)
            if after > budget.epsilon:
                raise self._exhausted(of, event, budget, before, after)
            held = reservations(state.rows, now)
            own = held.get(event.run_id)
            if own is None or not own.pays_for(event):  # else it is in what was reserved
                require_unreserved(past, held, [event], budget, what=self._what(of, budget), needs="the round")
            paid = {
                "accountant": budget.accountant,
                "delta": repr(float(budget.delta)),
                "limit": repr(float(budget.epsilon)),
                "spent": repr(after),
            }
            # On the disk before the first noisy step (decision 0017): from here on a killed process has paid.
            state.append("reserved", now, {"event": event_fields(event), **paid})
        warning = delta_warning(budget.delta, self._data.samples)
        return Reservation(state.head.count, event, after, max(0.0, after - before), warning, state.head)

    def require(self, event: DpEvent, budget: Budget) -> None:
        """Raise if :meth:`reserve` would refuse ``event``, without charging it. Same errors."""
        before, after = _before_and_after(self.events(), event, budget)
        if after > budget.epsilon:
            raise self._exhausted("the next round", event, budget, before, after)

    def reserve_run(
        self, event: DpEvent, rounds: int, budget: Budget, *, now: int, expires: int, alone: bool = False
    ) -> RunReservation | None:
        """Reserve the rounds of a run that are still to come; nothing is charged.

        A run that has a reservation keeps it, with its day, unless its rounds cost something else by now. One whose
        reservation the operator released gets no other.

        Args:
            event: a round of the run; all cost the same.
            rounds: of the whole run. Those that the budget does not pay for beside what is spent are not reserved.
            budget: the present budget of the policy.
            now: Unix time in seconds.
            expires: from this Unix time on a new reservation does not count. The time until then is halved for each
                earlier reservation that nothing was charged of.
            alone: the site takes part in one run at a time, so this run ends the reservations of all others.

        Returns:
            What is newly reserved; None if the run keeps what it has, or there is nothing to reserve.

        Raises:
            BudgetReserved: the rounds do not fit beside what other runs have reserved; nothing was written.
        """
        rows = self.rows()  # as in `reserve`
        self._plan(rows, event, rounds, budget, now, alone=alone)
        with self._changing() as state:
            state.check(self._data, now)
            own = reservations(state.rows, now).get(event.run_id)
            if (own is not None and own.pays_for(event)) or was_released_by_hand(state.rows, event.run_id):
                return None
            wanted = self._plan(state.rows, event, rounds, budget, now, alone=alone)
            expires = own.expires if own else now + (expires - now >> unused(state.rows))
            if not wanted or expires <= now:
                return None
            state.append("run-reserved", now, fields_of(event, wanted, expires, alone=alone))
        return RunReservation(state.head.count, event, wanted, wanted, now, expires)

    def _plan(self, rows: Sequence[Row], event: DpEvent, rounds: int, budget: Budget, now: int, *, alone: bool) -> int:
        """How many rounds :meth:`reserve_run` has to reserve. Raises BudgetReserved."""
        wanted = missing_rounds(rows, event, rounds, budget)
        held = {} if alone else {run: one for run, one in reservations(rows, now).items() if run != event.run_id}
        what = self._what(f"run {event.run_id}", budget)
        needs = f"its {counted(wanted, 'round')}"
        past, planned = charged(rows), repeated(event, wanted)
        require_unreserved(past, held, planned, budget, what=what, needs=needs, error=BudgetReserved)
        return wanted

    def release_run(self, run: str, why: str, *, now: int) -> RunReservation | None:
        """End a run's reservation; returns it as it was, or None if the run has none that counts.

        Args:
            run: its id.
            why: one word: ``ended``, or ``by-hand``.
            now: Unix time in seconds.
        """
        with self._changing() as state:
            state.check(self._data, now)
            own = reservations(state.rows, now).get(run)
            if own is not None:
                state.append("run-released", now, {"run": run, "why": why})
        return own

    def reservations(self, now: int) -> tuple[RunReservation, ...]:
        """The reservations that count at a Unix time in seconds."""
        return tuple(reservations(self.rows(), now).values())

    def commit(self, reservation: Reservation, *, steps: int, now: int) -> Head:
        """Record that a round is over. Its charge stays, even if it took fewer steps.

        Args:
            reservation: from :meth:`reserve`.
            steps: number of noisy gradients.
            now: Unix time in seconds.

        Raises:
            TrainingError: there were more steps than reserved. They are charged; nothing of the round may leave.
            ValueError: there is no such reservation, or it was committed before; ``steps`` is below 0.
        """
        if steps < 0:
            raise ValueError(f"steps must be at least 0, not {steps}")
        with self._changing() as state:
            state.check(self._data, now)
            row = state.open_reservation(reservation.number, reservation.event)
            state.append("committed", now, {"of": row.number, "steps": steps})
            event = reservation.event
            late = []  # what the round was not charged for since the last reset
            if steps > event.steps:
                late.append(("more steps than reserved", replace(event, steps=steps - event.steps)))
            if row.number < last_reset(state.rows):
                # The reset took this charge off, and the round's release is still to come.
                late.append(("finished after a reset", event))
            for why, charge in late:
                state.append("charged", now, {"of": row.number, "why": why, "event": event_fields(charge)})
        if steps > reservation.event.steps:
            raise TrainingError(
                f"round {reservation.event.round} took {steps} noisy steps where {reservation.event.steps} were paid "
                "for; they are charged, and nothing of the round leaves"
            )
        return state.head

    def accept(self, reason: str, sign: Sign, *, now: int) -> Head:
        """Accept the present file, data and clock by a signed statement of the site; everything spent stays spent.

        This is for data that have changed, a file that was copied, and a clock that was wrong. The statement is kept
        for ever. Two kinds of files are still refused: one with a broken chain, and one that lacks rows of which its
        folder has markers, or an audit log a record, since accepting it would give back what these rows cost.

        Args:
            reason: in words, 1 to 500 characters.
            sign: signs a statement with the site's key.
            now: Unix time in seconds.
        """
        return self._by_statement("accepted", reason, sign, now)

    def reset(self, reason: str, sign: Sign, *, now: int) -> Head:
        """As :meth:`accept`, but spent epsilon starts at 0 again: rows that trained before lose their guarantee.

        A file that lacks rows can also be reset; the ledger then records for ever how many were missing.
        """
        return self._by_statement("reset", reason, sign, now)

    def rows(self) -> tuple[Row, ...]:
        """All rows, checked."""
        with _connection(self._path, self._wait_s) as (database, number):
            state = self._read(database, number)
        state.check(self._data, None)
        return state.rows

    def events(self) -> tuple[DpEvent, ...]:
        """The rounds that count against the budget: all since the last reset, finished or not."""
        return charged(self.rows())

    def spent(self, delta: float, accountant: str = "rdp") -> float:
        """Epsilon of all rounds that count; arguments and errors as :func:`securefda.privacy.accountants.epsilon`."""
        return epsilon(self.events(), delta, accountant)

    def head(self) -> Head:
        """Number of rows and digest of the last one, for the audit log."""
        last = self.rows()[-1]
        return Head(last.number, last.digest)

    def check_signatures(self, is_valid: Callable[[bytes, bytes], bool]) -> tuple[int, ...]:
        """Check the site's signatures on statements.

        A statement signs the chain before it. So the last statement covers all earlier ones, which a site may have
        signed with an older key.

        Args:
            is_valid: whether a signature of a statement is the site's.

        Returns:
            Numbers of the statements that are not signed with the site's present key.

        Raises:
            LedgerError: the last such row is not signed with it.
        """
        rows = self.rows()
        pairs = [(before, row) for before, row in itertools.pairwise(rows) if row.is_statement]
        ledger = rows[0].fields["ledger"]
        unsigned = tuple(
            row.number for before, row in pairs if not is_valid(_statement_of(ledger, before, row), _signature(row))
        )
        if pairs and (last := pairs[-1][1]).number in unsigned:
            what = f"row {last.number} ({last.kind}) is not signed with this site's key"
            raise LedgerError(self._path, what, hint=HINT_SIGNATURE)
        return unsigned

    def _by_statement(self, kind: Kind, reason: str, sign: Sign, now: int) -> Head:
        check_reason(reason)
        with self._changing(overrule=True) as state:
            state.check_owner(self._data)
            # To accept a ledger that lacks rows would give back what they cost. A reset says how many are missing, and
            # gives up the guarantee of all rows.
            if kind == "accepted":
                state.check_complete()
            fields: dict[str, Any] = {"reason": reason.strip(), "doubt": state.doubt}
            # Bound anew, to the present file and the present rows: that is what the site accepts.
            fields |= bound_to(self._data, state.file)
            said = statement(state.rows[0].fields["ledger"], kind, now, fields, state.head)
            state.append(kind, now, fields | {"signature": sign(said).hex()}, keep_time=True)
        return state.head

    def _exhausted(self, of: str, event: DpEvent, budget: Budget, before: float, after: float) -> BudgetExhausted:
        fewer = " or fewer steps" if event.steps > 1 else ""
        hint = (
            "stop here, raise the budget (a source: dp.target-epsilon in its signed policy), or train on other rows; "
            f"rounds with more noise{fewer} cost less: securefda budget plan"
        )
        cost = max(0.0, after - before)
        return BudgetExhausted(before, budget.epsilon, cost, what=self._what(of, budget), hint=hint)

    def _what(self, of: str, budget: Budget) -> str:
        return f"privacy budget of data set {self._data.name}, {of}, at delta {budget.delta:g} by {budget.accountant}"

    @contextmanager
    def _changing(self, *, overrule: bool = False) -> Iterator[LedgerState]:
        """Read the rows, let the block append, and commit; if the block raises, nothing changes."""
        with _connection(self._path, self._wait_s) as (database, number):
            with _transaction(database):
                state = self._read(database, number)
                yield state
            # After the commit: a marker ahead of its rows would say that some are missing.
            (self._markers.replace if overrule else self._markers.advance)(state.head)

    def _read(self, database: sqlite3.Connection, number: str) -> LedgerState:
        markers = self._markers.all()  # before the rows: another process may be adding both
        rows = _stored_rows(self._path, database)
        doubt = self._markers.doubt(markers, rows)
        lacks = Doubt() if doubt.lacks_rows else lacking(self._recorded, rows)
        return LedgerState(self._path, database, rows, number, lacks if lacks.what else doubt)


def rows_of(path: Path, *, wait_s: float = 30.0) -> tuple[Row, ...]:
    """Rows of the ledger at ``path``, of which only the chain was checked. Raises LedgerError if it is unreadable."""
    with _connection(path, wait_s) as (database, _):
        return _stored_rows(path, database)


def fingerprints_of(rows: Sequence[Row]) -> frozenset[str]:
    """Fingerprints of all data to which the ledger with these rows is or was bound."""
    return frozenset(row.fields["fingerprint"] for row in rows if "fingerprint" in row.fields)


def _stored_rows(path: Path, database: sqlite3.Connection) -> tuple[Row, ...]:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if why := LEDGER.why_not(version):
        raise LedgerError(path, why, hint="use that release, or put the newest copy back")
    # Fetch all: an unfinished query would keep the connection open for as long as its error lives.
    stored = database.execute("SELECT number, body, digest FROM rows ORDER BY number").fetchall()
    try:
        return read_chain(stored)
    except ValueError as error:
        raise LedgerError(path, str(error), hint=HINT_CHAIN) from error


def _before_and_after(past: Sequence[DpEvent], event: DpEvent, budget: Budget) -> tuple[float, float]:
    before = epsilon(past, budget.delta, budget.accountant)
    return before, epsilon([*past, event], budget.delta, budget.accountant)


def _statement_of(ledger: str, before: Row, row: Row) -> bytes:
    """The statement that the signature of a row covers."""
    fields = {key: value for key, value in row.fields.items() if key != "signature"}
    return statement(ledger, row.kind, row.time, fields, Head(before.number, before.digest))


def _signature(row: Row) -> bytes:
    try:
        return bytes.fromhex(row.fields["signature"])
    except (TypeError, ValueError):  # a forged row, without hex
        return b""


@contextmanager
def _connection(path: Path, wait_s: float) -> Iterator[tuple[sqlite3.Connection, str]]:
    """Open the file for one call; yields the connection and the file's number."""
    with _ONE_AT_A_TIME[0], _clear_errors(path, wait_s):
        if not path.is_file():
            highest = RowMarkers(path).highest() if path.parent.is_dir() else None
            if highest is None or highest[0] == 0:
                hint = "a data set that was never trained on gets one with: securefda budget init --config FILE"
                raise LedgerError(path, "is missing", hint=hint)
            raise LedgerError(path, f"was deleted after {counted(highest[0], 'row')}", hint=_PUT_BACK)
        if not os.access(path, os.R_OK | os.W_OK):  # SQLite would leave files beside it that cannot be written either
            raise LedgerError(path, "cannot be written: Permission denied", hint=OWNERS_ALONE)
        # Before SQLite opens the file: closing a second descriptor of it would drop the locks of both (POSIX).
        number = number_of(path)
        uri = f"{path.resolve().as_uri()}?mode=rw"
        await_descriptors()
        database = sqlite3.connect(uri, uri=True, timeout=wait_s, isolation_level=None)
        try:
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA fullfsync = 1")  # macOS: its fsync leaves the data in the drive's cache
            yield database, number
        finally:
            database.close()


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    # The write lock from the start: two processes that read first could both spend the last of a budget.
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # SQLite rolls back by itself if the disk is full
            database.execute("ROLLBACK")
        raise


@contextmanager
def _clear_errors(path: Path, wait_s: float) -> Iterator[None]:
    """Turn errors of SQLite and of the disk into one clear line."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF == sqlite3.SQLITE_BUSY:  # also while another process recovers the file
            what = f"another process has been writing to it for {wait_s:g} seconds"
            raise LedgerError(path, what, hint="wait for it, or stop it, and start again") from error
        hint = "free disk space and check the permissions; if the file is damaged, put the newest copy back"
        # If a text is not UTF-8, Python's error has no code, and its message quotes the text.
        not_text = code is None and isinstance(error, sqlite3.OperationalError)
        what = f"cannot be used: {'a text in it is not UTF-8' if not_text else error}"
        raise LedgerError(path, what, hint=hint) from error
    except OSError as error:
        hint = "check the folder, its permissions and the free disk space"
        raise LedgerError(path, f"cannot be used: {error.strerror or error}", hint=hint) from error
