"""T13: no message counts in another place than its own, nor twice in its own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from securefda.protocol.messages import Advertise, Checkpoint, Join, KeyList, Parcel, Result, Visibility
from securefda.rules import Strategy
from securefda.site.policy import default_policy
from securefda.transport.in_memory import Passed
from threat_model.adversaries.replay import Replay, SecondCount
from threat_model.probes import Outcome, ProbedAggregator, ProbedSource
from threat_model.sites import CLIP, MAX_SAMPLES, N_PARAMS, TARGET, roster_of
from threat_model.stage import MakesStage, Network, Stage
from threat_model.switches import Switch, outside_off, switched_off
from threat_model.unbound import MONOTONE_ROUNDS, ONCE_PER_PHASE, OWN_PLACE, SIGNATURE_CONTEXT
from threat_model.watched import WatchedAggregator

VICTIM, NEIGHBOUR, ALL = 4, 3, [1, 2, 3, 4, 5]
TWO_ROUNDS = {"strategy": Strategy(rule="source_only", rounds=2)}
WITNESSING = {"Checkpoint", "Cosigned"}
IN_SESSIONS = {"Header", "KeyList", "ShareDelivery", "Survivors", "Consistency", "Result", "Abort"}
TO_SOURCES = IN_SESSIONS | WITNESSING | {"Goodbye", "Schedule"}
TO_AGGREGATOR = {"Advertise", "ShareBundle", "MaskedInput", "SurvivorSignature", "Unmask"}
ALL_TYPES = TO_SOURCES | TO_AGGREGATOR | {"Join", "Update", "Refusal", "Receipt", "MissedResult"}
SAME_LOG = {("Checkpoint", "verbatim", "Checkpoint"), ("Schedule", "verbatim", "Checkpoint")}


def played(staged: MakesStage, listens: Network = lambda passed: [passed], **options: Any) -> Stage:
    """Two rounds of five sources, of which the first takes two attempts, and in the second attempt one refuses."""
    first_session: list[bytes] = []

    def network(passed: Passed) -> list[Passed]:
        session_id = passed.message.envelope.session_id
        if isinstance(passed.message.body, KeyList):
            first_session.append(session_id)
            if session_id == first_session[0] and passed.to in (1, 5):
                passed = replace(passed, message=replace(passed.message, signature=bytes(64)))
        return list(listens(passed))

    level = options.get("visibility", Visibility.SUM)
    once = default_policy(level.label, 2, 0, 1, clip=CLIP, max_samples=MAX_SAMPLES, kappa=0.0)
    return staged(5, network=network, settings=TWO_ROUNDS, policies={NEIGHBOUR: once}, **options).play()


def probed(staged: MakesStage, **options: Any) -> tuple[list[Outcome], list[Outcome], Stage]:
    """Return the outcome of every message in every place of the victim, and in every phase of the aggregator."""
    other_run, other_level = played(staged), played(staged, visibility=Visibility.INDIVIDUAL)
    replay = Replay(VICTIM, NEIGHBOUR, [*other_run.passed, *other_level.passed])
    sources = {VICTIM: partial(ProbedSource, replay=replay)}
    stage = played(staged, replay, sources=sources, aggregator=partial(ProbedAggregator, replay=replay), **options)
    return stage.sources[VICTIM].outcomes, stage.aggregator.outcomes, stage


def what_became(outcomes: list[Outcome], what: str) -> set[tuple[str, str, str]]:
    """(due, mode, type) of all messages of which this became."""
    return {(one.due, one.replayed.mode, one.replayed.passed.message.type_name) for one in outcomes if one.what == what}


@pytest.mark.threat("T13")
def test_every_message_is_refused_or_ignored_in_every_other_place(staged: MakesStage) -> None:
    at_source, at_aggregator, stage = probed(staged)
    tried = {(one.due, one.replayed.passed.message.type_name) for one in at_source}
    assert tried >= set(product(TO_SOURCES - {"Abort", "Schedule"}, ALL_TYPES)) - {
        ("Goodbye", "Goodbye")
    }  # all goodbyes are alike
    tried = {(one.due, one.replayed.passed.message.type_name) for one in at_aggregator}
    assert tried >= set(product(TO_AGGREGATOR, ALL_TYPES))
    assert_no_more_than_a_cosignature_is_given_twice(at_aggregator)
    assert {one.what for one in at_source} == {"refused", "ignored", "repeated", "ended", "accepted"}
    assert_nothing_but_the_same_log_was_cosigned(at_source, stage)
    # A goodbye belongs to no session: it ends the source's part in whatever run it is in, and reveals nothing.
    assert {kind for _, _, kind in what_became(at_source, "ended")} == {"Goodbye"}
    assert all(one.check for one in [*at_source, *at_aggregator] if one.what == "refused")
    assert_nothing_else_changed(stage)


def assert_nothing_but_the_same_log_was_cosigned(at_source: list[Outcome], stage: Stage) -> None:
    """A checkpoint belongs to no session and no receiver: what the neighbour is shown says the same to the victim.

    Nor does a result that is shown again: who took it gives the same receipt for it once more.
    """
    assert {kind for _, _, kind in what_became(at_source, "repeated")} <= {"Checkpoint", "MissedResult"}
    assert what_became(at_source, "accepted") == SAME_LOG
    shown = {one.message.body.note for one in stage.said(TARGET, Checkpoint, to=VICTIM)}
    assert {one.replayed.passed.message.body.note for one in at_source if one.what == "accepted"} <= shown


def assert_no_more_than_a_cosignature_is_given_twice(at_aggregator: list[Outcome]) -> None:
    assert {one.what for one in at_aggregator} == {"refused", "ignored", "repeated"}
    assert {(mode, kind) for _, mode, kind in what_became(at_aggregator, "repeated")} == {("verbatim", "Checkpoint")}


def assert_nothing_else_changed(stage: Stage) -> None:
    """The run went on as if nothing had been: both rounds give what the honest sources sent."""
    assert [stage.accepted(index) for index in ALL] == [2, 2, 1, 2, 2]
    assert stage.alarms(VICTIM) == ["QUORUM"]  # of the first attempt, which two others gave up
    expected = stage.mean_of([1, 2, 4, 5], 1) + stage.mean_of(ALL, 2)
    np.testing.assert_allclose(stage.aggregator.model, expected, atol=2e-7)


@pytest.mark.threat("T13")
def test_every_message_is_refused_or_ignored_where_updates_travel_in_clear(staged: MakesStage) -> None:
    at_source, at_aggregator, stage = probed(staged, visibility=Visibility.INDIVIDUAL)
    assert {one.due for one in at_source} == {"Header", "Result", "Goodbye", "Schedule", *WITNESSING}
    assert {one.due for one in at_aggregator} == {"Update"}
    assert_no_more_than_a_cosignature_is_given_twice(at_aggregator)
    assert {kind for _, _, kind in what_became(at_source, "ended")} == {"Goodbye"}
    assert_nothing_but_the_same_log_was_cosigned(at_source, stage)
    assert [stage.accepted(index) for index in ALL] == [2] * 5


@pytest.mark.threat("T13")
@pytest.mark.parametrize("name", ["SESSION", "CONTEXT"])
def test_either_name_of_its_place_keeps_a_message_out_of_every_other_session(staged: MakesStage, name: str) -> None:
    """They are one mitigation: the context is made of the session id among other things, and either is enough."""
    with switched_off(outside_off(name), roster=roster_of(5)):
        at_source, at_aggregator, stage = probed(staged)
    assert_nothing_but_the_same_log_was_cosigned(at_source, stage)
    assert_no_more_than_a_cosignature_is_given_twice(at_aggregator)
    assert_nothing_else_changed(stage)


@pytest.mark.threat("T13")
@pytest.mark.control
def test_result_of_another_session_is_accepted_where_a_message_may_name_any_place(staged: MakesStage) -> None:
    with switched_off(OWN_PLACE, roster=roster_of(5)):
        at_source, _, _ = probed(staged)
    assert what_became(at_source, "accepted") - SAME_LOG == {("Result", "verbatim", "Result")}


@pytest.mark.threat("T13")
@pytest.mark.control
def test_messages_count_in_other_sessions_where_signatures_do_not_cover_session_and_context(staged: MakesStage) -> None:
    with switched_off(SIGNATURE_CONTEXT, roster=roster_of(5)):
        at_source, at_aggregator, _ = probed(staged)
    assert ("Result", "relabelled", "Result") in what_became(at_source, "accepted")
    assert {kind for _, _, kind in what_became(at_source, "ended")} == {"Goodbye", "Abort"}
    assert {kind for _, _, kind in what_became(at_aggregator, "ended")} == {"Refusal"}


@pytest.mark.threat("T13")
@pytest.mark.control
def test_header_is_accepted_again_in_every_place_of_its_session_where_rounds_need_not_rise(staged: MakesStage) -> None:
    """Until the round has its result: then the header continues an older one (T40), and names an older log (T27)."""
    with switched_off(MONOTONE_ROUNDS, roster=roster_of(5)):
        at_source, _, _ = probed(staged)
    places = {due for due, mode, kind in what_became(at_source, "accepted") if (mode, kind) == ("verbatim", "Header")}
    assert places == IN_SESSIONS
    assert what_became(at_source, "accepted") - SAME_LOG == {(due, "verbatim", "Header") for due in places}


@pytest.mark.threat("T13")
def test_recorded_session_gets_no_further_with_a_new_folder_than_fresh_keys(staged: MakesStage) -> None:
    """A folder that has no run yet takes the header of one; what others said in it was not said to these keys."""
    recorded = staged(5).play()
    source = staged(5).sources[VICTIM]
    sent = [source.join(recorded.aggregator.run_id)]
    for passed in recorded.passed:
        if passed.to == VICTIM:
            sent += source.handle(Parcel(passed.message, passed.vectors))
    said = [parcel.message for parcel in sent if parcel.message.type_name not in WITNESSING]
    assert [message.type_name for message in said] == ["Join", "Advertise", "Abort"]
    assert said[-1].body.check == "KEY_OWN"


@pytest.mark.threat("T13")
def test_join_of_another_run_costs_its_sender_the_attempt_and_nothing_else(staged: MakesStage) -> None:
    """A join belongs to no session either. The transport takes it from its sender's own connection alone."""
    (join,) = staged(5).play().said(NEIGHBOUR, Join)

    def network(passed: Passed) -> list[Passed]:
        is_first_input = passed.sender == 1 and isinstance(passed.message.body, Advertise)
        return [join, passed] if is_first_input else [passed]

    stage = staged(5, aggregator=WatchedAggregator, network=network).play()
    assert [stage.accepted(index) for index in ALL] == [1, 1, 0, 1, 1]
    assert stage.aggregator.operator.alarms == []
    expected = stage.mean_of([1, 2, 4, 5], 1)
    np.testing.assert_allclose(stage.aggregator.model, expected, atol=1e-7)


