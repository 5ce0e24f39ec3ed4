"""What norm caps do to sums of three to five sources, for each choice of their settings.

    python benchmarks/few_sources.py --measure --data-dir DIR --cache FOLDER    run what FOLDER lacks, write the figures
    python benchmarks/few_sources.py    from few_sources.json: print the tables

Every run is a simulated federation of an example; DIR holds fed_heart and fashion_mnist. Each source's contribution is
measured as it enters the caps and as it leaves them, and the step of the round as the target computes it. ``--trace
STUDY`` prints the norms, floors and caps of one run, source by source.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unittest.mock import patch

import numpy as np
from studies import Cache, as_text, measure, shown, this_machine

from securefda.aggregator import model as target_model
from securefda.aggregator.rounds import RoundTotal, update_of
from securefda.aggregator.target import TargetRound
from securefda.bench.accuracy.federated import Job
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.records import REPORTED_ROUNDS
from securefda.operations.run_folder import read_run
from securefda.protocol.contribution import LEAST_STEPS, AppliedCaps, NormReport, RoundTerms, apply_caps
from securefda.protocol.encoding import Vector64
from securefda.rules import Contribution, Rule, contribution_norms
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.source import rounds as source_rounds

FIGURES = Path(__file__).parent / "few_sources.json"
_LAYER, _MODEL = "privacy.norm-cap-granularity=layer", "privacy.norm-cap-granularity=model"
_GP, _DA = "strategy.rule=fedgp_auto", "strategy.rule=fedda_auto"
_FILTER, _NO_FILTER = "strategy.filter=true", "strategy.filter=false"

_ALL_ANSWER = "fedgp_auto, by layer, all must answer"

CHOICES: dict[str, tuple[str, ...]] = {
    "target_only": ("strategy.rule=target_only",),
    "fedgp_auto, off": (_GP, _FILTER, "privacy.norm-cap-kappa=0"),
    "fedgp_auto, by layer": (_GP, _FILTER, _LAYER),
    "fedgp_auto, by layer, κ = 0.25": (_GP, _FILTER, _LAYER, "privacy.norm-cap-kappa=0.25"),
    f"{_ALL_ANSWER}, 1 may collude": (_GP, _FILTER, _LAYER, "session.threshold=5", "privacy.max-colluders=1"),
    _ALL_ANSWER: (_GP, _FILTER, _LAYER, "session.threshold=5", "privacy.max-colluders=0"),
    "fedgp_auto, on the model": (_GP, _FILTER, _MODEL),
    "fedgp_auto, on the model, κ = 0.25": (_GP, _FILTER, _MODEL, "privacy.norm-cap-kappa=0.25"),
    "fedgp_auto, no filter, by layer": (_GP, _NO_FILTER, _LAYER),
    "fedda_auto, off": (_DA, "privacy.norm-cap-kappa=0"),
    "fedda_auto, by layer": (_DA, _LAYER),
}
"""Rule and caps -> settings; κ is 1 unless it says otherwise."""

STUDIES: dict[str, tuple[str, tuple[str, ...], int]] = {
    "digits, 5 sources": ("digits", (), 3),
    "digits, 3 sources": ("three_hospitals", ("strategy.rounds=20",), 3),
    "Fed-Heart, 3 sources": ("fed_heart", ("task.options.scaling=site",), 3),
    "noisy Fashion-MNIST, 5 sources": (
        "noisy_fashion_mnist",
        (f"federation.sources={json.dumps([f'source-{number}' for number in range(1, 6)])}",),
        1,
    ),
}
"""Study -> example, settings, number of seeds."""
_DATA = {"fed_heart": "fed_heart", "noisy_fashion_mnist": "fashion_mnist"}
"""Example -> its folder of data."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    study: str
    choice: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return "/".join(str(value) for value in asdict(self).values())

    def job(self, given: Iterable[str]) -> Job:
        """The federation and the seed; ``given`` are settings of the caller."""
        example, settings, _ = STUDIES[self.study]
        return Job(load_federation(sample(example), [*settings, *CHOICES[self.choice], *given]), self.seed)


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run gave, over its rounds with a rule that adapts; all but the accuracy are shares from 0 to 1.

    Attributes:
        accuracy: on the target's test rows, mean of the last five rounds, in percent.
        absent: layers and sources whose contribution is zero before the caps: the filter leaves the source out.
        below: layers and sources whose contribution is below the floor, and not zero.
        unseen: layers and rounds that are zero in the sum without any cap.
        emptied: layers and rounds that the caps set to zero at every source.
        kept: what is left of the contributions' squared norms under the caps, mean over the rounds.
        share: norm of V / n over the norm of the step, median over the rounds.
        alone: layers and rounds with one source alone, after the caps.
    """

    accuracy: float
    absent: float = 0.0
    below: float = 0.0
    unseen: float = 0.0
    emptied: float = 0.0
    kept: float = 0.0
    share: float = 0.0
    alone: float = 0.0


@dataclass(slots=True)
class Watch:
    """The norms of the contributions of a run, by layer, and the lengths of its steps."""

    before: dict[int, list[Vector64]] = field(default_factory=dict)
    after: dict[int, list[Vector64]] = field(default_factory=dict)
    floors: dict[int, Vector64] = field(default_factory=dict)
    shares: list[float] = field(default_factory=list)

    def caps(
        self, terms: RoundTerms, own: NormReport | None, reports: Mapping[int, bytes], contribution: Contribution
    ) -> AppliedCaps | None:
        """Apply the caps, and keep the norms before and after, weighted by rows where there is a norm report."""
        norms = partial(contribution_norms, contribution.vector, terms.sizes)
        before, number = norms(1.0), terms.header.round
        length = float(np.linalg.norm(before))
        weight = float(np.linalg.norm(own.exact)) / length if own and length else 1.0
        applied = apply_caps(terms, own, reports, contribution)
        if terms.header.rule.rule != Rule.SOURCE_ONLY:
            self.before.setdefault(number, []).append(weight * before)
            self.after.setdefault(number, []).append(norms(weight))
            steps = [terms.encoding.step(layer) for layer in range(len(terms.sizes))]
            self.floors[number] = LEAST_STEPS * np.array(steps) * np.sqrt(terms.sizes)
        return applied

    def step(self, rule: Rule, total: RoundTotal, target: TargetRound | None, max_samples: int) -> Vector64:
        """Compute the round's step, and keep the sources' share of it."""
        update = update_of(rule, total, target, max_samples)
        if rule is not Rule.SOURCE_ONLY:
            length = float(np.linalg.norm(update))
            self.shares.append(float(np.linalg.norm(total.vector)) / total.samples / length if length else 0.0)
        return update

    def figures(self, accuracy: float) -> Figures:
        """All shares."""
        if not self.before:
            return Figures(accuracy)
        before, after = (np.array(list(kept.values())) for kept in (self.before, self.after))  # rounds, sources, layers
        floors = np.array(list(self.floors.values()))[:, np.newaxis]
        squares_before, squares_after = (np.sum(kept**2, axis=(1, 2)) for kept in (before, after))
        there, unseen = squares_before > 0, ~before.any(axis=1)
        return Figures(
            accuracy,
            absent=float(np.mean(before == 0)),
            below=float(np.mean((before > 0) & (before < floors))),
            unseen=float(np.mean(unseen)),
            emptied=float(np.mean(~after.any(axis=1) & ~unseen)),
            kept=float(np.mean(squares_after[there] / squares_before[there])) if there.any() else 0.0,
            share=median(self.shares),
            alone=float(np.mean(np.count_nonzero(after, axis=1) == 1)),
        )


def watched(job: Job) -> tuple[float, Watch]:
    """Run one federation to its end: its accuracy, and what was seen of its contributions."""
    watch = Watch()
    with (
        tempfile.TemporaryDirectory() as name,
        patch.object(source_rounds, "apply_caps", watch.caps),
        patch.object(target_model, "update_of", watch.step),
    ):
        simulate(job.config, Path(name), job.seed, SilentReporter())
        lines = read_run(Path(name)).rounds
    return 100 * fmean(line["accuracy"] for line in lines[-REPORTED_ROUNDS:]), watch


def run_cell(job: Job) -> Figures:
    """The figures of one federation."""
    accuracy, watch = watched(job)
    return watch.figures(accuracy)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means over the seeds, in Markdown."""
    lines = [
        "| task | rule, caps | seeds | accuracy, % | layers without any source, % | emptied by caps, % | "
        "left of the squared norms, % | one source alone, % | sources' share of the step, % |",
        f"|---|---|{'---|' * 7}",
    ]
    for study in STUDIES:
        for choice in CHOICES:
            runs = [row for row in rows if (row["study"], row["choice"]) == (study, choice)]
            if not runs:
                continue
            names = ("unseen", "emptied", "kept", "alone", "share")
            shares = [100 * fmean(run[name] for run in runs) for name in names]
            of_rule = ["–"] * 5 if choice == "target_only" else [_percent(share) for share in shares]
            accuracy = f"{fmean(run['accuracy'] for run in runs):.1f}"
            lines.append(f"| {' | '.join((study, choice, str(len(runs)), accuracy, *of_rule))} |")
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{share:.0f}" if share >= 1 or share == 0 else f"{share:.1g}"


