"""Reading of a site's files: its rounds, summary, audit log and policy. Each look reads only what is new.

Files may be half written, damaged, from another release, or missing: what can be read is shown, and the rest becomes a
line among the problems. Nothing here is verified; ``securefda audit verify`` does that.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from pydantic import TypeAdapter

from securefda.audit.keys import Keys, keys_of_kit
from securefda.audit.log_files import CHECKPOINT, TAIL
from securefda.audit.log_records import Record
from securefda.audit.reading import LogFolder, find_logs, open_log
from securefda.audit.report.party_tables import PartyReader, PartyTables
from securefda.dashboard.place import Place, find_place
from securefda.dashboard.process_state import why_late
from securefda.disk import read_file, whole_lines
from securefda.errors import SecureFdaError
from securefda.operations.records import JOIN_PHASE, REPORTED_ROUNDS, RoundLine, SiteLine
from securefda.operations.run_folder import (
    METRICS_FILE,
    ROUND,
    SITE,
    SITES_FOLDER,
    SUMMARY_FILE,
    is_outdated,
    read_object,
    read_summary,
)
from securefda.operations.state import STATE_FILE, ProcessState, read_state
from securefda.settings import read_toml
from securefda.site.authority import CA_FILE
from securefda.site.config.sections import TransportSection
from securefda.site.kit import KIT_FILE, LOCAL, POLICY_FILE, ROSTER_FILE, STARTUP
from securefda.site.policy import Explanation, SourcePolicy, explain, parse_policy
from securefda.site.policy.signed import read_signed_policy
from securefda.text import phase_words

_Read = TypeVar("_Read")
_AUDIT: Final = "audit"


@dataclass(frozen=True, slots=True)
class PolicySeen:
    """A source's policy.

    Attributes:
        policy: as its file has it now.
        words: what it means.
        digest: SHA-256 of the file in hex.
        signature: what is wrong with the site's signature; empty where it is right.
    """

    policy: SourcePolicy
    words: Explanation
    digest: str
    signature: str


@dataclass(frozen=True, slots=True)
class LogSeen:
    """The contents of a site's audit log so far.

    Attributes:
        folder: where it is.
        run: run id.
        tables: its records as tables.
        heard: site id -> time of the last message that came from it.
        last: the last record.
        others: how many other logs the kit has.
    """

    folder: Path
    run: str
    tables: PartyTables
    heard: Mapping[str, str]
    last: Record
    others: int


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of one look at a site's files.

    Attributes:
        place: where.
        keys: the kit's roster; None without a kit.
        rounds: of a target, by round; of a round that was written twice the later line.
        own: of a source, in the order of the file.
        sites: of a target whose run folder has the sources' own records: by site.
        summary: of a target's run that ended; None before.
        planned: rounds that the run is to have; 0 where nothing says it.
        log: None where there is none.
        policy: of a source; None where there is none.
        process: what the site's process says of itself; None where none ever did here.
        running: whether that process is still there; None where this machine cannot say.
        late: why it waits too long, a sentence; empty where it does not.
        problems: what could not be read and why, one line each.
    """

    place: Place
    keys: Keys | None = None
    rounds: tuple[RoundLine, ...] = ()
    own: tuple[SiteLine, ...] = ()
    sites: Mapping[str, tuple[SiteLine, ...]] = field(default_factory=dict)
    summary: Mapping[str, Any] | None = None
    planned: int = 0
    log: LogSeen | None = None
    policy: PolicySeen | None = None
    process: ProcessState | None = None
    running: bool | None = None
    late: str = ""
    problems: tuple[str, ...] = ()


