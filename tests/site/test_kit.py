"""Loading a startup kit: what a sound one gives, and the one clear error for each thing that can be wrong."""

from __future__ import annotations

import base64
import pickle
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from federation_builder import NOW, make, put, reissue

from securefda.disk import FileContent, read_file
from securefda.errors import CertificateError, ConfigError, ExitCode
from securefda.protocol.envelope import sign_bytes, signature_is_valid
from securefda.protocol.ml_dsa import ml_dsa_public
from securefda.protocol.roster import SignedRoster
from securefda.site.endpoints import SiteSpec
from securefda.site.enrolment import renew_site, revoke_site
from securefda.site.kit import LISTED_FILES, SECRET_FILES, STARTUP_FILES, Kit, load_kit, open_kit
from securefda.site.request import SiteKeys
from securefda.site.training_secret import TRAINING_KEY_FILE, make_training_secret


def swap(name: str, source: Path, target: Path) -> None:
    put(target / "startup" / name, (source / "startup" / name).read_bytes())


def private_lines(kit: Path) -> list[str]:
    """The base64 lines of both private keys."""
    text = "".join((kit / "startup" / name).read_text() for name in SECRET_FILES)
    return [line for line in text.splitlines() if not line.startswith("-----")]


@pytest.mark.parametrize(("site_id", "role"), [("geneva", "target"), ("lyon", "source"), ("basel", "source")])
def test_kit_of_each_site_loads_with_its_own_identity(pristine: Path, site_id: str, role: str) -> None:
    kit = load_kit(pristine / site_id, NOW, expected_site=site_id, expected_role=role)  # type: ignore[arg-type]
    assert (kit.site_id, kit.role, kit.federation_id) == (site_id, role, "heart-study")
    assert [entry.site_id for entry in kit.roster.entries] == ["geneva", "lyon", "basel"]
    signature = sign_bytes(kit.signing_key, "Advertise", b"x")
    assert signature_is_valid(kit.roster.by_id(site_id).signing_key, "Advertise", b"x", signature)


def test_kit_shows_no_private_key_in_repr_and_refuses_pickling(pristine: Path) -> None:
    kit = load_kit(pristine / "lyon", NOW)
    assert not [line for line in private_lines(pristine / "lyon") if line in repr(kit)]
    assert "PRIVATE" in kit.tls_key_pem.reveal().decode()  # the companion: there was something to show
    with pytest.raises(TypeError):
        pickle.dumps(kit)


@pytest.mark.parametrize("name", STARTUP_FILES)
def test_missing_file_is_named(federation: Path, name: str) -> None:
    (federation / "lyon" / "startup" / name).unlink()
    with pytest.raises(ConfigError, match=f"{name}: is missing") as caught:
        load_kit(federation / "lyon", NOW)
    assert caught.value.exit_code == ExitCode.CONFIG
    assert caught.value.hint


def test_folder_of_a_federation_without_kits_gets_a_hint_that_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "federation.toml").touch()
    with pytest.raises(ConfigError, match="is not a startup kit") as caught:
        load_kit(tmp_path, NOW)
    assert f"securefda federation init {tmp_path / 'federation.toml'}" in caught.value.hint


@pytest.mark.parametrize("name", [*(f"startup/{name}" for name in SECRET_FILES), f"local/{TRAINING_KEY_FILE}"])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o601, 0o620])
def test_secret_open_to_others_is_refused_with_a_hint(federation: Path, name: str, mode: int) -> None:
    make_training_secret(federation / "lyon" / "local")  # as the site does at its first start
    path = federation / "lyon" / name
    path.chmod(mode)
    with pytest.raises(ConfigError, match="open to others") as caught:
        load_kit(federation / "lyon", NOW)
    assert caught.value.hint == f"run: chmod 600 {path}"
    path.chmod(0o400)
    assert load_kit(federation / "lyon", NOW).site_id == "lyon"


def test_new_keys_leave_the_secret_for_training_as_it_is(federation: Path) -> None:
    _, path = make_training_secret(federation / "lyon" / "local")
    before = path.read_bytes()
    renew_site(federation, "lyon", now=NOW)
    assert path.read_bytes() == before


def test_who_makes_the_kits_makes_no_secret_for_training(federation: Path) -> None:
    assert list(federation.rglob(TRAINING_KEY_FILE)) == []


