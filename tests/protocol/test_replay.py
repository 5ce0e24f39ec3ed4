"""A message counts once, in its own place: verbatim or signed anew, it is refused in every other slot."""

from __future__ import annotations

from typing import Any

import pytest
from cohort import TARGET, AnySigned, Cohort, leaving, on_ring, refused_for, signer
from test_session import assert_sum_is_exact

from securefda.errors import FaultyAggregatorError, FaultySourceError
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    Abort,
    Body,
    Checkpoint,
    Cosigned,
    Goodbye,
    Granularity,
    Join,
    MissedResult,
    Receipt,
    Refusal,
    Result,
    RuleTerms,
    Schedule,
    Signed,
    SourcesKeep,
    Step,
    Update,
    Visibility,
)

VICTIM, LIAR, LOST = 2, 4, 5
CHANGES = {"threshold": 4}
DROPS = {LOST: 2}
DUE_AT_SOURCE = ["KeyList", "ShareDelivery", "Survivors", "Consistency", "Result"]
DUE_AT_AGGREGATOR = ["Advertise", "ShareBundle", "MaskedInput", "SurvivorSignature", "Unmask"]


SCHEDULE = Schedule(
    run_id=bytes(16),
    rounds=1,
    rules=(RuleTerms("source_only", 0.5, "orthogonal", True, True, "mean-field", 1.0),),
    learning_rate=0.1,
    clip=1.0,
    modulus_bits=32,
    n_max=4,
    max_samples=10,
    training_deadline_ms=1,
    phase_deadline_ms=1,
    norm_cap_kappa=0.0,
    norm_cap_granularity=Granularity.LAYER,
    sources_keep=SourcesKeep.FINAL,
)


