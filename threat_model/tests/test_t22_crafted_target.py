"""T22: however a target makes up its update, no source dwarfs the others that are left of a sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from securefda.protocol.messages import Advertise, Granularity
from securefda.protocol.transcript import architecture_digest
from securefda.rules import Strategy
from securefda.site.policy import SourcePolicy, WorkLimits, default_policy
from securefda.training import Vector
from threat_model.adversaries.crafted_target import ClaimsNorm, CraftsTarget, Multiples, Search, target_update_for
from threat_model.scores import RECOVERED_COSINE, cosine, cosine_under_norm_caps
from threat_model.sites import CLIP, MAX_SAMPLES, TARGET, KnownUpdates, known_update, samples_of
from threat_model.stage import MakesStage, Stage
from threat_model.switches import CAPS_ON_ITS_OWN_PART, NORM_CAP, ONLY_THE_SMALLEST_COUNT, POLICY, switched_off
from threat_model.watched import WatchedAggregator

HALVES = (("body", (2048,)), ("head", (2048,)))
SIZES = (2048, 2048)
"""Two layers in which updates that have nothing to do with each other are about orthogonal: cosine 0.02 by chance."""

VICTIM, N = 1, 5
LEFT = 3
"""Four of five sources must survive: the victim and three others."""

UpdatesOf = Callable[[int, int, Vector], Vector]


@pytest.fixture(autouse=True)
def two_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sites train a model of two equal layers."""
    monkeypatch.setattr(KnownUpdates, "layers", HALVES)
    monkeypatch.setattr(KnownUpdates, "sizes", SIZES)
    monkeypatch.setattr(KnownUpdates, "architecture_digest", architecture_digest(HALVES))


def updates_of(n: int, updates: UpdatesOf = known_update) -> dict[int, Vector]:
    """Return the attacker's prior knowledge, by roster index."""
    return {index: updates(index, 1, np.zeros(sum(SIZES), np.float32)) for index in range(1, n + 1)}


def weights_of(n: int) -> dict[int, float]:
    """Return rows in units of ``max_samples``, by roster index."""
    return {index: samples_of(index) / MAX_SAMPLES for index in range(1, n + 1)}


def search(n: int = N, *, updates: UpdatesOf = known_update, **how: Any) -> Search:
    """Return the attacker's simulation; by default of five sources, of which one may be lost."""
    defaults: dict[str, Any] = {"kappa": 1.0, "others": LEFT, "kept": LEFT, "negative": False}
    return Search(updates_of(n, updates), weights_of(n), SIZES, VICTIM, **(defaults | how))


def multiplied(*of_sources: float, layers: int = 2) -> Multiples:
    """The same multiples in each layer."""
    return np.tile(np.array(of_sources, np.float64), (layers, 1))


LONG = 1e6
"""So that no update of the target is too long (T40): what holds here holds whatever its length."""


def crafted(
    staged: MakesStage,
    multiples: Multiples,
    *,
    updates: UpdatesOf = known_update,
    filtered: bool = True,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Stage:
    """A stage whose target publishes the update that gives the sources these multiples, under FedGP with beta = 1."""
    n = multiples.shape[1]
    known = updates_of(n, updates)
    update = target_update_for(multiples, known, SIZES)
    strategy = Strategy(rule="fedgp", beta=1.0, rounds=1, filter=filtered)
    return staged(
        n,
        aggregator=partial(CraftsTarget, victim=VICTIM, update=update, known=known, weights=weights_of(n)),
        updates=updates,
        settings={"strategy": strategy, "kappa": 1.0, **(settings or {})},
        model_step=LONG,
        **options,
    )


def opened(stage: Stage) -> Any:
    """Return the sum that the attacker opened, without the terms of colluders, (m,)."""
    return stage.adversary.attack().vector


def exposure(stage: Stage) -> float:
    """Cosine of what the attacker opened and what the victim put in: its update, with whichever factor in each layer.

    0 where the sum holds nothing.
    """
    total, own = opened(stage), stage.update(VICTIM).astype(np.float64)
    parts = [slice(0, SIZES[0]), slice(SIZES[0], None)]
    along = [total[part] @ own[part] / np.linalg.norm(own[part]) for part in parts]
    return float(np.linalg.norm(along) / np.linalg.norm(total)) if np.any(total) else 0.0


FORMS = ["alone", "against the others", "searched"]


def form(name: str, searching: Search) -> Multiples:
    """The multiples that an attacker asks for: one of the closed forms, or the best that a search found."""
    if name == "searched":
        return searching.best(starts=6, sweeps=8, seed=22)[0]
    return searching.closed_forms()[FORMS.index(name)]


def like_minded_but_one(index: int, round_number: int, received: Vector) -> Vector:
    """All sources but the victim make nearly the same update, cosine 0.97."""
    own = known_update(index, round_number, received)
    if index in (VICTIM, TARGET):
        return own
    shared: Vector = (0.85 * known_update(100, round_number, received) + 0.15 * own).astype(np.float32)
    return shared


CASES = [
    (kappa, granularity, updates)
    for kappa in (1.0, 2.0)
    for granularity in Granularity
    for updates in (known_update, like_minded_but_one)
]


@pytest.mark.threat("T22")
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("kappa", "granularity", "updates"), CASES)
def test_no_crafted_target_brings_a_sum_nearer_to_the_victim_than_the_rule_allows(
    staged: MakesStage, kappa: float, granularity: Granularity, updates: UpdatesOf, name: str
) -> None:
    known = search(updates=updates, kappa=kappa, by_layer=granularity is Granularity.LAYER)
    settings = {"kappa": kappa, "norm_cap_granularity": granularity}
    stage = crafted(staged, form(name, known), updates=updates, settings=settings).play()
    assert stage.accepted(VICTIM) == 1
    assert exposure(stage) <= cosine_under_norm_caps(kappa)


