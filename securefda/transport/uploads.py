"""What the aggregator takes in of one source's uploads: only the length it asked for, each message once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import grpc

from securefda.secagg.messages import Body, MaskedInput, Signed, Update
from securefda.transport.limits import COMPLETED_UPLOADS
from securefda.transport.streams import Assembly
from securefda.transport.wire import WireError

UNEXPECTED_LENGTH = "an upload of another length than expected"
"""Begins the status detail by which a source tells this refusal from one of gRPC's own limits."""


class Refused(Exception):
    """A call is answered with a gRPC status. With ``check`` it is reported as the peer's misbehaviour, too."""

    def __init__(self, status: grpc.StatusCode, detail: str, *, check: str | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.check = check


@dataclass(slots=True)
class PartialUpload:
    """A message and the part of its vector that is here. ``stream`` tells the call that feeds it from older ones."""

    message: Signed[Body]
    assembly: Assembly
    stream: object = field(default_factory=object)


class UploadDesk:
    """Uploads of one source."""

    def __init__(self) -> None:
        self.expected_bytes = 0
        self._upload: PartialUpload | None = None
        self._completed: deque[bytes] = deque(maxlen=COMPLETED_UPLOADS)

    def was_completed(self, message: Signed[Body]) -> bool:
        """Whether this very message has been handed up with its vector."""
        return message.digest() in self._completed

    def begin(self, message: Signed[Body], total_bytes: int) -> PartialUpload:
        """Start an upload, or take up the one that a broken stream left behind.

        Nothing is allocated before every length agrees.

        Raises:
            Refused: the length is not the expected one (RESOURCE_EXHAUSTED). Where none is expected that accuses
                nobody: an honest source that is late cannot know that the phase is over.
            WireError: the body names no vector, or another length.
        """
        body = message.body
        if not isinstance(body, MaskedInput | Update):
            raise WireError(f"{message.type_name} has no vector to upload")
        if total_bytes != self.expected_bytes:
            raise Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{UNEXPECTED_LENGTH}: {total_bytes} bytes declared, {self.expected_bytes} expected",
                check="UPLOAD_LENGTH" if self.expected_bytes else None,
            )
        if total_bytes != body.length_bytes:
            raise WireError(f"{total_bytes} bytes declared, {body.length_bytes} in the message")
        current = self._upload
        if current is not None and current.message.signed_bytes == message.signed_bytes:
            current.stream = object()
            return current
        self._upload = None  # freed before the next one is made
        self._upload = PartialUpload(message, Assembly(total_bytes, body.digest))
        return self._upload

    def holds(self, upload: PartialUpload) -> bool:
        """Whether this upload is still the site's present one."""
        return self._upload is upload

    def verified(self, upload: PartialUpload) -> bytearray:
        """The whole vector.

        Raises:
            Refused: it does not have the digest that the message names; the upload is dropped.
        """
        try:
            return upload.assembly.finish()
        except WireError as error:
            self._upload = None
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, error.detail, check="UPLOAD_DIGEST") from error

    def complete(self, upload: PartialUpload) -> bool:
        """Remember that the upload is handed up; False where it already was, by another stream."""
        if self._upload is not upload:
            return False
        self._upload = None
        self._completed.append(upload.message.digest())
        return True

    def forget(self) -> None:
        """Drop what is unfinished and what was remembered: the source has started anew."""
        self._upload = None
        self._completed.clear()
