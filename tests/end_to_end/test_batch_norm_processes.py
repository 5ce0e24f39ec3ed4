"""BatchNorm where sites are processes: the model, its statistics and those that sites keep are the simulator's."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from e2e_processes import kits
from safetensors.torch import load_file

from securefda.cli import main

SETTINGS = ("strategy.rule=source_only", "strategy.rounds=3", "strategy.warm-up-rounds=0")


def kept_in(folder: Path) -> list[tuple[int, bytes]]:
    """Round and bytes of the statistics that a site keeps in its run folder."""
    with closing(sqlite3.connect(folder / "state.sqlite")) as database:
        query = "SELECT round, state FROM personal WHERE name LIKE '% statistics' ORDER BY round"
        return database.execute(query).fetchall()


def test_processes_and_simulator_leave_the_same_statistics(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SETTINGS, task="e2e_tasks:WithBatchNorm") as federation:
        simulated = tmp_path / "simulated"
        sets = [part for text in SETTINGS for part in ("--set", text)]
        assert main(["simulate", str(federation.file), *sets, "--out", str(simulated)]) == 0
        processes = [
            federation.start(site, f"{role}.repeatable-training=true")
            for site, role in ((federation.target, "aggregator"), *((name, "source") for name in federation.names))
        ]
        for process in processes:
            assert process.end() == 0, process.text
        ours, theirs = (load_file(folder / "model.safetensors") for folder in (federation.run_folder, simulated))
        assert "1.running_mean" in ours
        assert {name: one.tolist() for name, one in ours.items()} == {
            name: one.tolist() for name, one in theirs.items()
        }
        for source in federation.names:
            folder = federation.kit(source) / "local" / "run"
            assert "1.running_mean" not in load_file(folder / "model.safetensors")
            kept = kept_in(folder)
            assert [number for number, _ in kept] == [2, 3]
            assert kept == kept_in(simulated / "sites" / source)
