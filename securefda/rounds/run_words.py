"""What an aggregator's run says to sources beside the messages of a session."""

from __future__ import annotations

from securefda.errors import ConfigError, ProtocolError, QuorumLost, RunEnded, SecureFdaError
from securefda.rounds.attempts import Send
from securefda.secagg.messages import NO_CONTEXT, NO_SESSION, Abort, Goodbye, Header, Parcel, Signed, Signer, Step

_MOST_CHARACTERS = 500
_SECTIONS = frozenset({"privacy", "session", "strategy", "task", "training", "transport"})
"""Of configurations: the key of an error that begins with one of them is a setting, and no path."""


def turn_away(signer: Signer, index: int) -> Send:
    """Answer a join with which no round can work; the source ends with a clear error."""
    return Send(index, Parcel(signer.sign(NO_SESSION, NO_CONTEXT, Abort(Step.HEADER, "HEADER_ARCHITECTURE", index))))


def no_result(signer: Signer, index: int, header: Signed[Header], check: str) -> Send:
    """Tell a source that waits for the result that there is none; nobody is accused."""
    body = Abort(Step.RESULT, check, None)
    return Send(index, Parcel(signer.sign(header.envelope.session_id, header.digest(), body)))


def goodbye(signer: Signer, index: int, farewell: Goodbye) -> Send:
    """The last word to a source."""
    return Send(index, Parcel(signer.sign(NO_SESSION, NO_CONTEXT, farewell)))


def reason_of(error: SecureFdaError, *, of_policies: bool = False) -> str:
    """Why a run failed, one line: what the sources had a part in; of the target's own trouble its kind or setting.

    The rest of such a line may name the target's files, count its rows or say what is left of its budget.

    Args:
        error: what ended it.
        of_policies: it says what the sources' policies permit together, which their owners have to mend.
    """
    if not of_policies and not isinstance(error, (ProtocolError, QuorumLost, RunEnded)):
        setting = error.key if isinstance(error, ConfigError) and error.key.split(".")[0] in _SECTIONS else ""
        return f"the target cannot go on ({setting or error.code})"
    return "".join(letter if letter.isprintable() else " " for letter in str(error))[:_MOST_CHARACTERS]
