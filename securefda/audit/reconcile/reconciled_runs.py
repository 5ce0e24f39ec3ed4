"""Reconciliation: verifies each log below a folder by itself, then compares the logs of each run.

Without a finding it shows that messages recorded as sent are recorded as received; that all sites were shown the same;
that no source released twice in a round; that no sum was opened over fewer sources than the headers allow; and that
models, epsilons and checkpoints continue each other. A log is its party's own account. If two logs have the same false
records, comparing them finds nothing, but the signed messages and the other sites that received them do.

One site alone is accused only if its own signatures (`securefda.audit.reconcile.claims`) or its own log settle the
matter. A statement of one site about another is a disagreement of the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from securefda.audit.kept_check import kept_verdict
from securefda.audit.keys import OPTION, Keys, keys_of, roster_named
from securefda.audit.log_files import AuditError
from securefda.audit.reading import LogFolder, NoLog, being_written, find_logs, open_log
from securefda.audit.reconcile.check import Check, PartyLog, Required, RunLogs
from securefda.audit.reconcile.continuity import Continuity, CosignatureCheck
from securefda.audit.reconcile.final_models import FinalModels
from securefda.audit.reconcile.history import History, read_history
from securefda.audit.reconcile.message_records import Disclosures, EquivocationCheck, Pairing
from securefda.audit.reconcile.own_logs import KeptEvidence, LogLifecycle, Spending, StepsTaken, VerifiedLogs
from securefda.audit.reconcile.run_transcript import Members, SignedTranscript, read_transcript
from securefda.audit.reconcile.suspicion import Mark, Notice, Reconciliation, RunFinding, resolve
from securefda.audit.signed_notes import NoteError
from securefda.audit.statements import KeptStatements, StatementReader
from securefda.audit.verification import verification_progress
from securefda.audit.verify import UNVOUCHED, verify_log
from securefda.disk import read_file
from securefda.errors import CertificateError, ConfigError, SecureFdaError
from securefda.site.kit import POLICY_FILE
from securefda.site.policy.schema import parse_policy
from securefda.text import printable

CHECKS: Final[tuple[type[Check], ...]] = (
    VerifiedLogs,
    LogLifecycle,
    Pairing,
    EquivocationCheck,
    StepsTaken,
    Disclosures,
    CosignatureCheck,
    Spending,
    Continuity,
    FinalModels,
    KeptEvidence,
)
"""All checks, in the order in which they run."""


def reconcile(
    logs: Sequence[PartyLog],
    members: Members,
    transcript: SignedTranscript,
    statements: KeptStatements,
    required: Required = "none",
) -> Reconciliation:
    """Compare the logs of one run, in one pass over their records.

    Memory grows with the number of sessions, not of records, as long as the logs' clocks are not far apart.

    ``transcript`` and ``statements`` are the messages that the parties kept; in the latter, evidence is looked up.

    Raises ValueError if two logs belong to one party, or one belongs to no member.
    """
    run = RunLogs(logs, members, transcript, required)
    if len(run.parties) != len(logs) or not run.parties <= set(members.keys):
        raise ValueError("the logs are not of different members")
    checks = [check(run) for check in CHECKS]
    watching = [check.see for check in checks if type(check).see is not Check.see]
    for record in run.records():
        for see in watching:
            see(record)
    suspicions = [suspicion for check in checks for suspicion in check.suspicions()]
    wanted = {digest for suspicion in suspicions for digest in suspicion.evidence}
    findings = resolve(suspicions, statements.find(wanted) if wanted else {}, members)
    counts = {"logs": len(logs), "records": run.count}
    for check in checks:
        counts |= check.counts
    notices = [notice for check in checks for notice in check.notices()]
    if transcript.ignored:
        why = "are of another run, or not their sender's to send"
        notices.append(Notice(f"{transcript.ignored} kept messages {why}; they were left out", care=True))
    return Reconciliation(tuple(findings), tuple(notices), counts | {"findings": len(findings)})


_WITNESSES = 1
"""Cosignatures of others that the newest checkpoint needs; the one in each header needs as many as its threshold."""
_MOST_ROSTERS: Final = 4
"""Most rosters that a finding names beside the one that the logs were read under."""


@dataclass(frozen=True, slots=True)
class ReconciledRun:
    """The logs of a run, read together.

    Attributes:
        members: the sites whose logs belong to the run.
        keys: the roster of the run, and its origin.
        logs: the logs that were found, one for each site, by site id in order.
        outcome: the findings, notices and counts.
        copies: further copies of these logs. Each was verified by itself, and its finding is in the outcome.
    """

    members: Members
    keys: Keys
    logs: tuple[PartyLog, ...]
    outcome: Reconciliation
    copies: tuple[PartyLog, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Sites of the roster whose log is not here, in its order."""
        here = {log.party for log in self.logs}
        return tuple(site for site in self.keys.roles if site not in here)


