"""A policy, and a header that stands at every one of its limits."""

from __future__ import annotations

from known_sites import known_roster

from securefda.protocol.messages import (
    Granularity,
    Header,
    KeyAgreement,
    Layer,
    NormCapTerms,
    RuleTerms,
    SourcesKeep,
    TargetTerms,
    Visibility,
)
from securefda.protocol.roster import Roster
from securefda.site.policy import (
    MetadataPolicy,
    NormCapBounds,
    QuantisationBounds,
    ReleaseLimits,
    SourcePolicy,
    WorkLimits,
)
from securefda.site.policy.schema import ModelPolicy

ME = 3
ARCHITECTURE = bytes(range(32))
FACTORY = "tasks.hearts:Hearts"
SOURCES = tuple(f"source-{index}" for index in range(1, 8))

POLICY = SourcePolicy(
    max_visibility="sum",
    min_others=2,
    max_colluders=1,
    trusted_peers=SOURCES[:6],
    allowed_rules=("fedgp_auto", "source_only"),
    allowed_tasks=(FACTORY,),
    architectures=(ARCHITECTURE.hex(),),
    norm_cap=NormCapBounds(kappa=2.0, granularity="layer", reports="colluders-may-see"),
    quantisation=QuantisationBounds(
        modulus_bits_min=20, clip_min=0.5, clip_max=2.0, n_max=8, max_samples_min=1000, max_samples_max=1000
    ),
    limits=WorkLimits(
        model_bytes_max=36,
        learning_rate_max=0.25,
        learning_rate_min=0.25,
        training_deadline_s_max=60.5,
        phase_deadline_s_max=5.0,
    ),
    model=ModelPolicy(keep="final"),
    release=ReleaseLimits(max_attempts=3, max_rounds=50),
    metadata=MetadataPolicy(may_leave=("samples",)),
)


def header_at_every_limit() -> Header:
    """Every number at the last value that ``POLICY`` allows: 7 sources, one of them not trusted, one may collude."""
    return Header(
        run_id=bytes(16),
        round=50,
        attempt=3,
        levels=(Visibility.SUM,) * 7,
        rule=rule("fedgp_auto"),
        target=TargetTerms(steps=10, learning_rate=0.25, update_digest=bytes(32)),
        layers=(Layer("weight", (2, 3), 0.5, 0.5), Layer("bias", (3,), 2.0, 2.0)),
        architecture_digest=ARCHITECTURE,
        model_digest=bytes(32),
        roster_digest=bytes(32),
        participants=(1, 2, 3, 4, 5, 6, 7),
        threshold=5,
        modulus_bits=20,
        n_max=8,
        max_samples=1000,
        training_deadline_ms=60_500,
        phase_deadline_ms=5_000,
        previous_result_digest=b"",
        previous_checkpoint=b"",
        sum_quorum=5,
        norm_cap=NormCapTerms(kappa=2.0, others=2, granularity=Granularity.LAYER),
        sources_keep=SourcesKeep.FINAL,
        key_agreement=KeyAgreement.X25519_MLKEM768,
    )


def rule(name: str, *, filtered: bool = True, select: bool = False) -> RuleTerms:
    return RuleTerms(name, 0.5, "orthogonal", filtered, True, "mean-field", 1.0, select)


def roster(sources: tuple[str, ...] = SOURCES) -> Roster:
    """A target and these sources, in order."""
    return known_roster("digits", ("target", *sources))
