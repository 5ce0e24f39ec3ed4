"""Strategy auto in a run: the errors that a round estimates choose the rule of the next one, at every level alike."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_definition import trained
from rounds_federation import TARGET, AnySigned, Federation, is_header, site_id
from rounds_fixed import fix
from rounds_liars import Liar

from securefda.operations.records import RoundLine
from securefda.protocol.messages import Header, MaskedInput, Visibility
from securefda.rules import CANDIDATES, Rule, TargetStatistics, choose_rule, delta_errors, mean_errors, round_plan

INDIVIDUAL, COHORT, SUM = Visibility
NO_CAPS = {"kappa": 0.0}
N = 6


def build(folder: Path, level: Visibility = SUM, n: int = N, rounds: int = 4, **options: Any) -> Federation:
    settings = NO_CAPS | options.pop("settings", {})
    return Federation(folder, n, visibility=level, settings=settings, rule="auto", rounds=rounds, **options)


def play(federation: Federation) -> Federation:
    federation.open().go()
    return federation


def errors_of(line: RoundLine) -> dict[Rule, float]:
    return {Rule(rule): error for rule, error in line["delta_errors"].items()}


def by_definition(federation: Federation) -> dict[Rule, float]:
    """Errors of round 1: means by samples over the sources."""
    sites = trained(federation)
    plan = round_plan(federation.settings.strategy, 1)
    statistics = TargetStatistics.from_batches(sites.steps)
    single = [
        delta_errors(
            plan,
            statistics,
            sites.target,
            sites.aligned[index],
            layers=sites.layers,
            step_updates=sites.steps,
        )
        for index in range(1, federation.n + 1)
    ]
    weights = [sites.samples[index] for index in range(1, federation.n + 1)]
    return dict(mean_errors(single, weights).by_rule(statistics.mean_variance))


def test_errors_at_sum_and_individual_are_the_means_over_the_sources(tmp_path: Path) -> None:
    masked, clear = (play(build(tmp_path / level.label, level, rounds=1)) for level in (SUM, INDIVIDUAL))
    expected = by_definition(masked)
    for federation in (masked, clear):
        (line,) = federation.watch.lines
        assert set(errors_of(line)) == set(CANDIDATES)
        assert errors_of(line) == pytest.approx(expected, rel=1e-3)
    assert errors_of(masked.watch.lines[0]) == pytest.approx(errors_of(clear.watch.lines[0]), rel=1e-6)


def test_in_mixed_levels_errors_are_those_of_all_sources_too(tmp_path: Path) -> None:
    permits = dict.fromkeys(range(3, N + 1), SUM)
    federation = play(build(tmp_path, INDIVIDUAL, rounds=1, permits=permits))
    assert errors_of(federation.watch.lines[0]) == pytest.approx(by_definition(federation), rel=1e-3)


@pytest.mark.parametrize("level", Visibility)
def test_the_rule_of_a_round_has_the_smallest_error_of_the_round_before(tmp_path: Path, level: Visibility) -> None:
    federation = play(build(tmp_path, level, rounds=5))
    lines = federation.watch.lines
    assert lines[0]["rule"] == "fedgp_auto"
    assert all(line["delta_errors"].keys() == set(CANDIDATES) for line in lines)
    for before, after in pairwise(lines):
        assert after["rule"] == choose_rule(errors_of(before))
    rules = {m.body.round: m.body.rule for *_, m in federation.passed if is_header(m)}
    assert [rules[number].rule for number in range(1, 6)] == [line["rule"] for line in lines]
    assert all(rule.select for rule in rules.values())


def test_warm_up_estimates_nothing_and_publishes_nothing_of_the_target(tmp_path: Path) -> None:
    federation = play(build(tmp_path, n=4, warm_up_rounds=2))
    lines = federation.watch.lines
    assert [line["rule"] for line in lines[:3]] == ["source_only", "source_only", "fedgp_auto"]
    assert ["delta_errors" in line for line in lines] == [False, False, True, True]
    assert [bool(line["target_update_to"]) for line in lines] == [False, False, True, True]


def test_a_rule_that_no_strategy_chooses_by_asks_for_no_errors(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rule="fedgp_auto", rounds=1)
    play(federation)
    assert "delta_errors" not in federation.watch.lines[0]
    assert not any(message.body.rule.select for *_, message in federation.passed if is_header(message))


def test_the_errors_of_a_lost_round_do_not_count(tmp_path: Path) -> None:
    federation = build(tmp_path, n=3, rounds=3)

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
        current = federation.round_in_progress
        lost = current is not None and current.number == 2 and sender == 1 and isinstance(message.body, MaskedInput)
        return None if lost else message

    federation.link = link
    play(federation)
    first, second, third = federation.watch.lines
    assert (second["status"], "delta_errors" in second) == ("lost", False)
    assert third["rule"] == choose_rule(errors_of(first))


def test_where_target_only_is_chosen_the_model_moves_by_its_update_and_the_sources_hand_in_zeros(
    tmp_path: Path,
) -> None:
    federation = build(tmp_path, n=4, rounds=2, settings={"kappa": 1.0})
    update = np.linspace(-0.2, 0.2, 15).astype(np.float32)
    fix(federation, TARGET, update)
    zeros: dict[int, bool] = {}

    def look(index: int) -> Any:
        def lie(encoded: Any, header: Header) -> None:
            if header.round == 2:
                zeros[index] = not np.any(encoded[: header.n_params])

        return lie

    federation.sources = {index: Liar(source, look(index)) for index, source in federation.sources.items()}
    before: dict[int, Any] = {}

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        if is_header(message):
            before.setdefault(message.body.round, federation.run.model.copy())
        return message

    federation.link = link
    play(federation)
    first, second = federation.watch.lines
    assert first["delta_errors"]["target_only"] == 0
    assert (second["rule"], second["status"], second["mean_beta"]) == ("target_only", "finished", None)
    assert zeros == dict.fromkeys(range(1, 5), True)
    assert np.array_equal(federation.run.model, (before[2] + update.astype(np.float64)).astype(np.float32))
    assert second["target_cosine"] == pytest.approx(1.0)
    assert second["survivors"] == [site_id(index) for index in range(1, 5)]
    assert second["emptied"] == []  # by the rule, and not by norm caps
    assert set(second["delta_errors"]) == set(CANDIDATES)
