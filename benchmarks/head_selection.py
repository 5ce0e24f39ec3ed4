"""Chooses the numbers of the kNN head for Fed-Heart (``strategy.knn-*``) without looking at a test row.

    python benchmarks/head_selection.py --data-dir DIR --cache FOLDER [--seeds 10,11]

The rows that the target keeps are cut into 5 folds, as in `fed_heart_selection.py`. FedGP_auto is trained with 4 of
them at the target, as the example is, with seeds that are in no table. Every head then stands on the last model, asks
these rows and is judged on the fifth: by log loss, mean over folds, seeds and the four targets. The head takes no part
in training, so one run serves all heads. FOLDER keeps the runs; the same command goes on there.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch
from fed_heart_selection import EXAMPLE, FOLDS

from securefda.bench.accuracy.federated import use_one_thread
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.run_folder import SUMMARY_FILE
from securefda.operations.trained import trained_model
from securefda.site.config import load_federation
from securefda.tasks.fed_heart import HOSPITALS
from securefda.training.neighbours import KnnModel, KnnSettings

NEIGHBOURS, WEIGHTS, SCALES = (5, 10, 20), (0.0, 0.25, 0.5, 0.75, 0.9), (0.3, 1.0, 3.0)
_LOG_LOSS = "log loss"
_ACCURACY = "accuracy"


def heads() -> Iterator[KnnSettings]:
    """All that are compared; without any weight, the model alone."""
    for neighbours, weight, scale in itertools.product(NEIGHBOURS, WEIGHTS, SCALES):
        if weight or (neighbours, scale) == (NEIGHBOURS[0], SCALES[0]):
            yield KnnSettings(neighbours, weight, scale)


TASK = "fed_heart_selection:HeldOut"


def trained(folder: Path, target: str, fold: int, seed: int, data_dir: Path) -> Path:
    """The folder of a run whose target lacks a fold; run where it is not there yet."""
    run = folder / f"{target}-{fold}-{seed}"
    if not (run / SUMMARY_FILE).exists():
        sources = json.dumps([site for site in HOSPITALS if site != target])
        settings = (
            *(f"federation.target={target}", f"federation.sources={sources}", "strategy.rule=fedgp_auto"),
            *(f"task.factory={TASK}", f"task.options.fold={fold}", f"task.data-dir={data_dir}"),
            "task.options.scaling=site",
            "strategy.compare-target-only=false",
        )
        simulate(load_federation(EXAMPLE, settings), run, seed, SilentReporter())
    return run


def judged(run: Path) -> dict[KnnSettings, dict[str, float]]:
    """Log loss and accuracy of every head on the fold that the run left out."""
    task, model = trained_model(run, task=TASK)
    target = task.settings.target
    known, held_out = task.train_data(target), task.test_data(target)
    found = {}
    with torch.no_grad():
        for head in heads():
            outputs = KnnModel(model, known, head)(held_out.features)
            metrics = task.metrics(outputs, held_out.labels)
            found[head] = {_LOG_LOSS: float(task.loss(outputs, held_out.labels)), _ACCURACY: metrics["accuracy"]}
    return found


def main() -> None:
    """Run what FOLDER lacks, then print all heads, best first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the four CSV files")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--seeds", default="10,11", help="separated by commas")
    asked = parser.parse_args()
    use_one_thread()
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    places = itertools.product(seeds, HOSPITALS, range(FOLDS))
    found = [judged(trained(asked.cache, target, fold, seed, asked.data_dir)) for seed, target, fold in places]
    means = {
        head: {name: fmean(one[head][name] for one in found) for name in (_LOG_LOSS, _ACCURACY)} for head in heads()
    }
    print("| neighbours | weight | scale | held-out log loss | held-out accuracy |\n|---|---|---|---|---|")
    for head, mean in sorted(means.items(), key=lambda item: item[1][_LOG_LOSS]):
        cells = [f"{head.neighbours}", f"{head.weight:g}", f"{head.scale:g}"]
        print(f"| {' | '.join(cells)} | {mean[_LOG_LOSS]:.4f} | {100 * mean[_ACCURACY]:.1f} |")


if __name__ == "__main__":
    main()
