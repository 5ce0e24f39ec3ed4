"""Known answers of the wire: one signed message of every type, and bytes that no reader may accept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import Any

from cohort import BUILD
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.protocol import messages as m
from securefda.protocol.envelope import sign_bytes
from securefda.transport.wire import BODY_FIELDS, encode, encode_signed, other_build
from securefda.v1 import messages_pb2 as pb

SESSION_ID = bytes(range(32))
CONTEXT = bytes(range(32, 64))
SIGNING_SEED = bytes(range(64, 96))
NOTE = b"a log\n301\nAAAA\n\n\xe2\x80\x94 a log AAAA\n"
"""The wire carries a note as bytes; what it says is the log's to judge."""
LINE = "\u2014 a witness AAAA\n"


def _digest(number: int) -> bytes:
    return bytes([number]) * 32


def signer(index: int) -> m.Signer:
    """Signs as one site, with a key that depends on nothing but the index."""
    return m.Signer(index, Ed25519PrivateKey.from_private_bytes(bytes([index]) + SIGNING_SEED[1:]), encode)


def _header() -> m.Header:
    return m.Header(
        run_id=bytes(range(16)),
        round=3,
        attempt=1,
        levels=(m.Visibility.SUM, m.Visibility.SUM, m.Visibility.COHORT, m.Visibility.INDIVIDUAL),
        rule=m.RuleTerms("fedgp_auto", 0.5, "orthogonal", True, True, "mean-field", 0.25, select=True),
        target=m.TargetTerms(7, 0.001, _digest(2), 1.5, 0.75),
        layers=(
            m.Layer("linear.weight", (10, 64), 1.0, 1.0),
            m.Layer("linear.bias", (10,), 0.5, 0.5),
            m.Layer("s", (), 2.0, 2.0),
        ),
        architecture_digest=_digest(3),
        model_digest=_digest(4),
        roster_digest=_digest(5),
        participants=(1, 2, 3, 200),
        threshold=3,
        modulus_bits=32,
        n_max=4,
        max_samples=1000,
        training_deadline_ms=600_000,
        phase_deadline_ms=30_000,
        previous_result_digest=_digest(6),
        previous_checkpoint=NOTE,
        sum_quorum=2,
        norm_cap=m.NormCapTerms(1.5, 1, m.Granularity.LAYER),
        metrics=True,
        sources_keep=m.SourcesKeep.FINAL,
        build=BUILD,
    )


def _attending_header() -> m.Header:
    """As :func:`_header`, under the rule with attention."""
    attention = m.AttentionTerms("first-order", 0.01, 1.5)
    rule = m.RuleTerms("fada_attention", 0.5, "orthogonal", True, True, "mean-field", 1.0, attention=attention)
    return replace(_header(), rule=rule, target=None, gap_gradient_digest=_digest(7))


def _comparing_header() -> m.Header:
    """As :func:`_attending_header`, under a rule that compares features too: five of each of three rows."""
    header = _attending_header()
    pull = m.Layer(m.PULL_LAYER, (3, 5), 1.0, 0.5)
    rule = replace(header.rule, rule="fada")
    return replace(header, rule=rule, features=m.FeatureTerms(3, 5, _digest(8)), layers=(*header.layers, pull))


def _analytic_header() -> m.Header:
    """As :func:`_header`, under the rule of second moments, of the features of a head with a bias."""
    gram = m.Layer(m.GRAM_LAYER, (10,), 1.0, 0.5)
    layers = (m.Layer("weight", (2, 3), 1.0, 0.5), m.Layer("bias", (2,), 1.0, 0.5), gram)
    rule = replace(_header().rule, rule="analytic")
    return replace(_header(), rule=rule, target=None, layers=layers, round=1, metrics=False)


def _schedule() -> m.Schedule:
    warm_up = m.RuleTerms("source_only", 0.5, "orthogonal", True, True, "mean-field", 1.0)
    return m.Schedule(
        run_id=bytes(range(16)),
        rounds=20,
        rules=(warm_up, _header().rule),
        learning_rate=0.001,
        clip=1.0,
        modulus_bits=32,
        n_max=8,
        max_samples=1000,
        training_deadline_ms=600_000,
        phase_deadline_ms=30_000,
        norm_cap_kappa=1.5,
        norm_cap_granularity=m.Granularity.LAYER,
        sources_keep=m.SourcesKeep.FINAL,
    )