def test_edited_endpoint_is_refused(federation: Path) -> None:
    path = federation / "lyon" / "startup" / "endpoints.toml"
    put(path, path.read_bytes().replace(b"127.0.0.1:8443", b"10.66.66.66:8443"))
    with pytest.raises(ConfigError, match=r"endpoints.toml: was changed after the CA signed"):
        load_kit(federation / "lyon", NOW)


@pytest.mark.parametrize("name", STARTUP_FILES)
def test_every_flipped_byte_of_a_file_is_refused_or_harmless(federation: Path, name: str) -> None:
    """A sample of 40 places per file; harmless is a change that leaves identity and roster as they were."""
    path = federation / "lyon" / "startup" / name
    before = load_kit(federation / "lyon", NOW)
    original = path.read_bytes()
    for place in range(0, len(original), max(1, len(original) // 40)):
        put(path, original[:place] + bytes([original[place] ^ 0x01]) + original[place + 1 :])
        try:
            kit = load_kit(federation / "lyon", NOW)
        except (ConfigError, CertificateError):
            continue
        assert name not in LISTED_FILES  # these are hashed: no flip is harmless
        assert (kit.entry, kit.roster, kit.endpoints) == (before.entry, before.roster, before.endpoints)
        assert kit.certificate == before.certificate


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80])
@pytest.mark.parametrize("name", ["ca.pem", "tls.crt"])
def test_every_flipped_byte_inside_a_certificate_is_one_clear_error(pristine: Path, name: str, flip: int) -> None:
    files = {each: read_file(pristine / "lyon/startup" / each) for each in STARTUP_FILES}
    der = x509.load_pem_x509_certificate(files[name].data).public_bytes(Encoding.DER)
    for place in range(len(der)):
        body = base64.encodebytes(der[:place] + bytes([der[place] ^ flip]) + der[place + 1 :])
        pem = b"-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n"
        with pytest.raises((ConfigError, CertificateError)) as caught:
            open_kit(pristine / "lyon", files | {name: FileContent(pem, 0o444)}, NOW)
        assert str(caught.value).isprintable()


def test_edited_roster_is_refused(federation: Path) -> None:
    path = federation / "lyon" / "startup" / "roster.json"
    put(path, path.read_bytes().replace(b"Hospital of Basel", b"Hospital of Berne"))
    with pytest.raises(ConfigError, match=r"lyon/startup/roster\.json: is not signed by this federation's CA"):
        load_kit(federation / "lyon", NOW)


def test_roster_without_a_members_signature_is_refused(federation: Path) -> None:
    path = federation / "lyon" / "startup" / "roster.json"
    signed = SignedRoster.from_bytes(path.read_bytes())
    members = tuple(pair for pair in signed.member_signatures if pair[0] != "basel")
    put(path, SignedRoster(signed.roster_bytes, signed.ca_signature, members).to_bytes())
    with pytest.raises(ConfigError, match=r"lyon/startup/roster\.json: is not signed by basel"):
        load_kit(federation / "lyon", NOW)


def test_roster_that_the_ca_signed_for_another_epoch_is_refused(federation: Path, tmp_path: Path) -> None:
    shutil.copytree(federation, tmp_path / "next")
    revoke_site(tmp_path / "next", "basel")
    swap("roster.json", tmp_path / "next" / "lyon", federation / "lyon")
    with pytest.raises(ConfigError, match="is not the roster of this kit"):
        load_kit(federation / "lyon", NOW)


def test_kit_of_another_site_is_refused_where_the_caller_says_who_it_is(pristine: Path) -> None:
    with pytest.raises(ConfigError, match="is the kit of basel, not of lyon") as caught:
        load_kit(pristine / "basel", NOW, expected_site="lyon")
    assert caught.value.exit_code == ExitCode.CONFIG


def test_kit_of_another_role_is_refused(pristine: Path) -> None:
    with pytest.raises(ConfigError, match="kit of a source"):
        load_kit(pristine / "basel", NOW, expected_role="target")


def test_certificate_from_a_renewal_does_not_fit_the_roster_before_it(federation: Path, tmp_path: Path) -> None:
    shutil.copytree(federation, tmp_path / "next")
    renew_site(tmp_path / "next", "lyon", now=NOW)
    swap("tls.crt", tmp_path / "next" / "lyon", federation / "lyon")
    with pytest.raises(ConfigError, match=r"tls\.crt: the roster pins another TLS key of lyon"):
        load_kit(federation / "lyon", NOW)


