"""The sources of a run: which have joined and cosigned, which can take part in an attempt, and the last goodbye."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from securefda import __version__
from securefda.aggregator.headers import Planner, SessionPlan
from securefda.aggregator.rounds import CurrentRound
from securefda.aggregator.site import TargetSite
from securefda.audit.witness import MOST_SHOWN, CheckpointError
from securefda.errors import (
    ConfigError,
    FaultySourceError,
    OtherBuild,
    ProtocolError,
    QuorumLost,
    RunEnded,
    RunRefused,
    SecureFdaError,
)
from securefda.operations.notes import Note
from securefda.operations.progress import Reporter
from securefda.protocol.envelope_checks import envelope_fault
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    Body,
    Checkpoint,
    Cosigned,
    Goodbye,
    Join,
    Parcel,
    Send,
    Signed,
    Signer,
    Visibility,
)
from securefda.site.policy.verdict import hint_for

OWN_TROUBLE = {
    "TRAINING": "cannot train",
    "DIVERGED": "reports that its training diverges",
    "STORAGE": "cannot write its state",
    "dp.target-epsilon": "has spent its privacy budget",
    "release.max-unfinished": "has seen too many rounds without a result",
}
"""Keys of refusals by which a source's process ends -> their meaning. The source's own operator sees the cause."""


OF_CONSENT = ("release.max-runs", "release.max-unfinished")
"""Keys with which a source refuses a run until its operator consents."""


class Attendance:
    """The sources of a run, by roster index.

    Sources in ``present`` have joined and not left. For those in ``returning``, a new process has connected and not
    joined yet. ``refused`` has the key for which a source left the run, a key of its policy or one of ``OWN_TROUBLE``,
    and ``other_builds`` a line about one that runs a build that this one does not speak with, until the source joins
    again.
    """

    def __init__(self, site: TargetSite, reporter: Reporter) -> None:
        self._site, self._reporter = site, reporter
        self._joined: dict[int, Join] = {}
        self._why: dict[int, str] = {}
        self._consent: dict[int, str] = {}
        self.present: set[int] = set()
        self.returning: set[int] = set()
        self.refused: dict[int, str] = {}
        self.other_builds: dict[int, str] = {}

    @property
    def connected(self) -> set[int]:
        """Sources that are present or about to join again."""
        return self.present | self.returning

    def refuses_join(self, message: Signed[Body]) -> bool:
        """Whether a join message must be refused: it is not valid, or its sender may not take part now."""
        index, site = message.sender, self._site
        if index not in site.sources:
            fault: str | None = "not a source"
        elif site.has_left(index):
            fault = "it has left the federation and revoked its keys"
        elif not site.admits(index):
            fault = "by this clock its roster entry is not valid now"
        else:
            fault = envelope_fault(
                message, roster=site.roster, sender=index, session_id=NO_SESSION, context=NO_CONTEXT, kind=Join
            )
        if fault:
            self.note_trouble(index, f"join refused: {fault}")
            name = site.name(index)
            self._reporter.note(Note(f"{name}: join refused ({fault})", "warning", name))
        return fault is not None

    def note_other_model(self, index: int) -> None:
        """Note that a source tried to join with another model."""
        other = "its model has other layers" + (", or other frozen values" if self._site.trainer.frozen_digest else "")
        self.note_trouble(index, f"fails check HEADER_ARCHITECTURE: {other}")
        name = self._site.name(index)
        self._reporter.note(Note(f"{name}: {other}; it needs the same task and version", "warning", name))

    def joined(self, index: int, body: Join) -> None:
        """Note that a source joined, and tell the operator if its version differs, in case something fails later."""
        self.present.add(index)
        self._joined[index] = body
        self.refused.pop(index, None)
        self.other_builds.pop(index, None)
        self._consent.pop(index, None)
        self._why.pop(index, None)
        name = self._site.name(index)
        self._reporter.note(Note(f"{name} joined ({len(self.present)} of {len(self._site.sources)})", peer=name))
        if body.build.software_version != __version__:
            version = f"{name} runs {body.build}, the aggregator securefda {__version__}"
            self._reporter.note(Note(version, peer=name))

    def visibility(self, index: int) -> Visibility:
        """The most that a source's policy lets the aggregator see, as its join said; ``sum`` before it has joined."""
        join = self._joined.get(index)
        return Visibility.SUM if join is None else join.visibility

    def all_hand_in_metrics(self, indices: Iterable[int]) -> bool:
        """Whether each of these sources said in its join that it reports loss and accuracy."""
        joins = [self._joined.get(index) for index in indices]
        return all(join is not None and join.metrics for join in joins)

    def reconnected(self, index: int) -> bool:
        """Note that a source is back as the same process; returns False if it never joined."""
        if index in self._joined:
            self.present.add(index)
            self._why.pop(index, None)
            name = self._site.name(index)
            self._reporter.note(Note(f"{name} is back", peer=name))
        return index in self._joined

    def refuses_the_run(self, index: int, key: str) -> None:
        """Note that a source's policy forbids the run's schedule."""
        self.refused[index] = key
        name = self._site.name(index)
        self._reporter.note(Note(f"{name} takes no part: its policy refuses {key}", "warning", name))

    def note_other_build(self, index: int, theirs: str, ours: str) -> None:
        """Note that a source runs another build. It is accused of nothing, and may join again with one like this."""
        self.present.discard(index)
        self.returning.discard(index)
        name = self._site.name(index)
        error = OtherBuild.between(name, theirs, "the aggregator", ours)
        self.other_builds[index] = str(error)
        self.note_trouble(index, str(error))
        self._reporter.note(Note(f"{error}; it takes no part", "warning", name))

    @property
    def out(self) -> set[int]:
        """Sources that take no part in the run unless they join again."""
        return self.refused.keys() | self.other_builds.keys()

    def why_out(self) -> SecureFdaError | None:
        """The error of a run that cannot do without sources of another build, or whose policies refuse it, if any."""
        if self.other_builds:
            return OtherBuild("; ".join(line for _, line in sorted(self.other_builds.items())))
        return run_refused(self.forbidden) if self.forbidden else None

    @property
    def forbidden(self) -> dict[str, str]:
        """Site id -> key of its policy, of the sources that left the run because of one."""
        return {self._site.name(index): key for index, key in sorted(self.forbidden_by_index.items())}

    @property
    def forbidden_by_index(self) -> dict[int, str]:
        """The same, by roster index."""
        return {index: key for index, key in self.refused.items() if key not in OWN_TROUBLE}

    def left(self, index: int, why: str) -> None:
        """The connection to a source is gone."""
        self.returning.discard(index)
        self.note_trouble(index, why)
        if index in self.present:
            self.present.discard(index)
            name = self._site.name(index)
            self._reporter.note(Note(f"{name} left", "warning", name))

    def replaced(self, index: int, why: str) -> None:
        """A new process of a source has connected, and will join."""
        self.left(index, why)
        self.returning.add(index)

    def awaits_consent(self, index: int, key: str) -> None:
        """A source takes no part before its operator has consented; then it joins again, so it is waited for."""
        self.present.discard(index)
        self._consent[index] = key
        name = self._site.name(index)
        text = f"{name} takes no part unless its operator consents: its policy refuses {key}"
        self._reporter.note(Note(text, "warning", name))

    def note_trouble(self, index: int, why: str) -> None:
        """Why a source may be missing soon; a failed check is not replaced by the end of the connection after it."""
        if "check" not in self._why.get(index, ""):
            self._why[index] = why

    def forget_trouble(self, indices: Iterable[int]) -> None:
        """Sources are in the sum of a round: their earlier trouble is out of date."""
        for index in indices:
            self._why.pop(index, None)

    def with_troubles(self, error: QuorumLost) -> QuorumLost:
        """The error, with the last trouble of each source that is missing."""
        refusals = (f"the policy of {self._site.name(index)} refuses {key}" for index, key in self._consent.items())
        hints = dict.fromkeys(hint_for(key) for key in self._consent.values())
        # In the hint, which no other source reads
        why = {self._site.name(index): why for index, why in self._why.items()}
        return error.because(why, hint="; ".join([*refusals, *hints]))


