import hashlib
import itertools

import pytest
import torch

from securefda.training import derive_seed
from securefda.training.seeds import seeded_torch

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