def _signed_by(indices: Iterable[int], body: m.BodyT) -> tuple[m.Signed[m.BodyT], ...]:
    return tuple(signer(index).sign(SESSION_ID, CONTEXT, body) for index in indices)


def _bodies() -> list[tuple[int, m.Body]]:
    """Sender and body, every type once."""
    advertise = m.Advertise(_digest(10), _digest(11), _digest(12), _digest(13))
    signature, masked = m.SurvivorSignature(_digest(14)), m.MaskedInput(_digest(20), 2604)
    boxes = (m.ShareBox(2, b"\x15" * 90), m.ShareBox(3, b"\x16" * 90))
    result = m.Result(_digest(26), 2, _digest(27))
    receipt = m.Receipt(bytes(range(16)), 4, 3, _digest(31), _digest(27))
    delivered = tuple(m.DeliveredBox(box.peer, box.box, _digest(17 + box.peer), _digest(9)) for box in boxes)
    return [
        (0, _header()),
        (1, advertise),
        (0, m.KeyList(_signed_by((1, 2), advertise))),
        (1, m.ShareBundle(boxes, _digest(17), _digest(9))),
        (0, m.ShareDelivery(delivered)),
        (1, masked),
        (1, m.Update(_digest(21), 2600, 199, bytes(32), loss=0.0, accuracy=0.75, alignment=0.25)),
        (0, m.Survivors((m.Survivor(1, _digest(22)), m.Survivor(3, _digest(23))), (2,), _digest(8))),
        (1, signature),
        (0, m.Consistency(_signed_by((1, 3), signature), _signed_by((1, 3), masked))),
        (1, m.Unmask((m.SelfMaskShare(3, b"\x24" * 33), m.MasterShare(2, b"\x25" * 33)))),
        (0, result),
        (0, m.Abort(m.Step.SHARES, "KEY_SIGNATURE", 0)),
        (1, m.Refusal("max-visibility")),
        (1, m.Join(_digest(28), m.Visibility.COHORT, metrics=True, known=300, build=BUILD)),
        (0, m.Checkpoint(NOTE, 300, (_digest(29), _digest(30)), 7)),
        (1, m.Cosigned(301, LINE)),
        (0, m.Goodbye(True, 20, "", _digest(31), _digest(27))),
        (1, receipt),
        (0, m.MissedResult(*_signed_by((0,), result), _signed_by((1, 3), receipt))),
        (0, _schedule()),
    ]


_OF_RINGS = ("graph", "members")
"""Fields of a Header and a ShareDelivery that are there in SFDA-SA/2 alone."""


def plain(value: Any) -> Any:
    """A message as JSON: bytes as hex, enums as numbers, a set in order, an object names its type."""
    if is_dataclass(value) and not isinstance(value, type):
        members = {
            field.name: plain(getattr(value, field.name))
            for field in fields(value)
            if field.init and not (field.name in _OF_RINGS and getattr(value, field.name) == field.default)
        }
        return {"type": type(value).__name__, **members}
    if isinstance(value, tuple | frozenset):
        return [plain(element) for element in (sorted(value) if isinstance(value, frozenset) else value)]
    if isinstance(value, Enum):
        return value.value
    return value.hex() if isinstance(value, bytes) else value


def known(sender: int, body: m.Body) -> dict[str, Any]:
    """A signed message, in words and as bytes."""
    message = signer(sender).sign(SESSION_ID, CONTEXT, body)
    return {
        "type": message.type_name,
        "public_key": signer(sender).private_key.public_key().public_bytes_raw().hex(),
        "message": plain(message),
        "digest": message.digest().hex(),
    }


def valid() -> list[dict[str, Any]]:
    """One signed message of every type."""
    headers = (_attending_header(), _comparing_header(), _analytic_header())
    return [known(*one) for one in [*_bodies(), *((0, header) for header in headers)]]


