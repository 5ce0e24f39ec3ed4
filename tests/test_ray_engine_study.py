"""The study of Ray's cost: its bars, what it compares, and its table."""

import json
import sys

import pytest
from benchmark_studies import imported_study


@pytest.fixture(scope="module")
def study():
    with imported_study("ray_engine") as module:
        yield module


@pytest.fixture
def figures():
    """Of five turns, every bar kept."""
    seconds = ((50, 55), (50, 57.5), (50, 90), (100, 115), (60, 60))
    turns = [{"local": {"seconds": a, "others": 0.1}, "ray": {"seconds": b, "others": 0.2}} for a, b in seconds]
    return {"runs": 17, "same": True, "turns": turns}


def run(study, figures, folder, monkeypatch, *more):
    path = folder / "ray_engine.json"
    path.write_text(json.dumps(figures))
    monkeypatch.setattr(sys, "argv", ["ray_engine.py", "--figures", str(path), *more])
    return study.main()


def test_a_ratio_is_of_the_two_runs_of_one_turn(study, figures, tmp_path, monkeypatch, capsys):
    assert study.ratios(figures) == [1.1, 1.15, 1.8, 1.15, 1]
    assert run(study, figures, tmp_path, monkeypatch, "--check") == 0
    shown = capsys.readouterr()
    cells = ("17", "50.0 (50.0 to 100.0)", "60.0 (55.0 to 115.0)", "1.15 (1.00 to 1.80)", "1.15", "the same", "0.2")
    assert f"| {' | '.join(cells)} |" in shown.out
    assert shown.err == "Every bar is kept.\n"


def slower(figures):
    figures["turns"][1]["ray"]["seconds"] = 58
    figures["turns"][3]["ray"]["seconds"] = 116


def fewer(figures):
    del figures["turns"][2]


def other(figures):
    figures["same"] = False


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (slower, "MISSED: Ray takes 1.16 times the local engine's time: 1.15"),
        (fewer, "MISSED: medians of 4, at least 5 are needed"),
        (other, "MISSED: the engines gave different results"),
    ],
)
def test_a_bar_that_is_missed_ends_the_check_with_1(study, figures, tmp_path, monkeypatch, capsys, change, said):
    change(figures)
    assert run(study, figures, tmp_path, monkeypatch, "--check") == 1
    assert capsys.readouterr().err == said + "\n"
    assert run(study, figures, tmp_path, monkeypatch) == 0


def test_runs_are_compared_whichever_ended_first(study, tmp_path):
    for folder, lines in (("a", "1\n2\n"), ("b", "2\n1\n"), ("c", "1\n3\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "runs.jsonl").write_text(lines)
    a, b, c = (study.runs_in(tmp_path / folder) for folder in "abc")
    assert a == b != c


def test_a_suite_that_fails_is_an_error_with_what_it_said(study, tmp_path):
    with pytest.raises(RuntimeError, match=r"ended with 4(?s:.*)there is no 'rey'"):
        study.seconds_of("--engine", "rey", "--out", str(tmp_path / "out"))
