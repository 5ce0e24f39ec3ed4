"""The findings of a reconciliation, and how kept messages turn a suspicion into a finding. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from securefda.audit.log_records import Record
from securefda.audit.reconcile.claims import Claim, NotProved, prove
from securefda.audit.reconcile.run_transcript import Members
from securefda.audit.statements import Statement

RunKind = Literal[
    # a log is not what its party signed, or too few others vouch for it; nothing behind that place is used.
    "unverified-log",
    "unreadable-log",  # a folder has the files of a log, and they cannot be read as one.
    "strange-log",  # a log is of a site that the roster does not have, or of another federation.
    "missing-log",  # a site took part, and its log is not here.
    "forked-log",  # a party signed two trees, or cosigned one that the other's log does not have.
    "roster-differs",  # a log, or a header, is of another roster.
    # several rosters lie with the logs, and the user vouches for none. Under a made-up one any site could be accused,
    # so this is the only finding of the run.
    "rosters-in-doubt",
    "policy-not-logged",  # a source took part without a record of its policy since it started.
    "equivocation",  # two different messages of one type where there must be one.
    "double-release",  # two releases of one source in a round; proved only of one view of a session.
    "threshold",  # numbers of a header, or of survivors, signatures or shares, with which no sum may be opened.
    "broken-chain",  # a header does not continue the last result.
    # a header without the target's cosigned checkpoint, or another one than its receiver had cosigned.
    "bad-checkpoint",
    # one log has a message as received that its sender's log has not as sent; which of the two is wrong, the message
    # does not show: it may be of another run.
    "never-sent",
    "records-differ",  # both ends have the message, with other numbers.
    # a party went on as only a site does that has a message, or has burnt the fuse, and its log has no record of it.
    "missing-record",
    "unmask-differs",  # a source signed, or released shares for, other survivors than it was shown.
    # a record says of a message that it discloses something else than its header makes it disclose.
    "disclosure-differs",
    "not-allowed",  # an update left without a decision of the policy that allows it.
    # a source kept another final model than that of the last result, or one that the headers leave to none.
    "wrong-model",
    "wrong-epsilon",  # epsilon is not what the charges in the log come to.
    "ledger-went-back",  # a privacy ledger has no more rows than before.
    # a message that a site keeps beside its log is not what its record says, see `kept_check`. The log itself may be
    # sound; no site is accused, since the file does not say who changed it.
    "evidence-damaged",
    "evidence-missing",
    "evidence-differs",
    "evidence-unrecorded",
    "evidence-moved",
]
"""Kinds of findings."""

STEPS: Final[Mapping[str, int]] = {
    name: place
    for place, names in enumerate(
        (
            ("Join", "run-began", "restarted", "policy-loaded"),
            ("Checkpoint", "checkpoint-signed"),
            ("Cosigned", "checkpoint-cosigned"),
            ("features-released",),
            ("Header",),
            ("ledger-updated",),
            ("Advertise",),
            ("KeyList", "Roll"),
            ("Nonce",),
            ("Neighbours",),
            ("ShareBundle",),
            ("ShareDelivery",),
            ("caps-computed", "release-fuse-burnt"),
            ("MaskedInput", "Update"),
            ("Survivors",),
            ("survivors-signed", "SurvivorSignature"),
            ("Consistency", "NeighbourConsistency"),
            ("unmask-shares-released", "Unmask"),
            ("Result",),
            ("Refusal", "Abort", "refused", "aborted", "alarm"),
            ("model-kept", "run-ended", "Goodbye"),
        )
    )
    for name in names
}
"""Order of messages and events within an attempt."""

_LAST_KINDS: Final[Mapping[str, int]] = {"never-sent": 1, "missing-record": 2}
"""Kinds that come last of a step: whatever else is wrong with a message says more."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The position of a record: the party of its log, and its 0-based place there."""

    party: str
    index: int

    @classmethod
    def of(cls, record: Record) -> Mark:
        """Return the position of a record."""
        return cls(record.party, record.seq)


Severity = Literal["fine", "attention", "unjudged", "tampering"]
"""How grave something is: nothing; to be looked into; not to be judged by this version or these rosters, so that
tampering may pass unseen; a log or message was tampered with, or a promise broken."""
_IN_DOUBT: Final = ("missing-log", "strange-log")
_NOT_SETTLED: Final = ("unverified-log", "roster-differs", "broken-chain")
"""Kinds that can be honest if nobody is accused: a crash, a wrong roster, or a log that is not here."""


@dataclass(frozen=True, slots=True)
class Notice:
    """An oddity, or something that could not be judged, in one line of words. It proves nothing.

    ``site`` is the site whose log it is about, if any. ``care`` is whether somebody must look at it; False for what
    every run leaves.
    """

    what: str
    site: str = ""
    care: bool = False

    def __str__(self) -> str:
        return f"{self.site}: {self.what}" if self.site else self.what


