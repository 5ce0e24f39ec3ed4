"""A state file that survives kills and forks of its process, and refuses to be an old copy.

A change is in the file when the call returns, and on the disk (``synchronous=FULL``, write-ahead log) unless the call
says otherwise.

**Copies of the process.** A fork has the same session secrets and the same position in the file. If both processes went
on, they would mask two inputs with the same masks, which reveals the difference of the inputs. So only the original may
go on.

**Copies of the file.** A file that was copied or restored does not know what has left since. Two things are kept where
a copy does not include them. The file system's own number of the file is written into it: a copy has another number.
And the count of releases is in the *name* of a marker beside it: copying an old folder over a newer one restores old
contents, but cannot remove a newer name. A file with a second name (a hard link, as ``cp -al`` makes) has the same
number under both, and for each a write-ahead log and a marker of its own, so it is refused.
"""

from __future__ import annotations

import ctypes
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakMethod, WeakSet

from securefda.disk import (
    LINKED,
    LINKED_HINT,
    await_descriptors,
    file_number,
    is_linked,
    make_folder,
    open_patiently,
    sync_folder,
)
from securefda.errors import OWNERS_ALONE, ConfigError, SecureFdaError
from securefda.formats import RUN_STATE, FileFormat


class CopiedProcess(SecureFdaError):
    """This process is a copy of the one that began the work; only the original may continue it."""


class ProcessGuard:
    """Ties its owner to the process that made it.

    Args:
        what: what is tied, in words, for the error.
        forget: a method of the owner, which the guard does not keep alive. It is called in every copy of the process
            that Python's ``os.fork`` makes, before any other code runs there: the place to erase secrets.
    """

    __slots__ = ("__weakref__", "_forget", "_is_marked", "_pid", "_what")

    def __init__(self, what: str, forget: Callable[[], None]) -> None:
        self._what = what
        self._pid = os.getpid()
        self._is_marked = False
        self._forget = WeakMethod(forget)
        _GUARDS.add(self)

    @property
    def is_copy(self) -> bool:
        """Return whether this process is not the one that made the guard, however it was made."""
        # The mark too: a copy of a copy can be given the number of an original that has ended.
        return self._is_marked or os.getpid() != self._pid

    def require_original(self) -> None:
        """Refuse to continue in a copy.

        Raises:
            CopiedProcess: this is one.
        """
        if self.is_copy:
            raise CopiedProcess(
                f"{self._what} belongs to process {self._pid}; process {os.getpid()} is a copy of it",
                hint="code of the task must not fork a process that goes on with the site's work: start a new one",
            )

    def _mark(self) -> None:
        self._is_marked = True
        forget = self._forget()
        if forget is not None:
            forget()


_GUARDS: WeakSet[ProcessGuard] = WeakSet()


def _in_a_copy() -> None:
    for guard in list(_GUARDS):
        guard._mark()


os.register_at_fork(after_in_child=_in_a_copy)


_DOUBT = ", so it may not know of every update that left"
NEW_RUN = "name a new --out folder and take part in a new run with it, never again in the run of this one"


