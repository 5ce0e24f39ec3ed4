"""Sessions among honest sites: the sum is exact whichever sources drop out, and below the threshold nothing opens."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import numpy as np
import pytest
from cohort import PHASES, TARGET, AnySigned, Cohort, Link, leaving, rounding_of
from depth import at_depth
from phases import OVER

from securefda.errors import FaultySourceError, QuorumLost
from securefda.protocol.header_checks import default_threshold, quantisation
from securefda.protocol.messages import Layer

SIZES = range(3, 8)


def allowed_subsets(n: int, threshold: int) -> list[tuple[int, ...]]:
    """Every set of sources that may drop out of ``n`` with ``threshold`` left."""
    indices = Cohort(n).indices
    return [subset for k in range(n - threshold + 1) for subset in itertools.combinations(indices, k)]


def expected_survivors(cohort: Cohort, drops: Mapping[int, float]) -> list[int]:
    """Those whose masked input arrives: an input that has arrived stays in the sum whatever its owner does then."""
    return [index for index in cohort.indices if drops.get(index, len(PHASES)) > 2]


def assert_sum_is_exact(cohort: Cohort, drops: Mapping[int, float]) -> None:
    opened = cohort.finish()
    survivors = expected_survivors(cohort, drops)
    assert opened.survivors == set(survivors)
    assert opened.dropped == {index for index, phase in drops.items() if phase == 2}
    assert opened.faults == ()
    totals = [cohort.sum_of(sorted(part.survivors)) for part in opened.sums]
    assert opened.sum_digest == sha256(b"".join(map(quantisation(cohort.header.body).pack, totals))).digest()
    assert sorted(itertools.chain.from_iterable(part.survivors for part in opened.sums)) == survivors
    for part, total in zip(opened.sums, totals, strict=True):
        plain = quantisation(cohort.header.body).decode(total, len(part.survivors))
        assert np.array_equal(part.decoded.vector, plain.vector)
        assert np.array_equal(part.decoded.statistics, plain.statistics)


@pytest.mark.parametrize("n", SIZES)
def test_sum_is_exact_when_nobody_drops_out(n: int) -> None:
    cohort = Cohort(n)
    assert_sum_is_exact(cohort, {})
    assert all(phase is OVER for phase in cohort.phases.values())
    assert len(cohort.phases) == n


@pytest.mark.parametrize("phase", range(len(PHASES)), ids=PHASES)
@pytest.mark.parametrize("n", SIZES)
def test_sum_is_exact_for_every_allowed_subset_that_drops_out_at_a_phase(n: int, phase: int) -> None:
    for subset in allowed_subsets(n, default_threshold(n, 1, 0))[:: at_depth(7 if n > 5 else 1, 1)]:
        drops = dict.fromkeys(subset, phase)
        assert_sum_is_exact(Cohort(n, leaving(drops)), drops)


@pytest.mark.parametrize("phases", list(itertools.permutations(range(len(PHASES)), 2)))
def test_sum_is_exact_when_two_of_seven_drop_out_at_different_phases(phases: tuple[int, int]) -> None:
    for subset in list(itertools.combinations(Cohort(7).indices, 2))[:: at_depth(11, 1)]:
        drops = dict(zip(subset, phases, strict=True))
        assert_sum_is_exact(Cohort(7, leaving(drops)), drops)


@pytest.mark.parametrize("n", [4, 6, 7])
def test_sum_is_exact_at_the_least_threshold_that_is_sound(n: int) -> None:
    threshold = n // 2 + 1
    for phase in range(len(PHASES)):
        drops = dict.fromkeys(Cohort(n).indices[: n - threshold], phase)
        assert_sum_is_exact(Cohort(n, leaving(drops), {"threshold": threshold}), drops)


@pytest.mark.parametrize("bits", [16, 20, 24])
def test_sum_is_exact_in_narrow_words(bits: int) -> None:
    drops = {0: 2, 4: 3}
    assert_sum_is_exact(Cohort(7, leaving(drops), {"modulus_bits": bits}), drops)


@pytest.mark.parametrize("bits", [16, 20, 24, 32])
def test_sum_is_exact_with_as_many_inputs_at_the_range_as_the_ring_holds(bits: int) -> None:
    cohort = Cohort(5, changes={"modulus_bits": bits})
    encoding = quantisation(cohort.header.body)
    extreme = np.repeat([layer.range for layer in encoding.layers], [layer.size for layer in encoding.layers])
    statistics = np.ones(encoding.n_statistics)
    cohort.encoded = lambda index: encoding.encode(extreme, rounding_of(index), statistics)  # type: ignore[method-assign]
    opened = cohort.finish()
    np.testing.assert_allclose(opened.sums[0].decoded.vector, 5 * extreme, rtol=1e-12)
    np.testing.assert_array_equal(opened.sums[0].decoded.statistics, [5.0] * encoding.n_statistics)


def test_two_threads_and_any_order_of_arrival_give_the_same_sum_as_one() -> None:
    layers = (Layer("weight", (257, 400), 0.5, 0.5),)  # several blocks of keystream
    drops = {4: 2}
    alone = Cohort(5, leaving(drops), {"layers": layers}).finish()
    with ThreadPoolExecutor(2) as pool:
        reverse = lambda order: order[::-1]  # noqa: E731
        both = Cohort(5, leaving(drops), {"layers": layers}, arrivals=reverse, run_all=pool.map).finish()
    assert both.sum_digest == alone.sum_digest
    assert np.array_equal(both.sums[0].decoded.vector, alone.sums[0].decoded.vector)


class Recorder:
    """A link that keeps what passed, as type names by sender."""

    def __init__(self, link: Link) -> None:
        self.link, self.seen = link, list[tuple[int, str]]()

    def __call__(self, sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
        self.seen.append((sender, message.type_name))
        return self.link(sender, recipient, message)


@pytest.mark.parametrize("phase", range(len(PHASES)), ids=PHASES)
@pytest.mark.parametrize("n", SIZES)
def test_fewer_than_threshold_ends_with_the_names_of_the_missing_and_opens_nothing(n: int, phase: int) -> None:
    threshold = default_threshold(n, 1, 0)
    missing = Cohort(n).indices[: n - threshold + 1]
    record = Recorder(leaving(dict.fromkeys(missing, phase)))
    cohort = Cohort(n, record)
    with pytest.raises(QuorumLost) as lost:
        cohort.finish()
    assert lost.value.needed == threshold
    assert lost.value.missing == tuple(f"source-{index}" for index in missing)
    assert len(lost.value.have) == threshold - 1
    assert PHASES[phase][:2] in lost.value.phase
    assert cohort.opened is None
    sent_by_aggregator = {name for sender, name in record.seen if sender == TARGET}
    assert sent_by_aggregator == set(["KeyList", "ShareDelivery", "Survivors", "Consistency"][:phase])
    if phase < 4:
        assert "Unmask" not in {name for _, name in record.seen}


def test_late_masked_input_of_a_dropped_source_is_refused_and_the_sum_is_without_it() -> None:
    cohort = Cohort(5).until(2)
    late = cohort.outbox.pop(2)
    cohort.collect()
    cohort.close()
    cohort.inbox.pop(2, None)
    with pytest.raises(FaultySourceError) as refused:
        cohort.add(late)
    assert (refused.value.source_id, refused.value.check) == ("source-2", "SENDER")
    assert_sum_is_exact(cohort, {2: 2})


def test_masked_inputs_of_one_session_have_nothing_of_the_inputs_in_common() -> None:
    cohort = Cohort(3, changes={"layers": (Layer("weight", (100, 100), 0.5, 0.5),)}).until(2)
    for index in cohort.indices:
        same = np.count_nonzero(np.frombuffer(cohort.vectors[index], "<u4") == cohort.encoded(index))
        assert same <= 1  # 10007 uniform words of 32 bits: two or more equal with probability below 3e-12