ATTACKS = (  # sources, κ, others that count, by layer, filter
    (5, 1.0, 2, True, True),
    (5, 0.25, 2, True, True),
    (5, 1.0, 4, True, True),
    (5, 1.0, 3, True, True),
    (5, 1.0, 2, False, True),
    (5, 0.25, 2, False, True),
    (5, 1.0, 2, True, False),
    (3, 1.0, 2, True, True),
    (3, 0.25, 2, True, True),
    (3, 1.0, 2, False, True),
    (3, 0.25, 2, False, True),
    (3, 1.0, 2, True, False),
)


def attack_rows() -> list[dict[str, Any]]:
    """What a target gains that makes up its update (T22), by the threat register's own search.

    The sources' updates are known to it: ``unrelated``, orthogonal but for chance; or ``alike`` but for the victim's,
    at a cosine of 0.97.
    """
    sys.path.insert(0, str(FIGURES.parents[1]))  # the register of threats is not installed
    from threat_model.adversaries.crafted_target import Search  # noqa: PLC0415

    rows, sizes, draws = [], (2048, 2048), np.random.default_rng(22)
    for sources, kappa, others, by_layer, filtered in ATTACKS:
        row: dict[str, Any] = {"sources": sources, "kappa": kappa, "others": others}
        row |= {"by_layer": by_layer, "filtered": filtered}
        own, shared = draws.normal(size=(sources, sum(sizes))), draws.normal(size=sum(sizes))
        for name, updates in {"unrelated": own, "alike": np.vstack([own[:1], 0.85 * shared + 0.15 * own[1:]])}.items():
            known = {index: update.astype(np.float32) for index, update in enumerate(updates, 1)}
            weights = dict.fromkeys(known, 1.0)
            search = Search(known, weights, sizes, 1, kappa, others, others, by_layer, negative=not filtered)
            row[name] = round(search.best(starts=4, sweeps=6, seed=22)[1], 3)
        rows.append(row)
    return rows


