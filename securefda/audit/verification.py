"""The work of ``securefda audit verify``: checks logs against a roster and reports their faults.

It also has what all audit commands share: their result (`Outcome`), and a progress bar for long logs.
"""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TextIO

from securefda.audit.kept_check import NOT_JUDGED, EvidenceLost, KeptVerdict, kept_verdict
from securefda.audit.keys import Keys, keys_of, roster_named
from securefda.audit.log_files import AuditError
from securefda.audit.merkle import ProofError
from securefda.audit.reading import DamagedLog, Inclusion, LogFolder, NoLog, being_written, logs_at, open_log
from securefda.audit.report.disclosure import SiteDisclosure, disclosure_of
from securefda.audit.report.party_tables import read_party
from securefda.audit.signed_notes import MAX_NOTE_BYTES, Checkpoint, LogName, Note, NoteError
from securefda.audit.statements import StatementReader
from securefda.audit.verify import UNVOUCHED, Finding, Verification, verify_log
from securefda.disk import read_file
from securefda.errors import ConfigError, ExitCode, SecureFdaError
from securefda.text import aligned, counted, printable


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a command: its data for programs, a text for people, and the error to end with, if any.

    The text is empty if the error says everything.
    """

    data: Mapping[str, Any]
    text: str
    error: SecureFdaError | None = None


_LONG: Final = 5000
"""Number of records up to which a verification is too short for a progress bar."""


@contextmanager
def verification_progress(what: str, stream: TextIO | None = None) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of `securefda.audit.verify.verify_log` on ``stream``, by default stderr."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield lambda _read, _covered: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=stream, highlight=False), transient=True) as progress:
        task = progress.add_task(what, total=None, visible=False)

        def tell(read: int, covered: int) -> None:
            total = max(read, covered)
            progress.update(task, completed=read, total=total, visible=total >= _LONG)

        yield tell


_UNKNOWN: Final = "unknown"
_RUN: Final = re.compile(r"[0-9a-f]{32}")
_NO_COSIGNER: Final = "no other site has cosigned the newest checkpoint: a holder of the log's key could have made it"
_NEVER_SIGNED: Final = (
    "nothing is signed, so anybody could have written it: by its records the site has not got to its first checkpoint, "
    "and had no part in any session"
)
_MOST_UNSIGNED: Final = 1000
"""A never-signed log has fewer records: its site only joins again and again, and takes part in nothing."""
_OPEN: Final = "the folder is open to others (mode {:04o}); unless it is a copy for them: chmod -R go= {}"


class AuditFinding(SecureFdaError):
    """A log is not what it should be."""

    exit_code = ExitCode.AUDIT


@dataclass(frozen=True, slots=True)
class Question:
    """The options of ``securefda audit verify``; ``witnesses`` is None for the default.

    ``logs`` are logs, kits, or folders with logs; only logs of the run whose id begins with ``run`` are verified.
    """

    logs: tuple[Path, ...]
    roster: Path | None = None
    witnesses: int | None = None
    known: tuple[Path, ...] = ()
    record: int | None = None
    run: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result for one log.

    Attributes:
        log: the folder, with the party that the log names.
        keys: the keys that it was checked with.
        name: the expected federation, party and run of the log.
        live: whether a process was writing the log.
        needed: the number of sites that must have cosigned the newest checkpoint.
        verification: the verification; empty if it could not begin.
        fault: the first thing that is wrong with the log, or None.
        note: the newest checkpoint, or None.
        inclusion: the requested proof, checked; None if none was requested, or it failed.
        kept: the result of comparing the records with the messages beside the log.
        disclosed: what left the party by the records that the verification vouches for; None if it vouches for none.
        notes: facts that the reader should know, one line each.
    """

    log: LogFolder
    keys: Keys
    name: LogName
    live: bool
    needed: int
    verification: Verification
    fault: Finding | None
    note: Note | None
    inclusion: Inclusion | None
    kept: KeptVerdict
    disclosed: SiteDisclosure | None
    notes: tuple[str, ...]


def check_logs(question: Question) -> list[Checked]:
    """Verify the logs, one after the other.

    Raises:
        ConfigError, NoLog: there is no log, no roster, or an option does not fit them; before anything is verified.
    """
    places: dict[Path, Path] = {}
    for place in question.logs:
        for folder in logs_at(place, question.run):
            places.setdefault(folder, place)
    folders = list(places)
    if question.record is not None and len(folders) != 1:
        there = ", ".join(map(str, folders))
        raise ConfigError("--record", f"is a record of one log, and these are {there}", hint="name one of them alone")
    opened = [_opened(folder, places[folder], question, is_only=len(folders) == 1) for folder in folders]
    known = _assigned([name for _, _, name, _ in opened], question.known)
    return [_check(opened_log, notes, question) for opened_log, notes in zip(opened, known, strict=True)]


