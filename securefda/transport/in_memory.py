"""A network inside one process: every message is encoded, waits for its turn as bytes, and is parsed again.

The simulator, the threat model's stage and the tests use it. TLS, time and loss do not exist here: a deadline passes
when no message is left. Subclasses decide what happens to a message in transit, and what a site's process does around
each of its steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from securefda.protocol.down_link import down_link_of, packed, packed_length
from securefda.protocol.messages import Parcel, Send, Signed
from securefda.transport.observer import Direction, MessageObserver, wire_size
from securefda.transport.vector_transfer import Vector, digests_beside
from securefda.transport.wire import decode_signed, encode_signed


class AggregatorEndpoint(Protocol):
    """The interface of an aggregator, honest or not, to the network."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""

    @property
    def deadline(self) -> float | None:
        """When :meth:`expire` is due, in seconds of the network's clock; None for never."""

    @property
    def run_id(self) -> str:
        """The run that it announces, 32 hex digits; sources join it."""

    def open(self) -> list[Send]:
        """Begin."""

    def receive(self, parcel: Parcel) -> list[Send]:
        """Receive a message of a source."""

    def expire(self) -> list[Send]:
        """Let a deadline pass, since no message is under way."""


class SourceEndpoint(Protocol):
    """The interface of a source, honest or not, to the network."""

    def join(self, run: str) -> Parcel:
        """Return the first message in a run."""

    def handle(self, parcel: Parcel) -> list[Parcel]:
        """Handle a message of the aggregator."""

    def train(self) -> list[Parcel]:
        """Train if what was sent last allows for it."""

    def expire(self) -> list[Parcel]:
        """Let a deadline pass, since the aggregator stays silent."""


AggregatorT = TypeVar("AggregatorT", bound=AggregatorEndpoint)
SourceT = TypeVar("SourceT", bound=SourceEndpoint)


