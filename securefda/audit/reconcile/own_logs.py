"""What each log shows by itself: whether it verifies, how it begins and ends, and what is kept beside it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from securefda.audit.reconcile.check import Check, RunLogs
from securefda.audit.reconcile.suspicion import Mark, RunFinding, RunKind, Suspicion
from securefda.audit.records import Record


class VerifiedLogs(Check):
    """Whether each log is what its party signed. What an honest crash leaves is a notice.

    Cosignatures are for others to give: where they lack, no site is accused.
    """

    name = "verified logs"
    compares = "each log with its checkpoints, also with those that other sites hold"

    def suspicions(self) -> Iterator[Suspicion]:
        """Logs that fail by themselves."""
        for log in self.run.logs:
            found = log.verification.finding
            kind: RunKind = "unverified-log"
            accused: tuple[str, ...] = (log.party,)
            if log.is_unsigned:
                continue
            if found is not None and (found.kind != "missing-cosignature" or self.run.has_completed(log.party)):
                what, index = f"the log of {log.party}: {found.kind}, {found.what}", found.index
                kind = "forked-log" if found.kind == "forked" else kind
                accused = () if found.kind == "missing-cosignature" else accused
            elif log.party in self.run.broken:
                what, index = self.run.broken[log.party], 0
            else:
                continue
            yield Suspicion(RunFinding(kind, what, accused, (log.party, ""), records=(Mark(log.party, index),)))

    def notices(self) -> Iterator[str]:
        """Logs that were not read, or not to the end, and what their verification remarks."""
        for log in self.run.logs:
            found = log.verification.finding
            if log.is_unsigned:
                yield f"{log.party}: no site has a checkpoint of its log; nothing is proved of it, and it was not read"
                continue
            if found is not None and found.kind == "missing-cosignature" and not self.run.has_completed(log.party):
                doubt = f"a holder of its key could have made what follows record {found.index}"
                yield f"{log.party}: {found.what}; {doubt}"
            yield from (f"{log.party}: {note}" for note in (*log.verification.notes, *log.kept.notes))
            if log.party not in self.run.whole:
                yield f"{log.party}: what its log lacks was not judged, since it fails by itself"


class LogLifecycle(Check):
    """How each log begins, goes on and ends."""

    name = "lifecycle"
    compares = "how each log begins, goes on and ends with the roster, and with the policy of each start"

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._began: set[str] = set()
        self._lacks_policy: set[str] = set()
        self._policies: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)

    def counts(self) -> Mapping[str, int]:
        """How many policies were loaded."""
        return {"policies loaded": sum(map(len, self._policies.values()))}

    def see(self, record: Record) -> None:
        """Take a record; all but those of a start, a policy, and the joining of a run are passed over."""
        entry, party = record.entry, record.party
        match entry.type:
            case "policy-loaded":
                self._policies[party].append((record.seq, str(entry.facts["policy"])))
                self._lacks_policy.discard(party)
            case "run-began" | "restarted":
                if party != self.run.members.target:
                    self._lacks_policy.add(party)
                if entry.type == "run-began" and (party in self._began or record.seq != 0):
                    self.suspect(record, "roster-differs", f"the log of {party} begins twice")
                if entry.type == "run-began" and entry.facts["roster"] != self.run.members.roster:
                    what = f"the log of {party} is of another roster than the one that it is read under"
                    self.suspect(record, "roster-differs", what, accused=())
                self._began.add(party)
            case "Join" if entry.direction == "sent" and party in self._lacks_policy:
                self._lacks_policy.discard(party)
                what = f"{party} joined without a record of the policy that it started with"
                self.suspect(record, "policy-not-logged", what, sides=(party, ""))

    def notices(self) -> Iterator[str]:
        """Changes of policies, and logs without an end."""
        for party in sorted(self.run.parties):
            seen: list[str] = []
            for index, digest in self._policies.get(party, ()):
                if seen and digest != seen[-1]:
                    back = "an earlier policy is back" if digest in seen else "another policy"
                    yield f"{party}: {back} from record {index} on: {digest[:12]} instead of {seen[-1][:12]}"
                seen.append(digest)
            if party in self.run.whole and party not in self.run.outcomes:
                yield f"{party}: its log has no end: the run goes on, or was broken off"


class KeptEvidence(Check):
    """Kept messages that are not what their records say. No finding of the log, and no accusation."""

    name = "kept messages"
    compares = "the messages that each site kept as evidence with the records of them"

    def counts(self) -> Mapping[str, int]:
        """How many messages are kept."""
        return {"kept messages": sum(log.kept.messages for log in self.run.logs)}

    def suspicions(self) -> Iterator[Suspicion]:
        """One for each finding of `kept_check`."""
        for log in self.run.logs:
            for found in log.kept.findings:
                entry, what = found.entry, f"beside the log of {log.party}: {found.what}"
                marks = () if found.index is None else (Mark(log.party, found.index),)
                finding = RunFinding(found.kind, what, (), (log.party, ""), records=marks)
                if entry is not None:
                    place = entry.type, entry.round, entry.attempt, entry.session
                    finding = RunFinding(found.kind, what, (), (log.party, ""), *place, marks, (entry.digest,))
                yield Suspicion(finding)
