"""Files of evidence: what a reconciliation writes for others, and how these check it without logs or kits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securefda.audit.keys import keys_of
from securefda.audit.outcome import Outcome
from securefda.audit.reconcile.claims import Claim, NotProved, prove
from securefda.audit.reconcile.evidence import MAX_EVIDENCE_BYTES, Evidence, EvidenceError, Exhibit, exhibits_of
from securefda.audit.reconcile.runs import ReconciledRun
from securefda.audit.reconcile.transcript import Members
from securefda.audit.statement_reader import StatementReader
from securefda.errors import ConfigError, ExitCode, SecureFdaError
from securefda.protocol.roster import Roster
from securefda.site.files import read_file
from securefda.text import aligned, printable
from securefda.transport.wire import WireError


class NoProof(SecureFdaError):
    """A file of evidence does not prove what it claims."""

    exit_code = ExitCode.AUDIT


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim, what it proves in words, and why it does not; one of the two is empty."""

    exhibit: Exhibit
    proved: str
    why_not: str


def write_evidence(file: Path, runs: Sequence[ReconciledRun]) -> bool:
    """Write the claims that signed messages prove; returns False, and writes nothing, where there are none.

    Raises:
        ConfigError: ``--evidence``: there is such a file, or it cannot be written; there are claims of several runs.
    """
    proved = [(one, exhibits) for one in runs if (exhibits := exhibits_of(one.outcome.findings))]
    if not proved:
        return False
    if len(proved) > 1:
        ids = ", ".join(one.members.run for one, _ in proved)
        raise ConfigError("--evidence", f"is a file of one run, and there are claims of {ids}", hint="name one: --run")
    found, exhibits = proved[0]
    members = found.members
    data = Evidence(members.federation, members.run, found.roster.canonical_bytes(), exhibits).to_bytes()
    try:
        with file.open("xb") as opened:
            opened.write(data)
    except OSError as error:
        raise ConfigError("--evidence", f"{file} cannot be written: {error.strerror}") from error
    return True


def require_new(file: Path | None) -> None:
    """Raise ConfigError where the file of evidence exists: evidence is not written over."""
    if file is not None and file.exists():
        raise ConfigError("--evidence", f"{file} exists", hint="name a new file")


def judge_evidence(file: Path, trusted: Path) -> tuple[Evidence, list[Judged]]:
    """Check every claim of a file, from the messages in it and a roster that is trusted.

    Raises:
        ConfigError: a file cannot be read, or is none of its kind.
        NoProof: it is of another roster.
    """
    try:
        evidence = Evidence.parse(read_file(file, limit=MAX_EVIDENCE_BYTES).data)
    except EvidenceError as error:
        raise ConfigError(str(file), f"is no evidence: {error}") from error
    roster = keys_of(file, trusted).roster
    if roster.canonical_bytes() != evidence.roster:
        hint = "name the roster under which the run began; its digest must be the one that the sites know"
        raise NoProof(f"{file}: its messages are of another roster than {trusted}", hint=hint)
    members = _members(evidence, roster, file)
    return evidence, [_judge(exhibit, members, StatementReader(roster)) for exhibit in evidence.exhibits]


def _members(evidence: Evidence, roster: Roster, file: Path) -> Members:
    keys = {entry.site_id: entry.signing_key for entry in roster.entries}
    if evidence.federation != roster.federation_id:
        raise NoProof(f"{file}: it is of federation {printable(evidence.federation[:80])}, not {roster.federation_id}")
    return Members(evidence.federation, evidence.run, roster.target.site_id, keys, roster.digest().hex())


def _judge(exhibit: Exhibit, members: Members, reader: StatementReader) -> Judged:
    try:
        messages = tuple(reader.read(data) for data in exhibit.messages)
        return Judged(exhibit, prove(Claim(exhibit.kind, exhibit.accused, messages, exhibit.checkpoints), members), "")
    except (NotProved, WireError, ValueError) as error:
        return Judged(exhibit, "", str(error))


def said_of_evidence(evidence: Evidence, judged: Sequence[Judged]) -> Outcome:
    """What ``securefda audit verify-evidence`` says; no error where there are claims and each is proved."""
    data = {"federation": evidence.federation, "run": evidence.run, "claims": [_json(one) for one in judged]}
    text = "\n\n".join(_text(one) for one in judged)
    lost = [one for one in judged if not one.proved]
    if judged and not lost:
        return Outcome(data, text)
    what = f"{lost[0].exhibit.kind}: {lost[0].why_not}" if lost else "there is no claim in it"
    why = f"{len(lost)} of {len(judged)} claims are not proved: {what}"
    return Outcome(data, text, NoProof(why, hint="accuse no site by it"))


def _text(one: Judged) -> str:
    rows = [
        ("claim", one.exhibit.kind),
        ("accused", one.exhibit.accused),
        ("proved" if one.proved else "not proved", one.proved or one.why_not),
        ("said with it", one.exhibit.what),
    ]
    return aligned([(key, printable(value)) for key, value in rows])


def _json(one: Judged) -> dict[str, Any]:
    exhibit = one.exhibit
    return {
        "kind": exhibit.kind,
        "accused": exhibit.accused,
        "proved": bool(one.proved),
        "what": one.proved or one.why_not,
        "said": exhibit.what,
        "round": exhibit.round,
        "attempt": exhibit.attempt,
        "session": exhibit.session,
        "messages": len(exhibit.messages),
        "checkpoints": len(exhibit.checkpoints),
    }
