"""T05 to T11 in sessions of SFDA-SA/2, where sources share with neighbours alone: adversaries fail there, too."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from securefda.protocol.messages import MaskedInput, MasterShare, ShareBundle, Survivors, SurvivorSignature, Unmask
from securefda.site.policy import default_policy
from threat_model.adversaries.colluders import SubtractsColluders
from threat_model.adversaries.declared_dropped import DeclaredDropped
from threat_model.adversaries.key_substitution import KeySubstitution
from threat_model.adversaries.ring_views import (
    CutsRing,
    ListsByArc,
    RedrawsRing,
    SplitsAmongColluders,
    SplitsNeighbours,
    ring_of,
)
from threat_model.adversaries.round_again import RoundAgain, Way
from threat_model.adversaries.sources import ColludingSource
from threat_model.adversaries.survivor_lists import InBothLists
from threat_model.scores import NOTHING_LEARNT_COSINE, cosine, is_recovered
from threat_model.sites import CLIP, MAX_SAMPLES
from threat_model.stage import MakesStage, Stage
from threat_model.switches import (
    ONE_KIND_PER_OWNER,
    ONE_RUN,
    RELEASE_FUSE,
    SELF_MASK,
    UNTRUSTED_AS_COLLUDERS,
    Switch,
    checks_off,
    switched_off,
)

VICTIM, N = 2, 12
MOST = 400
"""Attempts at a round that policies allow to an attacker who waits for a ring; it needs a few dozen."""


def on_a_ring(staged: MakesStage, aggregator: Any, **options: Any) -> Stage:
    """Twelve sources with six neighbours each, of whom eleven must stay; with a colluder eight neighbours."""
    settings = {"dropouts": 0.05, **options.pop("settings", {})}
    return staged(N, aggregator=aggregator, settings=settings, **options)


def near(stage: Stage, index: int = VICTIM) -> set[int]:
    """A source's neighbours."""
    return set(stage.adversary.heard.views[index].keys) - {index}


def assert_input_is_hidden(stage: Stage, victim: int = VICTIM) -> None:
    attack = stage.adversary.attack()
    assert attack is None or abs(cosine(attack, stage.update(victim))) < NOTHING_LEARNT_COSINE


# T05: keys of others.


@pytest.mark.threat("T05")
def test_victim_reveals_no_share_to_neighbours_whose_keys_are_the_relays(staged: MakesStage) -> None:
    stage = on_a_ring(staged, partial(KeySubstitution, victim=VICTIM)).play()
    assert stage.alarms(VICTIM) == ["KEY_SIGNATURE"]
    assert stage.said(VICTIM, ShareBundle) == []
    assert stage.said(VICTIM, MaskedInput) == []
    assert stage.adversary.attack() is None


@pytest.mark.threat("T05")
@pytest.mark.control
def test_relay_recovers_the_input_from_a_victim_that_checks_no_signature_of_its_neighbours(staged: MakesStage) -> None:
    stage = on_a_ring(staged, partial(KeySubstitution, victim=VICTIM))
    with switched_off(checks_off("KEY_SIGNATURE"), roster=stage.roster):
        stage.play()
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))


# T06: declared dropped.


@pytest.mark.threat("T06")
def test_source_that_its_neighbours_believe_dropped_stays_hidden_by_its_self_mask(staged: MakesStage) -> None:
    stage = on_a_ring(staged, partial(DeclaredDropped, victim=VICTIM)).play()
    assert stage.alarms(VICTIM) == ["SURVIVOR_SELF"]
    assert stage.said(VICTIM, Unmask) == []
    for index in near(stage):
        (answer,) = stage.said(index, Unmask)
        assert {type(share) for share in answer.message.body.shares if share.owner == VICTIM} == {MasterShare}
    assert stage.adversary.master_of(VICTIM) is not None
    assert_input_is_hidden(stage)


@pytest.mark.threat("T06")
@pytest.mark.control
def test_input_under_pairwise_masks_alone_is_opened_by_the_master_that_neighbours_give_away(staged: MakesStage) -> None:
    stage = on_a_ring(staged, partial(DeclaredDropped, victim=VICTIM))
    with switched_off(SELF_MASK, roster=stage.roster):
        stage.play()
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))


