"""The analytic rule on frozen features and on tables: with labels at the target, without, and with noise at sources.

    python benchmarks/one_round.py --measure --data-dir DIR [--seeds N] [--data NAME ...]    measure, write the figures
    python benchmarks/one_round.py --weigh --data-dir DIR [--seeds N] [--data NAME ...]    the same for source weights
    python benchmarks/one_round.py --align --data-dir DIR [--seeds N] [--data NAME ...]    the same for moved moments
    python benchmarks/one_round.py --balance --data-dir DIR [--seeds N]    the same for class weights
    python benchmarks/one_round.py --speed    the same for the time of a source and of the target
    python benchmarks/one_round.py --many    the same for a round with 1,000 sources
    python benchmarks/one_round.py    from one_round.json: print the tables

DIR holds the folders amazon_review, office_caltech, pacs, eicu_demo and tcga_brca; data that it lacks keep the figures
that they have, as do those that are not named. Fed-Heart is bundled. The sources' moments are added here, without
network, masks and norm caps, which gives the same model as a run without caps. Noise is that of a source that trains
with noise; it is drawn from numpy, since here it protects nothing.

``--weigh`` multiplies each source's moments by a weight in (0, 1] that the source could compute from the mean and the
covariance of the target's features: 1 / (1 + strength x distance), see `distances`. The first site of a data set, as
the target, chooses distance and strength; the others measure. Rows of more than 400 features are projected to so many
by one random matrix, to save time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from studies import as_text, shown, this_machine

from securefda.bench.secagg.job import Job
from securefda.bench.secagg.session import measured_session, session_figures
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import DpEvent
from securefda.rules import Head, Moments, fit_head
from securefda.rules.analytic import bounded_rows
from securefda.samples import sample
from securefda.site.policy import check_moments, default_policy
from securefda.tasks import Samples, Task, TaskSettings, Unlabelled
from securefda.tasks.features import Features
from securefda.tasks.fed_heart import HOSPITALS, FedHeart
from securefda.tasks.tabular import Tabular

FIGURES = Path(__file__).parent / "one_round.json"
DELTA, EPSILONS = 1e-5, (8.0, 4.0, 1.0)
ENCODED = {"width": 1280, "prefix": "efficientnet_lite0_", "source-test-fraction": 0.01}
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Data:
    """A data set, each of its sites in turn the target.

    Attributes:
        task: its class.
        sites: all of them.
        folder: of its files below ``--data-dir``; empty where they are bundled.
        options: of the task.
        bound: ``session.clip``.
        unit: whether the model scales rows to length 1.
        metric: of the task's, what the tables show.
        targets: the sites that take turns; empty for all.
        split: the option that takes the seed, where the task's rows are not drawn by its own.
    """

    task: Callable[[TaskSettings], Task]
    sites: tuple[str, ...]
    folder: str
    options: Mapping[str, object]
    bound: float = 1.0
    unit: bool = True
    metric: str = "accuracy"
    targets: tuple[str, ...] = ()
    split: str = ""

    @classmethod
    def of_tables(cls, name: str, metric: str, targets: tuple[str, ...]) -> Data:
        """Return the data of a sample federation whose files lie in ``task.data-dir``."""
        told = tomllib.loads(sample(name).read_text())
        sites = tuple(sorted([told["federation"]["target"], *told["federation"]["sources"]]))
        folder, options, bound = FOLDERS[name], told["task"]["options"], told["session"]["clip"]
        return cls(Tabular, sites, folder, options, bound, False, metric, targets, "split-seed")


FOLDERS = {"eicu": "eicu_demo", "tcga_brca": "tcga_brca"}
REVIEWS = ("books", "dvd", "electronics", "kitchen")
OFFICE = ("amazon", "caltech", "dslr", "webcam")
PICTURES = ("art_painting", "cartoon", "photo", "sketch")
_AMAZON: dict[str, object] = {"classes": 2, "width": 400, "source-test-fraction": 0.01}
DATA: Mapping[str, Data] = {
    "Fed-Heart, public scaling": Data(FedHeart, HOSPITALS, "", {"scaling": "public"}, bound=8.0, unit=False),
    "Amazon reviews, 100 labels": Data(Features, REVIEWS, "amazon_review", {**_AMAZON, "target-rows": 100}),
    "Amazon reviews, 200 labels": Data(Features, REVIEWS, "amazon_review", {**_AMAZON, "target-rows": 200}),
    "Office-Caltech10, 3 a class": Data(
        Features, OFFICE, "office_caltech", {**ENCODED, "classes": 10, "target-rows-per-class": 3}
    ),
    "PACS, 15 %": Data(Features, PICTURES, "pacs", {**ENCODED, "classes": 7, "target-fraction": 0.15}),
    "eICU, 20 %, AUROC": Data.of_tables("eicu", "auroc", ()),
    "TCGA-BRCA, 50 %, concordance": Data.of_tables(
        "tcga_brca", "concordance", ("europe", "midwest", "northeast", "south", "west")
    ),
}
KINDS = ("no labels", "labels", "DP-SGD, no labels", "DP-SGD, labels")
AT = {one: tuple(f"{kind}, ε = {one:g}" for kind in KINDS) for one in EPSILONS}
DISTANCES, STRENGTHS = ("mean", "spread"), (1.0, 10.0, 100.0)
ALIGNED = ("as they are", "mean", "mean and covariance")
BALANCES = ("none", "balanced", "each row weighed at its source")
SPEED = "1,280 features, 10 classes"
MANY, MANY_WIDTH, MANY_CLASSES, MANY_ROWS = "1,000 sources, 128 features", 128, 10, 200
WEIGHED, MOST_WIDTH = ("Fed-Heart, public scaling", "Amazon reviews, 100 labels", *tuple(DATA)[3:5]), 400
COLUMNS = ("target alone", *KINDS[:2], *(column for columns in AT.values() for column in columns[:2]))


def run(data: Data, target: str, seed: int, folder: Path) -> dict[str, float]:
    """Return the metric of each column in percent."""
    task, test, outputs = fitted(data, target, seed, folder)
    return {column: 100 * task.metrics(of, test.labels)[data.metric] for column, of in outputs.items()}


def fitted(
    data: Data, target: str, seed: int, folder: Path, *, noises: Iterable[float] = EPSILONS
) -> tuple[Task, Samples, dict[str, torch.Tensor]]:
    """Return the task, the target's test rows, and what the head of each column puts out for them."""
    task = task_of(data, target, seed, folder)
    sources = task.settings.sources
    features, codes = _rows(task, data, samples(task.train_data(target)))
    test = samples(task.test_data(target))
    inputs, _ = _rows(task, data, test)
    parts = [Moments.of(*_rows(task, data, samples(task.train_data(site))), bound=data.bound) for site in sources]
    random = np.random.default_rng(seed)

    def outputs(head: Head) -> torch.Tensor:
        return torch.from_numpy(np.column_stack([inputs, np.ones(len(inputs))]) @ head.weights.T)

    found = {"target alone": outputs(fit_head(None, features, codes, bound=data.bound))}
    for ending, multiplier in {"": 0.0, **{f", ε = {one:g}": multiplier_for(one) for one in noises}}.items():
        deviation = multiplier * data.bound
        sums = sum(part.means() * part.rows + random.normal(size=part.means().size) * deviation for part in parts)
        rows = sum(part.rows for part in parts)
        whole = Moments.from_means(sums / rows, width=features.shape[1], outputs=codes.shape[1], rows=rows)
        found[f"no labels{ending}"] = outputs(fit_head(whole, bound=data.bound))
        found[f"labels{ending}"] = outputs(fit_head(whole, features, codes, bound=data.bound))
    return task, test, found


