"""The aggregator moves the model by an optimiser of its own: same wire, same levels, and a state that survives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rounds_federation import AnySigned, Federation, is_header, until

from securefda.protocol.messages import Header, MaskedInput, Visibility
from securefda.rules import Strategy, server_step

ROUNDS = 3
NO_CAPS = {"kappa": 0.0}
STRATEGIES: list[dict[str, Any]] = [
    {"rule": "fedavg", "server_optimizer": "momentum", "server_momentum": 0.5},
    {"rule": "source_only", "server_optimizer": "adam", "server_learning_rate": 0.02},
    {"rule": "personalized_fedavg", "reptile_rounds": 1, "server_momentum": 0.5},
]


def played(folder: Path, level: Visibility = Visibility.SUM, **strategy: Any) -> Federation:
    federation = Federation(folder, rounds=ROUNDS, visibility=level, settings=NO_CAPS, **strategy).open().go()
    assert federation.statuses == ["finished"] * ROUNDS
    return federation


def models_of(federation: Federation) -> list[Any]:
    """The model that each round's header came with, and the last one."""
    return [*federation.seen_models, federation.run.model]  # type: ignore[attr-defined]


def watched(folder: Path, **strategy: Any) -> Federation:
    """As ``played``, and every model that was published is kept."""
    federation = Federation(folder, rounds=ROUNDS, settings=NO_CAPS, **strategy)
    seen: dict[int, Any] = {}

    def link(sender: int, to: int, message: AnySigned) -> AnySigned:
        if is_header(message):
            seen[message.body.round] = federation.run.model.copy()
        return message

    federation.link = link
    federation.open().go()
    federation.seen_models = [seen[number] for number in sorted(seen)]  # type: ignore[attr-defined]
    return federation


def test_the_first_step_of_momentum_is_the_mean_and_the_second_keeps_a_share_of_it(tmp_path: Path) -> None:
    models = models_of(watched(tmp_path / "momentum", **STRATEGIES[0]))
    plain = models_of(watched(tmp_path / "plain", rule="fedavg"))
    assert np.array_equal(models[1], plain[1])
    federation = Federation(tmp_path / "second", rounds=1, settings=NO_CAPS, rule="fedavg")
    mean = mean_of_round(federation, models[1], 2)
    expected = models[1] + 0.5 * (models[1] - models[0]) + mean
    assert np.max(np.abs(models[2] - expected)) < 1e-6
    assert np.max(np.abs(models[2] - (models[1] + mean))) > 1e-3


def mean_of_round(federation: Federation, model: Any, number: int) -> Any:
    """By definition: the mean by samples over target and sources."""
    sites = [federation.run._site, *(source._site for source in federation.sources.values())]
    results = [site.trainer.train(model, number, 1.0) for site in sites]
    return sum(one.samples * one.update.astype(float) for one in results) / sum(one.samples for one in results)


def test_adam_moves_the_model_by_what_it_makes_of_the_mean(tmp_path: Path) -> None:
    strategy = {"rule": "fedavg", "server_optimizer": "adam", "server_learning_rate": 0.02}
    models = models_of(watched(tmp_path / "adam", **strategy))
    federation = Federation(tmp_path / "definition", rounds=1, settings=NO_CAPS, rule="fedavg")
    plan, state = Strategy(rounds=1, **strategy).server(), None
    assert plan is not None
    for number in (1, 2, 3):
        mean = mean_of_round(federation, models[number - 1], number)
        step, state = server_step(plan, state, mean)
        assert np.max(np.abs(models[number] - models[number - 1] - step)) < 1e-5


def test_a_lost_round_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rounds=ROUNDS, settings=NO_CAPS, **STRATEGIES[0]).open()
    federation.kill_aggregator_at(MaskedInput, 2)
    before = federation.store.server()
    federation.restart_aggregator()
    until(federation, 1, Header, round_number=3)
    after = federation.store.server()
    assert federation.statuses == ["finished", "lost"]
    assert before is not None
    assert after is not None
    assert after.to_bytes() == before.to_bytes()


def test_nothing_of_the_optimizer_is_in_a_header(tmp_path: Path) -> None:
    rules = []
    for number, strategy in enumerate(({"rule": "fedavg"}, STRATEGIES[0], STRATEGIES[2])):
        federation = played(tmp_path / str(number), **strategy)
        rules.append([message.body.rule for *_, message in federation.passed if is_header(message)])
    assert rules[0] == rules[1] == rules[2]
