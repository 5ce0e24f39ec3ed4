"""T37: what the target relays of norm reports tells it nothing; bare, they would tell a layer of every source."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from securefda.protocol.messages import ShareBundle
from securefda.rules import Strategy
from securefda.training import Vector
from threat_model.adversaries.relayed_reports import ReadsRelayedReports
from threat_model.scores import cosine
from threat_model.sites import LAYERS, known_update
from threat_model.stage import MakesStage, Stage
from threat_model.switches import SEALED_REPORTS, switched_off

N, BIAS = 3, 1
START, SIZE = int(np.prod(LAYERS[0][1])), int(np.prod(LAYERS[1][1]))
ROUNDS = 2 * SIZE


def still(index: int, _: int, received: Vector) -> Vector:
    """The same update in every round, as of models that hardly differ: then the reports of many rounds tell most."""
    return known_update(index, 1, received)


def read_in_a_run(stage: Stage) -> list[float]:
    """Cosine of what the target read and each source's update in the layer."""
    read = stage.adversary.attack()
    return [abs(cosine(read[index], stage.update(index)[START:])) for index in range(1, N + 1)]


def asking(staged: MakesStage) -> Stage:
    settings = {"strategy": Strategy(rule="fedgp", beta=1.0, rounds=ROUNDS), "kappa": 1.0}  # type: ignore[arg-type]
    return staged(N, aggregator=partial(ReadsRelayedReports, layer=BIAS), updates=still, settings=settings)


@pytest.mark.threat("T37")
def test_reports_that_are_relayed_sealed_tell_the_target_nothing(staged: MakesStage) -> None:
    stage = asking(staged).play()
    assert [stage.accepted(index) for index in range(1, N + 1)] == [ROUNDS] * N
    assert max(read_in_a_run(stage)) < 0.5  # noise of 64 coordinates: 0.125 in root mean square


@pytest.mark.threat("T37")
@pytest.mark.control
def test_bare_reports_tell_the_layer_of_every_source_within_a_run(staged: MakesStage) -> None:
    stage = asking(staged)
    with switched_off(SEALED_REPORTS, roster=stage.roster):
        stage.play()
    assert [len(stage.said(index, ShareBundle)) for index in range(1, N + 1)] == [ROUNDS] * N
    assert min(read_in_a_run(stage)) > 0.98  # on a grid of steps of 2^(1/2); exact norms would give more than 0.999
