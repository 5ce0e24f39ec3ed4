"""Lies about messages: what passes between two sites is in both logs, and the same for all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_builder import TARGET, Passing, Run, badly_signed, digest, read_together, sign
from run_lies import A, B, C, Lie, but, first, lying

from securefda.protocol import messages as m

pytestmark = pytest.mark.usefixtures("no_disk_sync")


def test_logs_of_an_honest_run_give_no_finding(tmp_path: Path) -> None:
    found = read_together(Run(tmp_path).write())

    assert found.findings == ()
    assert found.counts["messages in both logs"] == 141
    assert found.counts["releases"] == 9
    assert found.counts["epsilons recomputed"] == 9


@pytest.mark.parametrize("kind", ["Advertise", "ShareBundle", "MaskedInput", "SurvivorSignature"])
def test_a_message_that_its_sender_did_not_log_sets_two_logs_against_each_other(kind: str, tmp_path: Path) -> None:
    findings = lying(tmp_path, kind, but(logs_sent=False), number=2, sender=B)

    assert first(findings) == ("never-sent", kind, 2, (B, TARGET), False)
    assert len(findings) == 1
    assert [mark.party for mark in findings[0].records] == [TARGET]


def test_an_invented_message_with_a_wrong_signature_does_not_accuse_its_alleged_sender(tmp_path: Path) -> None:
    def invent(passing: Passing) -> Iterable[Passing]:
        invented = sign(B, m.Refusal("NEVER"), bytes.fromhex(passing.place[2]), passing.message.envelope.context)
        return [passing, replace(passing, message=badly_signed(invented), logs_sent=False)]

    findings = lying(tmp_path, "SurvivorSignature", invent, sender=B)

    assert first(findings) == ("never-sent", "Refusal", 1, (B, TARGET), False)


@pytest.mark.parametrize(
    ("kind", "number", "ends", "sides"),
    [
        ("KeyList", 1, {"receiver": A}, (A, TARGET)),
        ("MaskedInput", 2, {"sender": C}, (TARGET, C)),  # the target lists C as a survivor
    ],
)
def test_who_goes_on_without_a_record_of_what_it_needs_is_accused(
    kind: str, number: int, ends: dict[str, str], sides: tuple[str, str], tmp_path: Path
) -> None:
    findings = lying(tmp_path, kind, but(logs_received=False), number=number, **ends)

    assert first(findings) == ("missing-record", kind, number, sides[:1], False)
    assert findings[0].sides == sides


def test_a_message_that_was_lost_on_the_way_is_no_finding_but_is_said(tmp_path: Path) -> None:
    lie = Lie(tmp_path)
    lie.kind, lie.number, lie.receiver = "Result", 3, A
    lie.change = but(logs_received=False)  # type: ignore[method-assign]

    found = read_together(lie.write())

    assert found.findings == ()
    assert f"{TARGET} sent 1 of type Result that {A} did not receive" in map(str, found.notices)


def test_two_records_of_one_message_with_different_lengths_are_found(tmp_path: Path) -> None:
    findings = lying(tmp_path, "MaskedInput", but(received_bytes=5), sender=A)

    assert first(findings) == ("records-differ", "MaskedInput", 1, (A, TARGET), False)
    assert {mark.party for mark in findings[0].records} == {A, TARGET}


def test_a_log_that_puts_a_release_into_another_round_is_found(tmp_path: Path) -> None:
    def misplace(passing: Passing) -> Iterable[Passing]:
        return [replace(passing, place=(passing.place[0] + 1, *passing.place[1:]))]

    findings = lying(tmp_path, "MaskedInput", misplace, sender=A)

    assert {(one.kind, one.accused) for one in findings} == {("records-differ", (A,)), ("records-differ", (TARGET,))}


def another(passing: Passing) -> m.Signed[Any]:
    """A second message of the same type in the same session by the same site."""
    body, envelope = passing.message.body, passing.message.envelope
    match body:
        case m.Header():
            body = replace(body, n_max=7)
        case m.KeyList():
            body = m.KeyList(body.advertisements[::-1])
        case m.Survivors():
            body = m.Survivors(body.survivors[::-1], ())
        case m.Consistency():
            body = m.Consistency(body.signatures[::-1], body.inputs)
        case m.Result():
            body = replace(body, model_digest=digest("other model"))
    return sign(passing.sender, body, envelope.session_id, envelope.context)


@pytest.mark.parametrize("kind", ["Header", "KeyList", "Survivors", "Consistency", "Result"])
@pytest.mark.parametrize("logged", [True, False])
def test_a_target_that_shows_a_source_something_else_is_accused_by_both_messages(
    kind: str, logged: bool, tmp_path: Path
) -> None:
    def change(passing: Passing) -> Iterable[Passing]:
        other = another(passing)
        return [replace(passing, message=other) if logged else replace(passing, shown=other)]

    findings = lying(tmp_path, kind, change, receiver=C)

    assert first(findings) == ("equivocation", kind, 1, (TARGET,), True)
    assert C in {mark.party for mark in findings[0].records}
    assert len({message.digest for message in findings[0].claim.messages}) == 2  # type: ignore[union-attr]


def test_a_source_that_claims_to_have_been_shown_something_else_accuses_nobody_alone(tmp_path: Path) -> None:
    def change(passing: Passing) -> Iterable[Passing]:
        return [replace(passing, shown=badly_signed(another(passing)))]

    findings = lying(tmp_path, "KeyList", change, receiver=C)

    assert first(findings) == ("equivocation", "KeyList", 1, (C, TARGET), False)


@pytest.mark.parametrize(
    ("kind", "body", "finding"),
    [
        ("SurvivorSignature", m.SurvivorSignature(digest("others")), "equivocation"),
        ("MaskedInput", m.MaskedInput(digest("other"), 16), "double-release"),
    ],
)
def test_a_source_that_signs_two_of_what_must_be_one_is_accused(
    kind: str, body: Any, finding: str, tmp_path: Path
) -> None:
    def change(passing: Passing) -> Iterable[Passing]:
        envelope = passing.message.envelope
        return [passing, replace(passing, message=sign(B, body, envelope.session_id, envelope.context))]

    findings = lying(tmp_path, kind, change, number=2, sender=B)

    assert first(findings) == (finding, kind, 2, (B,), True)
