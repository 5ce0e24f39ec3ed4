"""A whole session in memory: one aggregator, N sources, and every message as encoded bytes in between.

Each message is serialised, passed to a ``Link`` that may lose or replace it, and parsed again by the receiver, with
the wire code that the processes use. All keys and random bytes follow from numbers, so a session can be repeated.
The target has roster index 1: a place in a list is never an index by accident.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from phases import added, closed, taken

from securefda.errors import FaultyAggregatorError
from securefda.protocol import aggregator_session as agg
from securefda.protocol import source_session as src
from securefda.protocol.aggregator_session import AggregatorSession
from securefda.protocol.build import CAPABILITIES, WIRE_VERSION, Build
from securefda.protocol.envelope import sign_bytes
from securefda.protocol.header_checks import (
    History,
    SessionLimits,
    check_signed_header,
    default_threshold,
    quantisation,
)
from securefda.protocol.masking import RingVector
from securefda.protocol.messages import (
    NO_CONTEXT,
    Envelope,
    Granularity,
    GraphTerms,
    Header,
    Layer,
    MasterShare,
    NormCapTerms,
    Result,
    RuleTerms,
    SelfMaskShare,
    Signed,
    Signer,
    Visibility,
)
from securefda.protocol.roster import Roster, RosterEntry
from securefda.protocol.secret import Secret
from securefda.protocol.transcript import architecture_digest, layer_names_and_shapes
from securefda.site.throwaway import throwaway_roster
from securefda.transport import wire

TARGET = 1
NOW, LAST_SECOND = 2**30, 2**32
RUN_ID = bytes(range(16))
SESSION_ID = sha256(b"the session").digest()
LAYERS = (Layer("weight", (3, 4), 0.5, 0.5), Layer("bias", (4,), 2.0, 2.0))
MODEL = bytes(range(64))
BUILD = Build(WIRE_VERSION, "0.1.0", CAPABILITIES)
"""With a version of its own, so that vectors stay as they are from release to release."""
PHASES = ("R0 advertise", "R1 shares", "R2 masked input", "R3 signature", "R4 unmask")

AnySigned = Signed[Any]
Link = Callable[[int, int, AnySigned], AnySigned | None]
"""What happens between two sites: (sender, recipient, message) to the message that arrives, or None."""


def intact(sender: int, recipient: int, message: AnySigned) -> AnySigned:
    """The link on which everything arrives as it was sent."""
    return message


class Bytes:
    """Random bytes that follow from a seed: SHA-256 in counter mode."""

    def __init__(self, *seed: object) -> None:
        self._seed, self._counter = repr(seed).encode(), 0

    def __call__(self, length: int) -> bytes:
        drawn = b""
        while len(drawn) < length:
            self._counter += 1
            drawn += sha256(self._seed + self._counter.to_bytes(8, "big")).digest()
        return drawn[:length]


@cache
def identity(index: int) -> Ed25519PrivateKey:
    """The signing key of the site at a roster index."""
    return Ed25519PrivateKey.from_private_bytes(sha256(f"identity {index}".encode()).digest())


@cache
def roster_of(n_sources: int) -> Roster:
    """A roster of one target and ``n_sources`` sources."""
    keys = {"target" if index == TARGET else f"source-{index}": identity(index) for index in range(n_sources + 1)}
    entities = {site_id: f"Hospital {index}" for index, site_id in enumerate(keys)}
    made = throwaway_roster("study", keys, target="target", entities=entities)
    return replace(made, entries=tuple(map(_published, made.entries)))


def _published(entry: RosterEntry) -> RosterEntry:
    """As it stands in the published sessions."""
    return replace(entry, tls_pin=sha256(f"tls {entry.index}".encode()).digest(), not_after=LAST_SECOND)


def rounding_of(index: int) -> Secret:
    """The key with which a source rounds."""
    return Secret(sha256(f"rounding {index}".encode()).digest())


def signer(index: int) -> Signer:
    """Signs with the real key of a site, as wire bytes."""
    return Signer(index, identity(index), wire.encode)


def header_body(
    n_sources: int, *, level: Visibility = Visibility.SUM, max_colluders: int = 0, **changes: Any
) -> Header:
    """A header that every source of the cohort accepts, all at one level, with some fields changed."""
    roster = roster_of(n_sources)
    participants = changes.get("participants", tuple(entry.index for entry in roster.sources))
    levels = changes.get("levels", (level,) * len(participants))
    masked = len(levels) - levels.count(Visibility.INDIVIDUAL)
    layers = changes.get("layers", LAYERS)
    threshold = changes.get("threshold", default_threshold(max(2, masked), 1, max_colluders))
    fields: dict[str, Any] = {
        "run_id": RUN_ID,
        "round": 1,
        "attempt": 1,
        "levels": levels,
        "rule": RuleTerms("source_only", 0.5, "orthogonal", True, True, "mean-field", 1.0),
        "target": None,
        "layers": layers,
        "architecture_digest": architecture_digest(layer_names_and_shapes(layers)),
        "model_digest": sha256(MODEL).digest(),
        "roster_digest": roster.digest(),
        "participants": participants,
        "threshold": threshold,
        "modulus_bits": 32,
        "n_max": n_sources,
        "max_samples": 1000,
        "training_deadline_ms": 60_000,
        "phase_deadline_ms": 10_000,
        "previous_result_digest": b"",
        "previous_checkpoint": b"",
        "build": BUILD,
        **_sum_plan(levels.count(Visibility.SUM), threshold, max_colluders),
    }
    return Header(**(fields | changes))


def on_ring(fewest: int, *, degree: int = 6, colluders: int = 0, silent: int = 1, **changes: Any) -> dict[str, Any]:
    """What differs in the header of a session of SFDA-SA/2; five of seven holders open a secret."""
    graph = GraphTerms(degree, degree // 2 + 2, colluders, 1, silent)
    return {"threshold": fewest, "sum_quorum": fewest, "norm_cap": None, "graph": graph, **changes}


def _sum_plan(members: int, threshold: int, max_colluders: int) -> dict[str, Any]:
    """The usual plan for the sources at ``sum``."""
    if members == 0:
        return {}
    quorum = max(2, min(members, threshold))
    return {"sum_quorum": quorum, "norm_cap": NormCapTerms(1.0, max(1, quorum - 1 - max_colluders), Granularity.LAYER)}


def limits_of(n_sources: int, *, min_others: int = 1, max_colluders: int = 0) -> SessionLimits:
    """Limits of a source that trusts every other source."""
    trusted = frozenset(entry.index for entry in roster_of(n_sources).sources)
    return SessionLimits(min_others=min_others, max_colluders=max_colluders, trusted=trusted)


def forged(message: AnySigned, signed_as: int, **changes: Any) -> AnySigned:
    """The message with another outside, signed by the real key of ``signed_as``, without the wire's own checks."""
    envelope = replace(message.envelope, **changes)
    try:
        data = wire.encode(envelope)
    except wire.WireError:  # a suite that the wire refuses by itself; the state machine has to refuse it too
        data = wire.encode(replace(envelope, suite=1))
    return Signed(envelope, data, sign_bytes(identity(signed_as), type(envelope.body).__name__, data))


