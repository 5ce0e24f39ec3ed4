"""Ways to falsify the files of a log byte by byte, each with the kind and the index that a verification must name.

Left out is what falsifies nothing: a partial tile or bundle of an older checkpoint, which nothing is read from any
more; a partial bundle that is gone beside the tail, which has the same records; the lock; a cosignature that is taken
from a checkpoint that is not the newest, or from one copy of it.
"""

from __future__ import annotations

import base64
import binascii
import random
import re
from collections.abc import Sequence

from forged_logs import signed_note
from log_builder import KEYS, NAME, WITNESSES, witness_key
from mutations import Bench, Mutation

from securefda.audit.merkle import HEIGHT, WIDTH, bundle_path, pack
from securefda.audit.signed_notes import Checkpoint, Note, NoteKey, cosign

_NEWEST = "checkpoint"


def flipped(data: bytes, at: int, rng: random.Random) -> bytes:
    return data[:at] + bytes([data[at] ^ rng.randint(1, 255)]) + data[at + 1 :]


def record_byte(bench: Bench, rng: random.Random) -> Mutation:
    """A byte of a record becomes another, in all files that have the record or in one."""
    index = rng.randrange(bench.size)
    old = bench.entries[index]
    new = flipped(old, rng.randrange(len(old)), rng)
    files = bench.files_of([*bench.entries[:index], new, *bench.entries[index + 1 :]])
    if len(files) > 1 and rng.random() < 0.4:
        kept = rng.choice(sorted(files))
        files = {kept: files[kept]}
    return Mutation(f"byte of record {index} in {sorted(files)}", files, "edited", index)


def length_prefix(bench: Bench, rng: random.Random) -> Mutation:
    """The length before a record says something else, in the tail or in a bundle."""
    path, first, count = _bundle(bench, rng)
    place = rng.randrange(count)
    data = bench.files[path]
    at = sum(len(pack(entry)) for entry in bench.entries[first : first + place])
    new = flipped(data, at + rng.randrange(2), rng)
    too_long = at + 2 + int.from_bytes(new[at : at + 2], "big") > len(new)
    kind = "truncated" if path == "tail" and too_long else "edited"
    return Mutation(f"length of record {first + place} in {path}", {path: new}, kind, first + place)


def bundle_cut(bench: Bench, rng: random.Random) -> Mutation:
    """A bundle, a partial one or the tail ends sooner, at a border of records or within one."""
    path, first, count = _bundle(bench, rng)
    data = bench.files[path]
    place = rng.randrange(count)
    at = sum(len(pack(entry)) for entry in bench.entries[first : first + place])
    at += rng.choice((0, 1, 2, rng.randrange(len(pack(bench.entries[first + place])))))
    within = len(data[:at]) > sum(len(pack(entry)) for entry in bench.entries[first : first + place])
    kind = "edited"
    if path == "tail" or (count == WIDTH and first + WIDTH == bench.size and not within):
        kind = "truncated"
    elif count == WIDTH and not within:
        kind = "deleted"
    return Mutation(f"{path} cut to {at}", {path: data[:at]}, kind, first + place)


