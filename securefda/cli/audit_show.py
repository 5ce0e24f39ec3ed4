"""The records of a log on a console: ``securefda audit show`` and ``tail``.

The output is a table that is written as it grows, or one JSON envelope around the records. Neither holds more than a
few records at a time. The envelope's status follows the records, when it is known.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

from securefda.audit.log_files import AuditError
from securefda.audit.log_records import Record
from securefda.audit.reading import LogFolder, NoLog, being_written, open_log
from securefda.audit.record_filter import Filter, chosen, row_of
from securefda.cli.output import ENVELOPE_VERSION, Format, print_error, shown
from securefda.errors import SecureFdaError
from securefda.text import aligned, counted, printable

_HEAD: Final = ("number", "time (UTC)", "round", "", "type", "peer", "bytes", "what")
_AHEAD: Final = 256
"""Rows that are aligned before the first of them is written."""


class Printer(Protocol):
    """Takes records and prints them."""

    def record(self, record: Record) -> None:
        """Print a record, soon."""

    def flush(self) -> None:
        """Print at once everything taken so far."""

    def note(self, text: str) -> None:
        """Say something between records; for people only."""

    def end(self, said: str) -> int:
        """Finish the output; ``said`` sums up for people. Returns the exit code."""

    def fail(self, error: SecureFdaError) -> int:
        """Report an error that ends the output. Returns the exit code."""


def make_printer(output: Format, log: LogFolder) -> Printer:
    """Return the printer for a format; it writes to stdout."""
    return TablePrinter(sys.stdout) if output is Format.TXT else EnvelopePrinter(sys.stdout, log)


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
        """Print at once everything taken so far."""
        self._write()
        self._stream.flush()

    def note(self, text: str) -> None:
        """Print a line."""
        self._write()
        self._stream.write(f"{shown(printable(text), self._stream)}\n")
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
        self._stream.write(f"{shown(aligned(padded), self._stream)}\n")


class EnvelopePrinter:
    """Prints one envelope with the log's name and, in ``records``, each record as it stands in the log."""

    def __init__(self, stream: TextIO, log: LogFolder) -> None:
        self._stream, self._count = stream, 0
        whose = {"log": str(log.folder), "party": log.party, "run": log.run}
        start = json.dumps({"schema_version": ENVELOPE_VERSION, "data": {**whose, "records": []}})
        self._stream.write(start.removesuffix("]}}"))

    def record(self, record: Record) -> None:
        """Print a record."""
        self._stream.write(("," if self._count else "") + "\n" + record.to_bytes().decode("ascii"))
        self._count += 1

    def flush(self) -> None:
        """Print at once everything taken so far."""
        self._stream.flush()

    def note(self, text: str) -> None:
        """Print nothing: programs see the records."""

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


def show_log(folder: Path, wanted: Filter, last: int | None, output: Format) -> int:
    """Print the records of a log that fit, or the last of them, and return the exit code.

    Where a record cannot be read, those before it are printed, and the error.

    Raises:
        NoLog, DamagedLog: there is none, or it does not say whose it is.
    """
    log = open_log(folder)
    printer = make_printer(output, log)
    shown = 0
    try:
        for record in chosen(log, wanted, last):
            printer.record(record)
            shown += 1
    except AuditError as error:
        return printer.fail(error)
    whose = f"of {log.party} in run {log.run}"
    return printer.end(
        f"{counted(shown, 'record')} {whose}, as the site wrote the log; securefda audit verify checks them"
    )


_PAUSE_S: Final = 0.5
_MOST_PAUSES: Final = 20
"""After the end of the run, for a process that goes on but does not close the log."""
_LOOK_BACK: Final = 4096
"""The most records after ``run-ended``: a site says goodbye to every other site, of which there are at most 1024."""


def tail_log(
    folder: Path,
    wanted: Filter,
    last: int,
    output: Format,
    *,
    follow: bool,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Print the last records that fit, and with ``follow`` new ones until the run ends or Ctrl-C; the exit code.

    Raises:
        NoLog, DamagedLog: there is none yet, or it does not say whose it is.
    """
    log = open_log(folder)
    printer = make_printer(output, log)
    ended = ""
    try:
        size = log.size()
        for record in log.records(max(0, size - _LOOK_BACK), size):
            ended = _ended(record, ended)
        for record in chosen(log, wanted, last, size):
            printer.record(record)
        printer.flush()
        if follow:
            ended = _follow(log, wanted, printer, size, ended=ended, pause=pause)
    except AuditError as error:
        return printer.fail(error)
    except KeyboardInterrupt:  # how one leaves it
        return printer.end("")
    return printer.end(ended)


def _follow(
    log: LogFolder, wanted: Filter, printer: Printer, seen: int, *, ended: str, pause: Callable[[float], None]
) -> str:
    """Print new records until the run has ended and no process writes the log; returns how it ended."""
    if not ended and not being_written(log.folder):
        printer.note("no process is writing this log now; Ctrl-C ends this")
    pauses = 0
    while True:
        before = seen
        for record in log.records(seen):
            ended = _ended(record, ended)
            seen += 1
            if wanted.fits(record):
                printer.record(record)
        printer.flush()
        if not log.folder.is_dir():
            raise NoLog(log.folder, "was removed", hint="")
        if ended and seen == before:
            if pauses >= _MOST_PAUSES or not being_written(log.folder):
                return ended
            pauses += 1
        pause(_PAUSE_S)


def _ended(record: Record, before: str) -> str:
    """Return how the run ended, in words; empty while it goes on. ``before`` is the answer before this record."""
    entry = record.entry
    if entry.type == "run-ended":
        return f"the run ended: {entry.facts['outcome']}, rounds: {entry.facts['rounds']}"
    return "" if entry.type == "restarted" else before
