"""The sources of a measured session, all in one process: messages enter and leave as bytes, as over the network.

It measures the processor time of each source's steps, including parsing and serialising, without transport, TLS or
disk. The aggregator's side is in :mod:`securefda.bench.secagg.session`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.bench.secagg.job import K_MIN, Job, update_of
from securefda.errors import SecureFdaError
from securefda.protocol import source_session as src
from securefda.protocol.encoding import N_STATISTICS
from securefda.protocol.header_checks import History, SessionLimits, check_signed_header, quantisation
from securefda.protocol.messages import Signed, Signer
from securefda.protocol.roster import Roster
from securefda.protocol.secret import Secret
from securefda.protocol.transcript import layer_names_and_shapes
from securefda.transport.wire import decode_signed, encode, encode_signed

STEPS = ("r0_advertise", "r0_nonce", "r1_shares", "r2_open_boxes", "r2_masked_input", "r3_survivors", "r4_unmask")
"""The steps of a source: header and R0; with neighbours the roll; keys and R1; boxes; the masked input; R3; R4."""

_STOP_S = 10.0
_NOW = 0  # the roster of a measurement is valid at the beginning of time

Seconds = dict[str, float]
"""Processor time by step."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The arguments of the process; the identities exist for it only."""

    job: Job
    roster: Roster
    private_keys: Mapping[int, bytes]


class Crowd:
    """Every source of one session.

    Args:
        setting: who they are.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._phases: dict[int, Any] = {}
        self.seconds: dict[int, Seconds] = {index: {} for index in setting.private_keys}

    def answer(self, index: int, data: bytes) -> tuple[bytes, memoryview | None]:
        """Return a source's answer to the aggregator's next message, and in R2 its masked input."""
        phase = self._phases.get(index)
        if isinstance(phase, src.AwaitingShares):
            return self._masked_input(index, phase, data)
        name, follow = self._next(phase)
        return self._step(index, name, data, follow)

    def _next(self, phase: Any) -> tuple[str, Callable[[int, Signed[Any]], tuple[Any, Signed[Any]]]]:
        """Return the name of the step that follows a phase, and the function that handles the message."""
        match phase:
            case None:
                return "r0_advertise", self._advertise
            case src.AwaitingRoll():
                return "r0_nonce", lambda _, message: src.receive_roll(phase, message)
            case src.AwaitingKeyList():
                return "r1_shares", lambda _, message: src.receive_key_list(phase, message, os.urandom)
            case src.AwaitingNeighbours():
                return "r1_shares", lambda _, message: src.receive_neighbours(phase, message, os.urandom)
            case src.AwaitingSurvivors():
                return "r3_survivors", lambda _, message: src.receive_survivors(phase, message)
        return "r4_unmask", lambda _, message: src.receive_consistency(phase, message)

    def _step(
        self, index: int, name: str, data: bytes, follow: Callable[[int, Signed[Any]], tuple[Any, Signed[Any]]]
    ) -> tuple[bytes, None]:
        began = time.thread_time()
        self._phases[index], reply = follow(index, decode_signed(data))
        answer = encode_signed(reply)
        self.seconds[index][name] = time.thread_time() - began
        return answer, None

    def _advertise(self, index: int, header: Signed[Any]) -> tuple[src.AwaitingKeyList | src.AwaitingRoll, Signed[Any]]:
        roster, key = self._setting.roster, self._setting.private_keys[index]
        colluders = self._setting.job.colluders or 0
        limits = SessionLimits(K_MIN, colluders, frozenset(entry.index for entry in roster.sources))
        layers = layer_names_and_shapes(header.body.layers)
        check_signed_header(
            header, own_index=index, roster=roster, limits=limits, history=History(), own_layers=layers, unix_s=_NOW
        )
        signer = Signer(index, Ed25519PrivateKey.from_private_bytes(key), encode)
        return src.advertise(src.Session(signer, roster, limits, header), os.urandom)

    def _masked_input(self, index: int, phase: src.AwaitingShares, data: bytes) -> tuple[bytes, memoryview]:
        job = self._setting.job
        update = update_of(job.site_ids[index - 1], job.params)
        began = time.thread_time()
        ready = src.receive_shares(phase, decode_signed(data))  # type: ignore[arg-type]
        opened = time.thread_time()
        alone = np.eye(N_STATISTICS)[1]  # n = 1, and every other figure zero
        encoding = quantisation(phase.session.header.body)
        values = encoding.encode(update, Secret.random(os.urandom), alone)
        self._phases[index], message, vector = src.masked_input(ready, values, encoding)
        answer = encode_signed(message)
        self.seconds[index] |= {"r2_open_boxes": opened - began, "r2_masked_input": time.thread_time() - opened}
        return answer, vector


class CrowdProcess:
    """The crowd in a separate process, for one session."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def answers(self, messages: Mapping[int, bytes], buffer: bytearray) -> Iterator[tuple[int, bytes, memoryview]]:
        """Hand a message to each of some sources; yields each one's answer, with its masked input if it has one.

        A masked input is in ``buffer`` and is overwritten by the next.

        Raises:
            SecureFdaError: the process ended; it has said why on stderr.
        """
        self._connection.send(messages)
        for _ in messages:
            index, answer, has_vector = self._receive()
            length = self._connection.recv_bytes_into(buffer) if has_vector else 0
            yield index, answer, memoryview(buffer)[:length]

    def seconds(self) -> dict[int, Seconds]:
        """Return the seconds that every source has used so far, by roster index and step."""
        self._connection.send(None)
        taken: dict[int, Seconds] = self._receive()
        return taken

    def _receive(self) -> Any:
        try:
            return self._connection.recv()
        except EOFError:
            raise SecureFdaError("the process of the simulated sources ended") from None


@contextmanager
def crowd(setting: Setting) -> Iterator[CrowdProcess]:
    """Start the process, and end it."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, setting), daemon=True)
    process.start()
    there.close()
    try:
        yield CrowdProcess(here)
    finally:
        here.close()
        process.join(_STOP_S)
        process.kill()
        process.join()


def _serve(connection: Connection, setting: Setting) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the measurement, which then ends this process
    members = Crowd(setting)
    while True:
        try:
            messages: Mapping[int, bytes] | None = connection.recv()
        except EOFError:
            return
        if messages is None:
            connection.send(members.seconds)
            continue
        for index, message in messages.items():
            answer, vector = members.answer(index, message)
            connection.send((index, answer, vector is not None))
            if vector is not None:
                connection.send_bytes(vector)
