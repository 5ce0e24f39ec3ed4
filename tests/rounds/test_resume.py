"""An aggregator that is killed at any moment goes on where it stood, and no update leaves a source twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rounds_federation import SEED, TARGET, Federation, until

from securefda.aggregator.run import AggregatorRun
from securefda.errors import ConfigError
from securefda.operations.recording import ModelOrigin, RecordingReporter, model_file
from securefda.operations.run_folder import RunFolder, read_run
from securefda.protocol.messages import (
    Advertise,
    Goodbye,
    Header,
    KeyList,
    Result,
    Survivors,
)

ROUNDS = 3


def killed_at(folder: Path, kind: type, *, n: int = 3, number: int = 2, **strategy: object) -> Federation:
    """A federation whose aggregator is killed when a message of this kind, of this round, is next to arrive."""
    return Federation(folder, n, rounds=ROUNDS, **strategy).open().kill_aggregator_at(kind, number)


@pytest.fixture
def undisturbed(tmp_path: Path) -> np.ndarray:
    """The model of a run in which nothing happens."""
    federation = Federation(tmp_path / "undisturbed", rounds=ROUNDS).open().go()
    federation.close()
    return federation.run.model


@pytest.mark.parametrize("kind", [Header, Advertise, KeyList])
def test_killed_before_anything_could_leave_it_tries_the_round_again(
    tmp_path: Path, kind: type, undisturbed: np.ndarray
) -> None:
    federation = killed_at(tmp_path, kind)
    run_id = federation.run.run_id
    federation.restart_aggregator().go()
    assert federation.run.run_id == run_id
    assert federation.statuses == ["finished"] * ROUNDS
    assert [record["attempts"] for record in federation.store.records()] == [1, 2, 1]
    assert "resuming after round 1" in federation.watch.text
    assert np.array_equal(federation.run.model, undisturbed)
    federation.close()


def test_killed_with_a_result_on_disk_and_not_sent_it_goes_on_behind_it(
    tmp_path: Path, undisturbed: np.ndarray
) -> None:
    federation = killed_at(tmp_path, Result)
    assert federation.statuses == ["finished", "finished"]
    federation.restart_aggregator().go()
    assert federation.statuses == ["finished"] * ROUNDS
    assert np.array_equal(federation.run.model, undisturbed)
    assert all(alarms == [] for alarms in federation.watch.alarms.values())
    assert [record["round"] for record in federation.watch.records[1]] == [1, 3]
    federation.close()


def test_killed_before_the_goodbye_it_repeats_it_to_all_that_join(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rounds=1).open()
    federation.link = lambda sender, to, message: None if isinstance(message.body, Goodbye) else message
    federation.go()
    assert federation.run.done
    federation.under_way.clear()
    assert [source.standing.goodbye for source in federation.sources.values()] == [None] * 3
    federation.link = lambda _sender, _recipient, message: message
    federation.restart_aggregator()
    assert federation.run.done
    federation.deliver_all()
    assert [source.standing.goodbye for source in federation.sources.values()] == [Goodbye(True, 0, "")] * 3
    assert federation.statuses == ["finished"]
    federation.close()


def test_killed_in_the_last_attempt_that_policies_permit_it_asks_for_no_more(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rounds=2, settings={"attempts": 1}).open()
    until(federation, TARGET, Advertise)
    federation.restart_aggregator().go()
    assert federation.statuses == ["lost", "finished"]
    assert all(alarms == [] for alarms in federation.watch.alarms.values())
    federation.close()


def test_killed_before_its_first_header_it_begins_round_1(tmp_path: Path, undisturbed: np.ndarray) -> None:
    federation = Federation(tmp_path, rounds=ROUNDS)
    federation.run.open()
    run_id = federation.run.run_id
    federation.restart_aggregator().go()
    assert federation.run.run_id == run_id
    assert [record["attempts"] for record in federation.store.records()] == [1] * ROUNDS
    assert np.array_equal(federation.run.model, undisturbed)
    federation.close()


def test_sources_that_restart_with_the_aggregator_keep_their_fuses(tmp_path: Path) -> None:
    federation = killed_at(tmp_path, Survivors)
    for index in federation.sources:
        federation.sources[index] = federation.source(index)
    run_id = bytes.fromhex(federation.run.run_id)
    assert all(store.history(bytes(32), run_id, 2).released for store in federation.stores.values())
    federation.restart_aggregator().go()
    assert federation.statuses == ["finished", "lost", "finished"]
    assert all(alarms == [] for alarms in federation.watch.alarms.values())
    federation.close()


def test_a_run_cannot_be_resumed_with_other_settings(tmp_path: Path) -> None:
    federation = killed_at(tmp_path, Advertise)
    other = replace(federation.settings, config_digest=bytes(32))
    with pytest.raises(ConfigError, match="other settings"):
        AggregatorRun(federation.run._site, other, federation.store, federation.watch)
    assert federation.statuses == ["finished"]
    federation.close()


def test_a_run_that_ended_for_want_of_sources_goes_on_when_they_are_there(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rounds=2)
    federation.reached.discard(3)
    federation.open().go()
    assert federation.run.error is not None
    federation.close()
    again = Federation(tmp_path, rounds=2).open().go()
    assert again.run.error is None
    assert again.statuses == ["finished", "finished"]
    again.close()


def test_every_kill_leaves_a_folder_that_the_next_start_completes(tmp_path: Path) -> None:
    """The store is written first, the run folder after it: what is missing there is added."""
    federation = Federation(tmp_path / "state", rounds=ROUNDS).open().go()
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
    federation.close()


def test_a_run_differs_with_its_seed_and_not_with_its_keys(tmp_path: Path, undisturbed: np.ndarray) -> None:
    assert SEED == 5
    again = Federation(tmp_path / "again", rounds=ROUNDS).open().go()
    again.close()
    assert np.array_equal(again.run.model, undisturbed)