@dataclass(frozen=True, slots=True)
class Passed:
    """A message that arrives, with its vectors. ``sender`` and ``to`` are the ends of the connection."""

    sender: int
    to: int
    message: Signed[Any]
    vectors: tuple[Any, ...] = field(default=(), repr=False)

    @property
    def parcel(self) -> Parcel:
        """The parcel for the receiver."""
        return Parcel(self.message, self.vectors)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A message in transit: its bytes, with the vectors beside it."""

    sender: int
    to: int
    data: bytes = field(repr=False)
    vectors: tuple[Vector, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, sender: int, to: int, parcel: Parcel) -> UnderWay:
        """Encode a parcel on its way from one roster index to another."""
        return cls(sender, to, encode_signed(parcel.message), parcel.vectors)

    def read(self) -> Passed:
        """Parse the bytes as the receiver does.

        Raises:
            WireError: the bytes are not exactly one valid signed message.
        """
        return Passed(self.sender, self.to, decode_signed(self.data), self.vectors)


class MemoryNetwork(Generic[AggregatorT, SourceT]):
    """Passes messages between one aggregator and its sources.

    Args:
        aggregator: at the roster index ``target``.
        sources: by roster index.
        observers: see each site's messages, by roster index; the messages of sites without one are not observed.

    Attributes:
        aggregator, sources: the endpoints; another one takes the place of a process that was started again.
        now: the time of this network, in seconds. It goes on when a deadline passes.
        under_way: what has left and has not arrived, in the order in which it was sent.
    """

    now: float = 0.0

    def __init__(
        self,
        aggregator: AggregatorT,
        sources: Mapping[int, SourceT],
        *,
        target: int = 0,
        observers: dict[int, MessageObserver] | None = None,
    ) -> None:
        self.aggregator, self.sources, self.target = aggregator, dict(sources), target
        self.observers = {} if observers is None else observers
        self.under_way: deque[UnderWay] = deque()

    def open(self) -> None:
        """Open the aggregator, and let every source join."""
        self.at_target(self.aggregator.open)
        for index in sorted(self.sources):
            self.join(index)

    def join(self, index: int) -> None:
        """Let a source join."""
        self.at_source(index, lambda: [self.sources[index].join(self.aggregator.run_id)])

    def step(self) -> bool:
        """Deliver the next message, or let a deadline pass if there is none; False when the run is over."""
        if self.under_way:
            self.deliver()
        elif self.aggregator.done:
            return False
        else:
            self.expire()
        return True

    def deliver(self) -> None:
        """Deliver the message that was sent first."""
        self.arrive(self.under_way.popleft().read())

    def deliver_all(self) -> None:
        """Deliver all messages, including those sent meanwhile."""
        while self.under_way:
            self.deliver()

    def expire(self) -> None:
        """Let the aggregator's deadline pass."""
        self.now = max(self.now, self.aggregator.deadline or 0.0)
        self.at_target(self.aggregator.expire)

    def arrive(self, passed: Passed) -> None:
        """Deliver a message to its receiver: it is observed, handled and answered.

        What :meth:`on_the_way` puts in its place is encoded and parsed again.
        """
        for arriving in self.on_the_way(passed):
            message = arriving.message
            if message is not passed.message:
                message = decode_signed(encode_signed(message))
                arriving = replace(arriving, message=message)  # noqa: PLW2901 - the same message, parsed
            self.observe(arriving.to, Direction.RECEIVED, arriving.sender, arriving.parcel)
            self.hand_over(arriving)

    def on_the_way(self, passed: Passed) -> Iterable[Passed]:
        """Return what arrives in place of a message: by default the message itself."""
        return (passed,)

    def hand_over(self, passed: Passed) -> None:
        """Let the receiver handle a message."""
        parcel = passed.parcel
        if passed.to == self.target:
            self.at_target(lambda: self.aggregator.receive(parcel))
        else:
            self.at_source(passed.to, lambda: self.sources[passed.to].handle(parcel))
            self.at_source(passed.to, self.sources[passed.to].train)

    def at_target(self, act: Callable[[], list[Send]]) -> None:
        """Let the aggregator act, and send what it returns."""
        self.post(act())

    def at_source(self, index: int, act: Callable[[], list[Parcel]]) -> None:
        """Let a source act, and send what it returns."""
        for parcel in act():
            self.submit(index, parcel)

    def post(self, sends: Sequence[Send]) -> None:
        """Send some messages of the aggregator together."""
        self._send(self.target, [(send.to, send.parcel) for send in sends])

    def submit(self, index: int, parcel: Parcel) -> None:
        """Send a message of a source."""
        self._send(index, [(self.target, parcel)])

    def _send(self, sender: int, sends: Sequence[tuple[int, Parcel]]) -> None:
        """Send as processes do: the observer sees all messages before one leaves."""
        for _, parcel in sends:
            self.check_vectors(sender, parcel)
        for number, (to, parcel) in enumerate(sends, 1):
            self.observe(sender, Direction.SENT, to, parcel, more=number < len(sends))
        for to, parcel in sends:
            self.put(UnderWay.of(sender, to, parcel))

    def check_vectors(self, sender: int, parcel: Parcel) -> None:  # noqa: ARG002 - an attacker's transport checks nothing
        """Refuse vectors that an honest site's transport refuses to send, since they do not match the message.

        Raises:
            ValueError: their number is wrong, or their numbers are none of the format that the message names.
        """
        digests_beside(parcel.message.body, len(parcel.vectors))
        down_link = down_link_of(parcel.message.body)
        for vector in parcel.vectors:
            packed(vector, down_link)

    def put(self, parcel: UnderWay) -> None:
        """Put a message in transit."""
        self.under_way.append(parcel)

    def observe(self, site: int, direction: Direction, peer: int, parcel: Parcel, *, more: bool = False) -> None:
        """Show a message to a site's observer; ``more`` as :class:`MessageObserver` has it."""
        if (observer := self.observers.get(site)) is not None:
            down_link = down_link_of(parcel.message.body)
            size = wire_size(parcel.message, sum(packed_length(len(vector), down_link) for vector in parcel.vectors))
            observer(direction, peer, parcel.message, size, more=more)
