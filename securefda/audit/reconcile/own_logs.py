"""Checks of each log by itself. Pure.

They check that a log verifies, and begins and ends as it should; that each step of a session comes after the records
that it requires; that epsilon agrees with the charges and ledgers only grow; and that the messages kept beside a log
agree with its records.

A ledger counts over all runs, while a log covers one run. If the ledger began in this run and has no rows unknown to
the log, epsilon must equal what the charges come to; otherwise it must be at least that.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from securefda.audit.log_records import DpSpent, Record
from securefda.audit.reconcile.check import Check, RunLogs
from securefda.audit.reconcile.suspicion import Mark, Notice, RunFinding, RunKind, Suspicion
from securefda.audit.verify import UNVOUCHED
from securefda.errors import ConfigError
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import DpEvent
from securefda.text import counted

TOLERANCE: Final = 1e-6
"""Relative tolerance. Epsilons are written so that they read back as the same float."""
_FIRST_ROWS: Final = 2
"""Most rows of a ledger at its first charge: its opening row and the charge."""
_MOST_ROWS: Final = 2
"""Most new rows from one charge to the next: the row that finishes the first charge, and the second charge."""
_AFTER_A_KILL: Final = 1
"""Most new rows after a round that a kill ended. No row finishes that round, so a second row belongs to another run."""
HONEST: Final = ("torn", "newer-version", *UNVOUCHED)
"""Verification findings that need be nobody's fault: a site is away, has crashed or runs a later release."""
_MOST_TROUBLE: Final = 20
_MOST_SLOW: Final = 24
"""Most PRV epsilons that are recomputed for one log, evenly spaced and always with the last; each takes seconds."""
_MOST_KINDS: Final = 8
"""Most pairs of noise multiplier and sampling rate of one log that are added up; each takes a second. A run has one."""
_MOST_NOISE: Final = 1000.0
"""Largest noise multiplier that is added up. A larger one adds next to nothing to epsilon, and takes longest."""


class VerifiedLogs(Check):
    """Checks that each log is what its party signed. The traces of an honest crash are only a notice.

    Cosignatures come from other sites, so a missing one accuses nobody. Anybody can make a log without a checkpoint
    that the party signed, so it accuses nobody either.
    """

    def suspicions(self) -> Iterator[Suspicion]:
        """Yield a suspicion for each log that fails by itself."""
        for log in self.run.logs:
            found = log.verification.finding
            kind: RunKind = "unverified-log"
            accused: tuple[str, ...] = (log.party,)
            if log.is_unsigned:
                continue
            if found is not None and (found.kind != "missing-cosignature" or self.run.has_completed(log.party)):
                what, index = f"the log of {log.party}: {found.kind}, {found.what}", found.index
                kind = "forked-log" if found.kind == "forked" else kind
                accused = () if found.kind in HONEST or not log.verification.is_signed else accused
            elif log.party in self.run.broken:
                what, index = self.run.broken[log.party], 0
            else:
                continue
            yield Suspicion(RunFinding(kind, what, accused, (log.party, ""), records=(Mark(log.party, index),)))

    def notices(self) -> Iterator[Notice]:
        """Yield notices of logs that were not read to their end, and the remarks of each verification."""
        for log in self.run.logs:
            finding = log.verification.finding
            if log.is_unsigned:
                what = "no site has a checkpoint of its log; nothing is proved of it, and it was not read"
                yield Notice(what, log.party, care=True)
                continue
            if finding is not None and finding.kind == "missing-cosignature" and not self.run.has_completed(log.party):
                doubt = "a run that is stopped early leaves this, and a holder of its key could have made what follows "
                doubt += f"record {finding.index}"
                yield Notice(f"{finding.what}; {doubt}", log.party, care=True)
            yield from (Notice(note, log.party) for note in (*log.verification.notes, *log.kept.notes))
            if log.party not in self.run.whole:
                yield Notice("what its log lacks was not judged, since it fails by itself", log.party)