def unit_vectors(index: int, round_number: int, received: Any) -> Any:
    """Each input of each round has a coordinate of its own, so that one which counts twice shows as 2."""
    vector = np.zeros(N_PARAMS, np.float32)
    vector[place(index, round_number)] = CLIP
    return vector


def place(index: int, round_number: int) -> int:
    return 10 * round_number + index


def counted_twice(staged: MakesStage, network: SecondCount, level: Visibility, *, rounds: int = 2) -> Stage:
    settings = {"strategy": Strategy(rule="source_only", rounds=rounds)}
    return staged(
        5, aggregator=WatchedAggregator, network=network, visibility=level, settings=settings, updates=unit_vectors
    ).play()


def times_counted(stage: Stage, round_number: int) -> float:
    """Return how often the neighbour's input counts in the model, in units of its share of that round's sum."""
    share = stage.weight(NEIGHBOUR) / sum(stage.weight(index) for index in ALL)
    return float(stage.aggregator.model[place(NEIGHBOUR, round_number)] / share)


@pytest.mark.threat("T13")
@pytest.mark.parametrize("level", [Visibility.SUM, Visibility.INDIVIDUAL])
def test_input_sent_at_once_again_names_its_sender_and_counts_once(staged: MakesStage, level: Visibility) -> None:
    network = SecondCount(NEIGHBOUR, later=False, mode="verbatim")
    stage = counted_twice(staged, network, level, rounds=1)
    assert network.inserted == 1
    (alarm,) = stage.aggregator.operator.alarms
    assert alarm.startswith(f"alarm: source source-{NEIGHBOUR} fails check DUPLICATE")
    assert times_counted(stage, 1) == pytest.approx(1, abs=1e-6)


