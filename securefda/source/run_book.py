"""A site's record of all its runs: their ids, every session, and the rounds that ended without a result.

A run folder knows only its own run, and an aggregator could begin a new run for each of its questions. So this file
lies in the site's kit, one for all folders. Its counts are on the disk before anything of a round leaves the site.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from securefda.errors import FaultyAggregatorError, PolicyRefusal
from securefda.formats import RUN_BOOK
from securefda.protocol.messages import Header, Signed
from securefda.site.policy.schema import ReleaseLimits
from securefda.state_file import StateFile

RUNS, UNFINISHED = "release.max-runs", "release.max-unfinished"
"""Policy keys whose refusal ends a source's part in a run: too many runs, or too many rounds without a result."""

ACCEPT_RUN = "securefda source start --accept-run"
_DAY_S = 86_400
_TABLES = """
CREATE TABLE IF NOT EXISTS runs (run_id BLOB PRIMARY KEY, state TEXT NOT NULL, began_unix_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS sessions (session_id BLOB PRIMARY KEY, run_id BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS unfinished (
    run_id BLOB NOT NULL, round INTEGER NOT NULL, for_good INTEGER NOT NULL, PRIMARY KEY (run_id, round)
);
"""


def run_book_file(kit: Path) -> Path:
    """Path of a site's run book, in its kit."""
    return kit / "local" / "runs.sqlite"


