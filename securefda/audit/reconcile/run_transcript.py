"""The members of a run, and the messages that hold it together: headers, lists, results, the end, checkpoints. Pure.

Everything here is what a site kept with a valid signature, whether or not a record speaks of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from securefda.audit.signed_notes import Checkpoint, LogName, Note, NoteError, NoteKey
from securefda.audit.statements import HeaderSaid, Statement, SurvivorsSaid
from securefda.protocol import messages as m


@dataclass(frozen=True, slots=True)
class Members:
    """The sites of a federation in one run.

    ``keys`` has the raw Ed25519 public key of every site, 32 bytes, by site id; the target's too. ``roster`` is the
    SHA-256 of the roster, 64 hex digits. ``ml_dsa`` has the raw ML-DSA-65 public keys of those sites that have one.
    """

    federation: str
    run: str
    target: str
    keys: Mapping[str, bytes]
    roster: str
    ml_dsa: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[str, ...]:
        """Site ids of all but the target, sorted."""
        return tuple(sorted(set(self.keys) - {self.target}))

    def log_of(self, party: str) -> LogName:
        """The name of a site's log."""
        return LogName(self.federation, party, self.run)

    def log_key(self, party: str) -> NoteKey:
        """The key that signs the checkpoints of a site's log. Raises KeyError for a site that is none."""
        return self.log_of(party).key(self.keys[party])


@dataclass(frozen=True, slots=True)
class SignedHeader:
    """A header with what it says."""

    statement: Statement
    said: HeaderSaid


@dataclass(slots=True)
class SignedTranscript:
    """The target's headers, lists, results and goodbyes of one run, and everybody's checkpoints.

    Attributes:
        headers: by session; of several in one session, the first that was met.
        all_headers: every one, by digest.
        survivors: lists by the digest of their message.
        of_type: digests of ``Header``, ``Survivors`` and ``Result`` by type and session; two are an equivocation.
        results: by session.
        goodbyes: by the digest of their message.
        notes: by origin and size, then by root: checkpoints that their party signed.
        ignored: how many messages were of another run, or not the target's to send.
    """

    headers: dict[str, SignedHeader] = field(default_factory=dict)
    all_headers: dict[str, SignedHeader] = field(default_factory=dict)
    survivors: dict[str, SurvivorsSaid] = field(default_factory=dict)
    of_type: dict[tuple[str, str], dict[str, Statement]] = field(default_factory=dict)
    results: dict[str, tuple[Statement, m.Result]] = field(default_factory=dict)
    goodbyes: dict[str, m.Goodbye] = field(default_factory=dict)
    notes: dict[tuple[str, int], dict[str, bytes]] = field(default_factory=dict)
    ignored: int = 0

    def held_of(self, party: str, members: Members) -> list[bytes]:
        """The checkpoints of a party's log that were sent to others, as notes, the smallest first."""
        origin = members.log_of(party).origin
        heads = sorted((size, root) for (name, size), roots in self.notes.items() if name == origin for root in roots)
        return [self.notes[origin, size][root] for size, root in heads]


def read_transcript(statements: Iterable[Statement], members: Members) -> SignedTranscript:
    """Sort what was kept."""
    transcript = SignedTranscript()
    for statement in statements:
        content = statement.said
        if isinstance(content, m.Checkpoint):
            _take_note(transcript, statement.sender, content.note, members)
            continue
        if statement.sender != members.target or (isinstance(content, HeaderSaid) and content.run != members.run):
            transcript.ignored += 1
            continue
        if isinstance(content, m.Goodbye):
            transcript.goodbyes[statement.digest] = content
            continue
        transcript.of_type.setdefault((statement.type, statement.session), {})[statement.digest] = statement
        if isinstance(content, HeaderSaid):
            header = SignedHeader(statement, content)
            transcript.all_headers[statement.digest] = header
            transcript.headers.setdefault(statement.session, header)
            _take_note(transcript, members.target, content.previous_checkpoint, members)
        elif isinstance(content, SurvivorsSaid):
            transcript.survivors[statement.digest] = content
        elif isinstance(content, m.Result):
            transcript.results.setdefault(statement.session, (statement, content))
    return transcript


def _take_note(transcript: SignedTranscript, party: str, data: bytes, members: Members) -> None:
    """Keep a checkpoint if the party signed it, as a checkpoint of its log of this run; else it is no evidence."""
    if party not in members.keys:
        return
    try:
        note = Note.parse(data)
        head = Checkpoint.parse(note.text)
        known = transcript.notes.get((head.origin, head.size), {})
        if head.origin != members.log_of(party).origin or head.root.hex() in known:
            return
        note.check([members.log_key(party)])
    except NoteError:
        return
    bare = note.only_by(members.log_key(party)).to_bytes()
    transcript.notes.setdefault((head.origin, head.size), {}).setdefault(head.root.hex(), bare)
