"""Visibility ``cohort``: who is summed together, that each sum is exact, and what is never opened."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from cohort import PHASES, Bytes, Cohort, header_body, leaving, limits_of, refused_for
from hypothesis import given
from hypothesis import strategies as st
from phases import OVER
from test_session import assert_sum_is_exact

from securefda.protocol import source_session as src
from securefda.protocol.header_checks import default_threshold
from securefda.protocol.messages import Visibility
from securefda.protocol.transcript import cohort_with, cohorts_of, nonce_commitment, nonce_fits

CTX1 = sha256(b"ctx1").digest()


def plan(size: int, quorum: int) -> dict[str, Any]:
    return {"level": Visibility.COHORT, "cohort_size": size, "cohort_quorum": quorum}


def split(members: int, size: int, seed: int = 0, ctx1: bytes = CTX1) -> tuple[frozenset[int], ...]:
    nonces = {index: Bytes("nonce", seed, index)(32) for index in range(members)}
    return cohorts_of(header_body(5, **plan(size, 2)), ctx1, nonces)


def cohort_of(n: int, size: int, quorum: int, drops: dict[int, int] | None = None) -> Cohort:
    changes = plan(size, quorum) | {"threshold": max(size, default_threshold(n, 1, 0))}
    return Cohort(n, leaving(drops or {}), changes)


@given(st.integers(2, 60), st.integers(2, 20), st.integers(0, 5))
def test_cohorts_split_the_members_into_equal_parts_of_at_least_the_size(members: int, size: int, seed: int) -> None:
    cohorts = split(members, size, seed)
    assert sorted(itertools.chain.from_iterable(cohorts)) == list(range(members))
    sizes = {len(cohort) for cohort in cohorts}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(size, members)
    assert len(cohorts) == max(1, members // size)


def test_at_sum_all_members_are_one_cohort() -> None:
    assert cohorts_of(header_body(7), CTX1, {2: b"", 7: b"", 4: b""}) == (frozenset({2, 4, 7}),)


def test_every_nonce_and_the_transcript_decide_the_split() -> None:
    header = header_body(5, **plan(4, 2))
    nonces = {index: Bytes("nonce", index)(32) for index in range(24)}
    first = cohorts_of(header, CTX1, nonces)
    assert cohorts_of(header, CTX1, dict(reversed(nonces.items()))) == first
    for index in nonces:
        assert cohorts_of(header, CTX1, nonces | {index: bytes(32)}) != first
    assert cohorts_of(header, sha256(CTX1).digest(), nonces) != first


def test_any_two_sources_meet_as_often_as_chance_has_it() -> None:
    """12 sources in cohorts of 4: 3 in 11. Of 3000 splits every pair is within 5 sigma (one in 25,000)."""
    splits, chance = 3000, 3 / 11
    met = Counter(
        pair
        for seed in range(splits)
        for cohort in split(12, 4, seed)
        for pair in itertools.combinations(sorted(cohort), 2)
    )
    allowed = 5 * (splits * chance * (1 - chance)) ** 0.5
    assert len(met) == 66
    assert all(abs(count - splits * chance) < allowed for count in met.values())


def test_nonce_fits_its_own_commitment_alone() -> None:
    nonce, ctx = bytes(range(32)), CTX1
    committed = nonce_commitment(nonce, own=3, ctx=ctx)
    assert nonce_fits(nonce, committed, owner=3, ctx=ctx)
    assert not nonce_fits(nonce, committed, owner=4, ctx=ctx)
    assert not nonce_fits(nonce, committed, owner=3, ctx=sha256(ctx).digest())
    assert not nonce_fits(bytes(32), committed, owner=3, ctx=ctx)


def test_source_in_no_cohort_gets_an_error() -> None:
    with pytest.raises(ValueError, match="index 9"):
        cohort_with(9, (frozenset({1, 2}),))


@pytest.mark.parametrize(("n", "size"), [(4, 2), (5, 2), (6, 3), (7, 3), (8, 3), (11, 3), (11, 4), (13, 5)])
def test_every_cohort_sum_is_exact_whether_or_not_the_sizes_divide(n: int, size: int) -> None:
    cohort = cohort_of(n, size, 2)
    assert_sum_is_exact(cohort, {})
    assert cohort.opened is not None
    assert len(cohort.opened.sums) == n // size
    assert all(phase is OVER for phase in cohort.phases.values())


@pytest.mark.parametrize("phase", range(len(PHASES)), ids=PHASES)
def test_every_cohort_sum_is_exact_when_one_source_is_lost(phase: int) -> None:
    for lost in Cohort(7).indices:
        assert_sum_is_exact(cohort_of(7, 3, 2, {lost: phase}), {lost: phase})


def test_one_lost_in_every_phase_of_one_session_leaves_exact_sums() -> None:
    drops = dict(zip((0, 4, 7, 9, 12), range(5), strict=True))
    assert_sum_is_exact(cohort_of(18, 4, 2, drops), drops)


def test_source_refuses_a_cohort_in_which_too_few_count_and_nothing_leaves_it() -> None:
    cohort = cohort_of(8, 4, 3).until(1, collected=True)
    cohort.close()
    phase, message = cohort.phases[0], cohort.inbox[0]
    mates = src.receive_shares(phase, message).cohorts
    for trusts_nobody, min_others in ((False, 3), (True, 1)):
        mine = cohort_with(0, mates)
        trusted = frozenset() if trusts_nobody else frozenset(mine)
        session = replace(phase.session, limits=replace(limits_of(8, min_others=min_others), trusted=trusted))
        with refused_for("SHARE_QUORUM"):
            src.receive_shares(replace(phase, session=session), message)
