"""The adversary of an honest aggregator: the network between the sites, and up to max_colluders sources that lie."""

from __future__ import annotations

import sys
from collections import Counter, deque
from dataclasses import replace
from typing import Any, ClassVar

from cohort import TARGET
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from session_lies import LIES, Draw, Scene, balanced, off_by, outside
from session_network import SessionNetwork, received
from session_sites import MOST_SOURCES, Terms

from securefda.protocol.header_checks import default_threshold, threshold_is_sound
from securefda.protocol.messages import (
    Advertise,
    Checkpoint,
    Cosigned,
    MaskedInput,
    Parcel,
    ShareBundle,
    SurvivorSignature,
    Unmask,
)
from securefda.transport.in_memory import UnderWay

KINDS = (Advertise, ShareBundle, MaskedInput, SurvivorSignature, Unmask)
OF_LOGS = (Checkpoint, Cosigned)
PATIENCE = 10
"""Waves in which a session goes from its header to its end."""


def terms_with(max_colluders: int) -> list[Terms]:
    """Federations of up to seven sources, at the default threshold and the least sound one, at all levels."""
    drawable = []
    for n in range(3, MOST_SOURCES + 1):
        for min_others in (1, 2):
            quorum = min_others + max_colluders + 1
            for threshold in sorted(
                {
                    max(quorum, (n + max_colluders) // 2 + 1),
                    default_threshold(max(n, quorum), min_others, max_colluders),
                }
            ):
                if n >= quorum and threshold_is_sound(threshold, n, max_colluders):
                    drawable.append(Terms(n, n, min_others, max_colluders, threshold))
                    for size in {quorum, min(quorum + 1, threshold)}:  # with no loss possible, and with one
                        drawable.append(Terms(n, 0, min_others, max_colluders, threshold, size))
                    for of_sum in {quorum, n - quorum} if n >= 2 * quorum else ():
                        drawable.append(Terms(n, of_sum, min_others, max_colluders, threshold, quorum))
    return drawable


class SessionMachine(RuleBasedStateMachine):
    """A run of three rounds whose messages an adversary schedules. In some examples the network does no harm."""

    events: ClassVar[Counter[str]] = Counter()
    """What happened in all examples, so that tests can see that enough did."""
    steps = 30
    net: SessionNetwork

    @initialize(max_colluders=st.sampled_from([1, 2, 2, 0]), data=st.data())
    def begin(self, max_colluders: int, data: Any) -> None:
        terms = data.draw(st.sampled_from(terms_with(max_colluders)), label="terms")
        sources = [index for index in range(terms.n + 1) if index != 1]
        count = data.draw(st.sampled_from([max_colluders, max_colluders, 0]))
        lying = data.draw(st.sets(st.sampled_from(sources), min_size=count, max_size=count), label="liars")
        self.loses, self.bends = data.draw(st.sampled_from([(False, False), (True, False), (True, True)]))
        self.net = SessionNetwork(terms, lying, self.events)
        self.lies: list[UnderWay] = []

    def teardown(self) -> None:
        if not hasattr(self, "net"):
            return
        try:
            if sys.exception() is None:
                self.net.finish()
        finally:
            self.net.close()

    # What any network does: messages of one channel stay in order, and any other order is drawn.

    @rule(data=st.data(), waves=st.integers(1, 3))
    def messages_arrive(self, data: Any, waves: int) -> None:
        order = data.draw(st.permutations(self.net.indices))
        for _ in range(waves):
            self.net.wave(order)

    @rule(data=st.data())
    def messages_of_some_arrive(self, data: Any) -> None:
        self.net.wave(data.draw(st.lists(st.sampled_from(self.net.indices), unique=True, min_size=1)))

    @rule(kind=st.sampled_from(KINDS))
    def a_phase_is_reached(self, kind: type) -> None:
        for _ in range(PATIENCE):
            if any(isinstance(body, kind) for queue in self.net.up.values() for body in _bodies(queue)):
                return
            self.net.wave(self.net.indices)

    # What a bad one does.

    def _channel(self, draw: Draw, least: int = 1) -> tuple[int, bool] | None:
        """A channel on which that many messages are under way: the source, and whether they go upwards."""
        net = self.net
        both = ((True, net.up), (False, net.down))
        busy = [(index, upwards) for upwards, queues in both for index in net.indices if len(queues[index]) >= least]
        return draw(st.sampled_from(busy)) if busy else None

    def _queue(self, channel: tuple[int, bool]) -> deque[UnderWay]:
        return (self.net.up if channel[1] else self.net.down)[channel[0]]

    @precondition(lambda self: self.loses)
    @rule(data=st.data(), what=st.sampled_from(["message", "connection", "deadline", "patience of a source"]))
    def network_loses(self, data: Any, what: str) -> None:
        net, index = self.net, data.draw(st.sampled_from(self.net.indices))
        net.quiet = False
        if what == "message":
            if channel := self._channel(data.draw):
                self._lose_first(self._queue(channel))
        elif what == "connection":
            self._break(index, data.draw(st.sampled_from(["stays away", "comes back", "is restarted"])))
        elif what == "deadline":
            net.expire()
        else:
            net.at_source(index, net.sources[index].expire)

    def _lose_first(self, queue: deque[UnderWay]) -> None:
        """A message is lost. What its site sent with it is lost too: TLS leaves out nothing that more follows."""
        first, *following = _bodies(queue)
        queue.popleft()
        if isinstance(first, Checkpoint) and following and isinstance(following[0], Cosigned):
            queue.popleft()

    def _break(self, index: int, then: str) -> None:
        net = self.net
        net.up[index].clear()
        net.down[index].clear()
        net.at_target(lambda: net.run.left(index))
        if then == "comes back":
            net.at_target(lambda: net.run.returned(index))
        elif then == "is restarted":
            net.at_source(index, net.sources[index].restart)

    @precondition(lambda self: self.bends)
    @rule(data=st.data(), what=st.sampled_from(["repeats", "reorders", "replays", "alters", "alters a vector"]))
    def network_bends(self, data: Any, what: str) -> None:
        """It does on one channel what TLS rules out."""
        channel = self._channel(data.draw, 2 if what == "reorders" else 1)
        if what == "replays":
            channel = data.draw(st.tuples(st.sampled_from(self.net.indices), st.booleans()))
        if channel is None:
            return
        self.net.bent.add(channel[0])
        self.net.quiet = False
        queue = self._queue(channel)
        match what:
            case "repeats":
                queue.append(queue[0])
            case "reorders":
                queue.rotate(-1)
            case "replays":
                earlier = [message for message in self.net.sent if message.sender == channel[0] or not channel[1]]
                place, again = data.draw(st.sampled_from([0, len(queue)])), data.draw(st.sampled_from(earlier))
                sender, to = (channel[0], TARGET) if channel[1] else (TARGET, channel[0])
                queue.insert(place, replace(again, sender=sender, to=to))
            case _:
                place = data.draw(st.integers(0, 2**14))
                queue[0] = _altered(queue[0], place, in_vector=what == "alters a vector")

    # What liars do.

    def _of_liars(self, *kinds: type) -> list[tuple[int, int]]:
        """Places of honest messages of some kinds that are under way from liars."""
        return [
            (index, place)
            for index in self.net.liars
            for place, body in enumerate(_bodies(self.net.up[index]))
            if isinstance(body, kinds) and self.net.up[index][place] not in self.lies
        ]

    def _scene(self, at: tuple[int, int], draw: Draw) -> Scene:
        honest = self.net.up[at[0]][at[1]].read().parcel
        # Not what is still under way: nobody copies a message before it has arrived.
        return Scene(self.net.liars[at[0]], honest, self.net.arrived[-40:], draw)

    def _tell(self, at: tuple[int, int], parcel: Parcel) -> None:
        self.net.quiet = False
        self.events[f"lie in {parcel.message.type_name}"] += 1
        lie = UnderWay.of(at[0], TARGET, parcel)
        self.net.up[at[0]][at[1]] = lie
        self.net.sent.append(lie)
        self.lies.append(lie)

    def _lie(self, draw: Draw, kinds: tuple[type, ...] = KINDS) -> None:
        kind, contents = draw(st.sampled_from(kinds)), draw(st.integers(0, 5)) > 0
        for _ in range(PATIENCE):
            if places := self._of_liars(kind):
                at = draw(st.sampled_from(places))
                self._tell(at, (LIES[kind.__name__] if contents else outside)(self._scene(at, draw)))
                return
            self.net.wave(self.net.indices)

    @precondition(lambda self: self.net.liars)
    @rule(data=st.data())
    def liar_lies(self, data: Any) -> None:
        """A liar lies in its next message of a kind, which is waited for."""
        self._lie(data.draw)

    @precondition(lambda self: self.net.liars)
    @rule(data=st.data())
    def liar_lies_again(self, data: Any) -> None:
        """Another rule, for more lies."""
        self._lie(data.draw)

    @precondition(lambda self: self.net.liars)
    @rule(data=st.data())
    def liar_lies_about_logs(self, data: Any) -> None:
        """A liar shows another log than its own, or cosigns something else than the aggregator's."""
        self._lie(data.draw, OF_LOGS)

    @precondition(lambda self: self.net.liars)
    @rule(data=st.data())
    def liar_speaks_twice(self, data: Any) -> None:
        if places := self._of_liars(*KINDS):
            index, place = data.draw(st.sampled_from(places))
            self.net.up[index].append(self.net.up[index][place])
            self.net.quiet = False

    @precondition(lambda self: len(self.net.liars) > 1)
    @rule(data=st.data())
    def two_liars_balance_wrong_shares(self, data: Any) -> None:
        """Two send wrong shares of one secret, whose errors cancel where the t lowest shares are used."""
        for _ in range(PATIENCE):
            if len(places := self._of_liars(Unmask)) > 1:
                break
            self.net.wave(self.net.indices)
        asked = sorted(getattr(self.net.attempt and self.net.attempt._state, "asked", ()))
        threshold = self.net.terms.threshold
        pair = [at for at in places if at[0] in asked[:threshold]][:2]
        if len(pair) < 2:
            return
        owner = data.draw(st.sampled_from(asked))
        for at, amount in zip(pair, balanced(asked, threshold, pair[0][0], pair[1][0]), strict=True):
            scene = self._scene(at, data.draw)
            shares = tuple(
                off_by(amount)(share) if share.owner == owner else share for share in scene.message.body.shares
            )
            self._tell(at, scene.with_body(Unmask(shares)))


def _bodies(queue: deque[UnderWay]) -> list[object]:
    """What is under way, None where a message is altered beyond reading."""
    return [passed and passed.message.body for passed in map(received, queue)]


def _altered(message: UnderWay, place: int, *, in_vector: bool) -> UnderWay:
    if in_vector and message.vectors:
        return replace(message, vectors=(_flipped(message.vectors[0], place), *message.vectors[1:]))
    return replace(message, data=_flipped(message.data, place))


def _flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place // 8 % len(data)] ^= 1 << place % 8
    return bytes(changed)
