"""T40: a model that is made for it asks a question; a source trains none but a result's, and none that is far off."""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from securefda.protocol.messages import Advertise, MaskedInput, Unmask
from securefda.rules.strategy import Strategy
from securefda.source.model_bound import layer_groups, units_of
from securefda.tasks import Samples, Task, TaskSettings
from securefda.training import Vector
from securefda.training.trainer import SiteTrainer
from threat_model.adversaries.made_model import (
    AsksAndAborts,
    AsksByModel,
    WalksThere,
    counting_model,
    imprinted_rows,
    imprinting_model,
)
from threat_model.private_sites import SEED, sgd
from threat_model.scores import psnr
from threat_model.sites import MAX_SAMPLES, TARGET
from threat_model.stage import MakesStage, Stage
from threat_model.switches import INITIAL_MODEL, MODEL_CHAIN, MODEL_STEP, Switch, all_of, switched_off

INPUTS, UNITS, ROWS, N = 63, 128, 5, 6
RATE, LIMIT = 0.5, 10.0
ALL, HALVES = set(range(1, N + 1)), (frozenset({1, 2, 3}), frozenset({4, 5, 6}))
RECOVERED_DB = 30.0
IMPRINT = imprinting_model(INPUTS, UNITS, mean=0.5, deviation=(1 / 12 / INPUTS) ** 0.5)
COUNT = counting_model(INPUTS, UNITS)


class Pictures(Task):
    """Two classes of rows with values in [0, 1], separated by a layer of rectified units under a logistic one."""

    def __init__(self) -> None:
        super().__init__(TaskSettings("target", ("source-1",)))

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(INPUTS, UNITS), nn.ReLU(), nn.Linear(UNITS, 1))

    def train_data(self, site: str) -> Samples:
        return rows_at(1)

    def test_data(self, site: str) -> Samples:
        return self.train_data(site)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels.float())

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {"accuracy": float(((outputs[:, 0] > 0) == labels).double().mean())}


def rows_at(index: int) -> Samples:
    numbers = np.random.default_rng((40, index))
    features = numbers.uniform(size=(ROWS, INPUTS)).astype(np.float32)
    return Samples(torch.from_numpy(features), torch.from_numpy(numbers.integers(0, 2, ROWS)))


def trainer_at(index: int) -> SiteTrainer:
    """One step of gradient descent over all rows of the site."""
    return SiteTrainer(Pictures(), f"source-{index}", rows_at(index), sgd(RATE, ROWS), SEED)


def staged_with(staged: MakesStage, adversary: Any, rounds: int, **options: Any) -> Stage:
    trainers = {index: trainer_at(index) for index in (TARGET, *sorted(ALL))}
    settings = {"strategy": Strategy(rule="source_only", rounds=rounds)}  # type: ignore[arg-type]
    return staged(N, aggregator=adversary, trainers=trainers, settings=settings, **options)


def asked(
    staged: MakesStage, made: Vector, at_round: int, *, halves: tuple[frozenset[int], ...] = (), called: int = 0
) -> Stage:
    adversary = partial(AsksByModel, made=made, at_round=at_round, halves=halves, called=called)
    return staged_with(staged, adversary, max(at_round, called))


def recovered(stage: Stage, among: set[int] = ALL) -> int:
    """Return how many rows of these sources the sum reveals, to more than 30 dB."""
    total = stage.adversary.attack()
    if total is None:
        return 0
    found = imprinted_rows(total, INPUTS, UNITS)
    found = found[np.all(np.isfinite(found), axis=1)]
    secret = np.concatenate([rows_at(index).features.numpy() for index in sorted(among)])
    return sum(max(psnr(one, row) for one in found) > RECOVERED_DB for row in secret)


def assert_refused(stage: Stage, check: str, sources: set[int], rounds_before: int) -> None:
    """Under this name, by these sources, and nothing of the round left them; earlier rounds stand as they are."""
    for index in sources:
        assert stage.alarms(index) == [check]
        assert stage.refusals(index) == [check]
        for kind in (Advertise, MaskedInput, Unmask):
            assert len(stage.said(index, kind)) == rounds_before
        assert stage.accepted(index) == rounds_before
        run_id = bytes.fromhex(stage.adversary.run_id)
        assert not stage.store(index).history(bytes(32), run_id, stage.adversary.heard.header.round).released
    assert stage.adversary.attack() is None


MADE = pytest.mark.parametrize("made", [IMPRINT, COUNT], ids=["that imprints rows", "that counts labels"])


@pytest.mark.threat("T40")
@MADE
def test_made_model_is_not_what_a_run_begins_with(staged: MakesStage, made: Vector) -> None:
    stage = asked(staged, made, 1).play()
    assert_refused(stage, "HEADER_INITIAL_MODEL", ALL, 0)


@pytest.mark.threat("T40")
@MADE
def test_made_model_is_too_far_from_that_of_the_first_round(staged: MakesStage, made: Vector) -> None:
    stage = asked(staged, made, 2).play()
    assert_refused(stage, "HEADER_STEP", ALL, 1)


@pytest.mark.threat("T40")
@MADE
def test_made_model_is_too_far_whichever_half_finished_the_round_before(staged: MakesStage, made: Vector) -> None:
    stage = asked(staged, made, 3, halves=HALVES).play()
    assert_refused(stage, "HEADER_STEP", set(HALVES[1]), 1)
    assert [stage.accepted(index) for index in sorted(HALVES[0])] == [2] * 3


LONG_AFTER = 40


def asked_without_receipts(staged: MakesStage) -> Stage:
    """The half that was away hears that it missed many rounds, and sees nothing of them."""
    stage = asked(staged, IMPRINT, 3, halves=HALVES, called=LONG_AFTER)
    shown = AsksByModel.missed_by
    stage.adversary.missed_by = lambda index: [] if index in HALVES[1] else shown(stage.adversary, index)
    return stage