class LogLifecycle(Check):
    """Checks how each log begins, continues and ends."""

    counted = ("policies loaded",)

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._began: set[str] = set()
        self._lacks_policy: set[str] = set()
        self._policies: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        self._trouble: Counter[tuple[str, str, str, tuple[str, ...]]] = Counter()

    def see(self, record: Record) -> None:
        """Take a record. Only starts, policies, joins, alarms and aborts matter here."""
        entry, party = record.entry, record.party
        match entry.type:
            case "policy-loaded":
                self.counts["policies loaded"] += 1
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
            case "alarm" | "aborted":
                accused = tuple(map(str, entry.facts["accused"]))  # type: ignore[arg-type]
                self._trouble[party, entry.type, str(entry.facts["check"]), accused] += 1
            case "Join" if entry.direction == "sent" and party in self._lacks_policy:
                self._lacks_policy.discard(party)
                what = f"{party} joined without a record of the policy that it started with"
                self.suspect(record, "policy-not-logged", what, sides=(party, ""))

    def notices(self) -> Iterator[Notice]:
        """Yield notices of policy changes, of logs without an end, and of the sites' own alarms and aborts."""
        for party in sorted(self.run.parties):
            seen: list[str] = []
            for index, digest in self._policies.get(party, ()):
                if seen and digest != seen[-1]:
                    back = "an earlier policy is back" if digest in seen else "another policy"
                    what = f"{back} from record {index} on: {digest[:12]} instead of {seen[-1][:12]}"
                    yield Notice(what, party, care=True)
                seen.append(digest)
            if party in self.run.whole and not self.run.outcome_of(party):
                yield Notice("its log has no end: the run goes on, or was broken off", party, care=True)
        for (party, kind, check, accused), count in list(self._trouble.items())[:_MOST_TROUBLE]:
            blames = f"; it blames {', '.join(accused)}, by its own word" if accused else ""
            words = ("alarm", "alarms") if kind == "alarm" else ("aborted session", "aborted sessions")
            yield Notice(f"{counted(count, *words)}: {check}{blames}", party, care=True)
        if len(self._trouble) > _MOST_TROUBLE:
            yield Notice(f"and {len(self._trouble) - _MOST_TROUBLE} more kinds of alarms and aborts", care=True)


class KeptEvidence(Check):
    """Finds kept messages that disagree with their records. This is no finding about the log and accuses nobody."""

    counted = ("kept messages",)

    def suspicions(self) -> Iterator[Suspicion]:
        """Yield one suspicion for each finding of `kept_check`."""
        for log in self.run.logs:
            self.counts["kept messages"] += log.kept.messages
            for lost in log.kept.findings:
                entry, what = lost.entry, f"beside the log of {log.party}: {lost.what}"
                place = ("", 0, 0, "") if entry is None else (entry.type, entry.round, entry.attempt, entry.session)
                marks = () if lost.index is None else (Mark(log.party, lost.index),)
                digests = () if entry is None else (entry.digest,)
                yield Suspicion(RunFinding(lost.kind, what, (), (log.party, ""), *place, marks, digests))


_Step = tuple[str, str]  # direction and type

_AT_SOURCE: Final[dict[str, tuple[_Step, ...]]] = {
    "Advertise": (("received", "Header"),),
    "Nonce": (("received", "Roll"),),
    "ShareBundle": (("received", "KeyList"),),
    "MaskedInput": (("received", "ShareDelivery"), ("event", "release-fuse-burnt")),
    "Update": (("received", "Header"), ("event", "release-fuse-burnt")),
    "SurvivorSignature": (("received", "Survivors"), ("event", "survivors-signed")),
    "Unmask": (("received", "Consistency"), ("event", "unmask-shares-released")),
}
"""For each message type, the steps of the session that a source's log contains before the source sends it."""
_IN_PLACE_OF: Final = {"Neighbours": "KeyList", "NeighbourConsistency": "Consistency"}
"""Messages that a source receives in a session of SFDA-SA/2, and those that they replace."""
_AT_TARGET: Final[dict[str, tuple[_Step, ...]]] = {
    "KeyList": (("received", "Advertise"),),
    "Roll": (("received", "Advertise"),),
    "Neighbours": (("received", "Nonce"),),
    "ShareDelivery": (("received", "ShareBundle"),),
    "Survivors": (("received", "MaskedInput"),),
}
"""For each message type, the steps with a source that the target's log contains before the target sends it there."""
_QUORUMS: Final = {
    "KeyList": "Advertise",
    "Roll": "Advertise",
    "Neighbours": "Nonce",
    "Consistency": "SurvivorSignature",
    "NeighbourConsistency": "SurvivorSignature",
    "Result": "Unmask",
}
"""For each message type, the type that the target has first received from at least the threshold of sources."""

