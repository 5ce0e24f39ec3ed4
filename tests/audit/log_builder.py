"""Logs of a small federation for the tests: keys, a clock that goes on by itself, entries, cosigned checkpoints."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.audit.log import AuditLog
from securefda.audit.log_records import Disclosure, Entry
from securefda.audit.signed_notes import COSIGNATURE_V1, LogName, Note, NoteKey, cosign, witness_name
from securefda.audit.verify import Verification, verify_log

PARTIES = ("site-a", "site-b", "site-c", "site-d")
KEYS = {party: Ed25519PrivateKey.from_private_bytes(hashlib.sha256(party.encode()).digest()) for party in PARTIES}
PUBLIC = {party: key.public_key().public_bytes_raw() for party, key in KEYS.items()}
NAME = LogName("hearts", "site-a", "run-1")
SMALL, LARGE = (6, 13, 20), (100, 257, 300)
"""Sizes at which the good logs have checkpoints."""
WITNESSES = ("site-b", "site-c")


@dataclass
class Clock:
    """Goes on by a second whenever it is looked at."""

    now: datetime = field(default_factory=lambda: datetime(2026, 11, 21, 12, tzinfo=UTC))

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


def entry(number: int) -> Entry:
    digest = hashlib.sha256(b"%d" % number).hexdigest()
    if number % 5 == 4:
        return Entry("event", "survivors-signed", round=1 + number // 10, facts={"survivors": ["site-a", "site-b"]})
    disclosure = Disclosure("sum", "update", 3) if number % 2 else None
    return Entry(
        "sent", "MaskedInput", round=1 + number // 10, peer="site-b", bytes=number, digest=digest, disclosure=disclosure
    )


def witness_key(party: str, federation: str = "hearts") -> NoteKey:
    return NoteKey(witness_name(federation, party), COSIGNATURE_V1, PUBLIC[party])


def opened(folder: Path, name: LogName = NAME, clock: Clock | None = None) -> AuditLog:
    return AuditLog.open(folder, name, KEYS[name.party], clock or Clock())


def grow(log: AuditLog, *sizes: int, witnesses: tuple[str, ...] = WITNESSES) -> None:
    """Append records up to each size, with a checkpoint there that the witnesses cosign."""
    for size in sizes:
        while log.size < size:
            log.append(entry(log.size))
        text = Note.parse(log.checkpoint()).text
        for party in witnesses:
            key = witness_key(party)
            log.add_cosignature(size, cosign(text, key.name, KEYS[party], 1_800_000_000), key)


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def swap(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def verify(folder: Path, needed: int = 2, known: list[bytes] | None = None, name: LogName = NAME) -> Verification:
    return verify_log(folder, name, PUBLIC, witnesses_needed=needed, known=known or [])


def found(verification: Verification) -> tuple[str, int, bool]:
    assert verification.finding is not None
    return verification.finding.kind, verification.finding.index, verification.finding.exact
