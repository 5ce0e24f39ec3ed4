"""Several processes of one site that train its rounds together, as torchrun starts them; each may have a GPU.

One of them leads: it alone speaks to the aggregator and has the site's keys, ledger and log. The others follow. In each
step the leader says which rows it takes, each process computes the gradient of its part of them, and the parts are
summed over all processes, which then take the same step. So the update is that of one process but for rounding, and for
what layers draw, such as dropout.

All processes are on one machine and talk over its loopback interface, without encryption.
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
"""A follower waits between rounds for as long as a run may pause; one whose leader is gone hears of that at once."""

_DONE, _GIVEN_UP = -1, -2
"""In the place of a number of rows: the round is over; it ends early, and nothing is collected."""

_LOOPBACK = "lo"
_AGAIN = "see what each of them printed last; then start all of them again"


@dataclass(frozen=True, slots=True)
class Assignment:
    """Whose rows a team trains on: site ids of its own site, of the target and of all sources of its federation."""

    site: str
    target: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Told:
    """What followers need to know of a round.

    Attributes:
        received: the model that it begins with, float32 (m,).
        settings: how to train, learning rate as it is to be used.
        layers_seed: from which what layers draw follows, where training is repeatable; None elsewhere.
    """

    received: Vector
    settings: TrainingSettings
    layers_seed: int | None


class FromSystem:
    """A :class:`~securefda.training.seeds.SecretSeed` that is nobody's: all that it gives is drawn anew."""

    def of(self, *_: str | int) -> Self:
        """Itself."""
        return self

    def stream(self) -> Callable[[int], bytes]:
        """The operating system's."""
        return os.urandom


class TeamGoneError(TrainingError):
    """A process of the team has ended, or has left a step in the middle."""

    exit_code = ExitCode.FAILED


class Team:
    """The processes of a site that train together.

    ``in_step`` says that the others wait for this process's part of a step. One that leaves such a step cannot meet
    the others again.

    Args:
        rank: of this process; 0 leads.
        count: of all processes, at least two.
    """

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count
        self.in_step = False

    @property
    def leads(self) -> bool:
        """Whether this process is the one that speaks to the aggregator."""
        return self.rank == 0

    # --- between rounds ---

    def tell(self, told: object) -> None:
        """Tell all followers something: an :class:`Assignment`, :class:`Told` for each round, and None to end with."""
        if self.in_step:
            raise TeamGoneError("the processes that train together have lost each other", hint=_AGAIN)
        with self._together():
            dist.broadcast_object_list([told], src=0)

    def hear(self) -> Any:
        """What the leader tells next."""
        box: list[Any] = [None]
        with self._together():
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def require_same_rows(self, site: str, data: Samples) -> None:
        """Refuse to begin unless all processes have loaded the same rows in the same order.

        Raises:
            TrainingError: they have not.
        """
        digest = sha256()
        for part in (data.features, data.labels):
            digest.update(part.contiguous().numpy().tobytes())
        of_all: list[Any] = [None] * self.count
        with self._together():
            dist.all_gather_object(of_all, digest.hexdigest())
        if len(set(of_all)) > 1:
            raise TrainingError(
                f"{site}: its processes have loaded different rows",
                hint="have the task's train_data return the same rows in the same order whenever it is called",
            )

    # --- in a round ---

    def layers_seed(self, seed: Seed) -> Seed:
        """What layers of this process draw from: different in each process, and the leader's as without a team."""
        return seed if self.leads else derive_seed(seed, "process", self.rank)

    def _steps(self, rows: Iterable[Tensor]) -> Generator[Tensor]:
        if not self.leads:
            yield from self._steps_of_leader()
            return
        sign = _GIVEN_UP
        try:
            for of_step in rows:
                self._sent(torch.tensor([len(of_step)]))
                self._sent(of_step.to("cpu", torch.int64))
                self.in_step = True
                yield of_step
            sign = _DONE
        finally:
            if not self.in_step:  # else a follower waits for this process's part, and can be told nothing
                self._sent(torch.tensor([sign]))

    def _steps_of_leader(self) -> Generator[Tensor]:
        number = 0
        try:
            while (number := int(self._sent(torch.zeros(1, dtype=torch.int64)))) >= 0:
                rows = self._sent(torch.zeros(number, dtype=torch.int64))
                self.in_step = True
                yield rows
        finally:
            if number >= 0 and not self.in_step:  # this process gives up where the leader does, who says so next
                number = int(self._sent(torch.zeros(1, dtype=torch.int64)))
        if number == _GIVEN_UP:
            raise TrainingError("the leading process has given the round up")

    def share(self, rows: Tensor) -> Tensor:
        """This process's part of a step's rows; perhaps none."""
        return rows.tensor_split(self.count)[self.rank]

    def sum(self, tensor: Tensor, *, last: bool = False) -> None:
        """Put the sum over all processes in the place of a tensor; with ``last`` the step is over."""
        with self._together():
            dist.all_reduce(tensor)
        self.in_step = not last

    def lead_with(self, tensor: Tensor) -> None:
        """Put the leader's tensor in the place of every process's; the step is over."""
        with self._together():
            dist.broadcast(tensor, src=0)
        self.in_step = False

    def collect(self, part: object) -> list[Any]:
        """The parts of all processes, at the leader; nothing at the others."""
        parts: list[Any] | None = [None] * self.count if self.leads else None
        with self._together():
            dist.gather_object(part, parts, dst=0)
        return parts or []

    def _sent(self, tensor: Tensor) -> Tensor:
        with self._together():
            dist.broadcast(tensor, src=0)
        return tensor

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What all processes do at the same time."""
        try:
            yield
        except RuntimeError as error:
            raise TeamGoneError(
                f"one of the {self.count} processes that train together is gone", hint=_AGAIN
            ) from error

    def dismiss(self) -> None:
        """Send the followers home, unless they wait for a part of a step that will not come."""
        if self.leads and not self.in_step:
            self.tell(None)


@contextmanager
def steps_together(team: Team | None, rows: Iterable[Tensor]) -> Iterator[Iterable[Tensor]]:
    """Yield the rows of each step of a round, the same in all processes of a team; only its leader's ``rows`` count."""
    if team is None:
        yield rows
        return
    with closing(team._steps(rows)) as steps:
        yield steps


def _meet(backend: str, rank: int, count: int) -> None:
    """Wait for the others in a thread of its own: in this one a signal would be heard only once all of them are there.

    Raises:
        TeamGoneError: one of them ended meanwhile, or the address at which they meet is taken.
    """
    failed: list[RuntimeError] = []

    def meet() -> None:
        try:
            dist.init_process_group(backend, rank=rank, world_size=count, timeout=_PATIENCE)
        except RuntimeError as error:
            failed.append(error)

    waiting = threading.Thread(target=meet, daemon=True)  # which a process that was told to end leaves behind
    waiting.start()
    waiting.join()
    for error in failed:
        why = str(error).partition("\n")[0]
        raise TeamGoneError(
            f"the {count} processes that train together do not find each other: {why}", hint=_AGAIN
        ) from error


@contextmanager
def joined_team(device: str, env: Mapping[str, str] = os.environ) -> Iterator[Team | None]:
    """This process's team while the block runs; None outside torchrun, or where it started one process.

    Args:
        device: as the settings name it. On GPUs each process takes the one of its number.
        env: torchrun's variables, among them the address at which processes meet.

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
    _meet(backend, rank, count)
    team = Team(rank, count)
    try:
        yield team
        team.dismiss()
    finally:
        dist.destroy_process_group()
