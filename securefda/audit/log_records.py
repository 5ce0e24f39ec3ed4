"""The format of audit records: their fields, the kinds of events, and the one line of JSON for each record. Pure.

This module is the whole format. A `Form` says which values a field can have; the dataclasses below list the fields of a
record with their forms and meanings, and `EVENTS` the kinds of events with theirs. Parser, writer and checks are
derived from these declarations, and so is the reference page.

A record is JSON of ASCII with sorted keys and without blanks. Its values are integers, texts, lists and objects; there
are no floats and no null. All keys are always present: a value that does not apply is ``0``, ``""`` or ``{}``. Parsing
takes only what writing gives.

No record can hold a vector or a value of a row. Texts are names, digests, decimals and words without blanks.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, lru_cache
from operator import attrgetter, call, itemgetter
from types import MappingProxyType
from typing import Any, Final, Literal, cast

from securefda.audit.signed_notes import is_name
from securefda.formats import LOG_RECORD
from securefda.parse import json_value

VERSION: Final = LOG_RECORD.number
"""Version of the format. Every record has it as its last key, ``v``."""
MAX_RECORD_BYTES: Final = 65_535
"""The largest length that an entry bundle can encode."""
MAX_INTEGER: Final = 2**53 - 1
"""The largest integer that every JSON parser reads exactly."""
MAX_ITEMS: Final = 1024
"""Longest list: as many items as a roster can have sites."""

Direction = Literal["sent", "received", "event"]
Facts = Mapping[str, int | str | list[int] | list[str]]


class RecordError(ValueError):
    """A record does not have the required form. The message names the field and contains no value of it."""


class NewerVersion(RecordError):
    """The record was written by a later release, which has other fields. This release cannot interpret it."""


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise RecordError(f"{what} is not of the form that a record has")


_JSON: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
)
_TEXT: Final = '"([^"]*)"'


@dataclass(frozen=True, slots=True)
class Form:
    """The values that a field can have.

    Attributes:
        name: one word.
        means: a description of the values.
        holds: returns something true if a Python value is one of them.
        pattern: regular expression that matches such a value in a record.
        read: converts the matched text to the value; None if the text is the value.
        write: converts the value to its text in the record, without the quotes of a string; None if that is ``str``.
    """

    name: str
    means: str
    holds: Callable[[Any], object] = field(repr=False)
    pattern: str = field(default=_TEXT, repr=False)
    read: Callable[[str], Any] | None = field(default=None, repr=False)
    write: Callable[[Any], str] | None = field(default=None, repr=False)


def _matching(pattern: str) -> Callable[[object], object]:
    matches = re.compile(pattern).fullmatch
    return lambda value: type(value) is str and matches(value)


def _one_of(name: str, *words: str) -> Form:
    return Form(name, f"one of {', '.join(words)}", lambda value: value in words)


@lru_cache(maxsize=4096)  # most decimals are settings, which repeat
def _is_decimal(value: str) -> bool:
    if not re.fullmatch(r"[0-9][0-9.e+-]{0,31}", value):
        return False
    try:
        number = float(value)
    except ValueError:
        return False
    return math.isfinite(number) and repr(number) == value


_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")


def _is_time(value: object) -> bool:
    try:
        return type(value) is str and bool(_TIME.fullmatch(value) and datetime.fromisoformat(value))
    except ValueError:
        return False


def _is_sites(value: object) -> bool:
    if type(value) is not list or len(value) > MAX_ITEMS:
        return False
    return all(type(item) is str and is_name(item) for item in value) and value == sorted(set(value))


COUNT: Final = Form(
    "count",
    f"an integer from 0 to {MAX_INTEGER}",
    lambda value: type(value) is int and 0 <= value <= MAX_INTEGER,
    "(0|[1-9][0-9]{0,15})",
    int,
)
NAME: Final = Form("name", "1 to 63 characters of a-z, 0-9 and -, not beginning with a hyphen", is_name)
DIGEST: Final = Form("digest", "32 bytes as hex digits in lower case", _matching("[0-9a-f]{64}"))
WORD: Final = Form(
    "word", "1 to 64 letters, digits, points, hyphens and underscores", _matching("[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
)
KEY: Final = Form("key", "1 to 128 characters of a-z, 0-9, . and -", _matching("[a-z0-9][a-z0-9.-]{0,127}"))
ORIGIN: Final = Form("origin", "1 to 255 printable characters of ASCII without blanks", _matching("[!-~]{1,255}"))
DECIMAL: Final = Form(
    "decimal",
    "a finite number >= 0 as the shortest text that reads back as the same float",
    lambda value: type(value) is str and _is_decimal(value),
)
TIME: Final = Form("time", "RFC 3339 in UTC with microseconds, for example 2026-11-21T23:22:23.000123Z", _is_time)
SITES: Final = Form("sites", f"a list of at most {MAX_ITEMS} site ids, sorted, none twice", _is_sites)
DIRECTION: Final = _one_of("direction", "sent", "received", "event")
LEVEL: Final = _one_of("level", "individual", "cohort", "sum")
VERDICT: Final = _one_of("verdict", "allowed", "refused")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record, or of an object in it: its key, the values that it can have, and its meaning for users.

    If it is ``optional``, the empty text, or the empty object, stands for "does not apply".
    """

    name: str
    form: Form
    means: str
    optional: bool = False

    @property
    def holds(self) -> Callable[[Any], object]:
        """A function that tells whether the field can have a value. An object that does not apply is None."""
        holds, nothing = self.form.holds, "" if self.form.pattern == _TEXT else None
        return (lambda value: value == nothing or holds(value)) if self.optional else holds


