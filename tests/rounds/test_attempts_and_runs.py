"""The aggregator's rounds when sources refuse, abort, vanish or lie, and what it writes down of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from rounds_federation import (
    TARGET,
    AnySigned,
    Build,
    is_header,
    reached_from,
    signer,
    until,
    without_schedules,
)
from rounds_liars import KEPT, SAMPLES, Liar

from securefda.aggregator.phases import Closing
from securefda.aggregator.run import MOST_LOST_IN_A_ROW
from securefda.audit.reading import find_logs, open_log
from securefda.errors import ConfigError, QuorumLost, SecureFdaError
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    Abort,
    Advertise,
    Checkpoint,
    Cosigned,
    Header,
    Join,
    KeyList,
    MaskedInput,
    Parcel,
    Result,
    Unmask,
    Update,
    Visibility,
)
from securefda.site.policy import Agreement, default_policy

VICTIM = 2
WENT_WRONG = ("alarm", "aborted")


def test_a_policy_refusal_is_written_down_and_the_others_go_on(build: Build) -> None:
    federation = build(4, rounds=2)
    federation.sources[VICTIM] = federation.source(VICTIM, policy=default_policy("sum", min_others=4))
    federation.link = without_schedules
    federation.open().go()
    assert federation.statuses == ["finished", "finished"]
    for record in federation.store.records():
        assert record["refused"] == {"source-2": "min-others"}
        assert record["survivors"] == ["source-1", "source-3", "source-4"]
    assert "source-2 refused: min-others" in federation.watch.text


def test_a_second_attempt_leaves_out_who_refused_the_first(build: Build) -> None:
    federation = build(5, rounds=1)
    for index in (1, 2):
        federation.sources[index] = federation.source(index, policy=default_policy("sum", min_others=5))
    federation.link = without_schedules
    federation.open().go()
    (record,) = federation.store.records()
    assert (record["status"], record["attempts"]) == ("finished", 2)
    assert record["survivors"] == ["source-3", "source-4", "source-5"]
    assert record["refused"] == {"source-1": "min-others", "source-2": "min-others"}


def test_refusals_that_leave_too_few_end_the_run_and_say_who_refused_what(build: Build) -> None:
    federation = build(3, rounds=9)
    federation.sources[VICTIM] = federation.source(VICTIM, policy=default_policy("sum", min_others=3))
    federation.link = without_schedules
    federation.open().go()
    assert isinstance(federation.run.error, QuorumLost)
    assert str(federation.run.error) == "collecting keys: 2 of at least 3 sources; missing: source-2"
    assert federation.run.error.hint == "source-2 refused min-others"
    assert federation.statuses == ["lost"] * MOST_LOST_IN_A_ROW
    assert [record["attempts"] for record in federation.store.records()] == [1] * MOST_LOST_IN_A_ROW
    for source in federation.sources.values():
        assert source.standing.goodbye is not None
        assert not source.standing.goodbye.completed


def test_an_abort_of_a_source_is_shown_with_its_check(build: Build) -> None:
    federation = build(4, rounds=1)

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        if recipient == VICTIM and isinstance(message.body, KeyList):
            return replace(message, signature=bytes(64))
        return message

    federation.link = link
    federation.open().go()
    assert federation.statuses == ["finished"]
    assert federation.store.records()[0]["dropped"] == ["source-2"]
    assert "alarm: source source-2 aborted at advertise: check SIGNATURE failed" in federation.watch.text


def test_an_early_message_expels_its_sender(build: Build) -> None:
    federation = build(4, rounds=1)
    header = until(federation.open(), VICTIM, Header)
    session_id = header.message.envelope.session_id
    federation.submit(VICTIM, Parcel(signer(VICTIM).sign(session_id, header.message.digest(), Unmask(()))))
    federation.go()
    assert federation.statuses == ["finished"]
    assert "alarm: source source-2 fails check ORDER" in federation.watch.text


@pytest.mark.parametrize(
    ("statistics", "alarm"),
    [
        ((0, 0), "a source lied about its contribution: a sum has no samples"),
        ((0, 1), "a source lied about its contribution: the sum of layer"),
        ((2**28, 1), "a source lied about its contribution: the sum of layer"),
        ((0, 2**32 - 2**29), "fails check RANGE"),
    ],
)
def test_a_lie_in_the_statistics_loses_the_round_and_not_the_run(
    build: Build, statistics: tuple[int, int], alarm: str
) -> None:
    """All three lie, so that no honest sum comes out; one clear line, and the model stays as it was."""
    federation = build(3, rounds=2)

    def lie(encoded: Any, header: Header) -> None:
        encoded[[KEPT, SAMPLES]] = statistics

    federation.sources = {index: Liar(source, lie) for index, source in federation.sources.items()}
    federation.open()
    before = federation.run.model.copy()
    until(federation, VICTIM, Header, round_number=2)
    assert federation.statuses == ["lost"]
    assert np.array_equal(federation.run.model, before)
    assert alarm in federation.watch.text
    kept = {type(one) for one in reached_from(federation.run._progress.losses)}
    assert not kept & {np.ndarray}, "the error holds on to the round's vectors"
    check = "RANGE" if "RANGE" in alarm else "SUM"
    aborts = {to: message.body for _, to, message in federation.passed if isinstance(message.body, Abort)}
    assert {to: (body.check, body.accused) for to, body in aborts.items()} == dict.fromkeys((1, 2, 3), (check, None))
    logs = find_logs(federation.folder / "audit" / "target")
    events = [record.entry for log in logs for record in open_log(log).records() if record.entry.type in WENT_WRONG]
    said = [(event.type, event.facts["check"]) for event in events]
    assert said[-1] == ("aborted", check)
    assert check == "RANGE" or said[-2] == ("alarm", check)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SecureFdaError("/home/clinic/state.sqlite: 17 rows, epsilon 3.5 of 4"), "SecureFdaError"),
        (ConfigError("/home/clinic/state.sqlite", "17 rows"), "ConfigError"),
        (ConfigError("state.sqlite", "17 rows"), "ConfigError"),
        (ConfigError("transport.max-message-bytes", "17 rows"), "transport.max-message-bytes"),
    ],
)
def test_what_the_target_s_own_error_says_stays_at_the_target(build: Build, error: SecureFdaError, said: str) -> None:
    federation = build(3, rounds=1)
    until(federation.open(), VICTIM, Header)
    federation.post(federation.run.fail(error))
    federation.go()
    goodbye = federation.sources[VICTIM].standing.goodbye
    assert goodbye is not None
    assert (goodbye.completed, goodbye.reason) == (False, f"the target cannot go on ({said})")
    assert federation.run.error is error


@pytest.mark.parametrize("level", [Visibility.SUM, Visibility.INDIVIDUAL])
def test_a_source_that_is_back_before_the_deadline_is_in_the_round_that_needs_it(
    build: Build, level: Visibility
) -> None:
    sources = 3 if level is Visibility.SUM else 1
    federation = build(sources, rounds=1, visibility=level)
    first = until(federation.open(), TARGET, MaskedInput if level is Visibility.SUM else Update)
    federation.post(federation.run.left(1, "the stream broke", may_return=True))
    assert "source-1" in federation.run.waiting_for()
    federation.post(federation.run.returned(1))
    federation.arrives_next(1, TARGET, first)
    federation.go()
    (line,) = federation.store.records()
    assert (line["status"], line["attempts"], line["dropped"]) == ("finished", 1, [])


@pytest.mark.parametrize("new_process", [False, True])
def test_a_source_that_is_not_back_by_the_deadline_or_as_a_new_process_costs_the_round(
    build: Build, new_process: bool
) -> None:
    federation = build(3, rounds=1)
    until(federation.open(), TARGET, MaskedInput)
    federation.post(federation.run.left(1, "the stream broke", may_return=True))
    assert federation.statuses == []
    if new_process:
        federation.post(federation.run.replaced(1, "a new process of it has connected"))
    else:
        while federation.under_way:
            federation.deliver()
        assert federation.run.waiting_for() == ("source-1",)
        federation.expire()
    assert federation.statuses == ["lost"]
    reason = "a new process of it has connected" if new_process else "no answer in time"
    assert federation.store.records()[0]["dropped"] == ["source-1"]
    assert f"missing: source-1 ({reason})" in federation.watch.text


def test_a_round_that_has_enough_other_sources_does_not_wait_for_one_that_may_return(build: Build) -> None:
    federation = build(4, rounds=1)
    until(federation.open(), TARGET, MaskedInput)
    federation.post(federation.run.left(1, "the stream broke", may_return=True))
    while not federation.statuses:
        federation.deliver()  # no deadline passes
    (line,) = federation.store.records()
    assert (line["status"], line["dropped"]) == ("finished", ["source-1"])


@pytest.mark.parametrize("rule", ["source_only", "fedgp_auto"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_later_attempt_asks_for_the_same_though_fewer_sources_are_there(
    build: Build, rule: str, restart: bool
) -> None:
    """One that allows only the sum moves all to it. Without it the others could be cohorts, and would refuse."""
    federation = build(5, rounds=1, visibility=Visibility.COHORT, permits={1: Visibility.SUM}, rule=rule)
    until(federation.open(), TARGET, Advertise)
    assert set(federation.round_in_progress.levels.values()) == {Visibility.SUM}  # type: ignore[union-attr]
    federation.reached -= {1, 2}
    if restart:
        federation.restart_aggregator()
    else:
        federation.post([send for index in (1, 2) for send in federation.run.left(index)])
    federation.go()
    (line,) = federation.store.records()
    assert (line["status"], line["attempts"]) == ("finished", 2)
    assert line["levels"] == dict.fromkeys(("source-3", "source-4", "source-5"), "sum")
    assert all(source.standing.fault is None for source in federation.sources.values())


def test_a_round_whose_second_attempt_would_ask_for_something_else_is_lost_and_nobody_is_accused(build: Build) -> None:
    federation = build(4, rounds=2)
    until(federation.open(), TARGET, Advertise)
    current = federation.round_in_progress
    assert current is not None
    assert current.request is not None
    current.request = replace(current.request, terms=b"x" * 32)  # as if the target had trained to something else
    federation.sources[VICTIM].forget()
    federation.restart(VICTIM)
    federation.go()
    assert federation.statuses == ["lost", "finished"]
    assert federation.store.records()[0]["attempts"] == 1, "the second one never began"
    assert "cannot be tried again" in federation.watch.text
    assert all(source.standing.fault is None for source in federation.sources.values())


def test_a_later_attempt_leaves_those_at_cohort_there_where_enough_others_are_at_sum(build: Build) -> None:
    permits = dict.fromkeys((1, 2, 3, 4), Visibility.SUM)
    federation = build(8, rounds=1, visibility=Visibility.COHORT, permits=permits)
    lost: set[int] = set()

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
        if isinstance(message.body, Advertise) and len(lost) < 5 and sender not in lost:
            lost.add(sender)
            return None
        return message

    federation.link = link
    federation.open().go()
    (line,) = federation.store.records()
    assert (line["status"], line["attempts"]) == ("finished", 2)
    at_sum = [f"source-{index}" for index in permits]
    assert [site for site, level in line["levels"].items() if level == "sum"] == at_sum
    assert line["target_update_to"] == at_sum
    assert all(source.standing.fault is None for source in federation.sources.values())


def test_policies_that_admit_no_plan_are_named_to_the_sources(build: Build) -> None:
    federation = build(2, visibility=Visibility.INDIVIDUAL, permits={1: Visibility.SUM})
    federation.open().go()
    goodbye = federation.sources[2].standing.goodbye
    assert goodbye is not None
    assert goodbye.reason == str(federation.run.error)
    assert "max-visibility" in goodbye.reason


def test_a_replaced_source_hears_the_last_word(build: Build) -> None:
    federation = build(3, rounds=1)
    until(federation.open(), VICTIM, Result)
    until(federation, VICTIM, Checkpoint)
    assert isinstance(federation.run.phase, Closing)
    assert federation.run.replaced(VICTIM, "it is new") == []
    federation.deliver_all()
    assert not federation.run.done
    federation.restart(VICTIM)
    federation.deliver_all()
    assert federation.run.done
    assert federation.sources[VICTIM].standing.goodbye is not None


@pytest.mark.parametrize("kind", [Checkpoint, Cosigned])
def test_what_is_wrong_with_a_log_leaves_a_session_as_it_is(build: Build, kind: type) -> None:
    federation = build(3, rounds=1)
    until(federation.open(), VICTIM, KeyList)
    source = federation.sources[VICTIM]
    body = Checkpoint(b"no note", 0, (), 0) if kind is Checkpoint else Cosigned(1, "no signature")
    before = source.place()
    assert source.handle(Parcel(signer(1).sign(NO_SESSION, NO_CONTEXT, body))) == []
    assert source.standing.fault is not None
    assert (source.standing.fault.check, source.place()) == ("SENDER", before)
    assert source.handle(Parcel(signer(1).sign(NO_SESSION, NO_CONTEXT, body))) == []
    (abort,) = source.handle(Parcel(signer(1).sign(NO_SESSION, NO_CONTEXT, body)))
    assert isinstance(abort.message.body, Abort), "the third is the last that it puts up with"
    assert source.standing.failure is not None
    assert source.place() == "between rounds"


def test_updates_in_clear_are_checked_too(build: Build) -> None:
    federation = build(4, rounds=1, visibility=Visibility.INDIVIDUAL)
    update = until(federation.open(), TARGET, Update)
    liar = update.message.sender
    vector = np.full(federation.run.model.size, np.nan, "<f4").tobytes()
    envelope = update.message.envelope
    body = replace(envelope.body, digest=sha256(vector).digest())
    federation.arrives_next(liar, TARGET, Parcel(_signed(liar, envelope, body), (vector,)))
    federation.go()
    assert federation.statuses == ["finished"]
    assert federation.store.records()[0]["dropped"] == [f"source-{liar}"]
    assert f"alarm: source source-{liar} fails check INPUT_FINITE" in federation.watch.text


def _signed(index: int, envelope: Any, body: Any) -> AnySigned:
    return signer(index).sign(envelope.session_id, envelope.context, body)


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"samples": 101}, "INPUT_SAMPLES"),
        ({"length_bytes": 56}, "INPUT_LENGTH"),
        ({"digest": bytes(32)}, "INPUT_DIGEST"),
        ({"alignment": 0.5}, "INPUT_VALUE"),
    ],
)
def test_an_update_in_clear_must_be_the_one_that_was_signed(build: Build, changes: dict[str, Any], check: str) -> None:
    federation = build(2, rounds=1, visibility=Visibility.INDIVIDUAL)
    update = until(federation.open(), TARGET, Update)
    liar, envelope = update.message.sender, update.message.envelope
    lie = Parcel(_signed(liar, envelope, replace(envelope.body, **changes)), update.vectors)
    federation.arrives_next(liar, TARGET, lie)
    federation.go()
    assert f"fails check {check}" in federation.watch.text
    assert federation.store.records()[0]["dropped"] == [f"source-{liar}"]


def test_an_update_in_clear_of_a_source_that_takes_no_part_is_refused(build: Build) -> None:
    federation = build(3, rounds=1, visibility=Visibility.INDIVIDUAL)
    federation.reached.discard(3)
    update = until(federation.open(), TARGET, Update)
    stranger = Parcel(_signed(3, update.message.envelope, update.message.body), update.vectors)
    (refused,) = federation.run.receive(stranger)
    assert (refused.to, refused.parcel.message.body.check) == (3, "SENDER")
    federation.arrives_next(update.message.sender, TARGET, update)
    federation.go()
    assert federation.store.records()[0]["survivors"] == ["source-1", "source-2"]


def test_an_update_in_clear_needs_its_alignment_where_only_estimates_are_aligned(build: Build) -> None:
    how = {"rule": "fedda_auto", "align": False, "rounds": 1}
    federation = build(2, visibility=Visibility.INDIVIDUAL, **how)
    update = until(federation.open(), TARGET, Update)
    liar, envelope = update.message.sender, update.message.envelope
    assert envelope.body.alignment > 0
    lie = Parcel(_signed(liar, envelope, replace(envelope.body, alignment=None)), update.vectors)
    federation.arrives_next(liar, TARGET, lie)
    federation.go()
    assert "fails check INPUT_VALUE" in federation.watch.text
    assert federation.store.records()[0]["dropped"] == [f"source-{liar}"]


def test_one_source_in_clear_is_enough_and_none_is_quorum_lost(build: Build) -> None:
    federation = build(1, rounds=1, visibility=Visibility.INDIVIDUAL)
    federation.open().go()
    assert federation.statuses == ["finished"]
    alone = build(1, rounds=1, visibility=Visibility.INDIVIDUAL)
    alone.reached.clear()
    alone.open().go()
    assert isinstance(alone.run.error, QuorumLost)


def test_two_sources_of_three_are_quorum_lost_with_the_name_of_the_third(build: Build) -> None:
    federation = build(3)
    federation.reached.discard(3)
    federation.open().go()
    assert isinstance(federation.run.error, QuorumLost)
    assert str(federation.run.error) == "gathering sources: 2 of at least 3 sources; missing: source-3"
    assert federation.run.error.exit_code == 12
    assert federation.now == 60.0
    goodbye = federation.sources[1].standing.goodbye
    assert goodbye is not None
    assert goodbye.reason == "gathering sources: 2 of at least 3 sources; missing: source-3"


def test_a_source_with_another_architecture_is_turned_away_and_the_others_go_on(build: Build) -> None:
    federation = build(4, rounds=1)
    federation.sources[VICTIM] = federation.source(VICTIM, hidden=3)
    federation.open().go()
    assert isinstance(federation.sources[VICTIM].standing.failure, ConfigError)
    assert federation.store.records()[0]["survivors"] == ["source-1", "source-3", "source-4"]
    assert "source-2: its model has other layers" in federation.watch.text
    assert federation.names(to=VICTIM) == ["Abort"]


def test_a_source_whose_frozen_layers_have_other_values_is_turned_away(build: Build) -> None:
    """It would train another model, and nothing in its part would show it."""
    federation = build(4, rounds=1)
    for index, source in federation.sources.items():
        source._site.trainer.frozen_digest = bytes([index == VICTIM]) * 32
    federation.run._site.trainer.frozen_digest = bytes(32)
    federation.open().go()
    failure = federation.sources[VICTIM].standing.failure
    assert isinstance(failure, ConfigError)
    assert "frozen layers" in failure.hint
    assert federation.store.records()[0]["survivors"] == ["source-1", "source-3", "source-4"]
    assert "source-2: its model has other layers, or other frozen values" in federation.watch.text


def test_a_join_that_its_sender_did_not_sign_is_refused(build: Build) -> None:
    federation = build(3)
    join = federation.sources[1].join(federation.run.run_id).message
    forged = signer(3).sign(NO_SESSION, NO_CONTEXT, join.body)
    forged = replace(forged, envelope=replace(forged.envelope, sender=1))
    assert federation.run.receive(Parcel(forged)) == []
    assert "source-1: join refused (SIGNATURE)" in federation.watch.text
    own = signer(TARGET).sign(NO_SESSION, NO_CONTEXT, Join(bytes(32), Visibility.SUM, metrics=True))
    assert federation.run.receive(Parcel(own)) == []
    assert "target: join refused (not a source)" in federation.watch.text


def test_a_result_leaves_before_the_next_round_begins(build: Build) -> None:
    """The target may train for hours; no source must wait that long for a result that exists."""
    federation = build(3, rounds=2).open()
    until(federation, 1, Result)
    assert len(federation.watch.lines) == 1
    assert federation.run.deadline == federation.now
    assert not any(is_header(message) and message.body.round == 2 for *_, message in federation.passed)
    federation.go()
    assert federation.statuses == ["finished"] * 2


def test_more_of_the_targets_update_than_there_are_samples_loses_the_round(build: Build) -> None:
    federation = build(3, rounds=1)

    def lie(encoded: Any, header: Header) -> None:
        encoded[KEPT] = encoded[SAMPLES] + encoded[SAMPLES] // 2

    federation.sources = {index: Liar(source, lie) for index, source in federation.sources.items()}
    federation.open().go()
    assert federation.statuses == ["lost"]
    assert "a source lied about its contribution: the target's update is kept for" in federation.watch.text


def test_a_source_refuses_each_round_after_the_last_day_of_its_policy(build: Build) -> None:
    federation = build(4, rounds=2)
    today = datetime.fromtimestamp(federation.unix_s, UTC).date().isoformat()
    policy = federation.policy(VICTIM, agreement=Agreement(expires=today))
    federation.sources[VICTIM] = federation.source(VICTIM, policy=policy)

    def a_day_after_the_first_round(_: int, to: int, message: AnySigned) -> AnySigned:
        if isinstance(message.body, Header) and message.body.round == 2 and to == VICTIM:
            federation.unix_s += 24 * 3600
        return message

    federation.link = a_day_after_the_first_round
    federation.open().go()
    first, second = federation.store.records()
    assert (first["refused"], second["refused"]) == ({}, {"source-2": "agreement.expires"})
    assert second["survivors"] == ["source-1", "source-3", "source-4"]
