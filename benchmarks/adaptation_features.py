"""All rules on frozen features of reviews and photos, and adaptation at the target after source_only.

    python benchmarks/adaptation_features.py --measure --data-dir DIR --cache FOLDER [--workers N] [--seeds N]
    python benchmarks/adaptation_features.py    from adaptation_features.json: print the tables

DIR holds ``amazon_review``, ``office_caltech`` and ``pacs``. Each domain is the target once, and the others are its
sources. A run is ``securefda simulate`` at visibility individual, without norm caps, of the network of
independent/fada.py: two linear layers, a disentangler, a linear classifier. A row is varied by dropping features.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from adaptation import FIRST_SEED, MOST_SEEDS, VariantCell, command_line, mean_and_spread, rows_of
from studies import Cache, as_text, markdown, measure, shown, this_machine
from torch import Tensor, nn

from securefda.bench.accuracy.federated import Job
from securefda.bench.accuracy.suites import DATA
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.tasks import Disentangled
from securefda.tasks.features import Features

FIGURES = Path(__file__).with_suffix(".json")
HIDDEN, EXTRACTED, INVARIANT, DROPPED = 64, 32, 32, 0.2
TITLES = {"amazon-reviews": "Amazon reviews", "office-caltech": "Office-Caltech10", "pacs": "PACS"}
ROUNDS, WARM_UP = {"amazon-reviews": 10, "office-caltech": 20, "pacs": 20}, 2
FEATURE_ROWS = {"amazon-reviews": 256, "office-caltech": 128}  # dslr has 157 rows
ADAPTED = "source_only"
TOO_FEW = "dslr"
"""A target of 157 rows, to which ten classes cannot be adapted; its last model counts in the mean."""

SENDING = ("f_dann", "f_dan", "fada_attention", "fada_adversarial", "fada")
"""Rules with features of the target's rows at every source; not measured on PACS."""

WITH_LABELS = "fedda_auto"
NAMES = {
    "alone": "target_only",
    "warm": "warm_target",
    WITH_LABELS: "fedda_auto",
    ADAPTED: "source_only",
    "adapted": "source_only, adapted",
    **{rule: rule for rule in SENDING},
}
"""What a run's figure, or its rule, is called in the table."""

NOISES = {"no noise": (0.001, 1e9), "ε = 8": (1.673, 8), "ε = 4": (2.814, 4)}
"""In place of a rule, on PACS: source_only with noise -> its multiplier, and the ε that each ledger permits."""

OF_NOISE = (
    *("task.options.hidden=64", f"task.options.dropped={DROPPED}", "strategy.rounds=10", "training.source.epochs=2"),
    *("training.source.optimizer=sgd", "training.source.learning-rate=0.3", "training.source.momentum=0.9"),
    "training.source.batch-size=500",
)
"""With noise at the sources: the task as it is, large steps."""

OF_SITES = [f"training.{side}.{key}" for side in ("source", "target") for key in ("optimizer=adam", "threads=1")]
WEIGHT = 0.1
LOSSES = {"adversarial": 1.0, "entropy": 0.5, "information": 0.005, "reconstruction": 0.5}
"""Weights of the losses, in units of the adversarial one's: those that independent/fada.py found best."""


class Scaled(nn.Module):
    """Rows of length 1 to rows of root mean square 1."""

    def forward(self, rows: Tensor) -> Tensor:
        """Return the rows, (n, d)."""
        return rows * math.sqrt(rows.shape[1])


