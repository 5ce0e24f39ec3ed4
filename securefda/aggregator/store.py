"""The aggregator's memory of its run: its position, the model, the last result with its receipts, a record per round.

No key, share, mask or update is in it. A model of the site's own may be, where the strategy has one: it never leaves,
and only the owner can read the file. Every change is on disk before the call returns.
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
from securefda.protocol.encoding import Vector64, vector_to_wire
from securefda.protocol.messages import Envelope, Header, Receipt, Result, Signed, Visibility
from securefda.protocol.transcript import round_terms_digest
from securefda.rules import ServerState
from securefda.state_file import RunStore, insert_personal
from securefda.training import Vector

_TABLES = """
CREATE TABLE run (
    id INTEGER PRIMARY KEY CHECK (id = 0), run_id BLOB NOT NULL, config_digest BLOB NOT NULL,
    round INTEGER NOT NULL, attempt INTEGER NOT NULL, terms BLOB NOT NULL, at_sum INTEGER NOT NULL,
    released INTEGER NOT NULL,
    result_digest BLOB NOT NULL, model BLOB NOT NULL, completed INTEGER NOT NULL,
    server BLOB NOT NULL, result_model BLOB NOT NULL
);
CREATE TABLE rounds (round INTEGER PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE last_result (
    id INTEGER PRIMARY KEY CHECK (id = 0), round INTEGER NOT NULL, number INTEGER NOT NULL, sender INTEGER NOT NULL,
    session_id BLOB NOT NULL, context BLOB NOT NULL, sum_digest BLOB NOT NULL, count INTEGER NOT NULL,
    model_digest BLOB NOT NULL, signed_bytes BLOB NOT NULL, signature BLOB NOT NULL
);
CREATE TABLE receipts (sender INTEGER PRIMARY KEY, signed_bytes BLOB NOT NULL, signature BLOB NOT NULL);
CREATE TABLE peaks (kind BLOB PRIMARY KEY, peaks BLOB NOT NULL);
CREATE TABLE target_releases (
    round INTEGER NOT NULL, attempt INTEGER NOT NULL, update_digest TEXT NOT NULL, recipients TEXT NOT NULL,
    noise TEXT NOT NULL, PRIMARY KEY (round, attempt)
);
"""


@dataclass(frozen=True, slots=True)
class RoundRequest:
    """What all attempts at a round ask of the sources: the digest of its terms, and whether any is at ``sum``."""

    terms: bytes
    at_sum: bool

    @classmethod
    def of(cls, header: Header) -> RoundRequest:
        """What a header asks for."""
        return cls(round_terms_digest(header), bool(header.at(Visibility.SUM)))


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a run: the last attempt that began, and whether updates in it may have left sources.

    ``request`` is None before the first attempt of all.
    """

    run_id: bytes
    round: int
    attempt: int
    request: RoundRequest | None
    released: bool
    result_digest: bytes
    completed: bool


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The last result with its signature: the round that it closed, and its number among the run's results, from 1."""

    round: int
    number: int
    result: Signed[Result]

    def row(self) -> tuple[Any, ...]:
        """As it is kept."""
        envelope, body = self.result.envelope, self.result.body
        outside = (self.result.sender, envelope.session_id, envelope.context)
        inside = (body.sum_digest, body.count, body.model_digest)
        return (self.round, self.number, *outside, *inside, self.result.signed_bytes, self.result.signature)

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> KeptResult:
        """What was kept."""
        number, sender, session_id, context, sum_digest, count, model_digest, signed_bytes, signature = row[1:]
        body = Result(sum_digest, count, model_digest)
        envelope = Envelope(session_id=session_id, sender=sender, context=context, body=body)
        return cls(row[0], number, Signed(envelope, signed_bytes, signature))


@dataclass(frozen=True, slots=True)
class TargetRelease:
    """Something of the target left it beside the model: its update, or under other rules the gradient of the gap or
    features of its rows. To whom, and with what noise; what was sent is named by its SHA-256."""

    round: int
    attempt: int
    update_digest: str
    recipients: list[str]
    noise: str


@dataclass(frozen=True, slots=True, repr=False)
class KeptPeaks:
    """The known sizes of sums of one kind, see :mod:`securefda.aggregator.ranges`; None if unknown."""

    kind: bytes
    peaks: Vector64 | None


class AggregatorStore(RunStore):
    """The aggregator's memory across restarts: the run's position, the model, and one record per round."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _TABLES)
        self._records: list[dict[str, Any]] | None = None

    def position(self, config_digest: bytes) -> Position | None:
        """The position of the run in this file; None for a new file.

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
        request = RoundRequest(row[4], bool(row[5])) if row[4] else None
        return Position(row[1], row[2], row[3], request, bool(row[6]), row[7], bool(row[8]))

    def begin_run(self, run_id: bytes, config_digest: bytes, model: Vector) -> None:
        """Write a new run with its first model, before round 1."""
        with self._transaction() as database:
            row = (0, run_id, config_digest, 0, 0, b"", 0, 0, b"", model.astype("<f4").tobytes(), 0, b"", b"")
            database.execute("INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def model(self) -> Vector:
        """The model after the last finished round, float32 (m,)."""
        with self._clear_errors():
            (data,) = self._database.execute("SELECT model FROM run").fetchone()
        return np.frombuffer(data, dtype="<f4").astype(np.float32)

    def result_model(self) -> Vector:
        """The model of the last result, float32 (m,): that of :meth:`model`, unless the target went on alone."""
        with self._clear_errors():
            query = "SELECT iif(length(result_model), result_model, model) FROM run"
            (data,) = self._database.execute(query).fetchone()
        return np.frombuffer(data, dtype="<f4").astype(np.float32)

    def server(self) -> ServerState | None:
        """The state of the aggregator's optimiser after the last finished round; None where there is none."""
        with self._clear_errors():
            (data,) = self._database.execute("SELECT server FROM run").fetchone()
        return ServerState.from_bytes(data) if data else None

    def begin_attempt(self, round_number: int, attempt: int, request: RoundRequest) -> None:
        """Write that an attempt begins and what it asks for, before its header is published."""
        with self._transaction() as database:
            # Released is 0 again: an attempt begins only where nothing of the one before can have left.
            row = (round_number, attempt, request.terms, request.at_sum)
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
        *,
        peaks: KeptPeaks | None = None,
        own: tuple[str, bytes] | None = None,
        result_model: Vector | None = None,
    ) -> None:
        """Write a finished round, what it leaves and its result in one transaction, before the result is published.

        ``kept`` is the result, where there is one; receipts for the one before are forgotten. ``result_model`` is its
        model where the target keeps another one. After a round of the target alone the model of the last result is kept
        beside the new one. ``own`` is a state of the site's own, as :meth:`keep_personal` keeps it.
        """
        state = b"" if server is None else server.to_bytes()
        with self._transaction() as database:
            if kept is not None:
                database.execute(
                    "INSERT OR REPLACE INTO last_result VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", kept.row()
                )
                # In the same transaction: receipts beside another result would be taken for its own.
                database.execute("DELETE FROM receipts")
                other_model = b"" if result_model is None else vector_to_wire(result_model)
                database.execute("UPDATE run SET result_model = ?", (other_model,))
            else:
                database.execute("UPDATE run SET result_model = model WHERE length(result_model) = 0")
            if peaks is not None:
                self._keep_peaks(database, peaks)
            if own is not None:
                insert_personal(database, own[0], record["round"], own[1])
            self._insert_record(database, record)
            values = (vector_to_wire(model), result_digest, record["round"], state)
            database.execute("UPDATE run SET model = ?, result_digest = ?, round = ?, released = 1, server = ?", values)
        self._remember_record(record)

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

    def lose_round(self, record: dict[str, Any], peaks: KeptPeaks | None = None) -> None:
        """Write a round that was given up; the model stays as it is."""
        with self._transaction() as database:
            if peaks is not None:
                self._keep_peaks(database, peaks)
            self._insert_record(database, record)
            # A round that was given up is not tried again, not even after a restart.
            database.execute("UPDATE run SET round = ?, released = 1", (record["round"],))
        self._remember_record(record)

    def complete(self) -> None:
        """Write that the run has no round left."""
        with self._transaction() as database:
            database.execute("UPDATE run SET completed = 1")

    def records(self) -> list[dict[str, Any]]:
        """One record per round that ended, in order; not to be changed."""
        if self._records is None:
            with self._clear_errors():
                rows = self._database.execute("SELECT record FROM rounds ORDER BY round").fetchall()
            self._records = [self._json(row[0]) for row in rows]
        return list(self._records)

    def _remember_record(self, record: dict[str, Any]) -> None:
        """Have the new record as the next process reads it."""
        if self._records is not None:
            self._records.append(self._json(json.dumps(record)))

    def _json(self, text: str) -> Any:
        try:
            return json_value(text)
        except ValueError as error:
            hint = "put the folder back as it was, or name another --out folder"
            raise ConfigError(str(self._path), "holds a record that is damaged", hint=hint) from error

    def peaks(self, kind: bytes) -> Vector64 | None:
        """Largest coordinates in sums of this kind, float64 (layers,); None if unknown."""
        with self._clear_errors():
            row = self._database.execute("SELECT peaks FROM peaks WHERE kind = ?", (kind,)).fetchone()
        return np.frombuffer(row[0], dtype="<f8").astype(np.float64) if row else None

    @staticmethod
    def _keep_peaks(database: sqlite3.Connection, kept: KeptPeaks) -> None:
        if kept.peaks is None:
            database.execute("DELETE FROM peaks WHERE kind = ?", (kept.kind,))
        else:
            row = (kept.kind, kept.peaks.astype("<f8").tobytes())
            database.execute("INSERT OR REPLACE INTO peaks VALUES (?, ?)", row)

    @staticmethod
    def _insert_record(database: sqlite3.Connection, record: dict[str, Any]) -> None:
        row = (record["round"], json.dumps(record))
        database.execute("INSERT INTO rounds VALUES (?, ?)", row)
