"""T29: neither the order in which inputs arrive nor the number of threads changes a bit of a sum."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from securefda.protocol import masking
from securefda.protocol.encoding import EncodedLayer, Quantisation
from securefda.protocol.masking import KEYSTREAM_PER_THREAD, useful_threads
from securefda.protocol.messages import MaskedInput, Result, Update, Visibility
from securefda.protocol.secret import Secret
from threat_model.adversaries.arrival_order import ArrivalOrder
from threat_model.sites import roster_of
from threat_model.stage import MakesStage, Stage
from threat_model.switches import switched_off
from threat_model.unchecked_sums import INTEGER_SUMS
from threat_model.watched import WatchedAggregator

ORDERS = [(1, 2, 3, 4, 5, 6), (6, 5, 4, 3, 2, 1), (4, 1, 6, 2, 5, 3)]
INPUTS = {Visibility.SUM: MaskedInput, Visibility.INDIVIDUAL: Update}


def played(staged: MakesStage, order: tuple[int, ...], visibility: Visibility) -> Stage:
    network = ArrivalOrder(order)
    stage = staged(6, aggregator=WatchedAggregator, network=network, visibility=visibility).play()
    arrived = [one.sender for one in stage.passed if isinstance(one.message.body, INPUTS[visibility])]
    assert arrived == list(order)
    assert stage.aggregator.operator.alarms == []
    return stage


def outcomes(staged: MakesStage, visibility: Visibility) -> set[tuple[Result, bytes]]:
    """Return the outcomes of all orders of arrival: the result as sent, and the model's bytes."""
    stages = [played(staged, order, visibility) for order in ORDERS]
    return {(one.message.body, stage.aggregator.model.tobytes()) for stage in stages for one in stage.said(0, Result)}


@pytest.mark.threat("T29")
@pytest.mark.parametrize("visibility", INPUTS)
def test_every_order_of_arrival_gives_one_sum_one_model_and_one_digest_of_each(
    staged: MakesStage, visibility: Visibility
) -> None:
    ((result, model),) = outcomes(staged, visibility)
    assert result.model_digest == sha256(model).digest()
    assert result.count == 6
    assert len(result.sum_digest) == (32 if visibility is Visibility.SUM else 0)


@pytest.mark.threat("T29")
@pytest.mark.control
def test_sum_of_float32_has_another_digest_for_every_order_of_arrival(staged: MakesStage) -> None:
    with switched_off(INTEGER_SUMS, roster=roster_of(6)):
        found = outcomes(staged, Visibility.INDIVIDUAL)
    assert len({result.model_digest for result, _ in found}) == len(ORDERS)
    models = [np.frombuffer(model, np.float32) for _, model in found]
    assert max(np.max(np.abs(model - models[0])) for model in models) < 1e-6  # and yet they are all but equal


PARTIES = (1, 2, 3)
M = KEYSTREAM_PER_THREAD * 2 // (4 * len(PARTIES)) + 3
"""So long that a second thread is worth starting, and not a multiple of anything."""

KEY = Secret(bytes(32))
ENCODING = Quantisation((EncodedLayer(M - 2, 1.0),), n_max=6, n_statistics=2)


def summed(order: Iterable[int], *, masked_by: int, unmasked_by: int) -> bytes:
    """Encode, mask, add up in some order and unmask, by so many threads; SHA-256 of the sum of three updates."""
    total = np.zeros(M, np.uint32)
    self_seeds = {own: Secret(bytes([own]) * 32) for own in PARTIES}
    for own in order:
        update = np.random.default_rng(own).uniform(-1, 1, M - 2).astype(np.float32)
        vector: Any = ENCODING.encode(update, KEY, np.array([0.0, 1.0]))
        seeds = {peer: Secret(bytes([own + peer]) * 32) for peer in PARTIES if peer != own}
        masking.mask(vector, own=own, self_seed=self_seeds[own], pair_seeds=seeds, threads=masked_by)
        masking.accumulate(total, vector)
    masking.unmask(total, self_seeds=self_seeds, dropped={}, threads=unmasked_by)
    assert ENCODING.decode(total, len(PARTIES)).statistics.tolist() == [0.0, 3.0]
    return sha256(total.data).digest()


@pytest.mark.threat("T29")
def test_one_and_two_threads_give_one_digest_in_every_order_of_summation() -> None:
    assert useful_threads(len(PARTIES) * 4 * M, threads=2) == 2
    one_then_two = summed((1, 2, 3), masked_by=1, unmasked_by=2)
    two_then_one = summed((3, 1, 2), masked_by=2, unmasked_by=1)
    assert one_then_two == two_then_one
