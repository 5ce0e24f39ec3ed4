"""Whether anything that a target knows without labels, or 10 to 50 labelled rows, says when adapting a model harms.

    python benchmarks/adaptation_criteria.py --measure --data-dir DIR --cache FOLDER    some 12 minutes of one core
    python benchmarks/adaptation_criteria.py    from adaptation_criteria.json: print the tables

For a target without labels: the last model of `source_only`, and what adaptation makes of it at the default settings,
on 24 cases of the sample `digits`, and on the four digit domains, for which DIR holds ``mnist`` and ``usps``. Models
stay in FOLDER, so that a further criterion needs no training. Each criterion is computed from both models and the rows
that were adapted to. It keeps the adapted model where

- its *score*, of one model, is the higher one; or
- its *change*, between the two models, is below a bound: the one with the best mean on the development seed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from adaptation import OF_DIGITS, OF_DOMAINS, SETTINGS, VARIANTS_OF_DIGITS
from studies import as_text, shown, this_machine
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot
from variants import DOMAINS, mean_and_spread, target_settings

from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.trained import trained_model
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import Samples, Task, Unlabelled
from securefda.training import TrainingSettings, Vector, derive_seed, model_to_vector
from securefda.training.local import outputs_of
from securefda.training.model_features import cluster_features, extract_features
from securefda.training.seeds import new_generator
from securefda.training.site_model import SiteModel
from securefda.training.target_adaptation import AdaptationSettings, adapt

FIGURES = Path(__file__).with_suffix(".json")
SEEDS = {"development": 20, "confirmation": 30}
DOMAIN_SEED = 11
PARTS = (*SEEDS, "digit domains")
LABELS, DRAWS = (10, 20, 50), 500
CHOSEN = "variance of received features"
NEIGHBOURS, VARIED, SHARPNESS = 5, 5, 0.05
CLASSES = 10

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A target: the angle of its images, and in what else it differs from the study of `digits`.

    Attributes:
        angle: in degrees.
        noise: standard deviation, where a pixel is in [0, 1].
        rounds: of the run; the received model is poor after few.
        rows: that it adapts to.
        skewed: whether classes 5 to 9 have a fifth of their rows, in training and test.
        junk: rows of the 400 that are drawn at random, and show no digit.
    """

    angle: float = 0
    noise: float = 0.2
    rounds: int = 10
    rows: int = 400
    skewed: bool = False
    junk: int = 0


CASES: Mapping[str, Case] = {
    "0°": Case(),
    "20°": Case(20),
    "40°": Case(40),
    "180°": Case(180),
    "noise of 0.5": Case(noise=0.5),
    "0°, skewed classes": Case(skewed=True),
    "20°, skewed classes": Case(20, skewed=True),
    "0°, 200 rows": Case(rows=200),
    "20°, 200 rows": Case(20, rows=200),
    "0°, after 2 rounds": Case(rounds=2),
    "20°, after 2 rounds": Case(20, rounds=2),
    "20°, half of the rows no digits": Case(20, junk=200),
}


@dataclass(frozen=True, slots=True)
class Look:
    """What a model makes of rows.

    Attributes:
        features: float64 (n, d).
        shares: probabilities, float64 (n, c).
        classes: (n,).
        steady: share of rows whose class does not change when they are varied.
    """

    features: Tensor
    shares: Tensor
    classes: Tensor
    steady: float

    @classmethod
    def of(cls, site: SiteModel, vector: Vector, rows: Tensor) -> Look:
        """Look at rows with a model."""
        site.prepare_to_evaluate(vector)
        drawn = new_generator(0)
        classes = outputs_of(site.task, site.module, rows).argmax(dim=1)
        steady = [
            outputs_of(site.task, site.module, site.task.varied(rows, drawn)).argmax(dim=1) == classes
            for _ in range(VARIED)
        ]
        return cls(
            torch.from_numpy(extract_features(site.task, site.module, rows)).double(),
            torch.softmax(outputs_of(site.task, site.module, rows).double(), dim=1),
            classes,
            float(torch.stack(steady).double().mean()),
        )


def entropy(shares: Tensor) -> Tensor:
    found: Tensor = torch.special.entr(shares).sum(dim=-1)
    return found


def information(look: Look) -> float:
    """The mutual information of rows and classes, of the most that it could be."""
    return float(entropy(look.shares.mean(dim=0)) - entropy(look.shares).mean()) / math.log(CLASSES)


def neighbourhood_density(look: Look) -> float:
    """The entropy of each row's soft neighbours, by their probabilities (Saito et al. 2021)."""
    directions = normalize(look.shares, dim=1)
    alike = (directions @ directions.T / SHARPNESS).fill_diagonal_(-math.inf)
    return float(entropy(torch.softmax(alike, dim=1)).mean())