def over_the_wire(message: AnySigned) -> AnySigned:
    """What the receiver makes of the bytes of a message."""
    return wire.decode_signed(wire.encode_signed(message))


@dataclass
class Cohort:
    """A session that goes on phase by phase.

    Attributes:
        n: number of sources.
        link: what happens to messages under way.
        changes: what differs in the header, see :func:`header_body`.
        min_others, max_colluders: limits of every source.
        phases: the phase of every source that is still there.
        aggregator: the aggregator's phase.
        inbox: the aggregator's message that each source has not processed yet, as it was sent.
        arrivals: order in which the sources' messages reach the aggregator.
        heard: what the aggregator has had, by type and sender.
    """

    n: int
    link: Link = intact
    changes: Mapping[str, Any] = field(default_factory=dict)
    min_others: int = 1
    max_colluders: int = 0
    arrivals: Callable[[list[int]], list[int]] = sorted
    run_all: Callable[[Callable[[int], Any], list[int]], Any] = map
    phases: dict[int, Any] = field(default_factory=dict)
    inbox: dict[int, AnySigned] = field(default_factory=dict)
    outbox: dict[int, AnySigned] = field(default_factory=dict)
    vectors: dict[int, bytes] = field(default_factory=dict)
    heard: dict[tuple[str, int], AnySigned] = field(default_factory=dict)
    opened: agg.OpenedSession | None = None

    def __post_init__(self) -> None:
        self.roster = roster_of(self.n)
        self.limits = limits_of(self.n, min_others=self.min_others, max_colluders=self.max_colluders)
        self.header = signer(TARGET).sign(
            SESSION_ID, NO_CONTEXT, header_body(self.n, max_colluders=self.max_colluders, **self.changes)
        )
        self.session = AggregatorSession(signer(TARGET), self.roster, self.header)
        self.aggregator: Any = agg.open_session(self.session)
        self.random = {index: Bytes("source", index) for index in self.indices}
        self.sessions = {index: self._accept(index) for index in self.indices}

    @property
    def indices(self) -> list[int]:
        """Roster indices of the sources of the session."""
        return list(self.header.body.masked)

    def all_of(self, type_name: str) -> dict[int, AnySigned]:
        """What the aggregator has had of one type, by sender."""
        return {sender: message for (name, sender), message in self.heard.items() if name == type_name}

    def report_of(self, index: int) -> bytes:
        """The norm report of a source: any codes, since a session carries them without looking at them."""
        header = self.header.body
        length = header.norm_report_length if header.level_of(index) is Visibility.SUM else 0
        return bytes((240 + index + place) % 256 for place in range(length))

    def _accept(self, index: int) -> src.Session:
        header = over_the_wire(self.header)
        check_signed_header(
            header,
            own_index=index,
            roster=self.roster,
            limits=self.limits,
            history=History(),
            own_layers=layer_names_and_shapes(header.body.layers),
            unix_s=NOW,
        )
        return src.Session(signer(index), self.roster, self.limits, header)

    def encoded(self, index: int) -> RingVector:
        """The encoded input of a source: a fresh copy of the same values on every call."""
        encoding = quantisation(self.header.body)
        numbers = np.random.default_rng(index)
        vector = numbers.uniform(-1, 1, encoding.layer_length).astype(np.float32)
        return encoding.encode(vector, rounding_of(index), numbers.uniform(0, 1, encoding.n_statistics))

    def sum_of(self, members: list[int]) -> RingVector:
        """The ring sum of the encoded inputs of some sources, computed in the clear."""
        total = self.encoded(members[0])
        for index in members[1:]:
            total = total + self.encoded(index)  # type: ignore[assignment]
        return total

    def step(self, index: int, message: AnySigned | None) -> tuple[Any, AnySigned | None]:
        """What a source makes of a message: its next phase and its answer. The cohort is left as it is."""
        if index not in self.phases:
            return src.advertise(self.sessions[index], self.random[index])
        masked = partial(self._masked, index)
        return taken(self.phases[index], message, self.random[index], masked, self.report_of(index))

    def _masked(self, index: int, ready: src.ReadyToMask) -> tuple[src.AwaitingSurvivors, AnySigned]:
        encoding = quantisation(self.header.body)
        following, answer, packed = src.masked_input(ready, self.encoded(index), encoding)
        self.vectors[index] = bytes(packed)
        return following, answer

    def add(self, message: AnySigned, state: Any = None, vector: bytes | None = None) -> Any:
        """What the aggregator makes of a source's message: its next phase. The cohort is left as it is."""
        vector = self.vectors.get(message.sender, b"") if vector is None else vector
        return added(self.aggregator if state is None else state, message, vector)

    def answer(self) -> None:
        """Every source that has a message processes it; the answers are under way and wait in ``outbox``."""
        begins = not self.phases
        inbox = {i: self._arrives(TARGET, i, m) for i, m in self.inbox.items()} if not begins else {}
        ready = self.indices if begins else sorted(i for i, m in inbox.items() if m is not None)
        stepped = dict(zip(ready, self.run_all(lambda i: self.step(i, inbox.get(i)), ready), strict=True))
        self.phases = {i: phase for i, (phase, _) in stepped.items()}
        self.outbox = {i: reply for i, (_, reply) in stepped.items() if reply is not None}
        self.inbox = {}

    def collect(self) -> None:
        """What is under way reaches the aggregator, unless the link loses it."""
        for index in self.arrivals(sorted(self.outbox)):
            arrived = self._arrives(index, TARGET, self.outbox[index])
            if arrived is not None:
                self.aggregator = self.add(arrived)
                self.heard[arrived.type_name, index] = arrived
        self.outbox = {}

    def close(self) -> None:
        """The aggregator ends its phase and sends what comes next."""
        self.aggregator, message = closed(self.aggregator)
        if message is not None:  # one for all that it is for, or one for each
            of_each = isinstance(message, Mapping)
            self.inbox = dict(message) if of_each else dict.fromkeys(self.aggregator.waiting_for, message)
            return
        self.opened = opened = self.aggregator
        body = Result(opened.sum_digest, len(opened.survivors), sha256(b"next model").digest())
        self.inbox = dict.fromkeys(self.phases, opened.session.sign(opened.session.ctx, body))

    def running_sum(self) -> RingVector:
        """A copy of the only sum that the aggregator keeps; with cohorts there are several."""
        (total,) = self.aggregator.totals.values()
        return total.copy()  # type: ignore[no-any-return]

    def _arrives(self, sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
        arrived = self.link(sender, recipient, message)
        return None if arrived is None else over_the_wire(arrived)

    def until(self, phase: int, *, collected: bool = False) -> Cohort:
        """Go on until the answers of phase 0 to 4 are under way, or have been collected."""
        self.exchange(phase)
        self.answer()
        if collected:
            self.collect()
        return self

    def exchange(self, phases: int = 1) -> None:
        """Go through phases: the sources answer, the aggregator collects and closes."""
        for _ in range(phases):
            self.answer()
            self.collect()
            self.close()

    def finish(self) -> agg.OpenedSession:
        """Go on from wherever the session stands to the open sum, and hand the result to every source."""
        if self.outbox:
            self.collect()
            self.close()
        elif not self.inbox and self.phases:
            self.close()
        while self.opened is None:
            self.exchange()
        self.answer()
        return self.opened


@contextmanager
def refused_for(check: str, match: str | None = None) -> Iterator[None]:
    """What a source does in the block fails this check, by which it blames the aggregator."""
    with pytest.raises(FaultyAggregatorError, match=match) as refused:
        yield
    assert refused.value.check == check


def leaving(drops: Mapping[int, float], link: Link = intact) -> Link:
    """A link on which source i falls silent from its message of phase ``drops[i]`` on: 0 to 4, the nonce 0.5."""

    def lossy(sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
        source = recipient if sender == TARGET else sender
        reached = _PHASE_OF[message.type_name] if sender != TARGET else -1
        if source in drops and reached >= drops[source]:
            return None
        return link(sender, recipient, message)

    return lossy


_PHASE_OF = {"Advertise": 0, "Nonce": 0.5, "ShareBundle": 1, "MaskedInput": 2, "SurvivorSignature": 3, "Unmask": 4}


def resigned(message: AnySigned, body: object) -> AnySigned:
    """The message with another body, signed anew by its real sender."""
    envelope: Envelope[Any] = message.envelope
    return signer(envelope.sender).sign(envelope.session_id, envelope.context, body)


def secrets_in(value: Any) -> Iterator[bytes]:
    """Every secret and every share that can be reached from a value."""
    match value:
        case Secret() if len(value):
            yield value.reveal()
        case SelfMaskShare() | MasterShare():
            yield value.share
        case Mapping():
            for item in value.values():
                yield from secrets_in(item)
        case list() | tuple() | frozenset():
            for item in value:
                yield from secrets_in(item)
        case Signed():
            yield from secrets_in(value.body)
        case _ if is_dataclass(value):
            for field in fields(value):
                yield from secrets_in(getattr(value, field.name))
