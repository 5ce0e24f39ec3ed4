"""What the federation adds: the warm-started target, each test row in the last rounds, and the sources' share."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import TARGET, Federation, trainer_of

from securefda.aggregator.comparison import with_comparison
from securefda.cli.console import ProgressEstimate
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.records import Summary, summarise
from securefda.operations.report import write_report
from securefda.operations.run_folder import read_run
from securefda.operations.summary_text import help_text, run_text
from securefda.protocol.messages import DownLink, Header, Survivors, Visibility
from securefda.rules import cosine
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.site.policy import SourcePolicy

NO_CAPS = {"kappa": 0.0}
WARM = {"rule": "fedda_auto", "rounds": 4, "warm_up_rounds": 2, "lr_after_warm_up": 0.5}


def compared(federation: Federation) -> Summary:
    """The summary of a federation's run, with the comparison that its process would add."""
    run, store, site = federation.run, federation.store, federation.run.site
    how: dict[str, Any] = {"task": "", "strategy": {}, "visibility": {}, "rounds_planned": 4, "status": "finished"}
    summary = summarise(
        federation.watch.lines, run_id=run.run_id, warm_up=site.alone.warm_up if site.alone else 0, **how
    )
    return with_comparison(summary, site.alone, store.records(), federation.watch)


def test_the_warm_started_target_is_trained_from_the_model_after_warm_up(tmp_path: Path) -> None:
    """Against plain calls of the target's trainer, from the model of a run that ends where the other's warm-up does."""
    warm_up = Federation(tmp_path / "warm-up", settings=NO_CAPS, rule="source_only", rounds=2).open().go()
    played = Federation(tmp_path / "run", settings=NO_CAPS, **WARM).open().go()
    summary, trainer, test = compared(played), trainer_of(3, TARGET), played.run.site.test_data
    model, first = warm_up.run.model, trainer.initial_model()
    accuracies = [line["accuracy"] for line in warm_up.watch.lines]  # of the four last rounds two are of the warm-up
    rows = list(warm_up.run.site.alone.run_rows(warm_up.run.run_id, 2))
    for number in (3, 4):
        model = model + trainer.train(model, number, 0.5, run_id=played.run.run_id).update
        accuracies.append(trainer.evaluate(model, test).metrics["accuracy"])
        rows.append((trainer_outputs(trainer, model, test) == test.labels).double().numpy())
    found = summary.warm_target
    assert found is not None
    assert (found["accuracy"], found["final"], found["rounds"]) == (np.mean(accuracies), accuracies[-1], 2)
    assert found["help"]["difference"] == pytest.approx((summary.target_accuracy or 0) - np.mean(accuracies), abs=1e-6)
    assert found["help"]["test_rows"] == len(test)
    before = [{"accuracy": accuracy} for accuracy in accuracies[:2]]
    known = played.run.site.alone.train_warm(played.run.run_id, [3, 4], before)[1]
    np.testing.assert_array_equal(known, rows)
    for number in range(1, 5):
        first = first + trainer.train(first, number, 1.0, run_id=played.run.run_id).update
    assert summary.target_only is not None
    assert summary.target_only["final"] == trainer.evaluate(first, test).metrics["accuracy"]


def trainer_outputs(trainer: Any, model: Any, test: Any) -> Any:
    """The classes that a model finds."""
    trainer.prepare_to_evaluate(model)
    return trainer.module.eval()(test.features).argmax(dim=1)


@pytest.mark.parametrize("number", [3, 4])
def test_a_restart_after_warm_up_changes_nothing_of_it(tmp_path: Path, number: int) -> None:
    whole = Federation(tmp_path / "whole", settings=NO_CAPS, **WARM).open().go()
    killed = Federation(tmp_path / "killed", settings=NO_CAPS, **WARM).open()
    killed.kill_aggregator_at(Header, number).start_aggregator()
    killed.open().go()
    alone = killed.run.site.alone
    for key in ("warm_target", "target_only"):
        assert getattr(compared(killed), key) == getattr(compared(whole), key) is not None
    expected = whole.run.site.alone.run_rows(whole.run.run_id, 4)
    np.testing.assert_array_equal(alone.run_rows(killed.run.run_id, 4), expected)


def test_a_lost_round_is_no_round_of_the_comparison(tmp_path: Path) -> None:
    played = Federation(tmp_path, settings=NO_CAPS | {"attempts": 1}, **WARM).open()
    played.kill_aggregator_at(Survivors, 3).start_aggregator()  # its updates may have left: it is not tried again
    played.open().go()
    summary, run_id = compared(played), played.run.run_id
    assert played.watch.statuses == ["finished", "finished", "lost", "finished"]
    assert (summary.target_only["rounds"], summary.warm_target["rounds"]) == (3, 1)
    trainer, warm = trainer_of(3, TARGET), Federation(tmp_path / "w", settings=NO_CAPS, rule="source_only", rounds=2)
    model = warm.open().go().run.model
    model = model + trainer.train(model, 4, 0.5, run_id=run_id).update  # with its random choices of round 4
    accuracy = trainer.evaluate(model, played.run.site.test_data).metrics["accuracy"]
    assert summary.warm_target["final"] == accuracy


