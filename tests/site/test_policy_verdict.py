"""A policy refuses what is one step above any of its keys, names that key, and refuses nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_headers import ARCHITECTURE, FACTORY, ME, POLICY, header_at_every_limit, roster, rule

from securefda.errors import ExitCode, FaultyAggregatorError, PolicyRefusal
from securefda.protocol.messages import (
    AttentionTerms,
    Granularity,
    Header,
    KeyAgreement,
    Layer,
    NormCapTerms,
    RuleTerms,
    Schedule,
    SourcesKeep,
    TargetTerms,
    Update,
    Visibility,
)
from securefda.rules.strategy import Rule
from securefda.settings import known_keys
from securefda.site.policy import (
    Agreement,
    SourcePolicy,
    check_day,
    check_header_by_policy,
    check_metadata,
    check_moments,
    check_task,
    check_training,
    default_policy,
)
from securefda.site.policy.verdict import check_metrics, check_schedule
from securefda.task_digest import task_digest

Asks = Callable[[SourcePolicy], None]
ROSTER = roster()


def changed(policy: SourcePolicy, key: str, value: Any) -> SourcePolicy:
    """The policy with another value of one dotted key; nothing validates the whole."""
    table, _, leaf = key.replace("-", "_").rpartition(".")
    if table:
        leaf, value = table, getattr(policy, table).model_copy(update={leaf: value})
    return policy.model_copy(update={leaf: value})


def asked_by(header: Header) -> Asks:
    return lambda policy: check_header_by_policy(policy, header, ME, policy.session_limits(ROSTER))


def asked_of_noise() -> Asks:
    """The usual header, of a site that trains by DP-SGD."""
    header = header_at_every_limit()
    return lambda policy: check_header_by_policy(policy, header, ME, policy.session_limits(ROSTER), with_noise=True)


def asking(**changes: Any) -> Asks:
    return asked_by(replace(header_at_every_limit(), **changes))


def scheduled(*, with_noise: bool = False, **changes: Any) -> Asks:
    """A run whose headers come to what the policy just allows."""
    header = header_at_every_limit()
    schedule = Schedule(
        run_id=bytes(16),
        rounds=50,
        rules=(header.rule,),
        learning_rate=0.25,
        clip=1.0,
        modulus_bits=header.modulus_bits,
        n_max=header.n_max,
        max_samples=header.max_samples,
        training_deadline_ms=header.training_deadline_ms,
        phase_deadline_ms=header.phase_deadline_ms,
        norm_cap_kappa=norms().kappa,
        norm_cap_granularity=norms().granularity,
        sources_keep=header.sources_keep,
        key_agreement=header.key_agreement,
    )
    return lambda policy: check_schedule(policy, replace(schedule, **changes), with_noise=with_noise)


def norms(**changes: Any) -> NormCapTerms:
    terms = header_at_every_limit().norm_cap
    assert terms is not None
    return replace(terms, **changes)


def served_at(level: Visibility, **changes: Any) -> Asks:
    """This site alone at another level than the rest."""
    levels = tuple(level if index == ME else Visibility.SUM for index in range(1, 8))
    return asking(levels=levels, **changes)


def all_in_cohorts(**changes: Any) -> Header:
    header = replace(header_at_every_limit(), levels=(Visibility.COHORT,) * 7, sum_quorum=0, norm_cap=None)
    return replace(header, **{"cohort_size": 5, "cohort_quorum": 4} | changes)


def updating(**changes: Any) -> Asks:
    update = replace(Update(bytes(32), 4, 10, bytes(32)), **changes)
    return lambda policy: check_metadata(policy, update)


def trained_for(factory: str, **options: Any) -> Asks:
    return lambda policy: check_task(policy, factory, options)


def begun_on(day: str, *, with_noise: bool = False) -> Asks:
    second = datetime.fromisoformat(f"{day}T23:59:59+00:00").timestamp()
    return lambda policy: check_day(policy, second, with_noise=with_noise)


def reading(*columns: str) -> Asks:
    """A table's task that reads these columns, the last of which is the label, and ignores one more."""
    of_the_model = {name: {"type": "number"} for name in columns[:-1]}
    ignored = {"name": {"type": "ignored"}}
    return trained_for(FACTORY, columns=of_the_model | ignored, label={"column": columns[-1]})


