"""Sites of a staged federation: throwaway identities, and trainers whose updates are known.

Every signing key follows from a number that stands here in public. The switches that take a mitigation away recognise
such a roster by its keys and work with no other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.aggregator.site import RunSettings, TargetSite
from securefda.aggregator.store import AggregatorStore
from securefda.aggregator.target import FeatureSettings, TargetAttention, TargetFeatures, TargetOutput
from securefda.audit.journal import Journal, RunInfo
from securefda.audit.witness import Witness, WitnessMemory
from securefda.errors import PolicyRefusal, SecureFdaError
from securefda.operations.progress import Reporter
from securefda.operations.records import SiteLine
from securefda.protocol.messages import DownLink, Header, Signed, Signer
from securefda.protocol.roster import Roster
from securefda.protocol.secret import Secret
from securefda.protocol.transcript import architecture_digest
from securefda.rules import RoundPlan, Variance, first_order_gain
from securefda.site.policy import SourcePolicy
from securefda.site.throwaway import throwaway_roster
from securefda.source.source_site import SourceSite
from securefda.source.source_store import SourceStore
from securefda.tasks import Samples
from securefda.training import Evaluation, LayerTable, LocalResult, Vector
from securefda.training.alignment import FeatureAlignment
from securefda.training.model_features import ClusterGap
from securefda.training.round_progress import ProgressObserver
from securefda.training.trainer import PermittedRows
from securefda.transport import wire

TARGET = 0
MOST_SITES = 128
LAYERS: LayerTable = (("weight", (64, 63)), ("bias", (64,)))
"""The layers of ``torch.nn.Linear(63, 64)``: 4096 parameters, enough for the bounds of :mod:`threat_model.scores`, and
few enough to be quick."""

OUTPUTS, INPUTS = LAYERS[0][1]
N_PARAMS = 4096
ROWS, WIDTH = 16, 8
"""Shape of the features of the target's rows."""

MAX_SAMPLES = 100
CLIP = 1.0
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
UpdateRule = Callable[[int, int, Vector], Vector]
"""(roster index, round, received model) to the update that this site makes, float32 (m,)."""


@cache
def published_key(index: int) -> Ed25519PrivateKey:
    """Return the signing key of the site at a roster index. Anyone can make it, so it identifies nobody."""
    return Ed25519PrivateKey.from_private_bytes(sha256(f"securefda threat model, site {index}".encode()).digest())


@cache
def published_public_keys() -> frozenset[bytes]:
    """Return the public halves of all published keys."""
    return frozenset(published_key(index).public_key().public_bytes_raw() for index in range(MOST_SITES))


@cache
def roster_of(n: int, epoch: int = 1, *, with_ml_dsa: bool = False) -> Roster:
    """Return a roster of one target, index 0, and ``n`` sources; each has an ML-DSA key if asked for."""
    keys = {site_id_of(index): published_key(index) for index in range(n + 1)}
    entities = {site_id_of(index): f"Hospital {index}" for index in range(n + 1)}
    return throwaway_roster("stage", keys, epoch=epoch, entities=entities, with_ml_dsa=with_ml_dsa)


def site_id_of(index: int) -> str:
    """Return the id of the site at a roster index."""
    return f"source-{index}" if index else "target"


def signer_of(index: int) -> Signer:
    """Return a signer with the site's real key."""
    return Signer(index, published_key(index), wire.encode)


def known_update(index: int, round_number: int, received: Vector) -> Vector:
    """Return a site's update in a round, whatever it receives: uniform in [-0.5, 0.5], float32 (m,)."""
    numbers = np.random.default_rng((20_260, index, round_number % 2**32))
    return numbers.uniform(-0.5, 0.5, received.size).astype(np.float32)


def known_gap(received: Vector, round_number: int, run_id: str) -> ClusterGap:  # noqa: ARG001 - as of SiteFeatures
    """Return the target's statistic of its features: one half, with a small known gradient."""
    gradient = np.float32(1e-4) * known_update(TARGET, round_number, received)
    return ClusterGap(0.5, gradient, lambda update: first_order_gain(gradient, update))


def known_output(received: Vector, round_number: int, run_id: str, plan: RoundPlan) -> TargetOutput:
    """Return an honest target's part from :func:`known_gap`, with :func:`known_features` if the rule needs them."""
    attention = TargetAttention.of(known_gap(received, round_number, run_id), plan, DownLink.FLOAT32)
    if not plan.rule.releases_features:
        return attention
    with_attention = attention if plan.rule.attends else None
    features = known_features(round_number)
    return TargetFeatures(features, np.zeros_like, as_they_are(features), with_attention)


def as_they_are(features: Vector) -> FeatureSettings:
    """Return settings under which these features, float32 (T, d), leave without clip and noise, and are not
    followed.
    """
    return FeatureSettings(rows=len(features), clip=0.0, noise=0.0, step=0.0)


def known_features(round_number: int) -> Vector:
    """Return features of the target's rows in a round, float32 (T, d), standard normal."""
    return np.random.default_rng((20_261, round_number)).standard_normal((ROWS, WIDTH)).astype(np.float32)


def known_pull(index: int, round_number: int, features: Vector) -> Vector:
    """Return a site's pull for any features: uniform in [-0.5, 0.5], float32 of their shape."""
    return known_update(index, -round_number, features.ravel()).reshape(features.shape)


def samples_of(index: int) -> int:
    """Return the number of rows of a site, different for each."""
    return 60 + index % 40


