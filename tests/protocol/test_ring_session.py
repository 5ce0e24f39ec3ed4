"""SFDA-SA/2: the sum is that of all survivors, and what either side may lie about is found by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cohort import AnySigned, Bytes, Cohort, leaving, on_ring, over_the_wire, refused_for, resigned, secrets_in
from lies_of_aggregator import OUTSIDE as OUTSIDE_OF_AGGREGATOR
from lies_of_aggregator import VICTIM, Lie
from lies_of_source import LIAR, SourceLie
from lies_of_source import OUTSIDE as OUTSIDE_OF_SOURCE
from lies_on_a_ring import FEWEST, LIES, PHASES, SETUP, SOURCE_LIES, N, far, near, ring_of
from phases import OVER
from test_lying_aggregator import assert_refused
from test_session import assert_sum_is_exact

from securefda.errors import FaultyAggregatorError, FaultySourceError, QuorumLost
from securefda.protocol import agreement
from securefda.protocol import source_session as src
from securefda.protocol.header_checks import quantisation
from securefda.protocol.masking import mask
from securefda.protocol.messages import GraphTerms, SelfMaskShare, Visibility
from securefda.protocol.secret import Secret

DROPS: list[Mapping[int, float]] = [
    {},
    {3: 0},
    {3: 0.5},
    {3: 1},
    {3: 2},
    {3: 3},
    {3: 4},
    {0: 0, 5: 0.5, 9: 2},
    {0: 2, 5: 3},
    {7: 1, 8: 4},
]


def session(**setup: Any) -> Cohort:
    return Cohort(N, **(SETUP | setup))


@pytest.mark.parametrize("drops", DROPS, ids=str)
def test_sum_is_that_of_all_survivors_whoever_drops_out(drops: Mapping[int, float]) -> None:
    cohort = session(link=leaving(drops))
    assert_sum_is_exact(cohort, drops)
    stayed = [phase for index, phase in cohort.phases.items() if index not in drops]
    assert all(phase is OVER for phase in stayed)
    assert len(stayed) == N - len(drops)


def test_sum_is_exact_on_a_ring_of_as_many_neighbours_as_there_can_be() -> None:
    assert_sum_is_exact(session(changes=on_ring(11, degree=10)), {})


def test_source_hears_and_tells_its_neighbours_alone() -> None:
    cohort = session().until(2, collected=True)
    ring = ring_of(cohort)
    for index, message in cohort.all_of("ShareBundle").items():
        assert {box.peer for box in message.body.boxes} == ring.neighbours(index)
    cohort.close()
    cohort.exchange(2)
    for index, message in cohort.inbox.items():
        assert len(message.body.signatures) == cohort.header.body.share_threshold
        assert {item.sender for item in message.body.signatures} < ring.holders(index)
        assert {item.sender for item in message.body.inputs} == ring.holders(index)
    cohort.answer()
    for index, message in cohort.outbox.items():
        assert {share.owner for share in message.body.shares} == ring.holders(index)


def test_masks_are_those_with_neighbours() -> None:
    cohort = session().until(2, collected=True)
    masters = {index: phase.secrets.master.reveal() for index, phase in cohort.phases.items()}
    own_secrets = {index: phase.secrets.self_secret.reveal() for index, phase in cohort.phases.items()}
    cohort.close()
    cohort.answer()
    ring, ctx, ctx2 = ring_of(cohort), cohort.session.ctx, cohort.aggregator.ctx2
    encoding = quantisation(cohort.header.body)
    own = agreement.mask_pair(Secret(masters[VICTIM]), own=VICTIM, ctx=ctx)
    seeds = {
        peer: agreement.pair_seed(own, cohort.aggregator.u1[peer].mask_key, own=VICTIM, peer=peer, ctx2=ctx2)
        for peer in ring.neighbours(VICTIM)
    }
    self_seed = agreement.self_seed(Secret(own_secrets[VICTIM]), own=VICTIM, ctx2=ctx2)
    expected = cohort.encoded(VICTIM)
    mask(expected, own=VICTIM, self_seed=self_seed, pair_seeds=seeds)
    assert bytes(encoding.pack(expected)) == cohort.vectors[VICTIM]


def test_ring_differs_from_session_to_session() -> None:
    rings = set()
    for attempt in range(1, 5):
        cohort = session(changes={**SETUP["changes"], "attempt": attempt}).until(1, collected=True)
        cohort.close()
        rings.add(ring_of(cohort).order)
    assert len(rings) == 4


def test_one_nonce_decides_the_whole_ring() -> None:
    orders = []
    for seed in ("source", "another"):
        cohort = session()
        cohort.random[5] = Bytes(seed, 5)
        cohort.until(1, collected=True).close()
        orders.append(ring_of(cohort).order)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_source_refuses_lie_and_nothing_else_changes(lie: Lie) -> None:
    cohort = session()
    cohort.exchange(lie.slot)
    message = over_the_wire(lie.tell(cohort, cohort.inbox[VICTIM]))
    assert_refused(cohort, message, lie.check)


@pytest.mark.parametrize("slot", range(1, 7))
@pytest.mark.parametrize("check", OUTSIDE_OF_AGGREGATOR)
def test_source_refuses_false_outside_of_every_message(check: str, slot: int) -> None:
    cohort = session()
    cohort.exchange(slot)
    assert_refused(cohort, OUTSIDE_OF_AGGREGATOR[check](cohort.inbox[VICTIM]), check)


@pytest.mark.parametrize("slot", range(1, 6))
def test_source_uses_a_phase_once(slot: int) -> None:
    cohort = session()
    cohort.exchange(slot)
    message = cohort.inbox[VICTIM]
    cohort.step(VICTIM, message)
    with pytest.raises(ValueError, match=r"erased|not 0"):
        cohort.step(VICTIM, message)


@pytest.mark.parametrize("lie", SOURCE_LIES, ids=lambda lie: lie.name)
def test_aggregator_refuses_lie_of_a_source(lie: SourceLie) -> None:
    cohort = session().until(lie.slot)
    honest = cohort.outbox.pop(LIAR)
    cohort.collect()
    before = cohort.aggregator
    with pytest.raises(FaultySourceError) as refused:
        cohort.add(over_the_wire(lie.tell(cohort, honest)))
    assert (refused.value.check, refused.value.source_id) == (lie.check, f"source-{LIAR}")
    assert cohort.aggregator is before
    cohort.aggregator = cohort.add(honest)
    assert_sum_is_exact(cohort, {})


@pytest.mark.parametrize("phase", range(len(PHASES)), ids=PHASES)
@pytest.mark.parametrize("check", OUTSIDE_OF_SOURCE)
def test_aggregator_refuses_false_outside_of_every_message(check: str, phase: int) -> None:
    cohort = session().until(phase)
    honest = cohort.outbox.pop(LIAR)
    cohort.collect()
    with pytest.raises(FaultySourceError) as refused:
        cohort.add(OUTSIDE_OF_SOURCE[check](honest))
    assert (refused.value.check, refused.value.source_id) == (check, f"source-{LIAR}")


# Neighbourhoods.


def with_keys_that_pass(false: AnySigned) -> Cohort:
    """A session whose aggregator lets the keys of a colluder pass, up to where its neighbours hear of them."""
    cohort = session().until(0)
    del cohort.outbox[false.sender]
    cohort.phases[false.sender] = replace(cohort.phases[false.sender], own=false)
    cohort.collect()
    received = {**cohort.aggregator.received, false.sender: false}
    cohort.aggregator = replace(cohort.aggregator, received=received)
    cohort.close()
    cohort.exchange()
    return cohort


def refused_by_neighbours(cohort: Cohort, colluder: int) -> set[str]:
    """The checks by which the colluder's neighbours refuse to go on, one of each."""
    checks = []
    for index in sorted(ring_of(cohort).neighbours(colluder)):
        with pytest.raises(FaultyAggregatorError) as refused:
            cohort.step(index, cohort.inbox[index])
        checks.append(refused.value.check)
    return set(checks)


