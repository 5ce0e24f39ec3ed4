"""Storage of a ledger: its rows, the file that holds them, and marker files that reveal an outdated copy.

**Rows.** Each row hashes the one before it. A row is canonical JSON (integers and strings; a float is the shortest text
that reads back as the same number) and

    digest = SHA-256("securefda/1/dp-ledger" || 0x00 || digest of the row before || number, 8 bytes big-endian || JSON)

with 32 zero bytes before row 1. So changing, removing or moving a row changes all later digests.

**File.** The ledger records the file system's own number of its file, so a copy is recognised. A marker beside it, an
empty file, has the number of rows and the digest of the last in its *name*: copying an old folder over a newer one
restores old rows, but does not remove a newer marker.

**Audit logs.** A folder that is put back whole, or made anew, has no newer marker. The logs in the site's kit have the
head after each charge, so a ledger that lacks such a row is found as long as the log is there.

`LedgerState` is the state read under one lock. It decides whether the ledger may be used, and appends rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from securefda.disk import LINKED, LINKED_HINT, file_number, is_linked, open_patiently, sync_folder
from securefda.errors import ConfigError, ExitCode, SecureFdaError
from securefda.formats import LEDGER
from securefda.parse import json_value
from securefda.privacy.dp_events import DpEvent, require
from securefda.text import counted, utc_second

Kind = Literal["opened", "reserved", "committed", "charged", "accepted", "reset", "run-reserved", "run-released"]
_BOUND = frozenset({"site", "data", "fingerprint", "samples", "file"})
_SIGNED = _BOUND | {"reason", "doubt", "signature"}
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "opened": _BOUND | {"ledger"},
    "reserved": frozenset({"event", "accountant", "delta", "limit", "spent"}),
    "committed": frozenset({"of", "steps"}),
    "charged": frozenset({"of", "why", "event"}),
    "accepted": _SIGNED,
    "reset": _SIGNED,
    "run-reserved": frozenset({"event", "rounds", "expires", "alone"}),
    "run-released": frozenset({"run", "why"}),
}
_LABEL = b"securefda/1/dp-ledger\0"
_SIGNED_LABEL = b"securefda/1/dp-ledger-statement\0"


class LedgerError(SecureFdaError):
    """A ledger is missing, unreadable, changed or older than it was: what was spent is unknown, so nothing trains.

    ``file`` is the ledger, ``what`` is what was found. ``is_sound`` says that nothing is wrong with the ledger: it is
    only in the place of a new one.
    """

    exit_code = ExitCode.BUDGET

    def __init__(self, file: object, what: str, *, hint: str, is_sound: bool = False) -> None:
        ends = "" if is_sound else "; nothing trains without it"
        super().__init__(f"privacy ledger {file}: {what}{ends}", hint=hint)
        self.file = str(file)
        self.what = what


@dataclass(frozen=True, slots=True)
class DataSet:
    """The data set to which a ledger is bound.

    Attributes:
        site_id: the site that owns the rows.
        name: what the site calls the data set.
        fingerprint: hex digest of its contents.
        samples: number of rows, >= 1.

    Raises:
        ConfigError: one is empty.
    """

    site_id: str
    name: str
    fingerprint: str
    samples: int

    def __post_init__(self) -> None:
        for key in ("site_id", "name", "fingerprint"):
            require(bool(getattr(self, key)), f"data.{key.replace('_', '-')}", "must not be empty")
        require(
            type(self.samples) is int and self.samples >= 1, "data.samples", f"must be at least 1, not {self.samples!r}"
        )


@dataclass(frozen=True, slots=True)
class Head:
    """How many rows a ledger has, and the digest of the last: what an audit log records, 32 bytes."""

    count: int
    digest: bytes


NO_ROWS: Final = Head(0, bytes(32))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A charge in an audit log: its run and round, its Unix time in seconds, and the ledger's head with it."""

    run: str
    round: int
    time: int
    head: Head


@dataclass(frozen=True, slots=True)
class Doubt:
    """The doubts about a ledger, in words; empty if there are none.

    ``lacks_rows``: rows were there that are not in it, so that it knows of less than was spent.
    """

    what: str = ""
    lacks_rows: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its number (1-based), kind, Unix time in seconds, what the kind holds, and its digest (32 bytes)."""

    number: int
    kind: Kind
    time: int
    fields: Mapping[str, Any]
    digest: bytes

    @property
    def event(self) -> DpEvent | None:
        """The round that the row charges, None where it charges none."""
        return _parse_event(self.fields["event"]) if self.kind in {"reserved", "charged"} else None

    @property
    def planned(self) -> DpEvent | None:
        """The round for which a run reserves several like it, None in a row of another kind."""
        return _parse_event(self.fields["event"]) if self.kind == "run-reserved" else None

    @property
    def is_statement(self) -> bool:
        """Whether the row is the site's own word, which it signs."""
        return self.kind in {"accepted", "reset"}