def _of(form: Form, means: str, *, optional: bool = False) -> dict[str, tuple[Form, str, bool]]:
    return {"of": (form, means, optional)}


@cache
def fields_of(part: Hashable) -> tuple[Field, ...]:
    """The declared fields of `Record`, `Entry`, `Decision`, `Disclosure` or `DpSpent`, in the order of the class."""
    declared = dataclasses.fields(cast(Any, part))
    return tuple(Field(item.name, *item.metadata["of"]) for item in declared if "of" in item.metadata)


def _check_fields(part: Any) -> None:
    """Check each field of a part by its declaration. Raises RecordError."""
    checks, values_of = _checks_of(part.__class__)
    with suppress(TypeError):  # a list cannot be looked up where a text is expected
        if all(map(call, checks, values_of(part))):
            return
    for key in fields_of(part.__class__):
        value = getattr(part, key.name)
        _require((isinstance(value, Hashable) or key.form is FACTS) and bool(key.holds(value)), key.name)


@cache
def _checks_of(part: Hashable) -> tuple[list[Callable[[Any], object]], Callable[[object], Sequence[Any]]]:
    return [key.holds for key in fields_of(part)], attrgetter(*(key.name for key in fields_of(part)))


@dataclass(frozen=True, slots=True)
class Decision:
    """The policy's decision. Raises RecordError if a field does not have its form."""

    verdict: str = field(metadata=_of(VERDICT, "what the policy said"))
    key: str = field(
        default="",
        metadata=_of(KEY, "the policy's key that decided; empty where several did", optional=True),
    )

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True, slots=True)
class Disclosure:
    """The information that a message gives to its peer. Raises RecordError if a field does not have its form."""

    level: str = field(metadata=_of(LEVEL, "the visibility level at which the peer sees it"))
    what: str = field(metadata=_of(WORD, 'what it is, for example "update" or "moments"'))
    count: int = field(metadata=_of(COUNT, "of how many sites it is the sum; 1 at individual"))

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True, slots=True)
class DpSpent:
    """The privacy cost of a round, and the ledger after it. Raises RecordError if a field does not have its form."""

    mechanism: str = field(metadata=_of(WORD, 'the mechanism, for example "dp-sgd"'))
    accountant: str = field(metadata=_of(WORD, 'the accountant, for example "rdp"'))
    noise_multiplier: str = field(metadata=_of(DECIMAL, "noise multiplier"))
    sampling_rate: str = field(metadata=_of(DECIMAL, "sampling rate"))
    max_grad_norm: str = field(metadata=_of(DECIMAL, "clip norm of the gradients"))
    delta: str = field(metadata=_of(DECIMAL, "delta"))
    epsilon: str = field(metadata=_of(DECIMAL, "epsilon spent so far, with this round"))
    steps: int = field(metadata=_of(COUNT, "number of noisy gradients"))
    ledger_rows: int = field(metadata=_of(COUNT, "how many rows the ledger has"))
    ledger_digest: str = field(metadata=_of(DIGEST, "digest of the last of them"))

    def __post_init__(self) -> None:
        _check_fields(self)

    @property
    def is_of_all_rows(self) -> bool:
        """Whether it is one noisy sum over all rows, as second moments are."""
        return self.steps == 1 and float(self.sampling_rate) == 1


