"""T39: attackers who make honest sites sign chosen messages, and offer all of them as evidence against these sites."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from pathlib import Path
from random import Random

from securefda.aggregator.headers import AttemptPosition
from securefda.audit import signed_notes
from securefda.audit.kept import KeptMessages
from securefda.audit.log import AuditLog
from securefda.audit.log_records import Entry, encode_record, format_time
from securefda.audit.merkle import leaf_hash
from securefda.audit.reconcile.claims import PROOFS, Claim, NotProved, prove
from securefda.audit.reconcile.run_transcript import Members
from securefda.audit.signed_notes import LogName, Note, Signature
from securefda.audit.statements import HeaderSaid, Statement, StatementReader
from securefda.audit.witness import CheckpointError
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    RUN_ID_BYTES,
    SESSION_ID_BYTES,
    Checkpoint,
    Cosigned,
    Header,
    Join,
    KeyList,
    Parcel,
    Send,
    ShareDelivery,
)
from securefda.protocol.roster import Roster
from securefda.source.source_run import SourceReporter, SourceSite
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.heard import Heard, View
from threat_model.adversaries.sources import MaliciousSource
from threat_model.sites import NOON, TARGET, AggregatorSeat, published_key, site_id_of


@dataclass
class Opened:
    """One opening of a session: its header, and what each source was sent with it."""

    header: Header
    session_id: bytes
    parcels: dict[int, Parcel]


@dataclass
class Hoard:
    """What the attackers keep between plays, in each of which the victims have new run folders.

    Attributes:
        draws: decides what they choose.
        reuses: how likely they choose a run, a session id or a header that they chose before.
        runs, session_ids: that they have chosen.
        opened: sessions by run.
        cosignatures: of the one checkpoint that they show in a run, by run and roster index.
        sent: what they have sent to each source.
        said: every message that has left a site, honest or not, once and in order.
    """

    draws: Random
    reuses: float = 0.7
    runs: list[bytes] = field(default_factory=list)
    session_ids: list[bytes] = field(default_factory=list)
    opened: dict[bytes, list[Opened]] = field(default_factory=dict)
    cosignatures: dict[bytes, dict[int, Signature]] = field(default_factory=dict)
    sent: dict[int, list[Parcel]] = field(default_factory=dict)
    said: dict[bytes, None] = field(default_factory=dict)

    def chance(self, probability: float) -> bool:
        """Draw whether to do something this time."""
        return self.draws.random() < probability

    def chosen(self, before: list[bytes], length: int) -> bytes:
        """Return one that was chosen before, or a new one."""
        if before and self.chance(self.reuses):
            return self.draws.choice(before)
        before.append(self.draws.randbytes(length))
        return before[-1]


class Framer(MaliciousAggregator):
    """Names old runs to sources in new folders, reuses session ids and headers, and shows arbitrary lists.

    Powers: the target's key and the relay, over several runs whose folders the sources' operators made one after the
    other. It sees when a source's process ends, and hears nothing of what a source remembers.
    Goal: two messages of one honest source that look as if an honest one would have signed but one of them.
    Source: the accuracy that accountable systems need, that no correct node is ever exposed (Haeberlen, Kouznetsov and
    Druschel 2007, PeerReview).

    Args:
        seat: of the target.
        hoard: what is kept from play to play.
        sessions: how many it opens.
        lies: whether it lies within sessions; else it follows the protocol there.
    """

    threat = "T39"

    def __init__(self, seat: AggregatorSeat, *, hoard: Hoard, sessions: int = 2, lies: bool = True) -> None:
        site = replace(seat.site, random_bytes=self._random_bytes)
        self.hoard, self._most, self._lies = hoard, sessions, lies
        super().__init__(replace(seat, site=site))
        self.cosigning: set[int] = set()
        self._parcels: dict[int, Parcel] = {}
        self._without: dict[type, int | None] = {}

    def _random_bytes(self, length: int) -> bytes:
        """Return a run id or a session id, perhaps one used before."""
        hoard = self.hoard
        before = {RUN_ID_BYTES: hoard.runs, SESSION_ID_BYTES: hoard.session_ids}.get(length)
        return hoard.draws.randbytes(length) if before is None else hoard.chosen(before, length)

    def _tempted(self, probability: float) -> bool:
        return self._lies and self.hoard.chance(probability)

    def next_place(self) -> AttemptPosition | None:
        """Return the next round, or the last one again, which honest sources refuse."""
        if len(self.sessions) >= self._most:
            return None
        previous = self.last_result.digest() if self.last_result else b""
        number, attempt = (self.heard.header.round, self.heard.header.attempt) if self.sessions else (0, 1)
        if self.sessions and self._tempted(0.2):
            return AttemptPosition(self.run, number, attempt + 1, previous)
        return AttemptPosition(self.run, number + 1, 1, previous)

    def header_for(self, index: int) -> Header | None:
        """Return a header with the one checkpoint of this run; sometimes not the same for all."""
        header = super().header_for(index)
        if header is None:
            return None
        n_max = header.n_max + (index % 2 if self._tempted(0.05) else 0)
        return replace(header, previous_checkpoint=self._note().to_bytes(), n_max=n_max)

    def key_list_for(self, index: int) -> KeyList | None:
        """Return the keys, sometimes without one of the sources in this session."""
        body = super().key_list_for(index)
        out = self._left_out(KeyList, index)
        return body and KeyList(tuple(item for item in body.advertisements if item.sender != out))

    def delivery_for(self, index: int) -> ShareDelivery | None:
        """Return the boxes, sometimes without those of one of the sources."""
        body = super().delivery_for(index)
        out = self._left_out(ShareDelivery, index)
        return body and ShareDelivery(tuple(box for box in body.boxes if box.peer != out))

    def _left_out(self, kind: type, index: int) -> int | None:
        if kind not in self._without:
            out = self.hoard.draws.choice(sorted(self.joined))
            self._without[kind] = out if self._tempted(0.3) else None
        return None if self._without[kind] == index else self._without[kind]

    def outgoing(self, index: int, parcel: Parcel) -> list[Parcel]:
        """Return the message, sometimes with an earlier one as well."""
        if isinstance(parcel.message.body, Header):
            self._parcels[index] = parcel
        before = self.hoard.sent.setdefault(index, [])
        again = [self.hoard.draws.choice(before)] if before and self._tempted(0.03) else []
        before.append(parcel)
        return [parcel, *again]

    def ready(self) -> bool:
        """Return whether all sources have joined and cosigned."""
        return not self.sessions and set(self.joined) == self.seat.site.sources == self.cosigning

    def receive(self, parcel: Parcel) -> list[Send]:
        """Receive as usual, except that each run always shows the checkpoint of its first record."""
        body, sender = parcel.message.body, parcel.message.sender
        if isinstance(body, Join):
            self.joined[sender] = body.visibility
            self.with_metrics |= {sender} if body.metrics else set()
            bare = Note(self._text, self._note().signatures[:1]).to_bytes()
            shown = Checkpoint(bare, 0, (), self.witness.known_of(sender))
            return [Send(sender, Parcel(self.signer.sign(NO_SESSION, NO_CONTEXT, shown)))]
        if isinstance(body, Cosigned):
            self.hoard.cosignatures.setdefault(self.run, {})[sender] = Signature.parse(body.signature)
            self.cosigning.add(sender)
            return self._begin() if self.ready() else []
        if isinstance(body, Checkpoint):
            try:
                answer = self.witness.cosign(sender, body)
            except CheckpointError:
                return []
            return [] if answer is None else [Send(sender, answer)]
        return super().receive(parcel)

    @property
    def _text(self) -> str:
        origin = self.witness.journal.name_of(TARGET).origin
        first = encode_record(0, format_time(NOON), site_id_of(TARGET), self.run_id, _first_record(self.roster))
        return signed_notes.Checkpoint(origin, 1, leaf_hash(first)).to_text()

    def _note(self) -> Note:
        own = signed_notes.sign(self._text, self.witness.journal.name_of(TARGET).origin, self.signer.private_key)
        signed = self.hoard.cosignatures.get(self.run, {})
        return Note(self._text, (own, *(signed[index] for index in sorted(signed))))

    def _begin(self) -> list[Send]:
        """Open a session, or one of this run again, word for word."""
        self._without, self._parcels = {}, {}
        before = self.hoard.opened.setdefault(self.run, [])
        if before and not self.sessions and self.hoard.chance(self.hoard.reuses):
            return self._open_again(self.hoard.draws.choice(before))
        sends = super()._begin()
        if self._parcels:
            before.append(Opened(self.heard.header, self.heard.session_id, dict(self._parcels)))
        return sends

    def _open_again(self, opened: Opened) -> list[Send]:
        self.sessions.append(Heard(opened.header, opened.session_id))
        self._waits_for = next(iter(self._steps())) if opened.header.masked else list(self._steps())[-1]
        for index, parcel in opened.parcels.items():
            self.heard.views[index] = View(index, parcel.message)  # type: ignore[arg-type]  # headers all
        return [send for index, parcel in opened.parcels.items() for send in self._tell(index, parcel)] + self._go_on()


class SessionAgain(MaliciousAggregator):
    """Follows the protocol through one round, in a session whose id it has used before.

    Powers: the target's key, over several runs whose folders the sources' operators made one after the other.
    Goal and source: as :class:`Framer`.

    Args:
        seat: of the target.
        session_id: of its one session.
    """

    threat = "T39"

    def __init__(self, seat: AggregatorSeat, *, session_id: bytes) -> None:
        honest = seat.site.random_bytes
        site = replace(
            seat.site, random_bytes=lambda length: session_id if length == SESSION_ID_BYTES else honest(length)
        )
        super().__init__(replace(seat, site=site))

    def next_place(self) -> AttemptPosition | None:
        """Return the first round only."""
        return None if self.sessions else super().next_place()


class Mixer(MaliciousSource):
    """A source that repeats old messages in other sessions and runs, and sends messages twice with changes.

    Powers: the key of its site, over several runs.
    Goal: two messages of an honest target that it should have signed but one of, or a record of one.
    Source: as :class:`Framer`.
    """

    threat = "T39"

    def __init__(self, site: SourceSite, reporter: SourceReporter, *, hoard: Hoard) -> None:
        super().__init__(site, reporter)
        self.hoard = hoard

    def answers(self, parcel: Parcel, honest: list[Parcel]) -> list[Parcel]:  # noqa: ARG002 - of a source that lies
        """Return the honest answers, sometimes twice, not at all, or with an earlier one."""
        before = self.hoard.sent.setdefault(self.signer.index, [])
        sends = [] if self.hoard.chance(0.02) else [*honest]
        sends += honest if self.hoard.chance(0.05) else []
        sends += [self.hoard.draws.choice(before)] if before and self.hoard.chance(0.05) else []
        before += honest
        return sends


@dataclass(frozen=True, slots=True)
class Accuser:
    """Offers signed messages of the sites as evidence, in every way that it knows.

    Attributes:
        said: messages, as they were sent.
        rosters: under which it may ask a reader to read them.
        runs: of which it may say that they are.
    """

    said: Collection[bytes]
    rosters: Sequence[Roster]
    runs: Sequence[bytes]

    def proved(self, accused: Collection[str], draws: Random, tuples: int) -> set[tuple[str, str]]:
        """Return the kinds of claims that are proved, with the accused."""
        found: set[tuple[str, str]] = set()
        for roster in self.rosters:
            reader = StatementReader(roster)
            statements = [statement for statement in map(reader.read, self.said) if statement.valid]
            keys = {entry.site_id: entry.signing_key for entry in roster.entries}
            for run in self.runs:
                digest = roster.digest().hex()
                members = Members(roster.federation_id, run.hex(), roster.target.site_id, keys, digest)
                for site in accused:
                    for claim in _claims(site, statements, draws, tuples):
                        if _is_proved(claim, members):
                            found.add((claim.kind, site))
        return found


def _is_proved(claim: Claim, members: Members) -> bool:
    try:
        prove(claim, members)
    except NotProved:
        return False
    return True


def _claims(accused: str, statements: Sequence[Statement], draws: Random, tuples: int) -> Iterator[Claim]:
    own = [statement for statement in statements if statement.sender == accused]
    kinds = sorted(PROOFS)
    for statement in own:
        yield from (Claim(kind, accused, (statement,)) for kind in kinds)
    for pair in combinations(own, 2):
        for kind in ("equivocation", "double-release"):
            yield Claim(kind, accused, pair)
    headers = [statement for statement in own if isinstance(statement.said, HeaderSaid)]
    for header in headers:
        yield from (Claim("threshold", accused, (header, one)) for one in own if one.type == "Survivors")
    of = {header.digest: header for header in headers}
    results = [one for one in own if one.type == "Result" and one.context in of]
    for result in results:
        for header in headers:
            chain = (result, of[result.context], header)
            yield Claim("broken-chain", accused, chain)
            yield from (Claim("broken-chain", accused, (*chain, old, of[old.context])) for old in results)
    shown = _notes_of(own)
    yield from (Claim("forked-log", accused, (), pair) for pair in permutations(shown, 2))
    for _ in range(tuples):  # messages of all, in any number and order
        some = tuple(draws.choices(statements, k=draws.randint(1, 6)))
        first = tuple(draws.choices(own, k=min(2, len(some)))) if own else ()
        held = tuple(draws.choices(shown, k=draws.randint(0, 2))) if shown else ()
        yield Claim(draws.choice(kinds), accused, (*first, *some[len(first) :]), held)


def _notes_of(statements: Iterable[Statement]) -> list[bytes]:
    """Return the checkpoints that messages carry."""
    said = [statement.said for statement in statements]
    shown = {one.note for one in said if isinstance(one, Checkpoint)}
    return sorted(shown | {one.previous_checkpoint for one in said if isinstance(one, HeaderSaid)})


def add_false_records(
    log: LogName, site: int, folder: Path, *, said: Iterable[bytes], roster: Roster, draws: Random
) -> None:
    """Extend a site's log of a run with false records that it sent or received any message ever signed.

    The messages lie beside it as evidence. The log is what its site signed, in order: nothing in it is found by itself.

    Args:
        log: its name.
        site: roster index.
        folder: of the site's logs.
        said: messages as they were sent.
        roster: of the federation.
        draws: decides in which round it says that they were, and with whom.
    """
    reader = StatementReader(roster)
    with AuditLog.open(folder, log, published_key(site), lambda: NOON) as written:
        kept = KeptMessages(folder / log.run)
        if written.size == 0:
            written.append(_first_record(roster))
        for data in said:
            one, number = reader.read(data), draws.randint(1, 2)
            sent = one.sender == log.party
            other = draws.choice([entry.site_id for entry in roster.entries if entry.site_id != log.party])
            written.append(
                Entry(
                    "sent" if sent else "received",
                    one.type,
                    round=number if one.session else 0,
                    attempt=1 if one.session else 0,
                    session=one.session,
                    peer=other if sent else one.sender,
                    bytes=len(data),
                    digest=one.digest,
                )
            )
            kept.keep(data)
        written.append(Entry("event", "run-ended", facts={"outcome": "completed", "rounds": 1}))
        written.checkpoint()
        kept.close()


def _first_record(roster: Roster) -> Entry:
    """Return the first record of every log of the stage."""
    facts = {"release": "1", "task": "task", "strategy": "rule", "roster": roster.digest().hex()}
    return Entry("event", "run-began", facts=facts)
