"""Who is to blame when a run does not get on: named at the aggregator, and left by a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rounds_federation import TARGET, AnySigned, Build, signer

from securefda.errors import FaultyAggregatorError, QuorumLost
from securefda.protocol.messages import Header, Join, KeyList, Refusal, ShareBundle
from securefda.source.standing import HINT, MOST_BROKEN_IN_A_ROW

VICTIM = 2


def unsigned(kind: type, *, by: int, to: int | None = None) -> Callable[[int, int, AnySigned], AnySigned]:
    """A link on which messages of this kind carry no good signature."""

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        hit = sender == by and to in (None, recipient) and isinstance(message.body, kind)
        return replace(message, signature=bytes(64)) if hit else message

    return link


def test_a_run_whose_rounds_were_all_lost_has_failed_and_names_check_and_liar(build: Build) -> None:
    federation = build(rounds=1)
    federation.link = unsigned(ShareBundle, by=VICTIM)
    federation.open().go()
    assert federation.statuses == ["lost"]
    error = federation.run.error
    assert isinstance(error, QuorumLost)
    assert str(error) == (
        "sources train and send shares of their keys: 2 of at least 3 sources; "
        "missing: source-2 (fails check SIGNATURE at shares)"
    )
    assert error.hint
    goodbye = federation.sources[1].standing.goodbye
    assert goodbye is not None
    assert not goodbye.completed
    assert goodbye.reason == str(error)


def test_what_was_heard_of_a_source_is_forgotten_once_it_is_in_a_sum(build: Build) -> None:
    """It lies in the first round and is lost after the second: only the loss is the reason."""
    federation = build(4, rounds=4)
    lying = unsigned(ShareBundle, by=VICTIM)

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        return message if federation.statuses else lying(sender, recipient, message)

    federation.link = link
    federation.open()
    while federation.statuses != ["finished", "finished"]:
        federation.step()
    for index in (1, VICTIM):
        federation.reached.discard(index)
        federation.post(federation.run.left(index, "silent for 15 s"))
    federation.go()
    gone = "source-1 (silent for 15 s), source-2 (silent for 15 s)"
    assert str(federation.run.error) == f"gathering sources: 2 of at least 3 sources; missing: {gone}"


def test_what_the_transport_refused_is_the_reason_for_which_a_source_is_missing(build: Build) -> None:
    federation = build()
    federation.reached.discard(3)
    federation.open()
    federation.post(federation.run.misbehaved(3, "WIRE", "suite 2 is not known here"))
    federation.post(federation.run.left(3, "the stream broke"))
    federation.go()
    assert str(federation.run.error).endswith("missing: source-3 (fails check WIRE: suite 2 is not known here)")


def test_other_sources_do_not_hear_of_a_refusal(build: Build) -> None:
    federation = build(rounds=1)
    federation.link = unsigned(Header, by=TARGET, to=VICTIM)
    federation.open().go()
    assert Refusal("SIGNATURE") in [message.body for sender, _, message in federation.passed if sender == VICTIM]
    goodbye = federation.sources[1].standing.goodbye
    assert goodbye is not None
    assert "SIGNATURE" not in goodbye.reason


def test_another_version_of_a_source_is_worth_a_word(build: Build) -> None:
    def link(sender: int, _: int, message: AnySigned) -> AnySigned:
        if sender != 1 or not isinstance(body := message.body, Join):
            return message
        other = replace(body, build=replace(body.build, software_version="9.8.7"))
        return signer(1).sign(message.envelope.session_id, message.envelope.context, other)

    federation = build(rounds=1)
    federation.link = link
    federation.open().go()
    assert "source-1 runs securefda 9.8.7 (wire version 1), the aggregator securefda " in federation.watch.text
    assert federation.statuses == ["finished"]


def test_a_source_leaves_after_three_broken_sessions_in_a_row(build: Build) -> None:
    federation = build(4, rounds=MOST_BROKEN_IN_A_ROW + 1)
    federation.link = unsigned(KeyList, by=TARGET, to=VICTIM)
    federation.open()
    me = federation.sources[VICTIM]
    while me.standing.failure is None:
        federation.step()
    alarms = federation.watch.alarms[VICTIM]
    assert [alarm.check for alarm in alarms] == ["SIGNATURE"] * MOST_BROKEN_IN_A_ROW
    assert isinstance(me.standing.failure, FaultyAggregatorError)
    assert str(me.standing.failure) == "aggregator fails check SIGNATURE: KeyList (round 3, advertise)"
    assert (me.standing.failure.exit_code, me.standing.failure.hint) == (2, HINT)
