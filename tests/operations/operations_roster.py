"""A roster and reports, made up, for tests of what is logged and counted of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from known_sites import known_roster

from securefda.errors import PolicyRefusal, SecureFdaError
from securefda.operations.notes import Note
from securefda.operations.records import RoundLine, SiteLine
from securefda.protocol.messages import Header, Signed
from securefda.protocol.roster import Roster

SITES = ("clinic", "hospital-a", "hospital-b", "hospital-c")
FINISHED: RoundLine = {
    "round": 3,
    "rule": "fedgp_auto",
    "accuracy": 0.70717,
    "loss": 0.51513,
    "mean_beta": 0.31931,
    "survivors": ["hospital-a", "hospital-b"],
    "dropped": ["hospital-c"],
    "refused": {"hospital-c": "release.max-rounds"},
    "attempts": 2,
    "seconds": {"training": 2.5, "masked input": 0.25},
    "bytes_up": {"hospital-a": 1000, "hospital-b": 2000},
    "bytes_down": {"hospital-a": 500, "hospital-b": 501},
    "target_epsilon": 1.25,
    "status": "finished",
}


def roster() -> Roster:
    return known_roster("study", SITES)


@dataclass
class Console:
    """Hears what is shown to the operator, of a target and of a source alike."""

    heard: list[str] = field(default_factory=list)

    def phase(self, name: str, waiting_for: Sequence[str] = (), asked: int = 0) -> None:
        self.heard.append(f"phase {name} {','.join(waiting_for)}")

    def steps(self, site: str, done: int, of: int) -> None:
        self.heard.append(f"{site} steps {done} of {of}")

    def note(self, note: Note | str) -> None:
        self.heard.append(f"note {note}")

    def round_started(self, number: int, *rest: object) -> None:
        self.heard.append(f"started {number}")

    def round_finished(self, line: RoundLine | SiteLine) -> None:
        self.heard.append(f"finished {line['round']}")

    def refused(self, refusal: PolicyRefusal, header: Signed[Header]) -> None:
        self.heard.append(f"refused {refusal.key}")

    def alarm(self, error: SecureFdaError) -> None:
        self.heard.append(f"alarm {error}")
