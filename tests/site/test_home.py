"""Sites that make their own keys: joining, what is refused then, adding and renewing; no private key ever travels."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from federation_builder import NOW
from home_federation import ADDRESS, SPECS, HomeFederation, tree
from quick_scrypt import use_quick_scrypt

from securefda.disk import read_file
from securefda.errors import CertificateError, ConfigError
from securefda.protocol.ml_dsa import ml_dsa_public
from securefda.protocol.roster import SignedRoster, sign_roster
from securefda.protocol.secret import Secret
from securefda.site import enrolment as enrolment_module
from securefda.site import home as home_module
from securefda.site import sealed as sealed_module
from securefda.site.authority import Authority, protect_keys
from securefda.site.certificates import make_site_certificate, to_pem
from securefda.site.endpoints import SiteSpec
from securefda.site.enrolment import add_site, countersign, merge_signatures, read_request, renew_site, revoke_site
from securefda.site.home import REQUESTED, join, request_enrolment, request_renewal
from securefda.site.kit import (
    PROPOSAL_FILE,
    PROPOSED_FILES,
    SECRET_FILES,
    SIGNED_ROSTER_FILE,
    STARTUP_FILES,
    load_kit,
    make_manifest,
    make_proposal,
)
from securefda.site.package import inspect_kit, package_kit
from securefda.site.request import SiteKeys, SiteRequest, entry_fingerprint
from securefda.site.sealed import FD_VARIABLE, is_sealed


@pytest.fixture(autouse=True)
def quick_passphrases(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here is about the price of a passphrase."""
    use_quick_scrypt(monkeypatch)


@pytest.fixture(scope="module")
def signed_once(tmp_path_factory: pytest.TempPathFactory) -> HomeFederation:
    """Requests, and what the authority made of them; nobody has joined."""
    federation = HomeFederation(tmp_path_factory.mktemp("home"))
    federation.ask()
    federation.found()
    return federation


@pytest.fixture
def home(signed_once: HomeFederation, tmp_path: Path) -> HomeFederation:
    """A copy that a test may change."""
    copy = HomeFederation(Path(shutil.copytree(signed_once.root, tmp_path / "home")))
    copy.ca = signed_once.ca
    return copy


def refused(home: HomeFederation, site: str, why: str, package: Path | None = None, error: type = ConfigError) -> None:
    """Joining is refused with this error, and nothing at the site has changed."""
    package = package or home.package(site)
    before = tree(home.kit(site))
    with pytest.raises(error, match=why or None):
        join(home.kit(site), package, NOW, expected_ca=home.ca)
    assert tree(home.kit(site)) == before


# --- the way that is meant --------------------------------------------------------------------------------------------


def test_every_site_signs_and_then_has_a_kit_that_loads(home: HomeFederation) -> None:
    assert home.join_and_send("geneva").missing_signatures == ("lyon", "basel")
    with pytest.raises(ConfigError, match="is not signed by geneva, lyon, basel"):
        load_kit(home.kit("geneva"), NOW)
    home.complete(("lyon", "basel"))
    assert home.join("geneva").is_ready
    for site, spec in SPECS.items():
        kit = load_kit(home.kit(site), NOW, expected_site=site, expected_role=spec.role, expected_ca=home.ca)
        assert kit.entry.legal_entity == spec.legal_entity
        assert not (home.kit(site) / REQUESTED).exists()
        assert (home.kit(site) / "local" / "settings.toml").read_text() == f'site-id = "{site}"\n'
        assert not (home.kit(site) / "local" / "policy.sig").exists()
        assert inspect_kit(home.kit(site), NOW).keys == "made by this site"


def test_no_private_key_of_a_site_is_in_a_file_of_anyone_else(home: HomeFederation) -> None:
    home.complete()
    for site in SPECS:
        keys = home.secrets(site)
        assert len(keys) == len(SECRET_FILES)
        for folder in ("authority", *(other for other in SPECS if other != site)):
            for name, data in tree(home.root / folder).items():
                assert not any(key in data or key.splitlines()[1] in data for key in keys), name
    assert not any(home.fed.glob("*/startup/*.key"))


def test_fingerprints_are_the_same_at_the_site_and_at_the_authority(
    signed_once: HomeFederation, tmp_path: Path
) -> None:
    requests = signed_once.root / "authority" / "requests"
    at_sites = {site: read_request(signed_once.request_file(site)).fingerprint for site in SPECS}
    at_authority = {site: read_request(requests / f"{site}.json").fingerprint for site in SPECS}
    roster = SignedRoster.from_bytes((signed_once.fed / "ca/roster.json").read_bytes()).verify_ca(
        Authority.load(signed_once.fed / "ca").ca.roster_key
    )
    in_roster = {entry.site_id: entry_fingerprint(entry) for entry in roster.entries}
    assert at_sites == at_authority == in_roster
    package_kit(signed_once.fed / "lyon", tmp_path / "lyon.tar", NOW)
    summary = inspect_kit(tmp_path / "lyon.tar", NOW)
    assert (summary.key_fingerprint, summary.keys) == (at_sites["lyon"], "at the site alone")
    assert summary.missing_signatures == tuple(SPECS)


