"""Whole federations in memory, with the real tasks: levels agree, seeds repeat, lost messages cost what they must."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from depth import at_depth
from safetensors.numpy import load_file

from securefda.errors import ExitCode, QuorumLost
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.records import Summary
from securefda.operations.run_folder import read_run
from securefda.protocol.messages import (
    Advertise,
    Body,
    Checkpoint,
    Header,
    MaskedInput,
    ShareBundle,
    Signed,
    SurvivorSignature,
    Unmask,
)
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import TaskSettings, load_task
from securefda.training import TrainingSettings
from securefda.training.trainer import SiteTrainer

ROUNDS = at_depth(2, 10)
SEED = 3
MESSAGES = (Advertise, ShareBundle, MaskedInput, SurvivorSignature, Unmask)
ALONE = "strategy.compare-target-only=false"
SHORT = ("strategy.rounds=2", "strategy.warm-up-rounds=1", ALONE)


def federation(name: str, *overrides: str) -> Any:
    return load_federation(sample(name), ["training.target.device=cpu", "training.source.device=cpu", *overrides])


def play(folder: Path, name: str, *overrides: str, seed: int = SEED, **options: Any) -> Summary:
    return simulate(federation(name, *overrides), folder, seed, SilentReporter(), **options)


def parameters(folder: Path) -> np.ndarray:
    """The model that a run left, as one vector."""
    return np.concatenate([layer.ravel() for _, layer in sorted(load_file(folder / "model.safetensors").items())])


def predictions(folder: Path, name: str, *overrides: str) -> np.ndarray:
    """What the model that a run left says of each test row of the target."""
    config = federation(name, *overrides)
    task = load_task(
        config.task.factory,
        TaskSettings(
            config.federation.target, config.federation.sources, SEED, config.task.data_dir, config.task.options
        ),
    )
    data = task.test_data(config.federation.target)
    trainer = SiteTrainer(task, config.federation.target, data, TrainingSettings(), SEED)
    layers = load_file(folder / "model.safetensors")
    trainer.evaluate(np.concatenate([layers[layer].ravel() for layer, _ in trainer.layers]), data)
    outputs = trainer.module(data.features).detach().numpy()
    return outputs.argmax(axis=1) if outputs.ndim == 2 and outputs.shape[1] > 1 else outputs.ravel() > 0


def assert_levels_agree(folder: Path, name: str, rule: str, *overrides: str) -> None:
    """The two levels give one model to the last bit: optimizers such as Adam would make a lot of any difference.

    Without the norm cap, whose caps there are at sum alone.
    """
    rounds = (f"strategy.rounds={ROUNDS}", f"strategy.warm-up-rounds={at_depth(1, 4)}", ALONE)
    given = (f"strategy.rule={rule}", *rounds, "privacy.norm-cap-kappa=0", *overrides)
    for level in ("sum", "individual"):
        summary = play(folder / level, name, *given, f"privacy.visibility={level}")
        assert (summary.rounds, summary.rounds_lost) == (ROUNDS, 0)
        rules = [line["rule"] for line in read_run(folder / level).rounds]
        assert rules.count(rule) >= ROUNDS // 2
    assert np.array_equal(parameters(folder / "sum"), parameters(folder / "individual"))
    assert np.array_equal(
        predictions(folder / "sum", name, *overrides), predictions(folder / "individual", name, *overrides)
    )


@pytest.mark.parametrize("rule", ["fedgp_auto", "fedda_auto"])
def test_masked_digits_give_the_model_that_updates_in_clear_give(tmp_path: Path, rule: str) -> None:
    assert_levels_agree(tmp_path, "digits", rule)


@pytest.mark.parametrize("rule", ["fedgp_auto", "fedda_auto"])
def test_masked_hearts_give_the_model_that_updates_in_clear_give(tmp_path: Path, rule: str) -> None:
    assert_levels_agree(tmp_path, "fed_heart", rule)


@pytest.mark.parametrize("level", ["sum", "individual"])
def test_one_seed_gives_one_model_bit_by_bit(tmp_path: Path, level: str) -> None:
    given = (*SHORT, f"privacy.visibility={level}")
    once, twice = (play(tmp_path / name, "digits", *given) for name in ("once", "twice"))
    assert once.model_digest == twice.model_digest
    assert parameters(tmp_path / "once").tobytes() == parameters(tmp_path / "twice").tobytes()
    assert play(tmp_path / "other", "digits", *given, seed=SEED + 1).model_digest != once.model_digest


class Falls:
    """Delivers everything but what one source sends from a certain message of round 1 on, until it is over."""

    def __init__(self, index: int, kind: type) -> None:
        self.index, self.kind, self.round, self.silent = index, kind, 0, False

    def __call__(self, sender: int, to: int, message: Signed[Body]) -> bool:
        if isinstance(message.body, Header) and to == self.index:
            self.round = message.body.round
        if isinstance(message.body, Checkpoint) and to == self.index:  # between rounds
            self.silent = False
        if sender == self.index and isinstance(message.body, self.kind) and self.round == 1:
            self.silent = True
        return not (self.silent and self.index in (sender, to))


@pytest.mark.parametrize("kind", MESSAGES)
def test_five_sources_lose_one_at_any_phase_and_the_round_ends_without_it(tmp_path: Path, kind: type) -> None:
    summary = play(tmp_path, "digits", *SHORT, delivers=Falls(2, kind))
    first, second = read_run(tmp_path).rounds
    in_the_sum = kind in (SurvivorSignature, Unmask)
    assert ("source-2" in first["survivors"]) == in_the_sum
    assert len(first["survivors"]) == (5 if in_the_sum else 4)
    assert first["attempts"] == 1
    assert len(second["survivors"]) == 5
    assert (summary.rounds, summary.rounds_lost) == (2, 0)
    assert summary.dropped == ({} if in_the_sum else {"source-2": 1})


def test_a_lost_source_leaves_the_sum_over_the_others(tmp_path: Path) -> None:
    """Masked with one dropped in R2 equals the same four in clear: the dropped one's masks are gone entirely."""
    given = (
        "strategy.rounds=1",
        "strategy.warm-up-rounds=0",
        ALONE,
        "strategy.rule=fedda_auto",
        "privacy.norm-cap-kappa=0",
    )
    play(tmp_path / "sum", "digits", *given, delivers=Falls(2, MaskedInput))
    without = lambda sender, to, message: 2 not in (sender, to) or sender == 0  # noqa: E731
    play(tmp_path / "clear", "digits", *given, "privacy.visibility=individual", delivers=without)
    assert read_run(tmp_path / "clear").rounds[0]["survivors"] == read_run(tmp_path / "sum").rounds[0]["survivors"]
    assert np.array_equal(parameters(tmp_path / "sum"), parameters(tmp_path / "clear"))


