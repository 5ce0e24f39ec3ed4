"""Counts the layers of which a round's sum shows one source alone.

    python benchmarks/lone_sources.py --measure --data-dir DIR    run, write lone_sources.json; DIR holds fed_heart
    python benchmarks/lone_sources.py    from lone_sources.json: print the table

With its filter FedGP leaves a source out of every layer in which its update does not point the target's way. A layer
from which all but one are left out is that source's update in the sum, up to a factor, whatever the masks. The norm
cap empties it, and others to which fewer contribute than it counts. Both are counted: layers before the caps and
after them. Rounds and sites are those of the examples; they run here without a network, since only the parts that the
sources hand in are counted, and the next round begins from the sum of the capped ones as they are.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from offline_rounds import OfflineSites
from studies import as_text, shown, this_machine

from securefda.aggregator.headers import expected_header
from securefda.aggregator.target import train_target
from securefda.protocol.messages import Granularity
from securefda.rules import Contribution, caps_for, contribution_norms, norm_codes, norms_of, round_plan, scale_to_caps
from securefda.samples import sample
from securefda.site.config import FederationConfig, load_federation
from securefda.training import LocalResult

FIGURES = Path(__file__).parent / "lone_sources.json"
SEEDS = (0, 1, 2)
SETTINGS = ((True, "layer"), (True, "model"), (False, "layer"))
"""`strategy.filter` and `privacy.norm-cap-granularity`."""
EXAMPLES = {"digits": "digits", "Fed-Heart, Cleveland as target": "fed_heart"}
"""Name in the table -> sample configuration."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A run's layers, over all rounds with a projection.

    Attributes:
        data: of `EXAMPLES`.
        filter: `strategy.filter`.
        caps: `privacy.norm-cap-granularity`; κ is 1.
        seed: of the run.
        layers: how many there are.
        alone: to which one source contributes, before the norm caps.
        alone_after: the same after them.
        empty: to which none does, after them.
    """

    data: str
    filter: bool
    caps: str
    seed: int
    layers: int
    alone: int
    alone_after: int
    empty: int


def counted(data: str, keeps: bool, caps: str, seed: int, data_dir: Path) -> Counted:
    """Play a run and count."""
    overrides = [
        *(f"strategy.filter={str(keeps).lower()}", f"privacy.norm-cap-granularity={caps}", "privacy.norm-cap-kappa=1"),
        *([] if data == "digits" else [f"task.data-dir={data_dir / 'fed_heart'}", "task.options.scaling=site"]),
    ]
    rounds = _Rounds(load_federation(sample(EXAMPLES[data]), overrides), seed)
    played = [rounds.contributors(number) for number in range(1, rounds.strategy.rounds + 1)]
    before, after = (np.concatenate(counts) for counts in zip(*played, strict=True))
    return Counted(
        *(data, keeps, caps, seed, before.size),
        *(int(np.sum(before == 1)), int(np.sum(after == 1)), int(np.sum(after == 0))),
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Counts by seed, in Markdown."""
    lines = [
        ("`strategy.filter`", "caps on", "data", "layers", "one source alone, before caps", "after", "empty, after"),
        ("---",) * 7,
    ]
    for keeps, caps in SETTINGS:
        for data in EXAMPLES:
            runs = [row for row in rows if (row["data"], row["filter"], row["caps"]) == (data, keeps, caps)]
            counts = [", ".join(str(run[name]) for run in runs) for name in ("alone", "alone_after", "empty")]
            where = "each layer" if caps == "layer" else "the model"
            lines.append((str(keeps).lower(), where, data, str(runs[0]["layers"]), *counts))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The one table."""
    return {"layers": table(rows)}


def main() -> None:
    """Measure if asked to, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    if asked.measure:
        if asked.data_dir is None:
            parser.error("--measure needs --data-dir")
        cells = [(data, keeps, caps, seed) for keeps, caps in SETTINGS for data in EXAMPLES for seed in SEEDS]
        rows = [asdict(counted(*cell, asked.data_dir)) for cell in cells]
        FIGURES.write_text(as_text(rows, this_machine()))
    print(shown(tables(json.loads(FIGURES.read_text())["rows"])))


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
