"""T12: what sums of many rounds tell of one source's update, where the sources in them weigh differently.

Sources really train. With one batch an epoch an update repeats whenever the model does; with several it is another one
in each round, since each source draws its batches from a secret of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from securefda.audit.log_records import Entry
from securefda.audit.reading import open_log
from securefda.protocol.messages import Advertise, Header, MaskedInput
from securefda.protocol.secret import Secret
from securefda.rules import Strategy
from securefda.site.policy import SourcePolicy, default_policy
from securefda.site.training_secret import TrainingSecret
from securefda.training import Vector
from securefda.training.trainer import SiteTrainer
from tests.transport.transport_kit import Sites
from threat_model.adversaries.many_sums import LeavesOneOut, RaisesCap, TurnsTarget, WeighsAnew
from threat_model.over_tls import play_over_tls
from threat_model.private_sites import Candidates, plain_trainer, rows_of, sgd
from threat_model.scores import RECOVERED_COSINE, cosine
from threat_model.sites import CLIP, MAX_SAMPLES
from threat_model.stage import MakesStage, Stage
from threat_model.switches import BATCHES_ANEW, POLICY, checks_off, switched_off

N, VICTIM = 5, 2
ALL = range(1, N + 1)
ROWS = (36, 44, 52, 60, 68)
LONGEST = 5
"""With most rows and the longest features."""

WHOLE, SMALL = 100, 10
"""Rows of a batch: all that a source has, or a few."""

ROUNDS = 40


def site(index: int, batch: int) -> SiteTrainer:
    """One epoch on rows in random directions, a little longer at each source; its secret is known to the test."""
    rows = Candidates.drawn(ROWS[index - 1], seed=index)
    data = rows_of(rows.features * (1 + 0.15 * index), rows.labels)
    return plain_trainer(data, sgd(0.5, batch), secret=TrainingSecret(Secret(bytes([index]) * 32)))


def play(
    staged: MakesStage,
    aggregator: Any,
    *,
    batch: int,
    rounds: int,
    rule: str = "source_only",
    kappa: float = 0.0,
    threshold: int = 0,
    policies: Mapping[int, SourcePolicy] | None = None,
    recorded: bool = False,
) -> Stage:
    return staged(
        N,
        aggregator=aggregator,
        trainers={index: site(index, batch) for index in ALL},
        policies=policies,
        recorded=recorded,
        settings={"strategy": Strategy(rule=rule, rounds=rounds), "kappa": kappa, "threshold": threshold},  # type: ignore[arg-type]
    )


def updates(stage: Stage, index: int, batch: int, rounds: int) -> list[Vector]:
    """Return a source's update in each round from the first model."""
    trainer, run = site(index, batch), stage.adversary.run_id
    return [trainer.train(trainer.initial_model(), number, 1.0, run_id=run).update for number in range(1, rounds + 1)]


def mean_update(stage: Stage, index: int, batch: int, rounds: int) -> Vector:
    """The mean of these: what an attacker who asks again and again can learn at most."""
    return np.mean(updates(stage, index, batch, rounds), axis=0, dtype=np.float32)


def best(estimates: Any, secret: Vector) -> float:
    """Cosine of the estimate that is nearest."""
    return max(cosine(estimate, secret) for estimate in np.atleast_2d(estimates))


def policy(**changes: Any) -> SourcePolicy:
    permits = default_policy("sum", 2, 0, 2, clip=CLIP, max_samples=MAX_SAMPLES, kappa=0.0)
    return permits.model_copy(update=changes)


# Weights that the target chooses anew in each round.


def weighed(staged: MakesStage, batch: int, **options: Any) -> Stage:
    return play(staged, WeighsAnew, batch=batch, rounds=ROUNDS, rule="fedda_auto", **options)


def found(stage: Stage, batch: int) -> list[float]:
    """Return how near the attacker comes to each source's update."""
    estimates = stage.adversary.attack()
    assert len(stage.adversary.opened) == ROUNDS
    return [best(estimates, mean_update(stage, index, batch, ROUNDS)) for index in ALL]


@pytest.mark.threat("T12")
@pytest.mark.control
def test_every_update_is_solved_for_from_forty_sums_where_batches_are_those_of_the_first_round(
    staged: MakesStage,
) -> None:
    """In one play of ten the search for the lengths ends away from the truth. The attacker has three."""
    nearest = 0.0
    for _ in range(3):
        stage = weighed(staged, SMALL)
        with switched_off(BATCHES_ANEW, roster=stage.roster):
            stage.play()
            nearest = max(nearest, min(found(stage, SMALL)))
        if nearest > RECOVERED_COSINE:
            break
    assert nearest > RECOVERED_COSINE


@pytest.mark.threat("T12")
def test_forty_sums_tell_little_more_than_one_where_batches_are_drawn_anew(staged: MakesStage) -> None:
    stage = weighed(staged, SMALL).play()
    sum_alone = stage.adversary.opened[0].vector
    known = [cosine(sum_alone, mean_update(stage, index, SMALL, ROUNDS)) for index in ALL]
    learnt = found(stage, SMALL)
    assert max(learnt) < 0.85
    assert float(np.mean(learnt)) < float(np.mean(known)) + 0.25


