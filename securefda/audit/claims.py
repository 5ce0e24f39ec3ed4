"""What signed messages prove against their signer, to somebody who has only them and the roster. Pure.

A claim holds where the messages alone show that the accused did what no honest site does. What shows only beside a log,
a record that is missing or an epsilon that is wrong, is no claim: there the log itself is the evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, get_args

from securefda.audit.members import Members
from securefda.audit.notes import Checkpoint, Note, NoteError, NoteKey, Witnessed
from securefda.audit.statements import (
    BROADCAST,
    ONCE,
    RELEASES,
    HeaderSaid,
    ResultSaid,
    Statement,
    SurvivorsSaid,
)

ClaimKind = Literal[
    "equivocation", "double-release", "threshold", "broken-chain", "bad-checkpoint", "forked-log", "never-sent"
]
KINDS: Final[frozenset[str]] = frozenset(get_args(ClaimKind))
"""Kinds of claims.

- equivocation: two different messages of one type in one session, or two headers of one attempt.
- double-release: two releases of one source in one round.
- threshold: a header with an unsound threshold, or survivors that are fewer than the header allows.
- broken-chain: a header that does not continue the last result.
- bad-checkpoint: a header without a checkpoint of the target's log that enough others have cosigned.
- forked-log: two checkpoints of one size with different roots.
- never-sent: a message of which its signer's log may not know; that it does not is for that log to show.
"""


_Item = TypeVar("_Item")


class NotProved(Exception):
    """The messages do not prove the claim; the text says why not."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who did what, and the evidence.

    Attributes:
        kind: one of `KINDS`.
        accused: site id.
        messages: signed messages, in the order that the kind asks for, see `prove`.
        notes: checkpoints, of a forked log.
    """

    kind: str
    accused: str
    messages: tuple[Statement, ...] = ()
    notes: tuple[bytes, ...] = ()


def prove(claim: Claim, members: Members) -> str:
    """Check a claim from its evidence alone, and say in one line what is proved.

    The messages, in this order: of an equivocation the two; of a double release the two, then what binds them to their
    rounds (their headers and the source's ``Advertise``), in any order; of a threshold the header and, if the survivors
    are too few, their list; of a broken chain the result, the header of its session, the header that should continue
    it, and, if that continues an older result, this one and the header of its session; otherwise the one message.

    Raises:
        NotProved: the evidence does not show it.
    """
    proof = _PROOFS.get(claim.kind)
    if proof is None:
        raise NotProved(f"no claim is called {claim.kind[:40]!r}")
    if claim.accused not in members.keys:
        raise NotProved("the accused is not in the roster")
    for message in claim.messages:
        _require(message.valid, f"the signature of {message.sender} under a {message.type} is wrong")
    return proof(claim, members)


def _equivocation(claim: Claim, members: Members) -> str:
    one, other = _exactly(claim.messages, 2)
    _require(one.sender == other.sender == claim.accused, "the accused has not signed both messages")
    _require(one.type == other.type and one.digest != other.digest, "it is no pair of different messages of one type")
    said, again = one.said, other.said
    if isinstance(said, HeaderSaid) and isinstance(again, HeaderSaid) and one.session != other.session:
        same = (said.run, said.place) == (again.run, again.place)
        _require(same, "the two headers are of different attempts")
        return f"{claim.accused} signed two headers of round {said.round}, attempt {said.attempt}"
    allowed = BROADCAST if claim.accused == members.target else ONCE
    _require(one.type in allowed, f"several messages of type {one.type} are allowed")
    _require(one.session == other.session != "", "the two messages are not of one session")
    return f"{claim.accused} signed two different messages of type {one.type} in session {one.session[:12]}"


def _double_release(claim: Claim, members: Members) -> str:
    _require(len(claim.messages) >= 2, "two releases are needed")
    one, other, *binding = claim.messages
    _require(one.sender == other.sender == claim.accused, "the accused has not signed both releases")
    _require({one.type, other.type} <= RELEASES and one.digest != other.digest, "it is no pair of different releases")
    if one.session == other.session != "":
        return f"{claim.accused} released twice in session {one.session[:12]}"
    first, second = _bound_header(one, binding, members), _bound_header(other, binding, members)
    _require((first.run, first.round) == (second.run, second.round), "the two releases are of different rounds")
    return f"{claim.accused} released twice in round {first.round}: in attempts {first.attempt} and {second.attempt}"


def _bound_header(release: Statement, binding: list[Statement], members: Members) -> HeaderSaid:
    """The header that a release belongs to: its signer bound it, not only the target."""
    contexts = (
        {release.context}
        if release.type == "Update"
        else {
            item.context
            for item in binding
            if (item.type, item.sender, item.session) == ("Advertise", release.sender, release.session)
        }
    )
    for item in binding:
        said = item.said
        if isinstance(said, HeaderSaid) and item.sender == members.target and item.digest in contexts:
            _require(item.session == release.session, "a release is not of its header's session")
            return said
    raise NotProved(f"nothing binds the release in session {release.session[:12]} to a round")


def _threshold(claim: Claim, members: Members) -> str:
    header, *lists = claim.messages
    said = _header(header, claim, members)
    if not lists:
        fault = header_fault(said)
    else:
        (survivors,) = _exactly(tuple(lists), 1)
        _require(isinstance(survivors.said, SurvivorsSaid), "the second message is no list of survivors")
        _require(survivors.sender == claim.accused, "the accused has not signed the list")
        _require(survivors.session == header.session != "", "the list is not of the header's session")
        fault = survivors_fault(said, survivors.said)  # type: ignore[arg-type]
    _require(bool(fault), "the numbers are sound")
    return f"{claim.accused} signed, in round {said.round}: {fault}"


def _broken_chain(claim: Claim, members: Members) -> str:
    _require(len(claim.messages) in (3, 5), "a result, its header and the next header are needed")
    result, before, header, *older = claim.messages
    model, first = _result_of(result, before, claim, members)
    following = _header(header, claim, members)
    _require(following.run == first.run, "the headers are of different runs")
    _require(following.round > first.round, "the header is of no later round than the result")
    where = (
        f"the header of round {following.round} and the result of round {first.round}, both signed by {claim.accused}"
    )
    if following.previous_result == result.digest:
        _require(following.model != model, "the header continues the result")
        return f"{where}: another model than that of the result"
    if following.previous_result == "" or following.round == first.round + 1:
        return f"{where}: the header does not continue the result"
    _require(len(older) == 2, "rounds between them may have had a result")
    _, earlier = _result_of(older[0], older[1], claim, members)
    _require(following.previous_result == older[0].digest, "the header continues another result")
    _require(earlier.run == first.run and earlier.round < first.round, "the other result is not older")
    return f"{where}: the header continues the result of round {earlier.round}"


def _result_of(result: Statement, header: Statement, claim: Claim, members: Members) -> tuple[str, HeaderSaid]:
    said = _header(header, claim, members)
    if not isinstance(result.said, ResultSaid) or result.sender != claim.accused:
        raise NotProved("there is no result that the accused has signed")
    _require(result.context == header.digest and result.session == header.session, "the result is of another header")
    return result.said.model, said


def _bad_checkpoint(claim: Claim, members: Members) -> str:
    (header,) = _exactly(claim.messages, 1)
    said = _header(header, claim, members)
    fault = checkpoint_fault(said, members)
    _require(bool(fault), "the checkpoint in the header is sound")
    return f"{claim.accused} signed the header of round {said.round}, attempt {said.attempt}: {fault}"


def _forked_log(claim: Claim, members: Members) -> str:
    one, other = (_signed_head(note, claim.accused, members)[0] for note in _exactly(claim.notes, 2))
    _require(one.size == other.size and one.root != other.root, "the two checkpoints can be of one log")
    return f"{claim.accused} signed two checkpoints of {one.size} records with different roots"


def _never_sent(claim: Claim, members: Members) -> str:  # noqa: ARG001 - one of several
    (message,) = _exactly(claim.messages, 1)
    _require(message.sender == claim.accused, "the accused has not signed it")
    return f"{claim.accused} signed this {message.type}; that its log has no record of it is for the log to show"


_PROOFS: Final[Mapping[str, Callable[[Claim, Members], str]]] = {
    "equivocation": _equivocation,
    "double-release": _double_release,
    "threshold": _threshold,
    "broken-chain": _broken_chain,
    "bad-checkpoint": _bad_checkpoint,
    "forked-log": _forked_log,
    "never-sent": _never_sent,
}


def header_fault(header: HeaderSaid) -> str:
    """What is unsound in a header's numbers whatever the sites' policies say, in words; empty for nothing.

    As in ``securefda.secagg.parameters.threshold_is_sound`` with no colluders: policies may ask for more.
    """
    n, t = header.masked, header.threshold
    if n and not (2 * t > n and 0 < t <= n):
        return f"a threshold of {t} for {n} sources, where two disjoint sets could both open sums"
    counts = {level: list(header.levels.values()).count(level) for level in ("sum", "cohort")}
    for level, quorum in (("sum", header.sum_quorum), ("cohort", header.cohort_quorum)):
        if counts[level] and quorum < 2:
            return f"a sum at {level} that opens over {quorum}"
    return ""


def survivors_fault(header: HeaderSaid, lists: SurvivorsSaid) -> str:
    """What is wrong with a list of survivors under its header, in words; empty for nothing."""
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
    """What is wrong with the checkpoint in a header, in words; empty for nothing.

    It must be of the target's log of this run, signed by the target, and cosigned by as many others as the header's
    threshold says.
    """
    if not header.previous_checkpoint:
        return "no checkpoint of the target's log in it"
    witnesses = members.witness_keys(members.target)
    try:
        found = _signed_head(header.previous_checkpoint, members.target, members, tuple(witnesses))[1]
    except NotProved as error:
        return f"the checkpoint in it: {error}"
    cosigned = len({witnesses[item.key] for item in found if item.key in witnesses})
    if cosigned < header.threshold:
        return f"{cosigned} of {header.threshold} cosignatures under the checkpoint in it"
    return ""


def _signed_head(
    data: bytes, party: str, members: Members, witnesses: tuple[NoteKey, ...] = ()
) -> tuple[Checkpoint, tuple[Witnessed, ...]]:
    """A checkpoint of a party's log that it has signed, and the signatures under it of these keys. Raises NotProved."""
    own = members.log_key(party)
    try:
        note = Note.parse(data)
        head = Checkpoint.parse(note.text)
        _require(head.origin == own.name, f"it is not of the log of {party} in this run")
        found = note.check([own, *witnesses])
    except NoteError as error:
        raise NotProved(str(error)) from error
    _require(any(item.key == own for item in found), f"{party} has not signed it")
    return head, found


def _header(statement: Statement, claim: Claim, members: Members) -> HeaderSaid:
    said = statement.said
    if not isinstance(said, HeaderSaid) or statement.sender != claim.accused:
        raise NotProved("there is no header that the accused has signed")
    _require(claim.accused == members.target, "headers are the target's")
    return said


def _exactly(items: tuple[_Item, ...], count: int) -> tuple[_Item, ...]:
    if len(items) != count:
        raise NotProved(f"{count} pieces of evidence are needed, not {len(items)}")
    return items


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise NotProved(why)
