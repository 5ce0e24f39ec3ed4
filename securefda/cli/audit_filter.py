"""Which records of a log are wanted, as the options of ``securefda audit show`` and ``tail`` say."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final

from securefda.audit.facts import EVENTS
from securefda.audit.records import Record, format_time
from securefda.errors import ConfigError

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
