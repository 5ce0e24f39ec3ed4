"""Visibility ``cohort`` in a run: the rule over the means of cohorts, and what happens when sources are lost."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import TARGET, AnySigned, Federation, is_header, site_id, trainer_of
from rounds_liars import KEPT, SAMPLES, Liar

from securefda.aggregator.target import train_target
from securefda.operations.records import RoundLine
from securefda.protocol.messages import (
    Abort,
    MaskedInput,
    Visibility,
)
from securefda.protocol.weighed_contribution import aligned_update, alignment_of, alignment_share
from securefda.rules import ContributionSum, Strategy, contribute, round_plan
from securefda.site.policy.schema import MetadataPolicy

N = 8


def play(folder: Path, n: int = N, *, link: Any = None, settings: dict[str, Any] | None = None, **strategy: Any) -> Any:
    federation = Federation(folder, n, visibility=Visibility.COHORT, settings=settings, **strategy)
    federation.link = link or federation.link
    federation.open().go()
    return federation


def cohorts_of(line: RoundLine) -> list[list[str]]:
    """Who was summed together."""
    return [seen["members"] for seen in line["seen"] if seen["level"] == "cohort"]


def in_clear(federation: Federation, rule: str, cohorts: list[list[str]], **plan: Any) -> Any:
    """The model after one round, from the sources' updates as they train them, cohort by cohort."""
    strategy = Strategy(rule=rule, rounds=1, warm_up_rounds=0, **plan)  # type: ignore[arg-type]
    the_plan = round_plan(strategy, 1)
    trainer = trainer_of(N, TARGET)
    model = trainer.initial_model()
    target = train_target(trainer, model, 1, the_plan)
    header = next(message.body for *_, message in federation.passed if is_header(message))
    total = ContributionSum(trainer.n_params)
    for cohort in cohorts:
        results = [trainer_of(N, int(name.removeprefix("source-"))).train(model, 1, 1.0) for name in cohort]
        samples = sum(result.samples for result in results)
        factors = [alignment_of(header, steps=one.steps, learning_rate=one.learning_rate) for one in results]
        aligned = [aligned_update(header, one.update, factor) for one, factor in zip(results, factors, strict=True)]
        mean = sum(one.samples * each.astype(np.float64) for one, each in zip(results, aligned, strict=True)) / samples
        shares = [alignment_share(factor) for factor in factors]
        share = np.average(shares, weights=[one.samples for one in results])
        part = contribute(
            the_plan,
            target.statistics if target else None,
            target.result.update if target else None,
            mean,
            alignment=share / (1 - share) if the_plan.aligns_estimates_only else 1.0,
            layers=trainer.sizes,
            step_updates=target.step_updates if target else None,
        )
        total.add(part, samples)
    return model + total.combine(the_plan.rule, target.result.update if target else None)


@pytest.mark.parametrize("rule", ["fedda", "fedgp", "fedda_auto", "fedgp_auto", "source_only"])
def test_the_rule_is_evaluated_on_the_mean_of_each_cohort(tmp_path: Path, rule: str) -> None:
    federation = play(tmp_path, rule=rule, rounds=1, warm_up_rounds=0)
    (line,) = federation.watch.lines
    assert line["status"] == "finished"
    assert sorted(map(len, cohorts_of(line))) == [4, 4]
    assert sorted(itertools.chain(*cohorts_of(line))) == sorted(line["survivors"])
    expected = in_clear(federation, rule, cohorts_of(line))
    assert np.max(np.abs(federation.run.model - expected)) < 1e-6
    one_cohort = in_clear(federation, rule, [line["survivors"]])
    assert (np.max(np.abs(one_cohort - expected)) < 1e-9) == (rule in ("source_only", "fedda"))


def test_a_rule_over_single_steps_runs_at_cohort_since_the_target_has_them(tmp_path: Path) -> None:
    federation = play(tmp_path, rule="fedgp_auto", estimator="exact", rounds=1, warm_up_rounds=0)
    (line,) = federation.watch.lines
    expected = in_clear(federation, "fedgp_auto", cohorts_of(line), estimator="exact")
    assert np.max(np.abs(federation.run.model - expected)) < 1e-6


