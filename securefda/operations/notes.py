"""What the notes of a run say, read for a log's fields and for counters: of whom, how grave, which check.

A note is one line for people, made by this package. Its wording decides only how it is filed: a note that no form fits
is filed as information about no site, and none is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]
UNNAMED = "other"
"""The check of an alarm that names none."""

_PEER = r"(?P<peer>[a-z0-9][a-z0-9-]*)"
_CHECK = r"(?P<check>[A-Z0-9_]+)"
_ABORT = re.compile(rf"alarm: (?:source )?{_PEER} aborted at [a-z ]+: check {_CHECK} failed")
_ALARM = re.compile(rf"alarm: (?:source )?{_PEER} fails check {_CHECK}")
_LIE = re.compile(r"alarm: a source lied about its part")  # who contributed what is hidden, so that no site is named
_ALARMS = "alarm: "
_OTHERS: tuple[tuple[Level, re.Pattern[str]], ...] = (
    ("info", re.compile(rf"{_PEER} (?:joined |is back$|runs securefda )")),
    ("info", re.compile(rf"connected (?:again )?to the {_PEER} ")),
    ("warning", re.compile(rf"{_PEER}(?:: | left$| refused: )")),
    ("warning", re.compile(rf"the {_PEER} has restarted")),
)
_LOST = re.compile(
    r"round \d+ (?:attempt \d+ without a result|was interrupted)|too late for this round: "
    r"|cannot reach |lost the connection to "
)


@dataclass(frozen=True, slots=True)
class Remark:
    """How a note is filed.

    Attributes:
        level: of the log.
        peer: site id of the peer that the note is about; empty where it is about none or several.
        alarm: the check that a peer failed, ``other`` where the alarm names none; empty where the note is no alarm.
        abort: the check with which a peer ended a session; empty where it ended none.
    """

    level: Level
    peer: str = ""
    alarm: str = ""
    abort: str = ""


def read_note(text: str, peers: Mapping[str, str]) -> Remark:
    """File a note.

    Args:
        text: the note.
        peers: how notes name a peer -> its site id.
    """
    if text.startswith(_ALARMS):
        if found := _ABORT.match(text):
            return Remark("error", peers.get(found["peer"], ""), abort=found["check"])
        if found := _ALARM.match(text):
            return Remark("error", peers.get(found["peer"], ""), alarm=found["check"])
        return Remark("error", alarm="SUM" if _LIE.match(text) else UNNAMED)
    for level, form in _OTHERS:
        found = form.match(text)
        if found and found["peer"] in peers:
            return Remark(level, peers[found["peer"]])
    return Remark("warning" if _LOST.match(text) else "info")
