"""The order of steps in each log: who goes on has what it takes, and shares are released for what was shown. Pure.

Under which header a party did what it did in a session: one that its own log has. Pure.

The target chooses session ids and can sign several headers with the same one, and others can keep any of them. So a
party is judged by a header only where its log has that one for the session, and no other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from securefda.audit.reconcile.claims import is_of_run
from securefda.audit.reconcile.suspicion import Mark, RunFinding, RunKind, Suspicion
from securefda.audit.reconcile.transcript import Members, SignedHeader, SignedTranscript
from securefda.audit.records import Record


class HeadersTaken:
    """Follows which headers each log has; the records of one log come in their order.

    Args:
        members: of the federation.
        transcript: the messages that were kept.
    """

    def __init__(self, members: Members, transcript: SignedTranscript) -> None:
        self._members, self._transcript = members, transcript
        self._digests: dict[tuple[str, str], str] = {}

    def see(self, record: Record) -> None:
        """Take a record; all but those of headers that a source received or the target sent are passed over."""
        entry = record.entry
        direction = "sent" if record.party == self._members.target else "received"
        if (entry.type, entry.direction) == ("Header", direction):
            key = record.party, entry.session
            if self._digests.setdefault(key, entry.digest) != entry.digest:
                self._digests[key] = ""  # more than one: which it went by, its log does not say

    def of(self, party: str, session: str) -> SignedHeader | None:
        """The header of a party's session; None where its log has none or several, or nobody kept it, or it is not of
        the roster.
        """
        header = self._transcript.all_headers.get(self._digests.get((party, session), ""))
        return header if header is not None and is_of_run(header.said, self._members) else None


_Step = tuple[str, str]  # direction and type

_AT_SOURCE: Final[dict[str, tuple[_Step, ...]]] = {
    "Advertise": (("received", "Header"),),
    "ShareBundle": (("received", "KeyList"),),
    "MaskedInput": (("received", "ShareDelivery"), ("event", "release-fuse-burnt")),
    "Update": (("received", "Header"), ("event", "release-fuse-burnt")),
    "SurvivorSignature": (("received", "Survivors"), ("event", "survivors-signed")),
    "Unmask": (("received", "Consistency"), ("event", "unmask-shares-released")),
}
"""What the log of a source has of a session before it sends this."""
_AT_TARGET: Final[dict[str, tuple[_Step, ...]]] = {
    "KeyList": (("received", "Advertise"),),
    "ShareDelivery": (("received", "ShareBundle"),),
    "Survivors": (("received", "MaskedInput"),),
}
"""What the target's log has of a source, in a session, before it sends it this."""
_QUORUMS: Final = {"KeyList": "Advertise", "Consistency": "SurvivorSignature", "Result": "Unmask"}
"""Of how many sources, at least the threshold, the target has the one before it sends the other."""

_WATCHED: Final = {
    *(step for steps in (*_AT_SOURCE.values(), *_AT_TARGET.values()) for step in steps),
    *(("received", kind) for kind in _QUORUMS.values()),
}
_BITS: Final[dict[_Step, int]] = {step: 1 << place for place, step in enumerate(sorted(_WATCHED))}


