"""The aggregator refuses, by name and with the liar's name, each lie of a source, and keeps nothing of it."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from cohort import LAYERS, PHASES, AnySigned, Cohort, leaving, over_the_wire, resigned
from lies_of_source import DROPPED, LIAR, LIES, OUTSIDE, UNMASK, SourceLie, from_outside
from test_session import assert_sum_is_exact

from securefda.errors import FaultySourceError
from securefda.protocol.header_checks import quantisation
from securefda.protocol.messages import MasterShare, SelfMaskShare, Unmask
from securefda.protocol.shamir import PRIME, LagrangeAtZero, x_of

# Six sources, t = 4: one is lost between R1 and R2, so that both kinds of shares are asked for in R4.
DROPS = {DROPPED: 2}


def cohort_at(slot: int, **setup: Any) -> tuple[Cohort, AnySigned]:
    """A cohort in which all but the liar have answered in a slot, and the liar's honest message."""
    cohort = Cohort(6, leaving(DROPS), **({"changes": {"threshold": 4}} | setup)).until(slot)
    honest = cohort.outbox.pop(LIAR)
    cohort.collect()
    return cohort, honest


def assert_refused(
    cohort: Cohort, honest: AnySigned, lie: AnySigned, check: str, vector: Any = None, name: str = f"source-{LIAR}"
) -> None:
    """The liar is named, the running sum stays, and the honest message is accepted afterwards."""
    before = cohort.aggregator
    total = cohort.running_sum() if hasattr(before, "totals") else None
    with pytest.raises(FaultySourceError) as refused:
        cohort.add(lie, vector=vector)
    assert (refused.value.check, refused.value.source_id) == (check, name)
    assert cohort.aggregator is before
    assert LIAR not in before.received
    if total is not None:
        assert np.array_equal(cohort.running_sum(), total)
    cohort.aggregator = cohort.add(honest)
    assert_sum_is_exact(cohort, DROPS)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_aggregator_refuses_lie_and_nothing_else_changes(lie: SourceLie) -> None:
    cohort, honest = cohort_at(lie.slot, **lie.setup)
    vector = lie.vector(cohort.vectors[LIAR]) if lie.vector else None
    assert_refused(cohort, honest, over_the_wire(lie.tell(cohort, honest)), lie.check, vector)


@pytest.mark.parametrize("slot", range(len(PHASES)), ids=PHASES)
@pytest.mark.parametrize("check", OUTSIDE)
def test_aggregator_refuses_false_outside_of_every_message(check: str, slot: int) -> None:
    cohort, honest = cohort_at(slot)
    assert_refused(cohort, honest, OUTSIDE[check](honest), check)


@pytest.mark.parametrize("slot", range(len(PHASES)), ids=PHASES)
def test_aggregator_refuses_sender_without_a_part_in_the_phase(slot: int) -> None:
    cohort, honest = cohort_at(slot)
    assert_refused(cohort, honest, over_the_wire(from_outside(honest)), "SENDER", name="target")


@pytest.mark.parametrize("slot", range(len(PHASES)), ids=PHASES)
def test_aggregator_refuses_sender_outside_the_roster(slot: int) -> None:
    cohort, honest = cohort_at(slot)
    stranger = replace(honest, envelope=replace(honest.envelope, sender=99))
    assert_refused(cohort, honest, stranger, "SENDER", name="index 99")


@pytest.mark.parametrize("slot", range(len(PHASES)), ids=PHASES)
def test_aggregator_refuses_second_message_of_a_phase(slot: int) -> None:
    cohort, honest = cohort_at(slot)
    cohort.aggregator = cohort.add(honest)
    with pytest.raises(FaultySourceError) as refused:
        cohort.add(honest)
    assert (refused.value.check, refused.value.source_id) == ("DUPLICATE", f"source-{LIAR}")
    assert_sum_is_exact(cohort, DROPS)


# Lies that only the end of the session can show.


def unmasking(cohort: Cohort, *liars: int, wrong: Any) -> None:
    """In R4 these sources send ``wrong(share)`` in place of each share, and everybody's answer is collected."""
    cohort.until(UNMASK)
    for liar in liars:
        honest = cohort.outbox[liar]
        cohort.outbox[liar] = resigned(honest, replace(honest.body, shares=tuple(map(wrong, honest.body.shares))))
    cohort.collect()


