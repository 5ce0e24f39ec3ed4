"""T34: a stolen key opens nothing at those who have the roster in which it was struck or replaced.

First with real kits, certificates and TLS; then with a target that sides with the thief. A control is here a site that
still has the old roster, or that has forgotten that it had a newer one.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from securefda.bootstrap import credentials_of, source_of_pin
from securefda.errors import ConfigError
from securefda.protocol.messages import RUN_ID_BYTES, Advertise, Header, MaskedInput, ShareBundle
from securefda.protocol.roster import Roster
from securefda.site.endpoints import Address, SiteSpec
from securefda.site.enrolment import countersign, init_federation, renew_site, revoke_site
from securefda.site.kit import LOCAL, ROSTERS_FILE, STARTUP, Kit, load_kit, use_kit
from securefda.source.source_run import SourceReporter, SourceSite
from securefda.transport.aggregator_server import AggregatorServer
from securefda.transport.limits import TransportSettings
from threat_model.adversaries.sources import ColludingSource
from threat_model.adversaries.stolen_key import PlaceForThief, StolenKit
from threat_model.scores import is_recovered
from threat_model.sites import published_key, roster_of
from threat_model.stage import MakesStage, Stage

WAIT_S = 60.0
SOURCES = ("lyon", "basel", "berne")
STOLEN = "basel"


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("federation") / "fed"
    sites = [SiteSpec("geneva", "target", "Hospital of geneva", ("127.0.0.1",))]
    sites += [SiteSpec(site, "source", f"Hospital of {site}") for site in SOURCES]
    init_federation(
        root,
        "heart-study",
        sites,
        aggregator=Address("127.0.0.1", 8443),
        policy_text="min-others = 2\n",
        settings_text="",
        now=datetime.now(UTC),
    )
    return root


@pytest.fixture
def root(founded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(founded, tmp_path / "fed"))


@pytest.fixture
def thief(root: Path, tmp_path: Path) -> StolenKit:
    return StolenKit.steal(root / STOLEN, tmp_path / "thief")


def kit_of(root: Path, site: str) -> Kit:
    return load_kit(root / site, datetime.now(UTC))


def strike(root: Path) -> None:
    revoke_site(root, STOLEN)


def renew(root: Path) -> None:
    renew_site(root, STOLEN, now=datetime.now(UTC))


CHANGES = pytest.mark.parametrize("change", [strike, renew])


async def is_let_in(target: Kit, thief: StolenKit) -> bool:
    """Whether the thief gets a connection to an aggregator with this kit."""
    settings = TransportSettings(heartbeat_s=20.0, reconnect_deadline_s=20.0)
    let_in = partial(source_of_pin, target)
    server = AggregatorServer(
        "127.0.0.1:0", credentials_of(target), let_in, settings=settings, run_id=bytes(RUN_ID_BYTES)
    )
    address = await server.start()
    try:
        async with asyncio.timeout(WAIT_S):
            return await thief.connects(address, datetime.now(UTC))
    finally:
        await server.stop(0.0)


@pytest.mark.threat("T34")
@CHANGES
def test_stolen_certificate_gets_no_connection(root: Path, thief: StolenKit, change: Callable[[Path], None]) -> None:
    change(root)
    assert not asyncio.run(is_let_in(kit_of(root, "geneva"), thief))


@pytest.mark.threat("T34")
@pytest.mark.control
@CHANGES
def test_stolen_certificate_gets_a_connection_where_the_aggregator_has_the_old_roster(
    root: Path, thief: StolenKit, change: Callable[[Path], None]
) -> None:
    old = kit_of(root, "geneva")
    change(root)
    assert asyncio.run(is_let_in(old, thief))


def with_the_old_startup(root: Path, tmp_path: Path, change: Callable[[Path], None]) -> Path:
    """The kit of lyon, which has used the new roster, with the ``startup/`` of before in it."""
    then = Path(shutil.copytree(root / "lyon" / STARTUP, tmp_path / "then"))
    change(root)
    use_kit(kit_of(root, "lyon"))
    StolenKit.put_back(then, root / "lyon")
    return root / "lyon"


@pytest.mark.threat("T34")
@CHANGES
def test_site_that_had_the_new_roster_does_not_start_with_the_old_one(
    root: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    with_the_old_startup(root, tmp_path, change)
    with pytest.raises(ConfigError, match="is of epoch 1, but this site has used epoch 2"):
        kit_of(root, "lyon")


@pytest.mark.threat("T34")
@pytest.mark.control
@CHANGES
def test_site_starts_with_the_old_roster_where_it_has_no_memory_of_the_new_one(
    root: Path, tmp_path: Path, thief: StolenKit, change: Callable[[Path], None]
) -> None:
    site = with_the_old_startup(root, tmp_path, change)
    (site / LOCAL / ROSTERS_FILE).unlink()
    stolen_key = kit_of(root, "lyon").roster.by_id(STOLEN).signing_key
    assert stolen_key == load_kit(thief.folder, datetime.now(UTC)).entry.signing_key


@pytest.mark.threat("T34")
def test_no_member_signs_the_old_roster_once_more(root: Path, thief: StolenKit) -> None:
    old = load_kit(thief.folder, datetime.now(UTC)).signed_roster
    strike(root)
    with pytest.raises(ConfigError, match="epoch 1 does not follow epoch 2"):
        countersign(kit_of(root, "lyon"), old)


# A target that sides with the thief, against two honest sources that want two others each.

N, THIEF, HONEST = 3, 3, [1, 2]
OLD = roster_of(N)
STRUCK = roster_of(N - 1, epoch=2)
_NEW_KEY = published_key(50).public_key().public_bytes_raw()
RENEWED = replace(OLD, epoch=2, entries=(*OLD.entries[:-1], replace(OLD.entries[THIEF], signing_key=_NEW_KEY)))


def going_by(roster: Roster, site: SourceSite, reporter: SourceReporter) -> ColludingSource:
    """A thief whose header checks go by this roster."""
    return ColludingSource(replace(site, roster=roster), reporter)


def thief_stage(staged: MakesStage, roster: Roster, claim: Roster, min_others: int = 2) -> Stage:
    """The honest sources have ``roster``; the target goes by the old one, and its header says ``claim``."""
    return staged(
        aggregator=partial(PlaceForThief, thief=THIEF, claim=claim),
        sources={THIEF: partial(going_by, claim)},
        roster=OLD,
        rosters=dict.fromkeys(HONEST, roster),
        settings={"min_others": min_others},
    )


@pytest.mark.threat("T34")
@pytest.mark.parametrize(
    ("roster", "claim", "min_others", "check"),
    [
        (STRUCK, OLD, 1, "HEADER_ROSTER"),
        (RENEWED, OLD, 2, "HEADER_ROSTER"),
        (STRUCK, STRUCK, 1, "HEADER_PARTICIPANTS"),
        (STRUCK, OLD, 2, "trusted-peers"),  # one other source is left, and two are wanted
        (STRUCK, STRUCK, 2, "trusted-peers"),
    ],
    ids=["struck", "renewed", "struck, lying", "struck, two wanted", "struck, lying, two wanted"],
)
def test_header_that_counts_the_thief_is_refused(
    staged: MakesStage, roster: Roster, claim: Roster, min_others: int, check: str
) -> None:
    stage = thief_stage(staged, roster, claim, min_others).play()
    for index in HONEST:
        assert stage.refusals(index) == stage.alarms(index) == [check]
        assert stage.said(index, Advertise) == []
    assert stage.adversary.attack() is None


@pytest.mark.threat("T34")
def test_thief_is_no_witness_of_the_log_with_a_replaced_key(staged: MakesStage) -> None:
    """The threshold is all three: two cosignatures that count are too few."""
    stage = thief_stage(staged, RENEWED, RENEWED).play()
    for index in HONEST:
        assert stage.refusals(index) == stage.alarms(index) == ["WITNESSES"]
        assert stage.said(index, Advertise) == []
    assert stage.adversary.attack() is None


@pytest.mark.threat("T34")
def test_keys_that_are_signed_with_a_replaced_key_are_refused(staged: MakesStage) -> None:
    """Three of four are the threshold, so that the log has enough witnesses without the thief."""
    old = roster_of(4)
    renewed = replace(old, epoch=2, entries=(*old.entries[:-1], replace(old.entries[4], signing_key=_NEW_KEY)))
    honest = [1, 2, 3]
    stage = staged(
        aggregator=partial(PlaceForThief, thief=4, claim=renewed),
        sources={4: partial(going_by, renewed)},
        roster=old,
        rosters=dict.fromkeys(honest, renewed),
    ).play()
    for index in honest:
        assert stage.alarms(index) == ["KEY_SIGNATURE"]
        assert not stage.said(index, ShareBundle)
        assert not stage.said(index, MaskedInput)
    assert stage.adversary.attack() is None


@pytest.mark.threat("T34")
@pytest.mark.control
def test_thief_is_counted_where_the_sources_have_the_old_roster(staged: MakesStage) -> None:
    """Each wanted two others beside it; the attackers have the sum over it and one."""
    stage = thief_stage(staged, OLD, OLD).play()
    weights = np.array([[stage.weight(index)] for index in HONEST])
    of_both = np.sum(weights * np.array([stage.update(index) for index in HONEST]), axis=0) / weights.sum()
    assert is_recovered(stage.adversary.attack(), of_both, 2 * stage.precision(1))
    assert [stage.alarms(index) for index in HONEST] == [[], []]


@pytest.mark.threat("T34")
def test_honest_aggregator_with_the_new_roster_goes_on_without_the_thief(staged: MakesStage) -> None:
    old = roster_of(5)
    renewed = replace(old, epoch=2, entries=(*old.entries[:-1], replace(old.entries[5], signing_key=_NEW_KEY)))
    stage = staged(sources={5: ColludingSource}, roster=renewed).play()
    assert stage.said(0, Header, to=5) == []
    assert [stage.accepted(index) for index in range(1, 6)] == [1, 1, 1, 1, 0]
