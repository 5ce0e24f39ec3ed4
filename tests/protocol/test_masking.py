import threading
from typing import Any

import numpy as np
import pytest
import secagg_oracles as oracle
from depth import at_depth
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from securefda.protocol import masking
from securefda.protocol.masking import KEYSTREAM_PER_THREAD, useful_threads
from securefda.protocol.secret import Secret


class Cohort:
    """n parties with random inputs and fixed keys, before anyone has masked."""

    def __init__(self, n: int, length: int = 50) -> None:
        read = oracle.tape(f"cohort {n} {length}")
        numbers = np.random.default_rng([n, length])
        self.inputs = [numbers.integers(0, 2**32, length, np.uint32) for _ in range(n)]
        self.self_seeds = {own: Secret(read(32)) for own in range(n)}
        self.pair_seeds: dict[int, dict[int, Secret]] = {own: {} for own in range(n)}
        for low in range(n):
            for high in range(low + 1, n):
                self.pair_seeds[low][high] = self.pair_seeds[high][low] = Secret(read(32))

    def masked(self, own: int, *, threads: int = 1) -> NDArray[Any]:
        vector = self.inputs[own].copy()
        seeds = self.pair_seeds[own]
        masking.mask(vector, own=own, self_seed=self.self_seeds[own], pair_seeds=seeds, threads=threads)
        return vector

    def total(self, members: list[int]) -> NDArray[Any]:
        total = np.zeros(self.inputs[0].size, np.uint32)
        for own in members:
            masking.accumulate(total, self.masked(own))
        return total

    def seeds_with(self, dropped: list[int], survivors: list[int]) -> dict[int, dict[int, Secret]]:
        return {peer: {own: self.pair_seeds[peer][own] for own in survivors} for peer in dropped}

    def clear_sum(self, members: list[int]) -> NDArray[Any]:
        return np.sum([self.inputs[own] for own in members], axis=0, dtype=np.uint32)


@settings(max_examples=at_depth(50, 500), deadline=None)
@given(n=st.integers(2, 7), data=st.data())
def test_sum_opens_for_every_set_of_survivors(n: int, data: st.DataObject) -> None:
    cohort = Cohort(n)
    survivors = data.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True))
    dropped = [own for own in range(n) if own not in survivors]
    total = cohort.total(survivors)
    self_seeds = {own: cohort.self_seeds[own] for own in survivors}
    masking.unmask(total, self_seeds=self_seeds, dropped=cohort.seeds_with(dropped, survivors))
    np.testing.assert_array_equal(total, cohort.clear_sum(survivors))


def test_pairwise_masks_cancel_when_nobody_drops() -> None:
    cohort = Cohort(5)
    self_masks = np.zeros(50, np.uint32)
    for seed in cohort.self_seeds.values():
        self_masks += np.frombuffer(oracle.keystream(seed.reveal(), 200), "<u4")
    np.testing.assert_array_equal(cohort.total([0, 1, 2, 3, 4]) - self_masks, cohort.clear_sum([0, 1, 2, 3, 4]))


