"""Configuration: what is accepted, which source of a value wins, and one clear error for each wrong thing."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from securefda.aggregator.headers import n_max_for
from securefda.errors import ConfigError, ConfigErrors, ExitCode
from securefda.privacy.dp_events import Budget
from securefda.rules.strategy import Strategy
from securefda.settings import Settings, kebab_case, known_keys
from securefda.site.config import (
    SessionSection,
    TransportSection,
    aggregator_toml,
    budget_of,
    child_environment,
    kit_settings_toml,
    load_aggregator,
    load_federation,
    load_source,
    site_policy,
    source_toml,
    strategy_of,
    training_settings,
)
from securefda.site.config.effective import changes_between, changes_since, kept_settings, load_effective
from securefda.site.config.key_help import FILES, explained
from securefda.site.config.load import AggregatorConfig, FederationConfig, SourceConfig
from securefda.site.policy import check_training
from securefda.training import NoiseSettings

MINIMAL = """
[federation]
name = "digits"
sources = ["source-1", "source-2", "source-3"]
[task]
factory = "securefda.tasks.digits:Digits"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "federation.toml"
    path.write_text(MINIMAL)
    return path


def test_a_minimal_file_gets_the_documented_defaults(file: Path) -> None:
    config = load_federation(file)
    assert config.federation.target == "target"
    assert config.task.data_dir is None
    assert (config.strategy.rule, config.strategy.estimator, config.strategy.rounds) == ("fedda_auto", "mean-field", 20)
    assert (config.privacy.visibility, config.privacy.min_others, config.privacy.max_colluders) == ("sum", 2, 0)
    assert (config.privacy.norm_cap_kappa, config.privacy.norm_cap_granularity) == (1.0, "layer")
    assert config.privacy.site_visibility == {}
    assert (config.session.threshold, config.session.bits, config.session.clip) == (0, "auto", 1.0)
    assert config.transport.listen == "127.0.0.1:0"


def test_a_flag_beats_the_environment_which_beats_the_file(file: Path) -> None:
    file.write_text(MINIMAL + "[strategy]\nrounds = 5\nbeta = 0.1\nwarm-up-rounds = 1\n")
    env = {"SECUREFDA_STRATEGY_ROUNDS": "6", "SECUREFDA_STRATEGY_BETA": "0.2"}
    strategy = load_federation(file, ["strategy.rounds=7"], env).strategy
    assert (strategy.rounds, strategy.beta, strategy.warm_up_rounds) == (7, 0.2, 1)


def test_nested_tables_and_lists_can_be_overridden(file: Path) -> None:
    overrides = ['federation.sources=["a", "b", "c", "d"]', "training.target.learning-rate=1", "task.options.shift=2"]
    config = load_federation(file, overrides, {"SECUREFDA_TRAINING_SOURCE_BATCH_SIZE": "64"})
    assert config.federation.sources == ("a", "b", "c", "d")
    assert config.training.target.learning_rate == 1.0
    assert config.training.source.batch_size == 64
    assert config.task.options == {"shift": 2}


def test_a_text_field_keeps_text_that_looks_like_a_number(file: Path) -> None:
    assert load_federation(file, ["federation.name=2024"]).federation.name == "2024"
    assert load_federation(file, ['federation.name="2024"']).federation.name == "2024"