@dataclass(frozen=True, slots=True)
class ReconciledRuns:
    """Every run that was asked for, in the order in which they began, and the history of all logs that were found."""

    runs: tuple[ReconciledRun, ...]
    history: History


@dataclass(frozen=True, slots=True)
class _LogsBelow:
    """What looks like logs below a folder: the logs that can be opened, and path and error of each that cannot."""

    folder: Path
    logs: tuple[LogFolder, ...]
    unread: tuple[tuple[Path, AuditError], ...]

    @classmethod
    def find(cls, folder: Path) -> _LogsBelow:
        logs, unread = [], []
        for place in find_logs(folder):
            try:
                logs.append(open_log(place))
            except AuditError as error:
                unread.append((place, error))
        if not logs and unread:
            hint = "put it back as its site wrote it, or name another folder with logs"
            raise NoLog(folder, printable(f"has no log that can be read: {unread[0][1]}"), hint=hint)
        if not logs:
            hint = "name a run folder, a kit, or a folder with copies of logs"
            raise NoLog(folder, "has no log of a run at or below it", hint=hint)
        return cls(folder, tuple(logs), tuple(unread))

    def of_run(self, run: str) -> list[LogFolder]:
        """Return the logs of the one run whose id begins like this. Raises ConfigError unless there is exactly one."""
        runs = sorted({log.run for log in self.logs if log.run.startswith(run)})
        if len(runs) == 1:
            return [log for log in self.logs if log.run == runs[0]]
        there = ", ".join(runs or sorted({log.run for log in self.logs}))
        why = f"there is no log of run {run} below {self.folder}, only of {there}"
        if runs:
            why = f"there are logs of {len(runs)} runs below {self.folder}: {there}"
        raise ConfigError("--run", why, hint="name one of them; the beginning of its id will do")

    def name_of(self, folder: Path) -> str:
        """Return a folder as the user finds it below the one that was named."""
        name = str(folder.relative_to(self.folder))
        return self.folder.resolve().name if name == "." else name


def reconcile_folder(
    folder: Path, run: str = "", roster: Path | None = None, *, require_all: bool | None = None
) -> ReconciledRun:
    """Find the logs of one run at or below a folder, verify and reconcile them. Nothing is written.

    Args:
        folder: anything with logs in it: a run folder, or copies that sites have handed in.
        run: id of the run, or the beginning of one; not needed where all logs are of one.
        roster: a roster that is trusted; else that of a kit around a log, else of a log. Where these differ, and none
            is of the user's own kit, nothing is judged.
        require_all: whether it is a finding that the log of a site of the roster is missing. None: where there are
            logs of several sites below the folder, that of a site that took part in a round is one.

    Raises:
        NoLog: there is no log that can be read.
        ConfigError: there are several runs and none was named; no roster.
        CertificateError: a kit's files are of two federations.
    """
    logs_below = _LogsBelow.find(folder)
    return _reconciled(logs_below, logs_below.of_run(run), logs_below.unread, roster, require_all)


