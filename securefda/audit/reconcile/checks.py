"""Reconciliation: the logs of one run, of the target and its sources, read together and compared. Pure.

What it shows, where nothing is found: what one site says it sent, the other says it received; all were shown the same;
no source released twice in a round; no sum was opened over fewer than the headers allow; models, epsilons and
checkpoints continue each other. A log says what its party wrote. Two logs with the same false records are not found out
by comparing them, but by the signed messages, and by the other sites that got these.

One site is accused where its own signatures settle it (`securefda.audit.reconcile.claims`), or its own log. What one
site says of another is a disagreement of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from securefda.audit.reconcile.check import Check, PartyLog, RunLogs
from securefda.audit.reconcile.continuity import Continuity
from securefda.audit.reconcile.cosignatures import CosignatureCheck
from securefda.audit.reconcile.disclosures import Disclosures
from securefda.audit.reconcile.equivocation import EquivocationCheck
from securefda.audit.reconcile.own_logs import KeptEvidence, LogLifecycle, VerifiedLogs
from securefda.audit.reconcile.pairing import Pairing
from securefda.audit.reconcile.spending import Spending
from securefda.audit.reconcile.steps import StepsTaken
from securefda.audit.reconcile.suspicion import Reconciliation, resolve
from securefda.audit.reconcile.transcript import Members, SignedTranscript
from securefda.audit.statements import Statements

CHECKS: Final[tuple[type[Check], ...]] = (
    VerifiedLogs,
    LogLifecycle,
    Pairing,
    EquivocationCheck,
    StepsTaken,
    Disclosures,
    CosignatureCheck,
    Spending,
    Continuity,
    KeptEvidence,
)
"""All checks, in the order in which they run."""


def reconcile(
    logs: Sequence[PartyLog], members: Members, transcript: SignedTranscript, statements: Statements
) -> Reconciliation:
    """Compare the logs of one run, in one pass over their records.

    Memory grows with the number of sessions, not of records, as long as the logs' clocks are not far apart.

    Args:
        logs: of different parties of one run; what of these is missing is listed as not checked.
        members: the federation that they are of.
        transcript: what `read_transcript` made of the messages that the parties kept.
        statements: these messages, to look up evidence.

    Raises:
        ValueError: two logs are of one party, or one is of no member.
    """
    run = RunLogs(logs, members, transcript)
    if len(run.parties) != len(logs) or not run.parties <= set(members.keys):
        raise ValueError("the logs are not of different members")
    checks = [check(run) for check in CHECKS]
    watching = [check.see for check in checks if type(check).see is not Check.see]
    for record in run.records():
        for see in watching:
            see(record)
    suspicions = [suspicion for check in checks for suspicion in check.suspicions()]
    wanted = {digest for suspicion in suspicions for digest in suspicion.evidence}
    findings = resolve(suspicions, statements.find(wanted) if wanted else {}, members)
    counts = {"logs": len(logs), "records": run.count}
    for check in checks:
        counts |= check.counts()
    notices = [notice for check in checks for notice in check.notices()]
    if transcript.ignored:
        why = "are of another run, or not their sender's to send"
        notices.append(f"{transcript.ignored} kept messages {why}; they were left out")
    return Reconciliation(tuple(findings), tuple(notices), counts | {"findings": len(findings)})
