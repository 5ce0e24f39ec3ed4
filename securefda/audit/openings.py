"""How logs begin and end: one roster, a policy before each part, and an end. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from securefda.audit.drafts import Draft
from securefda.audit.members import Members
from securefda.audit.records import Record
from securefda.audit.run_findings import Mark, RunFinding, RunKind


@dataclass(slots=True)
class _Opened:
    began: bool = False
    outcome: str = ""
    restarted: bool = False
    policy_due: bool = False
    policies: list[tuple[int, str]] = field(default_factory=list)


class Openings:
    """Follows how each log begins, goes on and ends; the records of one log come in their order."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._logs: dict[str, _Opened] = {}
        self._drafts: list[Draft] = []

    @property
    def counts(self) -> dict[str, int]:
        """How many policies were loaded."""
        return {"policies loaded": sum(len(log.policies) for log in self._logs.values())}

    @property
    def completed(self) -> frozenset[str]:
        """Parties whose logs say that the run was completed, so that others were there to the end."""
        return frozenset(party for party, log in self._logs.items() if log.outcome == "completed")

    def has_restarted(self, party: str) -> bool:
        """Whether a log was taken up again by a new process."""
        return party in self._logs and self._logs[party].restarted

    def drafts(self) -> Iterator[Draft]:
        """Logs of another roster, and sources that took part without saying under which policy."""
        return iter(self._drafts)

    def notices(self, whole: Collection[str]) -> Iterator[str]:
        """Changes of policies, and logs without an end."""
        for party, log in sorted(self._logs.items()):
            yield from _changes(party, log.policies)
            if party in whole and not log.outcome:
                yield f"{party}: its log has no end: the run goes on, or was broken off"

    def see(self, record: Record) -> None:
        """Take a record."""
        entry = record.entry
        if entry.direction != "event" and not (entry.type == "Join" and entry.direction == "sent"):
            return
        log = self._logs.get(record.party)
        if log is None:
            log = self._logs[record.party] = _Opened()
        if entry.type == "policy-loaded":
            log.policies.append((record.seq, str(entry.facts["policy"])))
            log.policy_due = False
        elif entry.type in ("run-began", "restarted"):
            self._begins(record, log)
        elif entry.type == "run-ended":
            log.outcome = str(entry.facts["outcome"])
        elif entry.type == "Join" and log.policy_due:
            log.policy_due = False
            what = f"{record.party} joined without a record of the policy that it started with"
            self._add("policy-not-logged", what, record)

    def _begins(self, record: Record, log: _Opened) -> None:
        log.outcome = ""
        log.policy_due = record.party != self._members.target
        log.restarted |= record.entry.type == "restarted"
        if record.entry.type != "run-began":
            return
        if log.began or record.seq != 0:
            self._add("roster-differs", f"the log of {record.party} begins twice", record)
        log.began = True
        if record.entry.facts["roster"] != self._members.roster:
            what = f"the log of {record.party} is of another roster than the one that it is read under"
            self._add("roster-differs", what, record, accused=())

    def _add(self, kind: RunKind, what: str, record: Record, accused: tuple[str, ...] | None = None) -> None:
        finding = RunFinding(
            kind=kind,
            what=what,
            accused=(record.party,) if accused is None else accused,
            sides=(record.party, ""),
            step=record.entry.type,
            records=(Mark.of(record),),
        )
        self._drafts.append(Draft(finding))


def _changes(party: str, policies: list[tuple[int, str]]) -> Iterator[str]:
    seen: list[str] = []
    for index, digest in policies:
        if seen and digest != seen[-1]:
            back = "an earlier policy is back" if digest in seen else "another policy"
            yield f"{party}: {back} from record {index} on: {digest[:12]} instead of {seen[-1][:12]}"
        seen.append(digest)