class KnownUpdates:
    """A trainer that computes nothing: its update is :data:`UpdateRule`'s, so that an estimate can be compared."""

    layers: LayerTable = LAYERS
    sizes: tuple[int, ...] = tuple(int(np.prod(shape)) for _, shape in LAYERS)
    architecture_digest: bytes = architecture_digest(LAYERS)
    frozen_digest = b""
    repeatable = True
    on_progress: ProgressObserver | None = None
    feature_width = WIDTH

    def __init__(self, index: int, updates: UpdateRule, pulls: UpdateRule = known_pull) -> None:
        self._index, self._updates, self._pulls = index, updates, pulls

    @property
    def n_params(self) -> int:
        """The number of parameters, m."""
        return N_PARAMS

    def initial_model(self) -> Vector:
        """Return zeros, at every site."""
        return np.zeros(N_PARAMS, np.float32)

    def charged_round(self, factor: float) -> None:
        """Return None: no ledger is charged."""

    def reserve_run(self, run_id: str, rounds: int, *, moments: bool) -> None:
        """Reserve nothing."""

    def release_run(self, run_id: str) -> None:
        """Release nothing."""

    def train(
        self,
        received: Vector,
        round_number: int,
        factor: float,  # noqa: ARG002 - the interface of a trainer
        *,
        run_id: str = "",  # noqa: ARG002
        attempt: int = 0,  # noqa: ARG002
        fewest_steps: int = 1,
        on_step: Callable[[Vector], None] | None = None,
        align: FeatureAlignment | None = None,
    ) -> LocalResult:
        """Return the known update of this round, and for features a known pull; observers see steps of rising
        length.
        """
        update = self._updates(self._index, round_number, received)
        steps = max(fewest_steps, 4)
        if on_step is not None:
            for step in range(1, steps + 1):
                on_step(update * np.float32(2 * step / (steps * (steps + 1))))
        result = LocalResult(update, steps, samples_of(self._index), loss=0.0, accuracy=0.0, learning_rate=0.1)
        return result if align is None else replace(result, pull=self._pulls(self._index, round_number, align.features))

    def moments(
        self,
        received: Vector,
        round_number: int,
        *,
        bound: float,
        permitted: PermittedRows,
        run_id: str = "",
        attempt: int = 0,
    ) -> LocalResult:
        """Return the known update of the round."""
        del bound, permitted, run_id, attempt
        return self.train(received, round_number, 1.0)

    def step_variance(
        self, received: Vector, round_number: int, factor: float, kind: Variance, *, run_id: str = ""
    ) -> float:
        """Return zero: the update is known."""
        del received, round_number, factor, kind, run_id
        return 0.0

    def evaluate(self, vector: Vector, data: Samples) -> Evaluation:  # noqa: ARG002 - the interface of a trainer
        """Return no measurement."""
        return Evaluation(0.0, {"accuracy": 0.0}, len(data))


@dataclass
class SiteWatch:
    """Keeps what a source reports to its operator."""

    records: list[SiteLine] = field(default_factory=list)
    alarms: list[SecureFdaError] = field(default_factory=list)

    def round_started(self, round_number: int, visibility: str, rule: str) -> None:
        """Nothing to keep."""

    def round_finished(self, record: SiteLine) -> None:
        """Keep it."""
        self.records.append(record)

    def refused(self, refusal: PolicyRefusal, header: Signed[Header]) -> None:  # noqa: ARG002 - of the interface
        """Keep it among the alarms."""
        self.alarms.append(refusal)

    def alarm(self, error: SecureFdaError) -> None:
        """Keep it."""
        self.alarms.append(error)


@dataclass(frozen=True, slots=True, repr=False)
class AggregatorSeat:
    """The possessions of a real target, and nothing else: its key, the roster, its own trainer, the run's settings.

    ``colluders`` are the sources that the attacker controls as well: those that a test put in place of victims.
    """

    site: TargetSite
    settings: RunSettings
    store: AggregatorStore
    reporter: Reporter
    colluders: Mapping[int, Any]


def witness_at(logs: Path, index: int, roster: Roster, memory: WitnessMemory) -> Witness:
    """Return a site's audit logs, in the folder ``logs``, and its memory of others' logs. Time stands still."""
    policy = "" if index == TARGET else sha256(f"policy of {site_id_of(index)}".encode()).hexdigest()
    info, site_id = RunInfo("1", "task", "rule", policy), roster.by_index(index).site_id
    journal = Journal(logs, roster, site_id, published_key(index), info=info, clock=lambda: NOON)
    return Witness(journal, roster, signer_of(index), memory, NOON.timestamp)


def target_site(roster: Roster, updates: UpdateRule, clock: Callable[[], float], witness: Witness) -> TargetSite:
    """Make a target site with minimal rows."""
    return TargetSite(
        signer=signer_of(TARGET),
        roster=roster,
        trainer=KnownUpdates(TARGET, updates),
        test_data=Samples(torch.zeros(1, INPUTS), torch.zeros(1, dtype=torch.int64)),
        random_bytes=os.urandom,
        clock=clock,
        traffic=lambda: ({}, {}),
        witness=witness,
        output_from_features=known_output,
    )


def source_site(
    index: int, roster: Roster, policy: SourcePolicy, updates: UpdateRule, store: SourceStore, *, logs: Path
) -> SourceSite:
    """Make a source site."""
    return SourceSite(
        policy=policy,
        signer=signer_of(index),
        roster=roster,
        trainer=KnownUpdates(index, updates),
        store=store,
        witness=witness_at(logs, index, roster, store),
        random_bytes=os.urandom,
        rounding_key=lambda _run, number: Secret(sha256(f"{index} {number}".encode()).digest()),
    )
