"""The format of each kind of file that a site keeps: its number, and where a file says which it has.

This is the one place for the numbers. A change that an earlier release could not read, or would read in another sense,
raises one. `docs/how-to/upgrade.md` has what releases promise about them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from securefda.parse import json_value

SQLITE_HEAD_BYTES = 100
_SQLITE = b"SQLite format 3\0"


def _of_sqlite(data: bytes) -> int:
    """SQLite's ``user_version``, from the first bytes of a file."""
    if len(data) < SQLITE_HEAD_BYTES or not data.startswith(_SQLITE):
        raise ValueError("no file of SQLite")
    if number := int.from_bytes(data[60:64]):
        return number
    raise ValueError("no process has made its tables")


def _of_json(data: bytes, key: str = "version", *, inside: str = "") -> int:
    """A key of a JSON object, or of the one in the text that ``inside`` names, if it has that."""
    value = json_value(data.decode("utf-8"))
    if isinstance(value, dict) and isinstance(held := value.get(inside), str):
        value = json_value(held)
    found = value.get(key) if isinstance(value, dict) else None
    if type(found) is not int:
        raise ValueError(f"it has no {key}")
    return found


def _of_policy(data: bytes) -> int:
    """As :func:`_of_json`; 0 for a signature from before these held the text that was signed."""
    number = _of_json(data, inside="policy")
    return 0 if number == 1 and b'"policy_text"' not in data else number


def _of_name(data: bytes, name: str) -> int:
    """The number in a text such as ``securefda-evidence/1``."""
    value = json_value(data.decode("utf-8"))
    return int(str(value.get("format") if isinstance(value, dict) else "").removeprefix(f"securefda-{name}/"))


def _of_log(note: bytes) -> int:
    """The number in the name of a log, with which its ``checkpoint`` begins."""
    if not note.startswith(b"securefda/"):
        raise ValueError("no checkpoint of a log")
    return int(note.split(b"/", 2)[1])


@dataclass(frozen=True, slots=True)
class FileFormat:
    """One kind of file: what it is, in words; the number that this release writes; how to find that of a file.

    ``find`` raises ValueError where the file does not say. Files of a number from ``oldest`` on are read as they are.
    """

    what: str
    number: int
    find: Callable[[bytes], int]
    oldest: int | None = None

    def why_not(self, found: int) -> str:
        """Why this release does not read a file of a number; empty where it does."""
        if (self.number if self.oldest is None else self.oldest) <= found <= self.number:
            return ""
        which = "a later release" if found > self.number else "the release that wrote it"
        return f"has format {found}, and this release reads format {self.number}; {which} reads it"

    def why_not_of(self, data: bytes) -> str:
        """The same of a file; empty also where it does not say its number, which its reader will tell."""
        try:
            return self.why_not(self.find(data))
        except ValueError:
            return ""


KIT = FileFormat("startup kit", 1, partial(_of_json, inside="manifest"))
ROSTER = FileFormat("roster", 2, partial(_of_json, inside="roster"), oldest=1)
SEEN_ROSTERS = FileFormat("newest roster seen", 1, _of_json)
REQUEST = FileFormat("request for keys", 2, partial(_of_json, inside="request"), oldest=1)
LEAVING = FileFormat("certificate of leaving", 1, partial(_of_json, inside="leaving"))
POLICY = FileFormat("signature of the policy", 1, _of_policy)
LEDGER = FileFormat("ledger", 2, _of_sqlite, oldest=1)
RUN_BOOK = FileFormat("book of runs", 2, _of_sqlite)
RUN_STATE = FileFormat("state of a run", 14, _of_sqlite)
RUN_SETTINGS = FileFormat("settings of a run", 1, _of_json)
PROCESS_STATE = FileFormat("state of a process", 1, partial(_of_json, key="schema_version"))
SUMMARY = FileFormat("summary of a run", 4, partial(_of_json, key="schema_version"), oldest=1)
MODEL_CARD = FileFormat("model card", 1, partial(_of_json, key="schema_version"))
LOG = FileFormat("audit log", 1, _of_log)
LOG_RECORD = FileFormat("audit record", 1, partial(_of_json, key="v"))
EVIDENCE = FileFormat("evidence", 1, partial(_of_name, name="evidence"))
RECEIPT = FileFormat("receipt", 2, partial(_of_name, name="receipt"), oldest=1)
