"""Every message of SFDA-SA/1 as a frozen type that cannot be malformed.

A message is an :class:`Envelope` around one body. Whoever sends it serialises the envelope once and signs those
bytes; whoever receives it verifies and hashes the very same bytes (:class:`Signed` carries them verbatim), so the
protocol never depends on a serialiser that gives the same bytes twice. How a body becomes bytes is the business
of ``securefda.transport.wire``; here are only the fields and their invariants.

Sites are named by their roster index. All digests are SHA-256 (32 bytes).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from typing import Generic, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.secagg.signatures import sign_bytes, signature_is_valid

SUITE = 1
DIGEST_BYTES = 32
SESSION_ID_BYTES = 32
RUN_ID_BYTES = 16
KEY_BYTES = 32
SIGNATURE_BYTES = 64
NO_SESSION = bytes(SESSION_ID_BYTES)
NO_CONTEXT = b""
MAX_NOTE_BYTES = 512 * 1024
MAX_PROOF_HASHES = 128
MAX_LINE_CHARACTERS = 1024


class Visibility(IntEnum):
    """What the aggregator is permitted to see of a source; a higher number hides more."""

    INDIVIDUAL = 1
    COHORT = 2
    SUM = 3

    @property
    def label(self) -> str:
        """The name in configuration files and logs."""
        return self.name.lower()


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


class Granularity(IntEnum):
    """What the energy rule holds for: each layer, or the vector as a whole."""

    LAYER = 1
    MODEL = 2

    @property
    def label(self) -> str:
        """The name in configuration files and logs."""
        return self.name.lower()


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _require_bytes(value: bytes, length: int, name: str) -> None:
    _require(len(value) == length, f"{name} must be {length} bytes, not {len(value)}")


def _require_finite(value: float, name: str, *, positive: bool = False) -> None:
    _require(math.isfinite(value), f"{name} must be finite")
    _require(not positive or value > 0, f"{name} must be above 0")


@dataclass(frozen=True, slots=True)
class Layer:
    """One named parameter tensor and the largest absolute coordinate that travels of it."""

    name: str
    shape: tuple[int, ...]
    clip: float

    def __post_init__(self) -> None:
        _require(0 < len(self.name) <= 200, "a layer's name must have 1 to 200 characters")
        _require(all(0 < side < 2**31 for side in self.shape), f"layer {self.name}: every side must be above 0")
        _require_finite(self.clip, f"layer {self.name}: clip", positive=True)

    @property
    def size(self) -> int:
        """Number of parameters of the layer."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class RuleTerms:
    """Which rule the round evaluates, and its settings; the meaning is in ``securefda.adaptation``.

    ``select`` asks for the estimated errors of the rules, from which the aggregator chooses that of the next round.
    """

    rule: str
    beta: float
    projection: str
    filter: bool
    align: bool
    estimator: str
    learning_rate_factor: float
    select: bool = False

    def __post_init__(self) -> None:
        _require(0 <= self.beta <= 1, "beta must lie in [0, 1]")
        _require_finite(self.learning_rate_factor, "learning_rate_factor", positive=True)


@dataclass(frozen=True, slots=True)
class TargetTerms:
    """What sources need of the target to align and to evaluate the rule themselves.

    ``steps`` is B and ``learning_rate`` the target's effective rate. The other three are published only where the
    rule runs inside the sources: the digest of g_T (float32 little-endian), M and S_x.
    """

    steps: int
    learning_rate: float
    update_digest: bytes = b""
    mean_square: float = 0.0
    scatter: float = 0.0

    def __post_init__(self) -> None:
        _require(self.steps >= 1, "steps must be at least 1")
        _require_finite(self.learning_rate, "learning_rate", positive=True)
        _require(len(self.update_digest) in (0, DIGEST_BYTES), "update_digest must be empty or 32 bytes")
        _require_finite(self.mean_square, "mean_square")
        _require_finite(self.scatter, "scatter")
        _require(self.mean_square >= 0 and self.scatter >= 0, "mean_square and scatter must not be negative")


