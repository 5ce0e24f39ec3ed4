"""The analytic rule on frozen features and on tables: with labels at the target, without, and with noise at sources.

    python benchmarks/one_round.py --measure --data-dir DIR [--seeds N] [--data NAME ...]    measure, write the figures
    python benchmarks/one_round.py --align --data-dir DIR [--seeds N] [--data NAME ...]    the same for moved moments
    python benchmarks/one_round.py --balance --data-dir DIR [--seeds N]    the same for class weights
    python benchmarks/one_round.py --speed    the same for the time of a source and of the target
    python benchmarks/one_round.py --many    the same for a round with 1,000 sources
    python benchmarks/one_round.py    from one_round.json: print the tables

DIR holds the folders amazon_review, office_caltech, pacs, eicu_demo and tcga_brca; data that it lacks keep the figures
that they have, as do those that are not named. Fed-Heart is bundled. The sources' moments are added here, without
network, masks and norm caps, which gives the same model as a run without caps. Noise is that of a source that trains
with noise; it is drawn from numpy, since here it protects nothing.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from studies import as_text, markdown, shown, this_machine

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
ALIGNED = ("as they are", "mean", "mean and covariance")
BALANCES = ("none", "balanced", "each row weighed at its source")
SPEED = "1,280 features, 10 classes"
MANY, MANY_WIDTH, MANY_CLASSES, MANY_ROWS = "1,000 sources, 128 features", 128, 10, 200
COLUMNS = ("target alone", *KINDS[:2], *(column for columns in AT.values() for column in columns[:2]))


@dataclass(frozen=True)
class Drawn:
    """The rows of one target and its sources, as a seed draws them: features (n, d), and what the head fits (n, c).

    Attributes:
        task: of the target.
        test: the target's test rows.
        inputs: their features.
        own: the target's rows that train.
        sources: the rows of each.
    """

    task: Task
    test: Samples
    inputs: Matrix
    own: tuple[Matrix, Matrix]
    sources: list[tuple[Matrix, Matrix]]

    @classmethod
    def of(cls, data: Data, target: str, seed: int, folder: Path) -> Drawn:
        """Draw them."""
        task = task_of(data, target, seed, folder)
        test = samples(task.test_data(target))
        own, *sources = (of_head(task, data, task.train_data(site)) for site in (target, *task.settings.sources))
        return cls(task, test, of_head(task, data, test)[0], own, sources)

    def outputs(self, head: Head) -> torch.Tensor:
        """Return what a head puts out for the test rows."""
        return torch.from_numpy(np.column_stack([self.inputs, np.ones(len(self.inputs))]) @ head.weights.T)

    def metrics(self, head: Head) -> dict[str, float]:
        """Return the task's metrics of a head in percent."""
        return {name: 100 * of for name, of in self.task.metrics(self.outputs(head), self.test.labels).items()}


def run(data: Data, target: str, seed: int, folder: Path) -> dict[str, float]:
    """Return the metric of each column in percent."""
    drawn, heads = fitted(data, target, seed, folder)
    return {column: drawn.metrics(head)[data.metric] for column, head in heads.items()}


def fitted(
    data: Data, target: str, seed: int, folder: Path, *, noises: Iterable[float] = EPSILONS
) -> tuple[Drawn, dict[str, Head]]:
    """Return the rows, and the head of each column."""
    drawn = Drawn.of(data, target, seed, folder)
    features, codes = drawn.own
    parts = [Moments.of(*rows, bound=data.bound) for rows in drawn.sources]
    random = np.random.default_rng(seed)
    found = {"target alone": fit_head(None, features, codes, bound=data.bound)}
    for ending, multiplier in {"": 0.0, **{f", ε = {one:g}": multiplier_for(one) for one in noises}}.items():
        deviation = multiplier * data.bound
        sums = sum(part.means() * part.rows + random.normal(size=part.means().size) * deviation for part in parts)
        rows = sum(part.rows for part in parts)
        whole = Moments.from_means(sums / rows, width=features.shape[1], outputs=codes.shape[1], rows=rows)
        how = {"bound": data.bound, "noise": deviation * math.sqrt(len(parts))}
        found[f"no labels{ending}"] = fit_head(whole, **how)
        found[f"labels{ending}"] = fit_head(whole, features, codes, **how)
    return drawn, found


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


def of_head(task: Task, data: Data, rows: Samples | Unlabelled | None) -> tuple[Matrix, Matrix]:
    """Return features (n, d), and what the head fits (n, c)."""
    rows = samples(rows)
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
    drawn = Drawn.of(data, target, seed, folder)
    parts = [Moments.of(*rows, bound=data.bound) for rows in drawn.sources]
    sums = Moments(sum(p.gram for p in parts), sum(p.cross for p in parts), sum(p.rows for p in parts))
    every = np.vstack([drawn.own[0], drawn.inputs])
    like = Moments.of(every, np.zeros((len(every), 1)), bound=data.bound)
    moved = sums.moved(like.gram[-1, :-1] / like.gram[-1, -1])
    found = {}
    for how, sources in zip(ALIGNED, (sums, moved, coral(moved, like)), strict=True):
        for kind, labelled in zip(KINDS[:2], ((), drawn.own), strict=True):
            found[kind, how] = drawn.metrics(fit_head(sources, *labelled, bound=data.bound))[data.metric]
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


