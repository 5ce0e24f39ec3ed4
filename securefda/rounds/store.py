"""What a process must remember of its run when it is killed: a file in each site's run folder.

No key, share, mask or update is in them. A model of the site's own may be, where the strategy has one: it never leaves,
and only the owner can read the file. Every change is on disk before the call returns, so a release fuse is burnt before
the first byte of what it guards can leave.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from securefda.errors import ConfigError
from securefda.parse import json_value
from securefda.protocol.checks import History, PastResult
from securefda.protocol.messages import Envelope, Header, Receipt, Result, Signed
from securefda.protocol.transcript import round_terms
from securefda.rules import ServerState
from securefda.source.model_bound import AcceptedHeader, Known, TakenResult, TrainedFrom, Units
from securefda.source.run_book import RunBook
from securefda.state_file import ReleaseMarker, StateFile
from securefda.training import Vector

_SCHEMA_VERSION = 9
_PIECE = 1 << 16
"""Bytes of a model that are read or written at once: as one value it would be copied as a whole, in memory."""

_SOURCE_TABLES = """
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

_AGGREGATOR_TABLES = """
CREATE TABLE run (
    id INTEGER PRIMARY KEY CHECK (id = 0), run_id BLOB NOT NULL, config_digest BLOB NOT NULL,
    round INTEGER NOT NULL, attempt INTEGER NOT NULL, terms BLOB NOT NULL, at_sum INTEGER NOT NULL,
    released INTEGER NOT NULL,
    result_digest BLOB NOT NULL, model BLOB NOT NULL, completed INTEGER NOT NULL,
    server BLOB NOT NULL
);
CREATE TABLE rounds (round INTEGER PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE last_result (
    id INTEGER PRIMARY KEY CHECK (id = 0), round INTEGER NOT NULL, number INTEGER NOT NULL, sender INTEGER NOT NULL,
    session_id BLOB NOT NULL, context BLOB NOT NULL, sum_digest BLOB NOT NULL, count INTEGER NOT NULL,
    model_digest BLOB NOT NULL, signed_bytes BLOB NOT NULL, signature BLOB NOT NULL
);
CREATE TABLE receipts (sender INTEGER PRIMARY KEY, signed_bytes BLOB NOT NULL, signature BLOB NOT NULL);
CREATE TABLE target_releases (
    round INTEGER NOT NULL, attempt INTEGER NOT NULL, update_digest TEXT NOT NULL, recipients TEXT NOT NULL,
    noise TEXT NOT NULL, PRIMARY KEY (round, attempt)
);
"""


_COMMON_TABLES = """
CREATE TABLE cosigned (origin TEXT PRIMARY KEY, size INTEGER NOT NULL, root BLOB NOT NULL);
CREATE TABLE personal (run_id TEXT NOT NULL, round INTEGER NOT NULL, state BLOB NOT NULL, PRIMARY KEY (run_id, round));
"""


class _Store(StateFile):
    """The file of one run folder: what was cosigned and models of the site's own, beside what its own tables hold.

    One process at a time has it: two that burn fuses for one site would each think that they are the first.
    """

    def __init__(self, path: Path, tables: str) -> None:
        super().__init__(path, tables + _COMMON_TABLES, _SCHEMA_VERSION, exclusive=True)

    def cosigned(self, origin: str) -> tuple[int, bytes] | None:
        """Number of records and root of the last checkpoint of a log that this site cosigned; None before the first."""
        self._process.require_original()
        with self._clear_errors():
            row = self._database.execute("SELECT size, root FROM cosigned WHERE origin = ?", (origin,)).fetchone()
        return row and (row[0], row[1])

    def remember_cosigned(self, origin: str, head: tuple[int, bytes]) -> None:
        """Write that this checkpoint is cosigned from now on; no other history of the log will be."""
        with self._transaction() as database:
            database.execute("INSERT OR REPLACE INTO cosigned VALUES (?, ?, ?)", (origin, *head))

    def personal(self, run_id: str, before: int) -> bytes | None:
        """What was kept of the site's own model in the last round below ``before``; None where nothing was."""
        self._process.require_original()
        query = "SELECT state FROM personal WHERE run_id = ? AND round < ? ORDER BY round DESC LIMIT 1"
        with self._clear_errors():
            row = self._database.execute(query, (run_id, before)).fetchone()
        return None if row is None else bytes(row[0])

    def keep_personal(self, run_id: str, round_number: int, state: bytes) -> None:
        """Keep the site's own of a round, and that of the round before it, from which this one can be trained again."""
        with self._transaction() as database:
            database.execute("INSERT OR REPLACE INTO personal VALUES (?, ?, ?)", (run_id, round_number, state))
            last = "(SELECT max(round) FROM personal WHERE run_id = ?1 AND round < ?2)"
            database.execute(f"DELETE FROM personal WHERE run_id = ?1 AND round < {last}", (run_id, round_number))  # noqa: S608


