"""A source against an aggregator that lies, repeats itself or says nothing: what it answers, what it never does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import TARGET, Federation, changed, reached_from, secrets_in, signer, site_id, until

from securefda.errors import ConfigError, FaultyAggregatorError, PolicyRefusal, TrainingDiverged, TrainingError
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    SESSION_ID_BYTES,
    Abort,
    Advertise,
    Consistency,
    Goodbye,
    Header,
    KeyList,
    MaskedInput,
    Parcel,
    Refusal,
    Result,
    ShareBundle,
    ShareDelivery,
    Step,
    Survivors,
    SurvivorSignature,
    Unmask,
    Visibility,
)
from securefda.rules import Contribution
from securefda.source.source_run import SourceRun

ME = 2
PHASES: dict[type, type] = {
    Header: Advertise,
    KeyList: ShareBundle,
    ShareDelivery: MaskedInput,
    Survivors: SurvivorSignature,
    Consistency: Unmask,
}
"""What the aggregator says, and what an honest source answers."""


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path).open()


@pytest.fixture
def me(federation: Federation) -> SourceRun:
    return federation.sources[ME]


def answer_of(answers: list[Parcel]) -> Any:
    """The only answer's body; it carries no vector."""
    (answer,) = answers
    assert answer.vectors == ()
    return answer.message.body


def unfinished_for_good(federation: Federation) -> int:
    """Rounds of the source that no later result makes up for."""
    query = "SELECT count(*) FROM unfinished WHERE for_good = 1"
    (count,) = federation.stores[ME]._runs._database.execute(query).fetchone()
    return int(count)


def trained(federation: Federation) -> list[Parcel]:
    """What training for the first header leads to, once the keys are sent."""
    source = federation.sources[ME]
    (keys,) = source.handle(until(federation.open(), ME, Header))
    assert isinstance(keys.message.body, Advertise)
    return source.train()


def assert_refused(federation: Federation, answers: list[Parcel], key: str) -> None:
    """The source said which key or check it was, trained nothing, and let nothing out."""
    assert answer_of(answers) == Refusal(key)
    assert not federation.released(ME)
    assert federation.sources[ME].current is None
    assert federation.sources[ME].standing.failure is None


def resealed(parcel: Parcel, *vectors: np.ndarray, **changes: Any) -> Parcel:
    """A header with other vectors, bound to them by their right digests."""
    data = tuple(np.asarray(vector, "<f4").tobytes() for vector in vectors)
    body = parcel.message.body
    fields: dict[str, Any] = {"model_digest": sha256(data[0]).digest()}
    if len(data) == 2:
        fields["target"] = replace(body.target, update_digest=sha256(data[1]).digest())
    return Parcel(changed(parcel.message, **(fields | changes)), data)


def vectors_of(parcel: Parcel) -> list[np.ndarray]:
    return [np.frombuffer(vector, "<f4").copy() for vector in parcel.vectors]


def with_values(header: Parcel, which: int, place: int, value: float) -> list[np.ndarray]:
    """The header's vectors, one of them with another value."""
    vectors = vectors_of(header)
    vectors[which][place] = value
    return vectors


def with_mean_square_zero(header: Parcel) -> Parcel:
    target = replace(header.message.body.target, mean_square=0.0)
    return Parcel(changed(header.message, target=target), header.vectors)


LIES: dict[str, tuple[str, Callable[[Parcel], Parcel]]] = {
    "another model": (
        "HEADER_MODEL",
        lambda h: Parcel(h.message, tuple(vector.tobytes() for vector in with_values(h, 0, 0, 9.0))),
    ),
    "a model with NaN": ("HEADER_MODEL", lambda h: resealed(h, *with_values(h, 0, 3, np.nan))),
    "a target's update with NaN": ("HEADER_TARGET", lambda h: resealed(h, *with_values(h, 1, 0, np.nan))),
    "an infinite target's update": ("HEADER_TARGET", lambda h: resealed(h, *with_values(h, 1, 0, np.inf))),
    "no target's update": ("HEADER_TARGET", lambda h: Parcel(h.message, h.vectors[:1])),
}