@pytest.mark.threat("T12")
def test_every_update_is_solved_for_where_all_rows_are_one_batch(staged: MakesStage) -> None:
    """A residual: nothing is drawn, so there is nothing that could be drawn anew."""
    assert min(found(weighed(staged, WHOLE).play(), WHOLE)) > 0.999


@pytest.mark.threat("T12")
def test_norm_cap_keeps_some_updates_from_being_solved_for_and_not_all(staged: MakesStage) -> None:
    """A residual risk: the attacker ignores the caps, and comes near one update all the same."""
    assert max(found(weighed(staged, WHOLE, kappa=1.0).play(), WHOLE)) > 0.95


@pytest.mark.threat("T12")
def test_policy_without_rules_that_weigh_by_statistics_takes_no_part(staged: MakesStage) -> None:
    strict = policy(allowed_rules=("source_only", "fedda"))
    stage = weighed(staged, WHOLE, policies=dict.fromkeys(ALL, strict)).play()
    for index in ALL:
        assert set(stage.refusals(index)) == set(stage.alarms(index)) == {"allowed-rules"}
        assert not any(stage.said(index, kind) for kind in (Advertise, MaskedInput))
    assert not stage.adversary.opened


@pytest.mark.threat("T12")
@pytest.mark.control
def test_every_update_is_solved_for_where_such_a_policy_is_not_compared(staged: MakesStage) -> None:
    stage = weighed(staged, WHOLE, policies=dict.fromkeys(ALL, policy(allowed_rules=("source_only", "fedda"))))
    with switched_off(POLICY, roster=stage.roster):
        stage.play()
    assert min(found(stage, WHOLE)) > RECOVERED_COSINE


# An update of the target that it chooses anew in each round.


def turned(staged: MakesStage, batch: int, kappa: float = 0.0) -> list[float]:
    """Return how near the attacker comes to each source's update, in the largest layer."""
    stage = play(staged, TurnsTarget, batch=batch, rounds=ROUNDS, rule="fedgp", kappa=kappa).play()
    estimates = stage.adversary.attack()
    assert len(stage.adversary.opened) == ROUNDS
    return [best(estimates, mean_update(stage, index, batch, ROUNDS)[: estimates.shape[1]]) for index in ALL]


@pytest.mark.threat("T12")
@pytest.mark.control
@pytest.mark.parametrize(("batch", "least"), [(WHOLE, 0.999), (SMALL, 0.9)], ids=["one batch", "batches of ten"])
def test_direction_of_every_update_is_solved_for_under_fedgp_without_a_norm_cap(
    staged: MakesStage, batch: int, least: float
) -> None:
    """No switch: the policy's own ``norm-cap.kappa``. Batches that are drawn anew help little."""
    assert float(np.mean(turned(staged, batch))) > least


@pytest.mark.threat("T12")
def test_no_update_is_solved_for_under_fedgp_with_a_norm_cap(staged: MakesStage) -> None:
    found_of = turned(staged, WHOLE, kappa=1.0)
    assert max(found_of) < RECOVERED_COSINE
    assert float(np.mean(found_of)) < 0.85


# A set that changes.


def left_out(staged: MakesStage, batch: int, rounds: int, *, moves: bool = False, **options: Any) -> Stage:
    return play(staged, partial(LeavesOneOut, victim=VICTIM, moves=moves), batch=batch, rounds=rounds, **options)


