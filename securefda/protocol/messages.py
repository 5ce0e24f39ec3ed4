"""Every message of SFDA-SA/1 and SFDA-SA/2 as a frozen type that cannot be malformed.

A message is an :class:`Envelope` around one body. The sender serialises the envelope once and signs those
bytes; the receiver verifies and hashes the very same bytes (:class:`Signed` carries them verbatim), so the
protocol never depends on a serialiser that gives the same bytes twice. How a body becomes bytes is the business
of ``securefda.transport.wire``; here are only the fields and their invariants.

Sites are named by their roster index. All digests are SHA-256 (32 bytes).

The envelope is in :mod:`securefda.protocol.envelope`, the header that opens a session in
:mod:`securefda.protocol.header`; both are imported from here.

Messages that belong to a run: who is there, which results were taken, the checkpoints of the logs, and the end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum

from securefda.protocol.build import Build
from securefda.protocol.envelope import (
    DIGEST_BYTES,
    MAX_BOX_BYTES,
    MAX_LINE_CHARACTERS,
    MAX_NOTE_BYTES,
    MAX_PROOF_HASHES,
    NO_CONTEXT,
    NO_SESSION,
    RUN_ID_BYTES,
    SESSION_ID_BYTES,
    SIGNATURE_BYTES,
    SUITE,
    BodyT,
    Envelope,
    Signed,
    Signer,
    expect,
    expect_bytes,
    expect_finite,
    expect_rising,
)
from securefda.protocol.header import (
    GRAM_LAYER,
    PULL_LAYER,
    AttentionTerms,
    DownLink,
    FeatureTerms,
    Granularity,
    GraphTerms,
    Header,
    KeyAgreement,
    Layer,
    NormCapTerms,
    RuleTerms,
    SourcesKeep,
    TargetTerms,
    Visibility,
)
from securefda.protocol.packing import WORD_BITS

__all__ = [  # from `envelope` and `header`; what is defined below is public as well
    "DIGEST_BYTES",
    "GRAM_LAYER",
    "MAX_BOX_BYTES",
    "MAX_LINE_CHARACTERS",
    "MAX_NOTE_BYTES",
    "MAX_PROOF_HASHES",
    "NO_CONTEXT",
    "NO_SESSION",
    "PULL_LAYER",
    "RUN_ID_BYTES",
    "SESSION_ID_BYTES",
    "SIGNATURE_BYTES",
    "SUITE",
    "AttentionTerms",
    "BodyT",
    "Build",
    "DownLink",
    "Envelope",
    "FeatureTerms",
    "Granularity",
    "GraphTerms",
    "Header",
    "KeyAgreement",
    "Layer",
    "NormCapTerms",
    "RuleTerms",
    "Signed",
    "Signer",
    "SourcesKeep",
    "TargetTerms",
    "Visibility",
]

KEY_BYTES = 32
"""Length of a key of AES-256."""

BOX_KEY_LENGTHS = (32, 1216)
"""Bytes of a public box key: of X25519, and of X25519 with ML-KEM-768."""

MAX_RULES = 64
"""Most rules of a schedule. A run uses a handful."""


@dataclass(frozen=True, slots=True)
class Join:
    """A source reports for a run, with the architecture it built itself and the most that may be seen of it.

    ``metrics`` says whether it hands in loss and accuracy over its training rows; with DP-SGD it has none. ``known`` is
    how many records of the aggregator's log of this run it has cosigned.
    """

    architecture_digest: bytes
    visibility: Visibility
    metrics: bool
    known: int = 0
    build: Build = field(default_factory=Build.own)

    def __post_init__(self) -> None:
        expect_bytes(self.architecture_digest, DIGEST_BYTES, "architecture_digest")


@dataclass(frozen=True, slots=True)
class Receipt:
    """A source has accepted a result: the ``number``-th of the run, counted from 1, which closed round ``round``.

    It is signed under the session and the context of that result. Who was away takes a model that enough others have
    given a receipt for.
    """

    run_id: bytes
    round: int
    number: int
    result_digest: bytes
    model_digest: bytes

    def __post_init__(self) -> None:
        expect_bytes(self.run_id, RUN_ID_BYTES, "run_id")
        expect(self.round >= 1 and self.number >= 1, "round and number count from 1")
        expect(self.number <= self.round, "no round has more than one result")
        expect_bytes(self.result_digest, DIGEST_BYTES, "result_digest")
        expect_bytes(self.model_digest, DIGEST_BYTES, "model_digest")


@dataclass(frozen=True, slots=True)
class MissedResult:
    """The last result and the receipts for it, verbatim: for a source that has given none."""

    result: Signed[Result]
    receipts: tuple[Signed[Receipt], ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that the headers of a run can ask for, so that a source can refuse by its policy before the first.

    It promises nothing: a header is judged by itself, whatever this said.

    Attributes:
        run_id: 16 bytes.
        rounds: the last one in which sources can take part.
        rules: every rule, with its settings, that a header can have.
        learning_rate: of the target, before the factor of a rule.
        clip: of every layer.
        modulus_bits: fewest that a header can have.
        n_max, max_samples, training_deadline_ms, phase_deadline_ms: as in the headers.
        norm_cap_kappa, norm_cap_granularity: of the norm cap at ``sum``; a kappa of 0 for none.
        sources_keep, key_agreement: as in the headers.
    """

    run_id: bytes
    rounds: int
    rules: tuple[RuleTerms, ...]
    learning_rate: float
    clip: float
    modulus_bits: int
    n_max: int
    max_samples: int
    training_deadline_ms: int
    phase_deadline_ms: int
    norm_cap_kappa: float
    norm_cap_granularity: Granularity
    sources_keep: SourcesKeep
    key_agreement: KeyAgreement = KeyAgreement.X25519

    def __post_init__(self) -> None:
        expect_bytes(self.run_id, RUN_ID_BYTES, "run_id")
        expect(0 < len(self.rules) <= MAX_RULES, f"a schedule has 1 to {MAX_RULES} rules")
        expect(len(set(self.rules)) == len(self.rules), "the rules of a schedule must differ")
        for name in ("learning_rate", "clip"):
            expect_finite(getattr(self, name), name, positive=True)
        expect(self.modulus_bits in WORD_BITS, f"modulus_bits must be one of {WORD_BITS}")
        expect(min(self.rounds, self.n_max, self.max_samples) >= 1, "rounds, n_max and max_samples count from 1")
        expect(min(self.training_deadline_ms, self.phase_deadline_ms) >= 1, "deadlines must be above 0")
        expect_finite(self.norm_cap_kappa, "norm_cap_kappa")
        expect(self.norm_cap_kappa >= 0, "norm_cap_kappa must not be negative")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The sender's audit log as it is: a signed note, for the receiver to cosign.

    ``old_size`` is how many records of it the receiver said that it has cosigned, 0 for none, and ``proof`` leads from
    there to the checkpoint (RFC 9162, section 2.1.4). ``known`` is how many records of the receiver's log the sender
    has cosigned.
    """

    note: bytes
    old_size: int
    proof: tuple[bytes, ...]
    known: int

    def __post_init__(self) -> None:
        expect(0 < len(self.note) <= MAX_NOTE_BYTES, f"a note has 1 to {MAX_NOTE_BYTES} bytes")
        expect(len(self.proof) <= MAX_PROOF_HASHES, f"a proof has at most {MAX_PROOF_HASHES} hashes")
        expect(min(self.old_size, self.known) >= 0, "sizes must not be negative")
        for node in self.proof:
            expect_bytes(node, DIGEST_BYTES, "a hash of the proof")


@dataclass(frozen=True, slots=True)
class Cosigned:
    """The sender's cosignature over the receiver's checkpoint of ``size`` records: a line of a signed note.

    If the checkpoint was signed with ML-DSA too, a second line is of ML-DSA.
    """

    size: int
    signature: str

    def __post_init__(self) -> None:
        expect(self.size >= 1, "a checkpoint of no records is not cosigned")
        expect(0 < len(self.signature) <= MAX_LINE_CHARACTERS, f"it has 1 to {MAX_LINE_CHARACTERS} characters")


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The aggregator ends the run: ``completed`` says whether every round was done, ``reason`` why not.

    Where the run leaves its sources the final model, that travels beside the message: ``result_digest`` is of the
    run's last signed result, ``model_digest`` of its model. Both are empty elsewhere. ``down_link`` is in what it
    travels.
    """

    completed: bool
    rounds: int
    reason: str
    result_digest: bytes = b""
    model_digest: bytes = b""
    down_link: DownLink = DownLink.FLOAT32

    def __post_init__(self) -> None:
        expect(len(self.reason) <= 500, "reason has at most 500 characters")
        expect(self.reason.isprintable(), "reason must be printable")
        lengths = {len(self.result_digest), len(self.model_digest)}
        expect(lengths in ({0}, {DIGEST_BYTES}), "result_digest and model_digest must both be empty or 32 bytes")
        expect(self.completed or not self.model_digest, "a model comes with the end of a complete run alone")
        expect(bool(self.model_digest) or not self.down_link, "a format without a model")


