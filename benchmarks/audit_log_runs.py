"""Logs as long runs leave them, and what it takes to write, verify and prove them.

The records are those of a target with ten sources at visibility `sum` with a privacy budget, in the
order of the protocol. After every round there is a checkpoint that all sources cosign.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.audit.log import AuditLog
from securefda.audit.merkle import WIDTH, check_consistency, consistency_proof, inclusion_proof, unpack
from securefda.audit.notes import COSIGNATURE_V1, LogName, Note, NoteKey, cosign, witness_name
from securefda.audit.reading import open_log
from securefda.audit.records import Decision, Disclosure, DpSpent, Entry
from securefda.audit.store import read_bundle, root_at, subtrees
from securefda.audit.verify import verify_log

SOURCES = tuple(f"source-{number}" for number in range(1, 11))
NAME = LogName("digits", "target", "0123456789abcdef0123456789abcdef")
KEYS = {
    party: Ed25519PrivateKey.from_private_bytes(hashlib.sha256(party.encode()).digest())
    for party in ("target", *SOURCES)
}
PUBLIC = {party: key.public_key().public_bytes_raw() for party, key in KEYS.items()}

_Side = Literal["sent", "received"]
_BEFORE: tuple[tuple[_Side, str, int], ...] = (
    ("sent", "Header", 9_640),
    ("received", "Advertise", 1_180),
    ("sent", "KeyList", 11_900),
    ("received", "ShareBundle", 2_310),
    ("sent", "ShareDelivery", 2_290),
    ("received", "MaskedInput", 4_400_470),
    ("sent", "Survivors", 410),
    ("received", "SurvivorSignature", 320),
    ("sent", "Consistency", 1_300),
    ("received", "Unmask", 780),
)
_AFTER: tuple[tuple[_Side, str, int], ...] = (
    ("sent", "Result", 4_400_310),
    ("sent", "Checkpoint", 2_100),
    ("received", "Cosigned", 300),
    ("received", "Checkpoint", 1_900),
)
"""Messages of a round by which side and how long, before and after its events; each with every source."""


def entries() -> Iterator[Entry]:
    """What a target records, round after round, without end."""
    for number in count(1):
        session = _digest("session", number)

        def message(
            side: _Side, kind: str, length: int, peer: str, number: int = number, session: str = session
        ) -> Entry:
            shown = Disclosure("individual", "model", 1) if kind == "Header" else None
            said = Decision("allowed", "target.disclose-model") if kind == "Header" else None
            digest = _digest(side, kind, number, peer)
            return Entry(side, kind, number, 1, session, peer, length, digest, said, shown)

        yield from (message(*one, peer) for one in _BEFORE for peer in SOURCES)
        yield from _events(number, session)
        yield from (message(*one, peer) for one in _AFTER for peer in SOURCES)
        for peer in SOURCES:
            facts = {"origin": f"securefda/1/digits/{peer}/{NAME.run}", "size": 40 * number, "root": _digest(number)}
            yield Entry("event", "checkpoint-cosigned", number, 1, "", peer, facts=facts)
            yield message("sent", "Cosigned", 300, peer)


def _events(number: int, session: str) -> Iterator[Entry]:
    spent = DpSpent(
        "dp-sgd", "rdp", "1.1", "0.2", "1.0", "1e-05", repr(0.5 * number**0.5), 10, 2 * number, _digest("row", number)
    )
    yield Entry("event", "ledger-updated", number, 1, session, dp=spent)
    yield Entry("event", "checkpoint-signed", number, 1, facts={"size": 162 * number, "root": _digest("root", number)})


def _digest(*of: object) -> str:
    return hashlib.sha256(repr(of).encode()).hexdigest()


class Clock:
    """Goes on by five milliseconds whenever it is looked at."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self._now += timedelta(milliseconds=5)
        return self._now


@contextmanager
def unsynced() -> Iterator[None]:
    """Leave it to the system when the disk is written: these logs may be lost, and are only read."""
    fsync, os.fsync = os.fsync, lambda _descriptor: None
    try:
        yield
    finally:
        os.fsync = fsync


def write_log(parent: Path, size: int) -> Path:
    """Make a log of so many records, or take one that was made before; returns its folder."""
    folder = parent / f"{size}" / NAME.run
    if (folder.parent / "done").exists():
        return folder
    per_round = next(place for place, entry in enumerate(entries()) if entry.round == 2)
    with unsynced(), AuditLog.open(folder.parent, NAME, KEYS["target"], Clock()) as log:
        for entry in islice(entries(), size):
            if log.append(entry) % per_round == per_round - 1 or log.size == size:
                _checkpoint(log)
    (folder.parent / "done").touch()
    return folder


def _checkpoint(log: AuditLog) -> None:
    text = Note.parse(log.checkpoint()).text
    for party in SOURCES:
        key = NoteKey(witness_name("digits", party), COSIGNATURE_V1, PUBLIC[party])
        log.add_cosignature(log.size, cosign(text, key.name, KEYS[party], 1_800_000_000), key)


def append_figures(parent: Path, repeats: int) -> dict[str, float]:
    """Microseconds of a record, median of so many logs, with and without forcing each to the disk; of a plain fsync."""
    figures = {}
    for name, size, durable in (("buffered", 16 * WIDTH, False), ("durable", 2 * WIDTH, True)):
        taken = [_append(parent / f"{name}-{number}", size, durable=durable) for number in range(repeats)]
        figures[f"{name}_us"] = median(wall for wall, _ in taken)
        figures[f"{name}_processor_us"] = median(processor for _, processor in taken)
    figures["plain_fsync_us"] = _plain_fsync(parent / "plain", 500)
    return figures


