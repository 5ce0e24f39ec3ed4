"""Which model a source trains: the task's first, then that of a result it has reason to believe in, in short steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import TARGET, AnySigned, Federation, changed, signer, trainer_of, until

from securefda.errors import FaultyAggregatorError, TrainingError
from securefda.protocol.header_checks import SessionLimits
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    Advertise,
    Header,
    MissedResult,
    Parcel,
    Receipt,
    Refusal,
    Result,
    Signed,
)
from securefda.rules.blocks import BLOCK
from securefda.site.policy.schema import ModelPolicy
from securefda.source.model_bound import (
    INITIAL_TOLERANCE,
    AcceptedHeader,
    CheckedCourse,
    Known,
    Missed,
    Origin,
    TakenResult,
    TrainedFrom,
    UncheckedCourse,
    check_missed,
    course_of,
    origin_of,
    require_initial,
    units_of,
)

ME, N = 1, 4
LIMITS = SessionLimits(min_others=2, max_colluders=1, trusted=frozenset({1, 2, 3}))
LAYERS = (("first", (300,)), ("small", (10,)), ("last", (300,)))
GROUPS = (310, 300)
MODEL = np.zeros(610, np.float32)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, N, settings={"phase_deadline_s": 30.0})


def first_header(federation: Federation) -> Parcel:
    return until(federation.open(), ME, Header)


def with_model(header: Parcel, model: np.ndarray) -> Parcel:
    data = np.asarray(model, "<f4").tobytes()
    return Parcel(changed(header.message, model_digest=sha256(data).digest()), (data, *header.vectors[1:]))


def known_of(federation: Federation, index: int = ME) -> Known:
    return federation.stores[index].known(bytes.fromhex(federation.run.run_id))


# The first model.


@pytest.mark.parametrize("off", [2 * INITIAL_TOLERANCE, 1.0])
def test_first_model_other_than_the_tasks_is_refused_and_nothing_changes(federation: Federation, off: float) -> None:
    header = first_header(federation)
    model = trainer_of(N, ME).initial_model()
    model[3] += off

    (answer,) = federation.sources[ME].handle(with_model(header, model))

    assert answer.message.body == Refusal("HEADER_INITIAL_MODEL")
    (alarm,) = federation.watch.alarms[ME]
    assert "model.initial in policy.toml" in str(alarm)
    assert "\n" not in str(alarm)
    assert known_of(federation) == Known()
    run = bytes.fromhex(federation.run.run_id)
    assert federation.stores[ME].trained_from(run, trainer_of(N, ME).initial_model).units is None
    (answer,) = federation.sources[ME].handle(header)  # the position is free still
    assert isinstance(answer.message.body, Advertise)


def test_first_model_that_another_machine_rounds_otherwise_is_taken(federation: Federation) -> None:
    header, model = first_header(federation), trainer_of(N, ME).initial_model()
    (answer,) = federation.sources[ME].handle(with_model(header, model + np.float32(0.4 * INITIAL_TOLERANCE)))
    assert isinstance(answer.message.body, Advertise)


@pytest.mark.parametrize("listed", [True, False])
def test_first_model_that_the_policy_lists_is_taken_and_no_other(federation: Federation, listed: bool) -> None:
    header = first_header(federation)
    other = trainer_of(N, ME).initial_model() + 1
    sent = with_model(header, other) if listed else header
    policy = ModelPolicy(initial=(sha256(other.tobytes()).hexdigest(),))
    federation.sources[ME] = federation.source(ME, policy=federation.policy(ME, model=policy))

    (answer,) = federation.sources[ME].handle(sent)

    if listed:
        assert isinstance(answer.message.body, Advertise)
    else:
        assert answer.message.body == Refusal("HEADER_INITIAL_MODEL")


# Which result a model is that of.


def digest(number: int) -> bytes:
    return bytes([number]) * 32


TAKEN = TakenResult(4, 3, digest(1), digest(2), digest(3), digest(4))
"""The third result, which closed the fourth round."""
ACCEPTED = AcceptedHeader(5, 3, digest(1), digest(2), digest(5), digest(6), answered=3)
"""The header after it."""
LATER = AcceptedHeader(7, 5, digest(7), digest(8), digest(9), digest(10), answered=True, model_round=6)
"""One that was taken by receipts, for the fifth result."""


def asking(previous: bytes, model: bytes) -> Any:
    class Asking:
        previous_result_digest, model_digest = previous, model

    return Asking


def missed(number: int, givers: set[int], *, session: bytes = digest(11), context: bytes = digest(12)) -> Missed:
    result = signer(TARGET).sign(session, context, Result(b"", 3, digest(13)))
    return Missed(result, frozenset(givers), number, 6)


AWAY = missed(4, {2, 3})
OWN = missed(0, set(), session=ACCEPTED.session_id, context=ACCEPTED.digest)
Case = tuple[Known, Any, Missed | None, Any]
TAKES: dict[str, Case] = {
    "the first": (Known(), asking(b"", digest(0)), None, Origin(0)),
    "the last result": (Known(TAKEN, ACCEPTED), asking(digest(1), digest(2)), None, Origin(3, TAKEN.round)),
    "the same again": (Known(TAKEN, LATER), asking(digest(7), digest(8)), None, Origin(5, 6)),
    "by receipts": (Known(TAKEN, ACCEPTED), asking(AWAY.result.digest(), digest(13)), AWAY, Origin(4, 6)),
    "by receipts, at first": (Known(), asking(AWAY.result.digest(), digest(13)), AWAY, Origin(4, 6)),
    "of its own last session": (
        Known(TAKEN, ACCEPTED),
        asking(OWN.result.digest(), digest(13)),
        OWN,
        Origin(4, 5, TakenResult(5, 4, OWN.result.digest(), digest(13), ACCEPTED.session_id, ACCEPTED.digest)),
    ),
}
FEW, UNTRUSTED = missed(4, {2}), missed(4, {2, 4})
MINE, OLD = missed(4, {1, 2}), missed(3, {2, 3})
REFUSES: dict[str, Case] = {
    "nothing, where there is a result": (Known(TAKEN), asking(b"", digest(2)), None, "knows of one"),
    "another model of the last result": (Known(TAKEN), asking(digest(1), digest(9)), None, "not the model"),
    "another model of the last header": (Known(TAKEN, LATER), asking(digest(7), digest(9)), None, "not the model"),
    "another first model": (
        Known(None, replace(ACCEPTED, number=0, previous_result_digest=b"")),
        asking(b"", digest(9)),
        None,
        "not the model",
    ),
    "an older result": (Known(TAKEN, LATER), asking(digest(1), digest(2)), None, "0 other trusted sources"),
    "no receipts": (Known(TAKEN, ACCEPTED), asking(digest(20), digest(13)), None, "0 other trusted sources .* and 2"),
    "receipts for another": (Known(), asking(digest(20), digest(13)), AWAY, "0 other trusted sources"),
    "too few": (Known(), asking(FEW.result.digest(), digest(13)), FEW, "1 other trusted sources"),
    "of one that is not trusted": (Known(), asking(UNTRUSTED.result.digest(), digest(13)), UNTRUSTED, "1 other"),
    "my own among them": (Known(), asking(MINE.result.digest(), digest(13)), MINE, "1 other trusted"),
    "another third result": (Known(TAKEN, ACCEPTED), asking(OLD.result.digest(), digest(13)), OLD, "came after"),
    "another model than the result's": (Known(), asking(AWAY.result.digest(), digest(14)), AWAY, "not the model"),
    "a second result of a session": (
        Known(replace(TAKEN, number=4, digest=digest(21)), ACCEPTED),
        asking(OWN.result.digest(), digest(13)),
        OWN,
        "0 other trusted sources",
    ),
}


@pytest.mark.parametrize("name", TAKES)
def test_model_is_that_of_a_result_that_a_source_has_reason_to_believe_in(name: str) -> None:
    known, header, shown, origin = TAKES[name]
    assert origin_of(header, known, shown, own_index=ME, limits=LIMITS) == origin


def test_result_of_its_own_last_session_over_another_number_of_sources_is_refused() -> None:
    known = Known(TAKEN, replace(ACCEPTED, answered=4))
    with pytest.raises(FaultyAggregatorError, match="RESULT_COUNT: 3 of 4"):
        origin_of(asking(OWN.result.digest(), digest(13)), known, OWN, own_index=ME, limits=LIMITS)


@pytest.mark.parametrize("name", REFUSES)
def test_model_of_any_other_result_is_refused(name: str) -> None:
    known, header, shown, detail = REFUSES[name]
    with pytest.raises(FaultyAggregatorError, match=detail) as caught:
        origin_of(header, known, shown, own_index=ME, limits=LIMITS)
    assert caught.value.check == "HEADER_CHAIN"


# The message that shows a result again.


def shown_result(federation: Federation, change: Callable[[Any], Any] = lambda body: body) -> Any:
    """A result with the receipts of the others for it, in one way other than it should be."""
    result: Signed[Result] = signer(TARGET).sign(digest(1), digest(2), Result(b"", 3, digest(3)))
    run_id = bytes.fromhex(federation.run.run_id)
    receipt = Receipt(run_id, 2, 1, result.digest(), digest(3))
    given = tuple(signer(index).sign(digest(1), digest(2), receipt) for index in (2, 3))
    return change(MissedResult(result, given))


def other_receipt(index: int = 3, session: bytes = digest(1), context: bytes = digest(2), **changes: Any) -> Any:
    def change(body: MissedResult) -> MissedResult:
        receipt = replace(body.receipts[0].body, **changes)
        return replace(body, receipts=(body.receipts[0], signer(index).sign(session, context, receipt)))

    return change


LIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a result of no target": (
        lambda body: replace(body, result=signer(2).sign(digest(1), digest(2), body.result.body)),
        "its result: SENDER",
    ),
    "a result that is not signed": (
        lambda body: replace(body, result=replace(body.result, signature=bytes(64))),
        "its result: SIGNATURE",
    ),
    "one source twice": (lambda body: replace(body, receipts=body.receipts[:1] * 2), "two receipts of one source"),
    "the target's own": (other_receipt(TARGET), "no source of this roster"),
    "a receipt that is not signed": (
        lambda body: replace(body, receipts=(replace(body.receipts[0], signature=bytes(64)),)),
        "receipt of source-2: SIGNATURE",
    ),
    "a receipt of another session": (other_receipt(session=digest(9)), "receipt of source-3: SESSION"),
    "a receipt under another header": (other_receipt(context=digest(9)), "receipt of source-3: CONTEXT"),
    "a receipt of another run": (other_receipt(run_id=bytes(16)), "another run"),
    "a receipt for another result": (other_receipt(result_digest=digest(9)), "for another result"),
    "a receipt for another model": (other_receipt(model_digest=digest(9)), "for another result"),
    "receipts of two rounds": (other_receipt(round=3), "round or number"),
    "receipts of two numbers": (other_receipt(round=2, number=2), "round or number"),
}


def test_result_and_receipts_are_taken_as_they_were_given(federation: Federation) -> None:
    run_id = bytes.fromhex(federation.run.run_id)
    body = shown_result(federation)
    assert check_missed(body, roster=federation.roster, run_id=run_id) == Missed(body.result, frozenset({2, 3}), 1, 2)


@pytest.mark.parametrize("lie", LIES)
def test_result_that_is_shown_again_with_a_lie_is_refused_and_changes_nothing(federation: Federation, lie: str) -> None:
    header = first_header(federation)
    change, detail = LIES[lie]
    message = signer(TARGET).sign(NO_SESSION, NO_CONTEXT, shown_result(federation, change))

    assert federation.sources[ME].handle(Parcel(message)) == []

    (alarm,) = federation.watch.alarms[ME]
    assert isinstance(alarm, FaultyAggregatorError)
    assert (alarm.check, detail in str(alarm)) == ("MISSED_RESULT", True)
    assert known_of(federation) == Known()
    (answer,) = federation.sources[ME].handle(header)
    assert isinstance(answer.message.body, Advertise)


# Steps.


def moved(*places: tuple[int, float]) -> np.ndarray:
    model = MODEL.copy()
    for place, value in places:
        model[place] = value
    return model


UPDATE = moved((0, 2.0), (400, 1.0))
UNITS = (2.0, math.sqrt(5) * math.sqrt(300 / 610))
"""Of that update: its length in the first group, and its share of the whole length in the second."""

YARDSTICKS = (2.0, 1.0)
"""The powers of two that are not above them."""


def test_units_are_a_groups_own_length_or_its_share_of_the_whole() -> None:
    assert units_of(UPDATE, GROUPS) == pytest.approx(UNITS)


@pytest.mark.parametrize("results", [1, 3])
@pytest.mark.parametrize(("place", "group"), [(309, 0), (310, 1)])
def test_step_is_as_long_as_the_limit_and_no_longer(results: int, place: int, group: int) -> None:
    before = TrainedFrom(2, MODEL, UNITS)
    origin, most = Origin(2 + results), 10 * results * YARDSTICKS[group]
    course_of(origin, moved((place, 0.999 * most)), None, before, layers=LAYERS, limit=10)
    with pytest.raises(FaultyAggregatorError, match="first to small" if group == 0 else "in last") as caught:
        course_of(origin, moved((place, 1.001 * most)), None, before, layers=LAYERS, limit=10)
    assert caught.value.check == "HEADER_STEP"
    assert "limits.model-step = 10 in policy.toml" in str(caught.value)
    assert f"at most {10 * results:g}" in str(caught.value)


@pytest.mark.parametrize(("place", "group"), [(0, 0), (609, 1)])
def test_target_update_is_as_long_as_the_limit_and_no_longer(place: int, group: int) -> None:
    before = TrainedFrom(2, MODEL, UNITS)
    course_of(Origin(2), MODEL, moved((place, 9.99 * YARDSTICKS[group])), before, layers=LAYERS, limit=10)
    with pytest.raises(FaultyAggregatorError, match="model-step") as caught:
        course_of(Origin(2), MODEL, moved((place, 10.01 * YARDSTICKS[group])), before, layers=LAYERS, limit=10)
    assert caught.value.check == "HEADER_TARGET_STEP"


@pytest.mark.parametrize(("check", "model", "target"), [("HEADER_STEP", 25.0, 0.0), ("HEADER_TARGET_STEP", 0.0, 25.0)])
def test_first_round_of_a_source_is_measured_by_its_own_update(check: str, model: float, target: float) -> None:
    before = TrainedFrom(0, MODEL, None)
    course = course_of(Origin(1), moved((0, model)), moved((0, target)), before, layers=LAYERS, limit=10)
    assert isinstance(course, UncheckedCourse)
    with pytest.raises(FaultyAggregatorError) as caught:
        course.units_after(UPDATE)
    assert caught.value.check == check
    assert course.units_after(2 * UPDATE) == pytest.approx(tuple(2 * unit for unit in UNITS))


@pytest.mark.parametrize("units", [(), UNITS[:1], (*UNITS, 1.0)], ids=["none", "too few", "too many"])
def test_units_of_other_groups_check_nothing_and_are_refused(units: tuple[float, ...]) -> None:
    """Were they compared as far as they go, a group without a unit could move anywhere."""
    with pytest.raises(TrainingError, match=f"are of {len(units)} groups of layers, and this model has 2") as caught:
        course_of(Origin(3), moved((400, 1e6)), None, TrainedFrom(2, MODEL, units), layers=LAYERS, limit=10)
    assert "another --out folder" in caught.value.hint


@pytest.mark.parametrize("place", [0, 400])
def test_norm_that_is_nan_is_not_within_the_limit(place: int) -> None:
    with pytest.raises(FaultyAggregatorError) as caught:
        course_of(Origin(3), moved((place, math.nan)), None, TrainedFrom(2, MODEL, UNITS), layers=LAYERS, limit=10)
    assert caught.value.check == "HEADER_STEP"


@pytest.mark.parametrize("place", [0, BLOCK, 3 * BLOCK - 1])
@pytest.mark.parametrize("value", [math.nan, math.inf, 2 * INITIAL_TOLERANCE])
def test_first_model_is_compared_in_every_place(federation: Federation, place: int, value: float) -> None:
    header, own = first_header(federation).message.body, np.zeros(3 * BLOCK, np.float32)
    require_initial(header, own, own, ())
    model = own.copy()
    model[place] = value
    with pytest.raises(FaultyAggregatorError) as caught:
        require_initial(header, model, own, ())
    assert caught.value.check == "HEADER_INITIAL_MODEL"


def test_units_are_the_largest_so_far_and_a_round_is_not_its_own_measure() -> None:
    before = TrainedFrom(1, MODEL, UNITS)
    course = course_of(Origin(2), MODEL, None, before, layers=LAYERS, limit=10)
    assert isinstance(course, CheckedCourse)
    assert course.units_after(UPDATE / 2) == pytest.approx(UNITS)
    with pytest.raises(FaultyAggregatorError):  # whatever the update over it will be
        course_of(Origin(2), moved((0, 21.0)), None, before, layers=LAYERS, limit=10)


# Runs.


def test_every_source_gives_one_receipt_for_each_result(federation: Federation) -> None:
    federation.open().go()
    for index in range(1, N + 1):
        given = [one.body for sender, _, one in federation.passed if sender == index and isinstance(one.body, Receipt)]
        assert [(one.round, one.number) for one in given] == [(1, 1), (2, 2), (3, 3)]
    assert not any(isinstance(one.body, MissedResult) for _, _, one in federation.passed)
    assert federation.statuses == ["finished"] * 3


def test_source_without_receipts_of_others_sits_one_round_out_and_is_not_lost(federation: Federation) -> None:
    def link(_sender: int, _to: int, message: AnySigned) -> AnySigned | None:
        return None if isinstance(message.body, Receipt) and message.body.round == 1 else message

    federation.link = link
    federation.reached.discard(ME)
    until(federation.open(), 2, Result, round_number=1)
    federation.restart(ME)
    federation.go()
    assert federation.watch.checks(ME) == ["HEADER_CHAIN"]
    assert [line["refused"] for line in federation.watch.lines] == [{}, {f"source-{ME}": "HEADER_CHAIN"}, {}]
    assert federation.statuses == ["finished"] * 3
    assert [record["round"] for record in federation.watch.records[ME]] == [3]


def test_result_that_nobody_got_before_the_aggregator_was_killed_is_taken_up(tmp_path: Path) -> None:
    federation = Federation(tmp_path, N).open().kill_aggregator_at(Result).restart_aggregator().go()

    assert federation.statuses == ["finished"] * 3
    for index in range(1, N + 1):
        assert federation.watch.checks(index) == []
        taken = known_of(federation, index).taken
        assert taken is not None
        assert (taken.round, taken.number) == (3, 3)
    assert {to for _, to, one in federation.passed if isinstance(one.body, MissedResult)} == set(range(1, N + 1))


def test_receipt_that_was_lost_is_given_again_when_the_result_is_shown_again(federation: Federation) -> None:
    lost: list[AnySigned] = []

    def link(sender: int, _: int, message: AnySigned) -> AnySigned | None:
        if isinstance(message.body, Receipt) and sender == ME and not lost:
            lost.append(message)
            return None
        return message

    federation.link = link
    federation.open().go()
    given = [one for sender, _, one in federation.passed if sender == ME and isinstance(one.body, Receipt)]
    assert given[0].signed_bytes == lost[0].signed_bytes
    assert federation.statuses == ["finished"] * 3


FALSE_RECEIPTS: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model_digest": digest(1)}, "RECEIPT"),
    "another result": ({"result_digest": digest(1)}, "RECEIPT"),
    "another run": ({"run_id": bytes(16)}, "RECEIPT"),
    "another number": ({"round": 3, "number": 3}, "RECEIPT"),
}


@pytest.mark.parametrize("lie", FALSE_RECEIPTS)
def test_aggregator_names_the_source_of_a_false_receipt_and_keeps_none(federation: Federation, lie: str) -> None:
    changes, check = FALSE_RECEIPTS[lie]

    def link(sender: int, _: int, message: AnySigned) -> AnySigned:
        if isinstance(message.body, Receipt) and sender == ME:
            envelope = message.envelope
            return signer(ME).sign(envelope.session_id, envelope.context, replace(message.body, **changes))
        return message

    federation.link = link
    until(federation.open(), 2, Header, round_number=2)
    assert f"source-{ME}" in federation.watch.text
    assert check in federation.watch.text
    assert ME not in {sender for sender, _, _ in federation.store.receipts()}
    assert {2, 3, 4} <= {sender for sender, _, _ in federation.store.receipts()}


def test_receipt_for_an_earlier_result_came_late_and_is_no_fault(federation: Federation) -> None:
    kept: list[AnySigned] = []

    def link(sender: int, _: int, message: AnySigned) -> AnySigned | None:
        if isinstance(message.body, Receipt) and sender == ME and message.body.round == 1:
            kept.append(message)
            return None
        return message

    federation.link = link
    until(federation.open(), 2, Header, round_number=3)
    before, notes = federation.store.receipts(), list(federation.watch.notes)
    assert federation.run.receive(Parcel(kept[0])) == []
    assert (federation.store.receipts(), federation.watch.notes) == (before, notes)
