"""A federation for tests of the rounds: the real aggregator, sources and stores, and the network of the simulator.

A ``Link`` sees each of them, may lose or replace it, or act at
that moment: take a source away, kill the aggregator. Time stands still; a deadline passes when nothing moves.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from known_sites import known_key, known_roster
from rounds_tasks import Points
from run_settings import run_settings
from source_stores import store_at

from securefda.aggregator.attempt import Attempt
from securefda.aggregator.comparison import TargetAlone
from securefda.aggregator.folds import Folds
from securefda.aggregator.phases import InAttempt, RoundPhase
from securefda.aggregator.rounds import CurrentRound
from securefda.aggregator.run import AggregatorRun
from securefda.aggregator.site import TargetSite, personal_of
from securefda.aggregator.store import AggregatorStore
from securefda.aggregator.target import FeatureSettings, OutputFromFeatures, UnlabelledTarget
from securefda.audit.journal import MessageRecorder, RunInfo
from securefda.audit.witness import Witness
from securefda.bootstrap import Member, witness_of
from securefda.errors import PolicyRefusal, SecureFdaError
from securefda.operations.notes import Note
from securefda.operations.records import RoundLine, SiteLine
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    SESSION_ID_BYTES,
    Checkpoint,
    Cosigned,
    Header,
    Parcel,
    Schedule,
    Signed,
    Signer,
    Visibility,
)
from securefda.protocol.roster import Roster
from securefda.protocol.secret import Secret
from securefda.rules import Strategy
from securefda.site.policy import SourcePolicy, default_policy
from securefda.site.policy.schema import MetadataPolicy, MomentBounds
from securefda.source.source_run import SourceRun, SourceSite
from securefda.source.source_store import SourceStore
from securefda.tasks import Samples, TaskSettings
from securefda.training import PersonalMemory, PersonalTrainer, TrainingSettings, Vector
from securefda.training.head import HeadFitter
from securefda.training.site_features import SiteFeatures
from securefda.training.trainer import SiteTrainer
from securefda.transport import wire
from securefda.transport.in_memory import MemoryNetwork, Passed, UnderWay
from securefda.transport.observer import MessageObserver

TARGET = 0
SEED = 5
UNIX_S = 2**30
AnySigned = Signed[Any]
Link = Callable[[int, int, AnySigned], AnySigned | None]
"""(sender, recipient, message) to the message that arrives, or None."""


def without_schedules(sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
    """A link on which schedules get lost: policies are heard of in rounds, as with a target that lies about its run."""
    return None if isinstance(message.body, Schedule) else message


class Killed(BaseException):
    """The aggregator's process is gone, at this very moment."""


def site_id(index: int) -> str:
    return "target" if index == TARGET else f"source-{index}"


def identity(index: int) -> Ed25519PrivateKey:
    return known_key(site_id(index))


@cache
def roster_of(n: int) -> Roster:
    return known_roster("study", map(site_id, range(n + 1)))


def signer(index: int) -> Signer:
    return Signer(index, identity(index), wire.encode)


def task_of(n: int, hidden: int = 0, norm: str = "none") -> Points:
    sources = tuple(site_id(number) for number in range(1, n + 1))
    return Points(TaskSettings(site_id(TARGET), sources, SEED, options={"hidden": hidden, "norm": norm}))


def training_of(**settings: Any) -> TrainingSettings:
    defaults: dict[str, Any] = {"learning_rate": 0.05, "batch_size": 4}
    return TrainingSettings(**(defaults | settings))


def trainer_of(
    n: int,
    index: int,
    *,
    hidden: int = 0,
    norm: str = "none",
    oracle: bool = False,
    memory: PersonalMemory | None = None,
    **settings: Any,
) -> SiteTrainer:
    task = task_of(n, hidden, norm)
    data = task.oracle_data() if oracle else task.train_data(site_id(index))
    return SiteTrainer(task, site_id(index), data, training_of(**settings), SEED, memory=memory)


