"""Switches that remove what binds a site to its own log: witnesses, their memory, and their number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

from securefda.audit import witness
from securefda.audit.witness import Witness
from securefda.protocol import transcript
from securefda.protocol.messages import Header, Signed
from securefda.transport import wire
from threat_model.switches import method_replaced, replaced

WITNESSED_HEADER = method_replaced(
    "the cosigned log in the header", Witness, "check_previous_checkpoint", lambda *_: None
)
"""A source does not look at the checkpoint in a header."""

WITNESS_MEMORY = method_replaced("the memory of witnesses", Witness, "_is_continued", lambda *_: True)
"""A witness cosigns every checkpoint that is signed, whatever it cosigned before: it knows the last one alone."""

NUMBER_OF_WITNESSES = replaced("enough witnesses", witness, "witnesses_needed", lambda _: lambda *_: 1)
"""A source takes the checkpoint that it cosigned itself, also where no other site did."""


def _without_log(_: object) -> Callable[[Signed[Header]], bytes]:
    def header_context(header: Signed[Header]) -> bytes:
        body = replace(header.body, previous_checkpoint=b"")
        return sha256(wire.encode(replace(header.envelope, body=body))).digest()

    return header_context


LOG_IN_CONTEXT = replaced("the log in every derivation", transcript, "header_context", _without_log)
"""The context of a session covers the whole header but for the target's checkpoint."""
