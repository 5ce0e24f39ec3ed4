"""Every bad argument of the functions on all updates, or on their sums, is refused with an error that names it."""

from __future__ import annotations

import numpy as np
import pytest

from securefda.rules import Rule, align_update, auto_beta, combine, fedda, fedgp, project

ONE = np.ones(4)
TWO = np.arange(1.0, 9.0).reshape(2, 4)

BAD_VECTORS = {
    "NaN": [1, 2, np.nan, 4],
    "infinite": [1, 2, -np.inf, 4],
    "too large to square": [1, 2, 3e200, 4],
    "empty": [],
    "complex": [1, 2, 3, 4j],
    "text": ["1", "2", "3", "4"],
    "objects": [None] * 4,
    "two-dimensional": [[1, 2, 3, 4]],
    "one number": 1.0,
}
BAD_MATRICES = {
    "NaN": [[1, 2, np.nan, 4]] * 2,
    "infinite": [[1, 2, np.inf, 4]] * 2,
    "no source": np.empty((0, 4)),
    "a vector": ONE,
    "too many columns": np.ones((2, 5)),
    "ragged": [[1.0, 2.0, 3.0, 4.0], [1.0]],
    "text": [["a"] * 4],
}
BAD_BETAS = {
    "above 1": 1.0001,
    "below 0": [-1e-9, 0.5],
    "NaN": [np.nan, 0.5],
    "too many": [0.5] * 3,
    "a column": [[0.5], [0.5]],
    "text": "half",
    "nothing": None,
}
BAD_WEIGHTS = {
    "negative": [-1, 2],
    "all zero": [0, 0],
    "NaN": [np.nan, 1],
    "infinite": [np.inf, 1],
    "too few": [1],
    "one number": 3,
}
BAD_LAYERS = {"short": [3], "long": [4, 1], "zero": [4, 0], "negative": [5, -1], "half": [1.5, 2.5], "empty": []}


def cases(table):
    return pytest.mark.parametrize("bad", table.values(), ids=table)


@pytest.mark.parametrize("rule", [fedda, fedgp])
@cases(BAD_VECTORS)
def test_bad_target_is_named(rule, bad):
    with pytest.raises(ValueError, match=r"^target: "):
        rule(bad, TWO, 0.5)


@pytest.mark.parametrize("rule", [fedda, fedgp])
@cases(BAD_MATRICES)
def test_bad_sources_are_named(rule, bad):
    with pytest.raises(ValueError, match=r"^sources: "):
        rule(ONE, bad, 0.5)


@pytest.mark.parametrize("rule", [fedda, fedgp])
@cases(BAD_BETAS)
def test_bad_beta_is_named(rule, bad):
    with pytest.raises(ValueError, match=r"^beta: "):
        rule(ONE, TWO, bad)


@pytest.mark.parametrize("rule", [fedda, fedgp])
@cases(BAD_WEIGHTS)
def test_bad_weights_are_named(rule, bad):
    with pytest.raises(ValueError, match=r"^weights: "):
        rule(ONE, TWO, 0.5, bad)


@cases(BAD_LAYERS)
def test_bad_layers_are_named(bad):
    with pytest.raises(ValueError, match=r"^layers: "):
        fedgp(ONE, TWO, 0.5, layers=bad)
    with pytest.raises(ValueError, match=r"^layers: "):
        project(ONE, ONE, layers=bad)


@pytest.mark.parametrize(("name", "bad"), [("projection", "diagonal"), ("projection", None), ("filter", "no")])
def test_bad_choice_of_projection_is_named(name, bad):
    with pytest.raises(ValueError, match=rf"^{name}: "):
        fedgp(ONE, TWO, 0.5, **{name: bad})
    with pytest.raises(ValueError, match=rf"^{name}: "):
        project(ONE, ONE, **{name: bad})


@cases(BAD_VECTORS)
def test_bad_source_of_a_projection_is_named(bad):
    with pytest.raises(ValueError, match=r"^source: "):
        project(ONE, bad)


@cases({key: value for key, value in BAD_MATRICES.items() if key != "too many columns"})
def test_bad_target_batches_are_named(bad):
    with pytest.raises(ValueError, match=r"^target_batches: "):
        auto_beta(bad, TWO, "fedda")


@cases(BAD_MATRICES)
def test_bad_sources_of_auto_beta_are_named(bad):
    with pytest.raises(ValueError, match=r"^sources: "):
        auto_beta(TWO, bad, "fedda")


