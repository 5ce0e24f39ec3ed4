"""How alike the features of a target without labels are to those of its sources, and a picture of them.

    python benchmarks/domain_features.py --measure --data-dir DIR --cache FOLDER [--workers N]
    python benchmarks/domain_features.py    from domain_features.json: write domain_features.svg, print the table

Each run is one of ``bench accuracy --suite digit-domains``: target mnist-m, one seed, visibility sum. Of its last model
the features of as many test rows of the target as of all sources together are taken, with the target's BatchNorm
statistics, as the target measures it.

*A-distance*: 2 (1 - 2 e), where e is the share of rows of which a linear classifier, trained on half of them, tells
wrongly whether they are the target's (Ben-David et al. 2007): 0 for features that are alike, 2 for those far apart.
The *picture* is by t-SNE (van der Maaten, Hinton 2008), each rule by itself; its axes mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from federated import Job, workers
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import TSNE
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from studies import Cache, as_text, measure, shown, style, this_machine

from securefda.bench.accuracy.federated import result_of
from securefda.bench.accuracy.plan import Request, plan
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.run_folder import read_run
from securefda.operations.trained import trained_model
from securefda.training.features import extract_features

FIGURES, PLOT = (Path(__file__).with_suffix(suffix) for suffix in (".json", ".svg"))
TARGET = "mnist-m"
RULES = ("source_only", "f_dann", "f_dan", "fada_attention", "fada_adversarial", "fada")
ROWS, DRAWN = 900, 300
"""Test rows of the target, and as many of the sources together; of each, so many are in the picture."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run, under a rule."""

    study: str
    data_dir: Path

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return self.study

    def job(self, given: object) -> Job:  # noqa: ARG002 - of a cell
        """The federation of the suite, and seed 0."""
        request = Request("digit-domains", rules=[self.study], seeds=1, data_dir=self.data_dir)
        return next(one.job for one in plan(request) if one.key.target == TARGET)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run gave.

    Attributes:
        accuracy: on the target's test rows, mean over the last five rounds, in percent.
        distance: A-distance of the target's features from those of all sources.
        points: places in the picture, (2 n, 2), the target's first.
    """

    accuracy: float
    distance: float
    points: list[list[float]]


def run_cell(job: Job) -> Figures:
    """Simulate one federation, and look at the features of its last model."""
    with tempfile.TemporaryDirectory() as folder:
        simulate(job.config, Path(folder), job.seed, SilentReporter())
        result = result_of(read_run(Path(folder)), job.config.federation.sources)
        task, model = trained_model(folder)
        sources = job.config.federation.sources
        own = task.test_data(TARGET).features[:ROWS]
        theirs = torch.cat([task.test_data(site).features[: ROWS // len(sources)] for site in sources])
        target, others = (extract_features(task, model, rows) for rows in (own, theirs))
    return Figures(
        accuracy=round(result.accuracy, 2),
        distance=round(a_distance(target, others), 2),
        points=[[round(float(at), 1) for at in point] for point in picture(target, others)],
    )


def a_distance(target: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    """2 (1 - 2 e) of features, (n, d) each; at least 0."""
    features = np.concatenate([target, others])
    is_target = np.arange(len(features)) < len(target)
    order = np.random.default_rng(0).permutation(len(features))
    half = len(order) // 2
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    classifier.fit(features[order[:half]], is_target[order[:half]])
    error = 1.0 - classifier.score(features[order[half:]], is_target[order[half:]])
    return max(0.0, 2.0 * (1.0 - 2.0 * error))


def picture(target: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Places of the first rows of the target and of evenly drawn ones of the sources, (2 n, 2)."""
    drawn = np.concatenate([target[:DRAWN], others[:: len(others) // DRAWN][:DRAWN]])
    reduced = PCA(min(50, *drawn.shape), random_state=0).fit_transform(StandardScaler().fit_transform(drawn))
    places: NDArray[np.float32] = TSNE(init="pca", random_state=0).fit_transform(reduced)
    return places


def rows_of(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each rule, from figures by cell."""
    return [{"rule": rule, **known[rule]} for rule in RULES if rule in known]


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The table as Markdown."""
    lines = ["| | A-distance | target accuracy, % |", "|---|---|---|"]
    lines += [f"| {row['rule']} | {row['distance']:.2f} | {row['accuracy']:.1f} |" for row in rows]
    return {"distances": "\n".join(lines)}


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A panel for each rule, with rows of the target and of the sources."""
    with mpl.rc_context(style("domain features")):
        figure = Figure(figsize=(9, 6), layout="constrained")
        for axes, row in zip(figure.subplots(2, 3).flat, rows, strict=False):
            points = np.array(row["points"])
            half = len(points) // 2
            for part, label, colour in ((points[half:], "sources", "#56b4e9"), (points[:half], "target", "#d55e00")):
                axes.scatter(*part.T, s=4, alpha=0.7, color=colour, label=label, linewidths=0, rasterized=True)
            axes.set_title(f"{row['rule']}, A-distance {row['distance']:.2f}", loc="left")
            axes.set_xticks([])
            axes.set_yticks([])
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, markerscale=3)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> int:
    """Measure where asked to, draw, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run what the cache lacks first")
    parser.add_argument("--data-dir", type=Path, help="folder with mnist and usps")
    parser.add_argument("--cache", type=Path, default=Path("domain-features-cache"), help="for what was run already")
    parser.add_argument("--workers", type=int, default=1, help="federations beside each other")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    parser.add_argument("--plot", type=Path, default=PLOT, help="where the picture goes, .svg or .png")
    given = parser.parse_args()
    if given.measure:
        if given.data_dir is None:
            parser.error("--measure needs --data-dir")
        cache = Cache(given.cache, "domain_features")
        cells = [Cell(rule, given.data_dir.absolute()) for rule in RULES]

        def done(cell: Cell, figures: Figures) -> None:
            print(f"{cell.key}: {figures.accuracy:.1f} %, {figures.distance:.2f}", file=sys.stderr, flush=True)

        with workers(given.workers) as pool:
            measure(pool, run_cell, cells, cache, {rule: [] for rule in RULES}, done)
        given.figures.write_text(as_text(rows_of(cache.read()), this_machine()))
    rows = json.loads(given.figures.read_text())["rows"]
    plot(rows, given.plot)
    print(shown(tables(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