def malformed() -> list[dict[str, str]]:
    """Envelopes that are wrong in one way each, with a part of what a reader says; the first one is right."""
    head = b"\x08\x01" + b"\x12\x20" + SESSION_ID + b"\x18\x01" + b"\x22\x20" + CONTEXT
    refusal = b"\xea\x01\x05\x0a\x03key"
    header = encode(m.Envelope(SESSION_ID, 0, CONTEXT, _header()))
    body = m.Join(_digest(28), m.Visibility.COHORT, metrics=True, build=BUILD)
    twisted, long_way = "is not in its canonical form", "is longer than it needs to be"
    join, metrics = encode(m.Envelope(SESSION_ID, 1, CONTEXT, body)), b"\x20\x01\xf2\x01"  # and the tag of the build
    levels = b"\x22\x04\x03\x03\x02\x01\x2a"
    last = header.rindex(b"\xc0\x01\x01\xc8\x01\x02")  # metrics and sources_keep
    unmask = b"\xd2\x01"
    both = b"\x08\x02" + b"\x12\x21" + b"\x24" * 33 + b"\x1a\x21" + b"\x25" * 33
    none = b"\x08\x02"
    share = b"\x08\x02" + b"\x12\x21" + b"\x24" * 33

    def with_metrics(value: bytes) -> bytes:
        return header[: last + 2] + value + header[last + 3 :]

    cases = [
        ("valid", "", head + refusal),
        ("empty", "suite 0", b""),
        ("no body", "has no body", head),
        ("unknown suite", "suite 2", b"\x08\x02" + head[2:] + refusal),
        ("no suite", "suite 0", head[2:] + refusal),
        ("session id of 31 bytes", "session_id", b"\x08\x01\x12\x1f" + SESSION_ID[1:] + head[36:] + refusal),
        ("context of 31 bytes", "context", head[:38] + b"\x22\x1f" + CONTEXT[1:] + refusal),
        ("sender 2^31", "sender", head[:36] + b"\x18\x80\x80\x80\x80\x08" + head[38:] + refusal),
        ("unknown field", "Envelope holds an unknown field", head + refusal + b"\x28\x01"),
        ("unknown field in the body", "Envelope holds an unknown field", head + b"\xea\x01\x07\x0a\x03key\x10\x01"),
        ("two bodies", long_way, head + refusal + b"\xe2\x01\x08\x08\x01\x12\x04LATE"),
        ("suite twice", long_way, b"\x08\x01" + head + refusal),
        ("padded varint", long_way, b"\x08\x81\x00" + head[2:] + refusal),
        ("explicit zero", long_way, head[:36] + b"\x18\x00" + head[38:] + refusal),
        ("text that is not UTF-8", "are no Envelope", head + b"\xea\x01\x05\x0a\x03\xff\xfe\xfd"),
        ("empty text", "key must have", head + b"\xea\x01\x00"),
        ("text of 65 characters", "key must have", head + b"\xea\x01\x43\x0a\x41" + b"k" * 65),
        ("truncated", "are no Envelope", (head + refusal)[:-1]),
        ("unknown level", "Visibility", header.replace(levels, levels.replace(b"\x02", b"\x04"))),
        ("level of no meaning", "Visibility", header.replace(levels, levels.replace(b"\x02", b"\x00"))),
        ("unmask with both shares", long_way, head + unmask + bytes([len(both) + 2, 0x0A, len(both)]) + both),
        ("unmask with no share", "holds no share", head + unmask + bytes([len(none) + 2, 0x0A, len(none)]) + none),
        ("unmask with one owner twice", "one share per owner", head + unmask + b"\x4e" + (b"\x0a\x25" + share) * 2),
        ("header with metrics that are neither", twisted, with_metrics(b"\x02")),
        ("header with metrics written out as false", long_way, with_metrics(b"\x00")),
        ("join with metrics that are neither", twisted, join.replace(metrics, b"\x20\x02\xf2\x01")),
        ("join with metrics written out as false", long_way, join.replace(metrics, b"\x20\x00\xf2\x01")),
        ("advertise with a short key", "mask_key", head + b"\x8a\x01\x21\x0a\x1f" + bytes(31)),
    ]
    cases += [
        case for index, body in _bodies() for case in malformed_ways(signer(index).sign(SESSION_ID, CONTEXT, body))
    ]
    cases += broken_fields(_bodies(), _CHANGES)
    return [{"name": name, "reason": reason, "envelope": data.hex()} for name, reason, data in cases]


Change = tuple[type, str, str, Callable[[Any], None]]
"""A type of body, what is wrong in words, a part of what a reader says, and how it comes about."""