def test_roster_entry_that_ends_before_the_certificate_ends_the_kit(federation: Path) -> None:
    kit = load_kit(federation / "lyon", NOW)
    end = int(NOW.timestamp()) + 3600
    entries = tuple(replace(entry, not_after=end) if entry == kit.entry else entry for entry in kit.roster.entries)
    reissue(federation, "lyon", replace(kit.roster, entries=entries), kit.endpoints)
    assert load_kit(federation / "lyon", NOW + timedelta(hours=1)).entry.not_after == end
    with pytest.raises(CertificateError, match="roster: lyon is valid from 2026-06-01 11:55 UTC to 2026-06-01 13:00"):
        load_kit(federation / "lyon", NOW + timedelta(hours=1, seconds=1))


def test_roster_with_another_ml_dsa_key_of_the_site_is_refused_and_one_from_before_there_were_any_is_read(
    federation: Path,
) -> None:
    kit = load_kit(federation / "lyon", NOW)
    assert ml_dsa_public(kit.signing_key) == kit.entry.ml_dsa_key
    for key in (b"", ml_dsa_public(SiteKeys.generate().signing_key)):
        assert load_kit(federation / "lyon", NOW).signing_key
        entries = tuple(replace(entry, ml_dsa_key=key) if entry == kit.entry else entry for entry in kit.roster.entries)
        reissue(federation, "lyon", replace(kit.roster, entries=entries), kit.endpoints)
    with pytest.raises(ConfigError, match=r"roster\.json: has another ML-DSA key of lyon"):
        load_kit(federation / "lyon", NOW)


def test_target_whose_kit_expects_another_server_name_is_refused(federation: Path) -> None:
    kit = load_kit(federation / "geneva", NOW)
    reissue(federation, "geneva", kit.roster, replace(kit.endpoints, server_name="LOCALHOST"))
    assert load_kit(federation / "geneva", NOW).endpoints.server_name == "LOCALHOST"
    reissue(federation, "geneva", kit.roster, replace(kit.endpoints, server_name="127.0.0.2"))
    with pytest.raises(CertificateError, match=r"does not carry the aggregator's name 127\.0\.0\.2"):
        load_kit(federation / "geneva", NOW)


BASEL = "another site"
OTHER = "another federation"
NAMESAKE = "a federation with the same name"


@pytest.mark.parametrize(
    ("source", "name", "why", "kind"),
    [
        (BASEL, "tls.crt", "is the certificate of basel, not of lyon", CertificateError),
        (BASEL, "tls.key", "is not the TLS key of lyon", ConfigError),
        (BASEL, "signing.key", "is not the signing key of lyon", ConfigError),
        (BASEL, "kit.json", "is the certificate of lyon, not of basel", CertificateError),
        (OTHER, "ca.pem", "is of federation heart-study, but ca.pem of lung-study", CertificateError),
        (OTHER, "kit.json", "is of federation lung-study, but ca.pem of heart-study", CertificateError),
        (OTHER, "tls.crt", "belongs to federation lung-study, not heart-study", CertificateError),
        (OTHER, "roster.json", "is not signed by this federation's CA", ConfigError),
        (OTHER, "tls.key", "is not the TLS key of lyon", ConfigError),
        (OTHER, "signing.key", "is not the signing key of lyon", ConfigError),
        (NAMESAKE, "ca.pem", "is not signed by the CA in ca.pem", ConfigError),
        (NAMESAKE, "kit.json", "is not signed by the CA in ca.pem", ConfigError),
        (NAMESAKE, "tls.crt", "was not issued by the CA of federation heart-study", CertificateError),
        (NAMESAKE, "roster.json", "is not signed by this federation's CA", ConfigError),
    ],
)
def test_file_swapped_with_another_kits_is_refused(
    request: pytest.FixtureRequest, federation: Path, source: str, name: str, why: str, kind: type[Exception]
) -> None:
    fixture, site = {BASEL: ("pristine", "basel"), OTHER: ("other_federation", "lyon"), NAMESAKE: ("namesake", "lyon")}[
        source
    ]
    swap(name, request.getfixturevalue(fixture) / site, federation / "lyon")
    with pytest.raises(kind, match=why):
        load_kit(federation / "lyon", NOW)


def test_file_of_another_federation_with_the_same_contents_is_accepted(
    federation: Path, other_federation: Path
) -> None:
    swap("endpoints.toml", other_federation / "lyon", federation / "lyon")
    assert load_kit(federation / "lyon", NOW).federation_id == "heart-study"


