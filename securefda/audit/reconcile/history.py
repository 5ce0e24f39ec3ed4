"""The history of all runs with a log below a folder: what each run took from a site, and whether a result followed.

One log covers one run. A target could begin run after run, take what a source sends before the sum and hang up: every
single log would be in order. So this module counts the runs by each source's own log: the headers that the source
accepted, what left it for whom, and the rounds in which it accepted a result.

A round is *unfinished with disclosure* if something left the source and no accepted result followed. A run is so if it
finished no round. Rounds that the source's own restart interrupted do not count. One crash, or a lost round now and
then, is honest; exceeding either limit below is a finding about the target's conduct. The finding says what happened,
not why: a source that is too slow in every round sees the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Final, Literal

from securefda.audit.keys import Keys
from securefda.audit.log_files import AuditError
from securefda.audit.log_records import Entry, Record
from securefda.audit.reading import DamagedLog, LogFolder, RunEnd, being_written
from securefda.audit.signed_notes import LogName
from securefda.audit.verification import verification_progress
from securefda.audit.verify import UNVOUCHED, Verification, verify_log
from securefda.text import names

MOST_UNFINISHED_IN_A_ROW: Final = 2
"""Most unfinished rounds of one source in a row. After three lost rounds a target gives up, and a source leaves."""
MOST_UNFINISHED_RUNS_A_DAY: Final = 1
"""Most unfinished runs of one source in any 24 hours. A target that crashed continues its run and begins no new one."""
_DAY: Final = timedelta(hours=24)

CHARGES: Final = "charges to the ledger"
_NO_ANSWER: Final = frozenset({"Refusal", "Abort", "Join", "Checkpoint", "Cosigned", "Goodbye", "Receipt"})
"""Message types that a source sends without having accepted a header, or after it has left the session."""
_WORDS: Final[Mapping[str, str]] = {
    "model": "models",
    "model-and-target-update": "models with g_T",
    "model-and-gap-gradient": "models with the gradient of the gap",
    "model-and-target-features": "models with features of the target's rows",
    "model-and-target-features-and-gap-gradient": "models with features of the target's rows and gradient of the gap",
}
_RELEASES: Final[Mapping[str, str]] = {"MaskedInput": "masked inputs", "Update": "updates", "Unmask": "unmask shares"}

Ending = Literal["completed", "failed", "no end", "not known", "goes on"]


@dataclass(frozen=True, slots=True)
class Left:
    """Something that left a site: what, to whom and how often. Charges stay at the site, so their ``to`` is empty."""

    what: str
    to: str
    count: int

    def __str__(self) -> str:
        return f"{self.count} × {self.what}{f' to {self.to}' if self.to else ''}"


@dataclass(slots=True)
class RoundTaken:
    """A round of a run at one site.

    Attributes:
        number: 1-based.
        began: time of its first record.
        took: whether anything left the site, or was charged.
        broken_off: whether the site's own restart ended the round.
        results: sessions with a result; a session is removed if an alarm follows its result.
    """

    number: int
    began: str
    took: bool = False
    broken_off: bool = False
    results: set[str] = field(default_factory=set)

    @property
    def finished(self) -> bool:
        """Whether the site accepted a result; at the target, whether it sent one."""
        return bool(self.results)

    @property
    def is_unfinished(self) -> bool:
        """Whether the round took something without a result, and the site's own process is not the cause."""
        return self.took and not self.finished and not self.broken_off


@dataclass(frozen=True, slots=True)
class SiteRun:
    """A run according to one site's log.

    Attributes:
        began, last: the times of its first and last record; empty without records.
        ended: ``"completed"`` or ``"failed"`` according to its last record of an end; ``"no end"`` without one,
            ``"not known"`` if not all of the log counts and the part that does has none, ``"goes on"`` if a process is
            writing the log.
        headers: the number of headers that the site accepted; at the target, of sessions that it opened.
        problem: one line that says why not all of the log was read; empty if all was.
    """

    party: str
    run: str
    began: str
    last: str
    ended: Ending
    headers: int
    rounds: tuple[RoundTaken, ...]
    left: tuple[Left, ...]
    problem: str = ""

    @property
    def finished(self) -> int:
        """Number of rounds with a result."""
        return sum(taken.finished for taken in self.rounds)

    @property
    def lost(self) -> int:
        """Number of rounds in which something left the site and no result came."""
        return sum(taken.took and not taken.finished for taken in self.rounds)

    @property
    def is_unfinished(self) -> bool:
        """Whether this run took something and finished no round."""
        return self.ended != "goes on" and not self.finished and any(taken.is_unfinished for taken in self.rounds)


@dataclass(frozen=True, slots=True)
class Conduct:
    """A finding about the target's conduct towards one source: in which runs and rounds, and what left it there."""

    kind: Literal["unfinished-rounds", "unfinished-runs"]
    source: str
    target: str
    what: str
    runs: tuple[str, ...]
    rounds: tuple[tuple[str, int], ...]
    left: tuple[Left, ...]