class SiteReader:
    """Looks at one folder repeatedly.

    Args:
        asked: the folder that the user named.
        clock: Unix time.
    """

    def __init__(self, asked: Path, clock: Callable[[], float] = time.time) -> None:
        self._asked, self._clock = asked, clock
        self._place = Place(asked, asked)
        self._problems: list[str] = []
        self._lines: dict[Path, _Lines] = {}
        self._log: _Log | None = None
        self._kept: dict[str, tuple[object, object]] = {}
        self._last: Seen | None = None

    def look(self) -> Seen:
        """Read what is new. A damaged file becomes one of the problems and raises nothing.

        Where nothing has changed, the same object as before is returned.
        """
        seen = self._seen()
        if self._last is None or seen != self._last:
            self._last = seen
        return self._last

    def _seen(self) -> Seen:
        self._problems = []
        with self._noting():
            self._place = find_place(self._asked)
        place = self._place
        kit, keys, policy, summary = place.kit, None, None, None
        if kit is not None:
            files = [kit / STARTUP / name for name in (CA_FILE, KIT_FILE, ROSTER_FILE)]
            keys = self._once("keys", files, lambda: keys_of_kit(kit))
        process = self._once("process", [place.run / STATE_FILE], lambda: read_state(place.run))
        if place.role != "source":
            file = place.run / SUMMARY_FILE
            summary = self._once("summary", [file], lambda: read_summary(file) if file.exists() else None)
        elif kit is not None and keys is not None:
            file = kit / LOCAL / POLICY_FILE
            policy = self._once("policy", [file, file.with_suffix(".sig")], lambda: _read_policy(file, keys))
        rounds: tuple[RoundLine, ...] = ()
        own: tuple[SiteLine, ...] = ()
        if place.role == "target":
            rounds = tuple({line["round"]: line for line in self._read(place.run / METRICS_FILE, ROUND)}.values())
            summary = None if is_outdated(summary, rounds) else summary
        elif place.role == "source":
            own = cast(tuple[SiteLine, ...], tuple(self._read(place.run / METRICS_FILE, SITE)))
        sites = {}
        if place.role == "target":
            for file in sorted(place.run.glob(f"{SITES_FOLDER}/*/{METRICS_FILE}")):
                sites[file.parent.name] = cast(tuple[SiteLine, ...], tuple(self._read(file, SITE)))
        log = self._log_of(place, process, str((summary or {}).get("run_id", "")))
        running = None if process is None else process.is_running
        return Seen(
            place=place,
            keys=keys,
            rounds=rounds,
            own=own,
            sites=sites,
            summary=summary,
            planned=process.rounds if process is not None and process.rounds else self._planned(place, summary),
            log=log,
            policy=policy,
            process=process,
            running=running,
            late=self._late(place, process, rounds, log) if process is not None and running else "",
            problems=tuple(dict.fromkeys(self._problems)),
        )

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Turn an error in the block into a problem."""
        try:
            yield
        except SecureFdaError as error:
            self._problems.append(f"{error}" + (f" ({error.hint})" if error.hint else ""))
        except OSError as error:
            self._problems.append(f"{error.filename}: cannot be read: {error.strerror}")

    def _once(self, what: str, files: Sequence[Path], read: Callable[[], _Read]) -> _Read | None:
        """Return the result of ``read``, kept until the files change; None, and a problem in each look, if it fails."""
        with self._noting():
            state = [(str(file), _state_of(file)) for file in files]
            if what not in self._kept or self._kept[what][0] != state:
                self._kept.pop(what, None)
                self._kept[what] = (state, read())
            return cast(_Read, self._kept[what][1])
        return None

    def _planned(self, place: Place, summary: Mapping[str, Any] | None) -> int:
        """Return the planned rounds: from the summary, or before it from the target's settings."""
        if summary is not None:
            return int(summary.get("rounds_planned", 0))
        rounds = self._setting(place, "strategy", "rounds") if place.role == "target" else 0
        return rounds if type(rounds) is int and rounds > 0 else 0

    def _setting(self, place: Place, table: str, key: str) -> object:
        """Return what the settings file of the site's process says; None where it says nothing."""
        file = place.settings
        if file is None or not file.is_file():
            return None
        found = (self._once("settings", [file], lambda: read_toml(file)) or {}).get(table)
        return found.get(key) if isinstance(found, dict) else None

    def _late(self, place: Place, process: ProcessState, rounds: Sequence[RoundLine], log: LogSeen | None) -> str:
        """Return why the process waits too long: for a target by phase, for a source from round to round."""
        if process.role == "target":
            phases = [one for line in rounds[-REPORTED_ROUNDS:] for one in line.get("seconds", {}).items()]
            earlier = [seconds for phase, seconds in phases if phase_words(phase) == process.doing]
            train = process.doing.startswith("sources ")  # as the phases begin in which they are at work
            key = "join" if process.doing == phase_words(JOIN_PHASE) else "training" if train else "phase"
        else:
            spans = log.tables.spans[-REPORTED_ROUNDS - 1 :] if log is not None else ()
            starts = [datetime.fromisoformat(span.first) for span in spans]
            earlier = [(after - before).total_seconds() for before, after in pairwise(starts)]
            key = "training" if process.round else "idle"
        deadline = self._setting(place, "transport", f"{key}-deadline-s")
        default = TransportSection.model_fields[f"{key}_deadline_s"].default
        return why_late(process, earlier, deadline if isinstance(deadline, int | float) else default, self._clock())

    def _read(self, file: Path, form: TypeAdapter[Any]) -> list[Any]:
        lines = self._lines.setdefault(file, _Lines(file, form))
        with self._noting():
            lines.catch_up()
        return lines.found

    def _log_of(self, place: Place, process: ProcessState | None, ended: str) -> LogSeen | None:
        """Return the log of the run that the process or the summary names, else the log in the kit written last."""
        run = process.run if process is not None and process.run else ended
        root = None if place.kit is None else place.kit / LOCAL / _AUDIT
        if root is None or not root.is_dir():
            return None
        with self._noting():
            folders = find_logs(root)
            if not folders:
                return None
            chosen = root / run if run and root / run in folders else max(folders, key=_written)
            if self._log is None or self._log.folder != chosen:
                self._log = _Log(chosen)
            with self._noting():
                self._log.catch_up()
            return self._log.seen(len(folders) - 1)
        return None


