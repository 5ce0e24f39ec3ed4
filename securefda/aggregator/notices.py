"""What the aggregator sends to sources outside of a session: answers to a join, no result, and why a run ended."""

from __future__ import annotations

from securefda.errors import ConfigError, ProtocolError, QuorumLost, RunEnded, SecureFdaError
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    Abort,
    Goodbye,
    Header,
    Parcel,
    Send,
    Signed,
    Signer,
    Step,
)

_MOST_CHARACTERS = 500
_SECTIONS = frozenset({"privacy", "session", "strategy", "task", "training", "transport"})
"""Of configurations: the key of an error that begins with one of them is a setting, and no path."""


def turn_away(signer: Signer, index: int) -> Send:
    """Answer the join of a source whose model has other layers; the source ends with a clear error."""
    return Send(index, Parcel(signer.sign(NO_SESSION, NO_CONTEXT, Abort(Step.HEADER, "HEADER_ARCHITECTURE", index))))


def no_result(signer: Signer, index: int, header: Signed[Header], check: str) -> Send:
    """Tell a source that waits for the result that there is none; no site is accused."""
    body = Abort(Step.RESULT, check, None)
    return Send(index, Parcel(signer.sign(header.envelope.session_id, header.digest(), body)))


def goodbye(signer: Signer, index: int, farewell: Goodbye) -> Send:
    """The last message to a source."""
    return Send(index, Parcel(signer.sign(NO_SESSION, NO_CONTEXT, farewell)))


def reason_for_sources(error: SecureFdaError, *, of_policies: bool = False) -> str:
    """Why a run failed, as one printable line of at most 500 characters.

    Sources read in full what they had a part in. Of the target's own trouble they read its kind or the setting: the
    rest may name the target's files, count its rows or say what is left of its budget.

    Args:
        error: what ended the run.
        of_policies: it says what the sources' policies permit together, which their owners have to change.
    """
    if not of_policies and not isinstance(error, (ProtocolError, QuorumLost, RunEnded)):
        setting = error.key if isinstance(error, ConfigError) and error.key.split(".")[0] in _SECTIONS else ""
        return f"the target cannot go on ({setting or error.code})"
    return "".join(letter if letter.isprintable() else " " for letter in str(error))[:_MOST_CHARACTERS]
