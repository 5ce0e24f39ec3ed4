"""What was read of a ledger under one lock: whether it may be used, and what is appended to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from securefda.dp.events import DpEvent
from securefda.dp.ledger_rows import NO_ROWS, DataSet, Doubt, Head, Kind, LedgerError, Row, chained
from securefda.errors import ConfigError

CLOCK_SLACK_S = 300
"""How far the clock may go back: processes take the time before they wait for each other, and NTP corrects."""

ACCEPT = "securefda budget accept --config FILE --reason WHY"
RESET = "securefda budget reset --config FILE --reason WHY --yes"
MEND = f"put the newest ledger back; where this is it: {ACCEPT}, which keeps what is spent"
MEND_ROWS = f"put the newest ledger back; where it is lost, nobody knows what was spent, and what is left is: {RESET}"
MEND_CHAIN = "put the newest ledger back; where there is none, keep this one as evidence: nobody knows what was spent"
MEND_SIGNATURE = f"if the site renewed its keys since: {ACCEPT}; if not, somebody else wrote it: keep it as evidence"
_MEND_DATA = f"if this is meant: {ACCEPT}, which keeps what is spent; other rows need another data-set"
_BINDING: tuple[Kind, ...] = ("opened", "accepted", "reset")


class LedgerState:
    """What was read of a ledger under a lock, and what is appended to it."""

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

    def check(self, known_head: Head | None, data: DataSet, now: int | None) -> None:
        """Refuse a ledger in doubt. Raises LedgerError, ConfigError."""
        if self.doubt:
            raise LedgerError(self._path, self.doubt, hint=MEND_ROWS if self._lacks_rows else MEND)
        if known_head is not None and known_head.count > 0:
            digest = self.rows[known_head.count - 1].digest if known_head.count <= len(self.rows) else b""
            if digest != known_head.digest:
                what = f"its row {known_head.count} is not the one that the audit log recorded"
                raise LedgerError(self._path, what, hint=MEND_CHAIN)
        self.check_owner(data)
        then = self._bound
        if then["fingerprint"] != data.fingerprint or then["samples"] != data.samples:
            said = f"{_in_short(then['fingerprint'])} of {then['samples']} rows"
            why = f"data set {data.name} has changed since it was last used: fingerprint {said} then, "
            why += f"{_in_short(data.fingerprint)} of {data.samples} rows now"
            raise ConfigError(str(self._path), why, hint=_MEND_DATA)
        if now is not None and now < self.rows[-1].time - CLOCK_SLACK_S:
            why = f"says {_text(now)}, but the privacy ledger was written at {_text(self.rows[-1].time)}"
            raise ConfigError("clock", f"{why}: it was moved back", hint=f"set the clock; where it is right: {ACCEPT}")

    def check_complete(self) -> None:
        """Refuse a ledger that lacks rows which its folder knows of: to go on with it would give back what they cost.

        Raises:
            LedgerError: it does.
        """
        if self._lacks_rows:
            raise LedgerError(self._path, self.doubt, hint=MEND_ROWS)

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
        """Add a row; its time is never before the last row's, unless the site signs for it."""
        last = self.rows[-1].time if self.rows else now
        body, self.head = chained(kind, now if keep_time else max(now, last), fields, self.head)
        self._database.execute("INSERT INTO rows VALUES (?, ?, ?)", (self.head.count, body, self.head.digest))


def bound_to(data: DataSet, number: str) -> dict[str, Any]:
    """What a row holds of the data set and of the file, by its number."""
    return {
        "site": data.site_id,
        "data": data.name,
        "fingerprint": data.fingerprint,
        "samples": data.samples,
        "file": number,
    }


def _in_short(fingerprint: str) -> str:
    return fingerprint[:12]


def _text(time: int) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
