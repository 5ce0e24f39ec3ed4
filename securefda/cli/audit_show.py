"""The work of ``securefda audit show``: the records of a log that are asked for.

Which records of a log are wanted, as the options of ``securefda audit show`` and ``tail`` say.

Records on a console: a table that is written as it grows, or one JSON envelope of which the records are the middle.

Neither holds more than a few records at a time. The envelope's status comes behind the records, where it is known.

The work of ``securefda audit tail``: the last records of a log, and those that come.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

from securefda.audit.names import LogName
from securefda.audit.reading import LogFolder, NoLog, being_written, open_log
from securefda.audit.records import EVENTS, DpSpent, Entry, Record, format_time
from securefda.audit.store import AuditError
from securefda.cli.output import ENVELOPE_VERSION, Format, print_error
from securefda.errors import ConfigError, SecureFdaError
from securefda.text import aligned, printable

_DIRECTIONS: Final = ("sent", "received", "event")
_LEVELS: Final = ("individual", "cohort", "sum")
_TIME_HINT: Final = "write it like 2026-11-21, 2026-11-21T12:00 or 2026-11-21T13:00:00+01:00; without a zone it is UTC"


@dataclass(frozen=True, slots=True)
class Filter:
    """What a record must be; an empty collection or text asks for nothing.

    Attributes:
        peers, rounds, types, directions, levels: the record's must be one of these.
        since, until: its time, as records write it, is not before the first and before the second.
    """

    peers: Collection[str] = ()
    rounds: Collection[int] = ()
    types: Collection[str] = ()
    directions: Collection[str] = ()
    levels: Collection[str] = ()
    since: str = ""
    until: str = ""

    @property
    def wants_all(self) -> bool:
        """Whether every record fits."""
        return self == Filter()

    def fits(self, record: Record) -> bool:
        """Tell whether a record is wanted."""
        entry = record.entry
        level = "" if entry.disclosure is None else entry.disclosure.level
        return (
            (not self.peers or entry.peer in self.peers)
            and (not self.rounds or entry.round in self.rounds)
            and (not self.types or entry.type in self.types)
            and (not self.directions or entry.direction in self.directions)
            and (not self.levels or level in self.levels)
            and record.time >= self.since  # one form of fixed length: texts compare like times
            and (not self.until or record.time < self.until)
        )


def parse_filter(
    peers: Iterable[str] | None = None,
    rounds: Iterable[int] | None = None,
    types: Iterable[str] | None = None,
    *,
    directions: Iterable[str] | None = None,
    levels: Iterable[str] | None = None,
    since: str | None = None,
    until: str | None = None,
) -> Filter:
    """The filter of these options.

    Raises:
        ConfigError: a direction or level is none, a type looks like a misspelt event, or a time cannot be read.
    """
    wanted = Filter(
        frozenset(peers or ()),
        frozenset(rounds or ()),
        frozenset(types or ()),
        frozenset(_one_of("--direction", directions or (), _DIRECTIONS)),
        frozenset(_one_of("--disclosure", levels or (), _LEVELS)),
        _time("--from", since),
        _time("--to", until),
    )
    for name in wanted.types:
        if name not in EVENTS and not name[:1].isupper():
            _refuse("--type", name, tuple(EVENTS), "is no kind of event, and messages begin with a capital")
    return wanted


def _one_of(option: str, given: Iterable[str], known: tuple[str, ...]) -> list[str]:
    values = list(given)
    for value in values:
        if value not in known:
            _refuse(option, value, known, f"is not one of {', '.join(known)}")
    return values


def _refuse(option: str, value: str, known: tuple[str, ...], why: str) -> None:
    near = get_close_matches(value, known, 1)
    raise ConfigError(f"{option} {value}", why, hint=f"did you mean {near[0]}?" if near else "")


def _time(option: str, text: str | None) -> str:
    if text is None:
        return ""
    try:
        moment = datetime.fromisoformat(text)
        return format_time(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{option} {text}", "is no time", hint=_TIME_HINT) from error


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
