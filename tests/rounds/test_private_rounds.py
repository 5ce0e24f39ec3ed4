"""Rounds by DP-SGD: what is charged and when, what happens where a budget ends, and what is taken up again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import TARGET, AnySigned, identity, is_header, site_id
from rounds_private import WIDE, PrivateFederation, enough_for

from securefda.errors import BudgetExhausted, ExitCode, TrainingError
from securefda.privacy.accountants import epsilon
from securefda.protocol.messages import Advertise, Header, MaskedInput, Refusal, Visibility
from securefda.site.privacy_account import signer_of
from securefda.site.private_trainer import PrivateTrainer
from securefda.training import LocalResult

POOR = 2
EVERYONE = (TARGET, 1, 2, 3)


class Remembering(PrivateTrainer):
    """Keeps a copy of every update that it handed out, by round and attempt."""

    gave: list[tuple[str, int, int, Any]] = []  # noqa: RUF012 - each test empties it

    def train(self, received: Any, round_number: int, factor: float, **options: Any) -> LocalResult:
        result = super().train(received, round_number, factor, **options)
        self.gave.append((self.site, round_number, options["attempt"], result.update.copy()))
        return result


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., PrivateFederation]]:
    made: list[PrivateFederation] = []

    def one(n: int = 3, **options: Any) -> PrivateFederation:
        made.append(PrivateFederation(tmp_path, n, **({"rule": "fedgp_auto", "rounds": 2} | options)))
        return made[-1]

    yield one
    for federation in made:
        federation.close()


def event_of(federation: PrivateFederation, index: int) -> Any:
    return federation.trainer_of(index).event("run", 1, 1)  # type: ignore[attr-defined]


def losing(federation: PrivateFederation, kind: type, *, attempts: int = 1) -> Callable[..., AnySigned | None]:
    """A link that loses what source 1 says of this kind in the first attempts of round 1."""

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
        current = federation.round_in_progress
        lost = current is not None and current.number == 1 and current.attempt <= attempts
        return None if lost and sender == 1 and isinstance(message.body, kind) else message

    return link


def test_every_round_is_charged_once_to_every_site_and_each_keeps_its_own_epsilon(
    build: Callable[..., PrivateFederation],
) -> None:
    federation = build().open().go()

    assert federation.watch.statuses == ["finished"] * 2
    for index in EVERYONE:
        assert federation.charged(index) == [(1, 1), (2, 1)]
        events = [event_of(federation, index)] * 2
        assert federation.ledger_of(index).spent(WIDE.delta) == epsilon(events, WIDE.delta)
        kinds = [row.kind for row in federation.ledger_of(index).rows()]
        assert kinds == ["opened", *["reserved", "committed"] * 2]
    for index in (1, 2, 3):
        epsilons = [record["epsilon"] for record in federation.watch.records[index]]
        assert epsilons == [epsilon([event_of(federation, index)] * rounds, WIDE.delta) for rounds in (1, 2)]
    assert {event.run_id for event in federation.ledger_of(1).events()} == {federation.run.run_id}


def test_second_attempt_at_a_round_gives_the_same_update_and_costs_nothing(
    build: Callable[..., PrivateFederation],
) -> None:
    Remembering.gave.clear()
    federation = build(rounds=1, trainer=Remembering)
    federation.link = losing(federation, Advertise)

    federation.open().go()

    assert [line["attempts"] for line in federation.watch.lines] == [2]
    assert [federation.charged(index) for index in EVERYONE] == [[(1, 1)]] * 4
    for index in (1, 2, 3):
        first, second = [gave for gave in Remembering.gave if gave[0] == site_id(index)]
        assert (first[2], second[2]) == (1, 2)
        assert first[3].tobytes() == second[3].tobytes()
    assert [gave[2] for gave in Remembering.gave if gave[0] == "target"] == [1]


def test_what_is_asked_for_of_another_model_round_run_or_factor_is_trained_and_charged_anew(
    build: Callable[..., PrivateFederation],
) -> None:
    federation = build()
    trainer = federation.trainer_of(1)
    model = trainer.initial_model()
    asked: list[dict[str, Any]] = [
        {"received": model, "round_number": 1, "factor": 1.0, "run_id": "run", "attempt": 1},
        {"received": model, "round_number": 1, "factor": 1.0, "run_id": "run", "attempt": 2},
        {"received": model + np.float32(0.5), "round_number": 1, "factor": 1.0, "run_id": "run", "attempt": 3},
        {"received": model, "round_number": 1, "factor": 1.0, "run_id": "run", "attempt": 4},
        {"received": model, "round_number": 2, "factor": 1.0, "run_id": "run", "attempt": 1},
        {"received": model, "round_number": 2, "factor": 0.5, "run_id": "run", "attempt": 2},
        {"received": model, "round_number": 2, "factor": 0.5, "run_id": "another", "attempt": 1},
    ]

    updates = [trainer.train(**options).update.tobytes() for options in asked]

    assert updates[0] == updates[1]
    assert len(set(updates)) == len(asked) - 1
    assert federation.charged(1) == [(1, 1), (1, 3), (1, 4), (2, 1), (2, 2), (2, 1)]


def test_process_that_was_started_anew_trains_anew_and_is_charged_for_it(
    build: Callable[..., PrivateFederation],
) -> None:
    federation = build()
    model = federation.trainer_of(1).initial_model()

    updates = [federation.trainer_of(1).train(model, 1, 1.0, run_id="run", attempt=1).update for _ in range(2)]

    assert not np.array_equal(*updates)
    assert federation.charged(1) == [(1, 1), (1, 1)]


class Ending(PrivateFederation):
    """Ends the process of a source that cannot go on, once its last word has arrived, as the driver does."""

    def deliver(self) -> None:
        sender = self.under_way[0].sender
        super().deliver()
        on_its_way = any(one.sender == sender for one in self.under_way)
        if sender != TARGET and sender in self.reached and self.sources[sender].standing.failure and not on_its_way:
            self.kill(sender)


@pytest.mark.parametrize("level", [Visibility.INDIVIDUAL, Visibility.SUM], ids=["individual", "sum"])
def test_source_whose_budget_ends_refuses_by_its_key_and_the_others_go_on(tmp_path: Path, level: Visibility) -> None:
    federation = Ending(tmp_path, 4, rule="fedgp_auto", rounds=3, visibility=level)
    federation.budgets[POOR] = enough_for(1, event_of(federation, POOR))
    federation.sources[POOR] = federation.source(POOR)

    federation.open().go()
    federation.close()

    assert federation.watch.statuses == ["finished"] * 3
    others = [site_id(index) for index in (1, 3, 4)]
    assert [line["survivors"] for line in federation.watch.lines] == [
        [site_id(i) for i in (1, 2, 3, 4)],
        others,
        others,
    ]
    assert federation.watch.lines[1]["refused"] == {site_id(POOR): "dp.target-epsilon"}
    said = [message.body for sender, _, message in federation.passed if sender == POOR]
    assert said[-1] == Refusal("dp.target-epsilon")
    assert federation.charged(POOR) == [(1, 1)]
    assert federation.charged(1)[-1][0] == 3
    failure = federation.sources[POOR].standing.failure
    assert isinstance(failure, BudgetExhausted)
    assert failure.exit_code == ExitCode.BUDGET == 11


def test_refusal_for_want_of_budget_says_neither_epsilon_nor_limit(tmp_path: Path) -> None:
    federation = Ending(tmp_path, 4, rule="fedgp_auto", rounds=2)
    federation.budgets[POOR] = enough_for(1, event_of(federation, POOR))
    federation.sources[POOR] = federation.source(POOR)
    federation.open().go()
    federation.close()
    assert f"{federation.budgets[POOR].epsilon:.3f}" not in federation.watch.text
    assert "source-2 refused: dp.target-epsilon" in federation.watch.text


def test_run_fails_where_the_targets_budget_ends_and_nobody_is_asked_for_more(
    build: Callable[..., PrivateFederation],
) -> None:
    federation = build(rounds=3)
    federation.budgets[TARGET] = enough_for(1, event_of(federation, TARGET))
    federation.start_aggregator()

    with pytest.raises(BudgetExhausted) as exhausted:
        federation.open().go()
    federation.post(federation.run.fail(exhausted.value))  # what the driver does
    federation.deliver_all()

    assert federation.run.done
    assert federation.run.error is exhausted.value
    assert federation.run.error.exit_code == 11
    assert federation.statuses == ["finished"]
    assert [federation.charged(index) for index in EVERYONE] == [[(1, 1)]] * 4
    goodbyes = [federation.sources[index].standing.goodbye for index in (1, 2, 3)]
    assert all(goodbye is not None and not goodbye.completed for goodbye in goodbyes)


def test_round_whose_training_fails_stays_charged_and_was_not_finished(
    build: Callable[..., PrivateFederation],
) -> None:
    federation = build()
    trainer = federation.trainer_of(1)

    def fail(_: object) -> None:
        raise TrainingError("stopped after the first step")

    with pytest.raises(TrainingError, match="stopped"):
        trainer.train(trainer.initial_model(), 1, 1.0, run_id="run", attempt=1, on_step=fail)

    assert federation.charged(1) == [(1, 1)]
    assert [row.kind for row in federation.ledger_of(1).rows()] == ["opened", "reserved"]
    trainer.train(trainer.initial_model(), 1, 1.0, run_id="run", attempt=2)
    assert federation.charged(1) == [(1, 1), (1, 2)]


def test_weights_that_overflow_for_every_row_leave_a_round_of_noise(build: Callable[..., PrivateFederation]) -> None:
    """A refusal would reveal which rows the site has to the author of the weights."""
    trainer = build().trainer_of(1)
    endless = np.full(trainer.n_params, 3e37, np.float32)

    result = trainer.train(endless, 1, 1.0, run_id="run", attempt=1)

    assert np.isfinite(result.update).all()


def test_round_that_is_refused_for_want_of_budget_is_not_charged_and_nothing_trains(
    build: Callable[..., PrivateFederation],
) -> None:
    federation = build()
    federation.budgets[1] = replace(enough_for(1, event_of(federation, 1)), epsilon=1e-6)
    asked: list[int] = []

    def counting(length: int) -> bytes:
        asked.append(length)
        return bytes(length)

    trainer = federation.trainer_of(1)
    object.__setattr__(trainer, "_random_bytes", counting)
    with pytest.raises(BudgetExhausted):
        trainer.train(trainer.initial_model(), 1, 1.0, run_id="run", attempt=1)
    assert (federation.charged(1), asked) == ([], [])


def headers(federation: PrivateFederation, number: int) -> set[tuple[int, bytes]]:
    """Attempt and digest of g_T of every header of a round that was on its way."""
    bodies = [message.body for *_, message in federation.passed if is_header(message)]
    return {(body.attempt, body.target.update_digest) for body in bodies if body.round == number}


def test_target_that_was_killed_inside_a_round_gives_it_up_and_is_charged_for_no_second_update(
    build: Callable[..., PrivateFederation],
) -> None:
    federation = build(rounds=3).open().kill_aggregator_at(Header, 2).restart_aggregator().go()
    assert federation.statuses == ["finished", "lost", "finished"]
    assert federation.charged(TARGET) == [(1, 1), (2, 1), (3, 1)]
    assert headers(federation, 2) == set()
    assert "cannot be taken up again" in federation.watch.text


def test_target_without_noise_takes_the_round_up_again(build: Callable[..., PrivateFederation]) -> None:
    """Companion of the test above: it trains to the same update to the last bit."""
    federation = build(rounds=3, private=(1, 2, 3)).open().kill_aggregator_at(Header, 2).restart_aggregator().go()
    assert federation.statuses == ["finished"] * 3
    assert {attempt for attempt, _ in headers(federation, 2)} == {2}
    assert len({digest for _, digest in headers(federation, 2)}) == 1


def test_sources_that_saw_a_round_which_the_target_gave_up_are_charged_for_what_they_trained(
    build: Callable[..., PrivateFederation],
) -> None:
    federation = build(rounds=3).open().kill_aggregator_at(MaskedInput, 2).restart_aggregator().go()
    assert federation.statuses == ["finished", "lost", "finished"]
    assert [federation.charged(index) for index in EVERYONE] == [[(1, 1), (2, 1), (3, 1)]] * 4


def test_what_was_trained_before_a_reset_is_trained_and_charged_anew_after_it(
    build: Callable[..., PrivateFederation],
) -> None:
    federation = build()
    trainer, ledger = federation.trainer_of(1), federation.ledger_of(1)
    model = trainer.initial_model()
    first = trainer.train(model, 1, 1.0, run_id="run", attempt=1).update

    ledger.reset("new consent", signer_of(identity(1)), now=int(federation.unix_s))
    second = trainer.train(model, 1, 1.0, run_id="run", attempt=2).update

    assert federation.charged(1) == [(1, 2)]
    assert first.tobytes() != second.tobytes()