def trained_with(noise_multiplier: float, max_grad_norm: float = 1.0) -> Asks:
    return lambda policy: check_training(policy, noise_multiplier, max_grad_norm)


def adding(*classes: int) -> Asks:
    """Second moments of rows with two features, so many of each class."""
    labels = np.repeat(np.eye(len(classes)), classes, axis=0)
    features = np.random.default_rng(0).normal(size=(len(labels), 2))
    return lambda policy: np.testing.assert_array_equal(check_moments(policy, features, labels)[0], features)


def attending(bound: float) -> RuleTerms:
    """The rule of the header at every limit, with a share of attention."""
    return replace(header_at_every_limit().rule, attention=AttentionTerms("first-order", 0.1, bound))


AT_EVERY_LIMIT = asking()


@dataclass(frozen=True)
class Case:
    """What stands at the limit of a key, what is one step above, and a value of the key that allows that, if any."""

    key: str
    above: Asks
    looser: Any
    at: Asks = AT_EVERY_LIMIT
    policy: SourcePolicy = POLICY


TARGET = TargetTerms(steps=10, learning_rate=0.2501, update_digest=bytes(32))
REQUIRING = changed(POLICY, "dp.required", True)
TRUSTING = changed(POLICY, "trusted-peers", ())
WITHOUT_NORMS = changed(POLICY, "norm-cap.kappa", 0.0)
HIDING = changed(POLICY, "norm-cap.reports", "hidden")
LAYERS = header_at_every_limit().layers
OWN = "securefda.tasks.digits:Digits"
PINNED = changed(POLICY, "allowed-tasks", (f"{OWN}@{task_digest(OWN, {'a': 1})}",))
AGREED = changed(POLICY, "agreement", Agreement(columns=("age", "ill"), expires="2027-06-30"))
AGREED = changed(AGREED, "dp.expires", "2027-03-01")
CASES = [
    Case("max-visibility", served_at(Visibility.INDIVIDUAL), "individual"),
    Case("max-visibility", asked_by(all_in_cohorts()), "cohort"),
    Case(
        "min-others",
        asking(sum_quorum=3, norm_cap=norms(others=1)),
        1,
        at=asking(sum_quorum=4, norm_cap=norms(others=2)),
        policy=TRUSTING,
    ),
    Case("max-colluders", asking(threshold=4), 0, policy=TRUSTING),
    Case("max-colluders", asking(threshold=8), None, at=asking(threshold=7)),  # more than there are sources
    Case("max-colluders", asking(norm_cap=norms(others=4)), 0, at=asking(norm_cap=norms(others=3)), policy=TRUSTING),
    Case("trusted-peers", asking(sum_quorum=4, norm_cap=norms(others=2)), ()),
    Case("trusted-peers", asking(norm_cap=norms(others=3)), ()),
    Case("trusted-peers", asking(sum_quorum=4, norm_cap=None), (), at=asking(norm_cap=None), policy=WITHOUT_NORMS),
    Case("allowed-rules", asking(rule=rule("fedda_auto")), ("fedda_auto",)),
    Case("allowed-rules", asking(rule=rule("fedgp_auto", select=True)), ("fedgp_auto", "auto")),
    Case("allowed-tasks", trained_for(f"{FACTORY}2"), (), at=trained_for(FACTORY)),
    Case("allowed-tasks", trained_for(OWN, a=2), (OWN,), at=trained_for(OWN, a=1), policy=PINNED),
    Case("agreement.columns", reading("age", "weight", "ill"), (), at=reading("age", "ill"), policy=AGREED),
    Case("agreement.columns", reading("age", "death"), (), at=reading("age", "ill"), policy=AGREED),
    Case("agreement.expires", begun_on("2027-07-01"), "2027-07-01", at=begun_on("2027-06-30"), policy=AGREED),
    Case("dp.expires", begun_on("2027-03-02", with_noise=True), "", at=begun_on("2027-03-02"), policy=AGREED),
    Case("dp.expires", begun_on("2027-03-02", with_noise=True), "", begun_on("2027-03-01", with_noise=True), AGREED),
    Case("key-agreements", asking(key_agreement=KeyAgreement.X25519), ("x25519-mlkem768", "x25519")),
    Case("key-agreements", scheduled(key_agreement=KeyAgreement.X25519), ("x25519",)),
    Case("architectures", asking(architecture_digest=bytes(32)), ()),
    Case("norm-cap.kappa", asking(norm_cap=norms(kappa=1.9999)), 1.0),
    Case("norm-cap.kappa", asking(norm_cap=None), 0.0),
    Case("norm-cap.granularity", asking(norm_cap=norms(granularity=Granularity.MODEL)), "model"),
    Case("norm-cap.reports", AT_EVERY_LIMIT, "colluders-may-see", at=asked_of_noise(), policy=HIDING),
    Case("norm-cap.reports", trained_with(0.0), "colluders-may-see", at=trained_with(0.01), policy=HIDING),
    Case("norm-cap.unfiltered-projection", asking(rule=rule("fedgp_auto", filtered=False)), True),
    Case("quantisation.modulus-bits-min", asking(modulus_bits=16), 16),
    Case("quantisation.clip-min", asking(layers=(LAYERS[0], Layer("bias", (3,), 0.4999, 0.4999))), 0.4),
    Case("quantisation.clip-max", asking(layers=(Layer("weight", (6,), 2.0001, 2.0001), LAYERS[1])), 3.0),
    Case("quantisation.n-max", asking(n_max=9), 9),
    Case("quantisation.max-samples-min", asking(max_samples=999), 999),
    Case("quantisation.max-samples-max", asking(max_samples=1001), 1001),
    Case("dp.required", trained_with(0.0), False, at=trained_with(0.01), policy=REQUIRING),
    Case("dp.max-grad-norm", trained_with(1.0, 10.001), 10.001, at=trained_with(1.0, 10.0)),
    Case("limits.model-bytes-max", asking(layers=(*LAYERS, Layer("one", (1,), 1.0, 1.0))), 40),
    Case("limits.learning-rate-max", asking(target=TARGET), 0.2501),
    Case("limits.learning-rate-min", asking(target=replace(TARGET, learning_rate=0.2499)), 0.2499),
    Case("limits.attention-bound-max", asking(rule=attending(1.0001)), 1.0001, at=asking(rule=attending(1.0))),
    Case("limits.training-deadline-s-max", asking(training_deadline_ms=60_501), 60.501),
    Case("limits.phase-deadline-s-max", asking(phase_deadline_ms=5_001), 5.001),
    Case("release.max-attempts", asking(attempt=4), 4),
    Case("model.keep", asking(sources_keep=SourcesKeep.NONE), "any"),
    Case("release.max-rounds", asking(round=51), 51),
    Case("model.keep", scheduled(sources_keep=SourcesKeep.NONE), "any", at=scheduled()),
    Case("norm-cap.granularity", scheduled(norm_cap_granularity=Granularity.MODEL), "model", at=scheduled()),
    Case(
        "norm-cap.unfiltered-projection",
        scheduled(rules=(rule("fedgp_auto", filtered=False),)),
        True,
        at=scheduled(),
    ),
    Case("moments.min-rows", adding(8), 2.5, at=adding(9), policy=changed(POLICY, "moments.min-rows", 3.0)),
    Case("moments.min-rows-per-class", adding(2, 9), 2, at=adding(3, 9)),
    Case("moments.min-rows-per-class", adding(4, 0, 2, 9), 2, at=adding(4, 0, 3, 9)),
    Case("metadata.may-leave", updating(loss=0.5), ("samples", "loss"), at=updating()),
    Case("metadata.may-leave", updating(accuracy=0.5), ("samples", "accuracy"), at=updating()),
]


