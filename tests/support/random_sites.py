"""The two ends of a run in which random updates stand in for training: real rounds, state files and logs."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch
from source_stores import store_at

from securefda.aggregator.run import AggregatorRun
from securefda.aggregator.site import RunSettings, TargetSite
from securefda.aggregator.store import AggregatorStore
from securefda.audit.journal import RunInfo
from securefda.audit.witness import Witness
from securefda.bench.secagg.party import RandomTrainer
from securefda.bootstrap import Member, witness_of
from securefda.site.policy import SourcePolicy
from securefda.source.source_run import SourceRun, SourceSite
from securefda.source.source_store import SourceStore
from securefda.tasks import Samples


def random_run(
    member: Member, folder: Path, params: int, settings: RunSettings, reporter: Any, files: ExitStack, *run_id: bytes
) -> AggregatorRun:
    """The aggregator of a run over ``params`` parameters; ``files`` closes what it keeps in ``folder``."""
    store = files.enter_context(closing(AggregatorStore(folder / f"{member.site_id}.sqlite")))
    site = TargetSite(
        signer=member.signer,
        roster=member.roster,
        trainer=RandomTrainer(member.site_id, params),
        test_data=Samples(torch.zeros(1, 1), torch.zeros(1)),
        random_bytes=os.urandom,
        clock=time.monotonic,
        traffic=lambda: ({}, {}),
        witness=_witness(member, folder, store, files),
    )
    return AggregatorRun(site, settings, store, reporter, *run_id)


def random_source(
    member: Member, folder: Path, params: int, policy: SourcePolicy, reporter: Any, files: ExitStack
) -> SourceRun:
    """A source of such a run."""
    store = files.enter_context(closing(store_at(folder / f"{member.site_id}.sqlite")))
    site = SourceSite(
        policy=policy,
        signer=member.signer,
        roster=member.roster,
        trainer=RandomTrainer(member.site_id, params),
        store=store,
        witness=_witness(member, folder, store, files),
        random_bytes=os.urandom,
    )
    return SourceRun(site, reporter)


def _witness(member: Member, folder: Path, memory: AggregatorStore | SourceStore, files: ExitStack) -> Witness:
    witness = witness_of(folder / "audit" / member.site_id, member, memory, RunInfo("1", "random", "source_only"))
    files.callback(witness.journal.close)
    return witness
