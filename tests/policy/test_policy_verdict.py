"""A policy refuses a header one step above any of its keys, names that key, and refuses nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefda.errors import ExitCode, PolicyRefusal
from securefda.policy import QuantisationBounds, ReleaseLimits, SourcePolicy, check_header
from securefda.secagg.messages import Header, Layer, RuleTerms, Visibility

ARCHITECTURE = bytes(range(32))
POLICY = SourcePolicy(
    max_visibility="sum",
    k_min=2,
    n_c=1,
    allowed_rules=("fedgp_auto", "source_only"),
    architectures=(ARCHITECTURE.hex(),),
    quantisation=QuantisationBounds(
        modulus_bits_min=64, clip_min=0.5, clip_max=2.0, n_max=8, max_samples_min=1000, max_samples_max=1000
    ),
    release=ReleaseLimits(max_attempts=3),
)


def header_at_every_limit() -> Header:
    """Every number at the last value that ``POLICY`` allows: 7 sources, of which one may collude."""
    return Header(
        run_id=bytes(16),
        round=1,
        attempt=3,
        visibility=Visibility.SUM,
        rule=rule("fedgp_auto"),
        target=None,
        layers=(Layer("weight", (2, 3), 0.5), Layer("bias", (3,), 2.0)),
        architecture_digest=ARCHITECTURE,
        model_digest=bytes(32),
        roster_digest=bytes(32),
        participants=(1, 2, 3, 4, 5, 6, 7),
        threshold=5,
        modulus_bits=64,
        n_max=8,
        max_samples=1000,
        training_deadline_ms=1000,
        phase_deadline_ms=1000,
        previous_result_digest=b"",
        previous_checkpoint=b"",
    )


def rule(name: str, *, filtered: bool = False) -> RuleTerms:
    return RuleTerms(name, 0.5, "orthogonal", filtered, True, "mean-field", 1.0)


def test_a_header_at_every_limit_is_accepted() -> None:
    check_header(POLICY, header_at_every_limit())


ONE_STEP_ABOVE: list[tuple[str, Callable[[Header], Header]]] = [
    ("max-visibility", lambda h: replace(h, visibility=Visibility.INDIVIDUAL)),
    ("k-min", lambda h: replace(h, participants=(1, 2, 3))),
    ("k-min", lambda h: replace(h, participants=(1, 2, 3, 4), threshold=3)),
    ("n-c", lambda h: replace(h, threshold=4)),
    ("n-c", lambda h: replace(h, threshold=8)),
    ("allowed-rules", lambda h: replace(h, rule=rule("fedda_auto"))),
    ("filtered-projection", lambda h: replace(h, rule=rule("fedgp_auto", filtered=True))),
    ("architectures", lambda h: replace(h, architecture_digest=bytes(32))),
    ("quantisation.modulus-bits-min", lambda h: replace(h, modulus_bits=32)),
    ("quantisation.clip-min", lambda h: replace(h, layers=(h.layers[0], Layer("bias", (3,), 0.4999)))),
    ("quantisation.clip-max", lambda h: replace(h, layers=(Layer("weight", (6,), 2.0001), h.layers[1]))),
    ("quantisation.n-max", lambda h: replace(h, n_max=9)),
    ("quantisation.max-samples-min", lambda h: replace(h, max_samples=999)),
    ("quantisation.max-samples-max", lambda h: replace(h, max_samples=1001)),
    ("release.max-attempts", lambda h: replace(h, attempt=4)),
]


@pytest.mark.parametrize(("key", "raise_it"), ONE_STEP_ABOVE, ids=[key for key, _ in ONE_STEP_ABOVE])
def test_one_step_above_a_key_is_refused_under_its_name(key: str, raise_it: Callable[[Header], Header]) -> None:
    with pytest.raises(PolicyRefusal) as caught:
        check_header(POLICY, raise_it(header_at_every_limit()))
    assert caught.value.key == key
    assert caught.value.exit_code is ExitCode.POLICY


def test_an_aggregator_may_ask_for_less_than_the_policy_permits() -> None:
    open_policy = POLICY.model_copy(update={"max_visibility": "individual"})
    check_header(open_policy, header_at_every_limit())
    check_header(open_policy, replace(header_at_every_limit(), visibility=Visibility.INDIVIDUAL))


def test_counting_rules_concern_sums_only() -> None:
    open_policy = POLICY.model_copy(update={"max_visibility": "individual"})
    alone = replace(header_at_every_limit(), visibility=Visibility.INDIVIDUAL, participants=(1,), threshold=1)
    check_header(open_policy, alone)


def test_a_cohort_must_hide_its_members_when_it_has_lost_all_but_its_quorum() -> None:
    policy = POLICY.model_copy(update={"max_visibility": "cohort"})
    header = replace(header_at_every_limit(), visibility=Visibility.COHORT, cohort_size=5, cohort_quorum=4)
    check_header(policy, header)
    with pytest.raises(PolicyRefusal) as caught:
        check_header(policy, replace(header, cohort_quorum=3))
    assert (caught.value.key, caught.value.asked) == ("k-min", "a sum with 1 others that count")
    with pytest.raises(PolicyRefusal) as caught:
        check_header(POLICY, header)
    assert (caught.value.key, caught.value.asked, caught.value.allowed) == ("max-visibility", "cohort", "sum")


def test_leaving_sources_out_of_layers_matters_to_fedgp_at_sum_alone() -> None:
    filtered = replace(header_at_every_limit(), rule=rule("fedgp_auto", filtered=True))
    check_header(POLICY.model_copy(update={"filtered_projection": True}), filtered)
    open_policy = POLICY.model_copy(update={"max_visibility": "individual"})
    check_header(open_policy, replace(filtered, visibility=Visibility.INDIVIDUAL))
    check_header(POLICY, replace(filtered, rule=rule("source_only", filtered=True)))


def test_a_policy_without_rules_refuses_every_rule() -> None:
    with pytest.raises(PolicyRefusal, match="allowed none") as caught:
        check_header(SourcePolicy(), header_at_every_limit())
    assert caught.value.key == "allowed-rules"


def test_no_listed_architecture_leaves_the_choice_to_the_session() -> None:
    policy = POLICY.model_copy(update={"architectures": ()})
    check_header(policy, replace(header_at_every_limit(), architecture_digest=bytes(32)))


@given(
    visibility=st.sampled_from(Visibility),
    n=st.integers(1, 9),
    threshold=st.integers(0, 10),
    modulus_bits=st.sampled_from([2, 16, 32, 64]),
    clips=st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)),
    n_max=st.integers(1, 20),
    attempt=st.integers(1, 6),
)
def test_every_accepted_header_satisfies_every_inequality(
    visibility: Visibility,
    n: int,
    threshold: int,
    modulus_bits: int,
    clips: tuple[float, float],
    n_max: int,
    attempt: int,
) -> None:
    header = replace(
        header_at_every_limit(),
        visibility=visibility,
        participants=tuple(range(1, n + 1)),
        threshold=threshold,
        modulus_bits=modulus_bits,
        layers=(Layer("weight", (2, 3), clips[0]), Layer("bias", (3,), clips[1])),
        n_max=n_max,
        attempt=attempt,
    )
    within = (
        visibility is Visibility.SUM
        and min(n, threshold) - 1 - 1 >= 2
        and 2 * threshold > n + 1
        and 1 < threshold <= n
        and modulus_bits == 64
        and all(0.5 <= clip <= 2.0 for clip in clips)
        and n_max <= 8
        and attempt <= 3
    )
    if within:
        check_header(POLICY, header)
    else:
        with pytest.raises(PolicyRefusal):
            check_header(POLICY, header)
