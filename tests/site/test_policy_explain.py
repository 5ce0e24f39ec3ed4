"""What a policy is said to mean follows its values: level, sites, colluders, kappa, what leaves, what it may cost."""

from __future__ import annotations

import pytest

from securefda.privacy.dp_events import ASSUMPTIONS
from securefda.site.policy import (
    NAMED_POLICIES,
    DpPolicy,
    MomentBounds,
    NormCapBounds,
    SourcePolicy,
    WorkLimits,
    default_policy,
    explain,
    in_brief,
)
from securefda.site.policy.schema import MetadataPolicy, ModelPolicy, ReleaseLimits


def test_the_numbers_are_filled_in() -> None:
    text = explain(SourcePolicy(min_others=3, max_colluders=1, trusted_peers=("a", "b", "c", "d")), "lyon", 7).text()
    assert "A sum opens over at least 5 of N = 7 sources: up to 2 of them may be lost in a round." in text
    assert "one weighted sum per round over at least 5 of the federation's N = 7 sources" in text
    assert "at least 3 other sources of its 4 trusted peers, not counting 1 that may collude" in text
    assert "with at most max_colluders = 1 of the other sources on its side" in text


def test_a_federation_without_one_source_to_spare_is_said_to_be_so() -> None:
    assert "all of them must answer in every round" in explain(SourcePolicy(min_others=2), "lyon", 3).summary


def test_without_a_federation_no_number_of_sources_is_made_up() -> None:
    text = explain(SourcePolicy(), "lyon").text()
    assert "N =" not in text
    assert "over at least 3 of the federation's sources" in text


@pytest.mark.parametrize(("level", "count"), [("sum", 1), ("cohort", 2), ("individual", 3)])
def test_each_level_that_a_header_may_ask_for_is_explained(level: str, count: int) -> None:
    learns = explain(default_policy(level), "lyon", 5).learns  # type: ignore[arg-type]
    named = [
        name for name in ("individual", "cohort", "sum") if any(f"At visibility {name}:" in line for line in learns)
    ]
    assert named == ["individual", "cohort", "sum"][3 - count :]


def test_at_individual_nothing_is_said_to_be_hidden_and_the_numbers_that_leave_are_named() -> None:
    found = explain(NAMED_POLICIES["research-open"].policy, "lyon", 5)
    assert (
        found.does_not_learn[0]
        == "If it asks for visibility individual, nothing of lyon's update stays hidden from it."
    )
    assert "its number of training rows, its mean loss, its accuracy" in found.learns[0]
    only_rows = explain(default_policy("individual"), "lyon", 5).learns[0]
    assert "its number of training rows. " in only_rows
    assert "loss" not in only_rows


def test_without_the_norm_cap_no_claim_is_made_about_a_source_that_dwarfs_the_others() -> None:
    text = explain(SourcePolicy(norm_cap=NormCapBounds(kappa=0.0)), "lyon", 5).text()
    assert "with kappa = 0, such a sum may show it nearly alone" in text
    assert "times the squared norm" not in text


@pytest.mark.parametrize(("granularity", "claim"), [("layer", "in every layer the"), ("model", "not in every layer")])
def test_the_norm_cap_is_claimed_for_what_it_holds_for(granularity: str, claim: str) -> None:
    policy = default_policy(kappa=1.5, granularity=granularity)  # type: ignore[arg-type]
    text = " ".join(explain(policy, "lyon", 5).does_not_learn)
    assert claim in text
    assert "at least 1.5 times the squared norm" in text
    assert "opposed contributions cancel." in text


def test_unfiltered_projections_are_explained_as_parts_that_cancel() -> None:
    def said(**changes: object) -> str:
        bounds = default_policy(unfiltered_projection=True).norm_cap.model_copy(update=changes)
        return explain(default_policy().model_copy(update={"norm_cap": bounds}), "lyon", 5).text()

    cancel = "cancel each other, and the sum is nearly lyon's contribution alone"
    assert cancel in said()
    assert cancel not in said(unfiltered_projection=False)
    assert cancel not in said(kappa=0.0)  # that sums may show it alone is said there of every rule


def test_unfiltered_projections_are_explained_only_where_a_rule_that_projects_is_allowed() -> None:
    policy = default_policy(unfiltered_projection=True).model_copy(update={"allowed_rules": ("fedavg", "fedda")})
    assert "cancel each other" not in explain(policy, "lyon", 5).text()
    choosing = policy.model_copy(update={"allowed_rules": ("fedgp_auto",)})
    assert "cancel each other" in explain(choosing, "lyon", 5).text()