class RunBook(StateFile):
    """The run book of one site. Several processes of the site can use it at once.

    Args:
        path: of the file.
        limits: of the site's policy.
        accept_run: the operator's consent, for this process: one run beyond release.max-runs may begin, and all
            unfinished rounds so far are forgiven.
        unix_time: clock, in seconds.
    """

    _other_release = "use the release that made it"
    _busy = "start again; if it happens again, stop the other processes of this site"

    def __init__(
        self,
        path: Path,
        limits: ReleaseLimits,
        *,
        accept_run: bool = False,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(path, _TABLES, RUN_BOOK, exclusive=False)
        self._limits, self._unix_time = limits, unix_time
        self._may_begin_one_more = accept_run
        if accept_run:
            with self._transaction() as database:
                database.execute("DELETE FROM unfinished")

    def has_session(self, session_id: bytes) -> bool:
        """Whether a header of this session was accepted before, in any run."""
        self._process.require_original()
        with self._clear_errors():
            query = "SELECT 1 FROM sessions WHERE session_id = ?"
            return self._database.execute(query, (session_id,)).fetchone() is not None

    def require_open(self, run_id: bytes, state: str, round_number: int | None = None) -> None:
        """Refuse a run, or a round, that the release limits of the policy do not allow.

        Args:
            run_id: 16 bytes.
            state: identity of the state file in this run's folder.
            round_number: of the round that is asked for; None before the first header, when the site joins.

        Raises:
            PolicyRefusal: release.max-runs, the run would be one too many in 24 hours, or too many runs have begun
                after it; or release.max-unfinished.
            FaultyAggregatorError: HEADER_RUN, the run began in another folder, which blames nobody.
        """
        self._process.require_original()
        with self._clear_errors():
            self._require_open(self._database, run_id, state, round_number)

    def begin_attempt(self, header: Signed[Header], state: str) -> None:
        """Record that an attempt begins, before anything of it leaves.

        Raises:
            PolicyRefusal, FaultyAggregatorError: as :meth:`require_open`; or HEADER_REPLAY, another process of the site
                has meanwhile accepted the session in another run.
        """
        run_id, number, session = header.body.run_id, header.body.round, header.envelope.session_id
        with self._transaction() as database:
            is_one_more = self._require_open(database, run_id, state, number)
            # With the operator's consent the run begins again, and counts from now.
            remember = "INSERT OR REPLACE" if is_one_more else "INSERT OR IGNORE"
            database.execute(f"{remember} INTO runs VALUES (?, ?, ?)", (run_id, state, self._unix_time()))
            database.execute("INSERT OR IGNORE INTO sessions VALUES (?, ?)", (session, run_id))
            (owner,) = database.execute("SELECT run_id FROM sessions WHERE session_id = ?", (session,)).fetchone()
            if owner != run_id:
                raise FaultyAggregatorError("HEADER_REPLAY", "this session id was used before, in another run")
            # Unfinished from the first, and taken off by its result: a site that is killed in between has counted it.
            database.execute("INSERT OR IGNORE INTO unfinished VALUES (?, ?, 0)", (run_id, number))
        self._may_begin_one_more = self._may_begin_one_more and not is_one_more

    def result_accepted(self, run_id: bytes, round_number: int) -> None:
        """Record that a round had a result. This also forgives the oldest unfinished round, but no more than one.

        A power cut before the next attempt can undo the record; the round then counts as unfinished.
        """
        with self._transaction(durable=False) as database:
            own = "DELETE FROM unfinished WHERE (run_id, round, for_good) = (?, ?, 0)"
            database.execute(own, (run_id, round_number))
            # Not all of them: every result would then buy as many questions as may fail in a row (decision 0001).
            oldest = "DELETE FROM unfinished WHERE rowid = (SELECT min(rowid) FROM unfinished WHERE for_good = 0)"
            database.execute(oldest)

    def keep_unfinished(self, run_id: bytes, round_number: int) -> None:
        """Record that an unfinished round stays one: no result forgives it, only the operator can."""
        with self._transaction() as database:
            this = "UPDATE unfinished SET for_good = 1 WHERE (run_id, round) = (?, ?)"
            database.execute(this, (run_id, round_number))

    def knows(self, run_id: bytes) -> bool:
        """Whether the site took part in this run."""
        self._process.require_original()
        with self._clear_errors():
            query = "SELECT 1 FROM runs WHERE run_id = ?"
            return self._database.execute(query, (run_id,)).fetchone() is not None

    def _require_open(self, database: sqlite3.Connection, run_id: bytes, state: str, round_number: int | None) -> bool:
        """Whether the run is open only by the operator's consent; raises if it is not open at all."""
        known = database.execute("SELECT state, rowid FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        if known is not None and known[0] != state:
            error = FaultyAggregatorError("HEADER_RUN", "this site has begun this run in another folder", blames=False)
            error.hint = "start with the folder that the run began in (source.out, or --out)"
            raise error
        if known is None or round_number is not None:  # a site that rejoins may be asked again for its round
            others = "SELECT count(*) FROM unfinished WHERE (run_id, round) != (?, ?)"
            (unfinished,) = database.execute(others, (run_id, round_number or 0)).fetchone()
            if unfinished >= self._limits.max_unfinished:
                asked = f"one more round after {unfinished} that came to no result"
                hint = f"ask the target's site; where it was this site that was stopped or too slow: {ACCEPT_RUN}"
                raise PolicyRefusal(UNFINISHED, asked, f"{self._limits.max_unfinished} of them", hint=hint)
        if known is not None:
            # By rowid, which is new where a run began again: runs of earlier days must not stay
            # open beside today's (decision 0001).
            (later,) = database.execute("SELECT count(*) FROM runs WHERE rowid > ?", (known[1],)).fetchone()
            if later < max(1, self._limits.max_runs):
                return False
            asked = f"run {run_id.hex()[:12]} again, though {later} began after it"
        else:
            since = self._unix_time() - _DAY_S
            (today,) = database.execute("SELECT count(*) FROM runs WHERE began_unix_s > ?", (since,)).fetchone()
            if today < self._limits.max_runs:
                return False
            asked = f"run {run_id.hex()[:12]}, after {today} in 24 hours"
        if not self._may_begin_one_more:
            hint = f"where this site means to take part in one more: {ACCEPT_RUN}"
            raise PolicyRefusal(RUNS, asked, f"{self._limits.max_runs}", hint=hint)
        return True
