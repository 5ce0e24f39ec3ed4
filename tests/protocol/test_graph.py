"""The calculator of SFDA-SA/2 against counting, and the ring against every way to cut it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from securefda.protocol.graph import (
    CORRECTNESS_BITS,
    SECURITY_BITS,
    Ring,
    complete,
    enough_survive,
    graph_fault,
    hypergeometric_tail,
    least_threshold,
    ring_of,
    runs_of,
    smallest_graph,
)
from securefda.protocol.messages import GraphTerms


@pytest.mark.parametrize(("population", "marked", "drawn"), [(6, 2, 3), (7, 4, 4), (8, 0, 3), (8, 8, 2), (9, 3, 9)])
def test_tail_is_the_share_of_all_draws(population: int, marked: int, drawn: int) -> None:
    draws = list(itertools.combinations(range(population), drawn))
    for least in range(-1, drawn + 2):
        hits = sum(sum(place < marked for place in draw) >= least for draw in draws)
        assert hypergeometric_tail(population, marked, drawn, least) == Fraction(hits, len(draws))


@pytest.mark.parametrize(("population", "marked", "drawn"), [(5, 6, 1), (5, 1, 6), (5, -1, 2)])
def test_tail_of_more_than_there_are_is_refused(population: int, marked: int, drawn: int) -> None:
    with pytest.raises(ValueError, match="drawn of"):
        hypergeometric_tail(population, marked, drawn, 1)


def test_runs_are_counted_by_source_side_and_who_is_silent() -> None:
    for n, silent in itertools.product(range(1, 7), range(4)):
        silences = [left for left in itertools.product((0, 1), repeat=n) if sum(left) <= silent]
        sides = list(itertools.product(range(n), ("before", "after"), silences))
        assert runs_of(n, silent) == len(sides)


@pytest.mark.parametrize(
    ("degree", "n", "fewest", "colluders", "silent"),
    [(20, 100, 90, 5, 0), (60, 400, 360, 20, 1), (120, 1000, 900, 50, 2), (30, 200, 150, 1, 0)],
)
def test_threshold_is_the_least_for_which_bad_runs_are_rare_enough(
    degree: int, n: int, fewest: int, colluders: int, silent: int
) -> None:
    threshold = least_threshold(degree, n=n, fewest=fewest, colluders=colluders, silent=silent)
    most = threshold - degree // 2 - 2

    def of_bad_runs(allowed: int) -> Fraction:
        return runs_of(n, silent) * hypergeometric_tail(fewest - 1, colluders, degree // 2, allowed + 1)

    bound = Fraction(1, 2**SECURITY_BITS)
    assert of_bad_runs(most) <= bound
    assert most == 0 or of_bad_runs(most - 1) > bound


def test_no_threshold_is_enough_where_colluders_fill_a_run_too_often() -> None:
    degree = 4
    assert least_threshold(degree, n=100, fewest=90, colluders=30, silent=0) > degree
    assert graph_fault(GraphTerms(degree, degree, 30, 10, 0), 100, 90) is not None


def test_survival_is_that_of_the_worst_member_times_all() -> None:
    n, degree, dropouts = 1000, 120, 100
    for threshold in range(60, 121):
        lost = hypergeometric_tail(n - 1, dropouts, degree, degree - threshold + 1)
        assert enough_survive(degree, threshold, n=n, dropouts=dropouts) == (
            n * lost <= Fraction(1, 2**CORRECTNESS_BITS)
        )
    assert enough_survive(degree, 60, n=n, dropouts=dropouts)
    assert not enough_survive(degree, 120, n=n, dropouts=dropouts)


def test_smallest_graph_of_a_thousand_sources_stands_and_no_smaller_one_does() -> None:
    terms = smallest_graph(1000, fewest=900, colluders=50, dropouts=100)
    assert terms is not None
    assert graph_fault(terms, 1000, 900) is None
    assert enough_survive(terms.degree, terms.threshold, n=1000, dropouts=100)
    for degree in range(2, terms.degree, 2):
        least = least_threshold(degree, n=1000, fewest=900, colluders=50, silent=terms.silent)
        assert least > degree or not enough_survive(degree, least, n=1000, dropouts=100)


def test_no_graph_but_the_complete_one_serves_a_few_sources() -> None:
    assert smallest_graph(10, fewest=8, colluders=2, dropouts=2) is None


GOOD = GraphTerms(degree=6, threshold=5, colluders=0, dropouts=1, silent=1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"degree": 7}, "a degree of 7"),
        ({"degree": 10}, "a degree of 10"),
        ({"threshold": 4}, "4 shares of 7"),
        ({"threshold": 7}, "7 shares of 7"),
        ({"colluders": 1}, "5 shares of 7"),
        ({"colluders": 9}, "9 colluders"),
        ({"silent": 13}, "13 silent"),
    ],
)
def test_weak_graph_is_named(change: dict[str, int], says: str) -> None:
    assert graph_fault(GOOD, 12, 9) is None
    fault = graph_fault(replace(GOOD, **change), 12, 9)
    assert fault is not None
    assert says in fault


def test_graph_of_two_neighbours_and_two_shares_is_the_smallest() -> None:
    smallest = GraphTerms(degree=2, threshold=2, colluders=0, dropouts=0, silent=0)
    for change in ({"degree": 1}, {"threshold": 1}):
        with pytest.raises(ValueError, match="at least 2"):
            replace(smallest, **change)


def test_more_silent_members_ask_for_a_higher_threshold() -> None:
    thresholds = [least_threshold(120, n=1000, fewest=900, colluders=50, silent=silent) for silent in range(6)]
    assert thresholds == sorted(thresholds)
    assert thresholds[0] < thresholds[-1]


# The ring.


def test_each_member_has_half_of_its_neighbours_on_either_side() -> None:
    ring = Ring((5, 3, 9, 1, 7, 2, 8), 4)
    assert ring.holders(5) == {2, 8, 5, 3, 9}
    assert ring.neighbours(1) == {3, 9, 7, 2}
    assert all(len(ring.neighbours(member)) == 4 for member in ring.order)


def test_being_neighbours_is_mutual() -> None:
    order = random.Random(5).sample(range(100), 40)
    ring = Ring(tuple(order), 12)
    for member, other in itertools.combinations(order, 2):
        assert (member in ring.holders(other)) == (other in ring.holders(member))


@pytest.mark.parametrize("degree", [6, 7, 8])
def test_ring_of_enough_neighbours_is_complete(degree: int) -> None:
    ring = Ring((4, 1, 3, 2, 0, 6, 5), degree)
    assert all(ring.holders(member) == set(range(7)) for member in range(7))
    assert complete(range(7)).holders(3) == set(range(7))


def test_stranger_has_no_place() -> None:
    with pytest.raises(KeyError):
        complete([1, 2, 3]).holders(4)


def test_members_stand_by_place_then_by_index() -> None:
    assert ring_of({4: b"b", 2: b"c", 9: b"a", 3: b"b"}, 2).order == (9, 3, 4, 2)


def test_members_short_of_holders_are_found() -> None:
    ring = Ring(tuple(range(8)), 4)
    assert ring.short_of(4, {0, 1, 2, 3, 4}, range(8)) == [0, 4, 5, 6, 7]
    assert ring.short_of(3, {0, 1, 2, 3, 4}, [1, 2, 3]) == []


def parts(ring: Ring, members: frozenset[int]) -> Iterator[frozenset[int]]:
    """The connected parts of these members."""
    left = set(members)
    while left:
        part, fresh = set(), {min(left)}
        while fresh:
            part |= fresh
            fresh = {peer for member in fresh for peer in ring.holders(member) & members} - part
        left -= part
        yield frozenset(part)


def colluders_within(size: int, half: int, most: int) -> Iterator[frozenset[int]]:
    """Every set of places of which no honest one has more than ``most`` among the ``half`` before it, or after it."""
    for chosen in itertools.product((0, 1), repeat=size):
        honest = [place for place in range(size) if not chosen[place]]
        runs = [
            sum(chosen[(place + side * step) % size] for step in range(1, half + 1))
            for place in honest
            for side in (-1, 1)
        ]
        if honest and max(runs) <= most:
            yield frozenset(place for place in range(size) if chosen[place])


def cut_off(ring: Ring, threshold: int, colluders: frozenset[int]) -> bool:
    """Whether some choice of dropped members lets the sum of a part of the honest ones be opened.

    The aggregator opens the self masks of a part, and the pairwise masks of honest members that it calls dropped, who
    then help nobody. All others help with whatever it asks.
    """
    honest = ring.members - colluders
    for count in range(len(honest)):
        for gone in itertools.combinations(sorted(honest), count):
            left = honest - set(gone)
            helpers = left | colluders
            opened = [part for part in parts(ring, left) if not ring.short_of(threshold, helpers, part)]
            if any(part != left for part in opened):
                return True
    return False


@pytest.mark.parametrize(("size", "degree", "most"), [(7, 4, 0), (9, 4, 0), (9, 6, 1), (9, 6, 0)])
def test_no_choice_of_dropped_members_opens_a_part_of_the_ring(size: int, degree: int, most: int) -> None:
    ring = Ring(tuple(range(size)), degree)
    threshold = degree // 2 + most + 2
    assert not any(cut_off(ring, threshold, bad) for bad in colluders_within(size, degree // 2, most))


@pytest.mark.parametrize(("size", "degree", "most"), [(9, 4, 0), (9, 4, 1)])
def test_one_share_less_opens_a_part_of_the_ring(size: int, degree: int, most: int) -> None:
    ring = Ring(tuple(range(size)), degree)
    threshold = degree // 2 + most + 1
    assert any(cut_off(ring, threshold, bad) for bad in colluders_within(size, degree // 2, most))


@pytest.mark.parametrize(("size", "degree", "most"), [(9, 4, 0), (9, 6, 1), (11, 8, 2)])
def test_colluding_holders_open_nothing_and_no_member_opens_twice(size: int, degree: int, most: int) -> None:
    ring, threshold = Ring(tuple(range(size)), degree), degree // 2 + most + 2
    for bad in colluders_within(size, degree // 2, most):
        for member in ring.members - bad:
            colluding = len(ring.holders(member) & bad)
            assert colluding < threshold
            assert 2 * threshold > degree + 1 + colluding  # honest holders help with one secret of each member alone


def test_bound_is_not_beaten_by_drawn_rings() -> None:
    """Runs of places are bad about as often as the calculator says, where that is often enough to be seen."""
    population, marked, half, limit = 40, 10, 6, 4
    generator = random.Random(17)
    tries, bad = 4000, 0
    for _ in range(tries):
        order = generator.sample(range(population), population)
        colluding = [place < marked for place in order]
        runs = [sum((colluding + colluding)[start : start + half]) for start in range(population)]
        bad += max(runs) > limit
    assert bad <= tries * population * hypergeometric_tail(population, marked, half, limit + 1)
    assert bad > 0
    assert math.isclose(float(hypergeometric_tail(population, marked, half, limit + 1)), 0.0021, rel_tol=0.1)
