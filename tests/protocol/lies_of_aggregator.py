"""What a lying aggregator can tell a source once the header is accepted, with the check that has to find it.

The aggregator signs with the target's real key, has the real keys of one colluding source, and relays everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from cohort import TARGET, AnySigned, Bytes, Cohort, forged, resigned, signer

from securefda.protocol import agreement
from securefda.protocol.agreement import BOX_BYTES, BoxAddress, SharePair
from securefda.protocol.hybrid import BoxKey, Half
from securefda.protocol.messages import (
    Abort,
    Advertise,
    DeliveredBox,
    Granularity,
    KeyAgreement,
    KeyList,
    NormCapTerms,
    ShareDelivery,
    Step,
    Survivor,
    SurvivorSignature,
    Visibility,
)
from securefda.protocol.secret import Secret
from securefda.protocol.session_checks import report_bytes

VICTIM, COLLUDER = 2, 3
STRANGER = sha256(b"something else").digest()
KEY_LIST, DELIVERY, LISTS, SIGNATURES, RESULT = 1, 2, 3, 4, 5
"""The message of the aggregator that answers phase R0 to R4."""


@dataclass(frozen=True)
class Lie:
    """A lie in place of the aggregator's honest message to the victim.

    Attributes:
        check: name of the check that refuses it.
        claim: the lie, in words.
        slot: which message is replaced, :data:`KEY_LIST` to :data:`RESULT`.
        tell: makes the lie from the honest message.
        setup: how the cohort differs from the usual five sources.
    """

    check: str
    claim: str
    slot: int
    tell: Callable[[Cohort, AnySigned], AnySigned]
    setup: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.check} {self.claim}"


def _other_body(message: AnySigned) -> object:
    return Abort(Step.RESULT, "X", None)


OUTSIDE: dict[str, Callable[[AnySigned], AnySigned]] = {
    "TYPE": lambda m: resigned(m, _other_body(m)),
    "SUITE": lambda m: forged(m, m.sender, suite=2),
    "SENDER": lambda m: forged(m, COLLUDER, sender=COLLUDER),
    "SESSION": lambda m: forged(m, m.sender, session_id=STRANGER),
    "CONTEXT": lambda m: forged(m, m.sender, context=STRANGER),
    "SIGNATURE": lambda m: forged(m, COLLUDER),
}
"""Lies about the outside of any message of the aggregator."""


def _keys(change: Callable[[Cohort, list[AnySigned]], list[AnySigned]]) -> Callable[[Cohort, AnySigned], AnySigned]:
    """A lie about the list of advertisements."""
    return lambda c, m: resigned(m, KeyList(tuple(change(c, list(m.body.advertisements)))))


def _by(sender: int, items: Any) -> Any:
    return next(item for item in items if item.sender == sender)


def _without(dropped: set[int], items: list[AnySigned]) -> list[AnySigned]:
    return [item for item in items if item.sender not in dropped]


def _swapped(items: list[AnySigned], new: AnySigned) -> list[AnySigned]:
    return [new if item.sender == new.sender else item for item in items]


def _substituted_key(cohort: Cohort, items: list[AnySigned]) -> list[AnySigned]:
    """The keys of an honest source replaced by keys of the aggregator's own."""
    honest = _by(4, items)
    own_keys = replace(honest.body, mask_key=_by(COLLUDER, items).body.nonce_commitment)
    return _swapped(items, forged(honest, TARGET, body=own_keys))


def _of_colluder(items: list[AnySigned], **changes: bytes) -> list[AnySigned]:
    message = _by(COLLUDER, items)
    return _swapped(items, resigned(message, replace(message.body, **changes)))


def _committed_to_another_nonce(message: AnySigned) -> AnySigned:
    return resigned(message, replace(message.body, nonce_commitment=STRANGER))


def _advertised_by_target(items: list[AnySigned]) -> AnySigned:
    message = items[0]
    body = Advertise(STRANGER, sha256(STRANGER).digest(), STRANGER, STRANGER)
    return signer(TARGET).sign(message.envelope.session_id, message.envelope.context, body)


def _second_of_colluder(items: list[AnySigned]) -> AnySigned:
    message = _by(COLLUDER, items)
    keys = [sha256(STRANGER + bytes([number])).digest() for number in range(4)]
    return resigned(message, Advertise(*keys))


