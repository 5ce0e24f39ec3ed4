"""Rows that have, had or may have a privacy ledger: nothing trains on them without noise, or on a false word."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rounds_federation import TARGET, roster_of, site_id
from run_settings import as_source
from source_stores import store_at

from securefda.aggregator.site import target_site
from securefda.aggregator.store import AggregatorStore
from securefda.bootstrap import Member, task_of, training_rows
from securefda.disk import locked
from securefda.errors import ConfigError
from securefda.privacy.ledger import Ledger
from securefda.privacy.ledger_storage import DataSet, LedgerError
from securefda.site.config import (
    AggregatorConfig,
    NoiseSection,
    ProcessSection,
    SourceConfig,
    TargetTrainingSection,
    TaskSection,
)
from securefda.site.config.sections import DEFAULT_DATA_SET
from securefda.site.policy import default_policy
from securefda.site.privacy_account import data_set_of, ledger_file, make_ledger
from securefda.site.private_trainer import PrivateTrainer
from securefda.source.source_site import source_site

DIGITS = TaskSection(factory="securefda.tasks.digits:Digits")
NOISY = TargetTrainingSection(dp=NoiseSection(noise_multiplier=1.0))
KEY = Ed25519PrivateKey.generate()


def made(kit: Path, index: int, training: TargetTrainingSection, data_set: str = DEFAULT_DATA_SET) -> Any:
    """A site of a federation as its process makes it."""
    member = Member(roster_of(3), site_id(index), KEY)
    process = ProcessSection(kit=kit, out=kit, data_set=data_set)
    if index == TARGET:
        config = AggregatorConfig(aggregator=process, task=DIGITS, training=training)
        with closing(AggregatorStore(kit / "state.sqlite")) as store:
            return target_site(config, member, lambda: ({}, {}), store, secret=None)
    source = SourceConfig(source=process, task=DIGITS, training=as_source(training))
    with closing(store_at(kit / "state.sqlite")) as store:
        return source_site(source, default_policy(max_samples=1000), member, store, secret=None)


@pytest.mark.parametrize("index", [TARGET, 1], ids=["target", "source"])
def test_rows_that_have_a_ledger_are_not_trained_on_without_noise(tmp_path: Path, index: int) -> None:
    file = ledger_file(tmp_path, DEFAULT_DATA_SET)
    file.parent.mkdir(parents=True)
    rows = training_rows(task_of(DIGITS, roster_of(3), 0), site_id(index))
    Ledger.create(file, data_set_of(site_id(index), DEFAULT_DATA_SET, rows), now=0)
    before = file.read_bytes()
    assert isinstance(made(tmp_path, index, NOISY).trainer, PrivateTrainer)

    with pytest.raises(ConfigError, match="training without noise would falsify") as refusal:
        made(tmp_path, index, TargetTrainingSection())

    assert refusal.value.key == "training.dp.noise-multiplier"
    assert refusal.value.hint
    assert file.read_bytes() == before
    assert not isinstance(made(tmp_path / "other", index, TargetTrainingSection()).trainer, PrivateTrainer)


def rows_of_source(name: str = DEFAULT_DATA_SET) -> DataSet:
    """Source 1's rows as a ledger knows them."""
    return data_set_of(site_id(1), name, training_rows(task_of(DIGITS, roster_of(3), 0), site_id(1)))


def ledger_at(kit: Path, name: str = DEFAULT_DATA_SET) -> Ledger:
    """The ledger of source 1's rows in a kit, with one row."""
    return make_ledger(ledger_file(kit, name), rows_of_source(name), now=0)


def names_in(kit: Path) -> list[str]:
    return sorted(path.name for path in ledger_file(kit, DEFAULT_DATA_SET).parent.iterdir())


def test_rows_whose_ledger_was_deleted_are_not_trained_on_without_noise(tmp_path: Path) -> None:
    ledger_at(tmp_path)
    ledger_file(tmp_path, DEFAULT_DATA_SET).unlink()
    before = names_in(tmp_path)

    with pytest.raises(ConfigError, match=r"training-rows\.sqlite\), which was deleted after 1 row,") as refusal:
        made(tmp_path, 1, TargetTrainingSection())

    assert refusal.value.key == "training.dp.noise-multiplier"
    assert "newest ledger put back" in (refusal.value.hint or "")
    assert names_in(tmp_path) == before


