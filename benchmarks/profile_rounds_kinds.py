"""Times from inside what a site's process does in each round: processor time by kind of work, and counts.

`profile_rounds.py` has every process of a run do this, in any tree whose names are in the tables below: it imports
nothing of the package by itself. Nothing is sampled. Each call of these functions is timed on the clock of its thread,
and what is called inside another kind's call counts once, as its own. What the event loop's thread does beside them is
transport, and so is all that threads do which Python has not started: gRPC's, with TLS.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from shares import Shares

_SESSION = {
    "source": "advertise receive_key_list receive_shares masked_input receive_survivors receive_consistency "
    "receive_result",
    "aggregator": "open_session add_advertise close_keys add_shares close_shares add_input close_inputs add_signature "
    "close_signatures add_unmask close_unmask",
}


def _each(place: str, names: str) -> tuple[str, ...]:
    return tuple(f"{place}{name}" for name in names.split())


TIMED: dict[str, tuple[str, ...]] = {
    "training": (
        *_each("securefda.training.trainer:SiteTrainer.", "train evaluate"),
        *_each("securefda.rounds.site:SiteTrainer.", "train evaluate"),
    ),
    "rule": (
        *_each(
            "securefda.source.rounds:",
            "aligned_update contribution_at_source clip_contribution norm_report capped_input",
        ),
        *_each("securefda.aggregator.model:", "total_of update_of"),
        "securefda.aggregator.attempt:ClearAttempt._evaluate",
        *_each(
            "securefda.rounds.source_round:",
            "aligned_update contribution_at_source clip_contribution row_of _encoded",
        ),
        *_each("securefda.rounds.run_model:", "total_of update_of"),
        "securefda.rounds.clear_attempt:ClearAttempt._evaluate",
    ),
    "masking": (
        *_each("securefda.protocol.source:", _SESSION["source"]),
        *_each("securefda.protocol.aggregator:", _SESSION["aggregator"]),
        *_each("securefda.secagg.source:", _SESSION["source"]),
        *_each("securefda.secagg.aggregator:", _SESSION["aggregator"]),
        *("securefda.protocol.masking:_add_to_segment", "securefda.secagg.prg:_add_to_segment"),  # in threads, too
    ),
    "signatures": (
        *_each("securefda.protocol.envelope:", "sign_bytes signature_is_valid"),
        *_each("securefda.secagg.signatures:", "sign_bytes signature_is_valid"),
        *_each("securefda.audit.notes:", "sign cosign check_signature"),
    ),
    "encoding": (
        *_each(
            "securefda.transport.wire:",
            "encode decode encode_signed decode_signed signed_to_proto signed_from_proto refuse_unknown_fields",
        ),
        "securefda.audit.records:encode_record",
        *_each("json:", "dumps loads"),
    ),
    "records": (
        *_each("securefda.audit.journal:", "Journal.append Journal.event Journal.keep MessageRecorder.__call__"),
        *_each("securefda.rounds.journal:", "Journal.append Journal.event Journal.keep"),
        "securefda.transport.recorder:MessageRecorder.__call__",
    ),
    "witnessing": (
        *_each(
            "securefda.audit.witness:Witness.",
            "renew show cosign take check_previous_checkpoint",
        ),
        *_each("securefda.rounds.witness:Witness.", "renew show cosign take check_header"),
        *_each("securefda.audit.journal:Journal.", "checkpoint save cosigned proof"),
        *_each("securefda.rounds.journal:Journal.", "checkpoint save cosigned proof"),
    ),
    "disk": ("os:fsync",),
}
"""Kind -> its functions, as ``module:name``. A tree has those of one set of places; SQLite is timed as ``disk``."""

COUNTED: dict[str, tuple[str, ...]] = {
    "messages": (
        "securefda.audit.journal:MessageRecorder.__call__",
        "securefda.transport.recorder:MessageRecorder.__call__",
    ),
    "frames": ("securefda.transport.delivery:Link._frame",),
    "bare acknowledgements": ("securefda.transport.delivery:Link.heartbeat",),
    "signatures made": (
        *_each("securefda.protocol.envelope:", "sign_bytes"),
        *_each("securefda.secagg.signatures:", "sign_bytes"),
        *_each("securefda.audit.notes:", "sign cosign"),
    ),
    "signatures checked": (
        *_each("securefda.protocol.envelope:", "signature_is_valid"),
        *_each("securefda.secagg.signatures:", "signature_is_valid"),
        *_each("securefda.audit.notes:", "check_signature"),
    ),
    "records": ("securefda.audit.records:encode_record",),
    "fsyncs": ("os:fsync",),
    "threads started": ("threading:Thread.start",),
}
"""Count -> the functions whose calls it counts; of SQLite, ``commits`` counts transactions."""

SWITCHES = ("waits", "preemptions")
"""How often the kernel switched to another thread because this one waited, or because its time was over."""

MARKS = (
    "securefda.aggregator.run:AggregatorRun._begin_round",
    *_each("securefda.source.run:SourceRun.", "_start_round _end"),
    "securefda.rounds.run:AggregatorRun._begin_round",
    *_each("securefda.rounds.source:SourceRounds.", "_start_round _end"),
)
"""Where a round begins, and with it the one before ends; at a source it ends with the header of the next."""

_IN_THREAD = ("securefda.transport.event_loop:in_thread", "securefda.transport.offload:in_thread")
_WORK = "rest of the work"
"""What runs beside the event loop, but for the kinds above."""


class Profile:
    """Times and counts in this process, as they stood whenever a round began."""

    def __init__(self) -> None:
        self.work, self.wall = Shares("thread_time"), Shares("perf_counter")
        self.counts: Counter[str] = Counter()
        self.marks: list[dict[str, Any]] = []
        self.found: list[str] = []
        self._one_at_a_time = threading.Lock()
        self._loop = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
        self._on_loop = Shares("thread_time")

    def begin(self) -> None:
        """Have everything timed and counted, from now on."""
        for count, places in COUNTED.items():
            self._replace(places, lambda work, count=count: self.counted(count, work))
        for kind, places in TIMED.items():
            self._replace(places, lambda work, kind=kind: self.timed(kind, work))
        self._replace(_IN_THREAD, self._timed_work)
        self._replace(MARKS, self.marking)
        connect = sqlite3.connect
        sqlite3.connect = lambda *args, **options: connect(*args, **options, factory=_connection(self))  # type: ignore[assignment]

    def timed(self, kind: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; what it takes on the event loop's thread is known, too, to be taken from transport."""
        everywhere = self.wall.timed(kind, self.work.timed(kind, work))
        on_loop = self._on_loop.timed(kind, everywhere)

        @wraps(work)
        def timed(*args: Any, **options: Any) -> Any:
            there = threading.current_thread() is threading.main_thread()
            return (on_loop if there else everywhere)(*args, **options)

        return timed

    def counted(self, count: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its calls counted."""

        @wraps(work)
        def counted(*args: Any, **options: Any) -> Any:
            self.count(count)
            return work(*args, **options)

        return counted

    def count(self, what: str) -> None:
        """One more of these."""
        with self._one_at_a_time:
            self.counts[what] += 1

    def marking(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, before which a round begins."""

        @wraps(work)
        def marking(*args: Any, **options: Any) -> Any:
            self.marks.append(self._now())
            return work(*args, **options)

        return marking

    def _now(self) -> dict[str, Any]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        switches = dict(zip(SWITCHES, (usage.ru_nvcsw, usage.ru_nivcsw), strict=True))
        on_loop = sum(self._on_loop.seconds.values())
        return {
            "wall": time.perf_counter(),
            "processor": time.process_time(),
            "loop": time.clock_gettime(self._loop) - on_loop,
            "work": dict(self.work.seconds),
            "waited": dict(self.wall.seconds),
            "counts": dict(self.counts) | switches,
        }

    def _timed_work(self, in_thread: Callable[[Callable[[], Any]], Any]) -> Callable[[Callable[[], Any]], Any]:
        return lambda work: in_thread(self.timed(_WORK, work))

    def _replace(self, places: Iterable[str], by: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put another function in the place of each that this tree has, under every name that modules have for it."""
        for place in places:
            module_name, _, name = place.partition(":")
            try:
                owner: Any = import_module(module_name)
                *outer, last = name.split(".")
                for part in outer:
                    owner = getattr(owner, part)
                before = getattr(owner, last)
            except (ImportError, AttributeError):
                continue
            self.found.append(place)
            after = by(before)
            setattr(owner, last, after)
            for module in list(sys.modules.values()) if not outer else ():
                if getattr(module, "__name__", "").startswith("securefda") and vars(module).get(last) is before:
                    setattr(module, last, after)

    def rounds(self) -> list[dict[str, Any]]:
        """Of each round that has ended, what it took: seconds, and counts."""
        return [_difference(after, before) for before, after in zip(self.marks, self.marks[1:], strict=False)]


def _difference(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {key: value[key] - before[name].get(key, 0) for key in value}
        if isinstance(value, dict)
        else value - before[name]
        for name, value in after.items()
    }


def _connection(profile: Profile) -> type[sqlite3.Connection]:
    """A connection whose statements are timed as ``disk`` and whose transactions are counted."""
    execute = profile.timed("disk", sqlite3.Connection.execute)

    class Timed(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:  # type: ignore[override]
            if sql == "COMMIT":
                profile.count("commits")
            cursor: sqlite3.Cursor = execute(self, sql, *args)
            return cursor

    return Timed


def start() -> None:
    """Profile this process; what it found is in the folder ``SECUREFDA_PROFILE`` when it has ended."""
    profile = Profile()
    profile.begin()
    atexit.register(_leave, profile)


def _leave(profile: Profile) -> None:
    text = json.dumps({"command": sys.argv, "found": profile.found, "rounds": profile.rounds()})
    (Path(os.environ["SECUREFDA_PROFILE"]) / f"{os.getpid()}.json").write_text(text)
