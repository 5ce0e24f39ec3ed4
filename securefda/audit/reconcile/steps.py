"""The order of steps in each log: who goes on has what it takes, and shares are released for what was shown. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from securefda.audit.reconcile.check import Check, RunLogs
from securefda.audit.reconcile.suspicion import Mark
from securefda.audit.records import Record

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


class StepsTaken(Check):
    """Follows each log through its sessions."""

    name = "steps"
    compares = "each step of a session with the messages, quorums and lists that it needs before it"

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._has: dict[tuple[str, str, str], int] = {}
        self._senders: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._judged: set[tuple[str, str]] = set()
        self._shown: dict[tuple[str, str], list[str]] = {}
        self._caps: dict[str, tuple[str, Mark]] = {}
        self._steps = self._lists = 0

    def counts(self) -> Mapping[str, int]:
        """What was looked at."""
        return {"steps that need one before": self._steps, "survivors and shares compared with lists": self._lists}

    def see(self, record: Record) -> None:
        """Take a record; those outside sessions are passed over."""
        entry, target = record.entry, self.run.members.target
        if not entry.session:
            return
        if entry.direction == "sent":
            self._see_sent(record)
            return
        if entry.type == "caps-computed":
            self._see_caps(record)
        elif entry.type in ("survivors-signed", "unmask-shares-released"):
            self._see_lists(record)
        elif entry.type == "Survivors":
            self._shown.setdefault((entry.session, record.party), []).append(entry.digest)
        bit = _BITS.get((entry.direction, entry.type), 0)
        key = (entry.session, record.party, target if entry.direction == "event" else entry.peer)
        had = self._has.get(key, 0)
        if bit and not had & bit:
            self._has[key] = had | bit
            if record.party == target:
                self._senders[entry.session, entry.type] += 1

    def _see_sent(self, record: Record) -> None:
        entry, party = record.entry, record.party
        at_target = party == self.run.members.target
        has = self._has.get((entry.session, party, entry.peer), 0)
        for step in (_AT_TARGET if at_target else _AT_SOURCE).get(entry.type, ()):
            self._steps += 1
            if not has & _BITS[step]:
                direction, kind = step
                lacks = f"has not received the {kind} for it" if direction == "received" else f"has no {kind} before it"
                what = f"{party} sent a {entry.type} to {entry.peer}, and its log {lacks}"
                self.suspect(record, "missing-record", what, step=kind)
        if at_target and (entry.session, entry.type) not in self._judged:
            self._judged.add((entry.session, entry.type))
            self._judge_target(record)

    def _judge_target(self, record: Record) -> None:
        """Once per session and type: the target had what it takes from enough sources."""
        entry, party, transcript = record.entry, record.party, self.run.transcript
        header = self.run.header_of(party, entry.session)
        if header is None:
            return
        counted = _QUORUMS.get(entry.type)
        if entry.type == "Result":
            result = transcript.results.get(entry.session)
            counted = counted if result is not None and result[1].masked else None
        if counted is not None:
            have, needed = self._senders[entry.session, counted], header.said.threshold
            if have < needed:
                what = f"{party} sent a {entry.type} after {have} messages of type {counted}, of at least {needed}"
                self.suspect(record, "threshold", what)
        lists = transcript.survivors.get(entry.digest) if entry.type == "Survivors" else None
        for source in () if lists is None else lists.survivors:
            if not self._has.get((entry.session, party, source), 0) & _BITS["received", "MaskedInput"]:
                what = f"{party} lists {source} as a survivor, and its log has not received its MaskedInput"
                self.suspect(record, "missing-record", what, sides=(party, source), step="MaskedInput")

    def _see_lists(self, record: Record) -> None:
        """A source signs, and releases shares for, exactly the lists that it was shown."""
        entry, party, target = record.entry, record.party, self.run.members.target
        digests, known = self._shown.get((entry.session, party), []), self.run.transcript.survivors
        if not digests or not known.keys() >= set(digests) or self.run.header_of(party, entry.session) is None:
            return
        self._lists += 1
        signed = entry.type == "survivors-signed"
        shown = [
            {"survivors": sorted(known[one].survivors)} | ({} if signed else {"dropped": sorted(known[one].dropped)})
            for one in digests
        ]
        if entry.facts not in shown:
            done = "signed" if signed else "released shares for"
            what = f"{party} {done} other survivors than those that it was shown"
            self.suspect(record, "unmask-differs", what, sides=(party, entry.peer or target), digests=(digests[-1],))

    def _see_caps(self, record: Record) -> None:
        """All sources of a sum work out the same caps from the same rows, to each of which its source committed."""
        caps, party = str(record.entry.facts["caps"]), record.party
        first, mark = self._caps.setdefault(record.entry.session, (caps, Mark.of(record)))
        if first != caps:
            what = f"{mark.party} and {party} have worked out different caps in one session"
            one, other = sorted((mark.party, party))
            accused = tuple(sorted({one, other, self.run.members.target}))
            self.suspect(record, "records-differ", what, accused=accused, sides=(one, other), before=(mark,))
