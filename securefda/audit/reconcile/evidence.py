"""Evidence for readers who have neither logs nor kits: claims, with the signed messages that prove them, as one file.

The file is JSON of ASCII with sorted keys and without blanks, and a newline behind it. It describes itself and holds
the roster's bytes; that this is the federation's roster is what the reader has to know from elsewhere. Pure.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from securefda.audit.reconcile.suspicion import RunFinding
from securefda.parse import BeyondBounds, json_value

FORMAT: Final = "securefda-evidence/1"
MAX_EVIDENCE_BYTES: Final = 256 * 1024 * 1024
_KEYS: Final = frozenset({"format", "federation", "run", "roster", "claims"})
_CLAIM_KEYS: Final = frozenset({"kind", "accused", "what", "round", "attempt", "session", "messages", "checkpoints"})


class EvidenceError(ValueError):
    """The bytes are no evidence of this format; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One claim with its evidence, of which nothing is checked yet.

    Attributes:
        kind, accused: of the claim, see `securefda.audit.reconcile.claims`.
        what: in words, as the maker of the file saw it.
        round, attempt, session: where.
        messages: signed messages as they were kept, in the claim's order.
        checkpoints: signed notes.
    """

    kind: str
    accused: str
    what: str
    round: int
    attempt: int
    session: str
    messages: tuple[bytes, ...]
    checkpoints: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A file of evidence.

    Attributes:
        federation: its id.
        run: run id.
        roster: canonical bytes of the roster under which the messages were signed.
        exhibits: the claims.
    """

    federation: str
    run: str
    roster: bytes
    exhibits: tuple[Exhibit, ...]

    def to_bytes(self) -> bytes:
        """The one encoding."""
        fields = {
            "format": FORMAT,
            "federation": self.federation,
            "run": self.run,
            "roster": _encode(self.roster),
            "claims": [_claim_fields(exhibit) for exhibit in self.exhibits],
        }
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return text.encode("ascii") + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Evidence:
        """Read what ``to_bytes`` writes.

        Raises:
            EvidenceError: it is anything else.
        """
        if len(data) > MAX_EVIDENCE_BYTES:
            raise EvidenceError(f"it is longer than {MAX_EVIDENCE_BYTES} bytes")
        try:
            fields = json_value(data.decode("ascii"))
        except BeyondBounds as error:
            raise EvidenceError(f"it {error}") from error
        except ValueError as error:
            raise EvidenceError("it is no JSON of ASCII") from error
        if not isinstance(fields, dict) or fields.get("format") != FORMAT:
            raise EvidenceError(f"it does not say that it is {FORMAT}")
        try:
            evidence = cls._of(fields)
        except (KeyError, TypeError, ValueError) as error:
            raise EvidenceError("a field is missing, or has a value of another type") from error
        if fields.keys() != _KEYS or evidence.to_bytes() != data:
            raise EvidenceError("it is not in its one form")
        return evidence

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Evidence:
        exhibits = tuple(_exhibit(claim) for claim in _list(fields["claims"]))
        return cls(_text(fields["federation"]), _text(fields["run"]), _decode(fields["roster"]), exhibits)


def exhibits_of(findings: Sequence[RunFinding]) -> tuple[Exhibit, ...]:
    """Those of the findings that signed messages prove."""
    return tuple(
        Exhibit(
            kind=one.claim.kind,
            accused=one.claim.accused,
            what=one.what,
            round=one.round,
            attempt=one.attempt,
            session=one.session,
            messages=tuple(message.data for message in one.claim.messages),
            checkpoints=one.claim.notes,
        )
        for one in findings
        if one.claim is not None
    )


def _claim_fields(exhibit: Exhibit) -> dict[str, Any]:
    return {
        "kind": exhibit.kind,
        "accused": exhibit.accused,
        "what": exhibit.what,
        "round": exhibit.round,
        "attempt": exhibit.attempt,
        "session": exhibit.session,
        "messages": [_encode(data) for data in exhibit.messages],
        "checkpoints": [_encode(data) for data in exhibit.checkpoints],
    }


def _exhibit(value: object) -> Exhibit:
    if not isinstance(value, dict) or value.keys() != _CLAIM_KEYS:
        raise TypeError
    return Exhibit(
        kind=_text(value["kind"]),
        accused=_text(value["accused"]),
        what=_text(value["what"]),
        round=_number(value["round"]),
        attempt=_number(value["attempt"]),
        session=_text(value["session"]),
        messages=tuple(map(_decode, _list(value["messages"]))),
        checkpoints=tuple(map(_decode, _list(value["checkpoints"]))),
    )


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode(value: object) -> bytes:
    try:
        return base64.b64decode(_text(value).encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise TypeError from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(value: object) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError
    return value
