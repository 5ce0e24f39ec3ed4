"""Kills at every point of a round by DP-SGD: the ledger is never below what was trained, and a round above at most.

The tests look, at every point, at what a kill would leave; processes are killed in ``tests/privacy``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rounds_federation import SEED, UNIX_S
from rounds_private import NOISE, WIDE, settings_with
from rounds_tasks import Points

from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import DpEvent
from securefda.privacy.ledger import Ledger
from securefda.privacy.noise import KEY_BYTES
from securefda.privacy.private_training import train_private
from securefda.site.privacy_account import PrivacyAccount, data_set_of
from securefda.site.private_trainer import PrivateTrainer
from securefda.tasks import TaskSettings
from securefda.training import LocalResult

SITE, RUN = "source-1", "run"
TASK = Points(TaskSettings("target", (SITE,), SEED))
ROWS = TASK.train_data(SITE)
SETTINGS = settings_with(NOISE, batch_size=8)
STEPS = 3
POINTS = [
    "before-reserve",
    "after-reserve",
    *(f"step-{number}" for number in range(1, STEPS + 1)),
    "before-commit",
    "after-commit",
    "before-release",
    "after-release",
]
DATA = data_set_of(SITE, "points", ROWS)


class Life:
    """A process that trains; beside its ledger it leaves ``taken``, a line for each noisy step, and its releases."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.round, self.attempt, self.steps = 0, 1, 0

    def reach(self, point: str) -> None:
        """It comes to a point of its round."""

    def random_bytes(self, length: int) -> bytes:
        if length == KEY_BYTES:
            with (self.place / "taken").open("a") as record:
                record.write(f"{self.round} {self.attempt}\n")
            self.steps += 1
            self.reach(f"step-{self.steps}")
        return os.urandom(length)

    def trainer(self, kind: type[PrivateTrainer] = PrivateTrainer) -> PrivateTrainer:
        ledger = Ledger(self.place / "ledger.sqlite", DATA)
        account = Watched(ledger, DATA, WIDE, bytes(32), unix_time=lambda: UNIX_S)
        account.tell(self)
        return kind(TASK, SITE, ROWS, SETTINGS, SEED, account=account, random_bytes=self.random_bytes)

    def rounds(self, numbers: Iterator[int] | range, kind: type[PrivateTrainer] = PrivateTrainer) -> None:
        trainer = self.trainer(kind)
        for self.round in numbers:
            self.steps = 0
            result = trainer.train(trainer.initial_model(), self.round, 1.0, run_id=RUN, attempt=self.attempt)
            self.reach("before-release")
            (self.place / f"released-{self.round}").write_bytes(result.update.tobytes())
            self.reach("after-release")


class Watched(PrivacyAccount):
    """An account that says when it is used."""

    lives: dict[int, Life] = {}  # noqa: RUF012 - the fields of an account are fixed

    def tell(self, life: Life) -> None:
        self.lives[id(self)] = life

    def reserve(self, event: Any) -> Any:
        self.lives[id(self)].reach("before-reserve")
        reservation = super().reserve(event)
        self.lives[id(self)].reach("after-reserve")
        return reservation

    def commit(self, reservation: Any, steps: int) -> Any:
        self.lives[id(self)].reach("before-commit")
        head = super().commit(reservation, steps)
        self.lives[id(self)].reach("after-commit")
        return head


class Late(PrivateTrainer):
    """Trains first and charges afterwards, which must be found."""

    def train(self, received: Any, round_number: int, factor: float, **options: Any) -> LocalResult:
        result = train_private(
            self.task,
            self.module,
            received,
            self.labelled_rows(),
            settings=self.settings,
            site=self.site,
            random_bytes=self._random_bytes,
        )
        event = self.event(options["run_id"], round_number, options["attempt"])
        self.account.commit(self.account.reserve(event), result.steps)
        return result


def ledger_of(place: Path) -> Ledger:
    return Ledger(place / "ledger.sqlite", DATA)


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
        super().__init__(place)
        self.look, self.points = look, list[str]()
        Ledger.create(place / "ledger.sqlite", DATA, now=UNIX_S)

    def reach(self, point: str) -> None:
        if self.round == 2:
            self.points.append(point)
            self.look(self.place, point)


def test_at_every_point_of_a_round_a_kill_would_leave_charged_what_was_trained(tmp_path: Path) -> None:
    life = Looked(tmp_path, check_left)
    life.rounds(range(1, 3))
    assert life.points == POINTS

    before = len(ledger_of(tmp_path).events())
    again = Life(tmp_path)
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
