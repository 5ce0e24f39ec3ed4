"""Ctrl-C and SIGTERM: every process ends at once with one line, and a measurement takes all of its processes with it.

Nearly every process here is started by exec: how it ends may depend on how it began.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e_processes import Process, assert_one_clear_line, children_of, kits
from terminals import eventually

from securefda.cli import main
from securefda.errors import ExitCode

ENDED = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}


def test_an_aggregator_and_a_source_end_at_once_whatever_they_do(tmp_path: Path) -> None:
    """The sources are in the middle of their training, the aggregator waits for them."""
    hold = tmp_path / "hold"
    hold.touch()
    settings = ("privacy.visibility=individual", "strategy.warm-up-rounds=1", f"task.data-dir={tmp_path}")
    with kits(tmp_path / "kits", 2, settings=settings, task="e2e_tasks:Endless", by_exec=True) as federation:
        aggregator, *sources = federation.start_all().values()
        for source, number in zip(sources, ENDED, strict=True):
            source.until("round 1")
            source.interrupt(number)
            assert_one_clear_line(source, ENDED[number], "interrupted")
        aggregator.until("source-1 left").until("source-2 left")
        aggregator.interrupt(signal.SIGTERM)
        assert_one_clear_line(aggregator, ExitCode.TERMINATED, "interrupted", hint=str(federation.run_folder))
        assert federation.summary()["status"] == "interrupted"


def test_a_measurement_takes_all_of_its_processes_and_keys_with_it(tmp_path: Path) -> None:
    command = ["bench", "secagg", "--sources", "3", "--params", "10", "--repeats", "100000"]
    measurement = Process(command, env={"TMPDIR": str(tmp_path)}, by_exec=True)
    # Each takes part in a run; every session adds a folder for each.
    eventually(lambda: len(list(tmp_path.glob("securefda-bench-*/source-*"))) >= 3)
    children = children_of(measurement.process.pid)
    assert len(children) >= 4
    measurement.interrupt(signal.SIGTERM)
    ended = (measurement.end(), measurement.err[-1])
    assert ended == (ExitCode.TERMINATED, "error: interrupted"), measurement.text
    assert [child for child in children if Path(f"/proc/{child}").exists()] == []
    assert list(tmp_path.iterdir()) == []


def test_sites_that_are_told_to_end_lose_nothing(tmp_path: Path) -> None:
    """Each is told so in round 3, in which the target does not end training, since it is the first after the warm-up.

    Started again, the run goes on, and no line or log differs.
    """
    hold = tmp_path / "hold-target"
    hold.touch()
    settings = (
        "privacy.visibility=individual",
        "strategy.rounds=4",
        "strategy.warm-up-rounds=2",
        f"task.data-dir={tmp_path}",
    )
    with kits(tmp_path / "kits", 1, settings=settings, task="e2e_tasks:Held") as federation:
        sites = federation.start_all()
        sites["source-1"].until("update sent", 2)
        eventually((tmp_path / "held-training-at-target").exists)
        kept = federation.rounds()
        for site, joins in (("target", 2), ("source-1", 1)):
            sites[site].interrupt(signal.SIGTERM)
            assert sites[site].end() == ExitCode.TERMINATED
            sites[site] = federation.start(site)
            sites["source-1"].until("joined", joins)
        hold.unlink()
        assert [site.end() for site in sites.values()] == [0, 0], sites["target"].text
        lines = federation.rounds()
        assert len(kept) == 2
        assert lines[: len(kept)] == kept
        assert [(line["round"], line["status"]) for line in lines] == [(n, "finished") for n in range(1, 5)]
        for site in sites:
            (log,) = (federation.kit(site) / "local" / "audit").iterdir()
            assert main(["audit", "verify", str(log)]) == 0


def test_a_process_started_in_the_background_by_a_script_ends_on_sigint(tmp_path: Path) -> None:
    """Shells make such processes deaf to Ctrl-C; SIGTERM must reach them all the same."""
    settings = ("privacy.visibility=individual",)
    with kits(tmp_path, 1, settings=settings, by_exec=True) as federation, _deaf_to_ctrl_c():
        aggregator = federation.start("target").until("listens on")
        aggregator.interrupt(signal.SIGTERM)
        assert_one_clear_line(aggregator, ExitCode.TERMINATED, "interrupted")


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes started in this block inherit that SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
