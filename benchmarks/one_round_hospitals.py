"""The analytic rule on two data sets of hospitals: eICU (AUROC) and TCGA-BRCA (concordance).

    python benchmarks/one_round_hospitals.py --measure STUDY ... --data-dir DIR    measure, and write the figures
    python benchmarks/one_round_hospitals.py    from one_round_hospitals.json: print the tables

Studies, each of ten seeds, which choose the target's rows with labels; the other rows of the target measure:

- ``gain``: the columns of one_round.py, and what labels at the target and the sources add, with an interval.
- ``hospitals``: the 60 hospitals of eICU with most stays as the sources, and as the target a region in which none of
  them lies; one seed is a whole run, in a session with neighbours.

DIR holds the folders eicu_demo and tcga_brca. Whole runs of every rule, with norm caps, are suites of ``securefda bench
accuracy``.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from one_round import DATA, Data, fitted, samples
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from studies import as_text, markdown, shown, this_machine

from securefda.bench.accuracy.federated import Job, run
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import Samples

FIGURES = Path(__file__).parent / "one_round_hospitals.json"
SEEDS = range(10)
EICU, TCGA = "eICU, 20 %, AUROC", "TCGA-BRCA, 50 %, concordance"
HEADS = ("target alone", "no labels", "labels")
RESAMPLES = 1000
Matrix = NDArray[np.float64]


def gain(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each target, and for all: columns over seeds, and the gains with intervals over patients."""
    for name in (EICU, TCGA):
        data = DATA[name]
        targets = data.targets or data.sites
        by_target = {target: [_one(data, target, seed, folder) for seed in SEEDS] for target in targets}
        for target in targets:
            yield {"study": "gain", "data": name, "target": target, **_summary({target: by_target[target]})}
        yield {"study": "gain", "data": name, "target": "", **_summary(by_target)}
        print(name, flush=True)