@pytest.mark.parametrize(
    ("required", "said"), [(True, "is bounded (see below)"), (False, "is bounded only if it trains with noise")]
)
def test_what_updates_tell_of_a_row_is_bounded_only_by_required_noise(required: bool, said: str) -> None:
    policy = SourcePolicy(dp=DpPolicy(required=required))
    hidden = [line for line in explain(policy, "lyon", 5).does_not_learn if "no message can carry it" in line]
    assert len(hidden) == 1
    assert said in hidden[0]


def test_models_that_are_trained_are_said_with_the_pace_at_which_they_may_change() -> None:
    default = explain(default_policy(), "lyon", 5).text()
    assert "That is the task's own first model, then the model of the last finished round" in default
    assert "further than 10 times as far as lyon's own training" in default
    listed = default_policy().model_copy(
        update={"model": ModelPolicy(initial=("00" * 32, "11" * 32)), "limits": WorkLimits(model_step=2.5)}
    )
    text = explain(listed, "lyon", 5).text()
    assert "That is one of the 2 first models that the policy lists" in text
    assert "further than 2.5 times" in text


def test_what_too_few_rows_moved_is_said_to_stay_only_where_the_policy_has_it_so() -> None:
    said = "the change of a parameter only if at least"
    assert said not in explain(default_policy(), "lyon", 5).text()
    counting = SourcePolicy(allowed_rules=("fedgp",), release=ReleaseLimits(min_rows=3))
    assert f"{said} 3 of its rows moved" in explain(counting, "lyon", 5).text()


def test_second_moments_are_said_to_leave_with_what_rows_must_have_where_they_may() -> None:
    said, held = "the second moments of lyon's rows", "takes part in analytic only if it has at least"
    assert said not in explain(SourcePolicy(allowed_rules=("fedgp",)), "lyon", 5).text()
    with_noise = explain(SourcePolicy(allowed_rules=("analytic",), dp=DpPolicy(required=True)), "lyon", 5).text()
    assert said in with_noise
    assert held not in with_noise
    assert "They leave with noise: the ledger is charged for one release of all rows." in with_noise
    assert "trains with noise (DP-SGD) or not at all, and adds noise to second moments, so all" in with_noise
    text = explain(SourcePolicy(allowed_rules=("analytic",)), "lyon", 5).text()
    assert f"{held} 1 times as many rows as a row has numbers and 3 rows of each of its classes" in text
    assert "fewer than 3 of its rows have another value" in text
    assert "the target publishes no update of its own" in text
    none = MomentBounds(min_rows=0.0, min_rows_per_class=1, min_rows_per_category=1)
    unbound = explain(SourcePolicy(allowed_rules=("analytic",), moments=none), "lyon", 5).text()
    assert said in unbound
    assert held not in unbound
    assert "another value of a feature" not in unbound


def test_no_loss_is_said_to_leave_where_no_rule_trains() -> None:
    for rules, leaves in ((("analytic",), False), (("analytic", "fedda"), True)):
        policy = SourcePolicy(allowed_rules=rules)
        assert ("accuracies" in explain(policy, "lyon", 5).text()) is leaves
        assert ("accuracy" in in_brief(policy, 5)[0][1]) is leaves


def test_no_rule_that_compares_features_is_described_where_training_needs_noise() -> None:
    """The source refuses their pull, which no noise protects."""
    rules = ("fedda", "fada", "fada_attention", "f_dann")
    for required in (False, True):
        text = explain(SourcePolicy(allowed_rules=rules, dp=DpPolicy(required=required)), "lyon", 5).text()
        assert ("fada, f_dann, lyon compares features of its rows" in text) is not required
        assert ("fada, f_dann, every source sees features of some of the target's rows" in text) is not required
        assert ("With fada_attention, the weight" in text) is required


def test_no_norm_cap_is_claimed_for_cohorts() -> None:
    found = explain(default_policy("cohort"), "lyon", 5)
    assert any(line.startswith("At visibility cohort: ") and "No norm cap holds" in line for line in found.learns)
    assert all(
        line.startswith("At visibility sum, ") for line in found.does_not_learn if "times the squared norm" in line
    )


def test_a_cohort_is_said_to_tell_numbers_of_steps_only_where_the_policy_permits_that() -> None:
    """Else the source refuses, under the same key."""
    policy, steps = default_policy("cohort"), "how its members' numbers of steps relate to the target's"
    assert steps not in explain(policy, "lyon", 5).text()
    permits = policy.model_copy(update={"metadata": MetadataPolicy(may_leave=("samples",))})
    (of_cohort,) = [line for line in explain(permits, "lyon", 5).learns if line.startswith("At visibility cohort: ")]
    assert steps in of_cohort
    assert steps in explain(default_policy("individual"), "lyon", 5).text()