def chained(kind: Kind, time: int, fields: Mapping[str, Any], after: Head) -> tuple[str, Head]:
    """Return the JSON of a new row and the head with it."""
    body = _canonical({"kind": kind, "time": time, **fields})
    count = after.count + 1
    return body, Head(count, _digest(after.digest, count, body))


def read_chain(stored: Iterable[tuple[int, str, bytes]]) -> tuple[Row, ...]:
    """Check and parse the rows of a ledger.

    Args:
        stored: number, JSON and digest of each row, in order.

    Raises:
        ValueError: a row was changed, taken out, put in or moved; the text names it.
    """
    # The chain starts from zeros. It shows changes inside; rows cut off at the end
    # are for the markers and the logs to show.
    rows: list[Row] = []
    head = NO_ROWS
    for number, body, digest in stored:
        if number != head.count + 1:
            raise ValueError(f"row {head.count + 1} is gone")
        if type(body) is not str or digest != _digest(head.digest, number, body):
            raise ValueError(f"row {number} was changed, or one before it")
        rows.append(_parse_row(number, body, digest))
        head = Head(number, digest)
    if not rows or rows[0].kind != "opened" or any(row.kind == "opened" for row in rows[1:]):
        raise ValueError("row 1 is gone, or a second ledger was put in")
    return tuple(rows)


LACKS: Final = "lacks"


def lacking(recorded: Sequence[Recorded], rows: Sequence[Row]) -> Doubt:
    """Compare the charges that audit logs record with the rows of their ledger; its last reset ends earlier ones."""
    digests = {row.digest for row in rows}
    reset = max((row.time for row in rows if row.kind == "reset"), default=0)
    # A reset was signed for: what came before it counts no more, whether its rows are there or not.
    lost = [charge for charge in recorded if charge.time > reset and charge.head.digest not in digests]
    if not lost:
        return Doubt()
    last = max(lost, key=lambda charge: (charge.time, charge.round))
    of = f"round {last.round} of run {last.run[:12]}"
    what = f"{LACKS} {counted(len(lost), 'charge')} that this site's audit logs record, the last for {of}"
    return Doubt(what, lacks_rows=True)


def last_reset(rows: Sequence[Row]) -> int:
    """Number of the row that reset the ledger last; 0 where none did."""
    return max((row.number for row in rows if row.kind == "reset"), default=0)


def charged(rows: Sequence[Row]) -> tuple[DpEvent, ...]:
    """Rounds that count against the budget: all since the last reset, whether they were finished or not."""
    events = (row.event for row in rows[last_reset(rows) :])
    return tuple(event for event in events if event is not None)


def event_fields(event: DpEvent) -> dict[str, Any]:
    """The fields of a round in a row."""
    return {
        "attempt": event.attempt,
        "max_grad_norm": repr(float(event.max_grad_norm)),
        "mechanism": event.mechanism,
        "noise_multiplier": repr(float(event.noise_multiplier)),
        "round": event.round,
        "run": event.run_id,
        "sampling_rate": repr(float(event.sampling_rate)),
        "steps": event.steps,
    }


def statement(ledger_id: str, kind: Kind, time: int, fields: Mapping[str, Any], after: Head) -> bytes:
    """The bytes that a site signs to reset or accept a ledger: the statement, and the row before it."""
    signed = {"kind": kind, "time": time, "ledger": ledger_id, "after": after.digest.hex(), **fields}
    return _SIGNED_LABEL + _canonical(signed).encode("ascii")


def _parse_event(fields: Mapping[str, Any]) -> DpEvent:
    return DpEvent(
        run_id=fields["run"],
        round=fields["round"],
        attempt=fields["attempt"],
        noise_multiplier=float(fields["noise_multiplier"]),
        sampling_rate=float(fields["sampling_rate"]),
        steps=fields["steps"],
        max_grad_norm=float(fields["max_grad_norm"]),
        mechanism=fields["mechanism"],
    )


def _parse_row(number: int, body: str, digest: bytes) -> Row:
    try:
        fields = json_value(body)
        kind, time = fields.pop("kind"), fields.pop("time")
        # Neither more nor less: a field that one release ignores could have meant a cost to another.
        if fields.keys() != _FIELDS[kind] or type(time) is not int:
            raise ValueError(f"is not what a row of kind {kind!r} holds")
        row = Row(number, kind, time, fields, digest)
        _ = row.event, row.planned
        if any(type(fields[key]) is not int for key in ("rounds", "expires", "alone") if key in fields):
            raise ValueError("has no whole number where there must be one")
    except (ValueError, KeyError, TypeError, AttributeError, SecureFdaError) as error:
        raise ValueError(f"row {number} was written by another release, or by another hand") from error
    return row


