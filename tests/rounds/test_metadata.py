"""Numbers beside an update: at sum and cohort they are inside the sums alone, at individual what the policy lists."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from rounds_definition import trained
from rounds_federation import Federation

from securefda.protocol.encoding import (
    DISTANCE_BOUND,
    LOSS_BOUND,
    AggregateStatistics,
    ErrorUnits,
    decode_statistics,
    encode_statistics,
)
from securefda.protocol.messages import Body, Update, Visibility
from securefda.rules import DeltaErrors, TargetStatistics
from securefda.site.policy import MetadataPolicy

INDIVIDUAL, COHORT, SUM = Visibility
FIGURES = {"samples", "loss", "accuracy"}
MASKED = {"bits": 32}


def play(folder: Path, n: int, level: Visibility, **options: Any) -> Federation:
    federation = Federation(folder, n, visibility=level, rule="source_only", rounds=1, **options)
    federation.open().go()
    return federation


def test_no_message_but_an_update_in_clear_has_a_place_for_rows_loss_or_accuracy() -> None:
    places = {kind for kind in get_args(Body) if FIGURES & {field.name for field in fields(kind)}}
    assert places == {Update}


@pytest.mark.parametrize(
    "may_leave", [("samples",), ("samples", "loss"), ("samples", "accuracy"), ("samples", "loss", "accuracy")]
)
def test_beside_an_update_in_clear_goes_what_the_policy_lists(tmp_path: Path, may_leave: tuple[Any, ...]) -> None:
    federation = Federation(tmp_path, 3, visibility=INDIVIDUAL, rule="source_only", rounds=1)
    policy = federation.policy(2, metadata=MetadataPolicy(may_leave=may_leave))
    federation.sources[2] = federation.source(2, policy=policy)
    federation.open().go()
    sites = trained(federation)
    updates = {m.sender: m.body for *_, m in federation.passed if isinstance(m.body, Update)}
    loss = sites.losses[2] if "loss" in may_leave else None
    accuracy = sites.accuracies[2] if "accuracy" in may_leave else None
    assert (updates[2].samples, updates[2].loss, updates[2].accuracy) == (sites.samples[2], loss, accuracy)
    assert (updates[1].loss, updates[1].accuracy) == (None, None)
    seen = next(seen for seen in federation.watch.lines[0]["seen"] if seen["members"] == ["source-2"])
    assert (seen["rows"], seen["loss"], seen["accuracy"]) == (sites.samples[2], loss, accuracy)


def test_the_target_writes_down_how_much_of_each_update_in_clear_it_clipped(tmp_path: Path) -> None:
    clip = 0.02
    federation = play(tmp_path, 3, INDIVIDUAL, settings={"clip": clip})
    updates = trained(federation).updates
    beyond = {f"source-{index}": int(np.count_nonzero(np.abs(update) > clip)) for index, update in updates.items()}
    assert all(beyond.values())
    (line,) = federation.watch.lines
    assert {seen["members"][0]: seen["clipped"] for seen in line["seen"]} == beyond


@pytest.mark.parametrize("level", [COHORT, SUM])
def test_what_a_masked_source_clipped_it_alone_knows(tmp_path: Path, level: Visibility) -> None:
    federation = play(tmp_path, 8, level, settings=MASKED)
    (line,) = federation.watch.lines
    assert all("clipped" not in seen for seen in line["seen"])


def test_a_site_that_lists_all_tells_nothing_alone_where_it_is_served_at_sum(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 3, visibility=SUM, rule="source_only", rounds=1)
    open_hearted = federation.policy(
        2, max_visibility="individual", metadata=MetadataPolicy(may_leave=("samples", "loss", "accuracy"))
    )
    federation.sources[2] = federation.source(2, policy=open_hearted)
    federation.open().go()
    assert federation.watch.statuses == ["finished"]
    assert "Update" not in federation.names()


UNITS = ErrorUnits.of(TargetStatistics(4, 2.0, 0.5))


def test_a_figure_beyond_its_bound_counts_as_the_bound_so_that_no_source_says_more_than_its_weight() -> None:
    far = DeltaErrors(1e9, 0.1, 0.1)
    back = decode_statistics(encode_statistics(AggregateStatistics(0.0, 0.5, 1e9, -1.0, far), UNITS), UNITS)
    assert (back.loss, back.accuracy) == (0.5 * LOSS_BOUND, 0.0)
    assert back.errors is not None
    assert back.errors.source_only == pytest.approx(0.5 * DISTANCE_BOUND * 2.0)


def test_a_figure_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        encode_statistics(AggregateStatistics(0.0, 0.5, math.nan, 0.5), None)


def test_errors_that_were_not_asked_for_leave_zeros_and_are_none_again() -> None:
    encoded = encode_statistics(AggregateStatistics(0.0, 0.5, 0.1, 0.1, DeltaErrors(1.0, 1.0, 1.0)), None)
    assert np.all(encoded[-3:] == 0)
    assert decode_statistics(encoded, None).errors is None