class Step(IntEnum):
    """A step of a round, as aborts name it."""

    HEADER = 1
    TRAINING = 2
    ADVERTISE = 3
    SHARES = 4
    MASKED_INPUT = 5
    SURVIVORS = 6
    UNMASK = 7
    RESULT = 8

    @property
    def label(self) -> str:
        """The step in words."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Advertise:
    """R0: the source's two public keys of this session, and commitments to what it reveals or shares later.

    The box key has a second part where the header asks for ML-KEM-768.
    """

    mask_key: bytes
    box_key: bytes
    self_mask_commitment: bytes
    nonce_commitment: bytes

    def __post_init__(self) -> None:
        for name in ("mask_key", "self_mask_commitment", "nonce_commitment"):
            expect_bytes(getattr(self, name), 32, name)
        expect(len(self.box_key) in BOX_KEY_LENGTHS, f"box_key must be one of {BOX_KEY_LENGTHS} bytes")


@dataclass(frozen=True, slots=True)
class KeyList:
    """R0': every Advertise message, verbatim; its senders are U1."""

    advertisements: tuple[Signed[Advertise], ...]


@dataclass(frozen=True, slots=True)
class Roll:
    """R0' of SFDA-SA/2: U1, and of each member the digest of its Advertise message and the commitment to its nonce.

    Both are one after the other in the order of the members, 32 bytes each.
    """

    members: tuple[int, ...]
    digests: bytes
    commitments: bytes

    def __post_init__(self) -> None:
        expect_rising(self.members)
        expect_bytes(self.digests, DIGEST_BYTES * len(self.members), "digests")
        expect_bytes(self.commitments, DIGEST_BYTES * len(self.members), "commitments")

    def digest_of(self, member: int) -> bytes:
        """SHA-256 of a member's signed Advertise message.

        Raises:
            ValueError: it is no member.
        """
        return nth_digest(self.digests, self.members.index(member))

    def commitment_of(self, member: int) -> bytes:
        """A member's commitment to its nonce.

        Raises:
            ValueError: it is no member.
        """
        return nth_digest(self.commitments, self.members.index(member))


