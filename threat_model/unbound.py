"""Switches that untie messages, masks and boxes from what their sender has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

from securefda.protocol import agreement, transcript
from securefda.protocol.aggregator_session import AggregatorSession
from securefda.protocol.agreement import BoxAddress
from securefda.protocol.envelope import sign_bytes, signature_is_valid
from securefda.protocol.header_checks import History
from securefda.protocol.messages import NO_CONTEXT, NO_SESSION, Envelope, Header, Signed, Signer
from securefda.source.source_store import SourceStore
from securefda.transport import wire
from threat_model.switches import Switch, all_of, checks_off, method_replaced, outside_off, replaced


def _context_without_model(_: object) -> Callable[[Signed[Header]], bytes]:
    def header_context(header: Signed[Header]) -> bytes:
        body = replace(header.body, model_digest=bytes(32))
        return sha256(wire.encode(replace(header.envelope, body=body))).digest()

    return header_context


MODEL_IN_CONTEXT = replaced("the model in every derivation", transcript, "header_context", _context_without_model)
"""The context of a session covers the whole header but for the digest of the model."""


def _without_transcript(original: Callable[..., BoxAddress]) -> Callable[..., BoxAddress]:
    return lambda _ctx1, sender, recipient, **rest: original(bytes(32), sender, recipient, **rest)


_BOXES_IN_CONTEXT = replaced("the transcript in share boxes", agreement, "BoxAddress", _without_transcript)

OF_ONE_HEADER = ("KEY_SIGNATURE", "SHARE_NONCE", "SHARE_BOX", "CONSISTENCY_INPUT")
"""The checks that find what another source made for another header: its keys, its nonce, its boxes, its input."""


def of_one_header_off(but: str = "") -> Switch:
    """Return a switch with which a source accepts what others made for another header; ``but`` names a check that
    stays.

    It is one mitigation, that the source compares what it is handed of others with its own header, wherever something
    is handed to it. Any one of the places is enough.
    """
    mitigation = "that what others made is of one's own header"
    off = checks_off(*(name for name in OF_ONE_HEADER if name not in ("SHARE_BOX", but)), mitigation=mitigation)
    return off if but == "SHARE_BOX" else all_of(mitigation, off, _BOXES_IN_CONTEXT)


def _bare(envelope: Envelope[Any]) -> bytes:
    return wire.encode(replace(envelope, session_id=NO_SESSION, context=NO_CONTEXT))


def _sign_body(self: Signer, session_id: bytes, context: bytes, body: Any) -> Signed[Any]:
    envelope = Envelope(session_id=session_id, sender=self.index, context=context, body=body)
    signature = sign_bytes(self.private_key, type(body).__name__, _bare(envelope))
    return Signed(envelope, wire.encode(envelope), signature)


def _verify_body(self: Signed[Any], public_key: bytes) -> bool:
    return signature_is_valid(public_key, self.type_name, _bare(self.envelope), self.signature)


SIGNATURE_CONTEXT = all_of(
    "session and context under every signature",
    method_replaced("session and context in what is signed", Signer, "sign", _sign_body),
    method_replaced("session and context in what is verified", Signed, "verify", _verify_body),
)
"""Signatures cover type, sender and body, and hold in every session. What one side leaves out, the other must too."""


def _admit_again(original: Callable[..., None]) -> Callable[..., None]:
    def admit(self: Any, signed: Any, context: bytes, members: Any, _done: Any, kind: type | None = None) -> None:
        original(self, signed, context, members, (), kind)

    return admit


ONCE_PER_PHASE = method_replaced(
    "one message of a source in a phase", AggregatorSession, "admit", _admit_again(AggregatorSession.admit)
)
"""An aggregator takes every message that is valid, also for the second time."""

MONOTONE_ROUNDS = method_replaced(
    "the memory that headers are compared with", SourceStore, "history", lambda *_: History()
)
"""A source does not compare a header with what it has seen and done before."""

OWN_PLACE = outside_off("SESSION", "CONTEXT", mitigation="the place that a message names")
"""A message counts in every session, whichever it was signed for.

A message names its place twice, and the second name holds the first: the context is a hash over all that was said in
the session, from the header and its session id on.
"""
