"""Settings, data and machines with a fault: one line and a hint, no traceback, a readable folder."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_processes import WAIT_S, Kits, Process, assert_one_clear_line, kits

from securefda.errors import ExitCode
from securefda.operations.run_folder import read_run

ONE_SOURCE = """
[federation]
name = "study"
sources = ["source-1"]
[task]
factory = "{factory}"
[privacy]
visibility = "individual"
"""
IN_CLEAR = ("privacy.visibility=individual", "strategy.rounds=4", "strategy.warm-up-rounds=0")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kits]:
    """Kits from which every test starts what it needs."""
    with kits(tmp_path_factory.mktemp("bad"), 1, settings=IN_CLEAR) as made:
        made.allow_any_task("source-1")
        yield made


def test_an_unknown_key_is_named_with_the_nearest_known_one(federation: Kits) -> None:
    aggregator = federation.start("target", "strategy.round=3")
    assert_one_clear_line(aggregator, ExitCode.CONFIG, "strategy.round", hint="strategy.rounds")


@pytest.mark.parametrize(("site", "key"), [("target", "aggregator.out"), ("source-1", "source.out")])
def test_a_folder_of_other_files_is_no_run_folder(federation: Kits, tmp_path: Path, site: str, key: str) -> None:
    (tmp_path / "thesis.tex").touch()
    process = federation.start(site, f"{key}={tmp_path}")
    assert_one_clear_line(process, ExitCode.CONFIG, key, "thesis.tex", hint="a new folder, or an empty one")
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_task_that_cannot_be_imported_is_named(federation: Kits) -> None:
    source = federation.start("source-1", "task.factory=no_such_module:Task")
    assert_one_clear_line(source, ExitCode.CONFIG, "task.factory", "no_such_module", hint="PYTHONPATH")


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    with kits(tmp_path / "heart", sites=("cleveland", "va"), settings=IN_CLEAR) as heart:
        heart.allow_any_task("va")
        source = heart.start("va", "task.factory=securefda.tasks.fed_heart:FedHeart", f"task.data-dir={tmp_path}")
        assert_one_clear_line(source, ExitCode.CONFIG, "va.csv", hint="SHA-256")


def test_with_noise_a_model_with_batchnorm_is_refused_with_its_replacement(tmp_path: Path) -> None:
    noise = "training.dp.noise-multiplier=1"
    with kits(tmp_path, 1, settings=IN_CLEAR, task="e2e_tasks:WithBatchNorm") as federation:
        settings = federation.kit("source-1") / "local" / "settings.toml"
        assert Process(["budget", "init", "--config", str(settings), "--set", noise]).end() == ExitCode.OK
        source = federation.start("source-1", noise)
        assert_one_clear_line(source, ExitCode.CONFIG, "BatchNorm", hint="GroupNorm")


def test_batches_of_one_row_are_refused_for_a_model_with_batchnorm(federation: Kits) -> None:
    source = federation.start("source-1", "task.factory=e2e_tasks:WithBatchNorm", "training.batch-size=1")
    assert_one_clear_line(source, ExitCode.CONFIG, "BatchNorm", "at least 2", hint="raise batch-size")


def test_one_step_at_the_target_is_refused_before_the_run_begins(federation: Kits, tmp_path: Path) -> None:
    aggregator = federation.start("target", "training.batch-size=100", f"aggregator.out={tmp_path}")
    assert_one_clear_line(aggregator, ExitCode.CONFIG, "target", "1 step", "at least 2", hint="lower batch-size")
    assert "listens on" not in aggregator.text


def test_training_that_diverges_at_the_target_ends_the_run(federation: Kits, tmp_path: Path) -> None:
    settings = ("strategy.rule=target_only", "training.optimizer=sgd", "training.learning-rate=1e30")
    aggregator = federation.start("target", *settings, f"aggregator.out={tmp_path}")
    assert_one_clear_line(aggregator, ExitCode.CONFIG, "target", "nan", hint="learning")
    record = read_run(tmp_path)
    assert record.summary is not None
    assert record.summary["status"] == "failed"


def test_training_that_diverges_at_a_source_ends_that_source_with_a_word_to_the_target(
    federation: Kits, tmp_path: Path
) -> None:
    source = federation.start("source-1", "training.optimizer=sgd", "training.learning-rate=1e30")
    aggregator = federation.start("target", f"aggregator.out={tmp_path}", "transport.join-deadline-s=600")
    assert_one_clear_line(source, ExitCode.CONFIG, "source-1", "nan", hint="learning")
    hint = "source-1 reports that its training diverges (DIVERGED)"
    assert_one_clear_line(aggregator, ExitCode.QUORUM, "missing: source-1", hint=hint)
    assert [line["refused"] for line in read_run(tmp_path).rounds] == [{"source-1": "DIVERGED"}]


def test_a_message_that_is_too_large_names_the_setting(tmp_path: Path) -> None:
    settings = (*IN_CLEAR, "transport.max-message-bytes=65536", "transport.chunk-bytes=16384")
    with kits(tmp_path, 1, settings=settings, task="e2e_tasks:ManyLayers") as federation:
        processes = federation.start_all()
        assert_one_clear_line(processes["target"], ExitCode.CONFIG, "transport.max-message-bytes", hint="raise")
        assert processes["source-1"].end() == ExitCode.FAILED
        assert (
            "the aggregator ended the run: the target cannot go on (transport.max-message-bytes)"
            in processes["source-1"].text
        )


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk of 256 KiB, or of as many as the test says."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={getattr(request, 'param', 256)}k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk takes root; test_a_file_that_may_not_grow covers the rest")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_at_the_aggregator_leaves_whole_rounds(federation: Kits, small_disk: Path) -> None:
    """Round after round is written until the disk is full; what was written before is whole."""
    settings = ("strategy.rule=target_only", "strategy.rounds=2000", f"aggregator.out={small_disk}")
    aggregator = federation.start("target", *settings)
    assert_one_clear_line(aggregator, ExitCode.FAILED, str(small_disk), "full", hint="space")
    rounds = read_run(small_disk).rounds
    assert [line["round"] for line in rounds] == list(range(1, len(rounds) + 1))
    assert len(rounds) >= 1


def test_a_file_that_may_not_grow_leaves_whole_rounds(federation: Kits, tmp_path: Path) -> None:
    settings = ("strategy.rule=target_only", "strategy.rounds=2000", f"aggregator.out={tmp_path}")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        aggregator = federation.start("target", *settings, by_exec=True)  # which hands the limit down
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_one_clear_line(aggregator, ExitCode.FAILED, str(tmp_path))
    rounds = read_run(tmp_path).rounds
    assert [line["round"] for line in rounds] == list(range(1, len(rounds) + 1))


@pytest.mark.parametrize("small_disk", [450], indirect=True)
def test_a_run_whose_processes_cannot_write_their_last_words_names_the_full_disk(
    small_disk: Path, tmp_path: Path
) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(ONE_SOURCE.format(factory="securefda.tasks.digits:Digits") + "[strategy]\nrounds = 5000\n")
    run = Process(["run", str(file), "--out", str(small_disk / "out")])
    assert_one_clear_line(run, ExitCode.FAILED, str(small_disk), hint="space")
    # Which process meets the full disk first is chance, and each says it in the words of what it was writing.
    assert re.search("is full|No space left on device", run.text), run.text


def test_a_run_names_the_process_that_ended_it_and_not_those_that_followed(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(ONE_SOURCE.format(factory="e2e_tasks:WithoutAccuracy"))
    run = Process(["run", str(file), "--out", str(tmp_path / "out")])
    assert_one_clear_line(run, ExitCode.CONFIG, "target: task WithoutAccuracy", "accuracy", hint="metrics()")
    assert "ended the run" not in run.text


def test_a_run_is_the_same_wherever_the_command_is_typed(tmp_path: Path) -> None:
    """Typed above a checkout, for instance, which is a folder called securefda."""
    (tmp_path / "securefda").mkdir()
    file = tmp_path / "federation.toml"
    rounds = "[strategy]\nrounds = 1\nwarm-up-rounds = 0\n"
    file.write_text(ONE_SOURCE.format(factory="securefda.tasks.digits:Digits") + rounds)
    command = "import sys; from securefda.cli import main; sys.exit(main(sys.argv[1:]))"
    typed = [sys.executable, "-P", "-c", command, "run", str(file), "--out", "out"]
    done = subprocess.run(typed, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == ExitCode.OK, done.stderr