@dataclass(frozen=True, slots=True)
class Event:
    """A kind of event: what happened, the fields that ``facts`` has, no more and no fewer, and whether ``dp``."""

    means: str
    facts: tuple[Field, ...] = ()
    charges: bool = False


_CHECK: Final = Field("check", WORD, "the stable name of the check that failed")
_ACCUSED: Final = Field("accused", SITES, "whom the check blames; empty where it blames no site")
_SIZE: Final = Field("size", COUNT, "how many records the checkpoint signs")
_ROOT: Final = Field("root", DIGEST, "their root")
_ROUNDS: Final = Field("rounds", COUNT, "number of rounds that were not charged")
_EXPIRES: Final = Field("expires", COUNT, "Unix time in seconds from which the reservation does not count")
_SURVIVORS: Final = Field("survivors", SITES, "the sources in the sum")

EVENTS: Final[Mapping[str, Event]] = MappingProxyType(
    {
        "run-began": Event(
            "The log begins.",
            (
                Field("release", WORD, "release of securefda"),
                Field("task", WORD, "the task"),
                Field("strategy", WORD, "the strategy; at a source, that it follows the headers"),
                Field("roster", DIGEST, "SHA-256 of the roster"),
            ),
        ),
        "run-ended": Event(
            "The run ended.",
            (Field("outcome", WORD, "how"), Field("rounds", COUNT, "number of rounds with a result")),
        ),
        "restarted": Event(
            "The site's process started again and goes on with this log.",
            (Field("lost_bytes", COUNT, "bytes of a record that a crash left unfinished, and that were cut off"),),
        ),
        "policy-loaded": Event(
            "The process started with this policy.", (Field("policy", DIGEST, "SHA-256 of the policy file"),)
        ),
        "refused": Event("The site refused to take part in a round.", (_CHECK,)),
        "message-not-kept": Event(
            "No copy of a received message is kept as evidence. The record has the message's peer and digest.",
            (
                Field(
                    "check",
                    WORD,
                    "SIGNATURE where its sender did not sign it; BOUND where that site sent more in one attempt than "
                    "is kept of it",
                ),
            ),
        ),
        "release-fuse-burnt": Event("The site can release nothing more in this round."),
        "survivors-signed": Event("A source signed the list of survivors that it was shown.", (_SURVIVORS,)),
        "unmask-shares-released": Event(
            "A source released its unmasking shares for these lists.",
            (_SURVIVORS, Field("dropped", SITES, "the sources that are not in the sum")),
        ),
        "caps-computed": Event(
            "A source worked out the caps of the norm cap.",
            (
                Field("caps", DIGEST, "SHA-256 of the caps as little-endian float64; the same at every source"),
                Field("layers", COUNT, "number of caps, one for each layer"),
                Field("capped", COUNT, "how many of them scale this source's part down"),
                Field("zeroed", COUNT, "how many of them leave nothing of it"),
            ),
        ),
        "features-released": Event(
            "The target sends features of its rows with the header of this attempt.",
            (
                Field("rows", COUNT, "of how many rows"),
                Field("width", COUNT, "numbers of each"),
                Field("features", DIGEST, "SHA-256 of the features as little-endian float32"),
                Field("clip", DECIMAL, "largest length of the features of a row; 0 for no bound"),
                Field("noise", DECIMAL, "standard deviation of the noise on each number, in units of the clip"),
            ),
        ),
        "model-kept": Event(
            "A source wrote the final model of the run into its run folder.",
            (Field("model", DIGEST, "SHA-256 of its parameters"),),
        ),
        "ledger-updated": Event("The privacy ledger was charged for a round.", charges=True),
        "budget-reserved": Event("The run reserved rounds of the site's privacy budget.", (_ROUNDS, _EXPIRES)),
        "budget-released": Event("The run has ended, and what it had reserved is free.", (_ROUNDS, _EXPIRES)),
        "aborted": Event("The site ended a session.", (_CHECK, _ACCUSED)),
        "alarm": Event("A check failed in a way that an honest peer cannot cause.", (_CHECK, _ACCUSED)),
        "checkpoint-signed": Event("The site signed a checkpoint of this log.", (_SIZE, _ROOT)),
        "checkpoint-cosigned": Event(
            "The site cosigned a checkpoint of another site's log.",
            (Field("origin", ORIGIN, "the origin of that log"), _SIZE, _ROOT),
        ),
    }
)
"""The kinds of events."""