@pytest.mark.parametrize(("check", "lie"), LIES.values(), ids=LIES)
def test_a_source_refuses_a_false_header_before_it_trains(
    federation: Federation, me: SourceRun, check: str, lie: Callable[[Parcel], Parcel]
) -> None:
    assert_refused(federation, me.handle(lie(until(federation, ME, Header))), check)
    assert federation.watch.checks(ME) == [check]


def test_a_source_refuses_statistics_that_contradict_the_target_s_update(federation: Federation, me: SourceRun) -> None:
    me.handle(with_mean_square_zero(until(federation, ME, Header)))
    assert_refused(federation, me.train(), "HEADER_TARGET")
    assert federation.watch.checks(ME) == ["HEADER_TARGET"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"rule": "fedmagic"}, "allowed-rules"),
        ({"rule": "target_only"}, "allowed-rules"),
        ({"projection": "sideways"}, "HEADER_RULE"),
        ({"estimator": "guess"}, "HEADER_RULE"),
    ],
)
def test_a_source_refuses_a_rule_that_it_does_not_know(
    federation: Federation, me: SourceRun, changes: dict[str, str], key: str
) -> None:
    header = until(federation, ME, Header)
    lie = changed(header.message, rule=replace(header.message.body.rule, **changes))
    assert_refused(federation, me.handle(Parcel(lie, header.vectors)), key)
    assert isinstance(answer_of(me.handle(header)), Advertise)


def test_a_replayed_header_is_refused_and_the_session_goes_on(federation: Federation, me: SourceRun) -> None:
    header = until(federation, ME, Header)
    me.handle(header)
    assert answer_of(me.handle(header)) == Refusal("HEADER_REPLAY")
    assert me.current is not None


def test_a_second_header_of_the_same_attempt_is_refused(federation: Federation, me: SourceRun) -> None:
    header = until(federation, ME, Header)
    me.handle(header)
    twin = signer(TARGET).sign(b"t" * SESSION_ID_BYTES, NO_CONTEXT, header.message.body)
    assert answer_of(me.handle(Parcel(twin, header.vectors))) == Refusal("HEADER_ORDER")


def test_a_header_must_continue_the_last_result(federation: Federation, me: SourceRun) -> None:
    header = until(federation, ME, Header, round_number=2)
    lie = changed(header.message, previous_result_digest=sha256(b"another history").digest())
    assert answer_of(me.handle(Parcel(lie, header.vectors))) == Refusal("HEADER_CHAIN")
    model, update = vectors_of(header)
    assert answer_of(me.handle(resealed(header, model + 1, update))) == Refusal("HEADER_CHAIN")
    assert isinstance(answer_of(me.handle(header)), Advertise)


def test_a_policy_refusal_names_the_key_and_nothing_else(tmp_path: Path) -> None:
    """The aggregator heard that this site allows more than it does."""
    federation = Federation(tmp_path, visibility=Visibility.INDIVIDUAL).open()
    federation.permits = {ME: Visibility.SUM}
    federation.sources[ME] = federation.source(ME)
    header = until(federation, ME, Header)
    answers = federation.sources[ME].handle(header)
    assert_refused(federation, answers, "max-visibility")
    refusal = federation.sources[ME].standing.refusal
    assert isinstance(refusal, PolicyRefusal)
    assert (refusal.key, refusal.asked, refusal.allowed) == ("max-visibility", "individual", "sum")


@pytest.mark.parametrize("expected", list(PHASES))
@pytest.mark.parametrize("sent", [KeyList, ShareDelivery, Survivors, Consistency, Result])
def test_a_message_out_of_order_ends_the_session_for_good(
    federation: Federation, me: SourceRun, expected: type, sent: type
) -> None:
    """Each lie is a message that the aggregator really signs in a later or an earlier phase."""
    if expected is sent:
        return
    honest = until(federation, ME, expected)
    if expected is Header:
        me.handle(honest)
        if sent is KeyList:
            return
    phase = me._round.phase if me._round else None
    me_session = honest.message.envelope.session_id
    lie = signer(TARGET).sign(me_session, NO_CONTEXT, _any_body(sent))
    answer = answer_of(me.handle(Parcel(lie)))
    assert isinstance(answer, Abort)
    assert (answer.check, answer.accused) == ("ORDER", TARGET)
    assert all(len(secret) == 0 for secret in secrets_in(phase))
    before = federation.watch.checks(ME)
    assert before == ["ORDER"]
    if expected is not Header:
        assert me.handle(honest) == []
    assert federation.watch.checks(ME) == before
    assert federation.released(ME) == (expected in (Survivors, Consistency))