def _append(parent: Path, size: int, *, durable: bool) -> tuple[float, float]:
    ahead = list(islice(entries(), size))
    with AuditLog.open(parent, NAME, KEYS["target"], Clock()) as log:
        wall, processor = time.perf_counter(), time.process_time()
        for entry in ahead:
            log.append(entry, durable=durable)
        return 1e6 * (time.perf_counter() - wall) / size, 1e6 * (time.process_time() - processor) / size


def _plain_fsync(path: Path, times: int) -> float:
    """Appending 512 bytes to a file and forcing them to the disk, microseconds, median."""
    taken = []
    with path.open("ab", buffering=0) as file:
        for _ in range(times):
            started = time.perf_counter()
            file.write(bytes(512))
            os.fsync(file.fileno())
            taken.append(1e6 * (time.perf_counter() - started))
    return median(taken)


def verify_figures(folder: Path, repeats: int) -> dict[str, float]:
    """Verify a log, each time in a process of its own; medians, and the largest peak of memory."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        taken = [pool.submit(_verify, folder).result() for _ in range(repeats)]
    size = taken[0]["records"]
    return {
        "records": size,
        "checkpoints": taken[0]["checkpoints"],
        "seconds": median(one["seconds"] for one in taken),
        "records_per_s": round(size / median(one["seconds"] for one in taken)),
        "records_per_processor_s": round(size / median(one["processor"] for one in taken)),
        "best_records_per_processor_s": round(size / min(one["processor"] for one in taken)),
        "peak_mb": max(one["peak_mb"] for one in taken),
        "rise_mb": max(one["peak_mb"] - one["before_mb"] for one in taken),
    }


def _verify(folder: Path) -> dict[str, float]:
    before = _peak_mb()
    wall, processor = time.perf_counter(), time.process_time()
    result = verify_log(folder, NAME, PUBLIC, witnesses_needed=len(SOURCES))
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    if result.finding is not None or result.covered != result.size:
        raise RuntimeError(f"a good log is said to be bad: {result}")
    checkpoints = sum(1 for _ in (folder / "checkpoints").iterdir())
    return {
        "records": result.size,
        "checkpoints": checkpoints,
        "seconds": wall,
        "processor": processor,
        "before_mb": before,
        "peak_mb": _peak_mb(),
    }


def _peak_mb() -> float:
    """The process's largest memory so far, as the kernel counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def inclusion_figures(folder: Path, times: int) -> dict[str, float]:
    """Prove records at random places, from the folder alone, and check the proofs; milliseconds."""
    rng = random.Random(1)
    log = open_log(folder)
    size = _size(folder)
    places = [rng.randrange(size) for _ in range(times)]
    figures = _spread([_milliseconds(lambda place=place: log.prove(place).check()) for place in places])  # type: ignore[misc]
    proof = inclusion_proof(places[0], size, subtrees(folder, size))
    return figures | {"hashes": len(proof), "bytes": sum(map(len, proof))}


def consistency_figures(folder: Path, times: int) -> dict[str, float]:
    """Prove that a log goes on from checkpoints in it, and check the proofs; milliseconds and bytes."""
    rng = random.Random(2)
    size = _size(folder)
    root = root_at(folder, size)
    sizes = sorted(rng.sample([*open_log(folder).heads()][:-1], times))
    lengths, taken = [], []
    for old in sizes:
        before = root_at(folder, old)

        def prove(old: int = old, before: bytes = before) -> None:
            proof = consistency_proof(old, size, subtrees(folder, size))
            check_consistency(old, before, size, root, proof)
            lengths.append(sum(map(len, proof)))

        taken.append(_milliseconds(prove))
    return _spread(taken) | {"bytes": median(lengths), "most_bytes": max(lengths)}


def _size(folder: Path) -> int:
    head = open_log(folder).head()
    if head is None:
        raise RuntimeError("the log has no checkpoint")
    return head.checkpoint.size


def _milliseconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - started)


def _spread(taken: list[float]) -> dict[str, float]:
    ordered = sorted(taken)
    return {"median_ms": median(ordered), "p99_ms": ordered[int(0.99 * len(ordered))], "slowest_ms": ordered[-1]}


def bytes_figures(folder: Path) -> dict[str, Any]:
    """Bytes for each record: of itself, and of everything on the disk."""
    size = _size(folder)
    lengths = [len(raw) for index in range(8) for raw in unpack(read_bundle(folder, index) or b"")[0]]
    parts: dict[str, int] = {}
    for file in folder.rglob("*"):
        if file.is_file():
            name = file.relative_to(folder).as_posix()
            part = "records" if name.startswith("tile/entries") or name == "tail" else name.split("/")[0]
            parts[part] = parts.get(part, 0) + file.stat().st_size
    shown = {"records": parts.pop("records"), "hashes": parts.pop("tile"), "checkpoints": parts.pop("checkpoints")}
    each = {f"{name}_per_record": round(total / size, 1) for name, total in shown.items()}
    return {"median_record": median(lengths), "largest_record": max(lengths)} | each
