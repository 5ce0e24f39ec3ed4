"""Honest endpoints that a test can probe: they are shown a message, report the outcome, and are unchanged afterwards.

A check that fails ends a session for good, so that without this every probe would need a play of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from securefda.aggregator.attempt import Attempt
from securefda.aggregator.clear_updates import ClearUpdates
from securefda.aggregator.phases import InAttempt
from securefda.audit.witness import Head, Witness, WitnessMemory
from securefda.errors import FaultySourceError, ProtocolError
from securefda.protocol.messages import Abort, Checkpoint, Cosigned, MissedResult, Parcel, Refusal, Send
from securefda.protocol.secret import Secret
from securefda.source.source_run import SourceReporter, SourceRun, SourceSite
from securefda.source.source_store import SourceStore
from threat_model.adversaries.replay import Replay, Replayed
from threat_model.sites import AggregatorSeat, SiteWatch
from threat_model.watched import WatchedAggregator

CopyT = TypeVar("CopyT")
What = Literal["refused", "ignored", "repeated", "ended", "accepted"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a replayed message.

    Attributes:
        due: type of the message that was due.
        replayed: what came in its place.
        what: ``"refused"`` by a named check, ``"ignored"`` without a trace, ``"repeated"``: the receiver cosigns once
            more what it has cosigned, ``"ended"``: it takes no part any more, of a session or of the run, or
            ``"accepted"``.
        check: name of the check or of the policy's key.
    """

    due: str
    replayed: Replayed
    what: What
    check: str = ""


class ProbedSource(SourceRun):
    """The real source; before each message that is due, it is shown all replacements that the attacker has."""

    def __init__(self, site: SourceSite, reporter: SourceReporter, *, replay: Replay) -> None:
        super().__init__(site, reporter)
        self._replay = replay
        self.outcomes: list[Outcome] = []

    def handle(self, parcel: Parcel) -> list[Parcel]:
        """Probe, then go on as if nothing had happened."""
        due = parcel.message
        self.outcomes += [self._probe(due.type_name, replayed) for replayed in self._replay.replacements(due)]
        return super().handle(parcel)

    def _probe(self, due: str, replayed: Replayed) -> Outcome:
        saved, watch = dict(vars(self)), SiteWatch()
        self._round, self.standing, self._reporter = again(self._round), copy(self.standing), watch
        witness, memory = forgetting(self._site.witness)
        store: Any = _RunGoesOn(self._site.store)
        self._site = replace(self._site, witness=witness, store=store)
        self._messages = copy(self._messages)
        self._messages._site = self._site
        before = self._round
        try:
            answers = super().handle(Parcel(replayed.passed.message, replayed.passed.vectors))
            says_goodbye = self.standing.goodbye is not saved["standing"].goodbye
            is_ended = says_goodbye or any(type(one) is ProtocolError for one in watch.alarms)
            only_words = all(isinstance(one.message.body, (Abort, Refusal)) for one in answers)
            if is_ended and not answers:
                return Outcome(due, replayed, "ended")
            if watch.alarms and only_words:
                (alarm,) = watch.alarms
                return Outcome(due, replayed, "refused", getattr(alarm, "check", getattr(alarm, "key", "")))
            again_alike = isinstance(replayed.passed.message.body, Checkpoint | MissedResult)
            if again_alike and answers and self._round is before and not memory.is_changed:
                return Outcome(due, replayed, "repeated")
            is_ignored = not answers and self._round is before
            return Outcome(due, replayed, "ignored" if is_ignored else "accepted")
        finally:
            vars(self).update(saved)