OF_THE_LEDGER = {"dp.unit", "dp.target-epsilon", "dp.target-delta", "dp.accountant", "dp.reserve-days"}
"""What rounds may cost together is no matter of one header or one site's settings: ``dp.budget`` goes to the ledger."""

OF_THE_RUN_BOOK = {"release.max-runs", "release.max-unfinished"}
"""What counts over rounds and runs, see ``tests/rounds/test_run_book.py``."""


OF_THE_MODEL = {"model.initial", "limits.model-step"}
"""What the vectors beside a header are compared with, see ``tests/rounds/test_model_bound.py``."""


OF_THE_AGREEMENT = {
    f"agreement.{key}"
    for key in (
        *("template", "purpose", "legal-basis", "contract", "authority", "rows-per-person"),
        *("keep-logs-days", "keep-models-days", "recipient"),
    )
} | {"agreement.signatures-required"}
"""Statements, and what is compared with roster and signature: see ``test_policy_agreement.py``."""


OF_TRAINING = {"release.min-rows", "moments.min-rows-per-category"}
"""What a site keeps back without a refusal, see ``tests/training/test_support.py`` and the test of rare values."""


def test_every_key_of_the_schema_has_been_asked_for_too_much_of() -> None:
    elsewhere = OF_THE_LEDGER | OF_THE_RUN_BOOK | OF_THE_MODEL | OF_THE_AGREEMENT | OF_TRAINING
    assert {case.key for case in CASES} == set(known_keys(SourcePolicy)) - elsewhere


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_at_its_limit_a_key_permits_and_one_step_above_it_refuses_under_its_name(case: Case) -> None:
    case.at(case.policy)
    with pytest.raises(PolicyRefusal) as caught:
        case.above(case.policy)
    assert caught.value.key == case.key
    assert caught.value.exit_code is ExitCode.POLICY
    assert str(caught.value.asked)
    assert str(caught.value.allowed)
    assert caught.value.hint