REQUIRING = SourcePolicy(dp=DpPolicy(required=True, target_epsilon=1.0, target_delta=1e-6))
WITHOUT = "The ledger does not count such rounds, and after one of them no epsilon bounds what has left"


def test_a_required_budget_is_said_with_its_unit_what_it_covers_and_what_counts_it() -> None:
    found = explain(REQUIRING, "lyon", 5)
    assert found.summary.startswith("lyon permits at most visibility sum")
    assert "noise required, epsilon at most 1 at delta 1e-06" in found.summary
    text = " ".join(found.budget)
    assert (
        "over all rounds and runs of a data set together, at most epsilon = 1 at delta = 1e-06 for each row, " in text
    )
    assert "added or removed" in text
    assert "at most e^epsilon = 2.72 times as often as wrong" in text
    assert "The ledger at lyon counts the cost of each round" in text
    assert "what was spent before it comes on top" in text
    assert "dp.required = false" not in text
    assert WITHOUT not in text


def test_training_without_noise_is_explained_with_what_protects() -> None:
    found = explain(SourcePolicy(), "lyon", 5)
    assert "training without noise permitted" in found.summary
    assert WITHOUT in found.budget[0]
    assert "Sums still hide which source a contribution comes from" in found.budget[0]
    assert "nothing bounds it" in found.budget[0]
    assert (
        "Such rounds are bounded: over all rounds and runs of a data set together, at most epsilon = 8"
        in found.budget[1]
    )
    in_clear = explain(default_policy("individual"), "lyon", 5).budget[0]
    assert "Nothing then protects them from the aggregator: " in in_clear
    assert "sums hide" not in in_clear


@pytest.mark.parametrize(("epsilon", "said"), [(0.1, "1.11 times"), (8.0, "2981 times"), (1000.0, "nothing of use")])
def test_the_odds_of_an_epsilon_are_rounded_up_and_an_endless_one_is_not_dressed_up(epsilon: float, said: str) -> None:
    assert said in " ".join(explain(SourcePolicy(dp=DpPolicy(target_epsilon=epsilon)), "lyon").budget)


def test_loss_and_accuracy_are_said_to_travel_only_where_nobody_adds_noise() -> None:
    assert "; with it the sums of row counts." in explain(REQUIRING, "lyon").text()
    without = explain(SourcePolicy(), "lyon").text()
    assert "sums of row counts, of losses and accuracies if no source in the round trains with noise." in without
    in_clear = explain(NAMED_POLICIES["research-open"].policy, "lyon").learns[0]
    assert "leave only in rounds in which no source trains with noise" in in_clear


def test_an_update_in_clear_with_noise_is_not_said_to_tell_much_and_one_without_is() -> None:
    much = "An update without noise can reveal much about the rows behind it"
    assert much in explain(default_policy("individual"), "lyon").learns[0]
    noisy = explain(default_policy("individual", required=True), "lyon").learns[0]
    assert much not in noisy
    assert "Only noise bounds what it reveals about one row" in noisy


def test_every_epsilon_comes_with_what_it_rests_on() -> None:
    for named in NAMED_POLICIES.values():
        assert any(ASSUMPTIONS in line and "cannot be guessed" in line for line in explain(named.policy, "a").assumes)


def test_the_target_pays_with_its_update_only_under_rules_that_publish_it() -> None:
    paid = explain(NAMED_POLICIES["clinical-default"].policy, "lyon", 5).target_pays
    assert "every source sees the target's own update g_T" in paid[0]
    assert "between 0.3 and 1.0, by task and rule" in paid[0]
    free = explain(SourcePolicy(allowed_rules=("source_only", "fedavg")), "lyon", 5).target_pays
    assert free == ("Nothing beside the model: under the allowed rules the target publishes no update of its own.",)


@pytest.mark.parametrize(
    ("policy", "what"),
    [
        (default_policy("individual"), "updates in clear: "),
        (SourcePolicy(min_others=2), "sums over 3 sources: "),
        (SourcePolicy(min_others=8, max_colluders=4), "sums over 5 sources: "),  # colluders do not hide an update
        (SourcePolicy(min_others=8), "sums over 5 sources: "),
        (SourcePolicy(min_others=40), "sums over 10 sources: "),
        (REQUIRING, "sums over 3 sources: "),
    ],
    ids=["in clear", "three", "nine without the colluders", "nine", "more than measured", "with noise"],
)
def test_what_attacks_found_is_said_for_no_more_sources_than_hide_a_site(policy: SourcePolicy, what: str) -> None:
    said = explain(policy, "lyon").budget[-1]
    assert what in said
    assert "without noise: 9" in said
    assert "; at epsilon = 8: " in said
    assert said.endswith("docs/explanation/what-a-sum-tells.md.")