KEY_LIES = [
    Lie("KEY_DUPLICATE", "one source twice", KEY_LIST, _keys(lambda c, a: [*a, a[-1]])),
    Lie("KEY_DUPLICATE", "two sets of keys of one", KEY_LIST, _keys(lambda c, a: [*a, _second_of_colluder(a)])),
    Lie("KEY_DUPLICATE", "key of another", KEY_LIST, _keys(lambda c, a: _of_colluder(a, mask_key=a[0].body.mask_key))),
    Lie("KEY_DUPLICATE", "one key twice", KEY_LIST, _keys(lambda c, a: _of_colluder(a, box_key=a[2].body.mask_key))),
    Lie("KEY_MEMBER", "aggregator as a source", KEY_LIST, _keys(lambda c, a: [*a, _advertised_by_target(a)])),
    Lie("KEY_SIGNATURE", "key substituted", KEY_LIST, _keys(_substituted_key)),
    Lie(
        "KEY_SIGNATURE",
        "keys of another session",
        KEY_LIST,
        _keys(lambda c, a: _swapped(a, forged(_by(4, a), 4, session_id=STRANGER))),
    ),
    Lie(
        "KEY_SIGNATURE",
        "keys of another header",
        KEY_LIST,
        _keys(lambda c, a: _swapped(a, forged(_by(4, a), 4, context=STRANGER))),
    ),
    Lie("KEY_OWN", "mine left out", KEY_LIST, _keys(lambda c, a: _without({VICTIM}, a))),
    Lie(
        "KEY_OWN",
        "others of mine",
        KEY_LIST,
        _keys(lambda c, a: _swapped(a, _committed_to_another_nonce(_by(VICTIM, a)))),
    ),
    Lie("KEY_QUORUM", "fewer than t", KEY_LIST, _keys(lambda c, a: _without({4, 5}, a))),
    Lie("KEY_INVALID", "box key of low order", KEY_LIST, _keys(lambda c, a: _of_colluder(a, box_key=bytes(32)))),
]


def _boxes(
    change: Callable[[Cohort, list[DeliveredBox]], list[DeliveredBox]],
) -> Callable[[Cohort, AnySigned], AnySigned]:
    """A lie about the delivered boxes."""
    return lambda c, m: resigned(m, ShareDelivery(tuple(change(c, list(m.body.boxes)))))


def _flipped(box: DeliveredBox, place: int) -> DeliveredBox:
    changed = bytearray(box.box)
    changed[place] ^= 1
    return replace(box, box=bytes(changed))


def _for_another(cohort: Cohort, boxes: list[DeliveredBox]) -> list[DeliveredBox]:
    """In place of its own box from source 0, the one that source 0 made for source 4."""
    misled = next(box for box in cohort.inbox[4].body.boxes if box.peer == 0)
    return [misled if box.peer == 0 else box for box in boxes]


def _exchanged(boxes: list[DeliveredBox], field: str = "box") -> list[DeliveredBox]:
    first, second, *rest = boxes
    swapped = [replace(first, **{field: getattr(second, field)}), replace(second, **{field: getattr(first, field)})]
    return [*swapped, *rest]


def _committed(sender: int, commitment: bytes) -> Callable[[Cohort, AnySigned], AnySigned]:
    """Beside the box of a source there is another commitment to its norm report."""
    return _boxes(lambda c, b: [replace(x, report_commitment=commitment) if x.peer == sender else x for x in b])


def _other_report(cohort: Cohort, boxes: list[DeliveredBox]) -> list[DeliveredBox]:
    """The colluder seals to the victim another norm report than it committed to."""
    phase = cohort.phases[COLLUDER]
    committed = next(box.report_commitment for box in boxes if box.peer == COLLUDER)
    address = BoxAddress(phase.ctx1, COLLUDER, VICTIM, report_commitment=committed)
    key = agreement.sealing_key(agreement.KeyPair(phase.secrets.private), phase.u1[VICTIM].box_key, address)
    nothing, report = SharePair(Secret(bytes(33)), Secret(bytes(33))), Secret(bytes(report_bytes(cohort.header.body)))
    box = agreement.seal_box(key, address, nothing, Bytes("other report"), report)
    return [replace(sealed, box=box) if sealed.peer == COLLUDER else sealed for sealed in boxes]


def _with_kem_key_of(items: list[AnySigned]) -> list[AnySigned]:
    """The colluder's box key has the part of ML-KEM-768 of another source."""
    own, other = _by(COLLUDER, items).body.box_key, items[0].body.box_key
    return _of_colluder(items, box_key=own[:32] + other[32:])