def off_by_one(share: SelfMaskShare | MasterShare) -> SelfMaskShare | MasterShare:
    value = (int.from_bytes(share.share, "big") + 1) % PRIME
    return replace(share, share=value.to_bytes(33, "big"))


def beyond_the_field(share: SelfMaskShare | MasterShare) -> SelfMaskShare | MasterShare:
    return replace(share, share=b"\xff" * 33)


def only(owner: int) -> Any:
    return lambda share: off_by_one(share) if share.owner == owner else share


@pytest.mark.parametrize("liar", [0, 4, 6])
@pytest.mark.parametrize("wrong", [off_by_one, beyond_the_field])
def test_holder_of_wrong_shares_is_named_and_the_sum_is_right(liar: int, wrong: Any) -> None:
    cohort = Cohort(6, leaving(DROPS), {"threshold": 4})
    unmasking(cohort, liar, wrong=wrong)
    opened = cohort.finish()
    assert [(fault.source_id, fault.check) for fault in opened.faults] == [(f"source-{liar}", "UNMASK_SHARE")]
    assert np.array_equal(opened.sums[0].decoded.vector, honest_sum(cohort))


@pytest.mark.parametrize("owner", [3, DROPPED], ids=["of a survivor", "of a dropped source"])
def test_one_wrong_share_names_its_holder_and_the_owner_who_may_have_dealt_it(owner: int) -> None:
    cohort = Cohort(6, leaving(DROPS), {"threshold": 4})
    unmasking(cohort, LIAR, wrong=only(owner))
    (fault,) = cohort.finish().faults
    assert fault.source_id == f"source-{LIAR}"
    assert f"source-{owner}" in str(fault)


def honest_sum(cohort: Cohort) -> Any:
    survivors = sorted(set(cohort.indices) - set(DROPS))
    return quantisation(cohort.header.body).decode(cohort.sum_of(survivors), len(survivors)).vector


def test_four_wrong_holders_of_twenty_with_the_lowest_indices_are_named_and_the_sum_is_right() -> None:
    """Too many sets of 11 out of 20 to try; decoding finds up to (20 - 11) // 2 = 4 without trying any."""
    cohort = Cohort(20, changes={"threshold": 11})
    liars = cohort.indices[:4]
    unmasking(cohort, *liars, wrong=off_by_one)
    opened = cohort.finish()
    assert [fault.source_id for fault in opened.faults] == [f"source-{index}" for index in liars]
    total = quantisation(cohort.header.body).decode(cohort.sum_of(cohort.indices), 20).vector
    assert np.array_equal(opened.sums[0].decoded.vector, total)


@pytest.mark.parametrize(("n", "threshold", "named"), [(9, 5, True), (7, 4, True), (20, 17, False)])
def test_two_holders_whose_errors_cancel_do_not_make_honest_ones_look_like_liars(
    n: int, threshold: int, named: bool
) -> None:
    """Errors that cancel in the secret of the t lowest holders leave every share beside them off that polynomial.

    Nine answers tell two wrong ones apart by decoding, seven with t = 4 since all sets of four can be tried. Of twenty
    with t = 17 neither works, and nobody is named.
    """
    cohort = Cohort(n, changes={"threshold": threshold})
    first, second = cohort.indices[:2]
    weights = LagrangeAtZero.over([x_of(index) for index in cohort.indices[:threshold]]).weights
    errors = {first: 1, second: -weights[0] * pow(weights[1], -1, PRIME)}
    cohort.until(UNMASK)
    for liar, error in errors.items():
        honest = cohort.outbox[liar]
        shares = tuple(
            type(share)(share.owner, ((int.from_bytes(share.share, "big") + error) % PRIME).to_bytes(33, "big"))
            for share in honest.body.shares
        )
        cohort.outbox[liar] = resigned(honest, Unmask(shares))
    opened = cohort.finish()
    liars = [f"source-{index}" for index in errors] if named else []
    assert [fault.source_id for fault in opened.faults] == liars
    total = quantisation(cohort.header.body).decode(cohort.sum_of(cohort.indices), n).vector
    assert np.array_equal(opened.sums[0].decoded.vector, total)