_Opened = tuple[LogFolder, Keys, LogName, Finding | None]
"""A log, its roster, whose it should be, and why it cannot be verified."""


def _opened(folder: Path, place: Path, question: Question, *, is_only: bool) -> _Opened:
    """A log, its roster, and whose it should be: in a kit of the kit's site, in a folder with a run's name of that.

    Among several logs, one that cannot be opened has a fault, so that it keeps no other from being verified.
    """
    try:
        log = open_log(folder)
        keys = keys_of(folder, question.roster, place)
    except AuditError as error:  # nothing in it says whose it is, but the place may
        if is_only and isinstance(error, NoLog):
            raise
        keys = keys_of(folder, question.roster, place)
        if isinstance(error, DamagedLog) and keys.site and _RUN.fullmatch(folder.resolve().name):
            log = LogFolder(folder, keys.site, folder.resolve().name, "")
        elif is_only:
            raise
        else:
            nobody = LogName(keys.federation, _UNKNOWN, _UNKNOWN)
            fault = Finding("unreadable", 0, exact=True, what=error.what)
            return LogFolder(folder, _UNKNOWN, _UNKNOWN, ""), keys, nobody, fault
    others = len(keys.public) - 1
    if question.witnesses is not None and question.witnesses > others:
        raise ConfigError(
            f"--witnesses {question.witnesses}",
            f"the roster has {others} other sites than {log.party}",
            hint=f"ask for {others} at most",
        )
    run = folder.resolve().name
    name = LogName(keys.federation, keys.site or log.party, run if _RUN.fullmatch(run) else log.run)
    if name.party in keys.public:
        return log, keys, name, None
    return log, keys, name, Finding("wrong-roster", 0, exact=True, what=f"{keys.file} has no site {name.party}")


def _assigned(names: Sequence[LogName], files: Sequence[Path]) -> list[list[bytes]]:
    """Return for each log the outside checkpoints that name it. Raises ConfigError."""
    notes: list[list[bytes]] = [[] for _ in names]
    for file in files:
        data = read_file(file, limit=MAX_NOTE_BYTES).data
        try:
            origin = Checkpoint.parse(Note.parse(data).text).origin
        except NoteError as error:
            hint = "name the file checkpoint of a log, or one below its checkpoints/, that another site has sent"
            raise ConfigError(f"--known {file}", f"is no checkpoint: {error}", hint=hint) from error
        places = [place for place, name in enumerate(names) if name.origin == origin]
        if not places:
            raise ConfigError(f"--known {file}", f"is of the log {origin[:300]}", hint="name that log as well")
        for place in places:
            notes[place].append(data)
    return notes


def _check(opened: _Opened, known: list[bytes], question: Question) -> Checked:
    log, keys, name, fault = opened
    live = being_written(log.folder)
    needed = question.witnesses if question.witnesses is not None else 0 if live else min(1, len(keys.public) - 1)
    verified = Verification(0, 0, b"", (), None, ())
    can_begin = fault is None
    if can_begin:
        with verification_progress(log.folder.name) as progress:
            try:
                verified = verify_log(
                    log.folder, name, keys.public, keys.ml_dsa, witnesses_needed=needed, known=known, progress=progress
                )
            except ValueError as error:
                raise ConfigError("--known", str(error), hint=f"it was checked with the keys of {keys.file}") from error
        is_this = (log.party, log.run) == (name.party, name.run)
        if is_this and not question.witnesses and not known and _is_never_signed(log):
            # While its site writes it, or the user takes the records as they are, nothing is wrong with them
            unsigned = Finding("missing-cosignature", 0, exact=False, what=_NEVER_SIGNED) if needed else None
            verified = Verification(log.size(), 0, b"", (), unsigned, () if unsigned else (_NEVER_SIGNED,))
        fault = verified.finding
        if fault is not None and fault.exact:
            fault = replace(fault, claim=_claim(log, fault.index))
        elif fault is None and (disagreement := keys.disagreement(roster_named(log))):
            fault = Finding("wrong-roster", 0, exact=True, what=disagreement)
    inclusion, fault = _proved(log, verified, fault, question.record)
    kept = NOT_JUDGED
    if can_begin and (fault is None or fault.kind != "wrong-roster"):
        kept = kept_verdict(log, verified, StatementReader(keys.roster), live=live)
    notes = (*_about(log, live, verified), *keys.warnings, *keys.notes, *verified.notes, *kept.notes)
    disclosed = _disclosed(log, keys, verified)
    note = _newest(log, verified)
    return Checked(log, keys, name, live, needed, verified, fault, note, inclusion, kept, disclosed, notes)


