"""Several processes of one site that train its rounds together, as torchrun starts them; each may have a GPU.

One process leads: it alone talks to the aggregator and has the site's keys, ledger and log. The others follow. In each
step the leader chooses the rows, each process computes the gradient of its part of them, and all processes take the
same step by the sum. So the update is that of one process, except for rounding and for random layers such as dropout.

All processes run on one machine and talk over its loopback interface, without encryption.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from securefda.errors import ConfigError, ExitCode, TrainingError
from securefda.machine import place_of
from securefda.protocol.encoding import Vector
from securefda.tasks import Samples
from securefda.training.device import choose_device
from securefda.training.seeds import Seed, derive_seed
from securefda.training.settings import TrainingSettings

_PATIENCE = timedelta(days=365)
"""Longest wait of a follower between rounds; it is told at once if the leader is gone."""

_DONE, _GIVEN_UP = -1, -2
"""Sent in place of a number of rows: the round is over, or it ends early and nothing is gathered."""

_LOOPBACK = "lo"
_RESTART_HINT = "see what each of them printed last; then start all of them again"


@dataclass(frozen=True, slots=True)
class Assignment:
    """The rows that a team trains on, by the site ids of its own site, the target and all sources of the federation."""

    site: str
    target: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class TrainingOrder:
    """An order to the followers to train a round.

    Attributes:
        received: the model with which the round begins, float32 (m,).
        settings: how to train, with the effective learning rate.
        layers_seed: seed of random layers if training is repeatable; None: followers draw from the operating system.
    """

    received: Vector
    settings: TrainingSettings
    layers_seed: int | None


class SystemSeed:
    """A :class:`~securefda.training.seeds.SecretSeed` without a value: its bytes come from the operating system."""

    def of(self, *_: str | int) -> Self:
        """Return this seed: it is the same for every purpose."""
        return self

    def stream(self) -> Callable[[int], bytes]:
        """Return ``os.urandom``."""
        return os.urandom


class TeamGoneError(TrainingError):
    """A process of the team has ended, or has left a step before its end."""

    exit_code = ExitCode.FAILED


class Team:
    """The processes of a site that train together.

    ``in_step`` is set while the others wait for this process's part of a step. A process that fails then cannot
    continue with the team.

    Args:
        rank: number of this process; 0 leads.
        count: number of processes, at least 2.
    """

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count
        self.in_step = False

    @property
    def leads(self) -> bool:
        """Whether this process leads, and so talks to the aggregator."""
        return self.rank == 0

    # --- between rounds ---

    def send(self, message: object) -> None:
        """Send a message to all followers: an :class:`Assignment`, a :class:`TrainingOrder` per round, or None to end.

        Raises:
            TeamGoneError: the team is in a step, or a process is gone.
        """
        if self.in_step:
            raise TeamGoneError("the processes that train together have lost each other", hint=_RESTART_HINT)
        with self._collective():
            dist.broadcast_object_list([message], src=0)

    def receive(self) -> Any:
        """Wait for the leader's next message and return it.

        Raises:
            TeamGoneError: a process is gone.
        """
        box: list[Any] = [None]
        with self._collective():
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def require_same_rows(self, site: str, data: Samples) -> None:
        """Check that all processes have loaded the same rows in the same order.

        Raises:
            TrainingError: they have not.
        """
        digest = sha256()
        for part in (data.features, data.labels):
            digest.update(part.contiguous().numpy().tobytes())
        digests: list[Any] = [None] * self.count
        with self._collective():
            dist.all_gather_object(digests, digest.hexdigest())
        if len(set(digests)) > 1:
            raise TrainingError(
                f"{site}: its processes have loaded different rows",
                hint="have the task's train_data return the same rows in the same order whenever it is called",
            )

    # --- in a round ---

    def layers_seed(self, seed: Seed) -> Seed:
        """Return the seed of random layers: a different one in each process, at the leader ``seed`` itself."""
        return seed if self.leads else derive_seed(seed, "process", self.rank)

    def _steps(self, rows: Iterable[Tensor]) -> Generator[Tensor]:
        if not self.leads:
            yield from self._leader_steps()
            return
        sign = _GIVEN_UP
        try:
            for step_rows in rows:
                self._broadcast(torch.tensor([len(step_rows)]))
                self._broadcast(step_rows.to("cpu", torch.int64))
                self.in_step = True
                yield step_rows
            sign = _DONE
        finally:
            if not self.in_step:  # else followers wait for this process's part and take no other message
                self._broadcast(torch.tensor([sign]))

    def _leader_steps(self) -> Generator[Tensor]:
        number = 0
        try:
            while (number := int(self._broadcast(torch.zeros(1, dtype=torch.int64)))) >= 0:
                rows = self._broadcast(torch.zeros(number, dtype=torch.int64))
                self.in_step = True
                yield rows
        finally:
            if number >= 0 and not self.in_step:  # this process gives up as the leader does, whose sign comes next
                number = int(self._broadcast(torch.zeros(1, dtype=torch.int64)))
        if number == _GIVEN_UP:
            raise TrainingError("the leading process has given the round up")

    def share(self, rows: Tensor) -> Tensor:
        """Return this process's part of a step's rows, perhaps empty."""
        return rows.tensor_split(self.count)[self.rank]

    def sum(self, tensor: Tensor, *, last: bool = False) -> None:
        """Replace a tensor by its sum over all processes; ``last`` ends the step."""
        with self._collective():
            dist.all_reduce(tensor)
        self.in_step = not last

    def broadcast_step(self, tensor: Tensor) -> None:
        """Replace a tensor by the leader's; this ends the step."""
        with self._collective():
            dist.broadcast(tensor, src=0)
        self.in_step = False

    def collect(self, part: object) -> list[Any]:
        """Return the parts of all processes at the leader, in order of rank; an empty list at the others."""
        parts: list[Any] | None = [None] * self.count if self.leads else None
        with self._collective():
            dist.gather_object(part, parts, dst=0)
        return parts or []

    def _broadcast(self, tensor: Tensor) -> Tensor:
        with self._collective():
            dist.broadcast(tensor, src=0)
        return tensor

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Raise TeamGoneError if a collective operation in the block fails."""
        try:
            yield
        except RuntimeError as error:
            raise TeamGoneError(
                f"one of the {self.count} processes that train together is gone", hint=_RESTART_HINT
            ) from error

    def dismiss(self) -> None:
        """End the followers, unless they wait for a part of a step that will not come."""
        if self.leads and not self.in_step:
            self.send(None)


@contextmanager
def shared_steps(team: Team | None, rows: Iterable[Tensor]) -> Iterator[Iterable[Tensor]]:
    """Yield the rows of each step of a round, the same in all processes of a team: those of the leader."""
    if team is None:
        yield rows
        return
    with closing(team._steps(rows)) as steps:
        yield steps


def _join_process_group(backend: str, rank: int, count: int) -> None:
    """Join the team's process group, once all of its processes are there.

    It waits in another thread, since this thread would handle a signal only after the wait.

    Raises:
        TeamGoneError: a process ended meanwhile, or the address of the group is in use.
    """
    failed: list[RuntimeError] = []

    def join() -> None:
        try:
            dist.init_process_group(backend, rank=rank, world_size=count, timeout=_PATIENCE)
        except RuntimeError as error:
            failed.append(error)

    waiting = threading.Thread(target=join, daemon=True)  # a process that has to end does not wait for it
    waiting.start()
    waiting.join()
    for error in failed:
        why = str(error).partition("\n")[0]
        raise TeamGoneError(
            f"the {count} processes that train together do not find each other: {why}", hint=_RESTART_HINT
        ) from error


@contextmanager
def joined_team(device: str, env: Mapping[str, str] = os.environ) -> Iterator[Team | None]:
    """Yield this process's team for the block; None outside torchrun, or if it started one process.

    Args:
        device: the device that the settings name. On GPUs each process takes the GPU of its rank.
        env: torchrun's variables, among them the address of the process group.

    Raises:
        ConfigError: there are fewer GPUs than processes, or the processes are on several machines.
    """
    rank, count = place_of(env)
    if count == 1:
        yield None
        return
    if device in ("auto", "cuda") and (gpus := torch.cuda.device_count()):
        if gpus < count:
            why = f"there are {count} processes and {gpus} GPUs"
            raise ConfigError("training.device", why, hint=f'start at most {gpus} processes, or set it to "cpu"')
        torch.cuda.set_device(rank)
    kind = choose_device(device).type
    if kind == "mps":
        raise ConfigError("training.device", "mps does not go with several processes", hint='set it to "cpu"')
    if os.path.exists(f"/sys/class/net/{_LOOPBACK}"):  # noqa: PTH110 - a file of the kernel
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    _join_process_group(backend, rank, count)
    team = Team(rank, count)
    try:
        yield team
        team.dismiss()
    finally:
        dist.destroy_process_group()