def tile_byte(bench: Bench, rng: random.Random) -> Mutation:
    path = rng.choice(sorted(bench.tiles()))
    first, under = bench.tiles()[path]
    data = bench.files[path]
    at = rng.randrange(len(data))
    return Mutation(f"byte {at} of {path}", {path: flipped(data, at, rng)}, "edited", first + at // 32 * under)


def tile_length(bench: Bench, rng: random.Random) -> Mutation:
    """A tile is shorter, longer or gone."""
    path = rng.choice(sorted(bench.tiles()))
    data = bench.files[path]
    more = rng.randbytes(rng.choice((1, 31, 32, 33, rng.randint(1, 9000))))
    less = data[: rng.randrange(len(data))]
    return Mutation(
        f"length of {path}", {path: rng.choice((data + more, less, None))}, "unreadable", bench.tiles()[path][0]
    )


def tile_hashes(bench: Bench, rng: random.Random) -> Mutation:
    """Hashes of a tile change places, or one occurs twice."""
    path = rng.choice([path for path in sorted(bench.tiles()) if len(bench.files[path]) > 32])
    first, under = bench.tiles()[path]
    hashes = [bench.files[path][at : at + 32] for at in range(0, len(bench.files[path]), 32)]
    one, other = sorted(rng.sample(range(len(hashes)), 2))
    new, at = list(hashes), one
    if rng.random() < 0.5:
        new[one], new[other] = hashes[other], hashes[one]
    else:
        new[other], at = hashes[one], other
    return Mutation(f"hashes {one}, {other} of {path}", {path: b"".join(new)}, "edited", first + at * under)


def checkpoint_byte(bench: Bench, rng: random.Random) -> Mutation | None:
    """A byte of a checkpoint becomes another, in the newest in both of its copies or in one."""
    paths, before = _checkpoint(bench, rng)
    data = bench.files[paths[0]]
    return _checkpoint_is(bench, paths, flipped(data, rng.randrange(len(data)), rng), before)


def checkpoint_cut(bench: Bench, rng: random.Random) -> Mutation | None:
    """A checkpoint ends sooner, goes on behind its end, lacks a line or has one twice."""
    paths, before = _checkpoint(bench, rng)
    data = bench.files[paths[0]]
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    new = rng.choice(
        (
            data[: rng.randrange(len(data))],
            data + rng.randbytes(rng.randint(1, 40)),
            b"".join([*lines[:at], *lines[at + 1 :]]),
            b"".join([*lines[:at], lines[at], *lines[at:]]),
        )
    )
    return _checkpoint_is(bench, paths, new, before)


def cosignature(bench: Bench, rng: random.Random) -> Mutation:
    """A line under the newest checkpoint is another witness', of another checkpoint, or by another key."""
    note = Note.parse(bench.files[_NEWEST])
    older = Note.parse(bench.files[f"checkpoints/{rng.choice(bench.heads[:-1]):016d}"])
    at = rng.randrange(1, len(note.signatures))
    witness = witness_key(WITNESSES[at - 1])
    stranger, own, time = (
        NoteKey("somebody", 4, witness_key("site-d").public),
        witness_key("site-a"),
        rng.randrange(2**40),
    )
    kind, line = rng.choice(
        (
            ("bad-signature", older.signatures[at]),
            ("bad-signature", cosign(note.text, witness.name, KEYS["site-d"], time)),
            ("missing-cosignature", cosign(note.text, stranger.name, KEYS["site-d"], time)),
            (
                "missing-cosignature",
                cosign(note.text, own.name, KEYS["site-a"], rng.randrange(2**40)),
            ),
        )
    )
    if line.name == witness.name:  # another key, under the id of the right one
        line = type(line)(witness.name, witness.key_id, line.value)
    lines = [*note.signatures[:at], line, *note.signatures[at + 1 :]]
    data = Note(note.text, tuple(lines)).to_bytes()
    files = {_NEWEST: data, f"checkpoints/{bench.size:016d}": data}
    return Mutation(f"cosignature {at} is {kind}", files, kind, bench.heads[-2])


def other_checkpoint(bench: Bench, rng: random.Random) -> Mutation:
    """In the place of a checkpoint stands one of another run, party or federation, another size, or another tree."""
    paths, before = _checkpoint(bench, rng)
    size = bench.size if paths[0] == _NEWEST else int(paths[0][-16:])
    root, some = Checkpoint.parse(Note.parse(bench.files[paths[0]]).text).root, rng.choice("abcdefgh")
    kept = paths != [_NEWEST]
    names = {
        "replayed": type(NAME)(NAME.federation, NAME.party, f"run-{rng.randint(2, 99)}"),
        "wrong-party": type(NAME)(NAME.federation, f"site-{rng.choice('bcd')}", NAME.run),
        "wrong-party ": type(NAME)(f"lungs-{some}", NAME.party, NAME.run),
    }
    kind = rng.choice([*names, "bad-signature", "another size"][: None if kept else -1])
    if kind == "bad-signature":
        note = signed_note(size, rng.randbytes(32), by=f"site-{rng.choice('bcd')}")
    elif kind == "another size":
        kind, note = "replayed", signed_note(rng.choice([n for n in range(bench.size + 9) if n != size]), root)
    else:
        note = signed_note(size, rng.choice((root, rng.randbytes(32))), names[kind])
    return Mutation(f"{kind} in {paths}", dict.fromkeys(paths, note.to_bytes()), kind.strip(), before)


def garbage_behind(bench: Bench, rng: random.Random) -> Mutation:
    """Something is appended to the tail, to a bundle or to the partial one."""
    path, first, count = _bundle(bench, rng)
    junk = rng.randbytes(rng.choice((1, 2, 3, rng.randint(1, 200))))
    last = bench.entries[-1]
    if path != "tail":
        data = rng.choice((junk, pack(junk), pack(rng.choice(bench.entries))))
        is_full = count == WIDTH and first + WIDTH < bench.size
        kind, index = "inserted" if is_full else "edited", first + count
        if is_full and data == pack(bench.entries[index]):  # then the first of the two is in its place
            index += 1
        return Mutation(f"garbage behind {path}", {path: bench.files[path] + data}, kind, index)
    kind, data = rng.choice(
        (
            ("torn", pack(junk)[: 1 + rng.randrange(len(junk) + 1)]),
            ("unreadable", pack(junk)),
            ("unreadable", pack(b"")),
            ("inserted", pack(rng.choice(bench.entries))),
            ("deleted", pack(re.sub(rb'"seq":\d+', b'"seq":%d' % (bench.size + rng.randint(1, 99)), last))),
            ("replayed", pack(last.replace(b'"run":"run-1"', b'"run":"run-%d"' % rng.randint(2, 99)))),
            ("wrong-party", pack(last.replace(b'"party":"site-a"', b'"party":"site-%d"' % rng.randint(1, 99)))),
            ("newer-version", pack(last.replace(b'"v":1', b'"v":%d' % rng.randint(2, 99)))),
        )
    )
    return Mutation(f"{kind} behind the tail", {path: bench.files[path] + data}, kind, bench.size)


def missing_file(bench: Bench, rng: random.Random) -> Mutation:
    """A bundle or a checkpoint is gone."""
    full, rest = divmod(bench.size, WIDTH)
    choices = [("unreadable", (_NEWEST,), bench.size)]
    choices += [("deleted", (bundle_path(index),), index * WIDTH) for index in range(full - (rest == 0))]
    if rest:
        choices += [("truncated", ("tail", bundle_path(bench.size >> HEIGHT, rest)), full * WIDTH)]
    kind, paths, index = rng.choice(choices)
    return Mutation(f"{' and '.join(paths)} gone", dict.fromkeys(paths), kind, index)


def _bundle(bench: Bench, rng: random.Random) -> tuple[str, int, int]:
    """A file of records: its path, the first place in it, and how many it has."""
    rest = bench.size % WIDTH
    paths = {path: (first, count) for path, (first, count) in bench.parts.items()}
    if rest:
        paths["tail"] = (bench.size - rest, rest)
    path = rng.choice(sorted(paths))
    return path, *paths[path]


def _checkpoint(bench: Bench, rng: random.Random) -> tuple[list[str], int]:
    """Where the same checkpoint stands, and the size of the last one before it in the order of reading."""
    copy = f"checkpoints/{bench.size:016d}"
    size = rng.choice(bench.heads[:-1])
    before = max([0, *(head for head in bench.heads if head < size)])
    return rng.choice(
        (
            ([copy, _NEWEST], bench.heads[-2]),
            ([copy], bench.heads[-2]),
            ([_NEWEST], bench.size),
            ([f"checkpoints/{size:016d}"], before),
        )
    )


def _checkpoint_is(bench: Bench, paths: list[str], data: bytes, before: int) -> Mutation | None:
    kind = kind_of_note(data, bench.files[paths[0]])
    if kind == "missing-cosignature":
        if len(paths) == 1:  # it is not the newest, or the other copy has it
            return None
        return Mutation(f"{kind} in {paths}", dict.fromkeys(paths, data), kind, bench.heads[-2])
    return Mutation(f"{kind} in {paths}", dict.fromkeys(paths, data), kind, before) if kind else None


_LINE = re.compile("\N{EM DASH} ([^\\s+\x00-\x1f]+) ([A-Za-z0-9+/=]+)")


def kind_of_note(data: bytes, good: bytes) -> str:
    """What must be said of a note that should be the good one; empty where nothing."""
    try:
        text, blank, lines = data.decode().rpartition("\n\n")
        good_text, _, good_lines = good.decode().rpartition("\n\n")
        origin, size, root, *_ = text.split("\n")
        parsed = [_LINE.fullmatch(line) for line in lines.removesuffix("\n").split("\n")]
        values = {(one[1], _base64(one[2])[:4]): _base64(one[2])[4:] for one in parsed if one}
        whole = all(parsed) and len(values) == len(parsed) and all(values.values()) and lines.endswith("\n")
        whole &= (
            blank != "" and len(_base64(root)) == 32 and _is_size(size) and not re.search("[\x00-\x09\x0b-\x1f]", text)
        )
        whole &= all(text.split("\n")) and all(len(name.encode()) < 256 for name, _ in values)
    except (ValueError, IndexError):
        return "unreadable"
    if not whole:
        return "unreadable"
    if origin != good_text.split("\n")[0]:
        return _kind_of_origin(origin)
    known = {
        (one[1], _base64(one[2])[:4]): _base64(one[2])[4:]
        for one in (_LINE.fullmatch(line) for line in good_lines.removesuffix("\n").split("\n"))
        if one
    }
    there = {key: value for key, value in values.items() if key in known}
    if text != good_text or any(known[key] != value for key, value in there.items()):
        return "bad-signature"
    return "bad-signature" if next(iter(known)) not in there else "missing-cosignature" * (len(there) < len(known))


def _kind_of_origin(origin: str) -> str:
    words: Sequence[str] = origin.split("/")
    names = len(words) == 5 and all(re.fullmatch("[a-z0-9][a-z0-9-]{0,62}", word) for word in words[2:])
    if names and words[:2] == ["securefda", "1"]:
        return "replayed" if words[2:4] == [NAME.federation, NAME.party] else "wrong-party"
    newer = words[0] == "securefda" and len(words) > 1 and words[1].isdecimal() and int(words[1]) > 1
    return "newer-version" if newer else "unreadable"


def _is_size(text: str) -> bool:
    return bool(re.fullmatch("0|[1-9][0-9]{0,18}", text)) and int(text) < 2**63


def _base64(text: str) -> bytes:
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise binascii.Error
    return data
