"""Two processes in one folder: the second ends with one clear line, and the first loses nothing by it."""

from __future__ import annotations

import signal
from pathlib import Path

from e2e_processes import Kits, Process, assert_one_clear_line, kits

from securefda.errors import ExitCode
from securefda.operations.run_folder import read_run
from securefda.operations.state import read_state

SHORT = ("strategy.rounds=1", "strategy.warm-up-rounds=0")
ENDLESS = ("strategy.rounds=5000", "strategy.warm-up-rounds=1")


def _add_ledger(site: str, made: Kits, *arguments: str) -> Process:
    settings = str(made.kit(site) / "local" / "settings.toml")
    return Process(["budget", *arguments, "--config", settings])


def test_a_second_target_or_source_of_a_kit_ends_and_the_run_goes_on(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SHORT) as made:
        target = made.start("target").until("listens on")
        source = made.start("source-1").until("joined")
        second = made.start("target")
        assert_one_clear_line(
            second, ExitCode.CONFIG, "target/local/run/state.sqlite: another process uses it", hint="stop it"
        )
        state = read_state(made.run_folder)
        assert state is not None
        assert (state.process, state.error) == (target.process.pid, "")
        elsewhere = tmp_path / "elsewhere"
        for flags in ((), ("--out", str(elsewhere))):
            assert_one_clear_line(
                made.start("source-1", flags=flags),
                ExitCode.CONFIG,
                f"another process of this site is running, with the run folder {made.kit('source-1')}/local/run",
                hint="let it go on, or stop it first",
            )
        assert not elsewhere.exists()
        others = [made.start(site) for site in ("source-2", "source-3")]
        assert [process.end() for process in (target, source, *others)] == [0] * 4
        assert made.summary()["rounds"] == 1


def test_a_second_run_in_a_folder_names_the_processes_of_the_first(tmp_path: Path) -> None:
    command = ["run", "digits", "--out", str(tmp_path / "run"), *(part for text in ENDLESS for part in ("--set", text))]
    first = Process(command).until("round 1 of")
    for fresh in ([], ["--fresh"]):
        second = Process([*command, *fresh])
        assert_one_clear_line(second, ExitCode.CONFIG, "run: is in use by target (process", hint="end the run first")
    first.until("round", count=4)
    first.interrupt(signal.SIGINT)
    rounds = read_run(tmp_path / "run").rounds
    assert [line["round"] for line in rounds] == list(range(1, len(rounds) + 1))
    assert len(rounds) >= 3


def test_a_ledger_in_use_can_be_shown_and_is_not_made_again(tmp_path: Path) -> None:
    noisy = ("training.source.dp.noise-multiplier=2.0", "privacy.budget.target-epsilon=100000", *ENDLESS)
    with kits(tmp_path, settings=noisy) as made:
        assert all(_add_ledger(site, made, "init").end() == 0 for site in made.names)
        running = made.start_all()
        running["target"].until("round 2 of")
        shown = [_add_ledger("source-1", made, "show") for _ in range(2)]
        second = _add_ledger("source-1", made, "init")
        assert [process.end() for process in shown] == [0, 0]
        assert_one_clear_line(second, ExitCode.BUDGET, "exists already", hint="budget show")
        running["target"].until("round 4 of")
        assert all(process.process.poll() is None for process in running.values())
