"""What records say that messages disclose, and that the policy allowed them, against the headers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from securefda.audit.reconcile.check import Check, RunLogs
from securefda.audit.reconcile.transcript import Members
from securefda.audit.records import Disclosure, Record
from securefda.audit.statements import RELEASES, HeaderSaid


class Disclosures(Check):
    """Compares the records of sent messages with the header of their session."""

    name = "disclosures"
    compares = "what each record says that its message discloses, and its place, with the header of its session"

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._checked = self._unknown = 0

    def counts(self) -> Mapping[str, int]:
        """How many records said something that could be checked."""
        return {"disclosures compared with headers": self._checked}

    def notices(self) -> Iterator[str]:
        """How many could not be checked."""
        if self._unknown:
            yield f"{self._unknown} records of releases are of sessions without one header that was kept"

    def see(self, record: Record) -> None:
        """Take a record; what was received, events, and what is of no session is passed over."""
        entry, party = record.entry, record.party
        if not entry.session or entry.direction == "event":
            return
        header = self.run.header_of(party, entry.session)
        if header is None:
            self._unknown += entry.type in RELEASES
            return
        if entry.round and (entry.round, entry.attempt) != header.said.place:  # 0: a site had forgotten the attempt
            what = f"{party} has a {entry.type} in round {entry.round}, attempt {entry.attempt}; its header says "
            where = f"round {header.said.round}, attempt {header.said.attempt}"
            self.suspect(record, "records-differ", what + where)
        if entry.direction != "sent":
            return
        expected = _expected(record, header.said, self.run.members)
        if expected is not None or entry.disclosure is not None:
            self._checked += 1
        if entry.disclosure != expected:
            said, is_so = _words(entry.disclosure), _words(expected)
            what = f"the log of {party} says that its {entry.type} discloses {said}; under its header it is {is_so}"
            self.suspect(record, "disclosure-differs", what)
        is_allowed = entry.decision is not None and entry.decision.verdict == "allowed"
        if party != self.run.members.target and expected is not None and not is_allowed:
            self.suspect(record, "not-allowed", f"{party} sent a {entry.type} without a decision that allows it")


def _expected(record: Record, header: HeaderSaid, members: Members) -> Disclosure | None:
    """What this message makes its receiver see; None for nothing."""
    kind, party = record.entry.type, record.party
    if party == members.target:
        if kind != "Header":
            return None
        both = header.target_update and header.levels.get(record.entry.peer) == "sum"
        return Disclosure("individual", "model-and-target-update" if both else "model", 1)
    level = header.levels.get(party, "individual")
    if kind == "MaskedInput" and level != "individual":
        return Disclosure(level, "update", header.cohort_quorum if level == "cohort" else header.sum_quorum)
    if kind in RELEASES:  # a vector that no other site masks is in clear, whatever its type
        return Disclosure("individual", "update", 1)
    return None


def _words(disclosure: Disclosure | None) -> str:
    if disclosure is None:
        return "nothing"
    return f"{disclosure.what} at {disclosure.level} over {disclosure.count}"