@pytest.mark.parametrize("rule", ["fedda_auto", "fedgp_auto"])
def test_a_cohort_of_unaligned_updates_has_the_beta_of_its_mean_alignment(tmp_path: Path, rule: str) -> None:
    federation = play(tmp_path, rule=rule, align=False, rounds=1, warm_up_rounds=0)
    (line,) = federation.watch.lines
    expected = in_clear(federation, rule, cohorts_of(line), align=False)
    assert np.max(np.abs(federation.run.model - expected)) < 1e-6


def test_a_source_that_keeps_its_number_of_rows_refuses_a_cohort_that_only_aligns_estimates(tmp_path: Path) -> None:
    federation = Federation(tmp_path, N, visibility=Visibility.COHORT, rule="fedda_auto", rounds=1, align=False)
    federation.sources[3] = federation.source(3, policy=federation.policy(3, metadata=MetadataPolicy()))
    federation.open().go()
    (line,) = federation.watch.lines
    assert line["refused"] == {"source-3": "metadata.may-leave"}
    assert not [one for sender, _, one in federation.passed if sender == 3 and isinstance(one.body, MaskedInput)]


def test_cohorts_are_drawn_anew_in_every_round(tmp_path: Path) -> None:
    """Eight sources in two fours, 35 ways: five rounds are all alike once in 1.5 million runs."""
    federation = play(tmp_path, rule="source_only", rounds=5)
    splits = {tuple(sorted(map(tuple, cohorts_of(line)))) for line in federation.watch.lines}
    assert len(splits) > 1


def test_a_cohort_that_loses_too_many_is_given_up_while_others_finish(tmp_path: Path) -> None:
    lost: set[int] = set()
    given_up: set[int] = set()

    def lossy(sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
        if isinstance(message.body, MaskedInput) and not lost:
            cohorts = federation.attempt._state.totals  # type: ignore[union-attr]
            given_up.update(next((cohort for cohort in cohorts if sender in cohort and len(cohort) == 4), ()))
            lost.update(sorted(given_up)[:2])
        in_round_1 = federation.round_in_progress is not None and federation.round_in_progress.number == 1
        return None if in_round_1 and sender in lost and isinstance(message.body, MaskedInput) else message

    federation = Federation(tmp_path, 13, visibility=Visibility.COHORT, rule="source_only", rounds=2)
    federation.link = lossy
    federation.open().go()
    first, second = federation.watch.lines
    assert first["status"] == second["status"] == "finished"
    assert {site_id(index) for index in given_up} == set(first["dropped"])
    assert len(cohorts_of(first)) == 2
    checks = {to: message.body.check for _, to, message in federation.passed if isinstance(message.body, Abort)}
    assert checks == {index: "DEADLINE" if index in lost else "COHORT_QUORUM" for index in given_up}
    for index, check in checks.items():
        (alarm,) = federation.watch.alarms[index]
        assert check in str(alarm)


@pytest.mark.parametrize("claimed", [[KEPT, SAMPLES], [KEPT]], ids=["samples", "alignment"])
def test_a_lying_cohort_is_found_before_its_mean_is_used(tmp_path: Path, claimed: list[int]) -> None:
    """Every member claims no samples, or no alignment: its mean, or its mean step, would be anything at all."""
    federation = Federation(
        *(tmp_path, N), visibility=Visibility.COHORT, rule="fedgp_auto", rounds=1, warm_up_rounds=0, align=False
    )

    def claim_nothing(encoded: Any, _: Any) -> None:
        encoded[claimed] = 0

    for index, source in federation.sources.items():
        federation.sources[index] = Liar(source, claim_nothing)
    federation.open()
    before = federation.run.model.copy()
    federation.go()
    assert federation.statuses == ["lost"]
    assert "alarm: a source lied about its contribution" in federation.watch.text
    assert np.array_equal(federation.run.model, before)


def test_run_settings_choose_cohorts_that_can_lose_one_source(tmp_path: Path) -> None:
    federation = play(tmp_path, rule="source_only", rounds=1)
    header = next(message.body for *_, message in federation.passed if is_header(message))
    assert (header.cohort_size, header.cohort_quorum) == (4, 3)
    assert replace(federation.settings, max_colluders=1, cohort_size=0).cohort_size == 5
