"""The work of ``securefda audit tail``: the last records of a log, and those that come."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from securefda.audit.reading import LogFolder, NoLog, being_written, open_log
from securefda.audit.records import Record
from securefda.audit.store import AuditError
from securefda.cli.audit_filter import Filter
from securefda.cli.audit_records import Printer, printer_of
from securefda.cli.audit_show import chosen
from securefda.cli.output import Format

_PAUSE_S: Final = 0.5
_MOST_PAUSES: Final = 20
"""After the end of the run, for a process that goes on but does not close the log."""
_LOOK_BACK: Final = 4096
"""Records that may stand behind ``run-ended``: a site says goodbye to every other, of which there are at most 1024."""


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
        NoLog, DamagedLog: there is none yet, or nobody can say whose it is.
    """
    log = open_log(folder)
    printer = printer_of(output, log)
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
    """Print new records until the run has ended and nobody writes the log; returns how it ended."""
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
            raise NoLog(log.folder, "is not there any more", hint="")
        if ended and seen == before:
            if pauses >= _MOST_PAUSES or not being_written(log.folder):
                return ended
            pauses += 1
        pause(_PAUSE_S)


def _ended(record: Record, before: str) -> str:
    """How the run ended, in words; empty while it goes on. ``before`` is the answer before this record."""
    entry = record.entry
    if entry.type == "run-ended":
        return f"the run ended: {entry.facts['outcome']}, rounds: {entry.facts['rounds']}"
    return "" if entry.type == "restarted" else before
