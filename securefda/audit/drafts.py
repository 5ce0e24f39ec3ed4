"""From a suspicion to a finding: who is accused depends on what the kept messages prove. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from securefda.audit.claims import Claim, NotProved, prove
from securefda.audit.members import Members
from securefda.audit.run_findings import RunFinding
from securefda.audit.statements import Statement


@dataclass(frozen=True, slots=True)
class Draft:
    """A finding, and what would settle it.

    Attributes:
        finding: as the logs alone show it.
        culprit: whom the messages would accuse; empty where no message can.
        claim: kind of the claim.
        evidence: digests of the messages of the claim, in its order.
        notes: checkpoints of the claim.
    """

    finding: RunFinding
    culprit: str = ""
    claim: str = ""
    evidence: tuple[str, ...] = ()
    notes: tuple[bytes, ...] = ()


def settle(drafts: Iterable[Draft], found: Mapping[str, Statement], members: Members) -> list[RunFinding]:
    """Accuse whom the messages accuse; the first divergence first, and of one lie the finding that says most."""
    findings = sorted((_settled(draft, found, members) for draft in drafts), key=lambda one: one.order)
    return _without_echoes(findings)


def _settled(draft: Draft, found: Mapping[str, Statement], members: Members) -> RunFinding:
    if not draft.culprit:
        return draft.finding
    messages = [found[digest] for digest in draft.evidence if digest in found]
    if len(messages) < len(draft.evidence):
        return draft.finding
    claim = Claim(draft.claim, draft.culprit, tuple(messages), draft.notes)
    try:
        prove(claim, members)
    except NotProved:
        return draft.finding
    return replace(draft.finding, accused=(draft.culprit,), claim=claim)


def _without_echoes(findings: list[RunFinding]) -> list[RunFinding]:
    """Leave out that a message was never sent where the message itself is another finding's."""
    speaking = (one for one in findings if one.kind != "never-sent" and not one.is_of_evidence)
    told = {digest for one in speaking for digest in one.digests}
    kept: dict[tuple[object, ...], RunFinding] = {}
    for one in findings:
        if one.kind == "never-sent" and told.intersection(one.digests):
            continue
        sides = () if one.kind == "equivocation" else one.sides  # both from a record and from the messages alone
        key = (one.kind, one.session, one.step, sides, frozenset(one.digests)) if one.digests else (id(one),)
        old = kept.get(key)
        if old is None or (len(old.records) < len(one.records)):
            kept[key] = one
    return sorted(kept.values(), key=lambda one: one.order)