_WATCHED: Final = {
    *(step for steps in (*_AT_SOURCE.values(), *_AT_TARGET.values()) for step in steps),
    *(("received", kind) for kind in _QUORUMS.values()),
}
_BITS: Final[dict[_Step, int]] = {step: 1 << place for place, step in enumerate(sorted(_WATCHED))}


class StepsTaken(Check):
    """Follows each log through its sessions."""

    counted = ("steps that need one before", "survivors and shares compared with lists")

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._has: dict[tuple[str, str, str], int] = {}
        self._senders: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._judged: set[tuple[str, str]] = set()
        self._shown: dict[tuple[str, str], list[str]] = {}
        self._caps: dict[str, tuple[str, Mark]] = {}
        self._features: dict[str, tuple[Mark, Mapping[str, object]]] = {}

    def see(self, record: Record) -> None:
        """Take a record. Records outside sessions are ignored."""
        entry, target = record.entry, self.run.members.target
        if not entry.session:
            return
        if entry.direction == "sent":
            self._see_sent(record)
            return
        if entry.type == "features-released":
            self._features[entry.session] = Mark.of(record), entry.facts
        elif entry.type == "caps-computed":
            self._see_caps(record)
        elif entry.type in ("survivors-signed", "unmask-shares-released"):
            self._see_lists(record)
        elif entry.type == "Survivors":
            self._shown.setdefault((entry.session, record.party), []).append(entry.digest)
        bit = _BITS.get((entry.direction, _IN_PLACE_OF.get(entry.type, entry.type)), 0)
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
            self.counts["steps that need one before"] += 1
            if not has & _BITS[step]:
                direction, kind = step
                lacks = f"has not received the {kind} for it" if direction == "received" else f"has no {kind} before it"
                what = f"{party} sent a {entry.type} to {entry.peer}, and its log {lacks}"
                self.suspect(record, "missing-record", what, step=kind)
        if at_target and (entry.session, entry.type) not in self._judged:
            self._judged.add((entry.session, entry.type))
            self._judge_target(record)

    def _judge_target(self, record: Record) -> None:
        """Check, once per session and type, that the target had received what it requires from enough sources."""
        entry, party, transcript = record.entry, record.party, self.run.transcript
        header = self.run.header_of(party, entry.session)
        if header is None:
            return
        if entry.type == "Header" and header.said.features is not None:
            self._judge_features(record, header.said.features)
        answers = _QUORUMS.get(entry.type)
        if entry.type == "Result":
            result = transcript.results.get(entry.session)
            answers = answers if result is not None and result[1].sum_digest else None
        if answers is not None:
            have, needed = self._senders[entry.session, answers], header.said.threshold
            if have < needed:
                what = f"{party} sent a {entry.type} after {have} messages of type {answers}, of at least {needed}"
                self.suspect(record, "threshold", what)
        lists = transcript.survivors.get(entry.digest) if entry.type == "Survivors" else None
        for source in () if lists is None else lists.survivors:
            if not self._has.get((entry.session, party, source), 0) & _BITS["received", "MaskedInput"]:
                what = f"{party} lists {source} as a survivor, and its log has not received its MaskedInput"
                self.suspect(record, "missing-record", what, sides=(party, source), step="MaskedInput")

    def _see_lists(self, record: Record) -> None:
        """Check that a source signs, and releases shares for, exactly the lists that it was shown."""
        entry, party, target = record.entry, record.party, self.run.members.target
        digests, known = self._shown.get((entry.session, party), []), self.run.transcript.survivors
        if not digests or not known.keys() >= set(digests) or self.run.header_of(party, entry.session) is None:
            return
        self.counts["survivors and shares compared with lists"] += 1
        signed = entry.type == "survivors-signed"
        shown = [
            {"survivors": sorted(lists.survivors)} | ({} if signed else {"dropped": sorted(lists.dropped)})
            for lists in map(known.__getitem__, digests)
        ]
        if entry.facts not in shown:
            done = "signed" if signed else "released shares for"
            what = f"{party} {done} other survivors than those that it was shown"
            self.suspect(record, "unmask-differs", what, sides=(party, entry.peer or target), digests=(digests[-1],))

    def _judge_features(self, record: Record, named: tuple[int, int, str]) -> None:
        """Check that the target's header describes the features that it sends as its own record does."""
        mark, facts = self._features.get(record.entry.session, (None, {}))
        if mark is None:
            what = f"{record.party} sent features of its rows, and its log has no features-released before it"
            self.suspect(record, "missing-record", what, step="features-released")
        elif named != (facts["rows"], facts["width"], facts["features"]):
            what = f"{record.party} has written down other features of its rows than its header names"
            self.suspect(record, "records-differ", what, before=(mark,))

    def _see_caps(self, record: Record) -> None:
        """Check that all sources of a sum computed the same caps from the rows to which the sources committed."""
        caps, party = str(record.entry.facts["caps"]), record.party
        first, mark = self._caps.setdefault(record.entry.session, (caps, Mark.of(record)))
        if first != caps:
            what = f"{mark.party} and {party} have worked out different caps in one session"
            first_site, other = sorted((mark.party, party))
            accused = tuple(sorted({first_site, other, self.run.members.target}))
            self.suspect(record, "records-differ", what, accused=accused, sides=(first_site, other), before=(mark,))


