"""Vectors beside messages: which those are, and what the aggregator offers for download.

Each is kept once, only for as long as a message still needs it.
"""

from __future__ import annotations

import hmac
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256

from securefda.secagg.messages import Body, Header, vector_digests
from securefda.transport.streams import Vector, byte_view


def digests_beside(body: Body, count: int) -> tuple[bytes, ...]:
    """Digests of the ``count`` vectors that travel beside a message: all that it names.

    A header names the same to every source, but the second vector, the target's update, goes only to some. Whether
    this source had to get it is not checked here.

    Raises:
        ValueError: that many do not travel beside this message.
    """
    named = vector_digests(body)
    fewest = min(1, len(named)) if isinstance(body, Header) else len(named)
    if not fewest <= count <= len(named):
        raise ValueError(f"{type(body).__name__} names {len(named)} vectors, not {count}")
    return named[:count]


@dataclass(slots=True)
class _Attachment:
    view: memoryview
    readers: Counter[int] = field(default_factory=Counter)


class AttachmentStore:
    """Vectors by digest, with the sites that may read them."""

    def __init__(self) -> None:
        self._attachments: dict[bytes, _Attachment] = {}

    def publish(self, digest: bytes, vector: Vector, site: int) -> int:
        """Offer a vector to a site, without a copy; return its length in bytes.

        Raises:
            ValueError: the vector does not have that digest.
        """
        attachment = self._attachments.get(digest)
        if attachment is None:
            view = byte_view(vector)
            if not hmac.compare_digest(sha256(view).digest(), digest):
                raise ValueError("a vector does not have the digest that its message names")
            attachment = self._attachments[digest] = _Attachment(view)
        attachment.readers[site] += 1
        return len(attachment.view)

    def find(self, digest: bytes, site: int) -> memoryview | None:
        """The bytes of a vector that was offered to this site and is still needed, else None."""
        attachment = self._attachments.get(digest)
        return attachment.view if attachment is not None and attachment.readers[site] > 0 else None

    def release(self, digests: tuple[bytes, ...], site: int) -> None:
        """One message of a site needs these no longer; what nobody needs is forgotten."""
        for digest in digests:
            attachment = self._attachments.get(digest)
            if attachment is None:
                continue
            attachment.readers[site] -= 1
            if max(attachment.readers.values()) <= 0:
                del self._attachments[digest]

    def clear(self) -> None:
        """Forget all of them."""
        self._attachments.clear()

    @property
    def held_bytes(self) -> int:
        """Bytes that are being offered."""
        return sum(len(attachment.view) for attachment in self._attachments.values())