@dataclass(frozen=True, slots=True)
class Nonce:
    """SFDA-SA/2: the nonce that was committed to in R0. The ring is drawn from those of all."""

    nonce: bytes

    def __post_init__(self) -> None:
        expect_bytes(self.nonce, 32, "nonce")


@dataclass(frozen=True, slots=True)
class Neighbours:
    """SFDA-SA/2: who revealed a nonce and which, and the Advertise messages of the receiver's neighbours, verbatim."""

    members: tuple[int, ...]
    nonces: bytes
    advertisements: tuple[Signed[Advertise], ...]

    def __post_init__(self) -> None:
        expect_rising(self.members)
        expect_bytes(self.nonces, 32 * len(self.members), "nonces")

    def nonce_by_member(self) -> dict[int, bytes]:
        """The nonce of each member."""
        return {member: nth_digest(self.nonces, place) for place, member in enumerate(self.members)}


def nth_digest(digests: bytes, place: int) -> bytes:
    """One of several values of 32 bytes that stand one after the other."""
    return digests[DIGEST_BYTES * place : DIGEST_BYTES * (place + 1)]


@dataclass(frozen=True, slots=True)
class ShareBox:
    """One encrypted pair of shares for the recipient ``peer``, and the sender's norm report where both are of a sum."""

    peer: int
    box: bytes

    def __post_init__(self) -> None:
        expect(0 < len(self.box) <= MAX_BOX_BYTES, f"a share box has 1 to {MAX_BOX_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class ShareBundle:
    """R1 up: one box for each other member of U1, or each neighbour, and the nonce that was committed to in R0.

    ``report_commitment`` is to the opening of the norm report that boxes hold where one is due; empty in SFDA-SA/2.
    """

    boxes: tuple[ShareBox, ...]
    nonce: bytes
    report_commitment: bytes = b""

    def __post_init__(self) -> None:
        expect_bytes(self.nonce, 32, "nonce")
        expect(len(self.report_commitment) in (0, 32), "report_commitment must be empty or 32 bytes")


@dataclass(frozen=True, slots=True)
class DeliveredBox:
    """What member ``peer`` of U2 sent to the recipient: a share box, its nonce, and its commitment in SFDA-SA/1."""

    peer: int
    box: bytes
    nonce: bytes
    report_commitment: bytes = b""

    def __post_init__(self) -> None:
        expect(0 < len(self.box) <= MAX_BOX_BYTES, f"a share box has 1 to {MAX_BOX_BYTES} bytes")
        expect_bytes(self.nonce, 32, "nonce")
        expect(len(self.report_commitment) in (0, 32), "report_commitment must be empty or 32 bytes")


@dataclass(frozen=True, slots=True)
class ShareDelivery:
    """R1 down: one box and nonce from each other member of U2; in SFDA-SA/2 from neighbours, and U2 in ``members``."""

    boxes: tuple[DeliveredBox, ...]
    members: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        expect_rising(self.members)


@dataclass(frozen=True, slots=True)
class MaskedInput:
    """R2: the digest of the masked vector; the vector itself travels beside the message."""

    digest: bytes
    length_bytes: int

    def __post_init__(self) -> None:
        expect_bytes(self.digest, DIGEST_BYTES, "digest")
        expect(self.length_bytes > 0, "length_bytes must be above 0")


@dataclass(frozen=True, slots=True)
class Update:
    """Visibility ``individual``: the digest of the update in clear (float32) and the number of samples behind it.

    With ``rounding_key`` the aggregator rounds the source's contribution, as the source does by itself elsewhere.
    ``loss`` and ``accuracy`` are means over the training rows, where the header has ``metrics`` and the site's policy
    lets them leave. ``alignment`` is the factor that aligns the update with the target's schedule, where the rule
    averages it as it is and estimates from aligned steps; None elsewhere.
    """

    digest: bytes
    length_bytes: int
    samples: int
    rounding_key: bytes = field(repr=False)
    loss: float | None = None
    accuracy: float | None = None
    alignment: float | None = None

    def __post_init__(self) -> None:
        expect_bytes(self.digest, DIGEST_BYTES, "digest")
        expect(self.length_bytes > 0 and self.samples >= 1, "length_bytes and samples must be above 0")
        expect_bytes(self.rounding_key, KEY_BYTES, "rounding_key")
        if self.loss is not None:
            expect_finite(self.loss, "loss")
        expect(self.accuracy is None or 0 <= self.accuracy <= 1, "accuracy must lie in [0, 1]")
        if self.alignment is not None:
            expect_finite(self.alignment, "alignment")
            expect(self.alignment > 0, "alignment must be above 0")


@dataclass(frozen=True, slots=True)
class Survivor:
    """A member of U3 and the digest of the masked input that entered the sum."""

    index: int
    input_digest: bytes

    def __post_init__(self) -> None:
        expect_bytes(self.input_digest, DIGEST_BYTES, "input_digest")


@dataclass(frozen=True, slots=True)
class Survivors:
    """R3: U3 with the digests of what was summed, and the dropped, U2 without U3.

    ``reports_digest`` is over what U2 committed to in R1; empty in SFDA-SA/2. It adds nothing to what every source
    knows, and lets a reader of receipts compute the context.
    """

    survivors: tuple[Survivor, ...]
    dropped: tuple[int, ...]
    reports_digest: bytes = b""

    def __post_init__(self) -> None:
        expect(len(self.reports_digest) in (0, DIGEST_BYTES), "reports_digest must be empty or 32 bytes")


@dataclass(frozen=True, slots=True)
class SurvivorSignature:
    """R3: a survivor's signature, given once per session, over the digest of the lists it was shown."""

    survivors_digest: bytes

    def __post_init__(self) -> None:
        expect_bytes(self.survivors_digest, DIGEST_BYTES, "survivors_digest")


@dataclass(frozen=True, slots=True)
class Consistency:
    """R3': the survivors' signatures and masked input messages, verbatim; the vectors stay where they are."""

    signatures: tuple[Signed[SurvivorSignature], ...]
    inputs: tuple[Signed[MaskedInput], ...]


@dataclass(frozen=True, slots=True)
class NeighbourConsistency(Consistency):
    """R3' of SFDA-SA/2: likewise of those whose shares the receiver holds, so that each gets another message."""


@dataclass(frozen=True, slots=True)
class SelfMaskShare:
    """R4: the sender's share of the self mask seed of a survivor."""

    owner: int
    share: bytes = field(repr=False)

    def __post_init__(self) -> None:
        expect_bytes(self.share, 33, "share")


@dataclass(frozen=True, slots=True)
class MasterShare:
    """R4: the sender's share of the master secret of a dropped source."""

    owner: int
    share: bytes = field(repr=False)

    def __post_init__(self) -> None:
        expect_bytes(self.share, 33, "share")


@dataclass(frozen=True, slots=True)
class Unmask:
    """R4: one share per member of U2 whose shares it holds; which kind is a tagged union, so no owner can have both."""

    shares: tuple[SelfMaskShare | MasterShare, ...]

    def __post_init__(self) -> None:
        expect(len({share.owner for share in self.shares}) == len(self.shares), "one share per owner")


@dataclass(frozen=True, slots=True)
class Result:
    """Closes a round: what was summed, over how many sources, and the model that came out.

    It is signed under the header's digest, so that every participant, whatever its level, gets the same bytes.
    """

    sum_digest: bytes
    count: int
    model_digest: bytes

    def __post_init__(self) -> None:
        expect(len(self.sum_digest) in (0, DIGEST_BYTES), "sum_digest must be empty or 32 bytes")
        expect_bytes(self.model_digest, DIGEST_BYTES, "model_digest")
        expect(self.count >= 0, "count must not be negative")


@dataclass(frozen=True, slots=True)
class Abort:
    """Ends a session for good: the step, the check that failed and the accused site, if there is one."""

    step: Step
    check: str
    accused: int | None

    def __post_init__(self) -> None:
        expect(0 < len(self.check) <= 64, "check must have 1 to 64 characters")
        expect(re.fullmatch("[A-Z0-9_]+", self.check) is not None, "check must be a name of a check")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A source takes no part in this attempt; it names the policy key or the check and nothing else."""

    key: str

    def __post_init__(self) -> None:
        expect(0 < len(self.key) <= 64, "key must have 1 to 64 characters")
        expect(re.fullmatch("[A-Za-z0-9_.-]+", self.key) is not None, "key must be a policy key or a name of a check")


Body = (
    Header
    | Advertise
    | KeyList
    | Roll
    | Nonce
    | Neighbours
    | ShareBundle
    | ShareDelivery
    | MaskedInput
    | Update
    | Survivors
    | SurvivorSignature
    | Consistency
    | NeighbourConsistency
    | Unmask
    | Result
    | Abort
    | Refusal
    | Join
    | Checkpoint
    | Cosigned
    | Goodbye
    | Receipt
    | MissedResult
    | Schedule
)


@dataclass(frozen=True, slots=True)
class Parcel:
    """A signed message with the vectors that travel beside it, in the order in which its body names their digests.

    The repr leaves the vectors out: at ``individual`` one of them is an update in clear.
    """

    message: Signed[Body]
    vectors: tuple[bytes | bytearray | memoryview, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Send:
    """A parcel for one site, by roster index."""

    to: int
    parcel: Parcel


def vector_digests(body: Body) -> tuple[bytes, ...]:
    """Digests of the vectors that travel beside a message, in order."""
    match body:
        case Header(model_digest=model_digest, published_digest=published_digest, features=features):
            optional = (
                features.digest if features else b"",
                published_digest,
            )  # the first go to all, the second to some
            return (model_digest, *(digest for digest in optional if digest))
        case MaskedInput(digest=digest) | Update(digest=digest):
            return (digest,)
        case Goodbye(model_digest=model_digest) if model_digest:
            return (model_digest,)
        case _:
            return ()