COLLUDER = 4


def test_neighbour_whose_signed_keys_are_no_keys_is_refused() -> None:
    own = session().until(0).outbox[COLLUDER]
    cohort = with_keys_that_pass(resigned(own, replace(own.body, box_key=bytes(32))))
    assert refused_by_neighbours(cohort, COLLUDER) == {"KEY_INVALID"}


def test_neighbour_with_one_key_for_both_uses_is_refused() -> None:
    own = session().until(0).outbox[COLLUDER]
    cohort = with_keys_that_pass(resigned(own, replace(own.body, box_key=own.body.mask_key)))
    assert refused_by_neighbours(cohort, COLLUDER) == {"KEY_DUPLICATE"}


def test_neighbour_that_the_aggregator_made_up_is_refused_though_the_roll_has_it() -> None:
    own = session().until(0).outbox[COLLUDER]
    cohort = with_keys_that_pass(replace(own, signature=bytes(64)))
    assert refused_by_neighbours(cohort, COLLUDER) == {"KEY_SIGNATURE"}


@pytest.mark.parametrize("phase", [1, 2, 3, 4])
def test_session_ends_where_too_few_neighbours_of_one_are_left(phase: int) -> None:
    probe = session().until(1, collected=True)
    probe.close()
    gone = near(probe)[:3]
    assert N - len(gone) >= FEWEST  # in all there are enough
    cohort = session(link=leaving(dict.fromkeys(gone, phase)))
    with pytest.raises(QuorumLost, match=r", neighbours of source-\d+: 4 of at least 5") as lost:
        cohort.finish()
    assert {f"source-{index}" for index in gone} <= set(lost.value.missing)


