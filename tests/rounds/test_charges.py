"""An aggregator that would empty a source's privacy budget: rounds that come to nothing, numbers that fit no update."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rounds_federation import TARGET, is_header, signer, until
from rounds_private import PrivateFederation

from securefda.aggregator.run import MOST_LOST_IN_A_ROW
from securefda.errors import PolicyRefusal
from securefda.protocol.messages import Advertise, Header, Parcel, Refusal, Update, Visibility
from securefda.site.policy import ReleaseLimits

ME = 1


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., PrivateFederation]]:
    made: list[PrivateFederation] = []

    def one(**options: Any) -> PrivateFederation:
        made.append(PrivateFederation(tmp_path, 3, **({"rule": "fedgp_auto", "rounds": 30} | options)))
        return made[-1]

    yield one
    for federation in made:
        federation.close()


def first_header(federation: PrivateFederation) -> Parcel:
    return until(federation.open(), ME, Header)


def ask(federation: PrivateFederation, header: Parcel, **changes: Any) -> Any:
    """What the source answers to this header with other contents, signed by the target in a session of its own."""
    message = signer(TARGET).sign(os.urandom(32), b"", replace(header.message.body, **changes))
    assert is_header(message)
    (answer,) = federation.sources[ME].handle(Parcel(message, header.vectors))
    return answer.message.body


def test_aggregator_that_finishes_no_round_is_left_after_three_that_were_charged(
    build: Callable[..., PrivateFederation],
) -> None:
    federation = build()
    header = first_header(federation)

    answers = [ask(federation, header, round=number) for number in (1, 2, 3, 4)]

    assert [type(answer) for answer in answers[:3]] == [Advertise] * 3
    assert answers[3] == Refusal("release.max-unfinished")
    assert federation.charged(ME) == [(1, 1), (2, 1), (3, 1)]
    failure = federation.sources[ME].standing.failure
    assert isinstance(failure, PolicyRefusal)
    assert "--accept-run" in (failure.hint or "")


def test_a_round_that_is_aborted_after_the_release_counts_too(build: Callable[..., PrivateFederation]) -> None:
    federation = build()
    header = first_header(federation)
    for number in (1, 2, 3):
        ask(federation, header, round=number)
        federation.stores[ME].burn_fuse(header.message.body.run_id, number)

    assert ask(federation, header, round=4) == Refusal("release.max-unfinished")
    assert len(federation.charged(ME)) == 3


def test_updates_in_clear_count_where_no_result_follows(build: Callable[..., PrivateFederation]) -> None:
    federation = build(visibility=Visibility.INDIVIDUAL, rule="fedavg")
    header = first_header(federation)

    answers = [ask(federation, header, round=number) for number in (1, 2, 3, 4)]

    assert [type(answer) for answer in answers[:3]] == [Update] * 3
    assert answers[3] == Refusal("release.max-unfinished")


def test_an_honest_aggregator_gives_up_before_a_source_does() -> None:
    assert ReleaseLimits().max_unfinished >= MOST_LOST_IN_A_ROW


def test_count_of_rounds_that_came_to_nothing_outlives_the_process_of_the_source(
    build: Callable[..., PrivateFederation],
) -> None:
    federation = build()
    header = first_header(federation)
    for number in (1, 2, 3):
        assert isinstance(ask(federation, header, round=number), Advertise)
        federation.sources[ME] = federation.source(ME)

    assert ask(federation, header, round=4) == Refusal("release.max-unfinished")
    assert len(federation.charged(ME)) == 3


def test_another_attempt_at_the_third_round_is_not_refused(build: Callable[..., PrivateFederation]) -> None:
    federation = build()
    header = first_header(federation)
    for number in (1, 2, 3):
        ask(federation, header, round=number)

    assert isinstance(ask(federation, header, round=3, attempt=2), Advertise)
    assert federation.charged(ME) == [(1, 1), (2, 1), (3, 1)]


def test_rounds_that_another_folders_runs_were_charged_for_do_not_count(
    build: Callable[..., PrivateFederation],
) -> None:
    federation = build()
    trainer = federation.trainer_of(ME)
    for number in (1, 2, 3, 4):
        trainer.train(trainer.initial_model(), number, 1.0, run_id="ab" * 16, attempt=1)
        trainer.train(trainer.initial_model(), number, 1.0, run_id="by-hand", attempt=1)

    assert isinstance(ask(federation, first_header(federation)), Advertise)


def test_rounds_of_a_source_without_noise_count_likewise(build: Callable[..., PrivateFederation]) -> None:
    federation = build(private=(TARGET,))
    header = first_header(federation)

    answers = [ask(federation, header, round=number) for number in (1, 2, 3, 4)]

    assert [type(answer) for answer in answers[:3]] == [Advertise] * 3
    assert answers[3] == Refusal("release.max-unfinished")


LIES: dict[str, Callable[[Any], Any]] = {
    "a mean square that is too small": lambda target: replace(target, mean_square=target.mean_square * 1e-6),
    "a mean square that is too large": lambda target: replace(target, mean_square=target.mean_square * 2),
    "a scatter that is not of these steps": lambda target: replace(target, scatter=target.scatter * 2),
    "other steps": lambda target: replace(target, steps=target.steps + 3),
    "a learning rate that nothing can be aligned with": lambda target: replace(target, learning_rate=1e-12),
}


@pytest.mark.parametrize("lie", LIES)
def test_target_numbers_that_fit_no_update_are_refused_before_anything_is_charged(
    build: Callable[..., PrivateFederation], lie: str
) -> None:
    federation = build(private=(ME,))  # with noise at the target its numbers would be others each time, and could fit
    header = first_header(federation)
    before = federation.ledger_of(ME).head()

    answer = ask(federation, header, target=LIES[lie](header.message.body.target))

    assert answer == Refusal("HEADER_TARGET")
    assert federation.ledger_of(ME).head() == before
    assert isinstance(ask(federation, header), Advertise)  # the position is free still