# --- the sources' share -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [Visibility.INDIVIDUAL, Visibility.SUM])
def test_the_share_is_that_of_the_definition_at_every_level(tmp_path: Path, level: Visibility) -> None:
    played = Federation(tmp_path, visibility=level, settings=NO_CAPS, rule="fedda", align=False, rounds=1).open().go()
    trainers = [trainer_of(3, index) for index in range(4)]
    first = trainers[0].initial_model()
    own, *updates = (trainer.train(first, 1, 1.0).update.astype(float) for trainer in trainers)
    theirs = sum(updates) * 0.5 / 3  # equally many rows each, and beta is 0.5
    step = 0.5 * own + theirs
    line = played.watch.lines[0]
    assert line["source_share"] == pytest.approx(np.linalg.norm(theirs) / np.linalg.norm(step), rel=1e-4)
    assert line["target_cosine"] == pytest.approx(cosine(own, step), rel=1e-4)


@pytest.mark.parametrize(("rule", "share"), [("source_only", 1), ("target_only", None)])
def test_of_one_side_alone_the_share_is_known(tmp_path: Path, rule: str, share: float | None) -> None:
    played = Federation(tmp_path, settings=NO_CAPS, rule=rule, rounds=1).open().go()
    assert played.watch.lines[0].get("source_share") == (share and pytest.approx(share))


def test_with_a_beta_for_each_layer_all_levels_give_the_same_share(tmp_path: Path) -> None:
    shares = []
    for level in (Visibility.SUM, Visibility.INDIVIDUAL):
        strategy = {"rule": "fedda_auto", "beta_per_layer": True, "rounds": 2}
        played = Federation(tmp_path / level.label, visibility=level, settings=NO_CAPS, **strategy).open().go()
        shares.append([line["source_share"] for line in played.watch.lines])
        played.close()
    assert shares[0] == pytest.approx(shares[1])
    assert 0 < shares[0][0] < 1


def test_a_validated_step_takes_a_share_of_the_sources_part(tmp_path: Path) -> None:
    from test_validated_step import federation

    for label in range(3):
        full = federation(tmp_path / f"full-{label}", label, step="full", rounds=1).open().go()
        taken = federation(tmp_path / f"taken-{label}", label, rounds=1).open().go()
        target = trainer_of(3, TARGET)
        first = target.initial_model()
        own, rule = target.train(first, 1, 1.0).update.astype(float), full.run.model.astype(float) - first
        line = taken.watch.lines[0]
        theirs = rule - (1 - (line["mean_beta"] or 0)) * own
        share = line["step_share"]
        step = (1 - share) * own + share * rule
        expected = share * np.linalg.norm(theirs) / np.linalg.norm(step)
        assert line["source_share"] == pytest.approx(expected, abs=1e-4)
        full.close()
        taken.close()


class Emptied(Federation):
    """Sources whose policies allow more than any policy that a file can hold: caps that no contribution can keep."""

    def policy(self, index: int, **changes: Any) -> SourcePolicy:
        settings = self.settings
        self.settings = replace(settings, kappa=1.0)
        found = super().policy(index, **changes)
        self.settings = settings
        return found


def test_where_norm_caps_empty_every_layer_the_sources_had_no_part(tmp_path: Path) -> None:
    played = Emptied(tmp_path, settings={"kappa": 100.0}, rule="fedgp_auto", rounds=2).open().go()
    line = played.watch.lines[-1]
    assert line["emptied"] == [name for name, _ in played.run.layers]
    assert line["source_share"] < 1e-3
    assert "3 sources (no part)" in ProgressEstimate().text(line)
    summary = compared(played)
    assert summary.source_share < 1e-3
    assert help_text(summary.as_json()).endswith("; the sources had no part in the steps")


# --- what a source can see of it --------------------------------------------------------------------------------------


def test_a_source_at_sum_sees_how_far_a_step_left_the_targets_line(tmp_path: Path) -> None:
    played = Federation(tmp_path, settings=NO_CAPS, rule="fedda", rounds=3).open().go()
    target = trainer_of(3, TARGET)
    first = target.initial_model()
    single = Federation(tmp_path / "single", settings=NO_CAPS, rule="fedda", rounds=1).open().go()
    along = cosine(target.train(first, 1, 1.0).update, single.run.model.astype(float) - first)
    for records in played.watch.records.values():
        assert "apart_from_target" not in records[0]  # it has seen no step yet
        assert records[1]["apart_from_target"] == pytest.approx((1 - along**2) ** 0.5, abs=1e-4)
        for line, record in zip(played.watch.lines, records[1:], strict=False):
            assert 0.05 < record["apart_from_target"] <= line["source_share"]


