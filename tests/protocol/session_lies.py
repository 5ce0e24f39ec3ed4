"""What a lying source sends in place of its honest messages, in any session: drawn, signed with its real key.

The liar runs the honest code, and each lie replaces one message that it has under way. Where honest code would notice
its own lie, its phase is changed to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
from cohort import AnySigned, Bytes, resigned, signer
from hypothesis import strategies as st
from session_sites import WIDTH, Source

from securefda.protocol.agreement import BoxAddress, SharePair
from securefda.protocol.encoding import N_STATISTICS
from securefda.protocol.messages import (
    Abort,
    Advertise,
    Checkpoint,
    Cosigned,
    Header,
    KeyList,
    MasterShare,
    Parcel,
    Refusal,
    SelfMaskShare,
    Signed,
    Step,
    SurvivorSignature,
)
from securefda.protocol.secret import Secret
from securefda.protocol.shamir import PRIME, LagrangeAtZero, x_of
from securefda.protocol.share_boxes import ShareBoxes, box_bytes, boxes_of
from securefda.protocol.source_session import AwaitingShares
from securefda.protocol.transcript import key_list_context

Draw = Callable[[st.SearchStrategy[Any]], Any]
STRANGER = sha256(b"a stranger").digest()
RING = 2**32
WEIGHT = WIDTH + 1
"""Place of the weight in an input."""


@dataclass
class Liar:
    """A source that may lie.

    Attributes:
        source: runs the honest code with the liar's real keys.
        boxes: what seals its boxes in each session, kept from erasure, so that it can seal others.
        masters: its master secret in each session, likewise.
        headers: that of each session.
        key_lists: the key list that it was shown in each session.
        claim: the codes that it reports in place of its norms, from the next key list on; None: the true ones.
        claimed: those that it reported in each session.
        added: what was added to its input, by digest of the masked input; WIDTH + N_STATISTICS numbers in the ring.
    """

    source: Source
    boxes: dict[bytes, ShareBoxes] = field(default_factory=dict)
    masters: dict[bytes, Secret] = field(default_factory=dict)
    headers: dict[bytes, Header] = field(default_factory=dict)
    key_lists: dict[bytes, Signed[KeyList]] = field(default_factory=dict)
    claim: bytes | None = None
    claimed: dict[bytes, bytes] = field(default_factory=dict)
    added: dict[bytes, Any] = field(default_factory=dict)

    def overhear(self, message: AnySigned) -> None:
        """Keep what a lie may need, before the honest code processes a message."""
        phase = self.source.phase
        if isinstance(message.body, KeyList) and hasattr(phase, "secrets") and len(phase.secrets.private):
            session = message.envelope.session_id
            self.boxes[session] = boxes_of(phase.session.header.body, Secret(phase.secrets.private.reveal()))
            self.headers[session] = phase.session.header.body
            self.masters[session] = Secret(phase.secrets.master.reveal())
            self.key_lists[session] = message
            self._report_falsely(session)

    def _report_falsely(self, session: bytes) -> None:
        """Train, and put other codes in the place of the true ones, before the honest code commits to them."""
        rounds = self.source.rounds
        rounds.train()
        current = rounds._round
        if self.claim is not None and current and current.pending and current.pending.report:
            report = replace(current.pending.report, codes=self.claim)
            rounds._round = replace(current, pending=replace(current.pending, report=report))
            self.claimed[session] = self.claim

    def pretend(self, **changes: Any) -> None:
        """Change the phase of the honest code, so that it stands by a lie."""
        current = self.source.rounds._round
        if current is not None and all(hasattr(current.phase, name) for name in changes):
            self.source.rounds._round = replace(current, phase=replace(current.phase, **changes))


@dataclass(frozen=True)
class Scene:
    """What a lie is made from: the liar, its honest parcel, and earlier messages."""

    liar: Liar
    parcel: Parcel
    heard: list[AnySigned]
    draw: Draw

    @property
    def message(self) -> AnySigned:
        return self.parcel.message

    def with_body(self, body: object) -> Parcel:
        return Parcel(resigned(self.message, body), self.parcel.vectors)

    def any_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def some_of(self, items: list[Any]) -> Any:
        """A subset that is not empty."""
        return self.draw(st.sets(st.sampled_from(items), min_size=1))


Lie = Callable[[Scene], Parcel]


def keys(scene: Scene) -> Parcel:
    """R0: keys or commitments that follow from no secret of the liar, are another's, or give no shared secret.

    Or true ones, and in R1 another norm report: as much as the clip allows, less than it is, or none.
    """
    body: Advertise = scene.message.body
    of_kem = body.box_key[32:]
    known = [message.body.mask_key for message in scene.heard if isinstance(message.body, Advertise)]
    choices: list[dict[str, Any]] = [
        {"mask_key": STRANGER},
        {"box_key": STRANGER + of_kem},
        {"self_mask_commitment": STRANGER},
        {"nonce_commitment": STRANGER},
        {"mask_key": bytes(32)},
        {"box_key": b"\1" + bytes(31) + of_kem},
        {"box_key": body.box_key[:32]},
        {"box_key": body.box_key[:32] + b"\xff" * 1184},
        {"mask_key": body.box_key[:32], "box_key": body.mask_key + of_kem},
        *({"mask_key": key} for key in known),
        *({"box_key": key + of_kem} for key in known),
    ]
    if scene.any_of("keys", "report") == "report":
        scene.liar.claim = bytes([scene.any_of(255, 252, 251, 0)])
        return scene.parcel
    lie = scene.with_body(replace(body, **scene.any_of(*choices)))
    scene.liar.pretend(own=lie.message)
    return lie


def boxes(scene: Scene) -> Parcel:
    """R1: boxes that do not open, hold shares off the polynomial, or go to the wrong sources; another nonce.

    Or boxes with halves that do not follow from the liar's master secret; a wrong commitment to its norm report.
    """
    body, hows = scene.message.body, ("garbled", "dealt wrong", "other halves", "recipients", "nonce", "commitment")
    how = scene.any_of(*hows)
    if how == "nonce":
        return scene.with_body(replace(body, nonce=STRANGER))
    if how == "commitment":
        return scene.with_body(replace(body, report_commitment=scene.any_of(b"", STRANGER)))
    if how == "recipients":
        return scene.with_body(replace(body, boxes=scene.any_of(body.boxes[1:], (*body.boxes, body.boxes[0]))))
    harmed = scene.some_of([box.peer for box in body.boxes])
    change = {"garbled": _garbled, "dealt wrong": _dealt_wrong, "other halves": _other_half}[how]
    changed = tuple(replace(box, box=change(scene, box)) if box.peer in harmed else box for box in body.boxes)
    return scene.with_body(replace(body, boxes=changed))


def _garbled(scene: Scene, box: Any) -> bytes:
    place = scene.any_of(0, -1)  # the KEM's ciphertext, where there is one, or the tag
    garbled = bytearray(box.box)
    garbled[place] ^= 1
    return bytes(garbled)


def _dealt_wrong(scene: Scene, box: Any) -> bytes:
    """A box that opens and holds shares of nothing, as far as the liar knows its recipient's key."""
    return _sealed(scene, box, lambda master: master)


