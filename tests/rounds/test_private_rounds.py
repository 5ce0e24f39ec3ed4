"""Rounds by DP-SGD: what is charged and when, what happens where a budget ends, and what is taken up again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rounds_federation import TARGET, AnySigned, Killed, identity, is_header, roster_of, site_id
from rounds_private import WIDE, PrivateFederation, enough_for

from securefda.config import AggregatorConfig, NoiseSection, ProcessSection, SourceConfig, TaskSection, TrainingSection
from securefda.config.sections import DEFAULT_DATA_SET
from securefda.dp.accountants import epsilon
from securefda.dp.ledger import Ledger
from securefda.dp.ledger_rows import LedgerError
from securefda.errors import BudgetExhausted, ConfigError, ExitCode, TrainingError
from securefda.policy import default_policy
from securefda.rounds.accounts import data_set_of, ledger_file, make_ledger, signer_of
from securefda.rounds.composition import Member, source_site, target_site, task_of, training_rows
from securefda.rounds.private_site import PrivateTrainer
from securefda.rounds.store import SourceStore
from securefda.secagg.messages import Advertise, MaskedInput, Refusal, Visibility
from securefda.training import LocalResult
from securefda.transport.wire import encode

POOR = 2
EVERYONE = (TARGET, 1, 2, 3)


class Remembering(PrivateTrainer):
    """Keeps a copy of every update that it handed out, by round and attempt."""

    gave: list[tuple[str, int, int, Any]] = []  # noqa: RUF012 - each test empties it

    def train(self, received: Any, round_number: int, factor: float, **options: Any) -> LocalResult:
        result = super().train(received, round_number, factor, **options)
        self.gave.append((self._site, round_number, options["attempt"], result.update.copy()))
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
        current = federation.run._round
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
        sender = self.queue[0][0]
        super().deliver()
        on_its_way = any(other == sender for other, *_ in self.queue)
        if sender != TARGET and sender in self.reached and self.sources[sender].failure and not on_its_way:
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
    failure = federation.sources[POOR].failure
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
    while federation.queue:
        federation.deliver()

    assert federation.run.done
    assert federation.run.error is exhausted.value
    assert federation.run.error.exit_code == 11
    assert federation.statuses == ["finished"]
    assert [federation.charged(index) for index in EVERYONE] == [[(1, 1)]] * 4
    goodbyes = [federation.sources[index].goodbye for index in (1, 2, 3)]
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
    """A refusal would tell whoever chose the weights which rows there are."""
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


def killed_in_round_2(federation: PrivateFederation) -> None:
    """The aggregator's process ends when its first header of round 2 is on its way, and begins anew."""

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        if is_header(message) and message.body.round == 2:
            raise Killed
        return message

    federation.link = link
    with pytest.raises(Killed):
        federation.open().go()
    federation.link = lambda _sender, _recipient, message: message
    federation.restart_aggregator().go()


def headers(federation: PrivateFederation, number: int) -> set[tuple[int, bytes]]:
    """Attempt and digest of g_T of every header of a round that was on its way."""
    bodies = [message.body for *_, message in federation.passed if is_header(message)]
    return {(body.attempt, body.target.update_digest) for body in bodies if body.round == number}


def test_target_that_was_killed_inside_a_round_gives_it_up_and_is_charged_for_no_second_update(
    build: Callable[..., PrivateFederation],
) -> None:
    federation = build(rounds=3)
    killed_in_round_2(federation)
    assert federation.statuses == ["finished", "lost", "finished"]
    assert federation.charged(TARGET) == [(1, 1), (2, 1), (3, 1)]
    assert headers(federation, 2) == set()
    assert "cannot be taken up again" in federation.watch.text


def test_target_without_noise_takes_the_round_up_again(build: Callable[..., PrivateFederation]) -> None:
    """Companion of the test above: it trains to the same update to the last bit."""
    federation = build(rounds=3, private=(1, 2, 3))
    killed_in_round_2(federation)
    assert federation.statuses == ["finished"] * 3
    assert {attempt for attempt, _ in headers(federation, 2)} == {2}
    assert len({digest for _, digest in headers(federation, 2)}) == 1


def test_sources_that_saw_a_round_which_the_target_gave_up_are_charged_for_what_they_trained(
    build: Callable[..., PrivateFederation],
) -> None:
    federation = build(rounds=3)

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        if isinstance(message.body, MaskedInput) and federation.run._round and federation.run._round.number == 2:
            raise Killed
        return message

    federation.link = link
    with pytest.raises(Killed):
        federation.open().go()
    federation.link = lambda _sender, _recipient, message: message
    federation.restart_aggregator().go()

    assert federation.statuses == ["finished", "lost", "finished"]
    assert [federation.charged(index) for index in EVERYONE] == [[(1, 1), (2, 1), (3, 1)]] * 4


DIGITS = TaskSection(factory="securefda.tasks.digits:Digits")
NOISY = TrainingSection(dp=NoiseSection(noise_multiplier=1.0))
KEY = Ed25519PrivateKey.generate()