@pytest.mark.parametrize(
    ("level", "settings"), [(Visibility.INDIVIDUAL, {}), (Visibility.SUM, {"down_link": DownLink.BFLOAT16})]
)
def test_a_source_that_cannot_know_it_says_nothing(
    tmp_path: Path, level: Visibility, settings: dict[str, object]
) -> None:
    played = Federation(tmp_path, visibility=level, settings=NO_CAPS | settings, rule="fedda", rounds=2).open().go()
    assert not any("apart_from_target" in one for records in played.watch.records.values() for one in records)


def test_after_a_warm_up_round_a_source_has_no_update_of_the_target(tmp_path: Path) -> None:
    played = Federation(tmp_path, settings=NO_CAPS, **WARM).open().go()
    seen = ["apart_from_target" in record for record in played.watch.records[1]]
    assert seen == [False, False, False, True]


def test_a_source_that_missed_a_round_does_not_know_its_step(tmp_path: Path) -> None:
    played = Federation(tmp_path, 4, settings=NO_CAPS, rule="fedda", rounds=4)

    def link(sender: int, recipient: int, message: Any) -> Any:
        lost = recipient == 1 and isinstance(message.body, Header) and message.body.round == 2
        return None if lost else message

    played.link = link
    played.open().go()
    seen = {record["round"]: "apart_from_target" in record for record in played.watch.records[1]}
    assert seen == {1: False, 3: False, 4: True}
    assert ["apart_from_target" in record for record in played.watch.records[2]] == [False, True, True, True]


# --- what people read -------------------------------------------------------------------------------------------------


def told(accuracy: float = 0.796, share: float | None = 0.38, **helps: tuple[float, float | None, float | None]) -> str:
    baselines = {
        name: {"help": {"difference": difference, "low": low, "high": high, "test_rows": 16}}
        for name, (difference, low, high) in helps.items()
    }
    return help_text({"target_accuracy": accuracy, "source_share": share, **baselines})


def test_the_last_line_says_by_how_much_the_federation_helped() -> None:
    assert told(warm_target=(0.051, 0.020, 0.082), target_only=(0.076, 0.031, 0.12)) == (
        "accuracy 79.6 %: +5.1 points over the warm-started target (95 %: +2.0 to +8.2), "
        "+7.6 points over the target alone (95 %: +3.1 to +12.0); the sources had 38 % of the steps after warm-up"
    )


def test_help_that_the_rows_do_not_show_is_no_success() -> None:
    assert told(warm_target=(0.051, -0.02, 0.12)) == (
        "accuracy 79.6 %: no difference from the warm-started target that the 16 test rows can show "
        "(+5.1 points, 95 %: -2.0 to +12.0); the sources had 38 % of the steps after warm-up"
    )
    assert told(target_only=(-0.051, -0.09, -0.01), share=0.004) == (
        "accuracy 79.6 %: 5.1 points below the target alone (95 %: -9.0 to -1.0); the sources had no part in the steps"
    )


def test_an_accuracy_that_is_no_mean_over_rows_has_no_interval() -> None:
    assert told(target_only=(0.05, None, None), share=None) == (
        "accuracy 79.6 %: +5.0 points against the target alone (no interval: the accuracy is not a mean over rows)"
    )


def test_a_whole_run_shows_it_everywhere(tmp_path: Path) -> None:
    settings = [
        "strategy.rounds=3",
        "strategy.warm-up-rounds=1",
        "strategy.rule=fedda_auto",
        "privacy.norm-cap-kappa=0",
    ]
    summary = simulate(load_federation(sample("digits"), settings), tmp_path, 5, SilentReporter())
    lines = read_run(tmp_path).rounds
    assert lines[0]["source_share"] == pytest.approx(1)
    assert summary.source_share == pytest.approx(np.mean([line["source_share"] for line in lines[1:]]))
    assert summary.warm_target is not None
    assert summary.warm_target["rounds"] == 2
    assert summary.warm_target["help"]["test_rows"] == 500
    *_, accuracy, warm, alone, report, then = run_text(summary, tmp_path).splitlines()
    value = f"{100 * (summary.target_accuracy or 0):.1f} %"
    assert accuracy.split("  ")[0] == "target accuracy"
    assert value in accuracy
    assert re.match(r"gain  +.* the warm-started target .*95 %: ", warm)
    assert re.match(r" +.* the target alone .*95 %: .*; the sources had ", alone)
    assert report.split() == ["report", str(tmp_path / "report.html")]
    assert then.split("  ")[-1].strip() == f"securefda audit reconcile {tmp_path}"
    last = help_text(summary.as_json())
    balanced = 100 * summary.target_metrics["balanced_accuracy"]
    assert last.startswith(f"accuracy {value}, balanced {balanced:.1f} %: ")
    page = unescape(write_report(tmp_path).read_text())
    assert f"{last[0].upper()}{last[1:]}." in page
    assert "The sources' share of each step" in page
