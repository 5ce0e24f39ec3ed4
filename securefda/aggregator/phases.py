"""The phases of a run at the aggregator, and the table of the phases that may follow each.

A phase is frozen and holds what belongs to it alone. What is known of a round, and of an attempt at it, collects in
the :class:`CurrentRound` and the :class:`Attempt` that its phases pass on. ``name`` is what operators read of a phase
in which the run waits for sources, and is empty for others. ``began`` and ``deadline`` are times of the
clock that the run is given, in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from securefda.aggregator.attempt import Attempt
from securefda.aggregator.rounds import CurrentRound
from securefda.errors import SecureFdaError
from securefda.protocol.messages import Goodbye


@dataclass(frozen=True, slots=True)
class NotOpened:
    """The run is set up; no source has been answered."""

    name: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Opening:
    """The stored position is read, or a new run is written down."""

    name: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class AskingCosigners:
    """A round has begun, and the sources are asked to cosign the newest checkpoint. Due as soon as that has left."""

    current: CurrentRound
    began: float
    deadline: float
    name: ClassVar[str] = "witness"


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """The target has trained, if that was worth it. Due as soon as the run has heard what happened meanwhile.

    No header leaves before that: a source may have left or restarted while the target trained, and a round that counts
    on its old process could be lost. ``began`` leaves out the training, which is recorded separately.
    """

    current: CurrentRound
    began: float
    deadline: float
    name: ClassVar[str] = "witness"


@dataclass(frozen=True, slots=True)
class AwaitingCosignatures:
    """The run waits for cosignatures of the sources that are connected."""

    current: CurrentRound
    began: float
    deadline: float
    name: ClassVar[str] = "witness"


@dataclass(frozen=True, slots=True)
class Gathering:
    """The run waits for sources that have not joined, or not cosigned, before it begins an attempt."""

    current: CurrentRound
    began: float
    deadline: float
    name: ClassVar[str] = "join"


@dataclass(frozen=True, slots=True)
class InAttempt:
    """An attempt is under way; ``name`` is the phase of its session."""

    current: CurrentRound
    attempt: Attempt
    name: str
    began: float
    deadline: float


@dataclass(frozen=True, slots=True)
class AttemptOver:
    """An attempt has ended: the round gets its result, is tried again, or is lost.

    ``ended`` is that attempt, or why none can begin, whereupon the round is lost.
    """

    current: CurrentRound
    ended: Attempt | SecureFdaError
    name: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class BetweenRounds:
    """A round is written down. The next one is due at once, after what the last one still has to send."""

    deadline: float
    name: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the run is written to the log. ``error`` is why it ended early; None for a run that is complete."""

    farewell: Goodbye
    error: SecureFdaError | None
    name: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Closing:
    """The run waits for cosignatures of its end, and says goodbye to the sources when it has them."""

    farewell: Goodbye
    error: SecureFdaError | None
    began: float
    deadline: float
    name: ClassVar[str] = "closing"


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing is left to do. A source that reports gets ``farewell``."""

    farewell: Goodbye
    error: SecureFdaError | None
    name: ClassVar[str] = ""


RoundPhase = AskingCosigners | CatchingUp | AwaitingCosignatures | Gathering | InAttempt | AttemptOver
"""Phases within a round."""
TimedRoundPhase = AskingCosigners | CatchingUp | AwaitingCosignatures | Gathering | InAttempt
"""The phases whose time is part of the round's record."""
DuePhase = TimedRoundPhase | BetweenRounds | Closing
"""Phases that have a deadline."""
LastPhase = Ending | Closing | Ended
"""Phases after the last round."""
Phase = NotOpened | Opening | RoundPhase | BetweenRounds | LastPhase

_FAILS = "the driver, the store or the log fails"

TRANSITIONS: Mapping[tuple[type[Phase], type[Phase]], str] = MappingProxyType(
    {
        (NotOpened, Opening): "the driver opens the run",
        (Opening, Gathering): "a round begins, and no source has joined",
        (Opening, BetweenRounds): "the target's own round is over, or an interrupted round is lost",
        (Opening, Ending): f"every round was over before a restart, or {_FAILS}",
        (Opening, Ended): "the run was complete before a restart",
        (AskingCosigners, CatchingUp): "the requests have left, and the target has trained if enough are connected",
        (AskingCosigners, Gathering): "every source has cosigned",
        (AskingCosigners, Ending): _FAILS,
        (CatchingUp, AwaitingCosignatures): "nothing that happened meanwhile is left to hear",
        (CatchingUp, Ending): f"too few sources are left, or {_FAILS}",
        (AwaitingCosignatures, Gathering): "every source has cosigned, or the deadline passes",
        (AwaitingCosignatures, Ending): _FAILS,
        (Gathering, CatchingUp): "the sources are there, and the target has trained only now",
        (Gathering, InAttempt): "all that can take part are ready, or enough are and the run need not wait",
        (Gathering, AttemptOver): "a second attempt would ask the sources for something else",
        (Gathering, Ending): f"too few sources can take part, or {_FAILS}",
        (InAttempt, InAttempt): "the session enters its next phase",
        (InAttempt, AttemptOver): "the session has a sum or an error",
        (InAttempt, Ending): _FAILS,
        (AttemptOver, Gathering): "the round is tried again",
        (AttemptOver, BetweenRounds): "the round has a result, or is lost",
        (AttemptOver, Ending): f"too many rounds in a row are lost, or {_FAILS}",
        (BetweenRounds, AskingCosigners): "a round begins",
        (BetweenRounds, Gathering): "a round begins, and no source is connected",
        (BetweenRounds, BetweenRounds): "the target's own round is over",
        (BetweenRounds, Ending): f"the last round is over, or {_FAILS}",
        (Ending, Closing): "the end is in the log",
        (Ending, Ended): "the end cannot be written to the log, or the store fails meanwhile",
        (Closing, Ended): f"every source has cosigned the end, or the deadline passes, or {_FAILS}",
    }
)
"""Which phase may follow which, and when. Any other change of phase is an error of this program."""


def require_transition(left: Phase, entered: Phase) -> None:
    """Refuse a change of phase that is not in the table.

    Raises:
        RuntimeError: it is not.
    """
    if (type(left), type(entered)) not in TRANSITIONS:
        raise RuntimeError(f"a run in phase {type(left).__name__} cannot enter {type(entered).__name__}")


@dataclass(frozen=True, slots=True)
class Progress:
    """The state that a run carries from round to round.

    Attributes:
        last_round: number of the round that this process began last; 0 before the first.
        attempted: whether this process has had the sources for an attempt. The first time it waits for every source
            that may come.
        losses: why rounds were lost, of those since the last one that was finished.
    """

    last_round: int = 0
    attempted: bool = False
    losses: tuple[SecureFdaError, ...] = ()