def broken_fields(bodies: Iterable[tuple[int, m.Body]], changes: Iterable[Change]) -> list[tuple[str, str, bytes]]:
    """Well-formed envelopes with one field outside its bounds."""
    valid = {type(body): signer(index).sign(SESSION_ID, CONTEXT, body).signed_bytes for index, body in bodies}
    cases = []
    for body, name, reason, change in changes:
        envelope = pb.Envelope.FromString(valid[body])
        change(getattr(envelope, BODY_FIELDS[body]))
        cases.append((f"{body.__name__} with {name}", reason, envelope.SerializeToString(deterministic=True)))
    return cases


def set_field(path: str, value: object) -> Callable[[Any], None]:
    """Set a field by its path; a number in the path is a place in a list."""

    def change(message: Any) -> None:
        *way, last = path.split(".")
        for step in way:
            message = message[int(step)] if step.isdecimal() else getattr(message, step)
        if last.isdecimal():
            message[int(last)] = value
        else:
            setattr(message, last, value)

    return change


def more(path: str, *values: object) -> Callable[[Any], None]:
    return lambda message: attrgetter(path)(message).extend(values)


def _clear(path: str) -> Callable[[Any], None]:
    return lambda message: message.ClearField(path)


def _without_model(message: Any) -> None:
    message.ClearField("result_digest")
    message.ClearField("model_digest")
    message.down_link = 1


def _attention(name: str, value: object) -> Callable[[Any], None]:
    """Terms of attention that are right but for one field."""

    def change(message: Any) -> None:
        terms = message.rule.attention
        terms.gain, terms.temperature, terms.bound = "first-order", 0.01, 1.0
        setattr(terms, name, value)

    return change


def _features(name: str, value: object) -> Callable[[Any], None]:
    """Features of the target's rows that are right but for one field."""

    def change(message: Any) -> None:
        terms = message.features
        terms.rows, terms.width, terms.digest = 3, 5, _digest(8)
        setattr(terms, name, value)

    return change


