"""Whole runs with one process per site: happy, with a killed source, with a killed aggregator.

The processes of the happy run share nothing, not even what was imported: they are started as a shell starts them.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_processes import Kits, kits
from safetensors.numpy import load_file

from securefda.errors import ExitCode
from securefda.rounds.run_folder import read_run

ROUNDS = 12
SETTINGS = (f"strategy.rounds={ROUNDS}", "strategy.warm-up-rounds=1")


@pytest.fixture(scope="module")
def happy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kits]:
    """A federation of three sources after a run of three rounds."""
    with kits(tmp_path_factory.mktemp("happy"), settings=("strategy.rounds=3",), by_exec=True) as federation:
        processes = federation.start_all()
        assert processes["target"].end() == 0, processes["target"].text
        for site in federation.names:
            assert processes[site].end() == 0, processes[site].text
        yield federation


def test_a_target_and_three_sources_finish_their_rounds(happy: Kits) -> None:
    assert [(line["round"], line["status"], line["attempts"]) for line in happy.rounds()] == [
        (number, "finished", 1) for number in (1, 2, 3)
    ]
    assert all(line["survivors"] == happy.names for line in happy.rounds())
    assert happy.summary()["status"] == "finished"
    assert happy.summary()["visibility"] == dict.fromkeys(happy.names, "sum")


def test_each_source_is_served_at_the_level_that_its_own_signed_policy_permits(tmp_path: Path) -> None:
    levels = {"source-1": "individual", "source-2": "sum", "source-3": "sum", "source-4": "sum"}
    visible = "privacy.site-visibility={" + ", ".join(f'{site} = "{level}"' for site, level in levels.items()) + "}"
    settings = ("strategy.rounds=3", "privacy.visibility=individual", visible)
    with kits(tmp_path, 4, settings=settings) as federation:
        processes = federation.start_all()
        assert processes["target"].end() == 0, processes["target"].text
        lines = federation.rounds()
        assert [(line["status"], line["levels"]) for line in lines] == [("finished", levels)] * 3
        assert lines[-1]["target_update_to"] == ["source-2", "source-3", "source-4"]
        assert [(seen["level"], len(seen["members"])) for seen in lines[-1]["seen"]] == [("sum", 3), ("individual", 1)]
        for site, level in levels.items():
            assert processes[site].end() == 0, processes[site].text
            assert f"visibility {level}" in processes[site].text


def test_a_run_leaves_a_folder_that_can_be_read(happy: Kits) -> None:
    record = read_run(happy.run_folder)
    assert record.summary is not None
    assert record.summary["model_digest"] == happy.rounds()[-1]["model_digest"]
    assert sum(layer.size for layer in load_file(happy.run_folder / "model.safetensors").values()) == 9610
    assert "<html" in (happy.run_folder / "report.html").read_text()


def test_every_source_keeps_its_own_record_at_its_own_place(happy: Kits) -> None:
    for site in happy.names:
        own = happy.kit(site) / "local" / "run"
        lines = [json.loads(line) for line in (own / "metrics.jsonl").read_text().splitlines()]
        assert [line["round"] for line in lines] == [1, 2, 3]
        assert 0 <= lines[-1]["beta"] <= 1
    assert "beta" not in happy.rounds()[-1]


def test_state_on_disk_is_readable_by_its_owner_alone(happy: Kits) -> None:
    for site in ("target", *happy.names):
        state = happy.kit(site) / "local" / "run" / "state.sqlite"
        assert stat.S_IMODE(state.stat().st_mode) == 0o600


def test_a_finished_run_that_is_started_again_changes_nothing(happy: Kits) -> None:
    before = happy.rounds()
    again = happy.start("target", by_exec=False)
    assert again.end() == 0, again.text
    assert "complete already" in again.text
    assert happy.rounds() == before
    assert happy.summary()["status"] == "finished"


def test_a_run_with_other_settings_leaves_the_folder_of_the_first_alone(happy: Kits) -> None:
    before = (happy.run_folder / "summary.json").read_bytes()
    other = happy.start("target", "strategy.rounds=4", by_exec=False)
    assert other.end() == ExitCode.CONFIG
    assert "holds a run with other settings" in other.text
    assert (happy.run_folder / "summary.json").read_bytes() == before


def test_a_killed_source_that_comes_back_rejoins_at_the_next_round(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SETTINGS) as federation:
        processes = federation.start_all()
        aggregator = processes["target"].until("[ROUND 2/")
        processes["source-2"].kill()
        back = federation.start("source-2")
        assert aggregator.end() == 0, aggregator.text
        assert [site.end() for site in (back, processes["source-1"], processes["source-3"])] == [0, 0, 0]
        assert sum("source-2 joined" in line for line in aggregator.err) == 2
        rounds = federation.rounds()
        assert [line["round"] for line in rounds] == list(range(1, ROUNDS + 1))
        assert rounds[-1]["survivors"] == federation.names
        assert sum(line["status"] == "lost" for line in rounds) <= 1


def test_a_killed_aggregator_resumes_and_its_sources_rejoin_by_themselves(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SETTINGS) as federation:
        processes = federation.start_all()
        processes["target"].until("[ROUND 3/").kill()
        digests = {line["round"]: line["model_digest"] for line in federation.rounds()}
        again = federation.start("target")
        assert again.end() == 0, again.text
        assert any(line.startswith("resuming after round") for line in again.err)
        assert [processes[site].end() for site in federation.names] == [0, 0, 0]
        assert all("joining again" in processes[site].text for site in federation.names)
        rounds = federation.rounds()
        assert [line["round"] for line in rounds] == list(range(1, ROUNDS + 1))
        assert {line["round"]: line["model_digest"] for line in rounds if line["round"] in digests} == digests
        assert rounds[-1]["status"] == "finished"
        assert rounds[-1]["survivors"] == federation.names
        assert sum(line["status"] == "lost" for line in rounds) <= 1
        assert federation.summary()["model_digest"] == rounds[-1]["model_digest"]