def test_rows_that_have_a_ledger_under_another_name_are_not_trained_on_without_noise(tmp_path: Path) -> None:
    ledger_at(tmp_path)
    before = names_in(tmp_path)

    with pytest.raises(ConfigError, match=r"under the name training-rows a privacy ledger \(.*sqlite\)") as refusal:
        made(tmp_path, 1, TargetTrainingSection(), data_set="other")

    assert refusal.value.key == "training.dp.noise-multiplier"
    assert "training-rows" in (refusal.value.hint or "")
    assert "own name" not in (refusal.value.hint or "")
    assert names_in(tmp_path) == before


@pytest.mark.parametrize("damage", ["deleted", "no database"])
def test_a_ledger_beside_it_that_says_nothing_may_be_of_the_rows_that_are_to_be_trained_on_without_noise(
    tmp_path: Path, damage: str
) -> None:
    ledger_at(tmp_path)
    file = ledger_file(tmp_path, DEFAULT_DATA_SET)
    file.unlink() if damage == "deleted" else file.write_bytes(b"hello")

    with pytest.raises(LedgerError, match=r"training-rows\.sqlite beside it may be of the same rows") as refusal:
        made(tmp_path, 1, TargetTrainingSection(), data_set="other")

    assert refusal.value.exit_code == 11


def test_rows_without_a_ledger_are_trained_on_beside_the_ledger_of_others(tmp_path: Path) -> None:
    other = training_rows(task_of(DIGITS, roster_of(3), 0), site_id(2))
    make_ledger(ledger_file(tmp_path, "other"), data_set_of(site_id(1), "other", other), now=0)

    trainer = made(tmp_path, 1, TargetTrainingSection()).trainer

    assert trainer.train(trainer.initial_model(), 1, 1.0).epsilon is None


@pytest.mark.parametrize("name", [DEFAULT_DATA_SET, "other"])
def test_ledger_that_is_made_while_a_run_without_noise_goes_on_ends_it_before_its_next_round(
    tmp_path: Path, name: str
) -> None:
    trainer = made(tmp_path, 1, TargetTrainingSection()).trainer
    model = trainer.initial_model()
    trainer.train(model, 1, 1.0)
    ledger_at(tmp_path, name)

    with pytest.raises(ConfigError, match="training without noise would falsify"):
        trainer.train(model, 2, 1.0)


@pytest.mark.parametrize("data_set", [DEFAULT_DATA_SET, "other"])
def test_rows_that_have_two_ledgers_are_not_trained_on_with_noise_under_either_name(
    tmp_path: Path, data_set: str
) -> None:
    ledger_at(tmp_path)
    Ledger.create(ledger_file(tmp_path, "other"), rows_of_source("other"), now=0)

    with pytest.raises(ConfigError, match="two ledgers would count them apart") as refusal:
        made(tmp_path, 1, NOISY, data_set=data_set)

    assert refusal.value.key == "data-set"
    assert refusal.value.hint is not None
    assert "move the ledger without charges" in refusal.value.hint


def test_of_two_ledgers_that_are_made_at_once_the_second_is_refused(tmp_path: Path) -> None:
    folder, refusals = ledger_file(tmp_path, "other").parent, []

    def make_the_other() -> None:
        try:
            ledger_at(tmp_path, "other")
        except ConfigError as error:
            refusals.append(str(error))

    folder.mkdir(parents=True)
    second = threading.Thread(target=make_the_other)
    with locked(folder):  # as the first holds it while it looks for others and makes its own
        second.start()
        second.join(0.2)
        assert not ledger_file(tmp_path, "other").exists()
        Ledger.create(ledger_file(tmp_path, DEFAULT_DATA_SET), rows_of_source(), now=0)
    second.join()

    assert len(refusals) == 1
    assert "other is another name for the rows of training-rows" in refusals[0]
    assert not ledger_file(tmp_path, "other").exists()


def test_reset_that_the_site_did_not_sign_gives_a_process_that_runs_nothing_back(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path)
    site = made(tmp_path, 1, NOISY)
    site.witness.journal.begin("run")
    trainer = site.trainer
    model = trainer.initial_model()
    trainer.train(model, 1, 1.0, run_id="run", attempt=1)
    ledger.reset("never mind", lambda _: b"nobody's", now=int(time.time()))
    rows = ledger.rows()

    with pytest.raises(LedgerError, match=r"row 4 \(reset\) is not signed with this site's key"):
        trainer.train(model, 2, 1.0, run_id="run", attempt=1)

    assert ledger.rows() == rows
