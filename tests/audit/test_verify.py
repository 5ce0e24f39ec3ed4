"""Verification: a good log passes, and every falsified one is found, with its kind and the first bad record."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from forged_logs import log_files
from log_builder import (
    KEYS,
    LARGE,
    NAME,
    PUBLIC,
    SMALL,
    WITNESSES,
    Clock,
    entry,
    files,
    found,
    grow,
    opened,
    swap,
    verify,
    witness_key,
)

from securefda.audit.merkle import pack, unpack
from securefda.audit.signed_notes import Note, NoteKey, cosign, sign
from securefda.audit.verify import verify_log


@pytest.mark.parametrize("sizes", [SMALL, LARGE])
def test_log_as_it_was_written_passes(folders: dict[tuple[int, ...], Path], sizes: tuple[int, ...]) -> None:
    result = verify(folders[sizes])

    assert (result.size, result.covered, result.witnesses) == (sizes[-1], sizes[-1], WITNESSES)
    assert result.finding is None
    assert result.notes == ()


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257])
def test_log_passes_at_every_size_and_says_what_is_not_signed_yet(tmp_path: Path, size: int) -> None:
    with opened(tmp_path) as log:
        grow(log, size)
        log.append(entry(size))
        result = verify(tmp_path / "run-1")

    assert (result.size, result.covered, result.finding) == (size + 1, size, None)
    assert result.notes == ("1 record written after the newest checkpoint: the next checkpoint will sign it",)
    (note,) = verify(tmp_path / "run-1").notes
    assert note.endswith("when the sites had cosigned for the last time: nothing proves this part")


@pytest.mark.parametrize("first", range(18, 22))
def test_what_was_done_to_the_last_signed_records_shows_among_those_that_are_not_signed_yet(
    small: Path, first: int
) -> None:
    with opened(small.parent / "logs") as log:
        grow(log, 20)
        for number in range(20, 24):
            log.append(entry(number))
    here = small.parent / "logs/run-1"
    raw = unpack((here / "tail").read_bytes())[0]
    swapped = [*raw[:first], raw[first + 1], raw[first], *raw[first + 2 :]]

    for entries, kind in (
        (raw[:first] + raw[first + 1 :], "deleted"),
        (swapped, "reordered" if first < 20 else "deleted"),
    ):
        (here / "tail").write_bytes(b"".join(map(pack, entries)))
        assert found(verify(here)) == (kind, first, True)


def test_copy_of_the_public_files_alone_passes(small: Path) -> None:
    (small / "tail").unlink()
    (small / "lock").unlink()

    assert verify(small).finding is None


def test_verification_changes_nothing(small: Path) -> None:
    before = files(small)
    verify(small)
    assert files(small) == before


def test_log_of_another_run_or_party_is_not_taken_for_this_one(small: Path) -> None:
    assert found(verify(small, name=replace(NAME, run="run-2"))) == ("replayed", 0, False)
    assert found(verify(small, name=replace(NAME, party="site-b"))) == ("wrong-party", 0, False)
    assert found(verify(small, name=replace(NAME, federation="lungs"))) == ("wrong-party", 0, False)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (b'"party":"site-a"', b'"party":"site-b"', "wrong-party"),
        (b'"run":"run-1"', b'"run":"run-2"', "replayed"),
        (b'"v":1', b'"v":2', "newer-version"),
        (b'"attempt":0', b'"attempt":1.5', "unreadable"),
        (b'"seq":3', b'"seq":4', "deleted"),
        (b'"seq":3', b'"seq":2', "inserted"),
    ],
)
def test_record_that_was_signed_though_it_should_not_be_is_found(
    tmp_path: Path, small: Path, old: bytes, new: bytes, kind: str
) -> None:
    entries = unpack((small / "tail").read_bytes())[0]
    assert old in entries[3]
    entries[3] = entries[3].replace(old, new)

    sign_again(small, entries, SMALL)

    assert found(verify(small, needed=0)) == (kind, 3, True)


def sign_again(folder: Path, entries: list[bytes], sizes: tuple[int, ...]) -> None:
    """Write a log of these records, whatever they are, as the party's own program would sign it."""
    shutil.rmtree(folder)
    for path, data in log_files(entries, sizes, witnesses=()).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def test_partial_bundle_of_a_site_that_was_killed_is_not_missed(small: Path) -> None:
    (small / "tile/entries/000.p/20").unlink()  # it is written when the log is closed

    assert verify(small).finding is None


