"""Chooses the training settings of examples/fed_heart.toml without looking at a test row.

    python benchmarks/fed_heart_selection.py --data-dir DIR [--seeds 2] [--format json]

What is published stays as published: FLamby's logistic regression, batches of 4 and one epoch at the sources, and the
schedule of the authors' Fed-Heart experiment: 5 warm-up rounds, then 50 rounds at the same learning rate. What is open
is chosen by cross-validation: the optimizer, the learning rate (the same at target and sources) and the target's batch
size. The rows that the target keeps are cut into 5 folds; a federation is trained with 4 of them at the target and
judged on the fifth. The setting with the smallest mean log loss over folds, seeds, the four targets and both auto rules
is chosen, one for all targets and rules; FedGP has the paper's filter here. Log loss, because with 17 to 39 rows per
target accuracy is too coarse.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from federated import Job, run_all, workers

from securefda.site.config import FederationConfig, load_federation
from securefda.tasks import Samples, TaskSettings
from securefda.tasks.fed_heart import HOSPITALS, FedHeart
from securefda.training import derive_seed

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "fed_heart.toml"
RULES = ("fedda_auto", "fedgp_auto")
FOLDS = 5
LEARNING_RATES = {"adam": (0.001, 0.003, 0.01), "sgd": (0.01, 0.03, 0.1, 0.3, 1.0)}
TARGET_BATCH_SIZES = (1, 4)


@dataclass(frozen=True, slots=True)
class Candidate:
    optimizer: str
    learning_rate: float
    target_batch_size: int

    def overrides(self) -> list[str]:
        sides = [
            f"training.{side}.{key}={value}"
            for side in ("target", "source")
            for key, value in (("optimizer", self.optimizer), ("learning-rate", self.learning_rate))
        ]
        return [*sides, f"training.target.batch-size={self.target_batch_size}"]


@dataclass(frozen=True, slots=True)
class Score:
    log_loss: float
    accuracy: float


class HeldOut(FedHeart):
    """Fed-Heart whose test is a fold of the rows that the target keeps; the published test rows are never read."""

    def __init__(self, settings: TaskSettings) -> None:
        options = dict(settings.options)
        fold = options.pop("fold")
        super().__init__(replace(settings, options=options))
        kept = super().train_data(settings.target)
        generator = torch.Generator().manual_seed(derive_seed(settings.seed, "folds"))
        folds = torch.randperm(len(kept), generator=generator) % FOLDS
        self._kept_train = Samples(kept.features[folds != fold], kept.labels[folds != fold])
        self._kept_test = Samples(kept.features[folds == fold], kept.labels[folds == fold])

    def train_data(self, site: str) -> Samples:
        return self._kept_train if site == self.settings.target else super().train_data(site)

    def test_data(self, site: str) -> Samples:
        return self._kept_test if site == self.settings.target else super().test_data(site)


def main() -> None:
    arguments = _arguments()
    scores = {}
    with workers(arguments.workers) as pool:
        for candidate in _candidates():
            scores[candidate] = _score(pool, candidate, arguments.data_dir, arguments.seeds)
            print(f"{candidate}: {scores[candidate]}", file=sys.stderr, flush=True)
    best = min(scores, key=lambda candidate: scores[candidate].log_loss)
    if arguments.format == "json":
        rows = [{**asdict(candidate), **asdict(score)} for candidate, score in scores.items()]
        print(json.dumps({"folds": FOLDS, "seeds": arguments.seeds, "candidates": rows, "chosen": asdict(best)}))
        return
    print("| optimizer | learning rate | target's batch size | held-out log loss | held-out accuracy |")
    print("|---|---|---|---|---|")
    for candidate, score in sorted(scores.items(), key=lambda item: item[1].log_loss):
        cells = [candidate.optimizer, f"{candidate.learning_rate:g}", str(candidate.target_batch_size)]
        print(f"| {' | '.join(cells)} | {score.log_loss:.4f} | {score.accuracy:.1f} |")
    print(f"\nChosen: {best}")


def _candidates() -> Iterator[Candidate]:
    for optimizer, rates in LEARNING_RATES.items():
        for rate, batch_size in itertools.product(rates, TARGET_BATCH_SIZES):
            yield Candidate(optimizer, rate, batch_size)


def _score(pool: ProcessPoolExecutor, candidate: Candidate, data_dir: Path, seeds: int) -> Score:
    jobs = [
        Job(_configuration(candidate, rule, target, fold, data_dir), seed)
        for target in HOSPITALS
        for rule in RULES
        for seed in range(seeds)
        for fold in range(FOLDS)
    ]
    results = run_all(pool, jobs)
    return Score(
        log_loss=float(np.mean([result.loss for result in results])),
        accuracy=float(np.mean([result.accuracy for result in results])),
    )


def _configuration(candidate: Candidate, rule: str, target: str, fold: int, data_dir: Path) -> FederationConfig:
    sources = json.dumps([site for site in HOSPITALS if site != target])
    sites = [f"federation.target={target}", f"federation.sources={sources}"]
    task = ["task.factory=fed_heart_selection:HeldOut", f"task.options.fold={fold}", f"task.data-dir={data_dir}"]
    task.append("task.options.scaling=site")
    rules = [f"strategy.rule={rule}", "strategy.filter=true"]
    return load_federation(EXAMPLE, [*sites, *task, *rules, *candidate.overrides()])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the four CSV files")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds, from 0")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="federations beside each other")
    parser.add_argument("--format", choices=("markdown", "json"), default="markdown")
    return parser.parse_args()


if __name__ == "__main__":
    main()
