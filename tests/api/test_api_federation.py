"""``Federation``: settings, files, and runs that are there already."""

from __future__ import annotations

import sys
import threading
import tomllib
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest
from api_rows import SHORT, SOURCES, data, deep, federation, linear, rows

import securefda
from securefda.errors import ConfigErrors


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_settings_are_those_of_a_file_with_underscores() -> None:
    made = securefda.Federation(
        "my_task:Hearts",
        "clinic",
        SOURCES,
        "fedda_auto",
        options={"with_underscore": 1},
        data_dir="files",
        metric="auroc",
        strategy={"warm_up_rounds": 4},
        training={"target": {"learning_rate": 0.5}},
    )
    settings = made.settings
    assert (made.name, made.target, made.sources, made.rule) == ("federation", "clinic", SOURCES, "fedda_auto")
    assert settings["strategy"]["warm-up-rounds"] == 4
    assert settings["training"]["target"]["learning-rate"] == 0.5
    assert settings["task"] == {
        "factory": "my_task:Hearts",
        "data-dir": Path("files"),
        "metric": "auroc",
        "options": {"with_underscore": 1},
    }


def test_a_wrong_setting_is_the_command_lines_error_with_its_hint() -> None:
    with pytest.raises(securefda.ConfigError, match=r"strategy\.round: unknown key \(Federation\(\)\)") as caught:
        securefda.Federation("my_task:Hearts", "clinic", SOURCES, strategy={"round": 3})
    assert "hint: did you mean strategy.rounds?" in traceback.format_exception(caught.value)[-1]


def test_all_wrong_settings_are_in_the_traceback_at_once() -> None:
    with pytest.raises(ConfigErrors) as caught:
        securefda.load("digits", strategy={"rounds": 0}, training={"target": {"epochs": 0}})
    shown = "".join(traceback.format_exception(caught.value))
    assert "training.target.epochs: must be at least 1" in shown
    assert "strategy.rounds" in shown


def test_a_file_can_be_read_changed_and_written_again() -> None:
    securefda.load("digits", "fedda_auto", strategy={"rounds": 7}).to_file("mine.toml")
    again = securefda.Federation.from_file("mine.toml")
    assert again.rule == "fedda_auto"
    assert again.settings == securefda.load("digits", "fedda_auto", strategy={"rounds": 7}).settings
    assert "join-deadline-s" not in Path("mine.toml").read_text()


def test_a_folder_of_data_stays_the_same_one_in_a_file_elsewhere(tmp_path: Path) -> None:
    made = securefda.Federation("my_task:Hearts", "clinic", SOURCES, data_dir="files")
    (tmp_path / "other").mkdir()
    made.to_file("other/mine.toml")
    assert tomllib.loads(Path("other/mine.toml").read_text())["task"]["data-dir"] == str(tmp_path / "files")


def test_a_file_cannot_name_a_task_of_this_process() -> None:
    with pytest.raises(securefda.ConfigError, match="a file can only name a module"):
        federation().to_file("mine.toml")
    assert not Path("mine.toml").exists()


def test_an_unknown_sample_is_refused_with_those_there_are() -> None:
    with pytest.raises(securefda.ConfigError, match="digit: is no sample federation") as caught:
        securefda.load("digit")
    assert "three_hospitals" in caught.value.hint


def test_sources_are_the_other_sites_of_the_data() -> None:
    assert federation().sources == SOURCES
    task = securefda.task_from(linear, data(), rows())
    with pytest.raises(securefda.ConfigError, match="praxis: has no rows in the data"):
        securefda.Federation(task, "praxis")


def test_a_run_is_returned_and_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    first = federation().simulate(quiet=True)
    assert capsys.readouterr().err == ""
    digest = first.summary["run_id"]
    again = federation().simulate()
    assert capsys.readouterr().err == f"the same run is there: {first.path}\n"
    assert (again.path, again.summary["run_id"]) == (first.path, digest)


def test_a_fresh_run_is_trained_again() -> None:
    first, again = federation().simulate(quiet=True), federation().simulate(fresh=True, quiet=True)
    assert again.path == first.path
    assert again.summary["run_id"] != first.summary["run_id"]


