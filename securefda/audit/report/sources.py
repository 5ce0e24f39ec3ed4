"""The input of an audit page: the reconciled logs of a run, as tables, with the files beside them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from securefda.audit.kept_check import NOT_JUDGED, KeptVerdict
from securefda.audit.keys import Keys, roster_named
from securefda.audit.log_files import AuditError
from securefda.audit.reading import LogFolder
from securefda.audit.reconcile.check import PartyLog
from securefda.audit.reconcile.history import History
from securefda.audit.reconcile.reconciled_runs import ReconciledRun, ReconciledRuns, reconcile_runs
from securefda.audit.reconcile.run_verdict import Verdict, verdict_of
from securefda.audit.report.disclosure import DisclosureVerdict, disclosure_verdict
from securefda.audit.report.overview import unreported
from securefda.audit.report.party_tables import PartyTables, read_party
from securefda.audit.report.training import signed_faults, training_faults
from securefda.audit.verify import Verification
from securefda.errors import ConfigError
from securefda.site.kit import POLICY_FILE

if TYPE_CHECKING:
    from securefda.operations.run_folder import RunRecord
    from securefda.site.policy import SourcePolicy


@dataclass(frozen=True, slots=True)
class PolicyFound:
    """The policies that a party loaded according to its log: the SHA-256 of each in hex, none twice in a row.

    ``policy`` is the last of them; None if its file is not beside the log, and ``why_not`` says so in one line.
    """

    loaded: tuple[str, ...] = ()
    policy: SourcePolicy | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class LogState:
    """One log of the run, as it was found.

    Attributes:
        folder: the folder of the log, below the folder that was named.
        problem: one line if the log belongs to another roster, or was changed while it was read; else empty.
        tables: the tables of the records that the verification vouches for; empty for a second copy of a log.
        is_copy: whether the tables come from another copy of this log.
    """

    folder: str
    party: str
    verification: Verification
    problem: str
    tables: PartyTables
    policy: PolicyFound = PolicyFound()
    kept: KeptVerdict = NOT_JUDGED
    is_copy: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether the log has no finding and no problem."""
        return self.verification.finding is None and not self.problem


@dataclass(frozen=True, slots=True)
class Sources:
    """All data of a page: the reconciled run, which is the only one in ``all_runs``, and its logs in roster order.

    ``record`` is the target's run folder; None if the folder that was named is not one, or belongs to another run. If
    it looks like one, ``record_problem`` says why in one line. ``diverged`` are the sources' signed words on training.
    """

    all_runs: ReconciledRuns
    verdict: Verdict
    logs: tuple[LogState, ...]
    record: RunRecord | None
    record_problem: str
    diverged: tuple[str, ...] = ()

    @property
    def reconciled(self) -> ReconciledRun:
        """The reconciled run."""
        return self.all_runs.runs[0]

    @property
    def run(self) -> str:
        """The run id."""
        return self.reconciled.members.run

    @property
    def keys(self) -> Keys:
        """The roster of the run, and its origin."""
        return self.reconciled.keys

    @property
    def history(self) -> History:
        """All runs of which there is a log below ``root``."""
        return self.all_runs.history

    @property
    def tables(self) -> tuple[PartyTables, ...]:
        """The tables of the logs, one for each party."""
        return tuple(log.tables for log in self.logs if not log.is_copy)

    @property
    def disclosure(self) -> DisclosureVerdict:
        """The verdict on what the sites disclosed."""
        senders = (arrival.sender for arrival in unreported(self.tables))
        return disclosure_verdict(self.tables, self.keys.roles, senders)

    @property
    def training(self) -> list[str]:
        """What went wrong in training, a sentence each; nothing of figures that no run writes."""
        try:
            return [*self.diverged, *training_faults(self.record)]
        except (KeyError, TypeError, ValueError, AttributeError):
            return [*self.diverged]


def read_sources(root: Path, run: str = "", roster: Path | None = None, *, require_all: bool | None = None) -> Sources:
    """Reconcile the logs of a run at or below ``root``, and read what they say.

    Arguments and errors are those of `securefda.audit.reconcile.reconciled_runs.reconcile_folder`.
    """
    runs = reconcile_runs(root, run, roster, require_all=require_all, only_one=True)
    reconciled = runs.runs[0]
    states = [_state(root, log, reconciled.keys) for log in reconciled.logs]
    for log in reconciled.copies:
        nothing = read_party(log.party, ())
        states.append(replace(_state(root, log, reconciled.keys), is_copy=True, tables=nothing))
    order = {site: place for place, site in enumerate(reconciled.keys.roles)}
    states.sort(key=lambda state: (order[state.party], state.is_copy, state.folder))
    record, problem = _run_record(root, reconciled.members.run)
    folders = (Path(log.folder) for log in reconciled.logs)
    diverged = tuple(signed_faults(folders, reconciled.keys.roster))
    return Sources(runs, verdict_of(runs), tuple(states), record, problem, diverged)


def _state(root: Path, log: PartyLog, keys: Keys) -> LogState:
    place = Path(log.folder)
    problem = keys.disagreement(roster_named(LogFolder(place, log.party, "", ""))) or ""
    try:
        tables = read_party(log.party, islice(log.records(), log.bound))
    except AuditError as error:
        problem, tables = problem or error.what, read_party(log.party, ())
    folder = root.resolve().name if place == root else str(place.relative_to(root))
    return LogState(folder, log.party, log.verification, problem, tables, _policy(place, tables), log.kept)


def _policy(folder: Path, tables: PartyTables) -> PolicyFound:
    """The policy file in the kit around a log, if it is the very one that the log says was loaded last."""
    from securefda.disk import read_file
    from securefda.site.policy.schema import parse_policy

    loaded: list[str] = []
    for mark in tables.milestones:
        if mark.kind == "policy-loaded" and (digest := dict(mark.detail)["policy"]) not in loaded[-1:]:
            loaded.append(digest)
    if not loaded:
        return PolicyFound()
    file = folder.resolve().parent.parent / POLICY_FILE
    if not file.exists():
        return PolicyFound(tuple(loaded), why_not="its file is not beside the log")
    try:
        data = read_file(file).data
        if hashlib.sha256(data).hexdigest() != loaded[-1]:
            return PolicyFound(tuple(loaded), why_not=f"the {POLICY_FILE} beside the log is another one by now")
        return PolicyFound(tuple(loaded), parse_policy(data, file))
    except ConfigError as error:
        return PolicyFound(tuple(loaded), why_not=f"its file cannot be used: {error.why}")


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