class HiddenLayers(Features):
    """The task of features with layers before its last one, the two parts that ``fada`` needs, and varied rows."""

    def model(self) -> nn.Module:
        """Return features (n, d) -> a logit for each class."""
        rows, head = super().model()
        extractor = nn.Sequential(
            *(rows, Scaled(), nn.Linear(head.in_features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, EXTRACTED), nn.ReLU())
        )
        invariant, specific = (nn.Sequential(nn.Linear(EXTRACTED, INVARIANT), nn.ReLU()) for _ in range(2))
        return Disentangled(extractor, invariant, specific, nn.Linear(INVARIANT, head.out_features))

    def varied(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Return the rows, a fifth of whose features are 0."""
        return features * (torch.rand(features.shape, generator=generator) >= DROPPED)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run gave, in percent on the target's test rows.

    Attributes:
        accuracy: of the run's last model.
        adapted: of the adapted model, kept or not; None where none was made.
        kept: whether it was kept.
        alone, warm: of the target alone, and of the warm-started target; with labels only.
    """

    accuracy: float
    adapted: float | None = None
    kept: bool | None = None
    alone: float | None = None
    warm: float | None = None


def run_cell(job: Job) -> Figures:
    """Run one federation to its end."""
    with tempfile.TemporaryDirectory() as folder:
        summary = simulate(job.config, Path(folder), job.seed, SilentReporter())
    adapted, alone, warm = summary.adapted, summary.target_only, summary.warm_target
    return Figures(
        accuracy=100 * (summary.final_accuracy or math.nan),
        adapted=100 * adapted["accuracy"] if adapted else None,
        kept=adapted["kept"] if adapted else None,
        alone=100 * alone["final"] if alone else None,
        warm=100 * warm["final"] if warm else None,
    )


def cells(seeds: int = MOST_SEEDS) -> Iterator[VariantCell]:
    """Every run, seed by seed."""
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for rule in (ADAPTED, WITH_LABELS, *SENDING):
            for data in TITLES:
                for target in DATA[data].targets if rule not in SENDING or data in FEATURE_ROWS else ():
                    yield VariantCell(f"{data}/{target}", rule, seed, DATA[data].example, _settings(data, target, rule))
        for name, (noise, epsilon) in NOISES.items():
            for target in DATA["pacs"].targets:
                budget = (f"training.source.dp.noise-multiplier={noise}", f"privacy.budget.target-epsilon={epsilon}")
                settings = [one for one in _settings("pacs", target, ADAPTED) if not one.startswith("task.factory")]
                yield VariantCell(f"pacs/{target}", name, seed, DATA["pacs"].example, (*settings, *OF_NOISE, *budget))


def _settings(data: str, target: str, rule: str) -> tuple[str, ...]:
    settings = (
        *(*DATA[data].settings, *DATA[data].target_settings(target), *OF_SITES, f"strategy.rule={rule}"),
        *("task.factory=adaptation_features:HiddenLayers", "training.source.batch-size=64"),
        *("training.source.learning-rate=0.001", "training.target.learning-rate=0.001"),
        *("privacy.visibility=individual", "privacy.norm-cap-kappa=0"),
        *(f"strategy.rounds={ROUNDS[data]}", f"strategy.warm-up-rounds={WARM_UP}"),
    )
    if rule == WITH_LABELS:
        return settings
    settings = (*settings, "training.target.labels=none")
    if rule == ADAPTED:
        return settings if target == TOO_FEW else (*settings, "training.target.adapt=consistency")
    weights = (f"training.source.align.{name}={share * WEIGHT:g}" for name, share in LOSSES.items())
    rows = f"strategy.feature-rows={FEATURE_ROWS[data]}"
    return (*settings, "training.target.release-features=true", rows, *weights)


def tables(rows: Sequence[Mapping[str, Any]], one_round: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The tables as Markdown: all rules, and adaptation by target; ``one_round`` are the figures of `analytic`."""
    at = {(row["target"], row["rule"]): row["runs"] for row in rows}
    lines = []
    for key, name in NAMES.items():
        rule = {"alone": WITH_LABELS, "warm": WITH_LABELS, "adapted": ADAPTED}.get(key, key)
        figure = key if key in ("alone", "warm", "adapted") else "accuracy"
        means = [_mean_over_targets(at, data, rule, figure) for data in TITLES]
        lines += [[name, *means]] if set(means) != {"–"} else []
    for kind in ("no labels", "labels"):
        found = [next(row[kind] for row in one_round if row["data"].startswith(title)) for title in TITLES.values()]
        lines.append([f"analytic, {kind}", *(f"{one['mean']:.1f} ± {one['deviation']:.1f}" for one in found)])
    by_target = [
        [
            TITLES[data],
            target,
            *(mean_and_spread([run[key] for run in at.get((f"{data}/{target}", ADAPTED), ())]) for key in KEYS),
        ]
        for data in TITLES
        for target in DATA[data].targets
        if target != TOO_FEW
    ]
    noisy = [[name, *(_mean_over_targets(at, "pacs", name, figure) for figure in KEYS)] for name in NOISES]
    return {
        "noise": markdown(("noise at the sources", "source_only", "adapted"), noisy),
        "rules": markdown(("", *TITLES.values()), lines),
        "targets": markdown(("data", "target", "source_only", "adapted"), by_target),
    }


KEYS = ("accuracy", "adapted")


def _mean_over_targets(
    at: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]], data: str, rule: str, figure: str
) -> str:
    """The mean over targets of the seeds that all of them have."""
    runs = [at.get((f"{data}/{target}", rule), ()) for target in DATA[data].targets]
    seeds = zip(*runs, strict=False)
    return mean_and_spread(
        [fmean(run["accuracy"] if run[figure] is None else run[figure] for run in seed) for seed in seeds]
    )


def main() -> int:
    """Measure where asked to, and print the tables."""
    given = command_line((__doc__ or "").splitlines()[0], "amazon_review, office_caltech and pacs", 3, FIGURES)
    if given.measure:
        cache, data = Cache(given.cache, "adaptation_features"), given.data_dir.absolute()
        folders = {cell.study: (f"task.data-dir={data / DATA[cell.study.split('/')[0]].folder}",) for cell in cells()}

        def done(cell: VariantCell, figures: Figures) -> None:
            print(f"{cell.key}: {figures}", file=sys.stderr, flush=True)

        measure(given.workers, run_cell, cells(given.seeds), cache, folders, done)
        given.figures.write_text(as_text(rows_of(cache.read(), cells(), "rule"), this_machine()))
    one_round = json.loads((FIGURES.parent / "one_round.json").read_text())["rows"]
    print(shown(tables(json.loads(given.figures.read_text())["rows"], one_round)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