def test_other_settings_seeds_rows_and_models_make_another_run() -> None:
    made = federation()
    paths = [made.simulate(quiet=True).path, made.simulate(seed=1, quiet=True).path]
    paths += [made.simulate(rounds=3, quiet=True).path, federation(rule="fedgp_auto").simulate(quiet=True).path]
    for model, given in ((linear, data(a=rows(41))), (deep, data())):
        task = securefda.task_from(model, given, rows(seed=9))
        paths.append(securefda.Federation(task, "clinic", name="small", **SHORT).simulate(quiet=True).path)
    assert len(set(paths)) == len(paths)


def test_a_folder_with_another_run_is_refused_as_by_the_command() -> None:
    federation().simulate(out="there", quiet=True)
    with pytest.raises(securefda.ConfigError, match="--out: there holds a run already"):
        federation().simulate(seed=1, out="there", quiet=True)
    assert federation().simulate(seed=1, out="there", fresh=True, quiet=True).summary["setting"]["seed"] == 1


def test_a_run_that_failed_is_tried_again() -> None:
    made = federation(training={"source": {"learning_rate": 1e30}})
    with pytest.raises(securefda.SecureFdaError):
        made.simulate(quiet=True)
    assert [run.status for run in securefda.runs()] == ["failed"]
    with pytest.raises(securefda.SecureFdaError, match="diverge"):
        made.simulate(quiet=True)


class StandInForIPython:
    """What a run needs of IPython: a shell, with a kernel or without, and a display that keeps what it shows."""

    def __init__(self, shell: object) -> None:
        self.get_ipython = lambda: shell
        self.shown: list[str] = []
        self.displays = 0

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Self:
        assert (raw, display_id) == (True, True)
        self.displays += 1
        self.shown.append(data["text/plain"])
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(data["text/plain"])


@pytest.mark.parametrize("in_notebook", [True, False], ids=["notebook", "without a kernel"])
def test_a_notebook_shows_the_lines_of_a_run_in_one_place(
    in_notebook: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ipython = StandInForIPython(SimpleNamespace(**({"kernel": None} if in_notebook else {})))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython)
    monkeypatch.setattr("securefda.cli.console._CELL_LINES", 2)
    monkeypatch.setattr("securefda.cli.console._CELL_PAUSE_S", 0.0)
    federation().simulate(rounds=2)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("round ")]
    if not in_notebook:
        assert (len(lines) >= 2, ipython.shown) == (True, [])
        return
    assert (lines, ipython.displays) == ([], 1)
    assert max(len(shown.splitlines()) for shown in ipython.shown) == 3  # these two, and what it does
    assert any("round 1 of 2: accuracy " in shown for shown in ipython.shown)
    first, second = ipython.shown[-1].splitlines()  # the last ones alone
    assert (first[:23], second[:16]) == ("round 2 of 2: accuracy ", "the run is over;")


def test_fewer_rounds_shorten_the_warm_up_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    run = federation(strategy={"warm_up_rounds": 4}).simulate(rounds=2)
    assert run.settings["strategy.warm-up-rounds"] == 1
    shown = capsys.readouterr().err
    assert "strategy.warm-up-rounds: 4" in shown
    assert [line.partition(":")[0] for line in shown.splitlines() if line.startswith("round")] == [
        "round 1 of 2",
        "round 2 of 2",
    ]


def test_a_run_can_start_in_any_thread() -> None:
    found: list[securefda.Run] = []
    thread = threading.Thread(target=lambda: found.append(federation().simulate(quiet=True)))
    thread.start()
    thread.join()
    assert found[0].status == "finished"


def test_a_federation_shows_itself_with_everything_escaped() -> None:
    made = securefda.Federation("my_task:Hearts", "clinic", SOURCES)
    assert repr(made) == "<Federation federation: target clinic, 3 sources, fedda_auto, Hearts>"
    assert '>sources</th><td style="text-align: left">a, b, c</td></tr>' in made._repr_html_()