class CosignerTracker:
    """Asks the sources of one run to cosign the aggregator's log, and keeps which have, by roster index.

    Sources in ``cosigned`` have cosigned the checkpoint that is shown now and shown their own log. Those in ``faulty``
    have shown two histories, or signed what they should not; this process asks them nothing more.
    """

    def __init__(self, site: TargetSite) -> None:
        self._site, self._witness = site, site.witness
        self._have_shown: set[int] = set()
        self._asked: dict[int, int] = {}
        self._times_shown: Counter[int] = Counter()
        self._unanswered: Counter[int] = Counter()
        self.cosigned: set[int] = set()
        self.faulty: set[int] = set()

    def renew(self, present: Iterable[int], *, lasting: bool = False) -> list[Send]:
        """Make a checkpoint, a lasting one if asked for, and ask these sources to cosign it. Raises AuditError."""
        self._witness.renew(lasting=lasting)
        self.cosigned.clear()
        self._have_shown.clear()
        self._times_shown.clear()
        asked = sorted(set(present) - self.faulty)
        self._unanswered.update(asked)
        return [self.ask(index) for index in asked]

    def ask(self, index: int) -> Send:
        """Show the newest checkpoint to a source. Raises AuditError."""
        self._asked[index] = self._witness.heard_of(index)
        return Send(index, self._witness.show(index))

    def ask_again(self, index: int) -> list[Send]:
        """Show it to a source that came or came back, unless it is faulty. Raises AuditError."""
        return [] if index in self.faulty else [self.ask(index)]

    def replaced(self, index: int) -> None:
        """A new process of a source has connected. It is asked once it has joined, whatever the old one answered."""
        self.cosigned.discard(index)
        self._have_shown.discard(index)
        self._times_shown.pop(index, None)

    def note_known(self, index: int, known: int) -> None:
        """A new process of a source said how much of the aggregator's log it has cosigned."""
        self.replaced(index)
        self._witness.hear(index, known)

    def receive(self, message: Signed[Body]) -> list[Send]:
        """A source shows its checkpoint, or cosigns the aggregator's.

        Raises:
            FaultySourceError: no honest source sends this; nothing more is asked of it.
            AuditError, SecureFdaError: it cannot be written down.
        """
        index, body = message.sender, message.body
        if index not in self._site.sources or index in self.faulty:
            return []
        fault = envelope_fault(
            message, roster=self._site.roster, sender=index, session_id=NO_SESSION, context=NO_CONTEXT
        )
        try:
            if fault:
                raise CheckpointError(fault, message.type_name)
            return self._answer(index, body)
        except CheckpointError as error:
            self.faulty.add(index)
            self.cosigned.discard(index)
            raise FaultySourceError(self._site.name(index), error.check, error.detail) from error

    def _answer(self, index: int, body: Body) -> list[Send]:
        if isinstance(body, Checkpoint):
            if self._unanswered[index]:  # one that was busy for some rounds answers all that it was asked meanwhile
                self._unanswered[index] -= 1
            else:
                self._times_shown[index] += 1
            if self._times_shown[index] > MOST_SHOWN:
                raise CheckpointError("CHECKPOINT_AGAIN", f"its log, more than {MOST_SHOWN} times in a row")
            answer = self._witness.cosign(index, body)
            # It could not cosign the newest one: a proof from what it knows was not there when that was sent.
            unheard = body.known != self._witness.size and body.known != self._asked.get(index)
            again = [self.ask(index)] if unheard else []
            if answer is None:
                return again
            self._have_shown.add(index)
            return [Send(index, answer), *again]
        if isinstance(body, Cosigned) and self._witness.take(index, body):
            if index not in self._have_shown:
                raise CheckpointError("CHECKPOINT_MISSING", "it cosigns without showing its own log")
            self.cosigned.add(index)
        return []