# T07: both lists.


@pytest.mark.threat("T07")
def test_one_id_in_both_lists_is_refused_by_near_and_far(staged: MakesStage) -> None:
    stage = on_a_ring(staged, partial(InBothLists, victim=VICTIM)).play()
    for index in stage.sources:
        assert stage.alarms(index) == ["SURVIVOR_OVERLAP"]
        assert stage.said(index, Unmask) == []
    assert_input_is_hidden(stage)


@pytest.mark.threat("T07")
@pytest.mark.control
def test_one_id_in_both_lists_opens_its_input_where_neighbours_answer_with_both_kinds(staged: MakesStage) -> None:
    stage = on_a_ring(staged, partial(InBothLists, victim=VICTIM))
    with switched_off(ONE_KIND_PER_OWNER, roster=stage.roster):
        stage.play()
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))


# T08: two views, and a ring that is cut.


@pytest.mark.threat("T08")
@pytest.mark.parametrize("colluders", [set(), {7}], ids=["alone", "with a colluder"])
def test_half_of_the_neighbours_that_is_shown_that_the_victim_dropped_gives_no_share_of_it(
    staged: MakesStage, colluders: set[int]
) -> None:
    stage = on_a_ring(
        staged,
        partial(SplitsNeighbours, victim=VICTIM),
        sources=dict.fromkeys(colluders, ColludingSource),
        settings={"max_colluders": len(colluders)},
    ).play()
    assert stage.adversary.second
    for index in stage.adversary.second:
        assert stage.alarms(index) == ["CONSISTENCY_QUORUM"]
        assert stage.said(index, Unmask) == []
    assert stage.adversary.opened_twice() == set()
    assert_input_is_hidden(stage)


@pytest.mark.threat("T08")
@pytest.mark.control
def test_halves_of_a_neighbourhood_open_the_victim_where_half_of_the_holders_are_enough(staged: MakesStage) -> None:
    stage = on_a_ring(staged, partial(SplitsNeighbours, victim=VICTIM, shares=3))
    with switched_off(checks_off("HEADER_GRAPH"), roster=stage.roster):
        stage.play()
    assert VICTIM in stage.adversary.opened_twice()
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))


@pytest.mark.threat("T08")
@pytest.mark.parametrize(("shares", "check"), [(2, "min-others"), (3, "HEADER_GRAPH"), (4, "HEADER_GRAPH")])
def test_graph_that_half_of_a_neighbourhood_opens_is_refused(staged: MakesStage, shares: int, check: str) -> None:
    stage = on_a_ring(staged, partial(SplitsNeighbours, victim=VICTIM, shares=shares)).play()
    for index in stage.sources:
        assert stage.alarms(index) == [check]
        assert stage.said(index, MaskedInput) == []


TWENTY = {"dropouts": 0.1, "threshold": 11}
"""Eight neighbours, of whom six holders open a secret; as many may be lost as a sound threshold allows."""


@pytest.mark.threat("T08")
def test_members_at_the_end_of_an_arc_do_not_open_it_alone(staged: MakesStage) -> None:
    stage = staged(20, aggregator=CutsRing, settings=TWENTY).play()
    graph = stage.adversary.heard.header.graph
    arc = stage.adversary.arc
    assert len(arc) > 2
    refused = {index for index in stage.sources if "SURVIVOR_QUORUM" in stage.alarms(index)}
    assert refused & arc
    assert len(arc | refused) < 20
    assert graph.threshold == graph.degree // 2 + 2
    assert stage.adversary.attack() is None
    assert not any(stage.said(index, SurvivorSignature) for index in refused)


@pytest.mark.threat("T08")
@pytest.mark.control
def test_arc_opens_alone_where_one_share_less_is_enough(staged: MakesStage) -> None:
    stage = staged(20, aggregator=partial(CutsRing, shares=5), settings=TWENTY)
    with switched_off(checks_off("HEADER_GRAPH"), roster=stage.roster):
        stage.play()
    arc = stage.adversary.arc
    assert len(arc) < 20 // 2
    assert is_recovered(stage.adversary.attack(), stage.mean_of(arc), 2 * len(arc) * stage.precision(min(arc)))