def task_of(data: Data, target: str, seed: int, folder: Path) -> Task:
    """Return the task of one target, with the rows that the seed draws."""
    sources = tuple(site for site in data.sites if site != target)
    options = {**data.options, **({data.split: seed} if data.split else {})}
    where = folder / data.folder if data.folder else None
    return data.task(TaskSettings(target=target, sources=sources, seed=seed, data_dir=where, options=options))


def samples(rows: Samples | Unlabelled | None) -> Samples:
    """Return rows that have labels."""
    assert isinstance(rows, Samples)
    return rows


def _rows(task: Task, data: Data, rows: Samples) -> tuple[Matrix, Matrix]:
    """Return features (n, d), and what the head fits (n, c)."""
    features = rows.features.double().numpy()
    if data.unit:
        features = features / np.linalg.norm(features, axis=1, keepdims=True)
    width = next(one for one in reversed(list(task.model().modules())) if hasattr(one, "out_features")).out_features
    return features, task.head_targets(rows.labels, width).double().numpy()


@cache
def multiplier_for(wanted: float) -> float:
    """Return the least noise multiplier, to a thousandth, with which one release costs no more than ε at `DELTA`."""
    low, high = 0.01, 100.0
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        event = DpEvent("run", 1, 1, noise_multiplier=middle, sampling_rate=1.0, steps=1, max_grad_norm=1.0)
        low, high = (low, middle) if epsilon([event], DELTA) <= wanted else (middle, high)
    return high


