"""Several processes of one site that train its rounds together, on one machine; each may have a GPU.

One process leads: it starts the others, and it alone talks to the aggregator and has the site's keys, ledger and log.
In each step the leader chooses the rows, each process computes the gradient of its part of them, and all processes take
the same step by the sum. So the update is that of one process, except for rounding and for random layers such as
dropout.

The leader holds a socket to each of the others, which inherit their ends: no process listens, so no other process of
the machine can join or read along. What passes is JSON, the bytes of tensors whose shapes both ends know, and
safetensors. A process that trains for the leader ends when its socket does.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

import numpy as np
import safetensors.torch
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from securefda.errors import ConfigError, ExitCode, TrainingError
from securefda.machine import usable_cores
from securefda.protocol.encoding import Vector
from securefda.tasks import Samples
from securefda.training.device import choose_device
from securefda.training.seeds import Seed, derive_seed
from securefda.training.training_settings import TrainingSettings

_DONE = -1
"""Sent in place of a number of rows: the round is over."""

_FOLLOW = (sys.executable, "-P", "-m", "securefda.cli", "source", "follow")
_END_S = 5.0
_LENGTH = struct.Struct("<q")
_RESTART_HINT = "see what they printed last; then start the site again"
"""What an operator does who has lost a process."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a team trains for.

    Attributes:
        settings: the settings file of its site, TOML.
        site, target, sources: ids of the site, of the target and of all sources of the federation.
    """

    settings: str
    site: str
    target: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class TrainingOrder:
    """An order to the followers to train a round.

    Attributes:
        received: the model with which the round begins, float32 (m,).
        others: tensors of the leader's model that are not in ``received``: frozen parameters and buffers, by name.
        settings: how to train, with the effective learning rate.
        threads: of the CPU, with which the leader computes a step.
        layers_seed: seed of random layers if training is repeatable; None: followers draw from the operating system.
    """

    received: Vector
    others: Mapping[str, Tensor]
    settings: TrainingSettings
    threads: int
    layers_seed: int | None


_ASSIGNMENT, _TERMS = TypeAdapter(Assignment), TypeAdapter(tuple[TrainingSettings, int, int | None])


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

    ``in_step`` is set while the others wait for this process's part of a step. After an error in a round the team
    trains no other.

    Args:
        rank: number of this process; 0 leads.
        count: number of processes, at least 2.
        links: at the leader one socket for each follower, in order of rank; at a follower the one to the leader.
    """

    def __init__(self, rank: int, count: int, links: Sequence[socket.socket] = ()) -> None:
        self.rank, self.count = rank, count
        self.in_step = self._in_round = False
        self._links = links

    @property
    def leads(self) -> bool:
        """Whether this process leads, and so talks to the aggregator."""
        return self.rank == 0

    # --- between rounds ---

    def assign(self, assignment: Assignment) -> None:
        """Tell the followers what they train for; the leader's first message.

        Raises:
            TeamGoneError: a process is gone.
        """
        with self._reaching():
            for link in self._links:
                _send_block(link, _ASSIGNMENT.dump_json(assignment))

    def assignment(self) -> Assignment:
        """Wait for the leader's first message and return it.

        Raises:
            TeamGoneError: the leader is gone.
        """
        with self._reaching():
            return _ASSIGNMENT.validate_json(_block(self._links[0]))

    def order(self, order: TrainingOrder) -> None:
        """Have the followers train a round.

        Raises:
            TeamGoneError: the round before did not come to its end, or a process is gone.
        """
        self.require_all()
        self._in_round = True
        terms = _TERMS.dump_json((order.settings, order.threads, order.layers_seed))
        # Copies, since safetensors takes none that share memory, as views of one buffer do
        others = safetensors.torch.save({name: tensor.cpu().clone() for name, tensor in order.others.items()})
        with self._reaching():
            for link in self._links:
                _send_block(link, terms)
                _send_block(link, others)
                _send_block(link, np.ascontiguousarray(order.received).view(np.uint8).data)

    def require_all(self) -> None:
        """Check that all processes are there and wait for an order, before anything is charged for it.

        Raises:
            TeamGoneError: the round before did not come to its end, or a process is gone.
        """
        if self._in_round:
            raise TeamGoneError("the processes that train together have lost each other", hint=_RESTART_HINT)
        ended = select.poll()
        for link in self._links:
            ended.register(link, 0)  # without events: only the end of the other side
        if ended.poll(0):
            raise self._gone()

    def next_order(self) -> TrainingOrder:
        """Wait for the next round and return the order to train it.

        Raises:
            TeamGoneError: the leader has ended.
        """
        with self._reaching():
            terms, others, received = (_block(self._links[0]) for _ in range(3))
        return TrainingOrder(
            np.frombuffer(received, np.float32), safetensors.torch.load(bytes(others)), *_TERMS.validate_json(terms)
        )

    def require_same_rows(self, site: str, data: Samples) -> None:
        """Check at the leader that all processes have loaded the same rows in the same order.

        Raises:
            TrainingError: they have not.
        """
        digest = sha256()
        for part in data.tensors:
            digest.update(f"{part.dtype} {tuple(part.shape)} ".encode())
            digest.update(part.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        with self._reaching():
            if not self.leads:
                _send_block(self._links[0], digest.digest())
            elif any(_block(link) != digest.digest() for link in self._links):
                raise TrainingError(
                    f"{site}: its processes have loaded different rows",
                    hint="have the task's train_data return the same rows in the same order whenever it is called",
                )

    # --- in a round ---

    def layers_seed(self, seed: Seed) -> Seed:
        """Return the seed of random layers: a different one in each process, at the leader ``seed`` itself."""
        return seed if self.leads else derive_seed(seed, "process", self.rank)

    def _steps(self, rows: Iterable[Tensor]) -> Generator[Tensor]:
        """The rows of each step, from the leader's; a round that is left before its end leaves the team behind."""
        if self.leads:
            for step_rows in rows:
                self._broadcast(torch.tensor([len(step_rows)]))
                self._broadcast(step_rows.to("cpu", torch.int64))
                self.in_step = True
                yield step_rows
            self._broadcast(torch.tensor([_DONE]))
        else:
            while (number := int(self._broadcast(torch.zeros(1, dtype=torch.int64)))) != _DONE:
                step_rows = self._broadcast(torch.zeros(number, dtype=torch.int64))
                self.in_step = True
                yield step_rows
        self._in_round = False

    def share(self, rows: Tensor) -> Tensor:
        """Return this process's part of a step's rows, perhaps empty."""
        # Perhaps empty: a step may have fewer rows than there are processes, and each takes part in its sums.
        return rows.tensor_split(self.count)[self.rank]

    def sum(self, tensor: Tensor, *, last: bool = False) -> None:
        """Replace a tensor by its sum over all processes, added in order of rank; ``last`` ends the step."""
        own = tensor.detach().cpu().contiguous()
        with self._reaching():
            if self.leads:
                part = torch.empty_like(own)
                for link in self._links:
                    _receive_into(link, _bytes_of(part))
                    # In order of rank: float32 sums depend on their order, and all processes must take the same step.
                    own += part
            else:
                self._links[0].sendall(_bytes_of(own))
        self._broadcast(own)
        if own.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(own)
        self.in_step = not last

    def broadcast_step(self, tensor: Tensor) -> None:
        """Replace a tensor by the leader's; this ends the step."""
        own = self._broadcast(tensor.detach().cpu().contiguous())
        if own.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(own)
        self.in_step = False

    def collect(self, part: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """Return the parts of all processes at the leader, in order of rank; an empty list at the others."""
        with self._reaching():
            if self.leads:
                return [part, *(safetensors.torch.load(bytes(_block(link))) for link in self._links)]
            _send_block(self._links[0], safetensors.torch.save(part))
            return []

    def _broadcast(self, tensor: Tensor) -> Tensor:
        """Replace a contiguous tensor on the CPU by the leader's, and return it."""
        with self._reaching():
            for link in self._links:
                if self.leads:
                    link.sendall(_bytes_of(tensor))
                else:
                    _receive_into(link, _bytes_of(tensor))
        return tensor

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Raise TeamGoneError if the other end of a socket is gone."""
        try:
            yield
        except OSError as error:
            raise self._gone() from error

    def _gone(self) -> TeamGoneError:
        return TeamGoneError(f"one of the {self.count} processes that train together is gone", hint=_RESTART_HINT)


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).numpy().view(np.uint8).data


def _send_block(link: socket.socket, block: bytes | memoryview) -> None:
    link.sendall(_LENGTH.pack(len(block)))
    link.sendall(block)


def _block(link: socket.socket) -> bytearray:
    head = bytearray(_LENGTH.size)
    _receive_into(link, memoryview(head))
    block = bytearray(*_LENGTH.unpack(head))
    _receive_into(link, memoryview(block))
    return block


def _receive_into(link: socket.socket, view: memoryview) -> None:
    while view:
        if not (received := link.recv_into(view)):
            raise ConnectionError("the other end is gone")
        view = view[received:]


@contextmanager
def shared_steps(team: Team | None, rows: Iterable[Tensor]) -> Iterator[Iterable[Tensor]]:
    """Yield the rows of each step of a round, the same in all processes of a team: those of the leader."""
    if team is None:
        yield rows
        return
    with closing(team._steps(rows)) as steps:
        yield steps


def not_federated(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model that its vector does not have, by name: frozen parameters and buffers."""
    frozen = {name: parameter for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return {name: tensor.detach() for name, tensor in (frozen | dict(model.named_buffers())).items()}


def take_gpu(device: str, rank: int) -> None:
    """Let this process train on the GPU of its rank, where the settings allow a GPU and there is one."""
    if device in ("auto", "cuda") and torch.cuda.device_count():
        torch.cuda.set_device(rank)


def _processes(setting: int, device: str) -> int:
    """Return how many processes train.

    Raises:
        ConfigError: there are fewer GPUs than processes, or the device is no GPU that several processes can share.
    """
    gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    count = setting or max(1, gpus)
    if 0 < gpus < count:
        why = f"there are {count} processes and {gpus} GPUs"
        raise ConfigError("training.processes", why, hint=f'set it to at most {gpus}, or training.device to "cpu"')
    if count > 1 and choose_device(device).type == "mps":
        raise ConfigError("training.device", "mps does not go with several processes", hint='set it to "cpu"')
    return count


@contextmanager
def started_team(setting: int, device: str, command: Sequence[str] = _FOLLOW) -> Iterator[Team | None]:
    """Start the other processes of a site, and yield the team that this process leads; None if it trains alone.

    When the block ends, so do they.

    Args:
        setting: ``training.processes``: how many processes in all; 0 for one for each GPU.
        device: the device that the settings name. On GPUs each process takes the GPU of its rank.
        command: starts a follower, with its place and the number of its end of the socket added.

    Raises:
        ConfigError: there are fewer GPUs than processes, or the device is no GPU that several processes can share.
    """
    count = _processes(setting, device)
    if count == 1:
        yield None
        return
    take_gpu(device, 0)
    environment = {"OMP_THREAD_LIMIT": str(max(1, usable_cores() // count))} | os.environ
    os.environ["OMP_THREAD_LIMIT"] = environment["OMP_THREAD_LIMIT"]
    links, followers = list[socket.socket](), list[subprocess.Popen[bytes]]()
    try:
        for rank in range(1, count):
            link, theirs = socket.socketpair()
            with theirs:
                place = ["--rank", str(rank), "--processes", str(count), "--link", str(theirs.fileno())]
                # In a session of its own, so that Ctrl-C reaches the leader alone, which ends in order.
                follower = subprocess.Popen(  # noqa: S603 - this interpreter, with arguments made here
                    [*command, *place],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=environment,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            followers.append(follower)
            links.append(link)
            os.register_at_fork(after_in_child=link.close)  # a child of the task's code must not keep followers alive
        yield Team(0, count, links)
    finally:
        _end(links, followers)


def _end(links: Iterable[socket.socket], followers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Close the sockets of followers, which end with them; kill those that do not within seconds."""
    for link in links:
        link.close()
    until = time.monotonic() + _END_S
    try:
        for follower in followers:
            with suppress(subprocess.TimeoutExpired):
                follower.wait(max(0.0, until - time.monotonic()))
    finally:
        for follower in followers:
            follower.kill()
            follower.wait()


def joined_team(rank: int, count: int, descriptor: int) -> Team:
    """Return the team of a process that another one has started, and that ends as soon as the leader does.

    Args:
        rank: number of this process, at least 1.
        count: number of processes.
        descriptor: of the inherited socket to the leader.

    Raises:
        ConfigError: it is of no socket.
    """
    try:
        os.set_inheritable(descriptor, False)
        link = socket.socket(fileno=descriptor)
    except OSError as error:
        why = f"{descriptor} is no socket to the process that leads"
        raise ConfigError("--link", why, hint="start the source: securefda source start --processes N") from error

    def end_with_the_leader() -> None:
        ended = select.poll()
        ended.register(link, 0)  # without events: only the end of the other side
        ended.poll()
        os._exit(ExitCode.OK)

    threading.Thread(target=end_with_the_leader, daemon=True).start()
    return Team(rank, count, [link])
