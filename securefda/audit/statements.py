"""What a signed message says, as far as it is compared with the logs. The bytes themselves are opaque here. Pure.

`securefda.audit.statement_reader` reads the bytes, fills these types in and checks the signature; what follows
from them is decided in `securefda.audit.reconcile.claims`. Digests are SHA-256 in hex; sites are named by their ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

BROADCAST: Final = ("Header", "KeyList", "Survivors", "Consistency", "Result")
"""What the target says in a session once, to all participants alike."""
ONCE: Final = ("Advertise", "ShareBundle", "MaskedInput", "Update", "SurvivorSignature", "Unmask")
"""What a source says in a session once, to the target."""
ONCE_IN_A_VIEW: Final = ("ShareBundle", "MaskedInput", "SurvivorSignature", "Unmask")
"""Of these, what it says under a context that holds its own fresh keys: two under one context are never honest."""
RELEASES: Final = frozenset({"MaskedInput", "Update"})


@dataclass(frozen=True, slots=True)
class HeaderSaid:
    """A header.

    Attributes:
        run: run id, 32 hex digits.
        round, attempt: 1-based.
        model: digest of the model that is sent with it.
        previous_result: digest of the result that it continues; empty for none.
        roster: digest of the roster.
        levels: site id of each participant -> ``"individual"``, ``"cohort"`` or ``"sum"``.
        threshold, sum_quorum, cohort_quorum: as in the header.
        norm_cap: whether a norm cap holds.
        target_update: whether g_T travels to those at ``sum``.
        previous_checkpoint: the note, verbatim.
    """

    run: str
    round: int
    attempt: int
    model: str
    previous_result: str
    roster: str
    levels: Mapping[str, str]
    threshold: int
    sum_quorum: int
    cohort_quorum: int
    norm_cap: bool
    target_update: bool
    previous_checkpoint: bytes = field(repr=False)

    @property
    def masked(self) -> int:
        """How many sources the masking session has."""
        return sum(level != "individual" for level in self.levels.values())

    @property
    def place(self) -> tuple[int, int]:
        """Round and attempt."""
        return self.round, self.attempt


@dataclass(frozen=True, slots=True)
class SurvivorsSaid:
    """The lists of survivors and of the dropped, in the order of the message."""

    survivors: tuple[str, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResultSaid:
    """A result: digest of the model that came out, over how many sources, and whether a masked sum is in it."""

    model: str
    count: int
    masked: bool


@dataclass(frozen=True, slots=True)
class CheckpointSaid:
    """A checkpoint of the sender's log: the note, verbatim."""

    note: bytes


Said = HeaderSaid | SurvivorsSaid | ResultSaid | CheckpointSaid


@dataclass(frozen=True, slots=True)
class Statement:
    """A signed message.

    Attributes:
        sender: site id of who claims to have signed; of an index that the roster does not have, ``"#"`` and the index.
        type: name of the message type.
        digest: of the signed bytes; what records of the message hold.
        session: id, 64 hex digits; empty outside sessions.
        context: what the message is bound to, 64 hex digits; the header's digest in ``Advertise``, ``KeyList``,
            ``Update`` and ``Result``, a digest over header and key list in ``ShareBundle``, and over these and the
            members from ``MaskedInput`` on. Empty where it is bound to nothing.
        valid: whether the signature is the sender's over these bytes, as a message of this type.
        said: what it says, of the types that are looked into.
        size: bytes of it that a record counts: the signed bytes and the signature.
        has_vectors: whether vectors travel beside it, which a record counts as well.
        data: the message as it was kept.
    """

    sender: str
    type: str
    digest: str
    session: str
    context: str
    valid: bool
    said: Said | None = None
    size: int = 0
    has_vectors: bool = False
    data: bytes = field(default=b"", repr=False)


class Statements(Protocol):
    """The signed messages that the sites have kept."""

    def transcript(self) -> Iterable[Statement]:
        """Every ``Header``, ``Survivors``, ``Result`` and ``Checkpoint`` with a valid signature, each once."""

    def find(self, digests: Collection[str]) -> Mapping[str, Statement]:
        """Those of the messages with these digests that a site kept with a valid signature, by digest."""
