"""What each side must refuse in the middle of a session: the tables of lies in ``tests/protocol``, as bytes.

Every case names a session of ``sessions.json``, who is tested and which message is due; all but the last of what is
delivered is accepted. Each is first delivered here to the real state machine, so that no case names a wrong check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import lies_of_aggregator as false_aggregator
import lies_of_source as false_source
import numpy as np
from cohort import TARGET, AnySigned, Cohort, forged, identity, limits_of, over_the_wire, resigned
from message_vectors import plain
from session_vectors import HYBRIDS, PLANS, RINGS, VectorCohort, begun, signed

from securefda.errors import FaultyAggregatorError, FaultySourceError, ProtocolError, QuorumLost
from securefda.protocol.envelope import sign_bytes
from securefda.protocol.masking import RingVector
from securefda.protocol.messages import Signed
from securefda.protocol.shamir import PRIME
from securefda.protocol.transcript import cohort_with

DUE_AT_SOURCE = ("KeyList", "ShareDelivery", "Survivors", "Consistency", "Result")
DUE_AT_AGGREGATOR = ("Advertise", "ShareBundle", "MaskedInput", "SurvivorSignature", "Unmask")
DUE_ON_A_RING = (
    ("Roll", "Neighbours", "ShareDelivery", "Survivors", "NeighbourConsistency", "Result"),
    ("Advertise", "Nonce", "ShareBundle", "MaskedInput", "SurvivorSignature", "Unmask"),
)
"""At a source, and at the aggregator."""
VICTIM, LIAR = false_aggregator.VICTIM, false_source.LIAR
USUAL, WITH_A_LOSS, HYBRID_WITH_A_LOSS = "five", "six", "six-hybrid"


def of_suite_2(message: AnySigned, signed_as: int) -> AnySigned:
    """The message with another suite in its bytes, signed anew: a reader of suite 1 does not parse it."""
    data = b"\x08\x02" + message.signed_bytes[2:]
    return Signed(message.envelope, data, sign_bytes(identity(signed_as), message.type_name, data))


def _plan_with(setup: Mapping[str, Any]) -> str:
    """The session of five sources without losses that a lie's setup asks for."""
    if set(setup) - {"changes"}:
        raise ValueError(f"no published session has {set(setup)} set")
    fitting = [
        name
        for name, plan in (PLANS | HYBRIDS).items()
        if plan.n == 5 and not plan.drops and plan.changes == setup.get("changes", {})
    ]
    if not fitting:
        raise ValueError(f"no published session has the header of {setup}: add one to PLANS")
    return fitting[0]


# What the aggregator tells a source.


def _awaiting(name: str, slot: int) -> VectorCohort:
    """A session whose sources have the aggregator's message of a slot, 1 to 5, in their inbox."""
    cohort = begun(name)
    for _ in range(slot):
        cohort.exchange()
    return cohort


def source_case(name: str, check: str, claim: str, cohort: Cohort, slot: int, *messages: AnySigned) -> dict[str, Any]:
    """A lie to the victim, as the last of some messages."""
    error = _error_of(lambda: _tell(cohort, messages))
    if not isinstance(error, ProtocolError) or error.check != check:
        raise ValueError(f"{check} {claim}: the source says {error!r}")
    return {
        "claim": claim,
        "session": name,
        "source": VICTIM,
        "waits_for": (DUE_ON_A_RING[0] if name in RINGS else DUE_AT_SOURCE)[slot - 1],
        "deliver": [signed(message) for message in messages],
        "check": check,
        "suspect": error.suspect if isinstance(error, FaultyAggregatorError) else None,
    }


def _tell(cohort: Cohort, messages: Iterable[AnySigned]) -> None:
    for message in messages:
        cohort.phases[VICTIM], _ = cohort.step(VICTIM, over_the_wire(message))


def _error_of(act: Callable[[], object]) -> Exception | None:
    try:
        act()
    except (ProtocolError, QuorumLost) as error:
        return error
    return None


def _lies_to_source() -> Iterable[dict[str, Any]]:
    for lie in false_aggregator.LIES:
        name = _plan_with(lie.setup)
        cohort = _awaiting(name, lie.slot)
        false = lie.tell(cohort, cohort.inbox[VICTIM])
        yield source_case(name, lie.check, lie.claim, cohort, lie.slot, false)


def _false_outsides_to_source() -> Iterable[dict[str, Any]]:
    for slot in range(1, 6):
        cohort = _awaiting(USUAL, slot)
        honest = cohort.inbox[VICTIM]
        for check, change in false_aggregator.OUTSIDE.items():
            false, found = (of_suite_2(honest, TARGET), "WIRE") if check == "SUITE" else (change(honest), check)
            claim = f"{honest.type_name} with a false {check.lower()}"
            yield source_case(USUAL, found, claim, cohort, slot, false)


