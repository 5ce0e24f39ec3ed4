"""The recorder, on small made-up registers and their tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from securefda.threat_register import LAST_RUN_FILE, load_last_run

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.machinery

ROW = """
[[threat]]
id = "{id}"
title = "a threat"
attackers = ["Mal-A"]
asset = "an update"
levels = ["sum"]
status = "{status}"
mitigation = "a check"
modules = ["securefda/protocol/session_checks.py"]
residual = "none"
control = {control}
"""
ATTACK = "import pytest\n\n\n@pytest.mark.threat('T01')\ndef test_attack_fails():\n    pass\n\n\n"
CONTROL = "@pytest.mark.threat('T01')\n@pytest.mark.control\ndef test_attack_succeeds():\n    pass\n\n\n"
OTHER = "def test_something_else():\n    pass\n"
PLANNED = "@pytest.mark.threat('T02')\ndef test_what_is_there_of_it():\n    pass\n\n\n"

_WITHOUT = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")  # hypothesis takes a second to load


class Project:
    """A tree with one mitigated threat, T01, that needs a control, and a planned one, T02."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        self.folder = pytester.path / "threat_model"
        (self.folder / "tests").mkdir(parents=True)
        (pytester.path / "tests").mkdir()
        rows = ROW.format(id="T01", status="mitigated", control="true")
        rows += ROW.format(id="T02", status="planned", control="false")
        (self.folder / "threats.toml").write_text(rows)
        pytester.makeini("[pytest]\ntestpaths = tests threat_model/tests\naddopts = --strict-markers\n")
        self.tests("test_attacks.py", ATTACK + CONTROL + PLANNED)
        self.tests("test_others.py", OTHER, folder="tests")

    def tests(self, name: str, source: str, folder: str = "threat_model/tests") -> None:
        (self._pytester.path / folder / name).write_text(source)

    def run(self, *arguments: str) -> pytest.RunResult:
        return self._pytester.runpytest("-p", "threat_model.recorder", *_WITHOUT, *arguments)

    def outcomes(self) -> dict[str, tuple[str, str]]:
        """Test function -> its kind and outcome, as they are on disk."""
        last = load_last_run(self.folder)
        assert last is not None
        return {name.split("::")[1]: (test.kind, test.outcome) for name, test in last.tests.items()}

    def was_full(self) -> bool:
        last = load_last_run(self.folder)
        return last is not None and last.full_run is not None


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("PART", "POOL"):  # of the run that this test is a part of
        monkeypatch.delenv(f"SECUREFDA_TEST_{name}", raising=False)
    return Project(pytester)


ALL_PASSED = {
    "test_attack_fails": ("adversary", "passed"),
    "test_attack_succeeds": ("control", "passed"),
    "test_what_is_there_of_it": ("adversary", "passed"),
}


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_full_run_that_shows_every_claim_passes_and_is_written_down(project: Project, workers: tuple[str, ...]) -> None:
    result = project.run(*workers)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["1 mitigated threats, 3 tests of threats in * s"])
    assert project.outcomes() == ALL_PASSED
    assert project.was_full()
    assert sorted(path.name for path in project.folder.iterdir()) == [LAST_RUN_FILE, "tests", "threats.toml"]


SKIPPED = ATTACK.replace("pass\n", "pytest.skip('not here')\n", 1)
EXPECTED_TO_FAIL = ATTACK.replace("@", "@pytest.mark.xfail\n@", 1).replace("pass\n", "raise ValueError\n", 1)
FAILED = ATTACK.replace("pass\n", "raise ValueError\n", 1)
BROKEN = ATTACK.replace("():", "(nothing):", 1)
SHORTFALLS = {
    "no test": ("import pytest\n" + CONTROL, "FAILED T01 is mitigated, and the tests of it: not run"),
    "skipped": (SKIPPED + CONTROL, "FAILED T01 is mitigated, and the tests of it: skipped"),
    "expected to fail": (EXPECTED_TO_FAIL + CONTROL, "FAILED T01 is mitigated, and the tests of it: skipped"),
    "failed": (FAILED + CONTROL, "FAILED T01 is mitigated, and the tests of it: failed"),
    "broken": (BROKEN + CONTROL, "FAILED T01 is mitigated, and the tests of it: failed"),
    "no control": (ATTACK, "FAILED T01 is mitigated, and its positive control: not run"),
    "no threat": (
        ATTACK + CONTROL + OTHER,
        "FAILED threat_model/tests/test_attacks.py::test_something_else names no threat: mark it so",
    ),
    "unknown": (
        ATTACK + CONTROL + PLANNED.replace("T02", "T99"),
        "FAILED threat_model/tests/test_attacks.py::test_what_is_there_of_it is marked T99,"
        " which is no threat of the register",
    ),
}


@pytest.mark.parametrize(("source", "line"), SHORTFALLS.values(), ids=SHORTFALLS)
def test_full_run_fails_with_a_line_for_what_is_not_shown(project: Project, source: str, line: str) -> None:
    project.tests("test_attacks.py", source)
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([line])
    assert project.was_full()


def test_control_of_no_threat_fails_a_full_run_wherever_it_is(project: Project) -> None:
    project.tests("test_others.py", f"import pytest\n\n\n@pytest.mark.control\n{OTHER}", folder="tests")
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["FAILED tests/test_others.py::test_something_else names no threat: mark it so"])


