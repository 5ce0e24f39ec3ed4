"""The state file of a process: what it says, that it costs no run, and that a process that is gone is known to be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from securefda.cli import main
from securefda.errors import ConfigError, TrainingError
from securefda.operations.state import (
    ENDED,
    STATE_FILE,
    StateWriter,
    clock,
    find_states,
    read_state,
    rename_cause,
    state_file,
)

NOON = datetime(2026, 11, 21, 12, 0, 0).astimezone().timestamp()


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


def writer(folder: Path, clock: Clock | None = None) -> StateWriter:
    return StateWriter(folder, "hospital-a", "source", clock or Clock(), interval_s=0)


def test_a_reader_finds_what_the_process_said_last(tmp_path: Path) -> None:
    time = Clock()
    state = writer(tmp_path, time)
    time.now += 60
    state.set("training", round=5, rounds=30, run="ab" * 16, epsilon=1.2, epsilon_limit=3.0)
    time.now += 60
    state.know(retrying="cannot reach clinic:1: connection refused", retrying_until=NOON + 900)
    found = read_state(tmp_path)
    assert found == state.now
    assert found is not None
    assert (found.process, found.since, found.changed, found.is_running) == (os.getpid(), NOON + 60, NOON + 120, True)
    assert found.lines(NOON + 120) == [
        "source hospital-a: training, round 5 of 30, since 12:01:00",
        "  cannot reach clinic:1: connection refused; retrying until 12:15",
        "  privacy spent: ε 1.2000 of 3",
        f"  process {os.getpid()}, run {'ab' * 16}",
    ]


def test_a_reader_finds_how_far_a_round_of_training_is_until_the_process_does_something_else(tmp_path: Path) -> None:
    time = Clock()
    state = writer(tmp_path, time)
    state.set("training", round=5, rounds=30)
    time.now += 60
    state.know(steps=100, steps_of=400)
    assert state.now.lines(time.now + 10)[:2] == [
        "source hospital-a: training, round 5 of 30, since 12:00:00",
        "  step 100 of 400, about 3 min left",
    ]
    assert "step 100 of 400, about 0.00 s left" in state.now.lines(time.now + 500)[1]
    state.set("masking its update")
    assert not any("step" in line for line in state.now.lines(time.now))


def test_the_end_is_written_at_once_and_nothing_after_it(tmp_path: Path) -> None:
    state = StateWriter(tmp_path, "hospital-a", "source", interval_s=3600)
    state.set("training", round=1)
    state.set(ENDED, error="")
    found = read_state(tmp_path)
    assert found is not None
    assert (found.doing, found.round) == (ENDED, 1)
    state._pace.catch_up()
    assert read_state(tmp_path) == found


def test_a_shorter_list_of_those_awaited_is_the_same_wait(tmp_path: Path) -> None:
    time = Clock()
    state = writer(tmp_path, time)
    state.set("join", waiting_for=["a", "b"])
    time.now += 30
    state.set("join", waiting_for=["b"])
    assert (state.now.since, state.now.changed, state.now.waiting_for) == (NOON, NOON + 30, ("b",))
    state.set("join", waiting_for=["b"], round=1)
    assert state.now.since == NOON + 30


def test_nothing_is_written_where_nothing_has_changed(tmp_path: Path) -> None:
    state = writer(tmp_path)
    state.set("training", round=1)
    (tmp_path / STATE_FILE).unlink()
    state.set("training", round=1)
    state.know(error="")
    assert not (tmp_path / STATE_FILE).exists()


def test_a_state_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    state = writer(tmp_path / "missing")
    state.set("training")
    assert state.now.doing == "training"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, ""),
        (KeyboardInterrupt(), "interrupted"),
        (TrainingError("the loss is NaN", hint="lower the learning rate"), "the loss is NaN"),
        (ValueError("row 7 says 0.125"), "ValueError"),
    ],
    ids=["over", "interrupted", "own error", "other error"],
)
def test_the_end_says_how_it_came_and_shows_no_foreign_text(
    tmp_path: Path, error: BaseException | None, text: str
) -> None:
    def run() -> None:
        with state_file(tmp_path, site="clinic", role="target") as state:
            state.know(retrying="cannot reach", retrying_until=NOON)
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(type(error)):
            run()
    found = read_state(tmp_path)
    assert found is not None
    assert (found.doing, found.error, found.retrying, found.is_running) == (ENDED, text, "", False)
    assert found.lines(found.changed)[0].endswith(text or "the run is over")
    hints = ["  hint: lower the learning rate"] if isinstance(error, TrainingError) else []
    assert found.lines(found.changed)[1:] == hints


def test_a_starter_names_what_ended_a_process_and_only_of_one_that_has_ended(tmp_path: Path) -> None:
    with state_file(tmp_path, site="clinic", role="target") as state:
        rename_cause(tmp_path, "b has no epsilon left", "plan again")
        assert read_state(tmp_path) == state.now
    rename_cause(tmp_path, "b has no epsilon left", "plan again")
    found = read_state(tmp_path)
    assert found is not None
    assert (found.site, found.error, found.hint) == ("clinic", "b has no epsilon left", "plan again")
    rename_cause(tmp_path / "elsewhere", "nothing is there", "")
    assert not (tmp_path / "elsewhere").exists()


def test_a_process_that_is_gone_is_known_to_be(tmp_path: Path) -> None:
    script = "import sys; from pathlib import Path; from securefda.operations.state import *; " + (
        "StateWriter(Path(sys.argv[1]), 'hospital-a', 'source').set('training', round=2); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE) as process:
        while (state := read_state(tmp_path)) is None or state.round != 2:
            assert process.poll() is None
        assert state.is_running is True
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and its parent has not yet looked at it
        assert state.is_running is False
        process.wait()
        assert state.is_running is False
    gone = f"source hospital-a: its process {process.pid} was killed or crashed; last step: training, round 2"
    assert state.lines(state.changed) == [gone]


def test_another_process_with_the_same_id_is_not_taken_for_it(tmp_path: Path) -> None:
    state = writer(tmp_path).now
    assert replace(state, started="another boot 1").is_running is False
    assert replace(state, started="").is_running is True  # a system that does not say when a process started


def test_what_cannot_be_seen_from_here_is_not_claimed(tmp_path: Path) -> None:
    state = replace(writer(tmp_path).now, host="elsewhere")
    assert state.is_running is None
    assert "whether it still runs can be seen on elsewhere alone" in "\n".join(state.lines(NOON))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda fields: b"{", "is not JSON"),
        (lambda fields: b"[]", "is not as a process writes it"),
        (lambda fields: json.dumps(fields | {"schema_version": 99}).encode(), "has format 99"),
        (lambda fields: json.dumps(fields | {"process": "all"}).encode(), "process is not as a process writes it"),
        (lambda fields: json.dumps(fields | {"role": "witness"}).encode(), "role is not as a process writes it"),
        (lambda fields: b"[" * 100_000, "nested"),
        (lambda fields: b" " * (5 << 20), "larger than"),
    ],
    ids=["torn", "list", "version", "type", "role", "deep", "large"],
)
def test_a_damaged_state_is_one_clear_line(tmp_path: Path, change: Any, text: str) -> None:
    writer(tmp_path)
    file = tmp_path / STATE_FILE
    file.write_bytes(change(json.loads(file.read_text())))
    with pytest.raises(ConfigError, match=text):
        read_state(tmp_path)


def test_a_run_folder_has_the_states_of_all_its_sites(tmp_path: Path) -> None:
    for folder, site in (
        (tmp_path, "clinic"),
        (tmp_path / "sites" / "b", "b"),
        (tmp_path / "sites" / "a", "a"),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        StateWriter(folder, site, "source")
    (tmp_path / "sites" / "quiet").mkdir()
    assert [found.state.site for found in find_states(tmp_path, {})] == ["clinic", "a", "b"]


def test_status_finds_a_process_by_its_settings_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "source.toml"
    settings.write_text('[source]\nkit = "kit"\nout = "here"\n[task]\nfactory = "securefda.tasks.digits:Digits"\n')
    (tmp_path / "here").mkdir()
    assert main(["status", str(settings)]) == 4
    said = capsys.readouterr().err
    assert f"would be in {tmp_path / 'here'}" in said
    assert "a process that was started just now says it after some seconds" in said
    writer(tmp_path / "here").set("training\x1b[2J", round=3)
    assert main(["status", str(settings)]) == 0
    assert "source hospital-a: training?[2J, round 3, since" in capsys.readouterr().out


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A kit with two runs: ``run``, as in its settings, and ``run-2``, which began later."""
    local = tmp_path / "hospital-a" / "local"
    (local / "run").mkdir(parents=True)
    (local / "run-2").mkdir()
    settings = '[source]\nkit = ".."\nout = "run"\n[task]\nfactory = "securefda.tasks.digits:Digits"\n'
    (local / "settings.toml").write_text(settings)
    time = Clock()
    for name in ("run", "run-2"):
        state = writer(local / name, time)
        time.now += 60
        state.set(ENDED, round=3)
        time.now += 60
    return local.parent