def test_whole_kit_of_a_namesake_is_refused_by_fingerprint_alone(pristine: Path, namesake: Path) -> None:
    fingerprint = load_kit(pristine / "lyon", NOW).ca.fingerprint
    shouted = ":".join(fingerprint[i : i + 2] for i in range(0, 64, 2)).upper()
    assert load_kit(pristine / "lyon", NOW, expected_ca=shouted).site_id == "lyon"
    assert load_kit(namesake / "lyon", NOW).site_id == "lyon"
    with pytest.raises(CertificateError, match="expected fingerprint"):
        load_kit(namesake / "lyon", NOW, expected_ca=fingerprint)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (NOW - timedelta(minutes=6), "tls.crt: not valid before 2026-06-01 11:55 UTC"),
        (NOW + timedelta(days=825, seconds=1), "tls.crt: expired at 2028-09-03 12:00 UTC"),
        (datetime(1970, 1, 1, tzinfo=UTC), "not valid before"),
        (NOW + timedelta(days=9999), "expired"),
    ],
)
def test_kit_outside_its_validity_is_refused_with_both_times(pristine: Path, now: datetime, why: str) -> None:
    with pytest.raises(CertificateError, match=why) as caught:
        load_kit(pristine / "lyon", now)
    assert caught.value.exit_code == ExitCode.CERTIFICATE
    assert "clock" in caught.value.hint


@pytest.mark.parametrize("now", [NOW - timedelta(minutes=5), NOW + timedelta(days=825)])
def test_kit_is_good_at_both_ends_of_its_validity(pristine: Path, now: datetime) -> None:
    assert load_kit(pristine / "lyon", now).site_id == "lyon"


def test_kit_whose_ca_ends_first_is_not_good_for_longer(tmp_path: Path) -> None:
    make(tmp_path / "fed", ca_validity=timedelta(days=10))
    assert load_kit(tmp_path / "fed" / "lyon", NOW + timedelta(days=10)).site_id == "lyon"
    with pytest.raises(CertificateError, match="expired"):
        load_kit(tmp_path / "fed" / "lyon", NOW + timedelta(days=10, seconds=1))


def test_time_without_a_zone_is_a_programming_error(pristine: Path) -> None:
    with pytest.raises(ValueError, match="time zone"):
        load_kit(pristine / "lyon", datetime(2026, 6, 1))


@pytest.mark.parametrize("data", [b"", b"nonsense", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
@pytest.mark.parametrize("name", STARTUP_FILES)
def test_garbage_in_any_file_is_one_clear_error(federation: Path, name: str, data: bytes) -> None:
    put(federation / "lyon" / "startup" / name, data)
    with pytest.raises(ConfigError) as caught:
        load_kit(federation / "lyon", NOW)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "other"), [("tls.key", "signing.key"), ("signing.key", "tls.key")])
def test_key_of_the_wrong_kind_is_refused(federation: Path, name: str, other: str) -> None:
    folder = federation / "lyon" / "startup"
    put(folder / name, (folder / other).read_bytes())
    with pytest.raises(ConfigError, match=f"{name}: is not an"):
        load_kit(federation / "lyon", NOW)


def test_no_error_about_a_key_shows_the_key(federation: Path, pristine: Path) -> None:
    folder = federation / "lyon" / "startup"
    original = (folder / "signing.key").read_bytes()
    for data in (
        original[:-40],
        original.replace(b"PRIVATE", b"PUBLIC"),
        (pristine / "basel/startup/signing.key").read_bytes(),
    ):
        put(folder / "signing.key", data)
        with pytest.raises(ConfigError) as caught:
            load_kit(federation / "lyon", NOW)
        shown = f"{caught.value!r} {caught.value.hint} {caught.value.__cause__!r}"
        assert not [
            line for line in (*private_lines(pristine / "lyon"), *private_lines(pristine / "basel")) if line in shown
        ]


def test_target_without_its_server_name_in_the_certificate_is_refused_at_init(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="does not carry the aggregator's name aggregator"):
        make(tmp_path / "fed", server_name="aggregator.example.org")
    assert not (tmp_path / "fed").exists()


def test_kit_is_read_from_startup_alone(federation: Path) -> None:
    shutil.rmtree(federation / "ca")
    shutil.rmtree(federation / "basel")
    kit: Kit = load_kit(federation / "lyon", NOW)
    assert kit.roster.by_id("basel").role == "source"


def test_sites_file_names_cannot_leave_the_federation() -> None:
    for name in ("..", "a/b", "ca", "A", ""):
        with pytest.raises(ConfigError):
            SiteSpec(name, "source", "x")