class ReleaseMarker:
    """An empty file beside the state; its name holds the number of releases that the state knows of."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def begin(self) -> None:
        """Make the marker of a new state file.

        Raises:
            ConfigError: a state file lay here before and knew of releases.
            OSError: it cannot be made.
        """
        if any(self._counts()):
            raise self._refusal("was deleted or emptied after updates had left its folder")
        os.close(open_patiently(self._path(0), os.O_CREAT | os.O_WRONLY, 0o600))
        sync_folder(self._state.parent)

    def check(self, count: int, number_then: str, number_now: str) -> None:
        """Compare a state file that knows of ``count`` releases with its marker and file number.

        Raises:
            ConfigError: it is a copy, or older than its marker, or its marker is gone.
            OSError: the marker cannot be read or moved on.
        """
        if number_then != number_now:
            raise self._refusal(f"is a copy, or was put back from a backup{_DOUBT}")
        known = self._counts()
        if not known:
            raise self._refusal(f"lies here without its marker{_DOUBT}")
        # An old file that was copied over the new one keeps its number, but the newer marker stays (decision 0009).
        if max(known) > count:
            raise self._refusal(f"is older than its folder: it knows of {count} releases of {max(known)}")
        if max(known) < count:  # killed between the two writes of a release
            self.advance(count)

    def advance(self, count: int) -> None:
        """Record that the state knows of ``count`` releases; on the disk when this returns. Raises OSError."""
        # Renamed, not made anew: a kill at any moment leaves exactly one marker.
        self._path(max(self._counts(), default=0)).rename(self._path(count))
        sync_folder(self._state.parent)

    def _counts(self) -> list[int]:
        name = re.compile(re.escape(self._state.name) + r"\.releases-([0-9]{1,9})")
        matches = (name.fullmatch(entry) for entry in os.listdir(self._state.parent))  # noqa: PTH208 - names alone
        return [int(match.group(1)) for match in matches if match]

    def _path(self, count: int) -> Path:
        return self._state.with_name(f"{self._state.name}.releases-{count}")

    def _refusal(self, why: str) -> ConfigError:
        return ConfigError(str(self._state), why, hint=NEW_RUN)


_LOCK_S = 1.0
_FOLDER_MODE = 0o777  # less the umask: of a run folder, in which the files are open to their owner only


class StateFile:
    """A SQLite file with one schema, open until it is closed; disk errors are one clear line.

    Args:
        path: of the file, which is made where there is none, with its folder.
        tables: SQL that makes the schema.
        form: its format; a file of another one is refused.
        exclusive: whether one process has the file to itself.

    Raises:
        ConfigError: another process uses the file, or it is of another release; so does every method. When it opens,
            also: the file has a second name.
        SecureFdaError: it cannot be read or written; so does every method.
        CopiedProcess: from every method but ``close``, in a copy of the process that opened the file.
    """

    _other_release = "use the release that made it, or another --out folder"
    _page_bytes = 4096
    _busy = "stop it, or name another --out folder"

    def __init__(self, path: Path, tables: str, form: FileFormat, *, exclusive: bool) -> None:
        self._path, self._form = path, form
        # A process that is asked to end closes the file while a thread of it may still be at work in it.
        self._one_at_a_time = threading.RLock()
        with self._clear_errors():
            make_folder(path.parent, _FOLDER_MODE)
            self._file_number = _make_file(path)
            self._database = sqlite3.connect(path, timeout=_LOCK_S, isolation_level=None, check_same_thread=False)
            self._process = ProcessGuard(str(path), self._abandon)
            try:
                self._prepare(tables, exclusive)
            except BaseException:
                self._database.close()
                raise

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._path

    def _prepare(self, tables: str, exclusive: bool) -> None:
        if exclusive:
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._database.execute(f"PRAGMA page_size = {self._page_bytes}")  # of a new file; an old one keeps its own
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("PRAGMA fullfsync = 1")  # macOS: its fsync alone leaves the data in the drive's cache
        version = self._database.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            last = self._before_first_use()
            self._database.executescript(
                f"BEGIN IMMEDIATE; {tables} {last} PRAGMA user_version = {self._form.number}; COMMIT;"
            )
        elif why := self._form.why_not(version):
            raise ConfigError(str(self._path), why, hint=self._other_release)
        else:
            self._before_next_use()

    def _before_first_use(self) -> str:
        """Called before the tables of a new file are made; returns SQL that belongs to their transaction."""
        return ""

    def _before_next_use(self) -> None:
        """Called when a file that has its tables is opened."""

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            with self._one_at_a_time:
                yield
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:  # also while it recovers the file
                raise self._disk_error(error) from error
            raise ConfigError(str(self._path), "another process uses it", hint=self._busy) from error
        except sqlite3.DatabaseError as error:
            raise self._disk_error(error) from error
        except OSError as error:
            hint = "choose a folder that can be written"
            if isinstance(error, NotADirectoryError | FileExistsError):
                raise ConfigError(str(self._path), error.strerror or "is in no folder", hint=hint) from error
            if isinstance(error, PermissionError):
                raise ConfigError(str(self._path), f"cannot be used: {error.strerror}", hint=OWNERS_ALONE) from error
            raise SecureFdaError(f"{self._path}: {error.strerror}", hint=hint) from error

    def _disk_error(self, error: sqlite3.DatabaseError) -> SecureFdaError:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY:
            return SecureFdaError(f"{self._path}: cannot be written", hint=OWNERS_ALONE)
        damaged = getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
        hint = (
            "the file is damaged: name another folder with --out, in which a new run begins"
            if damaged
            else "free disk space and check the folder's permissions, then start again"
        )
        # Of a text that is not UTF-8 the message holds the text, and Python gives it no code.
        not_text = isinstance(error, sqlite3.OperationalError) and not hasattr(error, "sqlite_errorcode")
        return SecureFdaError(f"{self._path}: {'a text in it is not UTF-8' if not_text else error}", hint=hint)

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Open a transaction; one that is not ``durable`` reaches the disk with the next durable one, or later."""
        self._process.require_original()
        await_descriptors()
        with self._clear_errors():
            self._database.execute("PRAGMA synchronous = FULL" if durable else "PRAGMA synchronous = NORMAL")
            # The write lock from the start. Of two processes that read first and write later,
            # both could see the last free place.
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # SQLite has rolled back by itself where the disk is full
                    self._database.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file when no thread uses it; committed changes stay. Does nothing in a copy of the process."""
        if not self._process.is_copy:
            with self._one_at_a_time:
                self._database.close()

    def _abandon(self) -> None:
        """In a copy of the process, make sure that the connection is never closed, whatever happens to this object.

        SQLite takes the copy for the only user of the file: closing, also at exit, would delete the write-ahead log
        that the original goes on writing to, and with it every fuse that is burnt from then on.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._database))
        self._one_at_a_time = threading.RLock()  # a thread that the copy has not may have held the old one