def _flip_of_first(place: int) -> Callable[[Cohort, AnySigned], AnySigned]:
    return _boxes(lambda c, b: [_flipped(b[0], place), *b[1:]])


def _cut_to_x25519(box: DeliveredBox) -> DeliveredBox:
    return replace(box, box=box.box[:BOX_BYTES])


def _other_pair_secret(cohort: Cohort, boxes: list[DeliveredBox]) -> list[DeliveredBox]:
    """The colluder seals to the victim another pair secret than it committed to, in a box that opens."""
    phase = cohort.phases[COLLUDER]
    half = Half.of_master(phase.secrets.master, owner=COLLUDER, peer=VICTIM, ctx1=phase.ctx1)
    committed = next(box.report_commitment for box in boxes if box.peer == COLLUDER)
    address = BoxAddress(phase.ctx1, COLLUDER, VICTIM, half.commitment, committed)
    key, ciphertext = BoxKey.of(phase.secrets.private).encapsulate(phase.u1[VICTIM].box_key, address)
    nothing, extra = SharePair(Secret(bytes(33)), Secret(bytes(33))), bytes(32 + report_bytes(cohort.header.body))
    box = agreement.seal_box(key, address, nothing, Bytes("other half"), Secret(extra))
    sealed = ciphertext + half.commitment + box
    return [replace(one, box=sealed) if one.peer == COLLUDER else one for one in boxes]


def _kem_key(part: bytes) -> Callable[[Cohort, AnySigned], AnySigned]:
    """The colluder's box key with another part of ML-KEM-768 behind that of X25519."""
    return _keys(lambda c, a: _of_colluder(a, box_key=a[2].body.box_key[:32] + part))


SHARE_LIES = [
    Lie("SHARE_DUPLICATE", "one box twice", DELIVERY, _boxes(lambda c, b: [*b, b[0]])),
    Lie("SHARE_SENDER", "box from myself", DELIVERY, _boxes(lambda c, b: [*b, replace(b[0], peer=VICTIM)])),
    Lie("SHARE_SENDER", "box from the aggregator", DELIVERY, _boxes(lambda c, b: [*b, replace(b[0], peer=TARGET)])),
    Lie("SHARE_QUORUM", "fewer than t", DELIVERY, _boxes(lambda c, b: b[:2])),
    Lie("SHARE_NONCE", "another nonce", DELIVERY, _boxes(lambda c, b: [replace(b[0], nonce=STRANGER), *b[1:]])),
    Lie("SHARE_NONCE", "two nonces exchanged", DELIVERY, _boxes(lambda c, b: _exchanged(b, "nonce"))),
    *(
        Lie("SHARE_BOX", f"bit flipped at {place}", DELIVERY, _boxes(lambda c, b, p=place: [_flipped(b[0], p), *b[1:]]))  # type: ignore[misc]
        for place in (0, 12, 60, -1)
    ),
    Lie("SHARE_BOX", "cut short", DELIVERY, _boxes(lambda c, b: [replace(b[0], box=b[0].box[:-1]), *b[1:]])),
    Lie("SHARE_BOX", "box for another", DELIVERY, _boxes(_for_another)),
    Lie("SHARE_BOX", "two boxes exchanged", DELIVERY, _boxes(lambda c, b: _exchanged(b))),
    Lie("SHARE_REPORT", "another norm report than a colluder committed to", DELIVERY, _boxes(_other_report)),
    Lie("SHARE_REPORT", "no commitment to a norm report", DELIVERY, _committed(COLLUDER, b"")),
    Lie("SHARE_BOX", "commitment of an honest source substituted", DELIVERY, _committed(4, STRANGER)),
]

HYBRID: Mapping[str, Any] = {"changes": {"key_agreement": KeyAgreement.X25519_MLKEM768}}
HYBRID_LIES = [
    Lie("KEY_DUPLICATE", "ML-KEM key of another", KEY_LIST, _keys(lambda c, a: _with_kem_key_of(a)), HYBRID),
    Lie("KEY_INVALID", "no key of ML-KEM", KEY_LIST, _kem_key(b""), HYBRID),
    Lie("KEY_INVALID", "a key of ML-KEM with numbers beyond the field", KEY_LIST, _kem_key(b"\xff" * 1184), HYBRID),
    *(
        Lie("SHARE_BOX", f"bit flipped at {place} in {what}", DELIVERY, _flip_of_first(place), HYBRID)
        for place, what in ((0, "the ciphertext"), (1087, "the ciphertext"), (1088, "the commitment"), (-1, "the box"))
    ),
    Lie("SHARE_BOX", "cut to a box of X25519", DELIVERY, _boxes(lambda c, b: [_cut_to_x25519(b[0]), *b[1:]]), HYBRID),
    Lie("SHARE_BOX", "two hybrid boxes exchanged", DELIVERY, _boxes(lambda c, b: _exchanged(b)), HYBRID),
    Lie("SHARE_HALF", "another pair secret than a colluder committed to", DELIVERY, _boxes(_other_pair_secret), HYBRID),
]