_MESSAGE: Final = re.compile("[A-Z][A-Za-z0-9]{0,63}")


@lru_cache(maxsize=4096)
def _is_type(value: object) -> bool:
    return type(value) is str and (value in EVENTS or _MESSAGE.fullmatch(value) is not None)


TYPE: Final = Form("type", "a message type: a capital and at most 63 letters and digits; or a kind of event", _is_type)


def _object_from(text: str) -> dict[str, Any]:
    """Parse an object of a record. Raises RecordError if it is not in its canonical form."""
    if text == "{}":
        return {}
    try:
        value: dict[str, Any] = json_value(text)
    except ValueError as error:
        raise RecordError("an object of the record is no JSON") from error
    _require(type(value) is dict and _JSON.encode(value) == text, "an object of the record (its one form)")
    return value


def _object_form(part: Any) -> Form:
    """Return the form of an object with the fields of a part. Values are cached, since most repeat in many records."""
    name, keys = part.__name__.lower(), [key.name for key in fields_of(part)]

    @lru_cache(maxsize=1024)
    def read(text: str) -> object:
        values = _object_from(text)
        _require(not values or values.keys() == set(keys), f"{name} (its keys)")
        return part(**values) if values else None

    @lru_cache(maxsize=1024)
    def write(value: object) -> str:
        return "{}" if value is None else _JSON.encode({key: getattr(value, key) for key in keys})

    means = f"an object with the keys {', '.join(keys)}"
    return Form("object", means, lambda value: isinstance(value, part), r"(\{[^}]*\})", read, write)


