"""Every error that securefda raises on purpose: who is to blame, which key or check failed, and how to fix it.

An error carries one line (``str(error)``), a hint and the exit code of the process that it ends. No message
of this module ever holds a secret, a vector or a value of a data row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

from securefda.text import phase_words

OWNERS_ALONE = "run as the user that owns it, or give this user the permission"
"""Hint about a file or folder that this user may not read."""

_Error = TypeVar("_Error", bound=BaseException)


class ExitCode(IntEnum):
    """Exit codes of every command and process."""

    OK = 0
    """Done."""

    FAILED = 1
    """Failed, for a reason without a separate code."""

    CONNECTION = 2
    """No connection, or a peer that breaks the protocol or is late."""

    CONFIG = 4
    """Wrong arguments, configuration or data."""

    POLICY = 10
    """Refused by a site's policy."""

    BUDGET = 11
    """A privacy budget is spent, or its ledger is missing or in doubt."""

    QUORUM = 12
    """Too few sources are left, or did not come in time."""

    AUDIT = 13
    """An audit log, its evidence, or several logs together did not verify."""

    CERTIFICATE = 14
    """A certificate is expired, not yet valid, of another federation, or has the wrong name."""

    VERSION = 15
    """A peer runs another build of securefda, which does not speak with this one."""
    PEER = 16
    """The peer is not the one in the roster, or it refuses this site."""

    PRIVACY = 17
    """An audit with canaries measured more epsilon than the ledger counts."""

    INTERRUPTED = 130
    """Interrupted by Ctrl-C."""

    TERMINATED = 143
    """A run or a site's process was asked to end, by SIGTERM, and ended in order."""

    @property
    def blames_another(self) -> bool:
        """Whether the cause may be at another site: a peer that does not answer, or sends something wrong."""
        return self in (ExitCode.CONNECTION, ExitCode.QUORUM, ExitCode.PEER)


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM and ends as after Ctrl-C, but with a different exit code."""


class SecureFdaError(Exception):
    """Base of all errors that a user or a peer can cause.

    Args:
        message: what went wrong and where, one line.
        hint: how to fix it, one line; empty where there is nothing to do.
    """

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def code(self) -> str:
        """Stable name for machines, for example ``PolicyRefusal``."""
        return type(self).__name__


class ConfigError(SecureFdaError):
    """A setting, an argument or an input file is wrong. ``key`` names it, ``why`` says what is wrong."""

    exit_code = ExitCode.CONFIG

    def __init__(self, key: str, why: str, *, hint: str = "") -> None:
        super().__init__(f"{key}: {why}", hint=hint)
        self.key = key
        self.why = why


class ConfigErrors(ConfigError):
    """Several settings of one file are wrong; ``errors`` has one error for each, and the line is of the first."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        first, *others = errors
        super().__init__(first.key, f"{first.why}; also wrong: {', '.join(other.key for other in others)}")
        self.hint = first.hint
        self.errors = tuple(errors)

    @staticmethod
    def of(errors: Iterable[ConfigError]) -> ConfigError:
        """Return a single error itself, or several as one; nested ones are flattened, and duplicates dropped."""
        flat = [one for error in errors for one in (error.errors if isinstance(error, ConfigErrors) else (error,))]
        apart = list({str(error): error for error in flat}.values())
        return apart[0] if len(apart) == 1 else ConfigErrors(apart)


class DataError(ConfigError):
    """A data file is missing, corrupt or unsuitable. ``key`` is the file or the task."""


class TrainingError(SecureFdaError):
    """Local training cannot go on: NaN in the loss, too few batches, an unsuitable model, unfit metrics.

    The site's task, data or settings of training have to change.
    """

    exit_code = ExitCode.CONFIG


class TrainingDiverged(TrainingError):
    """Local training diverges: the loss or the update is NaN or infinite, or both grow beyond bounds in one round."""


class ConnectionFailed(SecureFdaError):
    """The peer cannot be reached, or it hung up and did not come back."""

    exit_code = ExitCode.CONNECTION


class AuthenticationError(SecureFdaError):
    """The peer answers, but it is not who the roster says, or it refuses who we are."""

    exit_code = ExitCode.PEER


class CertificateError(SecureFdaError):
    """A certificate is expired, not yet valid, of another federation, or carries the wrong name."""

    exit_code = ExitCode.CERTIFICATE


class OtherBuild(SecureFdaError):
    """Two sites run builds that do not speak with each other, which accuses no site; nothing is signed about it."""

    exit_code = ExitCode.VERSION

    def __init__(self, message: str) -> None:
        hint = "install one release at all sites, then start again (docs/how-to/upgrade.md); this accuses no site"
        super().__init__(message, hint=hint)

    @classmethod
    def between(cls, they: str, theirs: str, we: str, ours: str) -> OtherBuild:
        """Return the error in which each side is named with its build."""
        return cls(f"{they} runs {theirs}, {we} {ours}")


class RunEnded(SecureFdaError):
    """The aggregator ended the run early, and said why."""


