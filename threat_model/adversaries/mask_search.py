"""T04: masks that are weaker than their keys, because of their seeds or their words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from securefda.protocol import agreement
from securefda.protocol.masking import RingVector
from securefda.protocol.secret import Secret
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64, decode
from threat_model.scores import cosine
from threat_model.sites import AggregatorSeat
from threat_model.weak_masks import Words, first_word_of_every_seed, twister_words


class FoldedSeedSearch(MaliciousAggregator):
    """Tries every seed of 24 bits for the one mask that is left on an input of which it knows a few words.

    Powers: the target's key, and the self secret of the victim, which the protocol opens for every source in the sum.
    It follows the protocol; no source colludes. In a sum of two, one pairwise mask is left then.
    Goal: the victim's update, from coordinates of which everybody knows that they do not move.
    Source: an implementation of SecAgg+ in use elsewhere, whose masks come from 32 bits of a seed.

    Args:
        seat: of the target.
        victim: roster index.
        partner: the only other source.
        still: how many coordinates at the beginning of the update are zero.
    """

    threat = "T04"

    def __init__(self, seat: AggregatorSeat, *, victim: int, partner: int, still: int) -> None:
        super().__init__(seat)
        self.victim, self.partner, self.still = victim, partner, still
        self.searched = 0

    def attack(self) -> Vector64 | None:
        """Return the victim's update, if one of the seeds explains the known words."""
        left = self.one_mask_left()
        mask = left if self.partner < self.victim else np.negative(left)
        for seed in self._candidates(mask[0]):
            if np.array_equal(twister_words(seed, self.still), mask[: self.still]):
                opened = mask - twister_words(seed, mask.size)
                clear = opened if self.partner < self.victim else np.negative(opened)
                return decode(self.heard.header, clear).update
        return None

    def one_mask_left(self) -> Words:
        """Return the victim's input without its self mask: the pairwise mask alone, where the input is zero."""
        return self._peeled(self.victim, {}).astype(np.uint32, copy=False)

    def _candidates(self, word: np.uint32) -> Iterator[int]:
        table = first_words()
        self.searched = table.size
        yield from (int(seed) for seed in np.flatnonzero(table == word))


@cache
def first_words() -> Words:
    """Return the first word of every seed; made once, 64 MiB, independent of sessions."""
    return first_word_of_every_seed()


class KeyBirthday:
    """Derives mask keys from its own secrets until two are equal.

    Powers: none but the code that everybody has.
    Goal: to know that there are few keys, whatever they look like: of 2^b keys, some 2^(b/2) secrets hit one twice.
    Source: as :class:`FoldedSeedSearch`; the birthday bound.
    """

    threat = "T04"

    def attack(self, most: int) -> int | None:
        """Return how many keys it took to repeat one; None if ``most`` keys are all different."""
        seen: set[bytes] = set()
        for number in range(most):
            secret = Secret(number.to_bytes(32, "little"))
            key = agreement.self_seed(secret, own=1, ctx2=bytes(32)).reveal()
            if key in seen:
                return number + 1
            seen.add(key)
        return None


class MaskStatistics:
    """Looks at one long masked input as numbers, and at how its bytes are distributed.

    Powers: the masked input of one source. It follows the protocol.
    Goal: anything about the input behind it; the test that scores it knows that input.
    Source: mask words made by generators of non-negative integers, or by rounding of floats, in research code.
    """

    threat = "T04"

    def __init__(self, masked: RingVector) -> None:
        self._masked = masked

    def attack(self) -> NDArray[np.float64]:
        """Return the best guess without a key: the masked words as signed numbers."""
        return self._masked.view(np.int32).astype(np.float64)

    def correlation(self, encoded: RingVector) -> float:
        """Return the guess's correlation with the encoded input, in units of ``1 / sqrt(m)``, its deviation under
        independence.
        """
        guess, secret = self.attack(), encoded.view(np.int32).astype(np.float64)
        return cosine(guess - guess.mean(), secret - secret.mean()) * math.sqrt(guess.size)

    def byte_chi_squares(self) -> list[float]:
        """Return chi-squares of the 256 byte values, for each of the four places in a word; 255 degrees of freedom."""
        places = self._masked.view(np.uint8).reshape(-1, 4).T
        expected = self._masked.size / 256
        return [float(np.sum((np.bincount(place, minlength=256) - expected) ** 2) / expected) for place in places]
