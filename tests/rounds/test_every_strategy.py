"""What holds of every strategy: masks change no model, and a run whose processes were killed ends as one left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import Federation, is_header, kept_out
from rounds_pseudo import PseudoFederation

from securefda.protocol.messages import Advertise, DownLink, Result, SourcesKeep, Visibility
from securefda.training.memory import state_keys

ROUNDS = 3
AFTER_ONE = {"warm_up_rounds": 1}
ATTENTION = {"norm": "batch", "attention_temperature": 0.002} | AFTER_ONE
CASES: dict[str, dict[str, Any]] = {
    "batch norm": {"rule": "fedgp_auto", "norm": "batch"},
    "fedda": {"rule": "fedda", "beta": 0.3},
    "fedgp": {"rule": "fedgp", "beta": 0.3},
    "fedda_auto": {"rule": "fedda_auto"},
    "fedgp_auto": {"rule": "fedgp_auto"},
    "auto": {"rule": "auto"},
    "f_dann": {"rule": "f_dann"} | ATTENTION,
    "f_dan": {"rule": "f_dan"} | ATTENTION,
    "fada_adversarial": {"rule": "fada_adversarial"} | ATTENTION,
    "fada": {"rule": "fada"} | ATTENTION | {"norm": "parts"},
    "fada_attention": {"rule": "fada_attention"} | ATTENTION,
    "analytic": {"rule": "analytic", "rounds": 1},
    "fedda_auto, a beta per layer": {"rule": "fedda_auto", "beta_per_layer": True},
    "fedgp_auto, a beta per layer": {"rule": "fedgp_auto", "beta_per_layer": True},
    "auto, a beta per layer": {"rule": "auto", "beta_per_layer": True},
    "fedda_auto, one point": {"rule": "fedda_auto", "variance": "fixed-point"},
    "fedgp_auto, halves": {"rule": "fedgp_auto", "variance": "cross-fitted"},
    "auto, halves": {"rule": "auto", "variance": "cross-fitted"},
    "a validated step": {"rule": "fedgp_auto", "step": "validated", "validation": kept_out(0, 1, 2)},
    "three folds": {"rule": "fedgp_auto", "folds": 3},
    "six folds": {"rule": "auto", "folds": 6},
    "narrow words": {"rule": "source_only", "settings": {"bits": 20}},
    "bfloat16": {"rule": "fedgp_auto", "settings": {"bits": 20, "down_link": DownLink.BFLOAT16}},
    "float16": {"rule": "fedavg", "settings": {"bits": 20, "down_link": DownLink.FLOAT16}},
    "fedavg": {"rule": "fedavg"},
    "momentum": {"rule": "fedavg", "server_optimizer": "momentum", "server_momentum": 0.5},
    "adam": {"rule": "source_only", "server_optimizer": "adam", "server_learning_rate": 0.02},
    "momentum, then adam": {"rule": "personalized_fedavg", "reptile_rounds": 1, "server_momentum": 0.5},
    "ditto": {"rule": "ditto", "ditto_lambda": 0.5, "personal_epochs": 2},
    "apfl": {"rule": "apfl", "apfl_adaptive": True},
    "knn_per": {"rule": "knn_per", "knn_neighbours": 3},
    "fedrep": {"rule": "fedrep"},
}
MEANS = list(CASES)[list(CASES).index("fedavg") :]
"""A mean of encoded updates is as coarse as they are; what a rule makes of updates is rounded alike everywhere."""

OTHERWISE = {name: name.split(",")[0] for name in CASES if ", " in name} | {"momentum": "fedavg", "adam": "fedavg"}
OTHERWISE["momentum, then adam"] = "fedavg"
"""What a case would be without what it is named for; its model is another one."""


def begun(folder: Path, case: str, level: Visibility = Visibility.SUM) -> Federation:
    options = {"rounds": ROUNDS} | CASES[case]
    settings = {"kappa": 0.0, "sources_keep": SourcesKeep.FINAL} | options.pop("settings", {})
    return Federation(folder, visibility=level, settings=settings, **options).open()


def played(folder: Path, case: str, level: Visibility = Visibility.SUM) -> Federation:
    found = begun(folder, case, level).go()
    assert set(found.statuses) == {"finished"}
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_masked_sum_and_updates_in_clear_give_the_same_model(tmp_path: Path, case: str) -> None:
    masked, clear = (played(tmp_path / at.label, case, at) for at in (Visibility.SUM, Visibility.INDIVIDUAL))

    assert np.max(np.abs(masked.run.model - clear.run.model)) <= (1e-5 if case in MEANS else 0)
    for one, other in zip(masked.watch.lines, clear.watch.lines, strict=True):
        for key in ("rule", "gap", "step_share", "chosen"):
            assert one.get(key) == other.get(key)
        for key in ("mean_beta", "fold_losses", "loss"):
            assert key not in one or one[key] == other[key] or one[key] == pytest.approx(other[key], rel=1e-4, abs=1e-6)
    if case in OTHERWISE:
        otherwise = played(tmp_path / "otherwise", OTHERWISE[case])
        assert np.max(np.abs(masked.run.model - otherwise.run.model)) > 1e-5


LINES = ("rule", "accuracy", "loss", "mean_beta", "gap", "step_share", "fold_losses", "chosen", "delta_errors")


def left_by(federation: Federation) -> dict[str, Any]:
    """All that a run comes to: models, what was measured, what its headers said, and what sites keep to themselves."""
    stores = [federation.store, *(federation.stores[index] for index in sorted(federation.stores))]
    headers = [message.body for *_, message in federation.passed if is_header(message)]
    return {
        "models": [model.tobytes() for model in (federation.run.model, federation.store.result_model())],
        "lines": [[line.get(key) for key in LINES] for line in federation.store.records()],
        "headers": {(one.round, one.modulus_bits, one.layers, one.model_digest) for one in headers},
        "own": [
            store.personal(place, number)
            for store in stores
            for place in state_keys(federation.run.run_id)
            for number in (ROUNDS, ROUNDS + 1)
        ],
    }


@pytest.mark.parametrize("kind", [Advertise, Result])
@pytest.mark.parametrize("case", [case for case in CASES if case != "analytic"])
def test_a_run_whose_processes_were_killed_ends_as_one_that_was_not(tmp_path: Path, case: str, kind: type) -> None:
    whole = played(tmp_path / "whole", case)
    killed = begun(tmp_path / "killed", case).kill_aggregator_at(kind, 2)
    for index in killed.sources:
        killed.sources[index] = killed.source(index)
    killed.restart_aggregator().go()

    assert killed.statuses == ["finished"] * ROUNDS
    assert left_by(killed) == left_by(whole)


@pytest.mark.parametrize("threshold", [0.4, 0.9999999])
def test_a_killed_target_makes_the_same_labels_again(tmp_path: Path, threshold: float) -> None:
    how = {"rounds": ROUNDS, "threshold": threshold} | AFTER_ONE
    whole = PseudoFederation(tmp_path / "whole", **how).open().go()
    killed = PseudoFederation(tmp_path / "killed", **how).open().kill_aggregator_at(Advertise, 2)
    killed.restart_aggregator().go()
    assert left_by(killed) == left_by(whole)


def test_a_killed_target_fits_the_same_head_of_moments(tmp_path: Path) -> None:
    whole = played(tmp_path / "whole", "analytic")
    killed = begun(tmp_path / "killed", "analytic").kill_aggregator_at(Advertise, 1).restart_aggregator().go()
    assert killed.statuses == ["finished"]
    assert np.array_equal(killed.run.model, whole.run.model)