@pytest.mark.threat("T22")
@pytest.mark.control
@pytest.mark.parametrize("name", ["alone", "against the others"])
def test_sum_is_the_victims_alone_where_nobody_scales_to_the_caps(staged: MakesStage, name: str) -> None:
    stage = crafted(staged, form(name, search()))
    with switched_off(NORM_CAP, roster=stage.roster):
        stage.play()
    assert exposure(stage) > RECOVERED_COSINE


# Auto-beta: the weights follow from distances, and so from what the target says of itself.


def with_auto_beta(staged: MakesStage, rule: str) -> Stage:
    """FedDA weights sources that agree with the target, where the target's steps hardly scatter; FedGP projects."""
    known = updates_of(N)
    alone = target_update_for(multiplied(1, 0, 0, 0, 0), known, SIZES)
    update, scatter = (known[VICTIM], 1e-9) if rule == "fedda_auto" else (alone, 1e6)
    return staged(
        N,
        aggregator=partial(
            CraftsTarget, victim=VICTIM, update=update, known=known, weights=weights_of(N), scatter=scatter
        ),
        settings={"strategy": Strategy(rule=rule, rounds=1), "kappa": 1.0},
        model_step=LONG,
    )


@pytest.mark.threat("T22")
@pytest.mark.parametrize("rule", ["fedda_auto", "fedgp_auto"])
def test_weights_that_a_target_lies_about_do_not_isolate_either(staged: MakesStage, rule: str) -> None:
    assert exposure(with_auto_beta(staged, rule).play()) <= cosine_under_norm_caps(1.0)


@pytest.mark.threat("T22")
@pytest.mark.control
@pytest.mark.parametrize("rule", ["fedda_auto", "fedgp_auto"])
def test_weights_that_a_target_lies_about_isolate_where_nobody_scales(staged: MakesStage, rule: str) -> None:
    stage = with_auto_beta(staged, rule)
    with switched_off(NORM_CAP, roster=stage.roster):
        stage.play()
    assert exposure(stage) > RECOVERED_COSINE


# Auto-beta per layer: to each layer a source adds a multiple of the target's own update, which the target takes out.


def per_layer(staged: MakesStage) -> Stage:
    """The sources hold with the target in the body; in the head the filter leaves the victim only."""
    known = updates_of(N)
    update = target_update_for(np.array([[1.0] * N, [1, 0, 0, 0, 0]]), known, SIZES)
    return staged(
        N,
        aggregator=partial(CraftsTarget, victim=VICTIM, update=update, known=known, weights=weights_of(N)),
        settings={"strategy": Strategy(rule="fedgp_auto", rounds=1, beta_per_layer=True), "kappa": 1.0},
        model_step=LONG,
    )


