"""Rounds of fada_attention: the same model at every level that computes the same gains, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import TARGET, Federation, is_header, trainer_of

from securefda.errors import ConfigError, PolicyRefusal
from securefda.protocol.messages import Visibility
from securefda.rules import attention_share, first_order_gain
from securefda.training.site_features import SiteFeatures

N, ROUNDS = 4, 3
TEMPERATURE = 0.002
NO_CAPS = {"kappa": 0.0}


def federation(folder: Path, level: Visibility = Visibility.SUM, **strategy: Any) -> Federation:
    settings = {"rule": "fada_attention", "attention_temperature": TEMPERATURE, "warm_up_rounds": 1, "rounds": ROUNDS}
    return Federation(folder, N, norm="batch", visibility=level, settings=NO_CAPS, **settings | strategy)


def played(folder: Path, level: Visibility = Visibility.SUM, **strategy: Any) -> Federation:
    found = federation(folder, level, **strategy).open().go()
    assert set(found.statuses) == {"finished"}
    return found


def test_a_round_is_the_mean_of_the_updates_by_rows_and_shares(tmp_path: Path) -> None:
    found = played(tmp_path, rounds=1, warm_up_rounds=0)
    target = trainer_of(N, TARGET, norm="batch")
    model = target.initial_model()
    seen = SiteFeatures(target).cluster_gap(model, 1, "", rows=1000)
    weights, moved = 0.0, np.zeros(len(model))
    for index in range(1, N + 1):
        trained = trainer_of(N, index, norm="batch").train(model, 1, 1.0)
        share = attention_share(first_order_gain(seen.gradient, trained.update), temperature=TEMPERATURE, bound=1.0)
        weights += trained.samples * share
        moved += trained.samples * share * trained.update

    assert found.watch.lines[0]["gap"] == seen.gap
    assert "target_features" in found.watch.phases
    assert "training at the target" not in found.watch.phases  # it has no labels
    assert "target_features" in found.watch.lines[0]["seconds"]
    assert "train_target" not in found.watch.lines[0]["seconds"]
    assert np.max(np.abs(found.run.model - (model + moved / weights))) < 1e-6


def test_exact_gains_are_computed_where_updates_are_seen_and_nothing_of_the_target_leaves(tmp_path: Path) -> None:
    exact = played(tmp_path / "exact", Visibility.INDIVIDUAL, attention_gain="exact")
    headers = [message.body for *_, message in exact.passed if is_header(message)]

    assert all(header.gap_gradient_digest == b"" for header in headers)
    assert all(line["target_update_to"] == [] for line in exact.watch.lines)
    first_order = played(tmp_path / "first", Visibility.INDIVIDUAL)
    assert not np.array_equal(exact.run.model, first_order.run.model)


def test_exact_gains_are_refused_where_nobody_could_compute_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^strategy.attention-gain: .* visibility sum") as refused:
        federation(tmp_path, attention_gain="exact")
    assert "first-order" in refused.value.hint


def test_the_gradient_goes_to_sources_at_sum_alone_and_is_recorded(tmp_path: Path) -> None:
    found = played(tmp_path)

    assert [line["target_update_to"] for line in found.watch.lines] == [
        [],
        *[[f"source-{index}" for index in (1, 2, 3, 4)]] * (ROUNDS - 1),
    ]


def test_a_policy_with_a_lower_bound_refuses_the_run_and_is_named(tmp_path: Path) -> None:
    found = federation(tmp_path, attention_bound=2.0).open().go()

    assert found.watch.lines == []
    assert "limits.attention-bound-max" in found.watch.text
    refusal = found.sources[1].standing.failure
    assert isinstance(refusal, PolicyRefusal)
    assert str(refusal) == "policy refuses limits.attention-bound-max: asked 2, allowed at most 1"
