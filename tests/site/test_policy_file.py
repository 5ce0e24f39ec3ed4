"""policy.toml: the default text says what the model holds, and nothing wrong or unknown gets through."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy_headers import roster

from securefda.errors import ConfigError
from securefda.privacy.dp_events import Budget
from securefda.protocol.messages import Granularity, Visibility
from securefda.rules.strategy import Rule
from securefda.settings import kebab_case, known_keys
from securefda.site.policy import SourcePolicy, default_policy, default_policy_text, load_policy, parse_policy


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "policy.toml"


def test_the_default_text_is_the_default_policy_with_the_rules_that_use_sources(file: Path) -> None:
    file.write_text(default_policy_text("source-1"))
    adapting = ("fedda", "fedgp", "fedda_auto", "fedgp_auto", "fedgp_filtered_auto")
    fada = ("fada_attention", "fada_adversarial", "fada", "f_dann", "f_dan")
    rules = ("source_only", "fedavg", *adapting, *fada, "analytic", "auto")
    assert load_policy(file) == SourcePolicy(allowed_rules=rules)


def test_the_default_text_carries_what_the_federation_chose(file: Path) -> None:
    file.write_text(
        default_policy_text("source-1", default_policy("individual", min_others=3, max_colluders=2, max_attempts=5))
    )
    policy = load_policy(file)
    assert policy.visibility is Visibility.INDIVIDUAL
    assert (policy.min_others, policy.max_colluders, policy.release.max_attempts) == (3, 2, 5)
    assert policy == default_policy("individual", 3, 2, 5)


def test_a_site_that_shows_its_updates_gives_their_weights_and_no_other_number() -> None:
    assert default_policy("individual").metadata.may_leave == ("samples",)
    assert default_policy("cohort").metadata.may_leave == ()


def test_the_default_text_carries_the_norm_cap_of_the_federation(file: Path) -> None:
    file.write_text(default_policy_text("source-1", default_policy(min_others=3, kappa=2.5, granularity="model")))
    norm_cap = load_policy(file).norm_cap
    assert (norm_cap.kappa, norm_cap.granularity, norm_cap.terms) == (2.5, "model", Granularity.MODEL)


@pytest.mark.parametrize("permitted", [False, True])
def test_a_new_site_permits_fedgp_without_its_filter_only_where_the_federation_runs_it(
    file: Path, permitted: bool
) -> None:
    file.write_text(default_policy_text("source-1", default_policy(unfiltered_projection=permitted)))
    assert load_policy(file).norm_cap.unfiltered_projection is permitted
    assert not default_policy().norm_cap.unfiltered_projection


def test_a_new_site_takes_clips_within_a_factor_of_ten_of_the_federations(file: Path) -> None:
    """A clip far below what updates reach would leave nothing of them but signs."""
    file.write_text(default_policy_text("source-1", default_policy(clip=0.5)))
    bounds = load_policy(file).quantisation
    assert (bounds.clip_min, bounds.clip_max) == pytest.approx((0.05, 5.0))
    assert default_policy().quantisation == SourcePolicy().quantisation


def test_a_new_site_s_weights_count_at_least_up_to_the_federation_s_rows(file: Path) -> None:
    file.write_text(default_policy_text("source-1", default_policy(max_samples=300)))
    bounds = load_policy(file).quantisation
    assert (bounds.max_samples_min, bounds.max_samples_max) == (300, 3000)


def test_the_default_text_carries_the_budget_and_that_noise_is_required(file: Path) -> None:
    chosen = default_policy(budget=Budget(2.5, 1e-7, "prv"), required=True, max_grad_norm=3.0)
    file.write_text(default_policy_text("source-1", chosen))
    dp = load_policy(file).dp
    assert (dp.required, dp.unit) == (True, "sample")
    assert dp.max_grad_norm == pytest.approx(30.0)
    assert dp.budget == Budget(2.5, 1e-7, "prv")


def test_without_a_word_training_needs_no_noise_and_the_budget_is_that_of_the_settings(file: Path) -> None:
    file.write_text("min-others = 2\n")
    assert load_policy(file).dp == default_policy().dp == default_policy(max_grad_norm=1.0).dp
    assert load_policy(file).dp.budget == Budget(8.0, 1e-5, "rdp")
    assert (load_policy(file).dp.required, load_policy(file).dp.max_grad_norm) == (False, 10.0)


@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_a_figure_without_noise_may_leave_only_where_training_without_noise_is_permitted(file: Path, name: str) -> None:
    text = f"max-visibility = 'individual'\n[metadata]\nmay-leave = ['samples', '{name}']\n"
    file.write_text(f"{text}[dp]\nrequired = false\n")
    assert load_policy(file).metadata.may_leave == ("samples", name)
    file.write_text(f"{text}[dp]\nrequired = true\n")
    with pytest.raises(ConfigError, match=f'lists "{name}"') as caught:
        load_policy(file)
    assert caught.value.key == "metadata.may-leave"
    assert "dp.required = false" in caught.value.hint


def test_the_default_text_shows_and_explains_every_key() -> None:
    lines = default_policy_text("source-1").splitlines()
    for key in known_keys(SourcePolicy):
        leaf = kebab_case(key.rpartition(".")[2])
        assert any(line.startswith(f"{leaf} = ") for line in lines), leaf
    assert lines[0].startswith("# Policy of source-1.")


@pytest.mark.parametrize(
    ("text", "key", "part"),
    [
        ("min-other = 3", "min-other", "unknown key"),
        ("min-others = 0", "min-others", "at least 1"),
        ("max-colluders = -1", "max-colluders", "at least 0"),
        ("max-visibility = 'all'", "max-visibility", "'individual', 'cohort' or 'sum'"),
        ("allowed-rules = ['fedgp_aut']", "allowed-rules.0", "fedgp_auto"),
        ("architectures = ['ab']", "architectures.0", "64 small hex digits"),
        ("[quantisation]\nmodulus-bits-min = 2", "quantisation.modulus-bits-min", "16, 20, 24 or 32"),
        ("[quantisation]\nclip-min = 0.0", "quantisation.clip-min", "above 0"),
        ("[quantisation]\nmax-samples-min = 2\nmax-samples-max = 1", "quantisation.max-samples-min", "above max"),
        ("[quantisation]\nclip-min = 2.0\nclip-max = 1.0", "quantisation.clip-min", "above clip-max"),
        ("[release]\nmax-attempt = 9", "release.max-attempt", "unknown key"),
        ("[moments]\nmin-rows = -1.0", "moments.min-rows", "at least 0"),
        ("allowed-rules = ['f_dan']\n[release]\nmin-rows = 2", "release.min-rows", "not counted under f_dan"),
        ("allowed-tasks = ['hearts']", "allowed-tasks.0", "package.module:Class"),
        ("[norm-cap]\nkappa = -1.0", "norm-cap.kappa", "at least 0"),
        ("[norm-cap]\nkappa = 2.5", "norm-cap.kappa", "above min-others = 2"),
        ("[norm-cap]\ngranularity = 'coordinate'", "norm-cap.granularity", "'layer' or 'model'"),
        ("[limits]\nlearning-rate-max = 0.0", "limits.learning-rate-max", "above 0"),
        (
            "[limits]\nlearning-rate-min = 2.0\nlearning-rate-max = 1.0",
            "limits.learning-rate-min",
            "above learning-rate",
        ),
        ("[limits]\nmodel-step = 0.0", "limits.model-step", "above 0"),
        ("[model]\ninitial = 'any'", "model.initial", '"task", or a list'),
        ("[model]\ninitial = []", "model.initial", "at least one SHA-256"),
        ("[model]\ninitial = ['ab']", "model.initial", "64 small hex digits"),
        ("max-visibility = 'individual'", "metadata.may-leave", 'lacks "samples"'),
        ("[metadata]\nmay-leave = ['rows']", "metadata.may-leave.0", "'samples', 'loss' or 'accuracy'"),
        ("[dp]\nrequired = 1", "dp.required", "true or false"),
        ("[dp]\nunit = 'patient'", "dp.unit", "'sample'"),
        ("[dp]\ntarget-epsilon = 0.0", "dp.target-epsilon", "above 0"),
        ("[dp]\ntarget-delta = 0.0", "dp.target-delta", "above 0"),
        ("[dp]\naccountant = 'gdp'", "dp.accountant", "'rdp' or 'prv'"),
        ("[dp]\nmax-grad-norm = 0.0", "dp.max-grad-norm", "above 0"),
    ],
)
def test_a_wrong_policy_is_refused_with_its_key(file: Path, text: str, key: str, part: str) -> None:
    file.write_text(text + "\n")
    with pytest.raises(ConfigError) as caught:
        load_policy(file)
    assert caught.value.key == key
    assert part in caught.value.why


def test_a_file_that_is_no_text_or_no_toml_is_named() -> None:
    with pytest.raises(ConfigError, match=r"policy\.toml: is not UTF-8"):
        parse_policy(b"min-others = \xff", Path("policy.toml"))
    with pytest.raises(ConfigError, match=r"policy\.toml: not valid TOML: .*line 2"):
        parse_policy(b"min-others = 2\nmax-colluders = = 1", Path("policy.toml"))


def test_a_missing_policy_is_an_error_and_not_the_default(file: Path) -> None:
    with pytest.raises(ConfigError, match="is missing"):
        load_policy(file)


GREEKS = roster(("alpha", "beta", "gamma"))


def test_no_trusted_peers_means_every_source_but_never_the_target() -> None:
    limits = SourcePolicy(min_others=2, max_colluders=1).session_limits(GREEKS)
    assert (limits.min_others, limits.max_colluders, limits.trusted) == (2, 1, frozenset({1, 2, 3}))


def test_trusted_peers_become_roster_indices() -> None:
    assert SourcePolicy(trusted_peers=("gamma", "alpha")).session_limits(GREEKS).trusted == frozenset({1, 3})


@pytest.mark.parametrize("site", ["delta", "target"])
def test_trust_in_a_site_that_is_no_source_is_an_error(site: str) -> None:
    with pytest.raises(ConfigError, match=f"trusted-peers: {site}"):
        SourcePolicy(trusted_peers=(site,)).session_limits(GREEKS)


def test_every_rule_that_a_round_asks_of_sources_can_be_allowed() -> None:
    SourcePolicy(allowed_rules=tuple(rule.value for rule in Rule))