def _replays_to_source() -> Iterable[dict[str, Any]]:
    """Honest messages in a place that is not theirs: another slot, another source, another attempt."""
    honest = _to_victim(begun(USUAL))
    others = _to_victim(VectorCohort(replace(PLANS[USUAL], changes={"attempt": 2})))
    for slot, due in enumerate(DUE_AT_SOURCE, start=1):
        cohort = _awaiting(USUAL, slot)
        for message in honest:
            if message.type_name != due:
                claim = f"{message.type_name} of this session in place of {due}"
                yield source_case(USUAL, "TYPE", claim, cohort, slot, message)
        yield source_case(USUAL, "CONTEXT", f"{due} of another attempt", cohort, slot, others[slot - 1])
    cohort = _awaiting(USUAL, 2)
    yield source_case(USUAL, "SHARE_SENDER", "delivery for another source", cohort, 2, cohort.inbox[4])


def _to_victim(cohort: VectorCohort) -> list[AnySigned]:
    """All of the aggregator's messages to the victim in a session without losses."""
    messages = []
    for _ in DUE_AT_SOURCE:
        cohort.exchange()
        messages.append(cohort.inbox[VICTIM])
    return messages


def _low_order_mask_key() -> dict[str, Any]:
    """A colluding source signs the key and the aggregator lets it pass: it is found when the masks are made."""
    colluder = false_aggregator.COLLUDER
    cohort = begun(USUAL).until(0)
    own = cohort.outbox[colluder]
    low_order = resigned(own, replace(own.body, mask_key=bytes(32)))
    cohort.phases[colluder] = replace(cohort.phases[colluder], own=low_order)
    del cohort.outbox[colluder]
    cohort.collect()
    cohort.aggregator = replace(cohort.aggregator, received={**cohort.aggregator.received, colluder: low_order})
    cohort.close()
    key_list = cohort.inbox[VICTIM]
    cohort.exchange()
    delivery, untouched = cohort.inbox[VICTIM], _awaiting(USUAL, 1)
    return source_case(USUAL, "KEY_INVALID", "mask key of low order", untouched, 1, key_list, delivery)


def _too_few_that_count() -> Iterable[dict[str, Any]]:
    """An honest delivery, with which the source's own cohort holds too few for what it asks."""
    name, usual = "six-cohorts", limits_of(6)
    mates = cohort_with(VICTIM, _awaiting(name, false_aggregator.DELIVERY + 1).phases[VICTIM].cohorts)
    asks = {
        "two others in a sum that opens over two": replace(usual, min_others=2),
        "a cohort in which one colluder may be": replace(usual, max_colluders=1),
        "a cohort in which I trust nobody": replace(usual, trusted=usual.trusted - mates),
    }
    for claim, limits in asks.items():
        cohort = _awaiting(name, false_aggregator.DELIVERY)
        phase = cohort.phases[VICTIM]
        cohort.phases[VICTIM] = replace(phase, session=replace(phase.session, limits=limits))
        delivery = cohort.inbox[VICTIM]
        case = source_case(name, "SHARE_QUORUM", claim, cohort, false_aggregator.DELIVERY, delivery)
        yield {**case, "limits": plain(limits)}


def lies_to_source() -> object:
    """What a source refuses."""
    cases = [
        *_lies_to_source(),
        *_false_outsides_to_source(),
        *_replays_to_source(),
        *_too_few_that_count(),
        _low_order_mask_key(),
    ]
    return {"valid": [], "invalid": cases}


# What a source tells the aggregator.

Event = tuple[AnySigned, bytes | None] | None
"""A message with its vector, or None: the aggregator ends the phase."""


def _collecting(name: str, slot: int, without: Iterable[int]) -> VectorCohort:
    """A session whose aggregator has the answers of a slot, 0 to 4, but for those of some sources."""
    cohort = begun(name)
    cohort.until(slot)
    for index in without:
        cohort.outbox.pop(index, None)
    cohort.collect()
    return cohort


def aggregator_case(
    name: str, check: str, claim: str, slot: int, events: list[Event], *, without: tuple[int, ...] = (LIAR,)
) -> dict[str, Any]:
    """A lie to the aggregator, as the last of some events."""
    cohort = _collecting(name, slot, without)
    answered = sorted(cohort.aggregator.received)
    error = _error_of(lambda: _play(cohort, events))
    found, blamed = _verdict(error, cohort)
    if found != check:
        raise ValueError(f"{check} {claim}: the aggregator says {error!r}")
    return {
        "claim": claim,
        "session": name,
        "collects": (DUE_ON_A_RING[1] if name in RINGS else DUE_AT_AGGREGATOR)[slot],
        "answered": answered,
        "deliver": [_event(event) for event in events],
        "check": check,
        "blames": blamed,
        "opens": cohort.opened is not None,
    }


