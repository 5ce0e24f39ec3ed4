"""A ledger that was changed, shortened, put back, copied or deleted is found, and nothing trains."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ledger_site import DATA, EVENT, NOON, WIDE, Site, sign

from securefda.errors import ConfigError
from securefda.privacy.accountants import epsilon
from securefda.privacy.ledger import Ledger
from securefda.privacy.ledger_storage import Head, LedgerError, Recorded, RowMarkers, chained, read_chain


@pytest.fixture
def site(tmp_path: Path) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    site = Site.new(folder)
    site.rounds(1, 2)
    return site


def refused(site: Site) -> LedgerError:
    """Ask for a round, which must be refused with exit code 11, a hint, and nothing written."""
    before = site.state() if site.path.parent.exists() else None
    with pytest.raises(LedgerError) as refusal:
        site.ledger.reserve(EVENT, WIDE, now=NOON + 9)
    assert refusal.value.exit_code == 11
    assert str(site.path) in str(refusal.value)
    assert refusal.value.hint
    assert before is None or site.state() == before
    return refusal.value


def execute(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as database:
        for one in statements:
            database.execute(one)
    database.close()


def cheaper(body: str) -> str:
    """The JSON of a row that charges a round, with ten times the noise."""
    fields = json.loads(body)
    fields["event"]["noise_multiplier"] = "10.0"
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


EDITS: dict[str, tuple[tuple[str, ...], str]] = {
    "a cheaper round": (("UPDATE rows SET body = replace(body, '\"steps\":10', '\"steps\":1')",), "row 2 was changed"),
    "a later time": (("UPDATE rows SET body = replace(body, '1800000002', '1800000003')",), "row 4 was changed"),
    "another digest": (("UPDATE rows SET digest = zeroblob(32) WHERE number = 3",), "row 3 was changed"),
    "a row taken out": (("DELETE FROM rows WHERE number = 2",), "row 2 is gone"),
    "a row taken out, the rest moved up": (
        ("DELETE FROM rows WHERE number = 4", "UPDATE rows SET number = 4 WHERE number = 5"),
        "row 4 was changed",
    ),
    "two rows swapped": (
        (
            "UPDATE rows SET number = -number",
            "UPDATE rows SET number = CASE number WHEN -2 THEN 4 WHEN -4 THEN 2 ELSE -number END",
        ),
        "row 2 was changed",
    ),
    "the last row taken out": (("DELETE FROM rows WHERE number = 5",), "it has 4 rows of 5"),
    "all rows taken out": (("DELETE FROM rows",), "row 1 is gone"),
    "a row put in": (("INSERT INTO rows SELECT 6, body, digest FROM rows WHERE number = 5",), "row 6 was changed"),
    "a row that is no text": (("UPDATE rows SET body = 5 WHERE number = 3",), "row 3 was changed"),
    "the table dropped": (("DROP TABLE rows",), "no such table"),
    "another schema": (("PRAGMA user_version = 7",), "has format 7"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edit_of_the_file_is_found_and_the_row_is_named(site: Site, edit: str) -> None:
    statements, what = EDITS[edit]
    execute(site.path, *statements)

    assert what in str(refused(site))


def test_rows_rewritten_with_a_whole_new_chain_are_found_by_the_marker(site: Site) -> None:
    rewrite(site.path)

    assert "was written anew: its row 5 is not the one that was there" in str(refused(site))


def test_rows_and_marker_rewritten_are_found_by_the_charge_that_the_audit_log_recorded(site: Site) -> None:
    recorded = [Recorded("run-1", 2, NOON + 2, site.ledger.head())]
    Ledger(site.path, DATA, recorded=recorded).rows()
    head = rewrite(site.path)
    marker(site).rename(site.path.with_name(f"ledger.sqlite.rows-5-{head.digest.hex()[:16]}"))
    site.ledger.rows()  # unseen without the audit log

    with pytest.raises(LedgerError, match=r"lacks 1 charge .*, the last for round 2 of run run-1"):
        Ledger(site.path, DATA, recorded=recorded).reserve(EVENT, WIDE, now=NOON + 9)


def rewrite(path: Path) -> Head:
    """Make the first round cheaper and compute all digests anew."""
    with sqlite3.connect(path) as database:
        head = Head(0, bytes(32))
        for number, body in database.execute("SELECT number, body FROM rows ORDER BY number").fetchall():
            fields = json.loads(cheaper(body) if number == 2 else body)
            text, head = chained(fields.pop("kind"), fields.pop("time"), fields, head)
            database.execute("UPDATE rows SET body = ?, digest = ? WHERE number = ?", (text, head.digest, number))
        read_chain(database.execute("SELECT number, body, digest FROM rows ORDER BY number"))
    database.close()
    return head


def marker(site: Site) -> Path:
    (path,) = site.path.parent.glob("ledger.sqlite.rows-*")
    return path


def put_back_contents(site: Site, backup: Path) -> None:
    site.path.write_bytes((backup / "ledger.sqlite").read_bytes())


def put_back_file(site: Site, backup: Path) -> None:
    site.path.unlink()
    shutil.copy(backup / "ledger.sqlite", site.path)


def put_back_over_the_folder(site: Site, backup: Path) -> None:
    shutil.copytree(backup, site.path.parent, dirs_exist_ok=True)


def put_back_the_folder(site: Site, backup: Path) -> None:
    site.path.parent.rename(backup.with_name("aside"))  # kept, so that its file numbers are not given again
    shutil.copytree(backup, site.path.parent)


ROLLBACKS: dict[str, tuple[Callable[[Site, Path], None], str]] = {
    "old contents": (put_back_contents, "it has 5 rows of 7"),
    "old file": (put_back_file, "it has 5 rows of 7"),
    "old folder over the new": (put_back_over_the_folder, "it has 5 rows of 7"),
    "old folder in place of the new": (put_back_the_folder, "is a copy, or was put back"),
}


@pytest.mark.parametrize("rollback", ROLLBACKS)
def test_rollback_to_a_backup_is_found(site: Site, tmp_path: Path, rollback: str) -> None:
    backup = tmp_path / "backup"
    shutil.copytree(site.path.parent, backup)
    site.rounds(3)
    put_back, what = ROLLBACKS[rollback]

    put_back(site, backup)

    assert what in str(refused(site))


def test_ledger_with_a_second_name_is_refused_under_both(site: Site, tmp_path: Path) -> None:
    other = Site(tmp_path / "linked" / "ledger.sqlite")
    shutil.copytree(site.path.parent, other.path.parent, copy_function=os.link)  # as cp -al does

    for name in (site, other):
        refusal = refused(name)
        assert "has a second name (a hard link)" in str(refusal)
        assert "find / -xdev -samefile" in (refusal.hint or "")


def test_deleted_ledger_is_found_and_none_is_made_in_its_place(site: Site) -> None:
    site.path.unlink()

    assert "was deleted after 5 rows" in str(refused(site))
    with pytest.raises(LedgerError, match="was deleted after 5 rows"):
        Ledger.create(site.path, DATA, now=NOON)


@pytest.mark.parametrize("digest", ["0" * 16, "f" * 16], ids=["that sorts below", "that sorts above"])
def test_row_that_a_second_writer_without_the_lock_has_overwritten_is_found_by_its_marker(
    site: Site, digest: str
) -> None:
    site.path.with_name(f"ledger.sqlite.rows-5-{digest}").touch()

    assert "was written anew: its row 5 is not the one that was there" in str(refused(site))


def test_deleted_marker_is_found(site: Site) -> None:
    marker(site).unlink()

    assert "is here without its marker" in str(refused(site))


@pytest.mark.parametrize("keep", [0, 100, 5000])
def test_file_that_is_cut_or_no_ledger_at_all_is_found(site: Site, keep: int) -> None:
    site.path.write_bytes(site.path.read_bytes()[:keep])

    refused(site)


def test_file_of_noise_is_found(site: Site) -> None:
    site.path.write_bytes(b"no database" * 1000)

    assert "file is not a database" in str(refused(site))


def test_write_ahead_log_deleted_under_a_ledger_is_found(site: Site, tmp_path: Path) -> None:
    # A connection that stays open keeps the log from being written back, as a killed process does.
    reader = sqlite3.connect(site.path)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM rows").fetchone()
    site.rounds(3)
    shutil.copytree(site.path.parent, tmp_path / "killed")
    reader.close()
    killed = Site(tmp_path / "killed" / "ledger.sqlite")
    for name in ("ledger.sqlite-wal", "ledger.sqlite-shm"):
        killed.path.with_name(name).unlink()

    assert "it has 5 rows of 7" in str(refused(killed))


def test_copy_goes_on_only_by_the_sites_word_and_with_what_was_spent(site: Site, tmp_path: Path) -> None:
    shutil.copytree(site.path.parent, tmp_path / "moved")
    moved = Site(tmp_path / "moved" / "ledger.sqlite")
    refused(moved)

    moved.ledger.accept("moved to a larger disk", sign, now=NOON + 9)

    assert moved.ledger.spent(1e-5) == epsilon([EVENT, EVENT], 1e-5)
    assert moved.ledger.rows()[-1].fields["doubt"] == "is a copy, or was put back"
    moved.rounds(10)


def older(site: Site, aside: Path) -> None:
    shutil.copytree(site.path.parent, aside)
    site.rounds(3)
    put_back_contents(site, aside)


def written_anew(site: Site, _: Path) -> None:
    rewrite(site.path)


LACKS_ROWS: dict[str, tuple[Callable[[Site, Path], None], str]] = {
    "older": (older, "is older than its folder: it has 5 rows of 7, 2 are missing"),
    "written anew": (written_anew, "was written anew: its row 5 is not the one that was there"),
}


@pytest.mark.parametrize("how", LACKS_ROWS)
def test_file_that_lacks_rows_cannot_be_accepted_for_what_they_cost_would_be_given_back(
    site: Site, tmp_path: Path, how: str
) -> None:
    change, what = LACKS_ROWS[how]
    change(site, tmp_path / "backup")
    assert "budget accept" not in (refused(site).hint or "")
    before = site.state()

    with pytest.raises(LedgerError, match=what) as refusal:
        site.ledger.accept("the disk broke", sign, now=NOON + 9)

    assert refusal.value.exit_code == 11
    assert "put the newest ledger back" in (refusal.value.hint or "")
    assert "securefda budget reset" in (refusal.value.hint or "")
    assert site.state() == before
    refused(site)


@pytest.mark.parametrize("how", LACKS_ROWS)
def test_file_that_lacks_rows_goes_on_by_a_reset_that_says_so_for_ever(site: Site, tmp_path: Path, how: str) -> None:
    change, what = LACKS_ROWS[how]
    change(site, tmp_path / "backup")

    site.ledger.reset("the disk broke", sign, now=NOON + 9)

    last = site.ledger.rows()[-1]
    assert (last.kind, last.fields["doubt"]) == ("reset", what)
    assert site.ledger.spent(1e-5) == 0.0
    site.rounds(10)


def test_newest_copy_that_is_put_back_is_accepted_with_all_that_was_spent(site: Site, tmp_path: Path) -> None:
    shutil.copytree(site.path.parent, tmp_path / "backup")
    site.rounds(3)
    shutil.copytree(site.path.parent, tmp_path / "newest")
    site.path.rename(tmp_path / "aside")  # kept, so that its file number is not given again
    shutil.copy(tmp_path / "backup" / "ledger.sqlite", site.path)
    refused(site)

    shutil.copy(tmp_path / "newest" / "ledger.sqlite", site.path)
    assert "is a copy, or was put back" in str(refused(site))
    site.ledger.accept("the newest copy", sign, now=NOON + 9)

    assert site.ledger.spent(1e-5) == epsilon([EVENT, EVENT, EVENT], 1e-5)


def test_broken_chain_cannot_be_accepted(site: Site) -> None:
    execute(site.path, *EDITS["a cheaper round"][0])

    with pytest.raises(LedgerError, match="row 2 was changed"):
        site.ledger.reset("never mind", sign, now=NOON + 9)


def test_clock_that_was_ahead_is_accepted_under_the_sites_signature(site: Site) -> None:
    ahead = NOON + 10**6
    site.ledger.reserve(EVENT, WIDE, now=ahead)
    with pytest.raises(ConfigError, match="clock"):
        site.ledger.reserve(EVENT, WIDE, now=NOON + 9)

    site.ledger.accept("the clock was ahead", sign, now=NOON + 9)

    site.ledger.reserve(replace(EVENT, round=4), WIDE, now=NOON + 10)


def test_slower_process_does_not_take_the_marker_of_a_faster_one_away(tmp_path: Path) -> None:
    markers = RowMarkers(tmp_path / "ledger.sqlite")
    markers.advance(Head(8, b"\x08" * 32))

    markers.advance(Head(7, b"\x07" * 32))

    assert markers.highest() == (8, "08" * 8)