def balanced(folder: Path, seeds: int, _: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield a row of data with a rare class: metrics without class weights, with, and with each row weighed."""
    name = "eICU, 20 %, AUROC"
    runs = [balance(DATA[name], target, seed, folder) for target in DATA[name].sites for seed in range(seeds)]
    means = {key: {metric: fmean(one[key][metric] for one in runs) for metric in runs[0][key]} for key in runs[0]}
    yield {"data": name, "class weights": means}


def balance(data: Data, target: str, seed: int, folder: Path) -> dict[str, dict[str, float]]:
    """Return the task's metrics in percent by kind and weights."""
    drawn = Drawn.of(data, target, seed, folder)
    rows, codes, _ = bounded_rows(*(np.vstack(of) for of in zip(*drawn.sources, strict=True)), bound=data.bound)
    classes = codes.argmax(axis=1)
    weights = (len(rows) / codes.shape[1] / np.bincount(classes))[classes]
    sums = Moments(rows.T @ rows, codes.T @ rows, len(rows))
    by_row = Moments((rows.T * weights) @ rows, (codes.T * weights) @ rows, len(rows))
    found = {}
    for kind, labelled in zip(KINDS[:2], ((), drawn.own), strict=True):
        for how, sources in zip(BALANCES, (sums, sums, by_row), strict=True):
            head = fit_head(sources, *labelled, bound=data.bound, balanced=how != BALANCES[0])
            found[f"{kind}, {how}"] = drawn.metrics(head)
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
    return markdown(("", ""), cells.items())


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
            began = seconds.pop("R0 advertise") + seconds.pop("moments and R1 shares")
            head = seconds.pop("rule")
            masking = sum(seconds[step] for step in seconds if step.startswith("R"))
            parts = {"sources: moments and keys": began, "masking": masking, "target: the head": head}
            runs.append(parts | {"in all": sum(parts.values())})
    return {part: median(run[part] for run in runs) for part in runs[0]}


def times_table(head: tuple[str, str], times: Mapping[str, float]) -> str:
    """Return seconds by name."""
    return markdown(head, ((name, f"{seconds:.2f}") for name, seconds in times.items()))


def tables(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tables by name."""
    listed = list(rows)
    speed = next(row for row in listed if row["data"] == SPEED)
    many_sources = next(row for row in listed if row["data"] == MANY)
    listed = [row for row in listed if row["data"] not in (SPEED, MANY)]
    return {
        "many": many_table(many_sources),
        "speed": times_table(("step", "processor time, s"), speed["seconds"]),
        "round": times_table(("part of a round", "wall clock, s"), speed["round"]),
        "accuracy": table(listed, COLUMNS[:3]),
        "source_weights": source_weights_table(row for row in listed if "source weights" in row),
        "alignment": alignment_table(row for row in listed if "alignment" in row),
        "class_weights": class_weights_table(next(row["class weights"] for row in listed if "class weights" in row)),
        **{f"noise_{one:g}": table(listed, columns) for one, columns in AT.items()},
    }


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return a table in Markdown."""
    lines = (
        (row["data"], *(f"{row[of]['mean']:.1f} ± {row[of]['deviation']:.1f}" if of in row else "–" for of in columns))
        for row in rows
    )
    return markdown(("data", *columns), lines)


def source_weights_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table in Markdown of what source weights gain at the targets that did not choose them."""
    lines = []
    for row in rows:
        for kind in KINDS[:2]:
            of = row["source weights"][kind]
            chosen = f"{of['distance']}, {of['strength']:g}" if of["strength"] else "no weights"
            plain, weighed = of["plain"], of["weighed"]
            gains = f"{of['gain at validation']:+.1f}", f"{plain:.1f}", f"{weighed:.1f}", f"{weighed - plain:+.1f}"
            lines.append((row["data"], kind, chosen, *gains))
    return markdown(("data", "kind", "chosen", "gain where it was chosen", "plain", "weighed", "gain"), lines)


def alignment_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table in Markdown of what aligned moments gain at the first target of a data set, and at the others."""
    lines = []
    for row in rows:
        of = row["alignment"]
        for kind, how in itertools.product(KINDS[:2], ALIGNED[1:]):
            one = of[f"{kind}, {how}"]
            first = f"{one['validation']:+.1f} ± {one['error']:.1f}"
            gain = f"{fmean(one['others'].values()):+.1f}"
            lines.append((row["data"], kind, how, first, f"{of['plain'][kind]:.1f}", gain))
    return markdown(("data", "kind", "aligned", "gain at the first target", "other targets, plain", "gain"), lines)


def class_weights_table(means: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table in Markdown of what class weights do."""
    shown = ("accuracy", "balanced_accuracy", "auroc")
    lines = ((key, *(f"{of[one]:.1f}" for one in shown)) for key, of in means.items())
    return markdown(("class weights", "accuracy", "balanced accuracy", "AUROC"), lines)


STUDIES = {"measure": measured, "align": aligned, "balance": balanced, "speed": timed, "many": many}


def main() -> int:
    """Measure, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in STUDIES:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--data-dir", type=Path, default=Path())
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA), metavar="NAME")
    asked = parser.parse_args()
    for study in (study for name, study in STUDIES.items() if getattr(asked, name)):
        rows = {row["data"]: row for row in json.loads(FIGURES.read_text())["rows"]}
        for row in study(asked.data_dir, asked.seeds, asked.data):
            rows[row["data"]] = rows.get(row["data"], {}) | row
            FIGURES.write_text(as_text([rows[name] for name in (*DATA, SPEED, MANY) if name in rows], this_machine()))
    print(shown(tables(json.loads(FIGURES.read_text())["rows"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
