"""The present state of a site's process: a small file that it keeps up to date for others at the site.

A process opens it when it starts, and updates it at every change. At the end of the block, the state says how it ended:

    with state_file(folder, site="clinic", role="target") as state:
        state.set("waiting for sources", waiting_for=["hospital-a"])
        state.set("training", round=3, rounds=30, waiting_for=["hospital-a", "hospital-b"])

``securefda status`` shows it; :func:`read_state` reads it, and :attr:`ProcessState.is_running` tells whether the
process that wrote it still runs. The file contains what the console shows, and no key, update or value of a row.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from securefda import __version__
from securefda.disk import read_file
from securefda.errors import ConfigError, SecureFdaError
from securefda.formats import PROCESS_STATE
from securefda.operations.pace import INTERVAL_S, Pace
from securefda.operations.progress import SiteSteps
from securefda.operations.run_folder import SITES_FOLDER
from securefda.parse import json_value
from securefda.settings import read_toml
from securefda.site.certificates import RENEW, validity
from securefda.site.config import load_aggregator, load_source
from securefda.site.kit import LOCAL, SETTINGS_FILE
from securefda.text import bound_text

STATE_FILE = "status.json"
"""Its name in the site's run folder."""

ENDED = "ended"
"""The last activity of a process that has ended by itself."""
INTERRUPTED = "interrupted"
"""The error of one that was asked to end."""

_SECONDS_MATTER_S = 600.0

Role = Literal["source", "target"]
UnixTime = Annotated[float, Field(ge=0, le=1e11)]
"""Seconds, up to the year 5138: in every time zone a date that Python can show."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The activity of a process. Times are seconds of Unix time.

    Attributes:
        site: id of the site.
        role: of the site.
        process: id of the process.
        started: what tells this process from a later one with the same id, as its system says; empty where it does not.
        host: name of the machine that it runs on.
        doing: in a few words, for example ``training``.
        since: when it began to do this.
        changed: when the file was written.
        waiting_for: ids of the sites without which it does not go on.
        waiting_of: how many sites it asked for that, these among them; 0 where it is not said.
        round: number of the round; 0 before the first.
        rounds: how many the run has; 0 where the process does not know.
        steps: of the round's training that are done; 0 where it does not train, or has begun a second ago.
        steps_of: how many it plans; 0 likewise.
        run: id of the run, 32 hex digits; empty before there is one.
        retrying: what it tries again and again, and why it fails, in a line; empty where it tries nothing.
        retrying_until: when it gives that up; None likewise.
        error: what went wrong last and no finished round has followed; of a process that has ended, why. Empty where
            nothing is wrong.
        hint: what to do about the error with which the process ended; empty likewise.
        epsilon: what the site's rows have cost with this run; None without noise.
        epsilon_limit: what they may cost; None likewise.
        certificate_ends: when the site's certificate ends; None where the process has not said it.
        software_version: of the process.
        schema_version: of the file.
    """

    site: str
    role: Role
    process: Annotated[int, Field(gt=0, lt=1 << 31)]
    started: str
    host: str
    doing: str
    since: UnixTime
    changed: UnixTime
    waiting_for: tuple[str, ...] = ()
    waiting_of: int = 0
    round: int = 0
    rounds: int = 0
    steps: int = 0
    steps_of: int = 0
    run: str = ""
    retrying: str = ""
    retrying_until: UnixTime | None = None
    error: str = ""
    hint: str = ""
    epsilon: float | None = None
    epsilon_limit: float | None = None
    certificate_ends: UnixTime | None = None
    software_version: str = __version__
    schema_version: int = PROCESS_STATE.number

    @property
    def answered(self) -> str:
        """How many of the sites that it asked have answered, in brackets; empty if not known."""
        return f" ({self.waiting_of - len(self.waiting_for)} of {self.waiting_of})" if self.waiting_of else ""

    @property
    def is_running(self) -> bool | None:
        """Whether the process that wrote this still runs; None if this machine cannot tell."""
        if self.doing == ENDED:
            return False
        if self.host != socket.gethostname():
            return None
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it is there, and somebody else's
            pass
        return self.started in ("", _start_of(self.process))

    def certificate_warning(self, now: float) -> str:
        """Say until when the site's certificate is valid, where it ends soon; else empty."""
        if self.certificate_ends is None:
            return ""
        ends, today = (datetime.fromtimestamp(unix_s, UTC) for unix_s in (self.certificate_ends, now))
        words, is_soon = validity(ends, today)
        return f"certificate {words}" if is_soon else ""

    def steps_text(self, now: float) -> str:
        """How far the training of the round is, and how long it still takes; empty where it does not train."""
        if not self.steps:
            return ""
        whole = (self.changed - self.since) * self.steps_of / self.steps
        return str(SiteSteps(self.steps, self.steps_of, max(0.0, whole - (now - self.since))))

    def lines(self, now: float) -> list[str]:
        """Describe the state for an operator who looks at it at ``now``; the first line is a sentence of its own."""
        who = f"{self.role} {self.site}"
        place = f", round {round_of(self.round, self.rounds)}" if self.round else ""
        running = self.is_running
        if self.doing == ENDED:
            lines = [f"{who}: ended at {clock(self.changed, now)}{place}: {self.error or 'the run is over'}"]
            lines += [f"  hint: {self.hint}"] if self.hint else []
        elif running is False:
            lines = [f"{who}: its process {self.process} was killed or crashed; last step: {self.doing}{place}"]
        else:
            lines = [f"{who}: {self.doing}{self.answered}{place}, since {clock(self.since, now)}"]
        if running is False:
            return lines
        if self.steps:
            lines.append(f"  {self.steps_text(now)}")
        if running is None:
            lines.append(f"  whether it still runs can be seen on {self.host} alone")
        if self.waiting_for:
            lines.append(f"  waiting for {', '.join(self.waiting_for)}")
        if self.retrying:
            lines.append(f"  {retrying_text(self.retrying, self.retrying_until, now)}")
        if self.error:
            lines.append(f"  last error: {self.error}")
        if self.epsilon is not None:
            limit = "" if self.epsilon_limit is None else f" of {self.epsilon_limit:g}"
            lines.append(f"  privacy spent: ε {bound_text(self.epsilon)}{limit}")
        if self.certificate_warning(now):
            lines.append(f"  {self.certificate_warning(now)}: {RENEW}")
        lines.append(f"  process {self.process}" + (f", run {self.run}" if self.run else ""))
        return lines


