"""One process of a measured federation: ``python -m securefda.bench.secagg.party aggregator|sources JOB [SITE ...]``.

Kits, TLS, transport, run and rounds are those of the services. Random vectors replace training, so that only the round
itself is measured: the second of a run of two. The aggregator reads one visibility per line from stdin, makes a run of
it, and prints one JSON line of figures for each.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from securefda import __version__
from securefda.aggregator.process import RunDriver
from securefda.aggregator.run import AggregatorRun
from securefda.aggregator.site import RunSettings, TargetSite
from securefda.aggregator.store import AggregatorStore
from securefda.audit.journal import RunInfo
from securefda.bench.resources import PeakGrowth
from securefda.bench.secagg.job import CLIP, K_MIN, ROUNDS, SAMPLES, TARGET, Job, update_of
from securefda.bootstrap import Member, credentials_of, endpoint_of, source_of_pin, witness_of
from securefda.errors import PolicyRefusal, SecureFdaError
from securefda.machine import map_large_blocks, raise_descriptor_limit
from securefda.operations.progress import SilentReporter
from securefda.operations.records import JOIN_PHASE, RoundLine, SiteLine
from securefda.protocol.messages import (
    RUN_ID_BYTES,
    Body,
    Header,
    ShareBundle,
    Signed,
    SourcesKeep,
    Visibility,
)
from securefda.protocol.transcript import architecture_digest
from securefda.rules import Rule, Strategy, Variance
from securefda.site.kit import load_kit
from securefda.site.policy import ReleaseLimits, load_signed_policy
from securefda.source.run_book import RunBook
from securefda.source.source_process import SourceDriver
from securefda.source.source_run import SourceRun, SourceSite
from securefda.source.source_store import SourceStore
from securefda.tasks import Samples
from securefda.training import Evaluation, LayerTable, LocalResult, Vector
from securefda.training.round_progress import ProgressObserver
from securefda.transport.aggregator_server import AggregatorServer
from securefda.transport.client import SourceChannel
from securefda.transport.event_loop import in_thread
from securefda.transport.limits import ConnectionLimits, TransportSettings
from securefda.transport.observer import Direction
from securefda.transport.peer import Traffic


class RandomTrainer:
    """Implements :class:`securefda.training.trainer.Trainer`: one layer, a model of zeros, the same update every round.

    Args:
        site_id: names the update, see :func:`securefda.bench.secagg.job.update_of`.
        params: m.
    """

    def __init__(self, site_id: str, params: int) -> None:
        self.layers: LayerTable = (("parameters", (params,)),)
        self.sizes: tuple[int, ...] = (params,)
        self.repeatable = True
        self.on_progress: ProgressObserver | None = None
        self.feature_width = 0
        self.architecture_digest = architecture_digest(self.layers)
        self.frozen_digest = b""
        self._update = update_of(site_id, params)

    @property
    def n_params(self) -> int:
        """The number of parameters, m."""
        return self.sizes[0]

    def initial_model(self) -> Vector:
        """Return zeros, float32 (m,)."""
        return np.zeros(self.n_params, np.float32)

    def charged_round(self, factor: float) -> None:
        """Return None: no ledger is charged."""
        del factor

    def reserve_run(self, run_id: str, rounds: int, *, moments: bool) -> None:
        """Reserve nothing."""

    def release_run(self, run_id: str) -> None:
        """Release nothing."""

    def train(self, received: Vector, round_number: int, factor: float, **_: Any) -> LocalResult:
        """Return the update, at no cost."""
        del received, round_number, factor
        return LocalResult(self._update, steps=1, samples=SAMPLES, loss=0.0, accuracy=0.0, learning_rate=1.0)

    def moments(self, received: Vector, round_number: int, **_: Any) -> LocalResult:
        """Return the update: it has no rows."""
        return self.train(received, round_number, 1.0)

    def step_variance(self, received: Vector, round_number: int, factor: float, kind: Variance, **_: Any) -> float:
        """Return zero: nothing is drawn."""
        del received, round_number, factor, kind
        return 0.0

    def evaluate(self, vector: Vector, data: Samples) -> Evaluation:
        """Return zeros: nothing is learnt, so there is nothing to measure."""
        del vector
        return Evaluation(loss=0.0, metrics={"accuracy": 0.0}, samples=len(data))


_RUN_INFO = RunInfo(__version__, "random", "source-only")
JOIN_DEADLINE_S = 300.0
DEADLINE_S = 120.0
CONTROL_FRAME_BYTES = 4096


def settings_of(job: Job, visibility: Visibility) -> RunSettings:
    """Return the settings of a run of this job at a visibility, with the default width of words."""
    among_all = RunSettings(
        strategy=Strategy(rule=Rule.SOURCE_ONLY, rounds=ROUNDS),
        visibility=visibility,
        min_others=K_MIN,
        max_colluders=0,
        threshold=0,
        bits=0,
        clip=CLIP,
        max_samples=SAMPLES,
        attempts=1,
        join_deadline_s=JOIN_DEADLINE_S,
        training_deadline_s=DEADLINE_S,
        phase_deadline_s=DEADLINE_S,
        config_digest=b"",
        sources_keep=SourcesKeep.NONE,
    )
    if job.graph is None:
        return among_all
    dropouts = max(0.0, job.dropped - 0.5) / job.sources  # a share; times the sources it is rounded up
    return replace(among_all, max_colluders=job.graph.colluders, threshold=job.threshold, kappa=0.0, dropouts=dropouts)


def transport_of(job: Job) -> TransportSettings:
    """Return the default settings with frames large enough for the key list of all sources."""
    usual = TransportSettings()
    longest = max(usual.max_message_bytes, CONTROL_FRAME_BYTES * job.sources)
    return replace(usual, max_message_bytes=longest)


class _Stopwatch(SilentReporter):
    """Times the last round of a run from the making of its header, with every source ready, to its result.

    ``cpu_seconds`` is the processor time of this process by phase, of all its threads; ``traffic`` the bytes of every
    source when the round began; ``lines`` are those of all rounds.
    """

    def __init__(self, server: AggregatorServer) -> None:
        self.began = 0.0
        self.ended = 0.0
        self.lines: list[RoundLine] = []
        self.cpu_seconds: defaultdict[str, float] = defaultdict(float)
        self.traffic: Mapping[int, Traffic] = {}
        self._server = server
        self._phase = ""
        self._cpu = 0.0

    def phase(self, name: str, waiting_for: Sequence[str] = (), asked: int = 0) -> None:
        """Start at the header: the sources have cosigned before, so it follows at once."""
        del waiting_for, asked
        if not self.began and name == JOIN_PHASE and len(self.lines) == ROUNDS - 1:
            self.began, self.traffic = time.monotonic(), self._server.traffic()
        self._lap(name)

    def round_finished(self, line: RoundLine) -> None:
        """Stop at the result: it is signed, and the model is on the disk."""
        self.ended = time.monotonic()
        self.lines.append(line)
        self._lap("")

    def _lap(self, following: str) -> None:
        now = time.process_time()
        if self.began and self._phase:
            self.cpu_seconds[self._phase] += now - self._cpu
        self._phase, self._cpu = following if self.began else "", now


class _Aggregator:
    """Makes one run after the other with the same connected sources."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._kit = load_kit(job.kits / TARGET, datetime.now(UTC), expected_role="target")
        self._trainer = RandomTrainer(TARGET, job.params)
        self._run_id = os.urandom(RUN_ID_BYTES)  # of every run: sources hear it once, when they connect
        self._server = AggregatorServer(
            str(self._kit.endpoints.aggregator),
            credentials_of(self._kit),
            partial(source_of_pin, self._kit),
            run_id=self._run_id,
            settings=transport_of(job),
            connections=ConnectionLimits.of(job.sources, raise_descriptor_limit()),
        )
        self._runs = 0

    async def serve(self) -> None:
        """Make a run for each line of stdin."""
        await self._server.start()
        try:
            while word := (await in_thread(sys.stdin.readline)).strip():
                figures = await self._run(Visibility[word.upper()])
                sys.stdout.write(json.dumps(figures) + "\n")
                sys.stdout.flush()
        finally:
            await self._server.stop(0.0)

    async def _run(self, visibility: Visibility) -> dict[str, Any]:
        self._runs += 1
        store = AggregatorStore(Path(self._job.folder) / f"run-{self._runs}.sqlite")
        watch, kit = _Stopwatch(self._server), self._kit
        site = self._site(store)
        run = AggregatorRun(site, settings_of(self._job, visibility), store, watch, self._run_id)
        memory = PeakGrowth()
        try:
            await RunDriver(run, self._server, kit.roster, watch).drive()
        finally:
            site.witness.journal.close()
            store.close()
        growth = memory.bytes()
        if [line["status"] for line in watch.lines] != ["finished"] * ROUNDS:
            raise SecureFdaError(f"a round of visibility {visibility.label} ended without a result")
        last = watch.lines[-1]
        return {
            "seconds": watch.ended - watch.began,
            "phases": last["seconds"],
            "cpu_seconds": watch.cpu_seconds,
            "survivors": last["survivors"],
            "upload_bytes": self._uploaded_since(watch.traffic, last["survivors"]),
            "peak_growth_bytes": growth,
            "error": self._error(run.model, watch.lines),
        }

    def _site(self, store: AggregatorStore) -> TargetSite:
        member = Member(self._kit.roster, self._kit.site_id, self._kit.signing_key)
        return TargetSite(
            signer=member.signer,
            roster=member.roster,
            trainer=self._trainer,
            test_data=Samples(torch.zeros(1, 1), torch.zeros(1)),
            random_bytes=os.urandom,
            clock=time.monotonic,
            traffic=lambda: ({}, {}),
            witness=witness_of(Path(self._job.folder) / f"log-{self._runs}", member, store, _RUN_INFO),
        )

    def _uploaded_since(self, before: Mapping[int, Traffic], survivors: list[str]) -> float:
        """Return the median number of bytes from a survivor: messages, vectors and their frames."""
        gone, roster = Traffic(), self._kit.roster
        return statistics.median(
            now.up - before.get(index, gone).up
            for index, now in self._server.traffic().items()
            if roster.by_index(index).site_id in survivors
        )

    def _error(self, model: Vector, lines: Sequence[RoundLine]) -> float:
        """Return the largest difference between the model, which began as zeros, and the survivors' means."""
        expected = np.zeros(self._job.params)
        for survivors in (line["survivors"] for line in lines):
            for site in survivors:
                expected += update_of(site, self._job.params) / np.float64(len(survivors))
        return float(np.max(np.abs(model - expected)))


