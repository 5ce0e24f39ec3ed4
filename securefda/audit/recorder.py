"""What passes between this site and others, into its audit log: a record for each message, before it leaves."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from securefda.audit.journal import Journal, place_of
from securefda.audit.kept import MOST_KEPT_BYTES, NOT_KEPT
from securefda.audit.records import Decision, Disclosure, Entry
from securefda.errors import FaultyAggregatorError
from securefda.protocol.messages import (
    NO_SESSION,
    Body,
    Header,
    MaskedInput,
    Refusal,
    Signed,
    Unmask,
    Update,
    Visibility,
)
from securefda.protocol.roster import Roster
from securefda.transport.observer import Direction, MessageObserver, ignore
from securefda.transport.wire import encode_signed

_RELEASES = (MaskedInput, Update, Unmask)
"""On the disk before the first byte leaves, and with them the events that led there; so are headers with g_T."""
_REPEATS = 16
"""The aggregator sends one message to many: of so many different ones it is known that they were kept."""


class MessageRecorder:
    """An observer that writes every message of a site down.

    Args:
        journal: the site's log.
        roster: of the federation.
        own: the site's roster index.
        run: the run whose log is opened with the first message; None where joining opens it.
        then: sees each message after it was written down.
    """

    def __init__(
        self, journal: Journal, roster: Roster, own: int, *, run: str | None = None, then: MessageObserver = ignore
    ) -> None:
        self._journal, self._roster, self._own, self._run, self._then = journal, roster, own, run, then
        self._last_header: Signed[Header] | None = None
        self._kept: deque[str] = deque(maxlen=_REPEATS)
        self._kept_bytes: Counter[int] = Counter()
        self._attempts = 0
        self._unforced = False
        """Whether a release was written down that is not on the disk yet."""

    def __call__(
        self, direction: Direction, peer: int, message: Signed[Body], wire_bytes: int, *, more: bool = False
    ) -> None:
        """Write a message down.

        Raises:
            AuditError: it cannot be written; the message neither leaves nor is handed up.
            FaultyAggregatorError: a message came before this site had joined.
        """
        if self._run is not None:
            self._journal.begin(self._run)
        elif not self._journal.run:
            raise FaultyAggregatorError("ORDER", f"{message.type_name} before this site has joined")
        sent = direction is Direction.SENT
        entry = self._entry(sent, peer, message, wire_bytes)
        self._unforced = self._unforced or (sent and _is_release(message.body))
        self._journal.append(entry, durable=self._unforced and not more)
        self._unforced = self._unforced and more
        if message.type_name not in NOT_KEPT and entry.digest not in self._kept:
            self._keep(sent, peer, message, entry)
        self._then(direction, peer, message, wire_bytes, more=more)

    def _entry(self, sent: bool, peer: int, message: Signed[Body], wire_bytes: int) -> Entry:
        header = self._header_of(message)
        round_number, attempt, session = place_of(header)
        if header is None and message.envelope.session_id != NO_SESSION:
            session = message.envelope.session_id.hex()
        return Entry(
            "sent" if sent else "received",
            message.type_name,
            round=round_number,
            attempt=attempt,
            session=session,
            peer=self._roster.by_index(peer).site_id,
            bytes=wire_bytes,
            digest=message.digest().hex(),
            decision=_decision(message.body) if sent else None,
            disclosure=disclosure_of(message, header, self._own, peer) if sent else None,
        )

    def _header_of(self, message: Signed[Any]) -> Signed[Header] | None:
        """The header of the message's attempt, as this site took it.

        A header says its own place, whether or not that is true; a refusal has the place of the header that it answers.
        Whatever else comes belongs to an attempt that this site is in, or to none.
        """
        if isinstance(message.body, Header) and message.sender == self._roster.target.index:
            self._last_header = message
            return message
        last = self._last_header
        if isinstance(message.body, Refusal) and last is not None and last.digest() == message.envelope.context:
            return last
        return self._journal.attempt_of(message.envelope.session_id)

    def _keep(self, sent: bool, peer: int, message: Signed[Body], entry: Entry) -> None:
        """Keep a message as evidence, or write down why not.

        What its sender did not sign is no evidence. Of what others send there is a bound for each attempt,
        so that no site can fill this site's disk with evidence.
        """
        if self._attempts != self._journal.attempts:
            self._attempts = self._journal.attempts
            self._kept_bytes.clear()
        if not sent:
            if message.sender != peer or not message.verify(self._roster.by_index(peer).signing_key):
                self._journal.not_kept(entry, "SIGNATURE")
                return
            self._kept_bytes[peer] += len(message.signed_bytes)
            if self._kept_bytes[peer] > MOST_KEPT_BYTES:
                self._journal.not_kept(entry, "BOUND")
                return
        self._kept.append(entry.digest)
        self._journal.keep(encode_signed(message))


def disclosure_of(message: Signed[Any], header: Signed[Header] | None, own: int, peer: int) -> Disclosure | None:
    """What site ``peer`` learns by a message of site ``own``; None where that is nothing of its rows or its model."""
    body = message.body
    if isinstance(body, Header):
        with_update = _has_update(body) and peer in body.at(Visibility.SUM)
        return Disclosure("individual", "model-and-target-update" if with_update else "model", 1)
    if isinstance(body, Update):
        return Disclosure("individual", "update", 1)
    if isinstance(body, MaskedInput) and header is not None:
        level = header.body.level_of(own)
        return Disclosure(level.label, "update", fewest_in_sum(header.body, level))
    return None


def fewest_in_sum(header: Header, level: Visibility) -> int:
    """Of how many sources a sum at this level is, at the least."""
    return header.cohort_quorum if level is Visibility.COHORT else header.sum_quorum


def _is_release(body: Body) -> bool:
    return isinstance(body, _RELEASES) or (isinstance(body, Header) and _has_update(body))


def _has_update(header: Header) -> bool:
    """Whether g_T goes with the header, to those at ``sum``."""
    return header.target is not None and bool(header.target.update_digest)


def _decision(body: Body) -> Decision | None:
    if isinstance(body, Update | MaskedInput):
        return Decision("allowed", "max-visibility")
    if isinstance(body, Refusal):
        return Decision("refused", body.key if body.key == body.key.lower() else "")
    return None