@dataclass(frozen=True, slots=True)
class History:
    """All runs that were found, by site and time, and the findings about them together."""

    runs: tuple[SiteRun, ...] = ()
    findings: tuple[Conduct, ...] = ()


def read_run(party: str, run: str, records: Iterable[Record], target: str, *, is_live: bool = False) -> SiteRun:
    """Read the records of a party's log of a run once, in order. Memory grows with its rounds.

    ``is_live`` is whether a process is writing the log.
    """
    reader = _Reader(party, target)
    for record in records:
        reader.see(record)
    return reader.site_run(run, is_live=is_live)


def judge(runs: Sequence[SiteRun], target: str) -> History:
    """Sort the runs of each site, and find what exceeds the limits."""
    ordered = sorted(runs, key=lambda run: (run.party != target, run.party, run.began, run.run))
    findings: list[Conduct] = []
    for source in sorted({run.party for run in ordered} - {target}):
        own = [run for run in ordered if run.party == source]
        of_runs = list(_unfinished_runs(own, source, target))
        told = {place for finding in of_runs for place in finding.rounds}
        of_rounds = _unfinished_rounds(own, source, target)
        findings += [*of_runs, *(finding for finding in of_rounds if not told.issuperset(finding.rounds))]
    return History(tuple(ordered), tuple(findings))


def _unfinished_runs(own: Sequence[SiteRun], source: str, target: str) -> Iterator[Conduct]:
    """Yield findings of unfinished runs that are too close together; consecutive ones are one finding."""
    unfinished = [run for run in own if run.is_unfinished]
    close: set[int] = set()
    for first, run in enumerate(unfinished[MOST_UNFINISHED_RUNS_A_DAY:]):
        if _time(run.began) - _time(unfinished[first].began) <= _DAY:
            close |= set(range(first, first + MOST_UNFINISHED_RUNS_A_DAY + 1))
    for first, last in ranges(close):
        series = unfinished[first : last + 1]
        left = _together(series)
        what = (
            f"{len(series)} runs of {target} took something from {source} and brought it no result, from "
            f"{_day(series[0])} to {_day(series[-1])}; more than {MOST_UNFINISHED_RUNS_A_DAY} within 24 hours is above "
            f"the limit. What left: {words(left)}"
        )
        rounds = tuple((run.run, taken.number) for run in series for taken in run.rounds if taken.is_unfinished)
        yield Conduct("unfinished-runs", source, target, what, tuple(run.run for run in series), rounds, left)


def _unfinished_rounds(own: Sequence[SiteRun], source: str, target: str) -> Iterator[Conduct]:
    """Yield findings of consecutive unfinished rounds over all runs, without the last round of a run that goes on."""
    settled = [(run, taken) for run in own for taken in run.rounds[: -1 if run.ended == "goes on" else None]]
    settled = [pair for pair in settled if pair[1].finished or pair[1].is_unfinished]
    settled.sort(key=lambda pair: pair[1].began)
    for is_unfinished, group in groupby(settled, key=lambda pair: pair[1].is_unfinished):
        row = list(group)
        if not is_unfinished or len(row) <= MOST_UNFINISHED_IN_A_ROW:
            continue
        runs = list({run.run: run for run, _ in row}.values())
        left = _together(runs)
        where = f"in run {runs[0].run}" if len(runs) == 1 else f"in {len(runs)} runs"
        what = (
            f"{len(row)} rounds of {target} in a row took something from {source} and brought it no result, {where}; "
            f"more than {MOST_UNFINISHED_IN_A_ROW} is above the limit. What left in all rounds there: {words(left)}"
        )
        rounds = tuple((run.run, taken.number) for run, taken in row)
        yield Conduct("unfinished-rounds", source, target, what, tuple(run.run for run in runs), rounds, left)


def words(left: Sequence[Left]) -> str:
    """Return in words what left a site."""
    return ", ".join(left_lines(left)) or "nothing"


def left_lines(left: Sequence[Left]) -> list[str]:
    """Return in words what left a site, with one line for all receivers that got the same number of a thing."""
    receivers: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for thing in left:
        receivers[thing.count, thing.what].append(thing.to)
    return [
        str(Left(what, to[0] if len(to) == 1 else f"each of {names(to)}", count))
        for (count, what), to in receivers.items()
    ]


