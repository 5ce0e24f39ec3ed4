"""What a process must remember of its run when it is killed: a file in each site's run folder.

No key, share, mask or update is in it. A model of the site's own may be, where the strategy has one: it never leaves,
and only the owner can read the file. Every change is on disk before the call returns.
"""

from __future__ import annotations

from pathlib import Path

from securefda.state_file import StateFile

_SCHEMA_VERSION = 10

_COMMON_TABLES = """
CREATE TABLE cosigned (origin TEXT PRIMARY KEY, size INTEGER NOT NULL, root BLOB NOT NULL);
CREATE TABLE personal (run_id TEXT NOT NULL, round INTEGER NOT NULL, state BLOB NOT NULL, PRIMARY KEY (run_id, round));
"""


class RunStore(StateFile):
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
