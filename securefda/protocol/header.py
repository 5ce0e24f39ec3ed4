"""The header of a round: everything that all sites must agree on before anything leaves a source."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

from securefda.protocol.build import Build
from securefda.protocol.envelope import DIGEST_BYTES, RUN_ID_BYTES, expect, expect_bytes, expect_finite
from securefda.rules.strategy import Rule

PULL_LAYER = "pull on the target's features"
"""Name of the entry in ``layers`` that is not a layer of the model, under rules that compare features."""

GRAM_LAYER = "second moments of the features"
"""Name of the entry in ``layers`` that is not a layer of the model, under the analytic rule."""


class _Labelled(IntEnum):
    @property
    def label(self) -> str:
        """The name in configuration files and logs."""
        return self.name.lower()


class Visibility(_Labelled):
    """The visibility level: how much the aggregator may see of a source. A higher number hides more."""

    INDIVIDUAL = 1
    COHORT = 2
    SUM = 3


class Granularity(_Labelled):
    """Whether the norm cap holds for each layer or for the vector as a whole."""

    LAYER = 1
    MODEL = 2


class SourcesKeep(_Labelled):
    """Which model the sources keep when the run is complete: none, or that of the last result."""

    NONE = 1
    FINAL = 2


class DownLink(_Labelled):
    """Number format in which the model and the target's update are sent to the sources."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2


class KeyAgreement(_Labelled):
    """From which key agreement the keys of share boxes and pairwise masks derive."""

    X25519 = 0
    X25519_MLKEM768 = 1

    @property
    def label(self) -> str:
        """The name in configuration files and logs."""
        return super().label.replace("_", "-")

    @classmethod
    def named(cls, label: str) -> KeyAgreement:
        """The one with this name. Raises ValueError: there is none."""
        return cls(KEY_AGREEMENTS.index(label))


KEY_AGREEMENTS = tuple(one.label for one in KeyAgreement)


@dataclass(frozen=True, slots=True)
class Layer:
    """One named parameter tensor with its bounds.

    ``clip`` bounds the magnitude of a coordinate of a source's contribution; ``range`` bounds it after weighting by
    samples, as it is encoded.
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
    """The parameters of a source's attention share, as in ``securefda.rules.attention``."""

    gain: str
    temperature: float
    bound: float

    def __post_init__(self) -> None:
        expect_finite(self.temperature, "temperature", positive=True)
        expect_finite(self.bound, "bound", positive=True)


@dataclass(frozen=True, slots=True)
class RuleTerms:
    """The rule of the round and its parameters, as in ``securefda.rules``.

    ``select`` asks for the estimated errors of the rules, by which the aggregator chooses the rule of the next round.
    ``attention`` is set for exactly the rules with attention.
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
    """What the target publishes so that sources can align their updates and evaluate the rule themselves.

    ``steps`` is B and ``learning_rate`` the target's effective rate. The other three are published only if the rule
    runs inside the sources: the digest of g_T (float32 little-endian), M and S_x.
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
    """The target's features that come with a header: a matrix, float32 little-endian, row by row."""

    rows: int
    width: int
    digest: bytes

    def __post_init__(self) -> None:
        expect(0 < self.rows < 2**31 and 0 < self.width < 2**31, "features need rows and columns")
        expect_bytes(self.digest, DIGEST_BYTES, "digest of the features")


@dataclass(frozen=True, slots=True)
class NormCapTerms:
    """The norm cap: a squared norm is at most 1 / kappa times the sum of those of the ``others`` smallest others."""

    kappa: float
    others: int
    granularity: Granularity

    def __post_init__(self) -> None:
        expect_finite(self.kappa, "kappa", positive=True)
        expect(self.others >= 1, "others must be at least 1")


