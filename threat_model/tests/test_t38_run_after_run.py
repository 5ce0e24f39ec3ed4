"""T38: a target that begins run after run gets one question answered, and then nobody joins."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest

from securefda.errors import PolicyRefusal
from securefda.protocol.messages import Advertise, MaskedInput
from securefda.rules import Strategy
from threat_model.adversaries.run_after_run import RenamesRun, RunAfterRun
from threat_model.adversaries.sources import ColludingSource
from threat_model.scores import cosine
from threat_model.sites import LAYERS
from threat_model.stage import MakesStage, Stage
from threat_model.switches import (
    ONE_RUN,
    ONE_RUN_ON_A_CONNECTION,
    RUN_OF_THE_CONNECTION,
    RUN_OF_THE_FOLDER,
    RUNS_OF_A_DAY,
    Switch,
    switched_off,
)

N, COLLUDER, BIAS = 4, 4, 1
VICTIMS = range(1, COLLUDER)
START, SIZE = int(np.prod(LAYERS[0][1])), int(np.prod(LAYERS[1][1]))


def asking(staged: MakesStage, adversary: Any = RunAfterRun) -> Stage:
    settings = {"strategy": Strategy(rule="fedgp", beta=1.0, rounds=1), "kappa": 1.0}  # type: ignore[arg-type]
    sources = {COLLUDER: ColludingSource}
    return staged(N, aggregator=partial(adversary, layer=BIAS), sources=sources, settings=settings)


def assert_one_question_is_answered(stage: Stage) -> None:
    assert len(stage.adversary.sessions) == 1
    for index in VICTIMS:
        assert index in stage.not_joined or isinstance(stage.sources[index].standing.failure, PolicyRefusal)
        assert len(stage.said(index, Advertise)) == 1
        assert stage.said(index, MaskedInput) == []
    assert all(np.count_nonzero(read) <= 1 for read in stage.adversary.attack().values())


@pytest.mark.threat("T38")
def test_second_run_is_joined_by_nobody_and_one_question_tells_one_coordinate(staged: MakesStage) -> None:
    assert_one_question_is_answered(asking(staged).play())


@pytest.mark.threat("T38")
@pytest.mark.parametrize("other", [RUN_OF_THE_FOLDER, RUNS_OF_A_DAY], ids=lambda switch: switch.mitigation)
def test_the_folder_and_the_book_of_runs_are_each_enough(staged: MakesStage, other: Switch) -> None:
    stage = asking(staged)
    with switched_off(other, roster=stage.roster):
        stage.play()
    assert_one_question_is_answered(stage)


@pytest.mark.threat("T38")
@pytest.mark.control
def test_two_questions_for_each_coordinate_tell_the_layer_of_every_source_where_runs_are_not_bound(
    staged: MakesStage,
) -> None:
    stage = asking(staged)
    with switched_off(ONE_RUN, roster=stage.roster):
        stage.play()
    assert_layer_is_read(stage)


def assert_layer_is_read(stage: Stage) -> None:
    assert len(stage.adversary.sessions) == 2 * SIZE
    assert not any(stage.said(index, MaskedInput) for index in VICTIMS)
    read = stage.adversary.attack()
    assert min(abs(cosine(read[index], stage.update(index)[START:])) for index in VICTIMS) > 0.95


@pytest.mark.threat("T38")
@pytest.mark.parametrize("off", [[], [ONE_RUN], [RUN_OF_THE_CONNECTION]], ids=["as it is", "any run", "any connection"])
def test_header_of_another_run_is_refused_on_the_connection_of_the_first(staged: MakesStage, off: list[Switch]) -> None:
    stage = asking(staged, RenamesRun)
    with ExitStack() as switches:
        for switch in off:
            switches.enter_context(switched_off(switch, roster=stage.roster))
        stage.play()
    for index in VICTIMS:
        assert set(stage.refusals(index)) == {"HEADER_RUN"}
        assert len(stage.said(index, Advertise)) == 1
    assert all(np.count_nonzero(read) <= 1 for read in stage.adversary.attack().values())


@pytest.mark.threat("T38")
@pytest.mark.control
def test_headers_of_many_runs_on_one_connection_tell_the_layer_where_nothing_binds_it_to_one(
    staged: MakesStage,
) -> None:
    stage = asking(staged, RenamesRun)
    with switched_off(ONE_RUN_ON_A_CONNECTION, roster=stage.roster):
        stage.play()
    assert_layer_is_read(stage)
