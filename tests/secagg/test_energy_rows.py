"""Energy rows: who hands one in, how long it is, what is the most that it may say, and that it is part of the masks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cohort import LAYERS, Cohort, header_body, over_the_wire, resigned
from lies_of_aggregator import MIXED
from test_session import assert_sum_is_exact

from securefda.errors import FaultySourceError
from securefda.secagg.checks import energy_fault
from securefda.secagg.messages import Advertise, EnergyTerms, Granularity, Header, Visibility
from securefda.transport import wire, wire_decode
from securefda.v1 import messages_pb2

AT_SUM, IN_COHORT = 2, 4
MOST = {
    Granularity.LAYER: [layer.clip * math.sqrt(layer.size) for layer in LAYERS],
    Granularity.MODEL: [math.hypot(*(layer.clip * math.sqrt(layer.size) for layer in LAYERS))],
}


def header(granularity: Granularity | None) -> Header:
    energy = None if granularity is None else EnergyTerms(1.0, 1, granularity)
    return header_body(5, **{**MIXED["changes"], "energy": energy})


def with_row(*energy: float) -> Advertise:
    return Advertise(*(bytes([number]) * 32 for number in range(4)), energy)


@pytest.mark.parametrize("granularity", list(Granularity), ids=lambda one: one.label)
def test_row_may_say_as_much_as_the_clip_allows_and_no_more(granularity: Granularity) -> None:
    most = [float(np.float32(value)) for value in MOST[granularity]]
    assert energy_fault(AT_SUM, with_row(*most), header(granularity)) is None
    assert energy_fault(AT_SUM, with_row(*[0.0] * len(most)), header(granularity)) is None
    for place in range(len(most)):
        beyond = [value * (1 + 2e-6 * (place == at)) for at, value in enumerate(most)]
        assert energy_fault(AT_SUM, with_row(*beyond), header(granularity)) == "beyond what the clip allows"


@pytest.mark.parametrize(
    ("granularity", "row", "accepted"),
    [
        (Granularity.LAYER, (1.0, 1.0), True),
        (Granularity.LAYER, (1.0,), False),
        (Granularity.LAYER, (1.0, 1.0, 1.0), False),
        (Granularity.LAYER, (), False),
        (Granularity.MODEL, (1.0,), True),
        (Granularity.MODEL, (1.0, 1.0), False),
        (Granularity.MODEL, (), False),
        (None, (), True),
        (None, (1.0, 1.0), False),
    ],
)
def test_row_is_as_long_as_the_rule_has_it(granularity: Granularity | None, row: Any, accepted: bool) -> None:
    assert (energy_fault(AT_SUM, with_row(*row), header(granularity)) is None) is accepted
    assert (energy_fault(IN_COHORT, with_row(*row), header(granularity)) is None) is (row == ())


@pytest.mark.parametrize("value", [-1.0, -1e-30, math.inf, math.nan])
def test_energy_is_finite_and_not_negative(value: float) -> None:
    with pytest.raises(ValueError, match="energies must be finite and not negative"):
        with_row(1.0, value)


@pytest.mark.parametrize("row", [(1.0, 1.0), (0.0,)])
def test_aggregator_refuses_a_row_of_a_source_in_a_cohort_and_nothing_else_changes(row: tuple[float, ...]) -> None:
    cohort = Cohort(5, **MIXED).until(0)
    honest = cohort.outbox.pop(IN_COHORT)
    cohort.collect()
    before = cohort.aggregator
    with pytest.raises(FaultySourceError) as refused:
        cohort.add(over_the_wire(resigned(honest, replace(honest.body, energy=row))))
    assert (refused.value.source_id, refused.value.check) == (f"source-{IN_COHORT}", "KEY_ENERGY")
    assert cohort.aggregator is before
    cohort.aggregator = cohort.add(honest)
    assert_sum_is_exact(cohort, {})


def test_every_source_of_the_sum_is_shown_every_row_and_masks_under_it() -> None:
    cohort = Cohort(5, **MIXED).until(1)
    rows = {index: cohort.phases[AT_SUM].u1[index].energy for index in cohort.indices}
    assert rows == {index: cohort.energy_of(index) for index in cohort.indices}
    assert {index for index, row in rows.items() if row} == set(cohort.header.body.at(Visibility.SUM))
    for phase in cohort.phases.values():
        assert (phase.u1, phase.ctx1) == (cohort.phases[AT_SUM].u1, cohort.phases[AT_SUM].ctx1)


def test_row_of_more_numbers_than_a_model_may_have_layers_is_no_message() -> None:
    most = resigned(Cohort(5).until(0).outbox[AT_SUM], with_row(*[1.0] * wire_decode.MAX_LAYERS))
    envelope = messages_pb2.Envelope.FromString(most.signed_bytes)
    envelope.advertise.energy.append(1.0)
    longer = replace(most, signed_bytes=envelope.SerializeToString(deterministic=True))
    assert len(over_the_wire(most).body.energy) == wire_decode.MAX_LAYERS
    with pytest.raises(wire.WireError, match="energy has 4097 elements"):
        over_the_wire(longer)


class OtherRow(Cohort):
    """A session in which one source says another energy."""

    def energy_of(self, index: int) -> tuple[float, ...]:
        return (0.5, 0.25) if index == AT_SUM else super().energy_of(index)


def test_another_row_of_one_source_changes_the_transcript_of_all() -> None:
    one, other = (kind(5, **MIXED).until(1) for kind in (Cohort, OtherRow))
    assert one.energy_of(AT_SUM) != other.energy_of(AT_SUM)
    assert all(one.phases[index].ctx1 != other.phases[index].ctx1 for index in one.indices)