@dataclass(frozen=True, slots=True)
class GraphTerms:
    """The graph of a session of many sources, and the assumptions under which it was chosen.

    A source shares its secrets with ``degree`` neighbours, and ``threshold`` shares open a secret. The assumptions: up
    to ``colluders`` sources collude with the aggregator, up to ``dropouts`` drop out by chance, and up to ``silent``
    commit to a nonce and do not reveal it.
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

    ``levels`` has the visibility level of each participant, in their order. Participants at ``cohort`` and ``sum`` form
    one masking session, with one sum over all at ``sum`` and one sum per cohort of the others.

    ``metrics`` says whether the sources report loss and accuracy over their training rows. If one participant reports
    none, none may, because a sum over the few others would reveal more about each.

    ``previous_checkpoint`` is the last checkpoint of the aggregator's log that every participant cosigned, with their
    signatures.

    ``sources_keep`` says which model a source keeps when the run is complete. It is the same in every header of a run,
    so that each source knows before it trains.

    ``down_link`` is the number format of the vectors that come with the header. Their digests are always over float32.

    ``gap_gradient_digest`` is the digest of the gradient of the gap statistic with respect to the model (float32
    little-endian) if sources compute their attention share from it; empty otherwise.

    ``features`` are the target's features with which sources train, if the rule needs them. The pull on them comes back
    behind the update, as one more entry of ``layers``: `PULL_LAYER`, with the features' shape. Under the analytic rule,
    the last entry is `GRAM_LAYER`, and no entry has an update: see `securefda.rules.analytic`.

    ``graph`` makes the masking session one of SFDA-SA/2, in which sources mask and share only with their neighbours.
    Without it the session is one of SFDA-SA/1, in which all are neighbours.

    ``build`` is the aggregator's build of securefda.
    ``key_agreement`` is that of the session, if there is one.
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
    build: Build = field(default_factory=Build.own)
    key_agreement: KeyAgreement = KeyAgreement.X25519

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
        """Digest of the vector that the target publishes to sources at ``sum``; empty if there is none.

        The vector is g_T or the gradient of the gap statistic; no rule has both.
        """
        return self.gap_gradient_digest or (self.target.update_digest if self.target else b"")

    @property
    def model_layers(self) -> tuple[Layer, ...]:
        """The layers of the model, without the entry of the pull or of the second moments."""
        return self.layers[:-1] if self.features is not None or self.rule.rule == Rule.ANALYTIC else self.layers

    @property
    def n_params(self) -> int:
        """Number of federated parameters, m."""
        return sum(layer.size for layer in self.model_layers)

    @property
    def n_summed(self) -> int:
        """Length of a source's contribution: m, plus the pull or the second moments if the rule has them."""
        return sum(layer.size for layer in self.layers)

    def level_of(self, index: int) -> Visibility:
        """The visibility level of a participant.

        Raises:
            ValueError: ``index`` is not a participant.
        """
        return self.levels[self.participants.index(index)]

    def at(self, level: Visibility) -> tuple[int, ...]:
        """The participants at this level."""
        return tuple(index for index, own in zip(self.participants, self.levels, strict=True) if own is level)

    @property
    def masked(self) -> tuple[int, ...]:
        """The participants of the masking session, U0."""
        pairs = zip(self.participants, self.levels, strict=True)
        return tuple(index for index, level in pairs if level is not Visibility.INDIVIDUAL)

    @property
    def share_threshold(self) -> int:
        """How many shares open a secret: t, or the graph's threshold."""
        return self.threshold if self.graph is None else self.graph.threshold

    @property
    def fewest_at_sum(self) -> int:
        """Smallest number of sources in a sum at ``sum`` that each source can verify by itself.

        With a graph, a source can verify only as many as must release shares of its own secret. For ``sum_quorum``
        sources, most of them not its neighbours, it has only the aggregator's word.
        """
        return self.sum_quorum if self.graph is None else min(self.sum_quorum, self.graph.threshold)

    @property
    def is_hybrid(self) -> bool:
        """Whether the session's keys are those of :mod:`securefda.protocol.hybrid`."""
        return self.key_agreement is KeyAgreement.X25519_MLKEM768

    @property
    def norm_report_length(self) -> int:
        """How many numbers the norm report of a source at ``sum`` has; 0 without a norm cap."""
        if self.norm_cap is None:
            return 0
        return len(self.layers) if self.norm_cap.granularity is Granularity.LAYER else 1
