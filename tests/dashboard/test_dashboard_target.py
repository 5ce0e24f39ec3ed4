"""The page of a target, in every state of its run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from watched_sites import RUN, SOURCES, Pages, Site


def test_before_the_run_nothing_is_claimed(target: Site) -> None:
    shown = Pages(target.kit).look()
    assert (shown.state.tone, shown.state.word) == ("none", "Not begun")
    assert not shown.has("figures")
    assert [row[0] for row in shown.rows("sources")] == list(SOURCES)
    assert not shown.has("alarms")  # no log says that there was none


def test_while_sources_are_missing_it_names_them(target: Site) -> None:
    pages = Pages(target.kit)
    with target.log() as append:
        append("received", "Join", peer="hospital-a")
        shown = pages.look()
    assert (shown.state.tone, shown.state.word) == ("waiting", "Waiting")
    assert shown.state.text == "hospital-b, hospital-c have not joined yet. 0 of 12 rounds."
    assert {row[0]: row[2] for row in shown.rows("sources")}["hospital-b"] == "not yet"
    assert shown.lines("alarms") == ["None: no check failed, no site refused a round or ended a session."]


def test_a_running_run_has_its_figures_charts_and_phases(target: Site) -> None:
    pages = Pages(target.kit)
    with target.log() as append:
        for site in SOURCES:
            append("received", "Join", peer=site)
        for number in (1, 2, 3):
            target.target_round(number)
        shown = pages.look()
    assert (shown.state.tone, shown.state.text) == ("going", "3 of 12 rounds.")
    assert shown.tiles() == {
        "round of 12": "3",
        "target accuracy": "53.0 %",
        "best accuracy": "53.0 %",
        "target loss": "1.700",
        "mean β": "0.30",
        "of 3 sources in the last round": "3",
        "per round, median": "0.30 s",
    }
    headings = [chart.heading for part in shown.section("charts").parts for chart in part.charts]  # type: ignore[union-attr]
    assert headings == ["Target accuracy", "Target loss", "Mean β"]
    assert ("training and R0 advertise", "0.250", "0.250", "83 %") in shown.rows("phases")
    assert [row[0] for row in shown.rows("rounds")] == ["3", "2", "1"]
    assert shown.rows("sources")[0][1:] == ("counted", "2026-11-21 12:00:02", "sum", "3", "6.0 KiB", "12.0 KiB")


def test_every_look_shows_what_was_added(target: Site) -> None:
    pages = Pages(target.kit)
    with target.log():
        for number in range(1, 6):
            target.target_round(number)
            assert pages.look().tiles()["round of 12"] == str(number)


def test_each_sources_beta_is_shown_where_their_own_records_are(target: Site, source: Site, tmp_path: Path) -> None:
    target.target_round(1)
    for name in SOURCES[:2]:
        source.source_round(1)
        shutil.copytree(source.run, target.run / "sites" / name)
    shown = Pages(target.run).look()
    chart = next(one for part in shown.section("charts").parts for one in part.charts if "β" in one.heading)  # type: ignore[union-attr]
    assert (chart.heading, [line.name for line in chart.series]) == ("β per source", list(SOURCES[:2]))


def test_a_killed_process_is_not_called_running(target: Site) -> None:
    with target.log():
        target.target_round(1)
    shown = Pages(target.kit).look()
    assert (shown.state.tone, shown.state.word) == ("failed", "Stopped")
    assert "1 of 12 rounds" in shown.state.text


def test_without_a_log_nothing_is_said_of_the_process(target: Site, tmp_path: Path) -> None:
    target.target_round(1)
    copy = shutil.copytree(target.run, tmp_path / "copy")
    shown = Pages(copy).look()
    assert shown.state.word == "No end yet"
    assert "No audit log here" in shown.state.text


@pytest.mark.parametrize(
    ("status", "tone", "word"),
    [("finished", "done", "Finished"), ("failed", "failed", "Failed"), ("interrupted", "failed", "Interrupted")],
)
def test_how_a_run_ended_is_said(target: Site, status: str, tone: str, word: str) -> None:
    with target.log():
        target.target_round(1)
    target.summary(1, status=status)
    shown = Pages(target.kit).look()
    assert (shown.state.tone, shown.state.word) == (tone, word)
    assert shown.facts("about")["Run"] == RUN


def test_a_restarted_run_is_not_called_ended(target: Site) -> None:
    pages = Pages(target.kit)
    target.target_round(1)
    with target.log() as append:
        pass
    target.summary(1, status="interrupted")
    assert pages.look().state.word == "Interrupted"
    with target.log() as append:
        append("event", "restarted", facts={"lost_bytes": 0})
        for site in SOURCES:
            append("received", "Join", peer=site)
        assert pages.look().state.word == "Running"


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
