"""Counts the layers of which a round's sum shows one source alone, and prints one line per seed and setting.

With its filter FedGP leaves a source out of every layer in which its update does not point the target's way. A layer
from which all but one are left out is that source's update in the sum, up to a factor, whatever the masks. The norm
cap empties it, and others to which fewer contribute than it counts. Both are counted: layers before the caps and
after them. Rounds and sites are those of the federation file; they run here without a network, since only the parts
that the sources hand in are counted, and the next round begins from the sum of the capped ones as they are.

    python benchmarks/lone_sources.py examples/digits.toml [--seeds 1 2 3] [--set KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
from offline_rounds import OfflineSites

from securefda.aggregator.headers import expected_header
from securefda.aggregator.target import train_target
from securefda.protocol.messages import Granularity
from securefda.rules import Contribution, caps_for, contribution_norms, norm_codes, norms_of, round_plan, scale_to_caps
from securefda.site.config import FederationConfig, load_federation
from securefda.training import LocalResult


def main() -> None:
    arguments = _arguments()
    for keeps in (True, False):
        for seed in arguments.seeds:
            overrides = [*arguments.set, f"strategy.filter={str(keeps).lower()}"]
            rounds = _Rounds(load_federation(arguments.federation, overrides), seed)
            played = [rounds.contributors(number) for number in range(1, rounds.strategy.rounds + 1)]
            before, after = (np.concatenate(counts) for counts in zip(*played, strict=True))
            accuracy = rounds.target.evaluate(rounds.model, rounds.test_data).metrics["accuracy"]
            shown = f"{_shown(before)}; after the caps {_shown(after)}"
            print(f"filter {str(keeps).lower():5}  seed {seed}: {shown}; last round {accuracy:.1%}", flush=True)


def _shown(counts: np.ndarray) -> str:
    lone, none = int(np.sum(counts == 1)), int(np.sum(counts == 0))
    return f"{lone} of {counts.size} layers with one source alone, {none} with none"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="count the layers to which one source contributes alone")
    parser.add_argument("federation", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    return parser.parse_args()


class _Rounds(OfflineSites):
    """A federation's rounds, one after the other."""

    def __init__(self, config: FederationConfig, seed: int) -> None:
        super().__init__(config, seed)
        self._max_samples, self._norm_cap = config.session.max_samples, expected_header(config).norm_cap
        self._clip = config.session.clip

    def contributors(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Play a round; how many sources contribute to each layer before the caps and after them.

        Both are empty for a round without a projection.
        """
        plan = round_plan(self.strategy, number)
        target = train_target(self.target, self.model, number, plan)
        results = self.train_sources(plan, number)
        parts = [self.part(plan, target, result) for result in results]
        before = self._with_something(parts)
        self._cap(parts, results)
        after = self._with_something(parts)
        self.move(self.update_of(plan, target, parts, results))
        return (before, after) if plan.rule.projects else (np.zeros(0, int), np.zeros(0, int))

    def _cap(self, parts: list[Contribution], results: list[LocalResult]) -> None:
        """Scale the parts to the caps of the norm cap, if there is one."""
        if self._norm_cap is None:
            return
        sizes = [self.model.size] if self._norm_cap.granularity is Granularity.MODEL else self.target.sizes
        norms = [
            contribution_norms(part.vector, sizes, result.samples / self._max_samples)
            for part, result in zip(parts, results, strict=True)
        ]
        limits = [self._clip * math.sqrt(size) for size in sizes]
        reported = [norms_of(norm_codes(row, sizes, limits), sizes, limits) for row in norms]
        caps = caps_for(reported, kappa=self._norm_cap.kappa, others=self._norm_cap.others)
        for part, row in zip(parts, norms, strict=True):
            scale_to_caps(part.vector, sizes, row, caps)

    def _with_something(self, parts: list[Contribution]) -> np.ndarray:
        bounds = np.cumsum([0, *self.target.sizes])
        found = [[bool(np.any(part.vector[start:stop])) for start, stop in pairwise(bounds)] for part in parts]
        return np.sum(found, axis=0)


if __name__ == "__main__":
    main()