WATCH = """
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True, trylast=True)  # innermost: before a worker tells that it has finished
def pytest_sessionfinish(session):
    yield
    if hasattr(session.config, "workerinput"):
        written = (session.config.rootpath / "threat_model" / ".last-run.json").exists()
        (session.config.rootpath / "seen").write_text(str(written))
"""


def test_workers_write_nothing(project: Project, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(WATCH)
    assert project.run("-n", "1").ret == pytest.ExitCode.OK
    assert (pytester.path / "seen").read_text() == "False"
    assert project.outcomes() == ALL_PASSED


def test_full_run_on_two_workers_fails_likewise(project: Project) -> None:
    project.tests("test_attacks.py", ATTACK + OTHER)
    result = project.run("-n", "2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["FAILED T01 *control: not run", "FAILED *test_something_else names no threat*"])


def test_full_run_fails_where_the_register_cannot_be_read(project: Project) -> None:
    (project.folder / "threats.toml").write_text(ROW.format(id="T1", status="mitigated", control="true"))
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["FAILED threat.0.id: *"])


def test_test_of_the_machinery_needs_no_threat(project: Project) -> None:
    project.tests("test_stage.py", f"import pytest\n\n@pytest.mark.machinery\n{OTHER}")
    assert project.run().ret == pytest.ExitCode.OK
    assert project.outcomes() == ALL_PASSED


NARROWED = {
    "a path": ["threat_model/tests/test_attacks.py::test_attack_fails"],
    "a name": ["-k", "attack_fails"],
    "a mark": ["-m", "threat and not control", "-k", "attack"],
    "deselected": ["--deselect", "threat_model/tests/test_attacks.py::test_attack_succeeds"],
    "ignored": ["--ignore", "tests"],
    "other paths": ["-o", "testpaths=threat_model/tests"],
}


@pytest.mark.parametrize("arguments", NARROWED.values(), ids=NARROWED)
def test_partial_run_neither_fails_nor_counts_as_full(project: Project, arguments: list[str]) -> None:
    project.tests("test_more.py", OTHER)
    result = project.run(*arguments)
    assert result.ret == pytest.ExitCode.OK
    assert project.outcomes()["test_attack_fails"] == ("adversary", "passed")
    assert not project.was_full()


def test_partial_run_says_what_is_marked_wrong_and_does_not_fail(project: Project) -> None:
    project.tests("test_attacks.py", PLANNED.replace("T02", "T99").replace("@", "import pytest\n\n@") + OTHER)
    result = project.run("threat_model/tests")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*is marked T99, which is no threat of the register", "*_else names no threat: *"])


def test_partial_run_changes_only_what_it_ran(project: Project) -> None:
    project.run()
    before = load_last_run(project.folder)
    project.tests("test_attacks.py", FAILED + CONTROL + PLANNED)
    assert project.run("-k", "attack_fails").ret == pytest.ExitCode.TESTS_FAILED
    after = load_last_run(project.folder)
    assert project.outcomes() == ALL_PASSED | {"test_attack_fails": ("adversary", "failed")}
    assert before is not None
    assert after is not None
    assert after.full_run == before.full_run
    changed = {name for name in after.tests if after.tests[name] != before.tests[name]}
    assert {name.split("::")[1] for name in changed} == {"test_attack_fails"}


def test_partial_run_of_other_tests_leaves_the_file_alone(project: Project) -> None:
    project.run()
    before = (project.folder / LAST_RUN_FILE).stat()
    assert project.run("tests").ret == pytest.ExitCode.OK
    assert (project.folder / LAST_RUN_FILE).stat() == before


def test_full_run_forgets_tests_that_are_gone(project: Project) -> None:
    project.tests("test_more.py", ATTACK.replace("test_attack_fails", "test_gone"))
    project.run()
    (project.folder / "tests" / "test_more.py").unlink()
    project.run()
    assert project.outcomes() == ALL_PASSED


def test_run_that_stops_at_a_failure_is_not_judged_and_forgets_nothing(project: Project) -> None:
    project.run()
    project.tests("test_attacks.py", FAILED + CONTROL + PLANNED)
    result = project.run("-x")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line("FAILED T01*")
    assert project.outcomes() == ALL_PASSED | {"test_attack_fails": ("adversary", "failed")}


def test_worker_that_dies_takes_the_outcome_of_its_test_along(project: Project) -> None:
    project.run()
    project.tests("test_attacks.py", ATTACK.replace("pass\n", "import os; os._exit(3)\n", 1) + CONTROL + PLANNED)
    assert project.run("-n", "1", "-k", "attack_fails").ret == pytest.ExitCode.TESTS_FAILED
    assert set(project.outcomes()) == set(ALL_PASSED) - {"test_attack_fails"}


def test_file_that_cannot_be_read_is_begun_anew(project: Project) -> None:
    Path(project.folder / LAST_RUN_FILE).write_text("{")
    result = project.run("-k", "attack_fails")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["begun anew: *"])
    assert project.outcomes() == {"test_attack_fails": ("adversary", "passed")}


def test_folder_that_cannot_be_written_does_not_fail_the_run(project: Project) -> None:
    (project.folder / LAST_RUN_FILE).mkdir()
    result = project.run("-k", "attack_fails")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*is not written*"])
    assert sorted(path.name for path in project.folder.iterdir()) == [LAST_RUN_FILE, "tests", "threats.toml"]
