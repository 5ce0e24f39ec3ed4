"""A whole federation in one process, in which any endpoint can be an attacker.

The other endpoints are the victims, and they are real: ``SourceRun`` with a ``SourceStore`` on disk and the site's
policy, ``AggregatorRun`` with an ``AggregatorStore``. Between them is the network of the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from securefda.aggregator.run import AggregatorRun
from securefda.aggregator.site import RunSettings, TargetSite
from securefda.aggregator.store import AggregatorStore
from securefda.audit.journal import MessageRecorder
from securefda.errors import ConfigError, FaultyAggregatorError, SecureFdaError
from securefda.operations.progress import SilentReporter
from securefda.protocol.encoding import vector_to_wire
from securefda.protocol.header_checks import quantisation
from securefda.protocol.messages import Abort, Header, Parcel, Refusal, Send, SourcesKeep, Visibility
from securefda.protocol.roster import Roster
from securefda.rules import Strategy
from securefda.site.policy import SourcePolicy, default_policy
from securefda.site.policy.schema import ModelPolicy
from securefda.source.run_book import RunBook
from securefda.source.source_run import SourceReporter, SourceRun, SourceSite
from securefda.source.source_store import SourceStore
from securefda.training import Vector
from securefda.training.trainer import Trainer
from securefda.transport.in_memory import AggregatorEndpoint, MemoryNetwork, Passed, SourceEndpoint, UnderWay
from threat_model.sites import (
    CLIP,
    MAX_SAMPLES,
    N_PARAMS,
    TARGET,
    AggregatorSeat,
    KnownUpdates,
    SiteWatch,
    UpdateRule,
    known_update,
    roster_of,
    samples_of,
    site_id_of,
    source_site,
    target_site,
    witness_at,
)

_MOST_STEPS = 20_000


MakesAggregator = Callable[[AggregatorSeat], AggregatorEndpoint]
MakesSource = Callable[[SourceSite, SourceReporter], SourceEndpoint]


Network = Callable[[Passed], Iterable[Passed]]
"""Message under way -> what arrives: the message itself, nothing, or others."""


def honest_aggregator(seat: AggregatorSeat) -> AggregatorEndpoint:
    """Return the real aggregator."""
    return AggregatorRun(seat.site, seat.settings, seat.store, seat.reporter)


def run_settings(visibility: Visibility, changes: Mapping[str, Any]) -> RunSettings:
    """Return the settings of the run: one round of the plain mean of the sources' updates, unless changed.

    No norm cap: it would scale what tests compare to the last step of the encoding.
    """
    defaults: dict[str, Any] = {
        "strategy": Strategy(rule="source_only", rounds=1),  # type: ignore[arg-type]
        "visibility": visibility,
        "min_others": 2,
        "max_colluders": 0,
        "threshold": 0,
        "bits": 32,
        "clip": CLIP,
        "max_samples": MAX_SAMPLES,
        "attempts": 2,
        "join_deadline_s": 60.0,
        "training_deadline_s": 600.0,
        "phase_deadline_s": 30.0,
        "config_digest": sha256(b"stage").digest(),
        "sources_keep": SourcesKeep.NONE,
        "kappa": 0.0,
    }
    return RunSettings(**(defaults | dict(changes)))


class Stage(MemoryNetwork[AggregatorEndpoint, SourceEndpoint]):
    """One aggregator and n sources, roster indices 0 and 1 to n, in a folder.

    Args:
        folder: the state files of the sites lie here.
        n: number of sources.
        aggregator: makes the aggregator; the honest one by default.
        sources: makes those sources that are no victims, by roster index. An aggregator of the attacker sees them.
        policies: of single sources; those of the others allow what ``settings`` ask for, and no more.
        max_unfinished: release.max-unfinished of those others.
        first_models: that their model.initial lists; none: the task's own alone.
        model_step: their limits.model-step; updates that a test makes up need not be of one size.
        updates: what each site's training gives.
        trainers: of single sites, by roster index, in place of one that gives ``updates``; see
            :mod:`threat_model.private_sites` for real ones.
        visibility: the visibility that the run asks for and that policies allow.
        settings: fields of :class:`RunSettings` that differ from :func:`run_settings`.
        roster: another one than :func:`roster_of` gives.
        network: what becomes of messages under way.
        rosters: of single sources that have another one than ``roster``, for all but their policy's trusted peers.
        recorded: whether every message is written into the logs of its sender and its receiver, as between processes.
            Events and checkpoints are in any case.
    """

    def __init__(
        self,
        folder: Path,
        n: int = 5,
        *,
        aggregator: MakesAggregator = honest_aggregator,
        sources: Mapping[int, MakesSource] | None = None,
        policies: Mapping[int, SourcePolicy] | None = None,
        max_unfinished: int = 3,
        first_models: Sequence[Vector] = (),
        model_step: float = 10.0,
        updates: UpdateRule = known_update,
        trainers: Mapping[int, Trainer] | None = None,
        visibility: Visibility = Visibility.SUM,
        settings: Mapping[str, Any] | None = None,
        roster: Roster | None = None,
        network: Network = lambda passed: (passed,),
        rosters: Mapping[int, Roster] | None = None,
        recorded: bool = False,
    ) -> None:
        self.folder, self.updates, self.network = folder, updates, network
        self.roster = roster or roster_of(n)
        self.settings = run_settings(visibility, settings or {})
        self.policies, self.trainers, self.rosters = dict(policies or {}), dict(trainers or {}), dict(rosters or {})
        self.max_unfinished, self.first_models, self.model_step = max_unfinished, tuple(first_models), model_step
        self.not_joined: dict[int, SecureFdaError] = {}
        """Sources whose process ended because of the run that the aggregator named, and why."""
        self.passed: list[Passed] = []
        self.watches: dict[int, SiteWatch] = {}
        self._stores: dict[int, SourceStore] = {}
        self._sites: dict[int, SourceSite | TargetSite] = {}
        self.observers, self._recorded, self._instance = {}, recorded, 0
        self._makes = dict(sources or {})
        victims = {entry.index: self._source(entry.index) for entry in self.roster.sources}
        self._aggregator_store = AggregatorStore(folder / "target.sqlite")
        super().__init__(aggregator(self._seat(victims)), victims, target=TARGET, observers=self.observers)
        self._attackers = self._makes.keys() | ({TARGET} if aggregator is not honest_aggregator else set())
        self._record(TARGET, self.aggregator.run_id)

    def _seat(self, sources: Mapping[int, SourceEndpoint]) -> AggregatorSeat:
        witness = witness_at(self.logs(TARGET), TARGET, self.roster, self._aggregator_store)
        site = target_site(self.roster, self.updates, lambda: self.now, witness)
        site = replace(site, trainer=self.trainers.get(TARGET, site.trainer))
        self._sites[TARGET] = site
        colluders = {index: sources[index] for index in self._makes}
        return AggregatorSeat(site, self.settings, self._aggregator_store, SilentReporter(), colluders)

    def _source(self, index: int) -> SourceEndpoint:
        policy = self.policies.get(index) or self.default_policy()
        file = self.folder / f"source-{index}.sqlite"
        self._stores[index] = SourceStore(file, RunBook(file.with_suffix(".runs"), policy.release))
        logs, store = self.logs(index), self._stores[index]
        site = source_site(index, self.roster, policy, self.updates, store, logs=logs)
        if index in self.rosters:
            roster = self.rosters[index]
            site = replace(site, roster=roster, witness=witness_at(logs, index, roster, store))
        trainer = self.trainers.get(index, site.trainer)
        site = replace(site, trainer=trainer, with_noise=trainer.charged_round(1.0) is not None)
        self._sites[index] = site
        self._record(index)
        return self._makes.get(index, SourceRun)(site, self.watches.setdefault(index, SiteWatch()))

    def _record(self, index: int, run: str | None = None) -> None:
        if self._recorded:
            journal = self._sites[index].witness.journal
            self.observers[index] = MessageRecorder(journal, self.roster, index, run=run)

    def default_policy(self) -> SourcePolicy:
        """The policy of a source that agreed to the run's settings."""
        wanted = self.settings
        label: Any = wanted.visibility.label
        granularity: Any = wanted.norm_cap_granularity.label
        agreed: Any = wanted.key_agreement.label
        policy = default_policy(
            label,
            wanted.min_others,
            wanted.max_colluders,
            wanted.attempts,
            clip=wanted.clip,
            max_samples=wanted.max_samples,
            kappa=wanted.kappa,
            granularity=granularity,
            unfiltered_projection=not wanted.strategy.filter,
            norm_reports="colluders-may-see",
            key_agreement=agreed,
        )
        changes: dict[str, Any] = {
            "release": policy.release.model_copy(update={"max_unfinished": self.max_unfinished}),
            "limits": policy.limits.model_copy(
                update={"model_step": self.model_step, "attention_bound_max": wanted.strategy.attention_bound}
            ),
        }
        if self.first_models:
            listed = tuple(sha256(vector_to_wire(model)).hexdigest() for model in self.first_models)
            changes["model"] = ModelPolicy(initial=listed)
        return policy.model_copy(update=changes)

    def join(self, index: int) -> None:
        """Let a source join; it ends instead if it takes no part in the run that the aggregator names."""
        try:
            super().join(index)
        except (ConfigError, FaultyAggregatorError) as error:
            self.not_joined[index] = error

    def restart(self, index: int) -> None:
        """Restart a source's process in its folder; it joins again."""
        self._stores[index].close()
        self._sites[index].witness.journal.close()
        self.sources[index] = self._source(index)
        self.join(index)

    def play(self) -> Stage:
        """Let every source join, and go on until nothing moves and the aggregator is done."""
        self.open()
        return self.go()

    def go(self) -> Stage:
        """Deliver all messages; deadlines pass when nothing moves, in the end those of the sources."""
        for _ in range(_MOST_STEPS):
            if not self.step():
                for index, source in sorted(self.sources.items()):
                    self.at_source(index, source.expire)
                if not self.under_way:
                    return self
        raise AssertionError("the play does not end")

    def on_the_way(self, passed: Passed) -> Iterable[Passed]:
        """Return what the attacker's network makes of a message."""
        return self.network(passed)

    def hand_over(self, passed: Passed) -> None:
        """Keep what arrives."""
        self.passed.append(passed)
        super().hand_over(passed)

    def at_target(self, act: Callable[[], list[Send]]) -> None:
        """Let sources join again if the aggregator seems to be another process, which they learn as they connect."""
        super().at_target(act)
        instance = getattr(self.aggregator, "instance", 0)
        if instance != self._instance:
            self._instance = instance
            for index in sorted(self.sources):
                self.join(index)

    def check_vectors(self, sender: int, parcel: Parcel) -> None:
        """Accept any vectors: an attacker may send anything."""
        if sender not in self._attackers:
            super().check_vectors(sender, parcel)

    def put(self, parcel: UnderWay) -> None:
        """Keep the vectors as they were sent, whatever the sender does to its own."""
        super().put(replace(parcel, vectors=tuple(map(bytes, parcel.vectors))))

    def close(self) -> None:
        """Close state files and logs."""
        for site in self._sites.values():
            site.witness.journal.close()
        getattr(self.aggregator, "close", lambda: None)()
        self._aggregator_store.close()
        for store in self._stores.values():
            store.close()

    def logs(self, index: int) -> Path:
        """Return the folder of a site's audit logs, of all runs."""
        return self.folder / "logs" / site_id_of(index)

    def log(self, index: int) -> Path:
        """Return the folder of a site's audit log of the run."""
        return self.logs(index) / self.aggregator.run_id

    def store(self, index: int) -> SourceStore:
        """Return a source's state file."""
        return self._stores[index]

    def said(self, sender: int, kind: type, *, to: int | None = None) -> list[Passed]:
        """Return the messages of one type that a site sent and that arrived, in order."""
        return [
            one
            for one in self.passed
            if one.sender == sender and isinstance(one.message.body, kind) and to in (None, one.to)
        ]

    def alarms(self, index: int) -> list[str]:
        """Return the names of checks, and keys of the policy, that a source raised alarms about, in order."""
        return [getattr(error, "check", getattr(error, "key", "")) for error in self.watches[index].alarms]

    def aborts(self, index: int) -> list[Abort]:
        """Return the aborts that a source sent."""
        return [one.message.body for one in self.said(index, Abort)]

    def refusals(self, index: int) -> list[str]:
        """Return the keys of the refusals that a source sent."""
        return [one.message.body.key for one in self.said(index, Refusal)]

    def accepted(self, index: int) -> int:
        """Return how many rounds a source took to their result."""
        return len(self.watches[index].records)

    def update(self, index: int, round_number: int = 1, received: Vector | None = None) -> Vector:
        """Return the secret: the update of a source's training, float32 (m,)."""
        model = KnownUpdates(index, self.updates).initial_model() if received is None else received
        return self.updates(index, round_number, model)

    def weight(self, index: int) -> float:
        """Return a source's samples in units of the run's ``max_samples``, the weight of its update."""
        return samples_of(index) / self.settings.max_samples

    def mean_of(self, members: Collection[int], round_number: int = 1) -> Any:
        """The weighted mean of the updates of these sources, float64 (m,)."""
        total = sum(self.weight(index) * self.update(index, round_number).astype(float) for index in members)
        return total / sum(map(self.weight, members))

    def precision(self, index: int) -> float:
        """The largest error of an update that is the difference of two sums over all: each part is rounded in both."""
        header = next(one.message.body for one in self.passed if isinstance(one.message.body, Header))
        return 2 * len(header.participants) * quantisation(header).step(0) / self.weight(index)

    @property
    def adversary(self) -> Any:
        """The attacker's aggregator, if there is one."""
        return self.aggregator

    @property
    def n_params(self) -> int:
        """The number of parameters, m."""
        return N_PARAMS


MakesStage = Callable[..., Stage]
"""Type of the fixture ``staged``."""