def kept_out(*labels: int) -> Samples:
    """Rows of these classes that the target keeps out of its training."""
    rows = Points(TaskSettings("target", ("source-1",), SEED)).test_data("target")
    chosen = sum((rows.labels == label for label in labels), start=rows.labels == labels[0]).bool()
    return Samples(rows.features[chosen], rows.labels[chosen])


def rows_of(n: int, norm: str = "none", **settings: Any) -> PersonalTrainer:
    """The target's rows, for a model of its own."""
    task = task_of(n, norm=norm)
    return PersonalTrainer(task, site_id(TARGET), task.train_data(site_id(TARGET)), training_of(**settings), SEED)


@dataclass
class Watch:
    """Hears everything that a run and its sources report."""

    lines: list[RoundLine] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    filed: list[Note] = field(default_factory=list)
    records: dict[int, list[SiteLine]] = field(default_factory=dict)
    alarms: dict[int, list[SecureFdaError]] = field(default_factory=dict)
    refusals: dict[int, list[PolicyRefusal]] = field(default_factory=dict)

    def round_started(self, round_number: int, rounds: int) -> None: ...

    def phase(self, name: str, waiting_for: Iterable[str] = (), asked: int = 0) -> None:
        self.phases.append(name)

    def steps(self, site: str, done: int, of: int) -> None: ...

    def round_finished(self, line: RoundLine) -> None:
        self.lines.append(line)

    def note(self, note: Note | str) -> None:
        self.notes.append(str(note))
        self.filed.append(Note.of(note))

    def of_source(self, index: int) -> _SourceWatch:
        return _SourceWatch(
            self.records.setdefault(index, []), self.alarms.setdefault(index, []), self.refusals.setdefault(index, [])
        )

    def checks(self, index: int) -> list[str]:
        """What failed at a source, by name."""
        return [getattr(error, "check", type(error).__name__) for error in self.alarms[index]]

    @property
    def statuses(self) -> list[str]:
        """finished or lost, round by round."""
        return [line["status"] for line in self.lines]

    @property
    def text(self) -> str:
        return "\n".join(self.notes)


@dataclass
class _SourceWatch:
    records: list[SiteLine]
    alarms: list[SecureFdaError]
    refusals: list[PolicyRefusal]

    def round_started(self, round_number: int, visibility: str, rule: str) -> None: ...

    def round_finished(self, record: SiteLine) -> None:
        self.records.append(record)

    def refused(self, refusal: PolicyRefusal, header: Signed[Header]) -> None:
        self.refusals.append(refusal)

    def alarm(self, error: SecureFdaError) -> None:
        self.alarms.append(error)


def intact(sender: int, recipient: int, message: AnySigned) -> AnySigned:
    return message


OPEN: set[Federation] = set()
"""Those whose files are open; ``conftest.py`` closes them after each test."""

FEATURES = FeatureSettings(rows=8, clip=0.0, noise=0.0, step=0.1)
"""How the target releases features of its 12 rows, under rules that need them."""