def _play(cohort: Cohort, events: Iterable[Event]) -> None:
    for event in events:
        if event is None:
            cohort.close()
        else:
            message, vector = event
            cohort.aggregator = cohort.add(over_the_wire(message), vector=vector)


def _verdict(error: Exception | None, cohort: Cohort) -> tuple[str, list[str]]:
    """Name of the check and whom it blames, from the error or from the faults of an opened session."""
    match error:
        case FaultySourceError():
            return error.check, error.source_id.split(" or ")
        case ProtocolError():
            return error.check, []
        case QuorumLost():
            return "QUORUM", []
    faults = cohort.opened.faults if cohort.opened else ()
    return " ".join({fault.check for fault in faults}), [fault.source_id for fault in faults]


def _event(event: Event) -> dict[str, Any]:
    if event is None:
        return {"close": True}
    message, vector = event
    return {**signed(message), **({} if vector is None else {"vector": vector.hex()})}


def _vector_of(cohort: Cohort, slot: int) -> bytes | None:
    return cohort.vectors[LIAR] if slot == false_source.INPUT else None


def _lies_to_aggregator() -> Iterable[dict[str, Any]]:
    for lie in false_source.LIES:
        name = HYBRID_WITH_A_LOSS if lie.setup else WITH_A_LOSS
        cohort, honest = _liar_at(lie.slot, name)
        vector = _vector_of(cohort, lie.slot)
        false = (lie.tell(cohort, honest), lie.vector(vector) if lie.vector else vector)
        yield aggregator_case(name, lie.check, lie.claim, lie.slot, [false])


def _liar_at(slot: int, name: str = WITH_A_LOSS) -> tuple[VectorCohort, AnySigned]:
    """A session in which all but the liar have answered in a slot, and the liar's honest message."""
    cohort = begun(name)
    cohort.until(slot)
    honest = cohort.outbox.pop(LIAR)
    cohort.collect()
    return cohort, honest


def _false_outsides_to_aggregator() -> Iterable[dict[str, Any]]:
    for slot, due in enumerate(DUE_AT_AGGREGATOR):
        cohort, honest = _liar_at(slot)
        vector = _vector_of(cohort, slot)
        lies = {check: (check, change(honest)) for check, change in false_source.OUTSIDE.items()}
        lies["SUITE"] = ("WIRE", of_suite_2(honest, LIAR))
        lies["SENDER"] = ("SENDER", false_source.from_outside(honest))
        lies["SENDER beyond the roster"] = ("SENDER", forged(honest, LIAR, sender=99))
        for name, (check, lie) in lies.items():
            claim = f"{due} with a false {name.lower()}"
            yield aggregator_case(WITH_A_LOSS, check, claim, slot, [(lie, vector)])
        twice: list[Event] = [(honest, vector), (honest, vector)]
        yield aggregator_case(WITH_A_LOSS, "DUPLICATE", f"{due} a second time", slot, twice)


def _too_few() -> Iterable[dict[str, Any]]:
    for slot, due in enumerate(DUE_AT_AGGREGATOR):
        without = (0, 2, 3) if slot < false_source.INPUT else (0, 2)
        claim = f"{due} of fewer than t"
        yield aggregator_case(WITH_A_LOSS, "QUORUM", claim, slot, [None], without=without)


def _late_input() -> dict[str, Any]:
    """The input of a source that was declared dropped arrives after all."""
    cohort = begun(WITH_A_LOSS).until(false_source.INPUT)
    late = (cohort.outbox[false_source.DROPPED], cohort.vectors[false_source.DROPPED])
    slot = false_source.SIGNATURE
    return aggregator_case(WITH_A_LOSS, "SENDER", "masked input after its sender was dropped", slot, [late])


def _off_by_one(share: Any) -> Any:
    return replace(share, share=((int.from_bytes(share.share, "big") + 1) % PRIME).to_bytes(33, "big"))


def _beyond_the_field(share: Any) -> Any:
    return replace(share, share=b"\xff" * 33)


def _unmasking(name: str, liar: int, wrong: Callable[[Any], Any]) -> list[Event]:
    honest = begun(name).until(false_source.UNMASK).outbox[liar]
    return [(resigned(honest, replace(honest.body, shares=tuple(map(wrong, honest.body.shares)))), None), None]


