"""T18: no length and no message but the masked input depends on what a source trains on.

Times do: who trains slowly answers late. Nothing paces that, and nothing here claims it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import shake_256
from typing import Any

import numpy as np
import pytest
from encapsulations import repeat_encapsulations

from securefda.protocol.messages import (
    Advertise,
    Checkpoint,
    Cosigned,
    MaskedInput,
    Receipt,
    SurvivorSignature,
    Visibility,
)
from securefda.rules import Strategy
from securefda.source.source_run import SourceRun
from securefda.training import LocalResult, Vector
from securefda.transport import wire
from threat_model.adversaries.sizes import ReportsMetrics, WatchesSizes
from threat_model.sites import TARGET, AggregatorSeat, KnownUpdates, known_update, signer_of
from threat_model.stage import MakesStage, Stage, honest_aggregator

MAX_ROWS = 100_000
ROWS = (1, 127, 128, 16_383, 99_999, 2, 500, 77_777)
LEVELS = [Visibility.SUM, Visibility.COHORT]
IN_A_RUN = {
    "Join",
    "Checkpoint",
    "Cosigned",
    "Advertise",
    "ShareBundle",
    "MaskedInput",
    "SurvivorSignature",
    "Unmask",
    "Receipt",
}


def unequal_update(index: int, round_number: int, received: Vector) -> Vector:
    """Nothing, one coordinate, far below a step, beyond the clip in places, or as usual."""
    usual = known_update(index, round_number, received)
    match index % 5:
        case 0 if index != TARGET:
            return np.zeros_like(usual)
        case 1:
            return np.where(np.arange(usual.size) == 7, np.float32(0.5), np.float32(0))
        case 2:
            return usual * np.float32(1e-30)
        case 3:
            return np.where(np.arange(usual.size) % 10 == 0, np.float32(1e6), usual)
    return usual


class TrainsOn(KnownUpdates):
    """A site with so many rows; loss and steps follow from them."""

    def __init__(self, index: int, updates: Any, rows: int) -> None:
        super().__init__(index, updates)
        self._rows = rows

    def train(self, *args: Any, **options: Any) -> LocalResult:
        result = super().train(*args, **options)
        return replace(result, samples=self._rows, steps=4 + self._rows % 5, loss=1 / self._rows)


def coins(seed: object) -> Callable[[int], bytes]:
    """Random bytes that are the same in two plays."""
    drawn = 0

    def draw(count: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return shake_256(f"{seed} {drawn}".encode()).digest(count)

    return draw


def source_with(
    site: Any,
    reporter: Any,
    *,
    rows: Mapping[int, int],
    updates: Any,
    make: Any = SourceRun,
    same_coins: bool = False,
) -> Any:
    index = site.signer.index
    site = replace(site, trainer=TrainsOn(index, updates, rows[index]))
    return make(replace(site, random_bytes=coins(index)) if same_coins else site, reporter)


def watched(staged: MakesStage, rows: Mapping[int, int], **options: Any) -> tuple[Stage, WatchesSizes]:
    """A play in which the sources have so many rows, and what the network saw of it."""
    watcher, updates = WatchesSizes(), options.pop("updates", unequal_update)
    making = {name: options.pop(name) for name in ("make", "same_coins") if name in options}
    makes = partial(source_with, rows=rows, updates=updates, **making)
    settings = {"max_samples": MAX_ROWS, "kappa": 1.0} | options.pop("settings", {})
    stage = staged(
        len(rows),
        sources=dict.fromkeys(rows, makes),
        updates=updates,
        network=watcher,
        settings=settings,
        model_step=1e30,  # some of the updates are nothing
        **options,
    ).play()
    assert [stage.accepted(index) for index in rows] == [stage.settings.strategy.rounds] * len(rows)
    return stage, watcher


def sites_with(*rows: int) -> dict[int, int]:
    return dict(enumerate(rows, 1))


@pytest.mark.threat("T18")
@pytest.mark.parametrize("visibility", LEVELS)
@pytest.mark.parametrize("rule", ["source_only", "fedgp_auto"])
def test_lengths_of_messages_of_one_type_do_not_vary_over_sources(
    staged: MakesStage, visibility: Visibility, rule: str
) -> None:
    settings = {"strategy": Strategy(rule=rule, rounds=2)}
    _, watcher = watched(staged, sites_with(*ROWS), visibility=visibility, settings=settings)
    lengths = defaultdict(set)
    for (_, kind), sizes in watcher.sizes.items():
        lengths[kind].add(sizes)
    assert set(lengths) == IN_A_RUN
    assert {kind: len(seen) for kind, seen in lengths.items()} == dict.fromkeys(IN_A_RUN, 1)
    assert np.var(list(watcher.totals().values())) == 0


@pytest.mark.threat("T18")
@pytest.mark.parametrize("visibility", LEVELS)
def test_lengths_do_not_vary_with_rows_losses_and_updates(staged: MakesStage, visibility: Visibility) -> None:
    own_rows, rows = sites_with(1, *[10] * 6, MAX_ROWS), sites_with(*ROWS)
    _, own = watched(staged, own_rows, visibility=visibility, updates=known_update)
    _, watcher = watched(staged, rows, visibility=visibility)
    assert watcher.sizes == own.sizes
    assert watcher.attack(own, own_rows) == {}


@pytest.mark.threat("T18")
@pytest.mark.control
@pytest.mark.parametrize("visibility", LEVELS)
def test_row_counts_follow_exactly_from_lengths_where_sources_report_metrics(
    staged: MakesStage, visibility: Visibility
) -> None:
    own_rows, rows = sites_with(5, 10, 20, 30, 40), sites_with(*ROWS[:5])
    _, own = watched(staged, own_rows, visibility=visibility, make=ReportsMetrics)
    _, watcher = watched(staged, rows, visibility=visibility, make=ReportsMetrics)
    assert watcher.attack(own, own_rows) == rows


def same_target(seat: AggregatorSeat) -> Any:
    """The real aggregator, with random bytes that are the same in every play."""
    return honest_aggregator(replace(seat, site=replace(seat.site, random_bytes=coins("target"))))


def sent_with_same_coins(staged: MakesStage, rows: Mapping[int, int], **options: Any) -> dict[tuple[int, type], bytes]:
    """Return the messages of every source, as bytes with vectors, with the same randomness in every play."""
    stage, _ = watched(staged, rows, aggregator=same_target, same_coins=True, recorded=True, **options)
    kinds = {type(one.message.body) for one in stage.passed if one.sender != TARGET}
    return {
        (index, kind): b"".join(
            wire.encode_signed(one.message) + b"".join(one.vectors) for one in stage.said(index, kind)
        )
        for index in rows
        for kind in kinds
    }


@pytest.mark.threat("T18")
@pytest.mark.parametrize("visibility", LEVELS)
@pytest.mark.parametrize("rule", ["source_only", "fedgp_auto"])
def test_nothing_but_the_masked_input_and_digests_of_it_depends_on_the_data(
    staged: MakesStage, visibility: Visibility, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two plays with the same coins and other rows, losses, steps and updates, compared byte by byte.

    Without a norm cap, whose rows go sealed from source to source. Checkpoints that follow on the input are of logs
    that hold its digest, and a receipt is for the model that came of all.
    """
    repeat_encapsulations(monkeypatch)
    options = {"visibility": visibility, "settings": {"strategy": Strategy(rule=rule, rounds=1), "kappa": 0.0}}
    one = sent_with_same_coins(staged, sites_with(*ROWS), updates=known_update, **options)
    other = sent_with_same_coins(staged, sites_with(*reversed(ROWS)), **options)
    differ = {kind for index, kind in one if one[index, kind] != other[index, kind]}
    assert differ == {MaskedInput, SurvivorSignature, Checkpoint, Cosigned, Receipt}