def test_an_override_cannot_smuggle_in_a_second_key(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_federation(file, ["strategy.beta=0.5\nrounds = 3"])
    assert caught.value.key == "strategy.beta"


def test_a_path_in_the_file_is_relative_to_the_file(file: Path) -> None:
    file.write_text(MINIMAL + 'data-dir = "data"\n')
    assert load_federation(file).task.data_dir == file.parent / "data"


def test_a_path_in_a_flag_is_relative_to_the_caller(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = file.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert load_federation(file, ["task.data-dir=data"]).task.data_dir == elsewhere / "data"
    assert load_federation(file, ["task.data-dir="]).task.data_dir is None


BAD_VALUES = [
    ("[strategy]\nroundz = 3", "strategy.roundz", "unknown key", "did you mean strategy.rounds?"),
    ("[strategy]\nwarm_up_rounds = 1", "strategy.warm_up_rounds", "unknown key", "strategy.warm-up-rounds"),
    ("[training]\nlearning-rate = 1", "training.learning-rate", "unknown key", "training.target.learning-rate"),
    ("[privicy]\nmin-others = 1", "privicy", "unknown key", "known tables"),
    ("[strategy]\nrounds = '3'", "strategy.rounds", "whole number, not '3'", ""),
    ("[strategy]\nrounds = 0", "strategy.rounds", "at least 1", ""),
    ("[strategy]\nrule = 'fedgb'", "strategy.rule", "fedgp_auto", ""),
    ("[strategy]\nbeta = 1.5", "strategy.beta", "[0, 1]", ""),
    ("[strategy]\nbeta = nan", "strategy.beta", "finite", ""),
    ("[strategy]\nfilter = 1", "strategy.filter", "true or false", ""),
    ("[strategy]\nrounds = 2", "strategy.warm-up-rounds", "below the 2 rounds", ""),
    ("[strategy]\nserver-optimizer = 'yogi'", "strategy.server-optimizer", "none, momentum, adam", ""),
    ("[strategy]\nserver-optimizer = 'adam'", "strategy.server-optimizer", "of fedda_auto are no means", ""),
    (
        "[strategy]\nrule = 'personalized_fedavg'\nreptile-rounds = 1\nserver-optimizer = 'adam'",
        "strategy.server-optimizer",
        "optimisers of its own",
        "",
    ),
    ("[strategy]\nrule = 'personalized_fedavg'", "strategy.reptile-rounds", "at least 1", "raise strategy.rounds"),
    ("[strategy]\nrule = 'ditto'\nditto-lambda = -1.0", "strategy.ditto-lambda", "[0, inf)", ""),
    ("[strategy]\nhead = 'svm'", "strategy.head", "must be one of none, knn", ""),
    ("[strategy]\nrule = 'ditto'\nhead = 'knn'", "strategy.head", "ditto measures a model of the target's own", ""),
    (
        "[strategy]\nhead = 'knn'\n[training.target]\nlabels = 'pseudo'",
        "strategy.head",
        "asks the labels of the target's training rows",
        "none",
    ),
    ("[strategy]\nserver-momentum = 1.0", "strategy.server-momentum", "below 1", ""),
    ("[strategy]\nrule = 'fedrep'", "training.target.personal-layers", "some stay at their site", "weight and bias"),
    (
        "[strategy]\nrule = 'fedrep'\n[training.target]\npersonal-layers = 2",
        "training.source.personal-layers",
        "some stay at their site",
        "weight and bias",
    ),
    (
        "[strategy]\nrule = 'fedrep'\n[training]\ntarget = {personal-layers = 2}\nsource = {personal-layers = 1}",
        "training.source.personal-layers",
        "is 1, and at the target 2",
        "same number",
    ),
    ("[training.source]\npersonal-layers = 2", "training.source.personal-layers", "under fedda_auto no", "fedrep"),
    (
        "[training.source]\npersonal-layers = 1\ndp = {noise-multiplier = 1.0}",
        "training.source.personal-layers",
        "a ledger does not count",
        "to 0",
    ),
    (
        "[training.source]\nmax-steps = 1\ndp = {noise-multiplier = 1.0}",
        "training.source.max-steps",
        "a ledger counts whole epochs",
        "to 0",
    ),
    (
        "[training.source]\nvary = true\ndp = {noise-multiplier = 1.0}",
        "training.source.vary",
        "takes rows as they are",
        "to false",
    ),
    ("[training.source]\nhead-epochs = 0", "training.source.head-epochs", "at least 1", ""),
    ("[training.source]\nlearning-rate = 0", "training.source.learning-rate", "above 0", ""),
    ("[training.target]\ndevice = 'gpu'", "training.target.device", "'cuda'", ""),
    ("[privacy]\nvisibility = 'all'", "privacy.visibility", "'individual', 'cohort' or 'sum'", ""),
    ("[privacy]\ncohort-size = 2", "privacy.cohort-size", "below min-others + max-colluders + 1 = 3", "set 0 for 4"),
    ("[privacy]\nmin-others = 3", "privacy.min-others", "at least 4 sources", "add sources"),
    ("[privacy]\nmax-colluders = 1", "privacy.min-others", "at least 4 sources", "add sources"),
    ("[privacy]\nnorm-cap-kappa = -1", "privacy.norm-cap-kappa", "at least 0", ""),
    (
        "[privacy]\nnorm-cap-kappa = 2.5",
        "privacy.norm-cap-kappa",
        "2.5 is above min-others = 2",
        "raise privacy.min-others",
    ),
    ("[privacy]\nnorm-cap-granularity = 'row'", "privacy.norm-cap-granularity", "'layer' or 'model'", ""),
    (
        "[privacy.site-visibility]\nsource-9 = 'sum'",
        "privacy.site-visibility.source-9",
        "no source of this federation",
        "source-1, source-2, source-3",
    ),
    ("[privacy.site-visibility]\nsource-1 = 'all'", "privacy.site-visibility.source-1", "'cohort' or 'sum'", ""),
    (
        "[privacy]\nmin-others = 3\nvisibility = 'individual'\nsite-visibility = {source-2 = 'sum'}",
        "max-visibility",
        "source-2",
        "permits more",
    ),
    (
        "[privacy]\nmin-others = 3\nvisibility = 'individual'\n"
        "site-visibility = {source-1 = 'cohort', source-3 = 'cohort'}",
        "max-visibility",
        "source-1, source-2, source-3 permit no more than cohort",
        "more sources",
    ),
    ("[privacy.budget]\ntarget-epsilon = 0", "privacy.budget.target-epsilon", "above 0", ""),
    ("[privacy.budget]\ntarget-delta = 0.0", "privacy.budget.target-delta", "above 0", ""),
    ("[privacy.budget]\naccountant = 'gdp'", "privacy.budget.accountant", "'rdp' or 'prv'", ""),
    ("[privacy.budget]\nepsilon = 1.0", "privacy.budget.epsilon", "unknown key", "privacy.budget.target-epsilon"),
    ("[privacy]\nbudget = 8.0", "privacy.budget", "must be a table", ""),
    ("[training.source.dp]\nnoise-multiplier = -0.1", "training.source.dp.noise-multiplier", "at least 0", ""),
    ("[training.source.dp]\nclip-norm = 1.0", "training.source.dp.clip-norm", "unknown key", "max-grad-norm"),
    ("[training.dp]\nnoise-multiplier = 1.0", "training.dp", "unknown key", "source.dp.noise-multiplier"),
    ("[session]\nthreshold = 2", "session.threshold", "below min-others + max-colluders + 1 = 3", "leave it at 0"),
    ("[session]\nthreshold = 4", "session.threshold", "outside [2, 3]", "leave it at 0"),
    ("[session]\nbits = 18", "session.bits", "16", ""),
    ("[session]\ngraph = 'ring'", "session.graph", "'complete' or 'k-regular'", ""),
    ("[session]\ndropouts = 0.5", "session.dropouts", "below 0.5", ""),
    ("[session]\ngraph = 'k-regular'", "session.graph", "norms of its neighbours alone", "norm-cap-kappa to 0"),
    (
        "[session]\ngraph = 'k-regular'\n[privacy]\nvisibility = 'cohort'",
        "session.graph",
        "one sum over all sources",
        'visibility to "sum"',
    ),
    ("[session]\nclip = inf", "session.clip", "finite", ""),
    ("[transport]\nlisten = 'localhost:70000'", "transport.listen", "65535", ""),
    ("[transport]\nheartbeat-s = 0", "transport.heartbeat-s", "above 0", ""),
    ("[transport]\naddress = 'clinic:0'", "transport.address", "port 0 is not in 1 to 65535", ""),
    ("[transport]\naddress = '0.0.0.0:1'", "transport.address", "no site can reach it", ""),
    ("[transport]\nproxy = 'http://me:word@proxy:1'", "transport.proxy", "holds credentials", ""),
    ("[transport]\nproxy = 'socks5://proxy:1'", "transport.proxy", "must be an HTTP proxy", ""),
    ("[transport]\nproxy = 'proxy'", "transport.proxy", "is not host:port", ""),
    ("[transport]\nchunk-bytes = 4194304", "transport.chunk-bytes", "do not fit", "lower it"),
]


@pytest.mark.parametrize(("text", "key", "why", "hint"), BAD_VALUES, ids=[text for text, *_ in BAD_VALUES])
def test_a_wrong_setting_is_named_with_its_reason(file: Path, text: str, key: str, why: str, hint: str) -> None:
    file.write_text(f"{MINIMAL}\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_federation(file)
    assert caught.value.key == key
    assert why in caught.value.why
    assert hint in caught.value.hint
    assert caught.value.exit_code is ExitCode.CONFIG
    assert "\n" not in str(caught.value)


def test_a_head_is_refused_where_the_targets_rows_have_a_budget(file: Path) -> None:
    assert load_federation(file, ["strategy.head=knn"]).strategy.head == "knn"
    with pytest.raises(ConfigError, match="knn uses the target's rows beyond what is charged for") as caught:
        load_federation(file, ["strategy.head=knn", "training.target.dp.noise-multiplier=1.0"])
    assert caught.value.key == "strategy.head"


PERSONAL = ["ditto", "apfl", "knn_per", "personalized_fedavg", "fedrep"]
HEADS = ("training.target.personal-layers=2", "training.source.personal-layers=2")


@pytest.mark.parametrize("rule", PERSONAL)
def test_a_personal_strategy_is_refused_where_the_targets_rows_have_a_budget(file: Path, rule: str) -> None:
    chosen = [f"strategy.rule={rule}", "strategy.reptile-rounds=2", *(HEADS if rule == "fedrep" else ())]
    assert load_federation(file, chosen).strategy.rule == rule
    with pytest.raises(ConfigError) as caught:
        load_federation(file, [*chosen, "training.target.dp.noise-multiplier=1.0"])
    key = "training.target.personal-layers" if rule == "fedrep" else "strategy.rule"
    assert (caught.value.key, bool(caught.value.hint)) == (key, True)
    if rule != "fedrep":  # noise at the sources is left to them
        load_federation(file, [*chosen, "training.source.dp.noise-multiplier=1.0"])


def test_attention_is_refused_where_the_targets_rows_have_a_budget(file: Path) -> None:
    """No noise is made for what the target publishes under it, so a ledger would promise what does not hold."""
    chosen = ["strategy.rule=fada_attention", "training.target.labels=none"]
    assert load_federation(file, chosen).strategy.rule == "fada_attention"
    for labels, key in (("none", "training.target.dp.noise-multiplier"), ("given", "strategy.rule")):
        with_noise = ["training.target.dp.noise-multiplier=1.0", f"training.target.labels={labels}"]
        with pytest.raises(ConfigError) as caught:
            load_federation(file, [*chosen, *with_noise])
        assert caught.value.key == key
    at_sources = [*chosen, "training.source.dp.noise-multiplier=1.0"]
    assert load_federation(file, at_sources).training.source.dp.noise_multiplier == 1.0


@pytest.mark.parametrize("rule", PERSONAL)
def test_the_targets_own_file_is_checked_as_the_federations_is(file: Path, tmp_path: Path, rule: str) -> None:
    chosen = [f"strategy.rule={rule}", "strategy.reptile-rounds=2", *(HEADS if rule == "fedrep" else ())]
    own = tmp_path / "aggregator.toml"
    own.write_text(aggregator_toml(load_federation(file, chosen), tmp_path / "kit", tmp_path / "run", 0))
    assert load_aggregator(own).strategy.rule == rule
    wrong = "training.personal-layers=0" if rule == "fedrep" else "training.dp.noise-multiplier=1.0"
    with pytest.raises(ConfigError) as caught:
        load_aggregator(own, [wrong])
    assert caught.value.key == ("training.personal-layers" if rule == "fedrep" else "strategy.rule")


@pytest.mark.parametrize(("rule", "of_file", "known"), [("analytic", 0, 1.5), ("analytic", 2, 2), ("fedgp_auto", 0, 0)])
def test_the_target_knows_the_noise_of_second_moments(
    file: Path, tmp_path: Path, rule: str, of_file: float, known: float
) -> None:
    chosen = [f"strategy.rule={rule}", f"strategy.source-noise={of_file}", "training.source.dp.noise-multiplier=1.5"]
    chosen += ["strategy.rounds=1", "strategy.warm-up-rounds=0"] if rule == "analytic" else []
    config, own = load_federation(file, chosen), tmp_path / "aggregator.toml"
    own.write_text(aggregator_toml(config, tmp_path / "kit", tmp_path / "run", 0))
    assert load_aggregator(own).strategy.source_noise == known
    assert config.target_strategy.source_noise == known
    assert ("source-noise" in kit_settings_toml(config, config.federation.target, "localhost:1")) == (known > 0)


@pytest.mark.parametrize(
    ("rule", "rounds", "warms_up"), [("analytic", 1, False), ("ditto", 20, False), ("fedda_auto", 20, True)]
)
def test_a_kit_holds_rounds_of_warm_up_only_under_a_rule_that_has_them(
    file: Path, rule: str, rounds: int, warms_up: bool
) -> None:
    file.write_text(f'{MINIMAL}[strategy]\nrule = "{rule}"\nrounds = {rounds}\n')
    text = kit_settings_toml(load_federation(file), "target", "localhost:1")
    assert ("\nwarm-up-rounds = 2\n" in text) is warms_up


def test_each_sites_policy_permits_what_the_file_says_of_it(file: Path) -> None:
    overrides = [
        'federation.sources=["a", "b", "c", "d"]',
        "privacy.visibility=individual",
        "privacy.norm-cap-kappa=0.5",
    ]
    sites = 'privacy.site-visibility={a = "sum", b = "sum", c = "sum"}'
    config = load_federation(file, [*overrides, sites, "privacy.norm-cap-granularity=model"])
    permitted = {site: site_policy(config, site) for site in config.federation.sources}
    assert {site: policy.max_visibility for site, policy in permitted.items()} == {
        "a": "sum",
        "b": "sum",
        "c": "sum",
        "d": "individual",
    }
    assert {site: level.label for site, level in config.levels.items()}["d"] == "individual"
    assert {(policy.norm_cap.kappa, policy.norm_cap.granularity) for policy in permitted.values()} == {(0.5, "model")}


NOISE = ("training.source.dp.noise-multiplier=1.1", "training.source.dp.max-grad-norm=20")


def test_where_sources_train_with_noise_their_policies_require_it_and_permit_the_clip_norm(file: Path) -> None:
    policy = site_policy(load_federation(file, NOISE), "source-1")
    assert policy.dp.required
    check_training(policy, 1.1, 20.0)
    plain = site_policy(load_federation(file, ["training.target.dp.noise-multiplier=1.1"]), "source-1")
    assert not plain.dp.required
    check_training(plain, 0.0, 1.0)


@pytest.mark.parametrize(("sources", "room"), [(3, 1024), (700, 1400)])
def test_a_sites_policy_has_room_for_the_sums_of_as_many_sources_as_the_file_has(
    file: Path, sources: int, room: int
) -> None:
    names = [f"source-{number}" for number in range(1, sources + 1)]
    config = load_federation(file, [f"federation.sources={json.dumps(names)}"])
    assert site_policy(config, "source-1").quantisation.n_max == room
    assert room >= n_max_for(sources)


def test_every_sites_policy_asks_for_the_rows_behind_moments_that_the_file_says(file: Path) -> None:
    keys = ("moments-min-rows=0.5", "moments-min-rows-per-class=2", "moments-min-rows-per-category=1")
    moments = site_policy(load_federation(file, [f"privacy.{key}" for key in keys]), "source-1").moments
    assert (moments.min_rows, moments.min_rows_per_class, moments.min_rows_per_category) == (0.5, 2, 1)


def test_every_sites_policy_gets_the_budget_of_the_file(file: Path) -> None:
    file.write_text(MINIMAL + "[privacy.budget]\ntarget-epsilon = 3\ntarget-delta = 1e-6\naccountant = 'prv'\n")
    config = load_federation(file)
    budgets = {site_policy(config, site).dp.budget for site in config.federation.sources}
    assert budgets == {Budget(3.0, 1e-6, "prv")} == {budget_of(config.privacy.budget)}


def test_without_a_word_there_is_no_noise_and_the_documented_budget(file: Path) -> None:
    config = load_federation(file)
    for side in (config.training.source, config.training.target):
        assert side.dp.noise_multiplier == 0
        assert training_settings(side).dp is None
    assert budget_of(config.privacy.budget) == Budget(8.0, 1e-5, "rdp")
    assert site_policy(config, "source-1").dp.max_grad_norm == 10.0


def test_noise_of_one_side_is_not_that_of_the_other(file: Path) -> None:
    env = {"SECUREFDA_TRAINING_SOURCE_DP_MAX_GRAD_NORM": "0.5"}
    config = load_federation(file, ["training.source.dp.noise-multiplier=1.1"], env)
    assert training_settings(config.training.source).dp == NoiseSettings(1.1, 0.5)
    assert training_settings(config.training.target).dp is None


def test_tables_within_tables_are_overridden_by_flag_before_environment_before_file(file: Path) -> None:
    file.write_text(MINIMAL + "[training.source.dp]\nnoise-multiplier = 1\nmax-grad-norm = 2\nghost-clipping = true\n")
    env = {
        "SECUREFDA_TRAINING_SOURCE_DP_NOISE_MULTIPLIER": "3",
        "SECUREFDA_TRAINING_SOURCE_DP_MAX_GRAD_NORM": "4",
        "SECUREFDA_PRIVACY_BUDGET_ACCOUNTANT": "prv",
    }
    config = load_federation(file, ["training.source.dp.noise-multiplier=5", "privacy.budget.target-epsilon=6"], env)
    dp, budget = config.training.source.dp, config.privacy.budget
    assert (dp.noise_multiplier, dp.max_grad_norm, dp.ghost_clipping) == (5.0, 4.0, True)
    assert (budget.target_epsilon, budget.accountant) == (6.0, "prv")


@pytest.mark.parametrize("model", [FederationConfig, AggregatorConfig, SourceConfig])
def test_no_two_settings_of_a_file_have_one_environment_name(model: type[Settings]) -> None:
    names = [key.replace(".", "_").replace("-", "_") for key in known_keys(model)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("overrides", "permitted"), [((), False), (("strategy.filter=false",), True)])
def test_a_sites_policy_permits_unfiltered_projections_where_the_run_projects_unfiltered(
    file: Path, overrides: tuple[str, ...], permitted: bool
) -> None:
    config = load_federation(file, overrides)
    assert config.strategy.filter is not permitted
    assert site_policy(config, "source-1").norm_cap.unfiltered_projection is permitted


def test_a_filter_goes_with_the_norm_cap_for_the_model(file: Path) -> None:
    config = load_federation(file, ["strategy.filter=true", "privacy.norm-cap-granularity=model"])
    norm_cap = site_policy(config, "source-1").norm_cap
    assert (norm_cap.granularity, norm_cap.unfiltered_projection) == ("model", False)


def test_nobody_is_asked_for_more_than_the_run_asks_whatever_a_site_permits(file: Path) -> None:
    config = load_federation(file, ['privacy.site-visibility={source-1 = "individual"}'])
    assert {level.label for level in config.levels.values()} == {"sum"}
    assert site_policy(config, "source-1").max_visibility == "individual"


@pytest.mark.parametrize(
    ("old", "new", "key", "why"),
    [
        ('name = "digits"', "", "federation.name", "missing"),
        ('name = "digits"', 'name = "Digits!"', "federation.name", "lowercase letters"),
        ('"source-2"', '"source-1"', "federation.sources", "source-1 is named twice"),
        ('"source-2"', '"target"', "federation.sources", "target is the target"),
        ('"source-2"', '"-2"', "federation.sources.1", "hyphen"),
        ("securefda.tasks.digits:Digits", "securefda.tasks.digits", "task.factory", "package.module:Class"),
        ("securefda.tasks.digits:Digits", "os.system:a b", "task.factory", "package.module:Class"),
        ('[task]\nfactory = "securefda.tasks.digits:Digits"', "", "task", "missing"),
    ],
)
def test_a_wrong_site_or_task_is_named(file: Path, old: str, new: str, key: str, why: str) -> None:
    file.write_text(MINIMAL.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_federation(file)
    assert caught.value.key == key
    assert why in caught.value.why


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[federation\n", "not valid TOML"),
        (b"[strategy]\nrounds = three\n", "line 2"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_file_that_is_not_toml_is_named_with_the_place(file: Path, content: bytes, why: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"federation\.toml") as caught:
        load_federation(file)
    assert why in caught.value.why


def test_a_file_that_an_editor_marked_as_utf_8_is_read_as_without_the_mark(file: Path) -> None:
    before = load_federation(file)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert load_federation(file) == before


def test_a_missing_file_and_a_folder_in_its_place_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: is missing"):
        load_federation(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_federation(tmp_path)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("strategy.rounds", "--set strategy.rounds"),
        ("=3", "--set =3"),
        ("strategy..rounds=3", "--set strategy..rounds=3"),
        ("strategy.roundz=3", "strategy.roundz"),
        ("strategy=3", "strategy"),
        ("federation.name.x=3", "federation.name.x"),
        ("training.source.dp=1", "training.source.dp"),
        ("training.source.dp.noise-multiplier=-1", "training.source.dp.noise-multiplier"),
    ],
)
def test_a_wrong_flag_is_named_and_said_to_be_a_flag(file: Path, override: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_federation(file, [override])
    assert caught.value.key == key
    assert "--set" in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("SECUREFDA_STRATEGY_ROUNDZ", "SECUREFDA_STRATEGY_ROUNDS"),
        ("SECUREFDA_TRAINING_SOURCE_DP_NOISE_MULTIPLER", "SECUREFDA_TRAINING_SOURCE_DP_NOISE_MULTIPLIER"),
    ],
)
def test_an_unknown_environment_setting_names_the_nearest(file: Path, wrong: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_federation(file, env={wrong: "3"})
    assert caught.value.key == wrong
    assert nearest in caught.value.hint


def test_environment_settings_of_other_files_and_programs_are_left_alone(file: Path) -> None:
    env = {"SECUREFDA_SOURCE_KIT": "x", "SECUREFDA_DATA": "y", "HOME": "/"}
    assert load_federation(file, env=env) == load_federation(file)


def test_a_child_process_inherits_no_setting_but_everything_else() -> None:
    env = {"SECUREFDA_STRATEGY_ROUNDS": "3", "SECUREFDA_TRAINING_LEARNING_RATE": "1", "PATH": "/bin"}
    env |= {"SECUREFDA_TRAINING_DP_NOISE_MULTIPLIER": "0", "SECUREFDA_PRIVACY_BUDGET_TARGET_EPSILON": "9"}
    assert child_environment(env) == {"PATH": "/bin"}


def test_process_files_carry_the_federation_to_each_side(file: Path, tmp_path: Path) -> None:
    file.write_text(MINIMAL + 'data-dir = "data"\n[task.options]\nnote = "a \\"quoted\\" \\\\ ünicode"\n')
    overrides = [*NOISE, "privacy.budget.target-epsilon=2", "training.target.dp.ghost-clipping=true"]
    overrides += ["training.target.epochs=2", "training.source.epochs=3", "strategy.rounds=9"]
    config = load_federation(file, overrides)
    for name, text in (
        ("aggregator.toml", aggregator_toml(config, tmp_path / "kit", tmp_path / "out", 7)),
        ("source.toml", source_toml(config, tmp_path / "kit", tmp_path / "out", 7)),
    ):
        (tmp_path / "derived").mkdir(exist_ok=True)
        (tmp_path / "derived" / name).write_text(text)
    aggregator = load_aggregator(tmp_path / "derived" / "aggregator.toml")
    source = load_source(tmp_path / "derived" / "source.toml")
    assert aggregator.task == source.task == config.task
    assert (aggregator.strategy, aggregator.privacy, aggregator.session) == (
        config.strategy,
        config.privacy,
        config.session,
    )
    assert aggregator.transport == source.transport == config.transport
    assert (aggregator.training.epochs, source.training.epochs) == (2, 3)
    assert (aggregator.training.dp, source.training.dp) == (config.training.target.dp, config.training.source.dp)
    assert (source.training.dp.noise_multiplier, aggregator.privacy.budget.target_epsilon) == (1.1, 2.0)
    assert aggregator.aggregator == source.source
    assert (source.source.kit, source.source.out, source.source.seed) == (tmp_path / "kit", tmp_path / "out", 7)


def test_a_process_file_names_the_data_folder_wherever_it_is_put(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(MINIMAL + 'data-dir = "data"\n')
    monkeypatch.chdir(tmp_path)
    config = load_federation(Path("federation.toml"))
    text = source_toml(config, Path("kit"), Path("out"), 0)
    assert tomllib.loads(text)["task"]["data-dir"] == str(tmp_path / "data")


@pytest.mark.parametrize("site", ["target", "source-1"])
def test_a_kits_data_folder_is_the_sites_own_and_not_the_founders(file: Path, site: str) -> None:
    config = load_federation(file, ["task.data-dir=/home/founder/rows"])
    assert tomllib.loads(kit_settings_toml(config, site, "a:1"))["task"]["data-dir"] == "data"
    assert "data-dir" not in tomllib.loads(kit_settings_toml(load_federation(file), site, "a:1"))["task"]


def test_a_kits_settings_hold_what_matters_each_with_a_comment(file: Path, tmp_path: Path) -> None:
    config = load_federation(file, ["session.clip=2", "training.source.optimizer=sgd", "training.source.momentum=0.9"])
    for site, load in (("target", load_aggregator), ("source-1", load_source)):
        text = kit_settings_toml(config, site, "10.0.0.1:8443")
        lines = text.splitlines()
        keys = [number for number, line in enumerate(lines) if " = " in line and not line.startswith("#")]
        assert all(lines[number - 1].startswith("# ") for number in keys)
        assert 8 <= len(keys) <= 20
        assert all(len(line) <= 120 for line in lines)
        sentence_ends = [line for line in lines if line.startswith("# ") and line.endswith(".")]
        assert (
            len(sentence_ends) == len(keys) + 1
        )  # a sentence for each key, over as many lines as it needs, and the top's
        (tmp_path / "settings.toml").write_text(text)
        settings = load(tmp_path / "settings.toml")
        assert settings.training == (config.training.target if site == "target" else config.training.source)
    source = tomllib.loads(kit_settings_toml(config, "source-1", "10.0.0.1:8443"))
    assert source["training"]["momentum"] == 0.9
    assert set(source) == {"source", "task", "training"}
    target = tomllib.loads(kit_settings_toml(config, "target", "10.0.0.1:8443"))
    assert target["session"] == {"clip": 2.0}
    assert target["privacy"] == {"visibility": "sum", "min-others": 2, "max-colluders": 0}


def test_a_kits_settings_stay_right_when_the_kit_is_moved(file: Path, tmp_path: Path) -> None:
    config = load_federation(file)
    local = tmp_path / "moved" / "source-1" / "local"
    local.mkdir(parents=True)
    (local / "settings.toml").write_text(kit_settings_toml(config, "source-1", "10.0.0.1:8443"))
    process = load_source(local / "settings.toml").source
    assert (process.kit.resolve(), process.out) == (tmp_path / "moved" / "source-1", local / "run")


def test_a_targets_kit_listens_where_it_is_told(file: Path, tmp_path: Path) -> None:
    config = load_federation(file, ["transport.listen=127.0.0.1:9"])
    (tmp_path / "settings.toml").write_text(kit_settings_toml(config, "target", "10.0.0.1:8443"))
    assert load_aggregator(tmp_path / "settings.toml").transport.listen == "10.0.0.1:8443"


def test_an_aggregator_file_rejects_a_sources_table(tmp_path: Path) -> None:
    path = tmp_path / "aggregator.toml"
    path.write_text('[source]\nkit = "kit"\n[task]\nfactory = "a:B"\n')
    with pytest.raises(ConfigError, match="is a source's settings, not a target's settings"):
        load_aggregator(path)


@given(text=st.text(max_size=40))
def test_any_option_text_survives_the_way_to_a_process(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.mktemp("options") / "federation.toml"
    file.write_text(MINIMAL)
    config = load_federation(file)
    task = config.task.model_copy(update={"options": {"text": text}})
    config = config.model_copy(update={"task": task})
    for derived in (source_toml(config, file, file, 0), kit_settings_toml(config, "source-1", "")):
        assert tomllib.loads(derived)["task"]["options"]["text"] == text


def test_sections_convert_to_what_rules_and_training_take(file: Path) -> None:
    config = load_federation(file, ["strategy.rule=fedda", "strategy.rounds=4", "training.source.optimizer=sgd"])
    assert strategy_of(config.strategy) == Strategy(rule="fedda", rounds=4, warm_up_rounds=2, filter=True)
    settings = training_settings(config.training.source)
    assert (settings.optimizer, settings.batch_size) == ("sgd", 16)


@pytest.mark.parametrize("key", ["kit", "out"])
def test_a_path_with_a_nul_in_it_is_named(key: str, tmp_path: Path) -> None:
    values = {"kit": "kit", "out": "run"} | {key: "a\\u0000b"}
    process = "".join(f'{name} = "{value}"\n' for name, value in values.items())
    (tmp_path / "source.toml").write_text(f'[source]\n{process}[task]\nfactory = "a:B"\n')
    with pytest.raises(ConfigError, match=rf"source\.{key}: must be a path, and none holds a NUL") as caught:
        load_source(tmp_path / "source.toml")
    assert str(caught.value).isprintable()


MANY_ERRORS = """
[federation]
name = "digits"
sources = ["source-1", "source-2", "source-3"]
[task]
factry = "securefda.tasks.digits:Digits"
[strategy]
rule = "fedgp_auot"
roundz = 3
beta = 3.0
[privacy]
visibility = "sums"
[session]
clip = "big"
[transport]
chunk-bytes = 5_000_000
"""


def test_all_errors_of_a_file_come_at_once_unknown_keys_first(file: Path) -> None:
    file.write_text(MANY_ERRORS)
    with pytest.raises(ConfigErrors) as caught:
        load_federation(file)
    errors = {error.key: error for error in caught.value.errors}
    assert list(errors)[:2] == ["task.factry", "strategy.roundz"]
    assert set(errors) == {
        "task.factry",  # and not that task.factory is missing: that is this error
        "strategy.roundz",
        "strategy.rule",
        "strategy.beta",
        "privacy.visibility",
        "session.clip",
        "transport.chunk-bytes",
    }
    assert errors["strategy.rule"].hint == "did you mean fedgp_auto?"
    assert errors["privacy.visibility"].hint == "did you mean sum?"
    assert "Input should" not in str(caught.value)
    assert caught.value.key == "task.factry"
    assert caught.value.exit_code is ExitCode.CONFIG


def test_a_table_that_python_builds_raises_the_error_itself() -> None:
    with pytest.raises(ConfigError) as caught:
        TransportSection(chunk_bytes=5_000_000)
    assert caught.value.key == "transport.chunk-bytes"


@pytest.mark.parametrize(
    ("text", "override", "expected"),
    [
        ("warm-up-rounds = 4", "strategy.rounds=3", {"warm_up_rounds": 1}),
        ("", "strategy.rounds=2", {"warm_up_rounds": 1}),
        ("", "strategy.rounds=1", {"warm_up_rounds": 0}),
        ("warm-up-rounds = 2", "strategy.rounds=3", {"warm_up_rounds": 2}),
        ("rule = 'finetune_offline'\nfinetune-rounds = 5", "strategy.rounds=4", {"finetune_rounds": 2}),
    ],
)
def test_a_run_that_an_override_shortens_is_made_to_fit(
    file: Path, text: str, override: str, expected: dict[str, int]
) -> None:
    file.write_text(f"{MINIMAL}[strategy]\n{text}\n")
    notes: list[str] = []
    strategy = load_federation(file, [override], note=notes.append).strategy
    assert {name: getattr(strategy, name) for name in expected} == expected
    before = load_federation(file).strategy
    changed = [name for name in expected if getattr(before, name) != expected[name]]
    assert [note.partition(":")[0] for note in notes] == [f"strategy.{name.replace('_', '-')}" for name in changed]


@pytest.mark.parametrize(
    "overrides", [["strategy.rounds=3", "strategy.warm-up-rounds=3"], ["strategy.warm-up-rounds=30"]]
)
def test_what_is_asked_for_itself_is_not_made_to_fit(file: Path, overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match="must be below"):
        load_federation(file, overrides)


class TestEffectiveSettings:
    def test_each_key_has_its_value_and_where_it_came_from(self, file: Path) -> None:
        file.write_text(
            f"{MINIMAL}options = {{ noise = 0.1 }}\n[session]\nclip = 2.0\n[strategy]\nwarm-up-rounds = 9\n"
        )
        found = {
            one.key: one for one in load_effective(file, ["strategy.rounds=4"], {"SECUREFDA_SESSION_ATTEMPTS": "3"})
        }
        origins = {
            "federation.name": "federation.toml",
            "task.options.noise": "federation.toml",
            "session.clip": "federation.toml",
            "session.attempts": "SECUREFDA_SESSION_ATTEMPTS",
            "strategy.rounds": "--set",
            "strategy.warm-up-rounds": "to fit strategy.rounds (--set)",
            "strategy.beta": "default",
        }
        assert {key: found[key].origin for key in origins} == origins
        assert (found["session.attempts"].value, found["strategy.warm-up-rounds"].value) == ("3", "2")
        assert set(known_keys(FederationConfig)) - {"task.options"} <= set(found)

    @pytest.mark.parametrize("name", ["password", "api-key", "access_token", "DB_SECRET"])
    def test_an_option_that_is_a_secret_is_hidden(self, file: Path, name: str) -> None:
        file.write_text(f'{MINIMAL}options = {{ {name} = "hunter2", inner = {{ {name} = "hunter2", place = "x" }} }}\n')
        shown = "\n".join(f"{one.key} {one.value}" for one in load_effective(file, [], {}))
        assert "hunter2" not in shown
        assert f"task.options.{name} (hidden)" in shown
        assert 'place = "x"' in shown
        assert b"hunter2" not in kept_settings(load_federation(file))

    def test_what_has_changed_since_a_run_began_is_named(self, file: Path) -> None:
        kept = kept_settings(load_federation(file, ["strategy.rounds=500"]))
        now = load_federation(file, ["strategy.rounds=12", "task.options.noise=0.2"])
        assert changes_since(kept, now) == [
            "task.options.noise: not set → 0.2",
            "strategy.rounds: 500 → 12",
        ]
        assert changes_since(kept_settings(now), now) == []

    def test_that_a_secret_has_changed_is_said_and_not_to_what(self) -> None:
        before = {"strategy": {"rounds": 500, "rule": "fedgp"}, "task": {"options": {"token": "hunter2"}}}
        now = {"strategy": {"rounds": 12, "rule": "fedgp"}, "task": {"options": {"token": "hunter3", "noise": 0.2}}}
        assert changes_between(before, now) == {
            "strategy.rounds": "strategy.rounds: 500 → 12",
            "task.options.token": "task.options.token: (hidden) → (hidden)",
            "task.options.noise": "task.options.noise: not set → 0.2",
        }


class TestExplained:
    @pytest.mark.parametrize("file", FILES)
    def test_every_key_of_every_file_is_explained(self, file: str) -> None:
        for key in known_keys(FILES[file]):
            (found,) = [one for one in explained(key) if one.dotted == key and file in one.files]
            assert found.key.meaning
            assert found.key.takes
            assert bool(found.environment) is (file != "a source's policy.toml" and key != "task.options")

    def test_a_table_lists_its_keys(self) -> None:
        assert {one.dotted for one in explained("[session]")} == {
            f"session.{kebab_case(name)}" for name in SessionSection.model_fields
        }

    def test_the_last_part_is_enough(self) -> None:
        assert [one.dotted for one in explained("warm-up-rounds")] == ["strategy.warm-up-rounds"]

    @pytest.mark.parametrize(
        ("name", "why", "hint"),
        [
            ("strategy.ruonds", "no such key", "did you mean strategy.rounds?"),
            ("xyzzy", "no such key", "tables: federation"),
        ],
    )
    def test_an_unknown_key_names_the_nearest(self, name: str, why: str, hint: str) -> None:
        with pytest.raises(ConfigError) as caught:
            explained(name)
        assert why in caught.value.why
        assert hint in caught.value.hint


def test_options_of_a_task_are_a_table_in_a_kit_and_the_same_when_read(file: Path) -> None:
    columns = {f"column {n}": {"type": "number", "center": n, "scale": 10} for n in range(30)}
    options = {"separator": ";", "label": {"column": "ill", "classes": ["no", "yes"]}, "columns": columns, "z": 1}
    file.write_text(MINIMAL + tomli_w.dumps({"task": {"options": options}}))
    text = kit_settings_toml(load_federation(file), "source-1", "a:1")
    assert tomllib.loads(text)["task"]["options"] == options
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120
    assert '"column 7" = { type = "number", center = 7, scale = 10 }' in lines
    assert 'label = { column = "ill", classes = ["no", "yes"] }' in lines
    assert lines[lines.index("[task.options]") - 1].startswith("# Options of the task")


def test_each_column_of_a_table_is_shown_by_itself_and_its_change_named(file: Path) -> None:
    columns = {"age": {"type": "number", "center": 60}, "sex": {"type": "category", "api-key": "x"}}
    file.write_text(MINIMAL + tomli_w.dumps({"task": {"options": {"columns": columns, "label": {"column": "ill"}}}}))
    config = load_federation(file)
    shown = {one.key: one.value for one in load_effective(file, [], {}) if one.key.startswith("task.options")}
    assert shown == {
        "task.options.columns.age": '{ type = "number", center = 60 }',
        "task.options.columns.sex": '{ type = "category", api-key = "(hidden)" }',
        "task.options.label": '{ column = "ill" }',
    }
    assert {one.origin for one in load_effective(file, [], {}) if one.key in shown} == {file.name}
    changed = load_federation(file, ["task.options.columns.age.center=50"])
    before, now = (f'{{ type = "number", center = {center} }}' for center in (60, 50))
    change = f"task.options.columns.age: {before} \N{RIGHTWARDS ARROW} {now}"
    assert changes_since(kept_settings(config), changed) == [change]