@pytest.mark.parametrize("cut", [1, 2, 50])
def test_record_that_is_not_whole_behind_the_checkpoint_is_torn(small: Path, cut: int) -> None:
    with (small / "tail").open("ab") as tail:
        tail.write(pack(b"x" * 90)[:cut])

    assert found(verify(small)) == ("torn", 20, True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (shutil.rmtree, ("unreadable", 0)),
        (lambda here: (here / "checkpoint").unlink(), ("unreadable", 20)),
        (lambda here: (here / "checkpoint").write_bytes(b""), ("unreadable", 20)),
        (lambda here: (here / "checkpoint").write_bytes(bytes(range(256)) * 9), ("unreadable", 20)),
        (lambda here: (here / "checkpoints/0000000000000013").write_bytes(b"x"), ("unreadable", 6)),
        (
            lambda here: shutil.copy(kept(here, 6), kept(here, 13)),
            ("replayed", 6),
        ),
        (lambda here: (here / "tile/0/000.p/20").unlink(), ("unreadable", 0)),
        (lambda here: (here / "tile/0/000.p/20").write_bytes(b"x"), ("unreadable", 0)),
        (lambda here: [(here / file).unlink() for file in ("tail", "tile/entries/000.p/20")], ("truncated", 0)),
        (lambda here: swap(here / "tile/entries/000.p/20", b'"seq":7', b'"seq":8'), ("edited", 7)),
        (lambda here: (here / "tail").write_bytes(b""), ("truncated", 0)),
        (lambda here: (here / "tail").write_bytes(b"\x7fELF" * 999), ("truncated", 0)),
        (lambda here: swap(here / "checkpoint", b"\n20\n", b"\n21\n"), ("bad-signature", 20)),
        (lambda here: swap(here / "checkpoints/0000000000000013", b"\n13\n", b"\n12\n"), ("bad-signature", 6)),
        (
            lambda here: swap(here / "checkpoint", b"securefda/1/h", b"securefda/2/h"),
            ("newer-version", 20),
        ),
        (
            lambda here: swap(here / "checkpoint", b"securefda/1/h", b"example.com/h"),
            ("unreadable", 20),
        ),
    ],
)
def test_damaged_files_are_found(small: Path, change: Callable[[Path], object], expected: tuple[str, int]) -> None:
    change(small)

    assert found(verify(small))[:2] == expected


def move_boundary(here: Path, count: int) -> None:
    """Let the first bundle end sooner or later than it must; the records stay in their order."""
    bundle, tail = here / "tile/entries/000", here / "tail"
    entries = unpack(bundle.read_bytes())[0] + unpack(tail.read_bytes())[0]
    bundle.write_bytes(b"".join(map(pack, entries[:count])))
    tail.write_bytes(b"".join(map(pack, entries[count:])))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda here: (here / "tile/1/000.p/1").write_bytes(bytes(32)), ("edited", 0)),
        (lambda here: (here / "tile/1/000.p/1").unlink(), ("unreadable", 0)),
        (lambda here: (here / "tile/0/000").unlink(), ("unreadable", 0)),
        (lambda here: (here / "tile/0/001.p/44").unlink(), ("unreadable", 256)),
        (lambda here: (here / "tile/entries/000").unlink(), ("deleted", 0)),
        (lambda here: (here / "tile/entries/001.p/44").unlink(), None),
        (lambda here: (here / "tail").unlink(), None),
        (lambda here: [(here / file).unlink() for file in ("tail", "tile/entries/001.p/44")], ("truncated", 256)),
        (lambda here: (here / "tail").write_bytes(b""), ("truncated", 256)),
        (lambda here: (here / "tile/entries/000").write_bytes(bytes(16_000_000)), ("edited", 0)),
        (lambda here: move_boundary(here, 255), ("edited", 255)),
        (lambda here: move_boundary(here, 257), ("edited", 256)),
    ],
)
def test_damaged_tiles_and_bundles_of_a_larger_log_are_found(
    folders: dict[tuple[int, ...], Path],
    tmp_path: Path,
    change: Callable[[Path], object],
    expected: tuple[str, int] | None,
) -> None:
    here = shutil.copytree(folders[LARGE], tmp_path / "copy")
    change(here)
    finding = verify(here).finding

    assert (finding and (finding.kind, finding.index)) == expected


