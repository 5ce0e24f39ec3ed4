"""The findings of a reconciliation, and how kept messages turn a suspicion into a finding. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from securefda.audit.reconcile.claims import Claim, NotProved, prove
from securefda.audit.reconcile.transcript import Members
from securefda.audit.records import Record
from securefda.audit.statements import Statement

RunKind = Literal[
    "unverified-log",
    "unreadable-log",
    "strange-log",
    "missing-log",
    "forked-log",
    "roster-differs",
    "rosters-in-doubt",
    "policy-not-logged",
    "equivocation",
    "double-release",
    "threshold",
    "broken-chain",
    "bad-checkpoint",
    "never-sent",
    "records-differ",
    "missing-record",
    "unmask-differs",
    "disclosure-differs",
    "not-allowed",
    "wrong-model",
    "wrong-epsilon",
    "ledger-went-back",
    "evidence-damaged",
    "evidence-missing",
    "evidence-differs",
    "evidence-unrecorded",
    "evidence-moved",
]
"""Kinds of findings.

- unverified-log: a log is not what its party signed, or too few others vouch for it; nothing behind that place is used.
- unreadable-log: a folder has the files of a log, and they cannot be read as one.
- strange-log: a log is of a site that the roster does not have, or of another federation.
- missing-log: a site took part, and its log is not here.
- forked-log: a party signed two trees, or cosigned one that the other's log does not have.
- roster-differs: a log, or a header, is of another roster.
- rosters-in-doubt: several rosters lie with the logs, and the user vouches for none. Under a made-up one any site could
  be accused, so this is the only finding of the run.
- policy-not-logged: a source took part without a record of its policy since it started.
- equivocation: two different messages of one type where there must be one.
- double-release: two releases of one source in a round; proved only of one view of a session.
- threshold: numbers of a header, or of survivors, signatures or shares, with which no sum may be opened.
- broken-chain: a header does not continue the last result.
- bad-checkpoint: a header without the target's cosigned checkpoint, or another one than its receiver had cosigned.
- never-sent: one log has a message as received that its sender's log has not as sent; which of the two is wrong, the
  message does not show: it may be of another run.
- records-differ: both ends have the message, with other numbers.
- missing-record: a party went on as only a site does that has a message, or has burnt the fuse, and its log has no
  record of it.
- unmask-differs: a source signed, or released shares for, other survivors than it was shown.
- disclosure-differs: a record says of a message that it discloses something else than its header makes it disclose.
- not-allowed: an update left without a decision of the policy that allows it.
- wrong-model: a source kept another final model than that of the last result, or one that the headers leave to none.
- wrong-epsilon: epsilon is not what the charges in the log come to.
- ledger-went-back: a privacy ledger has no more rows than before.
- evidence-...: a message that a site keeps beside its log is not what its record says, see `kept_check`. The log itself
  may be sound; no site is accused, since the file does not say who changed it.
"""

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

_KINDS: Final[Mapping[str, int]] = {
    "never-sent": 1,  # whatever else is wrong with a message says more
    "missing-record": 2,
}
_OF_LOGS: Final = 0
_OF_RUN: Final = 1
_OF_EVIDENCE: Final = 2
_OF_DOUBT: Final = 3


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
    """An oddity, or something that could not be judged. It proves nothing.

    Attributes:
        what: one line of words.
        site: the site whose log it is about; empty if it is about none.
        care: whether somebody must look at it; False for what every run leaves.
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
        kind: one of `RunKind`.
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
        alone = _OF_LOGS if self.kind in ("unverified-log", "unreadable-log", "forked-log") else _OF_RUN
        if self.is_of_evidence or self.kind in _IN_DOUBT:
            alone = _OF_DOUBT if self.kind in _IN_DOUBT else _OF_EVIDENCE
        at = min((mark.index for mark in self.records), default=0)
        return alone, self.round, self.attempt, STEPS.get(self.step, len(STEPS)), _KINDS.get(self.kind, 0), at


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The result of reconciling one run.

    Attributes:
        findings: the findings, with the first divergence first.
        notices: oddities, and things that cannot be judged.
        counts: what was checked, in words -> how often.
    """

    findings: tuple[RunFinding, ...]
    notices: tuple[Notice, ...]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A finding, and the claim that would resolve it.

    Attributes:
        finding: the finding as the logs alone show it.
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


def resolve(suspicions: Iterable[Suspicion], found: Mapping[str, Statement], members: Members) -> list[RunFinding]:
    """Return one finding for each fault, the first divergence first, with the accusations that the messages prove."""
    findings = sorted((_resolved(suspicion, found, members) for suspicion in suspicions), key=lambda one: one.order)
    return _without_echoes(findings)


def _resolved(suspicion: Suspicion, found: Mapping[str, Statement], members: Members) -> RunFinding:
    if not suspicion.culprit:
        return suspicion.finding
    messages = [found[digest] for digest in suspicion.evidence if digest in found]
    if len(messages) < len(suspicion.evidence):
        return suspicion.finding
    claim = Claim(suspicion.claim, suspicion.culprit, tuple(messages), suspicion.notes)
    try:
        prove(claim, members)
    except NotProved:
        return suspicion.finding
    return replace(suspicion.finding, accused=(suspicion.culprit,), claim=claim)


def _without_echoes(findings: list[RunFinding]) -> list[RunFinding]:
    """Drop never-sent findings whose message is the subject of another finding."""
    speaking = (one for one in findings if one.kind != "never-sent" and not one.is_of_evidence)
    said = {digest for one in speaking for digest in one.digests}
    kept: dict[tuple[object, ...], RunFinding] = {}
    for one in findings:
        if one.kind == "never-sent" and said.intersection(one.digests):
            continue
        sides = () if one.kind == "equivocation" else one.sides  # both from a record and from the messages alone
        key = (one.kind, one.session, one.step, sides, frozenset(one.digests)) if one.digests else (id(one),)
        old = kept.get(key)
        if old is None or (len(old.records) < len(one.records)):
            kept[key] = one
    return sorted(kept.values(), key=lambda one: one.order)