_FIELDS = tuple(one.name for one in fields(ProcessState))


class StateWriter:
    """Keeps the state file of one process. It never raises: no run ends because its state file cannot be written.

    Changes within ``interval_s`` seconds of a write are written together when these are over: a masked round has
    dozens, and each write takes a millisecond. The end is written at once.
    """

    def __init__(
        self,
        folder: Path,
        site: str,
        role: Role,
        clock: Callable[[], float] = time.time,
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._path, self._clock, self._lock = folder / STATE_FILE, clock, threading.Lock()
        self._pace = Pace(self._write, interval_s)
        now, process = clock(), os.getpid()
        self.now = ProcessState(site, role, process, _start_of(process), socket.gethostname(), "starting", now, now)
        self._pace.now()

    def set(self, doing: str, *, waiting_for: Sequence[str] = (), waiting_of: int = 0, **facts: Any) -> None:
        """Set what the process is doing.

        Args:
            doing: in a few words, for example ``training``.
            waiting_for: ids of the sites without which it does not go on.
            waiting_of: how many it asked; 0 where that is not said.
            facts: as :meth:`know` takes them.
        """
        names = tuple(waiting_for)
        self.know(doing=doing, waiting_for=names, waiting_of=waiting_of, **{"steps": 0, "steps_of": 0, **facts})

    def know(self, **facts: Any) -> None:
        """Update other facts, fields of :class:`ProcessState`: ``round``, ``rounds``, ``steps``, ``steps_of``, ``run``,
        ``retrying``, ``retrying_until``, ``error``, ``epsilon``, ``epsilon_limit``, ``certificate_ends``.

        Nothing is written where the file says all of it already.
        """
        with self._lock:
            before = self.now
            if all(getattr(before, name) == value for name, value in facts.items()):
                return
            now = self._clock()
            began = any(facts.get(name, getattr(before, name)) != getattr(before, name) for name in ("doing", "round"))
            self.now = replace(before, **facts, changed=now, since=now if began else before.since)
        if self.now.doing == ENDED:
            self._pace.now()
        else:
            self._pace.due()

    def _write(self) -> None:
        _write(self._path, self.now)


_OVER: dict[str, Any] = {"retrying": "", "retrying_until": None}


@contextlib.contextmanager
def state_file(folder: Path, *, site: str, role: Role, interval_s: float = INTERVAL_S) -> Iterator[StateWriter]:
    """Keep the state file in the existing ``folder`` until the block ends; the state then says how it ended."""
    state = StateWriter(folder, site, role, interval_s=interval_s)
    try:
        yield state
    except KeyboardInterrupt:
        state.set(ENDED, error=INTERRUPTED, **_OVER)
        raise
    except BaseException as error:
        # Another error's text may hold anything.
        words = (str(error), error.hint) if isinstance(error, SecureFdaError) else (type(error).__name__, "")
        state.set(ENDED, error=words[0], hint=words[1], **_OVER)
        raise
    state.set(ENDED, error="", **_OVER)


def rename_cause(folder: Path, error: str, hint: str) -> None:
    """Replace the reported cause in the state of a process that has ended, for a starter that knows it better.

    A state that cannot be read, or of a process that has not ended, stays as it is.
    """
    with contextlib.suppress(ConfigError):
        state = read_state(folder)
        if state is not None and state.doing == ENDED:
            _write(folder / STATE_FILE, replace(state, error=error, hint=hint))


def _write(path: Path, state: ProcessState) -> None:
    data = json.dumps({name: getattr(state, name) for name in _FIELDS}, ensure_ascii=False).encode() + b"\n"
    partial = path.with_name(f".{STATE_FILE}.{os.getpid()}")
    with contextlib.suppress(OSError):
        partial.write_bytes(data)
        partial.replace(path)  # a reader finds the old state or the new; after a power cut nobody needs it


_STATE = TypeAdapter(ProcessState)


def read_state(folder: Path) -> ProcessState | None:
    """Read the state that a process keeps in its run folder; None if there is none.

    Raises:
        ConfigError: the file cannot be read, or is not as a process writes it.
    """
    path = folder / STATE_FILE
    if not path.exists():
        return None
    try:
        data = read_file(path).data
        value = json_value(data)
        if why := PROCESS_STATE.why_not_of(data):
            raise ConfigError(str(path), why, hint="use the version of securefda that the process runs")
        return _STATE.validate_python(value)
    except ValidationError as error:
        key = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))[:100]
        raise ConfigError(str(path), f"{key or 'it'} is not as a process writes it") from None
    except ValueError as error:
        raise ConfigError(str(path), f"is not JSON: {error}") from None


