"""One record of an audit log, as one canonical line of JSON. Pure: no disk, no clock.

JSON of ASCII with sorted keys and without blanks; integers, strings, lists and objects, no floats and no null. All
keys are always there: what does not apply is ``0``, ``""`` or ``{}``. Parsing takes only what serialising gives.

No record can hold a vector or a value of a row: strings are names, digests, decimals and words without blanks,
and what a kind of event may say is listed in `facts`. The one list of decimals is that of the caps of
the norm cap, which every source computes from rows that the others committed to.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from securefda.audit.facts import (
    EVENTS,
    MAX_INTEGER,
    Facts,
    RecordError,
    is_count,
    is_decimal,
    is_digest,
    is_name,
    is_word,
    require,
)
from securefda.parse import json_value

VERSION: Final = 1
MAX_RECORD_BYTES: Final = 65_535
"""What the length in an entry bundle can say."""

Direction = Literal["sent", "received", "event"]
_DIRECTIONS = frozenset({"sent", "received", "event"})
_LEVELS = frozenset({"individual", "cohort", "sum"})
_VERDICTS = frozenset({"allowed", "refused"})
_MESSAGE = re.compile(r"[A-Z][A-Za-z0-9]{0,63}")
_POLICY_KEY = re.compile(r"[a-z0-9][a-z0-9.-]{0,127}")
_MESSAGE_FIELDS = re.compile(
    rf"(?:sent|received) {_MESSAGE.pattern} [a-z0-9][a-z0-9-]{{0,62}} [0-9a-f]{{64}} (?:[0-9a-f]{{64}})?"
)
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_WRITER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
)


class NewerVersion(RecordError):
    """The record was written by a later release, which has other fields; nobody here can say what it means."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy said.

    Attributes:
        verdict: ``"allowed"`` or ``"refused"``.
        key: the policy's key that decided, 1 to 128 characters of ``a-z 0-9 . -``; empty where several did.

    Raises:
        RecordError: one is not so.
    """

    verdict: str
    key: str = ""

    def __post_init__(self) -> None:
        require(self.verdict in _VERDICTS, "decision.verdict")
        require(self.key == "" or bool(_POLICY_KEY.fullmatch(self.key)), "decision.key")


@dataclass(frozen=True, slots=True)
class Disclosure:
    """What the peer learns by this message.

    Attributes:
        level: ``"individual"``, ``"cohort"`` or ``"sum"``.
        what: a word, for example ``"update"`` or ``"samples"``.
        count: of how many sites it is the sum, 1 at ``"individual"``.

    Raises:
        RecordError: one is not so.
    """

    level: str
    what: str
    count: int

    def __post_init__(self) -> None:
        require(self.level in _LEVELS, "disclosure.level")
        require(is_word(self.what), "disclosure.what")
        require(is_count(self.count), "disclosure.count")


@dataclass(frozen=True, slots=True)
class DpSpent:
    """What a round costs, and the ledger with it. Decimals are the shortest text that reads back as the same float.

    Attributes:
        mechanism: a word, for example ``"dp-sgd"``.
        accountant: a word, for example ``"rdp"``.
        noise_multiplier: decimal.
        sampling_rate: decimal.
        max_grad_norm: decimal.
        delta: decimal.
        epsilon: decimal: spent so far, with this round.
        steps: number of noisy gradients.
        ledger_rows: how many rows the ledger has.
        ledger_digest: digest of the last of them, 64 hex digits.

    Raises:
        RecordError: one is not so.
    """

    mechanism: str
    accountant: str
    noise_multiplier: str
    sampling_rate: str
    max_grad_norm: str
    delta: str
    epsilon: str
    steps: int
    ledger_rows: int
    ledger_digest: str

    def __post_init__(self) -> None:
        require(is_word(self.mechanism) and is_word(self.accountant), "dp.mechanism or dp.accountant")
        decimals = (self.noise_multiplier, self.sampling_rate, self.max_grad_norm, self.delta, self.epsilon)
        require(all(map(is_decimal, decimals)), "dp (a decimal)")
        require(is_count(self.steps) and is_count(self.ledger_rows), "dp.steps or dp.ledger_rows")
        require(is_digest(self.ledger_digest), "dp.ledger_digest")


@dataclass(frozen=True, slots=True)
class Entry:
    """What a party says of one message or event; the log adds when, where and who.

    Attributes:
        direction: ``"sent"`` or ``"received"`` of a message, ``"event"`` of anything else.
        type: of a message its name, for example ``"MaskedInput"``; of an event one of `facts.EVENTS`.
        round: 1-based; 0 outside rounds.
        attempt: number of the attempt within the round; 0 outside rounds.
        session: id of the masking session, 64 hex digits; empty where there is none.
        peer: site id of the other side; a message has one, an event may.
        bytes: how long the signed message is.
        digest: SHA-256 of the signed bytes, 64 hex digits; a message has one, an event may.
        decision: what the policy said, if it was asked.
        disclosure: what the peer learns, if anything.
        dp: what was charged; an event ``"ledger-updated"`` has one.
        facts: what this kind of event says, exactly as `facts.EVENTS` lists it; nothing of a message.

    Raises:
        RecordError: a field is not so.
    """

    direction: Direction
    type: str
    round: int = 0
    attempt: int = 0
    session: str = ""
    peer: str = ""
    bytes: int = 0
    digest: str = ""
    decision: Decision | None = None
    disclosure: Disclosure | None = None
    dp: DpSpent | None = None
    facts: Facts = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self._is_message_in_form():
            self._check()

    def _is_message_in_form(self) -> bool:
        """Most entries are, and one look takes half the time of looking at each field by itself."""
        return (
            type(self.round) is type(self.attempt) is type(self.bytes) is int
            and type(self.type) is type(self.peer) is type(self.digest) is type(self.session) is str
            and 0 <= self.attempt <= MAX_INTEGER
            and 0 <= self.bytes <= MAX_INTEGER
            and (0 < self.round <= MAX_INTEGER or self.round == self.attempt == 0)
            and type(self.facts) is dict
            and not self.facts
            and _MESSAGE_FIELDS.fullmatch(f"{self.direction} {self.type} {self.peer} {self.digest} {self.session}")
            is not None
        )

    def _check(self) -> None:
        """Each field by itself, which says what is wrong; and of an event what its kind has."""
        require(is_count(self.round) and is_count(self.attempt) and is_count(self.bytes), "round, attempt or bytes")
        require(self.round > 0 or self.attempt == 0, "attempt (outside a round)")
        require(self.session == "" or is_digest(self.session), "session")
        require(self.direction in _DIRECTIONS, "direction")
        message = self.direction != "event"
        require((self.peer == "" and not message) or is_name(self.peer), "peer")
        require((self.digest == "" and not message) or is_digest(self.digest), "digest")
        require(isinstance(self.facts, dict), "facts")
        if message:
            require(bool(_MESSAGE.fullmatch(self.type)) and not self.facts, "type or facts (of a message)")
        else:
            allowed = EVENTS.get(self.type)
            if allowed is None:
                raise RecordError(f"type: {self.type[:40]!r} is no kind of event")
            require(self.facts.keys() == allowed.keys(), "facts (their keys)")
            require(all(allowed[key](value) for key, value in self.facts.items()), "facts (a value)")
            require(self.type != "ledger-updated" or self.dp is not None, "dp (of ledger-updated)")


@dataclass(frozen=True, slots=True)
class Record:
    """An entry with its place in the log.

    Attributes:
        seq: place in the log, 0-based.
        time: RFC 3339 in UTC with microseconds, for example ``2026-11-21T23:22:23.000123Z``.
        party: site id of who writes the log.
        run: run id.
        entry: what happened.

    Raises:
        RecordError: a field is not so.
    """

    seq: int
    time: str
    party: str
    run: str
    entry: Entry

    def __post_init__(self) -> None:
        require(is_count(self.seq), "seq")
        require(is_name(self.party) and is_name(self.run), "party or run")
        _ = self.moment

    @property
    def moment(self) -> datetime:
        """The time as a moment in UTC."""
        try:
            if _TIME.fullmatch(self.time):
                return datetime.fromisoformat(self.time)
        except ValueError:
            pass
        raise RecordError("time is no RFC 3339 in UTC with microseconds")

    def to_bytes(self) -> bytes:
        """The one encoding. Raises RecordError where it would be longer than ``MAX_RECORD_BYTES``."""
        return encode_record(self.seq, self.time, self.party, self.run, self.entry)

    @classmethod
    def parse(cls, data: bytes) -> Record:
        """Read a record.

        Raises:
            NewerVersion: its version is above ``VERSION``.
            RecordError: anything that ``to_bytes`` does not write.
        """
        require(len(data) <= MAX_RECORD_BYTES, "length")
        form = _FORM.fullmatch(data.decode("latin-1"))
        if form is None:
            raise _not_in_form(data)
        attempt, length, decision, key, verdict, digest, direction, disclosure, *others = form.groups()
        count, level, what, dp, facts, party, peer, number, run, seq, session, time, kind = others
        entry = Entry(
            cast(Direction, direction),  # Entry looks at it
            kind,
            int(number),
            int(attempt),
            session,
            peer,
            int(length),
            digest,
            Decision(verdict, key) if decision else None,
            Disclosure(level, what, int(count)) if disclosure else None,
            None if dp == "{}" else _dp_from(dp),
            {} if facts == "{}" else _object_from(facts),
        )
        return cls(int(seq), time, party, run, entry)


def encode_record(seq: int, time: str, party: str, run: str, entry: Entry) -> bytes:
    """`Record.to_bytes` for a writer whose number, time and names are in form, as `Record` has them.

    Raises:
        RecordError: it would be longer than ``MAX_RECORD_BYTES``.
    """
    # Written out, for this is most of what a verification takes. No string here can have what JSON escapes.
    data = (
        f'{{"attempt":{entry.attempt},"bytes":{entry.bytes},"decision":{_decision_text(entry.decision)},'
        f'"digest":"{entry.digest}","direction":"{entry.direction}",'
        f'"disclosure":{_disclosure_text(entry.disclosure)},"dp":{_dp_text(entry.dp)},'
        f'"facts":{_WRITER.encode(entry.facts) if entry.facts else "{}"},'
        f'"party":"{party}","peer":"{entry.peer}","round":{entry.round},"run":"{run}","seq":{seq},'
        f'"session":"{entry.session}","time":"{time}","type":"{entry.type}","v":{VERSION}}}'
    ).encode("ascii")
    require(len(data) <= MAX_RECORD_BYTES, "length")
    return data


def format_time(moment: datetime) -> str:
    """The time as a record holds it. Raises ValueError for a moment without a time zone."""
    if moment.tzinfo is None:
        raise ValueError("a moment without a time zone is no time")
    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return in_utc.isoformat(timespec="microseconds")[: -len("+00:00")] + "Z"


_COUNT = "(?:0|[1-9][0-9]{0,15})"
_HEX = "(?:[0-9a-f]{64})?"
_SITE = "[a-z0-9-]{1,63}"
_FORM: Final = re.compile(
    rf'{{"attempt":({_COUNT}),"bytes":({_COUNT}),'
    r'"decision":{("key":"([a-z0-9.-]{0,128})","verdict":"([a-z]+)")?},'
    rf'"digest":"({_HEX})","direction":"([a-z]+)",'
    rf'"disclosure":{{("count":({_COUNT}),"level":"([a-z]+)","what":"([A-Za-z0-9_.-]+)")?}},'
    rf'"dp":({{[!-z|]*}}),"facts":({{[!-~]*}}),"party":"({_SITE})","peer":"((?:{_SITE})?)","round":({_COUNT}),'
    rf'"run":"({_SITE})","seq":({_COUNT}),"session":"({_HEX})","time":"([0-9TZ:.-]+)","type":"([A-Za-z0-9-]+)",'
    rf'"v":{VERSION}}}'
)
"""What `Record.to_bytes` writes, and nothing else: what stands between the braces of ``dp`` and ``facts`` is looked at
by itself. One pattern, for this is most of what a verification takes."""


def _not_in_form(data: bytes) -> RecordError:
    """Say what is wrong with bytes that are no record of this version."""
    try:
        fields = json_value(data.decode("ascii"))
    except ValueError:
        return RecordError("the record is no JSON of ASCII")
    version = fields.get("v") if isinstance(fields, dict) else None
    if type(version) is int and version > VERSION:
        return NewerVersion(f"the record has version {version}, this release knows {VERSION}")
    return RecordError("the record is not in its one form")


def _dp_from(text: str) -> DpSpent:
    values = _object_from(text)
    try:
        return DpSpent(**values)
    except TypeError as error:
        raise RecordError("dp has other keys") from error


def _object_from(text: str) -> dict[str, Any]:
    """A flat object in its one form."""
    try:
        value: dict[str, Any] = json_value(text)
    except ValueError as error:
        raise RecordError("dp or facts are no JSON") from error
    require(type(value) is dict and _WRITER.encode(value) == text, "dp or facts (their one form)")
    return value


def _decision_text(decision: Decision | None) -> str:
    return "{}" if decision is None else f'{{"key":"{decision.key}","verdict":"{decision.verdict}"}}'


def _disclosure_text(disclosure: Disclosure | None) -> str:
    if disclosure is None:
        return "{}"
    return f'{{"count":{disclosure.count},"level":"{disclosure.level}","what":"{disclosure.what}"}}'


def _dp_text(dp: DpSpent | None) -> str:
    return "{}" if dp is None else _WRITER.encode({key: getattr(dp, key) for key in dp.__slots__})