def measured(folder: Path, seeds: int, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each data set: the mean over targets and seeds of each column, and its deviation over seeds."""
    for name in names:
        data = DATA[name]
        if data.folder and not (folder / data.folder).is_dir():
            continue
        targets = data.targets or data.sites
        runs = {seed: [run(data, target, seed, folder) for target in targets] for seed in range(seeds)}
        means = {column: [fmean(one[column] for one in of_seed) for of_seed in runs.values()] for column in COLUMNS}
        shown = {column: {"mean": fmean(of), "deviation": stdev(of)} for column, of in means.items()}
        row = {"data": name, "seeds": seeds, **shown}
        print(table([row], COLUMNS), flush=True)
        yield row


def weighed(folder: Path, seeds: int, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each data set: what weights gain, by distance and strength as the validation target chooses."""
    for name in names:
        data = DATA[name]
        if name not in WEIGHED or (data.folder and not (folder / data.folder).is_dir()):
            continue
        validation, *targets = data.sites
        every = [("", 0.0), *((one, strength) for one in DISTANCES for strength in STRENGTHS)]
        runs = [weigh(data, validation, seed, folder, dict.fromkeys(KINDS[:2], every)) for seed in range(seeds)]
        means = {key: fmean(one[key] for one in runs) for key in runs[0]}
        chosen = {kind: max(every, key=lambda one, kind=kind: means[kind, *one]) for kind in KINDS[:2]}  # type: ignore[misc]
        tried = {kind: [("", 0.0), one] for kind, one in chosen.items()}
        runs = [weigh(data, target, seed, folder, tried) for seed in range(seeds) for target in targets]
        weights = {
            kind: {
                "distance": one[0],
                "strength": one[1],
                "gain at validation": means[kind, *one] - means[kind, "", 0.0],
                "plain": fmean(run[kind, "", 0.0] for run in runs),
                "weighed": fmean(run[kind, *one] for run in runs),
            }
            for kind, one in chosen.items()
        }
        print(name, weights, flush=True)
        yield {"data": name, "source weights": {"seeds": seeds, "validation": validation} | weights}


def weigh(
    data: Data, target: str, seed: int, folder: Path, tried: Mapping[str, Iterable[tuple[str, float]]]
) -> dict[tuple[str, str, float], float]:
    """Return the metric in percent by kind, distance and strength; strength 0 is no weights."""
    task = task_of(data, target, seed, folder)
    features, codes = _rows(task, data, samples(task.train_data(target)))
    test = samples(task.test_data(target))
    inputs, _ = _rows(task, data, test)
    every = [_rows(task, data, samples(task.train_data(site))) for site in task.settings.sources]
    if features.shape[1] > MOST_WIDTH:
        shorter = np.random.default_rng(1).standard_normal((features.shape[1], MOST_WIDTH)) / math.sqrt(MOST_WIDTH)
        features, inputs = features @ shorter, inputs @ shorter
        every = [(rows @ shorter, wanted) for rows, wanted in every]
    parts = [Moments.of(*rows, bound=data.bound) for rows in every]
    found = {}
    for kind, settings in tried.items():
        published = features if kind == "labels" else np.vstack([features, inputs])
        apart = [distances(rows, published) for rows, _ in every]
        for distance, strength in settings:
            weights = [1 / (1 + strength * one.get(distance, 0.0)) for one in apart]
            pairs = list(zip(weights, parts, strict=True))
            whole = Moments(
                np.sum([weight * part.gram for weight, part in pairs], axis=0),
                np.sum([weight * part.cross for weight, part in pairs], axis=0),
                sum(weight * part.rows for weight, part in pairs),
            )
            head = fit_head(whole, *((features, codes) if kind == "labels" else ()), bound=data.bound)
            outputs = torch.from_numpy(np.column_stack([inputs, np.ones(len(inputs))]) @ head.weights.T)
            found[kind, distance, strength] = 100 * task.metrics(outputs, test.labels)[data.metric]
    return found


def aligned(folder: Path, seeds: int, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each data set: what aligned moments gain at the first target and at the others."""
    for name in names:
        data = DATA[name]
        if data.folder and not (folder / data.folder).is_dir():
            continue
        validation, *others = data.targets or data.sites
        runs = {one: [align(data, one, seed, folder) for seed in range(seeds)] for one in (validation, *others)}
        plain = {kind: fmean(run[kind, ALIGNED[0]] for one in others for run in runs[one]) for kind in KINDS[:2]}
        found: dict[str, Any] = {"seeds": seeds, "validation": validation, "plain": plain}
        for kind, how in itertools.product(KINDS[:2], ALIGNED[1:]):
            gains = {one: [run[kind, how] - run[kind, ALIGNED[0]] for run in of] for one, of in runs.items()}
            found[f"{kind}, {how}"] = {
                "validation": fmean(gains[validation]),
                "error": stdev(gains[validation]) / math.sqrt(seeds),
                "others": {one: fmean(gains[one]) for one in others},
            }
        print(name, found, flush=True)
        yield {"data": name, "alignment": found}


def align(data: Data, target: str, seed: int, folder: Path) -> dict[tuple[str, str], float]:
    """Return the metric in percent by kind and alignment, to the moments of all rows of the target, test rows too."""
    task = task_of(data, target, seed, folder)
    own = _rows(task, data, samples(task.train_data(target)))
    test = samples(task.test_data(target))
    inputs, _ = _rows(task, data, test)
    parts = [
        Moments.of(*_rows(task, data, samples(task.train_data(s))), bound=data.bound) for s in task.settings.sources
    ]
    sums = Moments(sum(p.gram for p in parts), sum(p.cross for p in parts), sum(p.rows for p in parts))
    every = np.vstack([own[0], inputs])
    like = Moments.of(every, np.zeros((len(every), 1)), bound=data.bound)
    moved = sums.moved(like.gram[-1, :-1] / like.gram[-1, -1])
    found = {}
    for how, sources in zip(ALIGNED, (sums, moved, coral(moved, like)), strict=True):
        for kind, labelled in zip(KINDS[:2], ((), own), strict=True):
            head = fit_head(sources, *labelled, bound=data.bound)
            outputs = torch.from_numpy(np.column_stack([inputs, np.ones(len(inputs))]) @ head.weights.T)
            found[kind, how] = 100 * task.metrics(outputs, test.labels)[data.metric]
    return found


def coral(sources: Moments, like: Moments) -> Moments:
    """Return the moments of rows of one mean as if their covariance were that of ``like`` (Sun, Feng, Saenko 2016).

    As there, covariances have the mean variance of a feature added to their diagonals.
    """
    mean = like.gram[-1, :-1] / like.gram[-1, -1]
    covariances = [one.gram[:-1, :-1] / one.gram[-1, -1] - np.outer(mean, mean) for one in (sources, like)]
    added = float(np.trace(covariances[1])) / len(mean)
    (narrow, first), (wide, second) = (np.linalg.eigh(one) for one in covariances)
    whiten = (first / np.sqrt(np.maximum(narrow, 0) + added)) @ first.T
    change = np.eye(len(mean) + 1)
    change[:-1, :-1] = ((second * np.sqrt(np.maximum(wide, 0) + added)) @ second.T) @ whiten
    change[:-1, -1] = mean - change[:-1, :-1] @ mean
    return Moments(change @ sources.gram @ change.T, sources.cross @ change.T, sources.rows)


def distances(rows: Matrix, of_target: Matrix) -> dict[str, float]:
    """Return how far a source's features, (n, d), lie from the target's by several measures.

    ``mean``: squared distance of the means, over the target's variance in all. ``spread``: squared Frobenius norm of
    the difference of the covariances along 64 fixed random directions, over that of the target's. ``both``: their sum.
    """
    directions = np.random.default_rng(0).standard_normal((rows.shape[1], 64)) / 8
    sketches = [np.cov((one @ directions).T) for one in (rows, of_target)]
    mean = float(np.square(rows.mean(axis=0) - of_target.mean(axis=0)).sum() / of_target.var(axis=0).sum())
    spread = float(np.square(sketches[0] - sketches[1]).sum() / np.square(sketches[1]).sum())
    return {"mean": mean, "spread": spread}


def balanced(folder: Path, seeds: int, _: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield a row of data with a rare class: metrics without class weights, with, and with each row weighed."""
    name = "eICU, 20 %, AUROC"
    runs = [balance(DATA[name], target, seed, folder) for target in DATA[name].sites for seed in range(seeds)]
    means = {key: {metric: fmean(one[key][metric] for one in runs) for metric in runs[0][key]} for key in runs[0]}
    yield {"data": name, "class weights": means}


def balance(data: Data, target: str, seed: int, folder: Path) -> dict[str, dict[str, float]]:
    """Return the task's metrics in percent by kind and weights."""
    task = task_of(data, target, seed, folder)
    own = _rows(task, data, samples(task.train_data(target)))
    test = samples(task.test_data(target))
    inputs, _ = _rows(task, data, test)
    every = [_rows(task, data, samples(task.train_data(site))) for site in task.settings.sources]
    rows, codes, _ = bounded_rows(*(np.vstack(of) for of in zip(*every, strict=True)), bound=data.bound)
    classes = codes.argmax(axis=1)
    weights = (len(rows) / codes.shape[1] / np.bincount(classes))[classes]
    sums = Moments(rows.T @ rows, codes.T @ rows, len(rows))
    by_row = Moments((rows.T * weights) @ rows, (codes.T * weights) @ rows, len(rows))
    found = {}
    for kind in KINDS[:2]:
        for how, sources in zip(BALANCES, (sums, sums, by_row), strict=True):
            labelled = own if kind == "labels" else ()
            head = fit_head(sources, *labelled, bound=data.bound, balanced=how != BALANCES[0])
            outputs = torch.from_numpy(np.column_stack([inputs, np.ones(len(inputs))]) @ head.weights.T)
            found[f"{kind}, {how}"] = {key: 100 * of for key, of in task.metrics(outputs, test.labels).items()}
    return found


def timed(*_: object) -> Iterator[dict[str, Any]]:
    """Yield a row with the processor time of each step of a round that is no part of the masking session."""
    random = np.random.default_rng(0)

    def drawn(count: int) -> tuple[NDArray[np.float32], Matrix]:
        features = random.standard_normal((count, 1280)).astype(np.float32)
        return features / np.linalg.norm(features, axis=1, keepdims=True), np.eye(10)[np.arange(count) % 10] - 0.1

    rows, policy = drawn(1500), default_policy(max_samples=1500)
    means = Moments.of(*rows, bound=1.0).means()
    sources = Moments.from_means(means, width=1280, outputs=10, rows=7500)
    steps: dict[str, Callable[[], object]] = {
        "a source: moments of 1,500 rows": lambda: Moments.of(*check_moments(policy, *rows), bound=1.0).means(),
        "target: sums to moments": lambda: Moments.from_means(means, width=1280, outputs=10, rows=7500),
        "target: head without labels": lambda: fit_head(sources, bound=1.0),
    }
    for count in (300, 1000):
        own = drawn(count)
        steps[f"target: head with {count:,} rows"] = lambda own=own: fit_head(sources, *own, bound=1.0)
        steps[f"target: head of {count:,} rows alone"] = lambda own=own: fit_head(None, *own, bound=1.0)
    processor = {name: median(_processor_seconds(step) for _ in range(5)) for name, step in steps.items()}
    yield {"data": SPEED, "seconds": processor, "round": whole_round()}


def _processor_seconds(step: Callable[[], object]) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def many(*_: object) -> Iterator[dict[str, Any]]:
    """Yield a row of a round of 1,000 sources with few features: processor time, bytes and memory.

    The masked session is that of ``securefda bench secagg``: state machines and messages as bytes, without a network.
    Each source deals with some neighbours; 50 colluders are assumed, and a tenth of the sources leave.
    """
    random = np.random.default_rng(0)

    def drawn(count: int) -> tuple[Matrix, Matrix]:
        features, labels = random.standard_normal((count, MANY_WIDTH)), np.arange(count) % MANY_CLASSES
        codes = np.eye(MANY_CLASSES)[labels] - 1 / MANY_CLASSES
        return features / np.linalg.norm(features, axis=1, keepdims=True), codes

    rows, own, policy = drawn(MANY_ROWS), drawn(300), default_policy(max_samples=MANY_ROWS)
    means = Moments.of(*rows, bound=1.0).means()
    sources = Moments.from_means(means, width=MANY_WIDTH, outputs=MANY_CLASSES, rows=900 * MANY_ROWS)
    steps: dict[str, Callable[[], object]] = {
        "source": lambda: Moments.of(*check_moments(policy, *rows), bound=1.0).means(),
        "target": lambda: fit_head(sources, *own, bound=1.0),
    }
    processor = {name: median(_processor_seconds(step) for _ in range(5)) for name, step in steps.items()}
    job = Job("", sources=1000, params=len(means), dropped=100, colluders=50)
    session = session_figures([measured_session(job)])
    named = ("source_cpu_session_ms", "source_message_bytes_up", "source_message_bytes_down")
    kept = {name: session[name] for name in (*named, "aggregator_cpu_session_ms", "aggregator_session_growth_mb")}
    load = round(os.getloadavg()[0], 1)
    yield {"data": MANY, "numbers": len(means), "neighbours": job.neighbours, "load": load, **processor, **kept}


def many_table(row: Mapping[str, Any]) -> str:
    """Return a table in Markdown of a round with many sources."""
    cells = {
        "numbers that a source sends": f"{row['numbers']:,}",
        "neighbours of a source": f"{row['neighbours']}",
        f"a source: moments of {MANY_ROWS} rows, processor": f"{1e3 * row['source']:.1f} ms",
        "a source: masked session, processor": f"{row['source_cpu_session_ms']:.0f} ms",
        "a source: bytes sent": f"{row['source_message_bytes_up'] / 1e3:.0f} kB",
        "a source: bytes received": f"{row['source_message_bytes_down'] / 1e3:.0f} kB",
        "aggregator: masked session, processor": f"{row['aggregator_cpu_session_ms'] / 1e3:.1f} s",
        "aggregator: rise of memory": f"{row['aggregator_session_growth_mb']:.0f} MB",
        "target: head with 300 rows, processor": f"{row['target']:.2f} s",
        "load of the machine": f"{row['load']:.1f}",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {cell} |" for name, cell in cells.items())])


FEDERATION = """\
[federation]
name = "speed"
target = "target"
sources = ["s1", "s2", "s3", "s4", "s5"]
[task]
factory = "securefda.tasks.features:Features"
data-dir = "."
[task.options]
classes = 10
width = 1280
target-rows = 300
[session]
max-samples = 4000
[strategy]
rule = "analytic"
rounds = 1
warm-up-rounds = 0
"""


def whole_round() -> dict[str, float]:
    """Return wall-clock seconds of a masked round of processes on made-up features: by part, median of three runs."""
    random = np.random.default_rng(0)
    runs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "speed.toml").write_text(FEDERATION)
        classes = random.standard_normal((1280, 10))
        for site, count in (("target", 1300), *((f"s{number}", 2000) for number in range(1, 6))):
            rows = random.standard_normal((count, 1280)).astype(np.float32)
            labels = (rows @ classes + 5 * random.standard_normal((count, 10))).argmax(axis=1)
            np.savez(folder / f"{site}.npz", features=rows, labels=labels)
        for number in range(3):
            command = [sys.executable, "-m", "securefda.cli", "run", "speed.toml", "--out", f"out-{number}"]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            seconds = json.loads((folder / f"out-{number}" / "metrics.jsonl").read_text())["seconds"]
            began, head = seconds.pop("moments and R0 advertise"), seconds.pop("rule")
            masking = sum(seconds[step] for step in seconds if step.startswith("R"))
            parts = {"sources: moments and keys": began, "masking": masking, "target: the head": head}
            runs.append(parts | {"in all": sum(parts.values())})
    return {part: median(run[part] for run in runs) for part in runs[0]}


def times_table(head: str, times: Mapping[str, float]) -> str:
    """Return seconds by name."""
    return "\n".join([f"| {head} |", "|---|---|", *(f"| {name} | {seconds:.2f} |" for name, seconds in times.items())])


def tables(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tables by name."""
    listed = list(rows)
    speed = next(row for row in listed if row["data"] == SPEED)
    many_sources = next(row for row in listed if row["data"] == MANY)
    listed = [row for row in listed if row["data"] not in (SPEED, MANY)]
    return {
        "many": many_table(many_sources),
        "speed": times_table("step | processor time, s", speed["seconds"]),
        "round": times_table("part of a round | wall clock, s", speed["round"]),
        "accuracy": table(listed, COLUMNS[:3]),
        "source_weights": source_weights_table(row for row in listed if "source weights" in row),
        "alignment": alignment_table(row for row in listed if "alignment" in row),
        "class_weights": class_weights_table(next(row["class weights"] for row in listed if "class weights" in row)),
        **{f"noise_{one:g}": table(listed, columns) for one, columns in AT.items()},
    }


def table(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> str:
    """Return a table in Markdown."""
    names = list(columns)
    lines = [f"| data | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        cells = [f"{row[name]['mean']:.1f} ± {row[name]['deviation']:.1f}" if name in row else "–" for name in names]
        lines.append(f"| {row['data']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def source_weights_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table in Markdown of what source weights gain at the targets that did not choose them."""
    lines = ["| data | kind | chosen | gain where it was chosen | plain | weighed | gain |", "|---" * 7 + "|"]
    for row in rows:
        for kind in KINDS[:2]:
            of = row["source weights"][kind]
            chosen = f"{of['distance']}, {of['strength']:g}" if of["strength"] else "no weights"
            gains = f"{of['gain at validation']:+.1f} | {of['plain']:.1f} | {of['weighed']:.1f}"
            lines.append(f"| {row['data']} | {kind} | {chosen} | {gains} | {of['weighed'] - of['plain']:+.1f} |")
    return "\n".join(lines)


def alignment_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table in Markdown of what aligned moments gain at the first target of a data set, and at the others."""
    lines = ["| data | kind | aligned | gain at the first target | other targets, plain | gain |", "|---" * 6 + "|"]
    for row in rows:
        of = row["alignment"]
        for kind, how in itertools.product(KINDS[:2], ALIGNED[1:]):
            one = of[f"{kind}, {how}"]
            first = f"{one['validation']:+.1f} ± {one['error']:.1f}"
            gain = f"{fmean(one['others'].values()):+.1f}"
            lines.append(f"| {row['data']} | {kind} | {how} | {first} | {of['plain'][kind]:.1f} | {gain} |")
    return "\n".join(lines)


def class_weights_table(means: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table in Markdown of what class weights do."""
    shown = ("accuracy", "balanced_accuracy", "auroc")
    lines = ["| class weights | accuracy | balanced accuracy | AUROC |", "|---|---|---|---|"]
    lines += [f"| {key} | {' | '.join(f'{of[one]:.1f}' for one in shown)} |" for key, of in means.items()]
    return "\n".join(lines)


def main() -> int:
    """Measure, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--weigh", action="store_true")
    parser.add_argument("--align", action="store_true")
    parser.add_argument("--balance", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--many", action="store_true")
    parser.add_argument("--data-dir", type=Path, default=Path())
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA), metavar="NAME")
    asked = parser.parse_args()
    for study in (
        *[measured] * asked.measure,
        *[weighed] * asked.weigh,
        *[aligned] * asked.align,
        *[balanced] * asked.balance,
        *[timed] * asked.speed,
        *[many] * asked.many,
    ):
        rows = {row["data"]: row for row in json.loads(FIGURES.read_text())["rows"]}
        for row in study(asked.data_dir, asked.seeds, asked.data):
            rows[row["data"]] = rows.get(row["data"], {}) | row
            FIGURES.write_text(as_text([rows[name] for name in (*DATA, SPEED, MANY) if name in rows], this_machine()))
    print(shown(tables(json.loads(FIGURES.read_text())["rows"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