@pytest.mark.parametrize("case", [case for case in CASES if case.looser is not None], ids=lambda case: case.key)
def test_what_a_key_refuses_no_other_key_does(case: Case) -> None:
    case.above(changed(case.policy, case.key, case.looser))


def test_a_header_without_this_site_is_the_aggregators_fault_and_no_matter_of_the_policy() -> None:
    with pytest.raises(FaultyAggregatorError) as caught:
        check_header_by_policy(POLICY, header_at_every_limit(), 8)
    assert caught.value.check == "HEADER_PARTICIPANTS"


def test_a_value_that_few_rows_have_counts_as_the_usual_one_and_all_others_stay() -> None:
    features = np.random.default_rng(0).normal(size=(9, 4))
    features[:, 1], features[:, 2], features[:, 3] = 0.5, -1.0, 0.0
    features[[2, 7], 1], features[[0, 4, 8], 2], features[5, 3] = (0.25, 7.0), 1.0, 3.0
    rows, _ = check_moments(default_policy(), features, np.ones((9, 1)))
    expected = features.copy()
    expected[:, 1], expected[:, 3] = 0.5, 0.0
    np.testing.assert_array_equal(rows, expected)
    every = changed(default_policy(), "moments.min-rows-per-category", 1)
    np.testing.assert_array_equal(check_moments(every, features, np.ones((9, 1)))[0], features)


def test_an_aggregator_may_ask_for_less_than_the_policy_permits() -> None:
    open_policy = changed(POLICY, "max-visibility", "individual")
    asking()(open_policy)
    served_at(Visibility.INDIVIDUAL)(open_policy)


def test_what_is_seen_of_other_sources_is_theirs_to_decide() -> None:
    levels = (*(Visibility.SUM,) * 6, Visibility.INDIVIDUAL)
    asking(levels=levels)(POLICY)


def test_counting_rules_concern_sums_only() -> None:
    open_policy = changed(TRUSTING, "max-visibility", "individual")
    alone = replace(
        header_at_every_limit(),
        levels=(Visibility.INDIVIDUAL,),
        participants=(ME,),
        threshold=1,
        sum_quorum=0,
        norm_cap=None,
    )
    check_header_by_policy(open_policy, alone, ME)