class ProbedAggregator(WatchedAggregator):
    """The real aggregator; in each phase, before its last message, it is shown all that the attacker has."""

    def __init__(self, seat: AggregatorSeat, *, replay: Replay) -> None:
        super().__init__(seat)
        self._replay = replay
        self.outcomes: list[Outcome] = []

    def receive(self, parcel: Parcel) -> list[Send]:
        """Probe, then go on as if nothing had happened."""
        due = parcel.message
        if isinstance(self.phase, InAttempt) and self.phase.attempt.waiting_for == {due.sender}:
            attempt = self.phase.attempt
            self.outcomes += [self._probe(attempt, due.type_name, one) for one in self._replay.replacements(due)]
        return super().receive(parcel)

    def _probe(self, under_way: Attempt, due: str, replayed: Replayed) -> Outcome:
        if isinstance(replayed.passed.message.body, Checkpoint | Cosigned):
            return self._probe_cosigners(due, replayed)
        attempt = _copied(under_way)
        before, gone, alarms = _progress(attempt), set(attempt.gone), len(attempt.alarms)
        sends = attempt.receive(Parcel(replayed.passed.message, replayed.passed.vectors))
        if _progress(attempt) != before:
            return Outcome(due, replayed, "accepted")
        found = attempt.alarms[alarms:]
        if found and attempt.gone - gone == {replayed.passed.message.sender}:
            return Outcome(due, replayed, "refused", getattr(found[0], "check", ""))
        return Outcome(due, replayed, "ended" if sends or attempt.gone != gone else "ignored")

    def _probe_cosigners(self, due: str, replayed: Replayed) -> Outcome:
        cosigners = _copied(self._cosigners)
        cosigners._witness, memory = forgetting(self._site.witness)
        before = cosigners._witness.note
        try:
            sends = cosigners.receive(replayed.passed.message)
        except FaultySourceError as error:
            return Outcome(due, replayed, "refused", error.check)
        if memory.is_changed or cosigners.cosigned != self._cosigners.cosigned or cosigners._witness.note != before:
            return Outcome(due, replayed, "accepted")
        return Outcome(due, replayed, "repeated" if sends else "ignored")


class _RunGoesOn:
    """A source's store in which a goodbye ends no run."""

    def __init__(self, store: SourceStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def end_run(self, run_id: bytes, *, keeps_own: bool) -> None:
        """Ignore a goodbye: nothing is written."""


@dataclass
class _Forgets:
    """A witness's memory on top of another, which stays unchanged."""

    before: WitnessMemory
    since: dict[str, Head] = field(default_factory=dict)

    def cosigned(self, origin: str) -> Head | None:
        """Return the newer one, if there is one."""
        return self.since.get(origin) or self.before.cosigned(origin)

    def remember_cosigned(self, origin: str, head: Head) -> None:
        """Remember it for the lifetime of this object."""
        self.since[origin] = head

    @property
    def is_changed(self) -> bool:
        """Return whether it differs from what it was before."""
        return any(self.before.cosigned(origin) != head for origin, head in self.since.items())


def forgetting(witness: Witness) -> tuple[Witness, _Forgets]:
    """Return a witness that leaves no trace in the original; its log records alarms as usual."""
    witness.journal.save()  # so that it takes a cosignature of this checkpoint also when the log has made another one
    other = copy(witness)
    other._said, other._memory = dict(witness._said), _Forgets(witness._memory)
    return other, other._memory


def _progress(attempt: Attempt) -> tuple[object, ...]:
    """Return what an attempt has collected: the senders of messages, and their totals."""
    updates, state = attempt._updates, attempt._state
    in_clear = () if updates is None else (frozenset(updates.answered), updates._total.tobytes())
    if state is None:
        return in_clear
    totals = tuple(total.tobytes() for total in getattr(state, "totals", {}).values())
    return *in_clear, type(state), frozenset(state.received), totals


def _copied(one: CopyT) -> CopyT:
    """Copy an object with its containers and arrays, so that the two collect separately."""
    other = copy(one)
    for name, value in vars(one).items():
        if isinstance(value, (set, dict, list, np.ndarray)):
            setattr(other, name, value.copy())
        elif isinstance(value, ClearUpdates):
            setattr(other, name, _copied(value))
        elif hasattr(value, "totals"):
            setattr(other, name, replace(value, totals={key: total.copy() for key, total in value.totals.items()}))
    return other


def again(value: Any) -> Any:
    """Copy a value with its secrets and vectors; anything without these is not copied."""
    if isinstance(value, Secret):
        return Secret(value.reveal()) if len(value) else value
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: again(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        new = {name: again(item) for name, item in old.items()}
        changed = {name: item for name, item in new.items() if item is not old[name]}
        return replace(value, **changed) if changed else value
    return value
