"""A site's log for tests of what records its messages, without the rest of a run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from known_sites import known_key, known_roster
from transport_kit import RUN_ID, TARGET, header_body

from securefda.audit.journal import Journal, MessageRecorder, RunInfo
from securefda.audit.kept import read_kept
from securefda.audit.log_records import Entry
from securefda.audit.reading import open_log
from securefda.protocol.messages import NO_CONTEXT, Body, Signed, Signer
from securefda.transport.observer import MessageObserver, ignore, wire_size
from securefda.transport.wire import encode

RUN = RUN_ID.hex()
NAMES = ["target", "source-1", "source-2", "source-3"]
KEYS = [known_key(name) for name in NAMES]
ROSTER = known_roster("study", NAMES)
SESSION = bytes([7]) * 32
SECRET = b"a share that nobody may read....."


class Log:
    """A site's log, and what it recorded of messages."""

    def __init__(self, folder: Path, own: int) -> None:
        self.own, self.folder = own, folder / NAMES[own]
        info = RunInfo("1", "task", "rule")
        self.journal = Journal(
            self.folder, ROSTER, NAMES[own], KEYS[own], info=info, clock=lambda: datetime(2026, 1, 1, tzinfo=UTC)
        )

    def recorder(self, *, run: str | None = RUN, then: MessageObserver = ignore) -> MessageRecorder:
        return MessageRecorder(self.journal, ROSTER, self.own, run=run, then=then)

    @property
    def entries(self) -> list[Entry]:
        return [entry for entry in self._all if entry.direction != "event"]

    @property
    def not_kept(self) -> list[tuple[str, str, str]]:
        """Peer, digest and check of each message of which the log says that no copy is kept."""
        events = [entry for entry in self._all if entry.type == "message-not-kept"]
        return [(entry.peer, entry.digest, str(entry.facts["check"])) for entry in events]

    @property
    def _all(self) -> list[Entry]:
        if not (self.folder / RUN).exists():
            return []
        return [record.entry for record in open_log(self.folder / RUN).records()]

    @property
    def lines(self) -> list[tuple[str, str, str, int]]:
        return [(entry.direction, entry.type, entry.digest, entry.bytes) for entry in self.entries]

    @property
    def kept(self) -> list[bytes]:
        return list(read_kept(self.folder / RUN))


def signed(sender: int, body: Body, session: bytes = SESSION) -> Signed[Any]:
    return Signer(sender, KEYS[sender], encode).sign(session, NO_CONTEXT, body)


def round_header(*, with_update: bool = False) -> Signed[Any]:
    return signed(TARGET, header_body(bytes(32), b"u" * 32 if with_update else b""))


def size_of(message: Signed[Any], vectors: int = 0) -> int:
    return wire_size(message, vectors)