def _any_body(kind: type) -> Any:
    bodies: dict[type, Callable[[], Any]] = {
        KeyList: lambda: KeyList(()),
        ShareDelivery: lambda: ShareDelivery(()),
        Survivors: lambda: Survivors((), ()),
        Consistency: lambda: Consistency((), ()),
        Result: lambda: Result(b"", 0, bytes(32)),
    }
    return bodies[kind]()


@pytest.mark.parametrize("expected", [KeyList, ShareDelivery, Survivors, Consistency])
def test_a_message_that_fails_a_check_ends_the_session_and_erases_its_secrets(
    federation: Federation, me: SourceRun, expected: type
) -> None:
    honest = until(federation, ME, expected)
    assert me._round is not None
    secrets = secrets_in(me._round)
    assert secrets
    assert any(len(secret) for secret in secrets)
    forged = replace(honest.message, signature=bytes(64))
    answer = answer_of(me.handle(Parcel(forged)))
    assert (type(answer), answer.check) == (Abort, "SIGNATURE")
    assert [len(secret) for secret in secrets] == [0] * len(secrets)
    assert me.handle(honest) == []


def kept_by(start: object) -> set[type]:
    return {type(one) for one in reached_from(start)} & {Contribution, np.ndarray}


@pytest.mark.parametrize("expected", [KeyList, ShareDelivery])
def test_a_failed_check_that_is_kept_keeps_nothing_of_the_update(
    federation: Federation, me: SourceRun, expected: type
) -> None:
    """What is handed to code that fails stands in the frames of its traceback, for as long as the error does."""
    honest = until(federation, ME, expected)
    assert kept_by(me._round)
    answer = answer_of(me.handle(Parcel(replace(honest.message, signature=bytes(64)))))
    assert answer.check == "SIGNATURE"
    assert me.standing.fault is not None
    assert not kept_by(me.standing.fault)


@pytest.mark.parametrize("expected", [KeyList, ShareDelivery, Survivors, Consistency])
def test_silence_ends_the_session_with_a_word_and_erases_its_secrets(
    federation: Federation, me: SourceRun, expected: type
) -> None:
    honest = until(federation, ME, expected)
    assert me._round is not None
    secrets = secrets_in(me._round)
    answer = answer_of(me.expire())
    assert (type(answer), answer.check) == (Abort, "DEADLINE")
    assert [len(secret) for secret in secrets] == [0] * len(secrets)
    assert me.handle(honest) == []
    assert me.expire() == []
    assert [error.check for error in federation.watch.alarms[ME]] == ["DEADLINE"]


def test_how_long_a_source_waits_follows_the_header(federation: Federation, me: SourceRun) -> None:
    assert me.current is None
    assert me.place() == "between rounds"
    me.handle(until(federation, ME, Header))
    assert me.current.deadline_s == 600 + 2 * 30
    assert me.place() == "round 1, advertise"


def test_a_message_outside_a_session_is_answered_with_nothing(federation: Federation, me: SourceRun) -> None:
    assert me.handle(Parcel(signer(TARGET).sign(b"q" * 32, NO_CONTEXT, KeyList(())))) == []
    assert federation.watch.checks(ME) == ["ORDER"]


@pytest.mark.parametrize("body", [Goodbye(True, 1, ""), Abort(Step.HEADER, "HEADER_ARCHITECTURE", ME)])
def test_only_the_target_can_end_the_run_of_a_source(federation: Federation, me: SourceRun, body: Any) -> None:
    assert me.handle(Parcel(signer(3).sign(NO_SESSION, NO_CONTEXT, body))) == []
    assert (me.standing.goodbye, me.standing.failure) == (None, None)
    assert federation.watch.checks(ME) == ["SENDER"]
    me.handle(Parcel(signer(TARGET).sign(NO_SESSION, NO_CONTEXT, body)))
    assert (me.standing.goodbye is not None) or isinstance(me.standing.failure, ConfigError)