class StepsTaken:
    """Follows each log through its sessions; the records of one log come in their order.

    Args:
        members: of the federation.
        transcript: the messages that were kept.
        headers: that the parties took.
    """

    def __init__(self, members: Members, transcript: SignedTranscript, headers: HeadersTaken) -> None:
        self._members, self._transcript, self._headers = members, transcript, headers
        self._has: dict[tuple[str, str, str], int] = {}
        self._senders: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._judged: set[tuple[str, str]] = set()
        self._shown: dict[tuple[str, str], list[str]] = {}
        self._caps: dict[str, tuple[str, Mark]] = {}
        self._suspicions: list[Suspicion] = []
        self.steps = self.lists = 0

    @property
    def counts(self) -> dict[str, int]:
        """What was looked at."""
        return {"steps that need one before": self.steps, "survivors and shares held against lists": self.lists}

    def suspicions(self) -> Iterator[Suspicion]:
        """Missing records, quorums that were not there, and shares for other lists."""
        return iter(self._suspicions)

    def see(self, record: Record) -> None:
        """Take a record."""
        entry = record.entry
        if not entry.session:
            return
        if entry.direction == "sent":
            self._sent(record)
            return
        if entry.direction == "event":
            self._event(record)
        elif entry.type == "Survivors":
            self._shown.setdefault((entry.session, record.party), []).append(entry.digest)
        bit = _BITS.get((entry.direction, entry.type))
        if bit is not None:
            self._note(record, bit)

    def _note(self, record: Record, bit: int) -> None:
        entry = record.entry
        peer = self._members.target if entry.direction == "event" else entry.peer
        key = (entry.session, record.party, peer)
        had = self._has.get(key, 0)
        if not had & bit:
            self._has[key] = had | bit
            if record.party == self._members.target:
                self._senders[entry.session, entry.type] += 1

    def _sent(self, record: Record) -> None:
        entry = record.entry
        at_target = record.party == self._members.target
        needed = (_AT_TARGET if at_target else _AT_SOURCE).get(entry.type, ())
        has = self._has.get((entry.session, record.party, entry.peer), 0)
        for step in needed:
            self.steps += 1
            if not has & _BITS[step]:
                self._missing(record, step)
        if at_target and (entry.session, entry.type) not in self._judged:
            self._judged.add((entry.session, entry.type))
            self._judge_target(record)

    def _missing(self, record: Record, step: _Step) -> None:
        entry, (direction, kind) = record.entry, step
        what = f"{record.party} sent a {entry.type} to {entry.peer}, and its log has no {kind} before it"
        if direction == "received":
            what = f"{record.party} sent a {entry.type} to {entry.peer}, and its log has not received the {kind} for it"
        self._add(record, "missing-record", what, step=kind)

    def _judge_target(self, record: Record) -> None:
        """Once per session and type: the target had what it takes from enough sources."""
        entry = record.entry
        header = self._headers.of(record.party, entry.session)
        counted = _QUORUMS.get(entry.type)
        if header is None:
            return
        if counted is not None and self._needs_quorum(record):
            have, needed = self._senders[entry.session, counted], header.said.threshold
            if have < needed:
                what = (
                    f"{record.party} sent a {entry.type} after {have} messages of type {counted}, of at least {needed}"
                )
                self._add(record, "threshold", what)
        lists = self._transcript.survivors.get(entry.digest) if entry.type == "Survivors" else None
        if lists is None:
            return
        for source in lists.survivors:
            if not self._has.get((entry.session, record.party, source), 0) & _BITS["received", "MaskedInput"]:
                what = f"{record.party} lists {source} as a survivor, and its log has not received its MaskedInput"
                self._add(record, "missing-record", what, step="MaskedInput", side=source)

    def _needs_quorum(self, record: Record) -> bool:
        entry = record.entry
        if entry.type != "Result":
            return True
        result = self._transcript.results.get(entry.session)
        return result is not None and result[1].masked

    def _event(self, record: Record) -> None:
        """A source signs, and opens, exactly the lists that it was shown."""
        entry = record.entry
        if entry.type == "caps-computed":
            self._caps_event(record)
        if entry.type not in ("survivors-signed", "unmask-shares-released"):
            return
        digests = self._shown.get((entry.session, record.party), [])
        lists = [self._transcript.survivors[digest] for digest in digests if digest in self._transcript.survivors]
        if not digests or len(lists) < len(digests) or self._headers.of(record.party, entry.session) is None:
            return
        self.lists += 1
        shown = [{"survivors": sorted(one.survivors)} for one in lists]
        if entry.type == "unmask-shares-released":
            shown = [{"survivors": sorted(one.survivors), "dropped": sorted(one.dropped)} for one in lists]
        if entry.facts not in shown:
            done = "signed" if entry.type == "survivors-signed" else "released shares for"
            what = f"{record.party} {done} other survivors than those that it was shown"
            self._add(record, "unmask-differs", what, digest=digests[-1])

    def _caps_event(self, record: Record) -> None:
        """All sources of a sum work out the same caps from the same rows, to each of which its source committed."""
        caps = str(record.entry.facts["caps"])
        first, mark = self._caps.setdefault(record.entry.session, (caps, Mark.of(record)))
        if first == caps:
            return
        both = tuple(sorted((mark.party, record.party)))
        what = f"{mark.party} and {record.party} have worked out different caps in one session"
        suspicion = self._suspicion(record, "records-differ", what)
        accused, marks = tuple(sorted({*both, self._members.target})), (mark, Mark.of(record))
        finding = replace(suspicion.finding, accused=accused, sides=(both[0], both[1]), records=marks)
        self._suspicions.append(replace(suspicion, finding=finding))

    def _add(
        self, record: Record, kind: RunKind, what: str, *, step: str = "", side: str = "", digest: str = ""
    ) -> None:
        self._suspicions.append(self._suspicion(record, kind, what, step=step, side=side, digest=digest))

    def _suspicion(
        self, record: Record, kind: RunKind, what: str, *, step: str = "", side: str = "", digest: str = ""
    ) -> Suspicion:
        entry = record.entry
        return Suspicion(
            RunFinding(
                kind=kind,
                what=what,
                accused=(record.party,),
                sides=(record.party, side or entry.peer or self._members.target),
                step=step or entry.type,
                round=entry.round,
                attempt=entry.attempt,
                session=entry.session,
                records=(Mark.of(record),),
                digests=(digest,) if digest else (),
            )
        )