NOT_HERE = "may be listed here"
_CHANGES: list[Change] = [
    (m.Header, "a run id of 15 bytes", "run_id", set_field("run_id", bytes(15))),
    (m.Header, "round 0", "round and attempt", _clear("round")),
    (m.Header, "attempt 0", "round and attempt", _clear("attempt")),
    (m.Header, "no levels", "one level for each", _clear("levels")),
    (m.Header, "a level too few", "one level for each", lambda message: message.levels.pop()),
    (m.Header, "a level too many", "one level for each", more("levels", 1)),
    (m.Header, "1025 levels", "levels", more("levels", *[3] * 1021)),
    (m.Header, "kappa 0", "kappa", set_field("norm_cap.kappa", 0.0)),
    (m.Header, "kappa below 0", "kappa", set_field("norm_cap.kappa", -1.0)),
    (m.Header, "kappa that is no number", "kappa", set_field("norm_cap.kappa", float("nan"))),
    (m.Header, "norms of no others", "others", set_field("norm_cap.others", 0)),
    (m.Header, "norms of nothing", "Granularity", set_field("norm_cap.granularity", 0)),
    (m.Header, "norms of something else", "Granularity", set_field("norm_cap.granularity", 3)),
    (m.Header, "no rule", "rule", _clear("rule")),
    (m.Header, "a rule without a name", "rule must have", set_field("rule.rule", "")),
    (m.Header, "beta above 1", "beta", set_field("rule.beta", 1.5)),
    (m.Header, "beta that is no number", "beta", set_field("rule.beta", float("nan"))),
    (m.Header, "a learning rate factor of 0", "learning_rate_factor", set_field("rule.learning_rate_factor", 0.0)),
    (m.Header, "an infinite rate factor", "learning_rate_factor", set_field("rule.learning_rate_factor", float("inf"))),
    *(
        (m.Header, f"a {name} of attention of {value}", name, _attention(name, value))
        for name, value in (
            ("temperature", 0.0),
            ("temperature", float("nan")),
            ("bound", -1.0),
            ("bound", float("inf")),
        )
    ),
    (m.Header, "a gain without a name", "gain", _attention("gain", "")),
    (m.Header, "a gain with a name of 65 bytes", "gain", _attention("gain", "g" * 65)),
    (m.Header, "a gradient digest of 31 bytes", "gap_gradient_digest", set_field("gap_gradient_digest", bytes(31))),
    *(
        (m.Header, f"features with {claim}", reason, _features(name, value))
        for claim, reason, name, value in (
            ("no rows", "rows and columns", "rows", 0),
            ("2^31 rows", "rows and columns", "rows", 2**31),
            ("no width", "rows and columns", "width", 0),
            ("a width of 2^31", "rows and columns", "width", 2**31),
            ("a digest of 31 bytes", "digest of the features", "digest", bytes(31)),
        )
    ),
    (m.Header, "no steps of the target", "steps", set_field("target.steps", 0)),
    (m.Header, "an update digest of 31 bytes", "update_digest", set_field("target.update_digest", bytes(31))),
    (m.Header, "a scatter below 0", "scatter", set_field("target.scatter", -1.0)),
    (m.Header, "no layers", "at least one layer", _clear("layers")),
    (m.Header, "two layers of one name", "layer names", set_field("layers.1.name", "linear.weight")),
    (m.Header, "a layer without a name", "name", set_field("layers.1.name", "")),
    (m.Header, "a layer name of 201 characters", "name", set_field("layers.1.name", "w" * 201)),
    (m.Header, "a side of 0", "side", set_field("layers.0.shape.0", 0)),
    (m.Header, "a side of 2^31", "side", set_field("layers.0.shape.0", 2**31)),
    (m.Header, "17 sides", "shape", lambda message: message.layers[0].shape.extend([1] * 15)),
    (m.Header, "a clip of 0", "clip", set_field("layers.0.clip", 0.0)),
    (m.Header, "a clip below 0", "clip", set_field("layers.0.clip", -1.0)),
    (m.Header, "a clip that is no number", "clip", set_field("layers.0.clip", float("nan"))),
    (m.Header, "an infinite clip", "clip", set_field("layers.0.clip", float("inf"))),
    (m.Header, "a model digest of 31 bytes", "model_digest", set_field("model_digest", bytes(31))),
    (m.Header, "participants that do not rise", "participants", set_field("participants.0", 3)),
    (m.Header, "one participant twice", "participants", set_field("participants.0", 2)),
    (m.Header, "1025 participants", "participants", more("participants", *range(201, 201 + 1021))),
    (m.Header, "a participant beyond 2^31", "participants", more("participants", 2**31)),
    (m.Header, "no sample allowed", "max_samples", _clear("max_samples")),
    (m.Header, "no time to train", "deadlines", _clear("training_deadline_ms")),
    (m.Header, "no time for a phase", "deadlines", _clear("phase_deadline_ms")),
    (m.Header, "nothing said of what sources keep", "SourcesKeep", _clear("sources_keep")),
    (m.Header, "something else for sources to keep", "SourcesKeep", set_field("sources_keep", 3)),
    (m.Header, "a down-link that there is not", "DownLink", set_field("down_link", 3)),
    (m.Header, "a result digest of 31 bytes", "previous_result_digest", set_field("previous_result_digest", bytes(31))),
    (m.Advertise, "no box key", "box_key", _clear("box_key")),
    (m.Advertise, "a commitment of 33 bytes", "self_mask_commitment", set_field("self_mask_commitment", bytes(33))),
    (m.Advertise, "no commitment to a nonce", "nonce_commitment", _clear("nonce_commitment")),
    (m.KeyList, "a signature of 63 bytes", "signature", set_field("advertisements.0.signature", bytes(63))),
    (m.ShareBundle, "an empty box", "share box", set_field("boxes.0.box", b"")),
    (m.ShareBundle, "a report commitment of 31 bytes", "report_commitment", set_field("report_commitment", bytes(31))),
    (m.ShareBundle, "a report commitment of 33 bytes", "report_commitment", set_field("report_commitment", bytes(33))),
    (m.ShareBundle, "a box of 8193 bytes", "share box", set_field("boxes.0.box", bytes(8193))),
    (m.ShareBundle, "a box for nobody", "peer", set_field("boxes.0.peer", 2**31)),
    (m.ShareBundle, "a nonce of 31 bytes", "nonce", set_field("nonce", bytes(31))),
    (m.ShareDelivery, "a nonce of 33 bytes", "nonce", set_field("boxes.1.nonce", bytes(33))),
    (m.MaskedInput, "a digest of 31 bytes", "digest", set_field("digest", bytes(31))),
    (m.MaskedInput, "a vector of no bytes", "length_bytes", _clear("length_bytes")),
    (m.Update, "no samples", "samples", _clear("samples")),
    (m.Update, "a loss that is no number", "loss", set_field("loss", float("nan"))),
    (m.Update, "an infinite loss", "loss", set_field("loss", float("inf"))),
    (m.Update, "an accuracy above 1", "accuracy", set_field("accuracy", 1.5)),
    (m.Update, "a factor of alignment of 0", "alignment", set_field("alignment", 0.0)),
    (m.Update, "an accuracy that is no number", "accuracy", set_field("accuracy", float("nan"))),
    (m.Survivors, "a digest of 31 bytes", "input_digest", set_field("survivors.0.input_digest", bytes(31))),
    (m.Survivors, "a survivor beyond 2^31", "survivor", set_field("survivors.0.index", 2**31)),
    (m.Survivors, "a dropped source beyond 2^31", "dropped", set_field("dropped.0", 2**31)),
    (m.SurvivorSignature, "no digest", "survivors_digest", _clear("survivors_digest")),
    (m.Consistency, "a signature of no bytes", "signature", set_field("signatures.0.signature", b"")),
    (m.Consistency, "an input that is not signed", "signature", set_field("inputs.0.signature", b"")),
    (m.Consistency, "a signature among the inputs", NOT_HERE, lambda body: body.inputs.append(body.signatures[0])),
    (m.Consistency, "an input among the signatures", NOT_HERE, lambda body: body.signatures.append(body.inputs[0])),
    (m.Unmask, "a share of 32 bytes", "share", set_field("shares.0.self_mask", bytes(32))),
    (m.Unmask, "a share of 34 bytes", "share", set_field("shares.1.master", bytes(34))),
    (m.Unmask, "an owner beyond 2^31", "owner", set_field("shares.0.owner", 2**31)),
    (m.Result, "a sum digest of 31 bytes", "sum_digest", set_field("sum_digest", bytes(31))),
    (m.Result, "no model digest", "model_digest", _clear("model_digest")),
    (m.Abort, "no step", "Step", _clear("step")),
    (m.Abort, "a step that does not exist", "Step", set_field("step", 9)),
    (m.Abort, "a check of 65 characters", "check", set_field("check", "X" * 65)),
    (m.Abort, "an accused beyond 2^31", "accused", set_field("accused", 2**31)),
    (m.Join, "a digest of 31 bytes", "architecture_digest", set_field("architecture_digest", bytes(31))),
    (m.Header, "no build", "build", _clear("build")),
    (m.Join, "no build", "build", _clear("build")),
    (m.Join, "wire version 0", "wire_version", set_field("build.wire_version", 0)),
    (m.Join, "a version of 65 characters", "software_version", set_field("build.software_version", "1" * 65)),
    (m.Join, "a capability in capitals", "capability", set_field("build.capabilities.0", "SFDA")),
    (m.Join, "a capability twice", "capabilities", more("build.capabilities", "x25519-mlkem768")),
    (m.Join, "65 capabilities", "capabilities", more("build.capabilities", *(f"y{n}" for n in range(10, 71)))),
    (m.Join, "no visibility", "Visibility", _clear("visibility")),
    (m.Join, "a visibility that does not exist", "Visibility", set_field("visibility", 4)),
    (m.Checkpoint, "no note", "a note has 1", _clear("note")),
    (m.Checkpoint, "a hash of 31 bytes", "a hash of the proof", set_field("proof.1", bytes(31))),
    (m.Cosigned, "no records", "no records", _clear("size")),
    (m.Cosigned, "no line", "it has 1 to", _clear("signature")),
    (m.Cosigned, "a cosignature of 6145 characters", "it has 1 to", set_field("signature", "x" * 6145)),
    (m.Goodbye, "a reason of 501 characters", "reason", set_field("reason", "x" * 501)),
    (m.Goodbye, "a model of no result", "result_digest", _clear("result_digest")),
    (m.Goodbye, "a result without a model", "model_digest", _clear("model_digest")),
    (m.Goodbye, "a model digest of 31 bytes", "model_digest", set_field("model_digest", bytes(31))),
    (m.Goodbye, "a down-link that there is not", "DownLink", set_field("down_link", 3)),
    (m.Goodbye, "a down-link of no model", "format without", _without_model),
    (m.Goodbye, "a model of a run that is not complete", "complete run alone", _clear("completed")),
    (m.Receipt, "a run id of 15 bytes", "run_id", set_field("run_id", bytes(15))),
    (m.Receipt, "round 0", "round and number", _clear("round")),
    (m.Receipt, "number 0", "round and number", _clear("number")),
    (m.Receipt, "more results than rounds", "more than one result", set_field("number", 5)),
    (m.Receipt, "a result digest of 31 bytes", "result_digest", set_field("result_digest", bytes(31))),
    (m.Receipt, "no model digest", "model_digest", _clear("model_digest")),
    (m.MissedResult, "no result", "no result", _clear("result")),
    (m.MissedResult, "a receipt as the result", NOT_HERE, lambda body: body.result.CopyFrom(body.receipts[0])),
    (m.MissedResult, "a result among the receipts", NOT_HERE, lambda body: body.receipts.append(body.result)),
    (m.MissedResult, "a signature of 63 bytes", "signature", set_field("receipts.0.signature", bytes(63))),
    (m.Schedule, "a run id of 17 bytes", "run_id", set_field("run_id", bytes(17))),
    (m.Schedule, "no rounds", "count from 1", _clear("rounds")),
    (m.Schedule, "no rules", "rules", _clear("rules")),
    (m.Schedule, "a rule twice", "must differ", lambda body: body.rules[1].CopyFrom(body.rules[0])),
    (m.Schedule, "65 rules", "rules", lambda body: body.rules.extend([body.rules[0]] * 63)),
    (m.Schedule, "a rule without a name", "rule", set_field("rules.1.rule", "")),
    (m.Schedule, "a learning rate of 0", "learning_rate", set_field("learning_rate", 0.0)),
    (m.Schedule, "an infinite clip", "clip", set_field("clip", float("inf"))),
    (m.Schedule, "31 bits", "modulus_bits", set_field("modulus_bits", 31)),
    (m.Schedule, "room for no input", "count from 1", _clear("n_max")),
    (m.Schedule, "room for no sample", "count from 1", _clear("max_samples")),
    (m.Schedule, "no time to train", "deadlines", _clear("training_deadline_ms")),
    (m.Schedule, "no time for a phase", "deadlines", _clear("phase_deadline_ms")),
    (m.Schedule, "a kappa below 0", "norm_cap_kappa", set_field("norm_cap_kappa", -1.0)),
    (m.Schedule, "no granularity", "Granularity", _clear("norm_cap_granularity")),
    (m.Schedule, "nothing said of what sources keep", "SourcesKeep", _clear("sources_keep")),
]