def _other_half(scene: Scene, box: Any) -> bytes:
    """A box that opens and holds, beside such shares, a pair secret of another master."""
    return _sealed(scene, box, lambda _: Secret(STRANGER))


def _sealed(scene: Scene, box: Any, master_of: Callable[[Secret], Secret]) -> bytes:
    liar, session = scene.liar, scene.message.envelope.session_id
    if session not in liar.key_lists:
        return _garbled(scene, box)
    key_list = liar.key_lists[session].body
    ctx1 = key_list_context(scene.message.envelope.context, key_list.advertisements)
    ctx1 = scene.message.envelope.context or ctx1
    committed = scene.message.body.report_commitment
    address = BoxAddress(ctx1, scene.message.sender, box.peer, report_commitment=committed)
    theirs = next(item.body.box_key for item in key_list.advertisements if item.sender == box.peer)
    wrong = SharePair(Secret(b"\0" + STRANGER), Secret(b"\0" + STRANGER))
    report = None
    if len(box.box) > box_bytes(liar.headers[session]):
        if not isinstance(liar.source.phase, AwaitingShares):
            return _garbled(scene, box)
        report = liar.source.phase.secrets.report
    master, drawn = master_of(liar.masters[session]), Bytes("wrong box", box.peer)
    return liar.boxes[session].seal(address, theirs, wrong, report, master=master, random_bytes=drawn)


def vector(scene: Scene) -> Parcel:
    """R2: an input that no training gave, within the range, beyond it or noise; or not the one that is signed.

    Or recovery values that are not the liar's.
    """
    how = scene.any_of("one more", "one less", "heavier", "lighter", "beyond", "noise", "digest", "cut", "recovery")
    whole, length = scene.parcel.vectors[0], 4 * (WIDTH + N_STATISTICS)
    masked, recovery = np.frombuffer(whole[:length], np.uint32), bytes(whole[length:])
    q_max = _unit_of(scene)
    added = np.zeros(WIDTH + N_STATISTICS, np.uint32)
    place = scene.draw(st.integers(0, WIDTH - 1))
    match how:
        case "one more" | "one less":
            added[place] = q_max if how == "one more" else RING - q_max
        case "heavier" | "lighter":
            added[WEIGHT] = q_max if how == "heavier" else RING - q_max
        case "beyond":
            added[place] = RING // 2
        case "noise":
            added = np.frombuffer(Bytes("noise", place)(4 * len(added)), np.uint32)
        case "digest":
            return scene.with_body(replace(scene.message.body, digest=STRANGER))
        case "cut":
            return Parcel(scene.message, (whole[:-4],))
        case "recovery":
            recovery = bytes(byte ^ 1 for byte in recovery)
    data = (masked + added).astype(np.uint32).tobytes() + recovery
    digest = sha256(data).digest()
    scene.liar.added[digest] = added + scene.liar.added.get(sha256(whole).digest(), np.uint32(0))
    scene.liar.pretend(input_digest=digest)
    return Parcel(resigned(scene.message, replace(scene.message.body, digest=digest)), (data,))


