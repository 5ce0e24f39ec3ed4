"""The records of a log that a user asks for, and each of them in words."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from securefda.audit.keys import keys_of
from securefda.audit.log_files import AuditError
from securefda.audit.log_records import DIRECTION, EVENTS, LEVEL, Entry, Form, Record, format_time
from securefda.audit.reading import LogFolder, open_log
from securefda.audit.signed_notes import LogName
from securefda.errors import CertificateError, ConfigError
from securefda.text import counted
from securefda.transport.wire import BODY_FIELDS

MESSAGES: Final = tuple(sorted(kind.__name__ for kind in BODY_FIELDS))
"""The types of messages."""
_TIME_HINT: Final = "write it like 2026-11-21, 2026-11-21T12:00 or 2026-11-21T13:00:00+01:00; without a zone it is UTC"


@dataclass(frozen=True, slots=True)
class Filter:
    """The conditions on a record; an empty collection or text sets none.

    ``since`` and ``until`` are times as records write them; a record's time is not before the first and before the
    second. Of the others, the record's must be one.
    """

    peers: Collection[str] = ()
    rounds: Collection[int] = ()
    types: Collection[str] = ()
    directions: Collection[str] = ()
    levels: Collection[str] = ()
    since: str = ""
    until: str = ""

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

    Raises ConfigError if a direction, level or type is none, or a time cannot be read; the hint lists what there is.
    """
    wanted = Filter(
        frozenset(peers or ()),
        frozenset(rounds or ()),
        frozenset(types or ()),
        frozenset(_one_of("--direction", directions or (), DIRECTION)),
        frozenset(_one_of("--disclosure", levels or (), LEVEL)),
        _time("--from", since),
        _time("--to", until),
    )
    for name in wanted.types:
        if name not in EVENTS and name not in MESSAGES:
            _refuse("--type", name, (*MESSAGES, *EVENTS), "is neither a type of message nor a kind of event")
    return wanted


def require_peers(wanted: Filter, folder: Path) -> None:
    """Raise ConfigError for a peer that is neither in the log's roster nor in a record; the hint lists the others."""
    if not wanted.peers:
        return
    try:
        log = open_log(folder)
        known = set(keys_of(folder).public) - {log.party}
        unknown = sorted(set(wanted.peers) - known)
        if unknown:  # what a log says of a stranger is to be read as well
            known |= {record.entry.peer for record in log.records()} - {""}
    except (AuditError, ConfigError, CertificateError):  # the log says what is wrong with it, or nothing tells who is
        return
    for peer in unknown:
        if peer not in known:
            _refuse("--peer", peer, sorted(known), "is no site that this log has messages with")


def _one_of(option: str, given: Iterable[str], form: Form) -> list[str]:
    values = list(given)
    for value in values:
        if not form.holds(value):
            _refuse(option, value, form.means.removeprefix("one of ").split(", "), f"is not {form.means}")
    return values


def _refuse(option: str, value: str, known: Iterable[str], why: str) -> None:
    listed = list(known)
    folded = {name.casefold(): name for name in listed}
    near = get_close_matches(value.casefold(), list(folded), 1)
    meant = f"did you mean {folded[near[0]]}? " if near else ""
    raise ConfigError(f"{option} {value}", why, hint=f"{meant}there are {', '.join(listed)}")


def _time(option: str, text: str | None) -> str:
    if text is None:
        return ""
    try:
        moment = datetime.fromisoformat(text)
        return format_time(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{option} {text}", "is no time", hint=_TIME_HINT) from error


def chosen(log: LogFolder, wanted: Filter, last: int | None, end: int | None = None) -> Iterator[Record]:
    """The records before ``end`` that fit, or the last of these. Raises as `LogFolder.records` does."""
    if last is None:
        yield from filter(wanted.fits, log.records(0, end))
        return
    if wanted == Filter():
        size = log.size() if end is None else end
        yield from log.records(max(0, size - last), size)
        return
    latest: deque[Record] = deque(maxlen=last)
    try:
        latest.extend(filter(wanted.fits, log.records(0, end)))
    except AuditError:
        yield from latest
        raise
    yield from latest


_NAMED: Final = 4
_DIGEST_BYTES: Final = 64


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
    """Return in a few words what a record says besides the fields of its message."""
    parts = []
    if (shown := entry.disclosure) is not None:
        of = "" if shown.level == "individual" else f" of {shown.count}"
        parts.append(f"discloses {shown.what} at {shown.level}{of}")
    if (decision := entry.decision) is not None:
        parts.append(f"{decision.verdict} by {decision.key}" if decision.key else decision.verdict)
    if (dp := entry.dp) is not None:
        how = f"{counted(dp.steps, 'step')} of noise {dp.noise_multiplier} at rate {dp.sampling_rate}"
        if dp.is_of_all_rows:
            how = f"one sum over all rows with noise {dp.noise_multiplier}"
        parts.append(f"epsilon {dp.epsilon} spent at delta {dp.delta}, {how}")
    parts += [_fact(key, value) for key, value in entry.facts.items()]
    return ", ".join(parts)


def _fact(key: str, value: int | str | list[int] | list[str]) -> str:
    if key == "origin":
        with suppress(ValueError):
            return f"log of {LogName.parse(str(value)).party}"
    if isinstance(value, list):
        more = f" and {len(value) - _NAMED} more" if len(value) > _NAMED else ""
        return f"{key} {' '.join(map(str, value[:_NAMED]))}{more}" if value else f"{key} none"
    text = str(value)
    return f"{key} {text[:12]}.." if len(text) == _DIGEST_BYTES else f"{key} {text or 'none'}"
