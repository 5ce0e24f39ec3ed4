"""The run folder stays whole: after a crash in the middle of a line, on a full disk, and while a run goes on."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from rounds_federation import Federation, roster_of

from securefda.aggregator.site import summary_of as summary_of_process
from securefda.aggregator.store import AggregatorStore, TargetRelease
from securefda.bootstrap import LEDGERS_OF_A_FOLDER
from securefda.errors import ConfigError, QuorumLost, SecureFdaError, Terminated
from securefda.operations.recording import ModelOrigin, RecordingReporter, model_file
from securefda.operations.records import RoundLine, Summary, summarise
from securefda.operations.run_folder import (
    RunFolder,
    append_line,
    clear_run,
    read_run,
    replace_file,
    require_run_folder,
)
from securefda.operations.summary_text import run_text
from securefda.privacy.dp_events import Budget
from securefda.site.config import AggregatorConfig, ProcessSection, TaskSection


def line(number: int, **changes: object) -> RoundLine:
    values: dict[str, object] = {
        "round": number,
        "rule": "fedgp_auto",
        "accuracy": number / 10,
        "survivors": ["source-1", "source-2"],
        "dropped": [],
        "refused": {},
        "seconds": {"rule": 0.1 * number, "evaluate": 0.2},
        "bytes_up": {"source-1": 100, "source-2": 200},
        "bytes_down": {"source-1": 10},
        "model_digest": f"{number:02x}",
        "status": "finished",
    }
    return values | changes  # type: ignore[return-value]


def summary_of(lines: list[RoundLine], **changes: object) -> Summary:
    values = {
        "run_id": "00" * 16,
        "task": "a:B",
        "strategy": {"rule": "fedgp_auto"},
        "visibility": {"source-1": "sum"},
        "rounds_planned": 9,
        "status": "finished",
    }
    return summarise(lines, **(values | changes))  # type: ignore[arg-type]


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.append_round(line(1))
    folder.append_round(line(2))
    folder.append_site_round("source-1", {"round": 1, "beta": 0.5})
    record = read_run(tmp_path / "run")
    assert record.rounds == (line(1), line(2))
    assert record.sites == {"source-1": ({"round": 1, "beta": 0.5},)}
    assert record.summary is None


def test_a_run_that_is_recorded_is_shown_too(tmp_path: Path) -> None:
    shown: list[tuple[object, ...]] = []

    class Shown:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *arguments: shown.append((name, *arguments))

    recording = RecordingReporter(RunFolder(tmp_path), Shown())  # type: ignore[arg-type]
    recording.round_started(1, 2)
    recording.phase("masking", ["source-1"])
    recording.note("source-1 is back")
    recording.round_finished(line(1))
    assert shown == [
        ("round_started", 1, 2),
        ("phase", "masking", ["source-1"], 0),
        ("note", "source-1 is back"),
        ("round_finished", line(1)),
    ]
    assert read_run(tmp_path).rounds == (line(1),)


def test_a_torn_line_is_ignored_by_readers_and_removed_by_the_next_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append_round(line(1))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 2, "accu')
    assert read_run(tmp_path).rounds == (line(1),)
    folder.append_round(line(2))
    assert read_run(tmp_path).rounds == (line(1), line(2))


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\nnonsense\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl: line 2 is not JSON"):
        read_run(tmp_path)


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run folder"):
        read_run(tmp_path)


@pytest.mark.parametrize("names", [[], ["kits"], ["site.log"], ["lost+found"], ["state.sqlite", "my-own-name.txt"]])
def test_a_run_may_begin_or_go_on_in_an_empty_folder_and_in_a_runs(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    require_run_folder(tmp_path)
    require_run_folder(tmp_path / "new")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["notes.txt"], "notes.txt, and is no run folder"),
        (["thesis.tex", "kits", "model.pt", "figures"], "figures and 1 more, and is no run folder"),
    ],
)
def test_no_run_begins_in_a_folder_of_other_files(tmp_path: Path, names: list[str], why: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=f"^--out: {re.escape(str(tmp_path))} holds {why}$"):
        require_run_folder(tmp_path)
    with pytest.raises(ConfigError, match=r"^--out: .* is no folder$"):
        require_run_folder(tmp_path / names[0])


def test_a_figure_that_is_not_finite_becomes_null(tmp_path: Path) -> None:
    RunFolder(tmp_path).append_round(line(1, loss=float("nan"), metrics={"auc": float("inf")}))
    found = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert found["loss"] is None
    assert found["metrics"]["auc"] is None


def test_a_full_disk_is_one_clear_line_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(SecureFdaError, match=r"metrics\.jsonl: the disk is full") as caught:
        append_line(tmp_path / "metrics.jsonl", {"round": 1})
    assert "free some space" in caught.value.hint


def test_a_disk_that_fills_up_under_a_line_leaves_the_lines_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    folder.append_round(line(1))
    monkeypatch.setattr(os, "fsync", _no_space)
    with pytest.raises(SecureFdaError, match="the disk is full"):
        folder.append_round(line(2))
    assert read_run(tmp_path).rounds == (line(1),)


def test_a_disk_that_fills_up_under_a_file_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file(tmp_path / "summary.json", b"old")
    monkeypatch.setattr(os, "fsync", _no_space)
    with pytest.raises(SecureFdaError, match="the disk is full"):
        replace_file(tmp_path / "summary.json", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"summary.json": b"old"}


def _no_space(_descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_in_place_of_the_folder_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(SecureFdaError, match="run: cannot be written") as caught:
        RunFolder(tmp_path / "run")
    assert "--out" in caught.value.hint


def test_a_summary_can_be_read_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append_round(line(1))
    folder.write_summary(summary_of([line(1)]))
    summary = read_run(tmp_path).summary
    assert summary is not None
    assert summary["schema_version"] == 4
    assert set(summary["versions"]) == {"securefda", "python", "numpy", "torch"}
    folder.append_round(line(2))  # it was interrupted after the first round, and goes on
    assert read_run(tmp_path).summary is None


def test_a_summary_says_what_the_targets_rows_have_cost_with_the_last_round_that_was_charged() -> None:
    lines = [line(1, target_epsilon=0.4), line(2, target_epsilon=0.7), line(3, status="lost", target_epsilon=0.9)]
    budget = {"epsilon": 0.9, "limit": 2.0, "delta": 1e-5, "accountant": "prv"}
    assert summary_of(lines, target_budget=Budget(2.0, 1e-5, "prv")).target_privacy == budget
    assert summary_of(lines).target_privacy is None


def test_reported_accuracy_is_the_mean_of_the_last_five_finished_rounds() -> None:
    lines = [line(number) for number in range(1, 8)] + [line(8, status="lost", accuracy=0.0)]
    summary = summary_of(lines)
    assert summary.target_accuracy == pytest.approx((0.3 + 0.4 + 0.5 + 0.6 + 0.7) / 5)
    assert summary.final_accuracy == 0.7
    assert (summary.rounds, summary.rounds_lost, summary.rounds_planned) == (7, 1, 9)
    assert summary.model_digest == "07"


def test_totals_are_over_all_rounds_and_seconds_are_medians_of_finished_ones() -> None:
    lines = [
        line(1),
        line(2, dropped=["source-2"], refused={"source-3": "min-others"}),
        line(3),
        line(4, status="lost", dropped=["source-2"], seconds={"rule": 9.0}),
    ]
    summary = summary_of(lines)
    assert summary.bytes_up == {"source-1": 400, "source-2": 800}
    assert summary.bytes_down == {"source-1": 40}
    assert summary.dropped == {"source-2": 2}
    assert summary.refusals == {"source-3": {"min-others": 1}}
    assert summary.seconds_by_phase == {"rule": pytest.approx(0.2), "evaluate": 0.2}


def test_a_round_that_was_written_twice_counts_once() -> None:
    summary = summary_of([line(1, accuracy=0.1), line(1, accuracy=0.9)])
    assert (summary.rounds, summary.final_accuracy) == (1, 0.9)
    assert summary.bytes_up == {"source-1": 100, "source-2": 200}


def test_a_run_without_a_finished_round_has_no_accuracy_but_an_error() -> None:
    error = QuorumLost("advertise", 3, ["source-1"], ["source-2"], hint="start source-2")
    summary = summary_of([], status="failed", error=error)
    assert (summary.target_accuracy, summary.final_accuracy, summary.model_digest) == (None, None, "")
    assert summary.error == {"code": "QuorumLost", "message": str(error), "hint": "start source-2"}


def test_a_source_is_listed_with_the_level_that_showed_most_of_it() -> None:
    lines = [
        line(1, levels={"source-1": "sum", "source-2": "cohort"}),
        line(2, levels={"source-1": "sum", "source-2": "individual"}, status="lost"),
        line(3, levels={"source-1": "sum", "source-2": "sum"}),
    ]
    permitted = {"source-1": "individual", "source-2": "individual", "source-3": "cohort"}
    summary = summary_of(lines, visibility=permitted)
    assert summary.visibility == {"source-1": "sum", "source-2": "individual"}
    assert summary_of([line(1)], visibility=permitted).visibility == permitted  # no round had a source


def test_a_source_that_no_round_had_is_said_to_have_taken_no_part(tmp_path: Path) -> None:
    training = {"learning-rate": 0.1, "optimizer": "sgd", "batch-size": 8, "epochs": 1}
    setting = {"federation": "f", "target": "t", "sources": ["source-1", "source-2"], "seed": 0, "training": training}
    one = line(1, levels={"source-1": "sum"}, refused={"source-2": "allowed-rules"})
    rows = dict(re.findall(r"(.+?)  +(.*)", run_text(summary_of([one], setting=setting), tmp_path)))
    assert (rows["took no part"], rows["visibility"]) == ("source-2", "sum: source-1")
    assert rows["refused by source-2"] == "allowed-rules in 1 round"
    both = line(1, levels={"source-1": "sum", "source-2": "sum"})
    assert "took no part" not in run_text(summary_of([both], setting=setting), tmp_path)


def test_the_norm_cap_is_added_up_over_finished_rounds() -> None:
    assert summary_of([line(1)], kappa=1.5).norm_cap == {"kappa": 1.5, "granularity": "layer"}
    assert summary_of([line(1)]).norm_cap is None
    assert summary_of([], kappa=1.0).norm_cap == {"kappa": 1.0, "granularity": "layer"}


def test_releases_of_the_targets_update_are_counted_by_header_update_and_recipient() -> None:
    releases = [
        TargetRelease(1, 1, "aa", ["source-1", "source-2"], "none"),
        TargetRelease(1, 2, "aa", ["source-2"], "none"),
        TargetRelease(2, 1, "bb", ["source-2"], "none"),
    ]
    assert summary_of([], releases=releases).target_releases == {
        "headers": 3,
        "updates": 2,
        "recipients": {"source-1": 1, "source-2": 3},
        "noise": "none",
    }
    assert summary_of([]).target_releases == {"headers": 0, "updates": 0, "recipients": {}, "noise": "none"}


def test_cosine_and_rules_are_of_finished_rounds() -> None:
    lines = [
        line(1, rule="source_only", target_cosine=None),
        line(2, target_cosine=0.5),
        line(3, target_cosine=0.9),
        line(4, target_cosine=0.8),
        line(5, target_cosine=-1.0, status="lost"),
    ]
    summary = summary_of(lines)
    assert summary.target_cosine == {"smallest": 0.5, "median": 0.8, "largest": 0.9}
    assert summary.rounds_by_rule == {"source_only": 1, "fedgp_auto": 3}
    assert summary_of(lines[:1]).target_cosine is None


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "finished"),
        (KeyboardInterrupt(), "interrupted"),
        (Terminated(), "interrupted"),
        (QuorumLost("join", 3, [], []), "failed"),
        (asyncio.CancelledError(), "failed"),
        (RuntimeError("a fault of ours"), "failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
def test_only_a_signal_interrupts_a_run(tmp_path: Path, error: BaseException | None, status: str) -> None:
    process = ProcessSection(kit=tmp_path, out=tmp_path)
    config = AggregatorConfig(aggregator=process, task=TaskSection(factory="securefda.tasks.digits:Digits"))
    with closing(AggregatorStore(tmp_path / "state.sqlite")) as store:
        summary = summary_of_process(config, "00" * 16, store, roster_of(3), error)
    assert summary.status == status


def test_every_kill_leaves_a_folder_that_the_next_start_completes(tmp_path: Path) -> None:
    """The store is written first, the run folder after it: what is missing there is added."""
    federation = Federation(tmp_path / "state", rounds=3).open().go()
    folder = RunFolder(tmp_path / "run")
    records = federation.store.records()
    folder.append_round(records[0])  # type: ignore[arg-type]
    recording = RecordingReporter(folder, federation.watch)
    origin = ModelOrigin("a:B", federation.run.run_id, bytes(32))
    recording.model_bytes = lambda line: model_file(federation.run.layers, federation.store.model(), origin.after(line))
    recording.catch_up(records)  # type: ignore[arg-type]
    recording.catch_up(records)  # type: ignore[arg-type]
    assert [line["round"] for line in read_run(tmp_path / "run").rounds] == [1, 2, 3]
    written = (tmp_path / "run" / "model.safetensors").read_bytes()
    last = records[-1]
    assert written == model_file(federation.run.layers, federation.run.model, origin.after(last))  # type: ignore[arg-type]


def test_what_fresh_deletes_of_a_ledger_is_named_where_its_epsilon_is(tmp_path: Path) -> None:
    ledger = tmp_path / "sites" / "north" / "local" / "ledgers" / "training-rows.sqlite"
    ledger.parent.mkdir(parents=True)
    ledger.touch()
    clear_run(tmp_path)
    assert not ledger.exists()
    assert "in runs of this folder that --fresh deleted" in LEDGERS_OF_A_FOLDER