@pytest.mark.parametrize("rule", ["fedda", "fedgp", "fedgp_filtered"])
def test_one_target_step_is_too_few_for_auto_beta_and_the_error_says_what_to_do(rule):
    with pytest.raises(ValueError, match=r"^target_batches: .*at least 2 steps.*smaller batches or more epochs"):
        auto_beta(TWO[:1], TWO, rule)


@pytest.mark.parametrize("bad", ["fedgp_auto", "FEDGP", "", None, 3])
def test_bad_rule_of_auto_beta_is_named_with_the_known_ones(bad):
    with pytest.raises(ValueError, match=r"^rule: must be one of fedda, fedgp, fedgp_filtered"):
        auto_beta(TWO, TWO, bad)


@pytest.mark.parametrize("bad", ["mean_field", "", None])
def test_bad_estimator_is_named_with_the_known_ones(bad):
    with pytest.raises(ValueError, match=r"^estimator: must be one of exact, mean-field"):
        auto_beta(TWO, TWO, "fedgp", estimator=bad)


@cases(BAD_VECTORS)
def test_bad_update_to_align_is_named(bad):
    with pytest.raises(ValueError, match=r"^update: "):
        align_update(bad, target_steps=2, source_steps=2, learning_rate_ratio=1.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, 1e200])
def test_bad_ratio_of_learning_rates_is_named(bad):
    with pytest.raises(ValueError, match=r"^learning_rate_ratio: "):
        align_update(ONE, target_steps=2, source_steps=2, learning_rate_ratio=bad)


@pytest.mark.parametrize("name", ["target_steps", "source_steps"])
@pytest.mark.parametrize("bad", [0, -1, 1.5, True, None])
def test_bad_number_of_steps_to_align_is_named(name, bad):
    arguments = {"target_steps": 2, "source_steps": 2, "learning_rate_ratio": 1.0} | {name: bad}

    with pytest.raises(ValueError, match=rf"^{name}: "):
        align_update(ONE, **arguments)


def test_errors_do_not_show_elements_of_an_update():
    secret = 123456.789

    with pytest.raises(ValueError, match=r"^target: ") as refused:
        fedgp([secret, np.nan], [[1.0, 2.0]], 0.5)

    assert "123456" not in str(refused.value)


BAD_SUMS = {
    "NaN in the sum": ("weighted_sum", {"weighted_sum": [np.nan, 1.0]}),
    "no samples": ("samples", {"samples": 0.0}),
    "negative samples": ("samples", {"samples": -2.0}),
    "kept above samples": ("kept", {"kept": 10.5}),
    "kept negative": ("kept", {"kept": -0.5}),
    "kept NaN": ("kept", {"kept": np.nan}),
    "no target update": ("target_update", {"target_update": None}),
    "target update of another length": ("target_update", {"target_update": [1.0]}),
    "fedavg without samples": ("target_samples", {"rule": Rule.FEDAVG}),
    "fedavg with negative samples": ("target_samples", {"rule": Rule.FEDAVG, "target_samples": -1}),
    "oracle": ("rule", {"rule": Rule.ORACLE}),
    "auto": ("rule", {"rule": Rule.AUTO}),
    "offline fine-tuning": ("rule", {"rule": Rule.FINETUNE_OFFLINE}),
    "target_only without update": ("target_update", {"rule": Rule.TARGET_ONLY, "target_update": None}),
    "target_only with NaN in the sum": ("weighted_sum", {"rule": Rule.TARGET_ONLY, "weighted_sum": [np.nan, 1.0]}),
}


@pytest.mark.parametrize(("name", "changes"), BAD_SUMS.values(), ids=BAD_SUMS)
def test_bad_sum_is_refused_by_name(name, changes):
    arguments = {
        "rule": Rule.FEDGP_AUTO,
        "weighted_sum": [1.0, 2.0],
        "kept": 4.0,
        "samples": 10.0,
        "target_update": [0.0, 1.0],
    } | changes

    with pytest.raises(ValueError, match=rf"^{name}: "):
        combine(**arguments)


@pytest.mark.parametrize("rule", [Rule.FEDGP, Rule.FEDDA_AUTO, Rule.FEDAVG, Rule.TARGET_ONLY])
def test_a_rule_without_the_target_update_that_it_needs_is_named(rule):
    with pytest.raises(ValueError, match=rf"^target_update: {rule} needs it$"):
        combine(rule=rule, weighted_sum=[1.0, 2.0], kept=4.0, samples=10.0, target_update=None)
