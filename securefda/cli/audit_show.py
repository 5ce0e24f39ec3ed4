"""The work of ``securefda audit show``: the records of a log that are asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from securefda.audit.reading import LogFolder, open_log
from securefda.audit.records import Record
from securefda.audit.store import AuditError
from securefda.cli.audit_filter import Filter
from securefda.cli.audit_records import printer_of
from securefda.cli.output import Format


def show_log(folder: Path, wanted: Filter, last: int | None, output: Format) -> int:
    """Print the records of a log that fit, or the last of them, and return the exit code.

    Where a record cannot be read, those before it are printed, and the error.

    Raises:
        NoLog, DamagedLog: there is none, or nobody can say whose it is.
    """
    log = open_log(folder)
    printer = printer_of(output, log)
    shown = 0
    try:
        for record in chosen(log, wanted, last):
            printer.record(record)
            shown += 1
    except AuditError as error:
        return printer.fail(error)
    whose = f"of {log.party} in run {log.run}"
    return printer.end(f"{shown} records {whose}, as it wrote them; securefda audit verify checks them")


def chosen(log: LogFolder, wanted: Filter, last: int | None, end: int | None = None) -> Iterator[Record]:
    """The records before ``end`` that fit, or the last of these. Raises as `LogFolder.records` does."""
    if last is None:
        yield from filter(wanted.fits, log.records(0, end))
    elif wanted.wants_all:
        size = log.size() if end is None else end
        yield from log.records(max(0, size - last), size)
    else:
        yield from _last_of(filter(wanted.fits, log.records(0, end)), last)


def _last_of(records: Iterator[Record], last: int) -> Iterator[Record]:
    kept: deque[Record] = deque(maxlen=last)
    try:
        kept.extend(records)
    except AuditError:
        yield from kept
        raise
    yield from kept