def round_of(number: int, rounds: int) -> str:
    """Return ``5 of 30``, or ``5`` if the total is not known."""
    return f"{number} of {rounds}" if rounds else str(number)


def clock(unix_s: float, now: float) -> str:
    """Return a local time of day: with seconds within ten minutes of ``now``, with the date if it is another day."""
    then, today = datetime.fromtimestamp(unix_s).astimezone(), datetime.fromtimestamp(now).astimezone()
    if abs(unix_s - now) < _SECONDS_MATTER_S:
        return f"{then:%H:%M:%S}"
    return f"{then:%H:%M}" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M}"


def retrying_text(what: str, until: float | None, now: float) -> str:
    """Return for example ``cannot reach clinic.example.org:8443: connection refused; retrying until 04:31``."""
    return what if until is None else f"{what}; retrying until {clock(until, now)}"


_DEAD = "dead"


def _start_of(process: int) -> str:
    """Return the start time of a process as its system counts it, to tell it from a later one with the same id."""
    if sys.platform == "linux":
        try:
            # The name of the program comes second, in brackets, and may hold blanks and brackets itself.
            fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return _DEAD if fields[0] == "Z" else f"{boot} {fields[19]}"  # its parent has not looked at it yet
        except (OSError, IndexError):
            return ""
    try:
        command = ["/bin/ps", "-o", "lstart=", "-p", str(process)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=5).stdout.strip()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""