def test_an_abort_of_another_session_leaves_this_one_alone(federation: Federation, me: SourceRun) -> None:
    key_list = until(federation, ME, KeyList)
    me.handle(Parcel(signer(TARGET).sign(b"q" * 32, NO_CONTEXT, Abort(Step.SHARES, "QUORUM", None))))
    assert isinstance(answer_of(me.handle(key_list)), ShareBundle)


def test_an_abort_says_who_is_accused_of_what(federation: Federation, me: SourceRun) -> None:
    key_list = until(federation, ME, KeyList)
    session_id = key_list.message.envelope.session_id
    me.handle(Parcel(signer(TARGET).sign(session_id, NO_CONTEXT, Abort(Step.SHARES, "SHARE_RECIPIENTS", 3))))
    (alarm,) = federation.watch.alarms[ME]
    assert str(alarm) == f"the aggregator aborted at shares: SHARE_RECIPIENTS, accused: {site_id(3)}"
    assert me.handle(key_list) == []


def test_training_that_diverges_ends_the_source_with_a_word(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.sources[ME] = federation.source(ME, optimizer="sgd", weight_decay=1e38)
    assert answer_of(trained(federation)) == Refusal("DIVERGED")
    failure = federation.sources[ME].standing.failure
    assert isinstance(failure, TrainingDiverged)
    assert "training diverges" in str(failure)
    assert "training.learning-rate" in failure.hint
    assert unfinished_for_good(federation) == 1  # the refusal tells something about the rows


def test_a_finite_loss_that_grows_with_an_update_beyond_its_clip_is_training_that_diverges(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rule="source_only", settings={"clip": 1.0})
    federation.sources[ME] = federation.source(ME, optimizer="sgd", learning_rate=100.0)
    assert answer_of(trained(federation)) == Refusal("DIVERGED")
    failure = federation.sources[ME].standing.failure
    assert isinstance(failure, TrainingDiverged)
    assert "times in the round, and the update is beyond its clip" in str(failure)
    assert failure.hint == "lower training.learning-rate"


def test_more_rows_than_the_run_counts_up_to_end_the_source_with_a_word(tmp_path: Path) -> None:
    federation = Federation(tmp_path, settings={"max_samples": 10})
    assert answer_of(trained(federation)) == Refusal("TRAINING")
    failure = federation.sources[ME].standing.failure
    assert isinstance(failure, ConfigError)
    assert failure.key == "session.max-samples"
    assert unfinished_for_good(federation) == 0


def test_a_result_of_a_round_in_clear_must_be_of_its_session(tmp_path: Path) -> None:
    federation = Federation(tmp_path, visibility=Visibility.INDIVIDUAL)
    result = until(federation.open(), ME, Result)
    me = federation.sources[ME]
    lie = signer(TARGET).sign(b"q" * 32, result.message.envelope.context, result.message.body)
    assert answer_of(me.handle(Parcel(lie))).check == "SESSION"
    assert me.handle(result) == []
    assert federation.watch.records[ME] == []
    assert [type(error) for error in federation.watch.alarms[ME]] == [FaultyAggregatorError]


@pytest.mark.parametrize("level", [Visibility.INDIVIDUAL, Visibility.COHORT, Visibility.SUM])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_is_not_finite_ends_the_source_before_anything_of_it_leaves(
    tmp_path: Path, level: Visibility, value: float
) -> None:
    """Also of a trainer that does not look at what it made."""
    federation = Federation(tmp_path, 4, visibility=level, rule="source_only", rounds=1)
    source = federation.sources[ME]
    honest = source._site.trainer.train

    def train(*args: Any, **options: Any) -> Any:
        result = honest(*args, **options)
        result.update[0] = value
        return result

    source._site.trainer.train = train  # type: ignore[method-assign]
    federation.open().go()
    assert isinstance(source.standing.failure, TrainingError)
    keys = [] if level is Visibility.INDIVIDUAL else ["Advertise"]  # which depend on nothing of the update
    assert federation.names(sender=ME) == ["Join", *keys, "Refusal"]
