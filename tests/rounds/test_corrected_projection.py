"""Sources that take their own noise off what FedGP projects on: at sum alone, and with nothing else changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rounds_private import PrivateFederation, settings_with

from securefda.errors import ConfigError
from securefda.protocol.messages import Visibility
from securefda.samples import sample
from securefda.site.config import load_federation, training_settings
from securefda.training.training_settings import NoiseSettings

SOURCES = (1, 2, 3)


def play(folder: Path, *, corrected: bool, level: Visibility = Visibility.SUM) -> PrivateFederation:
    """A run whose sources train with the same noise each time."""
    training = settings_with(NoiseSettings(1.0, correct_projection=corrected))
    how = {"private": SOURCES, "training": training, "repeats": True, "visibility": level}
    return PrivateFederation(folder / str(corrected), 3, rule="fedgp_auto", rounds=1, **how).open().go()


def test_the_model_is_another_one_and_betas_and_charges_are_the_same(tmp_path: Path) -> None:
    plain, corrected = (play(tmp_path, corrected=which) for which in (False, True))

    assert plain.statuses == corrected.statuses == ["finished"]
    assert not np.array_equal(plain.run.model, corrected.run.model)
    for index in SOURCES:
        assert plain.watch.records[index][0]["beta"] == corrected.watch.records[index][0]["beta"]
        assert plain.charged(index) == corrected.charged(index) == [(1, 1)]


def test_where_the_aggregator_evaluates_the_rule_nothing_changes(tmp_path: Path) -> None:
    plain, corrected = (play(tmp_path, corrected=which, level=Visibility.INDIVIDUAL) for which in (False, True))

    assert plain.statuses == ["finished"]
    assert np.array_equal(plain.run.model, corrected.run.model)


def test_a_federations_file_says_it_of_its_sources() -> None:
    noisy = ["training.source.dp.noise-multiplier=1.5", "training.source.dp.correct-projection=true"]
    config = load_federation(sample("digits"), [*noisy, "training.source.optimizer=sgd"])
    settings = training_settings(config.training.source)
    assert settings.dp is not None
    assert settings.dp.correct_projection
    with pytest.raises(ConfigError, match=r"training\.dp\.correct-projection: needs optimizer"):
        training_settings(load_federation(sample("digits"), noisy).training.source)
