"""The reporters between a run and the console: everything is passed on, logged with its place, and nothing when off."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from operations_roster import FINISHED, SITES, Console, roster

from securefda import __version__
from securefda.dashboard.process_state import describe_process
from securefda.errors import FaultyAggregatorError, QuorumLost
from securefda.operations import watch_source, watch_target
from securefda.operations.notes import Note
from securefda.site.config import LoggingSection, MetricsSection

LOGS = LoggingSection(json_file="site.jsonl", level="debug")
OFF = MetricsSection()
RUN = "0123456789abcdef" * 2


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "site.jsonl").read_text().splitlines()]


def test_what_a_target_reports_reaches_the_console_as_it_was_whatever_is_kept(tmp_path: Path) -> None:
    consoles = []
    for logs in (LoggingSection(), LOGS):
        consoles.append(console := Console())
        with watch_target(console, logs, OFF, out=tmp_path, roster=roster()) as watch:
            watch.note("hospital-a joined (1 of 3)\x1b")
            watch.round_started(3, 50)
            watch.phase("training", ("hospital-a", "hospital-b"))
            watch.steps("clinic", 7, 40)
            assert (watch.state.now.steps, watch.state.now.steps_of) == (7, 40)
            watch.round_finished(FINISHED)
    heard = [
        "note hospital-a joined (1 of 3)\x1b",
        "started 3",
        "phase training hospital-a,hospital-b",
        "clinic steps 7 of 40",
        "finished 3",
    ]
    assert [console.heard for console in consoles] == [heard, heard]


def test_what_a_source_reports_reaches_the_console_as_it_was(tmp_path: Path) -> None:
    console = Console()
    with watch_source(console, LOGS, OFF, out=tmp_path, roster=roster(), site=SITES[1]) as watch:
        rounds = watch.rounds(console)
        watch.note("a note")
        watch.phase("starting")
        rounds.round_started(1, "sum", "fedgp_auto")
        watch.steps(SITES[1], 7, 40)
        assert (watch.state.now.steps, watch.state.now.steps_of) == (7, 40)
        rounds.alarm(FaultyAggregatorError("ORDER"))
        rounds.round_finished({"round": 1})
    assert console.heard == [
        "note a note",
        "phase starting ",
        "started 1",
        "phase round 1: training ",
        f"{SITES[1]} steps 7 of 40",
        "alarm aggregator fails check ORDER",
        f"phase round 1: waiting for what {SITES[0]} asks for next ",
        "finished 1",
        f"phase round 1: waiting for {SITES[0]} to begin the next round ",
    ]


def test_lines_of_a_target_say_where_the_run_stands(tmp_path: Path) -> None:
    with watch_target(Console(), LOGS, OFF, out=tmp_path, roster=roster()) as watch:
        run = ""
        watch.follow(lambda: run, set)
        watch.note("aggregator clinic listens on 127.0.0.1:1")
        run = RUN
        watch.round_started(3, 50)
        watch.phase("training", ("hospital-a", "hospital-b"))
        watch.note(Note("hospital-a left", "warning", "hospital-a"))
        watch.note(Note("stranger left", "warning", "stranger"))
        watch.round_finished(FINISHED)
    places = [(line["run"], line["round"], line["phase"], line["peer"], line["level"]) for line in logged(tmp_path)]
    assert places == [
        ("", 0, "", "", "info"),
        ("", 0, "", "", "info"),
        (RUN, 3, "", "", "info"),
        (RUN, 3, "training", "", "debug"),
        (RUN, 3, "training", "hospital-a", "warning"),
        (RUN, 3, "training", "", "warning"),
        (RUN, 3, "training", "", "info"),
        (RUN, 3, "", "", "info"),
    ]
    assert {line["site"] for line in logged(tmp_path)} == {"clinic"}
    assert logged(tmp_path)[0]["message"] == f"securefda {__version__}: the target clinic starts"
    assert logged(tmp_path)[6]["message"] == (
        "round 3 is finished; 2 sources; dropped hospital-c; 2 attempts; epsilon 1.2500 is spent; 2.8 s"
    )
    assert logged(tmp_path)[7]["message"] == "ends: the run is over"


def test_lines_of_a_source_name_the_target_as_the_peer(tmp_path: Path) -> None:
    with watch_source(Console(), LOGS, OFF, out=tmp_path, roster=roster(), site=SITES[1]) as watch:
        rounds = watch.rounds(Console())
        watch.connected("127.0.0.1:1")
        rounds.round_started(2, "sum", "fedgp_auto")
        rounds.alarm(FaultyAggregatorError("ORDER"))
        rounds.round_finished({"round": 2, "epsilon": 0.5, "loss": 0.51513, "samples": 40417})
    lines = logged(tmp_path)[1:-1]
    assert [(line["round"], line["peer"], line["level"]) for line in lines] == [
        (0, "clinic", "info"),
        (2, "clinic", "info"),
        (2, "clinic", "error"),
        (2, "clinic", "info"),
    ]
    assert lines[-1]["message"] == "round 2 is over; epsilon 0.5000 is spent"


@pytest.mark.parametrize(
    ("error", "level", "message"),
    [
        (QuorumLost("R0", 3, ["a"], ["b"]), "error", "ends: QuorumLost: R0: 1 of at least 3 sources; missing: b"),
        (KeyboardInterrupt(), "warning", "ends: interrupted"),
        (RuntimeError("row 7 of the data: 40417"), "error", "ends: RuntimeError, no error of this package"),
    ],
)
def test_how_a_process_ends_is_its_last_line_and_the_error_goes_on(
    tmp_path: Path, error: BaseException, level: str, message: str
) -> None:
    watching = watch_target(Console(), LOGS, OFF, out=tmp_path, roster=roster())
    with pytest.raises(type(error)) as caught, watching:
        raise error
    assert caught.value is error
    assert (logged(tmp_path)[-1]["level"], logged(tmp_path)[-1]["message"]) == (level, message)


def test_a_log_that_fills_its_disk_is_said_on_the_console_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "site.jsonl").symlink_to("/dev/full")
    console = Console()
    with watch_target(console, LOGS, OFF, out=tmp_path, roster=roster()) as watch:
        watch.round_started(1, 2)
        watch.round_finished({"round": 1, "status": "finished"})
    warnings = [heard for heard in console.heard if "cannot be written (No space left on device)" in heard]
    assert len(warnings) == 1
    assert console.heard[-2:] == ["started 1", "finished 1"]


def test_where_both_are_off_no_file_is_made_and_nothing_is_imported_for_them(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "import securefda.aggregator.process, securefda.source.source_process\n"
        "from operations_roster import Console, roster\n"
        "from securefda.site.config import LoggingSection, MetricsSection\n"
        "from securefda.operations import watch_source, watch_target\n"
        "off = LoggingSection(), MetricsSection()\n"
        "with watch_target(Console(), *off, out=Path('run'), roster=roster()) as watch: watch.note('a')\n"
        "with watch_source(Console(), *off, out=Path('run'), roster=roster(), site='hospital-a') as watch:\n"
        "    watch.rounds(Console()).round_finished({'round': 1})\n"
        "names = ('prometheus_client', 'securefda.operations.logs', 'securefda.operations.metrics', 'wsgiref')\n"
        "print([name for name in names if name in sys.modules])\n"
    )
    here = Path(__file__).parent
    environment = {"PYTHONPATH": f"{here.parents[1]}:{here}:{here.parent / 'support'}", "PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (result.stdout, result.stderr) == ("[]\n", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("days", "is_soon"), [(31, False), (29, True)])
def test_a_certificate_that_ends_within_thirty_days_is_a_warning_in_log_and_status(
    tmp_path: Path, days: int, is_soon: bool
) -> None:
    ends = datetime.now(UTC) + timedelta(days=days, minutes=1)
    watching = watch_source(Console(), LOGS, OFF, out=tmp_path, roster=roster(), site=SITES[1], certificate_ends=ends)
    with watching as watch:
        state = watch.state.now
    said = f"valid until {ends:%Y-%m-%d}, {days} days from now"
    assert (said in (tmp_path / "site.jsonl").read_text()) is is_soon
    assert state.certificate_ends == ends.timestamp()
    assert any(said in line and "securefda site renew" in line for line in state.lines(time.time())) is is_soon
    page = describe_process(state, True, "")
    assert (said in page.hint) is is_soon
