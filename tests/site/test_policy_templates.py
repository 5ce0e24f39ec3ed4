"""The three named policies load as they are, give a reason for each value, and allow what their names say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from policy_headers import ME, header_at_every_limit, rule

from securefda.errors import PolicyRefusal
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import Budget
from securefda.privacy.planning import Schedule, event_of, plan_epsilon, plan_noise
from securefda.protocol.messages import Granularity, Header, NormCapTerms, Visibility
from securefda.settings import declared_keys, kebab_case
from securefda.site.policy import (
    NAMED_POLICIES,
    SourcePolicy,
    check_header_by_policy,
    check_training,
    load_policy,
    require_satisfiable,
)

MEANT_WITH_THE_KEY_BEFORE = {"quantisation.clip-max", "quantisation.max-samples-max"}


def load(name: str, folder: Path) -> SourcePolicy:
    file = folder / "policy.toml"
    file.write_text(NAMED_POLICIES[name].text("lyon"))
    return load_policy(file)


def flat(policy: SourcePolicy) -> dict[str, object]:
    parts = policy.model_dump(by_alias=True).items()
    tables = [(f"{name}.", part) if isinstance(part, dict) else ("", {name: part}) for name, part in parts]
    return {before + key: value for before, table in tables for key, value in table.items()}


def plain_header(n: int, quorum: int, kappa: float | None) -> Header:
    """A first round of ``source_only`` at ``sum``, with nothing unusual in it."""
    norm_cap = None if kappa is None else NormCapTerms(kappa, quorum - 2, Granularity.LAYER)
    layers = tuple(replace(layer, clip=1.0) for layer in header_at_every_limit().layers)
    return replace(
        header_at_every_limit(),
        round=1,
        attempt=1,
        levels=(Visibility.SUM,) * n,
        participants=tuple(range(1, n + 1)),
        rule=rule("source_only"),
        layers=layers,
        threshold=quorum,
        sum_quorum=quorum,
        n_max=2 * n,
        max_samples=10_000,
        norm_cap=norm_cap,
    )


def refused(policy: SourcePolicy, header: Header) -> str:
    with pytest.raises(PolicyRefusal) as caught:
        check_header_by_policy(policy, header, ME, with_noise=policy.dp.required)
    return caught.value.key


@pytest.mark.parametrize("name", sorted(NAMED_POLICIES))
def test_a_template_has_a_comment_for_each_key_and_a_reason_for_each_value_of_its_own(name: str) -> None:
    values, usual = (flat(policy) for policy in (NAMED_POLICIES[name].policy, SourcePolicy()))
    own = {key for key, value in values.items() if value != usual[key]}
    assert all(field.description for _, field in declared_keys(SourcePolicy))
    assert set(NAMED_POLICIES[name].reasons) >= own - MEANT_WITH_THE_KEY_BEFORE
    text = NAMED_POLICIES[name].text("lyon")
    for key, reason in NAMED_POLICIES[name].reasons.items():
        first = reason.splitlines()[0]
        table, _, leaf = kebab_case(key).rpartition(".")
        beginning = text.index(f"[{table}]") if table else 0
        assert text.index(f"# {first}\n") < text.index(f"\n{leaf} = ", beginning)


SMALL, LARGE = Schedule(300, 16, 1, 20), Schedule(5000, 64, 1, 20)


def test_what_reasons_say_of_noise_and_budgets_is_what_the_accountants_say() -> None:
    reasons = {name: named.reasons["dp.target-epsilon"] for name, named in NAMED_POLICIES.items()}
    strict = plan_noise(LARGE, NAMED_POLICIES["strict"].policy.dp.budget).noise_multiplier
    assert f"noise multiplier of {strict:.1f} " in reasons["strict"]
    assert f"e^1 = {math.ceil(math.e * 100) / 100} times" in reasons["strict"]
    assert f"in {100 * math.e / (1 + math.e):.0f} of 100 cases" in reasons["strict"]
    one = Budget(1.0, NAMED_POLICIES["clinical-default"].policy.dp.target_delta)
    required = NAMED_POLICIES["clinical-default"].reasons["dp.required"].replace("\n", " ")
    small, large = (plan_noise(schedule, one).noise_multiplier for schedule in (SMALL, LARGE))
    assert (
        f"300 rows in batches of 16 need a noise multiplier of {small:.1f}, and 5000 rows in batches of 64" in required
    )
    assert f"one of {large:.1f}." in required
    assert round(plan_epsilon(SMALL, 1.0, one.delta).epsilon) == 8
    assert f"right {math.ceil(math.exp(8))} times" in reasons["clinical-default"]
    all_rounds = [event_of(SMALL, 4.3)] * SMALL.rounds
    said = [f"{epsilon(all_rounds, one.delta, accountant):.2f}" for accountant in ("rdp", "prv")]
    assert " against ".join(said) in NAMED_POLICIES["strict"].reasons["dp.accountant"]


def test_strict_permits_sums_over_six_under_rules_that_the_target_cannot_steer(tmp_path: Path) -> None:
    policy = load("strict", tmp_path)
    header = plain_header(8, 6, kappa=2.0)
    check_header_by_policy(policy, header, ME, with_noise=True)
    require_satisfiable(policy, "source-3", [f"source-{index}" for index in range(1, 7)])
    assert refused(policy, replace(header, sum_quorum=5)) == "min-others"
    assert refused(policy, plain_header(8, 6, kappa=1.9)) == "norm-cap.kappa"
    assert refused(policy, replace(header, rule=rule("fedgp_auto"))) == "allowed-rules"
    assert refused(policy, replace(header, attempt=2)) == "release.max-attempts"
    assert refused(policy, replace(header, levels=(Visibility.COHORT,) * 8)) == "max-visibility"


def test_strict_alone_refuses_to_train_without_noise(tmp_path: Path) -> None:
    strict = load("strict", tmp_path)
    check_training(strict, 2.4, 1.0)
    with pytest.raises(PolicyRefusal) as caught:
        check_training(strict, 0.0, 1.0)
    assert caught.value.key == "dp.required"
    assert strict.dp.budget == Budget(1.0, 1e-6)
    for name in ("clinical-default", "research-open"):
        check_training(load(name, tmp_path), 0.0, 1.0)
        check_training(load(name, tmp_path), 1.1, 1.0)


def test_clinical_default_permits_three_hospitals_every_rule_at_sum_and_nothing_in_clear(tmp_path: Path) -> None:
    policy = load("clinical-default", tmp_path)
    header = plain_header(3, 3, kappa=1.0)
    for name in ("source_only", "fedavg", "fedda", "fedgp", "fedda_auto", "fedgp_auto"):
        check_header_by_policy(policy, replace(header, rule=rule(name, select=True)), ME)
    require_satisfiable(policy, "lyon", ["lyon", "basel", "berne"])
    unfiltered = replace(header, rule=rule("fedgp", filtered=False))
    assert refused(policy, unfiltered) == "norm-cap.unfiltered-projection"
    assert refused(policy, plain_header(3, 3, kappa=None)) == "norm-cap.kappa"
    assert refused(policy, replace(header, levels=(Visibility.COHORT,) * 3)) == "max-visibility"
    assert refused(policy, replace(header, levels=(Visibility.INDIVIDUAL,) * 3)) == "max-visibility"
    assert policy.metadata.may_leave == ()


def test_research_open_permits_updates_with_all_their_numbers_in_clear(tmp_path: Path) -> None:
    policy = load("research-open", tmp_path)
    in_clear = replace(plain_header(3, 3, kappa=None), levels=(Visibility.INDIVIDUAL,) * 3)
    check_header_by_policy(policy, in_clear, ME)
    check_header_by_policy(policy, plain_header(3, 3, kappa=None), ME)
    assert set(policy.metadata.may_leave) == {"samples", "loss", "accuracy"}
