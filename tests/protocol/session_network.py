"""A real aggregator and real sources, and between them channels whose messages others schedule."""

from __future__ import annotations

import math
import shutil
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
from cohort import TARGET, AnySigned, Bytes, roster_of, signer
from run_settings import run_settings
from session_accusations import Accusations
from session_lies import RING, WEIGHT, Liar
from session_sites import (
    ROUNDS,
    WIDTH,
    HonestSource,
    Source,
    Terms,
    UnitTrainer,
    folder_in_memory,
    must,
    place_of,
    witness_at,
)

from securefda.aggregator.attempt import Attempt
from securefda.aggregator.phases import InAttempt
from securefda.aggregator.run import AggregatorRun
from securefda.aggregator.site import RunSettings, TargetSite
from securefda.aggregator.store import AggregatorStore
from securefda.aggregator.sums import PartialSum, RoundSum
from securefda.errors import FaultyAggregatorError
from securefda.operations.notes import Note
from securefda.protocol.encoding import N_STATISTICS
from securefda.protocol.header_checks import quantisation
from securefda.protocol.messages import Abort, Header, Parcel, Send, Survivors, Visibility
from securefda.rules import Strategy, caps_for, norm_codes, norms_of
from securefda.transport.in_memory import MemoryNetwork, Passed, UnderWay
from securefda.transport.wire import WireError


def received(message: UnderWay) -> Passed | None:
    """What the receiver makes of the bytes; None where the transport refuses them."""
    try:
        return message.read()
    except WireError:
        return None


def _settings(terms: Terms) -> RunSettings:
    return run_settings(
        Strategy(rule="source_only", rounds=ROUNDS),  # type: ignore[arg-type]
        min(terms.levels),
        min_others=terms.min_others,
        max_colluders=terms.max_colluders,
        threshold=terms.threshold,
        max_samples=1000,
        cohort_size=terms.cohort_size,
    )