def recorded(**changes: Any) -> list[tuple[int, AnySigned]]:
    """(recipient, message) of a whole session with a lost source, and the messages that are sent outside one."""
    seen: list[tuple[int, AnySigned]] = []

    def tap(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        seen.append((recipient, message))
        return message

    cohort = Cohort(6, leaving(DROPS, tap), CHANGES | changes)
    cohort.finish()
    context = cohort.header.digest()
    result = next(message for _, message in seen if isinstance(message.body, Result))
    outside: list[AnySigned] = [
        cohort.header,
        signer(TARGET).sign(cohort.header.envelope.session_id, context, Abort(Step.SHARES, "SHARE_BOX", None)),
        signer(TARGET).sign(NO_SESSION, NO_CONTEXT, Goodbye(True, 1, "")),
        signer(LIAR).sign(NO_SESSION, NO_CONTEXT, Join(bytes(32), Visibility.SUM, metrics=True)),
        *(
            signer(sender).sign(NO_SESSION, NO_CONTEXT, body)
            for sender in (TARGET, LIAR)
            for body in (Checkpoint(b"a note", 0, (), 0), Cosigned(1, "a line"))
        ),
        receipt := signer(LIAR).sign(cohort.header.envelope.session_id, context, receipt_of(result)),
        signer(TARGET).sign(NO_SESSION, NO_CONTEXT, MissedResult(result, (receipt,))),
        signer(TARGET).sign(NO_SESSION, NO_CONTEXT, SCHEDULE),
        signer(LIAR).sign(cohort.header.envelope.session_id, context, Refusal("key")),
        signer(LIAR).sign(cohort.header.envelope.session_id, context, Update(bytes(32), 4, 1, bytes(32))),
    ]
    return seen + [(VICTIM, message) for message in outside]


def recorded_on_a_ring() -> list[tuple[int, AnySigned]]:
    """(recipient, message) of a session of SFDA-SA/2."""
    seen: list[tuple[int, AnySigned]] = []

    def tap(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        seen.append((recipient, message))
        return message

    Cohort(12, tap, on_ring(9)).finish()
    return seen


def receipt_of(result: AnySigned) -> Receipt:
    return Receipt(bytes(16), 1, 1, result.digest(), result.body.model_digest)


def test_recording_holds_every_type_of_message() -> None:
    types = {message.type_name for _, message in [*recorded(), *recorded_on_a_ring()]}
    assert types == {kind.__name__ for kind in Body.__args__}


def anew(message: AnySigned, signed_as: int, like: AnySigned) -> AnySigned:
    """The body of a message, signed for the session and the view of another one."""
    return signer(signed_as).sign(like.envelope.session_id, like.envelope.context, message.body)


def is_same(one: Signed[Any], other: Signed[Any]) -> bool:
    return one.signed_bytes == other.signed_bytes


@pytest.mark.parametrize("changes", [{}, {"attempt": 2}], ids=["this session", "another attempt"])
@pytest.mark.parametrize("again", [False, True], ids=["verbatim", "signed anew"])
def test_source_refuses_every_message_in_every_other_slot(again: bool, changes: dict[str, Any]) -> None:
    recording = recorded(**changes)
    cohort = Cohort(6, leaving(DROPS), CHANGES)
    cohort.exchange()
    for due in DUE_AT_SOURCE:
        honest = cohort.inbox[VICTIM]
        assert honest.type_name == due
        foreign = [m for _, m in recording if not is_same(m, honest)]
        if again:
            foreign = [anew(m, TARGET, honest) for m in foreign if m.type_name != due]
        assert len(foreign) > 30
        for message in foreign:
            with pytest.raises(FaultyAggregatorError) as refused:
                cohort.step(VICTIM, message)
            delivered_to_another = message.type_name == due == "ShareDelivery" and not changes
            allowed = {"SHARE_SENDER", "SHARE_BOX"} if delivered_to_another else {"TYPE", "SENDER", "CONTEXT"}
            assert refused.value.check in allowed, message.type_name
        cohort.exchange() if cohort.opened is None else cohort.answer()
    assert cohort.opened is not None


@pytest.mark.parametrize("changes", [{}, {"attempt": 2}], ids=["this session", "another attempt"])
@pytest.mark.parametrize("again", [False, True], ids=["verbatim", "signed anew"])
def test_aggregator_refuses_every_message_in_every_other_slot(again: bool, changes: dict[str, Any]) -> None:
    recording = recorded(**changes)
    cohort = Cohort(6, leaving(DROPS), CHANGES)
    for slot, due in enumerate(DUE_AT_AGGREGATOR):
        cohort.answer()
        honest = cohort.outbox.pop(LIAR)
        cohort.collect()
        assert honest.type_name == due
        foreign = [m for _, m in recording if not is_same(m, honest)]
        if again:
            foreign = [anew(m, LIAR, honest) for m in foreign if m.type_name != due]
        for message in foreign:
            with pytest.raises(FaultySourceError) as refused:
                cohort.add(message)
            assert refused.value.check in {"TYPE", "SENDER", "CONTEXT", "DUPLICATE"}, (slot, message.type_name)
        cohort.aggregator = cohort.add(honest)
        cohort.close()
    cohort.answer()
    assert_sum_is_exact_at_end(cohort)


def assert_sum_is_exact_at_end(cohort: Cohort) -> None:
    fresh = Cohort(6, leaving(DROPS), CHANGES)
    assert_sum_is_exact(fresh, DROPS)
    assert cohort.opened is not None
    assert fresh.opened is not None
    assert cohort.opened.sum_digest == fresh.opened.sum_digest


def test_same_slot_of_another_session_id_is_refused() -> None:
    cohort = Cohort(3)
    cohort.exchange()
    honest = cohort.inbox[VICTIM]
    replayed = signer(TARGET).sign(bytes(32), honest.envelope.context, honest.body)
    with refused_for("SESSION"):
        cohort.step(VICTIM, replayed)


def test_nothing_of_a_ring_is_of_use_in_a_session_of_all_or_the_other_way_round() -> None:
    on_a_ring, of_all = recorded_on_a_ring(), recorded()
    for recording, setup, slots in ((on_a_ring, {}, 5), (of_all, on_ring(9), 6)):
        cohort = Cohort(12, changes=setup)
        for _ in range(slots):
            cohort.exchange()
            honest = cohort.inbox[VICTIM]
            for _, message in recording:
                with pytest.raises(FaultyAggregatorError) as refused:
                    cohort.step(VICTIM, message)
                assert refused.value.check in {"TYPE", "SENDER", "CONTEXT"}
                again = anew(message, TARGET, honest)
                if again.type_name != honest.type_name:
                    with pytest.raises(FaultyAggregatorError, match="TYPE"):
                        cohort.step(VICTIM, again)
