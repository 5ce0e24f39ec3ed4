"""Rounds by DP-SGD: what is charged and when, what happens where a budget ends, and what is taken up again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import TARGET, Build, identity, site_id
from rounds_private import WIDE, PrivateFederation, enough_for

from securefda.errors import BudgetExhausted, ExitCode, TrainingError
from securefda.privacy.accountants import epsilon
from securefda.protocol.messages import Refusal, Visibility
from securefda.site.privacy_account import signer_of

POOR = 2
EVERYONE = (TARGET, 1, 2, 3)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return lambda **options: PrivateFederation(tmp_path, **({"rule": "fedgp_auto", "rounds": 2} | options))


def event_of(federation: PrivateFederation, index: int) -> Any:
    return federation.trainer_of(index).event("run", 1, 1)  # type: ignore[attr-defined]


def test_every_round_is_charged_once_to_every_site_and_each_keeps_its_own_epsilon(build: Build) -> None:
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


def test_what_is_asked_for_of_another_model_round_run_or_factor_is_trained_and_charged_anew(build: Build) -> None:
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


def test_process_that_was_started_anew_trains_anew_and_is_charged_for_it(build: Build) -> None:
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

    assert federation.watch.statuses == ["finished"] * 3
    others = [site_id(index) for index in (1, 3, 4)]
    assert [line["survivors"] for line in federation.watch.lines] == [
        [site_id(i) for i in (1, 2, 3, 4)],
        others,
        others,
    ]
    assert federation.watch.lines[1]["refused"] == {site_id(POOR): "dp.target-epsilon"}
    assert f"{federation.budgets[POOR].epsilon:.3f}" not in federation.watch.text
    said = [message.body for sender, _, message in federation.passed if sender == POOR]
    assert said[-1] == Refusal("dp.target-epsilon")
    assert federation.charged(POOR) == [(1, 1)]
    assert federation.charged(1)[-1][0] == 3
    failure = federation.sources[POOR].standing.failure
    assert isinstance(failure, BudgetExhausted)
    assert failure.exit_code == ExitCode.BUDGET == 11


def test_run_fails_where_the_targets_budget_ends_and_nobody_is_asked_for_more(build: Build) -> None:
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


def test_round_whose_training_fails_stays_charged_and_was_not_finished(build: Build) -> None:
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


def test_weights_that_overflow_for_every_row_leave_a_round_of_noise(build: Build) -> None:
    """A refusal would reveal which rows the site has to the author of the weights."""
    trainer = build().trainer_of(1)
    endless = np.full(trainer.n_params, 3e37, np.float32)

    result = trainer.train(endless, 1, 1.0, run_id="run", attempt=1)

    assert np.isfinite(result.update).all()


def test_round_that_is_refused_for_want_of_budget_is_not_charged_and_nothing_trains(build: Build) -> None:
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


def test_what_was_trained_before_a_reset_is_trained_and_charged_anew_after_it(build: Build) -> None:
    federation = build()
    trainer, ledger = federation.trainer_of(1), federation.ledger_of(1)
    model = trainer.initial_model()
    first = trainer.train(model, 1, 1.0, run_id="run", attempt=1).update

    ledger.reset("new consent", signer_of(identity(1)), now=int(federation.unix_s))
    second = trainer.train(model, 1, 1.0, run_id="run", attempt=2).update

    assert federation.charged(1) == [(1, 2)]
    assert first.tobytes() != second.tobytes()