def test_a_cohort_must_hide_its_members_when_it_has_lost_all_but_its_quorum() -> None:
    policy = changed(POLICY, "max-visibility", "cohort")
    check_header_by_policy(policy, all_in_cohorts(), ME)
    with pytest.raises(PolicyRefusal) as caught:
        check_header_by_policy(policy, all_in_cohorts(cohort_quorum=3), ME)
    assert (caught.value.key, caught.value.asked) == ("min-others", "a sum with 1 others that count")
    with pytest.raises(PolicyRefusal) as caught:
        check_header_by_policy(POLICY, all_in_cohorts(), ME)
    assert (caught.value.key, caught.value.asked, caught.value.allowed) == ("max-visibility", "cohort", "sum")


def test_a_quorum_above_the_number_of_sources_at_a_level_hides_nobody() -> None:
    levels = tuple(Visibility.SUM if index <= 3 else Visibility.INDIVIDUAL for index in range(1, 8))
    with pytest.raises(PolicyRefusal) as caught:
        asking(levels=levels)(TRUSTING)
    assert (caught.value.key, caught.value.asked) == ("min-others", "a sum with 1 others that count")


def test_only_sources_that_mask_count_for_the_threshold() -> None:
    """Of 7 sources 2 are seen in clear: a threshold of 5 is sound among 5, and one of 3 is not."""
    levels = (*(Visibility.SUM,) * 5, *(Visibility.INDIVIDUAL,) * 2)
    asking(levels=levels)(TRUSTING)
    with pytest.raises(PolicyRefusal) as caught:
        asking(levels=levels, threshold=3)(TRUSTING)
    assert (caught.value.key, caught.value.asked) == ("max-colluders", "threshold 3 of 5")


PROJECTING = ("fedgp", "fedgp_auto", "fedgp_filtered_auto")
EVERY_RULE = tuple(rule.value for rule in Rule)
OF_EVERY_RULE = changed(changed(POLICY, "allowed-rules", EVERY_RULE), "max-visibility", "individual")


@pytest.mark.parametrize("name", PROJECTING)
def test_a_rule_that_projects_without_its_filter_is_refused_at_sum(name: str) -> None:
    asking(rule=rule(name))(OF_EVERY_RULE)
    with pytest.raises(PolicyRefusal) as caught:
        asking(rule=rule(name, filtered=False))(OF_EVERY_RULE)
    assert (caught.value.key, caught.value.asked, caught.value.allowed) == (
        "norm-cap.unfiltered-projection",
        "true",
        "false",
    )
    assert "strategy.filter = true" in caught.value.hint


@pytest.mark.parametrize("name", sorted({*EVERY_RULE} - {*PROJECTING}))
def test_a_filter_that_is_off_is_no_matter_of_a_rule_that_does_not_project(name: str) -> None:
    asking(rule=rule(name, filtered=False))(OF_EVERY_RULE)


def test_a_filter_that_is_off_is_no_matter_of_a_site_that_asks_for_no_norms_or_is_not_at_sum() -> None:
    unfiltered = rule("fedgp_auto", filtered=False)
    asking(rule=unfiltered)(changed(OF_EVERY_RULE, "norm-cap.kappa", 0.0))
    check_header_by_policy(OF_EVERY_RULE, all_in_cohorts(rule=unfiltered), ME)
    served_at(Visibility.INDIVIDUAL, rule=unfiltered)(OF_EVERY_RULE)


def test_filtered_projections_need_the_norm_cap_in_each_layer_only_where_the_site_says_so() -> None:
    """The filter may leave one source in a layer, which the rule for the model does not notice: the owner's choice."""
    for_the_model = asking(rule=rule("fedgp_auto"), norm_cap=norms(granularity=Granularity.MODEL))
    for_the_model(changed(POLICY, "norm-cap.granularity", "model"))
    with pytest.raises(PolicyRefusal) as caught:
        for_the_model(POLICY)
    assert caught.value.key == "norm-cap.granularity"