def _lists(change: Callable[[list[Survivor], list[int]], object]) -> Callable[[Cohort, AnySigned], AnySigned]:
    """A lie about the lists, which ``change`` edits in place."""

    def tell(cohort: Cohort, message: AnySigned) -> AnySigned:
        survivors, dropped = list(message.body.survivors), list(message.body.dropped)
        change(survivors, dropped)
        return resigned(message, replace(message.body, survivors=tuple(survivors), dropped=tuple(dropped)))

    return tell


def _drop(survivors: list[Survivor], dropped: list[int], *indices: int) -> None:
    survivors[:] = [item for item in survivors if item.index not in indices]
    dropped += indices


def _other_input(survivors: list[Survivor], owner: int) -> None:
    survivors[:] = [replace(item, input_digest=STRANGER) if item.index == owner else item for item in survivors]


LIST_LIES = [
    Lie("SURVIVOR_REPEAT", "a survivor twice", LISTS, _lists(lambda s, d: s.append(s[0]))),
    Lie("SURVIVOR_REPEAT", "a dropped source twice", LISTS, _lists(lambda s, d: _drop(s, d, 5, 5))),
    Lie("SURVIVOR_OVERLAP", "a survivor also dropped", LISTS, _lists(lambda s, d: d.append(4))),
    Lie("SURVIVOR_OVERLAP", "myself also dropped", LISTS, _lists(lambda s, d: d.append(VICTIM))),
    Lie("SURVIVOR_UNION", "one in neither list", LISTS, _lists(lambda s, d: s.pop())),
    Lie("SURVIVOR_UNION", "a stranger survived", LISTS, _lists(lambda s, d: s.append(Survivor(TARGET, STRANGER)))),
    Lie("SURVIVOR_UNION", "a stranger dropped", LISTS, _lists(lambda s, d: d.append(TARGET))),
    Lie("SURVIVOR_SELF", "I am dropped though I delivered", LISTS, _lists(lambda s, d: _drop(s, d, VICTIM))),
    Lie("SURVIVOR_SELF", "another input in my name", LISTS, _lists(lambda s, d: _other_input(s, VICTIM))),
    Lie("SURVIVOR_QUORUM", "fewer than t", LISTS, _lists(lambda s, d: _drop(s, d, 4, 5))),
    Lie("SURVIVOR_REPORTS", "other commitments", LISTS, lambda c, m: resigned(m, replace(m.body, reports_digest=b""))),
]


COHORT, SUM = Visibility.COHORT, Visibility.SUM
MIXED: Mapping[str, Any] = {
    "changes": {
        "levels": (SUM, SUM, COHORT, COHORT, SUM),
        "cohort_size": 2,
        "cohort_quorum": 2,
        "sum_quorum": 3,
        "norm_cap": NormCapTerms(1.0, 2, Granularity.LAYER),
    }
}
"""The victim in a sum with 0 and 5, beside a cohort of the colluder and 4."""


def _one_of(level: Visibility) -> Callable[[Cohort, AnySigned], AnySigned]:
    """One other source of a level is dropped, so that fewer survive there than its sum opens over."""

    def tell(cohort: Cohort, message: AnySigned) -> AnySigned:
        others = set(cohort.header.body.at(level)) - {VICTIM}
        return _lists(lambda s, d: _drop(s, d, min(others)))(cohort, message)

    return tell


def _without_0(cohort: Cohort, boxes: list[DeliveredBox]) -> list[DeliveredBox]:
    return [box for box in boxes if box.peer != 0]


LEVEL_LIES = [
    Lie("SHARE_QUORUM", "fewer in my sum than it opens over", DELIVERY, _boxes(_without_0), MIXED),
    Lie("SURVIVOR_COHORT", "fewer than the quorum of my sum", LISTS, _one_of(SUM), MIXED),
    Lie("SURVIVOR_COHORT", "fewer than the quorum of a cohort that I am not in", LISTS, _one_of(COHORT), MIXED),
    Lie("SHARE_REPORT", "no commitment of a source in a cohort", DELIVERY, _committed(COLLUDER, b""), MIXED),
]


