"""A site whose disk fills ends before anything leaves that is not in its log.

The disk of one site is full from the k-th time on that its log takes space, for every k of a whole run (for some of
them in the quick form): at records, kept messages, checkpoints, new files and folders, and where a record must be on
the disk before a release.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from depth import at_depth
from rounds_disk import EndingFederation, FullDisk, is_all_logged
from rounds_federation import TARGET, AnySigned

from securefda.audit.log_files import AuditError
from securefda.errors import SecureFdaError
from securefda.protocol.messages import Parcel, Result, Visibility
from securefda.transport.observer import Direction

CLEAR, SUM = Visibility.INDIVIDUAL, Visibility.SUM
PARTS = at_depth(1, 4)


def tried(times: int, quick: int, deep_step: int, first: int = 0) -> range:
    """Some of so many times at which a disk can be full: so many of them, evenly, odd and even, or every so many-th."""
    return range(first, times, at_depth(times // quick | 1, deep_step))


def build(folder: Path, visibility: Visibility, rounds: int = 2) -> EndingFederation:
    n = 1 if visibility is CLEAR else 3
    return EndingFederation(folder, n, visibility=visibility, rounds=rounds, settings={"attempts": 1})


def assert_all_is_logged(federation: EndingFederation) -> None:
    assert [index for index in range(federation.n + 1) if not is_all_logged(federation, index)] == []


def assert_has_a_hint(error: SecureFdaError, logs: Path) -> None:
    assert isinstance(error, AuditError)
    assert str(logs) in str(error)
    assert "No space left on device" in str(error)
    assert "free disk space" in error.hint


def fill(folder: Path, visibility: Visibility, index: int, space: int) -> tuple[EndingFederation, FullDisk]:
    """The disk of a site fills, and its process ends; the others go on as long as they can."""
    federation = build(folder, visibility)
    disk = FullDisk(federation.logs_of(index), space)
    with disk.mounted():
        federation.open().go()
    assert disk.refused
    return federation, disk


@pytest.fixture(scope="module")
def space_until_the_result(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Visibility, int], int]:
    """How often the log of a site takes space until round 1 has its result."""
    return cache(lambda visibility, index: counted_space(tmp_path_factory.mktemp("whole"), visibility, index))


def counted_space(folder: Path, visibility: Visibility, index: int) -> int:
    federation = build(folder, visibility, rounds=1)
    disk = FullDisk(federation.logs_of(index))
    taken: list[int] = []

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        if isinstance(message.body, Result):
            taken.append(disk.taken)
        return message

    federation.link = link
    with disk.mounted():
        federation.open().go()
    assert federation.watch.statuses == ["finished"]
    return taken[-1 if index == TARGET else 0]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("index", [TARGET, 1])
@pytest.mark.parametrize("visibility", [CLEAR, SUM], ids=lambda level: level.label)
def test_nothing_unlogged_leaves_whenever_the_disk_fills_in_a_round(
    tmp_path: Path,
    space_until_the_result: Callable[[Visibility, int], int],
    visibility: Visibility,
    index: int,
    part: int,
) -> None:
    spaces = tried(space_until_the_result(visibility, index), 6, 4, first=part)
    assert len(spaces) >= at_depth(6, 10)

    for space in spaces:
        federation, _ = fill(tmp_path / str(space), visibility, index, space)
        federation.close()

        assert set(federation.ended) == {index}, space
        assert_has_a_hint(federation.ended[index], federation.logs_of(index))
        assert_all_is_logged(federation)


def test_a_site_that_cannot_go_on_with_its_log_says_the_cause_as_often_as_it_is_asked(tmp_path: Path) -> None:
    federation, _ = fill(tmp_path, CLEAR, 1, 30)
    journal = federation.sources[1]._site.witness.journal
    for _ in range(2):
        with pytest.raises(AuditError) as said:
            journal.event("alarm", check="ORDER", accused=[])
        assert_has_a_hint(said.value, federation.logs_of(1))


class Careless(EndingFederation):
    """Sites that send and handle what they could not write down."""

    def observe(self, site: int, direction: Direction, peer: int, parcel: Parcel, *, more: bool = False) -> None:
        with suppress(AuditError):
            super().observe(site, direction, peer, parcel, more=more)


def test_control_a_site_that_sends_what_it_could_not_write_down_is_found(tmp_path: Path) -> None:
    found = set()
    for space in range(20, 40):
        federation = Careless(tmp_path / str(space), 1, visibility=CLEAR, rounds=1, settings={"attempts": 1})
        with FullDisk(federation.logs_of(1), space).mounted():
            federation.open().go()
        federation.close()
        found |= {index for index in (TARGET, 1) if not is_all_logged(federation, index)}
    assert found == {1}
