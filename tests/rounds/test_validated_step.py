"""The target takes that share of the rule's update that does best on rows which it keeps out."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import numpy as np
import pytest
from rounds_federation import TARGET, Federation, is_header, kept_out, trainer_of

from securefda.errors import ConfigError
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.report import write_report
from securefda.operations.run_folder import read_run
from securefda.operations.tracking import figures_of
from securefda.protocol.messages import Visibility
from securefda.rules import STEP_SHARES
from securefda.samples import sample
from securefda.site.config import load_federation

NO_CAPS = {"kappa": 0.0}
VALIDATED = ("strategy.step=validated", "strategy.validation-share=0.3")
SHORT = ("strategy.rounds=3", "strategy.warm-up-rounds=1", "strategy.compare-target-only=false")


def federation(folder: Path, *labels: int, level: Visibility = Visibility.SUM, **strategy: object) -> Federation:
    how = {"rule": "fedda_auto", "step": "validated"} | strategy
    return Federation(folder, visibility=level, settings=NO_CAPS, validation=kept_out(*(labels or (0, 1, 2))), **how)


@pytest.mark.parametrize("labels", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("rule", ["fedda_auto", "fedgp"])
def test_a_round_takes_the_share_with_the_least_loss(tmp_path: Path, rule: str, labels: tuple[int, ...]) -> None:
    full = federation(tmp_path / "full", rule=rule, step="full", rounds=1).open().go()
    validated = federation(tmp_path / "validated", *labels, rule=rule, rounds=1).open().go()
    target = trainer_of(3, TARGET)
    first = target.initial_model()
    own, change = target.train(first, 1, 1.0).update, full.run.model - first
    models = [(first + (1 - share) * own + share * change).astype(np.float32) for share in STEP_SHARES]
    losses = [target.evaluate(model, kept_out(*labels)).loss for model in models]
    share = validated.watch.lines[0]["step_share"]
    assert losses[STEP_SHARES.index(share)] == pytest.approx(min(losses), abs=1e-6)
    np.testing.assert_allclose(validated.run.model, models[STEP_SHARES.index(share)], atol=1e-6)
    assert "step_share" not in full.watch.lines[0]


def test_shares_differ_with_the_rows(tmp_path: Path) -> None:
    """Companion of the test above: there is something to choose."""
    shares = set()
    for label in range(3):
        played = federation(tmp_path / str(label), label, rounds=3).open().go()
        shares |= {line["step_share"] for line in played.watch.lines}
        played.close()
    assert len(shares) > 1


def test_headers_say_nothing_of_it(tmp_path: Path) -> None:
    played = {step: federation(tmp_path / step, step=step, rounds=1).open().go() for step in ("full", "validated")}
    headers = [next(m.body for *_, m in one.passed if is_header(m)) for one in played.values()]
    assert headers[0].rule == headers[1].rule
    assert headers[0].target == headers[1].target


def test_a_target_that_keeps_no_rows_out_cannot_run_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="validation: the target keeps no rows out"):
        Federation(tmp_path, rule="fedda_auto", step="validated")


def test_a_whole_run_says_what_it_took(tmp_path: Path) -> None:
    summary = simulate(load_federation(sample("digits"), [*SHORT, *VALIDATED]), tmp_path, 5, SilentReporter())
    assert summary.status == "finished"
    lines = read_run(tmp_path).rounds
    assert ["step_share" in line for line in lines] == [False, True, True]
    assert all(line["step_share"] in STEP_SHARES for line in lines[1:])
    assert figures_of(lines[-1])["rule/step_share"] == lines[-1]["step_share"]
    page = unescape(write_report(tmp_path).read_text())
    assert f"{lines[-1]['step_share']:g} of the rule's update" in page


@pytest.mark.parametrize(
    ("settings", "key", "why"),
    [
        (("strategy.validation-share=0",), "strategy.step", "needs rows of the target that it does not train on"),
        (("strategy.step=half",), "strategy.step", "must be one of full, validated; is 'half'"),
        (("training.target.dp.noise-multiplier=1",), "strategy.validation-share", "its ledger does not count the rows"),
        (("training.target.labels=pseudo",), "strategy.validation-share", "chooses a model by labels"),
    ],
)
def test_what_does_not_go_with_it_is_refused(settings: tuple[str, ...], key: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        load_federation(sample("digits"), [*VALIDATED, *settings])
    assert refused.value.key == key


def test_rules_without_a_step_to_choose_leave_it_alone() -> None:
    settings = ["strategy.step=validated", "strategy.rule=target_only"]
    assert load_federation(sample("digits"), settings).strategy.step == "validated"
