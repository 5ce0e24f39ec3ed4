"""Progress: one line per round in a pipe, one live table on a terminal, and for whom a run waits."""

from __future__ import annotations

import io
import os
import re

import pytest
from stand_ins import Terminal

from securefda.cli.console import LineReporter, ProgressEstimate, TableReporter, console_reporter
from securefda.operations.progress import StepsOfSites
from securefda.operations.records import ChosenMetric, RoundLine
from securefda.text import first_of

LINE: RoundLine = {
    "round": 3,
    "rule": "fedgp_auto",
    "accuracy": 0.7131,
    "loss": 0.5,
    "mean_beta": 0.414,
    "survivors": ["source-1", "source-2"],
    "dropped": ["source-3"],
    "refused": {"source-4": "min-others"},
    "seconds": {"rule": 0.25, "evaluate": 1.0},
    "status": "finished",
}
QUIET: RoundLine = {
    "round": 12,
    "rule": "fedgp_auto",
    "accuracy": 0.7131,
    "metrics": {"accuracy": 0.7131, "balanced_accuracy": 0.64},
    "loss": 0.5,
    "mean_beta": 0.414,
    "source_share": 0.42,
    "survivors": ["source-1", "source-2"],
    "seconds": {"training": 65.0},
    "bytes_up": {"source-1": 2048},
    "bytes_down": {"source-1": 1024},
    "status": "finished",
}
WIDE = {"validation_accuracy": 0.7, "validation_loss": 0.5, "step_share": 0.25, "confident_rows": 1200}
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def round_text(line: RoundLine, rounds: int) -> str:
    progressed = ProgressEstimate()
    progressed.rounds = rounds
    return progressed.text(line)


