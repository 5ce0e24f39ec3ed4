"""Records that are only chained, for positive controls: what a log without others' checkpoints shows.

Each link is the SHA-256 of the link before and the record, as logs are kept that call themselves tamper-evident.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256

Link = tuple[bytes, bytes]
"""A record and its hash."""


def chained(records: Iterable[bytes]) -> list[Link]:
    """Chain records."""
    links: list[Link] = []
    last = b""
    for record in records:
        last = sha256(last + record).digest()
        links.append((record, last))
    return links


def first_broken(links: Sequence[Link]) -> int | None:
    """Return the first place where the chain is broken; None if it is whole."""
    expected = chained(record for record, _ in links)
    broken = [place for place, (one, other) in enumerate(zip(links, expected, strict=True)) if one != other]
    return broken[0] if broken else None