@dataclass(frozen=True, slots=True)
class EnergyTerms:
    """No source's part of the sum may hold more than 1 / kappa of the energy of the ``others`` that hold least."""

    kappa: float
    others: int
    granularity: Granularity

    def __post_init__(self) -> None:
        _require_finite(self.kappa, "kappa", positive=True)
        _require(self.others >= 1, "others must be at least 1")


@dataclass(frozen=True, slots=True)
class Header:
    """Opens an attempt at a round: everything that all sites must agree on before anything leaves a source.

    ``levels`` says what the aggregator sees of each participant, in their order. Those at ``cohort`` and ``sum`` make
    up one masking session, with one sum over all that are at ``sum``, and one per cohort of the others.

    ``metrics`` says whether loss and accuracy over the training rows travel, at any level: where one participant has
    none to give, nobody's do, for a sum of few would tell more of each.

    ``previous_checkpoint`` is the aggregator's log as every participant cosigned it last: a note with their signatures.
    """

    run_id: bytes
    round: int
    attempt: int
    levels: tuple[Visibility, ...]
    rule: RuleTerms
    target: TargetTerms | None
    layers: tuple[Layer, ...]
    architecture_digest: bytes
    model_digest: bytes
    roster_digest: bytes
    participants: tuple[int, ...]
    threshold: int
    modulus_bits: int
    n_max: int
    max_samples: int
    training_deadline_ms: int
    phase_deadline_ms: int
    previous_result_digest: bytes
    previous_checkpoint: bytes
    cohort_size: int = 0
    cohort_quorum: int = 0
    sum_quorum: int = 0
    energy: EnergyTerms | None = None
    metrics: bool = False

    def __post_init__(self) -> None:
        _require_bytes(self.run_id, RUN_ID_BYTES, "run_id")
        _require(self.round >= 1 and self.attempt >= 1, "round and attempt count from 1")
        for name in ("architecture_digest", "model_digest", "roster_digest"):
            _require_bytes(getattr(self, name), DIGEST_BYTES, name)
        _require(len(self.previous_result_digest) in (0, DIGEST_BYTES), "previous_result_digest: 0 or 32 bytes")
        _require(len(self.layers) > 0, "a model needs at least one layer")
        _require(len({layer.name for layer in self.layers}) == len(self.layers), "layer names must differ")
        _require(list(self.participants) == sorted(set(self.participants)), "participants must rise strictly")
        _require(len(self.levels) == len(self.participants) > 0, "one level for each participant, and at least one")
        _require(self.training_deadline_ms > 0 and self.phase_deadline_ms > 0, "deadlines must be above 0")
        _require(self.max_samples >= 1, "max_samples must be at least 1")

    @property
    def n_params(self) -> int:
        """Number of federated parameters, m."""
        return sum(layer.size for layer in self.layers)

    def level_of(self, index: int) -> Visibility:
        """What the aggregator sees of a participant.

        Raises:
            ValueError: ``index`` is no participant.
        """
        return self.levels[self.participants.index(index)]

    def at(self, level: Visibility) -> tuple[int, ...]:
        """The participants of whom the aggregator sees this much."""
        return tuple(index for index, own in zip(self.participants, self.levels, strict=True) if own is level)

    @property
    def masked(self) -> tuple[int, ...]:
        """The participants of the masking session, U0."""
        pairs = zip(self.participants, self.levels, strict=True)
        return tuple(index for index, level in pairs if level is not Visibility.INDIVIDUAL)

    @property
    def energy_row_length(self) -> int:
        """Numbers in the energy row of a source at ``sum``; 0 without an energy rule."""
        if self.energy is None:
            return 0
        return len(self.layers) if self.energy.granularity is Granularity.LAYER else 1