# T09, T10: colluders and made-up sources.


@pytest.mark.threat("T09")
def test_aggregator_and_a_colluder_learn_one_sum_over_the_rest_of_the_ring(staged: MakesStage) -> None:
    stage = on_a_ring(
        staged,
        partial(SubtractsColluders, victim=VICTIM),
        sources={7: ColludingSource},
        settings={"max_colluders": 1},
    ).play()
    rest = stage.adversary.summed - {7}
    assert len(rest) >= N - 2
    assert is_recovered(stage.adversary.attack().update, stage.mean_of(rest), 2 * len(rest) * stage.precision(VICTIM))
    assert abs(cosine(stage.adversary.attack().update, stage.update(VICTIM))) < 0.9


@pytest.mark.threat("T09")
def test_lists_that_differ_far_apart_make_one_sum_of_fewer_than_t_and_of_enough_beside_each_member(
    staged: MakesStage,
) -> None:
    stage = staged(36, aggregator=ListsByArc, settings={"dropouts": 0.05}).play()
    header, summed = stage.adversary.heard.header, stage.adversary.summed
    assert len(summed) == 32 < header.threshold
    lists = {stage.said(0, Survivors, to=index)[0].message.digest() for index in summed}
    assert len(lists) == 2  # two logs that are read together have both
    assert not any(set(stage.alarms(index)) - {"DEADLINE"} for index in summed)
    ring = ring_of(stage.adversary, VICTIM)
    assert all(len(ring.holders(index) & summed) >= header.share_threshold for index in summed)
    assert is_recovered(stage.adversary.attack(), stage.mean_of(summed), 2 * len(summed) * stage.precision(VICTIM))


def policy(**changes: Any) -> Any:
    others, colluders = changes.pop("min_others", 2), changes.pop("max_colluders", 0)
    attempts = changes.pop("attempts", 2)
    made = default_policy("sum", others, colluders, attempts, clip=CLIP, max_samples=MAX_SAMPLES, kappa=0.0)
    return made.model_copy(update=changes)


@pytest.mark.threat("T09")
def test_ring_against_fewer_colluders_than_a_source_assumes_is_refused(staged: MakesStage) -> None:
    adversary = partial(SubtractsColluders, victim=VICTIM)
    stage = on_a_ring(staged, adversary, policies={VICTIM: policy(max_colluders=1)}).play()
    assert stage.alarms(VICTIM) == ["HEADER_GRAPH"]
    assert stage.said(VICTIM, MaskedInput) == []


def beside_three_colluders(staged: MakesStage) -> Stage:
    """The graph is made for no colluder, and the victim assumes three; one other beside these is enough for it.

    The attacker tries until they stand as it needs them, which takes 19 attempts on average.
    """
    return on_a_ring(
        staged,
        partial(SplitsAmongColluders, victim=VICTIM),
        sources=dict.fromkeys((10, 11, 12), ColludingSource),
        policies={VICTIM: policy(max_colluders=3, min_others=1, attempts=MOST)},
        settings={"attempts": MOST, "min_others": 1},
    )


@pytest.mark.threat("T09")
def test_colluders_beside_a_source_that_assumes_as_many_get_no_share_on_a_ring_made_for_none(
    staged: MakesStage,
) -> None:
    stage = beside_three_colluders(staged).play()
    assert stage.alarms(VICTIM) == ["HEADER_GRAPH"]
    assert stage.said(VICTIM, ShareBundle) == stage.said(VICTIM, MaskedInput) == []
    assert stage.adversary.attack() is None


@pytest.mark.threat("T09")
@pytest.mark.control
def test_colluders_beside_a_source_open_it_where_it_does_not_ask_for_how_many_the_ring_is_made(
    staged: MakesStage,
) -> None:
    stage = beside_three_colluders(staged)
    with switched_off(checks_off("HEADER_GRAPH"), roster=stage.roster):
        stage.play()
    assert len(near(stage)) == 6
    assert VICTIM in stage.adversary.opened_twice()
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))


