"""Kills at every point of a round by DP-SGD: the ledger is never below what was trained, and a round above at most.

Processes are killed in the deep tests. The quick ones look, at the same points, at what a kill would leave.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rounds_federation import UNIX_S
from rounds_private import WIDE
from train_and_die import STEPS, Late, Life, data_set

from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import DpEvent
from securefda.privacy.ledger import Ledger

SCRIPT = Path(__file__).with_name("train_and_die.py")
POINTS = [
    "before-reserve",
    "after-reserve",
    *(f"step-{number}" for number in range(1, STEPS + 1)),
    "before-commit",
    "after-commit",
    "before-release",
    "after-release",
]
LATE = [f"late-step-{number}" for number in range(1, STEPS + 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def ended(folder: Path) -> dict[str, int]:
    """How each process ended, by the point at which it was to be killed."""
    ours = [str(SCRIPT.parents[2]), str(SCRIPT.parents[1] / "support")]
    paths = os.pathsep.join([*ours, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(SCRIPT), str(folder), *POINTS, "disk", *LATE]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: int(status) for name, status in lines}


def ledger_of(place: Path) -> Ledger:
    return Ledger(place / "ledger.sqlite", data_set())


def taken(place: Path) -> Counter[tuple[int, int]]:
    """Noisy steps by round and attempt, as the process itself wrote them down."""
    file = place / "taken"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return Counter((int(number), int(attempt)) for number, attempt in lines)


def check(place: Path, kills: int) -> None:
    """The ledger of a life with so many kills, against the record of the steps that were taken."""
    charged, steps = ledger_of(place).events(), taken(place)
    by_attempt = {(event.round, event.attempt): event for event in charged}
    assert len(by_attempt) == len(charged)
    assert steps.keys() <= by_attempt.keys()
    assert len(charged) <= len(steps) + kills
    assert all(steps[key] <= event.steps for key, event in by_attempt.items())
    whole: DpEvent = charged[0]
    truth = [replace(whole, round=key[0], attempt=key[1], steps=count) for key, count in steps.items()]
    spent = ledger_of(place).spent(WIDE.delta)
    assert epsilon(truth, WIDE.delta) <= spent
    assert spent <= epsilon([whole] * (len(steps) + kills), WIDE.delta)


def check_left(place: Path, point: str) -> None:
    """The ledger, the steps and the release of a life that has come to a point of round 2."""
    assert taken(place)[1, 1] == STEPS
    check(place, kills=1)
    expected = {"before-reserve": 0, "after-reserve": 0} | {f"step-{k}": k for k in range(1, STEPS + 1)}
    assert taken(place)[2, 1] == expected.get(point, STEPS)
    kinds = [row.kind for row in ledger_of(place).rows()]
    is_over = point in ("after-commit", "before-release", "after-release")
    of_round_2 = ["reserved"] * (point != "before-reserve") + ["committed"] * is_over
    assert kinds == ["opened", "reserved", "committed", *of_round_2]
    assert (place / "released-2").exists() == (point == "after-release")


class Looked(Life):
    """Lives on, while another reader of its folder looks at it at every point of round 2: that is what a kill leaves.

    A reader of the ledger sees what has been committed, as one that comes after a kill does.
    """

    def __init__(self, place: Path, look: Callable[[Path, str], None]) -> None:
        super().__init__(place, "")
        self.look, self.points = look, list[str]()
        Ledger.create(place / "ledger.sqlite", data_set(), now=UNIX_S)

    def reach(self, point: str) -> None:
        if self.round == 2:
            self.points.append(point)
            self.look(self.place, point)


def test_at_every_point_of_a_round_a_kill_would_leave_charged_what_was_trained(tmp_path: Path) -> None:
    life = Looked(tmp_path, check_left)
    life.rounds(range(1, 3))
    assert life.points == POINTS

    before = len(ledger_of(tmp_path).events())
    again = Life(tmp_path, "")
    again.attempt = 2
    again.rounds(range(2, 4))
    assert len(ledger_of(tmp_path).events()) == before + 2
    check(tmp_path, kills=1)


def test_at_every_step_a_trainer_that_charges_afterwards_is_found(tmp_path: Path) -> None:
    """Companion of the test above."""
    found = []

    def look(place: Path, point: str) -> None:
        with pytest.raises(AssertionError):
            check(place, kills=1)
        found.append(point)
        if point == f"step-{STEPS}":
            raise KeyboardInterrupt  # the points that follow are those of an account that was charged

    with pytest.raises(KeyboardInterrupt):
        Looked(tmp_path, look).rounds(range(1, 3), Late)
    assert found == [f"step-{number}" for number in range(1, STEPS + 1)]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_of_a_round_it_has_charged_what_it_trained_and_goes_on(
    folder: Path, ended: dict[str, int], point: str
) -> None:
    place = folder / point
    assert ended[point] == -signal.SIGKILL
    check_left(place, point)

    before = len(ledger_of(place).events())
    life = Life(place, "")
    life.attempt = 2
    life.rounds(range(2, 4))

    assert len(ledger_of(place).events()) == before + 2
    assert taken(place)[2, 2] == taken(place)[3, 2] == STEPS
    check(place, kills=1)


def test_killed_at_any_point_of_the_disk_it_has_charged_what_it_trained(folder: Path, ended: dict[str, int]) -> None:
    killed = [name for name, status in ended.items() if name.startswith("disk-") and status == -signal.SIGKILL]
    [lived] = [name for name, status in ended.items() if name.startswith("disk-") and status == 0]
    found = set()
    for point in (*killed, lived):
        place = folder / point
        check(place, kills=point != lived)
        found.add((taken(place)[2, 1], tuple(row.kind for row in ledger_of(place).rows()[3:])))
    assert not any((folder / point / "released-2").exists() for point in killed[:-1])
    assert (folder / lived / "released-2").exists()
    assert {(0, ()), (0, ("reserved",)), (STEPS, ("reserved",)), (STEPS, ("reserved", "committed"))} <= found
    assert {steps for steps, _ in found} == set(range(STEPS + 1))


@pytest.mark.parametrize("point", LATE)
def test_trainer_that_charges_after_it_trained_is_found(folder: Path, ended: dict[str, int], point: str) -> None:
    """Companion of the tests above."""
    assert ended[point] == -signal.SIGKILL
    with pytest.raises(AssertionError):
        check(folder / point, kills=1)