def difference(stage: Stage, batch: int, rounds: int) -> float:
    """Cosine of the attacker's difference with the victim's mean update in the rounds in which it took part."""
    return best(stage.adversary.attack(), mean_update(stage, VICTIM, batch, rounds // 2))


@pytest.mark.threat("T12")
@pytest.mark.control
def test_difference_of_two_sums_is_the_one_update_where_batches_are_those_of_the_first_round(
    staged: MakesStage,
) -> None:
    stage = left_out(staged, SMALL, 2)
    with switched_off(BATCHES_ANEW, roster=stage.roster):
        stage.play()
        assert difference(stage, SMALL, 2) > 1 - 1e-6


@pytest.mark.threat("T12")
def test_difference_of_two_sums_is_not_the_one_update_where_batches_are_drawn_anew(staged: MakesStage) -> None:
    assert difference(left_out(staged, SMALL, 2).play(), SMALL, 2) < 0.75


@pytest.mark.threat("T12")
def test_differences_of_forty_sums_are_nearly_the_mean_update(staged: MakesStage) -> None:
    """A residual: who asks again and again takes the mean, and the batches of single rounds vanish from it."""
    assert difference(left_out(staged, SMALL, ROUNDS).play(), SMALL, ROUNDS) > 0.88


@pytest.mark.threat("T12")
@pytest.mark.parametrize("moves", [False, True], ids=["one model", "the next model"])
def test_difference_is_the_one_update_where_all_rows_are_one_batch(staged: MakesStage, moves: bool) -> None:
    """A residual, also where the target is honest, publishes the next model, and a source was just away."""
    assert difference(left_out(staged, WHOLE, 2, moves=moves).play(), WHOLE, 2) > RECOVERED_COSINE


@pytest.mark.threat("T12")
def test_others_take_no_part_without_the_victim_where_their_policies_ask_for_all(staged: MakesStage) -> None:
    stage = left_out(staged, WHOLE, 2, threshold=N, policies=dict.fromkeys(ALL, policy(min_others=N - 1))).play()
    for index in set(ALL) - {VICTIM}:
        assert stage.alarms(index) == ["min-others"]
        assert len(stage.said(index, MaskedInput)) == 1
    assert stage.adversary.attack() is None


@pytest.mark.threat("T12")
@pytest.mark.control
def test_difference_is_the_one_update_where_their_policies_ask_for_two_others(staged: MakesStage) -> None:
    """No switch: the policies' own ``min-others``."""
    stage = left_out(staged, WHOLE, 2, threshold=N, policies=dict.fromkeys(ALL, policy(min_others=2))).play()
    assert difference(stage, WHOLE, 2) > RECOVERED_COSINE


# A norm cap that rises.


def raised(staged: MakesStage) -> Stage:
    return play(staged, partial(RaisesCap, most=2.0), batch=WHOLE, rounds=16, kappa=1.0)


@pytest.mark.threat("T12")
def test_header_whose_norm_cap_is_not_that_of_earlier_rounds_is_refused(staged: MakesStage) -> None:
    stage = raised(staged).play()
    for index in ALL:
        assert stage.refusals(index)[0] == stage.alarms(index)[0] == "HEADER_TERMS"
        assert len(stage.said(index, MaskedInput)) == stage.accepted(index) == 1
    assert stage.adversary.attack() is None


@pytest.mark.threat("T12")
@pytest.mark.control
def test_longest_update_is_the_difference_of_two_sums_where_the_norm_cap_may_rise(staged: MakesStage) -> None:
    stage = raised(staged)
    with switched_off(checks_off("HEADER_TERMS"), roster=stage.roster):
        stage.play()
    assert best(stage.adversary.attack(), updates(stage, LONGEST, WHOLE, 1)[0]) > 0.95


class NamesMore(RaisesCap):
    """Raises the cap in a header that also names a site which is away, so that as many sources are there."""

    def participants(self) -> set[int]:
        return set(range(1, N + 1 + len(self.sessions)))

    def header_for(self, index: int) -> Header | None:
        return None if index > N else super().header_for(index)


@pytest.mark.threat("T12")
def test_norm_cap_is_that_of_earlier_rounds_however_many_sources_a_header_names(staged: MakesStage) -> None:
    trainers = {index: site(min(index, N), WHOLE) for index in range(1, N + 2)} | {0: site(1, WHOLE)}
    settings = {"strategy": Strategy(rule="source_only", rounds=2), "kappa": 1.0}
    stage = staged(N + 1, aggregator=partial(NamesMore, most=2.0), trainers=trainers, settings=settings).play()
    for index in ALL:
        assert stage.refusals(index) == stage.alarms(index) == ["HEADER_TERMS"]


# The same over gRPC with mutual TLS. Sites are in this process, so that the switch reaches the sources' code.


def over_tls(staged: MakesStage, *, gives_up: bool = False, rounds: int = 16) -> Stage:
    aggregator = partial(RaisesCap, most=2.0, gives_up=gives_up)
    return play(staged, aggregator, batch=WHOLE, rounds=rounds, kappa=1.0, recorded=True)


def in_the_log(stage: Stage, index: int) -> list[Entry]:
    """The records of a source's own audit log, once the stage is closed."""
    return [record.entry for record in open_log(stage.log(index)).records()]


@pytest.mark.threat("T12")
def test_raised_norm_cap_is_refused_over_tls_and_the_honest_round_after_it_is_answered(staged: MakesStage) -> None:
    stage, sites = over_tls(staged, gives_up=True, rounds=3), Sites(N)
    play_over_tls(stage, sites.target, sites.sources)
    stage.close()
    for index in ALL:
        assert stage.refusals(index) == stage.alarms(index) == ["HEADER_TERMS"]
        assert [one["round"] for one in stage.watches[index].records] == [1, 3]
        log = in_the_log(stage, index)
        assert [(one.facts["check"], one.facts["accused"]) for one in log if one.type == "alarm"] == [
            ("HEADER_TERMS", ["target"])
        ]
        assert [one.round for one in log if one.decision and one.decision.verdict == "refused"] == [2]
        assert [one.round for one in log if (one.direction, one.type) == ("sent", "MaskedInput")] == [1, 3]
    assert stage.adversary.attack() is None


@pytest.mark.threat("T12")
@pytest.mark.control
def test_longest_update_is_the_difference_of_two_sums_over_tls_where_the_norm_cap_may_rise(staged: MakesStage) -> None:
    stage, sites = over_tls(staged), Sites(N)
    with switched_off(checks_off("HEADER_TERMS"), roster=stage.roster):
        play_over_tls(stage, sites.target, sites.sources)
    assert best(stage.adversary.attack(), updates(stage, LONGEST, WHOLE, 1)[0]) > 0.95
