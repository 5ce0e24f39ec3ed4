"""Norm reports: who sends one, to whom it is sealed, and that everyone sees the report that was committed to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cohort import Bytes, Cohort, header_body, over_the_wire, resigned
from lies_of_aggregator import MIXED
from test_session import assert_sum_is_exact

from securefda.errors import FaultyAggregatorError, FaultySourceError
from securefda.protocol import agreement
from securefda.protocol import source_session as src
from securefda.protocol.agreement import BOX_BYTES, REPORT_OPENING_BYTES, BoxAddress, SharePair
from securefda.protocol.messages import Granularity, Header, NormCapTerms, ShareBundle, Signed, Visibility
from securefda.protocol.secret import Secret
from securefda.protocol.session_checks import commitment_fault, report_bytes, report_readers

AT_SUM, COLLUDER, IN_COHORT = 2, 0, 4


def header(granularity: Granularity | None) -> Header:
    norm_cap = None if granularity is None else NormCapTerms(1.0, 1, granularity)
    return header_body(5, **{**MIXED["changes"], "norm_cap": norm_cap})


@pytest.mark.parametrize("granularity", [*Granularity, None])
def test_every_source_commits_with_a_report_or_without(granularity: Granularity | None) -> None:
    asked = header(granularity)
    assert commitment_fault(bytes(32), asked) is None
    assert commitment_fault(b"", asked) == "no commitment"


@pytest.mark.parametrize("length", [1, 31, 33])
def test_commitment_has_32_bytes_or_none(length: int) -> None:
    with pytest.raises(ValueError, match="report_commitment must be empty or 32 bytes"):
        ShareBundle((), bytes(32), bytes(length))


def test_reports_are_sealed_to_the_sources_of_the_sum_alone_and_nobody_else_sees_a_byte() -> None:
    cohort = Cohort(5, **MIXED).until(1)
    asked = cohort.header.body
    members = set(asked.at(Visibility.SUM))
    sent: dict[int, Signed[ShareBundle]] = dict(cohort.outbox)
    for index in cohort.indices:
        own = cohort.report_of(index)
        assert report_readers(asked, index) == (members if index in members else frozenset())
        for box in sent[index].body.boxes:
            with_report = {index, box.peer} <= members
            assert len(box.box) == BOX_BYTES + with_report * report_bytes(asked)
            assert not own or own not in box.box
    ready = {index: ready_to_mask(cohort, index) for index in cohort.indices}
    reports = {index: cohort.report_of(index) for index in members}
    assert {index: dict(ready[index].reports) for index in cohort.indices} == {
        index: reports if index in members else {} for index in cohort.indices
    }


def ready_to_mask(cohort: Cohort, index: int) -> src.ReadyToMask:
    """What a source knows once the aggregator has delivered the boxes that are under way; it goes no further."""
    if cohort.outbox:
        cohort.collect()
        cohort.close()
    return src.receive_shares(cohort.phases[index], over_the_wire(cohort.inbox[index]))


@pytest.mark.parametrize("liar", [AT_SUM, IN_COHORT])
def test_aggregator_refuses_a_missing_commitment_and_nothing_else_changes(liar: int) -> None:
    cohort = Cohort(5, **MIXED).until(1)
    honest = cohort.outbox.pop(liar)
    cohort.collect()
    before = cohort.aggregator
    with pytest.raises(FaultySourceError) as refused:
        cohort.add(over_the_wire(resigned(honest, replace(honest.body, report_commitment=b""))))
    assert (refused.value.source_id, refused.value.check) == (f"source-{liar}", "SHARE_REPORT")
    assert cohort.aggregator is before
    cohort.aggregator = cohort.add(honest)
    assert_sum_is_exact(cohort, {})


def with_report(cohort: Cohort, bundle: Signed[ShareBundle], recipient: int, report: bytes) -> Signed[ShareBundle]:
    """The bundle of a source with another report in the box for one recipient, sealed with its own key."""
    phase, sender = cohort.phases[bundle.sender], bundle.sender
    address = BoxAddress(phase.ctx1, sender, recipient, report_commitment=bundle.body.report_commitment)
    key = agreement.sealing_key(agreement.KeyPair(phase.secrets.private), phase.u1[recipient].box_key, address)
    nothing = SharePair(Secret(bytes(33)), Secret(bytes(33)))
    box = agreement.seal_box(key, address, nothing, cohort.random[sender], Secret(report))
    boxes = tuple(replace(sealed, box=box) if sealed.peer == recipient else sealed for sealed in bundle.body.boxes)
    return resigned(bundle, replace(bundle.body, boxes=boxes))


def test_source_that_shows_one_of_the_others_another_report_than_it_committed_to_is_suspected_by_that_one() -> None:
    cohort = Cohort(5, **MIXED).until(1)
    length = cohort.header.body.norm_report_length
    lie = with_report(cohort, cohort.outbox[COLLUDER], AT_SUM, bytes(REPORT_OPENING_BYTES + length))
    cohort.outbox[COLLUDER] = lie
    with pytest.raises(FaultyAggregatorError) as refused:
        ready_to_mask(cohort, AT_SUM)
    assert (refused.value.check, refused.value.suspect) == ("SHARE_REPORT", COLLUDER)
    others = [index for index in cohort.indices if index not in (AT_SUM, COLLUDER)]
    assert all(ready_to_mask(cohort, index) for index in others)


@pytest.mark.parametrize("length", [-1, 1])
def test_aggregator_refuses_a_box_with_a_report_of_another_length(length: int) -> None:
    cohort = Cohort(5, **MIXED).until(1)
    report = bytes(report_bytes(cohort.header.body) + length)
    lie = with_report(cohort, cohort.outbox[COLLUDER], AT_SUM, report)
    with pytest.raises(FaultySourceError) as refused:
        cohort.add(over_the_wire(lie))
    assert (refused.value.source_id, refused.value.check) == (f"source-{COLLUDER}", "SHARE_BOX")


class OtherReport(Cohort):
    """A session in which one source has another norm report."""

    def report_of(self, index: int) -> bytes:
        return bytes(2) if index == AT_SUM else super().report_of(index)


def test_another_report_of_one_source_changes_the_transcript_of_all() -> None:
    honest, other = (kind(5, **MIXED).until(1) for kind in (Cohort, OtherReport))
    assert honest.report_of(AT_SUM) != other.report_of(AT_SUM)
    contexts = [{i: ready_to_mask(cohort, i).ctx2 for i in cohort.indices} for cohort in (honest, other)]
    assert all(contexts[0][index] != contexts[1][index] for index in honest.indices)


def test_two_commitments_of_one_source_put_those_who_see_them_under_different_masks() -> None:
    cohort = Cohort(5, **MIXED).until(1)
    bundle, length = cohort.outbox[COLLUDER], report_bytes(cohort.header.body)
    opening = Secret(bytes(length))
    other = agreement.report_commitment(opening, own=COLLUDER, ctx=cohort.phases[COLLUDER].ctx1)
    second = resigned(bundle, replace(bundle.body, report_commitment=other))
    box = next(one.box for one in with_report(cohort, second, AT_SUM, bytes(length)).body.boxes if one.peer == AT_SUM)
    cohort.collect()
    cohort.close()
    shown = cohort.inbox[AT_SUM]
    boxes = tuple(
        replace(one, box=box, report_commitment=other) if one.peer == COLLUDER else one for one in shown.body.boxes
    )
    cohort.inbox[AT_SUM] = resigned(shown, replace(shown.body, boxes=boxes))
    ready = {index: ready_to_mask(cohort, index) for index in cohort.indices}
    assert ready[AT_SUM].ctx2 not in {ready[index].ctx2 for index in cohort.indices if index != AT_SUM}
    assert len({one.ctx2 for one in ready.values()}) == 2


def test_two_copies_of_a_machine_that_was_copied_while_it_trained_mask_for_different_contexts() -> None:
    """Neither has a norm report: the commitments alone keep the masks apart."""
    copies = [Cohort(5, changes={"norm_cap": None}).until(0) for _ in range(2)]
    copies[1].random[AT_SUM] = Bytes("drawn after the machine was copied")
    for copy in copies:
        copy.collect()
        copy.close()
        copy.answer()
    assert copies[0].phases[AT_SUM].ctx1 == copies[1].phases[AT_SUM].ctx1
    assert ready_to_mask(copies[0], AT_SUM).ctx2 != ready_to_mask(copies[1], AT_SUM).ctx2


def test_a_report_is_forgotten_with_the_phase_that_held_it() -> None:
    cohort = Cohort(5, **MIXED).until(1)
    dealt = cohort.phases[AT_SUM]
    assert len(dealt.secrets.report) == report_bytes(cohort.header.body)
    ready_to_mask(cohort, AT_SUM)
    assert len(dealt.secrets.report) == 0
    assert cohort.report_of(AT_SUM).hex() not in repr(dealt)
