"""T10: sources that the aggregator made up neither get into a roster unseen nor count as others to hide among."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.errors import CertificateError, ConfigError
from securefda.protocol.messages import Advertise, Join, MaskedInput, ShareBundle
from securefda.protocol.roster import Roster, SignedRoster
from securefda.site.endpoints import SiteSpec
from securefda.site.kit import load_kit
from securefda.site.policy import default_policy
from tests.site.federation_builder import NOW, make
from threat_model.adversaries.sources import ColludingSource
from threat_model.adversaries.split_view import SplitView
from threat_model.adversaries.sybils import EnrolsSybils, IsolatesAmongSybils
from threat_model.scores import is_recovered
from threat_model.sites import CLIP, MAX_SAMPLES, TARGET, published_key, roster_of
from threat_model.stage import MakesStage, Stage
from threat_model.switches import (
    MEMBER_SIGNATURES,
    ONE_SITE_PER_LEGAL_ENTITY,
    UNTRUSTED_AS_COLLUDERS,
    Switch,
    switched_off,
)

VICTIM, HONEST, SYBILS = 1, {2, 3}, {4, 5, 6}
TRUSTED = tuple(f"source-{index}" for index in HONEST)
CA, NO_CA = published_key(100), published_key(101)
NAMES = {f"clinic-{index}": published_key(index) for index in SYBILS}


def sybil_stage(
    staged: MakesStage, roster: Roster | None = None, *, trusted: tuple[str, ...] = (), **options: Any
) -> Stage:
    """The victim, two honest others and three Sybils; the victim trusts the named sites, or all."""
    stage = staged(
        6,
        aggregator=partial(options.pop("adversary", IsolatesAmongSybils), victim=VICTIM),
        sources=dict.fromkeys(SYBILS, ColludingSource),
        roster=roster,
        policies={VICTIM: policy_that_trusts(trusted)},
    )
    return stage.play()


def policy_that_trusts(sites: tuple[str, ...]) -> Any:
    policy = default_policy("sum", 2, 0, 2, clip=CLIP, max_samples=MAX_SAMPLES, kappa=0.0)
    return policy.model_copy(update={"trusted_peers": sites})


class InvitesEveryone(IsolatesAmongSybils):
    """Among the honest sources there are always those that it can lose later."""

    def participants(self) -> set[int]:
        return set(self.joined)


@pytest.mark.threat("T10")
@pytest.mark.parametrize("adversary", [IsolatesAmongSybils, InvitesEveryone])
def test_sites_that_the_victim_does_not_trust_count_nothing(staged: MakesStage, adversary: Any) -> None:
    stage = sybil_stage(staged, trusted=TRUSTED, adversary=adversary)
    assert stage.alarms(VICTIM) == ["trusted-peers"]
    assert len(stage.said(VICTIM, Join)) == 1
    assert not any(stage.said(VICTIM, kind) for kind in (Advertise, ShareBundle, MaskedInput))
    assert stage.adversary.attack() is None


@pytest.mark.threat("T10")
@pytest.mark.control
def test_victim_that_trusts_every_site_of_the_roster_is_isolated_exactly(staged: MakesStage) -> None:
    """No switch: ``trusted-peers`` is empty, which means all."""
    stage = sybil_stage(staged)
    assert stage.adversary.summed == {VICTIM, *SYBILS}
    assert is_recovered(stage.adversary.attack().update, stage.update(VICTIM), 4 * stage.precision(VICTIM))


class SplitsAmongFive(SplitView):
    """Four of five open a sum and three answer in each view, which a source that assumes no colluder allows."""

    def session_plan(self, members: set[int]) -> Any:
        return replace(super().session_plan(members), threshold=3, sum_quorum=4)


def beside_one_that_it_does_not_trust(staged: MakesStage) -> Stage:
    """Five sources; the victim trusts three, and the fifth answers in both views."""
    return staged(
        5,
        aggregator=partial(SplitsAmongFive, victim=VICTIM, second=frozenset({3, 4})),
        sources={5: ColludingSource},
        policies={VICTIM: policy_that_trusts(("source-2", "source-3", "source-4"))},
        settings={"threshold": 3},
    )


@pytest.mark.threat("T10")
def test_a_site_that_the_victim_does_not_trust_cannot_answer_in_two_views(staged: MakesStage) -> None:
    stage = beside_one_that_it_does_not_trust(staged).play()
    assert stage.alarms(VICTIM) == ["trusted-peers"]
    assert not any(stage.said(VICTIM, kind) for kind in (Advertise, ShareBundle, MaskedInput))


@pytest.mark.threat("T10")
@pytest.mark.control
def test_a_site_that_is_not_trusted_answers_in_two_views_where_it_does_not_count_as_a_colluder(
    staged: MakesStage,
) -> None:
    stage = beside_one_that_it_does_not_trust(staged)
    with switched_off(UNTRUSTED_AS_COLLUDERS, roster=stage.roster):
        stage.play()
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))


def taken(proposal: SignedRoster, ca: Ed25519PrivateKey = CA) -> Roster:
    """Check ``roster.json`` as :func:`securefda.site.kit.open_kit` does."""
    return SignedRoster.from_bytes(proposal.to_bytes()).verify(ca.public_key().public_bytes_raw())


@pytest.mark.threat("T10")
@pytest.mark.parametrize(
    ("ca_key", "why"),
    [(NO_CA, "is not signed by this federation's CA"), (CA, "is not signed by source-1, source-2, source-3")],
    ids=["without the CA", "with the CA"],
)
def test_roster_with_sybils_is_refused_without_the_signature_of_every_member(
    ca_key: Ed25519PrivateKey, why: str
) -> None:
    attacker = EnrolsSybils(ca_key, published_key(TARGET))
    with pytest.raises(ConfigError, match=why):
        taken(attacker.proposal(roster_of(3), NAMES))


@pytest.mark.threat("T10")
@pytest.mark.parametrize("entity", ["Hospital 0", "hospital  0", "ＨＯＳＰＩＴＡＬ 0", "Clinic"])
def test_two_sites_of_one_legal_entity_make_no_roster(entity: str) -> None:
    attacker = EnrolsSybils(CA, published_key(TARGET))
    with pytest.raises(ConfigError, match="have the same legal entity"):
        attacker.proposal(roster_of(3), NAMES, legal_entity=entity)


@pytest.mark.threat("T10")
@pytest.mark.control
@pytest.mark.parametrize(
    ("switch", "entity", "members"),
    [(MEMBER_SIGNATURES, "", []), (ONE_SITE_PER_LEGAL_ENTITY, "Hospital 0", [1, 2, 3])],
    ids=["members do not sign", "one entity with several sites"],
)
def test_sybils_that_get_into_the_roster_isolate_a_victim_that_trusts_it(
    staged: MakesStage, switch: Switch, entity: str, members: list[int]
) -> None:
    """The CA helps. Where members sign, they have nothing to object to but the number of sites of one entity."""
    attacker = EnrolsSybils(CA, published_key(TARGET))
    with switched_off(switch, roster=roster_of(6)):
        proposal = attacker.proposal(roster_of(3), NAMES, legal_entity=entity)
        for index in members:
            proposal = proposal.countersigned(f"source-{index}", published_key(index))
        stage = sybil_stage(staged, taken(proposal))
    assert is_recovered(stage.adversary.attack().update, stage.update(VICTIM), 4 * stage.precision(VICTIM))


SITES = [
    SiteSpec("geneva", "target", "Hospital of Geneva", ("localhost", "127.0.0.1")),
    SiteSpec("lyon", "source", "Hospital of Lyon"),
    *(SiteSpec(name, "source", f"The {name}") for name in NAMES),
]
SWAPS = {
    "roster": (["roster.json"], "is not signed by this federation's CA"),
    "roster and manifest": (["roster.json", "kit.json"], "is not signed by the CA in ca.pem"),
    "all but the keys": (
        ["roster.json", "kit.json", "ca.pem", "endpoints.toml", "tls.crt"],
        "is not the TLS key of lyon",
    ),
}


@pytest.fixture(scope="module")
def federations(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A federation, and one of the same name that the attacker made, with Sybils and a kit for the victim."""
    folder = tmp_path_factory.mktemp("federations")
    return make(folder / "real").root, make(folder / "made-up", sites=SITES).root