def exposure_beside_the_target(stage: Stage) -> float:
    """Cosine of what was opened of the head and the victim's update, both without what lies along the target's."""
    known = target_update_for(np.array([[1.0] * N, [1, 0, 0, 0, 0]]), updates_of(N), SIZES)
    along = known[SIZES[0] :] / np.linalg.norm(known[SIZES[0] :])
    total, own = (vector[SIZES[0] :].astype(np.float64) for vector in (opened(stage), stage.update(VICTIM)))
    return cosine(total - (total @ along) * along, own - (own @ along) * along)


@pytest.mark.threat("T22")
def test_the_targets_own_update_does_not_count_as_that_of_others(staged: MakesStage) -> None:
    assert abs(exposure_beside_the_target(per_layer(staged).play())) < 0.3  # noise of float32: the layer is empty


@pytest.mark.threat("T22")
@pytest.mark.control
def test_layer_is_the_victims_alone_where_the_targets_own_update_counts_as_that_of_others(staged: MakesStage) -> None:
    stage = per_layer(staged)
    with switched_off(CAPS_ON_ITS_OWN_PART, roster=stage.roster):
        stage.play()
    assert exposure_beside_the_target(stage) > RECOVERED_COSINE


# Losing the large ones after everybody has released.

SEVEN, LEFT_OF_SEVEN = 7, 4
LARGE_ONES_STAND_IN = multiplied(1, 1, 1, 0.001, 0.001, 0.001, 0.001)
"""Two others as large as the victim, who are lost afterwards, and four with as good as nothing."""


@pytest.mark.threat("T22")
@pytest.mark.parametrize("name", ["the large ones stand in", "searched"])
def test_others_that_are_lost_after_the_release_do_not_count(staged: MakesStage, name: str) -> None:
    known = search(SEVEN, others=LEFT_OF_SEVEN, kept=LEFT_OF_SEVEN)
    multiples = known.best(starts=3, sweeps=6, seed=22)[0] if name == "searched" else LARGE_ONES_STAND_IN
    stage = crafted(staged, multiples).play()
    assert stage.adversary.heard.header.norm_cap.others == LEFT_OF_SEVEN
    assert len(stage.adversary.summed) == LEFT_OF_SEVEN + 1
    assert exposure(stage) <= cosine_under_norm_caps(1.0)


@pytest.mark.threat("T22")
@pytest.mark.control
def test_victim_is_alone_once_the_large_ones_are_lost_where_all_others_count(staged: MakesStage) -> None:
    stage = crafted(staged, LARGE_ONES_STAND_IN)
    with switched_off(ONLY_THE_SMALLEST_COUNT, roster=stage.roster):
        stage.play()
    assert stage.adversary.summed == {VICTIM, 4, 5, 6, 7}
    assert exposure(stage) > RECOVERED_COSINE


# Colluders, who may claim what they like.

COLLUDERS = {6, 7}
HONEST_LEFT = 2
"""Five of seven sources must survive: the victim, both colluders and two others."""
COLLUDERS_STAND_IN = multiplied(1, 0.001, 0.001, 1, 1, 1, 1)


def colluding(staged: MakesStage, multiples: Multiples, factor: float, *, max_colluders: int, **options: Any) -> Stage:
    """Two colluders that claim so many times the norms that they have; all sources expect ``max_colluders``."""
    sources = dict.fromkeys(COLLUDERS, partial(ClaimsNorm, factor=factor))
    return crafted(staged, multiples, sources=sources, settings={"max_colluders": max_colluders}, **options)


@pytest.mark.threat("T22")
@pytest.mark.parametrize("factor", [0.0, 0.1, 1.0, 1e6])
@pytest.mark.parametrize("name", ["the colluders stand in", "searched"])
def test_colluders_that_claim_more_or_less_than_they_have_do_not_expose_a_source_that_reckons_with_them(
    staged: MakesStage, name: str, factor: float
) -> None:
    claims = dict.fromkeys(COLLUDERS, factor)
    known = search(SEVEN, others=HONEST_LEFT, kept=HONEST_LEFT, colluders=claims)
    multiples = known.best(starts=2, sweeps=6, seed=22)[0] if name == "searched" else COLLUDERS_STAND_IN
    stage = colluding(staged, multiples, factor, max_colluders=len(COLLUDERS)).play()
    assert stage.alarms(VICTIM) == []
    assert exposure(stage) <= cosine_under_norm_caps(1.0)


