"""Ways to falsify the file of kept messages beside a finished log, each with what a comparison must say of it.

Left out is what falsifies nothing here: there is one copy for each record, so no copy can be taken unseen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from run_builder import RUN, TARGET, sign

from securefda.audit.kept import is_kept, read_kept
from securefda.audit.kept_check import KeptFinding
from securefda.audit.reading import open_log
from securefda.protocol import messages as m
from securefda.transport import wire

_PREFIX = 4


@dataclass(frozen=True)
class Falsified:
    """The file as it is now (None: removed), and the first finding: one of these kinds, at this record if any."""

    what: str
    data: bytes | None
    kinds: tuple[str, ...]
    index: int | None

    def is_found(self, findings: Sequence[KeptFinding]) -> bool:
        return bool(findings) and findings[0].kind in self.kinds and findings[0].index == self.index


class Kept:
    """The messages beside a good log, each with the place of its record."""

    def __init__(self, log: Path) -> None:
        self.messages = list(read_kept(log))
        entries = [record for record in open_log(log).records() if record.entry.direction != "event"]
        kept = (one for one in entries if is_kept(one.entry.type, sent=one.entry.direction == "sent"))
        self.records = [record.seq for record in kept]
        assert len(self.records) == len(self.messages)

    def file(self, messages: Sequence[bytes] | None = None) -> bytes:
        return b"".join(len(one).to_bytes(_PREFIX, "big") + one for one in messages or self.messages)

    def offset(self, number: int) -> int:
        return sum(_PREFIX + len(one) for one in self.messages[:number])

    def somewhere(self, rng: random.Random) -> int:
        return rng.randrange(len(self.messages))


def message_byte(kept: Kept, rng: random.Random) -> Falsified:
    number = kept.somewhere(rng)
    one = bytearray(kept.messages[number])
    at = rng.randrange(len(one))
    one[at] ^= rng.randint(1, 255)
    changed = [*kept.messages[:number], bytes(one), *kept.messages[number + 1 :]]
    what = f"byte {at} of message {number}"
    return Falsified(what, kept.file(changed), ("evidence-damaged",), kept.records[number])


def length_byte(kept: Kept, rng: random.Random) -> Falsified:
    number = kept.somewhere(rng)
    data = bytearray(kept.file())
    data[kept.offset(number) + rng.randrange(_PREFIX)] ^= rng.randint(1, 255)
    return Falsified(f"length of message {number}", bytes(data), ("evidence-damaged",), kept.records[number])


def cut(kept: Kept, rng: random.Random) -> Falsified:
    number = kept.somewhere(rng)
    within = rng.randrange(_PREFIX + len(kept.messages[number]))
    data = kept.file()[: kept.offset(number) + within]
    kind = "evidence-damaged" if within else "evidence-missing"
    return Falsified(f"cut in message {number}", data, (kind,), kept.records[number])


def removed_message(kept: Kept, rng: random.Random) -> Falsified:
    number = kept.somewhere(rng)
    data = kept.file([*kept.messages[:number], *kept.messages[number + 1 :]])
    return Falsified(f"message {number} gone", data, ("evidence-missing",), kept.records[number])


def removed_file(kept: Kept, rng: random.Random) -> Falsified:
    return Falsified("file gone", rng.choice((None, b"")), ("evidence-missing",), kept.records[0])


def swapped(kept: Kept, rng: random.Random) -> Falsified:
    one, other = sorted(rng.sample(range(len(kept.messages)), 2))
    changed = list(kept.messages)
    changed[one], changed[other] = changed[other], changed[one]
    first = kept.records[one + 1] if other > one + 1 else kept.records[one]
    return Falsified(f"messages {one} and {other} swapped", kept.file(changed), ("evidence-moved",), first)


def copied(kept: Kept, rng: random.Random) -> Falsified:
    number = kept.somewhere(rng)
    later = rng.randint(number + 1, len(kept.messages))
    changed = [*kept.messages[:later], kept.messages[number], *kept.messages[later:]]
    what = f"message {number} again at {later}"
    return Falsified(what, kept.file(changed), ("evidence-moved",), kept.records[number])


def garbage(kept: Kept, rng: random.Random) -> Falsified:
    """Behind the last message, whole or not; or a message of its own between two."""
    junk = rng.randbytes(rng.randint(1, 300))
    at = rng.choice((len(kept.messages), kept.somewhere(rng)))
    if at < len(kept.messages):
        data = kept.file([*kept.messages[:at], junk, *kept.messages[at:]])
    else:
        data = kept.file() + rng.choice((junk, len(junk).to_bytes(_PREFIX, "big") + junk, bytes(len(junk))))
    return Falsified(f"garbage before message {at}", data, ("evidence-unrecorded",), None)


def other_run(kept: Kept, rng: random.Random) -> Falsified:
    """A message that its sender signed, in another session."""
    at, session = rng.randint(0, len(kept.messages)), rng.randbytes(32)
    body = rng.choice((m.KeyList(()), m.Result(b"", 3, rng.randbytes(32)), m.Refusal("min-others")))
    message = wire.encode_signed(sign(TARGET, body, session, rng.randbytes(32)))
    data = kept.file([*kept.messages[:at], message, *kept.messages[at:]])
    return Falsified(f"{type(body).__name__} of another run at {at}", data, ("evidence-unrecorded",), None)


def in_place_of(kept: Kept, rng: random.Random) -> Falsified:
    """A message that its sender signed stands for another."""
    number = kept.somewhere(rng)
    message = wire.encode_signed(sign(TARGET, m.Result(b"", 3, rng.randbytes(32)), rng.randbytes(32)))
    data = kept.file([*kept.messages[:number], message, *kept.messages[number + 1 :]])
    return Falsified(f"another for message {number} of {RUN}", data, ("evidence-missing",), kept.records[number])


CLASSES: dict[str, Callable[[Kept, random.Random], Falsified]] = {
    make.__name__: make
    for make in (
        message_byte,
        length_byte,
        cut,
        removed_message,
        removed_file,
        swapped,
        copied,
        garbage,
        other_run,
        in_place_of,
    )
}