def _read_policy(file: Path, keys: Keys) -> PolicySeen:
    data = read_file(file).data
    policy, signature = parse_policy(data, file), ""
    try:
        read_signed_policy(file, keys.federation, keys.site, keys.public[keys.site])
    except SecureFdaError as error:
        signature = str(error)
    words = explain(policy, keys.site, sum(role == "source" for role in keys.roles.values()))
    return PolicySeen(policy, words, hashlib.sha256(data).hexdigest(), signature)


def _state_of(file: Path) -> tuple[int, ...]:
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _written(folder: Path) -> tuple[int, str]:
    """Return when a log was last written, by its files; the name decides between two of the same time."""
    times = [_state_of(folder / name)[-1:] for name in (TAIL, CHECKPOINT)]
    return max((time for one in times for time in one), default=0), folder.name


class _Lines:
    """A growing file of JSON lines; ``found`` are the whole lines so far."""

    def __init__(self, file: Path, form: TypeAdapter[Any]) -> None:
        self._file, self._form = file, form
        self._begin(())

    def _begin(self, identity: tuple[int, ...]) -> None:
        self._identity, self._offset = identity, 0
        self.found: list[Any] = []

    def catch_up(self) -> None:
        """Read the added lines. A file that was replaced or cut is read again. Raises ConfigError, OSError."""
        try:
            status = self._file.stat()
        except FileNotFoundError:
            self._begin(())
            return
        identity = (status.st_dev, status.st_ino)
        if identity != self._identity or status.st_size < self._offset:
            self._begin(identity)
        for line in whole_lines(self._file, self._offset):
            self.found.append(read_object(self._file, len(self.found) + 1, line, self._form))
            self._offset += len(line)


class _Log:
    """A growing log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log: LogFolder | None = None
        self._shown: tuple[object, LogSeen] | None = None

    def _begin(self, log: LogFolder) -> None:
        self._log, self._reader = log, PartyReader(log.party)
        self._count, self._digest, self._last = 0, b"", cast("Record | None", None)
        self._heard: dict[str, str] = {}

    def catch_up(self) -> None:
        """Read the records that were added. A log that was replaced is read again. Raises AuditError."""
        if self._log is None or not self._is_the_same(self._log):
            self._log = None
            self._begin(open_log(self.folder))
        log = cast(LogFolder, self._log)
        try:
            for record in log.records(self._count):
                self._reader.take(record)
                self._count, self._last = self._count + 1, record
                if record.entry.direction == "received":
                    self._heard[record.entry.peer] = record.time
        finally:
            if self._last is not None:
                self._digest = hashlib.sha256(self._last.to_bytes()).digest()

    def _is_the_same(self, log: LogFolder) -> bool:
        if not self._count:
            return False
        entry = log.entry(self._count - 1)
        return entry is not None and hashlib.sha256(entry).digest() == self._digest

    def seen(self, others: int) -> LogSeen | None:
        """Return what was read so far; ``others`` is the number of other logs. None before the first record."""
        if self._log is None or self._last is None:
            return None
        state = (self._log, self._count, self._digest, others)
        if self._shown is None or self._shown[0] != state:
            seen = LogSeen(
                folder=self.folder,
                run=self._log.run,
                tables=self._reader.tables(),
                heard=dict(self._heard),
                last=self._last,
                others=others,
            )
            self._shown = (state, seen)
        return self._shown[1]
