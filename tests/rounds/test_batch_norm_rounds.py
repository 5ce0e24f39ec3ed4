"""BatchNorm in rounds: its parameters are in the sum, its running statistics at their sites, across every restart."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import SEED, TARGET, Federation, rows_of, task_of, trainer_of, until

from securefda.protocol.messages import Header, SourcesKeep, Update, Visibility
from securefda.training import build_model, evaluate, vector_to_model
from securefda.training.batch_norm import bytes_to_statistics, estimate_statistics, running_statistics
from securefda.training.memory import statistics_key

ROUNDS = 3
PARAMETERS = 4 + 4 + 12 + 3
"""Weight and bias of the BatchNorm, and of the linear layer."""

Left = tuple[Any, ...]
Undisturbed = Callable[[], "tuple[Federation, Left]"]


def begun(folder: Path, keep: SourcesKeep = SourcesKeep.FINAL, **options: Any) -> Federation:
    return Federation(folder, rounds=ROUNDS, norm="batch", settings={"sources_keep": keep}, **options).open()


def kept_by(federation: Federation) -> list[list[bytes | None]]:
    """The statistics that each site keeps of the last two rounds, the target's first."""
    place = statistics_key(federation.run.run_id)
    stores = [federation.store, *(federation.stores[index] for index in sorted(federation.stores))]
    return [[store.personal(place, number) for number in (ROUNDS, ROUNDS + 1)] for store in stores]


def left_by(federation: Federation) -> Left:
    measured = [(line["accuracy"], line["loss"]) for line in federation.store.records()]
    return federation.run.model.tobytes(), measured, kept_by(federation)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A run at ``sum`` in which nothing happens, closed, and what it left."""

    @cache
    def play() -> tuple[Federation, Left]:
        federation = begun(tmp_path_factory.mktemp("undisturbed")).go()
        assert federation.statuses == ["finished"] * ROUNDS
        left = left_by(federation)
        return federation, left

    return play


def test_weight_and_bias_are_layers_of_the_model_and_statistics_are_not(undisturbed: Undisturbed) -> None:
    federation = undisturbed()[0]
    assert [name for name, _ in federation.run.layers] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    headers = [message.body for *_, message in federation.passed if isinstance(message.body, Header)]
    assert {header.n_params for header in headers} == {PARAMETERS}
    assert federation.run.model.size == PARAMETERS
    first = trainer_of(3, TARGET, norm="batch").initial_model()
    assert (federation.run.model[:8] != first[:8]).all()


def test_in_clear_an_update_holds_parameters_alone(tmp_path: Path) -> None:
    federation = begun(tmp_path, visibility=Visibility.INDIVIDUAL)
    update = until(federation, TARGET, Update)
    assert [len(vector) for vector in update.vectors] == [4 * PARAMETERS]
    kept = federation.stores[update.message.sender].personal(statistics_key(federation.run.run_id), 2)
    assert kept is not None
    assert not any(part in bytes(update.vectors[0]) for part in (kept[:16], kept[16:32]))


def test_every_site_keeps_statistics_of_its_own_rows(undisturbed: Undisturbed) -> None:
    kept = undisturbed()[1][2]
    assert len({state for pair in kept for state in pair}) == 2 * 4
    for number, (_, last) in enumerate(kept):
        model = build_model(task_of(3, norm="batch"), 0)
        bytes_to_statistics(last, model)
        site = "target" if number == TARGET else f"source-{number}"
        mean = task_of(3).train_data(site).features.mean(dim=0).numpy()
        found = running_statistics(model)["0.running_mean"].numpy()
        assert np.linalg.norm(found - mean) < 0.5 * np.linalg.norm(mean)  # on its way there from 0


def test_the_target_is_measured_with_moments_of_its_own_training_rows(undisturbed: Undisturbed) -> None:
    federation, task = undisturbed()[0], task_of(3, norm="batch")
    model = build_model(task, SEED)
    vector_to_model(federation.run.model, model)
    test_data = federation.run._site.test_data
    with_initial = evaluate(task, model, test_data)
    estimate_statistics(task, model, task.train_data("target"))
    measured = federation.watch.lines[-1]
    assert measured["loss"] == evaluate(task, model, test_data).loss
    assert measured["loss"] != with_initial.loss


def test_a_source_that_keeps_nothing_of_the_model_forgets_its_statistics(tmp_path: Path) -> None:
    federation = begun(tmp_path, SourcesKeep.NONE).go()
    of_target, *of_sources = kept_by(federation)
    assert None not in of_target
    assert of_sources == [[None, None]] * 3


def test_a_source_that_keeps_the_model_gets_its_parameters_alone(undisturbed: Undisturbed) -> None:
    kept = undisturbed()[0].kept
    assert {model.size for model, *_ in kept.values()} == {PARAMETERS}
    assert len(kept) == 3


def test_a_personal_strategy_measures_its_model_with_the_targets_rows(tmp_path: Path) -> None:
    federation = begun(tmp_path, rule="ditto", personal_epochs=2, ditto_lambda=0.5)
    federation.go()
    own = rows_of(3, "batch")
    state = federation.store.personal(federation.run.run_id, ROUNDS + 1)
    assert state is not None
    expected = own.evaluate(np.frombuffer(state, "<f4"), federation.run._site.test_data)
    assert federation.watch.lines[-1]["loss"] == expected.loss