class Federation(MemoryNetwork[AggregatorRun, SourceRun]):
    """One aggregator and n sources in a folder.

    Args:
        folder: the stores lie here, so that a second federation in it is one whose processes have restarted.
        n: number of sources.
        visibility: what the aggregator asks for, and every policy allows unless ``permits`` differs.
        permits: index of a source -> what its own policy allows, where that differs.
        settings: fields of :class:`RunSettings` that differ from :func:`run_settings`.
        roster: of the federation, where it is not the usual one of n sources.
        recorded: whether every site writes down its messages, before they leave and before they are handled.
        norm: of the model: "none" or "batch".
        features: how the target releases features, under rules that need them.
        validation: rows that the target keeps out, if any.
        folds: how many the target chooses by, if any.
        strategy: fields of the strategy that differ.
    """

    def __init__(
        self,
        folder: Path,
        n: int = 3,
        *,
        visibility: Visibility = Visibility.SUM,
        permits: dict[int, Visibility] | None = None,
        settings: dict[str, Any] | None = None,
        roster: Roster | None = None,
        recorded: bool = False,
        norm: str = "none",
        features: FeatureSettings | None = None,
        validation: Samples | None = None,
        folds: int = 0,
        **strategy: Any,
    ) -> None:
        self.folder, self.n, self.norm, self.features = folder, n, norm, features or FEATURES
        self.validation, self.folds = validation, folds
        self.roster = roster or roster_of(n)
        self.watch = Watch()
        self.unix_s = UNIX_S
        self.settings = run_settings(
            Strategy(**({"rule": "fedgp_auto", "rounds": 3} | strategy)), visibility, **(settings or {})
        )
        self.heads: dict[str, Any] = {}
        if self.settings.strategy.rule == "fedrep":
            self.heads = {"personal_layers": 1, "head_epochs": 2}
        self.permits = dict(permits or {})
        self.link: Link = intact
        self.reached: set[int] = set(range(1, n + 1))
        self.passed: list[tuple[int, int, AnySigned]] = []
        self.vectors: list[tuple[int, int, str, int]] = []
        self.recorded = recorded
        self.observers: dict[int, MessageObserver] = {}
        self.stores: dict[int, SourceStore] = {}
        self.kept: dict[int, tuple[Vector, str, int]] = {}
        sources = {index: self.source(index) for index in range(1, n + 1)}
        super().__init__(self.new_aggregator(), sources, target=TARGET, observers=self.observers)
        OPEN.add(self)

    @property
    def run(self) -> AggregatorRun:
        """The aggregator."""
        return self.aggregator

    @property
    def round_in_progress(self) -> CurrentRound | None:
        """The aggregator's; None between rounds."""
        return self.run.phase.current if isinstance(self.run.phase, RoundPhase) else None

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that is under way."""
        return self.run.phase.attempt if isinstance(self.run.phase, InAttempt) else None

    def start_aggregator(self) -> None:
        """A new process of the aggregator, in the folder of the old one."""
        self.run._site.witness.journal.close()
        self.store.close()
        self.aggregator = self.new_aggregator()

    def kill_aggregator_at(self, kind: type, number: int | None = None) -> Self:
        """Play until a message of this kind, in round ``number`` if given, is on its way; its process ends there."""
        current = 0

        def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
            nonlocal current
            if is_header(message):
                current = message.body.round
            if isinstance(message.body, kind) and number in (None, current):
                raise Killed
            return message

        self.link = link
        with pytest.raises(Killed):
            self.go()
        self.link = intact
        return self

    def output_from_features(self, trainer: SiteTrainer) -> OutputFromFeatures | None:
        if not self.settings.strategy.rule.uses_target_features:
            return None
        how = (self.features, self.settings.down_link, self.store, os.urandom)
        return UnlabelledTarget(SiteFeatures(trainer), 1000, *how).output

    def new_aggregator(self) -> AggregatorRun:
        self.store = AggregatorStore(self.folder / "target.sqlite")
        oracle = self.settings.strategy.rule == "oracle"
        trainer = trainer_of(self.n, TARGET, norm=self.norm, oracle=oracle, memory=self.store, **self.heads)
        test_data = Points(TaskSettings("target", ("source-1",), SEED)).test_data("target")
        strategy = self.settings.strategy
        site = TargetSite(
            signer=signer(TARGET),
            roster=self.roster,
            trainer=trainer,
            output_from_features=self.output_from_features(trainer),
            head_fitter=HeadFitter(trainer, self.settings.clip) if strategy.rule.adds_moments else None,
            test_data=test_data,
            alone=TargetAlone(
                lambda: trainer_of(self.n, TARGET, norm=self.norm),
                test_data,
                trainer.task,
                self.store,
                strategy.warm_up,
                strategy.lr_after_warm_up,
            ),
            random_bytes=os.urandom,
            clock=lambda: self.now,
            traffic=lambda: ({}, {}),
            witness=self.witness_of(TARGET, self.store),
            unix_time=lambda: self.unix_s,
            validation=self.validation,
            folds=Folds.of(trainer, self.folds, SEED, self.store) if self.folds else None,
            personal=personal_of(self.settings.strategy, rows_of(self.n, self.norm, **self.heads), self.store),
        )
        run = AggregatorRun(site, self.settings, self.store, self.watch)
        self.record(TARGET, site.witness, run.run_id)
        return run

    def source(self, index: int, *, policy: SourcePolicy | None = None, hidden: int = 0, **training: Any) -> SourceRun:
        """A new process of a source, in the folder of the old one."""
        if index in self.stores:
            self.sources[index]._site.witness.journal.close()
            self.stores[index].close()
        policy = policy or self.policy(index)
        file = self.folder / f"source-{index}.sqlite"
        store = self.stores[index] = store_at(file, policy.release, unix_time=lambda: self.unix_s)
        site = SourceSite(
            policy=policy,
            signer=signer(index),
            roster=self.roster,
            trainer=trainer_of(self.n, index, hidden=hidden, norm=self.norm, memory=store, **(self.heads | training)),
            store=store,
            witness=self.witness_of(index, store),
            random_bytes=os.urandom,
            rounding_key=lambda _run, number: Secret(sha256(f"{index} {number}".encode()).digest()),
            unix_time=lambda: self.unix_s,
            keep_model=lambda *model: self.kept.update({index: model}),
        )
        if hasattr(self, "aggregator"):  # of a process that is started again: it has joined
            site.witness.journal.begin(self.run.run_id)
        self.record(index, site.witness)
        return SourceRun(site, self.watch.of_source(index))

    def witness_of(
        self, index: int, memory: AggregatorStore | SourceStore, key: Ed25519PrivateKey | None = None
    ) -> Witness:
        """A site's log, in the folder of the federation."""
        member = Member(self.roster, self.roster.by_index(index).site_id, key or identity(index))
        info = RunInfo("1", "points", str(self.settings.strategy.rule))
        return witness_of(self.folder / "audit" / member.site_id, member, memory, info, lambda: self.unix_s)

    def policy(self, index: int, **changes: Any) -> SourcePolicy:
        """A policy that allows what the run asks for, but for ``changes``."""
        settings = self.settings
        level = self.permits.get(index, settings.visibility)
        policy = default_policy(
            level.label,
            settings.min_others,
            settings.max_colluders,
            settings.attempts,
            max_samples=settings.max_samples,
            kappa=settings.kappa,
            granularity=settings.norm_cap_granularity.label,
            unfiltered_projection=not settings.strategy.filter,
            norm_reports="colluders-may-see",
            key_agreement=settings.key_agreement.label,
        )
        allowed: dict[str, Any] = {"moments": MomentBounds(min_rows_per_class=2)}  # a source has two rows of a class
        if not settings.strategy.align:
            allowed["metadata"] = MetadataPolicy(may_leave=("samples",))
        return policy.model_copy(update=allowed | changes)

    def record(self, index: int, witness: Witness, run: str | None = None) -> None:
        """Let a process write its messages down."""
        if self.recorded:
            self.observers[index] = MessageRecorder(witness.journal, self.roster, index, run=run)

    def open(self) -> Federation:
        """Start the aggregator's run and let every source report."""
        self.at_target(self.run.open)
        for index in sorted(self.reached):
            self.join(index)
        return self

    def go(self, *, steps: int = 10_000) -> Federation:
        """Deliver until the run is over; time passes when nothing moves."""
        for _ in range(steps):
            if not self.step():
                return self
        raise AssertionError(f"the run does not end; it waits for {self.run.waiting_for()}")

    def on_the_way(self, passed: Passed) -> Iterable[Passed]:
        message = self.link(passed.sender, passed.to, passed.message)
        if message is None or {passed.sender, passed.to} - {TARGET} - self.reached:
            return ()
        return (replace(passed, message=message),)

    def hand_over(self, passed: Passed) -> None:
        self.passed.append((passed.sender, passed.to, passed.message))
        self.vectors.append((passed.sender, passed.to, passed.message.type_name, len(passed.vectors)))
        super().hand_over(passed)

    def arrives_next(self, sender: int, to: int, parcel: Parcel) -> None:
        """Put a parcel before everything that is under way, as the network may."""
        self.under_way.appendleft(UnderWay.of(sender, to, parcel))

    def kill(self, index: int) -> None:
        """A source's process is gone, and its connection with it."""
        self.reached.discard(index)
        self.post(self.run.left(index))

    def restart(self, index: int) -> None:
        """The source comes back as a new process."""
        self.reached.add(index)
        self.sources[index] = self.source(index)
        self.join(index)

    def restart_aggregator(self) -> Federation:
        """The aggregator comes back as a new process, and every source notices and joins again."""
        self.under_way.clear()
        self.start_aggregator()
        for index in self.reached:
            self.sources[index].forget()
        return self.open()

    def released(self, index: int) -> bool:
        """Whether a source has released its update of the first round."""
        run_id = bytes.fromhex(self.run.run_id)
        return self.stores[index].history(bytes(SESSION_ID_BYTES), run_id, 1).released

    def close(self) -> None:
        OPEN.discard(self)
        for site in (self.run._site, *(source._site for source in self.sources.values())):
            site.witness.journal.close()
        self.store.close()
        for store in self.stores.values():
            store.close()

    @property
    def statuses(self) -> list[str]:
        """finished or lost, round by round, as the aggregator wrote them down."""
        return [record["status"] for record in self.store.records()]

    @property
    def queued(self) -> list[str]:
        """Types of the messages that are on their way, in order, but for those that witness logs."""
        messages = [one.read().message for one in self.under_way]
        return [message.type_name for message in messages if not is_witnessing(message)]

    def names(self, sender: int | None = None, to: int | None = None) -> list[str]:
        """Types of the messages that arrived, in order, but for those that witness logs."""
        return [
            message.type_name
            for one, other, message in self.passed
            if sender in (None, one) and to in (None, other) and not is_witnessing(message)
        ]