def test_key_agreement_is_no_matter_of_a_site_whose_update_leaves_in_clear() -> None:
    in_clear = changed(changed(POLICY, "max-visibility", "individual"), "norm-cap.reports", "colluders-may-see")
    served_at(Visibility.INDIVIDUAL, key_agreement=KeyAgreement.X25519)(in_clear)
    scheduled(key_agreement=KeyAgreement.X25519)(in_clear)


def test_a_policy_without_rules_refuses_every_rule() -> None:
    with pytest.raises(PolicyRefusal, match="allowed none") as caught:
        asking()(changed(POLICY, "allowed-rules", ()))
    assert caught.value.key == "allowed-rules"


def test_a_round_of_the_target_alone_can_ask_for_estimated_errors_and_for_nothing_else() -> None:
    alone, selecting = rule("target_only"), rule("target_only", select=True)
    policy = changed(POLICY, "allowed-rules", ("auto",))
    asking(rule=selecting)(policy)
    for terms, asked in ((alone, policy), (selecting, POLICY)):
        with pytest.raises(PolicyRefusal) as caught:
            asking(rule=terms)(asked)
        assert caught.value.key == "allowed-rules"


def test_a_rule_that_does_not_exist_is_refused_and_not_looked_up() -> None:
    for filtered in (False, True):
        with pytest.raises(PolicyRefusal) as caught:
            asking(rule=rule("fedgp_automatic", filtered=filtered))(POLICY)
        assert caught.value.key == "allowed-rules"


def test_no_listed_architecture_leaves_the_choice_to_the_session() -> None:
    asking(architecture_digest=bytes(32))(changed(POLICY, "architectures", ()))
    asking(architecture_digest=ARCHITECTURE)(POLICY)


def test_a_header_that_needs_nothing_of_the_target_has_no_learning_rate_to_refuse() -> None:
    asking(target=None)(changed(POLICY, "limits.learning-rate-min", 1e9))


def test_training_without_noise_is_refused_where_noise_is_required_whatever_the_clip_norm() -> None:
    with pytest.raises(PolicyRefusal) as caught:
        check_training(REQUIRING, 0.0, 1.0)
    assert (caught.value.key, caught.value.asked) == ("dp.required", "training without noise")
    assert "training.dp.noise-multiplier" in caught.value.hint
    with pytest.raises(PolicyRefusal) as caught:
        check_training(REQUIRING, float("nan"), 1.0)
    assert caught.value.key == "dp.required"


def test_a_clip_norm_means_nothing_without_noise_and_no_number_is_no_norm() -> None:
    check_training(POLICY, 0.0, 1e9)
    with pytest.raises(PolicyRefusal) as caught:
        check_training(POLICY, 1.0, float("nan"))
    assert caught.value.key == "dp.max-grad-norm"


def test_row_counts_leave_in_clear_only_where_the_policy_lists_them() -> None:
    with pytest.raises(PolicyRefusal) as caught:
        updating()(changed(POLICY, "metadata.may-leave", ()))
    assert (caught.value.key, caught.value.asked, caught.value.allowed) == ("metadata.may-leave", "samples", "none")


