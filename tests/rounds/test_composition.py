"""What a site's own settings and policy must agree on before any header is seen."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rounds_federation import Federation, roster_of
from source_stores import store_at

from securefda.aggregator.site import run_settings
from securefda.bootstrap import Member, task_of, training_rows
from securefda.errors import ConfigError
from securefda.privacy.ledger import Ledger
from securefda.site.config import (
    AggregatorConfig,
    NoiseSection,
    ProcessSection,
    SourceConfig,
    SourceTrainingSection,
    TargetTrainingSection,
    TaskSection,
)
from securefda.site.config.sections import DEFAULT_DATA_SET
from securefda.site.policy import default_policy
from securefda.site.policy.schema import ReleaseLimits
from securefda.site.privacy_account import data_set_of, ledger_file
from securefda.source.source_site import source_site
from securefda.training import choose_device

DIGITS = TaskSection(factory="securefda.tasks.digits:Digits")


def member_of(federation: Federation) -> Member:
    return Member(federation.roster, federation.roster.sources[0].site_id, Ed25519PrivateKey.generate())


def make_ledger(kit: Path, federation: Federation) -> None:
    """The ledger of the first source's rows, in its kit."""
    site, file = federation.roster.sources[0].site_id, ledger_file(kit, DEFAULT_DATA_SET)
    file.parent.mkdir(parents=True)
    rows = training_rows(task_of(DIGITS, federation.roster, 0), site)
    Ledger.create(file, data_set_of(site, DEFAULT_DATA_SET, rows), now=0)


def test_a_policy_that_a_header_could_use_to_count_rows_is_refused_at_the_start(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    config = SourceConfig(source=ProcessSection(kit=tmp_path, out=tmp_path), task=DIGITS)
    store = store_at(tmp_path / "state.sqlite")
    with pytest.raises(ConfigError, match="below its") as caught:
        source_site(config, default_policy(max_samples=10), member_of(federation), store, secret=None)
    assert caught.value.key == "quantisation.max-samples-min"
    assert "--set session.max-samples=1000" in caught.value.hint
    site = source_site(config, default_policy(max_samples=1000), member_of(federation), store, secret=None)
    assert 10 < site.trainer.samples <= 1000
    store.close()


def test_a_source_keeps_back_what_fewer_rows_moved_than_its_policy_asks_for(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    config = SourceConfig(source=ProcessSection(kit=tmp_path, out=tmp_path), task=DIGITS)
    permits = default_policy(max_samples=1000)
    kept = {}
    with closing(store_at(tmp_path / "state.sqlite")) as store:
        for least in (1, 3):
            limits = {"release": ReleaseLimits(min_rows=least), "allowed_rules": ("fedgp",)}
            policy = permits.model_copy(update=limits)
            trainer = source_site(config, policy, member_of(federation), store, secret=None).trainer
            kept[least] = trainer.train(trainer.initial_model(), 1, 1.0).update == 0
    assert kept[1].sum() < kept[3].sum() < kept[3].size / 2  # pixels that one or two pictures have


@pytest.mark.parametrize(("noise", "handed_in"), [(0.0, True), (1.0, False)])
def test_a_site_that_trains_by_dp_sgd_hands_in_no_loss_and_no_accuracy(
    tmp_path: Path, noise: float, handed_in: bool
) -> None:
    federation = Federation(tmp_path)
    training = SourceTrainingSection(dp=NoiseSection(noise_multiplier=noise))
    config = SourceConfig(source=ProcessSection(kit=tmp_path, out=tmp_path), task=DIGITS, training=training)
    if noise:
        make_ledger(tmp_path, federation)
    with closing(store_at(tmp_path / "state.sqlite")) as store:
        site = source_site(config, default_policy(max_samples=1000), member_of(federation), store, secret=None)
        assert site.with_noise is not handed_in


def test_a_device_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    missing = next((name for name in ("mps", "cuda") if not _is_there(name)), None)
    if missing is None:
        pytest.skip("this machine has every device")
    federation = Federation(tmp_path)
    training = SourceTrainingSection(device=missing)  # type: ignore[arg-type]
    config = SourceConfig(source=ProcessSection(kit=tmp_path, out=tmp_path), task=DIGITS, training=training)
    with (
        closing(store_at(tmp_path / "state.sqlite")) as store,
        pytest.raises(ConfigError, match=f"no usable {missing}"),
    ):
        source_site(config, default_policy(max_samples=1000), member_of(federation), store, secret=None)


@pytest.mark.parametrize(("threads", "said"), [(1, "cpu (1 thread)"), (3, "cpu (3 threads)")])
def test_a_site_says_on_how_many_threads_it_trains(tmp_path: Path, threads: int, said: str) -> None:
    federation = Federation(tmp_path)
    training = SourceTrainingSection(device="cpu", threads=threads)
    config = SourceConfig(source=ProcessSection(kit=tmp_path, out=tmp_path), task=DIGITS, training=training)
    with closing(store_at(tmp_path / "state.sqlite")) as store:
        site = source_site(config, default_policy(max_samples=1000), member_of(federation), store, secret=None)
        assert site.trains_on == said


@pytest.mark.parametrize(
    ("changes", "same"), [({"threads": 4}, True), ({"batch_size": 4}, False), ({"learning_rate": 0.5}, False)]
)
def test_a_run_is_resumed_with_other_threads_and_with_nothing_else_of_training(
    tmp_path: Path, changes: dict[str, Any], same: bool
) -> None:
    roster = roster_of(3)

    def digest_with(training: TargetTrainingSection) -> bytes:
        process = ProcessSection(kit=tmp_path, out=tmp_path)
        return run_settings(AggregatorConfig(aggregator=process, task=DIGITS, training=training), roster).config_digest

    assert (digest_with(TargetTrainingSection()) == digest_with(TargetTrainingSection(**changes))) == same


def test_a_run_is_resumed_whatever_the_order_of_its_task_s_options(tmp_path: Path) -> None:
    process, roster, options = ProcessSection(kit=tmp_path, out=tmp_path), roster_of(3), {"shift": 0.5, "noise": 0.1}

    def digest_with(options: dict[str, float]) -> bytes:
        task = TaskSection(factory="securefda.tasks.rbf:RadialBasis", options=options)
        return run_settings(AggregatorConfig(aggregator=process, task=task), roster).config_digest

    assert digest_with(options) == digest_with(dict(reversed(options.items()))) != digest_with(options | {"noise": 0.2})


def _is_there(device: str) -> bool:
    try:
        return choose_device(device).type == device
    except ConfigError:
        return False