def malformed_ways(message: m.Signed[Any]) -> list[tuple[str, str, bytes]]:
    """One type of message in the ways in which any can be wrong."""
    data, name = message.signed_bytes, message.type_name
    field = data.index(CONTEXT) + len(CONTEXT)  # the body's field: a tag of two bytes, a length, the body
    length = field + 2
    start = length + next(width for width in (1, 2) if _varint(len(data) - length - width) == data[length:][:width])
    unknown = b"\x80\x7d\x01"  # field 2000
    body = data[start:] + unknown
    return [
        (f"{name} cut short", "are no Envelope", data[:-1]),
        (f"{name} with an unknown field", "unknown field", data[:length] + _varint(len(body)) + body),
        (f"{name} with a body twice", "is longer than it needs to be", data + data[field:]),
        (
            f"{name} with a padded length",
            "is longer than it needs to be",
            data[:length] + _padded(data[length:start]) + data[start:],
        ),
        (f"{name} with its fields in another order", "is not in its canonical form", data[2:] + data[:2]),
        (
            f"{name} in a context of 33 bytes",
            "context",
            data.replace(b"\x22\x20" + CONTEXT, b"\x22\x21\0" + CONTEXT, 1),
        ),
    ]


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _padded(varint: bytes) -> bytes:
    return varint[:-1] + bytes([varint[-1] | 128, 0])


