import hashlib
import itertools
import os

import pytest
import torch

from securefda.training import derive_seed
from securefda.training.seeds import secret_torch, seeded_torch

CPU = torch.device("cpu")


def test_derived_seed_is_the_documented_hash():
    digest = hashlib.sha256(b"s16:securefda/1/seed" + b"i1:7" + b"s2:va" + b"i1:3").digest()
    assert derive_seed(7, "va", 3) == int.from_bytes(digest[:8], "big") // 2 == 478232453971408990


def test_no_two_purposes_share_a_seed():
    purposes = [(), ("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), (1,), ("1",), (11,), (1, 1), (-1,), ("i1:1",)]
    seeds = [derive_seed(seed, *parts) for seed in (0, 1, 11) for parts in purposes]
    assert len(set(seeds)) == len(seeds)


def test_seeds_have_63_bits_and_use_them():
    seeds = [derive_seed(0, number) for number in range(1000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    # The largest of 1000 uniform numbers is below 0.97 of the range with probability 6e-14.
    assert max(seeds) > 0.97 * 2**63


@pytest.mark.parametrize("part", [1.0, None, True, b"va"])
def test_part_of_another_type_is_refused(part):
    with pytest.raises(TypeError, match="derived from str and int"):
        derive_seed(0, part)


def test_seeded_block_repeats_and_leaves_the_global_generator_as_it_was():
    torch.manual_seed(1)
    expected_after = torch.rand(3)
    drawn = []
    for _, disturbance in itertools.product(range(2), (3, 4)):
        torch.manual_seed(1)
        with seeded_torch(99, CPU):
            drawn.append(torch.rand(3))
        assert torch.equal(torch.rand(3), expected_after)
        torch.manual_seed(disturbance)
    assert all(torch.equal(first, drawn[0]) for first in drawn)


def stream(*parts):
    """A source of random bytes that gives these, in order."""
    left = list(parts)
    return lambda length: left.pop(0)


def drawn_with(random_bytes):
    with secret_torch(random_bytes, CPU):
        return torch.rand(700, dtype=torch.float64)


def test_secret_block_draws_from_a_state_of_which_every_word_counts():
    """A seed alone would not do: torch keeps 32 bits of it, as the companion shows."""
    words = [bytes(4) for _ in range(624)]
    words[0] = b"\xff" * 4
    base = drawn_with(stream(bytes(8), b"".join(words)))
    for changed in (1, 300, 623):
        other = [*words[:changed], b"\x01\x02\x03\x84", *words[changed + 1 :]]
        assert not torch.equal(drawn_with(stream(bytes(8), b"".join(other))), base)


def test_a_seed_that_differs_beyond_32_bits_gives_the_same_numbers():
    """Companion of the test above."""
    drawn = []
    for seed in (1, 1 + 2**32):
        with seeded_torch(seed, CPU):
            drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


def test_secret_block_leaves_the_global_generator_as_it_was_and_never_repeats():
    torch.manual_seed(1)
    expected_after = torch.rand(3)
    drawn = []
    for _ in range(2):
        torch.manual_seed(1)
        drawn.append(drawn_with(os.urandom))
        assert torch.equal(torch.rand(3), expected_after)
    assert not torch.equal(*drawn)
