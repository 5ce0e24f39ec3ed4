"""What a process remembers when it is killed: it survives, it is for one process and one run, it is nobody else's."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from source_stores import NO_LIMITS, book_beside, store_at

from securefda.aggregator.store import AggregatorStore, KeptResult, RoundRequest
from securefda.errors import ConfigError, SecureFdaError
from securefda.protocol.header_checks import History, PastResult
from securefda.protocol.messages import (
    NO_CONTEXT,
    Envelope,
    Header,
    Layer,
    Receipt,
    Result,
    RuleTerms,
    Signed,
    SourcesKeep,
    Visibility,
)
from securefda.protocol.transcript import round_terms_digest, sum_terms
from securefda.source.model_bound import AcceptedHeader, Known, TakenResult
from securefda.source.run_book import RunBook
from securefda.source.source_store import SourceStore
from securefda.training import Vector

RUN, OTHER_RUN = bytes(16), b"x" * 16
SESSION, OTHER_SESSION = bytes(32), b"s" * 32
CONFIG = b"c" * 32
MODEL = np.arange(6, dtype=np.float32)


def header(number: int) -> Signed[Header]:
    body = Header(
        run_id=RUN,
        round=number,
        attempt=1,
        levels=(Visibility.INDIVIDUAL,),
        rule=RuleTerms("source_only", 0.5, "orthogonal", True, True, "mean-field", 1.0),
        target=None,
        layers=(Layer("weight", (2, 3), 1.0, 1.0),),
        architecture_digest=bytes(32),
        model_digest=bytes(32),
        roster_digest=bytes(32),
        participants=(1,),
        threshold=1,
        modulus_bits=32,
        n_max=2,
        max_samples=10,
        training_deadline_ms=1,
        phase_deadline_ms=1,
        previous_result_digest=b"",
        previous_checkpoint=b"",
    )
    return Signed(Envelope(SESSION, 0, NO_CONTEXT, body), b"", bytes(64))


def history(path: Path, *, session: bytes = OTHER_SESSION, run: bytes = RUN, number: int = 1) -> History:
    store = store_at(path)
    found = store.history(session, run, number)
    store.close()
    return found


def with_clip(number: int, clip: float) -> Signed[Header]:
    accepted = header(number)
    body = replace(accepted.body, layers=(Layer("weight", (2, 3), clip, clip),))
    return replace(accepted, envelope=replace(accepted.envelope, body=body))


def test_a_source_remembers_the_terms_of_sums_once_an_input_may_have_left(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s.sqlite")
    store.accept_header(with_clip(1, 1.0), 1)
    assert store.history(OTHER_SESSION, RUN, 1).sum_terms == ()
    store.accept_header(with_clip(2, 2.0), 1)
    store.burn_fuse(RUN, 2)
    store.accept_header(with_clip(3, 3.0), 1)
    store.burn_fuse(RUN, 3)
    store.close()
    assert history(tmp_path / "s.sqlite").sum_terms == tuple(sorted(sum_terms(with_clip(2, 2.0).body)))


def test_a_new_source_remembers_nothing(tmp_path: Path) -> None:
    assert history(tmp_path / "s.sqlite") == History()


def test_positions_sessions_fuses_and_results_survive_a_restart(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s.sqlite")
    first = TakenResult(1, 1, b"a" * 32, b"b" * 32, SESSION, b"e" * 32)
    second = TakenResult(2, 2, b"c" * 32, b"d" * 32, OTHER_SESSION, b"f" * 32)
    accepted = header(2)
    store.accept_header(accepted, 1)
    store.burn_fuse(RUN, 2)
    store.record_result(RUN, second)
    store.record_result(RUN, first)
    store.close()
    terms = round_terms_digest(accepted.body)
    past = tuple(PastResult(one.round, one.digest, one.model_digest) for one in (first, second))
    of_sums = tuple(sorted(sum_terms(accepted.body)))
    expected = History(True, (2, 1), True, past, last_terms=terms, sources_keep=SourcesKeep.NONE, sum_terms=of_sums)
    assert history(tmp_path / "s.sqlite", session=SESSION, number=2) == expected
    again = store_at(tmp_path / "s.sqlite")
    body = accepted.body
    outside = (accepted.envelope.session_id, accepted.digest())
    before = AcceptedHeader(2, 1, body.previous_result_digest, body.model_digest, *outside, answered=False)
    assert again.known(RUN) == Known(second, before)
    assert again.known(OTHER_RUN) == Known()
    again.close()


def test_a_source_knows_that_its_run_is_complete(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s.sqlite")
    store.accept_header(header(1))
    assert store.complete_run() is None
    store.end_run(RUN, keeps_own=False)
    store.close()
    again = store_at(tmp_path / "s.sqlite")
    assert again.complete_run() == RUN
    again.close()


def test_the_book_is_closed_where_the_state_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "s.sqlite").write_bytes(b"no database" * 100)
    book = RunBook(book_beside(tmp_path / "s.sqlite"), NO_LIMITS)
    with pytest.raises(SecureFdaError, match=r"s\.sqlite: file is not a database"):
        SourceStore(tmp_path / "s.sqlite", book)
    with pytest.raises(SecureFdaError, match="closed database"):
        book.knows(RUN)


FIRST = np.zeros(6, dtype=np.float32)


def remember(store: SourceStore, run: bytes, number: int, model: Vector, units: tuple[float, ...]) -> None:
    store.remember_trained(run, number, model, sha256(model.tobytes()).digest(), units)


def trained_from(store: SourceStore, run: bytes) -> tuple[int, list[float], tuple[float, ...] | None]:
    found = store.trained_from(run, lambda: FIRST)
    return found.number, found.model.tolist(), found.units


def model_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("s.sqlite.model-*"))


def test_what_was_trained_from_survives_a_restart_and_is_replaced(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s.sqlite")
    assert trained_from(store, RUN) == (0, FIRST.tolist(), None)
    remember(store, RUN, 0, MODEL, (1.5,))
    remember(store, RUN, 0, MODEL, (2.5,))  # a second attempt of a round
    remember(store, OTHER_RUN, 3, MODEL + 9, (0.5,))
    assert trained_from(store, RUN) == (0, MODEL.tolist(), (2.5,))
    store.close()
    again = store_at(tmp_path / "s.sqlite")
    assert trained_from(again, RUN) == (0, MODEL.tolist(), (2.5,))
    assert trained_from(again, OTHER_RUN) == (3, (MODEL + 9).tolist(), (0.5,))
    remember(again, RUN, 2, MODEL + 1, (4.0,))
    assert trained_from(again, RUN) == (2, (MODEL + 1).tolist(), (4.0,))
    assert len(model_files(tmp_path)) == 2  # one a run
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in model_files(tmp_path))
    again.close()


def test_models_that_a_kill_left_behind_go(tmp_path: Path) -> None:
    (tmp_path / "s.sqlite.model-00").write_bytes(bytes(24))
    store = store_at(tmp_path / "s.sqlite")
    remember(store, RUN, 0, MODEL, (1.5,))
    assert [file.read_bytes() for file in model_files(tmp_path)] == [MODEL.tobytes()]
    store.close()


def test_a_power_cut_may_take_the_position_and_not_the_session(tmp_path: Path) -> None:
    store, accepted = store_at(tmp_path / "s.sqlite"), header(1)
    store.accept_header(accepted)
    store.close()
    with sqlite3.connect(tmp_path / "s.sqlite") as database:
        database.execute("DELETE FROM positions")
    database.close()
    found = history(tmp_path / "s.sqlite", session=accepted.envelope.session_id, number=1)
    assert found.session_seen
    assert (found.last_position, found.released) == (None, False)


@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "changed"])
def test_a_lost_model_is_replaced_by_the_first(tmp_path: Path, damage: str) -> None:
    store = store_at(tmp_path / "s.sqlite")
    remember(store, RUN, 2, MODEL, (1.5,))
    store.close()
    (file,) = model_files(tmp_path)
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes({"empty": b"", "torn": data[:-3], "changed": bytes(4) + data[4:-1] + b"x"}[damage])
    again = store_at(tmp_path / "s.sqlite")
    assert trained_from(again, RUN) == (0, FIRST.tolist(), (1.5,))
    remember(again, RUN, 2, MODEL, (2.0,))
    assert trained_from(again, RUN) == (2, MODEL.tolist(), (2.0,))
    again.close()


def test_the_last_result_and_its_receipts_survive_a_restart(tmp_path: Path) -> None:
    store = AggregatorStore(tmp_path / "a.sqlite")
    store.begin_run(RUN, CONFIG, MODEL)
    assert (store.last_result(), store.receipts()) == (None, [])
    envelope = Envelope(SESSION, 0, b"c" * 32, Result(b"", 2, b"m" * 32))
    first = KeptResult(1, 1, Signed(envelope, b"bytes", bytes(64)))
    receipt = Signed(Envelope(SESSION, 2, b"c" * 32, Receipt(RUN, 1, 1, b"d" * 32, b"m" * 32)), b"given", bytes(64))
    store.finish_round({"round": 1}, MODEL + 1, b"r" * 32, kept=first)
    store.keep_receipt(receipt)
    store.close()
    again = AggregatorStore(tmp_path / "a.sqlite")
    assert (again.last_result(), again.receipts()) == (first, [(2, b"given", bytes(64))])
    again.finish_round({"round": 2}, MODEL + 1, b"r" * 32, kept=replace(first, round=2, number=2))
    assert again.receipts() == []
    again.close()


def test_a_fuse_is_of_one_run_and_one_round(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s.sqlite")
    store.burn_fuse(RUN, 2)
    store.close()
    assert not history(tmp_path / "s.sqlite", number=1).released
    assert not history(tmp_path / "s.sqlite", run=OTHER_RUN, number=2).released


def test_a_burnt_fuse_cannot_be_burnt_again_also_after_a_restart(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s.sqlite")
    store.burn_fuse(RUN, 1)
    with pytest.raises(SecureFdaError):
        store.burn_fuse(RUN, 1)
    store.close()
    again = store_at(tmp_path / "s.sqlite")
    with pytest.raises(SecureFdaError):
        again.burn_fuse(RUN, 1)
    again.close()


@pytest.mark.parametrize("kind", [store_at, AggregatorStore])
def test_every_commit_waits_for_the_disk(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    store = kind(tmp_path / "s.sqlite")
    pragmas = ("journal_mode", "synchronous", "fullfsync", "locking_mode")
    found = [store._database.execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in pragmas]
    store.close()
    assert found == ["wal", 2, 1, "exclusive"]


@pytest.mark.parametrize("kind", [store_at, AggregatorStore])
def test_a_new_file_and_its_folders_are_on_the_disk_under_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Path], Any]
) -> None:
    synced = set()
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", watched)
    kind(tmp_path / "new" / "deep" / "s.sqlite").close()
    assert synced == {folder.stat().st_ino for folder in (tmp_path, tmp_path / "new", tmp_path / "new" / "deep")}


def test_a_session_id_is_remembered_in_every_run(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s.sqlite")
    store.accept_header(header(1))
    store.close()
    assert history(tmp_path / "s.sqlite", session=SESSION, run=OTHER_RUN).session_seen


def test_model_and_position_of_a_finished_round_survive_together(tmp_path: Path) -> None:
    store = AggregatorStore(tmp_path / "a.sqlite")
    store.begin_run(RUN, CONFIG, MODEL)
    store.begin_attempt(1, 2, RoundRequest(b"t" * 32, at_sum=True))
    store.mark_released()
    store.finish_round({"round": 1, "status": "finished"}, MODEL + 1, b"r" * 32)
    store.begin_attempt(2, 1, RoundRequest(b"u" * 32, at_sum=False))
    store.close()
    again = AggregatorStore(tmp_path / "a.sqlite")
    position = again.position(CONFIG)
    assert position is not None
    assert (position.run_id, position.round, position.attempt, position.released) == (RUN, 2, 1, False)
    assert position.request == RoundRequest(b"u" * 32, at_sum=False)
    assert (position.result_digest, position.completed) == (b"r" * 32, False)
    assert np.array_equal(again.model(), MODEL + 1)
    assert again.records() == [{"round": 1, "status": "finished"}]
    again.close()


def test_a_file_is_closed_when_no_thread_is_in_it_and_then_says_that_it_is(tmp_path: Path) -> None:
    store = AggregatorStore(tmp_path / "a.sqlite")
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with store._transaction():
            entered.set()
            leave.wait(20)

    inside, closing = threading.Thread(target=stay), threading.Thread(target=store.close)
    inside.start()
    assert entered.wait(20)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive(), "it closes the file under a thread that is in it"
    leave.set()
    for thread in (inside, closing):
        thread.join(20)
        assert not thread.is_alive()
    with pytest.raises(SecureFdaError, match=r"a\.sqlite: Cannot operate on a closed database"):
        store.records()


def test_a_lost_round_leaves_model_and_result_alone(tmp_path: Path) -> None:
    store = AggregatorStore(tmp_path / "a.sqlite")
    store.begin_run(RUN, CONFIG, MODEL)
    store.finish_round({"round": 1}, MODEL + 1, b"r" * 32)
    store.lose_round({"round": 2, "status": "lost"})
    position = store.position(CONFIG)
    assert position is not None
    assert (position.round, position.result_digest) == (2, b"r" * 32)
    assert np.array_equal(store.model(), MODEL + 1)
    store.close()


def test_a_run_with_other_settings_is_refused_and_keeps_its_state(tmp_path: Path) -> None:
    store = AggregatorStore(tmp_path / "a.sqlite")
    store.begin_run(RUN, CONFIG, MODEL)
    with pytest.raises(ConfigError, match="holds a run with other settings") as caught:
        store.position(b"o" * 32)
    assert "--out" in caught.value.hint
    assert store.position(CONFIG) is not None
    store.close()


@pytest.mark.parametrize("kind", [store_at, AggregatorStore])
def test_state_is_readable_by_its_owner_alone(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    store = kind(tmp_path / "new" / "state.sqlite")
    if kind is store_at:
        store.burn_fuse(RUN, 1)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "new").iterdir()}
    store.close()
    assert modes["state.sqlite"] == 0o600
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize("kind", [store_at, AggregatorStore])
def test_a_second_process_on_the_same_state_is_refused(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    store = kind(tmp_path / "state.sqlite")
    with pytest.raises(ConfigError, match="another process uses it") as caught:
        kind(tmp_path / "state.sqlite")
    assert "--out" in caught.value.hint
    store.close()
    kind(tmp_path / "state.sqlite").close()


@pytest.mark.parametrize("kind", [store_at, AggregatorStore])
def test_state_that_another_process_recovers_is_in_use_and_not_damaged(
    tmp_path: Path, kind: Callable[[Path], Any]
) -> None:
    store = kind(tmp_path / "state.sqlite")
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
    with pytest.raises(ConfigError, match="another process uses it"), store._clear_errors():
        raise busy
    store.close()


@pytest.mark.parametrize("kind", [store_at, AggregatorStore])
def test_state_of_another_release_is_refused_and_left_alone(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    path = tmp_path / "state.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(ConfigError, match="has format 99") as caught:
        kind(path)
    assert "release" in caught.value.hint
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (99,)
    database.close()


@pytest.mark.parametrize("there", ["file is not a database", "Is a directory"])
def test_what_is_no_database_is_one_clear_line(tmp_path: Path, there: str) -> None:
    path = tmp_path / "state.sqlite"
    if there == "Is a directory":
        path.mkdir()
    else:
        path.write_bytes(b"this is not a database, and it is long enough to be noticed" * 20)
    with pytest.raises(SecureFdaError, match=rf"state\.sqlite: {there}$") as caught:
        store_at(path)
    assert caught.value.hint


def test_a_full_disk_is_one_clear_line_and_burns_no_fuse(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s.sqlite")
    pages = store._database.execute("PRAGMA page_count").fetchone()[0]
    store._database.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own way to a full disk
    with pytest.raises(SecureFdaError, match="database or disk is full") as caught:
        _burn_for_ever(store)
    assert "free disk space" in caught.value.hint
    burnt = [store.history(SESSION, RUN, number).released for number in range(1, 10_000)]
    store.close()
    written = sum(burnt)
    assert written > 0
    assert burnt == [True] * written + [False] * (len(burnt) - written)


def _burn_for_ever(store: SourceStore) -> None:
    for number in range(1, 10_000):
        store.burn_fuse(RUN, number)


def test_no_personal_state_is_kept_of_a_round_whose_model_was_refused_after_training(tmp_path: Path) -> None:
    store = store_at(tmp_path / "state.sqlite")
    store.accept_header(header(1))
    store.keep_personal("head", 1, b"of the refused model")
    store.accept_header(header(2))
    store.keep_personal("head", 2, b"of the next one")
    assert store.personal("head", 3) is None
    store.remember_trained(RUN, 1, np.zeros(1, np.float32), bytes(32), (1.0,))
    assert store.personal("head", 3) == b"of the next one"
    assert store.personal("head", 2) is None
    store.close()