def _signatures(
    change: Callable[[Cohort, list[AnySigned]], list[AnySigned]],
) -> Callable[[Cohort, AnySigned], AnySigned]:
    """A lie about the survivors' signatures."""
    return lambda c, m: resigned(m, replace(m.body, signatures=tuple(change(c, list(m.body.signatures)))))


def _inputs(change: Callable[[list[AnySigned]], list[AnySigned]]) -> Callable[[Cohort, AnySigned], AnySigned]:
    """A lie about the masked input messages of the survivors."""
    return lambda c, m: resigned(m, replace(m.body, inputs=tuple(change(list(m.body.inputs)))))


def _signed_by_target(items: list[AnySigned]) -> AnySigned:
    envelope = items[0].envelope
    return signer(TARGET).sign(envelope.session_id, envelope.context, items[0].body)


def _other_view(items: list[AnySigned]) -> list[AnySigned]:
    return _swapped(items, resigned(_by(COLLUDER, items), SurvivorSignature(STRANGER)))


SIGNATURE_LIES = [
    Lie("CONSISTENCY_DUPLICATE", "one signature twice", SIGNATURES, _signatures(lambda c, s: [*s[:3], s[0]])),
    Lie("CONSISTENCY_SENDER", "of the aggregator", SIGNATURES, _signatures(lambda c, s: [*s, _signed_by_target(s)])),
    Lie(
        "CONSISTENCY_SIGNATURE",
        "forged for an honest source",
        SIGNATURES,
        _signatures(lambda c, s: _swapped(s, forged(_by(4, s), TARGET))),
    ),
    Lie(
        "CONSISTENCY_SIGNATURE",
        "of another view of the session",
        SIGNATURES,
        _signatures(lambda c, s: _swapped(s, forged(_by(4, s), 4, context=STRANGER))),
    ),
    Lie(
        "CONSISTENCY_SIGNATURE",
        "of another session",
        SIGNATURES,
        _signatures(lambda c, s: _swapped(s, forged(_by(4, s), 4, session_id=STRANGER))),
    ),
    Lie("CONSISTENCY_VIEW", "of other lists", SIGNATURES, _signatures(lambda c, s: _other_view(s))),
    Lie("CONSISTENCY_INPUT", "of one survivor not there", SIGNATURES, _inputs(lambda i: i[1:])),
    Lie("CONSISTENCY_INPUT", "none at all", SIGNATURES, _inputs(lambda i: [])),
    Lie("CONSISTENCY_INPUT", "one twice", SIGNATURES, _inputs(lambda i: [*i, i[0]])),
    Lie("CONSISTENCY_INPUT", "in another order", SIGNATURES, _inputs(lambda i: i[::-1])),
    Lie(
        "CONSISTENCY_INPUT",
        "with another digest",
        SIGNATURES,
        _inputs(lambda i: _swapped(i, resigned(_by(4, i), replace(_by(4, i).body, digest=STRANGER)))),
    ),
    Lie(
        "CONSISTENCY_INPUT",
        "signed among other members",
        SIGNATURES,
        _inputs(lambda i: _swapped(i, forged(_by(4, i), 4, context=STRANGER))),
    ),
    Lie(
        "CONSISTENCY_INPUT",
        "of another session",
        SIGNATURES,
        _inputs(lambda i: _swapped(i, forged(_by(4, i), 4, session_id=STRANGER))),
    ),
    Lie("CONSISTENCY_INPUT", "forged", SIGNATURES, _inputs(lambda i: _swapped(i, forged(_by(4, i), TARGET)))),
    Lie("CONSISTENCY_QUORUM", "fewer than t", SIGNATURES, _signatures(lambda c, s: s[:3])),
]

RESULT_LIES = [
    Lie("RESULT_COUNT", "over one more", RESULT, lambda c, m: resigned(m, replace(m.body, count=m.body.count + 1))),
    Lie("RESULT_COUNT", "over one less", RESULT, lambda c, m: resigned(m, replace(m.body, count=m.body.count - 1))),
]

LIES = [*KEY_LIES, *SHARE_LIES, *HYBRID_LIES, *LIST_LIES, *LEVEL_LIES, *SIGNATURE_LIES, *RESULT_LIES]