def table(lines: list[RoundLine], rounds: int, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that stay on a terminal of this width."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with console_reporter(stream) as reporter:
        assert isinstance(reporter, TableReporter)
        for line in lines:
            reporter.round_started(line["round"], rounds)
            reporter.round_finished(line)
    shown = re.split(r"[\r\n]+", CONTROL.sub("\n", stream.getvalue()))
    return [
        line.rstrip() for line in shown if line.strip() and not re.search(r"\d:\d\d:\d\d", line)
    ]  # the last row goes


def test_a_finished_round_is_one_line_with_what_went_wrong_in_it() -> None:
    assert round_text(LINE, 50).splitlines() == [
        "round 3 of 50: accuracy 0.713, loss 0.500, beta 0.41, 2 sources, 1.2 s, about 59 s left, dropped source-3",
        "round 3 of 50: source-4 refused min-others",
    ]


@pytest.mark.parametrize("number", [3, 123])
def test_a_usual_round_is_one_line_of_at_most_110_characters(number: int) -> None:
    (line,) = round_text({**QUIET, "round": number}, 500).splitlines()
    assert len(line) <= 110
    assert line.startswith(
        f"round {number} of 500: accuracy 0.713 (balanced 0.640), loss 0.500, beta 0.41, 2 sources (42 "
    )
    assert ", 65 s" in line


def test_what_has_no_space_in_a_line_follows_in_one_that_begins_alike() -> None:
    crowded: RoundLine = {**QUIET, **WIDE, "dropped": [f"hospital-{name}" for name in "abcdef"]}  # type: ignore[typeddict-item]
    lines = round_text(crowded, 50).splitlines()
    assert len(lines) > 1
    assert all(line.startswith("round 12 of 50: ") and len(line) <= 110 for line in lines)
    parts = [part for line in lines for part in line.removeprefix("round 12 of 50: ").split(", ")]
    assert {"validation 0.700 (best)", "0.25 of the rule's update", "1,200 confident rows"} <= set(parts)


def test_a_lost_round_claims_no_accuracy() -> None:
    lost: RoundLine = {"round": 4, "survivors": [], "dropped": ["source-1"], "status": "lost", "accuracy": 0.9}
    assert round_text(lost, 50) == "round 4 of 50: lost, the model stays as it was, 0 sources, dropped source-1"


def test_a_round_of_the_target_alone_counts_no_sources() -> None:
    line: RoundLine = {"round": 1, "rule": "target_only", "accuracy": 0.5, "status": "finished"}
    assert round_text(line, 2) == "round 1 of 2: accuracy 0.500"


def test_waiting_for_sites_to_join_is_no_part_of_a_round() -> None:
    line: RoundLine = {"round": 3, "accuracy": 0.5, "seconds": {"join": 400.0, "training": 2.0}}
    assert round_text(line, 50) == "round 3 of 50: accuracy 0.500, 0 sources, 2.0 s, about 2 min left"


def test_a_metric_of_which_lower_is_better_and_a_balanced_accuracy_are_named() -> None:
    metric: ChosenMetric = {"name": "rmse", "words": "RMSE", "better": "lower", "percent": False}
    line: RoundLine = {"round": 2, "metrics": {"rmse": 12.345, "mae": 0.1}, "metric": metric}
    assert "RMSE 12.35, " in round_text(line, 4)
    metrics = {"accuracy": 0.76, "balanced_accuracy": 0.5}
    assert "accuracy 0.760 (balanced 0.500)" in round_text({"round": 1, "accuracy": 0.76, "metrics": metrics}, 4)


def test_where_rows_are_kept_for_it_they_say_which_round_is_best() -> None:
    progressed, shown = ProgressEstimate(), []
    for number, accuracy, validation, loss in ((1, 0.9, 0.5, 1.0), (2, 0.5, 0.7, 0.8), (3, 0.8, 0.7, 0.9)):
        figures = {"accuracy": accuracy, "validation_accuracy": validation, "validation_loss": loss}
        shown.append(progressed.text({**LINE, "round": number, **figures}))  # type: ignore[typeddict-item]
    assert "accuracy 0.900, validation 0.500 (best), " in shown[0]
    assert ["(best)" in text for text in shown] == [True, True, False]  # the last is as accurate, its loss is larger


def test_a_pipe_gets_plain_lines_and_says_for_whom_the_start_waits() -> None:
    stream = io.StringIO()
    with console_reporter(stream) as reporter:
        assert isinstance(reporter, LineReporter)
        reporter.phase("join", ["source-1", "source-2"], 3)
        reporter.phase("join", ["source-1", "source-2"], 3)
        reporter.note("source-1 joined")
        reporter.round_started(3, 50)
        reporter.phase("training", ["source-1"])
        reporter.round_finished(LINE)
    assert stream.getvalue().splitlines() == [
        "gathering sources (1 of 3; waiting for source-1, source-2)",
        "source-1 joined",
        *round_text(LINE, 50).splitlines(),
    ]


def test_a_terminal_says_how_far_the_slowest_site_is_in_its_training_and_a_pipe_does_not() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        with console_reporter(stream) as reporter:
            reporter.round_started(3, 50)
            reporter.phase("training", ["source-1", "source-2"], 3)
            reporter.steps("source-1", 30, 480)
            reporter.steps("source-2", 9, 480)
    shown = " ".join(terminal.getvalue().split())
    assert "training (1 of 3; waiting for source-1, source-2); source-2: step 9 of 480" in shown
    assert pipe.getvalue() == ""


def test_what_is_left_of_a_training_follows_from_the_pace_of_its_steps() -> None:
    times = iter([10.0, 12.0, 20.0, 21.0])
    steps = StepsOfSites(lambda: next(times))
    shown = []
    for done in (100, 150, 5):  # the last of the next round
        steps.heard("source-1", done, 400)
        shown.append(str(steps.sites["source-1"]))
    assert shown == ["step 100 of 400", "step 150 of 400, about 10 s left", "step 5 of 400"]
    steps.heard("source-2", 1, 400)
    assert steps.slowest() == "source-2: step 1 of 400"
    steps.keep(["source-1"])
    assert steps.slowest() == "source-1: step 5 of 400"
    steps.keep([])
    assert steps.slowest() == ""


def test_a_run_goes_on_when_the_reader_of_its_lines_has_gone() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = os.fdopen(write_end, "w")
    with console_reporter(stream) as reporter:
        reporter.note("nobody reads this")
        reporter.round_started(3, 50)
        reporter.round_finished(LINE)
    with pytest.raises(BrokenPipeError):  # it did try
        stream.close()


def test_a_terminal_that_can_only_print_gets_the_lines_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with console_reporter(stream) as reporter:
        reporter.round_started(12, 50)
        reporter.round_finished(QUIET)
    assert stream.getvalue() == f"{round_text(QUIET, 50)}\n"


def test_a_terminal_gets_one_table_with_the_sites_that_are_waited_for_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with console_reporter(stream) as reporter:
        reporter.round_started(3, 50)
        reporter.round_finished(LINE)
        reporter.note("[source-2] is not markup")
        reporter.round_started(4, 50)
        reporter.phase("training", ["source-1"])
    text = CONTROL.sub("\n", stream.getvalue())
    assert re.search(
        r"round  accuracy +loss  from sources  beta +time +bytes\s+3/50 +71.3 % +0.500 +- +0.41 +1.2 s +-", text
    )
    assert "dropped source-3, source-4 refused min-others" in text
    assert "[source-2] is not markup" in text
    assert re.search(r" 4/50  training \(waiting for source-1\)  0:00:0\d, about 59 s left", text)


@pytest.mark.parametrize("width", [40, 60, 80, 110])
def test_every_row_of_the_table_is_one_line_at_every_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"validation_accuracy": 0.7, "validation_loss": 0.5}
    rows: list[RoundLine] = [{**QUIET, "round": number, **figures} for number in (1, 99, 100)]  # type: ignore[typeddict-item]
    head, *shown = table(rows, 100, width, monkeypatch)
    assert [line.split()[0] for line in shown if "%" in line] == ["1/100", "99/100", "100/100"]
    assert all(len(line) <= width for line in (head, *shown))
    columns = re.split(r" {2,}", head.strip())
    expected = {
        40: ["round", "accuracy", "loss", "from sources"],
        60: ["round", "accuracy", "validation", "loss", "from sources", "beta"],
        80: ["round", "accuracy", "validation", "loss", "from sources", "beta", "time", "bytes"],
        110: ["round", "accuracy", "balanced", "validation", "loss", "from sources", "beta", "time", "bytes"],
    }
    assert columns == expected[width]
    for row in shown:  # every cell ends below its heading
        assert [found.end() for found in re.finditer(r"\S+( \S+)?", row)] == [
            found.end() for found in re.finditer(r"\S+( \S+)?", head)
        ]