def made(kit: Path, index: int, training: TrainingSection, data_set: str = DEFAULT_DATA_SET) -> Any:
    """A site of a federation as its process makes it."""
    member = Member(roster_of(3), site_id(index), KEY, encode)
    process = ProcessSection(kit=kit, out=kit, data_set=data_set)
    if index == TARGET:
        config = AggregatorConfig(aggregator=process, task=DIGITS, training=training)
        return target_site(config, member, lambda: ({}, {}))
    source = SourceConfig(source=process, task=DIGITS, training=training)
    with closing(SourceStore(kit / "state.sqlite")) as store:
        return source_site(source, default_policy(max_samples=1000), member, store)


@pytest.mark.parametrize("index", [TARGET, 1], ids=["target", "source"])
def test_rows_that_have_a_ledger_are_not_trained_on_without_noise(tmp_path: Path, index: int) -> None:
    file = ledger_file(tmp_path, DEFAULT_DATA_SET)
    file.parent.mkdir(parents=True)
    rows = training_rows(task_of(DIGITS, roster_of(3), 0), site_id(index))
    Ledger.create(file, data_set_of(site_id(index), DEFAULT_DATA_SET, rows), now=0)
    before = file.read_bytes()
    assert isinstance(made(tmp_path, index, NOISY).trainer, PrivateTrainer)

    with pytest.raises(ConfigError, match="training without noise would belie") as refusal:
        made(tmp_path, index, TrainingSection())

    assert refusal.value.key == "training.dp.noise-multiplier"
    assert refusal.value.hint
    assert file.read_bytes() == before
    assert not isinstance(made(tmp_path / "other", index, TrainingSection()).trainer, PrivateTrainer)


def ledger_at(kit: Path, name: str = DEFAULT_DATA_SET) -> Ledger:
    """The ledger of source 1's rows in a kit, with one row."""
    rows = training_rows(task_of(DIGITS, roster_of(3), 0), site_id(1))
    return make_ledger(ledger_file(kit, name), data_set_of(site_id(1), name, rows), now=0)


def names_in(kit: Path) -> list[str]:
    return sorted(path.name for path in ledger_file(kit, DEFAULT_DATA_SET).parent.iterdir())


def test_rows_whose_ledger_was_deleted_are_not_trained_on_without_noise(tmp_path: Path) -> None:
    ledger_at(tmp_path)
    ledger_file(tmp_path, DEFAULT_DATA_SET).unlink()
    before = names_in(tmp_path)

    with pytest.raises(ConfigError, match=r"training-rows\.sqlite\), which was deleted after 1 rows") as refusal:
        made(tmp_path, 1, TrainingSection())

    assert refusal.value.key == "training.dp.noise-multiplier"
    assert "newest ledger put back" in (refusal.value.hint or "")
    assert names_in(tmp_path) == before


def test_rows_that_have_a_ledger_under_another_name_are_not_trained_on_without_noise(tmp_path: Path) -> None:
    ledger_at(tmp_path)
    before = names_in(tmp_path)

    with pytest.raises(ConfigError, match=r"under the name training-rows a privacy ledger \(.*sqlite\)") as refusal:
        made(tmp_path, 1, TrainingSection(), data_set="other")

    assert refusal.value.key == "training.dp.noise-multiplier"
    assert "training-rows" in (refusal.value.hint or "")
    assert "own name" not in (refusal.value.hint or "")
    assert names_in(tmp_path) == before


@pytest.mark.parametrize("damage", ["deleted", "no database"])
def test_a_ledger_beside_it_that_says_nothing_may_be_of_the_rows_that_are_to_be_trained_on_without_noise(
    tmp_path: Path, damage: str
) -> None:
    ledger_at(tmp_path)
    file = ledger_file(tmp_path, DEFAULT_DATA_SET)
    file.unlink() if damage == "deleted" else file.write_bytes(b"hello")

    with pytest.raises(LedgerError, match=r"training-rows\.sqlite beside it may be of the same rows") as refusal:
        made(tmp_path, 1, TrainingSection(), data_set="other")

    assert refusal.value.exit_code == 11


def test_rows_without_a_ledger_are_trained_on_beside_the_ledger_of_others(tmp_path: Path) -> None:
    other = training_rows(task_of(DIGITS, roster_of(3), 0), site_id(2))
    make_ledger(ledger_file(tmp_path, "other"), data_set_of(site_id(1), "other", other), now=0)

    trainer = made(tmp_path, 1, TrainingSection()).trainer

    assert trainer.train(trainer.initial_model(), 1, 1.0).epsilon is None


def test_ledger_that_is_made_while_a_run_without_noise_goes_on_ends_it_before_its_next_round(tmp_path: Path) -> None:
    trainer = made(tmp_path, 1, TrainingSection()).trainer
    model = trainer.initial_model()
    trainer.train(model, 1, 1.0)
    ledger_at(tmp_path)

    with pytest.raises(ConfigError, match="training without noise would belie"):
        trainer.train(model, 2, 1.0)


def test_reset_that_the_site_did_not_sign_gives_a_process_that_runs_nothing_back(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path)
    trainer = made(tmp_path, 1, NOISY).trainer
    model = trainer.initial_model()
    trainer.train(model, 1, 1.0, run_id="run", attempt=1)
    ledger.reset("never mind", lambda _: b"nobody's", now=int(time.time()))
    rows = ledger.rows()

    with pytest.raises(LedgerError, match=r"row 4 \(reset\) is not signed with this site's key"):
        trainer.train(model, 2, 1.0, run_id="run", attempt=1)

    assert ledger.rows() == rows


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