@dataclass(frozen=True, slots=True)
class Advertise:
    """R0: the source's two X25519 public keys of this session, and commitments to its self secret and its nonce.

    ``energy`` is, where a rule of energies holds, the length of the source's part of the sum in each layer (or as a
    whole): float32 numbers, in units of the clip and the header's ``max_samples``.
    """

    mask_key: bytes
    box_key: bytes
    self_mask_commitment: bytes
    nonce_commitment: bytes
    energy: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("mask_key", "box_key", "self_mask_commitment", "nonce_commitment"):
            _require_bytes(getattr(self, name), 32, name)
        for value in self.energy:
            _require(math.isfinite(value) and value >= 0, "energies must be finite and not negative")


@dataclass(frozen=True, slots=True)
class KeyList:
    """R0': every Advertise message, verbatim; its senders are U1."""

    advertisements: tuple[Signed[Advertise], ...]


@dataclass(frozen=True, slots=True)
class ShareBox:
    """One encrypted pair of shares for the recipient ``peer``."""

    peer: int
    box: bytes

    def __post_init__(self) -> None:
        _require(0 < len(self.box) <= 1024, "a share box has 1 to 1024 bytes")


@dataclass(frozen=True, slots=True)
class ShareBundle:
    """R1 up: one box for each other member of U1, and the nonce that was committed to in R0."""

    boxes: tuple[ShareBox, ...]
    nonce: bytes

    def __post_init__(self) -> None:
        _require_bytes(self.nonce, 32, "nonce")


@dataclass(frozen=True, slots=True)
class DeliveredBox:
    """What the member ``peer`` of U2 sent: an encrypted pair of shares for the recipient, and its nonce."""

    peer: int
    box: bytes
    nonce: bytes

    def __post_init__(self) -> None:
        _require(0 < len(self.box) <= 1024, "a share box has 1 to 1024 bytes")
        _require_bytes(self.nonce, 32, "nonce")


@dataclass(frozen=True, slots=True)
class ShareDelivery:
    """R1 down: one box and nonce from each other member of U2."""

    boxes: tuple[DeliveredBox, ...]


@dataclass(frozen=True, slots=True)
class MaskedInput:
    """R2: the digest of the masked vector; the vector itself travels beside the message."""

    digest: bytes
    length_bytes: int

    def __post_init__(self) -> None:
        _require_bytes(self.digest, DIGEST_BYTES, "digest")
        _require(self.length_bytes > 0, "length_bytes must be above 0")


@dataclass(frozen=True, slots=True)
class Update:
    """Visibility ``individual``: the digest of the update in clear (float32) and the number of samples behind it.

    ``loss`` and ``accuracy`` are means over the training rows, where the header has ``metrics`` and the site's policy
    lets them leave.
    """

    digest: bytes
    length_bytes: int
    samples: int
    loss: float | None = None
    accuracy: float | None = None

    def __post_init__(self) -> None:
        _require_bytes(self.digest, DIGEST_BYTES, "digest")
        _require(self.length_bytes > 0 and self.samples >= 1, "length_bytes and samples must be above 0")
        if self.loss is not None:
            _require_finite(self.loss, "loss")
        _require(self.accuracy is None or 0 <= self.accuracy <= 1, "accuracy must lie in [0, 1]")


@dataclass(frozen=True, slots=True)
class Survivor:
    """A member of U3 and the digest of the masked input that entered the sum."""

    index: int
    input_digest: bytes

    def __post_init__(self) -> None:
        _require_bytes(self.input_digest, DIGEST_BYTES, "input_digest")