def _one(data: Data, target: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the pairs of test rows that are compared, those that each column has right, and balanced accuracies."""
    drawn, heads = fitted(data, target, seed, folder, noises=())
    task, test = drawn.task, drawn.test
    outputs = {column: drawn.outputs(head) for column, head in heads.items()}
    train = samples(task.train_data(target))
    sources = [samples(task.train_data(site)) for site in task.settings.sources]
    found: dict[str, Any] = {
        "rows": [row.tobytes() for row in torch.cat([test.features, test.labels.reshape(len(test), -1)], 1).numpy()]
    }
    if data.metric == "auroc":
        shares = {
            "target alone": float(train.labels.double().mean()),
            "no labels": float(torch.cat([one.labels for one in sources]).double().mean()),
            "labels": float(train.labels.double().mean()),
        }
        times, events = 1 - test.labels, test.labels
        risks = {column: of[:, 1] - of[:, 0] for column, of in outputs.items()}
        # An output is the probability of its class minus a half, so that the two differ by twice that.
        found["balanced"] = {column: _balanced(risks[column] > 2 * shares[column] - 1, test.labels) for column in HEADS}
        risks["logistic regression, target alone"] = _logistic([train], test)
        risks["logistic regression, rows pooled"] = _logistic([train, *sources], test)
    else:
        times, events = test.labels.T
        risks = {column: of[:, 0] for column, of in outputs.items()}
        risks["Cox, target alone"] = test.features.double() @ torch.from_numpy(cox([train]))
        risks["Cox, rows pooled"] = test.features.double() @ torch.from_numpy(cox([train, *sources]))
    found["compared"] = (
        (events[:, None] == 1) & ((times[:, None] < times) | ((times[:, None] == times) & (events == 0)))
    ).numpy()
    found["right"] = {
        name: ((of[:, None] > of) + (of[:, None] == of) / 2).numpy() * found["compared"] for name, of in risks.items()
    }
    return found


def _balanced(guesses: torch.Tensor, labels: torch.Tensor) -> float:
    return fmean(float((guesses == labels)[labels == one].double().mean()) for one in (0, 1))


def _logistic(parts: Iterable[Samples], test: Samples) -> torch.Tensor:
    """Return logits of a logistic regression on all rows given, with a ridge by their cross-validation."""
    rows, labels = (torch.cat(of).numpy() for of in zip(*(part.tensors for part in parts), strict=True))
    folds = min(5, int(np.bincount(labels, minlength=2).min()))
    if folds < 2:
        return torch.zeros(len(test), dtype=torch.float64)

    def model(strength: float) -> LogisticRegression:
        return LogisticRegression(C=strength, max_iter=2000)

    def score(strength: float) -> float:
        return float(cross_val_score(model(strength), rows, labels, cv=folds, scoring="neg_log_loss").mean())

    best = model(max(10.0 ** np.arange(-4, 1), key=score)).fit(rows, labels)
    return torch.from_numpy(best.decision_function(test.features.numpy()))


def cox(parts: Iterable[Samples], ridges: Iterable[float] = (0.01, 0.03, 0.1, 0.3)) -> Matrix:
    """Return weights (d,) of a Cox model with a baseline hazard for each part, and a ridge by folds of the rows.

    The best ridge loses least of the partial likelihood by leaving out a fold (Verweij and van Houwelingen 1993).
    """
    whole = [(part.features.double().numpy(), *part.labels.double().numpy().T) for part in parts]

    def loss(ridge: float) -> float:
        total = 0.0
        for fold in range(5):
            kept = [tuple(of[np.arange(len(of)) % 5 != fold] for of in part) for part in whole]
            weights = _cox(kept, ridge)
            total += _cox_terms(whole, weights)[0] - _cox_terms(kept, weights)[0]
        return total

    return _cox(whole, min(ridges, key=loss))


def _cox(parts: Iterable[tuple[Matrix, ...]], ridge: float) -> Matrix:
    """Return the weights by Newton's method; the ridge counts once for each event."""
    listed = list(parts)
    width, strength = listed[0][0].shape[1], 2 * ridge * max(sum(float(events.sum()) for *_, events in listed), 1.0)
    weights = np.zeros(width)
    for _ in range(10):
        _, gradient, curvature = _cox_terms(listed, weights)
        weights = weights - np.linalg.solve(curvature + strength * np.eye(width), gradient + strength * weights)
    return weights


def _cox_terms(parts: Iterable[tuple[Matrix, ...]], weights: Matrix) -> tuple[float, Matrix, Matrix]:
    """Return minus the logarithm of the partial likelihood, Breslow's for equal times, its gradient and curvature."""
    loss, gradient, curvature = 0.0, np.zeros(len(weights)), np.zeros((len(weights), len(weights)))
    for rows, times, events in parts:
        risks, cases = rows @ weights, events == 1
        shares = (times >= times[cases, None]) * np.exp(risks)
        totals = shares.sum(axis=1, keepdims=True)
        means = shares @ rows / totals
        loss += float(np.log(totals).sum() - risks[cases].sum())
        gradient += (means - rows[cases]).sum(axis=0)
        curvature += (rows.T * (shares / totals).sum(axis=0)) @ rows - means.T @ means
    return loss, gradient, curvature


def _summary(by_target: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return columns as means over targets and seeds, and gains with intervals of a bootstrap over patients.

    A patient who is drawn twice counts twice in every seed in which he is a test row, in all columns.
    """
    first = next(iter(by_target.values()))[0]
    names = list(first["right"])
    random = np.random.default_rng(0)
    drawn, plain = [], []
    for runs in by_target.values():
        patients = {row: place for place, row in enumerate(dict.fromkeys(row for one in runs for row in one["rows"]))}
        weights = random.multinomial(len(patients), np.full(len(patients), 1 / len(patients)), RESAMPLES).astype(float)
        weights = np.vstack([np.ones(len(patients)), weights])
        values = []
        for one in runs:
            of = weights[:, [patients[row] for row in one["rows"]]]
            compared = ((of @ one["compared"]) * of).sum(1)
            right = [((of @ one["right"][name]) * of).sum(1) for name in names]
            values.append([100 * np.where(compared > 0, each / np.maximum(compared, 1e-9), 0.5) for each in right])
        drawn.append(np.mean(values, axis=0)[:, 1:])
        plain.append([[float(each[0]) for each in seed] for seed in values])
    over_seeds, resampled = np.mean(plain, axis=0), np.mean(drawn, axis=0)
    columns: dict[str, dict[str, float]] = {}
    for place, name in enumerate(names):
        columns[name] = {"mean": fmean(over_seeds[:, place]), "deviation": stdev(over_seeds[:, place])}
        if name in first.get("balanced", ()):
            columns[name]["balanced"] = 100 * fmean(
                one["balanced"][name] for runs in by_target.values() for one in runs
            )
    gains = {}
    for name in (name for name in names if name != "labels"):
        low, high = np.quantile(resampled[names.index("labels")] - resampled[names.index(name)], [0.025, 0.975])
        gained = columns["labels"]["mean"] - columns[name]["mean"]
        gains[name] = {"mean": gained, "low": float(low), "high": float(high)}
    return {"columns": columns, "gains": gains}


SMALL_SITES = (
    "session.graph=k-regular",
    "session.dropouts=0.05",
    "session.max-samples=100",  # near the rows of the largest: what is far above them costs digits
    "privacy.max-colluders=3",
    "privacy.norm-cap-kappa=0",
    "privacy.moments-min-rows=0",
    "privacy.moments-min-rows-per-class=1",
    "privacy.moments-min-rows-per-category=1",
)
"""Settings of sixty hospitals with a dozen rows each: a policy of the template refuses so few."""


def hospitals(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each target: 60 hospitals of other regions as the sources; the first seed is a whole run too."""
    regions = DATA[EICU]
    for target in regions.sites:
        with tempfile.TemporaryDirectory() as made:
            sources, rows = _write_hospitals(folder / regions.folder, target, Path(made))
            data = replace(regions, sites=(target, *sources), folder=".")
            values = []
            for seed in SEEDS:
                drawn, heads = fitted(data, target, seed, Path(made), noises=())
                values.append(drawn.metrics(heads["labels"])[data.metric])
            sites = f"federation.target={target}", f"federation.sources={json.dumps(sources)}"
            where = f"task.data-dir={made}", f"task.options.{data.split}=0"
            config = load_federation(sample("eicu"), (*SMALL_SITES, *sites, *where), {})
            whole = 100 * run(Job(config, seed=0)).metrics[data.metric]
        found = {"mean": fmean(values), "deviation": stdev(values), "first": values[0], "run": whole}
        yield {"study": "hospitals", "target": target, "rows": rows, **found}
        print(target, found, flush=True)


def _write_hospitals(regions: Path, target: str, out: Path, count: int = 60) -> tuple[list[str], int]:
    """Write the target's file, and one of each of the largest hospitals elsewhere; return their names and all rows."""
    (out / f"{target}.csv").write_bytes((regions / f"{target}.csv").read_bytes())
    head, by_hospital = [], defaultdict(list)
    for region in DATA[EICU].sites:
        with (regions / f"{region}.csv").open(newline="") as file:
            head, *rows = csv.reader(file)
        for row in rows if region != target else ():
            by_hospital[row[head.index("hospital_id")]].append(row)
    largest = sorted(by_hospital, key=lambda one: (-len(by_hospital[one]), one))[:count]
    for one in largest:
        with (out / f"hospital-{one}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([head, *by_hospital[one]])
    return [f"hospital-{one}" for one in largest], sum(len(by_hospital[one]) for one in largest)


STUDIES: Mapping[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    "gain": gain,
    "hospitals": hospitals,
}


def tables(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tables by name."""
    of = {study: [row for row in rows if row["study"] == study] for study in STUDIES}
    gains = {(row["data"], row["target"]): row for row in of["gain"]}
    eicu, tcga = ([row for (name, _), row in gains.items() if name == wanted] for wanted in (EICU, TCGA))
    found = {
        "eicu": _of_targets(
            eicu,
            (
                "target alone",
                "logistic regression, target alone",
                "no labels",
                "labels",
                "logistic regression, rows pooled",
            ),
        ),
        "balanced": markdown(
            ("target", *HEADS),
            [[_named(row), *(f"{row['columns'][column]['balanced']:.1f}" for column in HEADS)] for row in eicu],
        ),
        "tcga_brca": _of_targets(
            tcga, ("target alone", "Cox, target alone", "no labels", "labels", "Cox, rows pooled")
        ),
    }
    regions = {row["target"]: row["columns"] for row in eicu}
    found["hospitals"] = markdown(
        ("target", "stays", "target alone", "60 hospitals", "the other regions", "first seed, added", "whole run"),
        [
            [
                row["target"],
                f"{row['rows']:,}",
                *(_cell(of) for of in (regions[row["target"]]["target alone"], row, regions[row["target"]]["labels"])),
                *(f"{row[name]:.2f}" for name in ("first", "run")),
            ]
            for row in of["hospitals"]
        ],
    )
    return found


def _of_targets(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> str:
    listed = list(columns)
    lines = []
    for row in rows:
        gained = row["gains"]["target alone"]
        interval = f"{gained['mean']:+.1f} ({gained['low']:+.1f} to {gained['high']:+.1f})"
        lines.append([_named(row), *(_cell(row["columns"][column]) for column in listed), interval])
    return markdown(("target", *listed, "labels against target alone"), lines)


def _named(row: Mapping[str, Any]) -> str:
    return str(row["target"]) or "mean"


def _cell(value: Mapping[str, Any]) -> str:
    return f"{value['mean']:.1f} ± {value['deviation']:.1f}"


def main() -> int:
    """Measure, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", nargs="+", choices=STUDIES, default=[], metavar="STUDY")
    parser.add_argument("--data-dir", type=Path, default=Path())
    asked = parser.parse_args()
    for study in asked.measure:
        measured = list(STUDIES[study](asked.data_dir))
        known = json.loads(FIGURES.read_text())["rows"] if FIGURES.exists() else []
        rows = [row for row in known if row["study"] != study] + measured
        FIGURES.write_text(as_text(rows, this_machine()))
    print(shown(tables(json.loads(FIGURES.read_text())["rows"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
