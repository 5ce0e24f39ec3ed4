"""Levels that differ in one session: a sum beside cohorts beside updates in clear, and what opens of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from cohort import PHASES, Bytes, Cohort, header_body, leaving, over_the_wire, refused_for, resigned, signer
from phases import OVER
from test_session import assert_sum_is_exact

from securefda.errors import FaultySourceError, QuorumLost
from securefda.protocol import source_session as src
from securefda.protocol.header_checks import default_threshold, quantisation
from securefda.protocol.messages import Granularity, KeyList, NormCapTerms, SelfMaskShare, Visibility
from securefda.protocol.transcript import cohorts_of, quorum_of

INDIVIDUAL, COHORT, SUM = Visibility
CTX1 = bytes(range(32))


def changes(of_sum: int, in_cohorts: int, size: int = 2, *, in_clear: int = 0, **more: Any) -> dict[str, Any]:
    """Every second source at ``sum`` for as long as there are both, then the others; those in clear come last."""
    pairs = min(of_sum, in_cohorts)
    rest = (SUM,) * (of_sum - pairs) + (COHORT,) * (in_cohorts - pairs)
    levels = (COHORT, SUM) * pairs + rest + (INDIVIDUAL,) * in_clear
    norm_cap = NormCapTerms(1.0, 1, Granularity.LAYER)
    plan = {"cohort_size": size, "cohort_quorum": 2, "sum_quorum": 2, "norm_cap": norm_cap}
    return {"levels": levels, **plan, "threshold": default_threshold(of_sum + in_cohorts, 1, 0), **more}


def session(terms: Mapping[str, Any], drops: Mapping[int, int] | None = None) -> Cohort:
    return Cohort(len(terms["levels"]), leaving(drops or {}), terms)


@pytest.mark.parametrize("of_sum", [3, 4, 5])
@pytest.mark.parametrize(("in_cohorts", "size"), [(2, 2), (3, 2), (4, 2), (5, 2), (7, 3)])
@pytest.mark.parametrize("in_clear", [0, 2])
def test_sum_and_every_cohort_beside_it_open_exactly(of_sum: int, in_cohorts: int, size: int, in_clear: int) -> None:
    cohort = session(changes(of_sum, in_cohorts, size, in_clear=in_clear))
    assert_sum_is_exact(cohort, {})
    assert cohort.opened is not None
    first, *others = [part.survivors for part in cohort.opened.sums]
    assert first == set(cohort.header.body.at(SUM))
    assert frozenset().union(*others) == set(cohort.header.body.at(COHORT))
    assert len(others) == in_cohorts // size
    assert all(phase is OVER for phase in cohort.phases.values())
    assert len(cohort.phases) == of_sum + in_cohorts


@pytest.mark.parametrize("phase", range(len(PHASES)), ids=PHASES)
@pytest.mark.parametrize("of_sum", [3, 4, 5])
def test_every_sum_is_exact_after_any_loss(of_sum: int, phase: int) -> None:
    terms = changes(of_sum, 3, 3, in_clear=1)
    for lost in session(terms).indices:
        assert_sum_is_exact(session(terms, {lost: phase}), {lost: phase})


def test_every_source_and_the_aggregator_find_the_same_groups() -> None:
    cohort = session(changes(4, 5)).until(2, collected=True)
    for phase in cohort.phases.values():
        assert phase.cohorts == tuple(cohort.aggregator.totals)


def test_each_group_opens_over_the_quorum_of_its_level() -> None:
    header = header_body(7, **changes(3, 4, cohort_quorum=2, sum_quorum=3))
    assert quorum_of(header, header.at(SUM)) == 3
    assert quorum_of(header, header.at(COHORT)) == 2


def test_nonces_of_the_sum_decide_the_split_of_the_others_too() -> None:
    header = header_body(18, **changes(3, 15, 5))
    nonces = {index: Bytes("nonce", index)(32) for index in header.masked}
    first = cohorts_of(header, CTX1, nonces)
    assert first[0] == set(header.at(SUM))
    for index in header.masked:
        assert cohorts_of(header, CTX1, nonces | {index: bytes(32)}) != first


def test_cohorts_form_where_nobody_of_the_sum_is_left() -> None:
    header = header_body(7, **changes(2, 5))
    nonces = {index: Bytes("nonce", index)(32) for index in header.at(COHORT)}
    cohorts = cohorts_of(header, CTX1, nonces)
    assert sorted(len(cohort) for cohort in cohorts) == [2, 3]
    assert frozenset().union(*cohorts) == set(header.at(COHORT))


def without_one_group(level: Visibility) -> tuple[Cohort, set[int]]:
    """Nine sources, t = 5, four of them at this level in one group that opens over three: two are lost after R1."""
    of_sum, in_cohorts = (4, 5) if level is SUM else (5, 4)
    terms = changes(of_sum, in_cohorts, in_cohorts, threshold=5, cohort_quorum=3, sum_quorum=3)
    cohort = session(terms).until(2)
    members = cohort.header.body.at(level)
    for index in members[:2]:
        del cohort.outbox[index]
        del cohort.phases[index]
    return cohort, set(members)


@pytest.mark.parametrize("level", [COHORT, SUM], ids=["cohort", "sum"])
def test_group_below_its_quorum_is_given_up_and_the_other_opens(level: Visibility) -> None:
    cohort, given_up = without_one_group(level)
    opened = cohort.finish()
    assert opened.dropped == given_up
    assert opened.survivors == set(cohort.indices) - given_up
    (only,) = opened.sums
    assert only.survivors == opened.survivors
    plain = quantisation(cohort.header.body).decode(cohort.sum_of(sorted(only.survivors)), len(only.survivors))
    assert np.array_equal(only.decoded.vector, plain.vector)


@pytest.mark.parametrize("level", [COHORT, SUM], ids=["cohort", "sum"])
def test_of_a_group_that_was_given_up_no_self_secret_is_opened(level: Visibility) -> None:
    cohort, given_up = without_one_group(level)
    cohort.collect()
    cohort.close()
    cohort.exchange()
    cohort.answer()
    for message in cohort.outbox.values():
        owners = {share.owner for share in message.body.shares if isinstance(share, SelfMaskShare)}
        assert owners == set(cohort.indices) - given_up


def test_session_ends_where_the_groups_that_are_left_are_fewer_than_t() -> None:
    cohort = session(changes(3, 3, 3, sum_quorum=3)).until(2)
    del cohort.outbox[cohort.header.body.at(SUM)[0]]
    cohort.collect()
    with pytest.raises(QuorumLost) as lost:
        cohort.close()
    assert set(lost.value.missing) == {f"source-{index}" for index in cohort.header.body.at(SUM)}
    assert cohort.opened is None


def test_source_in_a_cohort_asks_for_its_own_quorum_whatever_that_of_the_sum_is() -> None:
    terms = changes(3, 4, 4, cohort_quorum=2, sum_quorum=3)
    cohort = Cohort(7, changes=terms, min_others=2)
    cohort.exchange()
    cohort.answer()
    cohort.collect()
    cohort.close()
    for index in cohort.header.body.at(COHORT):
        with refused_for("SHARE_QUORUM"):
            cohort.step(index, cohort.inbox[index])
    for index in cohort.header.body.at(SUM):
        assert isinstance(cohort.step(index, cohort.inbox[index])[0], src.AwaitingSurvivors)


@pytest.mark.parametrize(("level", "lost"), [(COHORT, 1), (COHORT, 2), (SUM, 1), (SUM, 2)])
def test_level_left_with_too_few_for_a_sum_after_r1_is_left_out_and_masks_nothing(level: Visibility, lost: int) -> None:
    of_sum, in_cohorts = (3, 6) if level is SUM else (6, 3)
    terms = changes(of_sum, in_cohorts, 3, threshold=5, cohort_quorum=3, sum_quorum=3)
    members = header_body(9, **terms).at(level)
    cohort = session(terms, dict.fromkeys(members[:lost], 1)).until(1, collected=True)
    cohort.close()
    assert cohort.aggregator.u2 == set(cohort.indices) - set(members)
    assert set(cohort.inbox) == cohort.aggregator.u2
    opened = cohort.finish()
    assert (opened.survivors, opened.dropped) == (set(cohort.indices) - set(members), frozenset())
    assert set(cohort.vectors) == opened.survivors


def test_session_ends_before_any_release_where_the_levels_that_are_left_are_fewer_than_t() -> None:
    terms = changes(3, 3, 3, sum_quorum=3)
    lost = header_body(6, **terms).at(SUM)[0]
    cohort = session(terms, {lost: 1}).until(1, collected=True)
    with pytest.raises(QuorumLost) as ended:
        cohort.close()
    assert set(ended.value.missing) == {f"source-{index}" for index in cohort.header.body.at(SUM)}
    assert cohort.vectors == {}


# Who is at ``individual`` has no part in the session.


def in_clear() -> tuple[Cohort, int, Any]:
    """A session beside a source in clear, that source, and keys that it advertises all the same."""
    cohort = session(changes(3, 2, in_clear=1)).until(0)
    (outsider,) = cohort.header.body.at(INDIVIDUAL)
    honest = cohort.outbox[cohort.indices[0]]
    keys = {"mask_key": Bytes("mask")(32), "box_key": Bytes("box")(32)}
    body = type(honest.body)(**keys, self_mask_commitment=bytes(32), nonce_commitment=bytes(32))
    envelope = honest.envelope
    return cohort, outsider, signer(outsider).sign(envelope.session_id, envelope.context, body)


def test_aggregator_takes_no_keys_of_a_source_in_clear() -> None:
    cohort, outsider, keys = in_clear()
    before = cohort.aggregator
    with pytest.raises(FaultySourceError) as refused:
        cohort.add(over_the_wire(keys))
    assert (refused.value.source_id, refused.value.check) == (f"source-{outsider}", "SENDER")
    assert cohort.aggregator is before
    assert_sum_is_exact(cohort, {})


def test_source_takes_no_keys_of_a_source_in_clear() -> None:
    cohort, _, keys = in_clear()
    cohort.collect()
    cohort.close()
    victim = cohort.indices[0]
    honest = cohort.inbox[victim]
    phase = cohort.phases[victim]
    with refused_for("KEY_MEMBER"):
        cohort.step(victim, over_the_wire(resigned(honest, KeyList((*honest.body.advertisements, keys)))))
    assert cohort.phases[victim] is phase
    assert_sum_is_exact(cohort, {})
