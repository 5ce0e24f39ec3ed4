"""What records say that messages disclose, and that the policy allowed them, against the headers. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from securefda.audit.reconcile.steps import HeadersTaken
from securefda.audit.reconcile.suspicion import Mark, RunFinding, RunKind, Suspicion
from securefda.audit.reconcile.transcript import Members, SignedTranscript
from securefda.audit.records import Disclosure, Record
from securefda.audit.statements import RELEASES, HeaderSaid


class Disclosures:
    """Holds the records of sent messages against the header of their session.

    Args:
        members: of the federation.
        transcript: the messages that were kept.
        headers: that the parties took.
    """

    def __init__(self, members: Members, transcript: SignedTranscript, headers: HeadersTaken) -> None:
        self._members, self._transcript, self._headers = members, transcript, headers
        self._suspicions: list[Suspicion] = []
        self.checked = self.unknown = 0

    @property
    def counts(self) -> dict[str, int]:
        """How many records said something that could be checked."""
        return {"disclosures held against headers": self.checked}

    def suspicions(self) -> Iterator[Suspicion]:
        """Records that say something else than their header."""
        return iter(self._suspicions)

    def see(self, record: Record) -> None:
        """Take a record; what was received, events, and what is of no session is passed over."""
        entry = record.entry
        if not entry.session or entry.direction == "event":
            return
        header = self._headers.of(record.party, entry.session)
        if header is None:
            self.unknown += entry.type in RELEASES
            return
        if entry.round and (entry.round, entry.attempt) != header.said.place:  # 0: a site had forgotten the attempt
            what = (
                f"{record.party} has a {entry.type} in round {entry.round}, attempt {entry.attempt}; its header says "
            )
            where = f"round {header.said.round}, attempt {header.said.attempt}"
            self._add(record, "records-differ", what + where)
        if entry.direction == "sent":
            self._sent(record, header.said)

    def _sent(self, record: Record, header: HeaderSaid) -> None:
        entry = record.entry
        expected = _expected(record, header, self._members)
        if expected is not None or entry.disclosure is not None:
            self.checked += 1
        if entry.disclosure != expected:
            said, is_so = _words(entry.disclosure), _words(expected)
            what = (
                f"the log of {record.party} says that its {entry.type} discloses {said}; under its header it is {is_so}"
            )
            self._add(record, "disclosure-differs", what)
        if record.party == self._members.target or expected is None:
            return
        if entry.decision is None or entry.decision.verdict != "allowed":
            self._add(record, "not-allowed", f"{record.party} sent a {entry.type} without a decision that allows it")

    def _add(self, record: Record, kind: RunKind, what: str) -> None:
        entry = record.entry
        finding = RunFinding(
            kind=kind,
            what=what,
            accused=(record.party,),
            sides=(record.party, entry.peer),
            step=entry.type,
            round=entry.round,
            attempt=entry.attempt,
            session=entry.session,
            records=(Mark.of(record),),
        )
        self._suspicions.append(Suspicion(finding))


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
    if kind in RELEASES:  # a vector that nobody else masks is in clear, whatever its type
        return Disclosure("individual", "update", 1)
    return None


def _words(disclosure: Disclosure | None) -> str:
    if disclosure is None:
        return "nothing"
    return f"{disclosure.what} at {disclosure.level} over {disclosure.count}"