@pytest.mark.threat("T22")
@pytest.mark.control
@pytest.mark.parametrize("factor", [1.0, 1e6])
def test_colluders_stand_in_for_others_where_sources_reckon_with_none(staged: MakesStage, factor: float) -> None:
    """No switch: the victim's own max-colluders is 0."""
    stage = colluding(staged, COLLUDERS_STAND_IN, factor, max_colluders=0).play()
    assert exposure(stage) > RECOVERED_COSINE


def policy(**changes: Any) -> SourcePolicy:
    """The policy of the stage's sources, but for these keys."""
    permits = default_policy("sum", 2, 0, 2, clip=CLIP, max_samples=MAX_SAMPLES)
    return permits.model_copy(update=changes)


@pytest.mark.threat("T22")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"max_colluders": 2}, "max-colluders"),
        ({"trusted_peers": ("source-2", "source-3", "source-4", "source-5")}, "trusted-peers"),
    ],
)
def test_header_that_counts_others_who_may_collude_is_refused(
    staged: MakesStage, changes: dict[str, Any], why: str
) -> None:
    stage = colluding(staged, COLLUDERS_STAND_IN, 1e6, max_colluders=0, policies={VICTIM: policy(**changes)}).play()
    assert stage.refusals(VICTIM) == [why]
    assert not stage.said(VICTIM, Advertise)


@pytest.mark.threat("T22")
def test_source_itself_counts_who_may_collude_where_the_policy_is_not_compared(staged: MakesStage) -> None:
    stage = colluding(staged, COLLUDERS_STAND_IN, 1e6, max_colluders=0, policies={VICTIM: policy(max_colluders=2)})
    with switched_off(POLICY, roster=stage.roster):
        stage.play()
    assert stage.refusals(VICTIM) == ["HEADER_NORM_CAP"]


# A single layer, where the rule holds for the model as a whole.

ALONE_IN_THE_HEAD = np.array([[0.3, 1, 1, 1, 1], [1, 0, 0, 0, 0]], np.float64)


def exposure_in_the_head(stage: Stage) -> float:
    return abs(cosine(opened(stage)[SIZES[0] :], stage.update(VICTIM)[SIZES[0] :]))


@pytest.mark.threat("T22")
def test_no_layer_is_the_victims_alone_under_the_rule_for_layers(staged: MakesStage) -> None:
    stage = crafted(staged, ALONE_IN_THE_HEAD).play()
    assert exposure_in_the_head(stage) <= cosine_under_norm_caps(1.0)


@pytest.mark.threat("T22")
@pytest.mark.control
def test_single_layer_is_the_victims_alone_under_the_rule_for_the_model(staged: MakesStage) -> None:
    """No switch: the policy's own ``norm-cap.granularity``."""
    stage = crafted(staged, ALONE_IN_THE_HEAD, settings={"norm_cap_granularity": Granularity.MODEL}).play()
    assert exposure(stage) <= cosine_under_norm_caps(1.0)
    assert exposure_in_the_head(stage) > RECOVERED_COSINE


@pytest.mark.threat("T22")
def test_rule_for_the_model_is_refused_where_the_policy_says_layers(staged: MakesStage) -> None:
    granularity = {"norm_cap_granularity": Granularity.MODEL}
    stage = crafted(staged, ALONE_IN_THE_HEAD, settings=granularity, policies={VICTIM: policy()}).play()
    assert stage.refusals(VICTIM) == ["norm-cap.granularity"]
    assert not stage.said(VICTIM, Advertise)


# No attacker: the paper's filter leaves a source alone by itself.


def lone_update(index: int, round_number: int, received: Vector) -> Vector:
    """All sources but the victim disagree with the target in every layer."""
    if index != TARGET:
        return known_update(index, round_number, received)
    others = sum(known_update(other, round_number, received) for other in range(2, N + 1))
    lone: Vector = (known_update(VICTIM, round_number, received) - others).astype(np.float32)
    return lone


def filtered_stage(staged: MakesStage, kappa: float, rule: str = "fedgp") -> Stage:
    strategy = Strategy(rule=rule, beta=1.0, rounds=1, filter=True)
    settings = {"strategy": strategy, "kappa": kappa}
    return staged(N, aggregator=WatchedAggregator, updates=lone_update, settings=settings).play()


