"""The phases of a run at the aggregator, and the events that end them; what each event does is the run's own table.

A phase is frozen and holds what belongs to it alone. What is known of a round, and of an attempt at it, collects in
the :class:`CurrentRound` and the :class:`Attempt` that its phases pass on. ``name`` is what operators read of a phase
in which the run waits for sources, and is empty for others. ``began`` and ``deadline`` are times of the
clock that the run is given, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
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


class Event(Enum):
    """What takes a run from one phase to the next."""

    READY = auto()
    """The phase waits for nothing more."""

    DUE = auto()
    """Its deadline has passed."""


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