def reconcile_runs(
    folder: Path, run: str = "", roster: Path | None = None, *, require_all: bool | None = None, only_one: bool = False
) -> ReconciledRuns:
    """Reconcile the named run, or every run if none is named, and judge all runs together in either case.

    ``only_one`` refuses several runs if none is named. Other arguments and errors are those of `reconcile_folder`.
    """
    logs_below = _LogsBelow.find(folder)
    named = [run] if run or only_one else sorted({log.run for log in logs_below.logs})
    of_runs = {logs[0].run: logs for logs in map(logs_below.of_run, named)}
    runs: list[ReconciledRun] = []
    for name, logs in of_runs.items():
        unread = [(place, error) for place, error in logs_below.unread if place.name == name]
        if not runs:  # those of no run that is known are reported once
            unread += [(place, error) for place, error in logs_below.unread if place.name not in of_runs]
        runs.append(_reconciled(logs_below, logs, unread, roster, require_all))
    verified = {Path(log.folder): log.verification for each in runs for log in (*each.logs, *each.copies)}
    keys = {each.members.run: each.keys for each in runs}

    def keys_for(log: LogFolder) -> Keys:
        try:
            return keys.get(log.run) or keys_of(log.folder, roster, folder)
        except (ConfigError, CertificateError):
            return main

    main = runs[0].keys
    history = read_history(logs_below.logs, main, keys_for, verified)
    began = {site_run.run: site_run.began for site_run in reversed(history.runs)}
    runs.sort(key=lambda each: (began.get(each.members.run, ""), each.members.run))
    return ReconciledRuns(tuple(runs), history)


def _reconciled(
    logs_below: _LogsBelow,
    logs: Sequence[LogFolder],
    unread: Sequence[tuple[Path, AuditError]],
    roster: Path | None,
    require_all: bool | None,
) -> ReconciledRun:
    keys, contrary = _keys_of_run(logs, roster, logs_below.folder)
    members = Members(keys.federation, logs[0].run, keys.roster.target.site_id, keys.public, keys.digest, keys.ml_dsa)
    notices = [*(Notice(line, care=True) for line in keys.warnings), *map(Notice, keys.notes)]
    findings: list[RunFinding] = []
    for place, error in unread:
        if isinstance(error, NoLog):  # no log at all, or one of another program, so no site's log is damaged
            notices.append(Notice(f"{printable(str(error))}; it was left out", care=True))
        else:
            what = f"{logs_below.name_of(place)} has the files of a log, and cannot be read: {printable(error.what)}"
            findings.append(RunFinding("unreadable-log", what, ()))
    by_party: dict[str, list[LogFolder]] = {}
    for log in logs:
        if log.party in keys.public and log.federation in ("", keys.federation):
            by_party.setdefault(log.party, []).append(log)
        else:
            whose = f"{log.party} of federation {log.federation}" if log.federation else log.party
            what = f"{logs_below.name_of(log.folder)} is a log of {whose}, which is no site of the roster"
            findings.append(RunFinding("strange-log", what, ()))
    reader = StatementReader(keys.roster)
    known = {folder for copies in by_party.values() for folder in copies}
    statements = KeptStatements(reader, [log.folder for log in logs if log in known])
    # Before the logs: what others hold of a log was in it then
    transcript = read_transcript(statements.transcript(), members)
    verified, copies = _verified_once(by_party, members, transcript, reader)
    for copy in copies:
        fault = copy.verification.finding
        if fault is not None and fault.kind not in UNVOUCHED:
            what = f"another copy of the log of {copy.party}, {copy.folder}: {fault.kind}, {fault.what}"
            marks = (Mark(copy.party, fault.index),)
            findings.append(RunFinding("unverified-log", what, (), (copy.party, ""), records=marks))
    required: Required = "all" if require_all else "none"
    if require_all is None and len({log.party for log in logs_below.logs}) > 1:
        required = "participants"
    outcome = reconcile(verified, members, transcript, statements, required)
    notices += [Notice(printable(fault), care=True) for fault in statements.faults.values()]
    if statements.unreadable:
        what = f"{statements.unreadable} kept messages are no messages, or not signed as they say"
        notices.append(Notice(what, care=True))
    findings = sorted([*findings, *outcome.findings], key=lambda finding: finding.order)
    if contrary:  # each finding would accuse by keys that one of the parties may have made up
        findings = [_in_doubt(keys, contrary)]
    counts = {**outcome.counts, "findings": len(findings)}
    outcome = Reconciliation(tuple(findings), (*notices, *outcome.notices), counts)
    return ReconciledRun(members, keys, tuple(verified), outcome, tuple(copies))


