"""Times what a process does in each round from inside.

Every process of a measured run starts this when it imports the task, and writes what it found when it ends.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from securefda.aggregator import model
from securefda.aggregator.clear_updates import ClearUpdates
from securefda.aggregator.run import AggregatorRun
from securefda.audit.journal import Journal, MessageRecorder
from securefda.audit.witness import Witness
from securefda.protocol import aggregator_session as aggregator_steps
from securefda.protocol import source_session as source_steps
from securefda.site.private_trainer import PrivateTrainer
from securefda.source import source_round
from securefda.source.source_run import SourceRun
from securefda.training.trainer import SiteTrainer

_MASKING = {
    source_steps: (
        "advertise",
        "receive_key_list",
        "receive_shares",
        "masked_input",
        "receive_survivors",
        "receive_consistency",
        "receive_result",
    ),
    aggregator_steps: (
        "open_session",
        "add_advertise",
        "close_keys",
        "add_shares",
        "close_shares",
        "add_input",
        "close_inputs",
        "add_signature",
        "close_signatures",
        "add_unmask",
        "close_unmask",
    ),
}
_RULE = {
    source_round: ("aligned_update", "contribution_at_source", "capped_and_encoded"),
    ClearUpdates: ("_evaluate",),
    model: ("round_total", "round_update"),
}
TIMED: dict[str, dict[Any, tuple[str, ...]]] = {
    "masking": _MASKING,
    "rule": _RULE,
    "training": {SiteTrainer: ("train", "evaluate")},
    "dp": {PrivateTrainer: ("train",)},
    "logging": {Journal: ("append", "event"), MessageRecorder: ("_keep", "_entry")},
    "witnessing": {
        Witness: ("renew", "show", "cosign", "take", "check_previous_checkpoint"),
        Journal: ("save",),
    },
}
"""Kind -> module or class -> its functions."""

MARKS = ((AggregatorRun, ("_begin_round",)), (SourceRun, ("_start_round", "_end")))
"""Where a round begins, and with it the one before ends; at a source it ends with the header of the next."""


class _Thread(threading.local):
    """What one thread is in: for each call that it has not left, the seconds of the calls inside that one."""

    def __init__(self) -> None:
        self.inner: list[float] = []


class RoundShares:
    """Seconds by kind as they stood whenever a round began.

    What is called inside another kind's call counts once, as its own. Each thread has its own stack of calls.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.marks: list[dict[str, Any]] = []
        self._thread = _Thread()
        self._one_at_a_time = threading.Lock()

    def timed(self, kind: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        @wraps(work)
        def timed(*args: Any, **options: Any) -> Any:
            inner = self._thread.inner
            inner.append(0.0)
            began = time.perf_counter()
            try:
                return work(*args, **options)
            finally:
                whole = time.perf_counter() - began
                own = whole - inner.pop()
                if inner:
                    inner[-1] += whole
                with self._one_at_a_time:
                    self.seconds[kind] += own

        return timed

    def marking(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, before which the clocks are read."""

        @wraps(work)
        def marking(*args: Any, **options: Any) -> Any:
            now = {"at": time.perf_counter(), "processor": time.process_time(), "seconds": dict(self.seconds)}
            self.marks.append(now)
            return work(*args, **options)

        return marking

    def time_everything(self) -> None:
        """Have the calls of this process timed, from now on."""
        for kind, owners in TIMED.items():
            for owner, names in owners.items():
                for name in names:
                    setattr(owner, name, self.timed(kind, getattr(owner, name)))
        for owner, names in MARKS:
            for name in names:
                setattr(owner, name, self.marking(getattr(owner, name)))

    def rounds(self) -> list[dict[str, Any]]:
        """Of each round that has ended: wall time, processor time, and seconds by kind."""
        return [
            {
                "wall": after["at"] - before["at"],
                "processor": after["processor"] - before["processor"],
                "seconds": {kind: total - before["seconds"].get(kind, 0.0) for kind, total in after["seconds"].items()},
            }
            for before, after in zip(self.marks, self.marks[1:], strict=False)
        ]


def start() -> None:
    """Time this process; what it found is in the folder ``SECUREFDA_SHARES`` when it has ended."""
    shares = RoundShares()
    shares.time_everything()
    atexit.register(_leave, shares)


def _leave(shares: RoundShares) -> None:
    text = json.dumps({"command": sys.argv, "rounds": shares.rounds()})
    (Path(os.environ["SECUREFDA_SHARES"]) / f"{os.getpid()}.json").write_text(text)