def test_two_threads_mask_and_open_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors as long as it takes for the second thread to be started."""
    used, keystream = set(), masking.keystream
    monkeypatch.setattr(masking, "keystream", lambda *at: used.add(threading.get_ident()) or keystream(*at))
    cohort = Cohort(3, length=2 * KEYSTREAM_PER_THREAD // (3 * 4) + 1)
    assert useful_threads(3 * cohort.inputs[0].nbytes, threads=2) == 2
    masked = cohort.masked(0)
    total = masked + cohort.masked(1)
    assert used == {threading.get_ident()}
    np.testing.assert_array_equal(cohort.masked(0, threads=2), masked)
    assert len(used) == 2
    used.clear()
    self_seeds = {own: cohort.self_seeds[own] for own in (0, 1)}
    masking.unmask(total, self_seeds=self_seeds, dropped=cohort.seeds_with([2], [0, 1]), threads=2)
    assert len(used) == 2
    np.testing.assert_array_equal(total, cohort.clear_sum([0, 1]))


@pytest.mark.parametrize("left_on", ["self mask of a survivor", "pairwise mask with the dropped party"])
def test_one_mask_left_on_hides_the_sum(left_on: str) -> None:
    cohort = Cohort(4)
    survivors, total = [0, 1, 3], cohort.total([0, 1, 3])
    self_seeds = {own: cohort.self_seeds[own] for own in survivors}
    seeds = cohort.seeds_with([2], survivors)
    foreign = Secret(bytes(32))
    if left_on.startswith("self"):
        self_seeds[1] = foreign
    else:
        seeds[2][1] = foreign
    masking.unmask(total, self_seeds=self_seeds, dropped=seeds)
    assert np.mean(total == cohort.clear_sum(survivors)) < 0.1


def test_late_input_of_a_dropped_party_stays_hidden_by_its_self_mask() -> None:
    """Its master is open by then, so all its pairwise masks come off; what is left is input plus self mask."""
    cohort = Cohort(4)
    late = cohort.masked(2)
    for peer, seed in cohort.pair_seeds[2].items():
        stream = np.frombuffer(oracle.keystream(seed.reveal(), 200), "<u4")
        late = late - stream if peer < 2 else late + stream
    self_mask = np.frombuffer(oracle.keystream(cohort.self_seeds[2].reveal(), 200), "<u4")
    np.testing.assert_array_equal(late, cohort.inputs[2] + self_mask)


@pytest.mark.parametrize("peers", [[], [1]])
def test_mask_without_a_peer_or_with_oneself_is_refused_and_changes_nothing(peers: list[int]) -> None:
    cohort = Cohort(3)
    vector = cohort.inputs[1].copy()
    seeds = {peer: Secret(bytes(32)) for peer in peers}
    with pytest.raises(ValueError, match="peer"):
        masking.mask(vector, own=1, self_seed=cohort.self_seeds[1], pair_seeds=seeds)
    np.testing.assert_array_equal(vector, cohort.inputs[1])


def test_mask_with_one_malformed_key_changes_nothing() -> None:
    cohort = Cohort(3)
    vector = cohort.inputs[0].copy()
    seeds = {1: cohort.pair_seeds[0][1], 2: Secret(bytes(31))}
    with pytest.raises(ValueError, match="mask key"):
        masking.mask(vector, own=0, self_seed=cohort.self_seeds[0], pair_seeds=seeds)
    np.testing.assert_array_equal(vector, cohort.inputs[0])


@pytest.mark.parametrize(
    ("survivors", "dropped", "seeds_with"),
    [([], [2], []), ([0, 1, 2], [2], [0, 1]), ([0, 1], [2], [0, 1, 3])],
    ids=["no survivor", "dropped survivor", "seed of a stranger"],
)
def test_unmask_with_inconsistent_sets_is_refused_and_changes_nothing(
    survivors: list[int], dropped: list[int], seeds_with: list[int]
) -> None:
    cohort = Cohort(4)
    total = cohort.total([0, 1, 3])
    before = total.copy()
    self_seeds = {own: cohort.self_seeds[own] for own in survivors}
    with pytest.raises(ValueError, match="dropped"):
        masking.unmask(total, self_seeds=self_seeds, dropped=cohort.seeds_with(dropped, seeds_with))
    np.testing.assert_array_equal(total, before)


@pytest.mark.parametrize("masked", [np.zeros(49, np.uint32), np.zeros(50, np.uint64), np.zeros(50, np.int32)])
def test_input_of_another_shape_or_ring_is_not_added(masked: NDArray[np.uint32]) -> None:
    total = np.ones(50, np.uint32)
    with pytest.raises(ValueError, match=r"does not add|flat array of uint32"):
        masking.accumulate(total, masked)
    assert total.tolist() == [1] * 50


def test_sum_wraps_modulo_the_ring() -> None:
    total = np.array([2**32 - 1, 5], np.uint32)
    masking.accumulate(total, np.array([2, 5], np.uint32))
    assert total.tolist() == [1, 10]
