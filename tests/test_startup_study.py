"""The study of start-up: its bars, what it takes of a command, and its tables."""

import json
import sys
import time

import pytest
from benchmark_studies import imported_study


@pytest.fixture(scope="module")
def study():
    with imported_study("startup") as module:
        yield module


def runs(*walls, processor=1.0):
    return [{"wall": wall, "processor": processor} for wall in walls]


@pytest.fixture
def figures():
    """Of five repeats, every bar kept."""
    source = {"import_torch": runs(1, 1, 1, 2, 2), "source": runs(1.2, 1.5, 9, 3, 2)}
    light = [{"command": "threats", "imports": [], "taken": runs(0.3)}]
    parts = {"source": source, "demo": runs(14, 15, 15, 99, 13), "light": light}
    beside = {"load": 0.1, "others": 0.0}
    return {"repeats": 5} | {name: {"figures": part, **beside} for name, part in parts.items()}


def run(study, figures, folder, monkeypatch, *more):
    path = folder / "startup.json"
    path.write_text(json.dumps(figures))
    monkeypatch.setattr(sys, "argv", ["startup.py", "--figures", str(path), *more])
    return study.main()


def test_a_ratio_is_to_the_import_of_the_same_turn(study, figures, tmp_path, monkeypatch, capsys):
    assert study.ratios(figures["source"]["figures"]) == [1.2, 1.5, 9, 1.5, 1]
    assert run(study, figures, tmp_path, monkeypatch, "--check") == 0
    shown = capsys.readouterr()
    assert "| that over `import torch` | 1.50 (1.00 to 9.00) | 1.00 | 1.5 |" in shown.out
    assert "| `threats` | 0.30 (0.30 to 0.30) | 1.00 (1.00 to 1.00) | none |" in shown.out
    assert shown.err == "Every bar is kept.\n"


def of_sources(figures):
    for place, wall in ((1, 1.6), (3, 3.2)):
        figures["source"]["figures"]["source"][place]["wall"] = wall


def of_the_demo(figures):
    figures["demo"]["figures"][1:3] = runs(15.1, 15.1)


def of_imports(figures):
    figures["light"]["figures"][0]["imports"] = ["torch"]


def of_repeats(figures):
    figures["repeats"] = 4


def test_a_budget_that_is_shown_is_compared_with_rows_and_may_import_torch(study, figures, tmp_path, monkeypatch):
    figures["light"]["figures"][0] |= {"command": study.SHOWS_A_BUDGET, "imports": ["torch"]}
    assert run(study, figures, tmp_path, monkeypatch, "--check") == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (of_sources, "MISSED: a source takes 1.60 times import torch until it has joined: 1.5"),
        (of_the_demo, "MISSED: the demo takes 15.1 s: 15 s"),
        (of_imports, "MISSED: threats imports torch"),
        (of_repeats, "MISSED: medians of 4, at least 5 are needed"),
    ],
)
def test_a_bar_that_is_missed_ends_the_check_with_1(study, figures, tmp_path, monkeypatch, capsys, change, said):
    change(figures)
    assert run(study, figures, tmp_path, monkeypatch, "--check") == 1
    assert capsys.readouterr().err == said + "\n"
    assert run(study, figures, tmp_path, monkeypatch) == 0


def test_a_process_is_timed_until_it_says_the_words_and_ended_then(study):
    code = "import time; print('first', flush=True); print('the words', flush=True); time.sleep(600)"
    began = time.perf_counter()
    taken = study._until([sys.executable, "-c", code], "words")
    assert 0 < taken.wall <= time.perf_counter() - began < 600
    assert taken.processor > 0


def test_a_process_that_never_says_them_is_an_error_with_what_it_said(study):
    with pytest.raises(RuntimeError, match="never said 'words':\nsomething else"):
        study._until([sys.executable, "-c", "print('something else')"], "words")


def test_a_command_is_timed_whole_and_its_libraries_are_found(study):
    taken = study._whole("--version")
    assert taken.wall > 0
    assert taken.processor > 0
    assert study._imports_of(["--version"]) == []
    plan = "budget plan --rounds 2 --samples 100 --batch 10 --noise 1 --delta 1e-5"
    assert study._imports_of(plan.split()) == ["scipy"]


def test_a_source_joins_and_is_compared_with_an_import(study, tmp_path):
    figures = study.source_figures(tmp_path, 1)
    assert {name: len(found) for name, found in figures.items()} == {"import_torch": 1, "source": 1}
    assert min(figures["source"][0].values()) > 0
    assert min(figures["import_torch"][0].values()) > 0