@pytest.mark.threat("T13")
@pytest.mark.parametrize("level", [Visibility.SUM, Visibility.INDIVIDUAL])
def test_input_of_the_round_before_is_ignored(staged: MakesStage, level: Visibility) -> None:
    network = SecondCount(NEIGHBOUR, later=True, mode="verbatim")
    stage = counted_twice(staged, network, level)
    assert network.inserted == 1
    assert stage.aggregator.operator.alarms == []
    assert [times_counted(stage, number) for number in (1, 2)] == pytest.approx([1, 1], abs=1e-6)


@pytest.mark.threat("T13")
@pytest.mark.parametrize("level", [Visibility.SUM, Visibility.INDIVIDUAL])
def test_input_of_the_round_before_in_the_name_of_this_one_is_refused(staged: MakesStage, level: Visibility) -> None:
    network = SecondCount(NEIGHBOUR, later=True, mode="relabelled")
    stage = counted_twice(staged, network, level)
    (alarm,) = stage.aggregator.operator.alarms
    assert alarm.startswith(f"alarm: source source-{NEIGHBOUR} fails check SIGNATURE")
    assert [times_counted(stage, number) for number in (1, 2)] == pytest.approx([1, 0], abs=1e-6)


@pytest.mark.threat("T13")
@pytest.mark.control
def test_input_sent_at_once_again_counts_twice_where_a_phase_takes_any_number(staged: MakesStage) -> None:
    network = SecondCount(NEIGHBOUR, later=False, mode="verbatim")
    with switched_off(ONCE_PER_PHASE, roster=roster_of(5)):
        stage = counted_twice(staged, network, Visibility.INDIVIDUAL, rounds=1)
    assert stage.aggregator.operator.alarms == []
    others = sum(stage.weight(index) for index in ALL if index != NEIGHBOUR)
    model = stage.aggregator.model
    assert model[place(NEIGHBOUR, 1)] / model[place(1, 1)] == pytest.approx(
        2 * stage.weight(NEIGHBOUR) / stage.weight(1), abs=1e-6
    )
    assert model[place(1, 1)] == pytest.approx(stage.weight(1) / (others + 2 * stage.weight(NEIGHBOUR)), abs=1e-6)


