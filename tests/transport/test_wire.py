"""The wire format: what is written is read back, and nothing else is."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from depth import at_depth
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_kit import header_body

from securefda.errors import ExitCode, ProtocolError
from securefda.protocol import messages as m
from securefda.protocol.roster import MAX_SITES
from securefda.transport.wire import BODY_FIELDS, MAX_LAYERS, WireError, decode, decode_signed, encode, encode_signed
from securefda.v1 import messages_pb2 as pb

FOLDER = Path(__file__).parents[1] / "vectors"
VECTORS = json.loads((FOLDER / "messages.json").read_text())
OF_RINGS = json.loads((FOLDER / "ring_messages.json").read_text())
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))

digests = st.binary(min_size=32, max_size=32)
indices = st.integers(0, 2**31 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=1e-300, allow_infinity=False)
not_negative = st.floats(min_value=0, allow_infinity=False)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=16)
uint32 = st.integers(0, 2**32 - 1)
some_uint32 = st.integers(1, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
some_uint64 = st.integers(1, 2**64 - 1)
checkpoints = st.binary(max_size=100)

layers = st.lists(
    st.builds(m.Layer, words, st.lists(st.integers(1, 2**31 - 1), max_size=4).map(tuple), positive, positive),
    min_size=1,
    max_size=4,
    unique_by=lambda layer: layer.name,
).map(tuple)
rules = st.builds(
    m.RuleTerms,
    words,
    st.floats(0, 1),
    words,
    st.booleans(),
    st.booleans(),
    words,
    learning_rate_factor=positive,
    select=st.booleans(),
    beta_per_layer=st.booleans(),
)
targets = st.builds(m.TargetTerms, some_uint32, positive, st.one_of(st.just(b""), digests), not_negative, not_negative)
norms = st.builds(m.NormCapTerms, positive, some_uint32, st.sampled_from(m.Granularity))
levels = st.sampled_from(m.Visibility)


def header_of(places: dict[int, m.Visibility], **rest: Any) -> m.Header:
    """A header of an attempt of these participants at these levels."""
    return m.Header(participants=tuple(sorted(places)), levels=tuple(places[index] for index in sorted(places)), **rest)


headers = st.builds(
    header_of,
    st.dictionaries(indices, levels, min_size=1, max_size=6),
    run_id=st.binary(min_size=16, max_size=16),
    round=some_uint32,
    attempt=some_uint32,
    rule=rules,
    target=st.none() | targets,
    layers=layers,
    architecture_digest=digests,
    model_digest=digests,
    roster_digest=digests,
    threshold=uint32,
    modulus_bits=uint32,
    n_max=uint32,
    max_samples=some_uint32,
    training_deadline_ms=some_uint64,
    phase_deadline_ms=some_uint64,
    previous_result_digest=st.one_of(st.just(b""), digests),
    previous_checkpoint=checkpoints,
    cohort_size=uint32,
    cohort_quorum=uint32,
    sum_quorum=uint32,
    norm_cap=st.none() | norms,
    sources_keep=st.sampled_from(m.SourcesKeep),
    metrics=st.booleans(),
    down_link=st.sampled_from(m.DownLink),
    graph=st.none() | st.builds(m.GraphTerms, st.integers(2, 9), st.integers(2, 9), uint32, uint32, uint32),
)


def lines(longest: int) -> st.SearchStrategy[str]:
    """Printable text: it is shown to people, and must not look like more than one line."""
    return st.text(st.characters(codec="utf-8").filter(str.isprintable), max_size=longest)


capabilities = st.sets(st.from_regex("[a-z0-9-]{1,64}", fullmatch=True), max_size=4).map(sorted).map(tuple)
builds = st.builds(m.Build, st.integers(1, 2**32 - 1), lines(64), capabilities)
advertisements = st.builds(m.Advertise, digests, digests, digests, digests)
perhaps = st.one_of(st.just(b""), digests)
masked_inputs = st.builds(m.MaskedInput, digests, some_uint64)
survivor_signatures = st.builds(m.SurvivorSignature, digests)
results = st.builds(m.Result, st.one_of(st.just(b""), digests), uint32, digests)
receipts = st.builds(
    lambda run_id, numbers, result, model: m.Receipt(run_id, max(numbers), min(numbers), result, model),
    st.binary(min_size=16, max_size=16),
    st.tuples(some_uint32, some_uint32),
    digests,
    digests,
)
delivered = st.builds(m.DeliveredBox, indices, st.binary(min_size=1, max_size=120), digests, perhaps)
boxes = st.lists(st.builds(m.ShareBox, indices, st.binary(min_size=1, max_size=120)), max_size=5).map(tuple)
shares = st.lists(
    st.one_of(
        st.builds(m.SelfMaskShare, indices, st.binary(min_size=33, max_size=33)),
        st.builds(m.MasterShare, indices, st.binary(min_size=33, max_size=33)),
    ),
    max_size=5,
    unique_by=lambda share: share.owner,
).map(tuple)


members = st.sets(indices, max_size=5).map(sorted).map(tuple)


def signed(bodies: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(lambda index, body: m.Signer(index, KEY, encode).sign(bytes(32), b"", body), indices, bodies)


BODIES: dict[type, st.SearchStrategy[Any]] = {
    m.Header: headers,
    m.Advertise: advertisements,
    m.KeyList: st.builds(m.KeyList, st.lists(signed(advertisements), max_size=3).map(tuple)),
    m.Roll: members.map(lambda some: m.Roll(some, bytes(32 * len(some)), bytes(range(32)) * len(some))),
    m.Nonce: st.builds(m.Nonce, digests),
    m.Neighbours: st.builds(
        lambda some, keys: m.Neighbours(some, bytes(32 * len(some)), keys),
        members,
        st.lists(signed(advertisements), max_size=3).map(tuple),
    ),
    m.ShareBundle: st.builds(m.ShareBundle, boxes, digests, perhaps),
    m.ShareDelivery: st.builds(m.ShareDelivery, st.lists(delivered, max_size=5).map(tuple), members),
    m.MaskedInput: masked_inputs,
    m.Update: st.builds(
        m.Update,
        digests,
        some_uint64,
        some_uint32,
        digests,
        st.none() | finite,
        st.none() | st.floats(min_value=0, max_value=1),
    ),
    m.Survivors: st.builds(
        m.Survivors,
        st.lists(st.builds(m.Survivor, indices, digests), max_size=4).map(tuple),
        st.lists(indices, max_size=4).map(tuple),
        perhaps,
    ),
    m.SurvivorSignature: survivor_signatures,
    m.Consistency: st.builds(
        m.Consistency,
        st.lists(signed(survivor_signatures), max_size=3).map(tuple),
        st.lists(signed(masked_inputs), max_size=3).map(tuple),
    ),
    m.NeighbourConsistency: st.builds(
        m.NeighbourConsistency,
        st.lists(signed(survivor_signatures), max_size=3).map(tuple),
        st.lists(signed(masked_inputs), max_size=3).map(tuple),
    ),
    m.Unmask: st.builds(m.Unmask, shares),
    m.Result: results,
    m.Abort: st.builds(
        m.Abort, st.sampled_from(m.Step), st.from_regex("[A-Z0-9_]{1,64}", fullmatch=True), st.none() | indices
    ),
    m.Refusal: st.builds(m.Refusal, st.from_regex("[A-Za-z0-9_.-]{1,64}", fullmatch=True)),
    m.Join: st.builds(m.Join, digests, levels, st.booleans(), uint64, builds),
    m.Checkpoint: st.builds(
        m.Checkpoint, st.binary(min_size=1, max_size=100), uint64, st.lists(digests, max_size=4).map(tuple), uint64
    ),
    m.Cosigned: st.builds(m.Cosigned, some_uint64, st.text(st.characters(codec="utf-8"), min_size=1, max_size=80)),
    m.Goodbye: st.one_of(
        st.builds(m.Goodbye, st.booleans(), uint32, lines(500)),
        st.builds(m.Goodbye, st.just(True), uint32, lines(500), digests, digests, st.sampled_from(m.DownLink)),
    ),
    m.Receipt: receipts,
    m.Schedule: st.builds(
        m.Schedule,
        run_id=st.binary(min_size=16, max_size=16),
        rounds=some_uint32,
        rules=st.lists(rules, min_size=1, max_size=4, unique=True).map(tuple),
        learning_rate=positive,
        clip=positive,
        modulus_bits=st.sampled_from((16, 20, 24, 32)),
        n_max=some_uint32,
        max_samples=some_uint32,
        training_deadline_ms=some_uint64,
        phase_deadline_ms=some_uint64,
        norm_cap_kappa=not_negative,
        norm_cap_granularity=st.sampled_from(m.Granularity),
        sources_keep=st.sampled_from(m.SourcesKeep),
    ),
    m.MissedResult: st.builds(m.MissedResult, signed(results), st.lists(signed(receipts), max_size=3).map(tuple)),
}
envelopes = st.builds(
    m.Envelope,
    session_id=digests,
    sender=indices,
    context=st.one_of(st.just(b""), digests),
    body=st.one_of(*BODIES.values()),
)


def test_every_type_of_message_has_a_field_and_a_strategy() -> None:
    assert set(BODIES) == set(BODY_FIELDS) == set(m.Body.__args__)
    oneof = pb.Envelope.DESCRIPTOR.oneofs_by_name["body"]
    assert {field.name for field in oneof.fields} == set(BODY_FIELDS.values())


@pytest.mark.parametrize("body_type", BODIES, ids=lambda kind: kind.__name__)
def test_what_is_written_is_read_back(body_type: type) -> None:
    @settings(max_examples=at_depth(30, 300), deadline=None)
    @given(st.builds(m.Envelope, digests, indices, st.one_of(st.just(b""), digests), BODIES[body_type]))
    def check(envelope: m.Envelope[m.Body]) -> None:
        data = encode(envelope)
        assert decode(data) == envelope
        assert encode(decode(data)) == data

    check()


@settings(max_examples=at_depth(100, 1000), deadline=None)
@given(envelopes, indices)
def test_a_signed_message_is_read_back_with_its_very_bytes(envelope: m.Envelope[m.Body], index: int) -> None:
    message = m.Signer(index, KEY, encode).sign(envelope.session_id, envelope.context, envelope.body)
    assert decode_signed(encode_signed(message)) == message


@settings(max_examples=at_depth(300, 3000), deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_raise_anything_but_a_wire_error(data: bytes) -> None:
    for read in (decode, decode_signed):
        try:
            read(data)
        except WireError:
            continue


@settings(max_examples=at_depth(300, 3000), deadline=None)
@given(envelopes, st.data())
def test_a_damaged_message_is_refused_or_is_another_valid_one(
    envelope: m.Envelope[m.Body], data: st.DataObject
) -> None:
    good = encode(envelope)
    place = data.draw(st.integers(0, len(good) - 1))
    damage = data.draw(st.sampled_from(["flip", "cut", "insert", "append"]))
    byte = data.draw(st.integers(1, 255))
    bad = {
        "flip": good[:place] + bytes([good[place] ^ byte]) + good[place + 1 :],
        "cut": good[:place],
        "insert": good[:place] + bytes([byte]) + good[place:],
        "append": good + bytes([byte]),
    }[damage]
    try:
        read = decode(bad)
    except WireError:
        return
    assert len(encode(read)) == len(bad)  # nothing superfluous was let through
    assert decode(encode(read)) == read


@pytest.mark.parametrize("case", VECTORS["valid"] + OF_RINGS["valid"], ids=lambda case: case["type"])
def test_known_message_is_written_and_read_bit_for_bit(case: dict[str, Any]) -> None:
    expected = case["message"]
    data, signature = bytes.fromhex(expected["signed_bytes"]), bytes.fromhex(expected["signature"])
    envelope = decode(data)
    assert _plain(envelope) == expected["envelope"]
    assert encode(envelope) == data
    statement = b"securefda/1/" + case["type"].encode() + b"\0" + sha256(data).digest()
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(case["public_key"])).verify(signature, statement)
    assert sha256(data).hexdigest() == case["digest"]


def test_known_messages_cover_every_type() -> None:
    known = VECTORS["valid"] + OF_RINGS["valid"]
    assert {case["type"] for case in known} == {kind.__name__ for kind in BODIES}


@pytest.mark.parametrize("case", VECTORS["malformed"] + OF_RINGS["malformed"], ids=lambda case: case["name"])
def test_known_malformed_envelope_is_refused(case: dict[str, str]) -> None:
    data = bytes.fromhex(case["envelope"])
    if case["name"] == "valid":
        assert decode(data).body == m.Refusal("key")
        return
    with pytest.raises(WireError, match=re.escape(case["reason"])) as caught:
        decode(data)
    assert caught.value.check == "WIRE"
    assert isinstance(caught.value, ProtocolError)
    assert caught.value.exit_code == ExitCode.CONNECTION


def _plain(value: Any) -> Any:
    """The JSON form of ``tests/vectors/message_vectors.py``, written a second time."""
    if hasattr(value, "__dataclass_fields__"):
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.init}
        if plain.get("graph", 0) is None or (isinstance(value, m.ShareDelivery) and not value.members):
            plain.pop("graph" if "graph" in plain else "members")  # of SFDA-SA/2 alone
        return {"type": type(value).__name__} | plain
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return int(value) if isinstance(value, m.Visibility | m.Granularity | m.Step) else value


def test_fields_have_the_numbers_of_the_schema() -> None:
    # By hand: field 29 (refusal) of the envelope, field 1 (key) of the refusal, both length-delimited.
    envelope = m.Envelope(bytes(range(32)), 5, b"", m.Refusal("min-others"))
    assert encode(envelope) == (
        b"\x08\x01" + b"\x12\x20" + bytes(range(32)) + b"\x18\x05" + b"\xea\x01\x0c" + b"\x0a\x0amin-others"
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            replace(
                header_body(b"m" * 32),
                participants=tuple(range(MAX_SITES + 1)),
                levels=(m.Visibility.SUM,) * (MAX_SITES + 1),
            ),
            "levels",
        ),
        (
            replace(
                header_body(b"m" * 32), layers=tuple(m.Layer(str(i), (1,), 1.0, 1.0) for i in range(MAX_LAYERS + 1))
            ),
            "layers",
        ),
        (replace(header_body(b"m" * 32), layers=(m.Layer("w", (1,) * 17, 1.0, 1.0),)), "shape"),
        (replace(header_body(b"m" * 32), previous_checkpoint=bytes(m.MAX_NOTE_BYTES + 1)), "checkpoint"),
        (m.Checkpoint(b"n", 2**64, (), 0), "Checkpoint"),
        (m.Checkpoint(b"n", 0, (), 2**64), "Checkpoint"),
        (m.Cosigned(2**64, "line"), "Cosigned"),
        (m.Join(bytes(32), m.Visibility.SUM, metrics=True, known=2**64), "Join"),
        (m.Join(bytes(32), m.Visibility.SUM, metrics=True, known=-1), "Join"),
        (replace(header_body(b"m" * 32), threshold=2**32), "Header"),
        (replace(header_body(b"m" * 32), threshold=-1), "Header"),
        (replace(header_body(b"m" * 32), rule=m.RuleTerms("r" * 65, 0.5, "p", True, True, "e", 1.0)), "rule"),
        (m.ShareBundle(tuple(m.ShareBox(i, b"x") for i in range(MAX_SITES + 1)), bytes(32)), "boxes"),
        (m.ShareBundle((m.ShareBox(2**31, b"x"),), bytes(32)), "peer"),
        (m.Survivors((), (2**31,)), "dropped"),
        (m.Abort(m.Step.HEADER, "CHECK", 2**31), "accused"),
        (replace(header_body(b"m" * 32), layers=(m.Layer("\ud800", (1,), 1.0, 1.0),)), "Header"),
    ],
)
def test_what_would_not_be_read_is_not_written(body: m.Body, text: str) -> None:
    with pytest.raises(WireError, match=text):
        encode(m.Envelope(bytes(32), 0, b"", body))


def test_longest_note_and_proof_are_read_and_nothing_longer() -> None:
    longest = m.Checkpoint(bytes([1]) * m.MAX_NOTE_BYTES, 1, (bytes(32),) * m.MAX_PROOF_HASHES, 1)
    header = replace(header_body(b"m" * 32), previous_checkpoint=longest.note)
    for body in (longest, header):
        envelope = m.Envelope(bytes(32), 0, b"", body)
        assert decode(encode(envelope)) == envelope
    proto = pb.Envelope.FromString(encode(m.Envelope(bytes(32), 0, b"", longest)))
    proto.checkpoint.note += b"\x01"
    with pytest.raises(WireError, match="a note has 1"):
        decode(proto.SerializeToString())
    proto.checkpoint.note = b"\x01"
    proto.checkpoint.proof.append(bytes(32))
    with pytest.raises(WireError, match="proof"):
        decode(proto.SerializeToString())
    proto = pb.Envelope.FromString(encode(m.Envelope(bytes(32), 0, b"", header)))
    proto.header.previous_checkpoint += b"\x01"
    with pytest.raises(WireError, match="a checkpoint has at most"):
        decode(proto.SerializeToString())


def test_a_list_of_signed_messages_holds_only_its_own_type() -> None:
    other = m.Signer(1, KEY, encode).sign(bytes(32), b"", m.Refusal("key"))
    with pytest.raises(WireError, match="only Advertise may be listed"):
        encode(m.Envelope(bytes(32), 0, b"", m.KeyList((other,))))  # type: ignore[arg-type]
    with pytest.raises(WireError, match="only SurvivorSignature may be listed"):
        encode(m.Envelope(bytes(32), 0, b"", m.Consistency((other,), ())))  # type: ignore[arg-type]
    with pytest.raises(WireError, match="only MaskedInput may be listed"):
        encode(m.Envelope(bytes(32), 0, b"", m.Consistency((), (other,))))  # type: ignore[arg-type]


def test_a_damaged_message_inside_a_list_is_refused() -> None:
    body = m.Advertise(b"a" * 32, b"b" * 32, b"c" * 32, b"d" * 32)
    inner = m.Signer(1, KEY, encode).sign(bytes(32), b"", body)
    for damaged in (
        replace(inner, signed_bytes=inner.signed_bytes + b"\x28\x01"),
        replace(inner, signature=inner.signature[:-1]),
    ):
        proto = pb.Envelope(suite=1, session_id=bytes(32))
        proto.key_list.advertisements.add(signed_bytes=damaged.signed_bytes, signature=damaged.signature)
        with pytest.raises(WireError):
            decode(proto.SerializeToString())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0])
def test_numbers_that_are_none_are_refused(value: float) -> None:
    proto = pb.Envelope.FromString(encode(m.Envelope(bytes(32), 0, b"", header_body(b"m" * 32, b"u" * 32))))
    proto.header.target.learning_rate = value
    with pytest.raises(WireError, match="learning_rate"):
        decode(proto.SerializeToString())


def test_an_error_does_not_show_the_bytes_it_is_about() -> None:
    body = m.Unmask((m.SelfMaskShare(1, b"\x5a" * 33),))
    data = encode(m.Envelope(bytes(32), 1, b"", body)).replace(b"\x12\x21" + b"\x5a" * 33, b"\x12\x21" + b"\xa5" * 32)
    with pytest.raises(WireError) as caught:
        decode(data)
    assert "5a5a" not in str(caught.value)
    assert "a5a5" not in repr(caught.value).replace("\\x", "")
