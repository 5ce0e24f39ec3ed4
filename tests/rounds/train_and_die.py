"""A process of its own that trains rounds by DP-SGD in copies of itself, each of which is killed at another point.

Usage: train_and_die.py FOLDER POINT... A copy trains rounds 1 and 2 in the folder FOLDER/POINT, and kills itself with
-9 at the point in round 2. ``disk`` stands for every point of round 2 at which it touches the disk: disk-1, disk-2 and
so on, to the copy that meets no further one and lives. Beside the ledger a copy leaves ``taken``, a line for each noisy
step at the moment when its noise is asked for, and ``released-N`` with the update of round N. Prints the exit status of
each copy.
"""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from disk_points import die_at, tell_disk_points
from rounds_federation import SEED, UNIX_S
from rounds_private import NOISE, WIDE, settings_with
from rounds_tasks import Points

from securefda.privacy.accountants import rdp_of_a_step
from securefda.privacy.ledger import Ledger
from securefda.privacy.ledger_storage import DataSet
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


def data_set() -> DataSet:
    return data_set_of(SITE, "points", ROWS)


class Life:
    """A process that trains, and the point at which it ends."""

    def __init__(self, place: Path, point: str) -> None:
        self.place, self.point = place, point
        self.round, self.attempt, self.steps = 0, 1, 0

    def reach(self, point: str) -> None:
        if self.round == 2 and point == self.point:
            os.kill(os.getpid(), signal.SIGKILL)

    def random_bytes(self, length: int) -> bytes:
        if length == KEY_BYTES:
            with (self.place / "taken").open("a") as record:
                record.write(f"{self.round} {self.attempt}\n")
            self.steps += 1
            self.reach(f"step-{self.steps}")
        return os.urandom(length)

    def trainer(self, kind: type[PrivateTrainer] = PrivateTrainer) -> PrivateTrainer:
        ledger = Ledger(self.place / "ledger.sqlite", data_set())
        account = Watched(ledger, data_set(), WIDE, bytes(32), unix_time=lambda: UNIX_S)
        account.tell(self)
        return kind(TASK, SITE, ROWS, SETTINGS, SEED, account=account, random_bytes=self.random_bytes)

    def rounds(self, numbers: Iterator[int] | range, kind: type[PrivateTrainer] = PrivateTrainer) -> None:
        trainer = self.trainer(kind)
        for self.round in numbers:
            self.steps = 0
            if self.round == 2 and self.point.startswith("disk-"):
                tell_disk_points(self.place, die_at(int(self.point.removeprefix("disk-"))))
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


def main(folder: Path, points: list[str]) -> None:
    importlib.import_module("torch._dynamo")  # torch's optimizers do; here it is done once
    rdp_of_a_step(NOISE.noise_multiplier, 1 / STEPS)
    for name in points:
        if name == "disk":
            for number in itertools.count(1):
                if live(folder, f"disk-{number}") == 0:
                    break
        else:
            live(folder, name)


def live(folder: Path, name: str) -> int:
    """Train in a copy of this process and return, and print, how it ended."""
    kind, point = (Late, name.removeprefix("late-")) if name.startswith("late-") else (PrivateTrainer, name)
    place = folder / name
    place.mkdir()
    Ledger.create(place / "ledger.sqlite", data_set(), now=UNIX_S)
    child = os.fork()  # before this process has trained: torch starts no threads until then
    if child == 0:
        Life(place, point).rounds(range(1, 3), kind)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(1, f"{name} {status}\n".encode())
    return status


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