@dataclass(frozen=True, slots=True)
class FoundState:
    """A state that was found.

    Attributes:
        folder: in which it lies.
        state: of the process.
        runs: run folders of the kit among which this one was chosen; 1 where there was no choice.
    """

    folder: Path
    state: ProcessState
    runs: int = 1

    def lines(self, now: float) -> list[str]:
        """Describe the state as :meth:`ProcessState.lines` does, and name the folder where there are several."""
        lines = self.state.lines(now)
        if self.runs > 1:
            which = "goes on" if self.state.is_running else "changed last"
            lines.append(f"  in {self.folder}, which {which} of {self.runs} run folders of this kit")
        return lines


def find_states(place: Path, env: Mapping[str, str]) -> list[FoundState]:
    """Find the states in a run folder and its sites' folders, or of the process with a kit or settings file.

    Of a kit with several runs, in the folder that its settings name and beside it in ``local/``, those that go on are
    found; where none does, the one whose state changed last.

    Args:
        place: a run folder, a startup kit, or the settings file of a site's process.
        env: environment variables, for settings.

    Returns:
        At least one.

    Raises:
        ConfigError: there is none, or what there is cannot be read.
    """
    settings = place if place.is_file() else place / LOCAL / SETTINGS_FILE
    if settings.is_file():
        out, kit = _folders(settings, env)
        if states := states_of_kit(kit, out):
            return states
        hint = (
            "a process that was started just now says it after some seconds; "
            f"was it started with --out? then name that folder; else it would be in {out}"
        )
        raise ConfigError(str(place), "no process has said here what it does", hint=hint)
    hint = "name the run folder of a process, its startup kit or its settings file"
    if not place.is_dir():
        raise ConfigError(str(place), "is neither a folder nor a file", hint=hint)
    folders = [place, *sorted(path for path in (place / SITES_FOLDER).glob("*") if path.is_dir())]
    states = [FoundState(folder, state) for folder in folders if (state := read_state(folder)) is not None]
    if not states:
        raise ConfigError(str(place), "no process has said here what it does", hint=hint)
    return states


def states_of_kit(kit: Path, out: Path) -> list[FoundState]:
    """Find the states in the run folder that a kit's settings name, and in those beside it in ``local/``.

    Returns:
        Those of processes that go on; where none does, the one that changed last, if there is any.

    Raises:
        ConfigError: what there is cannot be read.
    """
    folders = {folder.resolve(): folder for folder in [file.parent for file in (kit / LOCAL).glob(f"*/{STATE_FILE}")]}
    folders[out.resolve()] = out
    states: list[tuple[Path, ProcessState]] = []
    damaged: list[ConfigError] = []
    for folder in folders.values():
        try:
            state = read_state(folder)
        except ConfigError as error:  # perhaps of a run long ago, by another version
            damaged.append(error)
        else:
            states += [] if state is None else [(folder, state)]
    if not states:
        if damaged:
            raise damaged[0]
        return []
    going_on = [one for one in states if one[1].is_running]
    chosen = going_on or [max(states, key=lambda one: one[1].changed)]
    return [FoundState(folder, state, len(states)) for folder, state in chosen]


def require_ended(run: Path) -> None:
    """Check that no process of this machine is using a run folder.

    Raises:
        ConfigError: one does.
    """
    folders = [run, *sorted((run / SITES_FOLDER).glob("*"))]
    states = [state for folder in folders if folder.is_dir() and (state := read_state(folder)) is not None]
    if running := [f"{state.site} (process {state.process})" for state in states if state.is_running]:
        raise ConfigError(str(run), f"is in use by {', '.join(running)}", hint="end the run first, with Ctrl-C")


def _folders(settings: Path, env: Mapping[str, str]) -> tuple[Path, Path]:
    """Return the run folder and the kit that a settings file names."""
    if "aggregator" in read_toml(settings):
        aggregator = load_aggregator(settings, (), env).aggregator
        return aggregator.out, aggregator.kit
    source = load_source(settings, (), env).source
    return source.out, source.kit
