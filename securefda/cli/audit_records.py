"""Records on a console: a table that is written as it grows, or one JSON envelope of which the records are the middle.

Neither holds more than a few records at a time. The envelope's status comes behind the records, where it is known.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any, Final, Protocol, TextIO

from securefda.audit.names import LogName
from securefda.audit.reading import LogFolder
from securefda.audit.records import DpSpent, Entry, Record
from securefda.cli.output import ENVELOPE_VERSION, Format, aligned, print_error, printable
from securefda.errors import SecureFdaError

_HEAD: Final = ("number", "time (UTC)", "round", "", "type", "peer", "bytes", "what")
_AHEAD: Final = 256
"""Rows that are aligned before the first of them is written."""
_NAMED: Final = 4
_DIGEST_BYTES: Final = 64


class Printer(Protocol):
    """Takes records and prints them."""

    def record(self, record: Record) -> None:
        """Print a record, soon."""

    def flush(self) -> None:
        """Print at once what was taken so far."""

    def note(self, text: str) -> None:
        """Say something between records; for people only."""

    def end(self, said: str) -> int:
        """All was printed; ``said`` sums up for people. Returns the exit code."""

    def fail(self, error: SecureFdaError) -> int:
        """An error ends it. Returns the exit code."""


def printer_of(output: Format, log: LogFolder, stream: TextIO | None = None) -> Printer:
    """The printer for a format; it writes to ``stream``, by default stdout."""
    stream = sys.stdout if stream is None else stream
    return TablePrinter(stream) if output is Format.TXT else EnvelopePrinter(stream, log)


class TablePrinter:
    """Rows whose columns are as wide as the widest cell so far."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting: list[tuple[str, ...]] = []
        self._widths: list[int] = []

    def record(self, record: Record) -> None:
        """Print a record, soon."""
        self._waiting.append(row_of(record))
        if len(self._waiting) >= _AHEAD:
            self._write()

    def flush(self) -> None:
        """Print at once what was taken so far."""
        self._write()
        self._stream.flush()

    def note(self, text: str) -> None:
        """Print a line."""
        self._write()
        self._stream.write(f"{printable(text)}\n")
        self._stream.flush()

    def end(self, said: str) -> int:
        """Print the last line, if it says anything."""
        self.flush()
        if said:
            self.note(said)
        return 0

    def fail(self, error: SecureFdaError) -> int:
        """Print what there is, and the error."""
        self.flush()
        return print_error(error, as_json=False)

    def _write(self) -> None:
        rows = [_HEAD, *self._waiting] if not self._widths and self._waiting else self._waiting
        if not rows:
            return
        widest = [max(map(len, column)) for column in zip(*rows, strict=True)]
        self._widths = list(map(max, widest, self._widths or widest))
        padded = [tuple(cell.ljust(width) for cell, width in zip(row, self._widths, strict=True)) for row in rows]
        self._waiting = []  # first: Ctrl-C behind the writing must not have them written again
        self._stream.write(f"{aligned(padded)}\n")


class EnvelopePrinter:
    """One envelope with the log's name and, in ``records``, each record as it stands in the log."""

    def __init__(self, stream: TextIO, log: LogFolder) -> None:
        self._stream, self._count = stream, 0
        whose = {"log": str(log.folder), "party": log.party, "run": log.run}
        start = json.dumps({"schema_version": ENVELOPE_VERSION, "data": {**whose, "records": []}}, ensure_ascii=False)
        self._stream.write(start.removesuffix("]}}"))

    def record(self, record: Record) -> None:
        """Print a record."""
        self._stream.write(("," if self._count else "") + "\n" + record.to_bytes().decode("ascii"))
        self._count += 1

    def flush(self) -> None:
        """Print at once what was taken so far."""
        self._stream.flush()

    def note(self, text: str) -> None:
        """Nothing: programs see the records."""

    def end(self, said: str) -> int:  # noqa: ARG002 - for people
        """Close the envelope."""
        self._close({"status": "ok", "exit_code": 0})
        return 0

    def fail(self, error: SecureFdaError) -> int:
        """Close the envelope with the error."""
        code = int(error.exit_code)
        fields = {"status": "error", "exit_code": code, "error_code": error.code}
        self._close(fields | {"message": str(error), "hint": error.hint})
        return code

    def _close(self, fields: dict[str, Any]) -> None:
        status = json.dumps(fields, ensure_ascii=False)
        self._stream.write(f'\n], "shown": {self._count}}}, {status.removeprefix("{")}\n')
        self._stream.flush()


def row_of(record: Record) -> tuple[str, ...]:
    """A record as the cells of a table. All of it has been parsed, so no cell can steer a terminal."""
    entry = record.entry
    return (
        str(record.seq),
        record.time[:19].replace("T", " "),
        f"{entry.round}/{entry.attempt}" if entry.round else "-",
        entry.direction,
        entry.type,
        entry.peer or "-",
        str(entry.bytes) if entry.bytes else "-",
        what_of(entry),
    )


def what_of(entry: Entry) -> str:
    """What a record says beside its fields of a message, in a few words."""
    parts = []
    if entry.disclosure is not None:
        shown = entry.disclosure
        of = "" if shown.level == "individual" else f" of {shown.count}"
        parts.append(f"discloses {shown.what} at {shown.level}{of}")
    if entry.decision is not None:
        parts.append(f"{entry.decision.verdict}{f' by {entry.decision.key}' if entry.decision.key else ''}")
    if entry.dp is not None:
        parts.append(_dp_words(entry.dp))
    parts += [_fact(key, value) for key, value in entry.facts.items()]
    return ", ".join(parts)


def _dp_words(dp: DpSpent) -> str:
    how = f"{dp.steps} steps of noise {dp.noise_multiplier} at rate {dp.sampling_rate}"
    return f"epsilon {dp.epsilon} spent at delta {dp.delta}, {how}"


def _fact(key: str, value: int | str | list[int] | list[str]) -> str:
    if key == "origin":
        with suppress(ValueError):
            return f"log of {LogName.parse(str(value)).party}"
    return f"{key} {_value(value)}"


def _value(value: int | str | list[int] | list[str]) -> str:
    if isinstance(value, list):
        more = f" and {len(value) - _NAMED} more" if len(value) > _NAMED else ""
        return (" ".join(map(str, value[:_NAMED])) + more) or "none"
    text = str(value)
    return f"{text[:12]}.." if len(text) == _DIGEST_BYTES else text or "none"
