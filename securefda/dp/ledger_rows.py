"""The rows of a ledger, each of which hashes the one before it. Pure: no disk, no clock.

A row is canonical JSON (integers and strings; a float is the shortest text that reads back as the same number) and

    digest = SHA-256("securefda/1/dp-ledger" || 0x00 || digest of the row before || number, 8 bytes big-endian || JSON)

with 32 zero bytes before row 1. So a row cannot be changed, taken out or moved without all later digests changing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from securefda.dp.events import DpEvent, require
from securefda.errors import ExitCode, SecureFdaError
from securefda.parse import json_value

Kind = Literal["opened", "reserved", "committed", "charged", "accepted", "reset"]
_BOUND = frozenset({"site", "data", "fingerprint", "samples", "file"})
_SIGNED = _BOUND | {"reason", "doubt", "signature"}
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "opened": _BOUND | {"ledger"},
    "reserved": frozenset({"event", "accountant", "delta", "limit", "spent"}),
    "committed": frozenset({"of", "steps"}),
    "charged": frozenset({"of", "why", "event"}),
    "accepted": _SIGNED,
    "reset": _SIGNED,
}
_LABEL = b"securefda/1/dp-ledger\0"
_SIGNED_LABEL = b"securefda/1/dp-ledger-statement\0"


class LedgerError(SecureFdaError):
    """A ledger is missing, unreadable, changed or older than it was: nobody knows what was spent, so nothing trains.

    ``file`` is the ledger, ``what`` is what was found.
    """

    exit_code = ExitCode.BUDGET

    def __init__(self, file: object, what: str, *, hint: str) -> None:
        super().__init__(f"privacy ledger {file}: {what}; nothing trains without it", hint=hint)
        self.file = str(file)
        self.what = what


@dataclass(frozen=True, slots=True)
class DataSet:
    """What a ledger is bound to.

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
class Doubt:
    """What is wrong with a ledger, in words; empty where nothing is.

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


def last_reset(rows: Sequence[Row]) -> int:
    """Number of the row that reset the ledger last; 0 where none did."""
    return max((row.number for row in rows if row.kind == "reset"), default=0)


def charged(rows: Sequence[Row]) -> tuple[DpEvent, ...]:
    """Rounds that count against the budget: all since the last reset, whether they were finished or not."""
    events = (row.event for row in rows[last_reset(rows) :])
    return tuple(event for event in events if event is not None)


def event_fields(event: DpEvent) -> dict[str, Any]:
    """What a row holds of a round."""
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
    """What a site signs in order to reset a ledger or to go on with one: its words, and the row before them."""
    said = {"kind": kind, "time": time, "ledger": ledger_id, "after": after.digest.hex(), **fields}
    return _SIGNED_LABEL + _canonical(said).encode("ascii")


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
        if fields.keys() != _FIELDS[kind] or type(time) is not int:
            raise ValueError(f"is not what a row of kind {kind!r} holds")
        row = Row(number, kind, time, fields, digest)
        _ = row.event
    except (ValueError, KeyError, TypeError, AttributeError, SecureFdaError) as error:
        raise ValueError(f"row {number} was written by another release, or by somebody else") from error
    return row


def _canonical(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _digest(before: bytes, number: int, body: str) -> bytes:
    return hashlib.sha256(_LABEL + before + number.to_bytes(8, "big") + body.encode("utf-8", "replace")).digest()