@pytest.mark.threat("T18")
def test_the_first_message_depends_on_nothing_of_the_data(staged: MakesStage) -> None:
    def first_messages(rows: Mapping[int, int], updates: Any) -> dict[int, Advertise]:
        watched_stage, _ = watched(staged, rows, updates=updates, same_coins=True, aggregator=same_target)
        return {index: watched_stage.said(index, Advertise)[0].message.body for index in rows}

    one = first_messages(sites_with(*ROWS), known_update)
    other = first_messages(sites_with(*reversed(ROWS)), unequal_update)
    assert one == other


@pytest.mark.threat("T18")
def test_in_clear_the_length_of_an_update_does_not_tell_the_row_count_that_is_in_it(staged: MakesStage) -> None:
    """At ``individual`` the aggregator reads the count, by the policy's consent; a listener on the network does not."""
    rows = sites_with(*ROWS)
    _, watcher = watched(staged, rows, visibility=Visibility.INDIVIDUAL)
    for kind in ("Update", "Join"):
        assert len({watcher.sizes[index, kind] for index in rows}) == 1


@pytest.mark.threat("T18")
@pytest.mark.parametrize(("index", "longer"), [(1, 0), (127, 0), (128, 1), (1000, 1)])
def test_roster_index_alone_changes_a_length_and_it_is_public(index: int, longer: int) -> None:
    body = Advertise(bytes(32), bytes(32), bytes(32), bytes(32))
    first, at_index = (len(wire.encode_signed(signer_of(one).sign(bytes(32), bytes(32), body))) for one in (1, index))
    assert at_index - first == longer