DECISION: Final = _object_form(Decision)
DISCLOSURE: Final = _object_form(Disclosure)
DP_SPENT: Final = _object_form(DpSpent)
FACTS: Final = Form(
    "facts",
    "an object with exactly the keys that the kind of event has",
    lambda value: type(value) is dict,
    r"(\{.*?\})",
    _object_from,
    lambda value: _JSON.encode(value) if value else "{}",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A site's statement about one message or event. The log adds its place, its time, the party and the run.

    A message has a peer and a digest, and no facts. An event has the facts of its kind, see `EVENTS`. An
    attempt needs a round. Raises RecordError if any of this does not hold, or a field does not have its form.
    """

    direction: Direction = field(metadata=_of(DIRECTION, "sent or received of a message, event of anything else"))
    type: str = field(metadata=_of(TYPE, 'of a message its name, for example "MaskedInput"; of an event its kind'))
    round: int = field(default=0, metadata=_of(COUNT, "round, 1-based; 0 outside rounds"))
    attempt: int = field(default=0, metadata=_of(COUNT, "number of the attempt within the round; 0 outside rounds"))
    session: str = field(default="", metadata=_of(DIGEST, "id of the masking session", optional=True))
    peer: str = field(
        default="",
        metadata=_of(NAME, "site id of the other side; a message has one, an event may", optional=True),
    )
    bytes: int = field(default=0, metadata=_of(COUNT, "length of the signed message, with the vectors beside it"))
    digest: str = field(
        default="",
        metadata=_of(DIGEST, "SHA-256 of the signed bytes; a message has one, an event may", optional=True),
    )
    decision: Decision | None = field(
        default=None, metadata=_of(DECISION, "what the policy said, if it was asked", optional=True)
    )
    disclosure: Disclosure | None = field(
        default=None, metadata=_of(DISCLOSURE, "what the peer learns, if anything", optional=True)
    )
    dp: DpSpent | None = field(default=None, metadata=_of(DP_SPENT, "what was charged, if anything", optional=True))
    facts: Facts = field(default_factory=dict, metadata=_of(FACTS, "the facts of an event; nothing of a message"))

    def __post_init__(self) -> None:
        _check_fields(self)
        _require(self.round > 0 or self.attempt == 0, "attempt (outside a round)")
        if self.direction != "event":
            _require(self.peer != "" and self.digest != "", "peer or digest (of a message)")
            _require(self.type not in EVENTS and not self.facts, "type or facts (of a message)")
            return
        kind = EVENTS.get(self.type)
        if kind is None:
            raise RecordError(f"type: {self.type[:40]!r} is no kind of event")
        _require(self.facts.keys() == {fact.name for fact in kind.facts}, "facts (their keys)")
        _require(all(fact.holds(self.facts[fact.name]) for fact in kind.facts), "facts (a value)")
        _require(not kind.charges or self.dp is not None, f"dp (of {self.type})")


@dataclass(frozen=True, slots=True)
class Record:
    """An entry with its place in the log. Raises RecordError if a field does not have its form."""

    seq: int = field(metadata=_of(COUNT, "place in the log, 0-based"))
    time: str = field(metadata=_of(TIME, "when, by the site's clock"))
    party: str = field(metadata=_of(NAME, "site id of the site that writes the log"))
    run: str = field(metadata=_of(NAME, "run id"))
    entry: Entry

    def __post_init__(self) -> None:
        _check_fields(self)

    @property
    def moment(self) -> datetime:
        """The time of the record as a datetime in UTC."""
        return datetime.fromisoformat(self.time)

    def to_bytes(self) -> bytes:
        """Encode the record canonically. Raises RecordError if that takes more than ``MAX_RECORD_BYTES``."""
        return encode_record(self.seq, self.time, self.party, self.run, self.entry)

    @classmethod
    def parse(cls, data: bytes) -> Record:
        """Read a record.

        Raises:
            NewerVersion: its version is above ``VERSION``.
            RecordError: the bytes are not what ``to_bytes`` writes.
        """
        _require(len(data) <= MAX_RECORD_BYTES, "length")
        line = _LINE.fullmatch(data.decode("latin-1"))
        if line is None:
            raise _not_in_form(data)
        values: list[Any] = list(line.groups())
        for place, read in _READERS:
            values[place] = read(values[place])
        return cls(*_RECORD_VALUES(values), Entry(*_ENTRY_VALUES(values)))  # type: ignore[call-arg]  # the declared ones


def encode_record(seq: int, time: str, party: str, run: str, entry: Entry) -> bytes:
    """Encode a record as `Record.to_bytes` does, without checking its number, time and names again.

    Raises RecordError if the record would be longer than ``MAX_RECORD_BYTES``.
    """
    values = list(_SORTED((seq, time, party, run, *_OF_ENTRY(entry))))
    for place, write in _WRITERS:
        values[place] = write(values[place])
    data = (_TEMPLATE % tuple(values)).encode("ascii")
    _require(len(data) <= MAX_RECORD_BYTES, "length")
    return data


def format_time(moment: datetime) -> str:
    """Format a time as records hold it. Raises ValueError for a time without a time zone."""
    if moment.tzinfo is None:
        raise ValueError("a moment without a time zone is no time")
    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return in_utc.isoformat(timespec="microseconds")[: -len("+00:00")] + "Z"


_RECORD: Final = fields_of(Record)
_ENTRY: Final = fields_of(Entry)
_KEYS: Final = sorted((*_RECORD, *_ENTRY), key=attrgetter("name"))
_READERS: Final = [(place, key.form.read) for place, key in enumerate(_KEYS) if key.form.read is not None]
_WRITERS: Final = [(place, key.form.write) for place, key in enumerate(_KEYS) if key.form.write is not None]
_RECORD_VALUES: Final = itemgetter(*map(_KEYS.index, _RECORD))
_ENTRY_VALUES: Final = itemgetter(*map(_KEYS.index, _ENTRY))
_OF_ENTRY: Final = attrgetter(*(key.name for key in _ENTRY))
_SORTED: Final = itemgetter(*map((*_RECORD, *_ENTRY).index, _KEYS))
_PATTERN: Final = ",".join(f'"{key.name}":{key.form.pattern}' for key in _KEYS)
_LINE: Final = re.compile(rf'\{{{_PATTERN},"v":{VERSION}\}}')
"""Matches what `Record.to_bytes` writes; the forms check the values in it. It is one pattern because parsing takes most
of the time of a verification."""
_VALUES: Final = "".join(f'"{key.name}":' + ('"%s",' if key.form.pattern == _TEXT else "%s,") for key in _KEYS)
_TEMPLATE: Final = f'{{{_VALUES}"v":{VERSION}}}'


def _not_in_form(data: bytes) -> RecordError:
    """Return the error that says why bytes are no record of this version."""
    try:
        fields = json_value(data.decode("ascii"))
    except ValueError:
        return RecordError("the record is no JSON of ASCII")
    version = fields.get("v") if isinstance(fields, dict) else None
    if type(version) is int and version > VERSION:
        return NewerVersion(f"the record {LOG_RECORD.why_not(version)}")
    return RecordError("the record is not in its one form")
