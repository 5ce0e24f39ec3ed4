"""Every bad argument of the functions on all updates, or on their sums, is refused with an error that names it."""

from __future__ import annotations

from functools import partial

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
BAD_CHOICES = [("projection", "diagonal"), ("projection", None), ("filter", "no")]
BAD_LAYERS = {"short": [3], "long": [4, 1], "zero": [4, 0], "negative": [5, -1], "half": [1.5, 2.5], "empty": []}


def aligned(update=ONE, target_steps=2, source_steps=2, learning_rate_ratio=1.0):
    return align_update(
        update, target_steps=target_steps, source_steps=source_steps, learning_rate_ratio=learning_rate_ratio
    )


NO_STEPS = [0, -1, 1.5, True, None]
BATCHES = {key: value for key, value in BAD_MATRICES.items() if key != "too many columns"}
BAD_CALLS = [
    *[(partial(rule, sources=TWO, beta=0.5), "target", bad) for rule in (fedda, fedgp) for bad in BAD_VECTORS.values()],
    *[(partial(rule, ONE, beta=0.5), "sources", bad) for rule in (fedda, fedgp) for bad in BAD_MATRICES.values()],
    *[(partial(rule, ONE, TWO), "beta", bad) for rule in (fedda, fedgp) for bad in BAD_BETAS.values()],
    *[(partial(rule, ONE, TWO, 0.5), "weights", bad) for rule in (fedda, fedgp) for bad in BAD_WEIGHTS.values()],
    *[(partial(fedgp, ONE, TWO, 0.5), "layers", bad) for bad in BAD_LAYERS.values()],
    *[(partial(project, ONE, ONE), "layers", bad) for bad in BAD_LAYERS.values()],
    *[(partial(fedgp, ONE, TWO, 0.5), name, bad) for name, bad in BAD_CHOICES],
    *[(partial(project, ONE, ONE), name, bad) for name, bad in BAD_CHOICES],
    *[(partial(project, ONE), "source", bad) for bad in BAD_VECTORS.values()],
    *[(partial(auto_beta, sources=TWO, rule="fedda"), "target_batches", bad) for bad in BATCHES.values()],
    *[(partial(auto_beta, TWO, rule="fedda"), "sources", bad) for bad in BAD_MATRICES.values()],
    *[(partial(auto_beta, TWO, TWO), "rule", bad) for bad in ("fedgp_auto", "FEDGP", "", None, 3)],
    *[(partial(auto_beta, TWO, TWO, "fedgp"), "estimator", bad) for bad in ("mean_field", "", None)],
    *[(aligned, "update", bad) for bad in BAD_VECTORS.values()],
    *[(aligned, "learning_rate_ratio", bad) for bad in (0.0, -1.0, np.nan, 1e200)],
    *[(aligned, name, bad) for name in ("target_steps", "source_steps") for bad in NO_STEPS],
]


@pytest.mark.parametrize(("call", "name", "bad"), BAD_CALLS)
def test_bad_argument_is_named(call, name, bad):
    with pytest.raises(ValueError, match=rf"^{name}: "):
        call(**{name: bad})


@pytest.mark.parametrize("rule", ["fedda", "fedgp", "fedgp_filtered"])
def test_one_target_step_is_too_few_for_auto_beta_and_the_error_says_what_to_do(rule):
    with pytest.raises(ValueError, match=r"^target_batches: .*at least 2 steps.*smaller batches or more epochs"):
        auto_beta(TWO[:1], TWO, rule)


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
