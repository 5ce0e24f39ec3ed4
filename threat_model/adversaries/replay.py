"""T13: old messages are sent again: in another place, to another receiver, or in another session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from securefda.protocol.messages import Consistency, KeyList, MaskedInput, ShareDelivery, Signed, Survivors, Update
from securefda.transport import wire
from securefda.transport.in_memory import Passed
from threat_model.sites import TARGET, signer_of

Mode = Literal["verbatim", "relabelled", "anew"]

_RELAYED = (KeyList, ShareDelivery, Survivors, Consistency)
"""Messages of the aggregator whose content others have signed: it can replay them under its own signature."""

_INPUTS = (MaskedInput, Update)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A message from before, as it is sent again."""

    mode: Mode
    passed: Passed


class Replay:
    """Keeps every message that passes, and has one at hand for every place.

    Powers: it hears all, of this run and of earlier ones, and can insert what it likes; for ``anew`` it is the target.
    It has no key of a source.
    Goal: that a message counts twice, or for something that its sender did not say.
    Source: the network of Dolev and Yao 1983. Messages are inserted ``"verbatim"``; or ``"relabelled"``, with the
    session and the context of the message that is due and their old signature; or ``"anew"``: what others said, signed
    by the target for the place that is due.

    Args:
        victim: roster index.
        neighbour: another source, whose messages are tried on the victim; what neither sent or got is not kept.
        earlier: what passed in other runs. It is at hand from the victim's first release on: before that its folder has
            no run, and takes a header of any.
    """

    threat = "T13"

    def __init__(self, victim: int, neighbour: int, earlier: Iterable[Passed] = ()) -> None:
        self._victim, self._of = victim, {victim, neighbour}
        self._earlier = list(earlier)
        self._kept: dict[tuple[bytes, bytes], Passed] = {}

    def __call__(self, passed: Passed) -> list[Passed]:
        """Hear a message under way, and let it pass."""
        self._keep(passed)
        if passed.sender == self._victim and isinstance(passed.message.body, _INPUTS):
            while self._earlier:
                self._keep(self._earlier.pop())
        return [passed]

    def _keep(self, passed: Passed) -> None:
        if {passed.sender, passed.to} & self._of:
            self._kept.setdefault((passed.message.signed_bytes, passed.message.signature), passed)

    def replacements(self, due: Signed[Any]) -> Iterator[Replayed]:
        """Yield everything that can be sent in place of a message, except that message."""
        for passed in list(self._kept.values()):
            if passed.message.signed_bytes != due.signed_bytes:
                yield Replayed("verbatim", passed)
            again = relabelled(passed.message, due)
            if again.signed_bytes not in (passed.message.signed_bytes, due.signed_bytes):
                yield Replayed("relabelled", replace(passed, message=again))
            body = passed.message.body
            if isinstance(body, _RELAYED) and type(body) is type(due.body) and body != due.body:
                envelope = due.envelope
                anew = signer_of(TARGET).sign(envelope.session_id, envelope.context, body)
                yield Replayed("anew", replace(passed, message=anew))


def relabelled(message: Signed[Any], like: Signed[Any]) -> Signed[Any]:
    """Return a message with the session and the context of another one, under its old signature."""
    envelope = replace(message.envelope, session_id=like.envelope.session_id, context=like.envelope.context)
    return Signed(envelope, wire.encode(envelope), message.signature)


class SecondCount:
    """A network that sends an input a second time, at once or in place of the next round's.

    Powers: it hears all and can insert; it has no key.
    Goal: a sum in which one input counts twice.
    Source: as :class:`Replay`.

    Args:
        victim: roster index.
        later: in the next round in which the victim sends an input, instead of right behind the first.
        mode: ``"relabelled"`` for the session in which it is to count.
    """

    threat = "T13"

    def __init__(self, victim: int, *, later: bool, mode: Mode) -> None:
        self._victim, self._later, self._mode = victim, later, mode
        self._first: Passed | None = None
        self.inserted = 0

    def __call__(self, passed: Passed) -> list[Passed]:
        """Insert the victim's first input before its second, or directly after itself."""
        if passed.sender != self._victim or not isinstance(passed.message.body, _INPUTS):
            return [passed]
        if self._first is None:
            self._first = passed
            return [passed] if self._later else [passed, self._again(passed)]
        return [self._again(passed), passed] if self._later and not self.inserted else [passed]

    def _again(self, due: Passed) -> Passed:
        self.inserted += 1
        first = self._first or due
        message = relabelled(first.message, due.message) if self._mode == "relabelled" else first.message
        return replace(first, message=message)