def nuclear_norm(look: Look) -> float:
    """Of the probabilities, of the most that it could be (Cui et al. 2020; Deng et al. 2023)."""
    return float(torch.linalg.matrix_norm(look.shares, "nuc")) / math.sqrt(look.shares.numel())


def dispersion(look: Look) -> float:
    """The logarithm of the variance between classes of features (Xie et al. 2023)."""
    features, middle = look.features, look.features.mean(dim=0)
    groups = [features[look.classes == group] for group in look.classes.unique()]
    between = sum(len(group) * float((group.mean(dim=0) - middle).square().sum()) for group in groups)
    return math.log(between / max(1, len(groups) - 1) + 1e-9)


def tendency(look: Look) -> float:
    """The Hopkins statistic of the features: how much nearer to its neighbour a row is than a point drawn at random."""
    features, drawn = look.features, new_generator(0)
    some = torch.randperm(len(features), generator=drawn)[: max(10, len(features) // 10)]
    low, high = features.amin(dim=0), features.amax(dim=0)
    points = low + (high - low) * torch.rand(len(some), features.shape[1], generator=drawn, dtype=features.dtype)
    to_rows = torch.cdist(points, features).amin(dim=1).sum()
    among = torch.cdist(features[some], features)
    among[torch.arange(len(some)), some] = math.inf
    return float(to_rows / (to_rows + among.amin(dim=1).sum()))


def neighbours(space: Tensor, classes: Tensor) -> float:
    """The share of rows whose nearest ones in a space, by majority, have its class."""
    apart = torch.cdist(space, space).fill_diagonal_(math.inf)
    nearest = classes[apart.topk(NEIGHBOURS, largest=False).indices]
    return float((one_hot(nearest, CLASSES).sum(dim=1).argmax(dim=1) == classes).double().mean())


def clustered(space: Tensor, classes: Tensor) -> float:
    """The adjusted Rand index of the classes and clusters in a space."""
    from sklearn.metrics import adjusted_rand_score  # noqa: PLC0415

    return float(adjusted_rand_score(cluster_features(space.float().numpy(), CLASSES, 0), classes.numpy()))


SCORES: Mapping[str, Callable[[Look, Look, Tensor], float]] = {
    "information": lambda look, _received, _rows: information(look),
    "consistency": lambda look, _received, _rows: look.steady,
    "consistency × information": lambda look, _received, _rows: look.steady * information(look),
    "confidence": lambda look, _received, _rows: float(look.shares.amax(dim=1).mean()),
    "nuclear norm": lambda look, _received, _rows: nuclear_norm(look),
    "dispersion": lambda look, _received, _rows: dispersion(look),
    "transfer score": lambda look, _received, _rows: tendency(look) + information(look),
    "soft neighbourhood density": lambda look, _received, _rows: neighbourhood_density(look),
    "neighbours in pixels": lambda look, _received, rows: neighbours(rows, look.classes),
    "neighbours in received features": lambda look, received, _rows: neighbours(received.features, look.classes),
    "clusters of pixels": lambda look, _received, rows: clustered(rows, look.classes),
    "clusters of received features": lambda look, received, _rows: clustered(received.features, look.classes),
    "variance of pixels": lambda look, _received, rows: explained(rows, look.classes),
    "variance of received features": lambda look, received, _rows: explained(received.features, look.classes),
}
"""Of a model, the received one and the rows. The higher, the better."""


def explained(features: Tensor, classes: Tensor) -> float:
    """The share of the variance of features, (n, d), between the classes of their rows, (n,), in [0, 1]."""
    apart = features - features.mean(dim=0)
    counts = torch.bincount(classes)
    sums = apart.new_zeros(len(counts), apart.shape[1]).index_add_(0, classes, apart)
    return float((sums.square().sum(dim=1) / counts.clamp_min(1)).sum() / apart.square().sum())


def sure_churn(received: Look, adapted: Look) -> float:
    """The share of other classes among the half of the rows of which the received model is surest."""
    sure = received.shares.amax(dim=1)
    return float((received.classes != adapted.classes)[sure >= sure.median()].double().mean())


CHANGES: Mapping[str, Callable[[Look, Look], float]] = {
    "rows with another class": lambda received, adapted: float((received.classes != adapted.classes).double().mean()),
    "the same, of the surest half": sure_churn,
    "shift of the classes' shares": lambda received, adapted: float(
        (received.shares.mean(dim=0) - adapted.shares.mean(dim=0)).abs().sum() / 2
    ),
}
"""Between the received and the adapted model. The smaller, the better."""


def of_case(name: str, sources: str, seed: int, folder: Path) -> dict[str, Any]:
    """All figures of one case, with models from the folder, or trained and kept there."""
    case = CASES[name]
    settings = (*SETTINGS, *OF_DIGITS, *VARIANTS_OF_DIGITS[sources], "training.target.adapt=none")
    run = folder / f"{seed}, {sources}, {case.rounds} rounds"
    if not (run / "summary.json").exists():
        config = load_federation(sample("digits"), (*settings, f"strategy.rounds={case.rounds}"))
        simulate(config, run, seed, SilentReporter())
    task, model = trained_model(run, options={"target-angle": float(case.angle), "noise": case.noise})
    part = next(part for part, of in SEEDS.items() if of == seed)
    return _figures(task, model, *rows_of(task, case, seed), seed, folder / f"{seed}, {sources}, {name}.npy") | {
        "part": part,
        "case": name,
        "sources": sources,
    }


def of_domain(target: str, data_dir: Path, folder: Path) -> dict[str, Any]:
    """The same with a domain of digits as the target, after sources that do not vary their rows."""
    run = folder / target
    if not (run / "summary.json").exists():
        settings = (*target_settings(target), *SETTINGS, *OF_DOMAINS, "training.target.adapt=none")
        config = load_federation(sample("digit_domains"), (*settings, f"task.data-dir={data_dir.absolute()}"))
        simulate(config, run, DOMAIN_SEED, SilentReporter())
    task, model = trained_model(run, data_dir=data_dir.absolute())
    rows, test = rows_of(task, Case(rows=2000), DOMAIN_SEED, target)
    found = _figures(task, model, rows, test, DOMAIN_SEED, folder / f"{target}.npy", target)
    return found | {"part": PARTS[-1], "case": target, "sources": "plain rows"}


def _figures(
    task: Task, model: nn.Module, rows: Tensor, test: Samples, seed: int, file: Path, target: str = "target"
) -> dict[str, Any]:
    """Accuracy and criteria of a model and of what adaptation makes of it, which a file keeps."""
    site = SiteModel(task, target, Unlabelled(rows), TrainingSettings(device="cpu"), seed)
    received = model_to_vector(model)
    if not file.exists():
        np.save(file, adapt(site, received, AdaptationSettings(), derive_seed(seed, "adapted", 0)).vector)
    vectors = received, np.load(file)
    looks = [Look.of(site, vector, rows) for vector in vectors]
    right = [Look.of(site, vector, test.features).classes == test.labels for vector in vectors]
    gains = (right[1].double() - right[0].double()).numpy()
    return {
        "accuracy": [100 * float(found.double().mean()) for found in right],
        "scores": {
            of: [score(look, looks[0], rows.double().flatten(1)) for look in looks] for of, score in SCORES.items()
        },
        "changes": {of: change(*looks) for of, change in CHANGES.items()},
        "labelled": {count: _by_labels(gains, count) for count in map(str, LABELS)},
    }


def rows_of(task: Task, case: Case, seed: int, target: str = "target") -> tuple[Tensor, Samples]:
    """The rows that the target adapts to, and its test rows."""
    parts = []
    for part in (task.train_data(target), task.test_data(target)):
        if part is None:
            raise RuntimeError("these tasks have labelled test rows")
        number = (one_hot(part.labels).cumsum(dim=0) * one_hot(part.labels)).sum(dim=1)  # of a row in its class
        kept = (part.labels < CLASSES // 2) | (number % 5 == 0) if case.skewed else number > 0
        parts.append(Samples(part.features[kept], part.labels[kept]))
    rows, test = parts[0].features[: case.rows].clone(), parts[1]
    if case.junk:
        rows[: case.junk] = torch.rand(case.junk, rows.shape[1], generator=new_generator(seed))
    return rows, test


def _by_labels(gains: Any, count: str) -> dict[str, float]:
    """The mean gain on the other test rows, and how often it adapts, if as many decide; ties adapt."""
    drawn = np.random.default_rng(0)
    orders = [drawn.permutation(len(gains)) for _ in range(DRAWS)]
    adapts = [gains[order[: int(count)]].sum() >= 0 for order in orders]
    kept = [100 * gains[order[int(count) :]].mean() * adapted for order, adapted in zip(orders, adapts, strict=True)]
    return {"gain": fmean(kept), "adapts": fmean(adapts)}


@dataclass(frozen=True, slots=True)
class Rule:
    """How often it adapts in each case, in [0, 1], and what is gained by that, in points."""

    adapts: Sequence[float]
    gains: Sequence[float]

    @classmethod
    def of(cls, rows: Sequence[Row], adapts: Callable[[Row], bool]) -> Rule:
        """A rule that needs no labels."""
        return cls([float(adapts(row)) for row in rows], [gain_of(row) if adapts(row) else 0.0 for row in rows])

    def cells(self, rows: Sequence[Row]) -> str:
        """Harm averted, gains kept, mean and worst, as the table shows them."""
        gains = [gain_of(row) for row in rows]
        averted = [1 - adapted for gain, adapted in zip(gains, self.adapts, strict=True) if gain <= -1]
        kept = [adapted for gain, adapted in zip(gains, self.adapts, strict=True) if gain >= 1]
        counts = " | ".join(f"{sum(found):.0f} of {len(found)}" for found in (averted, kept))
        return f"{counts} | {fmean(self.gains):+.1f} | {min(self.gains):+.1f}"


def gain_of(row: Row) -> float:
    """What adaptation gains, in points."""
    before, after = row["accuracy"]
    return float(after - before)


def bound_of(name: str, rows: Sequence[Row]) -> float:
    """The bound below which a change has to be for the best mean gain."""
    found = sorted(row["changes"][name] for row in rows)
    bounds = [0.0, *((low + high) / 2 for low, high in pairwise(found)), math.inf]
    return max(bounds, key=lambda bound: fmean(Rule.of(rows, lambda row: row["changes"][name] < bound).gains))


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """The tables as Markdown: every criterion, and every case."""
    parts = [[row for row in rows if row["part"] == part] for part in PARTS]
    rules: dict[str, Callable[[Sequence[Row]], Rule]] = {
        "never": lambda part: Rule.of(part, lambda _: False),
        "always": lambda part: Rule.of(part, lambda _: True),
        "if it is better, by all test rows": lambda part: Rule.of(part, lambda row: gain_of(row) > 0),
    }
    for name in SCORES:
        rules[name] = partial(_by_score, name)
    for name in CHANGES:
        bound = bound_of(name, parts[0])
        rules[f"{name} < {bound:.2f}"] = partial(_by_change, name, bound)
    for count in map(str, LABELS):
        rules[f"*{count} labelled rows*"] = partial(_by_labelled, count)
    lines = [
        f"| adapts | {' | '.join(f'{name}: harm averted | gains kept | mean | worst' for name in PARTS)} |",
        f"|{'---|' * (1 + 4 * len(PARTS))}",
        *(f"| {name} | {' | '.join(rule(part).cells(part) for part in parts)} |" for name, rule in rules.items()),
    ]
    return {"criteria": "\n".join(lines), "cases": _table_of_cases(rows)}


def _by_score(name: str, rows: Sequence[Row]) -> Rule:
    return Rule.of(rows, lambda row: bool(row["scores"][name][1] > row["scores"][name][0]))


def _by_change(name: str, bound: float, rows: Sequence[Row]) -> Rule:
    return Rule.of(rows, lambda row: bool(row["changes"][name] < bound))


def _by_labelled(count: str, rows: Sequence[Row]) -> Rule:
    found = [row["labelled"][count] for row in rows]
    return Rule([one["adapts"] for one in found], [one["gain"] for one in found])


def _table_of_cases(rows: Sequence[Row]) -> str:
    """On `digits`: accuracy before and after, and how often the best criterion there keeps the adapted model."""
    head = " | ".join(f"{sources}: source_only | adapted | kept" for sources in VARIANTS_OF_DIGITS)
    lines = [f"| target | {head} |", f"|{'---|' * (1 + 3 * len(VARIANTS_OF_DIGITS))}"]
    for case in CASES:
        cells = []
        for sources in VARIANTS_OF_DIGITS:
            found = [row for row in rows if (row["case"], row["sources"]) == (case, sources)]
            accuracy = " | ".join(mean_and_spread([row["accuracy"][at] for row in found]) for at in (0, 1))
            kept = sum(_by_score(CHOSEN, found).adapts)
            cells.append(f"{accuracy} | {kept:.0f} of {len(found)}")
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Measure if asked to, then print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--cache", type=Path, default=Path("adaptation-criteria-cache"), help="folder for the models")
    parser.add_argument("--data-dir", type=Path, help="folder with mnist and usps")
    given = parser.parse_args()
    if given.measure:
        if given.data_dir is None:
            parser.error("--measure needs --data-dir")
        torch.set_num_threads(1)
        given.cache.mkdir(parents=True, exist_ok=True)
        rows = [of_case(*cell, given.cache) for cell in product(CASES, VARIANTS_OF_DIGITS, SEEDS.values())]
        rows += [of_domain(target, given.data_dir, given.cache) for target in DOMAINS]
        FIGURES.write_text(as_text(rows, this_machine()))
    print(shown(tables(json.loads(FIGURES.read_text())["rows"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