@pytest.mark.threat("T40")
def test_half_that_was_away_takes_no_model_without_receipts(staged: MakesStage) -> None:
    stage = asked_without_receipts(staged).play()
    assert_refused(stage, "HEADER_CHAIN", set(HALVES[1]), 1)


@pytest.mark.threat("T40")
def test_rounds_that_a_header_counts_and_nobody_finished_are_no_steps(staged: MakesStage) -> None:
    stage = asked(staged, IMPRINT, 3, halves=HALVES, called=LONG_AFTER).play()
    assert_refused(stage, "HEADER_STEP", set(HALVES[1]), 1)


CONTROLS: list[tuple[int, tuple[frozenset[int], ...], Switch, set[int]]] = [
    (1, (), INITIAL_MODEL, ALL),
    (2, (), MODEL_STEP, ALL),
    (3, HALVES, MODEL_STEP, set(HALVES[1])),
]
WITHOUT = pytest.mark.parametrize(
    ("at_round", "halves", "switch", "members"), CONTROLS, ids=["first round", "second round", "other half"]
)


@pytest.mark.threat("T40")
@pytest.mark.control
@WITHOUT
def test_rows_come_out_of_one_sum_where_one_mitigation_is_off(
    staged: MakesStage, at_round: int, halves: tuple[frozenset[int], ...], switch: Switch, members: set[int]
) -> None:
    stage = asked(staged, IMPRINT, at_round, halves=halves)
    with switched_off(switch, roster=stage.roster):
        stage.play()
    assert recovered(stage, members) >= ROWS * len(members) / 2


@pytest.mark.threat("T40")
@pytest.mark.control
@pytest.mark.parametrize(("at_round", "switch"), [(1, INITIAL_MODEL), (2, MODEL_STEP)])
def test_labels_are_counted_by_one_parameter_where_one_mitigation_is_off(
    staged: MakesStage, at_round: int, switch: Switch
) -> None:
    stage = asked(staged, COUNT, at_round)
    with switched_off(switch, roster=stage.roster):
        stage.play()
    found = stage.adversary.attack()[-1] * MAX_SAMPLES / RATE
    assert found == pytest.approx(sum(int(rows_at(index).labels.sum()) for index in ALL), abs=1e-3)


@pytest.mark.threat("T40")
@pytest.mark.control
def test_half_takes_a_model_of_nobodys_where_chains_are_not_looked_at(staged: MakesStage) -> None:
    stage = asked_without_receipts(staged)
    with switched_off(MODEL_CHAIN, roster=stage.roster):
        stage.play()
    assert recovered(stage, set(HALVES[1])) >= ROWS * len(HALVES[1]) / 2


FIRST_OR_CHAINED = all_of("that an aborted round moves no model", INITIAL_MODEL, MODEL_CHAIN)
"""A round that nobody finished leaves the model as it was. What follows is compared with its header, and is that of no
result: so it has to be the first model. Either is enough."""


def aborted(staged: MakesStage, *off: Switch) -> Stage:
    """A round that ends after R0, and two others that ask by a model."""
    stage = staged_with(staged, partial(AsksAndAborts, made=[IMPRINT, COUNT]), 3, max_unfinished=3)
    with ExitStack() as switches:
        for switch in off:
            switches.enter_context(switched_off(switch, roster=stage.roster))
        return stage.play()


@pytest.mark.threat("T40")
@pytest.mark.parametrize(
    ("off", "check"),
    [([], "HEADER_CHAIN"), ([INITIAL_MODEL], "HEADER_CHAIN"), ([MODEL_CHAIN], "HEADER_INITIAL_MODEL")],
    ids=["as it is", "any first model", "no chain"],
)
def test_round_that_was_aborted_moves_no_model(staged: MakesStage, off: list[Switch], check: str) -> None:
    stage = aborted(staged, *off)
    for index in ALL:
        assert stage.refusals(index) == [check] * 2
        assert len(stage.said(index, Advertise)) == 1


@pytest.mark.threat("T40")
@pytest.mark.control
def test_every_source_answers_made_models_after_a_round_that_was_aborted_where_neither_stands(
    staged: MakesStage,
) -> None:
    stage = aborted(staged, FIRST_OR_CHAINED)
    for index in ALL:
        assert stage.refusals(index) == []
        assert len(stage.said(index, Advertise)) == 3


@pytest.mark.threat("T40")
def test_walk_to_the_made_model_takes_the_rounds_that_its_length_says(staged: MakesStage) -> None:
    """The residual risk: the bound only limits the rate. The attack takes this many finished rounds, and then works."""
    trainers = {index: trainer_at(index) for index in ALL}
    groups = layer_groups(trainers[1].sizes)
    units = dict.fromkeys(ALL, (0.0,) * len(groups))

    def reach(model: Vector) -> tuple[float, ...]:
        for index, trainer in trainers.items():
            own = units_of(trainer.train(model, 1, 1.0).update, groups)
            units[index] = tuple(max(pair) for pair in zip(own, units[index], strict=True))
        return tuple(LIMIT * 2.0 ** math.floor(math.log2(min(least))) for least in zip(*units.values(), strict=True))

    stage = staged_with(staged, partial(WalksThere, made=IMPRINT, groups=groups, reach=reach), 60).play()

    assert [stage.alarms(index) for index in sorted(ALL)] == [[]] * N
    assert recovered(stage) >= ROWS * N / 2
    assert len(stage.adversary.sessions) - 1 == WALKED


WALKED = 3
"""Finished rounds from this task's first model to the one that imprints, at limits.model-step = 10."""
