"""Claims: faults that signed messages prove to a reader who has only the messages and the roster. Pure.

A claim names messages that no honest site can have signed, whatever all other sites do. All of them carry the
accused's own signature, and that signature binds them to one another. Values that another site chose bind nothing: the
target chooses session ids, run ids, rounds, headers and key lists, and a source remembers them for each run folder
only. In two folders an honest source does sign two messages with one session id.

Messages of a *target* are bound because it draws each session id itself, at random, and records an attempt before the
header leaves. So two headers of one attempt, or two lists in one session, contradict each other. A header counts only
under the roster that the reader trusts and in the run of the claim, since its checkpoint is checked against those.

Messages of a *source* are bound by their context. From R1 on it is a digest over the header (and with it roster, run,
round and attempt), the key list and the members. The list holds the source's own fresh keys; otherwise the source does
not continue (``KEY_OWN``). So each context belongs to one session of one process, which signs every type once. Two
messages with one context therefore have one roster, run, round and header; their session id says which.

A site counts as honest only if it keeps its audit log and, for a target, never restores an old state. A site that
starts its log of a run again has signed two logs, and a target that was restored has signed two histories of a run. The
signatures do not show whether that was on purpose.

Evidence cannot show the following, so they are no claims:

- Two ``Advertise`` or two ``Update`` under one header. Their context is the header's digest alone, which the target can
  show a source again in another folder: it makes new keys there, and trains again.
- Two releases of one round in different sessions, or in different views of one. The target can name an old run, or show
  another list, to a source in another folder. A source that signs two views in one process looks the same.
- That a message was never sent. Showing it would take every message that the site has signed.

A fault that shows only in a log, such as a missing record or a wrong epsilon, is no claim either: there the log itself
is the evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from securefda.audit.reconcile.run_transcript import Members
from securefda.audit.signed_notes import Checkpoint, Note, NoteError, NoteKey
from securefda.audit.statements import (
    BROADCAST,
    ONCE_IN_A_VIEW,
    HeaderSaid,
    Statement,
    SurvivorsSaid,
)
from securefda.protocol import messages as m
from securefda.protocol.graph import graph_fault

_Item = TypeVar("_Item")


class NotProved(Exception):
    """The messages do not prove the claim. The text says why."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An accusation with its evidence.

    Attributes:
        kind: one of `PROOFS`.
        accused: site id.
        messages: signed messages, in the order that the kind requires, see `prove`.
        notes: the checkpoints of a forked log.
    """

    kind: str
    accused: str
    messages: tuple[Statement, ...] = ()
    notes: tuple[bytes, ...] = ()


def prove(claim: Claim, members: Members) -> str:
    """Check a claim from its evidence alone, and return in one line what it proves.

    Each kind has its messages in a fixed order. An equivocation and a double release have the two messages. A threshold
    has the header and, if the survivors are too few, their list. A broken chain has the result, the header of its
    session, the header that should continue it, and, if that header continues an older result, this result and the
    header of its session. A bad checkpoint has the header. A forked log has two notes instead.

    Raises NotProved if the evidence does not prove the claim.
    """
    proof = PROOFS.get(claim.kind)
    if proof is None:
        raise NotProved(f"no claim is called {claim.kind[:40]!r}")
    if claim.accused not in members.keys:
        raise NotProved("the accused is not in the roster")
    for message in claim.messages:
        _require(message.valid, f"the signature of {message.sender} under a {message.type} is wrong")
    return proof(claim, members)


def same_view(message: Statement, other: Statement) -> bool:
    """Return whether two messages of a source belong to one view of a session: same header, key list and members."""
    return message.session == other.session != "" and message.context == other.context != ""


def _equivocation(claim: Claim, members: Members) -> str:
    message, other = _two_of_one_type(claim)
    if claim.accused != members.target:
        return _twice_in_a_view(message, other)
    terms, other_terms = message.said, other.said
    if isinstance(terms, HeaderSaid) and isinstance(other_terms, HeaderSaid) and message.session != other.session:
        _require_of_run(terms, members)
        _require_of_run(other_terms, members)
        _require(terms.place == other_terms.place, "the two headers are of different attempts")
        return f"{claim.accused} signed two headers of round {terms.round}, attempt {terms.attempt}"
    _require(message.type in BROADCAST, f"several messages of type {message.type} are allowed")
    _require(message.session == other.session != "", "the two messages are not of one session")
    return f"{claim.accused} signed two different messages of type {message.type} in session {message.session[:12]}"


def _double_release(claim: Claim, members: Members) -> str:
    _require(len(claim.messages) == 2, "releases in different sessions prove nothing, whatever comes with them")
    message, other = _two_of_one_type(claim)
    _require(claim.accused != members.target and message.type == "MaskedInput", "they are no masked inputs of a source")
    return _twice_in_a_view(message, other)


def _two_of_one_type(claim: Claim) -> tuple[Statement, Statement]:
    message, other = _exactly(claim.messages, 2)
    _require(message.sender == other.sender == claim.accused, "the accused has not signed both messages")
    _require(
        message.type == other.type and message.digest != other.digest, "it is no pair of different messages of one type"
    )
    return message, other


def _twice_in_a_view(message: Statement, other: Statement) -> str:
    can_be_two = f"an honest source can have signed two messages of type {message.type} under one header"
    _require(message.type in ONCE_IN_A_VIEW, can_be_two)
    _require(same_view(message, other), "the two messages are of different views, which others chose")
    return (
        f"{message.sender} signed two different messages of type {message.type} in session {message.session[:12]}, "
        "under one header, key list and set of members"
    )


def _threshold(claim: Claim, members: Members) -> str:
    header, *lists = claim.messages
    terms = _header(header, claim, members)
    if not lists:
        fault = header_fault(terms)
    else:
        (survivors,) = _exactly(tuple(lists), 1)
        _require(isinstance(survivors.said, SurvivorsSaid), "the second message is no list of survivors")
        _require(survivors.sender == claim.accused, "the accused has not signed the list")
        _require(survivors.session == header.session != "", "the list is not of the header's session")
        fault = survivors_fault(terms, survivors.said)  # type: ignore[arg-type]
    _require(bool(fault), "the numbers are sound")
    return f"{claim.accused} signed, in round {terms.round}: {fault}"


def _broken_chain(claim: Claim, members: Members) -> str:
    _require(len(claim.messages) in (3, 5), "a result, its header and the next header are needed")
    result, before, header, *older = claim.messages
    model, first = _result_of(result, before, claim, members)
    following = _header(header, claim, members)
    _require(following.place > first.place, "the header is of no later attempt than the result")
    where = (
        f"the header of round {following.round} and the result of round {first.round}, both signed by {claim.accused}"
    )
    if following.round == first.round:
        return f"{where}: another attempt after the result"
    if following.previous_result == result.digest:
        _require(following.model != model, "the header continues the result")
        return f"{where}: another model than that of the result"
    if following.previous_result == "" or following.round == first.round + 1:
        return f"{where}: the header does not continue the result"
    _require(len(older) == 2, "rounds between them may have had a result")
    _, earlier = _result_of(older[0], older[1], claim, members)
    _require(following.previous_result == older[0].digest, "the header continues another result")
    _require(earlier.round < first.round, "the other result is not older")
    return f"{where}: the header continues the result of round {earlier.round}"


def _result_of(result: Statement, header: Statement, claim: Claim, members: Members) -> tuple[str, HeaderSaid]:
    terms = _header(header, claim, members)
    if not isinstance(result.said, m.Result) or result.sender != claim.accused:
        raise NotProved("there is no result that the accused has signed")
    _require(result.context == header.digest and result.session == header.session, "the result is of another header")
    return result.said.model_digest.hex(), terms


def _bad_checkpoint(claim: Claim, members: Members) -> str:
    (header,) = _exactly(claim.messages, 1)
    terms = _header(header, claim, members)
    fault = checkpoint_fault(terms, members)
    _require(bool(fault), "the checkpoint in the header is sound")
    return f"{claim.accused} signed the header of round {terms.round}, attempt {terms.attempt}: {fault}"


def _forked_log(claim: Claim, members: Members) -> str:
    head, other = (_signed_head(note, claim.accused, members)[0] for note in _exactly(claim.notes, 2))
    _require(head.size == other.size and head.root != other.root, "the two checkpoints can be of one log")
    return f"{claim.accused} signed two checkpoints of {head.size} records of its log of this run with different roots"


PROOFS: Final[Mapping[str, Callable[[Claim, Members], str]]] = {
    # a target signed two headers of one attempt or in one session, or two lists or results in one session; or a source
    # signed two different messages of one type in one view of a session.
    "equivocation": _equivocation,
    "double-release": _double_release,  # two masked inputs of one source in one view of a session.
    "threshold": _threshold,  # an unsound threshold in a header, or fewer survivors than it allows.
    "broken-chain": _broken_chain,  # a header that does not continue the last result.
    # a header without a checkpoint of the target's log that enough others have cosigned.
    "bad-checkpoint": _bad_checkpoint,
    "forked-log": _forked_log,  # two checkpoints of one size with different roots.
}
"""Each kind of claim, and what checks it."""


def header_fault(header: HeaderSaid) -> str:
    """Return in words why a header's numbers are unsound under any policy; empty if they are sound.

    The rule is ``securefda.protocol.header_checks.threshold_is_sound`` without colluders. Policies may require more.
    """
    n, t = header.masked, header.threshold
    if n and not (2 * t > n and 0 < t <= n):
        return f"a threshold of {t} for {n} sources, where two disjoint sets could both open sums"
    counts = {level: list(header.levels.values()).count(level) for level in ("sum", "cohort")}
    for level, quorum in (("sum", header.sum_quorum), ("cohort", header.cohort_quorum)):
        if counts[level] and quorum < 2:
            return f"a sum at {level} that opens over {quorum}"
    fault = graph_fault(header.graph, n, t) if header.graph is not None else None
    return f"a graph under which a part of the sources could be summed alone: {fault}" if fault else ""


def survivors_fault(header: HeaderSaid, lists: SurvivorsSaid) -> str:
    """Return in words what is wrong with a list of survivors under its header; empty if nothing is."""
    alive, everyone = set(lists.survivors), {*lists.survivors, *lists.dropped}
    if len(everyone) != len(lists.survivors) + len(lists.dropped):
        return "a source that is listed twice among survivors and dropped"
    if any(header.levels.get(site, "individual") == "individual" for site in everyone):
        return "survivors or dropped that are not in the masking session"
    if len(alive) < header.threshold:
        return f"{len(alive)} survivors of at least {header.threshold}"
    for level, quorum in (("sum", header.sum_quorum), ("cohort", header.cohort_quorum)):
        count = sum(header.levels[site] == level for site in alive)
        if 0 < count < quorum:
            return f"{count} survivors at {level}, where sums open over {quorum}"
    return ""


def checkpoint_fault(header: HeaderSaid, members: Members) -> str:
    """Return in words what is wrong with the checkpoint in a header; empty if nothing is.

    It must belong to the target's log of this run, signed by the target and cosigned by as many others as the header's
    threshold requires.
    """
    if not header.previous_checkpoint:
        return "no checkpoint of the target's log in it"
    witnesses = members.log_of(members.target).witness_keys(members.keys)
    try:
        _, signers = _signed_head(header.previous_checkpoint, members.target, members, tuple(witnesses))
    except NotProved as error:
        return f"the checkpoint in it: {error}"
    cosigned = len({witnesses[key] for key in signers if key in witnesses})
    if cosigned < header.threshold:
        return f"{cosigned} of {header.threshold} cosignatures under the checkpoint in it"
    return ""


def _signed_head(
    data: bytes, party: str, members: Members, witnesses: tuple[NoteKey, ...] = ()
) -> tuple[Checkpoint, tuple[NoteKey, ...]]:
    """Return a checkpoint that a party signed of its log, and which of these keys signed it too. Raises NotProved."""
    own = members.log_key(party)
    try:
        note = Note.parse(data)
        head = Checkpoint.parse(note.text)
        _require(head.origin == own.name, f"it is not of the log of {party} in this run")
        signers = note.check([own, *witnesses])
    except NoteError as error:
        raise NotProved(str(error)) from error
    _require(own in signers, f"{party} has not signed it")
    return head, signers


def _header(statement: Statement, claim: Claim, members: Members) -> HeaderSaid:
    terms = statement.said
    if not isinstance(terms, HeaderSaid) or statement.sender != claim.accused:
        raise NotProved("there is no header that the accused has signed")
    _require(claim.accused == members.target, "headers are the target's")
    _require_of_run(terms, members)
    return terms


def _require_of_run(header: HeaderSaid, members: Members) -> None:
    """Raise NotProved unless a header itself names this run and roster; those that its accuser names do not count."""
    _require(is_of_run(header, members), "a header is of another run, or of another roster")


def is_of_run(header: HeaderSaid, members: Members) -> bool:
    """Return whether a header names this run and the very roster under which it is read."""
    return header.run == members.run and header.roster == members.roster


def _exactly(items: tuple[_Item, ...], count: int) -> tuple[_Item, ...]:
    if len(items) != count:
        raise NotProved(f"{count} pieces of evidence are needed, not {len(items)}")
    return items


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise NotProved(why)
