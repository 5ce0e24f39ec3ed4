"""Evidence for readers who have neither logs nor kits: one file with claims and the signed messages that prove them.

The file is ASCII JSON with sorted keys, without blanks and with a newline at the end. It describes itself and holds the
roster's bytes. The reader must know from elsewhere that this is the federation's roster.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from securefda.audit.keys import keys_of
from securefda.audit.reconcile.claims import Claim, NotProved, prove
from securefda.audit.reconcile.reconciled_runs import ReconciledRun
from securefda.audit.reconcile.run_transcript import Members
from securefda.audit.reconcile.suspicion import RunFinding
from securefda.audit.statements import StatementReader
from securefda.audit.verification import Outcome
from securefda.disk import read_file
from securefda.errors import ConfigError, ExitCode, SecureFdaError
from securefda.formats import EVIDENCE
from securefda.parse import BeyondBounds, json_value
from securefda.text import aligned, printable
from securefda.transport.wire import WireError

FORMAT: Final = f"securefda-evidence/{EVIDENCE.number}"
MAX_EVIDENCE_BYTES: Final = 64 * 1024 * 1024
_MOST_VALUES: Final = 1_000_000
"""Values in a file that are parsed: an empty list is two bytes there and a hundred in memory."""
_KEYS: Final = frozenset({"format", "federation", "run", "roster", "claims"})
_Value = TypeVar("_Value")


class EvidenceError(ValueError):
    """The bytes are not evidence in this format. The text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One claim with its evidence, not yet checked, see `securefda.audit.reconcile.claims`.

    ``what`` is the fault in the words of the maker of the file. ``messages`` are signed messages as they were kept, in
    the claim's order, and ``checkpoints`` signed notes.
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
    """A file of evidence: claims, and the canonical bytes of the roster under which their messages were signed."""

    federation: str
    run: str
    roster: bytes
    exhibits: tuple[Exhibit, ...]

    def to_bytes(self) -> bytes:
        """Encode the evidence canonically."""
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
        """Read what ``to_bytes`` writes. Raises EvidenceError for anything else."""
        if len(data) > MAX_EVIDENCE_BYTES:
            raise EvidenceError(f"it is longer than {MAX_EVIDENCE_BYTES} bytes")
        if data.count(b",") > _MOST_VALUES:
            raise EvidenceError(f"it has more than {_MOST_VALUES} values")
        try:
            fields = json_value(data.decode("ascii"))
        except BeyondBounds as error:
            raise EvidenceError(f"it {error}") from error
        except ValueError as error:
            raise EvidenceError("it is no JSON of ASCII") from error
        if not isinstance(fields, dict) or fields.get("format") != FORMAT:
            raise EvidenceError(f"it {EVIDENCE.why_not_of(data) or f'does not say that it is {FORMAT}'}")
        try:
            exhibits = tuple(map(_exhibit, _a(list, fields["claims"])))
            roster = _decode(fields["roster"])
            evidence = cls(_a(str, fields["federation"]), _a(str, fields["run"]), roster, exhibits)
        except (KeyError, TypeError, ValueError) as error:
            raise EvidenceError("a field is missing, or has a value of another type") from error
        if fields.keys() != _KEYS or evidence.to_bytes() != data:
            raise EvidenceError("it is not in its one form")
        return evidence


def exhibits_of(findings: Sequence[RunFinding]) -> tuple[Exhibit, ...]:
    """Return an exhibit for each finding that signed messages prove."""
    exhibits = []
    for finding in findings:
        if (claim := finding.claim) is not None:
            place = finding.round, finding.attempt, finding.session
            messages = tuple(message.data for message in claim.messages)
            exhibits.append(Exhibit(claim.kind, claim.accused, finding.what, *place, messages, claim.notes))
    return tuple(exhibits)


def _claim_fields(exhibit: Exhibit) -> dict[str, Any]:
    encoded = {"messages": [*map(_encode, exhibit.messages)], "checkpoints": [*map(_encode, exhibit.checkpoints)]}
    return asdict(exhibit) | encoded


def _exhibit(fields: object) -> Exhibit:
    """Return the exhibit with these fields. Raises TypeError or ValueError if they are not those of one."""
    exhibit = Exhibit(**_a(dict, fields))
    for name in ("kind", "accused", "what", "session"):
        _a(str, getattr(exhibit, name))
    for name in ("round", "attempt"):
        _a(int, getattr(exhibit, name))
    messages, checkpoints = (tuple(map(_decode, _a(list, part))) for part in (exhibit.messages, exhibit.checkpoints))
    return replace(exhibit, messages=messages, checkpoints=checkpoints)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode(text: object) -> bytes:
    return base64.b64decode(_a(str, text).encode("ascii"), validate=True)


def _a(kind: type[_Value], value: object) -> _Value:
    """Return a value of this very type. Raises TypeError for any other, such as a truth value for a number."""
    if type(value) is not kind:
        raise TypeError
    return value


