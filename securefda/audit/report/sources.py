"""What an audit page is made from: the logs of a run, verified and compared, with what lies beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from securefda.audit.kept_check import KeptVerdict
from securefda.audit.reconcile.outcome import accused_text, gathered
from securefda.audit.report.words import count_of, names
from securefda.audit.verify import Verification
from securefda.errors import SecureFdaError

if TYPE_CHECKING:
    from securefda.audit.reconcile.check import PartyLog
    from securefda.audit.reconcile.runs import ReconciledRun
    from securefda.audit.reconcile.suspicion import RunFinding
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from securefda.audit.kept_check import NOT_JUDGED, kept_verdict
from securefda.audit.keys import Keys, keys_of, roster_named
from securefda.audit.notes import LogName
from securefda.audit.reading import LogFolder, NoLog, being_written, find_logs, open_log
from securefda.audit.reconcile.history import History, read_history
from securefda.audit.records import Record
from securefda.audit.report.party_tables import PartyTables, read_party
from securefda.audit.statements import StatementReader
from securefda.audit.store import AuditError
from securefda.audit.verification import verification_progress
from securefda.audit.verify import verify_log
from securefda.errors import ConfigError

if TYPE_CHECKING:
    from securefda.operations.run_folder import RunRecord
    from securefda.site.policy import SourcePolicy


MOST_LINES: Final = 60
_ALONE: Final = ("unverified-log", "forked-log")
"""What a log fails by itself, which the page says of that log."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What comparing the logs with each other said.

    Attributes:
        done: whether there were two logs at least that could be compared.
        findings: one line each, the first divergence first, as many as are listed.
        total: how many there are.
        checked: what was compared, and how much of it.
        notices: what is odd, or could not be compared, and why; one line each.
        verified: folder -> what its log is worth, compared with the checkpoints that the others have of it too, and
            the messages beside it.
    """

    done: bool
    findings: tuple[str, ...] = ()
    total: int = 0
    checked: tuple[tuple[str, str], ...] = ()
    notices: tuple[str, ...] = ()
    verified: Mapping[Path, tuple[Verification, KeptVerdict]] | None = None


def compare(root: Path, run: str, roster: Path | None) -> Comparison:
    """Reconcile the logs of a run at or below ``root``; what makes that impossible is a notice."""
    from securefda.audit.reconcile.runs import reconcile_folder

    try:
        found = reconcile_folder(root, run, roster)
    except SecureFdaError as error:
        return Comparison(done=False, notices=(f"{error}.",))
    findings = [one for one in found.outcome.findings if not one.is_of_evidence and not _is_of_log(one, found.logs)]
    notices = _together(found)
    if len(found.logs) < 2:
        notices.insert(0, "There is one log here only, and nothing to compare it with.")
    return Comparison(
        done=len(found.logs) > 1,
        findings=_bounded([_finding_text(one) for one in findings], "finding"),
        total=len(findings),
        checked=tuple((name, f"{count:,}") for name, count in found.outcome.counts.items()),
        notices=_bounded(notices, "line"),
        verified={Path(log.folder): (log.verification, log.kept) for log in found.logs},
    )


def _is_of_log(one: RunFinding, logs: Sequence[PartyLog]) -> bool:
    failed = {log.party for log in logs if log.verification.finding is not None}
    return one.kind in _ALONE and set(one.accused) <= failed


def _finding_text(one: RunFinding) -> str:
    where = f"round {one.round}, attempt {one.attempt}" if one.round else "outside rounds"
    blamed = accused_text(one, names(one.accused)) if one.accused else "no site"
    return f"{one.kind}, {where}: {one.what}. Accused: {blamed}."


def _together(found: ReconciledRun) -> list[str]:
    """Notices that the page has not said elsewhere; what is said alike of several sites is one line."""
    said = {
        *found.keys.warnings,
        *(f"{log.party}: {note}" for log in found.logs for note in (*log.verification.notes, *log.kept.notes)),
    }
    lines = gathered(found, said)
    return [f"{names(who)}: {text}" if who else text for who, text in lines]


def _bounded(lines: Sequence[str], what: str) -> tuple[str, ...]:
    more = len(lines) - MOST_LINES
    rest = f"And {count_of(more, f'more {what}')}: securefda audit reconcile --all lists them."
    return (*lines[:MOST_LINES], rest) if more > 0 else tuple(lines)


_POLICY_FILE: Final = "policy.toml"
_TRUST: Final = {"option": 0, "kit": 1, "log": 2}


@dataclass(frozen=True, slots=True)
class PolicyFound:
    """What is known of the policies that a party's log says it loaded.

    Attributes:
        loaded: their SHA-256 in hex, in order, none twice in a row.
        policy: the last of them; None where its file is not beside the log.
        why_not: why not, one line.
    """

    loaded: tuple[str, ...] = ()
    policy: SourcePolicy | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class LogState:
    """One log of the run, as it was found.

    Attributes:
        folder: where it lies, below the folder that was named.
        party: site id.
        verification: None where it could not even begin; ``problem`` then says why.
        problem: one line; also of a log of another roster. Empty where there is none.
        tables: of the records that the verification vouches for; empty of a second copy of a log.
        policy: what is known of the party's policy.
        kept: what comparing its records with the messages beside it said.
        is_copy: whether the tables are of another copy of this log.
    """

    folder: str
    party: str
    verification: Verification | None
    problem: str
    tables: PartyTables
    policy: PolicyFound = PolicyFound()
    kept: KeptVerdict = NOT_JUDGED
    is_copy: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether nothing was found."""
        return self.verification is not None and self.verification.finding is None and not self.problem


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that a page says comes from here.

    Attributes:
        root: the folder that was named.
        run: run id.
        keys: roster, and where it is from.
        logs: of the run, in roster order.
        unreadable: folder below ``root`` -> why it is no log that can be read.
        comparison: of the logs with each other.
        history: all runs of which there is a log below ``root``.
        record: the target's run folder; None where ``root`` is none, or one of another run.
        record_problem: why not, where it looks like one; one line.
    """

    root: Path
    run: str
    keys: Keys
    logs: tuple[LogState, ...]
    unreadable: Mapping[str, str]
    comparison: Comparison
    history: History
    record: RunRecord | None
    record_problem: str

    @property
    def tables(self) -> tuple[PartyTables, ...]:
        """Of each party once."""
        return tuple(log.tables for log in self.logs if not log.is_copy)

    @property
    def missing(self) -> tuple[str, ...]:
        """Sites of the roster whose log is not here, in its order."""
        here = {log.party for log in self.logs}
        return tuple(site for site in self.keys.roles if site not in here)

    @property
    def sound(self) -> bool:
        """Whether every log that is here verifies."""
        return all(log.is_sound for log in self.logs) and not self.unreadable


def read_sources(root: Path, run: str = "", roster: Path | None = None) -> Sources:
    """Find the logs of a run at or below ``root``, verify them, and read what they say.

    Args:
        root: a log, a kit, a run folder or any folder with logs in it.
        run: which run, where there are logs of several.
        roster: file of the roster that the user trusts; else that of a kit, else the logs' own.

    Raises:
        NoLog: there is none that can be read.
        ConfigError: ``--run``: there are logs of several runs, or none of that one; there is no roster.
        CertificateError: a kit's files are of two federations.
    """
    found, unreadable = _open_all(root)
    run = _the_run(root, found, run, unreadable)
    logs = [log for log in found if log.run == run]
    keys = _the_keys(logs, roster)
    comparison = compare(root, run, roster)
    states = [_state(root, log, keys, comparison.verified or {}) for log in logs]
    order = {site: place for place, site in enumerate(keys.roles)}
    marked = _mark_copies(sorted(states, key=lambda state: (order.get(state.party, len(order)), state.folder)))
    known = {root / state.folder: state.verification for state in states if state.verification is not None}
    history = read_history(found, keys, known)
    record, problem = _run_record(root, run)
    return Sources(root, run, keys, tuple(marked), unreadable, comparison, history, record, problem)


def _open_all(root: Path) -> tuple[list[LogFolder], dict[str, str]]:
    found, unreadable = [], {}
    for folder in find_logs(root):
        try:
            found.append(open_log(folder))
        except AuditError as error:
            unreadable[_below(root, folder)] = error.what
    return found, unreadable


def _the_run(root: Path, found: Sequence[LogFolder], run: str, unreadable: Mapping[str, str]) -> str:
    runs = sorted({log.run for log in found})
    if not runs:
        what = next(iter(unreadable.values()), "has no log at or below it")
        raise NoLog(root, what, hint="name a run folder, a kit, or a folder with logs in it")
    if run and run not in runs:
        raise ConfigError("--run", f"there is no log of run {run} below {root}", hint=f"runs: {', '.join(runs)}")
    if len(runs) > 1 and not run:
        raise ConfigError("--run", f"there are logs of {len(runs)} runs below {root}", hint=f"runs: {', '.join(runs)}")
    return run or runs[0]


def _the_keys(logs: Sequence[LogFolder], roster: Path | None) -> Keys:
    """Of the rosters around the logs the one that most vouches for; each log is compared with that one."""
    candidates, errors = [], []
    for log in logs:
        try:
            candidates.append(keys_of(log.folder, roster))
        except SecureFdaError as error:
            errors.append(error)
    if not candidates:
        raise errors[0]
    return min(candidates, key=lambda keys: _TRUST[keys.where_from])


def _state(
    root: Path, log: LogFolder, keys: Keys, verified: Mapping[Path, tuple[Verification, KeptVerdict]]
) -> LogState:
    folder, nothing = _below(root, log.folder), read_party(log.party, ())
    if log.party not in keys.public:
        return LogState(folder, log.party, None, f"{log.party} is no site of the roster", nothing)
    live = being_written(log.folder)
    if log.folder in verified and not live:
        verification, kept = verified[log.folder]
    else:
        verification = _verify(log, keys, live=live)
        kept = kept_verdict(log, verification, StatementReader(keys.roster), live=live)
    problem = keys.disagreement(roster_named(log)) or ""
    try:
        tables = read_party(log.party, _vouched_for(log, verification))
    except AuditError as error:
        return LogState(folder, log.party, verification, problem or error.what, nothing)
    return LogState(folder, log.party, verification, problem, tables, _policy(log.folder, tables), kept)


def _verify(log: LogFolder, keys: Keys, *, live: bool) -> Verification:
    """As ``securefda audit verify`` does it: another site must have cosigned a log that no process writes any more."""
    needed = 0 if live else min(1, len(keys.public) - 1)
    name = LogName(keys.federation, log.party, log.run)
    with verification_progress(log.party) as progress:
        return verify_log(log.folder, name, keys.public, witnesses_needed=needed, progress=progress)


def _vouched_for(log: LogFolder, verification: Verification) -> Iterator[Record]:
    """The records that were not found to be wrong: behind the first that is, nothing of a log is taken for true."""
    found = verification.finding
    whole = found is None or found.kind in ("torn", "missing-cosignature")
    return islice(log.records(), verification.size if whole or found is None else found.index)


def _mark_copies(states: Sequence[LogState]) -> Iterator[LogState]:
    """Of several copies of one log, the one with most records counts."""
    best: dict[str, LogState] = {}
    for state in states:
        if state.party not in best or state.tables.records > best[state.party].tables.records:
            best[state.party] = state
    for state in states:
        yield state if best[state.party] is state else replace(state, is_copy=True, tables=read_party(state.party, ()))


def _policy(folder: Path, tables: PartyTables) -> PolicyFound:
    """The policy file in the kit around a log, if it is the very one that the log says was loaded last."""
    loaded: list[str] = []
    for mark in tables.milestones:
        if mark.kind == "policy-loaded" and (digest := dict(mark.detail)["policy"]) not in loaded[-1:]:
            loaded.append(digest)
    if not loaded:
        return PolicyFound()
    file = folder.resolve().parent.parent / _POLICY_FILE
    if not file.exists():
        return PolicyFound(tuple(loaded), why_not="its file is not beside the log")
    try:
        return _policy_in(file, tuple(loaded))
    except ConfigError as error:
        return PolicyFound(tuple(loaded), why_not=f"its file cannot be used: {error.why}")


def _policy_in(file: Path, loaded: tuple[str, ...]) -> PolicyFound:
    from securefda.disk import read_file
    from securefda.site.policy.model import parse_policy

    data = read_file(file).data
    if hashlib.sha256(data).hexdigest() != loaded[-1]:
        return PolicyFound(loaded, why_not=f"the {_POLICY_FILE} beside the log is another one by now")
    return PolicyFound(loaded, parse_policy(data, file))


def _run_record(root: Path, run: str) -> tuple[RunRecord | None, str]:
    from securefda.operations.run_folder import METRICS_FILE, SUMMARY_FILE, read_run

    if not any((root / name).exists() for name in (METRICS_FILE, SUMMARY_FILE)):
        return None, ""
    try:
        record = read_run(root)
    except (ConfigError, OSError) as error:
        return None, f"the run folder's figures cannot be read: {error}"
    other = (record.summary or {}).get("run_id", run)
    return (record, "") if other == run else (None, f"the run folder's figures are of another run, {other}")


def _below(root: Path, folder: Path) -> str:
    name = str(folder.relative_to(root))
    return root.resolve().name if name == "." else name
