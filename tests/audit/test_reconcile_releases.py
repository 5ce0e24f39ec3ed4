"""Lies about releases: one in a round, at the level that was logged, allowed by the policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from run_builder import (
    COHORT,
    INDIVIDUAL,
    SUM,
    TARGET,
    Passing,
    Run,
    badly_signed,
    digest,
    read_together,
    sign,
)
from run_lies import A, B, C, but, first, lying

from securefda.audit.log_records import Decision, Disclosure
from securefda.protocol import messages as m

pytestmark = pytest.mark.usefixtures("no_disk_sync")


class Again(Run):
    """The round at one level has a first attempt in which source A alone releases already."""

    level = INDIVIDUAL
    keeps_advertise = True

    def round(self, number: int, attempt: int, level: m.Visibility) -> None:
        if level is self.level:
            header = self.header(number, attempt, level)
            place = (number, attempt, header.envelope.session_id.hex())
            self.send(Passing(TARGET, A, header, place, disclosure=Disclosure("individual", "model", 1)))
            if level is INDIVIDUAL:
                shown = Disclosure("individual", "update", 1)
                self.release(A, self.update(A, header, "again"), place, shown)
            else:
                self.mask_alone(header, place, level)
            attempt += 1
        super().round(number, attempt, level)

    def mask_alone(self, header: m.Signed[m.Header], place: tuple[int, int, str], level: m.Visibility) -> None:
        session_id, ctx = header.envelope.session_id, header.digest()
        self.advertise(A, header, place)
        boxes = (m.DeliveredBox(2, b"box", digest(2)),)
        self.send(Passing(TARGET, A, sign(TARGET, m.ShareDelivery(boxes), session_id, ctx), place))
        body = m.MaskedInput(digest("input again"), 16)
        self.release(A, sign(A, body, session_id, digest("ctx2", place)), place, Disclosure(level.label, "update", 3))


@pytest.mark.parametrize(("level", "number"), [(INDIVIDUAL, 3), (SUM, 1), (COHORT, 2)])
def test_a_source_that_releases_in_two_attempts_of_a_round_is_found_and_not_accused_alone(
    level: m.Visibility, number: int, tmp_path: Path
) -> None:
    lie = Again(tmp_path)
    lie.level = level

    found = [one for one in read_together(lie.write()).findings if one.kind == "double-release"]

    assert [(one.round, one.accused, one.claim) for one in found] == [(number, (A, TARGET), None)]


def test_a_target_that_invents_a_second_release_does_not_make_the_source_guilty(tmp_path: Path) -> None:
    def change(passing: Passing) -> Iterable[Passing]:
        envelope = passing.message.envelope
        other = sign(B, m.MaskedInput(digest("other"), 16), envelope.session_id, envelope.context)
        return [passing, replace(passing, message=badly_signed(other), logs_sent=False)]

    findings = lying(tmp_path, "MaskedInput", change, sender=B, number=2)

    assert first(findings) == ("double-release", "MaskedInput", 2, (B, TARGET), False)


@pytest.mark.parametrize(
    ("kind", "number", "shown"),
    [
        ("Update", 3, Disclosure("sum", "update", 3)),
        ("MaskedInput", 1, Disclosure("sum", "update", 2)),
        ("MaskedInput", 2, Disclosure("sum", "update", 3)),
        ("Advertise", 1, Disclosure("individual", "update", 1)),
        ("ShareBundle", 1, Disclosure("sum", "update", 3)),
        ("Header", 1, Disclosure("individual", "model-and-target-update", 1)),
    ],
)
def test_a_record_that_says_something_else_of_what_it_discloses_is_found(
    kind: str, number: int, shown: Disclosure | None, tmp_path: Path
) -> None:
    accused = TARGET if kind == "Header" else A
    ends = {"receiver": A} if kind == "Header" else {"sender": A}

    findings = lying(tmp_path, kind, but(disclosure=shown), number=number, **ends)

    assert first(findings) == ("disclosure-differs", kind, number, (accused,), False)


@pytest.mark.parametrize("decision", [None, Decision("refused", "max-visibility")])
def test_a_release_that_the_policy_did_not_allow_is_found(decision: Decision | None, tmp_path: Path) -> None:
    findings = lying(tmp_path, "Update", but(decision=decision), number=3, sender=C)

    assert first(findings) == ("not-allowed", "Update", 3, (C,), False)