class SessionNetwork(MemoryNetwork[AggregatorRun, Source]):
    """A run of some rounds. What an honest site does is judged when it does it; a :class:`Violation` says what failed.

    Time stands still at 0, so a deadline at 0 is due and any other passes when :meth:`expire` says so. Messages wait in
    channels and not in one queue: they arrive by :meth:`deliver_from` and :meth:`wave`.

    Attributes:
        up, down: messages under way from and to each source, in the order in which they were sent.
        sent: every message that was ever sent.
        arrived: every message that a site has processed.
        bent: sources whose channel was bent, see :mod:`session_accusations`.
        quiet: nothing has gone wrong so far.
        events: what happened, counted.
    """

    def __init__(self, terms: Terms, lying: Collection[int], events: Counter[str]) -> None:
        self.terms, self.roster, self.events = terms, roster_of(terms.n), events
        self.indices = [entry.index for entry in self.roster.sources]
        self.folder = folder_in_memory()
        sources: dict[int, Source] = {
            index: (Source if index in lying else HonestSource)(index, self.folder, terms) for index in self.indices
        }
        self.liars = {index: Liar(sources[index]) for index in sorted(lying)}
        self.up: dict[int, deque[UnderWay]] = {index: deque() for index in self.indices}
        self.down: dict[int, deque[UnderWay]] = {index: deque() for index in self.indices}
        self.sent: list[UnderWay] = []
        self.arrived: list[AnySigned] = []
        self.bent: set[int] = set()
        self.quiet = True
        self.finished: list[frozenset[int]] = []
        self._lists: dict[bytes, Survivors] = {}
        self._over: set[bytes] = set()
        self._turned_away: set[tuple[bytes, int]] = set()
        self._accusations = Accusations(self.liars.keys(), self.bent, terms.threshold)
        super().__init__(self._new_aggregator(), sources, target=TARGET)
        self.open()
        self.wave(self.indices)

    def _new_aggregator(self) -> AggregatorRun:
        self.store = AggregatorStore(self.folder / "target.sqlite")
        self.witness = witness_at(self.folder, TARGET, self.terms, self.store)
        site = TargetSite(
            signer=signer(TARGET),
            roster=self.roster,
            trainer=UnitTrainer(TARGET),
            test_data=None,  # type: ignore[arg-type]  # the trainer looks at none
            random_bytes=Bytes("target"),
            clock=lambda: 0.0,
            traffic=lambda: ({}, {}),
            witness=self.witness,
            unix_time=lambda: 1.0,
        )
        return AggregatorRun(site, _settings(self.terms), self.store, self)

    @property
    def run(self) -> AggregatorRun:
        """The aggregator."""
        return self.aggregator

    def close(self) -> None:
        self.witness.journal.close()
        self.store.close()
        for source in self.sources.values():
            source.close()
        shutil.rmtree(self.folder)

    # What the aggregator reports.

    def round_started(self, round_number: int, rounds: int) -> None: ...

    def phase(self, name: str, waiting_for: Iterable[str] = (), asked: int = 0) -> None: ...

    def steps(self, site: str, done: int, of: int) -> None: ...

    def note(self, note: Note | str) -> None: ...

    def round_finished(self, line: Any) -> None:
        self.events[f"round {line['status']}"] += 1
        if line["status"] == "finished":
            self.finished.append(frozenset(self.roster.by_id(name).index for name in line["survivors"]))

    # Moving messages.

    @property
    def attempt(self) -> Attempt | None:
        """The attempt in progress."""
        phase = self.run.phase
        return phase.attempt if isinstance(phase, InAttempt) else None

    def at_target(self, act: Callable[[], list[Send]]) -> None:
        """The aggregator does something, and is judged by it."""
        attempt, finished = self.attempt, len(self.finished)
        super().at_target(act)
        false = self.run._cosigners.faulty - self.liars.keys() - self.bent
        must(not false, f"honest sources {sorted(false)} are accused for what they sign of logs")
        if attempt is not None and attempt.outcome is not None:
            self._over.add(attempt.header.envelope.session_id)
            self._judge_attempt(attempt, accepted=len(self.finished) > finished)

    def post(self, sends: Sequence[Send]) -> None:
        for send in sends:
            self._judge_send(send)
        super().post(sends)

    def at_source(self, index: int, act: Callable[[], list[Parcel]]) -> None:
        """A source does something, and is judged by it unless it may lie."""
        alarms = len(self.sources[index].alarms)
        answers = act()
        if index not in self.liars:
            self._accusations.by_source(index, answers, self.sources[index].alarms[alarms:])
            failure = self.sources[index].rounds.standing.failure
            must(failure is None or isinstance(failure, FaultyAggregatorError), f"source {index} fails: {failure}")
        super().at_source(index, lambda: answers)

    def put(self, parcel: UnderWay) -> None:
        """It waits in the channel of its source, with its vectors as they are now."""
        parcel = replace(parcel, vectors=tuple(map(bytes, parcel.vectors)))
        (self.down[parcel.to] if parcel.sender == TARGET else self.up[parcel.sender]).append(parcel)
        self.sent.append(parcel)

    def deliver_from(self, index: int, *, upwards: bool) -> None:
        """The oldest message of a channel arrives."""
        queue = (self.up if upwards else self.down)[index]
        passed = received(queue.popleft()) if queue else None
        if passed is None or (upwards and passed.message.sender != index):  # the transport refuses both
            return
        if not upwards and self.sources[index].rounds.standing.failure is not None:  # it has left the run
            return
        self.arrive(passed)

    def hand_over(self, passed: Passed) -> None:
        self.arrived.append(passed.message)
        if passed.to in self.liars:
            self.liars[passed.to].overhear(passed.message)
        super().hand_over(passed)

    def wave(self, order: Collection[int]) -> None:
        """All that is under way arrives, channel by channel, and the deadlines that are due pass."""
        if self.run.deadline == 0.0:
            self.expire()
        for index, down, up in [(index, len(self.down[index]), len(self.up[index])) for index in order]:
            for _ in range(down):
                self.deliver_from(index, upwards=False)
            for _ in range(up):
                self.deliver_from(index, upwards=True)

    def finish(self) -> None:
        """Nothing more goes wrong but what has: the run ends, and in full if nothing has."""
        for _ in range(40 * ROUNDS):
            if self.run.done:
                break
            if not any(self.up.values()) and not any(self.down.values()):
                self.expire()
            self.wave(self.indices)
        must(self.run.done, f"the run does not end; it waits for {self.run.waiting_for()}")
        if self.quiet:
            must(self.finished == [frozenset(self.indices)] * ROUNDS, f"undisturbed, and yet {self.finished}")

    # What an honest aggregator must and must not do.

    def _judge_send(self, send: Send) -> None:
        message = send.parcel.message
        session, body = message.envelope.session_id, message.body
        what = f"the aggregator sends {message.type_name} to {send.to}"
        must(session not in self._over, f"{what} after the end of the session")
        must((session, send.to) not in self._turned_away, f"{what}, which it has turned away")
        if isinstance(body, Abort):
            self._turned_away.add((session, send.to))
            fair = body.accused is None or body.accused in self.bent or body.accused in self.liars
            must(fair, f"{what} that accuses {body.accused}, which is honest, of {body.check}")
        if isinstance(body, Survivors):
            must(self._lists.setdefault(session, body) == body, "the aggregator shows two pairs of lists")

    def _judge_attempt(self, attempt: Attempt, *, accepted: bool) -> None:
        self._accusations.by_aggregator(attempt)
        for alarm in attempt.alarms:
            self.events[f"alarm {getattr(alarm, 'check', type(alarm).__name__)}"] += 1
        outcome = attempt.outcome
        if not isinstance(outcome, RoundSum):
            self.events[f"end {getattr(outcome, 'check', type(outcome).__name__)}"] += 1
            return
        self.events["opened"] += 1
        self._judge_sum(attempt, outcome)
        must(accepted or bool(outcome.survivors & self.liars.keys()), "a sum of honest parts is refused")

    def _judge_sum(self, attempt: Attempt, outcome: RoundSum) -> None:
        header, lists = attempt.header.body, self._lists[attempt.header.envelope.session_id]
        digests = {item.index: item.input_digest for item in lists.survivors}
        must(set(digests) == outcome.survivors, "the sum is not over the survivors that signed")
        members = frozenset().union(*attempt._state.totals)  # type: ignore[attr-defined]
        of_sum = [index for index in header.at(Visibility.SUM) if index in members]
        factors = _factors(header, {index: self._codes_of(index, attempt) for index in of_sum})
        q_max = quantisation(header).q_max
        for part in outcome.partial_sums:
            total, rounded_up = np.zeros(WIDTH + N_STATISTICS, np.int64), np.zeros(WIDTH + N_STATISTICS, np.int64)
            for member in part.members:
                place, steps = place_of(header.round, member), factors.get(member, 1.0) * q_max
                total[place] += math.floor(steps)
                rounded_up[place] += steps != math.floor(steps)  # at most: the source draws to which side
                total[WEIGHT] += q_max
                total += self._added(member, digests[member])
            self._judge_part(attempt, part, total, rounded_up)
            self.events[f"opened {part.level.label} beside {len(outcome.partial_sums) - 1}"] += 1
        if any(factor < 1 for factor in factors.values()):
            self.events["capped"] += 1

    def _codes_of(self, member: int, attempt: Attempt) -> bytes:
        """The norm report that a member sent to the others."""
        header = attempt.header.body
        most = [header.layers[0].clip * math.sqrt(WIDTH)]
        if member in self.liars:
            false = self.liars[member].claimed.get(attempt.header.envelope.session_id)
            if false is not None:
                return false
        return norm_codes([1.0], [WIDTH], most)

    def _judge_part(self, attempt: Attempt, part: PartialSum, total: Any, rounded_up: Any) -> None:
        """The ring sum is exact but for what may have been rounded up, and so is what it decodes to.

        At ``sum`` its length may be restored after that.
        """
        totals = attempt._state.totals  # type: ignore[attr-defined]
        ring = next(ring for cohort, ring in totals.items() if part.members <= cohort)
        above = (ring - total) % RING
        total = total + above
        centred = ((total + RING // 2) % RING - RING // 2) / quantisation(attempt.header.body).q_max
        decoded = part.level is Visibility.SUM or bool(np.allclose(part.vector, centred[:WIDTH], rtol=0, atol=1e-9))
        exact = bool(np.all(above <= rounded_up)) and abs(part.statistics.weight - centred[WEIGHT]) < 1e-9
        must(exact and decoded, f"the sum over {sorted(part.members)} is wrong")

    def _added(self, member: int, digest: bytes) -> Any:
        """What a member added to its unit vector; an honest one nothing, and its input is one that it sent."""
        if member in self.liars:
            return self.liars[member].added.get(digest, np.zeros(WIDTH + N_STATISTICS, np.uint32)).astype(np.int64)
        vectors = [message.vectors[0] for message in self.sent if message.sender == member and message.vectors]
        must(digest in {sha256(vector).digest() for vector in vectors}, f"source {member} never sent this input")
        return np.zeros(WIDTH + N_STATISTICS, np.int64)


def _factors(header: Header, reported: Mapping[int, bytes]) -> dict[int, float]:
    """By what each source of the sum scales its only layer, of length 1, down; from the codes that they said."""
    if header.norm_cap is None or not reported:
        return {}
    most = [header.layers[0].clip * math.sqrt(WIDTH)]
    reports = [norms_of(codes, [WIDTH], most) for codes in reported.values()]
    (cap,) = caps_for(reports, kappa=header.norm_cap.kappa, others=header.norm_cap.others)
    return dict.fromkeys(reported, min(1.0, float(cap)))