def forged() -> list[dict[str, str]]:
    """Well-formed messages whose signature is not their sender's over these bytes as this type."""
    cases = []
    for (sender, body), (_, other) in zip(_bodies(), [*_bodies()[1:], _bodies()[0]], strict=True):
        message, stranger = signer(sender).sign(SESSION_ID, CONTEXT, body), signer(sender + 1)
        ways = {
            "signed by another site": sign_bytes(stranger.private_key, message.type_name, message.signed_bytes),
            "signed as another type": sign_bytes(
                signer(sender).private_key, type(other).__name__, message.signed_bytes
            ),
            "signature of other bytes": sign_bytes(
                signer(sender).private_key, message.type_name, message.signed_bytes + b"\0"
            ),
            "signature with one bit turned": bytes([message.signature[0] ^ 1]) + message.signature[1:],
        }
        cases += [
            {
                "name": f"{message.type_name} {way}",
                "type": message.type_name,
                "public_key": signer(sender).private_key.public_key().public_bytes_raw().hex(),
                "signed_bytes": message.signed_bytes.hex(),
                "signature": signature.hex(),
            }
            for way, signature in ways.items()
        ]
    return cases


def unwrapped() -> list[dict[str, str]]:
    """Outer messages, of signed bytes and signature, that no reader may accept; the first one is right."""
    message = signer(1).sign(SESSION_ID, CONTEXT, m.Refusal("key"))
    whole = encode_signed(message)
    short = whole.replace(b"\x12\x40" + message.signature, b"\x12\x3f" + message.signature[:-1])
    cases = {
        "valid": whole,
        "empty": b"",
        "no signature": whole[: -2 - len(message.signature)],
        "signature of 63 bytes": short,
        "signature of 65 bytes": short.replace(b"\x12\x3f", b"\x12\x41") + bytes(2),
        "two signatures": whole + b"\x12\x40" + message.signature,
        "signature first": whole[-66:] + whole[:-66],
        "unknown field": whole + b"\x18\x01",
        "cut short": whole[:-1],
    }
    return [{"name": name, "signed_message": data.hex()} for name, data in cases.items()]


