"""The page of a source: what left, ε against its limit, whom it waits for, its policy."""

from __future__ import annotations

from pathlib import Path

import pytest
from watched_sites import OTHER_RUN, RUN, Pages, Site

from securefda.cli import main


def test_before_it_joins_nothing_has_left(source: Site) -> None:
    shown = Pages(source.kit).look()
    assert shown.state.word == "Not begun"
    assert shown.state.text == "No process of this site has started here, and nothing has left for clinic."
    assert shown.lines("left") == ["No audit log yet: the site begins it before anything leaves."]


def test_a_source_that_joined_waits_for_the_target(source: Site) -> None:
    with source.log() as append, source.process() as state:
        append("sent", "Join")
        state.set("waiting for clinic to begin a round", waiting_for=["clinic"])
        shown = Pages(source.kit).look()
    assert shown.state.word == "Waiting"
    assert shown.state.text.startswith("Waiting for clinic to begin a round, since ")
    assert shown.state.text.endswith(" UTC. 0 rounds with a result.")
    assert shown.lines("left") == ["Nothing that discloses anything has left yet."]


def test_what_left_is_said_with_visibility_and_receiver(source: Site) -> None:
    pages = Pages(source.kit)
    with source.log() as append:
        for number in (1, 2):
            source.update_left(append, number)
            source.source_round(number)
        shown = pages.look()
    assert shown.rows("left") == [("update", "clinic", "sum: as a term of one sum over at least 3 sources", "2", "2")]
    assert shown.tiles()["updates left this site"] == "2"
    assert shown.rows("rounds")[0][:6] == ("2", "sum", "fedgp_auto", "0.25", "239", "1.500")
    assert shown.state.word == "No end yet"


def test_epsilon_stands_beside_its_limit_and_is_rounded_up(source: Site) -> None:
    pages = Pages(source.kit)
    with source.log() as append:
        source.update_left(append, 1, epsilon=1.000_01)
        source.update_left(append, 2, epsilon=2.000_01)
        shown = pages.look()
    assert shown.tiles()["ε spent"] == "2.0001"
    facts = shown.facts("budget")
    assert facts["ε spent"] == "2.0001 with round 2, over all rounds and runs of the ledger"
    assert facts["limit"] == "ε at most 8, as the policy says now"
    assert facts["left"] == "5.9999, 75 % of the limit"
    chart = next(one for part in shown.section("charts").parts for one in part.charts)  # type: ignore[union-attr]
    assert (chart.heading, chart.limits) == ("ε spent", [("limit", 8.0)])


def test_more_than_the_limit_is_an_alarm(source: Site) -> None:
    with source.log() as append:
        source.update_left(append, 1, epsilon=9.0)
    shown = Pages(source.kit).look()
    assert shown.lines("budget") == ["More is spent than the policy allows now: nothing trains on these rows."]
    assert shown.facts("budget")["left"].startswith("0.0000, 0 %")


def test_training_without_noise_is_not_called_safe(source: Site) -> None:
    source.source_round(1)
    (line,) = Pages(source.kit).look().lines("budget")
    assert "may reveal something of single rows" in line


@pytest.mark.parametrize("level", ["sum", "individual"])
def test_a_loss_is_not_said_to_stay_where_it_may_leave_in_clear(source: Site, level: str) -> None:
    for number in (1, 2):
        source.source_round(number, level=level, beta=None)
    (charts,) = Pages(source.run).look().section("charts").parts
    (loss,) = charts.charts  # type: ignore[union-attr]
    assert ("in clear if metadata.may-leave lists it" in loss.caption) is (level == "individual")


def test_the_policy_is_said_in_words_with_its_signature(source: Site) -> None:
    shown = Pages(source.kit).look()
    summary, signature = shown.lines("policy")
    assert summary.startswith("hospital-a permits at most visibility sum")
    assert signature == "Signed by hospital-a."
    assert "It cannot learn" in shown.html