@given(
    level=st.sampled_from(Visibility),
    n=st.integers(3, 9),
    quorum=st.integers(2, 9),
    threshold=st.integers(0, 10),
    kappa=st.floats(0.01, 10),
    others=st.integers(1, 6),
    clips=st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)),
    attempt=st.integers(1, 6),
)
def test_every_accepted_header_satisfies_every_inequality(
    level: Visibility,
    n: int,
    quorum: int,
    threshold: int,
    kappa: float,
    others: int,
    clips: tuple[float, float],
    attempt: int,
) -> None:
    header = replace(
        header_at_every_limit(),
        levels=tuple(level if index == ME else Visibility.SUM for index in range(1, n + 1)),
        participants=tuple(range(1, n + 1)),
        threshold=threshold,
        sum_quorum=quorum,
        norm_cap=norms(kappa=kappa, others=others),
        layers=(Layer("weight", (2, 3), clips[0], clips[0]), Layer("bias", (3,), clips[1], clips[1])),
        attempt=attempt,
    )
    within = (
        level is Visibility.SUM
        and min(n, quorum) - 1 - 1 >= 2
        and 2 * threshold > n + 1
        and 1 < threshold <= n
        and others <= quorum - 2
        and kappa >= 2
        and all(0.5 <= clip <= 2.0 for clip in clips)
        and attempt <= 3
    )
    if within:
        check_header_by_policy(POLICY, header, ME)
    else:
        with pytest.raises(PolicyRefusal):
            check_header_by_policy(POLICY, header, ME)


@pytest.mark.parametrize("rule", [rule.value for rule in Rule if rule.releases_features])
def test_a_pull_on_features_is_refused_in_a_header_and_a_schedule_to_a_site_that_trains_with_noise(rule: str) -> None:
    terms = replace(header_at_every_limit().rule, rule=rule)
    header = replace(header_at_every_limit(), rule=terms)
    policy = POLICY.model_copy(update={"allowed_rules": (rule,)})
    limits = policy.session_limits(ROSTER)
    check_header_by_policy(policy, header, ME, limits)
    scheduled(rules=(terms,))(policy)
    of_noise = scheduled(rules=(terms,), with_noise=True)
    for ask in (of_noise, lambda policy: check_header_by_policy(policy, header, ME, limits, with_noise=True)):
        with pytest.raises(PolicyRefusal) as caught:
            ask(policy)
        assert (caught.value.key, caught.value.asked) == ("dp.pull", f"{rule}, with a pull on the target's features")
        assert "compares no features" in caught.value.hint


@pytest.mark.parametrize("handed_in", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_loss_and_accuracy_are_refused_where_the_site_hands_in_none(handed_in: bool, asked: bool) -> None:
    header = replace(header_at_every_limit(), metrics=asked)
    if handed_in or not asked:
        check_metrics(header, handed_in=handed_in)
        return
    with pytest.raises(PolicyRefusal) as caught:
        check_metrics(header, handed_in=handed_in)
    assert (caught.value.key, caught.value.asked) == ("dp.metrics", "loss and accuracy")
    assert caught.value.hint


@pytest.mark.parametrize("figures", [{"loss": 0.0}, {"accuracy": 0.0}, {"loss": 0.5, "accuracy": 0.5}])
def test_an_update_carries_loss_or_accuracy_only_where_the_header_has_metrics(figures: dict[str, float]) -> None:
    header, bare = header_at_every_limit(), Update(bytes(32), 4, 10, bytes(32))
    check_metrics(replace(header, metrics=True), handed_in=True, update=replace(bare, **figures))
    for handed_in in (True, False):
        check_metrics(header, handed_in=handed_in, update=bare)
        with pytest.raises(PolicyRefusal) as caught:
            check_metrics(header, handed_in=handed_in, update=replace(bare, **figures))
        assert caught.value.key == "dp.metrics"


def test_statistics_ask_for_a_row_for_each_sum_and_leave_rare_places_out() -> None:
    sums = np.zeros((41, 3))
    sums[:4, 0], sums[:30, 1] = 1.0, 1.0
    policy = default_policy(max_samples=1000)
    with pytest.raises(PolicyRefusal, match=r"moments\.min-rows") as caught:
        check_moments(changed(policy, "moments.min-rows", 10.5), np.zeros((41, 1)), sums, sums_only=True)
    assert caught.value.allowed == "at least 42, 10.5 for each of 3 sums and a constant"
    np.testing.assert_array_equal(check_moments(policy, np.zeros((41, 1)), sums, sums_only=True)[1], sums)
    strict = changed(policy, "moments.min-rows-per-class", 5)
    assert check_moments(strict, np.zeros((41, 1)), sums, sums_only=True)[1].sum(axis=0).tolist() == [0, 30, 0]