def absent(gone: int, sender: int, to: int, _message: Signed[Body]) -> bool:
    return gone not in (sender, to)


THREE = ("privacy.max-colluders=0", 'federation.sources=["source-1", "source-2", "source-3"]')


def test_three_sources_are_enough_to_run(tmp_path: Path) -> None:
    summary = play(tmp_path, "digits", *THREE, *SHORT)
    assert (summary.status, summary.rounds) == ("finished", 2)
    assert all(line["survivors"] == ["source-1", "source-2", "source-3"] for line in read_run(tmp_path).rounds)


def test_two_of_three_sources_are_quorum_lost_with_the_name_of_the_third(tmp_path: Path) -> None:
    with pytest.raises(QuorumLost, match="2 of at least 3 sources; missing: source-3") as caught:
        play(tmp_path, "digits", *THREE, *SHORT, delivers=partial(absent, 3))
    assert caught.value.exit_code is ExitCode.QUORUM
    assert caught.value.missing == ("source-3",)
    summary = read_run(tmp_path).summary
    assert summary is not None
    assert (summary["status"], summary["error"]["code"]) == ("failed", "QuorumLost")


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_source_that_never_answers_a_phase_is_named_when_the_run_ends(tmp_path: Path, kind: type) -> None:
    def delivers(sender: int, to: int, message: Signed[Body]) -> bool:
        return not (sender == 3 and isinstance(message.body, kind))

    with pytest.raises(QuorumLost, match=r"missing: source-3 \(no answer in time\)$"):
        play(tmp_path, "digits", *THREE, "strategy.rounds=5", *SHORT[1:], delivers=delivers)
    assert [line["status"] for line in read_run(tmp_path).rounds] == ["lost"] * 3


def test_observed_bytes_of_a_masked_run_are_near_those_of_a_run_in_clear(tmp_path: Path) -> None:
    """Masks cost no bytes: 4 per parameter up, plus the messages of the session, with 1.2 kB for each other source."""
    masked = play(tmp_path / "sum", "digits", *SHORT)
    clear = play(tmp_path / "clear", "digits", *SHORT, "privacy.visibility=individual")
    for site, count in masked.bytes_up.items():
        assert count < clear.bytes_up[site] + 2 * 9_000


def test_a_simulated_run_serves_each_source_as_its_policy_permits_and_gives_the_model_of_all_in_clear(
    tmp_path: Path,
) -> None:
    sites = 'privacy.site-visibility={source-3="sum", source-4="sum", source-5="sum"}'
    given = (*SHORT, "privacy.max-colluders=0", "privacy.norm-cap-kappa=0", "privacy.visibility=individual")
    summary = play(tmp_path / "mixed", "digits", *given, sites)
    play(tmp_path / "clear", "digits", *given)
    assert (summary.rounds, summary.rounds_lost) == (2, 0)
    levels = [line["levels"] for line in read_run(tmp_path / "mixed").rounds]
    assert (
        levels
        == [
            {f"source-{index}": "sum" if index >= 3 else "individual" for index in range(1, 6)},
        ]
        * 2
    )
    mixed, clear = parameters(tmp_path / "mixed"), parameters(tmp_path / "clear")
    assert np.allclose(mixed, clear, rtol=0, atol=1e-4)  # Adam divides by small steps, and makes more of the last bit
    assert np.array_equal(predictions(tmp_path / "mixed", "digits"), predictions(tmp_path / "clear", "digits"))
