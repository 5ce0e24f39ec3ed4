"""Who was struck from the roster takes no part any more, and the others go on: real kits, real TLS, one process."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from federation_builder import make
from random_sites import random_run, random_source
from run_settings import run_settings
from source_stores import store_at

from securefda.aggregator.process import RunDriver
from securefda.aggregator.run import AggregatorRun
from securefda.bench.secagg.job import SAMPLES
from securefda.bootstrap import Member, credentials_of, endpoint_of, source_of_pin
from securefda.errors import AuthenticationError, QuorumLost, SecureFdaError
from securefda.operations.progress import SilentReporter
from securefda.operations.records import RoundLine, SiteLine
from securefda.rules import Rule, Strategy
from securefda.site.endpoints import SiteSpec
from securefda.site.enrolment import renew_site, revoke_site
from securefda.site.kit import Kit, load_kit
from securefda.site.left import LeavingCertificate, take
from securefda.site.policy import default_policy
from securefda.source.source_process import SourceDriver
from securefda.source.source_run import SourceRun
from securefda.transport.aggregator_server import AggregatorServer
from securefda.transport.client import SourceChannel
from securefda.transport.limits import TransportSettings

WAIT_S = 60.0
PARAMS = 8
SOURCES = ("lyon", "basel", "berne", "bonn")
CALM = TransportSettings(heartbeat_s=20.0, reconnect_deadline_s=20.0)


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target and four sources whose certificates are valid now."""
    sites = [SiteSpec("geneva", "target", "Hospital of Geneva", ("127.0.0.1",))]
    sites += [SiteSpec(site, "source", f"Hospital of {site}") for site in SOURCES]
    return make(tmp_path_factory.mktemp("now") / "fed", sites=sites, now=datetime.now(UTC)).root


@pytest.fixture
def root(founded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(founded, tmp_path / "fed"))


def kit_of(root: Path, site: str) -> Kit:
    return load_kit(root / site, datetime.now(UTC))


@dataclass
class Watch(SilentReporter):
    """Keeps the rounds that a run reports."""

    lines: list[RoundLine] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)

    def round_finished(self, line: RoundLine) -> None:
        self.lines.append(line)


@dataclass
class SourceWatch:
    """Keeps the alarms of all sources in one list."""

    alarms: list[str]

    def round_started(self, round_number: int, visibility: str, rule: str) -> None: ...

    def round_finished(self, record: SiteLine) -> None: ...

    def alarm(self, error: SecureFdaError) -> None:
        self.alarms.append(str(error))


def run_of(kit: Kit, folder: Path, watch: Watch, stack: ExitStack) -> AggregatorRun:
    settings = run_settings(
        Strategy(rule=Rule.SOURCE_ONLY, rounds=1),
        max_samples=SAMPLES,
        attempts=1,
        join_deadline_s=WAIT_S,
        training_deadline_s=WAIT_S,
        phase_deadline_s=WAIT_S,
    )
    member = Member(kit.roster, kit.site_id, kit.signing_key)
    return random_run(member, folder, PARAMS, settings, watch, stack)


def rounds_of(kit: Kit, folder: Path, watch: Watch, stack: ExitStack) -> SourceRun:
    policy = default_policy("sum", 2, 0, 1, max_samples=SAMPLES)
    member = Member(kit.roster, kit.site_id, kit.signing_key)
    return random_source(member, folder, PARAMS, policy, SourceWatch(watch.alarms), stack)


async def in_time(work: Awaitable[object]) -> object:
    async with asyncio.timeout(WAIT_S):
        return await work


async def take_part(kit: Kit, address: str, rounds: SourceRun) -> None:
    """Connect from this kit to the aggregator at an address, and take part until it is over."""
    endpoint = replace(endpoint_of(kit), address=address)
    channel = SourceChannel(endpoint, credentials_of(kit), max_vector_bytes=4 * PARAMS, settings=CALM)
    await channel.open()
    try:
        await SourceDriver(rounds, channel, SilentReporter()).drive()
    finally:
        await channel.close()


