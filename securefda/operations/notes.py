"""Notes for the operator: a line, its log level, the peer that it concerns, and the check.

A note is made at the place where the event happens. A plain text is a note about no particular site and no cause for
concern.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from securefda.errors import FaultySourceError, ProtocolError, SecureFdaError, SourceAborted

Level = Literal["debug", "info", "warning", "error"]
UNNAMED = "other"
"""The check of an alarm that names none."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line for people, and how it is filed.

    Attributes:
        text: the line.
        level: of the log.
        peer: site id of the peer that it is about; empty where it is about none or several.
        alarm: the check that a peer failed, ``other`` where the alarm names none; empty where the note is no alarm.
        abort: the check with which a peer ended a session; empty where it ended none.
    """

    text: str
    level: Level = "info"
    peer: str = ""
    alarm: str = ""
    abort: str = ""

    def __str__(self) -> str:
        return self.text

    @classmethod
    def of(cls, note: Self | str) -> Self:
        """Return a note; a plain text becomes one."""
        return note if isinstance(note, cls) else cls(str(note))

    @classmethod
    def alarm_of(cls, error: SecureFdaError) -> Self:
        """Make an alarm from an error that a peer caused, with the check and, if known, the peer."""
        text = f"alarm: {error}"
        match error:
            case SourceAborted(check=check, source_id=peer):
                return cls(text, "error", peer, abort=check)
            case FaultySourceError(check=check, source_id=peer):
                return cls(text, "error", peer, alarm=check)
            case ProtocolError(check=check):
                return cls(text, "error", alarm=check)
        return cls(text, "error", alarm=UNNAMED)
