"""The state of a site as its own process reports it: what it does, in which round, whom it waits for, or how it
ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Final

from securefda.audit.report.words import moment_text
from securefda.operations.records import JOIN_PHASE
from securefda.operations.state import ENDED, INTERRUPTED, ProcessState, round_of
from securefda.pages.parts import State
from securefda.site.certificates import RENEW
from securefda.text import duration, names, phase_words

_START_AGAIN: Final = {
    "target": "Start the process again: it goes on after the last finished round.",
    "source": "Start the process again: the site joins the run again.",
}
_UNUSUAL: Final = 3.0
"""A wait is too long if it takes as many times what earlier rounds took, and at least `_SHORT_S`."""
_SHORT_S: Final = 10.0


def why_late(process: ProcessState, earlier: Sequence[float], deadline_s: float, now: float) -> str:
    """Return a sentence on why the present wait is too long; empty where it is not, or nothing is waited for.

    Args:
        process: what it said last.
        earlier: seconds that the same took in earlier rounds.
        deadline_s: of the wait, which counts where there are no earlier rounds.
        now: Unix time.
    """
    waited = now - process.since
    if not process.waiting_for:
        return ""
    if earlier:
        usual = median(earlier)
        late = waited > max(_SHORT_S, _UNUSUAL * usual)
        return f"That is long: in earlier rounds it was {duration(usual)}." if late else ""
    return f"More than half of the deadline of {duration(deadline_s)} is over." if waited > deadline_s / 2 else ""


def describe_process(process: ProcessState, running: bool | None, rounds: str, late: str = "") -> State:
    """Return the state of a process.

    Args:
        process: what it said last.
        running: whether it is still there; None where this machine cannot say.
        rounds: how many rounds there are so far, a sentence.
        late: why it waits too long, a sentence; empty where it does not.
    """
    place = f", round {round_of(process.round, process.rounds)}" if process.round else ""
    if process.doing == ENDED:
        when = f"The process ended at {_utc(process.changed)}{place}"
        if not process.error:
            return State("done", "Finished", f"The run is over. {when}. {rounds}")
        word = "Interrupted" if process.error == INTERRUPTED else "Failed"
        text = f"{when}. {rounds}" if word == "Interrupted" else f"{process.error}. {when}. {rounds}"
        return State("failed", word, text, _START_AGAIN[process.role] if word == "Interrupted" else process.hint)
    if running is False:
        text = f"The process was killed or crashed; last step: {process.doing}{place}. {rounds}"
        return State("failed", "Stopped", text, _START_AGAIN[process.role])
    joining = process.doing == phase_words(JOIN_PHASE)
    doing = f"{process.doing[:1].upper()}{process.doing[1:]}{process.answered}"
    text = f"{doing}{place}, since {_utc(process.since)}."
    if steps := process.steps_text(time.time()):
        text += f" {steps[:1].upper()}{steps[1:]}."
    if any(site not in process.doing for site in process.waiting_for):
        text += f" Waiting for {names(process.waiting_for)}."
    text += f" {late}" if late else ""
    if process.retrying:
        until = f"; it tries until {_utc(process.retrying_until)}" if process.retrying_until is not None else ""
        text += f" {process.retrying[:1].upper()}{process.retrying[1:]}{until}."
    hint = f"Last error: {process.error}" if process.error else ""
    if warning := process.certificate_warning(time.time()):
        hint = ". ".join(filter(None, [hint, f"{warning[:1].upper()}{warning[1:]}: {RENEW}"]))
    if running is None:
        seen_at = f"Whether the process still runs can be seen on {process.host} alone."
        return State("waiting", "Last known", f"{text} {seen_at} {rounds}", hint)
    # In a round, a target always waits for some source; that counts as running.
    if late or process.retrying:
        return State("care", "Waiting", f"{text} {rounds}", hint)
    waits = process.waiting_for and (process.role == "source" or joining or not process.round)
    return State("waiting" if waits else "going", "Waiting" if waits else "Running", f"{text} {rounds}", hint)


def _utc(unix_s: float) -> str:
    return moment_text(datetime.fromtimestamp(unix_s, UTC))
