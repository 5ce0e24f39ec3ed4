"""T46: reading a run folder runs no code that the folder names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from securefda.cli import main
from securefda.errors import ConfigError, ExitCode
from securefda.operations import trained
from threat_model.adversaries.run_folders import OWN_CLASS, MakesRunFolder
from threat_model.sites import roster_of
from threat_model.switches import replaced, switched_off

ONLY_SHIPPED_TASKS = replaced(
    "which class of a task is imported", trained, "_class_of", lambda _: lambda named, given, run: given or named
)
"""A folder's own class is imported, wherever it is from."""

OF_SECUREFDA = "securefda.tasks.digits:Digits"
IN_OPTIONS = "securefda.tasks.stand_in:StandIn"
WAYS: dict[str, Callable[[Path], MakesRunFolder]] = {
    "in the summary": MakesRunFolder,
    "in the options": lambda folder: MakesRunFolder(
        folder, IN_OPTIONS, factory=OWN_CLASS, rows={"target": 9, "source-1": 9}
    ),
}


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, in which the archive is unpacked; what it adds to this process is taken back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    yield tmp_path
    sys.modules.pop(OWN_CLASS.partition(":")[0], None)


@pytest.mark.threat("T46")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("command", ["predict study --data x", "export study --format torchscript"])
def test_commands_on_a_folder_run_no_class_that_it_names(
    unpacked: Path, capsys: pytest.CaptureFixture[str], command: str, way: str
) -> None:
    adversary = WAYS[way](unpacked)
    assert main(command.split()) == ExitCode.CONFIG
    assert not adversary.attack()
    said = capsys.readouterr().err
    wanted = f"names {OWN_CLASS}, a task that" if way == "in the summary" else "is of a trial on other rows"
    assert wanted in said
    assert (f"add --task {OWN_CLASS} " in said) == (way == "in the summary")


@pytest.mark.threat("T46")
def test_a_name_in_other_letters_is_shown_as_such(unpacked: Path) -> None:
    adversary = MakesRunFolder(unpacked, "secur\u0435fda.tasks.digits:Digits")
    with pytest.raises(ConfigError, match=r"names secur\\u0435fda") as refused:
        trained.trained_model(adversary.run)
    assert refused.value.hint.isascii()


@pytest.mark.threat("T46")
@pytest.mark.parametrize("named", [OF_SECUREFDA, OWN_CLASS])
def test_a_class_of_securefda_is_loaded_whatever_else_the_folder_names(unpacked: Path, named: str) -> None:
    adversary = MakesRunFolder(unpacked, named)
    task, _ = trained.trained_model(adversary.run, task="" if named == OF_SECUREFDA else OF_SECUREFDA)
    assert type(task).__module__ == "securefda.tasks.digits"
    assert not adversary.attack()


@pytest.mark.threat("T46")
def test_users_name_their_own_class(unpacked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MakesRunFolder(unpacked)
    assert main(["runs", "show", "study"]) == 0
    assert f"Run.open('study', task='{OWN_CLASS}').model" in capsys.readouterr().out
    assert main(["predict", "study", "--data", "x", "--task", OWN_CLASS]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.threat("T46")
@pytest.mark.control
@pytest.mark.parametrize("way", WAYS)
def test_a_folder_runs_its_class_where_any_class_is_imported(unpacked: Path, way: str) -> None:
    adversary = WAYS[way](unpacked)
    with switched_off(ONLY_SHIPPED_TASKS, roster=roster_of(3)):
        trained.trained_model(adversary.run)
    assert adversary.attack()
