"""What a lying aggregator can do to honest sources over several sessions: the choices are drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from hashlib import sha256
from typing import Any, ClassVar

from cohort import TARGET, AnySigned, forged, resigned, signer
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from lying_aggregator import LyingAggregator
from session_lies import STRANGER, Draw
from session_machine import terms_with
from session_sites import Terms

from securefda.protocol.messages import (
    Abort,
    Consistency,
    Granularity,
    Header,
    KeyList,
    NormCapTerms,
    Result,
    ShareDelivery,
    Step,
    Survivor,
    Survivors,
    SurvivorSignature,
    Visibility,
)


class EquivocationMachine(RuleBasedStateMachine):
    """An adversary that is the aggregator and max_colluders sources.

    Attributes:
        extra: how many sources more than policies expect.
        may_be_crude: whether it also does what breaks the protocol's letter.
    """

    events: ClassVar[Counter[str]] = Counter()
    """What happened in all examples, so that tests can see that enough did."""
    steps = 12
    extra = 0
    may_be_crude = True
    terms_with = staticmethod(terms_with)
    world: LyingAggregator

    @initialize(max_colluders=st.sampled_from([1, 0, 2]), data=st.data())
    def begin(self, max_colluders: int, data: Any) -> None:
        self.terms = data.draw(st.sampled_from(self.terms_with(max_colluders)), label="terms")
        indices = [index for index in range(self.terms.n + 1) if index != TARGET]
        count = min(self.terms.max_colluders + self.extra, self.terms.n - 1)
        colluding = data.draw(st.sets(st.sampled_from(indices), min_size=count, max_size=count), label="colluding")
        self.world = LyingAggregator(self.terms, colluding, self.events)
        self.crude = self.may_be_crude and data.draw(st.booleans(), label="crude")
        self.position = (1, 1)
        self._begin_session(list(self.world.sources))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()

    def _victims(self, draw: Draw, among: list[int]) -> list[int]:
        """All of them, or some."""
        return among if draw(st.booleans()) else draw(st.lists(st.sampled_from(among), min_size=1, unique=True))

    def _without(self, draw: Draw, most: int) -> set[int]:
        """Some sources that are not to have answered: any, or all that one source masked with."""
        mates = [cohort - {i} for i, source in self.world.sources.items() for _, cohort in source.views.values()]
        if mates and draw(st.booleans()):
            return set(draw(st.sampled_from(mates)))
        return set(draw(st.sets(st.sampled_from(self.world.indices), max_size=most)))

    def _begin_next_round(self, victims: list[int]) -> None:
        self.position = (self.position[0] + 1, 1)
        self._begin_session(victims)

    def _begin_session(self, victims: list[int]) -> None:
        world, terms = self.world, self.terms
        number, attempt = self.position
        victims = [victim for victim in victims if world.results.get(victim) == world.results.get(victims[0])]
        header = world.header(
            sha256(b"session" + bytes([len(world.headers)])).digest(),
            round=number,
            attempt=attempt,
            threshold=terms.threshold,
            previous_result_digest=world.results.get(victims[0], b""),
            **_plan_of(terms),
        )
        for victim in victims:
            world.tell(victim, header)

    # What keeps to the letter of the protocol, but not to one view of it.

    @rule(data=st.data(), anew=st.sampled_from(["round", "attempt", "round and attempt"]))
    def session_begins(self, data: Any, anew: str) -> None:
        number, attempt = self.position
        self.position = (number, attempt + 1) if anew == "attempt" else (number + 1, 1)
        self._begin_session(self._victims(data.draw, list(self.world.sources)))

    @rule(data=st.data(), without_most=st.integers(0, 3))
    def session_goes_on(self, data: Any, without_most: int) -> None:
        """One phase, for all or some sources in it, and as if some others had not answered."""
        world = self.world
        waiting = {index: type(source.phase) for index, source in world.sources.items() if source.phase is not None}
        if not waiting:
            return
        phase = data.draw(st.sampled_from(sorted(set(waiting.values()), key=lambda phase: phase.__name__)))
        without = self._without(data.draw, without_most)
        among = [index for index, awaited in waiting.items() if awaited is phase and index not in without]
        for victim in self._victims(data.draw, among) if among else []:
            message = world.next_message(victim, without)
            if message is not None:
                world.tell(victim, message)

    @rule(phases=st.integers(1, 2))
    def session_goes_on_for_all(self, phases: int) -> None:
        self._go_on(phases, lambda _: set())

    # Whole attacks, which single choices would hardly ever add up to.

    @rule(data=st.data(), phases_before=st.integers(0, 2))
    def session_is_split(self, data: Any, phases_before: int) -> None:
        """From some phase on there are two camps, to each of which the other one is dropped; colluders are in both."""
        honest = set(self.world.sources)
        camp = data.draw(st.sets(st.sampled_from(sorted(honest)), min_size=1))
        self._begin_next_round(sorted(honest))
        self._go_on(phases_before, lambda _: set())
        self._go_on(4 - phases_before, lambda victim: honest - camp if victim in camp else camp)

    @rule(data=st.data())
    def session_isolates_one(self, data: Any) -> None:
        """One masks among fewer than the others think; their lists then say that all it masked with are dropped."""
        world = self.world
        lonely = data.draw(st.sampled_from(sorted(world.sources)))
        self._begin_next_round(list(world.sources))
        self._go_on(1, lambda _: set())
        left_out = self._without(data.draw, 2)
        self._go_on(1, lambda victim: left_out if victim == lonely else set())
        source = world.sources[lonely]
        if source.header is None or source.header.envelope.session_id not in source.views:
            return
        _, cohort = source.views[source.header.envelope.session_id]
        mates = set(cohort) - {lonely}
        self._go_on(2, lambda _: mates, set(world.sources) - mates - {lonely})

    @rule(phases=st.integers(2, 4))
    def round_is_tried_again(self, phases: int) -> None:
        """Another attempt, though the inputs of the one before may have left."""
        self._begin_next_round(list(self.world.sources))
        self._go_on(phases, lambda _: set())
        self.position = (self.position[0], 2)
        self._begin_session(list(self.world.sources))
        self._go_on(4, lambda _: set())

    def _go_on(self, phases: int, without: Callable[[int], set[int]], victims: Collection[int] | None = None) -> None:
        for _ in range(phases):
            chosen = self.world.sources if victims is None else victims
            due = {victim: self.world.next_message(victim, without(victim)) for victim in chosen}
            for victim, message in due.items():
                if message is not None:
                    self.world.tell(victim, message)

    # What breaks it.

    @precondition(lambda self: self.crude)
    @rule(data=st.data())
    def header_is_false(self, data: Any) -> None:
        """Other numbers, an earlier position or session, or one position and session for two headers."""
        world = self.world
        last = data.draw(st.sampled_from(world.headers))
        session = data.draw(st.sampled_from([last.envelope.session_id, sha256(b"x" + last.signature).digest()]))
        body = last.body
        changes = data.draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "round": st.integers(1, body.round + 1),
                    "attempt": st.integers(1, body.attempt + 1),
                    "threshold": st.integers(2, self.terms.n),
                    "levels": st.tuples(*[st.sampled_from(Visibility)] * len(body.participants)),
                    "sum_quorum": st.integers(0, 4),
                    "norm_cap": st.sampled_from([None, NormCapTerms(2.0, 3, Granularity.MODEL)]),
                    "cohort_size": st.integers(0, 4),
                    "cohort_quorum": st.integers(0, 4),
                    "previous_result_digest": st.sampled_from([b"", STRANGER]),
                    "metrics": st.booleans(),
                },
            )
        )
        if data.draw(st.booleans()):
            kept = data.draw(st.sets(st.sampled_from(body.participants), min_size=2))
            levels = {index: level for index, level in _levels(body, changes) if index in kept}
            changes |= {"participants": tuple(levels), "levels": tuple(levels.values())}
        header = signer(TARGET).sign(session, b"", replace(body, **changes))
        world.headers.append(header)
        for victim in self._victims(data.draw, list(world.sources)):
            world.tell(victim, header)

    @precondition(lambda self: self.crude)
    @rule(data=st.data())
    def contents_are_false(self, data: Any) -> None:
        victim = data.draw(st.sampled_from(sorted(self.world.sources)))
        message = self.world.next_message(victim, self._without(data.draw, 1))
        if message is not None:
            self.world.tell(victim, _lie(message, victim, data.draw))

    @precondition(lambda self: self.crude)
    @rule(data=st.data())
    def earlier_message_is_replayed(self, data: Any) -> None:
        victim = data.draw(st.sampled_from(sorted(self.world.sources)))
        earlier = data.draw(st.sampled_from(self.world.sent + self.world.heard))
        due = self.world.next_message(victim)
        if due is not None and data.draw(st.booleans()):
            earlier = signer(TARGET).sign(due.envelope.session_id, due.envelope.context, earlier.body)
        self.world.tell(victim, earlier)

    @precondition(lambda self: self.crude)
    @rule(data=st.data(), what=st.sampled_from(["abort", "deadline", "restart"]))
    def session_ends(self, data: Any, what: str) -> None:
        victim = data.draw(st.sampled_from(sorted(self.world.sources)))
        source = self.world.sources[victim]
        if what == "deadline":
            self.world.hear(victim, source.expire)
        elif what == "restart":
            self.world.hear(victim, source.restart)
        elif source.header is not None:
            body = Abort(Step.SHARES, "SHARE_BOX", data.draw(st.integers(0, 8)))
            self.world.tell(victim, signer(TARGET).sign(source.header.envelope.session_id, b"", body))


def _levels(body: Header, changes: dict[str, Any]) -> Iterable[tuple[int, Visibility]]:
    return zip(body.participants, changes.get("levels", body.levels), strict=True)


def _plan_of(terms: Terms) -> dict[str, Any]:
    """The visibilities that policies allow, with the smallest sums."""
    in_cohorts = terms.quorum if terms.of_sum < terms.n else 0
    of_sum = terms.quorum if terms.of_sum else 0
    norm_cap = NormCapTerms(1.0, terms.quorum - 1 - terms.max_colluders, Granularity.LAYER) if of_sum else None
    return {
        "levels": terms.levels,
        "cohort_size": terms.cohort_size,
        "cohort_quorum": in_cohorts,
        "sum_quorum": of_sum,
        "norm_cap": norm_cap,
    }


def _lie(message: AnySigned, victim: int, draw: Draw) -> AnySigned:
    """A message in place of an honest one to a victim."""
    body = message.body
    match body:
        case KeyList() if body.advertisements:
            return resigned(message, _other_keys(body, draw))
        case ShareDelivery() if body.boxes:
            return resigned(message, _other_boxes(body, victim, draw))
        case Survivors():
            return resigned(message, _other_lists(body, victim, draw))
        case Consistency() if body.signatures:
            return resigned(message, _other_signatures(body, draw))
        case Result():
            return resigned(message, replace(body, count=body.count + draw(st.sampled_from([-1, 1]))))
    return message


def _other_keys(body: KeyList, draw: Draw) -> KeyList:
    items = body.advertisements
    advertise = draw(st.sampled_from(items))
    theirs = replace(advertise.body, mask_key=STRANGER)
    other = draw(st.sampled_from([forged(advertise, TARGET, body=theirs), resigned(advertise, theirs), items[0]]))
    rest = tuple(item for item in items if item is not advertise)
    return KeyList(draw(st.sampled_from([(*rest, other), rest, (*items, other)])))


def _other_boxes(body: ShareDelivery, victim: int, draw: Draw) -> ShareDelivery:
    chosen = draw(st.sampled_from(body.boxes))
    others = [replace(chosen, box=body.boxes[0].box), replace(chosen, nonce=STRANGER), replace(chosen, peer=victim)]
    return ShareDelivery((*(box for box in body.boxes if box is not chosen), draw(st.sampled_from(others))))


def _other_signatures(body: Consistency, draw: Draw) -> Consistency:
    chosen = draw(st.sampled_from(body.signatures))
    others = [forged(chosen, TARGET), resigned(chosen, SurvivorSignature(STRANGER)), body.signatures[0]]
    rest = (item for item in body.signatures if item is not chosen)
    inputs = draw(st.sampled_from([body.inputs, body.inputs[1:], body.inputs[::-1]]))
    return Consistency((*rest, draw(st.sampled_from(others))), inputs)


def _other_lists(lists: Survivors, victim: int, draw: Draw) -> Survivors:
    alive, dropped = list(lists.survivors), list(lists.dropped)
    chosen = draw(st.sampled_from(alive)) if alive else Survivor(victim, STRANGER)
    match draw(st.sampled_from(["both", "twice", "dropped", "neither", "only me", "another input"])):
        case "both":
            dropped.append(chosen.index)
        case "twice":
            alive.append(chosen)
        case "dropped":
            alive, dropped = [item for item in alive if item is not chosen], [*dropped, chosen.index]
        case "neither":
            alive = [item for item in alive if item is not chosen]
        case "only me":
            dropped += [item.index for item in alive if item.index != victim]
            alive = [item for item in alive if item.index == victim]
        case _:
            alive = [replace(item, input_digest=STRANGER) if item is chosen else item for item in alive]
    return replace(lists, survivors=tuple(alive), dropped=tuple(dropped))
