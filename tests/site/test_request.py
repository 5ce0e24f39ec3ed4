"""A site's request: what it proves, and every lie in it that is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509 import CertificateSigningRequestBuilder, Name
from federation_builder import NOW
from home_federation import ADDRESS, ROLES, SPECS

from securefda.errors import ConfigError
from securefda.parse import canonical_json
from securefda.protocol.envelope import sign_bytes
from securefda.site.authority import Authority
from securefda.site.certificates import make_csr, tls_pin
from securefda.site.endpoints import SiteSpec
from securefda.site.enrolment import init_federation, read_requests
from securefda.site.request import REQUEST_MESSAGE, SiteKeys, SiteRequest, _tls_statement, entry_fingerprint

LYON = SPECS["lyon"]
OWN, OTHER = SiteKeys.generate(), SiteKeys.generate()
REQUEST = SiteRequest.make("heart-study", LYON, None, OWN)


def signed(body: bytes, keys: SiteKeys = OWN, tls_keys: SiteKeys | None = None) -> bytes:
    """The file of a body, signed by these keys."""
    proof = (tls_keys or keys).tls_key.sign(_tls_statement(body), ec.ECDSA(hashes.SHA256()))
    fields = {
        "request": body.decode("ascii"),
        "signing_proof": sign_bytes(keys.signing_key, REQUEST_MESSAGE, body).hex(),
        "tls_proof": proof.hex(),
        "renewal_proof": "",
    }
    return json.dumps(fields, sort_keys=True, indent=1).encode("ascii") + b"\n"


def body_with(**changes: object) -> bytes:
    return canonical_json(json.loads(REQUEST.body()) | changes)


def test_a_request_comes_back_as_it_was_and_holds_no_private_key() -> None:
    data = REQUEST.to_bytes()
    assert SiteRequest.from_bytes("lyon.json", data) == REQUEST
    for key in (OWN.signing_key, OWN.tls_key):
        raw = key.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        assert raw.hex().encode() not in data
    assert OWN.signing_key.private_bytes_raw().hex().encode() not in data
    assert "PrivateKey" not in repr(OWN)
    target = SiteRequest.make("heart-study", SPECS["geneva"], ADDRESS, OTHER)
    assert SiteRequest.from_bytes("geneva.json", target.to_bytes()).address == ADDRESS


def test_the_fingerprint_is_the_same_from_the_request_and_from_a_roster() -> None:
    authority = Authority.create("heart-study", NOW)
    identity = authority.issue(REQUEST, NOW)
    assert identity.keys is None
    assert tls_pin(identity.certificate) == OWN.tls_pin
    assert entry_fingerprint(identity.entry(3)) == REQUEST.fingerprint
    assert SiteRequest.make("heart-study", LYON, None, OTHER).fingerprint != REQUEST.fingerprint
    assert SiteRequest.make("heart-study", replace(LYON, site_id="nice"), None, OWN).fingerprint != REQUEST.fingerprint


def csr_of(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, site: SiteSpec = LYON) -> str:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return make_csr(key, "heart-study", site).hex()
    csr = CertificateSigningRequestBuilder().subject_name(Name([])).sign(key, hashes.SHA256())
    return csr.public_bytes(serialization.Encoding.DER).hex()


def with_spoilt_signature(csr: bytes) -> str:
    return (csr[:-1] + bytes([csr[-1] ^ 1])).hex()


OTHERS_SIGNING, OTHERS_PIN = OTHER.signing_public.hex(), OTHER.tls_pin.hex()
LIES: dict[str, tuple[Callable[[], bytes], str]] = {
    "another's signing key": (
        lambda: signed(body_with(signing_key=OTHERS_SIGNING)),
        "does not prove that lyon has the private signing key",
    ),
    "another's TLS key": (
        lambda: signed(body_with(tls_pin=OTHERS_PIN, csr=csr_of(OTHER.tls_key))),
        "does not prove that lyon has the private TLS key",
    ),
    "another's CSR beside the own TLS key": (
        lambda: signed(body_with(csr=csr_of(OTHER.tls_key))),
        "the CSR is of another TLS key than the request of lyon names",
    ),
    "a proof of another signing key": (
        lambda: signed(REQUEST.body(), SiteKeys(OTHER.signing_key, OWN.tls_key)),
        "does not prove that lyon has the private signing key",
    ),
    "a proof of another TLS key": (
        lambda: signed(REQUEST.body(), OWN, OTHER),
        "does not prove that lyon has the private TLS key",
    ),
    "the CSR of another site": (
        lambda: signed(body_with(csr=csr_of(OWN.tls_key, SPECS["basel"]))),
        "the CSR is not of lyon of heart-study",
    ),
    "names that are not in the CSR": (
        lambda: signed(body_with(names=["bank.example.org"])),
        "the CSR is not of lyon of heart-study with the names of the request",
    ),
    "a CSR for another federation": (
        lambda: signed(body_with(federation_id="lung-study")),
        "the CSR is not of lyon of lung-study",
    ),
    "a CSR that its key did not sign": (
        lambda: signed(body_with(csr=with_spoilt_signature(REQUEST.csr))),
        "the CSR is not signed by its own key|no certificate signing request that can be read",
    ),
    "a TLS key on another curve": (
        lambda: signed(body_with(csr=csr_of(ec.generate_private_key(ec.SECP384R1())))),
        "not ECDSA P-256",
    ),
    "an RSA key": (lambda: signed(body_with(csr=csr_of(rsa.generate_private_key(65537, 2048)))), "not ECDSA P-256"),
    "a CSR that is none": (lambda: signed(body_with(csr="00")), "no certificate signing request"),
    "another legal entity, not signed": (
        lambda: REQUEST.to_bytes().replace(b"Hospital of Lyon", b"Hospital of Nice"),
        "does not prove that lyon has the private signing key",
    ),
    "a source with an address": (lambda: signed(body_with(address="127.0.0.1:8443")), "must name an address if"),
    "a target without an address": (lambda: signed(body_with(role="target")), "must name an address if"),
    "an address that would print a line of its own": (
        lambda: signed(body_with(role="target", address="[fe80::1%x\nkey fingerprint  0123\x1b[8m]:8443")),
        "is neither a host name nor an IP address",
    ),
    "a third role": (lambda: signed(body_with(role="owner")), "is not a request of a site"),
    "a name twice": (
        lambda: signed(
            body_with(
                names=["a.org", "a.org"], csr=csr_of(OWN.tls_key, SiteSpec("lyon", "source", "x", ("a.org", "a.org")))
            )
        ),
        "names a host of lyon twice",
    ),
    "a field more": (lambda: signed(body_with(admin=True)), "is not a request of a site"),
    "another version": (lambda: signed(body_with(version=3)), "has format 3, and this release reads format 2"),
    "a version without its key": (lambda: signed(body_with(version=1)), "is not a request of a site"),
    "a short ML-DSA key": (lambda: signed(body_with(ml_dsa_key="AAAA")), "ml_dsa_key"),
    "no ML-DSA key": (lambda: signed(body_with(ml_dsa_key="")), "does not prove"),
    "a version that is true": (lambda: signed(body_with(version=True)), "is not a request of a site"),
    "a reserved site": (lambda: signed(body_with(site_id="ca")), "'ca' is reserved"),
    "no legal entity": (
        lambda: signed(body_with(legal_entity="")),
        "legal entity of lyon: must have 1 to 200 char",
    ),
    "a short key": (lambda: signed(body_with(signing_key="00")), "signing_key"),
    "upper-case hex": (lambda: signed(body_with(signing_key=OWN.signing_public.hex().upper())), "prove|canonical"),
    "blanks between fields": (lambda: REQUEST.to_bytes().replace(b"\n ", b"\n  "), "is not in canonical form"),
    "a byte behind its end": (lambda: REQUEST.to_bytes() + b"\n", "is not in canonical form"),
    "a proof in upper case": (
        lambda: REQUEST.to_bytes().replace(REQUEST.tls_proof.hex().encode(), REQUEST.tls_proof.hex().upper().encode()),
        "is not in canonical form",
    ),
    "no JSON": (lambda: b"\xff" * 9, "is not a request of a site"),
    "nothing": (lambda: b"", "is not a request of a site"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_in_a_request_is_refused_by_name(lie: str) -> None:
    make, why = LIES[lie]
    with pytest.raises(ConfigError, match=why) as refused:
        SiteRequest.from_bytes("lyon.json", make())
    assert refused.value.key == "lyon.json"
    assert refused.value.hint


def test_every_byte_of_a_request_counts() -> None:
    data = REQUEST.to_bytes()
    for at in range(0, len(data), 7):
        with pytest.raises(ConfigError):
            SiteRequest.from_bytes("lyon.json", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


# --- what the authority makes of a folder of requests -----------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "requests"
    made.mkdir()
    for site, spec in SPECS.items():
        request = SiteRequest.make("heart-study", spec, ADDRESS if spec.role == "target" else None, SiteKeys.generate())
        (made / f"{site}.json").write_bytes(request.to_bytes())
    return made


def test_requests_come_in_the_order_of_the_federation(folder: Path) -> None:
    assert [request.site.site_id for request in read_requests(folder, ROLES)] == list(ROLES)


def test_two_requests_of_one_site_are_refused(folder: Path) -> None:
    (folder / "zurich.json").write_bytes(REQUEST.to_bytes())
    with pytest.raises(ConfigError, match=r"is a second request of lyon, beside lyon\.json"):
        read_requests(folder, ROLES)


def test_a_request_of_no_site_of_the_federation_is_refused(folder: Path) -> None:
    request = SiteRequest.make("heart-study", SiteSpec("nice", "source", "Nice"), None, OWN)
    (folder / "nice.json").write_bytes(request.to_bytes())
    with pytest.raises(ConfigError, match="is of nice, which is no site of this federation"):
        read_requests(folder, ROLES)


def test_a_site_without_a_request_is_named(folder: Path) -> None:
    (folder / "basel.json").unlink()
    with pytest.raises(ConfigError, match="holds no request of basel"):
        read_requests(folder, ROLES)


def test_requests_that_are_in_no_folder_are_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent: is missing"):
        read_requests(folder / "absent", ROLES)
    with pytest.raises(ConfigError, match=r"lyon\.json: is not a folder"):
        read_requests(folder / "lyon.json", ROLES)


def test_a_source_that_asks_to_be_the_target_is_refused(folder: Path) -> None:
    request = SiteRequest.make("heart-study", replace(LYON, role="target"), ADDRESS, OWN)
    (folder / "lyon.json").write_bytes(request.to_bytes())
    with pytest.raises(ConfigError, match=r"asks for the role of a target, but .* has lyon as a source"):
        read_requests(folder, ROLES)


@pytest.mark.parametrize(
    ("federation", "port", "why"),
    [
        ("lung-study", 8443, "request of geneva: is for federation heart-study, not lung-study"),
        ("heart-study", 9999, "request of geneva: names the address 127.0.0.1:8443, not 127.0.0.1:9999"),
    ],
)
def test_a_federation_is_not_founded_on_requests_for_another_one_or_another_address(
    folder: Path, tmp_path: Path, federation: str, port: int, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        init_federation(
            tmp_path / "fed",
            federation,
            read_requests(folder, ROLES),
            aggregator=replace(ADDRESS, port=port),
            policy_text="",
            settings_text=None,
            now=NOW,
        )
    assert not (tmp_path / "fed").exists()