@dataclass(frozen=True, slots=True)
class Candidates:
    """Which sources can take part in a round, from all that is known of them; ``planner`` says which sets suffice."""

    site: TargetSite
    attendance: Attendance
    cosigners: CosignerTracker
    planner: Planner

    def expected(self, current: CurrentRound) -> frozenset[int]:
        """Sources that can take part: all that the roster admits now and that refused neither the round nor the run.

        Those are out, too, for whose missing nonces an attempt at the round ended.
        """
        out = self.cosigners.faulty | current.refused.keys() | current.silent | self.attendance.out
        return frozenset(index for index in self.site.sources - out if self.site.admits(index))

    def ready(self, current: CurrentRound) -> frozenset[int]:
        """The expected sources that are present and have cosigned the newest checkpoint, for the next header."""
        return self.expected(current) & self.attendance.present & self.cosigners.cosigned

    def plan(self, current: CurrentRound, sources: Iterable[int]) -> SessionPlan:
        """The plan of an attempt of these sources, as far as they have said what their policies permit.

        Raises:
            ConfigError: there is none; it names the sites that cannot be served.
        """
        permitted = {index: self.attendance.visibility(index) for index in sources}
        return self.planner.plan(permitted, with_sum=current.asked_at_sum)

    def suffice(self, current: CurrentRound, sources: Iterable[int]) -> bool:
        """Whether these sources can make an attempt; one that is away may join."""
        try:
            self.plan(current, sources)
        except ConfigError:
            return False
        return True

    def enough_left(self, current: CurrentRound) -> bool:
        """Whether the expected sources can make an attempt."""
        return self.suffice(current, self.expected(current))