class _Source:
    """Takes part in run after run; one that leaves hangs up for good as soon as its shares of a last round are sent."""

    def __init__(self, job: Job, site_id: str) -> None:
        self._job = job
        self._leaves = site_id in job.leaving
        self._shared = 0
        self._kit = load_kit(job.kits / site_id, datetime.now(UTC), expected_site=site_id)
        self._trainer = RandomTrainer(site_id, job.params)

    def _site(self, store: SourceStore, logs: Path) -> SourceSite:
        kit = self._kit
        policy = load_signed_policy(kit)
        member = Member(kit.roster, kit.site_id, kit.signing_key)
        return SourceSite(
            policy=policy,
            signer=member.signer,
            roster=kit.roster,
            trainer=self._trainer,
            store=store,
            witness=witness_of(logs, member, store, _RUN_INFO),
            random_bytes=os.urandom,
        )

    async def serve(self) -> None:
        """Join one run after the other, until this process is ended or leaves."""
        channel = SourceChannel(
            endpoint_of(self._kit),
            credentials_of(self._kit),
            max_vector_bytes=4 * self._job.params,
            settings=transport_of(self._job),
            observer=self._observe,
        )
        await channel.open()
        try:
            while not self._is_gone:
                await self._take_part(channel)
        finally:
            await channel.close()

    @property
    def _is_gone(self) -> bool:
        return self._leaves and self._shared == ROUNDS

    async def _take_part(self, channel: SourceChannel) -> None:
        folder = tempfile.mkdtemp(prefix=f"{self._kit.site_id}-", dir=self._job.folder)  # one folder for every run
        runs = RunBook(Path(folder) / "runs.sqlite", ReleaseLimits())
        with closing(SourceStore(Path(folder) / "state.sqlite", runs)) as store:
            site = self._site(store, Path(folder) / "audit")
            rounds = SourceRun(site, _Alarms())
            driver = SourceDriver(rounds, channel, SilentReporter())
            while not rounds.standing.is_over and not self._is_gone:
                await driver.answer_one()
            site.witness.journal.close()
        if rounds.standing.failure is not None:
            raise rounds.standing.failure

    def _observe(
        self, direction: Direction, peer: int, message: Signed[Body], wire_bytes: int, *, more: bool = False
    ) -> None:
        del peer, wire_bytes, more
        if direction is Direction.SENT and isinstance(message.body, ShareBundle):
            self._shared += 1


class _Alarms:
    """Shows alarms only: a measurement with an alarm is invalid."""

    def round_started(self, round_number: int, visibility: str, rule: str) -> None:
        """Ignore it."""

    def round_finished(self, record: SiteLine) -> None:
        """Ignore it."""

    def refused(self, refusal: PolicyRefusal, header: Signed[Header]) -> None:
        """Show it."""
        del header
        self.alarm(refusal)

    def alarm(self, error: SecureFdaError) -> None:
        """Show it."""
        sys.stderr.write(f"{error}\n")


async def _serve_sources(job: Job, site_ids: Sequence[str]) -> None:
    await asyncio.gather(*(_Source(job, site_id).serve() for site_id in site_ids))


def main(role: str, job_text: str, *site_ids: str) -> None:
    """Run one process of the measurement."""
    map_large_blocks()
    try:
        job = Job.from_json(job_text)
        asyncio.run(_Aggregator(job).serve() if role == "aggregator" else _serve_sources(job, site_ids))
    except SecureFdaError as error:
        raise SystemExit(f"{role}: {error}") from None


if __name__ == "__main__":
    main(*sys.argv[1:])
