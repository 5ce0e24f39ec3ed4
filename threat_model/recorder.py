"""pytest plugin: records the result of each test of a threat, and fails a full run that leaves a claim unproven.

Marks become properties of a test where it is collected, which with pytest-xdist is in the workers. They come back with
its reports, and the process that was started collects them; it alone writes ``.last-run.json``. A run that has
options or variables that leave something out adds what it ran to that file, and is judged by its own tests alone.
"""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securefda.errors import ConfigError
from securefda.threat_register import LAST_RUN_FILE, LastRun, RecordedTest, load_last_run, load_register
from threat_model.register import CONTROL_MARK, MACHINERY_MARK, MARKS, THREAT_MARK, misnamed, unshown

_THREATS, _KIND = "threats", "threat-kind"
_NARROWING = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf", "stepwise", "setuponly", "collectonly")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks and start recording."""
    for mark in MARKS:
        config.addinivalue_line("markers", mark)
    folder = config.rootpath / "threat_model"
    config.pluginmanager.register(_Marks(folder / "tests"), "threat-marks")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(folder), "threat-recorder")


class _Marks:
    """Turns marks into properties that travel with a test's reports."""

    def __init__(self, tests: Path) -> None:
        self._tests = tests

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Mark tests of the register, and tests that should name a threat but do not."""
        for item in items:
            ids = {str(name) for mark in item.iter_markers(THREAT_MARK) for name in mark.args}
            is_control = item.get_closest_marker(CONTROL_MARK) is not None
            is_machinery = item.get_closest_marker(MACHINERY_MARK) is not None
            must_name_one = is_control or (self._tests in item.path.parents and not is_machinery)
            if ids or must_name_one:
                item.user_properties.append((_THREATS, " ".join(sorted(ids))))
                item.user_properties.append((_KIND, "control" if is_control else "adversary"))


class _Recorder:
    """Collects the reports of a run; judges and writes when it is over."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._began = datetime.now(UTC)
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._unmarked: set[str] = set()
        self._crashed: set[str] = set()
        self._problems: list[str] = []
        self._notes: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep reports of tests in the register."""
        properties = dict(report.user_properties)
        if properties.get(_THREATS):
            self._reports.setdefault(report.nodeid, []).append(report)
        elif _THREATS in properties:
            self._unmarked.add(report.nodeid)
        elif report.failed:
            self._crashed.add(report.nodeid)  # xdist reports a worker that died without the test's properties

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the results; after a full run, also fail it if the register claims more than was shown."""
        recorded = {name: _recorded(reports, self._began) for name, reports in self._reports.items()}
        run = LastRun(tests={name: record for name, record in recorded.items() if record is not None})
        is_full = _is_full(session, exitstatus)
        self._judge(run, is_full=is_full)
        if is_full:
            self._write(run.model_copy(update={"full_run": self._began}))
            if self._problems:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif run.tests or self._crashed:
            before = self._before()
            kept = {name: record for name, record in before.tests.items() if name not in self._crashed}
            self._write(LastRun(full_run=before.full_run, tests=kept | run.tests))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Report problems; after a full run, also their absence."""
        if self._problems or self._notes:
            terminalreporter.section("threat model")
        for line in self._problems:
            terminalreporter.write_line(f"FAILED {line}", red=True)
        for line in self._notes:
            terminalreporter.write_line(line)

    def _judge(self, run: LastRun, *, is_full: bool) -> None:
        if not (is_full or run.tests or self._unmarked):
            return
        try:
            register = load_register(self._folder)
        except ConfigError as error:
            (self._problems if is_full else self._notes).append(str(error))
            return
        wrong = misnamed(register, run, self._unmarked)
        if not is_full:
            self._notes += wrong
            return
        self._problems += unshown(register, run) + wrong
        seconds = sum(record.seconds for record in run.tests.values())
        claims = sum(threat.status == "mitigated" for threat in register.threat)
        self._notes.append(f"{claims} mitigated threats, {len(run.tests)} tests of threats in {seconds:.0f} s")

    def _before(self) -> LastRun:
        try:
            return load_last_run(self._folder) or LastRun()
        except ConfigError as error:
            self._notes.append(f"begun anew: {error}")
            return LastRun()

    def _write(self, run: LastRun) -> None:
        path = self._folder / LAST_RUN_FILE
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            unfinished.write_text(run.model_dump_json(by_alias=True, indent=1) + "\n", encoding="utf-8")
            unfinished.replace(path)
        except OSError as error:
            self._notes.append(f"{path} is not written: {error.strerror}")
            with contextlib.suppress(OSError):
                unfinished.unlink()


def _recorded(reports: list[pytest.TestReport], time: datetime) -> RecordedTest | None:
    """Return one test from the reports of its phases; None if its body never ran and nothing says why."""
    outcomes = [report.outcome for report in reports if report.when == "call" or report.outcome != "passed"]
    if not outcomes:
        return None
    worst = next(outcome for outcome in ("failed", "skipped", "passed") if outcome in outcomes)
    properties = dict(reports[0].user_properties)
    return RecordedTest.model_validate(
        {
            "threats": str(properties[_THREATS]).split(),
            "kind": properties[_KIND],
            "outcome": worst,
            "seconds": round(sum(report.duration for report in reports), 3),
            "time": time,
        }
    )


def _is_full(session: pytest.Session, exitstatus: int) -> bool:
    """Return whether every test of the configured paths was to run, and the run was complete."""
    config = session.config
    narrowed = any(getattr(config.option, name, None) for name in _NARROWING)
    narrowed |= any(setting.startswith("testpaths") for setting in config.option.override_ini or ())
    narrowed |= "SECUREFDA_TEST_PART" in os.environ or os.environ.get("SECUREFDA_TEST_POOL") == "processes"
    ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
    stopped = bool(session.shouldstop or session.shouldfail)
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and ended and not narrowed and not stopped
