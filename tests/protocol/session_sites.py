"""Real sites for fuzzing whole sessions, and what an honest source must never be seen to do.

Every site is the real code over its real store. Only training is replaced: in round r source i trains the unit vector
of a coordinate of its own, so that in an opened sum a survivor shows as 1, a lost input as 0 and a replay as 2.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cohort import TARGET, Bytes, identity, roster_of, secrets_in, signer
from source_stores import store_at

from securefda.audit.journal import RunInfo
from securefda.audit.witness import Witness, WitnessMemory
from securefda.bootstrap import Member, witness_of
from securefda.errors import PolicyRefusal, SecureFdaError
from securefda.protocol.messages import (
    Abort,
    Header,
    MaskedInput,
    MasterShare,
    Parcel,
    Receipt,
    Refusal,
    Signed,
    SurvivorSignature,
    Unmask,
    Visibility,
)
from securefda.protocol.source_session import AwaitingSurvivors
from securefda.protocol.transcript import architecture_digest, cohort_with
from securefda.site.policy import default_policy
from securefda.source.source_run import SourceRun, SourceSite
from securefda.training import Evaluation, LayerTable, LocalResult
from securefda.training.round_progress import ProgressObserver

ROUNDS = 3
MOST_SOURCES = 7
WIDTH = 48
"""Coordinates of an update: more than are used. Noise passes for a sum with a chance below 2^-WIDTH."""
SAMPLES = 1000
ROW_OF_ROUND = MOST_SOURCES + 1


class Violation(AssertionError):
    """A claim about the protocol does not hold."""


def must(condition: bool, what: str) -> None:
    if not condition:
        raise Violation(what)


def place_of(round_number: int, index: int) -> int:
    """The coordinate that only this source sets, and only in this one of the first rounds."""
    return ((round_number - 1) * ROW_OF_ROUND + index) % WIDTH


@dataclass(frozen=True)
class Terms:
    """What a federation is set up with, at the aggregator and in every policy alike.

    ``of_sum`` of the ``n`` sources, spread evenly, allow no more than ``sum``; the others allow ``cohort``.
    """

    n: int
    of_sum: int
    min_others: int
    max_colluders: int
    threshold: int
    cohort_size: int = 0

    @property
    def levels(self) -> tuple[Visibility, ...]:
        """What each source's policy allows, in the order of their indices."""
        before = [place * self.of_sum // self.n for place in range(self.n + 1)]
        of_sum = [start < end for start, end in itertools.pairwise(before)]
        return tuple(Visibility.SUM if at_sum else Visibility.COHORT for at_sum in of_sum)

    def level_of(self, index: int) -> Visibility:
        """What the policy of a source allows."""
        return self.levels[index if index < TARGET else index - 1]

    @property
    def quorum(self) -> int:
        """Fewest sources over which a sum may be opened, as every policy has it."""
        return self.min_others + self.max_colluders + 1


def folder_in_memory() -> Path:
    """A new folder, in memory where the system has a place for that: thousands of runs force much to the disk."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="sessions-", dir=memory if os.access(memory, os.W_OK) else None))


def witness_at(folder: Path, index: int, terms: Terms, memory: WitnessMemory) -> Witness:
    """A site's log of the run, in a folder of its own, and what it remembers of those of others."""
    roster = roster_of(terms.n)
    member = Member(roster, roster.by_index(index).site_id, identity(index))
    return witness_of(folder / f"log-{index}", member, memory, RunInfo("1", "units", "source_only"), lambda: 1.0)


class UnitTrainer:
    """Trains the unit vector of the round and the site; the target trains nothing."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.layers: LayerTable = (("weight", (WIDTH,)),)
        self.sizes: tuple[int, ...] = (WIDTH,)
        self.architecture_digest = architecture_digest(self.layers)
        self.frozen_digest = b""
        self.n_params = WIDTH
        self.repeatable = True
        self.on_progress: ProgressObserver | None = None

    def initial_model(self) -> Any:
        return np.zeros(WIDTH, np.float32)

    def charged_round(self, factor: float) -> None:
        """Nothing is charged."""

    def reserve_run(self, run_id: str, rounds: int, *, moments: bool) -> None:
        """Nothing is reserved."""

    def release_run(self, run_id: str) -> None:
        """Nothing was reserved."""

    def train(self, received: Any, round_number: int, factor: float, **_: Any) -> LocalResult:
        update = np.zeros(WIDTH, np.float32)
        update[place_of(round_number, self.index)] = 1
        return LocalResult(update, steps=1, samples=SAMPLES, loss=0.0, accuracy=0.0, learning_rate=0.1)

    def evaluate(self, vector: Any, data: Any) -> Evaluation:
        return Evaluation(loss=0.0, metrics={"accuracy": 0.0}, samples=1)


@dataclass
class Source:
    """A source of the federation, which may be restarted in its folder; ``alarms`` are its operator's.

    ``run`` names the run that it joins, once it does.
    """

    index: int
    folder: Path
    terms: Terms
    run: str = ""
    alarms: list[SecureFdaError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.starts = 0
        self.start()

    def start(self) -> None:
        """A new process over the store of the old one."""
        if self.starts:
            self.close()
        self.starts += 1
        terms, roster = self.terms, roster_of(self.terms.n)
        level = terms.level_of(self.index)
        policy = default_policy(level.label, terms.min_others, terms.max_colluders, norm_reports="colluders-may-see")  # type: ignore[arg-type]
        self.store = store_at(self.folder / f"source-{self.index}.sqlite")
        self.witness = witness_at(self.folder, self.index, terms, self.store)
        site = SourceSite(
            policy=policy,
            signer=signer(self.index),
            roster=roster,
            trainer=UnitTrainer(self.index),
            store=self.store,
            witness=self.witness,
            random_bytes=Bytes("source", self.index, self.starts),
            unix_time=lambda: 1.0,
        )
        self.rounds = SourceRun(site, self)

    def close(self) -> None:
        self.witness.journal.close()
        self.store.close()

    def join(self, run: str) -> Parcel:
        """The first message of a run."""
        self.run = run
        return self.rounds.join(run)

    def round_started(self, round_number: int, visibility: str, rule: str) -> None: ...

    def round_finished(self, record: Any) -> None: ...

    def refused(self, refusal: PolicyRefusal, header: Any) -> None:
        self.alarms.append(refusal)

    def alarm(self, error: SecureFdaError) -> None:
        self.alarms.append(error)

    @property
    def phase(self) -> Any:
        """The phase of its session, None outside one."""
        current = self.rounds._round
        return None if current is None else current.phase

    @property
    def header(self) -> Signed[Header] | None:
        """The header of its session."""
        current = self.rounds._round
        return None if current is None else current.header

    def handle(self, parcel: Parcel) -> list[Parcel]:
        return self.rounds.handle(parcel)

    def train(self) -> list[Parcel]:
        return self.rounds.train()

    def expire(self) -> list[Parcel]:
        return self.rounds.expire()

    def restart(self) -> list[Parcel]:
        self.start()
        return [self.join(self.run)]


class HonestSource(Source):
    """A source whose every step is watched: it follows the protocol, whatever the others do to it.

    Attributes:
        headers: of the sessions that it took part in.
        unmasked: what shares it sent in each session, by owner.
        views: the transcript and the own cohort under which it masked its input, in each session.
    """

    def __post_init__(self) -> None:
        self.headers: dict[bytes, Signed[Header]] = {}
        self.unmasked: dict[bytes, dict[int, type]] = {}
        self.views: dict[bytes, tuple[bytes, frozenset[int]]] = {}
        self._sent: Counter[tuple[str, bytes]] = Counter()
        self._releases: Counter[tuple[bytes, int]] = Counter()
        self._ended: set[bytes] = set()
        self._receipts: dict[bytes, bytes] = {}
        super().__post_init__()

    def handle(self, parcel: Parcel) -> list[Parcel]:
        return self._watched(lambda: self.rounds.handle(parcel))

    def train(self) -> list[Parcel]:
        return self._watched(self.rounds.train)

    def expire(self) -> list[Parcel]:
        return self._watched(self.rounds.expire)

    def restart(self) -> list[Parcel]:
        """A new process: whatever the old one was in is over."""

        def start_anew() -> list[Parcel]:
            self.rounds.forget()
            return Source.restart(self)

        return self._watched(start_anew)

    def _watched(self, act: Callable[[], list[Parcel]]) -> list[Parcel]:
        before, phase = self.header, self.phase
        answers = act()
        after = self.header
        if after is not None:
            self.headers[_session(after)] = after
        if isinstance(self.phase, AwaitingSurvivors):
            self.views[_session(after)] = self.phase.ctx2, cohort_with(self.index, self.phase.cohorts)  # type: ignore[arg-type]
        for answer in answers:
            self._judge(answer.message)
        ended = before is not None and (after is None or _session(after) != _session(before))
        if before is not None and ended:
            kinds = {answer.message.type_name for answer in answers if _session(answer.message) == _session(before)}
            must(kinds <= {"Abort"} or kinds == {"Receipt"}, f"source {self.index} sends {kinds} as it ends a session")
            self._ended.add(_session(before))
        must(phase is None or phase is self.phase or not list(secrets_in(phase)), f"secrets in {type(phase).__name__}")
        return answers

    def _judge(self, message: Signed[Any]) -> None:
        session, body, who = _session(message), message.body, f"source {self.index}"
        if isinstance(body, Receipt):
            given = self._receipts.setdefault(session, message.signed_bytes)
            must(given == message.signed_bytes, f"{who} gives two receipts for one result")
            return
        must(session not in self._ended or isinstance(body, Refusal), f"{who} sends {message.type_name} after the end")
        self._sent[message.type_name, session] += 1
        if isinstance(body, Abort):
            self._ended.add(session)
        once = isinstance(body, (MaskedInput, SurvivorSignature, Unmask, Abort))
        must(not once or self._sent[message.type_name, session] == 1, f"{who} sends a second {message.type_name}")
        if isinstance(body, MaskedInput):
            header = self.headers[session].body
            self._releases[header.run_id, header.round] += 1
            must(self._releases[header.run_id, header.round] == 1, f"{who} releases twice in a round")
        if isinstance(body, Unmask):
            self._judge_shares(session, body)

    def _judge_shares(self, session: bytes, body: Unmask) -> None:
        known = self.unmasked.setdefault(session, {})
        for share in body.shares:
            both = known.setdefault(share.owner, type(share)) is not type(share)
            must(not both, f"source {self.index} sends both kinds of shares of {share.owner}")
            own_master = share.owner == self.index and isinstance(share, MasterShare)
            must(not own_master, f"source {self.index} sends a share of its own master")


def _session(message: Signed[Any]) -> bytes:
    return message.envelope.session_id
