"""The suites as data: every run of every suite has a configuration that loads, and nobody sets one thing twice."""

from pathlib import Path

import pytest

from securefda.bench.accuracy.columns import RULES
from securefda.bench.accuracy.paper import MEAN
from securefda.bench.accuracy.plan import LEVELS, Request, common_settings, digest_of, plan
from securefda.bench.accuracy.suites import DATA, SUITES
from securefda.errors import ConfigError
from securefda.rules.strategy import Rule
from securefda.samples import sample
from securefda.site.config import load_federation

FILES = Path(__file__).parent
"""Some folder: nothing of it is read."""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("suite", SUITES)
def test_every_run_of_every_suite_has_a_configuration_of_its_own_at_the_level(suite, level):
    request = Request(suite, level=level, seeds=2, data_dir=FILES)
    planned = plan(request)
    per_seed = len(planned) // 2
    assert [one.job.seed for one in planned] == [0] * per_seed + [1] * per_seed
    assert len({one.key for one in planned}) == len(planned)
    assert len({one.digest for one in planned}) == per_seed
    for one in planned:
        config, row = one.job.config, RULES[one.key.rule]
        assert config.strategy.rule == (row.rule or row.name)
        assert config.privacy.visibility == level
        assert config.federation.target == (one.key.target or config.federation.target)


def test_the_target_alone_at_a_low_rate_trains_at_that_of_the_adapted_rules():
    (one,) = plan(Request("digits", rules=["target_only_low_rate"], seeds=1))
    training, strategy = one.job.config.training.target, load_federation(sample("digits")).strategy
    assert one.job.config.strategy.rule == "target_only"
    assert training.learning_rate == 0.005 * strategy.lr_after_warm_up == 0.0025


def test_the_warm_started_target_has_the_warm_up_and_the_rate_of_the_adapted_rules():
    (one,) = plan(Request("digits", rules=["warm_target"], seeds=1))
    strategy, usual = one.job.config.strategy, load_federation(sample("digits")).strategy
    assert (strategy.rule, strategy.rounds) == ("finetune_offline", usual.rounds)
    assert strategy.rounds - strategy.finetune_rounds == usual.warm_up_rounds
    assert one.job.config.training.target.learning_rate == 0.005 * usual.lr_after_warm_up == 0.0025


def test_fed_heart_is_run_with_the_papers_scaling_and_with_public_numbers():
    scaling = {(one.key.data, one.job.config.task.options["scaling"]) for one in plan(Request("fed-heart", seeds=1))}
    assert scaling == {("fed-heart", "site"), ("fed-heart-public", "public")}


def test_photos_are_measured_by_an_encoders_features_and_by_counts_of_surf_words():
    planned = plan(Request("office-caltech", seeds=1, rules=["analytic"], data_dir=FILES))
    options = {(one.key.data, *map(one.job.config.task.options.get, ("prefix", "width"))) for one in planned}
    assert options == {("office-caltech", "efficientnet_lite0_", 1280), ("office-caltech-surf", "surf_", 800)}


@pytest.mark.parametrize("suite", ["eicu", "tcga-brca"])
def test_on_tables_of_hospitals_each_seed_holds_out_other_rows_which_no_caller_may_set(suite):
    planned = plan(Request(suite, seeds=2, rules=["analytic", "warm_target"], data_dir=FILES))
    assert {(one.job.seed, one.job.config.task.options["split-seed"]) for one in planned} == {(0, 0), (1, 1)}
    with pytest.raises(ConfigError, match=f"is set by --suite {suite}"):
        plan(Request(suite, seeds=1, data_dir=FILES, overrides=["task.options.split-seed=3"]))


def test_every_rule_of_the_tables_is_a_strategy_and_every_suite_names_known_ones():
    for rule in RULES.values():
        assert Rule(rule.rule or rule.name)
    for suite in SUITES.values():
        assert set(suite.rules) <= set(RULES)
        assert {column.data for column in suite.columns} <= set(DATA)


def test_the_papers_figures_are_of_columns_and_rules_that_there_are():
    for suite in SUITES.values():
        for data, table in suite.published.items():
            names = {column.name for column in suite.columns if column.data == data}
            assert set(table.columns) - {MEAN} <= names
            assert set(table.rows) <= set(RULES)
            assert {len(row) for row in table.rows.values()} == {len(table.columns)}


def test_the_digest_is_of_every_setting_but_not_of_the_folder_of_the_data():
    def digests(**changes):
        request = Request("colored-mnist", **{"seeds": 1, "rules": ["fedgp_auto"], "data_dir": FILES} | changes)
        return [one.digest for one in plan(request)]

    assert digests(data_dir=FILES.parent) == digests()
    assert digests(level="individual") != digests()
    assert digests(overrides=["transport.heartbeat-s=4"]) != digests()
    assert digests(env={"SECUREFDA_STRATEGY_ROUNDS": "9"}) != digests()


def test_the_files_of_a_data_set_are_in_the_folder_of_its_name_or_in_the_one_that_was_named(tmp_path):
    request = Request("colored-mnist", data_dir=tmp_path)
    assert request.folder_of("colored-mnist") == tmp_path
    (tmp_path / "mnist").mkdir()
    assert request.folder_of("colored-mnist") == tmp_path / "mnist"
    assert request.folder_of("digits") is None


def test_what_runs_have_in_common_is_without_their_rule_and_their_column():
    common = common_settings(Request("beta-sweep", data=["digits"], overrides=["strategy.rounds=7"]))
    assert common["digits"]["strategy.rounds"] == 7
    assert common["digits"]["strategy.beta"] == 0.5
    assert list(common) == ["digits"]


def test_finetuning_takes_the_rounds_after_warm_up_of_the_schedule_that_is_run():
    request = Request("digits", seeds=1, rules=["finetune_offline"], overrides=["strategy.rounds=9"])
    (planned,) = plan(request)
    assert planned.job.config.strategy.finetune_rounds == 9 - planned.job.config.strategy.warm_up_rounds
    assert digest_of(planned.job.config) == planned.digest


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"suite": "digit"}, "--suite"),
        ({"level": "mixed"}, "--level"),
        ({"rules": ["fedgp_autos"]}, "--rules"),
        ({"data": ["fed-heart"]}, "--data"),
        ({"seeds": 0}, "--seeds"),
        ({"overrides": ["strategy.rule=fedda"]}, "--set strategy.rule"),
        ({"overrides": ["privacy.visibility=sum"]}, "--set privacy.visibility"),
        ({"overrides": ["task.data-dir=x"]}, "--set task.data-dir"),
        ({"suite": "beta-sweep", "data": ["digits"], "overrides": [" strategy.beta = 0.1"]}, "--set strategy.beta"),
        ({"suite": "colored-mnist"}, "--data-dir"),
        ({"suite": "fed-heart", "overrides": ["federation.target=va"]}, "--set federation.target"),
        ({"overrides": ["strategy.round=3"]}, "strategy.round"),
    ],
)
def test_a_request_that_cannot_be_is_refused_with_the_option_or_the_setting(changes, key):
    with pytest.raises(ConfigError) as error:
        plan(Request(**{"suite": "digits"} | changes))
    assert error.value.key == key
    assert error.value.hint


def test_every_round_of_the_rbf_grid_has_ten_steps_at_every_site():
    for one in plan(Request("rbf", seeds=1)):
        target, source = one.job.config.training.target, one.job.config.training.source
        options = one.job.config.task.options
        assert options["target-rows"] == 10 * target.batch_size
        assert options["source-rows"] == 10 * source.batch_size
        assert (target.epochs, source.epochs) == (1, 1)