def ranges(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of consecutive integers: ``(1, 4), (7, 7)`` for 1, 2, 3, 4, 7."""
    ordered = sorted(set(numbers))
    if not ordered:
        return ()
    breaks = [(before, after) for before, after in pairwise(ordered) if after != before + 1]
    starts = [ordered[0], *(after for _, after in breaks)]
    return tuple(zip(starts, [*(before for before, _ in breaks), ordered[-1]], strict=True))


def _together(runs: Iterable[SiteRun]) -> tuple[Left, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    for run in runs:
        for left in run.left:
            counts[left.what, left.to] += left.count
    return _as_left(counts)


def _as_left(counts: Counter[tuple[str, str]]) -> tuple[Left, ...]:
    return tuple(Left(what, to, count) for (what, to), count in sorted(counts.items()))


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _day(run: SiteRun) -> str:
    return f"{run.began[:10]} {run.began[11:16]}"


class _Reader:
    """Gathers one log."""

    def __init__(self, party: str, target: str) -> None:
        self._party, self._is_target = party, party == target
        self._began = self._last = ""
        self._end = RunEnd()
        self._rounds: dict[int, RoundTaken] = {}
        self._accepted: set[tuple[int, int]] = set()
        self._left: Counter[tuple[str, str]] = Counter()
        self._latest = 0

    def see(self, record: Record) -> None:
        """Take a record."""
        entry = record.entry
        self._began, self._last = self._began or record.time, max(self._last, record.time)
        self._end.see(entry)
        if entry.direction == "event":
            self._event(entry, record.time)
        else:
            self._message(entry, record.time)

    def site_run(self, run: str, *, is_live: bool) -> SiteRun:
        """Return the run as the records so far describe it."""
        ended: Ending = "goes on" if is_live else "no end"
        if self._end.outcome:
            ended = "completed" if self._end.outcome == "completed" else "failed"
        return SiteRun(
            party=self._party,
            run=run,
            began=self._began,
            last=self._last,
            ended=ended,
            headers=len(self._accepted),
            rounds=tuple(taken for _, taken in sorted(self._rounds.items())),
            left=_as_left(self._left),
        )

    def _event(self, entry: Entry, time: str) -> None:
        match entry.type:
            case "ledger-updated" if self._is_target:
                self._left[CHARGES, ""] += 1  # it may train the round alone, in no session and without a result
            case "ledger-updated":
                self._took(entry, time, CHARGES, "")
            case "alarm" if entry.session:
                for taken in self._rounds.values():
                    taken.results.discard(entry.session)
            case "restarted" if self._latest in self._rounds:
                self._rounds[self._latest].broken_off = True

    def _message(self, entry: Entry, time: str) -> None:
        sent = entry.direction == "sent"
        is_result = entry.type == "Result" and sent == self._is_target
        is_receipt = entry.type == "Receipt" and sent  # of a result that was shown again
        if entry.round and (is_result or is_receipt):
            self._round(entry.round, time).results.add(entry.session)
        if sent and entry.type == "Goodbye" and entry.disclosure is not None:
            self._left["final model", entry.peer] += 1
        if not sent or not entry.round:
            return
        what = _RELEASES.get(entry.type, "")
        if entry.disclosure is not None and not what:
            what = _WORDS.get(entry.disclosure.what, entry.disclosure.what)
        if what:
            self._took(entry, time, what, entry.peer)
        elif entry.type not in _NO_ANSWER and not self._is_target:
            self._accepted.add((entry.round, entry.attempt))

    def _took(self, entry: Entry, time: str, what: str, to: str) -> None:
        self._accepted.add((entry.round, entry.attempt))
        taken = self._round(entry.round, time)
        taken.took, taken.broken_off, self._latest = True, False, entry.round
        self._left[what, to] += 1

    def _round(self, number: int, time: str) -> RoundTaken:
        return self._rounds.setdefault(number, RoundTaken(number, time))


def read_history(
    logs: Sequence[LogFolder],
    main: Keys,
    keys_for: Callable[[LogFolder], Keys],
    verified: Mapping[Path, Verification],
) -> History:
    """Read every log of the federation once, each as far as its verification vouches for it.

    A log without any checkpoint is read too, since a run that ends in its first round may leave none; its row says so.

    Args:
        logs: the logs, of any runs; of two copies of one log, the one with more records counts.
        main: the roster of the federation; logs of other federations are ignored.
        keys_for: returns the roster of the run of a log.
        verified: folder -> the verification of its log, for logs that were verified already.
    """
    runs: dict[tuple[str, str], tuple[int, SiteRun]] = {}
    target = main.roster.target.site_id
    for log in logs:
        keys = keys_for(log)
        if log.party not in keys.public or {log.federation or main.federation, keys.federation} != {main.federation}:
            continue
        is_live = being_written(log.folder)
        bound, problem = _vouched_for(log, verified.get(log.folder) or _verified(log, keys))
        records = _Records(log, bound)
        run = read_run(log.party, log.run, records, target, is_live=is_live)
        if records.count > runs.get((log.party, log.run), (-1, run))[0]:
            is_part = bound is not None or bool(records.problem)
            ended: Ending = "not known" if is_part and run.ended == "no end" else run.ended
            runs[log.party, log.run] = records.count, replace(run, ended=ended, problem=problem or records.problem)
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
        name = LogName(keys.federation, log.party, log.run)
        return verify_log(log.folder, name, keys.public, keys.ml_dsa, progress=progress)


def _vouched_for(log: LogFolder, verification: Verification) -> tuple[int | None, str]:
    """Return the number of records that count, None for all, and the reason why not all count."""
    finding = verification.finding
    if finding is None or finding.kind in ("torn", *UNVOUCHED):
        return None, ""
    with suppress(AuditError):
        if log.head() is None and not log.heads():
            return None, "no checkpoint: nothing proves this row"
    return finding.index, f"{finding.kind} at record {finding.index}: read up to there"
