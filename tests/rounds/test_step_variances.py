"""sigma^2 of the target's update from one point or from halves of its rows, in rounds: one number in a header."""

from __future__ import annotations

from pathlib import Path

import pytest
from rounds_federation import TARGET, Federation, is_header, trainer_of

from securefda.errors import ConfigError, TrainingError
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.run_folder import read_run
from securefda.protocol.messages import Header, Visibility
from securefda.rules import Variance
from securefda.samples import sample
from securefda.site.config import load_federation

OTHERS = [Variance.FIXED_POINT, Variance.CROSS_FITTED]
NO_CAPS = {"kappa": 0.0}


def play(folder: Path, *, level: Visibility = Visibility.SUM, **strategy: object) -> Federation:
    return Federation(folder, visibility=level, settings=NO_CAPS, **({"rule": "fedda_auto"} | strategy)).open().go()


def first_header(federation: Federation) -> Header:
    return next(message.body for *_, message in federation.passed if is_header(message))


@pytest.mark.parametrize("kind", OTHERS)
def test_one_number_of_the_header_changes_and_what_has_to_agree_with_it(tmp_path: Path, kind: Variance) -> None:
    federation, steps = (play(tmp_path / which, rounds=1, variance=which) for which in (kind, Variance.STEPS))
    header, usual = first_header(federation), first_header(steps)
    assert header.rule == usual.rule
    assert header.target is not None
    assert usual.target is not None
    target = trainer_of(3, TARGET)
    variance = target.step_variance(target.initial_model(), 1, 1.0, kind)
    assert header.target.scatter == pytest.approx(variance * header.target.steps, rel=1e-12)
    assert header.target.scatter != usual.target.scatter
    assert header.target.update_digest == usual.target.update_digest


def beta_of_a_whole_run(folder: Path, kind: Variance) -> float:
    """Of the first round after one of warm-up."""
    short = ("strategy.rounds=2", "strategy.warm-up-rounds=1", "strategy.compare-target-only=false")
    config = load_federation(sample("digits"), [*short, f"strategy.variance={kind}"])
    simulate(config, folder, 5, SilentReporter())
    found = read_run(folder).rounds[1]["mean_beta"]
    assert found is not None
    return found


@pytest.fixture(scope="module")
def beta_of_steps(tmp_path_factory: pytest.TempPathFactory) -> float:
    return beta_of_a_whole_run(tmp_path_factory.mktemp("steps"), Variance.STEPS)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_whole_run_takes_it_from_the_settings(tmp_path: Path, beta_of_steps: float, kind: Variance) -> None:
    # Of Adam's steps over two epochs, the variance looks small.
    assert beta_of_a_whole_run(tmp_path, kind) > beta_of_steps


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("strategy.variance=halves",), "must be one of steps, fixed-point, cross-fitted; is 'halves'"),
        (("training.target.dp.noise-multiplier=1",), "its ledger counts the steps alone"),
        (("training.target.labels=pseudo",), 'needs labels .*, and training.target.labels is "pseudo"'),
        (
            ("strategy.rule=fedgp_auto", "strategy.estimator=exact", "privacy.visibility=individual"),
            "must be steps, fedgp_auto with the exact",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused(settings: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        load_federation(sample("digits"), ["strategy.variance=cross-fitted", *settings])
    assert refused.value.key == "strategy.variance"


def test_rules_without_beta_leave_it_alone() -> None:
    settings = ["strategy.variance=cross-fitted", "strategy.rule=target_only", "training.target.dp.noise-multiplier=1"]
    assert load_federation(sample("digits"), settings).strategy.variance == "cross-fitted"


def test_one_batch_in_an_epoch_is_refused_before_the_first_round(tmp_path: Path) -> None:
    settings = ["strategy.variance=fixed-point", "training.target.batch-size=100"]
    with pytest.raises(TrainingError, match="100 rows in batches of 100 make one batch in an epoch"):
        simulate(load_federation(sample("digits"), settings), tmp_path, 5, SilentReporter())