Build = Callable[..., Federation]
"""Makes a federation, as the fixture ``build`` does."""


def changed(header: AnySigned, **changes: Any) -> AnySigned:
    """A header with other contents, signed by the target in the same session."""
    return signer(TARGET).sign(header.envelope.session_id, b"", replace(header.body, **changes))


def outside(index: int, body: Any) -> Parcel:
    """A message of a site that belongs to no session."""
    return Parcel(signer(index).sign(NO_SESSION, NO_CONTEXT, body))


def known(federation: Federation, at: int, of: int) -> Any:
    """The checkpoint of another site that a site has cosigned last."""
    site = federation.run._site if at == TARGET else federation.sources[at]._site
    return site.witness._memory.cosigned(site.witness.journal.name_of(of).origin)


def is_witnessing(message: AnySigned) -> bool:
    return isinstance(message.body, Checkpoint | Cosigned)


def is_header(message: AnySigned) -> bool:
    return isinstance(message.body, Header)


def until(federation: Federation, to: int, kind: type, *, round_number: int = 1) -> Parcel:
    """Go on until the next message is one of this kind to this site, in this round; it is taken out of the queue."""
    reached = 1
    while True:
        if not federation.under_way:
            assert not federation.run.done, f"no {kind.__name__} to {site_id(to)} in round {round_number}"
            federation.expire()
            continue
        passed = federation.under_way[0].read()
        body = passed.message.body
        reached = body.round if isinstance(body, Header) else reached
        if passed.to == to and isinstance(body, kind) and reached == round_number:
            federation.under_way.popleft()
            return passed.parcel
        federation.deliver()


def secrets_in(value: Any) -> list[Secret]:
    """Every secret that a phase of a session holds."""
    if isinstance(value, Secret):
        return [value]
    if isinstance(value, dict):
        return [secret for item in value.values() for secret in secrets_in(item)]
    if is_dataclass(value) and not isinstance(value, (Signed, Signer, type)):
        return [secret for item in fields(value) for secret in secrets_in(getattr(value, item.name))]
    return []


def reached_from(start: object) -> list[object]:
    """Everything that an object keeps alive, but for classes and modules, with their globals, and what only they do."""
    found, left = {id(vars(module)): None for module in list(sys.modules.values())}, [start]
    while left:
        one = left.pop()
        if id(one) not in found and not isinstance(one, (type, ModuleType)):
            found[id(one)] = one
            left += gc.get_referents(one)
    return list(found.values())
