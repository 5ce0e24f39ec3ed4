"""Messages, masks and boxes that are not tied to what their sender has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

from securefda.secagg import agreement, transcript
from securefda.secagg.agreement import BoxAddress
from securefda.secagg.messages import Header, Signed
from securefda.transport import wire
from threat_model.switches import replaced


def _context_without_model(_: object) -> Callable[[Signed[Header]], bytes]:
    def header_context(header: Signed[Header]) -> bytes:
        body = replace(header.body, model_digest=bytes(32))
        return sha256(wire.encode(replace(header.envelope, body=body))).digest()

    return header_context


MODEL_IN_CONTEXT = replaced("the model in every derivation", transcript, "header_context", _context_without_model)
"""The context of a session covers the whole header but for the digest of the model."""


def _without_transcript(original: Callable[..., BoxAddress]) -> Callable[..., BoxAddress]:
    return lambda _ctx1, sender, recipient: original(bytes(32), sender, recipient)


BOXES_IN_CONTEXT = replaced("the transcript in share boxes", agreement, "BoxAddress", _without_transcript)
"""Share boxes say from whom to whom they are, and not in which session."""