_MOST_CHARACTERS = 500
_SECTIONS = frozenset({"model", "privacy", "session", "strategy", "task", "training", "transport"})
"""Tables of configurations. The key of an error that begins with one of them is a setting, not a path."""


def goodbye(signer: Signer, index: int, farewell: Goodbye, vectors: tuple[memoryview, ...] = ()) -> Send:
    """The last message to a source, with the final model where it names one."""
    return Send(index, Parcel(signer.sign(NO_SESSION, NO_CONTEXT, farewell), vectors))


def run_refused(refusals: Mapping[str, str]) -> RunRefused:
    """The end of a run that cannot do without sources whose policies refuse it; ``refusals`` has their keys by id."""
    hints = dict.fromkeys(hint_for(key) for key in refusals.values())
    return RunRefused(refusals, hint="; ".join([*hints, "with other settings name a new folder: --out FOLDER"]))


def with_hint(error: SecureFdaError, refused: Mapping[str, str]) -> SecureFdaError:
    """Why a round was lost, with a hint for the operator; ``refused`` has the keys of refusals by site id."""
    if not isinstance(error, QuorumLost) or not refused:
        error.hint = error.hint or "ask the sites that are named what happened there"
        return error
    refusals = (
        f"{name} {OWN_TROUBLE[key]} ({key}): its own log says why" if key in OWN_TROUBLE else f"{name} refused {key}"
        for name, key in refused.items()
    )
    return error.because({}, hint=", ".join(refusals))


def reason_for_sources(error: SecureFdaError, *, of_policies: bool = False) -> str:
    """Why a run failed, as one printable line of at most 500 characters.

    Sources read in full what they had a part in. Of the target's own trouble they read its kind or the setting: the
    rest may name the target's files, count its rows or say what is left of its budget.

    Args:
        error: what ended the run.
        of_policies: it says what the sources' policies permit together, which their owners have to change.
    """
    if isinstance(error, RunRefused):  # whose policy, and which key, is no business of the other sources
        return "the policies of too few sources permit this run"
    if not of_policies and not isinstance(error, (ProtocolError, QuorumLost, RunEnded)):
        setting = error.key if isinstance(error, ConfigError) and error.key.split(".")[0] in _SECTIONS else ""
        return f"the target cannot go on ({setting or error.code})"
    return "".join(letter if letter.isprintable() else " " for letter in str(error))[:_MOST_CHARACTERS]