TRUSTED = {1, 3, 4}
OWN = set(range(5, N + 1))
"""Sources of the attacker: all but the victim and the three that it trusts."""


def redrawn(staged: MakesStage, **changes: Any) -> Stage:
    """The attacker tries until all neighbours of the victim are its own, which takes 17 attempts on average."""
    return on_a_ring(
        staged,
        partial(RedrawsRing, victim=VICTIM),
        sources=dict.fromkeys(OWN, ColludingSource),
        policies={VICTIM: policy(attempts=MOST, **changes)},
        settings={"attempts": MOST},
    )


def assert_victim_is_opened(stage: Stage) -> None:
    assert near(stage) <= OWN
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))


@pytest.mark.threat("T09")
@pytest.mark.control
def test_colluders_all_round_a_source_open_it_where_it_allows_for_none(staged: MakesStage) -> None:
    """No switch: the victim's own max-colluders is 0."""
    assert_victim_is_opened(redrawn(staged).play())


@pytest.mark.threat("T10")
def test_made_up_sources_all_round_a_source_that_does_not_trust_them_get_no_share(staged: MakesStage) -> None:
    stage = redrawn(staged, trusted_peers=tuple(f"source-{index}" for index in TRUSTED)).play()
    assert near(stage) <= OWN
    assert stage.alarms(VICTIM) == ["trusted-peers"]
    assert stage.said(VICTIM, ShareBundle) == stage.said(VICTIM, MaskedInput) == []
    assert stage.adversary.attack() is None


@pytest.mark.threat("T10")
@pytest.mark.control
def test_made_up_sources_all_round_a_source_open_it_where_it_does_not_count_whom_it_trusts_beside_it(
    staged: MakesStage,
) -> None:
    stage = redrawn(staged, trusted_peers=tuple(f"source-{index}" for index in TRUSTED))
    with switched_off(UNTRUSTED_AS_COLLUDERS, roster=stage.roster):
        stage.play()
    assert_victim_is_opened(stage)


@pytest.mark.threat("T10")
def test_source_beside_sites_that_it_does_not_trust_shares_nothing(staged: MakesStage) -> None:
    trusted = tuple(f"source-{index}" for index in (1, 3, 4))
    adversary = partial(SubtractsColluders, victim=VICTIM)
    stage = on_a_ring(staged, adversary, policies={VICTIM: policy(trusted_peers=trusted)}).play()
    assert stage.alarms(VICTIM) == ["trusted-peers"]
    assert stage.said(VICTIM, ShareBundle) == []
    assert stage.said(VICTIM, MaskedInput) == []


# T11: the same round again.


@pytest.mark.threat("T11")
def test_round_that_is_asked_for_again_without_one_source_is_refused_on_a_ring(staged: MakesStage) -> None:
    stage = on_a_ring(staged, partial(RoundAgain, victim=VICTIM, way="attempt")).play()
    assert len(stage.adversary.sessions) == 2
    for index in set(stage.sources) - {VICTIM}:
        assert stage.refusals(index) == ["RELEASE_FUSE"]
        assert len(stage.said(index, MaskedInput)) == 1
    assert stage.adversary.attack() is None


@pytest.mark.threat("T11")
@pytest.mark.control
@pytest.mark.parametrize(("way", "off"), [("attempt", RELEASE_FUSE), ("run", ONE_RUN)], ids=["attempt", "run"])
def test_two_sums_of_a_ring_give_the_update_of_the_one_between_them_where_a_round_or_a_run_may_follow(
    staged: MakesStage, way: Way, off: Switch
) -> None:
    stage = on_a_ring(staged, partial(RoundAgain, victim=VICTIM, way=way))
    with switched_off(off, roster=stage.roster):
        stage.play()
    assert all(one.header.graph for one in stage.adversary.sessions)
    assert len(stage.said(VICTIM, MaskedInput)) == 1
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))
