"""The choice of a site's held-out rows. Each row's content alone decides, unless the target asks for strata.

A split by row numbers, or by a permutation of them, can change completely when one row is added. One more row would
then change many rows of the training data, which no bound on one row covers. With this split, one more row changes one
row only.

No split into parts of fixed sizes has that property. Where n + 1 rows have as many to train on as n rows, and one row
more changes at most one, the n + 1 rows and each n of them must train on the same rows: but not without a row that
trains. So noise does not go with strata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from securefda.errors import ConfigError
from securefda.tasks.base import TaskSettings

_TEST_SHARE, _SOURCE_TEST_SHARE = 0.2, 0.1
_LARGEST_SEED = 2**31 - 1


class HeldOut:
    """The split of a site's rows by ``test-share``, ``source-test-share``, ``split-seed`` and ``stratify``.

    It does not depend on the run's seed: a row that is held out stays so in every run. Equal rows are on one side.
    """

    def __init__(self, share: float, seed: int, *, stratify: bool = False) -> None:
        self.share, self._seed, self.stratify = share, seed, stratify

    @classmethod
    def of(cls, settings: TaskSettings) -> tuple[HeldOut, HeldOut]:
        """Return the target's split and the sources' split from the options of a task.

        Raises:
            ConfigError: an option is no number in its range.
        """
        share = settings.number("test-share", _TEST_SHARE, low=0.01, high=0.9)
        source = settings.number("source-test-share", _SOURCE_TEST_SHARE, low=0, high=0.9)
        seed = settings.count("split-seed", 0, low=0, high=_LARGEST_SEED)
        return cls(share, seed, stratify=settings.options.get("stratify") is True), cls(source, seed)

    def require_own_sides(self, site: str) -> None:
        """Raise ConfigError if one more row of a site could change on which side another one is."""
        if self.stratify:
            why = f"with it one row more at {site} can move another one of its class, and noise covers one row alone"
            raise ConfigError(
                "task.options.stratify", why, hint=f"set it to false at {site}, or train there without noise"
            )

    def sides(self, contents: Iterable[bytes], labels: Iterable[str]) -> list[bool]:
        """Return which rows are held out, each given by its content, or by the name of its group, and its label.

        With ``stratify`` rows of the same label are a stratum, or groups with the same labels. The share is held out of
        each, rounded, but at least one, and not all, where there are two. In a stratum of one the content decides.
        """
        if not self.stratify:
            return [self.holds_out(content) for content in contents]
        rows = list(zip(contents, labels, strict=True))
        labels_of: dict[bytes, set[str]] = {}
        for content, label in rows:
            labels_of.setdefault(content, set()).add(label)
        strata: dict[frozenset[str], list[bytes]] = {}
        for content in sorted(labels_of, key=self.place):
            strata.setdefault(frozenset(labels_of[content]), []).append(content)
        held_out: set[bytes] = set()
        for those in strata.values():
            count = min(max(round(self.share * len(those)), 1), len(those) - 1)
            held_out |= {*those[:count]} if count else {each for each in those if self.holds_out(each)}
        return [content in held_out for content, _ in rows]

    def holds_out(self, content: bytes) -> bool:
        """Return whether the row with this content, or the group of rows with this name, is held out.

        Its place, as a share of all places, is below the share. So the share of a small file is met only about.
        """
        return self.place(content) < self.share * 2**64

    def place(self, content: bytes) -> int:
        """Return a number of 64 bits, SHA-256 of seed and content: in the order of places, rows are shuffled."""
        digest = hashlib.sha256(b"securefda held out %d " % self._seed + content).digest()
        return int.from_bytes(digest[:8], "big")