async def one_round(target: Kit, others: list[Kit], struck: list[Kit], folder: Path) -> tuple[AggregatorRun, Watch]:
    """A run of one round with ``others``, into which each of ``struck`` tries to get first."""
    watch = Watch()
    with ExitStack() as stack:
        run = run_of(target, folder, watch, stack)
        server = AggregatorServer(
            "127.0.0.1:0",
            credentials_of(target),
            partial(source_of_pin, target),
            run_id=bytes.fromhex(run.run_id),
            settings=CALM,
        )
        address = await server.start()
        try:
            driven = asyncio.create_task(RunDriver(run, server, target.roster, watch).drive())
            for kit in struck:
                (folder / "struck").mkdir(exist_ok=True)
                with pytest.raises(AuthenticationError):
                    await in_time(take_part(kit, address, rounds_of(kit, folder / "struck", watch, stack)))
                assert server.connected() == set()
            parts = [take_part(kit, address, rounds_of(kit, folder, watch, stack)) for kit in others]
            await in_time(asyncio.gather(asyncio.wait([driven]), *parts))
            assert driven.exception() is run.error
        finally:
            await server.stop(0.0)
    return run, watch


def test_struck_source_gets_no_connection_and_the_others_finish_without_it(root: Path, tmp_path: Path) -> None:
    stolen = kit_of(root, "basel")
    revoke_site(root, "basel")
    others = [kit_of(root, site) for site in SOURCES if site != "basel"]
    run, watch = asyncio.run(one_round(kit_of(root, "geneva"), others, [stolen], tmp_path))
    assert (run.error, watch.alarms) == (None, [])
    (line,) = watch.lines
    assert (line["status"], line["survivors"]) == ("finished", ["lyon", "berne", "bonn"])
    assert np.any(run.model)


def test_stolen_key_of_a_renewed_source_gets_no_connection_and_its_new_one_does(root: Path, tmp_path: Path) -> None:
    stolen = kit_of(root, "basel")
    renew_site(root, "basel", now=datetime.now(UTC))
    everyone = [kit_of(root, site) for site in SOURCES]
    run, watch = asyncio.run(one_round(kit_of(root, "geneva"), everyone, [stolen], tmp_path))
    assert (run.error, watch.alarms) == (None, [])
    (line,) = watch.lines
    assert line["survivors"] == list(SOURCES)


def test_source_that_left_gets_no_connection_before_there_is_a_new_roster(root: Path, tmp_path: Path) -> None:
    leaver = kit_of(root, "basel")
    certificate = LeavingCertificate.make(leaver.entry, leaver.roster, leaver.signing_key, datetime.now(UTC), ())
    others = ("lyon", "berne", "bonn")
    for site in ("geneva", *others):
        take(root / site / "local", leaver.roster, certificate)
    run, watch = asyncio.run(
        one_round(kit_of(root, "geneva"), [kit_of(root, site) for site in others], [leaver], tmp_path)
    )
    assert (run.error, watch.alarms) == (None, [])
    (line,) = watch.lines
    assert (line["status"], line["survivors"]) == ("finished", list(others))


def test_source_with_the_roster_of_before_is_connected_and_releases_nothing(root: Path, tmp_path: Path) -> None:
    """Its key is good, but it would count a site among its peers that is none any more."""
    behind = kit_of(root, "lyon")
    revoke_site(root, "basel")
    others = [kit_of(root, site) for site in ("berne", "bonn")]
    run, watch = asyncio.run(one_round(kit_of(root, "geneva"), [behind, *others], [], tmp_path))
    (line,) = watch.lines
    assert (line["status"], line["refused"]) == ("lost", {"lyon": "HEADER_ROSTER"})
    assert isinstance(run.error, QuorumLost)
    assert [alarm for alarm in watch.alarms if "HEADER_ROSTER" in alarm]
    assert not np.any(run.model)
    store = store_at(tmp_path / "lyon")
    assert not store.history(bytes(32), bytes.fromhex(run.run_id), 1).released
    store.close()
