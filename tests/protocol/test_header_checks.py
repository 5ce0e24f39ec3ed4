"""What a source refuses in a header, and in the vectors that come with it, before it does anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from cohort import (
    LAST_SECOND,
    LAYERS,
    MODEL,
    NOW,
    SESSION_ID,
    TARGET,
    AnySigned,
    forged,
    header_body,
    limits_of,
    over_the_wire,
    refused_for,
    resigned,
    roster_of,
    signer,
)

from securefda.errors import FaultyAggregatorError
from securefda.protocol.header_checks import (
    History,
    PastResult,
    SessionLimits,
    check_signed_header,
    check_vectors,
    checked_vectors,
    quantisation,
)
from securefda.protocol.messages import (
    GRAM_LAYER,
    NO_CONTEXT,
    PULL_LAYER,
    Abort,
    AttentionTerms,
    FeatureTerms,
    Granularity,
    Header,
    Layer,
    NormCapTerms,
    Parcel,
    RuleTerms,
    SourcesKeep,
    Step,
    TargetTerms,
    Visibility,
    vector_digests,
)
from securefda.protocol.roster import Roster
from securefda.protocol.transcript import architecture_digest, layer_names_and_shapes, round_terms_digest, sum_terms
from securefda.protocol.weighed_contribution import (
    RoundTerms,
    aligned_update,
    aligned_variance,
    alignment_of,
    contribution_at_source,
)

N, ME = 5, 2
OTHER = sha256(b"other").digest()
UPDATE = bytes(64)
FEDGP = RuleTerms("fedgp_auto", 0.5, "orthogonal", True, True, "mean-field", 1.0)
FADA = RuleTerms(
    "fada_attention",
    0.5,
    "orthogonal",
    True,
    True,
    "mean-field",
    1.0,
    attention=AttentionTerms("first-order", 0.01, 1.0),
)
SELECT = RuleTerms("source_only", 0.5, "orthogonal", True, True, "mean-field", 1.0, select=True)
INDIVIDUAL, COHORT, SUM = Visibility
IN_CLEAR = {"level": INDIVIDUAL}
COHORTS = {"level": COHORT, "cohort_size": 4, "cohort_quorum": 2}
OF_ONE = NormCapTerms(1.0, 1, Granularity.LAYER)
BESIDE = {"cohort_size": 2, "cohort_quorum": 2, "sum_quorum": 2, "norm_cap": OF_ONE}
MIXED = {"levels": (COHORT, SUM, SUM, COHORT, SUM), **BESIDE}
"""Sources 2, 3 and 5 in a sum beside a cohort of 0 and 4."""
WITH_CLEAR = {**MIXED, "levels": (INDIVIDUAL, SUM, SUM, INDIVIDUAL, SUM), "cohort_size": 0, "cohort_quorum": 0}
PUBLISHED = TargetTerms(4, 0.1, sha256(UPDATE).digest(), 1.0, 1.0)
KEPT = TargetTerms(4, 0.1)
GRADIENT = sha256(UPDATE).digest()
ATTENDING = {"rule": FADA, "gap_gradient_digest": GRADIENT}
EXACT = {"rule": replace(FADA, attention=AttentionTerms("exact", 0.01, 1.0))}
FEATURES = bytes(range(24))
PULL = Layer(PULL_LAYER, (2, 3), 0.5, 0.5)
DANN = RuleTerms("f_dann", 0.5, "orthogonal", True, True, "mean-field", 1.0)
COMPARING = {
    "rule": DANN,
    "features": FeatureTerms(2, 3, sha256(FEATURES).digest()),
    "layers": (*LAYERS, PULL),
    "architecture_digest": header_body(N).architecture_digest,
}
"""Features of two rows, three of each, and a pull on them."""

HEAD = (Layer("weight", (2, 3), 0.5, 0.5), Layer("bias", (2,), 0.5, 0.5))
GRAM = Layer(GRAM_LAYER, (10,), 0.5, 0.5)
ANALYTIC = {
    "rule": replace(DANN, rule="analytic"),
    "layers": (*HEAD, GRAM),
    "architecture_digest": architecture_digest(layer_names_and_shapes(HEAD)),
}
"""Second moments of three features and a constant, behind a head with two outputs."""

BESIDE_LAYERS = {"layers": (*LAYERS, GRAM), "architecture_digest": header_body(N).architecture_digest}

ADVERSARIAL = {**COMPARING, "rule": replace(FADA, rule="fada_adversarial"), "gap_gradient_digest": GRADIENT}
LAST = PastResult(3, sha256(b"result 3").digest(), sha256(MODEL).digest())
BEFORE = PastResult(2, sha256(b"result 2").digest(), OTHER)
RAN = History(last_position=(3, 1), results=(BEFORE, LAST))
SUMMED = History(sum_terms=sum_terms(header_body(N)))
CAP = header_body(N).norm_cap or OF_ONE
SMALLER = tuple(replace(layer, clip=layer.clip / 2, range=layer.range / 2) for layer in LAYERS)
NEXT = {"round": 4, "previous_result_digest": LAST.digest}


def header(**changes: Any) -> AnySigned:
    return signer(TARGET).sign(SESSION_ID, NO_CONTEXT, header_body(N, **changes))


def check(
    signed: AnySigned,
    history: History,
    limits: SessionLimits,
    *,
    roster: Roster | None = None,
    now: int = NOW,
    own_index: int = ME,
    own_layers: tuple[Layer, ...] = LAYERS,
) -> None:
    check_signed_header(
        signed,
        own_index=own_index,
        roster=roster or roster_of(N),
        limits=limits,
        history=history,
        own_layers=layer_names_and_shapes(own_layers),
        unix_s=now,
    )


def roster_with(index: int, **changes: Any) -> Roster:
    entries = roster_of(N).entries
    return replace(roster_of(N), entries=tuple(replace(e, **changes) if e.index == index else e for e in entries))


@dataclass(frozen=True)
class HeaderLie:
    check: str
    claim: str
    changes: dict[str, Any] = field(default_factory=dict)
    history: History = field(default_factory=History)
    limits: SessionLimits = field(default_factory=lambda: limits_of(N))
    roster: Roster = field(default_factory=lambda: roster_of(N))
    now: int = NOW

    @property
    def name(self) -> str:
        return f"{self.check} {self.claim}"


LIES = [
    HeaderLie("HEADER_ROSTER", "another roster", {"roster_digest": OTHER}),
    HeaderLie("HEADER_RUN", "a second run after a release", {}, History(other_run=True)),
    HeaderLie("HEADER_RUN", "a round after the end of the run", {}, History(ended=True)),
    HeaderLie("HEADER_REPLAY", "a session of before", {}, History(session_seen=True)),
    HeaderLie("HEADER_ORDER", "the same attempt", NEXT, replace(RAN, last_position=(4, 1))),
    HeaderLie("HEADER_ORDER", "an earlier round", {**NEXT, "attempt": 9}, replace(RAN, last_position=(5, 1))),
    HeaderLie("RELEASE_FUSE", "once more after a release", {"attempt": 2}, History(False, (1, 1), released=True)),
    HeaderLie("HEADER_KEEP", "no model at the end", NEXT, replace(RAN, sources_keep=SourcesKeep.FINAL)),
    HeaderLie(
        "HEADER_KEEP",
        "a model at the end, after its denial",
        {**NEXT, "sources_keep": SourcesKeep.FINAL},
        replace(RAN, sources_keep=SourcesKeep.NONE),
    ),
    HeaderLie("HEADER_CHAIN", "no result where one was", {**NEXT, "previous_result_digest": b""}, RAN),
    HeaderLie("HEADER_CHAIN", "a result that I never saw", {**NEXT, "previous_result_digest": OTHER}, RAN),
    HeaderLie("HEADER_CHAIN", "another model than the result's", {**NEXT, "model_digest": OTHER}, RAN),
    HeaderLie("HEADER_CHAIN", "back to an old result", {"round": 9, "previous_result_digest": BEFORE.digest}, RAN),
    HeaderLie("HEADER_PARTICIPANTS", "without me", {"participants": (0, 3, 4, 5)}),
    HeaderLie("HEADER_PARTICIPANTS", "with the target", {"participants": (0, TARGET, 2, 3, 4)}),
    HeaderLie("HEADER_PARTICIPANTS", "with a stranger", {"participants": (0, 2, 3, 4, 99)}),
    *(
        HeaderLie("HEADER_VALIDITY", f"{who}'s entry {when}", {"roster_digest": roster.digest()}, roster=roster)
        for who, index in (("mine", ME), ("the target", TARGET), ("another", 4))
        for when, roster in (
            ("has ended", roster_with(index, not_after=NOW - 1)),
            ("begins later", roster_with(index, not_before=NOW + 1)),
        )
    ),
    HeaderLie("HEADER_VALIDITY", "after everyone's end", now=LAST_SECOND + 1),
    HeaderLie("HEADER_ARCHITECTURE", "another architecture", {"architecture_digest": OTHER}),
    HeaderLie("HEADER_ARCHITECTURE", "another shape", {"layers": (replace(LAYERS[0], shape=(4, 3)), LAYERS[1])}),
    HeaderLie(
        "HEADER_ARCHITECTURE",
        "my digest beside other layers",
        {"layers": LAYERS[:1], "architecture_digest": header_body(N).architecture_digest},
    ),
    HeaderLie("HEADER_RATE", "steps of nothing", {"rule": replace(header_body(N).rule, learning_rate_factor=9e-7)}),
    HeaderLie("HEADER_RATE", "steps above my own", {"rule": replace(header_body(N).rule, learning_rate_factor=1.0001)}),
    HeaderLie("HEADER_TARGET", "fedgp without the target's terms", {"rule": FEDGP}),
    HeaderLie("HEADER_TARGET", "fedgp in clear without them", {"rule": FEDGP, **IN_CLEAR}),
    HeaderLie("HEADER_TARGET", "fedgp at sum without g_T", {"rule": FEDGP, "target": KEPT}),
    HeaderLie("HEADER_TARGET", "fedgp at sum beside a cohort without g_T", {"rule": FEDGP, "target": KEPT, **MIXED}),
    HeaderLie("HEADER_TARGET", "g_T published at individual", {"rule": FEDGP, "target": PUBLISHED, **IN_CLEAR}),
    HeaderLie("HEADER_TARGET", "g_T published at cohort", {"rule": FEDGP, "target": PUBLISHED, **COHORTS}),
    HeaderLie("HEADER_TARGET", "terms for a rule that needs none", {"target": PUBLISHED}),
    HeaderLie("HEADER_TARGET", "estimates of errors without the target's terms", {"rule": SELECT}),
    HeaderLie("HEADER_TARGET", "attention at sum without the gradient of the gap", {"rule": FADA}),
    HeaderLie("HEADER_TARGET", "attention at sum beside a cohort without it", {"rule": FADA, **MIXED}),
    HeaderLie("HEADER_TARGET", "a gradient of the gap at individual", {**ATTENDING, **IN_CLEAR}),
    HeaderLie("HEADER_TARGET", "a gradient of the gap at cohort", {**ATTENDING, **COHORTS}),
    HeaderLie("HEADER_TARGET", "a gradient of the gap beside exact gains", {**EXACT, "gap_gradient_digest": GRADIENT}),
    HeaderLie("HEADER_TARGET", "a gradient of the gap for a rule that needs none", {"gap_gradient_digest": GRADIENT}),
    HeaderLie(
        "HEADER_TARGET",
        "a gradient of the gap beside g_T",
        {"rule": FEDGP, "target": PUBLISHED, "gap_gradient_digest": GRADIENT},
    ),
    HeaderLie("HEADER_TARGET", "g_T beside a gradient of the gap", {**ATTENDING, "target": PUBLISHED}),
    HeaderLie("HEADER_TARGET", "g_T in the place of a gradient of the gap", {"rule": FADA, "target": PUBLISHED}),
    HeaderLie("HEADER_TARGET", "g_T beside features", {**COMPARING, "target": PUBLISHED}),
    HeaderLie("HEADER_TARGET", "features without the gradient of the gap", {**ADVERSARIAL, "gap_gradient_digest": b""}),
    HeaderLie("HEADER_TARGET", "a gradient of the gap beside features", {**COMPARING, "gap_gradient_digest": GRADIENT}),
    HeaderLie("HEADER_FEATURES", "a rule that compares features without any", {"rule": DANN}),
    HeaderLie("HEADER_FEATURES", "such a rule in clear", {"rule": DANN, **IN_CLEAR}),
    HeaderLie("HEADER_FEATURES", "features for a rule that needs none", {**COMPARING, "rule": header_body(N).rule}),
    HeaderLie("HEADER_FEATURES", "features under attention alone", {**ADVERSARIAL, "rule": FADA}),
    *(
        HeaderLie("HEADER_FEATURES", f"a pull {claim}", {**COMPARING, "layers": (*LAYERS, replace(PULL, **changes))})
        for claim, changes in {
            "on features of fewer rows": {"shape": (1, 3)},
            "on features of another width": {"shape": (2, 4)},
            "on as many numbers in another shape": {"shape": (3, 2)},
            "with another side": {"shape": (2, 3, 1)},
            "of another name": {"name": "pull"},
        }.items()
    ),
    HeaderLie(
        "HEADER_ARCHITECTURE",
        "a layer of the model in the place of the pull",
        {**COMPARING, "features": FeatureTerms(4, 1, OTHER), "layers": (LAYERS[0], replace(LAYERS[1], shape=(4, 1)))},
    ),
    HeaderLie("HEADER_ARCHITECTURE", "a pull without features", {"rule": DANN, "layers": COMPARING["layers"]}),
    HeaderLie(
        "HEADER_ARCHITECTURE",
        "a pull that is said to be of the model",
        {**COMPARING, "architecture_digest": header_body(N, layers=COMPARING["layers"]).architecture_digest},
    ),
    HeaderLie("HEADER_MOMENTS", "moments for a model of another form", {**ANALYTIC, **BESIDE_LAYERS}),
    HeaderLie("HEADER_MOMENTS", "moments in round 2", {**ANALYTIC, **BESIDE_LAYERS, "round": 2}),
    *(HeaderLie("HEADER_MODULUS", f"{bits} bits", {"modulus_bits": bits}) for bits in (0, 1, 2, 15, 18, 33, 64)),
    HeaderLie("HEADER_WRAP", "a ring for fewer than take part", {"n_max": N - 1}),
    HeaderLie("HEADER_WRAP", "no resolution left", {"n_max": 2**31}),
    HeaderLie("HEADER_WRAP", "no resolution left in 16 bits", {"n_max": 2**15, "modulus_bits": 16}),
    HeaderLie("HEADER_TERMS", "a higher norm cap", {"norm_cap": replace(CAP, kappa=1.1)}, SUMMED),
    HeaderLie("HEADER_TERMS", "no norm cap any more", {"norm_cap": None}, SUMMED),
    HeaderLie("HEADER_TERMS", "fewer norms that count", {"norm_cap": replace(CAP, others=1)}, SUMMED),
    HeaderLie("HEADER_TERMS", "another quorum", {"sum_quorum": N}, SUMMED),
    HeaderLie("HEADER_TERMS", "a smaller clip", {"layers": SMALLER}, SUMMED),
    HeaderLie("HEADER_RANGE", "a range above its clip", {"layers": (replace(LAYERS[0], range=0.5001), LAYERS[1])}),
    HeaderLie(
        "HEADER_RANGE", "such a range in clear", {"layers": (LAYERS[0], replace(LAYERS[1], range=2.1)), **IN_CLEAR}
    ),
    *(HeaderLie("HEADER_THRESHOLD", f"t = {t} of {N}", {"threshold": t}) for t in (0, 1, 2, N + 1)),
    HeaderLie(
        "HEADER_THRESHOLD", "t too low for my max-colluders", {"threshold": 3}, limits=limits_of(N, max_colluders=1)
    ),
    HeaderLie("HEADER_COHORT", "a cohort plan at sum", {"cohort_size": 3, "cohort_quorum": 3}),
    HeaderLie("HEADER_COHORT", "a cohort plan at individual", {**COHORTS, **IN_CLEAR}),
    *(
        HeaderLie(
            "HEADER_COHORT",
            f"cohorts of {size} that open over {quorum}",
            {"level": COHORT, "cohort_size": size, "cohort_quorum": quorum},
        )
        for size, quorum in ((0, 0), (3, 0), (3, 1), (3, 4), (6, 3))
    ),
    HeaderLie("HEADER_COHORT", "cohorts of more than there are beside a sum", {**MIXED, "cohort_size": 3}),
    HeaderLie("HEADER_COHORT", "a cohort of one beside a sum", {**MIXED, "levels": (COHORT, SUM, SUM, SUM, SUM)}),
    HeaderLie("HEADER_SUM", "a quorum for a sum of nobody", {**COHORTS, "sum_quorum": 2}),
    HeaderLie("HEADER_SUM", "norms of a sum of nobody", {**COHORTS, "norm_cap": OF_ONE}),
    HeaderLie("HEADER_SUM", "a quorum for a sum of nobody in clear", {**IN_CLEAR, "sum_quorum": 2}),
    *(HeaderLie("HEADER_SUM", f"a sum that opens over {quorum}", {"sum_quorum": quorum}) for quorum in (0, 1, N + 1)),
    HeaderLie("HEADER_SUM", "a sum beside a cohort that opens over more than it has", {**MIXED, "sum_quorum": 4}),
    HeaderLie("HEADER_SUM", "a sum of one beside cohorts", {**MIXED, "levels": (COHORT, SUM, COHORT, COHORT, COHORT)}),
    *(
        HeaderLie("HEADER_NORM_CAP", claim, {"norm_cap": NormCapTerms(1.0, others, Granularity.LAYER)}, limits=limits)
        for claim, others, limits in (
            ("of all others though one may be lost", 4, limits_of(N)),
            ("of one that may collude", 3, limits_of(N, max_colluders=1)),
            ("of one that I do not trust", 3, SessionLimits(1, 0, frozenset({0, ME, 3, 4}))),
            ("of two that may collude or that I do not trust", 2, SessionLimits(1, 1, frozenset({0, ME, 3, 4}))),
        )
    ),
    HeaderLie(
        "HEADER_NORM_CAP",
        "of more than a sum beside a cohort must hold",
        {**MIXED, "norm_cap": NormCapTerms(1.0, 2, Granularity.MODEL)},
    ),
    HeaderLie(
        "HEADER_QUORUM", "fewer than my min-others in a sum beside a cohort", MIXED, limits=limits_of(N, min_others=2)
    ),
    HeaderLie(
        "HEADER_QUORUM",
        "fewer than my min-others in a sum beside updates",
        WITH_CLEAR,
        limits=limits_of(N, min_others=2),
    ),
    HeaderLie("HEADER_THRESHOLD", "t of all though two of them are not masked", {**WITH_CLEAR, "threshold": 4}),
    HeaderLie("HEADER_QUORUM", "fewer than my min-others where all but t are lost", limits=limits_of(N, min_others=4)),
    HeaderLie("HEADER_QUORUM", "fewer than my min-others", limits=limits_of(N, min_others=N)),
    HeaderLie(
        "HEADER_QUORUM", "fewer than my min-others beside liars", limits=limits_of(N, min_others=4, max_colluders=1)
    ),
    HeaderLie(
        "HEADER_QUORUM",
        "too few that I trust",
        limits=SessionLimits(min_others=2, max_colluders=0, trusted=frozenset({0, ME, 3})),
    ),
    HeaderLie(
        "HEADER_THRESHOLD",
        "two views that sites which I do not trust could both answer in",
        limits=SessionLimits(min_others=1, max_colluders=0, trusted=frozenset({ME, 3})),
    ),
]

OUTSIDE: dict[str, Callable[[AnySigned], AnySigned]] = {
    "TYPE": lambda m: resigned(m, Abort(Step.HEADER, "X", None)),
    "SUITE": lambda m: forged(m, TARGET, suite=2),
    "SENDER": lambda m: forged(m, 3, sender=3),
    "CONTEXT": lambda m: forged(m, TARGET, context=OTHER),
    "SIGNATURE": lambda m: forged(m, 3),
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_source_refuses_header(lie: HeaderLie) -> None:
    with refused_for(lie.check):
        check(over_the_wire(header(**lie.changes)), lie.history, lie.limits, roster=lie.roster, now=lie.now)


def test_source_refuses_header_with_one_that_has_left_and_accuses_nobody() -> None:
    left = roster_with(4, left_at=NOW + 86_400)  # a thief of its key can name any hour
    with pytest.raises(FaultyAggregatorError) as refusal:
        check(over_the_wire(header()), History(), limits_of(N), roster=left)
    assert (refusal.value.check, refusal.value.blames) == ("HEADER_VALIDITY", False)
    assert left.by_index(4).site_id in str(refusal.value)
    check(over_the_wire(header()), History(), limits_of(N))


@pytest.mark.parametrize("name", OUTSIDE)
def test_source_refuses_header_with_false_outside(name: str) -> None:
    with refused_for(name):
        check(OUTSIDE[name](header()), History(), limits_of(N))


ALIGNED = {"rule": FEDGP, "target": PUBLISHED}


@pytest.mark.parametrize(
    ("first", "changes"),
    [
        (ALIGNED, {"target": replace(PUBLISHED, update_digest=OTHER)}),
        (ALIGNED, {"target": replace(PUBLISHED, scatter=0.5)}),
        (ALIGNED, {"model_digest": OTHER}),
        (ALIGNED, {"rule": replace(FEDGP, beta=0.25)}),
        (ALIGNED, {"max_samples": 77}),
        (ALIGNED, {"norm_cap": NormCapTerms(1.0, 1, Granularity.MODEL)}),
        (ATTENDING, {"gap_gradient_digest": OTHER}),
        (ATTENDING, {"rule": replace(FADA, attention=AttentionTerms("first-order", 0.02, 1.0))}),
        (ATTENDING, {"rule": replace(FADA, attention=AttentionTerms("first-order", 0.01, 0.9))}),
        (ATTENDING, {"rule": FADA, "gap_gradient_digest": b"", **IN_CLEAR}),
        (COMPARING, {"features": FeatureTerms(2, 3, OTHER)}),
        (COMPARING, {"features": FeatureTerms(1, 6, OTHER), "layers": (*LAYERS, replace(PULL, shape=(1, 6)))}),
        (COMPARING, {"layers": (*LAYERS, replace(PULL, clip=0.6))}),
        (COMPARING, {"rule": replace(DANN, rule="f_dan")}),
        (COMPARING, {"rule": header_body(N).rule, "features": None, "layers": LAYERS}),
    ],
    ids="-".join,
)
def test_source_refuses_another_attempt_at_a_round_that_asks_for_something_else(
    first: dict[str, Any], changes: dict[str, Any]
) -> None:
    history = History(last_position=(1, 1), last_terms=round_terms_digest(header(**first).body))
    check(header(**first, attempt=2), history, limits_of(N))
    with refused_for("HEADER_ORDER", "asks for something else"):
        check(header(**(first | {"attempt": 2} | changes)), history, limits_of(N))


def test_source_that_is_upgraded_between_two_attempts_knows_the_round_again() -> None:
    """Its earlier version hashed a header whose rule had no such field."""
    upgraded = make_dataclass(
        "RuleTerms", [("added_later", bool, field(default=False))], bases=(RuleTerms,), frozen=True, slots=True
    )
    now = header(rule=upgraded(**asdict(FEDGP)), target=PUBLISHED)
    assert round_terms_digest(now.body) == round_terms_digest(header(rule=FEDGP, target=PUBLISHED).body)
    used = replace(now.body, rule=replace(now.body.rule, added_later=True))
    assert round_terms_digest(used) != round_terms_digest(now.body)


@pytest.mark.parametrize(
    ("changes", "history"),
    [
        ({}, History()),
        ({"attempt": 2}, History(last_position=(1, 1))),
        ({"attempt": 2}, History(last_position=(1, 1), last_terms=round_terms_digest(header().body))),
        (NEXT, replace(RAN, last_terms=OTHER)),
        (NEXT, RAN),
        ({**NEXT, "attempt": 3}, replace(RAN, last_position=(4, 2))),
        ({"round": 5, "previous_result_digest": OTHER, "model_digest": OTHER}, RAN),
        ({"rule": FEDGP, "target": PUBLISHED}, History()),
        ({"rule": FEDGP, "target": KEPT, **IN_CLEAR}, History()),
        ({"modulus_bits": 16, "layers": (replace(LAYERS[0], range=1e-6), LAYERS[1])}, History()),
        ({"participants": (0, 2, 4), "threshold": 3}, History()),
        (COHORTS, History()),
        ({**COHORTS, "cohort_size": N}, History()),
        ({"norm_cap": None}, History()),
        (MIXED, History()),
        (WITH_CLEAR, History()),
        ({"rule": SELECT, "target": PUBLISHED}, History()),
        ({"rule": FEDGP, "target": PUBLISHED, **MIXED}, History()),
        (ATTENDING, History()),
        ({**ATTENDING, **MIXED}, History()),
        ({"rule": FADA, **IN_CLEAR}, History()),
        ({"rule": FADA, **COHORTS}, History()),
        ({**EXACT, **COHORTS}, History()),
        (COMPARING, History()),
        ({**COMPARING, "rule": replace(DANN, rule="f_dan"), **IN_CLEAR}, History()),
        ({**COMPARING, **COHORTS}, History()),
        (ADVERSARIAL, History()),
        ({**ADVERSARIAL, "rule": replace(FADA, rule="fada"), **MIXED}, History()),
        ({**COMPARING, **EXACT, "rule": replace(EXACT["rule"], rule="fada"), **COHORTS}, History()),
    ],
    ids=[
        "first",
        "next attempt",
        "next attempt at the same",
        "next round, which may ask for anything",
        "next round",
        "next attempt of it",
        "missed a round",
        "sum",
        "individual",
        "16 bits and a narrow range",
        "3",
        "cohort",
        "one cohort of all",
        "without a norm cap",
        "sum beside a cohort",
        "sum beside updates in clear",
        "estimates of errors",
        "sum beside a cohort with g_T",
        "attention at sum",
        "attention at sum beside a cohort",
        "attention in clear",
        "attention at cohort",
        "attention by exact gains",
        "features at sum",
        "features in clear",
        "features at cohort",
        "features and attention",
        "features and attention at sum beside a cohort",
        "features and attention by exact gains",
    ],
)
def test_source_accepts_honest_header(changes: dict[str, Any], history: History) -> None:
    check(over_the_wire(header(**changes)), history, limits_of(N))


@pytest.mark.parametrize(
    ("roster", "changes"),
    [
        (roster_with(ME, not_before=NOW), {}),
        (roster_with(ME, not_after=NOW), {}),
        (roster_with(3, not_after=NOW - 1), {"participants": (0, 2, 4, 5), "threshold": 3}),
    ],
    ids=["my first second", "my last second", "one is out of date and not asked"],
)
def test_source_accepts_header_of_sites_that_are_valid_now(roster: Roster, changes: dict[str, Any]) -> None:
    check(over_the_wire(header(roster_digest=roster.digest(), **changes)), History(), limits_of(N), roster=roster)


@pytest.mark.parametrize("own_index", header_body(N).participants)
def test_every_source_accepts_a_header_of_mixed_levels(own_index: int) -> None:
    for changes in (MIXED, WITH_CLEAR):
        check(over_the_wire(header(**changes)), History(), limits_of(N), own_index=own_index)


def test_individual_needs_no_session_numbers() -> None:
    terms = {**IN_CLEAR, "modulus_bits": 0, "threshold": 0, "n_max": 0}
    check(over_the_wire(header(**terms)), History(), limits_of(N, min_others=4))


def test_source_at_individual_takes_whatever_session_the_others_have() -> None:
    terms = {**WITH_CLEAR, "modulus_bits": 0, "threshold": 0, "n_max": 0}
    check(over_the_wire(header(**terms)), History(), limits_of(N, min_others=4), own_index=0)


def test_as_many_others_count_as_are_left_of_the_worst_sum() -> None:
    for others, limits in ((3, limits_of(N)), (2, limits_of(N, max_colluders=1)), (1, limits_of(N, max_colluders=2))):
        terms = {"threshold": 4, "norm_cap": NormCapTerms(0.5, others, Granularity.MODEL)}
        check(over_the_wire(header(**terms)), History(), limits)


@pytest.mark.parametrize("levels", [(), (SUM,), (SUM,) * (N - 1), (SUM,) * (N + 1)])
def test_header_has_one_level_for_each_participant(levels: tuple[Visibility, ...]) -> None:
    with pytest.raises(ValueError, match="one level for each participant"):
        replace(header_body(N), levels=levels)


def test_header_says_who_is_at_which_level() -> None:
    mixed = header_body(N, **MIXED)
    assert (mixed.at(SUM), mixed.at(COHORT), mixed.at(INDIVIDUAL)) == ((2, 3, 5), (0, 4), ())
    assert mixed.masked == mixed.participants
    assert header_body(N, **WITH_CLEAR).masked == (2, 3, 5)
    assert mixed.level_of(4) is COHORT
    with pytest.raises(ValueError, match="not in tuple"):
        mixed.level_of(TARGET)


def body(**changes: Any) -> Header:
    return header_body(N, **changes)


@pytest.mark.parametrize("model", [b"", MODEL[:-1], MODEL + b"\0", MODEL[:-4] + bytes(4), bytes(64)])
def test_source_refuses_model_that_the_header_does_not_bind(model: bytes) -> None:
    with refused_for("HEADER_MODEL"):
        check_vectors(body(), SUM, model, None)


def test_source_refuses_model_of_another_length_though_its_digest_is_bound() -> None:
    with refused_for("HEADER_MODEL"):
        check_vectors(body(model_digest=sha256(b"short").digest()), SUM, b"short", None)


@pytest.mark.parametrize("update", [None, b"", UPDATE[:-1], UPDATE + bytes(4), b"\1" * 64])
def test_source_refuses_target_update_that_the_header_does_not_bind(update: bytes | None) -> None:
    for publishing in ({"rule": FEDGP, "target": PUBLISHED}, ATTENDING):
        with refused_for("HEADER_TARGET"):
            check_vectors(body(**publishing), SUM, MODEL, update)


def test_source_refuses_target_update_that_no_header_announced() -> None:
    with refused_for("HEADER_TARGET"):
        check_vectors(body(), SUM, MODEL, UPDATE)


def test_source_accepts_the_vectors_that_the_header_binds() -> None:
    check_vectors(body(), SUM, MODEL, None)
    check_vectors(body(rule=FEDGP, target=PUBLISHED), SUM, bytearray(MODEL), memoryview(UPDATE))
    check_vectors(body(**ATTENDING), SUM, bytearray(MODEL), memoryview(UPDATE))
    check_vectors(body(**ATTENDING, **MIXED), COHORT, MODEL, None)


def test_digests_of_vectors_are_in_the_order_in_which_they_travel() -> None:
    model = sha256(MODEL).digest()
    assert vector_digests(body()) == vector_digests(body(rule=FEDGP, target=KEPT)) == (model,)
    assert vector_digests(body(rule=FEDGP, target=PUBLISHED)) == (model, sha256(UPDATE).digest())
    assert vector_digests(body(**ATTENDING)) == (model, GRADIENT)
    assert vector_digests(body(**COMPARING)) == (model, sha256(FEATURES).digest())
    assert vector_digests(body(**ADVERSARIAL)) == (model, sha256(FEATURES).digest(), GRADIENT)


@pytest.mark.parametrize("features", [None, b"", FEATURES[:-1], FEATURES + bytes(4), FEATURES[:-4] + bytes(4), UPDATE])
@pytest.mark.parametrize("level", Visibility)
def test_source_refuses_features_that_the_header_does_not_bind(features: bytes | None, level: Visibility) -> None:
    with refused_for("HEADER_FEATURES"):
        check_vectors(body(**COMPARING), level, MODEL, None, features)


def test_source_refuses_features_of_another_length_though_their_digest_is_bound() -> None:
    named = {**COMPARING, "features": FeatureTerms(2, 3, sha256(b"short").digest())}
    with refused_for("HEADER_FEATURES"):
        check_vectors(body(**named), SUM, MODEL, None, b"short")


def test_source_refuses_features_that_no_header_announced() -> None:
    for changes, update in (({}, None), (ATTENDING, UPDATE)):
        with refused_for("HEADER_FEATURES"):
            check_vectors(body(**changes), SUM, MODEL, update, FEATURES)


def test_source_accepts_the_features_that_the_header_binds_at_every_level() -> None:
    for level in Visibility:
        check_vectors(body(**COMPARING), level, MODEL, None, FEATURES)
    check_vectors(body(**ADVERSARIAL), SUM, MODEL, UPDATE, FEATURES)
    check_vectors(body(**ADVERSARIAL, **MIXED), COHORT, MODEL, None, FEATURES)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_source_refuses_features_that_are_not_numbers(number: float) -> None:
    wire = np.array([0, 0, 0, number, 0, 0], "<f4").tobytes()
    named = body(**{**COMPARING, "features": FeatureTerms(2, 3, sha256(wire).digest())})
    with refused_for("HEADER_FEATURES", "NaN or infinity"):
        checked_vectors(named, SUM, Parcel(header(), (MODEL, wire)))


def test_vectors_that_came_have_the_shapes_that_the_header_names() -> None:
    came = checked_vectors(body(**ADVERSARIAL), SUM, Parcel(header(), (MODEL, FEATURES, UPDATE)))
    assert came.model.shape == (16,)
    assert came.features is not None
    assert came.features.tobytes() == FEATURES
    assert came.features.shape == (2, 3)
    assert came.published is not None
    assert came.published.tobytes() == UPDATE


def check_moments(own: tuple[Layer, ...] = (), **changes: Any) -> None:
    layers = own or changes.get("layers", ANALYTIC["layers"])[:-1]
    check(header(**{**ANALYTIC, **changes}), History(), limits_of(N), own_layers=layers)


def test_a_header_with_moments_sums_them_behind_the_model() -> None:
    check_moments()
    asked = header_body(N, **ANALYTIC)
    assert (asked.model_layers, asked.n_params, asked.n_summed) == (HEAD, 8, 18)


BARE = (Layer("weight", (2, 3), 0.5, 0.5), GRAM)
DEEP = (Layer("first", (3, 3), 0.5, 0.5), *HEAD, GRAM)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"round": 2}, "in round 2; they leave in round 1 alone"),
        ({"layers": (*HEAD, replace(GRAM, shape=(11,)))}, "another number of features"),
        ({"layers": (*HEAD, replace(GRAM, name="moments"))}, "more than one linear layer"),
        ({"layers": BARE, "architecture_digest": architecture_digest(layer_names_and_shapes(BARE[:1]))}, "with a bias"),
        ({"layers": DEEP, "architecture_digest": architecture_digest(layer_names_and_shapes(DEEP[:3]))}, "more than"),
    ],
    ids=["round", "length", "name", "no-bias", "two-layers"],
)
def test_source_refuses_moments_that_are_not_those_of_its_head(changes: dict[str, Any], why: str) -> None:
    with refused_for("HEADER_MOMENTS", why):
        check_moments(**changes)


def test_source_refuses_moments_under_a_rule_that_trains() -> None:
    layers = (*HEAD, GRAM)
    table = layer_names_and_shapes(layers)
    with refused_for("HEADER_MOMENTS", "source_only adds no second moments"):
        check_moments(layers, rule=body().rule, layers=layers, architecture_digest=architecture_digest(table))


def test_a_header_with_features_sums_the_pull_behind_the_model() -> None:
    assert body(**COMPARING).model_layers == LAYERS
    assert body(**COMPARING).n_params == body().n_params == body().n_summed == 16
    assert body(**COMPARING).n_summed == 22


@pytest.mark.parametrize("level", [INDIVIDUAL, COHORT])
def test_source_below_sum_refuses_the_update_of_the_target_that_others_get(level: Visibility) -> None:
    asking = body(rule=FEDGP, target=PUBLISHED, **MIXED)
    with refused_for("HEADER_TARGET"):
        check_vectors(asking, level, MODEL, UPDATE)
    check_vectors(asking, level, MODEL, None)


@pytest.mark.parametrize("level", [COHORT, SUM])
@pytest.mark.parametrize("wrong", [{"steps": 1}, {"scatter": 9.0}], ids=str)
def test_target_numbers_that_contradict_each_other_are_refused(wrong: dict[str, Any], level: Visibility) -> None:
    """At a cohort too: the source does not evaluate the rule there, but its encoding rests on the numbers."""
    header = replace(header_body(N), rule=SELECT, target=replace(PUBLISHED, **wrong))
    terms = RoundTerms.of(header, quantisation(header))
    update = np.zeros(sum(terms.sizes), dtype=np.float32)

    with refused_for("HEADER_TARGET"):
        contribution_at_source(terms, level, update, update)


def test_noise_is_aligned_as_the_update_is() -> None:
    header = replace(header_body(N), rule=FEDGP, target=PUBLISHED)
    noise = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    factor = alignment_of(header, steps=3 * PUBLISHED.steps, learning_rate=PUBLISHED.learning_rate / 6)

    variance = aligned_variance(header, float(np.var(noise)), factor)

    assert variance == pytest.approx(float(np.var(aligned_update(header, noise, factor))), rel=1e-4)
    assert variance == pytest.approx(4 * float(np.var(noise)))
    plain = replace(header, rule=replace(FEDGP, align=False))
    assert aligned_variance(plain, 0.5, factor) == 0.5