def _canonical(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _digest(before: bytes, number: int, body: str) -> bytes:
    return hashlib.sha256(_LABEL + before + number.to_bytes(8, "big") + body.encode("utf-8", "replace")).digest()


CLOCK_SLACK_S = 300
"""How far the clock may go back: processes take the time before they wait for each other, and NTP corrects."""

ACCEPT = "securefda budget accept --config FILE --reason WHY"
RESET = "securefda budget reset --config FILE --reason WHY --yes"
HINT = f"put the newest ledger back; where this is it: {ACCEPT}, which counts only what this file holds"
HINT_ROWS = f"put the newest ledger back; where it is lost, what was spent is unknown, and what is left is: {RESET}"
HINT_CHAIN = "put the newest ledger back; where there is none, keep this one as evidence: what was spent is unknown"
HINT_SIGNATURE = f"if the site renewed its keys since: {ACCEPT}; if not, another hand wrote it: keep it as evidence"
_HINT_DATA = f"if this is meant: {ACCEPT}, which keeps what is spent; other rows need another data-set"
_BINDING: tuple[Kind, ...] = ("opened", "accepted", "reset")


class LedgerState:
    """The state of a ledger, read under a lock, and the rows appended to it."""

    def __init__(
        self, path: Path, database: sqlite3.Connection, rows: tuple[Row, ...], number: str, doubt: Doubt
    ) -> None:
        self._path = path
        self._database = database
        self.rows = rows
        self.file = number
        self.head = Head(rows[-1].number, rows[-1].digest) if rows else NO_ROWS
        self._bound = next((row.fields for row in reversed(rows) if row.kind in _BINDING), {})
        self._lacks_rows = doubt.lacks_rows
        self.doubt = doubt.what or ("is a copy, or was put back" if rows and self._bound["file"] != number else "")

    def check(self, data: DataSet, now: int | None) -> None:
        """Refuse a ledger in doubt. Raises LedgerError, ConfigError."""
        if self.doubt:
            raise LedgerError(self._path, self.doubt, hint=HINT_ROWS if self._lacks_rows else HINT)
        self.check_owner(data)
        then = self._bound
        if then["fingerprint"] != data.fingerprint or then["samples"] != data.samples:
            earlier = f"{_in_short(then['fingerprint'])} of {then['samples']} rows"
            why = f"data set {data.name} has changed since it was last used: fingerprint {earlier} then, "
            why += f"{_in_short(data.fingerprint)} of {data.samples} rows now"
            raise ConfigError(str(self._path), why, hint=_HINT_DATA)
        # By these times reservations end, and a reset overrules the charges of the audit logs before it.
        if now is not None and now < self.rows[-1].time - CLOCK_SLACK_S:
            why = f"says {utc_second(now)}, but the privacy ledger was written at {utc_second(self.rows[-1].time)}"
            raise ConfigError("clock", f"{why}: it was moved back", hint=f"set the clock; where it is right: {ACCEPT}")

    def check_complete(self) -> None:
        """Refuse a ledger without rows of which its folder or an audit log knows: it would give back what they cost.

        Raises:
            LedgerError: it does.
        """
        if self._lacks_rows:
            raise LedgerError(self._path, self.doubt, hint=HINT_ROWS)

    def check_owner(self, data: DataSet) -> None:
        """Refuse the ledger of another data set: this one's is not there.

        Raises:
            LedgerError: it is another's.
        """
        owner = (self.rows[0].fields["site"], self.rows[0].fields["data"])
        if owner != (data.site_id, data.name):
            what = f"is the ledger of data set {owner[1]} of {owner[0]}, not of {data.name} of {data.site_id}"
            hint = "put the ledger of this data set back; other rows need another data-set"
            raise LedgerError(self._path, what, hint=hint)

    def open_reservation(self, number: int, event: DpEvent) -> Row:
        """The row that reserved ``event`` and was not committed. Raises ValueError."""
        row = self.rows[number - 1] if 0 < number <= len(self.rows) else None
        if row is None or row.kind != "reserved" or row.event != event:
            raise ValueError(f"{self._path}: row {number} is not this reservation")
        if any(other.kind == "committed" and other.fields["of"] == number for other in self.rows):
            raise ValueError(f"{self._path}: row {number} was committed before")
        return row

    def append(self, kind: Kind, now: int, fields: Mapping[str, Any], *, keep_time: bool = False) -> None:
        """Add a row; its time is never before the last row's, unless the site signs for it.

        A ledger of format 1 becomes one of the present format with its first reservation, which format 1 does not have.
        """
        last = self.rows[-1].time if self.rows else now
        body, self.head = chained(kind, now if keep_time else max(now, last), fields, self.head)
        self._database.execute("INSERT INTO rows VALUES (?, ?, ?)", (self.head.count, body, self.head.digest))
        if kind == "run-reserved":
            self._database.execute(f"PRAGMA user_version = {LEDGER.number}")


def bound_to(data: DataSet, number: str) -> dict[str, Any]:
    """The fields of a row that bind it to the data set and to the file, by its number."""
    return {
        "site": data.site_id,
        "data": data.name,
        "fingerprint": data.fingerprint,
        "samples": data.samples,
        "file": number,
    }


def _in_short(fingerprint: str) -> str:
    return fingerprint[:12]


_MODE = 0o600
_MARKER = re.compile(r"(.+\.sqlite)\.rows-0*[1-9][0-9]*-[0-9a-f]{16}")
"""Of a ledger that has rows, whether its file exists or not."""


def make_file(path: Path) -> None:
    """Make the file where there is none, on the disk under its name; only its owner can read it. Raises OSError."""
    os.close(open_patiently(path, os.O_CREAT | os.O_RDWR, _MODE))
    sync_folder(path.parent)


def number_of(path: Path) -> str:
    """The file system's identity of a file: unchanged by renaming and writing, different for every copy.

    No SQLite connection of this process may have the file open: closing a descriptor would drop its locks.

    Raises:
        OSError: the file is missing or cannot be read.
        LedgerError: it has a second name.
    """
    descriptor = open_patiently(path, os.O_RDONLY)
    try:
        if is_linked(descriptor):
            raise LedgerError(path, LINKED, hint=LINKED_HINT)
        return file_number(descriptor)
    finally:
        os.close(descriptor)


def ledgers_of(folder: Path) -> list[Path]:
    """Ledgers that are in a folder, or were: a deleted one leaves the marker of its rows. Raises OSError."""
    if not folder.is_dir():
        return []
    names = {path.name for path in folder.glob("*.sqlite")}
    names |= {match.group(1) for path in folder.iterdir() if (match := _MARKER.fullmatch(path.name))}
    return [folder / name for name in sorted(names)]


class RowMarkers:
    """Empty files ``LEDGER.rows-COUNT-DIGEST`` beside a ledger; the ledger must have the row of each.

    A process makes its own before it removes lower ones and never touches a higher, so several can do so at once. Two
    of one count are of two processes that wrote without each other's lock: the row of one of them is lost.
    """

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._name = re.compile(re.escape(ledger.name) + r"\.rows-([0-9]{1,12})-([0-9a-f]{16})")

    def highest(self) -> tuple[int, str] | None:
        """Count and start of the digest of the highest; None where there is none. Raises OSError."""
        return max(self.all(), default=None)

    def doubt(self, markers: Sequence[tuple[int, str]], rows: Sequence[Row]) -> Doubt:
        """Say what is wrong with rows that were read after ``markers``, which are :meth:`all`."""
        if not markers:
            return Doubt("is here without its marker, so it may be an old copy")
        # Markers were read before the rows: a row can have come since, but none can have gone.
        count, _ = max(markers)
        if count > len(rows):
            missing = f"it has {len(rows)} rows of {count}, {count - len(rows)} are missing"
            return Doubt(f"is older than its folder: {missing}", lacks_rows=True)
        for count, digest in markers:
            if count and rows[count - 1].digest.hex()[:16] != digest:
                return Doubt(f"was written anew: its row {count} is not the one that was there", lacks_rows=True)
        return Doubt()

    def advance(self, head: Head) -> None:
        """Say that the ledger has these rows; on the disk when this returns. Raises OSError."""
        self._make(head)
        # Only now: stopped in between there are two markers, and never none.
        self._remove([marker for marker in self.all() if marker[0] < head.count])

    def replace(self, head: Head) -> None:
        """Say so against all others: only where the site has signed that it goes on with this. Raises OSError."""
        self._make(head)
        self._remove([marker for marker in self.all() if marker != _short(head)])

    def _make(self, head: Head) -> None:
        os.close(open_patiently(self._path(_short(head)), os.O_CREAT | os.O_WRONLY, _MODE))
        # The name is the whole content, so it is the folder that has to reach the disk.
        sync_folder(self._ledger.parent)

    def _remove(self, markers: Sequence[tuple[int, str]]) -> None:
        for marker in markers:
            self._path(marker).unlink(missing_ok=True)  # another process may have done so
        sync_folder(self._ledger.parent)

    def all(self) -> list[tuple[int, str]]:
        """Count and start of the digest of each. Raises OSError."""
        matches = (self._name.fullmatch(entry) for entry in os.listdir(self._ledger.parent))  # noqa: PTH208 - names
        return [(int(match.group(1)), match.group(2)) for match in matches if match]

    def _path(self, marker: tuple[int, str]) -> Path:
        return self._ledger.with_name(f"{self._ledger.name}.rows-{marker[0]}-{marker[1]}")


def _short(head: Head) -> tuple[int, str]:
    return head.count, head.digest.hex()[:16]
