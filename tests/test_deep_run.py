"""The result of the deep run: kept with its commit, and a warning where it is old. In a repository of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).with_name("deep.py")
RESULT = {"commit": "", "date": "2026-01-01", "passed": 3, "failed": 0, "skipped": 0}


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, in a repository with one commit and three tests."""
    spec = importlib.util.spec_from_file_location("deep", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(
        "import os\n"
        "def test_depth(): assert os.environ['SECUREFDA_TEST_DEPTH'] == 'deep'\n"
        "def test_fine(): pass\n"
        "def test_other(): assert not os.path.exists('broken')\n"
    )
    monkeypatch.setattr(module, "REPOSITORY", tmp_path)
    monkeypatch.setattr(module, "RESULT", tmp_path / "tests" / "deep.json")
    for key in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{key}_NAME", "someone")
        monkeypatch.setenv(f"GIT_{key}_EMAIL", "someone@example.org")
    module.git("init", "--quiet")
    commit(module, "first")
    return module


def commit(deep: ModuleType, message: str) -> None:
    deep.git("add", "--all")
    deep.git("commit", "--quiet", "--allow-empty", "--message", message)


def keep(deep: ModuleType, **changes: object) -> None:
    result = RESULT | {"commit": deep.git("rev-parse", "HEAD")} | changes
    deep.RESULT.write_text(json.dumps(result))
    commit(deep, "result")


def test_a_deep_run_commits_its_counts_with_the_commit_that_they_are_of(deep: ModuleType) -> None:
    tested = deep.git("rev-parse", "HEAD")

    assert deep.run([]) == 0

    result = json.loads(deep.RESULT.read_text())
    assert (result["commit"], result["passed"], result["failed"], result["skipped"]) == (tested, 3, 0, 0)
    assert deep.git("log", "--format=%s", "-1") == f"Deep run of {tested[:7]}: 3 passed, 0 failed"
    assert deep.git("status", "--porcelain", "--untracked-files=no") == ""


def test_a_failed_deep_run_is_kept_too_and_warned_of(deep: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    (deep.REPOSITORY / "broken").touch()

    assert deep.run([]) == 1

    assert json.loads(deep.RESULT.read_text())["failed"] == 1
    assert deep.check() == 0
    assert "had 1 failed tests; run `make test-deep`" in capsys.readouterr().err


def test_a_narrowed_run_is_not_kept(deep: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert deep.run(["-k", "fine"]) == 0
    assert not deep.RESULT.exists()
    assert "not kept: the run was narrowed" in capsys.readouterr().err


def test_changes_that_are_not_committed_refuse_the_run(deep: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    (deep.REPOSITORY / "tests" / "test_some.py").write_text("def test_none(): assert False\n")
    assert deep.run([]) == 4
    assert capsys.readouterr().err.splitlines() == [
        "error: there are changes that are not committed, so that no commit has this result",
        "hint: commit them first",
    ]
    assert not deep.RESULT.exists()


@pytest.mark.parametrize(("commits", "warns"), [(29, False), (30, True)])
def test_a_result_of_more_than_30_commits_ago_is_warned_of(
    deep: ModuleType, capsys: pytest.CaptureFixture[str], commits: int, warns: bool
) -> None:
    keep(deep)
    for number in range(commits):
        commit(deep, f"later {number}")
    assert deep.check() == 0
    assert ("is 31 commits old" in capsys.readouterr().err) == warns


def test_a_result_that_is_missing_or_of_another_history_is_warned_of(
    deep: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deep.check() == 0
    assert "there is no result of a deep run" in capsys.readouterr().err
    keep(deep, commit="0" * 40)
    assert deep.check() == 0
    assert "of a commit that is not in this history" in capsys.readouterr().err


def test_a_folder_without_git_is_one_clear_line(
    deep: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    subprocess.run(["rm", "-rf", str(tmp_path / ".git")], check=True)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert deep.run([]) == 4
    assert "is no git checkout" in capsys.readouterr().err