@pytest.mark.threat("T13")
@pytest.mark.control
def test_input_of_the_round_before_counts_as_2_where_signatures_do_not_cover_the_session(staged: MakesStage) -> None:
    network = SecondCount(NEIGHBOUR, later=True, mode="relabelled")
    with switched_off(SIGNATURE_CONTEXT, roster=roster_of(5)):
        stage = counted_twice(staged, network, Visibility.INDIVIDUAL)
    assert [times_counted(stage, number) for number in (1, 2)] == pytest.approx([2, 0], abs=1e-6)


@pytest.mark.threat("T13")
@pytest.mark.parametrize(
    ("later", "mode", "switch"), [(True, "relabelled", SIGNATURE_CONTEXT), (False, "verbatim", ONCE_PER_PHASE)]
)
def test_masked_input_that_was_accepted_twice_gives_noise_and_no_sum(
    staged: MakesStage, later: bool, mode: Any, switch: Switch
) -> None:
    """Behind the signature there is the mask: it is of one session, and comes off once."""
    network = SecondCount(NEIGHBOUR, later=later, mode=mode)
    with switched_off(switch, roster=roster_of(5)):
        stage = counted_twice(staged, network, Visibility.SUM, rounds=1 + later)
    alarms = stage.aggregator.operator.alarms
    assert "fails check RANGE" in alarms[-1]
    assert len({one.message.body for one in stage.said(TARGET, Result)}) == int(later)
    assert not np.any(stage.aggregator.model[place(0, 1 + later) : place(10, 1 + later)])