def test_status_of_a_kit_shows_the_run_that_goes_on_and_names_its_folder(
    kit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("run", "run-2"):
        state = writer(kit / "local" / name)
        state.set("training", round=7)
        for place in (kit, kit / "local" / "settings.toml"):
            assert main(["status", str(place)]) == 0
            shown = capsys.readouterr().out
            assert "source hospital-a: training, round 7" in shown
            assert shown.endswith(f"  in {kit / 'local' / name}, which goes on of 2 run folders of this kit\n")
            assert "the run is over" not in shown
        state.set(ENDED)


def test_status_of_a_kit_shows_the_last_run_where_none_goes_on(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(kit)]) == 0
    assert f"  in {kit / 'local' / 'run-2'}, which changed last of 2" in capsys.readouterr().out
    (kit / "local" / "run-2" / STATE_FILE).write_text("{")
    assert main(["status", str(kit)]) == 0
    assert capsys.readouterr().out.endswith("round 3: the run is over\n")
    (kit / "local" / "run" / STATE_FILE).write_text("{")
    assert main(["status", str(kit)]) == 4
    assert "is not JSON" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["", "missing"])
def test_status_of_a_place_without_a_process_says_where_to_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    assert main(["status", str(tmp_path / place)]) == 4
    assert "hint: name the run folder of a process, its startup kit or its settings file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "12:00:00"), (599, "12:09:59"), (3600, "13:00"), (86400, "2026-11-22 12:00")]
)
def test_a_time_says_as_much_as_it_must(seconds: float, text: str) -> None:
    assert clock(NOON + seconds, NOON) == text