def _wrong_shares() -> Iterable[dict[str, Any]]:
    """More than t answers open the sum all the same and name the holder; with t of them nothing opens."""
    slot, one = false_source.UNMASK, (LIAR,)
    for wrong, claim in ((_off_by_one, "every share off by one"), (_beyond_the_field, "shares beyond the field")):
        events = _unmasking(WITH_A_LOSS, LIAR, wrong)
        yield aggregator_case(WITH_A_LOSS, "UNMASK_SHARE", claim, slot, events, without=one)
    for owner in (3, false_source.DROPPED):
        events = _unmasking(WITH_A_LOSS, LIAR, lambda share, owner=owner: _only(owner, share))  # type: ignore[misc]
        claim = f"the share of source {owner} off by one"
        yield aggregator_case(WITH_A_LOSS, "UNMASK_SHARE", claim, slot, events, without=one)
    events = _unmasking("three", 3, lambda share: _only(2, share))
    yield aggregator_case("three", "SHARE_COMMITMENT", "one wrong share of exactly t", slot, events, without=(3,))


def _only(owner: int, share: Any) -> Any:
    return _off_by_one(share) if share.owner == owner else share


def _wrong_commitment() -> dict[str, Any]:
    """A source commits to another self secret than the one that it shares; the end of the session shows it."""
    liar, cohort = 3, begun("three").until(0)
    honest = cohort.outbox[liar]
    cohort.outbox[liar] = resigned(honest, replace(honest.body, self_mask_commitment=bytes(32)))
    cohort.phases[liar] = replace(cohort.phases[liar], own=cohort.outbox[liar])
    events = _rest(cohort, {liar})
    claim = "commitment to another self secret"
    return aggregator_case("three", "SHARE_COMMITMENT", claim, 0, events, without=(liar,))


def _rest(cohort: Cohort, missing: set[int]) -> list[Event]:
    """Everything that the aggregator gets from here to the end: first of some sources, later of all."""
    events: list[Event] = []
    while True:
        for index in sorted(cohort.outbox):
            if not missing or index in missing:
                message = cohort.outbox[index]
                events.append((message, cohort.vectors[index] if message.type_name == "MaskedInput" else None))
        missing = set()
        events.append(None)
        is_last = "Unmask" in {message.type_name for message in cohort.outbox.values()}
        cohort.collect()
        if is_last:
            return events
        cohort.close()
        cohort.answer()


def _out_of_range() -> dict[str, Any]:
    """A source adds half of the ring to every element of its input: no sum of honest inputs gets there."""
    cohort = begun(USUAL)
    honest = cohort.encoded

    def encoded(index: int) -> RingVector:
        return honest(index) + np.uint32(1 << 31) if index == LIAR else honest(index)

    cohort.encoded = encoded  # type: ignore[method-assign]
    events = _rest(cohort.until(false_source.INPUT), {LIAR})
    return aggregator_case(USUAL, "RANGE", "input outside the agreed range", false_source.INPUT, events)


def _set_padding() -> dict[str, Any]:
    """A bit behind the last of 19 words of 20 bits is set."""
    cohort = begun("four-20").until(false_source.INPUT)
    honest, vector = cohort.outbox[LIAR], bytearray(cohort.vectors[LIAR])
    vector[47] |= 1 << 4
    body = replace(honest.body, digest=sha256(vector).digest())
    events: list[Event] = [(resigned(honest, body), bytes(vector))]
    claim = "a bit behind the last parameter is set"
    return aggregator_case("four-20", "INPUT_PADDING", claim, false_source.INPUT, events)


def _wrong_recovery_value() -> dict[str, Any]:
    """A survivor's half does not come out; the aggregator notices once the source is dropped that it was for."""
    cohort = begun(HYBRID_WITH_A_LOSS).until(false_source.INPUT)
    peers = [index for index in cohort.indices if index != LIAR]
    vector = bytearray(cohort.vectors[LIAR])
    vector[-32 * (len(peers) - peers.index(false_source.DROPPED))] ^= 1
    cohort.vectors[LIAR] = bytes(vector)
    honest = cohort.outbox[LIAR]
    cohort.outbox[LIAR] = resigned(honest, replace(honest.body, digest=sha256(vector).digest()))
    cohort.phases[LIAR] = replace(cohort.phases[LIAR], input_digest=cohort.outbox[LIAR].body.digest)
    del cohort.outbox[false_source.DROPPED]
    events = _rest(cohort, {LIAR})
    claim = "a recovery value that gives another half"
    return aggregator_case(HYBRID_WITH_A_LOSS, "INPUT_RECOVERY", claim, false_source.INPUT, events)


def lies_to_aggregator() -> object:
    """What the aggregator refuses, or finds out at the end."""
    cases = [
        *_lies_to_aggregator(),
        *_false_outsides_to_aggregator(),
        *_too_few(),
        _late_input(),
        *_wrong_shares(),
        _wrong_commitment(),
        _out_of_range(),
        _set_padding(),
        _wrong_recovery_value(),
    ]
    return {"valid": [], "invalid": cases}


SETS: dict[str, Callable[[], object]] = {
    "lies_to_source": lies_to_source,
    "lies_to_aggregator": lies_to_aggregator,
}
