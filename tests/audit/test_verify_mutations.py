"""Falsified logs by the thousand: each is found, with its kind and the first record that is not to be trusted."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from depth import at_depth
from falsified import CLASSES, drawn
from file_mutations import kind_of_note
from forged_logs import log_files
from log_builder import LARGE, NAME, SMALL, grow, opened, verify
from mutations import EVERYWHERE, Bench, Mutation

BORDER = (130, 256)
DRAWN = at_depth([(SMALL, 200), (LARGE, 80), (BORDER, 60)], [(SMALL, 40_000), (LARGE, 6_000), (BORDER, 4_000)])
"""How many mutations of which log are drawn."""


def check(bench: Bench, changes: Iterable[Mutation]) -> int:
    """Their number; the log is as before."""
    count = 0
    for count, change in enumerate(changes, start=1):  # noqa: B007 - it is returned
        finding = bench.verify(change).finding
        assert change.is_found(finding), (change, finding)
    assert verify(bench.folder).finding is None
    return count


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, ...], Bench]:
    made = {}
    for sizes in (SMALL, LARGE, BORDER):
        parent = tmp_path_factory.mktemp("logs")
        with opened(parent) as log:
            grow(log, *sizes)
        made[sizes] = Bench(parent / "run-1", NAME)
    return made


def test_every_mutation_of_the_records_of_a_small_log_is_found(logs: dict[tuple[int, ...], Bench]) -> None:
    bench, rng = logs[SMALL], random.Random(6)
    records = at_depth((0, 1, 9, 10, 18, 19), range(20))
    changes = [change for index in records for make in EVERYWHERE for change in make(bench, index, rng)]

    assert check(bench, [change for change in changes if change.files]) >= at_depth(170, 600)


@pytest.mark.parametrize(("sizes", "count"), DRAWN)
def test_mutations_of_every_class_that_are_drawn_by_chance_are_found(
    logs: dict[tuple[int, ...], Bench], sizes: tuple[int, ...], count: int
) -> None:
    changes = list(drawn([logs[sizes]], seed=7, count=count))

    assert {name for name, *_ in changes} == CLASSES.keys()
    assert check(logs[sizes], [change for *_, change in changes]) == count


@pytest.mark.parametrize("sizes", [SMALL, LARGE, BORDER])
def test_files_that_are_made_in_memory_are_those_of_the_writer(
    logs: dict[tuple[int, ...], Bench], sizes: tuple[int, ...]
) -> None:
    bench = logs[sizes]

    assert log_files(bench.entries, sizes) | {"lock": b""} == bench.files


def test_note_as_it_was_signed_is_no_falsification(logs: dict[tuple[int, ...], Bench]) -> None:
    good = logs[SMALL].files["checkpoint"]

    assert kind_of_note(good, good) == ""
    assert kind_of_note(good[:-1], good) == "unreadable"


def test_two_drawings_with_one_seed_are_the_same(logs: dict[tuple[int, ...], Bench]) -> None:
    one, other = (list(drawn([logs[SMALL]], seed, 100)) for seed in (3, 3))

    assert [change.what for *_, change in one] == [change.what for *_, change in other]
    assert one == other != list(drawn([logs[SMALL]], 4, 100))


def test_falsification_that_is_named_otherwise_counts_as_missed(
    logs: dict[tuple[int, ...], Bench], tmp_path: Path
) -> None:
    bench = logs[SMALL]
    (_, _, change), *_ = drawn([bench], 3, 1)
    finding = bench.verify(change).finding

    assert change.is_found(finding)
    for wrong in (Mutation("", {}, "torn", change.index), Mutation("", {}, change.kind, change.index + 1)):
        assert not wrong.is_found(finding)
    assert not change.is_found(None)
