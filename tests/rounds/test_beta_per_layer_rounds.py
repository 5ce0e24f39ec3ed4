"""Auto-beta per layer in rounds: the same model at every level that evaluates the rule on the same updates."""

from __future__ import annotations

from pathlib import Path

import pytest
from rounds_federation import Federation, is_header

from securefda.errors import ConfigError
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.run_folder import read_run
from securefda.protocol.messages import Visibility
from securefda.samples import sample
from securefda.site.config import load_federation

NO_CAPS = {"kappa": 0.0}


def play(folder: Path, level: Visibility = Visibility.SUM, n: int = 3, **strategy: object) -> Federation:
    how = {"rule": "fedda_auto", "beta_per_layer": True} | strategy
    return Federation(folder, n, visibility=level, settings=NO_CAPS, **how).open().go()


def test_the_header_says_so_and_the_mean_beta_is_that_of_the_sources(tmp_path: Path) -> None:
    played = play(tmp_path, rounds=1)
    header = next(message.body for *_, message in played.passed if is_header(message))
    assert header.rule.beta_per_layer
    own = [records[0] for records in played.watch.records.values()]
    mean = sum(one["samples"] * one["beta"] for one in own) / sum(one["samples"] for one in own)
    assert played.watch.lines[0]["mean_beta"] == pytest.approx(mean, abs=1e-6)


def test_a_whole_run_takes_it_from_the_settings(tmp_path: Path) -> None:
    short = ("strategy.rounds=3", "strategy.warm-up-rounds=1", "strategy.compare-target-only=false")
    digests = set()
    for each in ("true", "false"):
        config = load_federation(sample("digits"), [*short, f"strategy.beta-per-layer={each}"])
        simulate(config, tmp_path / each, 5, SilentReporter())
        digests.add(read_run(tmp_path / each).rounds[-1]["model_digest"])
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("strategy.beta-per-layer=2",), "true or false"),
        (
            (
                *("strategy.beta-per-layer=true", "strategy.rule=fedgp_auto", "strategy.estimator=exact"),
                "privacy.visibility=individual",
            ),
            "must be false",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused(settings: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        load_federation(sample("digits"), settings)
    assert refused.value.key == "strategy.beta-per-layer"
