"""T04: masks show nothing of their keys and nothing of the input, though everything but one of them is known.

Masks from a seed that was folded to 32 bits were a fault of an implementation of secure aggregation in use elsewhere:
here they cannot be made, and the control shows what they would cost.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from securefda.protocol import agreement, masking
from securefda.protocol.masking import Mask
from securefda.protocol.secret import Secret
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.mask_search import FoldedSeedSearch, KeyBirthday, MaskStatistics, first_words
from threat_model.adversaries.masks import Decoded, decode
from threat_model.scores import NOTHING_LEARNT_COSINE, cosine, is_recovered
from threat_model.sites import known_update, roster_of
from threat_model.stage import MakesStage, Stage
from threat_model.switches import switched_off
from threat_model.weak_masks import FULL_KEYS, KEY_SPACE, SEEDS, SYSTEM_RANDOMNESS, UNIFORM_WORDS, twister_words

VICTIM = 2
STILL = 4
M = 1_000_000
MOST_KEYS = 2**18
FIVE_SIGMA = 5.0
CHI_SQUARE_255 = 377.1
"""Upper 10^-6 quantile with 255 degrees of freedom; five standard deviations are 6e-7. Keys are fixed here."""


def still_at_first(index: int, round_number: int, received: Any) -> Any:
    """Known updates whose first coordinates do not move, as those of a layer that gets no gradient."""
    update = known_update(index, round_number, received)
    update[:STILL] = 0
    return update


def sum_of_two(staged: MakesStage, victim: int, partner: int) -> Stage:
    adversary = partial(FoldedSeedSearch, victim=victim, partner=partner, still=STILL)
    return staged(2, aggregator=adversary, updates=still_at_first, settings={"min_others": 1})


@pytest.mark.threat("T04")
@pytest.mark.parametrize(("victim", "partner"), [(1, 2), (2, 1)])
def test_none_of_16_million_folded_seeds_explains_the_last_mask_of_an_input(
    staged: MakesStage, victim: int, partner: int
) -> None:
    stage = sum_of_two(staged, victim, partner).play()
    adversary = stage.adversary
    assert adversary.self_secret_of(victim) is not None  # one mask is left, as the adversary needs it
    assert adversary.attack() is None
    assert adversary.searched == SEEDS == 2**24
    left = decode(adversary.heard.header, adversary.one_mask_left()).vector
    assert abs(cosine(left, stage.update(victim))) < NOTHING_LEARNT_COSINE


@pytest.mark.threat("T04")
@pytest.mark.control
@pytest.mark.parametrize(("victim", "partner"), [(1, 2), (2, 1)])
def test_folded_seed_is_found_and_the_input_recovered(staged: MakesStage, victim: int, partner: int) -> None:
    stage = sum_of_two(staged, victim, partner)
    with switched_off(FULL_KEYS, roster=stage.roster):
        stage.play()
        recovered = stage.adversary.attack()
    assert is_recovered(recovered, stage.update(victim), stage.precision(victim))
    assert not is_recovered(recovered, stage.update(partner), stage.precision(victim))
    assert stage.adversary.searched == SEEDS


@pytest.mark.threat("T04")
def test_search_knows_the_twister_that_numpy_has() -> None:
    numbers = np.random.default_rng(4)
    for seed in (0, 1, SEEDS - 1, *numbers.integers(0, SEEDS, 20)):
        assert twister_words(int(seed), 1)[0] == first_words()[seed]


def masked_input() -> tuple[Any, Any]:
    """An encoded input that is anything but random, and what ``masking.mask`` makes of it with one other source."""
    encoded = np.repeat(np.array([2**27, 0, -(2**27), 2**20], np.int32).view(np.uint32), M // 4)
    ctx2 = bytes(range(32))
    pairs = {own: agreement.mask_pair(Secret(bytes([own]) * 32), own=own, ctx=ctx2) for own in (1, 2)}
    pair_seed = agreement.pair_seed(pairs[2], pairs[1].public, own=2, peer=1, ctx2=ctx2)
    self_seed = agreement.self_seed(Secret(b"2" * 32), own=2, ctx2=ctx2)
    masked = encoded.copy()
    masking.mask(masked, own=2, self_seed=self_seed, pair_seeds={1: pair_seed})
    return encoded, masked


@pytest.mark.threat("T04")
def test_a_million_masked_words_have_uniform_bytes_and_no_correlation_with_the_input() -> None:
    encoded, masked = masked_input()
    adversary = MaskStatistics(masked)
    assert max(adversary.byte_chi_squares()) < CHI_SQUARE_255
    assert abs(adversary.correlation(encoded)) < FIVE_SIGMA


@pytest.mark.threat("T04")
@pytest.mark.control
def test_masked_words_show_the_input_where_mask_words_are_never_negative() -> None:
    with switched_off(UNIFORM_WORDS, roster=roster_of(3)):
        encoded, masked = masked_input()
    adversary = MaskStatistics(masked)
    chi_squares = adversary.byte_chi_squares()
    assert chi_squares[3] > 10 * CHI_SQUARE_255  # the highest byte; the others are uniform still
    assert max(chi_squares[:3]) < CHI_SQUARE_255
    assert abs(adversary.correlation(encoded)) > 10 * FIVE_SIGMA


def streams_of_keys_that_differ_in_one_bit() -> set[bytes]:
    """The first four words under a key and under each of the 256 keys that differ from it in one bit."""
    key, streams = int.from_bytes(bytes(range(32)), "little"), set()
    for flip in [0, *(1 << bit for bit in range(256))]:
        words = np.zeros(4, np.uint32)
        masking.add_masks(words, [Mask(Secret((key ^ flip).to_bytes(32, "little")))])
        streams.add(words.tobytes())
    return streams


@pytest.mark.threat("T04")
def test_masks_from_a_folded_seed_cannot_be_made_since_every_bit_of_a_key_counts() -> None:
    assert len(streams_of_keys_that_differ_in_one_bit()) == 257


@pytest.mark.threat("T04")
@pytest.mark.control
def test_of_a_folded_key_24_bits_count() -> None:
    with switched_off(FULL_KEYS, roster=roster_of(3)):
        assert len(streams_of_keys_that_differ_in_one_bit()) == 25


@pytest.mark.threat("T04")
def test_masks_from_a_folded_seed_cannot_be_made_since_keys_have_32_bytes() -> None:
    ctx2, secret = bytes(32), Secret(bytes(range(32)))
    pair = agreement.mask_pair(secret, own=1, ctx=ctx2)
    assert len(agreement.self_seed(secret, own=1, ctx2=ctx2)) == 32
    assert len(agreement.pair_seed(pair, pair.public, own=1, peer=2, ctx2=ctx2)) == 32
    for length in (3, 4, 8, 16, 24, 31, 33):
        with pytest.raises(ValueError, match="a mask key has 32 bytes"):
            Mask(Secret(bytes(length)))


@pytest.mark.threat("T04")
def test_masks_from_a_folded_seed_cannot_be_made_since_there_are_more_than_2_to_the_32_keys() -> None:
    """With 2^32 keys, this many draws repeat one with probability 0.9997; with 2^256 keys, with 2^-221."""
    assert KeyBirthday().attack(MOST_KEYS) is None


@pytest.mark.threat("T04")
@pytest.mark.control
def test_of_keys_that_were_folded_to_32_bits_one_comes_twice() -> None:
    with switched_off(KEY_SPACE, roster=roster_of(3)):
        assert KeyBirthday().attack(MOST_KEYS) is not None


def played_with_seeds(staged: MakesStage, updates: Any) -> Stage:
    """A play before which every generator that can be seeded was."""
    random.seed(4)
    np.random.seed(4)
    torch.manual_seed(4)
    return staged(3, aggregator=MaliciousAggregator, updates=updates).play()


def difference(staged: MakesStage) -> tuple[Decoded, Stage]:
    """Return the difference of the victim's masked inputs in two plays; its update is zero in the second."""
    first = played_with_seeds(staged, known_update)
    second = played_with_seeds(
        staged, lambda index, number, received: known_update(index, number, received) * np.float32(index != VICTIM)
    )
    with_update, without = (stage.adversary.heard.vectors[VICTIM] for stage in (first, second))
    return decode(first.adversary.heard.header, with_update - without), first


@pytest.mark.threat("T04")
def test_seeding_every_generator_that_can_be_seeded_repeats_no_mask(staged: MakesStage) -> None:
    left, stage = difference(staged)
    assert abs(cosine(left.vector, stage.update(VICTIM))) < NOTHING_LEARNT_COSINE


@pytest.mark.threat("T04")
@pytest.mark.control
def test_seeded_secrets_repeat_the_masks_and_give_the_update_away(staged: MakesStage) -> None:
    with switched_off(SYSTEM_RANDOMNESS, roster=roster_of(3)):
        left, stage = difference(staged)
    estimate = left.vector / stage.weight(VICTIM)
    assert is_recovered(estimate, stage.update(VICTIM), stage.precision(VICTIM))