@pytest.mark.threat("T10")
@pytest.mark.parametrize(("names", "why"), SWAPS.values(), ids=SWAPS)
def test_kit_in_which_the_aggregator_exchanged_files_is_refused(
    federations: tuple[Path, Path], tmp_path: Path, names: list[str], why: str
) -> None:
    real, made_up = federations
    kit = Path(shutil.copytree(real / "lyon", tmp_path / "lyon"))
    assert [entry.site_id for entry in load_kit(kit, NOW).roster.sources] == ["lyon", "basel"]
    for name in names:
        (kit / "startup" / name).chmod(0o644)
        shutil.copyfile(made_up / "lyon" / "startup" / name, kit / "startup" / name)
    with pytest.raises((ConfigError, CertificateError), match=why):
        load_kit(kit, NOW)


@pytest.mark.threat("T10")
def test_kit_made_by_the_aggregator_is_found_by_the_ca_fingerprint(
    federations: tuple[Path, Path],
) -> None:
    real, made_up = federations
    fingerprint = load_kit(real / "lyon", NOW).ca.fingerprint
    with pytest.raises(CertificateError, match="is not the CA with the expected fingerprint"):
        load_kit(made_up / "lyon", NOW, expected_ca=fingerprint)


@pytest.mark.threat("T10")
@pytest.mark.control
def test_whole_kit_of_the_aggregators_own_making_is_taken_where_nobody_compares_the_fingerprint(
    federations: tuple[Path, Path],
) -> None:
    roster = load_kit(federations[1] / "lyon", NOW).roster
    assert {entry.site_id for entry in roster.sources} == {"lyon", *NAMES}