def kept(folder: Path, size: int) -> Path:
    return folder / f"checkpoints/{size:016d}"


def resigned(folder: Path, change: Callable[[Note], Note]) -> None:
    for path in (folder / "checkpoint", folder / "checkpoints/0000000000000020"):
        path.write_bytes(change(Note.parse(path.read_bytes())).to_bytes())


def test_checkpoint_by_another_key_is_a_bad_signature(small: Path) -> None:
    resigned(small, lambda note: Note(note.text, (sign(note.text, NAME.origin, KEYS["site-d"]), *note.signatures[1:])))

    assert found(verify(small)) == ("bad-signature", 13, False)


def test_cosignature_that_was_moved_from_another_checkpoint_is_a_bad_signature(small: Path) -> None:
    old = Note.parse((small / "checkpoints/0000000000000013").read_bytes()).signatures[1]
    resigned(small, lambda note: Note(note.text, (note.signatures[0], old)))

    assert found(verify(small)) == ("bad-signature", 13, False)


@pytest.mark.parametrize(("kept", "index"), [(2, 13), (1, 13)])
def test_newest_checkpoint_with_too_few_witnesses_is_found(small: Path, kept: int, index: int) -> None:
    resigned(small, lambda note: Note(note.text, note.signatures[:kept]))

    assert found(verify(small)) == ("missing-cosignature", index, False)
    assert verify(small, needed=kept - 1).finding is None


def test_party_is_no_witness_of_itself_and_strangers_do_not_count(small: Path) -> None:
    own, stranger = witness_key("site-a"), NoteKey("somebody", 4, PUBLIC["site-d"])
    resigned(
        small,
        lambda note: (
            Note(note.text, note.signatures[:2])
            .signed(cosign(note.text, own.name, KEYS["site-a"], 1))
            .signed(cosign(note.text, stranger.name, KEYS["site-d"], 1))
        ),
    )

    assert found(verify(small)) == ("missing-cosignature", 13, False)


def test_public_checkpoint_that_a_crash_left_behind_is_no_finding(small: Path) -> None:
    shutil.copy(small / "checkpoints/0000000000000013", small / "checkpoint")

    assert verify(small).finding is None
    assert verify(small).covered == 20


def test_clock_that_went_back_is_a_note(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, clock=clock) as log:
        grow(log, 3)
        clock.now -= timedelta(minutes=4)
        grow(log, 4)
        clock.now -= timedelta(minutes=4)
        grow(log, 5)

    result = verify(tmp_path / "run-1")
    assert result.finding is None
    assert result.notes == ("1 records are older than one before them by more than 5 minutes",)


def test_checkpoint_from_outside_that_is_not_of_this_log_proves_nothing(small: Path) -> None:
    for note in (b"", b"x", (small / "checkpoint").read_bytes().replace(b"\n20\n", b"\n21\n")):
        with pytest.raises(ValueError, match="proves nothing"):
            verify(small, known=[note])


def test_party_without_a_key_cannot_be_verified(small: Path) -> None:
    with pytest.raises(ValueError, match="no public key of site-a"):
        verify_log(small, NAME, {"site-b": PUBLIC["site-b"]})


def test_finding_shows_no_value_of_a_record(small: Path) -> None:
    swap(small / "tail", b'"peer":"site-b"', b'"peer":"canary"')

    assert "canary" not in str(verify(small))


def test_large_file_in_the_place_of_the_log_is_refused_unread(small: Path) -> None:
    with (small / "tail").open("wb") as tail:
        tail.truncate(10 * 2**30)  # sparse: it takes no space

    assert found(verify(small))[0] == "unreadable"


@pytest.mark.parametrize("place", ["tail", "checkpoint", "tile/0/000.p/20", "checkpoints/0000000000000013"])
def test_pipes_folders_and_links_in_the_place_of_files_are_unreadable(small: Path, place: str) -> None:
    for make in (os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")):
        (small / place).rename(small / "away")
        make(small / place)
        assert found(verify(small))[0] == "unreadable"
        if make is Path.mkdir:
            (small / place).rmdir()
        else:
            (small / place).unlink()
        (small / "away").rename(small / place)
    assert verify(small).finding is None
