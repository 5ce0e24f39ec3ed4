"""The header of a round: everything that all sites must agree on before anything leaves a source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from securefda.protocol.envelope import DIGEST_BYTES, RUN_ID_BYTES, expect, expect_bytes, expect_finite

PULL_LAYER = "pull on the target's features"
"""Name of the layer that is none of the model's."""


class Visibility(IntEnum):
    """What the aggregator is permitted to see of a source; a higher number hides more."""

    INDIVIDUAL = 1
    COHORT = 2
    SUM = 3

    @property
    def label(self) -> str:
        """The name in configuration files and logs."""
        return self.name.lower()


class Granularity(IntEnum):
    """What the norm cap holds for: each layer, or the vector as a whole."""

    LAYER = 1
    MODEL = 2

    @property
    def label(self) -> str:
        """The name in configuration files and logs."""
        return self.name.lower()


class SourcesKeep(IntEnum):
    """What the sources keep of the model when the run is complete: nothing, or the model of the last result."""

    NONE = 1
    FINAL = 2

    @property
    def label(self) -> str:
        """The name in configuration files and logs."""
        return self.name.lower()


class DownLink(IntEnum):
    """In what the model and the target's update travel to the sources."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2

    @property
    def label(self) -> str:
        """The name in configuration files and logs."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Layer:
    """One named parameter tensor, the largest absolute coordinate that counts of it, and the range of what travels.

    ``clip`` bounds a coordinate of a source's part, ``range`` the same coordinate once it is weighted by samples.
    """

    name: str
    shape: tuple[int, ...]
    clip: float
    range: float

    def __post_init__(self) -> None:
        expect(0 < len(self.name) <= 200, "a layer's name must have 1 to 200 characters")
        expect(all(0 < side < 2**31 for side in self.shape), f"layer {self.name}: every side must be above 0")
        expect_finite(self.clip, f"layer {self.name}: clip", positive=True)
        expect_finite(self.range, f"layer {self.name}: range", positive=True)

    @property
    def size(self) -> int:
        """Number of parameters of the layer."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class AttentionTerms:
    """How a source's share of attention is computed; the meaning is in ``securefda.rules.attention``."""

    gain: str
    temperature: float
    bound: float

    def __post_init__(self) -> None:
        expect_finite(self.temperature, "temperature", positive=True)
        expect_finite(self.bound, "bound", positive=True)


@dataclass(frozen=True, slots=True)
class RuleTerms:
    """Which rule the round evaluates, and its settings; the meaning is in ``securefda.rules``.

    ``select`` asks for the estimated errors of the rules, from which the aggregator chooses that of the next round.
    ``attention`` is there for the rules that have shares of attention, and for no other.
    """

    rule: str
    beta: float
    projection: str
    filter: bool
    align: bool
    estimator: str
    learning_rate_factor: float
    select: bool = False
    attention: AttentionTerms | None = None
    beta_per_layer: bool = False

    def __post_init__(self) -> None:
        expect(0 <= self.beta <= 1, "beta must lie in [0, 1]")
        expect_finite(self.learning_rate_factor, "learning_rate_factor", positive=True)


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
        expect(self.steps >= 1, "steps must be at least 1")
        expect_finite(self.learning_rate, "learning_rate", positive=True)
        expect(len(self.update_digest) in (0, DIGEST_BYTES), "update_digest must be empty or 32 bytes")
        expect_finite(self.mean_square, "mean_square")
        expect_finite(self.scatter, "scatter")
        expect(self.mean_square >= 0 and self.scatter >= 0, "mean_square and scatter must not be negative")


@dataclass(frozen=True, slots=True)
class FeatureTerms:
    """The features of the target's rows that travel with a header: a matrix, float32 little-endian, row by row."""

    rows: int
    width: int
    digest: bytes

    def __post_init__(self) -> None:
        expect(0 < self.rows < 2**31 and 0 < self.width < 2**31, "features need rows and columns")
        expect_bytes(self.digest, DIGEST_BYTES, "digest of the features")


@dataclass(frozen=True, slots=True)
class NormCapTerms:
    """No source's part of the sum may have more than 1 / kappa of the squared norm of the ``others`` smallest parts."""

    kappa: float
    others: int
    granularity: Granularity

    def __post_init__(self) -> None:
        expect_finite(self.kappa, "kappa", positive=True)
        expect(self.others >= 1, "others must be at least 1")