def test_more_missing_nonces_than_sources_let_pass_end_the_session() -> None:
    cohort = session(link=leaving({5: 0.5, 6: 0.5}))
    with pytest.raises(QuorumLost, match="drawing neighbours at random: 10 of at least 11"):
        cohort.finish()
    assert cohort.vectors == {}


def test_source_that_trusts_too_few_of_its_neighbours_refuses_the_ring() -> None:
    probe = session().until(1, collected=True)
    probe.close()
    friends = frozenset({*far(probe), *near(probe)[:2]})
    cohort = session(min_others=3)
    cohort.exchange(2)
    phase = cohort.phases[VICTIM]
    limits = replace(phase.session.limits, trusted=friends)
    cohort.phases[VICTIM] = replace(phase, session=replace(phase.session, limits=limits))
    with refused_for("RING_TRUST"):
        cohort.step(VICTIM, cohort.inbox[VICTIM])


def test_neighbours_open_nothing_of_each_other_before_the_end() -> None:
    """What a source holds of another is one share of each secret, and never the secret itself."""
    cohort = session().until(3)
    held = set(secrets_in(cohort.phases[VICTIM]))
    others = {secret for index, phase in cohort.phases.items() if index != VICTIM for secret in secrets_in(phase)}
    assert len(held) == 2 * 7
    assert not held & others


def test_wrong_share_of_a_neighbour_is_named_and_the_sum_is_right() -> None:
    cohort = session().until(5)
    honest = cohort.outbox[LIAR]
    shares = list(honest.body.shares)
    shares[0] = SelfMaskShare(shares[0].owner, bytes(33))
    cohort.outbox[LIAR] = resigned(honest, replace(honest.body, shares=tuple(shares)))
    opened = cohort.finish()
    assert [(fault.source_id, fault.check) for fault in opened.faults] == [(f"source-{LIAR}", "UNMASK_SHARE")]
    plain = quantisation(cohort.header.body).decode(cohort.sum_of(cohort.indices), N)
    assert np.array_equal(opened.sums[0].decoded.vector, plain.vector)


# The header.


def refused_header(**changes: Any) -> str:
    with pytest.raises(FaultyAggregatorError) as refused:
        session(changes={**SETUP["changes"], **changes})
    return refused.value.check


@pytest.mark.parametrize(
    "graph",
    [
        GraphTerms(7, 5, 0, 1, 1),
        GraphTerms(6, 4, 0, 1, 1),
        GraphTerms(6, 7, 0, 1, 1),
        GraphTerms(10, 7, 0, 1, 1),
        GraphTerms(6, 5, 1, 1, 1),
    ],
    ids=str,
)
def test_source_refuses_a_graph_that_is_weaker_than_it_computes(graph: GraphTerms) -> None:
    assert refused_header(graph=graph) == "HEADER_GRAPH"


def test_source_refuses_a_graph_for_fewer_colluders_than_it_assumes() -> None:
    with refused_for("HEADER_GRAPH", "0 colluders"):
        session(max_colluders=1)


def test_source_refuses_a_graph_beside_a_norm_cap_or_cohorts() -> None:
    with_cap = Cohort(N).header.body.norm_cap
    assert refused_header(norm_cap=with_cap) == "HEADER_GRAPH"
    levels = (Visibility.COHORT,) * 2 + (Visibility.SUM,) * 10
    mixed = {"levels": levels, "cohort_size": 2, "cohort_quorum": 2}
    assert refused_header(**mixed) == "HEADER_GRAPH"


def test_source_without_a_graph_in_its_header_gets_no_list_of_members() -> None:
    cohort = Cohort(5).until(1, collected=True)
    cohort.close()
    delivery = cohort.inbox[VICTIM]
    listed = resigned(delivery, replace(delivery.body, members=(0, 2, 3, 4, 5)))
    with refused_for("SHARE_MEMBERS"):
        cohort.step(VICTIM, over_the_wire(listed))


def test_key_list_is_no_answer_on_a_ring() -> None:
    cohort = session()
    cohort.exchange()
    other = Cohort(N, changes={"norm_cap": None})
    other.exchange()
    phase = cohort.phases[VICTIM]
    assert isinstance(phase, src.AwaitingRoll)
    with refused_for("TYPE"):
        src.receive_roll(phase, other.inbox[VICTIM])


def test_lies_cover_every_message_of_the_aggregator() -> None:
    assert {lie.slot for lie in LIES} == set(range(1, 7))