_OF_DISCLOSURE: Final = ('"disclosure":{"', '"type":"ledger-updated"')
"""What stands in the records that say what left and what bounds it: only these are parsed once more."""


def _disclosed(log: LogFolder, keys: Keys, verified: Verification) -> SiteDisclosure | None:
    finding = verified.finding
    end = verified.size if finding is None or finding.kind in UNVOUCHED else finding.index
    try:
        records = chain.from_iterable(log.records(0, end, holding=part) for part in _OF_DISCLOSURE)
        tables = read_party(log.party, records)
    except AuditError:
        return None
    return disclosure_of(tables, is_target=keys.roles.get(log.party) == "target") if end else None


def _is_never_signed(log: LogFolder) -> bool:
    """Return whether a log has and mentions no checkpoint: its site took part in no session, as after a refusal.

    Who deletes the checkpoints of another log has to delete all records from the first one on as well; a log that is
    gone is found in those of the other sites.
    """
    try:
        if log.head() is not None or log.heads():
            return False
        entries = [record.entry for record in islice(log.records(), _MOST_UNSIGNED)]
    except AuditError:
        return False
    return 0 < len(entries) < _MOST_UNSIGNED and not any(
        entry.session or entry.type == "checkpoint-signed" for entry in entries
    )


def _claim(log: LogFolder, index: int) -> str:
    """Describe the record at a place in its own words; empty if it cannot be read."""
    record = log.record(index)
    if record is None:
        return ""
    entry = record.entry
    where = f" in round {entry.round}" if entry.round else ""
    peer = f" {'to' if entry.direction == 'sent' else 'from'} {entry.peer}" if entry.peer else ""
    number = f"as number {record.seq} of {record.party}, {record.time}"
    return f"there is: {entry.direction} {entry.type}{peer}{where}, {number}"


def _proved(
    log: LogFolder, verified: Verification, fault: Finding | None, index: int | None
) -> tuple[Inclusion | None, Finding | None]:
    """Return the proof that a record is in the newest checkpoint, if it was asked for and the checkpoint is good."""
    if index is None or not verified.root:
        return None, fault
    if index >= verified.covered:
        why = f"the newest checkpoint covers {verified.covered} records, counted from 0"
        raise ConfigError(f"--record {index}", why, hint="a record is proved once a checkpoint covers it")
    try:
        inclusion = log.prove(index, verified.covered)
        inclusion.check()
    except (AuditError, ProofError) as error:
        what = error.what if isinstance(error, AuditError) else str(error)
        return None, fault or Finding("edited", index, True, what)
    return (inclusion if inclusion.root == verified.root else None), fault


def _newest(log: LogFolder, verified: Verification) -> Note | None:
    try:
        head = log.head(verified.covered if verified.root else None)
    except AuditError:
        return None
    return None if head is None else head.note


def _about(log: LogFolder, live: bool, verified: Verification) -> list[str]:
    notes = []
    if live:
        notes.append("a process is writing the log: what its newest checkpoint covered at the start was verified")
    if verified.root and not verified.witnesses:
        notes.append(_NO_COSIGNER)
    mode = stat.S_IMODE(log.folder.stat().st_mode)
    if mode & 0o077:
        notes.append(_OPEN.format(mode, log.folder))
    return notes


def error_of(checked: Sequence[Checked]) -> AuditFinding | EvidenceLost | None:
    """Return the error to end with: first of a log, then of lost evidence; or None."""
    faulty = [(log.log.folder, log.fault) for log in checked if log.fault is not None]
    if faulty:
        folder, fault = faulty[0]
        more = f"; {len(faulty) - 1} more of {len(checked)} logs are not what they should be" if len(faulty) > 1 else ""
        return AuditFinding(f"audit log {folder}: {fault}{more}", hint=_HINTS.get(fault.kind, _KEEP))
    lost = [(log.log.folder, finding) for log in checked for finding in log.kept.findings]
    if not lost:
        return None
    more = f"; {len(lost) - 1} more messages are not as they were kept" if len(lost) > 1 else ""
    what = f"the log is what was signed, but not the evidence beside it: {lost[0][1]}{more}"
    return EvidenceLost(f"audit log {lost[0][0]}: {what}", hint=_EVIDENCE_HINT)


_EVIDENCE_HINT: Final = "the log still proves what passed; ask the site at the message's other end for its copy"
_KEEP: Final = "keep the log as evidence; the checkpoints that other sites hold (--known FILE) show what was there"
_HINTS: Final[Mapping[str, str]] = {
    "missing-cosignature": "ask the other sites for the checkpoints that they hold: --known FILE; "
    "--witnesses 0 takes the party's word alone",
    "missing-ml-dsa": "as long as Ed25519 is unbroken the records are as they were signed: keep a dated copy, since "
    "this log proves nothing later; it accuses no site",
    "wrong-roster": "name the roster under which the run began, as you know it from elsewhere: --roster FILE",
    "newer-version": "verify it with that release of securefda",
    "torn": "what a crash leaves; the writer cuts it off when the run goes on",
}