_COMMON_TABLES = """
CREATE TABLE cosigned (origin TEXT PRIMARY KEY, size INTEGER NOT NULL, root BLOB NOT NULL);
CREATE TABLE personal (name TEXT NOT NULL, round INTEGER NOT NULL, state BLOB NOT NULL, PRIMARY KEY (name, round));
"""


class RunStore(StateFile):
    """A process's memory of its run, for a restart after a kill: a file in each site's run folder.

    Besides what the tables of a subclass hold, that is what was cosigned, and models of the site's own where the
    strategy has one: they never leave, and only the owner can read the file. No key, share, mask or update is in it.

    One process at a time has it: two that burn fuses for one site would each think that they are the first.
    """

    def __init__(self, path: Path, tables: str) -> None:
        super().__init__(path, tables + _COMMON_TABLES, RUN_STATE, exclusive=True)

    def cosigned(self, origin: str) -> tuple[int, bytes] | None:
        """Return size and root of the last checkpoint of a log that this site cosigned; None before the first."""
        self._process.require_original()
        with self._clear_errors():
            row = self._database.execute("SELECT size, root FROM cosigned WHERE origin = ?", (origin,)).fetchone()
        return row and (row[0], row[1])

    def remember_cosigned(self, origin: str, head: tuple[int, bytes]) -> None:
        """Record that this checkpoint is cosigned, so that no other history of the log will be."""
        with self._transaction() as database:
            database.execute("INSERT OR REPLACE INTO cosigned VALUES (?, ?, ?)", (origin, *head))

    def personal(self, key: str, before: int) -> bytes | None:
        """Return the stored state of the site's own model in the last round below ``before``; None if there is none."""
        self._process.require_original()
        query = "SELECT state FROM personal WHERE name = ? AND round < ? ORDER BY round DESC LIMIT 1"
        with self._clear_errors():
            row = self._database.execute(query, (key, before)).fetchone()
        return None if row is None else bytes(row[0])

    def keep_personal(self, key: str, round_number: int, state: bytes) -> None:
        """Keep the site's own model of a round, and of the round before it, from which this one can be trained
        again.
        """
        with self._transaction() as database:
            insert_personal(database, key, round_number, state)


def insert_personal(database: sqlite3.Connection, key: str, round_number: int, state: bytes) -> None:
    """Keep a state in an open transaction, as :meth:`RunStore.keep_personal` does."""
    database.execute("INSERT OR REPLACE INTO personal VALUES (?, ?, ?)", (key, round_number, state))
    before = "(SELECT max(round) FROM personal WHERE name = :name AND round < :round)"
    delete = f"DELETE FROM personal WHERE name = :name AND round < {before}"  # noqa: S608
    database.execute(delete, {"name": key, "round": round_number})


def _make_file(path: Path) -> str:
    """Make the file if there is none, on the disk under its name; returns its number.

    The mode is set before SQLite writes a byte, so that at no time others can read the file.
    """
    descriptor = open_patiently(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        if is_linked(descriptor):
            raise ConfigError(str(path), LINKED, hint=LINKED_HINT)
        sync_folder(path.parent)
        return file_number(descriptor)
    finally:
        os.close(descriptor)
