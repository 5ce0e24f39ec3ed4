"""pytest plugin: processor time of a run by folder, its slowest tests, and how its tests ended.

Only where SECUREFDA_TEST_TIMES names the file that it writes. Processor time of a test is that of its process and of
those that it started and waited for; a fork server's copies count when the server ends, so with no test.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

SLOW_S = 1.0
OUT = os.environ.get("SECUREFDA_TEST_TIMES")


def folder_of(test: str) -> str:
    """``tests/rounds``, ``threat_model/tests``, or ``tests`` for files that are in no folder."""
    return "/".join(test.split("::", 1)[0].split("/")[:-1][:2])


class _Worker:
    """Adds up what the tests of one process take."""

    def __init__(self) -> None:
        self.folders: Counter[str] = Counter()
        self.slow: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = sum(os.times()[:4])
        result = yield
        took = sum(os.times()[:4]) - before
        self.folders[folder_of(item.nodeid)] += took  # type: ignore[assignment]
        if took >= SLOW_S:
            self.slow[item.nodeid] = round(took, 2)
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        session.config.workeroutput["times"] = {"folders": dict(self.folders), "slow": self.slow}  # type: ignore[attr-defined]


class _Controller:
    """Gathers from the workers, and writes."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._folders: Counter[str] = Counter()
        self._slow: dict[str, float] = {}
        self._outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[report.nodeid] = max(report.outcome, self._outcomes.get(report.nodeid, ""), key=_badness)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        times = getattr(node, "workeroutput", {}).get("times", {"folders": {}, "slow": {}})
        self._folders.update(times["folders"])
        self._slow |= times["slow"]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        folders = {name: round(seconds, 1) for name, seconds in sorted(self._folders.items())}
        outcomes = Counter(self._outcomes.values())
        self._out.write_text(json.dumps({"folders": folders, "slow": self._slow, "outcomes": outcomes}) + "\n")


def _badness(outcome: str) -> int:
    return ("", "passed", "skipped", "failed").index(outcome)


def pytest_configure(config: pytest.Config) -> None:
    """Only a run over workers is measured: what one process starts is otherwise the controller's own."""
    if OUT is not None:
        is_worker = hasattr(config, "workerinput")
        config.pluginmanager.register(_Worker() if is_worker else _Controller(Path(OUT)), "processor-time")
