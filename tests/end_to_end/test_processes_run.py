"""Whole runs with one process per site: happy, with a killed source, with a killed aggregator.

The processes of the happy run share nothing, not even what was imported: they are started as a shell starts them.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from e2e_processes import Kits, kits
from safetensors.numpy import load_file

from securefda.cli import main
from securefda.errors import ExitCode
from securefda.operations.run_folder import RunRecord, read_run
from securefda.site.training_secret import TRAINING_KEY_FILE

ROUNDS = 12
ONE_ROUND = ("strategy.rounds=1", "strategy.warm-up-rounds=0")
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


def test_a_source_whose_run_is_complete_says_so_and_waits_for_nobody(happy: Kits) -> None:
    again = happy.start("source-1", by_exec=False)
    assert again.end() == 0, again.text
    assert "is complete already; to take part in another one, name a new folder: --out FOLDER" in again.text
    assert "joined" not in again.text


def test_a_run_with_other_settings_leaves_the_folder_of_the_first_alone(happy: Kits) -> None:
    before = (happy.run_folder / "summary.json").read_bytes()
    other = happy.start("target", "strategy.rounds=4", by_exec=False)
    assert other.end() == ExitCode.CONFIG
    assert "holds a run with other settings, task, sites or seed: strategy.rounds: " in other.text
    assert (happy.run_folder / "summary.json").read_bytes() == before


def test_a_killed_source_that_comes_back_rejoins_at_the_next_round(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SETTINGS) as federation:
        processes = federation.start_all()
        aggregator = processes["target"].until("round 2 of ")
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
        processes["target"].until("round 3 of ").kill()
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


def test_sources_draw_from_their_secret_and_only_a_study_from_the_seed(tmp_path: Path) -> None:
    """What everybody can compute who knows the seed, and has the rows, is what the simulator does."""
    settings = (*ONE_ROUND, "strategy.rule=fedavg")
    with kits(tmp_path, settings=settings) as federation:
        simulated = simulate(federation, settings).sites
        processes = {
            site: federation.start(site, *(["source.repeatable-training=true"] if site == "source-1" else []))
            for site in federation.names
        }
        processes["target"] = federation.start("target")
        for process in processes.values():
            assert process.end() == 0, process.text
        losses = {site: json.loads(line_of(federation, site))["loss"] for site in federation.names}
        alike = {site for site in federation.names if losses[site] == simulated[site][0]["loss"]}
        assert alike == {"source-1"}
        noted = {site for site, process in processes.items() if "repeatable-training is on" in process.text}
        assert noted == {"source-1"}
        made = {site for site in processes if (federation.kit(site) / "local" / TRAINING_KEY_FILE).exists()}
        assert made == {"source-2", "source-3", "target"}


def simulate(federation: Kits, settings: Iterable[str]) -> RunRecord:
    out, sets = federation.root / "simulated", [part for text in settings for part in ("--set", text)]
    assert main(["simulate", str(federation.file), *sets, "--out", str(out)]) == 0
    return read_run(out)


def line_of(federation: Kits, site: str) -> str:
    return (federation.kit(site) / "local" / "run" / "metrics.jsonl").read_text()


def test_the_target_draws_from_its_secret_and_only_a_study_from_the_seed(tmp_path: Path) -> None:
    settings = (*ONE_ROUND, "strategy.rule=target_only")
    with kits(tmp_path, settings=settings) as federation:
        digests = {"simulated": simulate(federation, settings).rounds[0]["model_digest"]}
        for name, repeatable in (("secret", "false"), ("again", "false"), ("study", "true")):
            out = tmp_path / name
            process = federation.start(
                "target", f"aggregator.repeatable-training={repeatable}", f"aggregator.out={out}"
            )
            assert process.end() == 0, process.text
            digests[name] = read_run(out).rounds[0]["model_digest"]
    assert digests["study"] == digests["simulated"]
    assert len({digests[name] for name in ("secret", "again", "study")}) == 3


def test_a_target_without_labels_hears_nothing_of_an_epsilon_that_nobody_has(tmp_path: Path) -> None:
    settings = ("training.target.labels=none", "strategy.rule=source_only")
    with kits(tmp_path, settings=settings) as federation:
        started = federation.start("target").until("listens on")
        assert "labels" in started.text
        assert "differential privacy" not in started.text