def _verified_once(
    by_party: Mapping[str, Sequence[LogFolder]], members: Members, transcript: SignedTranscript, reader: StatementReader
) -> tuple[list[PartyLog], list[PartyLog]]:
    """Return the log of each party with what others hold of it, and the copies that are not used, by themselves."""
    logs: list[PartyLog] = []
    copies: list[PartyLog] = []
    for party in sorted(by_party):
        first, *others = by_party[party]
        if others:
            each = [_verified(log, members, [], reader) for log in by_party[party]]
            best = max(each, key=lambda log: (log.verification.finding is None, log.bound or log.size))
            first = next(log for log in by_party[party] if str(log.folder) == best.folder)
            others = [log for log in by_party[party] if log is not first]
            copies += [log for log in each if log is not best]
        held = [*transcript.held_of(party, members), *_newest_of(others, members)]
        logs.append(_verified(first, members, held, reader))
    return logs, copies


def _keys_of_run(logs: Sequence[LogFolder], option: Path | None, named: Path) -> tuple[Keys, list[Keys]]:
    """Return the best vouched roster around the logs under which their run began, and those that contradict it."""
    rosters: list[Keys] = []
    missing: SecureFdaError | None = None
    for log in logs:
        try:
            rosters.append(keys_of(log.folder, option, named))
        except (ConfigError, CertificateError) as error:
            missing = missing or error
    if not rosters:
        raise missing if missing is not None else ConfigError(OPTION, "there is no roster")
    digests = {roster_named(log) for log in logs}
    ways = ("option", "kit", "log")
    best = min(rosters, key=lambda keys: (not keys.is_trusted, ways.index(keys.where_from), keys.digest not in digests))
    others = {} if best.is_trusted else {keys.digest: keys for keys in rosters if best.contradicts(keys)}
    return best, list(others.values())


def _in_doubt(keys: Keys, others: Sequence[Keys]) -> RunFinding:
    files = [f"{each.file}, digest {each.digest}, {each.believed}" for each in (keys, *others[:_MOST_ROSTERS])]
    what = f"{len(others) + 1} rosters lie with the logs, and none is known to be the federation's: {'; '.join(files)}"
    return RunFinding("rosters-in-doubt", f"{what}. Nothing is judged until {OPTION} FILE names the one to trust", ())


def _newest_of(copies: Sequence[LogFolder], members: Members) -> list[bytes]:
    """The newest checkpoint in each copy of a log, if its site signed it: a copy shows what the site signed, too."""
    notes = []
    for log in copies:
        with suppress(AuditError, NoteError):
            head = log.head()
            if head is not None and head.checkpoint.origin == members.log_of(log.party).origin:
                head.note.check([members.log_key(log.party)])
                notes.append(head.note.only_by(members.log_key(log.party)).to_bytes())
    return notes


def _verified(log: LogFolder, members: Members, held: Sequence[bytes], reader: StatementReader) -> PartyLog:
    """Verify a log by itself, with the checkpoints of it that others hold and the messages kept beside it."""
    live = being_written(log.folder)
    with verification_progress(log.party) as progress:
        verification = verify_log(
            log.folder,
            members.log_of(log.party),
            members.keys,
            members.ml_dsa,
            witnesses_needed=_WITNESSES,
            known=held,
            progress=progress,
        )
    unsigned = False
    with suppress(AuditError):
        unsigned = not held and log.head() is None and not log.heads()
    return PartyLog(
        log.party,
        verification,
        log.records,
        verification.size,
        str(log.folder),
        is_unsigned=unsigned,
        kept=kept_verdict(log, verification, reader, live=live),
        limits=_limits(log.folder),
    )


def _limits(folder: Path) -> dict[str, float]:
    """The epsilon that the policy in the kit around a log allows, by the digest of the policy's file."""
    file = folder.resolve().parent.parent / POLICY_FILE
    try:
        data = read_file(file).data
        return {sha256(data).hexdigest(): parse_policy(data, file).dp.target_epsilon}
    except ConfigError:
        return {}
