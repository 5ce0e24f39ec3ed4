"""A source's memory of its run: where it stands, which updates may have left, which results it accepted.

No key, share, mask or update is in it. A model of the site's own may be, where the strategy has one: it never leaves,
and only the owner can read the file. Every change is on disk before the call returns.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from securefda.errors import ConfigError
from securefda.protocol.checks import History, PastResult
from securefda.protocol.messages import Header, Signed
from securefda.protocol.transcript import round_terms
from securefda.run_store import RunStore
from securefda.source.model_bound import AcceptedHeader, Known, TakenResult, TrainedFrom, Units
from securefda.source.run_book import RunBook
from securefda.state_file import ReleaseMarker
from securefda.training import Vector

_PIECE = 1 << 16
"""Bytes of a model that are read or written at once: as one value it would be copied as a whole, in memory."""

_TABLES = """
CREATE TABLE origin (id INTEGER PRIMARY KEY CHECK (id = 0), file_number TEXT NOT NULL);
CREATE TABLE positions (
    run_id BLOB PRIMARY KEY, round INTEGER NOT NULL, attempt INTEGER NOT NULL, terms BLOB NOT NULL,
    number INTEGER NOT NULL, previous BLOB NOT NULL, model_digest BLOB NOT NULL, session_id BLOB NOT NULL,
    digest BLOB NOT NULL, answered INTEGER NOT NULL
);
CREATE TABLE trained (
    id INTEGER PRIMARY KEY, run_id BLOB NOT NULL UNIQUE, number INTEGER NOT NULL, units BLOB NOT NULL,
    model BLOB NOT NULL
);
CREATE TABLE fuses (run_id BLOB NOT NULL, round INTEGER NOT NULL, PRIMARY KEY (run_id, round));
CREATE TABLE results (
    run_id BLOB NOT NULL, round INTEGER NOT NULL, digest BLOB NOT NULL, model_digest BLOB NOT NULL,
    number INTEGER NOT NULL, session_id BLOB NOT NULL, context BLOB NOT NULL, PRIMARY KEY (run_id, round)
);
"""


class SourceStore(RunStore):
    """A source's memory across restarts: its run, the last position in it, burnt fuses, accepted results.

    ``runs`` is what the site remembers beyond this folder; it is closed with the store.

    Raises:
        ConfigError: another process uses the file; or it was copied, put back from a backup or deleted after updates
            had left, so that it may not know of all of them.
        SecureFdaError: the disk cannot be written.
        CopiedProcess: from every method but ``close``, in a copy of the process that opened the file.
    """

    _page_bytes = 65536  # a model of 4 MB is written in 10 ms, and in pages of 4 KB in 80

    def __init__(self, path: Path, runs: RunBook) -> None:
        self._runs, self._marker = runs, ReleaseMarker(path)
        super().__init__(path, _TABLES)

    def close(self) -> None:
        """Close both files when no thread is in them."""
        super().close()
        self._runs.close()

    def _before_first_use(self) -> str:
        self._marker.begin()
        return f"INSERT INTO origin VALUES (0, '{self._file_number}');"  # noqa: S608 - digits and a dot

    def _before_next_use(self) -> None:
        (number,) = self._database.execute("SELECT file_number FROM origin").fetchone()
        self._marker.check(self._releases(), number, self._file_number)
        for (run_id,) in self._database.execute("SELECT run_id FROM positions").fetchall():
            if not self._runs.knows(run_id):  # it is written there first
                raise ConfigError(
                    str(self._runs.path),
                    f"was deleted or put back from a backup: it lacks run {run_id.hex()[:12]}, which this site joined",
                    hint="put the newest copy of it back; without one, name a new --out folder",
                )

    @property
    def file_id(self) -> str:
        """What the file system calls the file: another one for every folder, the same as long as this one is used."""
        return self._file_number

    def _releases(self) -> int:
        (count,) = self._database.execute("SELECT count(*) FROM fuses").fetchone()
        return int(count)

    def require_open(self, run_id: bytes) -> None:
        """Refuse a run in which this site takes no further part.

        Raises:
            ConfigError: this folder is that of another run.
            PolicyRefusal, FaultyAggregatorError: as :meth:`RunBook.require_open`.
        """
        self._process.require_original()
        with self._clear_errors():
            other = self._other_run(run_id)
        if other is not None:
            raise ConfigError(
                str(self._path.parent),
                f"this folder belongs to run {other.hex()[:12]}, and the aggregator is in run {run_id.hex()[:12]}",
                hint="where this site means to take part in that run too, name another folder: --out FOLDER",
            )
        self._runs.require_open(run_id, self._file_number)

    def history(self, session_id: bytes, run_id: bytes, round_number: int) -> History:
        """What the header checks need to know about this session, run and round."""
        self._process.require_original()
        with self._clear_errors():
            query = self._database.execute
            position = query("SELECT round, attempt, terms FROM positions WHERE run_id = ?", (run_id,)).fetchone()
            fuse = query("SELECT 1 FROM fuses WHERE run_id = ? AND round = ?", (run_id, round_number)).fetchone()
            other_run = self._other_run(run_id)
            results = query(
                "SELECT round, digest, model_digest FROM results WHERE run_id = ? ORDER BY round", (run_id,)
            ).fetchall()
        past = tuple(PastResult(*row) for row in results)
        return History(
            session_seen=self._runs.has_session(session_id),
            last_position=position and position[:2],
            last_terms=position and position[2],
            released=bool(fuse),
            results=past,
            other_run=other_run is not None,
        )

    def _other_run(self, run_id: bytes) -> bytes | None:
        """The run that this folder belongs to, where that is another one than ``run_id``."""
        query = "SELECT run_id FROM positions WHERE run_id != ?1 UNION SELECT run_id FROM fuses WHERE run_id != ?1"
        row = self._database.execute(query, (run_id,)).fetchone()
        return None if row is None else bytes(row[0])

    def known(self, run_id: bytes) -> Known:
        """Which result of the run was accepted last, and which header."""
        self._process.require_original()
        with self._clear_errors():
            taken = self._database.execute(
                "SELECT round, number, digest, model_digest, session_id, context FROM results WHERE run_id = ? "
                "ORDER BY round DESC LIMIT 1",
                (run_id,),
            ).fetchone()
            accepted = self._database.execute(
                "SELECT round, number, previous, model_digest, session_id, digest, answered FROM positions "
                "WHERE run_id = ?",
                (run_id,),
            ).fetchone()
        return Known(taken and TakenResult(*taken), accepted and AcceptedHeader(*accepted))

    def trained_from(self, run_id: bytes) -> TrainedFrom | None:
        """The model that this site trained from last in the run; None before it has."""
        self._process.require_original()
        with self._clear_errors():
            query = "SELECT id, number, units, length(model) FROM trained WHERE run_id = ?"
            row = self._database.execute(query, (run_id,)).fetchone()
            if row is None:
                return None
            model = np.zeros(row[3] // 4, "<f4")
            place = model.data.cast("B")
            with self._database.blobopen("trained", "model", row[0], readonly=True) as blob:
                for start in range(0, len(place), _PIECE):
                    place[start : start + _PIECE] = blob.read(_PIECE)
        return TrainedFrom(row[1], model.astype(np.float32, copy=False), tuple(np.frombuffer(row[2], "<f8").tolist()))

    def remember_trained(self, run_id: bytes, number: int, model: Vector, units: Units) -> None:
        """Remember what was trained from, and the largest units; on the disk before the next fuse is burnt.

        A power cut before that can undo it; then nothing of this training has left.
        """
        measured = np.array(units, dtype="<f8").tobytes()
        with self._transaction(durable=False) as database:
            known = database.execute("SELECT number FROM trained WHERE run_id = ?", (run_id,)).fetchone()
            if known == (number,):
                database.execute("UPDATE trained SET units = ? WHERE run_id = ?", (measured, run_id))
                return
            data = np.ascontiguousarray(model, dtype="<f4").data.cast("B")
            database.execute("DELETE FROM trained WHERE run_id = ?", (run_id,))
            query = "INSERT INTO trained (run_id, number, units, model) VALUES (?, ?, ?, zeroblob(?))"
            row = database.execute(query, (run_id, number, measured, len(data))).lastrowid
            with database.blobopen("trained", "model", row or 0) as blob:
                for start in range(0, len(data), _PIECE):
                    blob.write(data[start : start + _PIECE])

    def accept_header(self, header: Signed[Header], number: int = 0) -> None:
        """Remember a header, so that neither it nor an earlier position nor another run is ever accepted again.

        ``number`` is that of its model, see :mod:`securefda.source.model_bound`.

        Raises:
            PolicyRefusal, FaultyAggregatorError: as :meth:`RunBook.require_open`; then nothing is remembered.
        """
        body = header.body
        self._runs.begin_attempt(header, self._file_number)
        with self._transaction() as database:
            place = (body.run_id, body.round, body.attempt, round_terms(body))
            model = (number, body.previous_result_digest, body.model_digest)
            row = (*place, *model, header.envelope.session_id, header.digest(), False)
            database.execute("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def answered(self, run_id: bytes) -> None:
        """Remember that the last answer of the session leaves, after which only its result is to come.

        A power cut can undo it; then the receipts of others have to tell of the result.
        """
        with self._transaction(durable=False) as database:
            database.execute("UPDATE positions SET answered = 1 WHERE run_id = ?", (run_id,))

    def never_paid(self, run_id: bytes, round_number: int) -> None:
        """As :meth:`RunBook.never_paid`."""
        self._runs.never_paid(run_id, round_number)

    def burn_fuse(self, run_id: bytes, round_number: int) -> None:
        """Write that this round's update may leave now; a second time for one round is refused.

        Raises:
            SecureFdaError: it was burnt before, or cannot be written; nothing may leave then.
        """
        with self._transaction() as database:
            database.execute("INSERT INTO fuses VALUES (?, ?)", (run_id, round_number))
        with self._clear_errors():
            self._marker.advance(self._releases())

    def record_result(self, run_id: bytes, result: TakenResult) -> None:
        """Remember a result that was accepted; the next header must continue it."""
        with self._transaction() as database:
            row = (run_id, result.round, result.digest, result.model_digest)
            database.execute(
                "INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*row, result.number, result.session_id, result.context),
            )
        self._runs.result_accepted(run_id, result.round)