@pytest.mark.threat("T22")
def test_layer_in_which_the_filter_leaves_one_source_contributes_nothing(staged: MakesStage) -> None:
    stage = filtered_stage(staged, 1.0)
    (line,) = stage.aggregator.operator.lines
    assert line["emptied"] == ["body", "head"]
    assert stage.watches[VICTIM].records[0]["zeroed"] == 2
    assert not np.any(stage.aggregator.model)


@pytest.mark.threat("T22")
@pytest.mark.control
def test_filter_shows_a_lone_source_where_there_is_no_norm_cap(staged: MakesStage) -> None:
    stage = filtered_stage(staged, 0.0)
    assert cosine(stage.aggregator.model, stage.update(VICTIM)) > RECOVERED_COSINE


@pytest.mark.threat("T22")
def test_fedda_leaves_no_source_alone_in_a_layer_and_caps_empty_none(staged: MakesStage) -> None:
    """The same updates, of which the filter leaves one in each layer."""
    stage = filtered_stage(staged, 1.0, "fedda")
    (line,) = stage.aggregator.operator.lines
    assert line["emptied"] == []
    assert line["source_share"] > 0.5
    assert all(record["zeroed"] == 0 for watch in stage.watches.values() for record in watch.records)
    assert abs(cosine(stage.aggregator.model, stage.update(VICTIM))) <= cosine_under_norm_caps(1.0)


# Directions: norms do not bound them. Without the filter the target gives parts the sign that it likes.

OTHERS_CANCEL = multiplied(1, 1, -1, 1, -1)


def cancelling(staged: MakesStage, name: str, *, filtered: bool, **options: Any) -> Stage:
    known = search(updates=like_minded_but_one, negative=not filtered)
    multiples = known.best(starts=4, sweeps=8, seed=22)[0] if name == "searched" else OTHERS_CANCEL
    return crafted(staged, multiples, updates=like_minded_but_one, filtered=filtered, **options)


@pytest.mark.threat("T22")
@pytest.mark.parametrize("name", ["others cancel", "searched"])
def test_like_minded_others_cannot_be_made_to_cancel_under_the_filter(staged: MakesStage, name: str) -> None:
    stage = cancelling(staged, name, filtered=True).play()
    assert exposure(stage) <= cosine_under_norm_caps(1.0)


@pytest.mark.threat("T22")
def test_projection_without_the_filter_is_refused_by_a_site_that_does_not_permit_it(staged: MakesStage) -> None:
    stage = cancelling(staged, "searched", filtered=False, policies={VICTIM: policy()}).play()
    assert stage.refusals(VICTIM) == ["norm-cap.unfiltered-projection"]
    assert not stage.said(VICTIM, Advertise)


@pytest.mark.threat("T22")
@pytest.mark.control
def test_like_minded_others_cancel_where_a_site_permits_projection_without_the_filter(staged: MakesStage) -> None:
    """No switch: the policy's own ``norm-cap.unfiltered-projection``. The norms are as the rule wants them."""
    permits = default_policy("sum", 2, 0, 2, clip=CLIP, max_samples=MAX_SAMPLES, unfiltered_projection=True)
    stage = cancelling(staged, "searched", filtered=False, policies={VICTIM: permits}).play()
    assert stage.alarms(VICTIM) == []
    assert exposure(stage) > 0.95


# What remains under the filter: updates that point against each other by themselves.

OPPOSED_STAND_IN = multiplied(1, 0.9, 0.9, 0.01, 1.5)
"""The second and third cancel; the fourth has as good as nothing, and the fifth is lost afterwards."""


def two_opposed(index: int, round_number: int, received: Vector) -> Vector:
    """The update of the third source is nearly the negative of the second's, cosine -0.96."""
    own = known_update(index, round_number, received)
    if index != 3:
        return own
    opposed: Vector = (0.3 * own - known_update(2, round_number, received)).astype(np.float32)
    return opposed


@pytest.mark.threat("T22")
@pytest.mark.control
def test_others_that_are_opposed_by_themselves_cancel_under_the_filter_too(staged: MakesStage) -> None:
    """No switch, and no permission: the filter leaves each part the sign of its own update, which is all it does."""
    policies = {VICTIM: policy(limits=WorkLimits(model_step=LONG))}
    stage = crafted(staged, OPPOSED_STAND_IN, updates=two_opposed, policies=policies).play()
    assert stage.alarms(VICTIM) == []
    assert stage.adversary.summed == {VICTIM, 2, 3, 4}
    assert exposure(stage) > 0.95
