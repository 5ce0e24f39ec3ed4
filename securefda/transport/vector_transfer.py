"""Vectors beside messages: splitting and assembly, offers for download, and uploads.

A vector is assembled with a running digest. The aggregator accepts only the length that it asked for, and each message
once. It keeps a vector only as long as a message still needs it.
"""

from __future__ import annotations

import hmac
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

import grpc

from securefda.protocol.down_link import packed, unpacked
from securefda.protocol.messages import Body, DownLink, Header, MaskedInput, Signed, Update, vector_digests
from securefda.transport.limits import COMPLETED_UPLOADS
from securefda.transport.wire import WireError

Vector = bytes | bytearray | memoryview


def byte_view(vector: Vector) -> memoryview:
    """Return a read-only view of the bytes of a contiguous vector, without a copy."""
    return memoryview(vector).cast("B").toreadonly()


def chunks(view: memoryview, offset: int, chunk_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of at most ``chunk_bytes`` bytes from ``offset`` on, each with its place."""
    for start in range(offset, len(view), chunk_bytes):
        yield start, bytes(view[start : start + chunk_bytes])


class Assembly:
    """A vector that arrives in order, in pieces, over one or several connections.

    Args:
        total_bytes: its length; the buffer of that size is made at once, so the caller has checked it.
        digest: SHA-256 that it must have as float32, 32 bytes.
        down_link: in what it travels.
    """

    def __init__(self, total_bytes: int, digest: bytes, down_link: DownLink = DownLink.FLOAT32) -> None:
        self.digest = digest
        self._down_link = down_link
        self.received = 0
        self._buffer = bytearray(total_bytes)
        self._hash = sha256()

    @property
    def total(self) -> int:
        """The length of the whole vector in bytes."""
        return len(self._buffer)

    def add(self, offset: int, data: bytes) -> None:
        """Append the next piece.

        Raises:
            WireError: it is empty, not the next one, or reaches beyond the end.
        """
        # In order alone: a record of gaps could be made as long as the peer likes.
        if offset != self.received:
            raise WireError(f"chunk at {offset}, expected {self.received}")
        if not 0 < len(data) <= self.total - self.received:
            raise WireError(f"chunk of {len(data)} bytes, {self.total - self.received} are missing")
        self._buffer[offset : offset + len(data)] = data
        if self._down_link is DownLink.FLOAT32:
            # As it comes: to hash a large vector at its end would hold up the heartbeats.
            self._hash.update(data)
        self.received += len(data)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return self.received == self.total

    def finish(self) -> Vector:
        """Return the vector as float32.

        Raises:
            WireError: something is missing, or the digest is another one.
        """
        if not self.is_whole:
            raise WireError(f"vector ends at {self.received} of {self.total} bytes")
        try:
            vector = unpacked(self._buffer, self._down_link)
        except ValueError as error:
            raise WireError(str(error)) from error
        digest = self._hash.digest() if vector is self._buffer else sha256(vector).digest()
        if not hmac.compare_digest(digest, self.digest):
            raise WireError("vector does not have the digest that its message names")
        return vector


def digests_beside(body: Body, count: int) -> tuple[bytes, ...]:
    """Return the digests of the ``count`` vectors that travel beside a message, which must be all that it names.

    A header names the same to every source, but what comes last, such as the target's update, goes only to some.
    Whether this source had to get it is not checked here.

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

    def publish(self, digest: bytes, vector: Vector, site: int, down_link: DownLink = DownLink.FLOAT32) -> int:
        """Offer a float32 vector to a site, without a copy where it travels as such; return its length in bytes.

        A vector has one format for as long as it is offered: that of the run.

        Raises:
            ValueError: the vector does not have that digest, or numbers that are none of the format.
        """
        attachment = self._attachments.get(digest)
        if attachment is None:
            view = byte_view(vector)
            if not hmac.compare_digest(sha256(view).digest(), digest):
                raise ValueError("a vector does not have the digest that its message names")
            attachment = self._attachments[digest] = _Attachment(byte_view(packed(view, down_link)))
        # Counted, as one vector can be named by several messages to a site.
        attachment.readers[site] += 1
        return len(attachment.view)

    def find(self, digest: bytes, site: int) -> memoryview | None:
        """Return the bytes of a vector that was offered to this site and is still needed, else None."""
        attachment = self._attachments.get(digest)
        # A digest is no permission: every source reads those of all vectors in the header, and gets some.
        return attachment.view if attachment is not None and attachment.readers[site] > 0 else None

    def release(self, digests: tuple[bytes, ...], site: int) -> None:
        """Withdraw vectors from one message of a site; a vector that no message needs is dropped."""
        for digest in digests:
            attachment = self._attachments.get(digest)
            if attachment is None:
                continue
            attachment.readers[site] -= 1
            if max(attachment.readers.values()) <= 0:
                del self._attachments[digest]

    def clear(self) -> None:
        """Drop all of them."""
        self._attachments.clear()

    @property
    def held_bytes(self) -> int:
        """The bytes that are being offered."""
        return sum(len(attachment.view) for attachment in self._attachments.values())


UNEXPECTED_LENGTH = "an upload of another length than expected"
"""Begins the status detail by which a source tells this refusal from one of gRPC's own limits."""


class Refused(Exception):
    """A call is answered with a gRPC status. With ``check`` it is also reported as misbehaviour of the peer."""

    def __init__(self, status: grpc.StatusCode, detail: str, *, check: str | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.check = check


@dataclass(slots=True)
class PartialUpload:
    """A message and the part of its vector that has arrived. ``stream`` tells the call that feeds it from older
    ones.
    """

    message: Signed[Body]
    assembly: Assembly
    stream: object = field(default_factory=object)


class UploadDesk:
    """The uploads of one source."""

    def __init__(self) -> None:
        self.expected_bytes = 0
        self._upload: PartialUpload | None = None
        self._completed: deque[bytes] = deque(maxlen=COMPLETED_UPLOADS)

    @property
    def arrived(self) -> float:
        """The share from 0 to 1 of the present upload that has come; 0 if there is none."""
        assembly = None if self._upload is None else self._upload.assembly
        return assembly.received / assembly.total if assembly is not None and assembly.received else 0.0

    def expect(self, length: int) -> None:
        """Accept uploads of exactly ``length`` bytes; 0 drops the present one, which is late."""
        self.expected_bytes = length
        if not length:
            self._upload = None

    def was_completed(self, message: Signed[Body]) -> bool:
        """Return whether this very message has been handed up with its vector."""
        return message.digest() in self._completed

    def begin(self, message: Signed[Body], total_bytes: int) -> PartialUpload:
        """Start an upload, or resume the one that a broken stream left behind.

        Nothing is allocated before every length agrees.

        Raises:
            Refused: the length is not the expected one (RESOURCE_EXHAUSTED). Where none is expected that accuses
                no site: an honest source that is late cannot know that the phase is over.
            WireError: the body names no vector, or another length.
        """
        body = message.body
        if not isinstance(body, MaskedInput | Update):
            raise WireError(f"{message.type_name} has no vector to upload")
        self.require_expected(total_bytes)
        if total_bytes != body.length_bytes:
            raise WireError(f"{total_bytes} bytes declared, {body.length_bytes} in the message")
        current = self._upload
        if current is not None and current.message.signed_bytes == message.signed_bytes:
            # The call that fed it before may be alive still, and must not add its pieces between these.
            current.stream = object()
            return current
        self._upload = None  # freed before the next one is made
        self._upload = PartialUpload(message, Assembly(total_bytes, body.digest))
        return self._upload

    def require_expected(self, total_bytes: int) -> None:
        """Raise Refused for an upload of another length than expected, as `begin`."""
        if total_bytes != self.expected_bytes:
            raise Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{UNEXPECTED_LENGTH}: {total_bytes} bytes declared, {self.expected_bytes} expected",
                check="UPLOAD_LENGTH" if self.expected_bytes else None,
            )

    def holds(self, upload: PartialUpload) -> bool:
        """Return whether this upload is still the site's present one."""
        return self._upload is upload

    def verified(self, upload: PartialUpload) -> Vector:
        """Return the whole vector.

        Raises:
            Refused: it does not have the digest that the message names; the upload is dropped.
        """
        try:
            return upload.assembly.finish()
        except WireError as error:
            self._upload = None
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, error.detail, check="UPLOAD_DIGEST") from error

    def complete(self, upload: PartialUpload) -> bool:
        """Record that the upload is handed up; returns False if another stream did so already."""
        if self._upload is not upload:
            return False
        self._upload = None
        # If the answer to the last piece is lost, the source sends the vector again.
        self._completed.append(upload.message.digest())
        return True

    def forget(self) -> None:
        """Drop unfinished uploads and the record of complete ones, since the source has restarted."""
        self._upload = None
        self._completed.clear()