class QuorumLost(SecureFdaError):
    """Fewer sources than the threshold are left, so nothing may be opened.

    ``why`` says of some of the missing which check they failed, or how they were lost.
    """

    exit_code = ExitCode.QUORUM

    def __init__(
        self,
        phase: str,
        needed: int,
        have: Iterable[str],
        missing: Iterable[str],
        *,
        why: Mapping[str, str] | None = None,
        hint: str = "",
    ) -> None:
        self.phase = phase
        self.needed = needed
        self.have = tuple(have)
        self.missing = tuple(missing)
        self.why = {name: why[name] for name in self.missing if name in why} if why else {}
        names = ", ".join(f"{name} ({self.why[name]})" if name in self.why else name for name in self.missing)
        enough = f"{len(self.have)} of at least {needed} sources"
        text = f"{phase_words(phase)}: {enough}; missing: {names or 'none that is known'}"
        super().__init__(text, hint=hint)

    def because(self, why: Mapping[str, str], *, hint: str = "") -> QuorumLost:
        """Return the same error with reasons for the missing sources; known reasons are kept."""
        known = {**why, **self.why}
        return QuorumLost(self.phase, self.needed, self.have, self.missing, why=known, hint=hint or self.hint)


class PolicyRefusal(SecureFdaError):
    """This site's policy does not allow what the header asks for."""

    exit_code = ExitCode.POLICY

    def __init__(self, key: str, asked: object, allowed: object, *, hint: str = "") -> None:
        self.key = key
        self.asked = asked
        self.allowed = allowed
        super().__init__(f"policy refuses {key}: asked {asked}, allowed {allowed}", hint=hint)


class RunRefused(SecureFdaError):
    """Policies of sources forbid part of the run, and without these sources there are too few.

    ``refusals`` has the key of the policy by site id.
    """

    exit_code = ExitCode.POLICY

    def __init__(self, refusals: Mapping[str, str], *, hint: str = "") -> None:
        self.refusals = dict(refusals)
        named = "; ".join(f"the policy of {site} refuses {key}" for site, key in self.refusals.items())
        super().__init__(f"{named}, and the run cannot do without", hint=hint)


class BudgetExhausted(SecureFdaError):
    """The rest of a data set's privacy budget does not pay for a round, so nothing trains.

    ``spent``, ``limit`` and ``cost`` are epsilons at one delta: spent so far, allowed, and what the round would add.
    ``what`` says whose budget, which round and at which delta, and ``needs`` what has this cost, for the line.
    """

    exit_code = ExitCode.BUDGET

    def __init__(
        self,
        spent: float,
        limit: float,
        cost: float,
        *,
        what: str = "privacy budget",
        needs: str = "the round",
        hint: str = "",
    ) -> None:
        self.spent = spent
        self.limit = limit
        self.cost = cost
        text = f"{what}: spent epsilon {spent:.4f} of {limit:.4f}, {needs} would cost {cost:.4f} more"
        super().__init__(text, hint=hint)


class BudgetReserved(BudgetExhausted):
    """What other runs have reserved of a data set's privacy budget leaves too little for a run, which is not joined."""


class ProtocolError(SecureFdaError):
    """A peer broke the protocol. ``check`` is the stable name of the check that found it.

    ``place`` is the round and the phase, where the code that caught the error knew them.
    """

    exit_code = ExitCode.CONNECTION

    def __init__(self, check: str, message: str) -> None:
        super().__init__(message)
        self.check = check
        self.place = ""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} ({self.place})" if self.place else text


class FaultyAggregatorError(ProtocolError):
    """A message of the aggregator fails a check that an honest aggregator always passes. The session is dead.

    ``suspect`` is the roster index of a source that may have done it in its place; an honest aggregator knows. Without
    ``blames`` no site is accused: this site does not go along, and others may have brought it about.
    """

    def __init__(self, check: str, detail: str = "", *, suspect: int | None = None, blames: bool = True) -> None:
        what = f"aggregator fails check {check}" if blames else f"check {check} fails, which accuses no site"
        super().__init__(check, what + (f": {detail}" if detail else ""))
        self.suspect, self.blames = suspect, blames


class FaultySourceError(ProtocolError):
    """A source sent something that an honest one never sends; ``source_id`` names it."""

    def __init__(self, source_id: str, check: str, detail: str = "") -> None:
        super().__init__(check, f"source {source_id} fails check {check}" + (f": {detail}" if detail else ""))
        self.source_id = source_id


class SourceAborted(ProtocolError):
    """A source ended a session because a check failed there; ``source_id`` names the source."""

    def __init__(self, source_id: str, check: str, message: str) -> None:
        super().__init__(check, message)
        self.source_id = source_id


def without_frames(error: _Error) -> _Error:
    """Return an error that is kept for longer than it is handled, and its causes, without their tracebacks.

    A traceback holds the frames that it went through, and with them what was at work there: an update before it was
    masked, say, that a session which has ended must not leave in memory.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += [one.__cause__, one.__context__]
    return error


def reading_hint(error: OSError, otherwise: str) -> str:
    """Return a hint about a file that cannot be read: about its permissions if these are the cause, else
    ``otherwise``.
    """
    return OWNERS_ALONE if isinstance(error, PermissionError) else otherwise
