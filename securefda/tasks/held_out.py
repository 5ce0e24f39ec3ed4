"""The choice of a site's held-out rows. Each row's content alone decides, never the rows beside it.

A split by row numbers, or by a permutation of them, can change completely when one row is added. One more row would
then change many rows of the training data, which no bound on one row covers. With this split, one more row changes one
row only.
"""

from __future__ import annotations

import hashlib

from securefda.tasks.base import TaskSettings

_TEST_SHARE, _SOURCE_TEST_SHARE = 0.2, 0.1
_LARGEST_SEED = 2**31 - 1


class HeldOut:
    """The split of a site's rows by ``test-share``, ``source-test-share`` and ``split-seed``.

    It does not depend on the run's seed: a row that is held out stays so in every run. Equal rows are on one side.
    """

    def __init__(self, share: float, seed: int) -> None:
        self.share, self._seed = share, seed

    @classmethod
    def of(cls, settings: TaskSettings) -> tuple[HeldOut, HeldOut]:
        """Return the target's split and the sources' split from the options of a task.

        Raises:
            ConfigError: an option is no number in its range.
        """
        share = settings.number("test-share", _TEST_SHARE, low=0.01, high=0.9)
        source = settings.number("source-test-share", _SOURCE_TEST_SHARE, low=0.01, high=0.9)
        seed = settings.count("split-seed", 0, low=0, high=_LARGEST_SEED)
        return cls(share, seed), cls(source, seed)

    def holds_out(self, content: bytes) -> bool:
        """Return whether the row with this content, or the group of rows with this name, is held out.

        Its place, as a share of all places, is below the share. So the share of a small file is met only about.
        """
        return self.place(content) < self.share * 2**64

    def place(self, content: bytes) -> int:
        """Return a number of 64 bits, SHA-256 of seed and content: in the order of places, rows are shuffled."""
        digest = hashlib.sha256(b"securefda held out %d " % self._seed + content).digest()
        return int.from_bytes(digest[:8], "big")
