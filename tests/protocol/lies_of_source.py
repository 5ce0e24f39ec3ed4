"""What a lying source can tell the aggregator, made with the source's real keys, and the check that has to find it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cohort import TARGET, AnySigned, Cohort, forged, resigned, signer
from lies_of_aggregator import STRANGER

from securefda.protocol.agreement import BOX_BYTES
from securefda.protocol.messages import Abort, KeyAgreement, MasterShare, SelfMaskShare, Step, SurvivorSignature, Unmask

LIAR, DROPPED = 4, 5
KEYS, SHARES, INPUT, SIGNATURE, UNMASK = range(5)


@dataclass(frozen=True)
class SourceLie:
    """A lie in place of the liar's honest message, sent after all others have answered.

    Attributes:
        check: name of the check that refuses it.
        claim: the lie, in words.
        slot: which message is replaced, :data:`KEYS` to :data:`UNMASK`.
        tell: makes the lie from the honest message.
        vector: what is uploaded, made from the honest masked input.
    """

    check: str
    claim: str
    slot: int
    tell: Callable[[Cohort, AnySigned], AnySigned]
    vector: Callable[[Any], Any] | None = None
    setup: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.check} {self.claim}"


OUTSIDE: dict[str, Callable[[AnySigned], AnySigned]] = {
    "TYPE": lambda m: resigned(m, Abort(Step.RESULT, "X", None)),
    "SUITE": lambda m: forged(m, m.sender, suite=2),
    "SESSION": lambda m: forged(m, m.sender, session_id=STRANGER),
    "CONTEXT": lambda m: forged(m, m.sender, context=STRANGER),
    "SIGNATURE": lambda m: forged(m, TARGET),
}
"""Lies about the outside of any message of a source that may speak."""


def from_outside(message: AnySigned) -> AnySigned:
    """The same words from a site that has no part in the session."""
    return signer(TARGET).sign(message.envelope.session_id, message.envelope.context, message.body)


def _keys(**take: Callable[[Cohort, AnySigned], bytes]) -> Callable[[Cohort, AnySigned], AnySigned]:
    return lambda c, m: resigned(m, replace(m.body, **{name: make(c, m) for name, make in take.items()}))


def _key_of_another(cohort: Cohort, message: AnySigned) -> bytes:
    stolen: bytes = cohort.aggregator.received[0].body.mask_key
    return stolen


def _committed(commitment: bytes) -> Callable[[Cohort, AnySigned], AnySigned]:
    return lambda c, m: resigned(m, replace(m.body, report_commitment=commitment))


def _boxes(change: Callable[[list[Any]], list[Any]]) -> Callable[[Cohort, AnySigned], AnySigned]:
    return lambda c, m: resigned(m, replace(m.body, boxes=tuple(change(list(m.body.boxes)))))


def _shares(change: Callable[[list[Any]], list[Any]]) -> Callable[[Cohort, AnySigned], AnySigned]:
    return lambda c, m: resigned(m, Unmask(tuple(change(list(m.body.shares)))))


def _other_kind(share: SelfMaskShare | MasterShare) -> SelfMaskShare | MasterShare:
    return (MasterShare if isinstance(share, SelfMaskShare) else SelfMaskShare)(share.owner, share.share)


def _honest(cohort: Cohort, message: AnySigned) -> AnySigned:
    return message


def _length(by: int) -> Callable[[Cohort, AnySigned], AnySigned]:
    return lambda c, m: resigned(m, replace(m.body, length_bytes=m.body.length_bytes + by))


def _other_kem_key(cohort: Cohort, message: AnySigned) -> bytes:
    other = next(iter(cohort.aggregator.received.values()))
    return bytes(message.body.box_key[:32] + other.body.box_key[32:])


HYBRID: Mapping[str, Any] = {"changes": {"threshold": 4, "key_agreement": KeyAgreement.X25519_MLKEM768}}
HYBRID_LIES = [
    SourceLie("KEY_DUPLICATE", "ML-KEM key of another", KEYS, _keys(box_key=_other_kem_key), setup=HYBRID),
    SourceLie("KEY_INVALID", "no key of ML-KEM", KEYS, _keys(box_key=lambda c, m: m.body.box_key[:32]), setup=HYBRID),
    SourceLie(
        "KEY_INVALID",
        "a key of ML-KEM with numbers beyond the field",
        KEYS,
        _keys(box_key=lambda c, m: m.body.box_key[:32] + b"\xff" * 1184),
        setup=HYBRID,
    ),
    SourceLie(
        "KEY_INVALID",
        "box key of low order before one of ML-KEM",
        KEYS,
        _keys(box_key=lambda c, m: bytes(32) + m.body.box_key[32:]),
        setup=HYBRID,
    ),
    SourceLie(
        "SHARE_BOX",
        "a box of X25519",
        SHARES,
        _boxes(lambda b: [replace(b[0], box=b[0].box[:BOX_BYTES]), *b[1:]]),
        setup=HYBRID,
    ),
    SourceLie("INPUT_LENGTH", "without recovery values", INPUT, _honest, lambda v: v[: -5 * 32], setup=HYBRID),
    SourceLie("INPUT_DIGEST", "another recovery value", INPUT, _honest, lambda v: v[:-1] + b"\0", setup=HYBRID),
]


LIES = [
    SourceLie("KEY_DUPLICATE", "one key for both uses", KEYS, _keys(box_key=lambda c, m: m.body.mask_key)),
    SourceLie("KEY_DUPLICATE", "mask key of another", KEYS, _keys(mask_key=_key_of_another)),
    SourceLie("KEY_DUPLICATE", "mask key of another as box key", KEYS, _keys(box_key=_key_of_another)),
    SourceLie("KEY_INVALID", "mask key of low order", KEYS, _keys(mask_key=lambda c, m: bytes(32))),
    SourceLie("KEY_INVALID", "box key of low order", KEYS, _keys(box_key=lambda c, m: b"\1" + bytes(31))),
    SourceLie("SHARE_NONCE", "another nonce", SHARES, lambda c, m: resigned(m, replace(m.body, nonce=bytes(32)))),
    SourceLie("SHARE_REPORT", "no commitment to a norm report", SHARES, _committed(b"")),
    SourceLie("SHARE_BOX", "a box cut short", SHARES, _boxes(lambda b: [replace(b[0], box=b[0].box[:-1]), *b[1:]])),
    SourceLie("SHARE_RECIPIENTS", "no box for one", SHARES, _boxes(lambda b: b[1:])),
    SourceLie("SHARE_RECIPIENTS", "two boxes for one", SHARES, _boxes(lambda b: [*b, b[0]])),
    SourceLie("SHARE_RECIPIENTS", "one twice, one not", SHARES, _boxes(lambda b: [b[0], *b[:-1]])),
    SourceLie("SHARE_RECIPIENTS", "box for itself", SHARES, _boxes(lambda b: [*b, replace(b[0], peer=LIAR)])),
    SourceLie("SHARE_RECIPIENTS", "box for a stranger", SHARES, _boxes(lambda b: [*b, replace(b[0], peer=TARGET)])),
    SourceLie("INPUT_LENGTH", "one byte less", INPUT, _honest, lambda v: v[:-1]),
    SourceLie("INPUT_LENGTH", "one byte more", INPUT, _honest, lambda v: v + v[:1]),
    SourceLie("INPUT_LENGTH", "declares another length", INPUT, _length(4)),
    SourceLie("INPUT_LENGTH", "declares and sends another length", INPUT, _length(-4), lambda v: v[:-4]),
    SourceLie("INPUT_DIGEST", "another vector", INPUT, _honest, lambda v: bytes([v[0] ^ 1]) + v[1:]),
    SourceLie("INPUT_DIGEST", "another digest", INPUT, lambda c, m: resigned(m, replace(m.body, digest=STRANGER))),
    SourceLie(
        "SURVIVORS_DIGEST", "signs other lists", SIGNATURE, lambda c, m: resigned(m, SurvivorSignature(STRANGER))
    ),
    *HYBRID_LIES,
    SourceLie("UNMASK_SHARES", "a survivor left out", UNMASK, _shares(lambda s: s[1:])),
    SourceLie("UNMASK_SHARES", "a dropped source left out", UNMASK, _shares(lambda s: s[:-1])),
    SourceLie("UNMASK_SHARES", "a stranger's share", UNMASK, _shares(lambda s: [*s, replace(s[0], owner=TARGET)])),
    SourceLie("UNMASK_SHARES", "master of a survivor", UNMASK, _shares(lambda s: [_other_kind(s[0]), *s[1:]])),
    SourceLie("UNMASK_SHARES", "self mask of a dropped", UNMASK, _shares(lambda s: [*s[:-1], _other_kind(s[-1])])),
    SourceLie("UNMASK_SHARES", "its own master", UNMASK, _shares(lambda s: [*s[:-2], _other_kind(s[-2]), s[-1]])),
]
