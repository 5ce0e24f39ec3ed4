"""Who has the log's key can sign anything: what witnesses, and checkpoints that others hold, make of that."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from forged_logs import signed_note
from log_builder import SMALL, entry, found, grow, opened, verify

from securefda.audit.log_files import read_bundle
from securefda.audit.merkle import WIDTH


def forged(parent: Path, bad: int, sizes: tuple[int, ...], witnesses: tuple[str, ...] = ()) -> Path:
    """A log that says something else of record ``bad``, made with the party's own key."""
    with opened(parent) as log:
        for size in sizes:
            while log.size < size:
                log.append(entry(log.size + 1000 if log.size == bad else log.size))
            grow(log, size, witnesses=witnesses)
    return parent / "run-1"


@pytest.mark.parametrize("bad", range(20))
def test_log_signed_anew_with_a_stolen_key_lacks_the_witnesses(tmp_path: Path, bad: int) -> None:
    folder = forged(tmp_path, bad, SMALL)

    assert found(verify(folder)) == ("missing-cosignature", 0, False)
    assert verify(folder, needed=0).finding is None  # the control: without witnesses it cannot be seen


@pytest.mark.parametrize("bad", range(20))
def test_log_signed_anew_behind_what_witnesses_signed_is_trusted_up_to_there(
    small: Path, tmp_path: Path, bad: int
) -> None:
    folder = forged(tmp_path / "forged", bad, SMALL)
    kept = [size for size in SMALL if size <= bad]
    for size in kept:
        shutil.copy(small / f"checkpoints/{size:016d}", folder / "checkpoints")

    assert found(verify(folder)) == ("missing-cosignature", max([0, *kept]), False)


@pytest.mark.parametrize("bad", range(20))
@pytest.mark.parametrize("old", [6, 13])
def test_key_that_signed_two_trees_is_found_by_any_checkpoint_of_the_other(
    small: Path, tmp_path: Path, bad: int, old: int
) -> None:
    folder = forged(tmp_path / "forged", bad, SMALL)
    note = (small / f"checkpoints/{old:016d}").read_bytes()
    if bad >= old:  # both trees have it
        assert verify(folder, needed=0, known=[note]).finding is None
        return

    assert found(verify(folder, needed=0, known=[note])) == ("forked", 0, False)
    (folder / f"checkpoints/{old:016d}").write_bytes(note)
    assert found(verify(folder, needed=0))[:2] == ("forked", 0)


def test_fork_is_trusted_up_to_the_last_checkpoint_that_a_witness_signed(small: Path, tmp_path: Path) -> None:
    folder = forged(tmp_path / "forged", 8, SMALL)
    for size in (6, 13):
        shutil.copy(small / f"checkpoints/{size:016d}", folder / "checkpoints")

    assert found(verify(folder)) == ("forked", 6, False)


def test_fork_whose_forger_forgot_the_tiles_is_found_at_its_very_record(small: Path, tmp_path: Path) -> None:
    folder = forged(tmp_path / "forged", 8, SMALL)
    shutil.copytree(small / "tile/0", folder / "tile/0", dirs_exist_ok=True)
    shutil.copy(small / "checkpoints/0000000000000013", folder / "checkpoints")

    assert found(verify(folder)) == ("forked", 8, True)


def test_two_checkpoints_of_one_size_with_different_roots_are_a_fork(small: Path, tmp_path: Path) -> None:
    other = forged(tmp_path / "forged", 15, SMALL)
    shutil.copy(other / "checkpoint", small / "checkpoint")

    assert found(verify(small)) == ("forked", 13, False)


def test_old_state_of_the_log_is_found_by_a_later_checkpoint_that_somebody_holds(small: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        grow(log, 6, 13)
        old = shutil.copytree(tmp_path / "run-1", tmp_path / "old")
        grow(log, 20)

    assert verify(old).finding is None  # the control: alone it is a good log
    assert found(verify(old, known=[(small / "checkpoint").read_bytes()])) == ("replayed", 13, True)


def test_checkpoint_that_a_site_showed_and_did_not_live_to_save_is_no_old_state(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        grow(log, 6, 13)
        dead = shutil.copytree(tmp_path / "run-1", tmp_path / "dead")
        grow(log, 20)
        shown = log.checkpoint()
    shutil.copy(tmp_path / "run-1" / "tail", dead / "tail")  # the records were on the disk, the checkpoint was not

    assert verify(dead, known=[shown]).finding is None
    assert "the checkpoint of 20 records that others hold is not kept here" in " ".join(
        verify(dead, known=[shown]).notes
    )

    tail = (dead / "tail").read_bytes()
    (dead / "tail").write_bytes(tail.replace(b'"seq":17', b'"seq":71'))  # the control: one of them was changed
    assert found(verify(dead, known=[shown]))[0] == "forked"


def test_a_checkpoint_of_any_number_of_records_does_not_have_their_files_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = forged(tmp_path, 0, SMALL)
    (folder / "checkpoint").unlink()  # it shares its bytes with one below checkpoints/
    (folder / "checkpoint").write_bytes(signed_note(10**15, bytes(32)).to_bytes())
    looked_for: list[int] = []

    def looked(log: Path, index: int, width: int = WIDTH) -> bytes | None:
        looked_for.append(index)
        assert len(looked_for) < 20
        return read_bundle(log, index, width)

    monkeypatch.setattr("securefda.audit.verify.read_bundle", looked)

    assert found(verify(folder)) == ("truncated", SMALL[-1], True)
    assert sorted(set(looked_for)) == [0, 10**15 // WIDTH]
