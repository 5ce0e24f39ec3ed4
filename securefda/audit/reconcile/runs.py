"""Reconciliation: the logs of runs below a folder, verified each by itself, then those of each run read together.

What it shows, where nothing is found: what one site says it sent, the other says it received; all were shown the same;
no source released twice in a round; no sum was opened over fewer than the headers allow; models, epsilons and
checkpoints continue each other. A log says what its party wrote. Two logs with the same false records are not found out
by comparing them, but by the signed messages, and by the other sites that got these.

One site is accused where its own signatures settle it (`securefda.audit.reconcile.claims`), or its own log. What one
site says of another is a disagreement of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from securefda.audit.kept_check import kept_verdict
from securefda.audit.keys import Keys, keys_of, roster_named
from securefda.audit.reading import LogFolder, NoLog, being_written, find_logs, open_log
from securefda.audit.reconcile.check import Check, PartyLog, RunLogs
from securefda.audit.reconcile.continuity import Continuity, CosignatureCheck
from securefda.audit.reconcile.history import History, read_history
from securefda.audit.reconcile.messages import Disclosures, EquivocationCheck, Pairing
from securefda.audit.reconcile.own_logs import KeptEvidence, LogLifecycle, Spending, StepsTaken, VerifiedLogs
from securefda.audit.reconcile.suspicion import Reconciliation, resolve
from securefda.audit.reconcile.transcript import Members, SignedTranscript, read_transcript
from securefda.audit.statements import KeptStatements, StatementReader, Statements
from securefda.audit.store import AuditError
from securefda.audit.verification import verification_progress
from securefda.audit.verify import verify_log
from securefda.errors import ConfigError
from securefda.protocol.roster import Roster
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
    KeptEvidence,
)
"""All checks, in the order in which they run."""


def reconcile(
    logs: Sequence[PartyLog], members: Members, transcript: SignedTranscript, statements: Statements
) -> Reconciliation:
    """Compare the logs of one run, in one pass over their records.

    Memory grows with the number of sessions, not of records, as long as the logs' clocks are not far apart.

    Args:
        logs: of different parties of one run; what of these is missing is listed as not checked.
        members: the federation that they are of.
        transcript: what `read_transcript` made of the messages that the parties kept.
        statements: these messages, to look up evidence.

    Raises:
        ValueError: two logs are of one party, or one is of no member.
    """
    run = RunLogs(logs, members, transcript)
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
        counts |= check.counts()
    notices = [notice for check in checks for notice in check.notices()]
    if transcript.ignored:
        why = "are of another run, or not their sender's to send"
        notices.append(f"{transcript.ignored} kept messages {why}; they were left out")
    return Reconciliation(tuple(findings), tuple(notices), counts | {"findings": len(findings)})


_WITNESSES = 1
"""How many others must have cosigned the newest checkpoint; that of each header has as many as its threshold."""


@dataclass(frozen=True, slots=True)
class ReconciledRun:
    """The logs of a run, read together.

    Attributes:
        members: whose logs these are, or should be.
        keys: the keys that they were checked with, and where these are from.
        roster: of the run: that of the keys, or an earlier one with the same keys.
        logs: those that were found, by site id in order.
        outcome: what came out.
    """

    members: Members
    keys: Keys
    roster: Roster
    logs: tuple[PartyLog, ...]
    outcome: Reconciliation


@dataclass(frozen=True, slots=True)
class ReconciledRuns:
    """Every run that was asked for, and all runs of the sites together.

    Attributes:
        runs: each with its logs read together, in the order in which they began.
        history: of all logs that were found, also of runs that were not asked for.
    """

    runs: tuple[ReconciledRun, ...]
    history: History


def reconcile_folder(folder: Path, run: str = "", roster: Path | None = None) -> ReconciledRun:
    """Find the logs of one run at or below a folder, verify and reconcile them. Nothing is written.

    Args:
        folder: anything with logs in it: a run folder, or copies that sites have handed in.
        run: id of the run, or the beginning of one; not needed where all logs are of one.
        roster: a roster that is trusted; else that of a kit around a log, else of a log.

    Raises:
        NoLog: there is no log that can be read.
        ConfigError: there are several runs and none was named; no roster; two logs of one site.
    """
    found, unread = _opened(folder)
    return _reconciled(folder, _of_one_run(found, run), unread, roster)


def reconcile_runs(folder: Path, run: str = "", roster: Path | None = None) -> ReconciledRuns:
    """The same for every run, where none is named; and all runs together in any case. Raises as `reconcile_folder`."""
    found, unread = _opened(folder)
    named = [run] if run else sorted({log.run for log in found})
    each = [_reconciled(folder, _of_one_run(found, one), unread, roster) for one in named]
    if not each:
        return ReconciledRuns((_reconciled(folder, [], unread, roster),), History())
    verified = {Path(log.folder): log.verification for one in each for log in one.logs}
    history = read_history(found, each[0].keys, verified)
    began = {one.run: one.began for one in reversed(history.runs)}
    each.sort(key=lambda one: (began.get(one.members.run, ""), one.members.run))
    return ReconciledRuns(tuple(each), history)


def _reconciled(folder: Path, logs: list[LogFolder], unread: Sequence[str], roster: Path | None) -> ReconciledRun:
    if not logs:
        raise NoLog(folder, "has no log of a run below it", hint="name a run folder, or one with copies of its logs")
    keys, of_run = _roster_of(logs, roster)
    members = Members(keys.federation, logs[0].run, of_run.target.site_id, keys.public, of_run.digest().hex())
    logs = _one_each(logs, members)
    reader = StatementReader(of_run)
    statements = KeptStatements(reader, [log.folder for log in logs])
    transcript = read_transcript(
        statements.transcript(), members
    )  # before the logs: what others hold of a log was in it then
    verified = tuple(_verified(log, members, transcript, reader) for log in logs)
    outcome = reconcile(verified, members, transcript, statements)
    more = [*unread, *keys.warnings, *_of_messages(statements)]
    outcome = Reconciliation(outcome.findings, (*more, *outcome.notices), outcome.counts)
    return ReconciledRun(members, keys, of_run, verified, outcome)


def _opened(folder: Path) -> tuple[list[LogFolder], list[str]]:
    """What looks like a log; of what cannot be opened, why."""
    found, unread = [], []
    for place in find_logs(folder):
        try:
            found.append(open_log(place))
        except AuditError as error:
            unread.append(f"{printable(str(error))}; it was left out")
    if unread and not found:
        raise NoLog(folder, f"has no log that can be read: {unread[0]}", hint="securefda audit verify says more")
    return found, unread


def _of_one_run(found: Sequence[LogFolder], run: str) -> list[LogFolder]:
    runs = sorted({log.run for log in found if log.run.startswith(run)})
    if len(runs) > 1:
        raise ConfigError("--run", f"there are logs of {len(runs)} runs: {', '.join(runs)}", hint="name one of them")
    if not runs and found:
        there = ", ".join(sorted({log.run for log in found}))
        raise ConfigError(f"--run {run}", f"there are only logs of {there}", hint="name one of them")
    return [log for log in found if log.run in runs]


def _one_each(logs: Sequence[LogFolder], members: Members) -> list[LogFolder]:
    by_party: dict[str, LogFolder] = {}
    for log in sorted(logs, key=lambda log: log.party):
        if log.federation not in ("", members.federation):
            raise ConfigError(str(log.folder), f"is a log of federation {log.federation}, not {members.federation}")
        if log.party not in members.keys:
            raise ConfigError(str(log.folder), f"is a log of {log.party}, which the roster does not have")
        if log.party in by_party:
            both = f"{by_party[log.party].folder} and {log.folder}"
            raise ConfigError(
                both, f"are two logs of {log.party} of one run", hint="securefda audit verify tells them apart"
            )
        by_party[log.party] = log
    return list(by_party.values())


def _roster_of(logs: Sequence[LogFolder], option: Path | None) -> tuple[Keys, Roster]:
    """The keys, and the roster of the run: an earlier one than a kit has now, if the run began under that."""
    found: list[Keys] = []
    missing: ConfigError | None = None
    for log in logs:
        try:
            found.append(keys_of(log.folder, option))
        except ConfigError as error:
            missing = error
    if not found:
        raise missing if missing is not None else ConfigError("--roster", "there is no roster")
    keys = min(found, key=lambda one: ("option", "kit", "log").index(one.where_from))
    earlier = keys.earlier
    if earlier is None or roster_named(logs[0]) != earlier.digest().hex():
        return keys, keys.roster
    changed = [entry.site_id for entry in earlier.entries if keys.public.get(entry.site_id) != entry.signing_key]
    if changed:
        what = f"the run began under an earlier roster than the kit's, in which {', '.join(changed)} had other keys"
        raise ConfigError("--roster", what, hint="name the roster of that time")
    return keys, earlier


def _verified(log: LogFolder, members: Members, transcript: SignedTranscript, reader: StatementReader) -> PartyLog:
    known, live = transcript.held_of(log.party, members), being_written(log.folder)
    with verification_progress(log.party) as progress:
        verification = verify_log(
            log.folder,
            members.log_of(log.party),
            members.keys,
            witnesses_needed=_WITNESSES,
            known=known,
            progress=progress,
        )
    unsigned = not known and _has_no_checkpoint(log)
    party = PartyLog(log.party, verification, log.records, verification.size, str(log.folder), is_unsigned=unsigned)
    return replace(party, kept=kept_verdict(log, verification, reader, live=live))


def _has_no_checkpoint(log: LogFolder) -> bool:
    try:
        return log.head() is None and not log.heads()
    except AuditError:
        return False


def _of_messages(statements: KeptStatements) -> list[str]:
    said = [printable(fault) for fault in statements.faults.values()]
    if statements.unreadable:
        said.append(f"{statements.unreadable} kept messages are no messages, or not signed as they say")
    return said
