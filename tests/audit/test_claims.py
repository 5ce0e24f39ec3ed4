"""What signed messages prove, and what they do not: in each refused claim somebody else chose what binds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_builder import INDIVIDUAL, MEMBERS, ROSTER, SITES, SOURCES, SUM, TARGET, Run, digest, read_together, sign

from securefda.audit.reconcile.claims import Claim, NotProved, header_fault, prove
from securefda.audit.statements import HeaderSaid, Statement, StatementReader
from securefda.protocol import messages as m
from securefda.transport import wire

pytestmark = pytest.mark.usefixtures("no_disk_sync")

A, B, _ = SOURCES
SESSION, VIEW = digest("session"), digest("view")
OTHER_RUN = bytes(16)


def statement(message: m.Signed[Any]) -> Statement:
    return StatementReader(ROSTER).read(wire.encode_signed(message))


def of_a(body: Any, session: bytes = SESSION, context: bytes = VIEW) -> Statement:
    return statement(sign(A, body, session, context))


def why_not(kind: str, accused: str, *messages: Statement, notes: tuple[bytes, ...] = ()) -> str:
    with pytest.raises(NotProved) as raised:
        prove(Claim(kind, accused, messages, notes), MEMBERS)
    return str(raised.value)


BODIES: dict[str, Callable[[int], Any]] = {
    "Advertise": lambda n: m.Advertise(*(digest(name, n) for name in ("mask", "box", "self", "nonce"))),
    "Nonce": lambda n: m.Nonce(digest(n)),
    "ShareBundle": lambda n: m.ShareBundle((), digest(n)),
    "MaskedInput": lambda n: m.MaskedInput(digest(n), 16),
    "Update": lambda n: m.Update(digest(n), 16, 100, bytes(32)),
    "SurvivorSignature": lambda n: m.SurvivorSignature(digest(n)),
    "Unmask": lambda n: m.Unmask((m.SelfMaskShare(n, bytes(33)),)),
}
IN_A_VIEW = ["Nonce", "ShareBundle", "MaskedInput", "SurvivorSignature", "Unmask"]


@pytest.mark.parametrize("kind", IN_A_VIEW)
def test_two_messages_of_one_view_accuse_their_source(kind: str) -> None:
    proved = prove(Claim("equivocation", A, (of_a(BODIES[kind](1)), of_a(BODIES[kind](2)))), MEMBERS)
    assert proved.startswith(f"{A} signed two different messages of type {kind} in session {SESSION.hex()[:12]}")


def test_two_masked_inputs_of_one_view_are_a_double_release() -> None:
    pair = of_a(BODIES["MaskedInput"](1)), of_a(BODIES["MaskedInput"](2))
    assert prove(Claim("double-release", A, pair), MEMBERS).startswith(f"{A} signed two different messages")


@pytest.mark.parametrize("kind", IN_A_VIEW)
@pytest.mark.parametrize("claimed", ["equivocation", "double-release"])
def test_a_session_id_that_the_target_used_twice_accuses_no_source(claimed: str, kind: str) -> None:
    pair = of_a(BODIES[kind](1)), of_a(BODIES[kind](2), context=digest("another view"))
    if claimed == "double-release" and kind != "MaskedInput":
        assert why_not(claimed, A, *pair) == "they are no masked inputs of a source"
    else:
        assert why_not(claimed, A, *pair) == "the two messages are of different views, which others chose"


@pytest.mark.parametrize("kind", IN_A_VIEW)
def test_messages_without_a_view_or_a_session_accuse_nobody(kind: str) -> None:
    for where in ({"context": b""}, {"session": m.NO_SESSION}):
        pair = of_a(BODIES[kind](1), **where), of_a(BODIES[kind](2), **where)
        assert "different views" in why_not("equivocation", A, *pair)


@pytest.mark.parametrize("kind", ["Advertise", "Update"])
def test_two_messages_under_one_header_that_two_folders_can_have_signed_accuse_nobody(kind: str) -> None:
    pair = of_a(BODIES[kind](1)), of_a(BODIES[kind](2))
    assert why_not("equivocation", A, *pair) == (
        f"an honest source can have signed two messages of type {kind} under one header"
    )


def test_two_updates_under_one_header_are_no_proof_of_a_double_release() -> None:
    pair = of_a(BODIES["Update"](1)), of_a(BODIES["Update"](2))
    assert why_not("double-release", A, *pair) == "they are no masked inputs of a source"


def test_releases_in_two_attempts_prove_nothing_with_their_headers(tmp_path: Path) -> None:
    """The target can tell a source in a second folder of an old run."""
    run = Run(tmp_path)
    headers = [run.header(1, attempt, INDIVIDUAL) for attempt in (1, 2)]
    updates = [run.update(A, header) for header in headers]
    messages = [statement(one) for one in (*updates, *headers)]
    assert why_not("double-release", A, *messages) == (
        "releases in different sessions prove nothing, whatever comes with them"
    )


def test_two_rolls_of_one_session_accuse_the_target() -> None:
    pair = [statement(sign(TARGET, m.Roll((n,), digest(n), digest(n)), SESSION, VIEW)) for n in (1, 2)]
    assert prove(Claim("equivocation", TARGET, tuple(pair)), MEMBERS).startswith(
        f"{TARGET} signed two different messages of type Roll"
    )


@pytest.mark.parametrize(
    "body",
    [lambda n: m.Neighbours((n,), digest(n), ()), lambda n: m.NeighbourConsistency((of_signed(n),), ())],
    ids=["Neighbours", "NeighbourConsistency"],
)
def test_what_a_target_tells_each_neighbourhood_accuses_nobody(body: Callable[[int], Any]) -> None:
    pair = [statement(sign(TARGET, body(n), SESSION, VIEW)) for n in (1, 2)]
    assert "several messages of type" in why_not("equivocation", TARGET, *pair)


def of_signed(n: int) -> m.Signed[Any]:
    return sign(A, m.SurvivorSignature(digest(n)), SESSION, VIEW)


def test_a_source_is_not_held_to_what_a_target_signs_once() -> None:
    pair = [statement(sign(A, m.Result(b"", n, digest(n)), SESSION, VIEW)) for n in (1, 2)]
    assert "of type Result" in why_not("equivocation", A, *pair)


def test_a_target_is_not_held_to_what_a_source_signs_once() -> None:
    pair = [statement(sign(TARGET, m.MaskedInput(digest(n), 16), SESSION, VIEW)) for n in (1, 2)]
    assert "several messages" in why_not("equivocation", TARGET, *pair)
    assert "no masked inputs" in why_not("double-release", TARGET, *pair)


@pytest.fixture
def header(tmp_path: Path) -> Callable[..., Statement]:
    """Makes headers, of round 2 by default; with other changes they have another session."""
    run = Run(tmp_path)
    for site in SITES:
        run.begin(site)
    run.witness()

    def make(number: int = 2, attempt: int = 1, **changes: Any) -> Statement:
        return statement(run.header(number, attempt, SUM, **changes))

    return make


def test_two_headers_of_one_attempt_accuse_the_target(header: Callable[..., Statement]) -> None:
    pair = header(), header(n_max=7)
    assert pair[0].session != pair[1].session
    proved = prove(Claim("equivocation", TARGET, pair), MEMBERS)
    assert proved == f"{TARGET} signed two headers of round 2, attempt 1"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"run_id": OTHER_RUN}, "a header is of another run, or of another roster"),
        ({"roster_digest": digest("roster")}, "a header is of another run, or of another roster"),
        ({"attempt": 2}, "the two headers are of different attempts"),
        ({"round": 3}, "the two headers are of different attempts"),
    ],
)
def test_two_headers_that_an_honest_target_signs_accuse_nobody(
    header: Callable[..., Statement], changes: dict[str, Any], why: str
) -> None:
    assert why_not("equivocation", TARGET, header(), header(**changes)) == why
    assert why_not("equivocation", TARGET, header(**changes), header()) == why


@pytest.mark.parametrize("changes", [{"run_id": OTHER_RUN}, {"roster_digest": digest("roster")}])
@pytest.mark.parametrize(
    ("kind", "wrong", "fault"),
    [
        ("bad-checkpoint", {"previous_checkpoint": b""}, "no checkpoint"),
        ("threshold", {"threshold": 1}, "a threshold of 1"),
    ],
)
def test_a_header_of_another_run_or_roster_is_not_judged_by_its_numbers_or_its_checkpoint(
    header: Callable[..., Statement], kind: str, wrong: dict[str, Any], fault: str, changes: dict[str, Any]
) -> None:
    """Its accuser names a run, or trusts a roster, in which others have cosigned other logs."""
    assert fault in prove(Claim(kind, TARGET, (header(**wrong),)), MEMBERS)
    assert why_not(kind, TARGET, header(**wrong, **changes)) == "a header is of another run, or of another roster"


def test_a_graph_that_is_weaker_than_its_own_numbers_ask_accuses_the_target(header: Callable[..., Statement]) -> None:
    shown = header(graph=m.GraphTerms(2, 2, 0, 0, 0))
    assert "a part of the sources could be summed alone" in prove(Claim("threshold", TARGET, (shown,)), MEMBERS)
    said = shown.said
    assert isinstance(said, HeaderSaid)
    twelve = {f"source-{number}": "sum" for number in range(12)}
    many = replace(said, levels=twelve, threshold=9, sum_quorum=9, graph=m.GraphTerms(6, 5, 0, 1, 1))
    assert header_fault(many) == ""
    assert "4 shares of 7" in header_fault(replace(many, graph=m.GraphTerms(6, 4, 0, 1, 1)))


def result_of(header: Statement) -> Statement:
    body = m.Result(digest("sum"), 3, digest("model"))
    return statement(sign(TARGET, body, bytes.fromhex(header.session), bytes.fromhex(header.digest)))


def test_another_attempt_after_a_result_accuses_the_target(header: Callable[..., Statement]) -> None:
    before = header()
    evidence = (result_of(before), before, header(attempt=2))
    assert "another attempt after the result" in prove(Claim("broken-chain", TARGET, evidence), MEMBERS)


def test_an_attempt_before_the_result_breaks_no_chain(header: Callable[..., Statement]) -> None:
    before = header(attempt=2)
    why = why_not("broken-chain", TARGET, result_of(before), before, header(attempt=1))
    assert why == "the header is of no later attempt than the result"


@pytest.mark.parametrize("changes", [{"run_id": OTHER_RUN}, {"roster_digest": digest("roster")}])
def test_a_header_of_another_run_breaks_no_chain(header: Callable[..., Statement], changes: dict[str, Any]) -> None:
    before = header()
    why = why_not("broken-chain", TARGET, result_of(before), before, header(3, **changes))
    assert why == "a header is of another run, or of another roster"


class TwoLists(Run):
    """The target sends source A other survivors right behind the first, before it has signed these."""

    def alter(self, passing: Any) -> Any:
        message = passing.message
        if (passing.sender, message.type_name, passing.receiver) != (TARGET, "Survivors", A):
            return [passing]
        envelope, body = message.envelope, m.Survivors(message.body.survivors[:2], (3,))
        return [passing, replace(passing, message=sign(TARGET, body, envelope.session_id, envelope.context))]


def test_a_source_that_signed_the_first_of_two_lists_is_not_accused(tmp_path: Path) -> None:
    findings = read_together(TwoLists(tmp_path).write()).findings
    assert {one.accused for one in findings} == {(TARGET,)}


class TwoHeaders(Run):
    """The target signs two headers in one session. The others keep the one that source A did not take."""

    def alter(self, passing: Any) -> Any:
        message = passing.message
        if (passing.sender, message.type_name, passing.receiver) != (TARGET, "Header", A) or passing.place[0] != 1:
            return [passing]
        changes: dict[str, Any] = {"levels": (INDIVIDUAL,) * 3, "threshold": 1, "sum_quorum": 0, "norm_cap": None}
        other = sign(TARGET, replace(message.body, **changes), message.envelope.session_id)
        for site in SITES:
            self.sites[site].kept.keep(wire.encode_signed(other))
        return [replace(passing, keeps=False)]


def test_a_source_is_not_judged_by_a_header_of_its_session_that_it_did_not_take(tmp_path: Path) -> None:
    findings = read_together(TwoHeaders(tmp_path).write()).findings
    assert {one.accused for one in findings} == {(TARGET,)}
    assert ("equivocation", True) in {(one.kind, one.claim is not None) for one in findings}
