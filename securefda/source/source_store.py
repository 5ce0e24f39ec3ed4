"""A source's persistent state of its run: its position, which updates may have left, which results it accepted.

It holds no key, share, mask or update. It can hold a personal model of the site, if the strategy has one; that never
leaves, and only the owner can read the file. Unless a docstring says otherwise, changes are on disk on return.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import numpy as np

from securefda.audit.reading import events_in
from securefda.disk import open_patiently
from securefda.errors import ConfigError
from securefda.protocol.header_checks import History, PastResult
from securefda.protocol.messages import Header, Signed
from securefda.protocol.transcript import round_terms_digest, sum_terms
from securefda.source.model_bound import AcceptedHeader, Known, TakenResult, TrainedFrom, Units
from securefda.source.run_book import RunBook
from securefda.state_file import NEW_RUN, ReleaseMarker, RunStore, insert_personal
from securefda.training import Vector
from securefda.training.memory import state_keys

_TABLES = """
CREATE TABLE origin (id INTEGER PRIMARY KEY CHECK (id = 0), file_number TEXT NOT NULL);
CREATE TABLE positions (
    run_id BLOB PRIMARY KEY, round INTEGER NOT NULL, attempt INTEGER NOT NULL, terms BLOB NOT NULL,
    number INTEGER NOT NULL, previous BLOB NOT NULL, model_digest BLOB NOT NULL, session_id BLOB NOT NULL,
    digest BLOB NOT NULL, answered INTEGER NOT NULL, model_round INTEGER NOT NULL, sources_keep INTEGER NOT NULL,
    ended INTEGER NOT NULL
);
CREATE TABLE sum_terms (
    run_id BLOB NOT NULL, sources TEXT NOT NULL, round INTEGER NOT NULL, terms TEXT NOT NULL,
    PRIMARY KEY (run_id, sources)
);
CREATE TABLE trained (
    run_id BLOB PRIMARY KEY, number INTEGER NOT NULL, units BLOB NOT NULL, model_digest BLOB NOT NULL
);
CREATE TABLE fuses (run_id BLOB NOT NULL, round INTEGER NOT NULL, PRIMARY KEY (run_id, round));
CREATE TABLE results (
    run_id BLOB NOT NULL, round INTEGER NOT NULL, digest BLOB NOT NULL, model_digest BLOB NOT NULL,
    number INTEGER NOT NULL, session_id BLOB NOT NULL, context BLOB NOT NULL, PRIMARY KEY (run_id, round)
);
"""


class SourceStore(RunStore):
    """A source's state across restarts: its run, the last position in it, burnt fuses, accepted results.

    ``runs`` is the site's run book, shared by all folders. It is closed with the store, or if the store cannot open.

    Raises:
        ConfigError: another process uses the file; or it was copied, put back from a backup or deleted after updates
            had left, so that it may not know of all of them.
        SecureFdaError: the disk cannot be written.
        CopiedProcess: from every method but ``close``, in a copy of the process that opened the file.
    """

    def __init__(self, path: Path, runs: RunBook) -> None:
        self._runs, self._marker = runs, ReleaseMarker(path)
        self._trained: dict[str, tuple[int, bytes]] = {}
        """Personal state of the present round's training, until :meth:`remember_trained` keeps it."""
        self._intact: set[Path] = set()  # files of models that this process has written, or has compared
        try:
            super().__init__(path, _TABLES)
        except BaseException:
            runs.close()
            raise

    def close(self) -> None:
        """Close both files when no thread uses them."""
        super().close()
        self._runs.close()

    def _before_first_use(self) -> str:
        self._marker.begin()
        return f"INSERT INTO origin (id, file_number) VALUES (0, '{self._file_number}');"  # noqa: S608 - digits and a dot

    def _before_next_use(self) -> None:
        (number,) = self._database.execute("SELECT file_number FROM origin").fetchone()
        self._marker.check(self._releases(), number, self._file_number)
        for (run_id,) in self._database.execute("SELECT run_id FROM positions").fetchall():
            if not self._runs.knows(run_id):  # each run is recorded there first
                raise self._book_lacks(run_id, "which this site joined")

    def _book_lacks(self, run_id: bytes, run: str) -> ConfigError:
        why = f"was deleted or put back from a backup: it lacks run {run_id.hex()[:12]}, {run}"
        return ConfigError(str(self._runs.path), why, hint=f"put the newest copy of it back; without one, {NEW_RUN}")

    @property
    def file_id(self) -> str:
        """The file system's identity of the file: it differs for every folder and never changes for this one."""
        return self._file_number

    def _releases(self) -> int:
        (count,) = self._database.execute("SELECT count(*) FROM fuses").fetchone()
        return int(count)

    def complete_run(self) -> bytes | None:
        """Id of this folder's run, 16 bytes, if the aggregator has said that it is complete; else None."""
        self._process.require_original()
        with self._clear_errors():
            row = self._database.execute("SELECT run_id FROM positions WHERE ended").fetchone()
        return None if row is None else bytes(row[0])

    def require_recorded(self, run_id: bytes, log: Path) -> None:
        """Refuse a run that the run book has lost although updates left in it: this folder may not know of them.

        Args:
            run_id: 16 bytes.
            log: folder of this site's log of the run, if there is one.

        Raises:
            ConfigError: the log has a release, and the run book lacks the run.
            AuditError: the log cannot be read.
        """
        if not self._runs.knows(run_id) and any(events_in(log, "release-fuse-burnt")):
            raise self._book_lacks(run_id, f"of which {log} records a release")

    def require_open(self, run_id: bytes) -> None:
        """Refuse a run that does not belong to this folder, or that the release limits of the policy do not allow.

        Raises:
            ConfigError: this folder belongs to another run.
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
        """The facts about this session, run and round for the checks of a header."""
        self._process.require_original()
        with self._clear_errors():
            query = self._database.execute
            asked = "SELECT round, attempt, terms, sources_keep, ended FROM positions WHERE run_id = ?"
            position = query(asked, (run_id,)).fetchone()
            fuse = query("SELECT 1 FROM fuses WHERE run_id = ? AND round = ?", (run_id, round_number)).fetchone()
            other_run = self._other_run(run_id)
            of_released = (
                "SELECT sources, terms FROM sum_terms JOIN fuses USING (run_id, round) "
                "WHERE run_id = ? ORDER BY sources"
            )
            terms = query(of_released, (run_id,)).fetchall()
            results = query(
                "SELECT round, digest, model_digest FROM results WHERE run_id = ? ORDER BY round", (run_id,)
            ).fetchall()
        past = tuple(PastResult(*row) for row in results)
        return History(
            session_seen=self._runs.has_session(session_id),
            last_position=position and position[:2],
            last_terms=position and position[2],
            sources_keep=position and position[3],
            ended=bool(position and position[4]),
            released=bool(fuse),
            results=past,
            other_run=other_run is not None,
            sum_terms=tuple(terms),
        )

    def _other_run(self, run_id: bytes) -> bytes | None:
        """The run of this folder if it differs from ``run_id``, else None."""
        query = "SELECT run_id FROM positions WHERE run_id != :run UNION SELECT run_id FROM fuses WHERE run_id != :run"
        row = self._database.execute(query, {"run": run_id}).fetchone()
        return None if row is None else bytes(row[0])

    def known(self, run_id: bytes) -> Known:
        """The last accepted result and header of the run."""
        self._process.require_original()
        with self._clear_errors():
            taken = self._database.execute(
                "SELECT round, number, digest, model_digest, session_id, context FROM results WHERE run_id = ? "
                "ORDER BY round DESC LIMIT 1",
                (run_id,),
            ).fetchone()
            accepted = self._database.execute(
                "SELECT round, number, previous, model_digest, session_id, digest, answered, model_round, "
                "sources_keep, ended FROM positions WHERE run_id = ?",
                (run_id,),
            ).fetchone()
        ended = bool(accepted and accepted[-1])
        return Known(taken and TakenResult(*taken), accepted and AcceptedHeader(*accepted[:-1]), ended)

    def trained_from(self, run_id: bytes, first: Callable[[], Vector]) -> TrainedFrom:
        """The model that this site last trained from in the run, mapped from its file.

        Before the first round, or if a power cut lost the file, it is the run's first model, from ``first``. The next
        model's distance is then bounded over all results since.
        """
        self._process.require_original()
        with self._clear_errors():
            query = "SELECT number, units, model_digest FROM trained WHERE run_id = ?"
            row = self._database.execute(query, (run_id,)).fetchone()
        if row is None:
            return TrainedFrom(0, first(), None)
        number, data, digest = row
        model, units = self._kept_model(digest), tuple(np.frombuffer(data, "<f8").tolist())
        return TrainedFrom(0, first(), units) if model is None else TrainedFrom(number, model, units)

    def _kept_model(self, digest: bytes) -> Vector | None:
        """The kept model, or None if its file is missing or incomplete, as after a power cut."""
        file = self._model_file(digest)
        try:
            model = np.memmap(file, "<f4", mode="r")
        except (OSError, ValueError):  # ValueError: it is empty
            return None
        # Once in a process: to hash a large model for each header would take as long as to read it.
        if file not in self._intact and sha256(model.data).digest() != digest:
            return None
        self._intact.add(file)
        return model

    def _model_file(self, digest: bytes) -> Path:
        """File name with the whole digest, since a target could find two models whose digests begin alike."""
        return self._path.with_name(f"{self._path.name}.model-{digest.hex()}")

    def keep_personal(self, key: str, round_number: int, state: bytes) -> None:
        """Keep the state in which training has left the site's own layers or modules, with the model it came from.

        A model that is refused only after training must not have a say in what the site trains next.
        """
        self._trained[key] = (round_number, state)

    def remember_trained(self, run_id: bytes, number: int, model: Vector, digest: bytes, units: Units) -> None:
        """Remember the model that was trained from, the largest units and the personal state that training left.

        They are on the disk before the next fuse is burnt.

        The model has its own file, which is not forced to the disk, so a power cut can lose it. The file is complete
        before the database names it; afterwards all files without a name are deleted, also those that a kill left.

        Args:
            run_id: 16 bytes.
            number: of the model.
            model: float32 ``(n_params,)``.
            digest: SHA-256 of its little-endian bytes.
            units: see :class:`TrainedFrom`.
        """
        file = self._model_file(digest)
        with self._clear_errors():
            if file not in self._intact:
                # Complete before the database names it: one that does not fit its digest later was cut by a power cut.
                descriptor = open_patiently(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "wb") as opened:
                    opened.write(np.ascontiguousarray(model, dtype="<f4").data)
                self._intact.add(file)
        with self._transaction(durable=False) as database:
            row = (run_id, number, np.array(units, dtype="<f8").tobytes(), digest)
            database.execute(
                "INSERT OR REPLACE INTO trained (run_id, number, units, model_digest) VALUES (?, ?, ?, ?)", row
            )
            for key, state in self._trained.items():
                insert_personal(database, key, *state)
        self._trained.clear()
        self._delete_models_no_longer_named()

    def _delete_models_no_longer_named(self) -> None:
        with self._clear_errors():
            digests = self._database.execute("SELECT model_digest FROM trained").fetchall()
            named = {self._model_file(kept) for (kept,) in digests}
            for old in set(self._path.parent.glob(f"{glob.escape(self._path.name)}.model-*")) - named:
                old.unlink(missing_ok=True)
            self._intact &= named

    def accept_header(self, header: Signed[Header], number: int = 0, model_round: int = 0) -> None:
        """Remember a header, so that this site never accepts it, an earlier position or another run again.

        The session is on the disk when this returns. A power cut can undo the position until the fuse is burnt; no
        update of the round has left then, and a new session can ask for the round again.

        ``number`` is the number of its model, and ``model_round`` the round that gave the model, see
        :mod:`securefda.source.model_bound`.

        Raises:
            PolicyRefusal, FaultyAggregatorError: as :meth:`RunBook.require_open`; then nothing is remembered.
        """
        body = header.body
        self._trained.clear()
        # The site's book first: an attempt counts there even if this folder is lost.
        self._runs.begin_attempt(header, self._file_number)
        with self._transaction(durable=False) as database:
            database.execute(
                "INSERT OR REPLACE INTO positions "
                "(run_id, round, attempt, terms, number, previous, model_digest, session_id, digest, answered, "
                "model_round, sources_keep, ended) "
                "VALUES (:run_id, :round, :attempt, :terms, :number, :previous, :model_digest, :session_id, :digest, "
                ":answered, :model_round, :sources_keep, :ended)",
                {
                    "run_id": body.run_id,
                    "round": body.round,
                    "attempt": body.attempt,
                    "terms": round_terms_digest(body),
                    "number": number,
                    "previous": body.previous_result_digest,
                    "model_digest": body.model_digest,
                    "session_id": header.envelope.session_id,
                    "digest": header.digest(),
                    "answered": 0,
                    "model_round": model_round,
                    "sources_keep": body.sources_keep,
                    "ended": False,
                },
            )
            # The terms of a round in which nothing left are written over: a header that was
            # refused binds nobody (decision 0031).
            database.executemany(
                "INSERT OR REPLACE INTO sum_terms (run_id, sources, round, terms) "
                "SELECT :run, :sources, :round, :terms "
                "WHERE NOT EXISTS (SELECT 1 FROM sum_terms JOIN fuses USING (run_id, round) "
                "WHERE run_id = :run AND sources = :sources)",
                [
                    {"run": body.run_id, "sources": sources, "round": body.round, "terms": terms}
                    for sources, terms in sum_terms(body)
                ],
            )

    def end_run(self, run_id: bytes, *, keeps_own: bool) -> None:
        """Remember that the run is complete, so that no header of it is accepted any more; then delete its model.

        This deletes the model that this site last trained from and, unless ``keeps_own``, its personal state: personal
        layers, private modules and running statistics. The file system or a backup can still hold deleted data.
        """
        with self._transaction() as database:
            database.execute("UPDATE positions SET ended = 1 WHERE run_id = ?", (run_id,))
            database.execute("DELETE FROM trained WHERE run_id = ?", (run_id,))
            if not keeps_own:
                own = [(key,) for key in state_keys(run_id.hex())]
                database.executemany("DELETE FROM personal WHERE name = ?", own)
        self._delete_models_no_longer_named()

    def answered(self, run_id: bytes, summed: int) -> None:
        """Remember that the last answer of the session leaves, so that its result over ``summed`` sources can follow.

        A power cut can undo this; the source then needs the others' receipts to accept the result.
        """
        with self._transaction(durable=False) as database:
            database.execute("UPDATE positions SET answered = ? WHERE run_id = ?", (summed, run_id))

    def keep_unfinished(self, run_id: bytes, round_number: int) -> None:
        """As :meth:`RunBook.keep_unfinished`."""
        self._runs.keep_unfinished(run_id, round_number)

    def burn_fuse(self, run_id: bytes, round_number: int) -> None:
        """Write that this round's update may leave now; a second time for one round is refused.

        Raises:
            SecureFdaError: it was burnt before, or cannot be written; nothing may leave then.
        """
        with self._transaction() as database:
            # Without OR IGNORE: a second fuse of the round must fail here.
            database.execute("INSERT INTO fuses (run_id, round) VALUES (?, ?)", (run_id, round_number))
        with self._clear_errors():
            # Beside the file: an older copy of it, put back, would not know of this release.
            self._marker.advance(self._releases())

    def record_result(self, run_id: bytes, result: TakenResult) -> None:
        """Remember a result that was accepted; the next header must continue it."""
        with self._transaction() as database:
            database.execute(
                "INSERT OR REPLACE INTO results (run_id, round, digest, model_digest, number, session_id, context) "
                "VALUES (:run_id, :round, :digest, :model_digest, :number, :session_id, :context)",
                {"run_id": run_id} | asdict(result),
            )
        # The folder first: if the site is killed in between, the round counts as
        # unfinished, which errs on the safe side.
        self._runs.result_accepted(run_id, result.round)