@dataclass(frozen=True, slots=True)
class GraphTerms:
    """The graph of a session of many sources, and under which assumptions it was chosen.

    A source shares with ``degree`` neighbours, and ``threshold`` holders of its shares open a secret. Up to
    ``colluders`` of the sources collude with the aggregator, up to ``dropouts`` drop out by chance, and up to
    ``silent`` may commit to a nonce and not reveal it.
    """

    degree: int
    threshold: int
    colluders: int
    dropouts: int
    silent: int

    def __post_init__(self) -> None:
        expect(self.degree >= 2 and self.threshold >= 2, "degree and threshold must be at least 2")


@dataclass(frozen=True, slots=True)
class Header:
    """Opens an attempt at a round: everything that all sites must agree on before anything leaves a source.

    ``levels`` says what the aggregator sees of each participant, in their order. Those at ``cohort`` and ``sum`` make
    up one masking session, with one sum over all that are at ``sum``, and one per cohort of the others.

    ``metrics`` says whether loss and accuracy over the training rows travel, at any level: where one participant has
    none to give, none do, for a sum of few would tell more of each.

    ``previous_checkpoint`` is the aggregator's log as every participant cosigned it last: a note with their signatures.

    ``sources_keep`` says what a source keeps of the model when the run is complete; it is the same in every header of a
    run, so that each knows before it trains.

    ``down_link`` says in what the vectors beside the header travel. Their digests are those of float32 in any case.

    ``gap_gradient_digest`` is of the gradient of the gap statistic with respect to the model, float32 little-endian,
    where sources compute their share of attention from it; empty otherwise.

    ``features`` are those of the target's rows that sources train with, where the rule needs them. What pulls them
    comes back behind the update, as one more of ``layers``: `PULL_LAYER`, of the features' shape.

    ``graph`` makes the masking session one of SFDA-SA/2: sources mask and share with their neighbours alone. Without it
    the session is one of SFDA-SA/1, in which all are neighbours.
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
    norm_cap: NormCapTerms | None = None
    metrics: bool = False
    sources_keep: SourcesKeep = SourcesKeep.NONE
    down_link: DownLink = DownLink.FLOAT32
    gap_gradient_digest: bytes = b""
    features: FeatureTerms | None = None
    graph: GraphTerms | None = None

    def __post_init__(self) -> None:
        expect_bytes(self.run_id, RUN_ID_BYTES, "run_id")
        expect(self.round >= 1 and self.attempt >= 1, "round and attempt count from 1")
        for name in ("architecture_digest", "model_digest", "roster_digest"):
            expect_bytes(getattr(self, name), DIGEST_BYTES, name)
        for name in ("previous_result_digest", "gap_gradient_digest"):
            expect(len(getattr(self, name)) in (0, DIGEST_BYTES), f"{name}: 0 or 32 bytes")
        expect(len(self.layers) > 0, "a model needs at least one layer")
        expect(len({layer.name for layer in self.layers}) == len(self.layers), "layer names must differ")
        expect(list(self.participants) == sorted(set(self.participants)), "participants must rise strictly")
        expect(len(self.levels) == len(self.participants) > 0, "one level for each participant, and at least one")
        expect(self.training_deadline_ms > 0 and self.phase_deadline_ms > 0, "deadlines must be above 0")
        expect(self.max_samples >= 1, "max_samples must be at least 1")

    @property
    def published_digest(self) -> bytes:
        """Digest of what the target publishes to sources at ``sum`` beside the model; empty where that is nothing.

        It is g_T, or the gradient of the gap statistic: no rule has both.
        """
        return self.gap_gradient_digest or (self.target.update_digest if self.target else b"")

    @property
    def model_layers(self) -> tuple[Layer, ...]:
        """The layers of the model: all but that of the pull, where there is one."""
        return self.layers[:-1] if self.features is not None else self.layers

    @property
    def n_params(self) -> int:
        """Number of federated parameters, m."""
        return sum(layer.size for layer in self.model_layers)

    @property
    def n_summed(self) -> int:
        """Length of a source's part: m, and the pull on the target's features where there is one."""
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
    def share_threshold(self) -> int:
        """How many holders of a secret's shares open it: t, or that of the graph."""
        return self.threshold if self.graph is None else self.graph.threshold

    @property
    def fewest_at_sum(self) -> int:
        """Sources in the smallest sum at ``sum`` to which each of them sees by itself.

        With a graph these are the holders of its own shares that open a secret: that ``sum_quorum`` others far from it
        are in the sum, a source has from the aggregator alone.
        """
        return self.sum_quorum if self.graph is None else min(self.sum_quorum, self.graph.threshold)

    @property
    def norm_report_length(self) -> int:
        """Numbers in the norm report of a source at ``sum``; 0 without a norm cap."""
        if self.norm_cap is None:
            return 0
        return len(self.layers) if self.norm_cap.granularity is Granularity.LAYER else 1