def test_a_lost_round_is_a_row_without_figures_and_no_second_heading(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: RoundLine = {"round": 13, "rule": "fedgp_auto", "survivors": [], "dropped": ["source-1"], "status": "lost"}
    shown = table([QUIET, lost, {**QUIET, "round": 14}], 50, 80, monkeypatch)
    assert sum("accuracy" in line for line in shown) == 1
    assert any(re.fullmatch(r" *13/50 +- +- +- +- +- +- +-", line) for line in shown)
    assert any("lost, the model stays as it was, dropped source-1" in line for line in shown)


def test_many_sites_are_counted_and_not_listed() -> None:
    assert first_of([f"s{i}" for i in range(9)], 4) == "s0, s1, s2, s3 and 5 more"
    assert first_of(["a", "b", "c", "d"], 4) == "a, b, c, d"


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_words_of_a_peer_cannot_steer_the_terminal_nor_begin_a_line_of_their_own(stream: io.StringIO) -> None:
    with console_reporter(stream) as reporter:
        reporter.note("source-1 refused: \x1b[2J\x1b]0;title\x07\nround 50 of 50: accuracy 1.000")
    assert "source-1 refused: ?[2J?]0;title??round 50 of 50: accuracy 1.000\n" in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()


def test_what_norm_caps_did_is_explained_once() -> None:
    progressed = ProgressEstimate()
    line = {"round": 1, "survivors": ["north"], "emptied": ["head.weight"]}
    gloss = "left sources out of 1 layer (where one would have made up most of the sum)"
    assert gloss in progressed.text(line)
    assert progressed.text(line | {"round": 2}).endswith("left sources out of 1 layer")
