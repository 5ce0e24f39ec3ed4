"""One message of a run does not pass as it should."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from run_builder import SOURCES, TARGET, Passing, Run, read_together, sign

from securefda.audit.reconcile.suspicion import RunFinding
from securefda.protocol import messages as m

A, B, C = SOURCES


class Lie(Run):
    """A run in which one kind of message of one round does not pass as it should."""

    kind, number, sender, receiver = "", 1, "", ""
    change: Callable[[Passing], Iterable[Passing]]

    def alter(self, passing: Passing) -> Iterable[Passing]:
        fits = (passing.message.type_name, passing.place[0]) == (self.kind, self.number)
        if fits and self.sender in ("", passing.sender) and self.receiver in ("", passing.receiver):
            return self.change(passing)
        return [passing]


class Equivocates(Lie):
    """Source C is shown another key list than the others, in the session of round 2."""

    kind, number, receiver = "KeyList", 2, C

    def change(self, passing: Passing) -> Iterable[Passing]:  # type: ignore[override]
        body, envelope = passing.message.body, passing.message.envelope
        other = sign(TARGET, m.KeyList(body.advertisements[::-1]), envelope.session_id, envelope.context)
        return [replace(passing, shown=other)]


def lying(
    folder: Path, kind: str, change: Callable[[Passing], Iterable[Passing]], *, number: int = 1, **ends: str
) -> tuple[RunFinding, ...]:
    lie = Lie(folder)
    lie.kind, lie.number, lie.change = kind, number, change  # type: ignore[method-assign]
    lie.sender, lie.receiver = ends.get("sender", ""), ends.get("receiver", "")
    return read_together(lie.write()).findings


def but(**changes: Any) -> Callable[[Passing], Iterable[Passing]]:
    return lambda passing: [replace(passing, **changes)]


def first(findings: tuple[RunFinding, ...]) -> tuple[str, str, int, tuple[str, ...], bool]:
    """Kind, step, round, accused, and whether signed messages prove it."""
    assert findings
    one = findings[0]
    return one.kind, one.step, one.round, one.accused, one.claim is not None