def said_of(checked: Sequence[Checked]) -> Outcome:
    """Return the outcome of ``securefda audit verify`` on the logs."""
    text = "\n\n".join([*map(_text, checked), _PROVES])
    return Outcome({"logs": [*map(_json, checked)]}, text, error_of(checked))


_MOST_LOST = 8
_PROVES = (
    "Proved of a log without a finding, up to its newest checkpoint: its records are those that its party signed, in "
    "their order, none missing, and sites that cosigned it were shown no other log of this run. Not proved: that the "
    "party wrote down what happened."
)


def _json(checked: Checked) -> dict[str, Any]:
    verified, inclusion = checked.verification, checked.inclusion
    record = None
    if inclusion is not None:
        record = {
            "index": inclusion.index,
            "entry": inclusion.entry.decode("ascii", "replace"),
            "leaf": inclusion.leaf.hex(),
            "size": inclusion.size,
            "root": inclusion.root.hex(),
            "proof": [step.hex() for step in inclusion.proof],
        }
    return {
        "log": str(checked.log.folder),
        "federation": checked.name.federation,
        "party": checked.name.party,
        "run": checked.name.run,
        "roster": {
            "digest": checked.keys.digest,
            "epoch": checked.keys.roster.epoch,
            "file": str(checked.keys.file),
            "from": checked.keys.where_from,
            "ca": checked.keys.ca or None,
        },
        "records": verified.size,
        "covered": verified.covered,
        "root": verified.root.hex(),
        "cosigned_by": list(verified.witnesses),
        "cosigners_needed": checked.needed,
        "checkpoint": None if checked.note is None else checked.note.to_bytes().decode(),
        "being_written": checked.live,
        "finding": None if checked.fault is None else asdict(checked.fault),
        "kept_messages": checked.kept.to_json(),
        "disclosure": None if checked.disclosed is None else checked.disclosed.to_json(),
        "notes": list(checked.notes),
        "record": record,
    }


def _text(checked: Checked) -> str:
    parts = [aligned([(key, printable(value)) for key, value in _rows(checked)])]
    if checked.note is not None:
        parts.append(_indented("newest checkpoint", checked.note.to_bytes().decode()))
    if (proved := checked.inclusion) is not None:
        steps = [
            f"leaf {proved.leaf.hex()}",
            *(f"with {step.hex()}" for step in proved.proof),
            f"root {proved.root.hex()}",
        ]
        head = f"record {proved.index} is in the newest checkpoint, of {proved.size} records (RFC 9162, 2.1.3)"
        parts += [_indented(head, "\n".join(steps)), _indented("it is", proved.entry.decode("ascii", "replace"))]
    return "\n".join(parts)


def _rows(checked: Checked) -> Iterator[tuple[str, str]]:
    verified, keys, kept = checked.verification, checked.keys, checked.kept
    yield "log", str(checked.log.folder)
    yield "of", f"{checked.name.party} in federation {checked.name.federation}, run {checked.name.run}"
    yield "roster", f"epoch {keys.roster.epoch}, {keys.file}"
    yield "", f"digest {keys.digest}"
    yield "", keys.believed
    yield "finding", "none" if checked.fault is None else str(checked.fault)
    yield "records", f"{verified.size} read, {verified.covered} covered by the newest checkpoint"
    if verified.root:
        yield "root", verified.root.hex()
        names = ", ".join(verified.witnesses) or "no site"
        of = f"{len(verified.witnesses)} of {len(keys.public) - 1} other sites, {checked.needed} needed"
        yield "cosigned by", f"{names} ({of})"
    if kept.judged:
        lost = len(kept.findings)
        yield "kept", f"{kept.messages} messages, {counted(lost, 'finding') if lost else 'as their records say'}"
        yield from (("evidence", str(finding)) for finding in kept.findings[:_MOST_LOST])
        if lost > _MOST_LOST:
            yield "", f"and {lost - _MOST_LOST} more; --format json lists all of them"
    else:
        yield "kept", "messages were not compared: nothing of the log can be trusted"
    yield "disclosed", checked.disclosed.text if checked.disclosed else "not known: no record can be trusted"
    for note in checked.notes:
        yield "note", note


def _indented(head: str, text: str) -> str:
    return "\n".join([head, *(f"    {printable(line)}".rstrip() for line in text.rstrip("\n").split("\n"))])