@dataclass(slots=True)
class _Spent:
    """A charge, whether something was released for it, and whether the process died before that.

    ``reserved``: how many rows of the ledger are reservations that the run made since its last charge.
    """

    mark: Mark
    round: int
    attempt: int
    dp: DpSpent
    has_released: bool = False
    was_killed: bool = False
    reserved: int = 0


class Spending(Check):
    """Checks the ledger rows and epsilons that the logs record."""

    counted = ("ledger updates", "epsilons recomputed")

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._by_party: dict[str, list[_Spent]] = {}
        self._unknown: list[Notice] = []
        self._released: defaultdict[str, set[int]] = defaultdict(set)
        self._policy: dict[str, str] = {}
        self._reserved: Counter[str] = Counter()

    def notices(self) -> Iterator[Notice]:
        """Yield notices of ledger rows from outside the log, releases without a charge, and exceeded limits."""
        yield from self._unknown
        limits = {log.party: log.limits for log in self.run.logs}
        for party, updates in sorted(self._by_party.items()):
            bare = self._released[party] - {charge.round for charge in updates}
            if bare:
                what = f"something left it without a charge in round {', '.join(map(str, sorted(bare)[:8]))}"
                more = f" and {len(bare) - 8} more" if len(bare) > 8 else ""
                yield Notice(f"{what}{more}: no noise is known to bound it", party, care=True)
            spent, limit = float(updates[-1].dp.epsilon), limits[party].get(self._policy.get(party, ""), math.inf)
            if spent > limit:
                yield Notice(f"epsilon {spent:.6g} is spent; its policy's limit is {limit:g}", party, care=True)

    def see(self, record: Record) -> None:
        """Take a record. Only charges, reservations, policies, releases and restarts matter here."""
        entry, party = record.entry, record.party
        if entry.type == "ledger-updated" and entry.dp is not None:
            spent = _Spent(Mark.of(record), entry.round, entry.attempt, entry.dp, reserved=self._reserved.pop(party, 0))
            self._by_party.setdefault(party, []).append(spent)
            self.counts["ledger updates"] += 1
        elif entry.type in ("budget-reserved", "budget-released"):
            self._reserved[party] += 1
        elif entry.type == "policy-loaded":
            self._policy[party] = str(entry.facts["policy"])
        elif entry.disclosure is not None and entry.disclosure.what != "model":
            self._released[party].add(entry.round)
            if (last := self._last_of(party)) and (last.round, last.attempt) == (entry.round, entry.attempt):
                last.has_released = True
        elif entry.type == "restarted" and (last := self._last_of(party)) and not last.has_released:
            last.was_killed = True

    def _last_of(self, party: str) -> _Spent | None:
        updates = self._by_party.get(party)
        return updates[-1] if updates else None

    def suspicions(self) -> Iterator[Suspicion]:
        """Yield suspicions of wrong epsilons and of ledgers that went back."""
        for party, updates in sorted(self._by_party.items()):
            yield from self._rows(updates)
            yield from self._epsilons(party, updates)

    def _rows(self, updates: list[_Spent]) -> Iterator[Suspicion]:
        for before, after in pairwise(updates):
            party, rows, rows_before = after.mark.party, after.dp.ledger_rows, before.dp.ledger_rows
            if rows <= rows_before:
                what = f"the privacy ledger of {party} has {rows} rows after {rows_before}"
                yield _suspicion("ledger-went-back", what, after, before)
            elif after.dp.ledger_digest == before.dp.ledger_digest:
                what = f"two rows of the privacy ledger of {party} have one digest"
                yield _suspicion("ledger-went-back", what, after, before)

    def _epsilons(self, party: str, updates: list[_Spent]) -> Iterator[Suspicion]:
        steps: Counter[tuple[float, float]] = Counter()
        exact, rows, left_out = True, 0, 0
        wanted = _sample(updates)
        for place, update in enumerate(updates):
            dp = update.dp
            kind = float(dp.noise_multiplier), float(dp.sampling_rate)
            if kind in steps or (len(steps) < _MOST_KINDS and kind[0] <= _MOST_NOISE):
                steps[kind] += dp.steps
            else:
                left_out += 1
            known = _FIRST_ROWS if place == 0 else _AFTER_A_KILL if updates[place - 1].was_killed else _MOST_ROWS
            if exact and dp.ledger_rows - rows > known + update.reserved:
                exact = False
                what = (
                    f"its privacy ledger has rows of which this log may know nothing, before row {dp.ledger_rows}; "
                    "epsilon is checked to be at least what the log comes to"
                )
                self._unknown.append(Notice(what, party))
            rows = dp.ledger_rows
            if place in wanted:
                yield from self._check(update, steps, exact=exact and not left_out)
        if left_out:
            what = (
                f"{counted(left_out, 'charge')} with a noise multiplier above {_MOST_NOISE:g}, or of more than "
                f"{_MOST_KINDS} kinds, are not added up; epsilon is checked to be at least what the others come to"
            )
            self._unknown.append(Notice(what, party, care=True))

    def _check(self, update: _Spent, steps: Counter[tuple[float, float]], *, exact: bool) -> Iterator[Suspicion]:
        dp, stated = update.dp, float(update.dp.epsilon)
        try:
            charges = [DpEvent("-", 1, 0, noise, rate, count, 1.0) for (noise, rate), count in sorted(steps.items())]
            value = epsilon(charges, float(dp.delta), dp.accountant)
        except ConfigError as error:
            yield _suspicion("wrong-epsilon", f"no accountant gives an epsilon for the charge: {error}", update)
            return
        self.counts["epsilons recomputed"] += 1
        slack = TOLERANCE * max(value, stated)
        what = f"{update.mark.party} says that epsilon {stated:.6g} is spent; its charges come to {value:.6g}"
        if stated < value - slack:
            yield _suspicion("wrong-epsilon", f"{what}, unless its ledger was reset in this run", update)
        elif exact and stated > value + slack:
            yield _suspicion("wrong-epsilon", f"{what}, and its ledger has no others", update)


def _sample(updates: list[_Spent]) -> set[int]:
    """Return the places of the charges whose epsilon is recomputed: all but most of those that take seconds each."""
    slow = [place for place, update in enumerate(updates) if update.dp.accountant != "rdp"]
    quick = {place for place, update in enumerate(updates) if update.dp.accountant == "rdp"}
    every = max(1, -(-len(slow) // _MOST_SLOW))
    return quick | set(slow[::-1][::every])


def _suspicion(kind: RunKind, what: str, update: _Spent, *others: _Spent) -> Suspicion:
    party, marks = update.mark.party, (*(other.mark for other in others), update.mark)
    place = update.round, update.attempt
    return Suspicion(RunFinding(kind, what, (party,), (party, ""), "ledger-updated", *place, records=marks))
