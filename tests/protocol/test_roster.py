"""The roster: its invariants, its one encoding, and whose signatures it needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from depth import at_depth
from hypothesis import given, settings
from hypothesis import strategies as st

from securefda.disk import MAX_FILE_BYTES
from securefda.errors import ConfigError
from securefda.protocol.roster import MAX_SITES, Roster, RosterEntry, SignedRoster, sign_roster


def key(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big"))


CA = key(1)
MEMBER_KEYS = {"target": key(10), "lyon": key(11), "basel": key(12)}


def entry(index: int, site_id: str, **changes: object) -> RosterEntry:
    fields: dict[str, object] = {
        "index": index,
        "site_id": site_id,
        "role": "target" if index == 0 else "source",
        "legal_entity": f"Spital {site_id} ä",
        "signing_key": MEMBER_KEYS.get(site_id, key(50 + index)).public_key().public_bytes_raw(),
        "tls_pin": bytes([index + 1]) * 32,
        "not_before": 1_000,
        "not_after": 2_000,
    }
    return RosterEntry(**(fields | changes))  # type: ignore[arg-type]


def roster(*changed: RosterEntry) -> Roster:
    entries = {0: entry(0, "target"), 1: entry(1, "lyon"), 2: entry(2, "basel")} | {e.index: e for e in changed}
    return Roster("heart-study", 1, tuple(entries.values()))


def signed() -> SignedRoster:
    return sign_roster(roster(), CA, MEMBER_KEYS)


def ca_key() -> bytes:
    return CA.public_key().public_bytes_raw()


def test_fully_signed_roster_verifies_and_survives_its_file() -> None:
    again = SignedRoster.from_bytes(signed().to_bytes())
    assert again == signed()
    assert again.verify(ca_key()) == roster()


def test_canonical_bytes_are_ascii_sorted_and_hold_no_float() -> None:
    data = roster().canonical_bytes()
    fields = json.loads(data.decode("ascii"))
    assert list(fields) == sorted(fields)
    assert b" " not in data.replace(b"Spital ", b"").replace(b" \\u00e4", b"")
    assert Roster.from_canonical_bytes(data) == roster()


def test_digest_is_fixed_for_a_fixed_roster_and_changes_with_every_field() -> None:
    assert roster().digest().hex() == "65fb3593894231d17c33f88ecfa3b3df68aa1c54b7f407af8d80c31c4a516f69"
    changed = [
        replace(roster(), epoch=2),
        replace(roster(), federation_id="other"),
        *(
            roster(entry(1, "lyon", **change))
            for change in (
                {"legal_entity": "x"},
                {"signing_key": bytes(32)},
                {"tls_pin": bytes(32)},
                {"not_before": 1_001},
                {"not_after": 2_001},
            )
        ),
        roster(entry(1, "lyon-2")),
    ]
    digests = {item.digest() for item in changed}
    assert len(digests) == len(changed)
    assert roster().digest() not in digests


def test_lookups_find_each_site_and_refuse_strangers() -> None:
    r = roster()
    assert r.target.site_id == "target"
    assert [s.site_id for s in r.sources] == ["lyon", "basel"]
    for e in r.entries:
        assert r.by_id(e.site_id) is r.by_index(e.index) is r.by_tls_pin(e.tls_pin) is e
    with pytest.raises(KeyError):
        r.by_id("nobody")
    with pytest.raises(KeyError):
        r.by_index(-1)
    with pytest.raises(KeyError):
        r.by_index(3)
    with pytest.raises(KeyError):
        r.by_tls_pin(bytes(32))


def test_validity_includes_both_ends_and_nothing_else() -> None:
    e = entry(1, "lyon")
    assert [e.is_valid_at(t) for t in (999, 1_000, 2_000, 2_001)] == [False, True, True, False]


def test_sites_that_are_out_of_date_are_named_once_and_in_order() -> None:
    r = roster(entry(1, "lyon", not_after=1_500), entry(2, "basel", not_before=1_400))
    assert [r.out_of_date((2, 0, 1, 2), t) for t in (1_000, 1_450, 1_600)] == [("basel",), (), ("lyon",)]
    assert r.out_of_date((0,), 1_000) == r.out_of_date((), 0) == ()
    with pytest.raises(KeyError):
        r.out_of_date((3,), 1_000)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (entry(1, "target"), "same site id"),
        (entry(1, "lyon", signing_key=entry(0, "target").signing_key), "same signing key"),
        (entry(1, "lyon", tls_pin=entry(0, "target").tls_pin), "same TLS key"),
        (entry(1, "lyon", legal_entity="SPITAL  Target a\u0308"), "same legal entity"),
        (entry(1, "lyon", role="target"), "exactly one target, has 2"),
        (entry(0, "target", role="source"), "exactly one target, has 0"),
    ],
)
def test_roster_refuses_what_two_sites_may_not_share(changed: RosterEntry, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        roster(changed)


def test_roster_refuses_indices_out_of_order_and_an_empty_list() -> None:
    with pytest.raises(ConfigError, match="indices"):
        Roster("f", 1, (entry(1, "target", role="target"), entry(0, "lyon", role="source")))
    with pytest.raises(ConfigError, match="1 to"):
        Roster("f", 1, ())
    with pytest.raises(ConfigError, match="epoch"):
        replace(roster(), epoch=0)


@pytest.mark.parametrize(
    "change",
    [
        {"index": -1},
        {"index": True},
        {"role": "aggregator"},
        {"legal_entity": ""},
        {"legal_entity": " x"},
        {"legal_entity": "a\nb"},
        {"legal_entity": "x" * 201},
        {"signing_key": bytes(31)},
        {"signing_key": "00" * 32},
        {"tls_pin": bytes(33)},
        {"not_before": -1},
        {"not_after": 253_402_300_800},
        {"not_after": 1_000},
        {"not_after": 2000.0},
    ],
)
def test_entry_refuses_a_field_out_of_range(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        replace(entry(1, "lyon"), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "-a", "A", "a_b", "a" * 64, "ü", "a\n", "a/b", "..", "a b"])
def test_entry_refuses_a_site_id_that_is_no_plain_name(name: str) -> None:
    with pytest.raises(ConfigError, match="site_id"):
        entry(1, name)


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.replace(b'"epoch":1', b'"epoch":1.0'),
        lambda data: data.replace(b'"epoch":1', b'"epoch":true'),
        lambda data: data.replace(b'"epoch":1', b'"epoch":NaN'),
        lambda data: data.replace(b'"epoch":1', b'"epoch":2,"epoch":1'),
        lambda data: data.replace(b'"epoch":1', b'"epoch":1,"extra":1'),
        lambda data: data.replace(b'"epoch":1', b'"epoch": 1'),
        lambda data: data.replace(b'"version":1', b'"version":2'),
        lambda data: data.replace(b"0101", b"0101 ", 1),
        lambda data: data.replace(b"[{", b"[[", 1),
        lambda data: data + b"\n",
        lambda data: data[:-1],
        lambda _: b"\xff",
        lambda _: b"[]",
        lambda _: b"[" * 100_000,
    ],
)
def test_parser_accepts_only_canonical_bytes(edit: object) -> None:
    data = edit(roster().canonical_bytes())  # type: ignore[operator]
    assert data != roster().canonical_bytes()
    with pytest.raises(ConfigError):
        Roster.from_canonical_bytes(data)


def test_roster_edited_after_signing_is_refused() -> None:
    edited = replace(signed(), roster_bytes=roster(entry(1, "lyon", not_after=9_999)).canonical_bytes())
    with pytest.raises(ConfigError, match="not signed by this federation's CA"):
        edited.verify(ca_key())


def test_roster_of_another_ca_is_refused() -> None:
    with pytest.raises(ConfigError, match="not signed by this federation's CA"):
        sign_roster(roster(), key(2), MEMBER_KEYS).verify(ca_key())


@pytest.mark.parametrize("absent", sorted(MEMBER_KEYS))
def test_missing_member_signature_is_refused_and_named(absent: str) -> None:
    partial = sign_roster(roster(), CA, {site: k for site, k in MEMBER_KEYS.items() if site != absent})
    assert partial.verify_ca(ca_key()) == roster()
    assert partial.missing_signatures(roster()) == (absent,)
    with pytest.raises(ConfigError, match=f"not signed by {absent}"):
        partial.verify(ca_key())
    assert partial.countersigned(absent, MEMBER_KEYS[absent]).verify(ca_key()) == roster()


def test_member_signature_by_another_key_is_refused_even_where_others_may_be_missing() -> None:
    forged = signed().countersigned("lyon", MEMBER_KEYS["basel"])
    with pytest.raises(ConfigError, match="signature of lyon is wrong"):
        forged.verify_ca(ca_key())


def test_signature_of_a_stranger_is_refused() -> None:
    with pytest.raises(ConfigError, match="mallory, which is no member"):
        signed().countersigned("mallory", key(99)).verify(ca_key())


def test_a_member_cannot_be_the_ca() -> None:
    with pytest.raises(ConfigError, match="the CA's own"):
        sign_roster(roster(), MEMBER_KEYS["lyon"], MEMBER_KEYS).verify(
            MEMBER_KEYS["lyon"].public_key().public_bytes_raw()
        )


def test_signed_roster_refuses_short_signatures_and_disorder() -> None:
    with pytest.raises(ConfigError, match="64 bytes"):
        SignedRoster(b"{}", bytes(63))
    with pytest.raises(ConfigError, match="64 bytes"):
        SignedRoster(b"{}", bytes(64), (("lyon", bytes(65)),))
    with pytest.raises(ConfigError, match="one per site"):
        SignedRoster(b"{}", bytes(64), (("lyon", bytes(64)), ("lyon", bytes(64))))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"roster":1,"ca_signature":"","member_signatures":{}}', b"\xff"])
def test_file_that_is_no_signed_roster_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match="not a signed roster"):
        SignedRoster.from_bytes(data)


@settings(max_examples=at_depth(300, 3000), deadline=None)
@given(place=st.integers(0, 10**9), flip=st.integers(1, 127))
def test_no_changed_byte_of_the_file_goes_unnoticed(place: int, flip: int) -> None:
    data = bytearray(signed().to_bytes())
    data[place % len(data)] ^= flip
    try:
        again = SignedRoster.from_bytes(bytes(data))
        verified = again.verify(ca_key())
    except ConfigError:
        return
    # Blanks between tokens and the case of hex digits may differ; the roster and its signatures may not.
    assert verified == roster()
    assert again == signed()


def test_ml_dsa_keys_come_back_and_a_roster_without_any_has_format_1() -> None:
    with_key = roster(entry(1, "lyon", ml_dsa_key=bytes([7]) * 1952))
    data = with_key.canonical_bytes()
    assert Roster.from_canonical_bytes(data) == with_key
    assert with_key.ml_dsa_keys == {"lyon": bytes([7]) * 1952}
    assert (b'"version":2' in data, b'"version":1' in roster().canonical_bytes()) == (True, True)
    assert b"ml_dsa_key" not in roster().canonical_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b'"version":2', b'"version":1'),
        lambda data: data.replace(b'"version":2', b'"version":3'),
        lambda data: data.replace(b"BwcH", b"Bwc", 1),
        lambda data: data.replace(b'"ml_dsa_key":"BwcH', b'"ml_dsa_key":" BwcH'),
    ],
    ids=["called format 1", "called format 3", "a short key", "a blank in base64"],
)
def test_refuses_an_ml_dsa_key_in_another_form(change: Callable[[bytes], bytes]) -> None:
    data = roster(entry(1, "lyon", ml_dsa_key=bytes([7]) * 1952)).canonical_bytes()
    assert change(data) != data
    with pytest.raises(ConfigError):
        Roster.from_canonical_bytes(change(data))


def test_refuses_one_ml_dsa_key_of_two_sites_and_one_of_another_length() -> None:
    with pytest.raises(ConfigError, match="same ML-DSA key"):
        roster(*(entry(index, name, ml_dsa_key=bytes(1952)) for index, name in enumerate(("target", "lyon"))))
    with pytest.raises(ConfigError, match="must be 1952 bytes"):
        entry(1, "lyon", ml_dsa_key=bytes(32))


def test_file_of_the_largest_roster_can_be_read() -> None:
    def site(index: int) -> RosterEntry:
        unique = {"signing_key": index.to_bytes(32), "tls_pin": index.to_bytes(32), "ml_dsa_key": index.to_bytes(1952)}
        names = {"site_id": f"site-{index}", "legal_entity": f"Hospital {index}"}
        return replace(entry(min(index, 1), "lyon"), index=index, **names, **unique)  # type: ignore[arg-type]

    largest = Roster("heart-study", 1, tuple(map(site, range(MAX_SITES))))
    signatures = tuple(sorted((one.site_id, bytes(64)) for one in largest.entries))
    assert len(SignedRoster(largest.canonical_bytes(), bytes(64), signatures).to_bytes()) < MAX_FILE_BYTES