def _unit_of(scene: Scene) -> int:
    header = scene.liar.source.header
    return ((RING // 2 - 1) // header.body.n_max) if header else 1


def signature(scene: Scene) -> Parcel:
    """R3: a signature over other lists."""
    return scene.with_body(SurvivorSignature(STRANGER))


def shares(scene: Scene) -> Parcel:
    """R4: wrong shares of some secrets, shares that were not asked for, or too few."""
    body, how = scene.message.body, scene.any_of("wrong", "beyond the field", "other kind", "fewer")
    harmed = scene.some_of([share.owner for share in body.shares])
    if how == "fewer":
        return scene.with_body(replace(body, shares=tuple(s for s in body.shares if s.owner not in harmed)))
    changes = {"wrong": off_by(1), "beyond the field": _beyond_the_field, "other kind": _other_kind}
    changed = tuple(changes[how](s) if s.owner in harmed else s for s in body.shares)
    return scene.with_body(replace(body, shares=changed))


def log(scene: Scene) -> Parcel:
    """Its own log: one that does not follow from what was shown, is not its own, or is not known to be read so far."""
    body: Checkpoint = scene.message.body
    others = [message.body.note for message in scene.heard if isinstance(message.body, Checkpoint)]
    changes: list[dict[str, Any]] = [
        {"note": body.note[:-5] + b"AAA=\n"},
        {"note": b"no note"},
        {"note": scene.any_of(body.note, *others)},
        {"old_size": body.old_size + 1},
        {"old_size": 0, "proof": ()},
        {"proof": (*body.proof, STRANGER)},
        {"known": body.known + 1},
        {"known": 0},
    ]
    return scene.with_body(replace(body, **scene.any_of(*changes)))


def cosignature(scene: Scene) -> Parcel:
    """A line that is no signature, of another site, or over another checkpoint."""
    body: Cosigned = scene.message.body
    others = [message.body for message in scene.heard if isinstance(message.body, Cosigned)]
    lies = [replace(body, size=body.size + 1), replace(body, signature="no line"), *others]
    lies += [replace(body, signature=other.signature) for other in others]
    return scene.with_body(scene.any_of(*lies))


Share = SelfMaskShare | MasterShare


def off_by(amount: int) -> Callable[[Share], Share]:
    """A share of another value in the field."""

    def change(share: Share) -> Share:
        value = (int.from_bytes(share.share, "big") + amount) % PRIME
        return replace(share, share=value.to_bytes(33, "big"))

    return change


def _beyond_the_field(share: Share) -> Share:
    return replace(share, share=b"\xff" * 33)


def _other_kind(share: Share) -> Share:
    return (MasterShare if isinstance(share, SelfMaskShare) else SelfMaskShare)(share.owner, share.share)


def balanced(asked: list[int], threshold: int, first: int, second: int) -> tuple[int, int]:
    """What two liars add to their shares so that the t lowest shares give the right secret all the same."""
    lowest = sorted(asked)[:threshold]
    weights = LagrangeAtZero.over([x_of(holder) for holder in lowest])
    weight = dict(zip(lowest, weights.weights, strict=True))
    return 1, -weight[first] * pow(weight[second], -1, PRIME) % PRIME


def outside(scene: Scene) -> Parcel:
    """Any message, with another outside, or the words of an earlier message signed anew."""
    message = scene.message
    envelope = message.envelope
    own = signer(message.sender)
    how = scene.any_of("session", "context", "echo", "abort", "refusal")
    if how == "session":
        return Parcel(own.sign(STRANGER, envelope.context, message.body), scene.parcel.vectors)
    if how == "context":
        return Parcel(own.sign(envelope.session_id, STRANGER, message.body), scene.parcel.vectors)
    if how == "echo" and scene.heard:
        return scene.with_body(scene.any_of(*scene.heard).body)
    if how == "abort":
        return scene.with_body(Abort(Step.SHARES, "SHARE_BOX", scene.draw(st.integers(0, 8))))
    return scene.with_body(Refusal("min-others"))


LIES: Mapping[str, Lie] = {
    "Advertise": keys,
    "ShareBundle": boxes,
    "MaskedInput": vector,
    "SurvivorSignature": signature,
    "Unmask": shares,
    "Checkpoint": log,
    "Cosigned": cosignature,
}
