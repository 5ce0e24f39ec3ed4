"""The page of a target, in every state of its run."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from watched_sites import RUN, SOURCES, Pages, Site

from securefda.dashboard.site_reader import SiteReader
from securefda.errors import ConfigError, QuorumLost, SecureFdaError
from securefda.operations.state import STATE_FILE
from securefda.pages.parts import Charts, Fold


def test_before_the_run_nothing_is_claimed(target: Site) -> None:
    shown = Pages(target.kit).look()
    assert (shown.state.tone, shown.state.word) == ("none", "Not begun")
    assert not shown.has("figures")
    assert [row[0] for row in shown.rows("sources")] == list(SOURCES)
    assert not shown.has("alarms")  # no log says that there was none
    settings = target.kit.resolve() / "local" / "settings.toml"
    assert shown.state.hint == f"Start it with: securefda aggregator start --config {settings}"
    assert "valid until 20" in shown.facts("about")["Certificate"]


def test_while_sources_are_missing_it_names_them(target: Site) -> None:
    with target.log() as append, target.process() as state:
        append("received", "Join", peer="hospital-a")
        state.set(
            "gathering sources", waiting_for=["hospital-b", "hospital-c"], waiting_of=3, round=1, rounds=12, run=RUN
        )
        shown = Pages(target.kit).look()
    assert (shown.state.tone, shown.state.word) == ("waiting", "Waiting")
    assert shown.state.text.startswith("Gathering sources (1 of 3), round 1 of 12, since ")
    assert shown.state.text.endswith("Waiting for hospital-b, hospital-c. 0 of 12 rounds.")
    assert [row[:4] for row in shown.rows("sources")] == [
        ("hospital-a", "–", "–", "2026-11-21 12:00:02"),
        ("hospital-b", "awaited", "–", "not yet"),
        ("hospital-c", "awaited", "–", "not yet"),
    ]
    assert shown.lines("alarms") == ["None: no check failed, no site refused a round or ended a session."]


def test_a_running_run_has_its_figures_charts_and_phases(target: Site) -> None:
    with target.log() as append, target.process() as state:
        for site in SOURCES:
            append("received", "Join", peer=site)
        for number in (1, 2, 3):
            target.target_round(number)
        state.set("training", waiting_for=SOURCES, round=4, rounds=12, run=RUN)
        shown = Pages(target.kit).look()
    assert (shown.state.tone, shown.state.word) == ("going", "Running")
    assert "If the target trains alone after the last round, to compare" in shown.html
    assert shown.state.text.startswith("Training, round 4 of 12, since ")
    assert shown.state.text.endswith("Waiting for hospital-a, hospital-b, hospital-c. 3 of 12 rounds.")
    assert shown.tiles() == {
        "round of 12": "3",
        "target accuracy": "53.0 %",
        "highest accuracy on test rows": "53.0 %",
        "target loss": "1.700",
        "mean β": "0.30",
        "of 3 sources in the last round": "3",
        "per round, median": "0.30 s",
        "left, estimated": "2.7 s",
    }
    headings = [chart.heading for part in shown.section("charts").parts for chart in part.charts]  # type: ignore[union-attr]
    assert headings == [
        "Target accuracy",
        "Target loss",
        "Mean β",
        "Seconds by phase",
        "Bytes per source",
        "Training loss at the sources",
        "Training accuracy at the sources",
    ]
    assert ("sources train and send their keys", "0.250", "0.250", "83 %") in shown.rows("phases")
    assert [row[0] for row in shown.rows("rounds")] == ["3", "2", "1"]
    assert shown.rows("sources")[0][1:] == (
        *("awaited", "counted", "2026-11-21 12:00:02", "sum", "3", "6.0 KiB", "12.0 KiB"),
    )


@pytest.mark.parametrize(
    ("rounds", "doing", "waited_s", "late"),
    [
        (0, "gathering sources", 299.0, ""),
        (0, "gathering sources", 301.0, "More than half of the deadline of 10 min is over."),
        (0, "collecting keys", 16.0, "More than half of the deadline of 30 s is over."),
        (0, "sources train and send their keys", 239.0, ""),
        (0, "sources train and send their keys", 241.0, "More than half of the deadline of 8 min is over."),
        (3, "sources train and send their keys", 29.0, ""),
        (3, "sources train and send their keys", 31.0, "That is long: in earlier rounds it was 10 s."),
        (3, "removing the masks", 9.0, ""),
    ],
)
def test_a_wait_is_a_warning_only_once_it_is_too_long(
    target: Site, rounds: int, doing: str, waited_s: float, late: str
) -> None:
    settings = target.kit / "local" / "settings.toml"
    table = "[transport]\n"
    before, _, after = settings.read_text().partition(table)
    settings.write_text(f"{before}{table}training-deadline-s = 480\n{after}")
    for number in range(1, rounds + 1):
        target.target_round(number, seconds={"training and R0 advertise": 10.0, "R4 unmask": 0.05})
    with target.process() as state:
        state.set(doing, waiting_for=SOURCES[:1], round=rounds + 1, rounds=12)
        since = state.now.since
        shown = Pages(target.kit, lambda: since + waited_s).look()
    assert (shown.state.tone == "care") is bool(late)
    assert late in shown.state.text


def test_what_it_tries_again_and_its_last_error_are_said(target: Site) -> None:
    with target.process() as state:
        state.set("training", waiting_for=["hospital-a"], round=4, rounds=12, error="round 3 was lost")
        state.know(retrying="cannot reach x: connection refused", retrying_until=1_795_500_000.0)
        shown = Pages(target.kit).look()
    assert (shown.state.tone, shown.state.word) == ("care", "Waiting")
    assert "Cannot reach x: connection refused; it tries until 2026-11-24 06:00:00 UTC." in shown.state.text
    assert shown.state.hint == "Last error: round 3 was lost"


def test_where_nothing_has_changed_nothing_is_made_anew(target: Site) -> None:
    reader = SiteReader(target.kit)
    with target.log() as append, target.process():
        target.target_round(1)
        first = reader.look()
        assert reader.look() is first
        append("received", "Join", peer="hospital-a")
        assert reader.look() is not first


def test_each_sources_beta_is_shown_where_their_own_records_are(target: Site, source: Site, tmp_path: Path) -> None:
    target.target_round(1)
    for name in SOURCES[:2]:
        source.source_round(1)
        source.source_round(2)
        shutil.copytree(source.run, target.run / "sites" / name)
    shown = Pages(target.run).look()
    chart = next(one for part in shown.section("charts").parts for one in part.charts if "β" in one.heading)  # type: ignore[union-attr]
    assert (chart.heading, [line.name for line in chart.series]) == ("β per source", list(SOURCES[:2]))


def test_a_killed_process_is_not_called_running(target: Site) -> None:
    target.target_round(1)
    target.kill()
    shown = Pages(target.kit).look()
    assert (shown.state.tone, shown.state.word) == ("failed", "Stopped")
    text = "The process was killed or crashed; last step: training, round 2 of 12. 1 of 12 rounds."
    assert shown.state.text == text
    assert "awaited" not in {row[1] for row in shown.rows("sources")}


def test_a_process_on_another_machine_is_not_judged(target: Site) -> None:
    target.kill()
    file = target.run / STATE_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | {"host": "elsewhere"}))
    shown = Pages(target.kit).look()
    assert shown.state.word == "Last known"
    assert "can be seen on elsewhere alone" in shown.state.text


def test_without_a_process_nothing_is_said_of_it(target: Site, tmp_path: Path) -> None:
    target.target_round(1)
    copy = shutil.copytree(target.run, tmp_path / "copy")
    shown = Pages(copy).look()
    assert shown.state.word == "No end yet"
    assert "Nothing here says whether a process is at work" in shown.state.text


@pytest.mark.parametrize(
    ("error", "word", "said"),
    [
        (None, "Finished", "1 of 12 rounds."),
        (QuorumLost("R2", 3, ["a"], ["b"], hint="start b"), "Failed", "R2: 1 of at least 3 sources; missing: b"),
        (KeyboardInterrupt(), "Interrupted", "1 of 12 rounds."),
    ],
)
def test_a_process_that_ended_says_how(target: Site, error: BaseException | None, word: str, said: str) -> None:
    target.target_round(1)
    with suppress(QuorumLost, KeyboardInterrupt), target.process() as state:
        state.set("training", round=1, rounds=12)
        if isinstance(error, SecureFdaError):
            target.summary(1, status="failed", error=error)
        if error is None:
            target.summary(1)
        else:
            raise error
    shown = Pages(target.kit).look()
    assert shown.state.word == word
    assert said in shown.state.text
    assert shown.state.hint == ("start b" if word == "Failed" else shown.state.hint)


def test_only_settings_that_the_rule_uses_are_shown(target: Site) -> None:
    target.summary(1, strategy={"rule": "fedgp_auto", "filter": True, "ditto-lambda": 0.1, "knn-scale": 1.0})
    folds = {part.key: part for part in Pages(target.kit).look().section("settings").parts if isinstance(part, Fold)}
    kept, unused = (dict(part.facts) for key in ("kept", "unused") for part in folds[key].parts)  # type: ignore[union-attr]
    assert kept == {"strategy.filter": "true"}
    assert list(unused) == ["strategy.ditto-lambda", "strategy.knn-scale"]


def test_a_restarted_run_is_not_called_ended(target: Site) -> None:
    pages = Pages(target.kit)
    target.target_round(1)
    target.summary(1, status="interrupted")
    assert pages.look().state.word == "Interrupted"
    with target.process() as state:
        state.set("training", waiting_for=SOURCES, round=2, rounds=12)
        assert pages.look().state.word == "Running"
        target.target_round(2)
        shown = pages.look()
        assert not shown.has("result")
        assert "Ended" not in shown.facts("about")


def test_an_error_of_a_restart_goes_before_the_summary_of_the_run_before(target: Site) -> None:
    target.target_round(1)
    target.summary(1, status="interrupted")
    with suppress(ConfigError), target.process():
        raise ConfigError("task.factory", "is gone")
    shown = Pages(target.kit).look()
    assert (shown.state.word, "task.factory: is gone" in shown.state.text) == ("Failed", True)


def test_alarms_refusals_and_lost_rounds_are_listed(target: Site) -> None:
    with target.log() as append:
        append("event", "alarm", 2, peer="hospital-b", facts={"check": "SHARE_LENGTH", "accused": ["hospital-b"]})
        append("received", "Refusal", 3, peer="hospital-c")
    target.target_round(1)
    target.target_round(2, status="lost", dropped=["hospital-b"], survivors=[])
    lines = Pages(target.kit).look().lines("alarms")
    assert any("SHARE_LENGTH" in line and "accused: hospital-b" in line and "round 2" in line for line in lines)
    assert any("Refusal" in line and "hospital-c" in line for line in lines)
    assert "Lost: round 2. The model stayed as it was." in lines
    assert "hospital-b was dropped in 1 round" in lines


def test_the_log_of_the_summarys_run_is_shown(target: Site) -> None:
    with target.log() as append:
        append("received", "Join", peer="hospital-a")
    with target.log("f" * 32):
        pass
    assert "1 records" in Pages(target.kit).look().facts("about")["Audit log"]
    target.summary(0)
    about = Pages(target.kit).look().facts("about")
    assert about["Audit log"].startswith("2 records")
    assert about["Audit log"].endswith("the kit has 1 more")


def test_the_sources_share_and_their_help_are_shown(target: Site) -> None:
    help_ = {"difference": 0.051, "low": 0.02, "high": 0.082, "test_rows": 200}
    target.target_round(1, source_share=0.38)
    target.target_round(2, source_share=0.004)
    shown = Pages(target.kit).look()
    assert [row[6] for row in shown.rows("rounds")] == ["0 %", "38 %"]
    assert shown.tiles()["the sources' share of the last step"] == "0 %"
    assert "The sources' share of each step" in [
        chart.heading
        for part in shown.section("charts").parts
        for chart in part.charts  # type: ignore[union-attr]
    ]
    target.summary(2)
    summary = json.loads((target.run / "summary.json").read_text())
    summary["warm_target"] = {"accuracy": 0.4, "final": 0.4, "rounds": 2, "help": help_}
    (target.run / "summary.json").write_text(json.dumps(summary))
    shown = Pages(target.kit).look()
    assert ("warm-started target", "40.0 %", "+5.1 (+2.0 to +8.2)") in [row[:3] for row in shown.rows("result")]
    accuracy = next(part for part in shown.section("charts").parts if isinstance(part, Charts)).charts[0]
    assert accuracy.limits == [("warm-started target, mean of its last rounds", 0.4)]


def test_a_round_written_twice_counts_once(target: Site) -> None:
    target.target_round(1)
    target.target_round(1, accuracy=0.9)
    shown = Pages(target.kit).look()
    assert [row[2] for row in shown.rows("rounds")] == ["90.0 %"]


def test_a_figure_that_was_not_finite_is_left_out(target: Site) -> None:
    target.target_round(1)
    target.target_round(2, accuracy=float("nan"), loss=float("inf"))
    shown = Pages(target.kit).look()
    assert shown.tiles()["target loss"] == "1.900"
    assert shown.rows("rounds")[0][2:4] == ("-", "–")