def test_joining_again_changes_nothing(home: HomeFederation) -> None:
    home.complete()
    before = tree(home.kit("lyon"))
    assert home.join("lyon").is_ready
    assert tree(home.kit("lyon")) == before


def test_a_kit_joins_from_the_authoritys_folder_as_from_its_package(home: HomeFederation) -> None:
    joined = join(home.kit("lyon"), home.fed / "lyon", NOW, expected_ca=home.ca)
    assert joined.signed is not None
    assert (home.kit("lyon") / "local" / "policy.toml").read_text() == "min-others = 2\n"


def test_sealed_keys_join_sealed(home: HomeFederation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    protect_keys(home.kit("lyon"), Secret(b"five words by pure chance"))
    (tmp_path / "passphrase").write_bytes(b"five words by pure chance\n")
    with (tmp_path / "passphrase").open("rb") as stream:
        monkeypatch.setenv("SECUREFDA_PASSPHRASE_FD", str(stream.fileno()))
        home.complete()
        load_kit(home.kit("lyon"), NOW)
    assert all(is_sealed(data) for data in home.secrets("lyon"))
    assert len(home.secrets("lyon")) == len(SECRET_FILES)


class PowerFailure(OSError):
    """Nothing is written any more."""


def test_a_crash_at_any_moment_of_joining_is_completed_by_joining_again(
    home: HomeFederation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home.complete()
    request_renewal(home.kit("lyon"), NOW)
    home.send_request("lyon")
    renew_site(home.fed, "lyon", now=NOW, request=read_request(home.request_file("lyon")))
    for site in SPECS:
        home.join_and_send(site)
    package, real, kit, writes = home.package("lyon"), home_module.write_file, home.kit("lyon"), 0
    saved = shutil.copytree(kit, tmp_path / "saved")
    while True:
        left = [writes]

        def write_until(path: Path, data: bytes, mode: int, left: list[int] = left) -> None:
            if left[0] == 0:
                raise PowerFailure
            left[0] -= 1
            real(path, data, mode)

        monkeypatch.setattr(home_module, "write_file", write_until)
        try:
            join(kit, package, NOW)
        except ConfigError as error:
            assert isinstance(error.__cause__, PowerFailure)  # noqa: PT017
        else:
            break
        monkeypatch.setattr(home_module, "write_file", real)
        assert join(kit, package, NOW).is_ready, writes
        assert load_kit(kit, NOW).roster.epoch == 2
        assert not {path.name for path in kit.iterdir()} - {"startup", "local"}
        shutil.rmtree(kit)
        shutil.copytree(saved, kit)
        writes += 1
    assert writes == 2 * (len(STARTUP_FILES) + 1)


KILLED = """
import os, sys
from datetime import datetime
from pathlib import Path
from securefda.site import home
kit, package, now, ca, file = sys.argv[1:]
write = home.write_file
def write_and_die(path, data, mode):
    write(path, data, mode)
    if path.name == file:
        os._exit(9)
home.write_file = write_and_die
if package:
    home.join(Path(kit), Path(package), datetime.fromisoformat(now), expected_ca=ca)
home.request_renewal(Path(kit), datetime.fromisoformat(now))
"""


def killed(home: HomeFederation, package: str, file: str) -> Path:
    """Kill a process that joins, or without a package renews, when it has written ``file``; return what it left."""
    kit = home.kit("lyon")
    given = [str(kit), package, NOW.isoformat(), home.ca, file]
    assert subprocess.run([sys.executable, "-c", KILLED, *given], check=False).returncode == 9
    (left,) = kit.glob(".*")
    assert {path.name for path in left.iterdir()} >= set(SECRET_FILES)
    return left


def test_keys_that_a_killed_join_left_go_when_it_joins_again(home: HomeFederation) -> None:
    killed(home, str(home.package("lyon")), "request.json")
    assert home.join("lyon").signed is not None
    assert {path.name for path in home.kit("lyon").iterdir()} == {"startup", "local"}


def test_keys_that_a_killed_renewal_left_go_with_the_next_one(home: HomeFederation) -> None:
    home.complete()
    killed(home, "", "request.json")
    request_renewal(home.kit("lyon"), NOW)
    assert {path.name for path in home.kit("lyon").iterdir()} == {"startup", "local", REQUESTED}


def test_a_kit_that_is_sealed_after_a_kill_holds_no_plain_key(home: HomeFederation) -> None:
    killed(home, str(home.package("lyon")), "request.json")
    (home.kit("lyon") / REQUESTED / ".tls.key.0123456789abcdef").write_bytes(home.secrets("lyon")[0])
    protect_keys(home.kit("lyon"), Secret(b"five words by pure chance"))
    assert {path.name for path in home.kit("lyon").iterdir()} == {"local", REQUESTED}
    assert not any(b"PRIVATE" in data for data in tree(home.kit("lyon")).values())


# --- what a site refuses ----------------------------------------------------------------------------------------------


def forged(home: HomeFederation, site: str, **changes: object) -> None:
    """Have the authority sign another entry for ``site``, in the roster and all kits."""
    authority = Authority.load(home.fed / "ca")
    signed = SignedRoster.from_bytes((home.fed / "ca/roster.json").read_bytes())
    roster = signed.verify_ca(authority.ca.roster_key)
    entries = tuple(replace(e, **changes) if e.site_id == site else e for e in roster.entries)  # type: ignore[arg-type]
    publish(home, authority, sign_roster(replace(roster, entries=entries), authority.roster_key))


def publish(home: HomeFederation, authority: Authority, signed: SignedRoster) -> None:
    roster = signed.verify_ca(authority.ca.roster_key)
    for entry in roster.entries:
        startup = home.fed / entry.site_id / "startup"
        files = {name: (startup / name).read_bytes() for name in ("ca.pem", "endpoints.toml", "tls.crt")}
        manifest = make_manifest(roster, entry.site_id, files).to_signed_bytes(authority.roster_key)
        for name, data in (("roster.json", signed.to_bytes()), ("kit.json", manifest)):
            (startup / name).unlink()
            (startup / name).write_bytes(data)
        local = startup.parent / "local"
        proposed = {name: (local / name).read_bytes() for name in PROPOSED_FILES if (local / name).exists()}
        (local / PROPOSAL_FILE).unlink()
        (local / PROPOSAL_FILE).write_bytes(make_proposal(authority.roster_key, roster, entry.site_id, proposed))


def certify(home: HomeFederation, request: SiteRequest) -> None:
    """Have the authority put this certificate into the kit of its site."""
    certificate = Authority.load(home.fed / "ca").issue(request, NOW).certificate
    file = home.fed / request.site.site_id / "startup" / "tls.crt"
    file.unlink()
    file.write_bytes(to_pem(certificate))


def test_a_damaged_roster_that_the_site_signed_is_named_with_its_file(home: HomeFederation) -> None:
    signed = home.join("lyon").signed
    assert signed is not None
    signed.chmod(0o600)
    for damaged in (b"{}", signed.read_bytes().replace(b"a", b"b", 1)):
        signed.write_bytes(damaged)
        refused(home, "lyon", r"local/roster\.signed\.json: ")
        with pytest.raises(ConfigError) as caught:
            home.join("lyon")
        assert caught.value.hint.startswith("restore it from a backup")


def test_an_authority_that_enrols_another_signing_key_is_refused(home: HomeFederation) -> None:
    forged(home, "lyon", signing_key=SiteKeys.generate().signing_public)
    refused(home, "lyon", "roster: has another signing key of lyon than this site made")


def test_an_authority_that_enrols_another_tls_key_is_refused(home: HomeFederation) -> None:
    own = read_request(home.request_file("lyon"))
    stranger = SiteKeys.generate()
    certify(home, SiteRequest.make("heart-study", own.site, None, stranger))
    forged(home, "lyon", tls_pin=stranger.tls_pin)
    refused(home, "lyon", "roster: has another TLS key of lyon than this site made")


@pytest.mark.parametrize("key", [b"", ml_dsa_public(SiteKeys.generate().signing_key)], ids=["none", "another's"])
def test_an_authority_that_enrols_another_ml_dsa_key_or_none_is_refused(home: HomeFederation, key: bytes) -> None:
    forged(home, "lyon", ml_dsa_key=key)
    refused(home, "lyon", "roster: has another ML-DSA key of lyon than this site made")


def test_a_request_that_was_replaced_on_its_way_shows_another_fingerprint_and_is_refused(tmp_path: Path) -> None:
    home = HomeFederation(tmp_path)
    home.ask()
    request_enrolment(tmp_path / "thief", "heart-study", SPECS["lyon"], None)
    shown = read_request(home.send_request("lyon", tmp_path / "thief")).fingerprint
    home.found()
    assert shown != read_request(home.request_file("lyon")).fingerprint
    refused(home, "lyon", "roster: has another signing key of lyon than this site made")
    # No roster with the thief's key is ever of use to the others without the thief's signature
    assert home.join_and_send("geneva").missing_signatures == ("lyon", "basel")


def test_a_roster_with_another_legal_entity_of_the_site_is_refused(home: HomeFederation) -> None:
    forged(home, "lyon", legal_entity="Hospital of Nice")
    refused(home, "lyon", "does not have the legal entity 'Hospital of Lyon', for which lyon asked")


def test_a_roster_with_the_key_under_another_name_is_refused(home: HomeFederation) -> None:
    own = read_request(home.request_file("lyon"))
    authority = Authority.load(home.fed / "ca")
    file = home.request_file("lyon").parent
    keys = SiteKeys(*(_key(file / name) for name in SECRET_FILES))  # type: ignore[arg-type]
    other = SiteRequest.make("heart-study", replace(own.site, site_id="nice"), None, keys)
    signed = SignedRoster.from_bytes((home.fed / "ca/roster.json").read_bytes())
    roster = signed.verify_ca(authority.ca.roster_key)
    entries = tuple(replace(e, site_id="nice") if e.site_id == "lyon" else e for e in roster.entries)
    (home.fed / "lyon").rename(home.fed / "nice")
    certify(home, other)
    publish(home, authority, sign_roster(replace(roster, entries=entries), authority.roster_key))
    refused(home, "lyon", "is of nice, and .* is of lyon", home.fed / "nice")


def test_a_certificate_with_other_names_is_refused(home: HomeFederation) -> None:
    file = home.request_file("lyon").parent
    keys = SiteKeys(*(_key(file / name) for name in ("signing.key", "tls.key")))  # type: ignore[arg-type]
    certify(home, SiteRequest.make("heart-study", replace(SPECS["lyon"], names=("bank.example.org",)), None, keys))
    forged(home, "lyon")
    refused(home, "lyon", "does not have the names of no host, for which lyon asked")


def _key(file: Path) -> object:
    return load_pem_private_key(file.read_bytes(), None)


def test_the_target_refuses_an_address_for_which_it_did_not_ask(home: HomeFederation) -> None:
    startup = home.fed / "geneva" / "startup"
    data = (startup / "endpoints.toml").read_bytes()
    (startup / "endpoints.toml").unlink()
    (startup / "endpoints.toml").write_bytes(data.replace(b":8443", b":9443"))
    forged(home, "geneva")
    refused(home, "geneva", f"does not have the address {ADDRESS}, for which geneva asked")


def test_the_package_of_another_site_is_refused(home: HomeFederation) -> None:
    refused(home, "lyon", "is of basel, and .* is of lyon", home.package("basel"))


def test_the_package_of_another_federation_is_refused(home: HomeFederation, tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    request_enrolment(kit, "lung-study", SPECS["lyon"], None)
    with pytest.raises(ConfigError, match="has another signing key of lyon"):
        join(kit, home.package("lyon"), NOW, expected_ca=home.ca)


def test_the_first_join_needs_the_fingerprint_of_the_ca_and_checks_it(home: HomeFederation) -> None:
    package, before = home.package("lyon"), tree(home.kit("lyon"))
    with pytest.raises(ConfigError, match="--ca: is needed: this kit knows no CA yet"):
        join(home.kit("lyon"), package, NOW)
    with pytest.raises(CertificateError, match="is not the CA with the expected fingerprint"):
        join(home.kit("lyon"), package, NOW, expected_ca="00" * 32)
    assert tree(home.kit("lyon")) == before


def test_a_kit_that_joined_takes_no_package_of_another_ca(home: HomeFederation) -> None:
    home.join("lyon")
    shutil.rmtree(home.fed)
    for site in ("geneva", "basel"):
        home.send_request(site)
    home.found()
    refused(home, "lyon", "is of another CA than the one that", error=CertificateError)


def test_a_second_roster_of_an_epoch_that_the_site_signed_is_refused(home: HomeFederation) -> None:
    home.join("lyon")
    forged(home, "basel", legal_entity="Hospital of Bern")
    refused(home, "lyon", "is not the roster of epoch 1 that this site has or has signed: its CA signed two")


def test_a_member_signs_one_roster_of_an_epoch_at_home(home: HomeFederation) -> None:
    home.complete()
    kit, authority = load_kit(home.kit("lyon"), NOW), Authority.load(home.fed / "ca")
    one = replace(kit.roster, epoch=2)
    others = tuple(replace(e, signing_key=os.urandom(32)) if e.site_id == "basel" else e for e in one.entries)
    signed = countersign(kit, sign_roster(one, authority.roster_key))
    assert (kit.local / SIGNED_ROSTER_FILE).read_bytes() == signed.to_bytes()
    with pytest.raises(ConfigError, match="is not the roster of epoch 2 that this site has or has signed"):
        countersign(kit, sign_roster(replace(one, entries=others), authority.roster_key))
    countersign(kit, sign_roster(replace(one, epoch=3, entries=others), authority.roster_key))
    with pytest.raises(ConfigError, match="is of epoch 2, but this site has or has signed epoch 3"):
        countersign(kit, sign_roster(one, authority.roster_key))


def test_a_join_says_what_is_new_changed_and_gone(home: HomeFederation) -> None:
    assert home.join("geneva").previous is None
    home.complete()
    none = {"new": (), "new keys": (), "another role or legal entity": (), "gone": ()}
    assert home.join("geneva").changes == none
    add(home, SiteSpec("nice", "source", "Hospital of Nice"))
    add(home, SiteSpec("bern", "source", "Hospital of Bern"))
    renew(home, "lyon")
    revoke_site(home.fed, "basel")
    joined = home.join("geneva")
    assert joined.previous is not None
    assert (joined.previous.epoch, joined.public.roster.epoch) == (1, 5)
    assert joined.changes == none | {"new": ("nice", "bern"), "new keys": ("lyon",), "gone": ("basel",)}
    forged(home, "lyon", legal_entity="Hospital of Nizza")
    assert home.join("bern").previous is None
    shutil.rmtree(home.kit("geneva") / "local")  # else it refuses the second roster of this epoch
    assert home.join("geneva").changes["another role or legal entity"] == ("lyon",)


def test_a_renewal_that_was_cut_off_is_done_again_before_anything_else(
    home: HomeFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object) -> None:
        raise PowerFailure

    home.complete()
    request = request_renewal(home.kit("lyon"), NOW)
    home.send_request("lyon")
    with monkeypatch.context() as patch:
        patch.setattr(enrolment_module, "_publish", cut_off)
        with pytest.raises(ConfigError):
            renew_site(home.fed, "lyon", now=NOW, request=request)
    before = tree(home.fed)
    with pytest.raises(ConfigError, match=r"lyon\.crt: is of another key .* its renewal was cut off") as caught:
        revoke_site(home.fed, "basel")
    assert "federation renew" in str(caught.value.hint)
    assert tree(home.fed) == before
    assert renew_site(home.fed, "lyon", now=NOW, request=request).roster.epoch == 2
    assert revoke_site(home.fed, "basel").roster.epoch == 3
    home.complete(("geneva", "lyon"))


def test_a_package_of_an_earlier_epoch_is_refused(home: HomeFederation) -> None:
    old = home.package("lyon").rename(home.root / "old.tar")
    home.complete()
    add(home, SiteSpec("nice", "source", "Hospital of Nice"))
    home.join_and_send("lyon")
    refused(home, "lyon", "is of epoch 1, but this site has or has signed epoch 2", old)


def repacked(package: Path, change: dict[str, bytes | None]) -> Path:
    """The package with members of other contents, or without them."""
    changed = package.with_name("changed.tar")
    with tarfile.open(package) as old, tarfile.open(changed, "w") as new:
        for member in old:
            content = old.extractfile(member)
            assert content is not None
            data = change.get(Path(member.name).name, content.read())
            if data is not None:
                member.size = len(data)
                new.addfile(member, io.BytesIO(data))
    return changed


def test_policy_and_settings_that_were_changed_on_their_way_are_refused(home: HomeFederation) -> None:
    package = home.package("lyon")
    for name in ("policy.toml", "settings.toml"):
        changed = repacked(package, {name: b"# another\n"})
        refused(home, "lyon", f"{name}: was changed after the CA signed proposal.json", changed)
    refused(home, "lyon", "proposal.json: is missing", repacked(package, {"proposal.json": None}))
    refused(home, "lyon", "is not the authority's proposal", repacked(package, {"proposal.json": b"{}"}))
    others = (home.fed / "basel/local/proposal.json").read_bytes()
    refused(home, "lyon", "proposal.json: is for basel, not lyon", repacked(package, {"proposal.json": others}))
    nothing = {"proposal.json": None, "policy.toml": None, "settings.toml": None}
    refused(home, "lyon", "proposal.json: is missing", repacked(package, nothing))
    for name in ("policy.toml", "settings.toml"):
        why = f"{name}: is missing, but the CA signed proposal.json with it"
        refused(home, "lyon", why, repacked(package, {name: None}))
    spoilt = (home.fed / "lyon/local/proposal.json").read_bytes().replace(b'\\"site_id\\"', b'\\"site_id\\" ')
    refused(home, "lyon", "proposal.json: is not signed by the CA", repacked(package, {"proposal.json": spoilt}))


def test_policy_and_settings_out_of_the_package_of_another_epoch_are_refused(home: HomeFederation) -> None:
    names = ("policy.toml", "settings.toml", "proposal.json")
    earlier: dict[str, bytes | None] = {name: (home.fed / "lyon/local" / name).read_bytes() for name in names}
    (home.fed / "lyon/local/settings.toml").write_text("# corrected\n")
    add(home, SiteSpec("nice", "source", "Hospital of Nice"))
    package = home.package("lyon")
    refused(home, "lyon", r"proposal\.json: is not of this roster \(epoch 2\)", repacked(package, earlier))
    assert join(home.kit("lyon"), package, NOW, expected_ca=home.ca).signed is not None


def test_settings_that_the_authority_edits_are_packaged_once_it_has_signed_them(home: HomeFederation) -> None:
    settings = home.fed / "lyon" / "local" / "settings.toml"
    settings.write_text("# edited\n")
    with pytest.raises(ConfigError, match=r"settings\.toml: was changed after the CA signed"):
        home.package("lyon")
    add(home, SiteSpec("nice", "source", "Hospital of Nice"))
    home.join("lyon")
    assert (home.kit("lyon") / "local" / "settings.toml").read_text() == "# edited\n"


def test_an_expired_certificate_is_refused(home: HomeFederation) -> None:
    with pytest.raises(CertificateError, match="expired"):
        join(home.kit("lyon"), home.package("lyon"), NOW + timedelta(days=900), expected_ca=home.ca)


def test_a_kit_without_keys_joins_nothing(home: HomeFederation, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no keys of a site"):
        join(tmp_path / "nowhere", home.package("lyon"), NOW, expected_ca=home.ca)
    assert not (tmp_path / "nowhere").exists()


# --- a federation that changes ----------------------------------------------------------------------------------------


def add(home: HomeFederation, site: SiteSpec) -> None:
    kit = home.kit(site.site_id)
    if not kit.exists():
        request_enrolment(kit, "heart-study", site, None)
    request = read_request(home.send_request(site.site_id))
    add_site(home.fed, request, policy_text="min-others = 2\n", settings_text="", now=NOW)


def test_a_site_is_added_and_the_keys_of_the_others_stay(home: HomeFederation) -> None:
    home.complete()
    keys = {site: home.secrets(site) for site in SPECS}
    add(home, SiteSpec("nice", "source", "Hospital of Nice"))

    assert home.join("lyon").missing_signatures == ("geneva", "basel", "nice")
    assert load_kit(home.kit("lyon"), NOW).roster.epoch == 1  # it works on until all have signed
    home.complete(("geneva", "lyon", "basel", "nice"))

    assert {site: home.secrets(site) for site in SPECS} == keys
    for site in ("geneva", "lyon", "basel", "nice"):
        assert load_kit(home.kit(site), NOW).roster.epoch == 2
    assert not any(home.fed.glob("*/startup/*.key"))


def test_a_site_is_revoked_and_the_keys_of_the_others_stay(home: HomeFederation) -> None:
    home.complete()
    keys = {site: home.secrets(site) for site in SPECS}
    assert revoke_site(home.fed, "basel").missing_signatures == ("geneva", "lyon")
    home.complete(("geneva", "lyon"))
    assert {site: home.secrets(site) for site in SPECS} == keys
    assert [entry.site_id for entry in load_kit(home.kit("lyon"), NOW).roster.entries] == ["geneva", "lyon"]


@pytest.mark.parametrize("days", [0, 2000])
def test_a_site_renews_its_keys_by_a_request_before_or_after_they_expire(home: HomeFederation, days: int) -> None:
    home.complete()
    old, fingerprint = home.secrets("geneva"), inspect_kit(home.kit("geneva"), NOW).key_fingerprint
    request = request_renewal(home.kit("geneva"), NOW + timedelta(days=days))
    assert (request.site, request.address) == (SPECS["geneva"], ADDRESS)
    home.send_request("geneva")
    renew_site(home.fed, "geneva", now=NOW, request=read_request(home.request_file("geneva")))
    home.join_and_send("geneva")
    assert load_kit(home.kit("geneva"), NOW).roster.epoch == 1  # the old keys work until all have signed
    home.complete(("lyon", "basel"))
    assert home.join("geneva").is_ready
    kit = load_kit(home.kit("geneva"), NOW)
    assert kit.roster.epoch == 2
    assert entry_fingerprint(kit.entry) == request.fingerprint != fingerprint
    assert not set(old) & set(home.secrets("geneva"))


def test_a_request_for_new_keys_that_was_replaced_is_not_signed(home: HomeFederation) -> None:
    home.complete()
    request_renewal(home.kit("lyon"), NOW)
    first, thief = read_request(home.kit("lyon") / "local/request.json"), SiteKeys.generate()
    of_thief = SiteRequest.make("heart-study", SPECS["lyon"], None, thief)
    signed_by_thief = SiteRequest.make("heart-study", SPECS["lyon"], None, thief, SiteKeys.generate().signing_key)
    own = read_request(home.request_file("lyon"))
    with_proof_of_own = replace(of_thief, renewal_proof=own.renewal_proof)
    before = tree(home.fed)
    for request, why in (
        (of_thief, "is not signed by the key that lyon has now"),
        (signed_by_thief, "is not signed by the key that lyon has now"),
        (with_proof_of_own, "is not signed by the key that lyon has now"),
        (first, "has a key that the site has already"),
    ):
        with pytest.raises(ConfigError, match=why):
            renew_site(home.fed, "lyon", now=NOW, request=request)
    with pytest.raises(ConfigError, match="not the expected one"):
        renew_site(home.fed, "lyon", now=NOW, request=of_thief, fingerprint=own.fingerprint)
    assert tree(home.fed) == before
    assert renew_site(home.fed, "lyon", now=NOW, request=own).roster.epoch == 2


def test_a_site_is_not_added_by_a_request_with_another_fingerprint(home: HomeFederation, tmp_path: Path) -> None:
    nice = SiteSpec("nice", "source", "Hospital of Nice")
    own = request_enrolment(tmp_path / "nice", "heart-study", nice, None)
    thief = request_enrolment(tmp_path / "thief", "heart-study", nice, None)
    texts = {"policy_text": "min-others = 2\n", "settings_text": ""}
    before = tree(home.fed)
    with pytest.raises(ConfigError, match=r"request of nice: has the fingerprint .* not the expected one"):
        add_site(home.fed, thief, now=NOW, fingerprint=own.fingerprint, **texts)
    assert tree(home.fed) == before
    spelt = ":".join(own.fingerprint.upper()[i : i + 2] for i in range(0, 64, 2))
    assert add_site(home.fed, own, now=NOW, fingerprint=spelt, **texts).roster.epoch == 2


def renew(home: HomeFederation, site: str, *, lost_key: bool = False) -> None:
    request = request_renewal(home.kit(site), NOW, lost_key=lost_key)
    home.send_request(site)
    renew_site(home.fed, site, now=NOW, request=request, fingerprint=request.fingerprint if lost_key else None)


def test_a_lost_signing_key_is_replaced_on_a_call(home: HomeFederation) -> None:
    home.complete()
    (home.kit("lyon") / "startup/signing.key").unlink()
    with pytest.raises(ConfigError, match=r"signing\.key: is missing") as caught:
        request_renewal(home.kit("lyon"), NOW)
    assert "--lost-key" in str(caught.value.hint)
    request = request_renewal(home.kit("lyon"), NOW, lost_key=True)
    with pytest.raises(ConfigError, match="is not signed by the key that lyon has now") as caught:
        renew_site(home.fed, "lyon", now=NOW, request=request)
    assert "--fingerprint" in str(caught.value.hint)
    renew_site(home.fed, "lyon", now=NOW, request=request, fingerprint=request.fingerprint)
    home.complete()
    assert load_kit(home.kit("lyon"), NOW).roster.epoch == 2


def given(monkeypatch: pytest.MonkeyPatch, passphrase: bytes) -> None:
    """A process that has this passphrase and has opened nothing yet."""
    monkeypatch.setattr(sealed_module, "_keys", {})
    monkeypatch.setattr(sealed_module, "_given", [])
    ours, theirs = os.pipe()
    os.write(theirs, passphrase)
    os.close(theirs)
    monkeypatch.setenv(FD_VARIABLE, str(ours))


OLD_PASSPHRASE, NEW_PASSPHRASE = b"five words by pure chance", b"another five words by chance"


def test_new_keys_of_a_sealed_kit_are_sealed(home: HomeFederation, monkeypatch: pytest.MonkeyPatch) -> None:
    home.complete()
    protect_keys(home.kit("lyon"), Secret(OLD_PASSPHRASE))
    given(monkeypatch, OLD_PASSPHRASE)
    renew(home, "lyon")
    assert len(home.secrets("lyon")) == 2 * len(SECRET_FILES)
    assert all(is_sealed(data) for data in home.secrets("lyon"))
    home.complete()
    given(monkeypatch, OLD_PASSPHRASE)
    assert load_kit(home.kit("lyon"), NOW).roster.epoch == 2
    assert all(is_sealed(data) for data in home.secrets("lyon"))


def test_a_wrong_passphrase_makes_no_request(home: HomeFederation, monkeypatch: pytest.MonkeyPatch) -> None:
    home.complete()
    protect_keys(home.kit("lyon"), Secret(OLD_PASSPHRASE))
    before = tree(home.kit("lyon"))
    given(monkeypatch, NEW_PASSPHRASE)
    with pytest.raises(ConfigError, match="does not open with this passphrase") as caught:
        request_renewal(home.kit("lyon"), NOW)
    assert "securefda site renew KIT --lost-key" in str(caught.value.hint)
    assert tree(home.kit("lyon")) == before


def test_a_lost_passphrase_is_replaced_with_the_keys(home: HomeFederation, monkeypatch: pytest.MonkeyPatch) -> None:
    home.complete()
    protect_keys(home.kit("lyon"), Secret(OLD_PASSPHRASE))
    given(monkeypatch, NEW_PASSPHRASE)
    renew(home, "lyon", lost_key=True)
    assert all(is_sealed(data) for data in home.secrets("lyon"))
    home.complete()
    given(monkeypatch, NEW_PASSPHRASE)
    assert load_kit(home.kit("lyon"), NOW).roster.epoch == 2


def test_keys_that_a_join_has_not_moved_yet_are_sealed(home: HomeFederation, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(kit: Path) -> None:
        if (kit / "joining").exists():
            raise PowerFailure

    with monkeypatch.context() as patch:
        patch.setattr(home_module, "_finish", no_more)
        with pytest.raises(ConfigError):
            home.join("lyon")
    assert (home.kit("lyon") / "joining/signing.key").exists()
    protect_keys(home.kit("lyon"), Secret(OLD_PASSPHRASE))
    given(monkeypatch, OLD_PASSPHRASE)
    home.complete()
    assert len(home.secrets("lyon")) == len(SECRET_FILES)
    assert all(is_sealed(data) for data in home.secrets("lyon"))


def test_the_authoritys_folder_of_a_site_with_keys_of_its_own_makes_none(home: HomeFederation) -> None:
    before = tree(home.fed)
    for lost_key in (False, True):
        with pytest.raises(ConfigError, match="holds no keys of a site"):
            request_renewal(home.fed / "lyon", NOW, lost_key=lost_key)
    assert tree(home.fed) == before


def test_a_second_package_with_other_names_in_the_certificate_is_refused(home: HomeFederation) -> None:
    for site in SPECS:
        home.join_and_send(site)
    asked = read_request(home.kit("basel") / "local/request.json")
    authority = Authority.load(home.fed / "ca")
    spec = replace(asked.site, names=("evil.example.org",))
    certificate = make_site_certificate(authority.ca, authority.tls_key, asked.tls_key, spec, now=NOW)
    file = home.fed / "basel/startup/tls.crt"
    file.unlink()
    file.write_bytes(to_pem(certificate))
    publish(home, authority, SignedRoster.from_bytes((home.fed / "ca/roster.json").read_bytes()))
    refused(home, "basel", r"does not have the names basel\.example\.org, for which basel asked")


@pytest.mark.parametrize(
    ("spec", "port", "why"),
    [
        (SPECS["basel"], 0, r"request: is of source basel \(Hospital of Basel\), not of source lyon"),
        (SiteSpec("lyon", "source", "Hospital of Nice"), 0, "request: is of source lyon .*Nice.*not of source lyon"),
        (SiteSpec("lyon", "target", "Hospital of Lyon", ("localhost",)), 8443, "request: is of target lyon"),
    ],
)
def test_keys_are_not_renewed_on_the_request_of_another(
    home: HomeFederation, spec: SiteSpec, port: int, why: str
) -> None:
    request = SiteRequest.make("heart-study", spec, ADDRESS if port else None, SiteKeys.generate())
    before = tree(home.fed)
    with pytest.raises(ConfigError, match=why):
        renew_site(home.fed, "lyon", now=NOW, request=request)
    assert tree(home.fed) == before


def test_a_site_with_another_address_is_not_renewed(home: HomeFederation) -> None:
    request = SiteRequest.make("heart-study", SPECS["geneva"], replace(ADDRESS, port=9443), SiteKeys.generate())
    before = tree(home.fed)
    with pytest.raises(ConfigError, match=r"request of geneva: names the address 127\.0\.0\.1:9443"):
        renew_site(home.fed, "geneva", now=NOW, request=request)
    assert tree(home.fed) == before


def test_a_key_of_another_member_is_not_enrolled_twice(home: HomeFederation) -> None:
    lyon = home.request_file("lyon").parent
    keys = SiteKeys(*(_key(lyon / name) for name in ("signing.key", "tls.key")))  # type: ignore[arg-type]
    request = SiteRequest.make("heart-study", SiteSpec("nice", "source", "Hospital of Nice"), None, keys)
    before = tree(home.fed)
    with pytest.raises(ConfigError, match="lyon and nice have the same signing key"):
        add_site(home.fed, request, policy_text="", settings_text="", now=NOW)
    assert tree(home.fed) == before


def test_a_kit_from_the_authority_gets_keys_of_its_own_and_the_authority_keeps_none(
    federation: Path, tmp_path: Path
) -> None:
    kit = Path(shutil.copytree(federation / "lyon", tmp_path / "lyon"))
    assert inspect_kit(kit, NOW).keys == "came with the kit, whose maker knew them"
    request = request_renewal(kit, NOW)
    changed = renew_site(federation, "lyon", now=NOW, request=request)
    assert changed.missing_signatures == ("lyon",)
    assert not any((federation / "lyon" / "startup").glob("*.key"))
    package_kit(federation / "lyon", tmp_path / "first.tar", NOW)
    joined = join(kit, tmp_path / "first.tar", NOW)
    assert joined.signed == kit / "local" / SIGNED_ROSTER_FILE
    merge_signatures(federation, SignedRoster.from_bytes(read_file(joined.signed).data))
    package_kit(federation / "lyon", tmp_path / "second.tar", NOW)
    assert join(kit, tmp_path / "second.tar", NOW).is_ready
    assert load_kit(kit, NOW).roster.epoch == load_kit(federation / "basel", NOW).roster.epoch == 2
    assert inspect_kit(kit, NOW).keys == "made by this site"
