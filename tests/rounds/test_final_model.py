"""The end of a run: what the sources keep of the model is what the headers said, whatever the aggregator sends then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import TARGET, Build, Federation, is_header, signer

from securefda.errors import FaultyAggregatorError
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    Goodbye,
    Parcel,
    Receipt,
    Refusal,
    Result,
    SourcesKeep,
)

ME = 1
FINAL, NONE = {"sources_keep": SourcesKeep.FINAL}, {"sources_keep": SourcesKeep.NONE}


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return lambda n=3, keep=FINAL, **strategy: Federation(tmp_path, n, settings=keep, **strategy)


def models_on_disk(federation: Federation, index: int = ME) -> list[Path]:
    """Files of models that a source keeps beside its state."""
    return list(federation.folder.glob(f"source-{index}.sqlite.model-*"))


def check_of(federation: Federation, index: int = ME) -> str:
    """The last check that failed at a source."""
    (alarm,) = federation.watch.alarms[index]
    assert isinstance(alarm, FaultyAggregatorError)
    return alarm.check


def goodbye_to(federation: Federation, change: Callable[[Goodbye, Any], tuple[Goodbye, tuple[Any, ...]]]) -> None:
    """Play the run; what comes to me with the goodbye is another one."""
    arrive = federation.hand_over

    def hand_over(passed: Any) -> None:
        if passed.to == ME and isinstance(passed.message.body, Goodbye):
            body, vectors = change(passed.message.body, passed.vectors)
            passed = replace(passed, message=signer(TARGET).sign(NO_SESSION, NO_CONTEXT, body), vectors=vectors)
        arrive(passed)

    federation.hand_over = hand_over  # type: ignore[method-assign]
    federation.open().go()


def test_each_source_is_left_with_the_final_model(build: Build) -> None:
    federation = build().open().go()
    for index in federation.sources:
        model, run, round_number = federation.kept[index]
        assert (run, round_number) == (federation.run.run_id, 3)
        assert np.array_equal(model, federation.run.model)
        assert models_on_disk(federation, index) == []
        assert federation.sources[index].standing.kept_round == 3
    assert not any(federation.watch.alarms.values())


def test_each_source_keeps_nothing_where_the_headers_say_so(build: Build) -> None:
    federation = build(keep=NONE, rule="fedrep").open()
    while not is_header_of_round(federation, 3):
        federation.step()
    assert len(models_on_disk(federation)) == 1
    assert federation.stores[ME].personal(federation.run.run_id, 9) is not None
    federation.go()
    assert federation.kept == {}
    assert models_on_disk(federation) == []
    assert federation.stores[ME].personal(federation.run.run_id, 9) is None
    assert federation.sources[ME].standing.failure is None


def test_layers_of_its_own_stay_where_the_model_does(build: Build) -> None:
    federation = build(rule="fedrep").open().go()
    assert ME in federation.kept
    assert federation.stores[ME].personal(federation.run.run_id, 9) is not None


def is_header_of_round(federation: Federation, number: int) -> bool:
    return any(is_header(message) and message.body.round == number for *_, message in federation.passed)


def test_final_model_is_that_of_the_last_result_and_not_what_the_target_trained_alone_since(build: Build) -> None:
    federation = build(rule="finetune_offline", rounds=4, finetune_rounds=2).open().go()
    model, _, round_number = federation.kept[ME]
    last = [message.body for *_, message in federation.passed if isinstance(message.body, Result)][-1]
    assert round_number == 2
    assert sha256(model.tobytes()).digest() == last.model_digest
    assert not np.array_equal(model, federation.run.model)


def test_source_that_was_away_in_the_last_round_takes_the_model_by_the_receipts_of_others(build: Build) -> None:
    federation = build(4).open()
    gone: list[int] = []

    def link(sender: int, to: int, message: Any) -> Any:
        if is_header(message) and message.body.round == 3 and not gone:
            gone.append(ME)
            federation.kill(ME)
        if isinstance(message.body, Receipt) and message.body.round == 3 and ME not in federation.reached:
            federation.restart(ME)
        return message

    federation.link = link
    federation.go()
    assert [record["survivors"] for record in federation.store.records()][-1] == ["source-2", "source-3", "source-4"]
    assert federation.names(TARGET, ME)[-2:] == ["MissedResult", "Goodbye"]
    assert federation.kept[ME][2] == 3
    assert np.array_equal(federation.kept[ME][0], federation.run.model)


def test_source_whose_last_result_was_lost_takes_the_model_and_that_result(build: Build) -> None:
    federation = build()
    federation.link = lambda _, to, message: (
        None if to == ME and isinstance(message.body, Result) and len(federation.store.records()) == 3 else message
    )
    federation.open().go()
    assert federation.kept[ME][2] == 3
    known = federation.stores[ME].known(bytes.fromhex(federation.run.run_id))
    assert known.taken is not None
    assert known.taken.round == 3


def test_source_without_enough_receipts_says_so_and_accuses_nobody(build: Build) -> None:
    federation = build(4).open()
    gone: list[int] = []

    def link(sender: int, to: int, message: Any) -> Any:
        if is_header(message) and message.body.round == 3 and not gone:
            gone.append(ME)
            federation.kill(ME)
        if isinstance(message.body, Receipt) and message.body.round == 3:
            if ME not in federation.reached:
                federation.restart(ME)
            return None
        return message

    federation.link = link
    federation.go()
    assert ME not in federation.kept
    assert check_of(federation) == "FINAL_MODEL"
    failure = federation.sources[ME].standing.failure
    assert isinstance(failure, FaultyAggregatorError)
    assert not failure.blames
    assert "1 must have" in str(failure)


def test_source_that_had_no_part_in_a_result_is_left_with_nothing_and_misses_nothing(build: Build) -> None:
    federation = build(4)
    federation.reached.discard(4)
    federation.open()
    while not any(isinstance(message.body, Receipt) and message.body.round == 3 for *_, message in federation.passed):
        federation.step()
    federation.reached.add(4)
    federation.join(4)
    federation.go()
    assert set(federation.kept) == {1, 2, 3}
    assert federation.sources[4].standing.goodbye == Goodbye(True, 3, "")
    assert (federation.sources[4].standing.failure, federation.watch.alarms[4]) == (None, [])


LIES: dict[str, Callable[[Goodbye, Any], tuple[Goodbye, tuple[Any, ...]]]] = {
    "none comes": lambda body, _: (replace(body, result_digest=b"", model_digest=b""), ()),
    "no vector comes": lambda body, _: (body, ()),
    "another vector": lambda body, vectors: (body, (bytes(len(vectors[0])),)),
    "a longer vector": lambda body, vectors: (body, (bytes(vectors[0]) + bytes(4),)),
    "another model": lambda body, vectors: (
        replace(body, model_digest=sha256(bytes(len(vectors[0]))).digest()),
        (bytes(len(vectors[0])),),
    ),
    "of another result": lambda body, vectors: (replace(body, result_digest=bytes(32)), vectors),
}


@pytest.mark.parametrize("lie", LIES)
def test_any_other_model_is_refused_and_what_the_source_had_stays(build: Build, lie: str) -> None:
    federation = build()
    goodbye_to(federation, LIES[lie])
    assert ME not in federation.kept
    assert check_of(federation) == "FINAL_MODEL"
    failure = federation.sources[ME].standing.failure
    assert isinstance(failure, FaultyAggregatorError)
    assert failure.hint == "ask the target's site for the model file of the run"
    assert len(models_on_disk(federation)) == 1
    assert not federation.stores[ME].known(bytes.fromhex(federation.run.run_id)).ended
    assert {2, 3} <= set(federation.kept)


def test_model_that_no_header_announced_is_not_kept(build: Build) -> None:
    federation = build(keep=NONE)
    model = bytes(8)
    goodbye_to(
        federation,
        lambda body, _: (replace(body, result_digest=bytes(32), model_digest=sha256(model).digest()), (model,)),
    )
    assert federation.kept == {}
    assert check_of(federation) == "FINAL_MODEL"


def test_header_that_takes_the_promise_back_is_refused(build: Build) -> None:
    federation = build(rounds=2)

    def link(sender: int, to: int, message: Any) -> Any:
        if to == ME and is_header(message) and message.body.round == 2:
            body = replace(message.body, sources_keep=SourcesKeep.NONE)
            return signer(TARGET).sign(message.envelope.session_id, NO_CONTEXT, body)
        return message

    federation.link = link
    federation.open()
    while not is_header_of_round(federation, 2):
        federation.step()
    federation.deliver_all()
    refusals = [
        message.body for sender, _, message in federation.passed if sender == ME and message.type_name == "Refusal"
    ]
    assert refusals[0] == Refusal("HEADER_KEEP")


def test_no_header_is_accepted_after_the_end(build: Build) -> None:
    federation = build().open()
    headers = []
    federation.link = lambda sender, to, message: (
        headers.append(message) if to == ME and is_header(message) else None,
        message,
    )[1]
    federation.go()
    federation.sources[ME] = federation.source(ME)
    (answer,) = federation.sources[ME].handle(Parcel(headers[-1], (federation.run.model.tobytes(),)))
    assert answer.message.body == Refusal("HEADER_RUN")
    assert "this run is complete" in str(federation.watch.alarms[ME][-1])


def test_a_run_that_ended_early_can_be_resumed_so_nothing_is_deleted(build: Build) -> None:
    federation = build().open()
    while not is_header_of_round(federation, 2):
        federation.step()
    federation.deliver_all()
    for index in (2, 3):
        federation.kill(index)
    federation.go()
    goodbye = federation.sources[ME].standing.goodbye
    assert goodbye is not None
    assert not goodbye.completed
    assert federation.kept == {}
    assert len(models_on_disk(federation)) == 1


def test_killed_before_the_goodbye_it_sends_the_model_to_all_that_join(build: Build) -> None:
    federation = build().open()
    federation.link = lambda sender, to, message: None if isinstance(message.body, Goodbye) else message
    federation.go()
    federation.link = lambda sender, to, message: message
    federation.restart_aggregator()
    federation.deliver_all()
    assert set(federation.kept) == {1, 2, 3}
    assert {kept[2] for kept in federation.kept.values()} == {3}