def build() -> dict[str, Any]:
    """The whole set."""
    return {"valid": valid(), "malformed": malformed(), "forged": forged(), "unwrapped": unwrapped()}


def _opening(body: m.Header | m.Join, edit: Callable[[Any], None] = lambda _: None) -> str:
    """An Envelope with a Header or a Join, as another build may write it."""
    proto = pb.Envelope.FromString(encode(m.Envelope(SESSION_ID, 1, CONTEXT, body)))
    edit(getattr(proto, BODY_FIELDS[type(body)]))
    return proto.SerializeToString(deterministic=True).hex()


def _of_another_schema(message: Any) -> None:
    message.ClearField("architecture_digest")
    message.MergeFromString(b"\x92\x03\x02\x08\x01")  # field 50, of no schema


def builds() -> dict[str, Any]:
    """What a reader of the build ``own`` reads on, and what it leaves unread without an accusation."""
    later, most = replace(BUILD, wire_version=BUILD.wire_version + 1), BUILD.capabilities
    bodies = [_header(), m.Join(_digest(28), m.Visibility.SUM, metrics=True, build=BUILD)]
    valid, invalid = [], []
    for kind in bodies:
        newer = replace(kind, build=replace(BUILD, software_version="9.9.9"))
        valid.append({"claim": "another version alone", "bytes": _opening(newer)})
        for claim, build, edit in (
            ("another wire version", later, lambda _: None),
            ("another wire version, and another schema", later, _of_another_schema),
            ("a capability less", replace(BUILD, capabilities=most[:-1]), lambda _: None),
            ("no capability", replace(BUILD, capabilities=()), lambda _: None),
            ("a capability more", replace(BUILD, capabilities=(*most, "zzz")), lambda _: None),
            ("no build", BUILD, _clear("build")),
        ):
            invalid.append({"claim": claim, "bytes": _opening(replace(kind, build=build), edit)})
    for cases, apart in ((valid, False), (invalid, True)):
        for case in cases:
            read = other_build(pb.SignedMessage(signed_bytes=bytes.fromhex(case["bytes"])))
            assert (read is not None) is apart, case["claim"]
    return {"own": plain(BUILD), "valid": valid, "invalid": invalid}


SETS = {"messages": build, "builds": builds}
