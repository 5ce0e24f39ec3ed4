"""All runs that have a log below a folder, for the audit commands: their table, and what they amount to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from securefda.audit.findings import Verification
from securefda.audit.names import LogName
from securefda.audit.reading import DamagedLog, LogFolder, being_written
from securefda.audit.records import Record
from securefda.audit.run_history import (
    MOST_UNFINISHED_IN_A_ROW,
    MOST_UNFINISHED_RUNS_A_DAY,
    Conduct,
    History,
    Left,
    SiteRun,
    judge,
    read_run,
    words,
)
from securefda.audit.store import AuditError
from securefda.audit.verify import verify_log
from securefda.cli.audit_keys import Keys
from securefda.cli.audit_progress import verification_progress
from securefda.cli.output import aligned, printable
from securefda.errors import ExitCode, SecureFdaError

_MOST_ROWS: Final = 60


class TargetConduct(SecureFdaError):
    """Runs took something from a source and brought it no result, more often than the limits allow."""

    exit_code = ExitCode.AUDIT


def read_history(found: Sequence[LogFolder], keys: Keys, verified: Mapping[Path, Verification]) -> History:
    """Read every log of the federation once, each as far as its verification vouches for it.

    A log without any checkpoint is read too, since a run that ends in its first round may leave none; its row says so.

    Args:
        found: the logs, of any runs; of two copies of one log that with more records counts.
        keys: the roster.
        verified: folder -> what its log is worth, of those that were verified already.
    """
    target = keys.roster.target.site_id
    runs: dict[tuple[str, str], tuple[int, SiteRun]] = {}
    for log in found:
        if log.party not in keys.public or log.federation not in ("", keys.federation):
            continue
        is_live = being_written(log.folder)
        bound, problem = _vouched_for(log, verified.get(log.folder) or _verified(log, keys))
        records = _Records(log, bound)
        run = read_run(log.party, log.run, records, target, is_live=is_live)
        if records.count > runs.get((log.party, log.run), (-1, run))[0]:
            runs[log.party, log.run] = records.count, replace(run, problem=problem or records.problem)
    return judge([run for _, run in runs.values()], target)


class _Records:
    """The records of a log up to a bound; one that cannot be read ends them, and ``problem`` says so."""

    def __init__(self, log: LogFolder, bound: int | None) -> None:
        self._log, self._bound = log, bound
        self.count, self.problem = 0, ""

    def __iter__(self) -> Iterator[Record]:
        try:
            for record in islice(self._log.records(), self._bound):
                self.count += 1
                yield record
        except DamagedLog as error:
            self.problem = error.what


def _verified(log: LogFolder, keys: Keys) -> Verification:
    with verification_progress(log.party) as progress:
        return verify_log(log.folder, LogName(keys.federation, log.party, log.run), keys.public, progress=progress)


def _vouched_for(log: LogFolder, verification: Verification) -> tuple[int | None, str]:
    """How many records count, None for all, and why not all."""
    found = verification.finding
    if found is None or found.kind in ("torn", "missing-cosignature"):
        return None, ""
    try:
        if log.head() is None and not log.heads():
            return None, "no checkpoint: nothing proves this row"
    except AuditError:
        pass
    return found.index, f"{found.kind} at record {found.index}: read up to there"


def history_text(history: History) -> Iterator[str]:
    """The table of all runs, and each finding."""
    rounds = ("headers accepted", "rounds finished", "rounds lost")
    head = ("run", "site", "began (UTC)", "ended how", *rounds, "what left this site")
    rows = [_row(one) for one in history.runs[:_MOST_ROWS]]
    more = len(history.runs) - len(rows)
    yield aligned([head, *rows]) + (f"\nand {more} more rows; --format json lists all of them" if more > 0 else "")
    for one in history.findings:
        yield aligned(
            [
                ("conduct", f"{one.kind}: {printable(one.what)}"),
                ("towards", one.source),
                ("of", one.target),
                ("runs", _listed(one)),
            ]
        )


def _row(one: SiteRun) -> tuple[str, ...]:
    began = f"{one.began[:10]} {one.began[11:19]}" if one.began else "-"
    counts = (str(one.headers), str(one.finished), str(one.lost))
    said = words(one.left) + (f" ({printable(one.problem)})" if one.problem else "")
    return one.run, one.party, began, one.ended, *counts, said


def _listed(one: Conduct) -> str:
    shown = ", ".join(run[:12] for run in one.runs[:6])
    return shown + (f" and {len(one.runs) - 6} more" if len(one.runs) > 6 else "")


def error_of(history: History) -> TargetConduct | None:
    """The error with which a command ends for the runs together; None where nothing is wrong."""
    if not history.findings:
        return None
    more = f"; {len(history.findings) - 1} more findings" if len(history.findings) > 1 else ""
    hint = "ask the target what ended these runs; a source's policy bounds how many runs and rounds it takes part in"
    return TargetConduct(f"{history.findings[0].kind}: {history.findings[0].what}{more}", hint=hint)


def history_json(history: History) -> dict[str, Any]:
    """The same data for programs."""
    return {
        "runs": [
            {
                "run": one.run,
                "party": one.party,
                "began": one.began,
                "last": one.last,
                "ended": one.ended,
                "headers_accepted": one.headers,
                "rounds_finished": one.finished,
                "rounds_lost": one.lost,
                "unfinished_with_disclosure": one.is_unfinished,
                "left": _left_json(one.left),
                "problem": one.problem,
            }
            for one in history.runs
        ],
        "conduct": [
            {
                "kind": one.kind,
                "source": one.source,
                "target": one.target,
                "what": one.what,
                "runs": list(one.runs),
                "rounds": [{"run": run, "round": number} for run, number in one.rounds],
                "left": _left_json(one.left),
            }
            for one in history.findings
        ],
        "limits": {
            "unfinished_rounds_in_a_row": MOST_UNFINISHED_IN_A_ROW,
            "unfinished_runs_a_day": MOST_UNFINISHED_RUNS_A_DAY,
        },
    }


def _left_json(left: Sequence[Left]) -> list[dict[str, Any]]:
    return [{"what": one.what, "to": one.to, "count": one.count} for one in left]