class SourceStore(_Store):
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
        super().__init__(path, _SOURCE_TABLES)

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


@dataclass(frozen=True, slots=True)
class Asked:
    """What the attempts at a round ask of its sources: ``round_terms`` of the header, and whether any is at ``sum``."""

    terms: bytes
    at_sum: bool


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run stands: the attempt that was begun last, and whether updates of it may have left sources.

    ``asked`` is None before the first attempt of all.
    """

    run_id: bytes
    round: int
    attempt: int
    asked: Asked | None
    released: bool
    result_digest: bytes
    completed: bool


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The last result as it was signed: the round that it closed, and its number among the run's results, from 1."""

    round: int
    number: int
    result: Signed[Result]

    def row(self) -> tuple[Any, ...]:
        """As it is kept."""
        envelope, body = self.result.envelope, self.result.body
        outside = (self.result.sender, envelope.session_id, envelope.context)
        said = (body.sum_digest, body.count, body.model_digest)
        return (self.round, self.number, *outside, *said, self.result.signed_bytes, self.result.signature)

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> KeptResult:
        """What was kept."""
        number, sender, session_id, context, sum_digest, count, model_digest, signed_bytes, signature = row[1:]
        body = Result(sum_digest, count, model_digest)
        envelope = Envelope(session_id=session_id, sender=sender, context=context, body=body)
        return cls(row[0], number, Signed(envelope, signed_bytes, signature))


@dataclass(frozen=True, slots=True)
class TargetRelease:
    """The target's update left the target: to whom, and with what noise. What was sent is named by its SHA-256."""

    round: int
    attempt: int
    update_digest: str
    recipients: list[str]
    noise: str