@dataclass(frozen=True, slots=True)
class RunFinding:
    """A contradiction between the logs and messages of one run, or between them and the rules.

    Attributes:
        what: one line of words.
        accused: the sites at fault, sorted: one if its own signatures or its own log settle that; several that disagree
            if one of them is at fault; none if it is unknown.
        sides: the two sites that it is between; the second is empty if it is about one alone.
        step: the type of the message or event that it is about.
        round, attempt, session: its place; 0, 0 and empty outside rounds.
        records: the records that show it, from both logs if both have one.
        digests: the digests of the signed messages that show it.
        claim: the claim that these messages prove to a third party; None if only the logs show it.
    """

    kind: RunKind
    what: str
    accused: tuple[str, ...]
    sides: tuple[str, str] = ("", "")
    step: str = ""
    round: int = 0
    attempt: int = 0
    session: str = ""
    records: tuple[Mark, ...] = ()
    digests: tuple[str, ...] = ()
    claim: Claim | None = field(default=None, repr=False)

    @property
    def is_of_evidence(self) -> bool:
        """Whether the finding is about messages kept beside a log, not about the logs themselves."""
        return self.kind.startswith("evidence-")

    @property
    def severity(self) -> Severity:
        """The severity of the finding."""
        if self.kind == "rosters-in-doubt":
            return "unjudged"
        if self.kind in _IN_DOUBT or (self.kind in _NOT_SETTLED and not self.accused):
            return "attention"
        return "tampering"

    @property
    def order(self) -> tuple[int, ...]:
        """The sort key: logs that fail by themselves first, then by round, attempt, step and record.

        Lost evidence comes after these, since it changes nothing in the logs. Missing and strange logs come last.
        """
        if self.kind in ("unverified-log", "unreadable-log", "forked-log"):
            group = 0
        elif self.kind in _IN_DOUBT:
            group = 3
        else:
            group = 2 if self.is_of_evidence else 1
        first = min((mark.index for mark in self.records), default=0)
        step = STEPS.get(self.step, len(STEPS))
        return group, self.round, self.attempt, step, _LAST_KINDS.get(self.kind, 0), first


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The result of reconciling one run: findings, the first divergence first, and what was checked how often."""

    findings: tuple[RunFinding, ...]
    notices: tuple[Notice, ...]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A finding as the logs alone show it, and the claim that would resolve it.

    Attributes:
        culprit: the site that the messages would accuse; empty if no message can.
        claim: the kind of the claim.
        evidence: the digests of the claim's messages, in its order.
        notes: the checkpoints of the claim.
    """

    finding: RunFinding
    culprit: str = ""
    claim: str = ""
    evidence: tuple[str, ...] = ()
    notes: tuple[bytes, ...] = ()


def resolve(suspicions: Iterable[Suspicion], kept: Mapping[str, Statement], members: Members) -> list[RunFinding]:
    """Return one finding for each fault, the first divergence first, with the accusations that the messages prove.

    ``kept`` has the messages that sites kept, by digest.
    """
    findings = [_resolved(suspicion, kept, members) for suspicion in suspicions]
    return _without_echoes(sorted(findings, key=lambda finding: finding.order))


def _resolved(suspicion: Suspicion, kept: Mapping[str, Statement], members: Members) -> RunFinding:
    if not suspicion.culprit or not all(digest in kept for digest in suspicion.evidence):
        return suspicion.finding
    messages = tuple(kept[digest] for digest in suspicion.evidence)
    claim = Claim(suspicion.claim, suspicion.culprit, messages, suspicion.notes)
    try:
        prove(claim, members)
    except NotProved:
        return suspicion.finding
    return replace(suspicion.finding, accused=(suspicion.culprit,), claim=claim)


def _without_echoes(findings: list[RunFinding]) -> list[RunFinding]:
    """Keep one finding of each fault, and none of a message as never sent that another finding is about."""
    telling = (finding for finding in findings if finding.kind != "never-sent" and not finding.is_of_evidence)
    explained = {digest for finding in telling for digest in finding.digests}
    kept: dict[tuple[object, ...], RunFinding] = {}
    for finding in findings:
        digests = frozenset(finding.digests)
        if finding.kind == "never-sent" and explained & digests:
            continue
        # Records and messages alike show an equivocation, the messages without saying to whom
        sides = () if finding.kind == "equivocation" else finding.sides
        key = (finding.kind, finding.session, finding.step, sides, digests) if digests else (id(finding),)
        if key not in kept or len(kept[key].records) < len(finding.records):
            kept[key] = finding
    return sorted(kept.values(), key=lambda finding: finding.order)