def assert_close_blames(cohort: Cohort, check: str, *names: str) -> None:
    with pytest.raises(FaultySourceError) as refused:
        cohort.close()
    assert refused.value.check == check
    assert refused.value.source_id == " or ".join(names)
    assert cohort.opened is None


def test_with_exactly_t_answers_a_wrong_share_opens_nothing_and_leaves_open_who_lied() -> None:
    cohort = Cohort(3)
    unmasking(cohort, 3, wrong=only(2))
    masked = cohort.running_sum()
    with pytest.raises(FaultySourceError, match="or holders sent wrong ones") as refused:
        cohort.close()
    assert (refused.value.check, refused.value.source_id) == ("SHARE_COMMITMENT", "source-2")
    assert np.array_equal(cohort.running_sum(), masked)


@pytest.mark.parametrize("liar", [LIAR, DROPPED], ids=["survivor", "dropped"])
def test_owner_whose_commitment_does_not_fit_its_shares_is_named(liar: int) -> None:
    """The liar advertises a self mask commitment, and a mask key, that follow from no secret that it shares."""
    cohort = Cohort(6, leaving(DROPS), {"threshold": 4}).until(0)
    honest = cohort.outbox[liar]
    body = replace(honest.body, self_mask_commitment=bytes(32), mask_key=honest.body.nonce_commitment)
    cohort.outbox[liar] = resigned(honest, body)
    cohort.phases[liar] = replace(cohort.phases[liar], own=cohort.outbox[liar])
    cohort.collect()
    cohort.close()
    cohort.exchange(3)
    cohort.answer()
    cohort.collect()
    masked = cohort.running_sum()
    assert_close_blames(cohort, "SHARE_COMMITMENT", f"source-{liar}")
    assert np.array_equal(cohort.running_sum(), masked)


def test_sum_beyond_the_range_of_honest_inputs_names_the_survivors() -> None:
    """One source adds a whole vector of ones in the highest bit; in a ring for twice the inputs that must show."""
    cohort = Cohort(5, changes={"n_max": 10})
    honest = cohort.encoded

    def encoded(index: int) -> Any:
        vector = honest(index)
        return vector + np.uint32(1 << 31) if index == LIAR else vector

    cohort.encoded = encoded  # type: ignore[method-assign]
    cohort.until(UNMASK, collected=True)
    assert_close_blames(cohort, "RANGE", *(f"source-{index}" for index in cohort.indices))


def test_input_with_a_bit_set_behind_its_parameters_is_refused_and_the_sum_is_unchanged() -> None:
    layers = (replace(LAYERS[0], shape=(3, 5)), LAYERS[1])  # 19 words of 20 bits, and four bits to fill a byte
    cohort = Cohort(5, changes={"modulus_bits": 20, "layers": layers}).until(2)
    vector = bytearray(cohort.vectors[LIAR])
    vector[47] |= 1 << 7
    honest, before = cohort.outbox[LIAR], cohort.running_sum()
    lie = resigned(honest, replace(honest.body, digest=sha256(vector).digest()))
    with pytest.raises(FaultySourceError) as refused:
        cohort.add(lie, vector=bytes(vector))
    assert (refused.value.check, refused.value.source_id) == ("INPUT_PADDING", f"source-{LIAR}")
    assert np.array_equal(cohort.running_sum(), before)
    assert LIAR not in cohort.aggregator.received


def test_masks_that_do_not_cancel_raise_the_range_alarm() -> None:
    """A source whose pair masks are not the agreed ones: the sum is noise, and noise is out of range."""
    cohort = Cohort(5, changes={"n_max": 10}).until(2)
    cohort.vectors[LIAR] = np.random.default_rng(1).bytes(len(cohort.vectors[LIAR]))
    honest = cohort.outbox[LIAR]
    lie = resigned(honest, replace(honest.body, digest=sha256(cohort.vectors[LIAR]).digest()))
    cohort.outbox[LIAR] = lie
    cohort.phases[LIAR] = replace(cohort.phases[LIAR], input_digest=lie.body.digest)
    cohort.collect()
    cohort.close()
    cohort.exchange()
    cohort.answer()
    cohort.collect()
    assert_close_blames(cohort, "RANGE", *(f"source-{index}" for index in cohort.indices))