def attack_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """The attack's cosines beside the bound, in Markdown."""
    lines = [
        "| sources | others that count | κ | caps | filter | bound | found, unrelated | alike | bound in one layer |",
        f"|{'---|' * 9}",
    ]
    for row in rows:
        bound = f"{1 / math.sqrt(1 + row['kappa']):.2f}"
        cells = [str(row["sources"]), str(row["others"]), f"{row['kappa']:g}"]
        cells += ["by layer" if row["by_layer"] else "on the model", "yes" if row["filtered"] else "no", bound]
        cells += [f"{row['unrelated']:.2f}", f"{row['alike']:.2f}", bound if row["by_layer"] else "none"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Both tables."""
    return {
        "caps": table([row for row in rows if "choice" in row]),
        "attack": attack_table(row for row in rows if "unrelated" in row),
    }


def trace(study: str, data: Callable[[str], list[str]]) -> None:
    """Print each contribution's norms of one run under the study's own settings, before and after the caps."""
    example, settings, _ = STUDIES[study]
    _, watch = watched(Job(load_federation(sample(example), [*settings, *data(study)]), 0))
    with np.printoptions(precision=3, linewidth=160):
        for number, before in watch.before.items():
            print(f"round {number}, floors {watch.floors[number]}")
            for one, left in zip(before, watch.after[number], strict=True):
                print(f"  {one} -> {left}")


def main() -> None:
    """Measure if asked to, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--trace", choices=STUDIES)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cache", type=Path)
    asked = parser.parse_args()

    def data(study: str) -> list[str]:
        folder = _DATA.get(STUDIES[study][0])
        return [] if folder is None else [f"task.data-dir={asked.data_dir / folder}"]

    if (asked.measure and asked.cache is None) or ((asked.measure or asked.trace) and asked.data_dir is None):
        parser.error("--measure and --trace need --data-dir, and --measure needs --cache")
    if asked.trace:
        return trace(asked.trace, data)
    if asked.measure:
        every = [(study, seed) for study, (_, _, seeds) in STUDIES.items() for seed in range(seeds)]
        cells = [Cell(study, choice, seed) for study, seed in every for choice in CHOICES]
        cells = [cell for cell in cells if _ALL_ANSWER not in cell.choice or cell.study == "digits, 5 sources"]
        cells.sort(key=lambda cell: (cell.seed, cell.study.startswith("noisy")))
        cache = Cache(asked.cache, "few_sources")
        with ProcessPoolExecutor(1) as pool:
            measure(pool, run_cell, cells, cache, {study: data(study) for study in STUDIES}, lambda *_: None)
        known = cache.read()
        rows = [asdict(cell) | known[cell.key] for cell in cells if cell.key in known]
        FIGURES.write_text(as_text([*rows, *attack_rows()], this_machine()))
    return print(shown(tables(json.loads(FIGURES.read_text())["rows"])))


if __name__ == "__main__":
    main()