class AggregatorStore(_Store):
    """The aggregator's memory across restarts: the run's position, the model, and one record per round."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _AGGREGATOR_TABLES)

    def position(self, config_digest: bytes) -> Position | None:
        """Where the run in this file stands; None for a new file.

        Raises:
            ConfigError: the file holds a run with other settings.
        """
        with self._clear_errors():
            row = self._database.execute(
                "SELECT config_digest, run_id, round, attempt, terms, at_sum, released, result_digest, completed "
                "FROM run"
            ).fetchone()
        if row is None:
            return None
        if row[0] != config_digest:
            raise ConfigError(
                str(self._path),
                "this folder holds a run with other settings, task, sites or seed",
                hint="give the settings of that run to resume it, or another --out folder for a new one",
            )
        asked = Asked(row[4], bool(row[5])) if row[4] else None
        return Position(row[1], row[2], row[3], asked, bool(row[6]), row[7], bool(row[8]))

    def begin_run(self, run_id: bytes, config_digest: bytes, model: Vector) -> None:
        """Write a new run with its first model, before round 1."""
        with self._transaction() as database:
            row = (0, run_id, config_digest, 0, 0, b"", 0, 0, b"", model.astype("<f4").tobytes(), 0, b"")
            database.execute("INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def model(self) -> Vector:
        """The model after the last finished round, float32 (m,)."""
        with self._clear_errors():
            (data,) = self._database.execute("SELECT model FROM run").fetchone()
        return np.frombuffer(data, dtype="<f4").astype(np.float32)

    def server(self) -> ServerState | None:
        """The state of the aggregator's optimiser after the last finished round; None where there is none."""
        with self._clear_errors():
            (data,) = self._database.execute("SELECT server FROM run").fetchone()
        return ServerState.from_bytes(data) if data else None

    def begin_attempt(self, round_number: int, attempt: int, asked: Asked) -> None:
        """Write that an attempt begins and what it asks for, before its header is published."""
        with self._transaction() as database:
            row = (round_number, attempt, asked.terms, asked.at_sum)
            database.execute("UPDATE run SET round = ?, attempt = ?, terms = ?, at_sum = ?, released = 0", row)

    def release_target(self, release: TargetRelease) -> None:
        """Write that g_T leaves with the header of an attempt, before it does; these rows are never deleted."""
        with self._transaction() as database:
            names = json.dumps(release.recipients)
            row = (release.round, release.attempt, release.update_digest, names, release.noise)
            database.execute("INSERT INTO target_releases VALUES (?, ?, ?, ?, ?)", row)

    def target_releases(self) -> list[TargetRelease]:
        """Every release of g_T in this run, in order."""
        with self._clear_errors():
            rows = self._database.execute("SELECT * FROM target_releases ORDER BY round, attempt").fetchall()
        return [TargetRelease(row[0], row[1], row[2], self._json(row[3]), row[4]) for row in rows]

    def mark_released(self) -> None:
        """Write that sources may release now; after a crash this round is not tried again."""
        with self._transaction() as database:
            database.execute("UPDATE run SET released = 1")

    def finish_round(
        self,
        record: dict[str, Any],
        model: Vector,
        result_digest: bytes,
        server: ServerState | None = None,
        kept: KeptResult | None = None,
    ) -> None:
        """Write a finished round, what it leaves and its result in one transaction, before the result is published.

        ``kept`` is the result, where there is one; receipts for the one before are forgotten.
        """
        state = b"" if server is None else server.to_bytes()
        with self._transaction() as database:
            if kept is not None:
                database.execute(
                    "INSERT OR REPLACE INTO last_result VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", kept.row()
                )
                database.execute("DELETE FROM receipts")
            self._insert_record(database, record)
            values = (model.astype("<f4").tobytes(), result_digest, record["round"], state)
            database.execute("UPDATE run SET model = ?, result_digest = ?, round = ?, released = 1, server = ?", values)

    def last_result(self) -> KeptResult | None:
        """The last result of the run; None before there is one."""
        with self._clear_errors():
            row = self._database.execute("SELECT * FROM last_result").fetchone()
        return None if row is None else KeptResult.of_row(row[1:])

    def keep_receipt(self, receipt: Signed[Receipt]) -> None:
        """Keep a receipt for the last result. A power cut can undo it; its source gives it again when it is asked."""
        with self._transaction(durable=False) as database:
            row = (receipt.sender, receipt.signed_bytes, receipt.signature)
            database.execute("INSERT OR REPLACE INTO receipts VALUES (?, ?, ?)", row)

    def receipts(self) -> list[tuple[int, bytes, bytes]]:
        """Sender, signed bytes and signature of each receipt for the last result, by roster index."""
        with self._clear_errors():
            return self._database.execute("SELECT * FROM receipts ORDER BY sender").fetchall()

    def lose_round(self, record: dict[str, Any]) -> None:
        """Write a round that was given up; the model stays as it is."""
        with self._transaction() as database:
            self._insert_record(database, record)
            database.execute("UPDATE run SET round = ?, released = 1", (record["round"],))

    def complete(self) -> None:
        """Write that the run has no round left."""
        with self._transaction() as database:
            database.execute("UPDATE run SET completed = 1")

    def records(self) -> list[dict[str, Any]]:
        """One record per round that ended, in order."""
        with self._clear_errors():
            rows = self._database.execute("SELECT record FROM rounds ORDER BY round").fetchall()
        return [self._json(row[0]) for row in rows]

    def _json(self, text: str) -> Any:
        try:
            return json_value(text)
        except ValueError as error:
            hint = "put the folder back as it was, or name another --out folder"
            raise ConfigError(str(self._path), "holds a record that is damaged", hint=hint) from error

    @staticmethod
    def _insert_record(database: sqlite3.Connection, record: dict[str, Any]) -> None:
        row = (record["round"], json.dumps(record))
        database.execute("INSERT INTO rounds VALUES (?, ?)", row)
