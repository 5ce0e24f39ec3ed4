"""A site's policy is what the site signed: nobody else's text, no other site's, no older key's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from federation_builder import NOW, make

from securefda.errors import ConfigError, ExitCode
from securefda.site.endpoints import SiteSpec
from securefda.site.enrolment import add_site, renew_site, revoke_site
from securefda.site.kit import Kit, load_kit
from securefda.site.policy import SourcePolicy, load_signed_policy
from securefda.site.policy.signed import policy_signature, write_policy_signature

HINT = "read it with 'securefda policy explain', then 'securefda policy sign KIT'"


@pytest.fixture
def lyon(federation: Path) -> Kit:
    return load_kit(federation / "lyon", NOW)


def sign_as(kit: Kit) -> None:
    file = kit.local / "policy.toml"
    write_policy_signature(file, file.read_bytes(), kit.federation_id, kit.site_id, kit.signing_key)


def assert_refused(kit: Kit, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        load_signed_policy(kit)
    assert caught.value.exit_code == ExitCode.CONFIG
    assert caught.value.key in {str(kit.local / name) for name in ("policy.toml", "policy.sig")}
    assert caught.value.hint


@pytest.mark.parametrize("site", ["lyon", "basel"])
def test_the_kit_that_enrolment_makes_for_a_source_holds_a_signed_policy(pristine: Path, site: str) -> None:
    assert load_signed_policy(load_kit(pristine / site, NOW)) == SourcePolicy(min_others=2)


def test_the_kit_of_a_target_holds_none(pristine: Path) -> None:
    assert not list((pristine / "geneva").rglob("policy*"))


def test_a_site_that_is_added_later_has_signed_its_policy_too(federation: Path) -> None:
    site = SiteSpec("berne", "source", "Hospital of Berne")
    add_site(federation, site, policy_text="min-others = 3\n", settings_text="", now=NOW)
    assert load_signed_policy(load_kit(federation / "berne", NOW)) == SourcePolicy(min_others=3)


def test_one_byte_more_in_the_policy_is_refused_until_the_site_signs_again(lyon: Kit) -> None:
    file = lyon.local / "policy.toml"
    file.write_bytes(file.read_bytes() + b"\n")
    assert_refused(lyon, r"policy\.toml: was changed after it was signed")
    with pytest.raises(ConfigError) as caught:
        load_signed_policy(lyon)
    assert caught.value.hint == HINT
    sign_as(lyon)
    assert load_signed_policy(lyon) == SourcePolicy(min_others=2)


def test_another_sites_policy_does_not_pass_with_its_own_signature(federation: Path, lyon: Kit) -> None:
    for name in ("policy.toml", "policy.sig"):
        shutil.copy(federation / "basel/local" / name, lyon.local / name)
    assert_refused(lyon, "is of basel in federation heart-study, not of lyon")


def test_a_policy_of_this_site_in_another_federation_does_not_pass(other_federation: Path, lyon: Kit) -> None:
    for name in ("policy.toml", "policy.sig"):
        shutil.copy(other_federation / "lyon/local" / name, lyon.local / name)
    assert_refused(lyon, "is of lyon in federation lung-study, not of lyon in heart-study")


def test_the_signature_of_another_key_in_this_sites_name_does_not_pass(federation: Path, lyon: Kit) -> None:
    basel = load_kit(federation / "basel", NOW)
    file = lyon.local / "policy.toml"
    write_policy_signature(file, file.read_bytes(), lyon.federation_id, lyon.site_id, basel.signing_key)
    assert_refused(lyon, "is not by this site's present signing key")


def flip_signature(data: bytes) -> bytes:
    envelope = json.loads(data)
    envelope["site_signature"] = ("0" if envelope["site_signature"][0] != "0" else "1") + envelope["site_signature"][1:]
    return json.dumps(envelope).encode()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (flip_signature, "is not by this site's present signing key"),
        (lambda _: b"", "is no signature of a policy"),
        (lambda _: b"{}", "is no signature of a policy"),
        (lambda _: b"[" * 100_000, "is no signature of a policy"),
        (lambda data: data.replace(b'version\\":1', b'version\\":2'), "has format 2, and this release reads format 1"),
        (lambda data: data.replace(b"policy_sha256", b"policy_sha512"), "is no signature of a policy"),
        (lambda data: data[:-6] + b'xy"\n}\n', "is no signature of a policy"),
    ],
)
def test_a_spoilt_signature_is_refused(lyon: Kit, spoil: Callable[[bytes], bytes], why: str) -> None:
    file = lyon.local / "policy.sig"
    spoilt = spoil(file.read_bytes())
    assert spoilt != file.read_bytes()
    file.write_bytes(spoilt)
    assert_refused(lyon, why)


@pytest.mark.parametrize("name", ["policy.toml", "policy.sig"])
def test_a_missing_file_is_refused_and_no_default_takes_its_place(lyon: Kit, name: str) -> None:
    (lyon.local / name).unlink()
    assert_refused(lyon, f"{name}: is missing")


def test_a_signature_is_of_these_bytes_for_this_site_and_no_other_message(lyon: Kit) -> None:
    made = policy_signature(lyon.federation_id, lyon.site_id, lyon.signing_key, b"min-others = 2\n")
    assert made == (lyon.local / "policy.sig").read_bytes()
    assert json.loads(made)["policy_text"] == "min-others = 2\n"
    assert set(json.loads(json.loads(made)["policy"])) == {
        *("version", "federation_id", "site_id", "policy_sha256", "people")
    }


def test_new_keys_do_not_sign_the_policy_in_the_sites_place(federation: Path, lyon: Kit) -> None:
    """A thief of the old key could have signed another policy; the site looks at it before it signs."""
    before = (lyon.local / "policy.sig").read_bytes()
    renew_site(federation, "lyon", now=NOW)
    renewed = load_kit(federation / "lyon", NOW)
    assert (renewed.local / "policy.sig").read_bytes() == before
    assert_refused(renewed, "is not by this site's present signing key")
    sign_as(renewed)
    assert load_signed_policy(renewed) == SourcePolicy(min_others=2)


def test_a_site_that_is_enrolled_again_keeps_its_policy_and_signs_it_itself(federation: Path, lyon: Kit) -> None:
    (lyon.local / "policy.toml").write_text("min-others = 9\n")
    revoke_site(federation, "lyon")
    site = SiteSpec("lyon", "source", "Hospital of Lyon")
    add_site(federation, site, policy_text="min-others = 1\n", settings_text="", now=NOW)
    again = load_kit(federation / "lyon", NOW)
    assert_refused(again, "was changed after it was signed")
    sign_as(again)
    assert load_signed_policy(again) == SourcePolicy(min_others=9)


def test_other_sites_keep_their_signatures_when_the_roster_changes(tmp_path: Path) -> None:
    root = make(tmp_path / "fed").root
    renew_site(root, "geneva", now=NOW, names=("127.0.0.1",))
    revoke_site(root, "basel")
    assert load_signed_policy(load_kit(root / "lyon", NOW)) == SourcePolicy(min_others=2)
