"""Progress: one line per round in a pipe, a bar on a terminal, and for whom a run waits."""

from __future__ import annotations

import io

import pytest
from stand_ins import Terminal

from securefda.cli.console import BarReporter, LineReporter, ProgressEstimate, console_reporter
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


def round_text(line: RoundLine, rounds: int) -> str:
    progressed = ProgressEstimate()
    progressed.rounds = rounds
    return progressed.text(line)


def test_a_finished_round_is_one_line_with_what_went_wrong_in_it() -> None:
    assert round_text(LINE, 50) == (
        "round 3 of 50: accuracy 0.713, loss 0.500, beta 0.41, 2 sources, "
        "dropped source-3, source-4 refused min-others, 1.2 s, about 59 s left"
    )


def test_a_lost_round_claims_no_accuracy() -> None:
    lost: RoundLine = {"round": 4, "survivors": [], "dropped": ["source-1"], "status": "lost", "accuracy": 0.9}
    assert round_text(lost, 50) == "round 4 of 50: lost, the model stays as it was, 0 sources, dropped source-1"


def test_a_round_of_the_target_alone_counts_no_sources() -> None:
    line: RoundLine = {"round": 1, "rule": "target_only", "accuracy": 0.5, "status": "finished"}
    assert round_text(line, 2) == "round 1 of 2: accuracy 0.500"


def test_waiting_for_sites_to_join_is_no_part_of_a_round() -> None:
    line: RoundLine = {**LINE, "seconds": {"join": 400.0, "training": 2.0}}
    assert ", 2.0 s, about 94 s left" not in round_text(line, 50)
    assert ", 2.0 s, about 2 min left" in round_text(line, 50)


def test_the_best_round_is_named_once_it_is_not_the_last() -> None:
    progressed, shown = ProgressEstimate(), []
    for number, accuracy in ((1, 0.5), (2, 0.7), (3, 0.6)):
        shown.append(progressed.text({"round": number, "accuracy": accuracy, "status": "finished", "survivors": ["a"]}))
    assert ["highest" in text for text in shown] == [False, False, True]
    assert "accuracy 0.600, highest on test rows 0.700 in round 2, 1 source" in shown[-1]  # they choose no best model


def test_a_metric_of_which_lower_is_better_and_a_balanced_accuracy_are_named() -> None:
    progressed, shown = ProgressEstimate(), []
    metric: ChosenMetric = {"name": "rmse", "words": "RMSE", "better": "lower", "percent": False}
    for number, rmse in ((1, 0.5), (2, 12.345), (3, 0.4), (4, 0.6)):
        line: RoundLine = {"round": number, "metrics": {"rmse": rmse, "mae": 0.1}, "metric": metric}
        shown.append(progressed.text(line))
    assert "RMSE 12.35, lowest on test rows 0.500 in round 1" in shown[1]
    assert "RMSE 0.600, lowest on test rows 0.400 in round 3" in shown[3]
    metrics = {"accuracy": 0.76, "balanced_accuracy": 0.5}
    assert "accuracy 0.760 (balanced 0.500)" in progressed.text({"round": 1, "accuracy": 0.76, "metrics": metrics})


def test_where_rows_are_kept_for_it_they_say_which_round_is_best() -> None:
    progressed, shown = ProgressEstimate(), []
    for number, accuracy, validation, loss in ((1, 0.9, 0.5, 1.0), (2, 0.5, 0.7, 0.8), (3, 0.8, 0.7, 0.9)):
        figures = {"accuracy": accuracy, "validation_accuracy": validation, "validation_loss": loss}
        shown.append(progressed.text({**LINE, "round": number, **figures}))  # type: ignore[typeddict-item]
    assert "accuracy 0.900, validation accuracy 0.500, " in shown[0]
    assert ["best" in text for text in shown] == [False, False, True]
    assert "validation accuracy 0.700, best 0.700 in round 2" in shown[2]  # as accurate, and its loss is smaller


def test_a_resumed_run_claims_a_best_of_the_rounds_that_it_showed() -> None:
    progressed = ProgressEstimate()
    progressed.text({**LINE, "round": 7, "accuracy": 0.8})
    assert "highest on test rows since round 7 0.800 in round 7" in progressed.text(
        {**LINE, "round": 8, "accuracy": 0.7}
    )


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
        round_text(LINE, 50),
    ]


def test_a_terminal_says_how_far_the_slowest_site_is_in_its_training_and_a_pipe_does_not() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        with console_reporter(stream) as reporter:
            reporter.round_started(3, 50)
            reporter.phase("training", ["source-1", "source-2"], 3)
            reporter.steps("source-1", 30, 480)
            reporter.steps("source-2", 9, 480)
    assert "training (1 of 3; waiting for source-1, source-2); source-2: step 9 of 480" in terminal.getvalue()
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


def test_a_terminal_gets_a_bar_with_the_sites_that_are_waited_for_and_every_round_above_it() -> None:
    stream = Terminal()
    with console_reporter(stream) as reporter:
        assert isinstance(reporter, BarReporter)
        reporter.round_started(3, 50)
        reporter.phase("training", ["source-1"])
        reporter.round_finished(LINE)
        reporter.note("[source-2] is not markup")
    text = stream.getvalue()
    assert "round 3 of 50: accuracy 0.713" in text
    assert "[source-2] is not markup" in text
    assert "round 3 of 50" in text
    assert "training (waiting for source-1)" in text


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
    assert "left sources out of 1 layer, " in f"{progressed.text(line | {'round': 2})}, "