class NoProof(SecureFdaError):
    """A file of evidence does not prove what it claims."""

    exit_code = ExitCode.AUDIT


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim, and in words either what it proves or why it proves nothing; the other text is empty."""

    exhibit: Exhibit
    proved: str
    why_not: str


@dataclass(frozen=True, slots=True)
class Evidenced:
    """The files of evidence that were written, one for each run; or the reason why there is none."""

    files: tuple[Path, ...]
    why_not: str = ""


def write_evidence(file: Path, runs: Sequence[ReconciledRun]) -> Evidenced:
    """Write the claims that signed messages prove. If several runs have some, each run has a file that ends in its id.

    Raises ConfigError if the file exists, or cannot be written.
    """
    proved = [(run, exhibits) for run in runs if (exhibits := exhibits_of(run.outcome.findings))]
    if not proved:
        kinds = sorted({finding.kind for run in runs for finding in run.outcome.findings})
        without = f"no signed message alone proves {', '.join(kinds)}: the logs are the evidence, keep them"
        return Evidenced((), without if kinds else "nothing was found")
    files = []
    for run, exhibits in proved:
        members = run.members
        data = Evidence(members.federation, members.run, run.keys.roster.canonical_bytes(), exhibits).to_bytes()
        path = file if len(proved) == 1 else file.with_name(f"{file.stem}-{members.run[:12]}{file.suffix}")
        try:
            with path.open("xb") as opened:
                opened.write(data)
        except OSError as error:
            raise ConfigError("--evidence", f"{path} cannot be written: {error.strerror}", hint=_NEW_FILE) from error
        files.append(path)
    return Evidenced(tuple(files))


def require_new(file: Path | None) -> None:
    """Raise ConfigError if a file of evidence cannot be created: it exists, or its folder does not."""
    if file is not None and file.exists():
        raise ConfigError("--evidence", f"{file} exists, and evidence is not written over", hint=_NEW_FILE)
    if file is not None and not file.parent.is_dir():
        raise ConfigError("--evidence", f"{file.parent} is no folder", hint=_NEW_FILE)


_NEW_FILE: Final = "name a new file in a folder that you can write to"


def judge_evidence(file: Path, trusted: Path) -> tuple[Evidence, list[Judged]]:
    """Check every claim of a file from the messages in it and a trusted roster.

    Raises:
        ConfigError: a file cannot be read, or is not of its kind.
        NoProof: the evidence belongs to another roster.
    """
    try:
        evidence = Evidence.parse(read_file(file, limit=MAX_EVIDENCE_BYTES).data)
    except EvidenceError as error:
        hint = "ask for the file once more, as securefda audit reconcile --evidence has written it"
        raise ConfigError(str(file), f"is no evidence: {error}", hint=hint) from error
    roster = keys_of(file, trusted).roster
    if roster.canonical_bytes() != evidence.roster:
        hint = "name the roster under which the run began; its digest must be the one that the sites know"
        raise NoProof(f"{file}: its messages are of another roster than {trusted}", hint=hint)
    keys = {entry.site_id: entry.signing_key for entry in roster.entries}
    if evidence.federation != roster.federation_id:
        what = f"{file}: it is of federation {printable(evidence.federation[:80])}, not {roster.federation_id}"
        raise NoProof(what, hint="accuse no site by it")
    members = Members(evidence.federation, evidence.run, roster.target.site_id, keys, roster.digest().hex())
    return evidence, [_judge(exhibit, members, StatementReader(roster)) for exhibit in evidence.exhibits]


def _judge(exhibit: Exhibit, members: Members, reader: StatementReader) -> Judged:
    try:
        messages = tuple(reader.read(data) for data in exhibit.messages)
        return Judged(exhibit, prove(Claim(exhibit.kind, exhibit.accused, messages, exhibit.checkpoints), members), "")
    except (NotProved, WireError, ValueError) as error:
        return Judged(exhibit, "", str(error))


def said_of_evidence(evidence: Evidence, judged: Sequence[Judged]) -> Outcome:
    """Return the outcome of ``securefda audit verify-evidence``, without an error if there are claims, all proved."""
    data = {"federation": evidence.federation, "run": evidence.run, "claims": [_json(claim) for claim in judged]}
    text = "\n\n".join(_judged_text(claim) for claim in judged)
    lost = [claim for claim in judged if not claim.proved]
    if judged and not lost:
        return Outcome(data, text)
    what = f"{lost[0].exhibit.kind}: {lost[0].why_not}" if lost else "there is no claim in it"
    why = f"{len(lost)} of {len(judged)} claims are not proved: {what}"
    return Outcome(data, text, NoProof(why, hint="accuse no site by it"))


def _judged_text(claim: Judged) -> str:
    rows = [
        ("claim", claim.exhibit.kind),
        ("accused", claim.exhibit.accused),
        ("proved" if claim.proved else "not proved", claim.proved or claim.why_not),
        ("said with it", claim.exhibit.what),
    ]
    return aligned([(key, printable(value)) for key, value in rows])


def _json(claim: Judged) -> dict[str, Any]:
    exhibit = claim.exhibit
    return {
        "kind": exhibit.kind,
        "accused": exhibit.accused,
        "proved": bool(claim.proved),
        "what": claim.proved or claim.why_not,
        "said": exhibit.what,
        "round": exhibit.round,
        "attempt": exhibit.attempt,
        "session": exhibit.session,
        "messages": len(exhibit.messages),
        "checkpoints": len(exhibit.checkpoints),
    }