@dataclass(frozen=True, slots=True)
class Survivors:
    """R3: U3 with the digests of what was summed, and the dropped, U2 without U3."""

    survivors: tuple[Survivor, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SurvivorSignature:
    """R3: a survivor's signature, given once per session, over the digest of the lists it was shown."""

    survivors_digest: bytes

    def __post_init__(self) -> None:
        _require_bytes(self.survivors_digest, DIGEST_BYTES, "survivors_digest")


@dataclass(frozen=True, slots=True)
class Consistency:
    """R3': the survivors' signatures and masked input messages, verbatim; the vectors stay where they are."""

    signatures: tuple[Signed[SurvivorSignature], ...]
    inputs: tuple[Signed[MaskedInput], ...]


@dataclass(frozen=True, slots=True)
class SelfMaskShare:
    """R4: the sender's share of the self mask seed of a survivor."""

    owner: int
    share: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _require_bytes(self.share, 33, "share")


@dataclass(frozen=True, slots=True)
class MasterShare:
    """R4: the sender's share of the master secret of a dropped source."""

    owner: int
    share: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _require_bytes(self.share, 33, "share")


@dataclass(frozen=True, slots=True)
class Unmask:
    """R4: one share per member of U2; which kind is a tagged union, so no owner can have both."""

    shares: tuple[SelfMaskShare | MasterShare, ...]

    def __post_init__(self) -> None:
        _require(len({share.owner for share in self.shares}) == len(self.shares), "one share per owner")


@dataclass(frozen=True, slots=True)
class Result:
    """Closes a round: what was summed, over how many sources, and the model that came out.

    It is signed under the header's digest, so that every participant, whatever its level, gets the same bytes.
    """

    sum_digest: bytes
    count: int
    model_digest: bytes

    def __post_init__(self) -> None:
        _require(len(self.sum_digest) in (0, DIGEST_BYTES), "sum_digest must be empty or 32 bytes")
        _require_bytes(self.model_digest, DIGEST_BYTES, "model_digest")
        _require(self.count >= 0, "count must not be negative")


@dataclass(frozen=True, slots=True)
class Abort:
    """Ends a session for good: the step, the check that failed and the accused site, if there is one."""

    step: Step
    check: str
    accused: int | None

    def __post_init__(self) -> None:
        _require(0 < len(self.check) <= 64, "check must have 1 to 64 characters")
        _require(re.fullmatch("[A-Z0-9_]+", self.check) is not None, "check must be a name of a check")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A source takes no part in this attempt; it names the policy key or the check and nothing else."""

    key: str

    def __post_init__(self) -> None:
        _require(0 < len(self.key) <= 64, "key must have 1 to 64 characters")
        _require(re.fullmatch("[A-Za-z0-9_.-]+", self.key) is not None, "key must be a policy key or a name of a check")


@dataclass(frozen=True, slots=True)
class Join:
    """A source reports for a run, with the architecture it built itself and the most that may be seen of it.

    ``metrics`` says whether it hands in loss and accuracy over its training rows; with DP-SGD it has none. ``known`` is
    how many records of the aggregator's log of this run it has cosigned.
    """

    architecture_digest: bytes
    software_version: str
    visibility: Visibility
    metrics: bool
    known: int = 0

    def __post_init__(self) -> None:
        _require_bytes(self.architecture_digest, DIGEST_BYTES, "architecture_digest")
        _require(len(self.software_version) <= 64, "software_version has at most 64 characters")
        _require(self.software_version.isprintable(), "software_version must be printable")


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
        _require(0 < len(self.note) <= MAX_NOTE_BYTES, f"a note has 1 to {MAX_NOTE_BYTES} bytes")
        _require(len(self.proof) <= MAX_PROOF_HASHES, f"a proof has at most {MAX_PROOF_HASHES} hashes")
        _require(min(self.old_size, self.known) >= 0, "sizes must not be negative")
        for node in self.proof:
            _require_bytes(node, DIGEST_BYTES, "a hash of the proof")


@dataclass(frozen=True, slots=True)
class Cosigned:
    """The sender's cosignature over the receiver's checkpoint of ``size`` records: one line of a signed note."""

    size: int
    signature: str

    def __post_init__(self) -> None:
        _require(self.size >= 1, "a checkpoint of no records is not cosigned")
        _require(0 < len(self.signature) <= MAX_LINE_CHARACTERS, f"a line has 1 to {MAX_LINE_CHARACTERS} characters")


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The aggregator ends the run: ``completed`` says whether every round was done, ``reason`` why not."""

    completed: bool
    rounds: int
    reason: str

    def __post_init__(self) -> None:
        _require(len(self.reason) <= 500, "reason has at most 500 characters")
        _require(self.reason.isprintable(), "reason must be printable")


Body = (
    Header
    | Advertise
    | KeyList
    | ShareBundle
    | ShareDelivery
    | MaskedInput
    | Update
    | Survivors
    | SurvivorSignature
    | Consistency
    | Unmask
    | Result
    | Abort
    | Refusal
    | Join
    | Checkpoint
    | Cosigned
    | Goodbye
)
BodyT = TypeVar("BodyT")
BodyT_co = TypeVar("BodyT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Envelope(Generic[BodyT_co]):
    """A body with what ties it to one session, one sender and one view of the protocol so far."""

    session_id: bytes
    sender: int
    context: bytes
    body: BodyT_co
    suite: int = SUITE

    def __post_init__(self) -> None:
        _require_bytes(self.session_id, SESSION_ID_BYTES, "session_id")
        _require(len(self.context) in (0, DIGEST_BYTES), "context must be empty or 32 bytes")
        _require(0 <= self.sender < 2**31, "sender must be a roster index")


@dataclass(frozen=True, slots=True)
class Signed(Generic[BodyT_co]):
    """An envelope with the exact bytes that were signed.

    Whoever builds one guarantees that ``envelope`` is what ``signed_bytes`` parse to; nobody may assume that the
    signature is valid before :meth:`verify` has said so. The repr leaves the bytes out: those of an ``Unmask`` hold
    shares.
    """

    envelope: Envelope[BodyT_co]
    signed_bytes: bytes = field(repr=False)
    signature: bytes

    @property
    def body(self) -> BodyT_co:
        """The message itself."""
        return self.envelope.body

    @property
    def sender(self) -> int:
        """Roster index of the site that claims to have signed."""
        return self.envelope.sender

    @property
    def type_name(self) -> str:
        """Name of the message type, also the label inside the signature."""
        return type(self.envelope.body).__name__

    def digest(self) -> bytes:
        """SHA-256 of the signed bytes, verbatim."""
        return sha256(self.signed_bytes).digest()

    def verify(self, public_key: bytes) -> bool:
        """Whether the signature is valid under ``public_key`` (32 bytes, Ed25519)."""
        return signature_is_valid(public_key, self.type_name, self.signed_bytes, self.signature)


@dataclass(frozen=True, slots=True, repr=False)
class Signer:
    """Signs as one site. ``encode`` turns an envelope into the bytes that travel."""

    index: int
    private_key: Ed25519PrivateKey
    encode: Callable[[Envelope[Body]], bytes]

    def sign(self, session_id: bytes, context: bytes, body: BodyT) -> Signed[BodyT]:
        """Serialise once, sign those bytes, keep them."""
        envelope = Envelope(session_id=session_id, sender=self.index, context=context, body=body)
        data = self.encode(envelope)  # type: ignore[arg-type]
        return Signed(envelope, data, sign_bytes(self.private_key, type(body).__name__, data))

    def __repr__(self) -> str:
        return f"Signer(index={self.index}, private_key=<redacted>)"


@dataclass(frozen=True, slots=True)
class Parcel:
    """A signed message with the vectors that travel beside it, in the order in which its body names their digests.

    The repr leaves the vectors out: at ``individual`` one of them is an update in clear.
    """

    message: Signed[Body]
    vectors: tuple[bytes | bytearray | memoryview, ...] = field(default=(), repr=False)


def vector_digests(body: Body) -> tuple[bytes, ...]:
    """Digests of the vectors that travel beside a message, in order."""
    match body:
        case Header(target=target, model_digest=model_digest):
            return (model_digest, target.update_digest) if target and target.update_digest else (model_digest,)
        case MaskedInput(digest=digest) | Update(digest=digest):
            return (digest,)
        case _:
            return ()