def test_a_policy_that_was_edited_is_said_to_be_unsigned(source: Site) -> None:
    pages = Pages(source.kit)
    assert pages.look().lines("policy")[1] == "Signed by hospital-a."
    file = source.kit / "local" / "policy.toml"
    file.write_text(file.read_text() + "\n")
    assert "was changed after it was signed" in pages.look().lines("policy")[1]
    assert main(["policy", "sign", str(source.kit)]) == 0
    assert pages.look().lines("policy")[1] == "Signed by hospital-a."


def test_another_policy_than_the_process_has_is_said(source: Site) -> None:
    with source.log() as append:
        append("event", "policy-loaded", facts={"policy": "0" * 64})
    assert any("runs with another policy" in line for line in Pages(source.kit).look().lines("policy"))


def test_a_policy_that_cannot_be_read_is_a_problem(source: Site) -> None:
    (source.kit / "local" / "policy.toml").write_text("max-visibility = 'everything'\n")
    shown = Pages(source.kit).look()
    assert not shown.has("policy")
    assert any("visibility" in line for line in shown.lines("problems"))


@pytest.mark.parametrize(("outcome", "word"), [("completed", "Finished"), ("aborted", "Ended")])
def test_how_the_run_ended_is_said(source: Site, outcome: str, word: str) -> None:
    with source.log() as append:
        append("event", "run-ended", facts={"outcome": outcome, "rounds": 3})
    shown = Pages(source.kit).look()
    assert shown.state.word == word
    assert "3 rounds" in shown.state.text


def test_a_killed_source_is_called_stopped(source: Site) -> None:
    source.kill()
    shown = Pages(source.kit).look()
    assert (shown.state.word, shown.state.hint) == ("Stopped", "Start the process again: the site joins the run again.")


def test_refused_headers_are_listed(source: Site) -> None:
    refused = {"key": "limits.max-epochs", "asked": "9", "allowed": "2"}
    source.source_round(1, refused=refused, beta=None)
    with source.log() as append:
        append("event", "refused", 1, facts={"check": "limits.max-epochs"})
    shown = Pages(source.kit).look()
    assert any("limits.max-epochs" in line for line in shown.lines("alarms"))
    assert shown.rows("rounds")[0][-1] == "refused by limits.max-epochs: asked 9, allowed 2"


def test_the_newest_log_is_shown_and_the_others_are_counted(source: Site) -> None:
    with source.log():
        pass
    with source.log(OTHER_RUN) as append:
        append("sent", "Join")
    about = Pages(source.kit).look().facts("about")
    assert about["Run of the log"] == OTHER_RUN
    assert about["Audit log"].endswith("the kit has 1 more")


def test_a_source_without_a_kit_shows_its_rounds(source: Site, tmp_path: Path) -> None:
    source.source_round(1)
    source.run.rename(tmp_path / "alone")
    shown = Pages(tmp_path / "alone").look()
    assert [row[0] for row in shown.rows("rounds")] == ["1"]
    assert shown.state.word == "No end yet"


def test_how_far_the_last_step_left_the_targets_line_is_shown(source: Site) -> None:
    source.source_round(1)
    assert "of a step not the target's own" not in Pages(source.run).look().tiles()
    for number in (2, 3):
        source.source_round(number, apart_from_target=0.389)
    shown = Pages(source.run).look()
    assert shown.tiles()["of a step not the target's own"] == "38 %"
    headings = [chart.heading for part in shown.section("charts").parts for chart in part.charts]  # type: ignore[union-attr]
    assert "Steps off the target's own line" in headings


@pytest.mark.parametrize(
    ("rounds", "waited_s", "late"),
    [
        (0, 43_199.0, ""),
        (0, 43_201.0, "More than half of the deadline of 24.0 h is over."),
        (4, 9.0, ""),
        (4, 60.0, "That is long: in earlier rounds it was"),
    ],
)
def test_a_wait_for_the_target_is_a_warning_only_once_it_is_too_long(
    source: Site, rounds: int, waited_s: float, late: str
) -> None:
    with source.log() as append, source.process() as state:
        for number in range(1, rounds + 1):
            source.update_left(append, number)
        state.set("waiting for clinic to begin a round", waiting_for=["clinic"], run=RUN)
        since = state.now.since
        shown = Pages(source.kit, lambda: since + waited_s).look()
    assert shown.state.tone == ("care" if late else "waiting")
    assert late in shown.state.text
