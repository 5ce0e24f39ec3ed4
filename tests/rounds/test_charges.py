"""An aggregator that would empty a source's privacy budget: rounds that come to nothing, numbers that fit no update."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rounds_federation import TARGET, Build, is_header, signer, until
from rounds_private import PrivateFederation

from securefda.aggregator.run import MOST_LOST_IN_A_ROW
from securefda.errors import PolicyRefusal
from securefda.protocol.messages import Advertise, Header, Parcel, Refusal, Update, Visibility
from securefda.site.policy import ReleaseLimits

ME = 1


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return lambda **options: PrivateFederation(tmp_path, **({"rule": "fedgp_auto", "rounds": 30} | options))


def first_header(federation: PrivateFederation) -> Parcel:
    return until(federation.open(), ME, Header)


def ask(federation: PrivateFederation, header: Parcel, **changes: Any) -> Any:
    """What the source answers to this header with other contents, signed by the target in a session of its own."""
    message = signer(TARGET).sign(os.urandom(32), b"", replace(header.message.body, **changes))
    assert is_header(message)
    source = federation.sources[ME]
    (answer,) = source.handle(Parcel(message, header.vectors))
    assert source.train() == []
    return answer.message.body


WAYS: dict[str, dict[str, Any]] = {
    "with noise": {},
    "without noise": {"private": (TARGET,)},
    "in clear": {"visibility": Visibility.INDIVIDUAL, "rule": "fedavg"},
}


@pytest.mark.parametrize("way", WAYS)
def test_aggregator_that_finishes_no_round_is_left_after_three_that_were_charged(build: Build, way: str) -> None:
    federation = build(**WAYS[way])
    header = first_header(federation)

    answers = [ask(federation, header, round=number) for number in (1, 2, 3, 4)]

    assert [type(answer) for answer in answers[:3]] == [Update if way == "in clear" else Advertise] * 3
    assert answers[3] == Refusal("release.max-unfinished")
    assert federation.charged(ME) == ([] if way == "without noise" else [(1, 1), (2, 1), (3, 1)])
    failure = federation.sources[ME].standing.failure
    assert isinstance(failure, PolicyRefusal)
    assert "--accept-run" in (failure.hint or "")


def test_an_honest_aggregator_gives_up_before_a_source_does() -> None:
    assert ReleaseLimits().max_unfinished >= MOST_LOST_IN_A_ROW


LIES: dict[str, Callable[[Any], Any]] = {
    "a mean square that is too small": lambda target: replace(target, mean_square=target.mean_square * 1e-6),
    "a mean square that is too large": lambda target: replace(target, mean_square=target.mean_square * 2),
    "a scatter that is not of these steps": lambda target: replace(target, scatter=target.scatter * 2),
    "other steps": lambda target: replace(target, steps=target.steps + 3),
    "a learning rate that nothing can be aligned with": lambda target: replace(target, learning_rate=1e-12),
}


@pytest.mark.parametrize("lie", LIES)
def test_target_numbers_that_fit_no_update_are_refused_before_anything_is_charged(build: Build, lie: str) -> None:
    federation = build(private=(ME,))  # with noise at the target its numbers would be others each time, and could fit
    header = first_header(federation)
    before = federation.ledger_of(ME).head()

    answer = ask(federation, header, target=LIES[lie](header.message.body.target))

    assert answer == Refusal("HEADER_TARGET")
    assert federation.ledger_of(ME).head() == before
    assert isinstance(ask(federation, header), Advertise)  # the position is free still
