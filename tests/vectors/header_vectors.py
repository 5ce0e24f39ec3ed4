"""Headers and rosters that a source must accept, and those that it must refuse: the table of the tests, as bytes.

A case says everything that the verdict depends on: the roster, what the source asks of a session, what it remembers
of the run, the layers that it built itself and the second of its clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import test_header_checks as table
from cohort import LAYERS, MODEL, NOW, TARGET, AnySigned, identity, limits_of, over_the_wire, roster_of
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fault_vectors import of_suite_2
from message_vectors import plain
from session_vectors import signed

from securefda.errors import FaultyAggregatorError
from securefda.parse import canonical_json
from securefda.protocol.envelope import sign_bytes
from securefda.protocol.header_checks import History, SessionLimits, check_vectors
from securefda.protocol.messages import Header, Layer
from securefda.protocol.roster import Roster, SignedRoster, sign_roster

Terms = dict[str, Any]


USUAL: Terms = {
    "source": table.ME,
    "own_layers": plain(LAYERS),
    "roster": roster_of(table.N).digest().hex(),
    "limits": plain(limits_of(table.N)),
    "history": plain(History()),
    "unix_s": NOW,
}
"""What holds for a case that does not say otherwise."""


def _case(
    claim: str,
    message: AnySigned,
    *,
    history: History | None = None,
    limits: SessionLimits | None = None,
    roster: Roster | None = None,
    now: int = NOW,
    source: int = table.ME,
    own_layers: tuple[Layer, ...] = LAYERS,
) -> Terms:
    given = {
        "source": source,
        "own_layers": plain(own_layers),
        "roster": (roster or roster_of(table.N)).digest().hex(),
        "limits": plain(limits or limits_of(table.N)),
        "history": plain(history or History()),
        "unix_s": now,
    }
    return {"claim": claim, **signed(message)} | {name: one for name, one in given.items() if one != USUAL[name]}


def _error_of(act: Callable[[], object]) -> str:
    try:
        act()
    except FaultyAggregatorError as error:
        return error.check
    return ""


def _refused() -> list[Terms]:
    cases = []
    for lie in table.LIES:
        message = table.header(**lie.changes)
        terms = _case(lie.claim, message, history=lie.history, limits=lie.limits, roster=lie.roster, now=lie.now)
        cases.append({**terms, "check": lie.check})
    for check, change in table.OUTSIDE.items():
        honest = table.header()
        false, found = (of_suite_2(honest, TARGET), "WIRE") if check == "SUITE" else (change(honest), check)
        cases.append({**_case(f"a false {check.lower()}", false), "check": found})
    return cases


ACCEPTED: Mapping[str, tuple[Terms, Terms]] = {
    "the first one": ({}, {}),
    "the next attempt": ({"attempt": 2}, {"history": History(last_position=(1, 1))}),
    "the next round": (table.NEXT, {"history": table.RAN}),
    "after a round without me": (
        {"round": 5, "previous_result_digest": table.OTHER, "model_digest": table.OTHER},
        {"history": table.RAN},
    ),
    "a rule that needs the target's update": ({"rule": table.FEDGP, "target": table.PUBLISHED}, {}),
    "estimated errors of the rules": ({"rule": table.SELECT, "target": table.PUBLISHED}, {}),
    "attention, with the gradient of the gap": (table.ATTENDING, {}),
    "attention at a sum beside a cohort, to a source in the cohort": (
        {**table.ATTENDING, **table.MIXED},
        {"source": 4},
    ),
    "attention at cohort, by exact gains": ({**table.EXACT, **table.COHORTS}, {}),
    "features, and a pull on them": (table.COMPARING, {}),
    "features to a source in a cohort": ({**table.COMPARING, **table.COHORTS}, {}),
    "features and the gradient of the gap": (table.ADVERSARIAL, {}),
    "second moments": (table.ANALYTIC, {"own_layers": table.HEAD}),
    "visibility individual, without numbers of a session": (
        {**table.IN_CLEAR, "modulus_bits": 0, "threshold": 0, "n_max": 0},
        {},
    ),
    "visibility cohort": (table.COHORTS, {}),
    "a sum beside a cohort, to a source in the sum": (table.MIXED, {}),
    "a sum beside a cohort, to a source in the cohort": (table.MIXED, {"source": 4}),
    "a sum beside updates in clear, to a source in the sum": (table.WITH_CLEAR, {}),
    "a sum beside updates in clear, to a source in clear": (table.WITH_CLEAR, {"source": 4}),
    "no norm cap": ({"norm_cap": None}, {}),
    "words of 16 bits, and loss and accuracy beside the sum": ({"modulus_bits": 16, "metrics": True}, {}),
    "fewer than all": ({"participants": (0, 2, 4), "threshold": 3}, {}),
    "the least threshold": ({"threshold": 3}, {}),
    "the least learning rate": ({"rule": replace(table.header().body.rule, learning_rate_factor=1e-3)}, {}),
    "as many that count as I ask for": ({}, {"limits": limits_of(table.N, min_others=3)}),
}


def _accepted() -> list[Terms]:
    cases = []
    for claim, (changes, terms) in ACCEPTED.items():
        message = table.header(**changes)
        history, limits = terms.get("history", History()), terms.get("limits", limits_of(table.N))
        own = {"own_index": terms.get("source", table.ME), "own_layers": terms.get("own_layers", LAYERS)}
        table.check(over_the_wire(message), history, limits, **own)
        cases.append(_case(claim, message, **terms))
    return cases


def _vectors_refused() -> list[Terms]:
    """Headers that are right, beside vectors that are not the ones they name."""
    plain_header, asking = table.header(), table.header(rule=table.FEDGP, target=table.PUBLISHED)
    mixed = table.header(rule=table.FEDGP, target=table.PUBLISHED, **table.MIXED)
    attending = table.header(**table.ATTENDING)
    attending_mixed = table.header(**table.ATTENDING, **table.MIXED)
    comparing = table.header(**table.COMPARING)
    features = {
        "no features": None,
        "features cut short": table.FEATURES[:-1],
        "more features": table.FEATURES + bytes(4),
        "other features": bytes(24),
    }
    short = table.header(model_digest=sha256(b"short").digest())
    model = {"no model": b"", "a model cut short": MODEL[:-1], "a longer model": MODEL + bytes(4), "zeros": bytes(64)}
    update = {"no update": None, "an update cut short": table.UPDATE[:-1], "another update": b"\1" * 64}
    gradient = {claim.replace("update", "gradient"): data for claim, data in update.items()}
    return [
        *(_vectors(claim, plain_header, data, None, "HEADER_MODEL") for claim, data in model.items()),
        _vectors("a model of another length, as its digest says", short, b"short", None, "HEADER_MODEL"),
        *(_vectors(claim, asking, MODEL, data, "HEADER_TARGET") for claim, data in update.items()),
        *(_vectors(claim, attending, MODEL, data, "HEADER_TARGET") for claim, data in gradient.items()),
        _vectors(
            "the sum's gradient to a source in a cohort",
            attending_mixed,
            MODEL,
            table.UPDATE,
            "HEADER_TARGET",
            source=4,
        ),
        *(
            _vectors(claim, comparing, MODEL, None, "HEADER_FEATURES", features=data)
            for claim, data in features.items()
        ),
        _vectors(
            "features that nobody asked for", attending, MODEL, table.UPDATE, "HEADER_FEATURES", features=table.FEATURES
        ),
        _vectors("an update that nobody asked for", plain_header, MODEL, table.UPDATE, "HEADER_TARGET"),
        _vectors("the sum's update to a source in a cohort", mixed, MODEL, table.UPDATE, "HEADER_TARGET", source=4),
    ]


def _vectors(
    claim: str,
    message: AnySigned,
    model: bytes,
    update: bytes | None,
    check: str,
    source: int = table.ME,
    features: bytes | None = None,
) -> Terms:
    body: Header = message.body
    if _error_of(lambda: check_vectors(body, body.level_of(source), model, update, features)) != check:
        raise ValueError(f"{check} {claim}: not found")
    vectors = {"model": model.hex(), "target_update": None if update is None else update.hex()}
    if features is not None:
        vectors["features"] = features.hex()
    return {**_case(claim, message, source=source), **vectors, "check": check}


def headers() -> object:
    """Rosters are named by their digest."""
    used = {roster.digest().hex(): roster for roster in (roster_of(table.N), *(lie.roster for lie in table.LIES))}
    return {
        "usual": USUAL,
        "rosters": {digest: roster.canonical_bytes().decode() for digest, roster in used.items()},
        "valid": _accepted(),
        "invalid": [*_refused(), *_vectors_refused()],
    }


def _ca() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(sha256(b"authority").digest())


def rosters() -> object:
    """One roster that every site signed, and what a reader must refuse in its place."""
    roster, ca_key = roster_of(3), _ca().public_key().public_bytes_raw()
    complete = sign_roster(roster, _ca(), {entry.site_id: identity(entry.index) for entry in roster.entries})
    valid = {"file": complete.to_bytes().decode(), "digest": roster.digest().hex(), "ca_public_key": ca_key.hex()}
    cases = [*_unsigned(complete), *_rosters_of_another_form(roster)]
    invalid = [{"claim": claim, "file": data.decode(), "ca_public_key": ca_key.hex()} for claim, data in cases]
    return {"valid": [valid], "invalid": invalid}


def _unsigned(complete: SignedRoster) -> list[tuple[str, bytes]]:
    """The same roster with other signatures."""
    (first, signature), *others = complete.member_signatures
    as_message = sign_bytes(_ca(), "Header", complete.roster_bytes)
    changed = {
        "a member has not signed": replace(complete, member_signatures=tuple(others)),
        "the authority's signature has a bit turned": replace(complete, ca_signature=_turned(complete.ca_signature)),
        "the authority signed it as a message": replace(complete, ca_signature=as_message),
        "a member signed in another's name": complete.with_signatures({first: others[0][1]}),
        "a member's signature has a bit turned": complete.with_signatures({first: _turned(signature)}),
        "a stranger signed too": complete.with_signatures({"stranger": signature}),
    }
    return [(claim, roster.to_bytes()) for claim, roster in changed.items()]


def _turned(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def _rosters_of_another_form(roster: Roster) -> list[tuple[str, bytes]]:
    """Rosters that break a rule, each signed by the authority and by all members as they stand."""
    fields: dict[str, Any] = json.loads(roster.canonical_bytes())

    def with_sites(**changes: Any) -> bytes:
        sites = [{**site, **changes} if site["index"] == 2 else site for site in fields["sites"]]
        return canonical_json({**fields, "sites": sites})

    first = fields["sites"][0]
    forms = {
        "with a blank": json.dumps(fields, sort_keys=True, separators=(", ", ":")).encode(),
        "keys in another order": json.dumps(dict(reversed(fields.items())), separators=(",", ":")).encode(),
        "with an unknown key": canonical_json({**fields, "note": ""}),
        "of another format": canonical_json({**fields, "version": 2}),
        "an epoch of zero": canonical_json({**fields, "epoch": 0}),
        "an epoch that is no integer": canonical_json({**fields, "epoch": 1.0}),
        "an index left out": with_sites(index=4),
        "a second target": with_sites(role="target"),
        "no such role": with_sites(role="observer"),
        "one legal entity twice, in other letters": with_sites(legal_entity="HOSPITAL  0"),
        "one signing key twice": with_sites(signing_key=first["signing_key"]),
        "one TLS key twice": with_sites(tls_pin=first["tls_pin"]),
        "one site id twice": with_sites(site_id=first["site_id"]),
        "a site id in capitals": with_sites(site_id="Source-2"),
        "a signing key of 31 bytes": with_sites(signing_key=first["signing_key"][2:]),
        "a signing key in capitals": with_sites(signing_key=fields["sites"][2]["signing_key"].upper()),
        "validity that ends before it begins": with_sites(not_before=2, not_after=1),
    }
    members = {entry.site_id: identity(entry.index) for entry in roster.entries}
    return [(claim, _signed_anyway(data, members)) for claim, data in forms.items()]


def _signed_anyway(data: bytes, members: Mapping[str, Ed25519PrivateKey]) -> bytes:
    signatures = {site_id: sign_bytes(key, "Roster", data) for site_id, key in members.items()}
    return SignedRoster(data, sign_bytes(_ca(), "Roster", data)).with_signatures(signatures).to_bytes()


SETS: dict[str, Callable[[], object]] = {"headers": headers, "rosters": rosters}
