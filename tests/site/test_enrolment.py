"""Making and changing a federation: what lies where, who signs what, and what never happens half."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from federation_builder import NOW, make
from home_federation import tree

from securefda.disk import read_file
from securefda.errors import AuthenticationError, CertificateError, ConfigError
from securefda.protocol.roster import SignedRoster, sign_roster
from securefda.site.authority import Authority
from securefda.site.certificates import ROSTER_KEY_OID, identify_peer, parse_ca
from securefda.site.endpoints import SiteSpec
from securefda.site.enrolment import (
    Enrolment,
    add_site,
    countersign,
    merge_signatures,
    renew_site,
    revoke_site,
)
from securefda.site.kit import load_kit

BERNE = SiteSpec("berne", "source", "Hospital of Berne")


def add(root: Path, site: SiteSpec = BERNE) -> Enrolment:
    return add_site(root, site, policy_text="p", settings_text="s", now=NOW)


def test_init_makes_one_kit_per_site_with_private_keys_for_their_owner_alone(tmp_path: Path) -> None:
    made = make(tmp_path / "fed")
    assert made.kits == tuple(tmp_path / "fed" / site for site in ("geneva", "lyon", "basel"))
    assert made.missing_signatures == ()
    for path in (tmp_path / "fed").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_dir():
            assert mode == 0o700, path
        elif path.suffix == ".key":
            assert mode == 0o600, path
        elif path.parent.name == "startup":
            assert mode == 0o444, path
    assert (tmp_path / "fed/lyon/local/settings.toml").read_text() == 'site-id = "lyon"\n'
    assert (tmp_path / "fed/basel/local/policy.toml").read_text() == "min-others = 2\n"


def test_keys_are_0600_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make(tmp_path / "fed")
    finally:
        os.umask(before)
    keys = list((tmp_path / "fed").rglob("*.key"))
    assert len(keys) == 8
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_no_private_key_is_shared_and_none_stands_in_a_public_file(pristine: Path) -> None:
    secrets = {path: path.read_text().splitlines()[1] for path in pristine.rglob("*.key")}
    assert len(set(secrets.values())) == len(secrets) == 8
    public = [data for name, data in tree(pristine).items() if not name.endswith(".key")]
    assert not [line for line in secrets.values() if any(line.encode() in data for data in public)]


def test_certificates_carry_name_uri_addresses_and_usage(pristine: Path) -> None:
    target = load_kit(pristine / "geneva", NOW).certificate
    source = load_kit(pristine / "basel", NOW).certificate
    names = target.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["securefda://heart-study/geneva"]
    assert isinstance(target.public_key(), ec.EllipticCurvePublicKey)
    assert target.not_valid_after_utc - NOW == timedelta(days=825)
    usages = [set(c.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) for c in (target, source)]
    assert usages == [
        {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH},
        {ExtendedKeyUsageOID.CLIENT_AUTH},
    ]


def test_ca_is_a_ca_for_ten_years_and_holds_the_roster_key(pristine: Path) -> None:
    ca = parse_ca("ca.pem", (pristine / "ca/ca.pem").read_bytes())
    assert ca.certificate.not_valid_after_utc - NOW == timedelta(days=3650)
    signed = SignedRoster.from_bytes((pristine / "ca/roster.json").read_bytes())
    assert signed.verify(ca.roster_key).federation_id == "heart-study"


def test_site_certificate_is_refused_as_a_ca(pristine: Path) -> None:
    with pytest.raises(ConfigError, match="is not the certificate of a federation's CA"):
        parse_ca("ca.pem", (pristine / "lyon/startup/tls.crt").read_bytes())


def test_ca_certificate_with_a_wrong_signature_is_refused(pristine: Path) -> None:
    certificate = x509.load_pem_x509_certificate((pristine / "ca/ca.pem").read_bytes())
    der = certificate.public_bytes(Encoding.DER)
    last = x509.load_der_x509_certificate(der[:-1] + bytes([der[-1] ^ 1])).public_bytes(Encoding.PEM)
    assert parse_ca("ca.pem", certificate.public_bytes(Encoding.PEM)).federation_id == "heart-study"
    with pytest.raises(ConfigError, match="is not the certificate of a federation's CA"):
        parse_ca("ca.pem", last)


@pytest.mark.parametrize(
    ("uri", "is_ca", "value"),
    [
        ("securefda://heart-study", False, b"\x04\x20" + bytes(32)),
        ("securefda://heart-study/lyon", True, b"\x04\x20" + bytes(32)),
        ("securefda://Heart\x1bstudy", True, b"\x04\x20" + bytes(32)),
        ("https://heart-study", True, b"\x04\x20" + bytes(32)),
        ("securefda://heart-study", True, b"\x04\x1f" + bytes(31)),
        ("securefda://heart-study", True, b"\x04\x20" + bytes(33)),
        ("securefda://heart-study", True, b"\x04\x20" + bytes(32)),  # the companion: this one is a CA
    ],
)
def test_only_a_ca_with_federation_and_roster_key_is_a_trust_anchor(uri: str, is_ca: bool, value: bytes) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    path_length = 0 if is_ca else None
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + timedelta(days=1))
        .add_extension(x509.BasicConstraints(is_ca, path_length), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=True)
        .add_extension(x509.UnrecognizedExtension(ROSTER_KEY_OID, value), critical=False)
        .sign(key, SHA256())
    )
    pem = certificate.public_bytes(Encoding.PEM)
    if (uri, is_ca, len(value)) == ("securefda://heart-study", True, 34):
        assert parse_ca("ca.pem", pem).roster_key == bytes(32)
        return
    with pytest.raises(ConfigError, match="is not the certificate of a federation's CA"):
        parse_ca("ca.pem", pem)


def test_init_refuses_a_folder_with_something_in_it_and_leaves_it_alone(tmp_path: Path) -> None:
    (tmp_path / "fed").mkdir()
    make(tmp_path / "fed")  # an empty one is taken
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match="exists already"):
        make(tmp_path / "fed")
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("sites", "why"),
    [
        ([SiteSpec("a", "source", "A"), SiteSpec("b", "source", "B")], "exactly one target"),
        ([SiteSpec("a", "target", "A", ("127.0.0.1",)), SiteSpec("b", "target", "B")], "exactly one target"),
        ([SiteSpec("a", "target", "A", ("127.0.0.1",)), SiteSpec("b", "source", "a")], "same legal entity"),
        ([SiteSpec("a", "target", "A", ("127.0.0.1",)), SiteSpec("a", "source", "B")], "same site id"),
        ([], "1 to"),
    ],
)
def test_init_refuses_sites_that_make_no_roster_and_writes_nothing(
    tmp_path: Path, sites: list[SiteSpec], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        make(tmp_path / "fed", sites=sites)
    assert list(tmp_path.iterdir()) == []


def test_init_that_cannot_finish_leaves_nothing_behind(tmp_path: Path) -> None:
    def full_disk(site_id: str) -> str:
        if site_id == "basel":
            raise OSError(28, "No space left on device")
        return ""

    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        make(tmp_path / "fed", policy_text=full_disk)
    assert list(tmp_path.iterdir()) == []


def test_added_source_joins_the_next_epoch_with_every_signature(federation: Path) -> None:
    changed = add(federation)
    assert (changed.roster.epoch, changed.missing_signatures) == (2, ())
    kits = [load_kit(path, NOW) for path in changed.kits]
    assert [kit.site_id for kit in kits] == ["geneva", "lyon", "basel", "berne"]
    assert {kit.roster.digest() for kit in kits} == {changed.roster.digest()}


def test_second_target_or_known_legal_entity_is_not_added(federation: Path) -> None:
    before = tree(federation)
    for site in (
        replace(BERNE, role="target"),
        replace(BERNE, legal_entity="hospital of  LYON"),
        replace(BERNE, site_id="lyon"),
    ):
        with pytest.raises(ConfigError, match=r"roster\.sites|lyon: is enrolled already"):
            add(federation, site)
    assert tree(federation) == before


def test_revoked_source_is_out_of_the_next_epoch_and_its_certificate_names_nobody(federation: Path) -> None:
    stolen = load_kit(federation / "lyon", NOW).certificate
    kept = load_kit(federation / "basel", NOW).certificate
    changed = revoke_site(federation, "lyon")
    roster = load_kit(federation / "geneva", NOW).roster
    assert (roster.epoch, [e.site_id for e in roster.entries]) == (2, ["geneva", "basel"])
    assert [e.index for e in changed.roster.entries] == [0, 1]
    assert identify_peer(kept, roster, NOW).site_id == "basel"
    with pytest.raises(AuthenticationError, match="not in epoch 2"):
        identify_peer(stolen, roster, NOW)


def test_revoked_source_can_be_enrolled_again_with_new_keys_and_keeps_its_policy(federation: Path) -> None:
    old = load_kit(federation / "lyon", NOW).entry
    (federation / "lyon/local/policy.toml").write_text("min-others = 9\n")
    revoke_site(federation, "lyon")
    add(federation, SiteSpec("lyon", "source", "Hospital of Lyon"))
    new = load_kit(federation / "lyon", NOW).entry
    assert (new.index, new.signing_key == old.signing_key, new.tls_pin == old.tls_pin) == (2, False, False)
    assert (federation / "lyon/local/policy.toml").read_text() == "min-others = 9\n"


@pytest.mark.parametrize(("site_id", "names"), [("geneva", ("127.0.0.1",)), ("lyon", ())])
def test_renewed_site_has_new_keys_at_its_old_place(federation: Path, site_id: str, names: tuple[str, ...]) -> None:
    old = load_kit(federation / site_id, NOW).entry
    later = NOW + timedelta(days=800)
    renew_site(federation, site_id, now=later, names=names)
    new = load_kit(federation / site_id, later).entry
    assert (new.index, new.role, new.legal_entity) == (old.index, old.role, old.legal_entity)
    assert new.signing_key != old.signing_key
    assert new.tls_pin != old.tls_pin
    assert new.not_after > old.not_after
    assert load_kit(federation / "basel", NOW).roster.epoch == 2


def test_target_is_not_renewed_without_its_server_name(federation: Path) -> None:
    before = tree(federation)
    with pytest.raises(CertificateError, match="does not carry the aggregator's name"):
        renew_site(federation, "geneva", now=NOW, names=("localhost",))
    assert tree(federation) == before


def test_expired_ca_enrols_nobody(federation: Path) -> None:
    with pytest.raises(CertificateError, match=r"ca.pem: expired"):
        add_site(federation, BERNE, policy_text="", settings_text="", now=NOW + timedelta(days=3651))


def test_member_that_took_its_kit_home_signs_there_before_the_roster_is_good(federation: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.move(federation / "lyon", home)
    changed = add(federation)
    assert changed.missing_signatures == ("lyon",)
    with pytest.raises(ConfigError, match="is not signed by lyon"):
        load_kit(federation / "basel", NOW)

    proposal = SignedRoster.from_bytes((federation / "lyon/startup/roster.json").read_bytes())
    merged = merge_signatures(federation, countersign(load_kit(home, NOW), proposal))

    assert merged.missing_signatures == ()
    for name, data in tree(federation / "lyon/startup").items():
        (home / "startup" / name).unlink()
        (home / "startup" / name).write_bytes(data)
    assert load_kit(home, NOW).roster.epoch == load_kit(federation / "basel", NOW).roster.epoch == 2


def proposals(federation: Path, other: Path) -> dict[str, Callable[[], SignedRoster]]:
    authority = Authority.load(federation / "ca")
    roster = load_kit(federation / "lyon", NOW).roster
    lyon = roster.by_id("lyon")
    own_key_changed = tuple(replace(e, signing_key=bytes(31) + b"\1") if e is lyon else e for e in roster.entries)
    left = tuple(replace(e, index=i) for i, e in enumerate(e for e in roster.entries if e is not lyon))
    key = authority.roster_key
    return {
        "not signed by this federation's CA": lambda: SignedRoster.from_bytes((other / "ca/roster.json").read_bytes()),
        "does not follow epoch 1": lambda: sign_roster(roster, key),
        "changes the entry of lyon itself": lambda: sign_roster(replace(roster, epoch=2, entries=own_key_changed), key),
        "lyon: is not enrolled": lambda: sign_roster(replace(roster, epoch=2, entries=left), key),
        "is of federation x": lambda: sign_roster(replace(roster, epoch=2, federation_id="x"), key),
    }


@pytest.mark.parametrize("number", range(5))
def test_member_refuses_to_countersign_what_does_not_follow(
    pristine: Path, other_federation: Path, number: int
) -> None:
    why, proposal = list(proposals(pristine, other_federation).items())[number]
    with pytest.raises(ConfigError, match=why):
        countersign(load_kit(pristine / "lyon", NOW), proposal())


def test_ca_merges_no_other_roster_and_no_wrong_signature(federation: Path, other_federation: Path) -> None:
    before = tree(federation)
    with pytest.raises(ConfigError, match="is not the roster of epoch 1") as caught:
        merge_signatures(federation, SignedRoster.from_bytes((other_federation / "ca/roster.json").read_bytes()))
    assert caught.value.hint
    current = SignedRoster.from_bytes((federation / "ca/roster.json").read_bytes())
    with pytest.raises(ConfigError, match="signature of lyon is wrong"):
        merge_signatures(federation, current.with_signatures({"lyon": bytes(64)}))
    assert tree(federation) == before


def test_merging_again_completes_kits_that_a_crash_left_behind(federation: Path) -> None:
    add(federation)
    for name in ("roster.json", "kit.json"):
        (federation / "basel/startup" / name).unlink()
    merge_signatures(federation, SignedRoster.from_bytes((federation / "ca/roster.json").read_bytes()))
    assert load_kit(federation / "basel", NOW).roster.epoch == 2


def test_two_changes_at_once_are_refused(federation: Path) -> None:
    descriptor = os.open(federation / "ca", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another change"):
            add(federation)
    finally:
        os.close(descriptor)
    assert add(federation).roster.epoch == 2


@pytest.mark.parametrize("name", ["ca.key", "roster.key"])
def test_ca_with_a_wrong_or_open_key_signs_nothing(federation: Path, namesake: Path, name: str) -> None:
    path = federation / "ca" / name
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="open to others"):
        add(federation)
    path.chmod(0o600)
    path.write_bytes((namesake / "ca" / name).read_bytes())
    with pytest.raises(ConfigError, match=f"{name}: does not belong to ca.pem"):
        add(federation)


def test_authority_and_identity_show_no_key_in_repr(pristine: Path) -> None:
    authority = Authority.load(pristine / "ca")
    assert "PrivateKey" in repr(authority.roster_key)  # the companion: this is how it would show
    assert "PrivateKey" not in repr(authority)
    assert "PrivateKey" not in repr(authority.issue(BERNE, NOW))
    assert read_file(pristine / "ca/ca.key").data.decode() not in repr(read_file(pristine / "ca/ca.key"))


def test_peer_is_identified_by_key_name_and_time(pristine: Path, other_federation: Path) -> None:
    roster = load_kit(pristine / "geneva", NOW).roster
    lyon = load_kit(pristine / "lyon", NOW).certificate
    assert identify_peer(lyon, roster, NOW) == roster.by_id("lyon")
    with pytest.raises(AuthenticationError, match="not in epoch 1"):
        identify_peer(load_kit(other_federation / "lyon", NOW).certificate, roster, NOW)
    with pytest.raises(CertificateError, match="certificate of lyon: expired"):
        identify_peer(lyon, roster, NOW + timedelta(days=826))
    entries = tuple(replace(e, not_after=e.not_before + 1) for e in roster.entries)
    with pytest.raises(CertificateError, match="roster: lyon is valid from"):
        identify_peer(lyon, replace(roster, entries=entries), NOW)


def test_peer_with_a_known_key_under_another_name_is_refused(pristine: Path) -> None:
    roster = load_kit(pristine / "geneva", NOW).roster
    lyon = roster.by_id("lyon")
    renamed = tuple(replace(e, site_id="paris") if e is lyon else e for e in roster.entries)
    with pytest.raises(AuthenticationError, match="under another name"):
        identify_peer(load_kit(pristine / "lyon", NOW).certificate, replace(roster, entries=renamed), NOW)
