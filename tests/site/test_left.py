"""A certificate of leaving: who takes it, whom it hits, and which lies are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from federation_builder import NOW

from securefda.bootstrap import notes_of_left, source_of_pin
from securefda.errors import CertificateError, ConfigError
from securefda.protocol.roster import SignedRoster
from securefda.site.endpoints import SiteSpec
from securefda.site.enrolment import add_site, countersign, renew_site, revoke_site
from securefda.site.kit import Kit, load_kit, use_kit
from securefda.site.left import Claim, LeavingCertificate, require_without_left, take, taken
from securefda.site.preflight import Level, preflight

LEAVER, OTHER, TARGET = "basel", "lyon", "geneva"
RUNS = (Claim("cafe" * 8, 3, "1.2346", 40, "ab" * 32),)
NOW_S = int(NOW.timestamp())


def kit_of(federation: Path, site: str = OTHER) -> Kit:
    return load_kit(federation / site, NOW)


def certificate_of(kit: Kit, key: Ed25519PrivateKey | None = None) -> LeavingCertificate:
    return LeavingCertificate.make(kit.entry, kit.roster, key or kit.signing_key, NOW, RUNS)


def files(kit: Kit) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(kit.local.rglob("*")) if file.is_file()}


def test_the_file_says_who_left_when_with_which_keys_and_what_left_it(federation: Path) -> None:
    leaver = kit_of(federation, LEAVER)
    signed = certificate_of(leaver)

    read = LeavingCertificate.from_bytes("leaving.json", signed.to_bytes())

    assert read == signed
    assert (read.site_id, read.epoch, read.left_at, read.runs) == (LEAVER, 1, NOW_S, RUNS)
    assert (read.signing_key, read.tls_pin) == (leaver.entry.signing_key, leaver.entry.tls_pin)


def test_a_site_that_took_it_refuses_these_keys_by_name_and_has_the_same_roster(federation: Path) -> None:
    target, leaver = kit_of(federation, TARGET), kit_of(federation, LEAVER)
    assert source_of_pin(target, leaver.entry.tls_pin) == leaver.entry.index

    file = take(target.local, target.roster, certificate_of(leaver))
    after = kit_of(federation, TARGET)

    assert source_of_pin(after, leaver.entry.tls_pin) is None
    assert source_of_pin(after, kit_of(federation).entry.tls_pin) is not None
    assert after.roster.digest() == target.roster.digest()
    assert after.roster.left((leaver.entry.index,)) == (LEAVER,)
    assert notes_of_left(after.roster) == (
        f"{LEAVER} left the federation on {NOW:%Y-%m-%d %H:%M} UTC: its keys are refused",
    )
    assert take(target.local, target.roster, certificate_of(leaver)) == file
    use_kit(after)


def test_the_site_itself_starts_no_process_any_more(federation: Path) -> None:
    leaver = kit_of(federation, LEAVER)
    use_kit(leaver)
    take(leaver.local, leaver.roster, certificate_of(leaver))

    with pytest.raises(CertificateError, match=r"basel left the federation on .* and revoked the keys of this kit"):
        use_kit(kit_of(federation, LEAVER))


def proposal_in(federation: Path) -> SignedRoster:
    return SignedRoster.from_bytes((federation / "ca" / "roster.json").read_bytes())


def test_a_new_roster_that_still_lists_it_is_not_signed_and_one_without_it_is(federation: Path, tmp_path: Path) -> None:
    behind = load_kit(Path(shutil.copytree(federation / OTHER, tmp_path / "kits" / OTHER)), NOW)
    take(behind.local, behind.roster, certificate_of(kit_of(federation, LEAVER)))
    bonn = SiteSpec("bonn", "source", "Hospital of Bonn")
    add_site(federation, bonn, policy_text="min-others = 2\n", settings_text="", now=NOW)
    before = files(behind)

    with pytest.raises(ConfigError, match="of epoch 2 still lists the keys of basel, which left on") as refusal:
        countersign(behind, proposal_in(federation))

    assert "securefda federation revoke FOLDER basel" in refusal.value.hint
    assert files(behind) == before
    revoke_site(federation, LEAVER)
    countersign(behind, proposal_in(federation))


def test_a_site_that_was_enrolled_again_with_new_keys_is_not_hit_by_the_old_certificate(
    federation: Path, tmp_path: Path
) -> None:
    old = certificate_of(kit_of(federation, LEAVER))
    taken_before = kit_of(federation)
    take(taken_before.local, taken_before.roster, old)

    renew_site(federation, LEAVER, now=NOW)

    again, target = kit_of(federation, LEAVER), kit_of(federation, TARGET)
    assert kit_of(federation).roster.left((again.entry.index,)) == ()
    require_without_left(taken_before.local, again.roster)
    use_kit(again)
    with pytest.raises(ConfigError, match="is not of the keys that basel has in the roster of epoch 2"):
        take(target.local, target.roster, old)
    assert taken(target.local, target.federation_id) == ()


Lie = Callable[[Path, Path], bytes]


def edited(change: Callable[[dict[str, object]], None]) -> Lie:
    def lie(federation: Path, _: Path) -> bytes:
        envelope = json.loads(certificate_of(kit_of(federation, LEAVER)).to_bytes())
        fields = json.loads(envelope["leaving"])
        change(fields)
        envelope["leaving"] = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return json.dumps(envelope, sort_keys=True, indent=1).encode() + b"\n"

    return lie


def by_another_key(federation: Path, _: Path) -> bytes:
    leaver, thief = kit_of(federation, LEAVER), Ed25519PrivateKey.generate()
    entry = replace(leaver.entry, signing_key=thief.public_key().public_bytes_raw())
    return LeavingCertificate.make(entry, leaver.roster, thief, NOW, RUNS).to_bytes()


def of_another_site_by_my_key(federation: Path, _: Path) -> bytes:
    """A member who would have another one refused."""
    mine, leaver = kit_of(federation), kit_of(federation, LEAVER)
    entry = replace(leaver.entry, signing_key=mine.entry.signing_key)
    return LeavingCertificate.make(entry, mine.roster, mine.signing_key, NOW, RUNS).to_bytes()


def with_another_pin(federation: Path, _: Path) -> bytes:
    """A site that leaves, and would have the TLS key of another one refused."""
    leaver = kit_of(federation, LEAVER)
    entry = replace(leaver.entry, tls_pin=kit_of(federation).entry.tls_pin)
    return LeavingCertificate.make(entry, leaver.roster, leaver.signing_key, NOW, RUNS).to_bytes()


def of_the_target(federation: Path, _: Path) -> bytes:
    return certificate_of(kit_of(federation, TARGET)).to_bytes()


def of_another_federation(_: Path, other: Path) -> bytes:
    return certificate_of(kit_of(other, LEAVER)).to_bytes()


def of_a_later_roster(federation: Path, _: Path) -> bytes:
    leaver = kit_of(federation, LEAVER)
    later = replace(leaver.roster, epoch=2)
    return LeavingCertificate.make(leaver.entry, later, leaver.signing_key, NOW, RUNS).to_bytes()


def of_no_member(federation: Path, _: Path) -> bytes:
    leaver, key = kit_of(federation, LEAVER), Ed25519PrivateKey.generate()
    entry = replace(leaver.entry, site_id="bonn", signing_key=key.public_key().public_bytes_raw())
    return LeavingCertificate.make(entry, leaver.roster, key, NOW, RUNS).to_bytes()


def cut(federation: Path, _: Path) -> bytes:
    return certificate_of(kit_of(federation, LEAVER)).to_bytes()[:-40]


def with_blanks(federation: Path, _: Path) -> bytes:
    return certificate_of(kit_of(federation, LEAVER)).to_bytes() + b"\n"


NOT_SIGNED = "is not signed by the key of basel that it names: it was edited, or another signed it"
LIES: dict[str, tuple[Lie, str]] = {
    "another day": (edited(lambda fields: fields.update(left_at=NOW_S + 9)), NOT_SIGNED),
    "no time": (edited(lambda fields: fields.update(left_at=2**62)), "names no time at which a site can have left"),
    "a time before all": (edited(lambda fields: fields.update(left_at=-1)), "names no time at which a site can have"),
    "fewer runs": (edited(lambda fields: fields.update(runs=[])), NOT_SIGNED),
    "another site": (
        edited(lambda fields: fields.update(site_id=OTHER)),
        "is not signed by the key of lyon that it names: it was edited, or another signed it",
    ),
    "another epoch": (edited(lambda fields: fields.update(epoch=7)), NOT_SIGNED),
    "another key": (by_another_key, "is not of the keys that basel has in the roster of epoch 1"),
    "another site's key": (of_another_site_by_my_key, "is not of the keys that basel has in the roster of epoch 1"),
    "another site's TLS key": (with_another_pin, "is not of the keys that basel has in the roster of epoch 1"),
    "the target": (of_the_target, "is of geneva, the target"),
    "another federation": (of_another_federation, "is of federation lung-study, not"),
    "a later roster": (of_a_later_roster, "was signed with the roster of epoch 2, and this kit has epoch 1"),
    "no member": (of_no_member, "is of bonn, which the roster of epoch 1 does not list"),
    "cut": (cut, "is not a site's certificate of leaving"),
    "more than the file": (with_blanks, "is not in canonical form"),
    "a later format": (
        edited(lambda fields: fields.update(version=9)),
        "has format 9, and this release reads format 1",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_by_name_and_the_kit_stays_as_it_was(
    federation: Path, other_federation: Path, lie: str
) -> None:
    make, line = LIES[lie]
    data, kit = make(federation, other_federation), kit_of(federation)
    before = files(kit)

    with pytest.raises(ConfigError, match=line) as refusal:
        take(kit.local, kit.roster, LeavingCertificate.from_bytes("leaving.json", data))

    assert refusal.value.hint
    assert "\n" not in str(refusal.value)
    assert files(kit) == before
    assert kit_of(federation).roster.left(range(3)) == ()


def test_a_file_that_was_edited_in_the_kit_is_named_and_nothing_starts(federation: Path) -> None:
    kit = kit_of(federation)
    file = take(kit.local, kit.roster, certificate_of(kit_of(federation, LEAVER)))
    file.write_bytes(file.read_bytes().replace(b"1.2346", b"0.0001"))

    with pytest.raises(ConfigError, match=rf"{file.name}: is not signed by the key of basel"):
        kit_of(federation)


def test_a_certificate_of_another_federation_that_was_put_there_is_named(
    federation: Path, other_federation: Path
) -> None:
    kit = kit_of(federation)
    (kit.local / "left").mkdir(parents=True)
    (kit.local / "left" / "basel.json").write_bytes(of_another_federation(federation, other_federation))

    with pytest.raises(ConfigError, match=r"basel.json: is of federation lung-study, not"):
        kit_of(federation)


def test_a_thief_who_signs_an_hour_to_come_keeps_no_site_from_refusing_the_key(federation: Path) -> None:
    kit, leaver = kit_of(federation), kit_of(federation, LEAVER)
    in_years = LeavingCertificate.make(leaver.entry, leaver.roster, leaver.signing_key, NOW + timedelta(days=999), RUNS)
    file = take(kit.local, kit.roster, in_years)
    assert take(kit.local, kit.roster, certificate_of(leaver)) == file, "the site's own comes too late to be kept"

    after = kit_of(federation)

    assert source_of_pin(after, leaver.entry.tls_pin) is None
    assert after.roster.out_of_date((leaver.entry.index,), NOW_S) == (LEAVER,)


def test_preflight_names_who_has_left_and_fails_at_the_site_itself(federation: Path) -> None:
    leaver, other = kit_of(federation, LEAVER), kit_of(federation)
    for kit in (leaver, other):
        take(kit.local, kit.roster, certificate_of(leaver))

    (own, *_), (theirs, *_) = (preflight(kit.root, NOW, offline=True) for kit in (leaver, other))

    assert (own.check, own.level) == ("kit", Level.FAIL)
    assert own.message.startswith("basel left the federation on")
    assert (theirs.check, theirs.level) == ("kit", Level.OK)
    assert ", of which basel left" in theirs.message
