"""FADA's models, f-DANN and f-DAN on frozen features: by the product, by an independent script, and in the paper.

    python benchmarks/fada_features.py --measure --data-dir DIR [--seeds N] [--data NAME ...] [--rules NAME ...]
    python benchmarks/fada_features.py    from fada_features.json and independent/fada.json: print the tables

DIR holds ``amazon_review`` and ``office_caltech``. Each domain is the target once, and the other three are its sources.
A run is ``securefda simulate`` at visibility individual, without norm caps, of the network of independent/fada.py: two
linear layers, a disentangler, a linear classifier. Sources take about as many steps as there; they exchange once a
round. Weights of losses are those that the script found best. Runs that the file has are skipped.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from federated import Job
from studies import as_text, shown, this_machine
from torch import Tensor, nn

from securefda.bench.accuracy.columns import RULES, Schedule
from securefda.bench.accuracy.federated import run, use_one_thread
from securefda.bench.accuracy.paper import AMAZON_REVIEWS, OFFICE_CALTECH
from securefda.bench.accuracy.suites import DATA
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import Disentangled
from securefda.tasks.features import Features

FIGURES, SCRIPT = Path(__file__).with_suffix(".json"), Path(__file__).parent / "independent" / "fada.json"
HIDDEN, EXTRACTED, INVARIANT = 64, 32, 32
TITLES = {"amazon-reviews": "Amazon reviews", "office-caltech": "Office-Caltech10"}
PUBLISHED = {"amazon-reviews": AMAZON_REVIEWS, "office-caltech": OFFICE_CALTECH}
ROUNDS, WARM_UP = {"amazon-reviews": 10, "office-caltech": 20}, 2
FEATURE_ROWS = {"amazon-reviews": 256, "office-caltech": 128}  # dslr has 157 rows
LONG, LAST = 1500, 3
"""Of the independent script: steps of the runs that look at later ones, and looks that make a figure."""

SCHEDULES = {
    "each step": {"mode": "federated", "rounds": False},
    "rounds": {"mode": "federated", "rounds": True},
}
ANALYTIC = "analytic, no labels"
TEMPERATURE = 0.1
"""The default of ``strategy.attention-temperature``."""

FADA = ("fada_attention", "fada_adversarial", "fada")
LABEL_FREE = ("source_only", "f_dann", "f_dan", *FADA)
"""Rules for a target without labels, as in independent/fada.py."""

WITH_LABELS = ("target_only", "warm_target")


class Scaled(nn.Module):
    """Rows of length 1 to rows of root mean square 1."""

    def forward(self, rows: Tensor) -> Tensor:
        """Return the rows, (n, d)."""
        return rows * math.sqrt(rows.shape[1])


class HiddenLayers(Features):
    """The task of features with layers before its last one, and the two parts of features that ``fada`` needs."""

    def model(self) -> nn.Module:
        """Return features (n, d) -> a logit for each class."""
        rows, head = super().model()
        extractor = nn.Sequential(
            OrderedDict[str, nn.Module](
                rows=rows,
                scaled=Scaled(),
                first=nn.Linear(head.in_features, HIDDEN),
                first_relu=nn.ReLU(),
                second=nn.Linear(HIDDEN, EXTRACTED),
                second_relu=nn.ReLU(),
            )
        )
        invariant, specific = (nn.Sequential(nn.Linear(EXTRACTED, INVARIANT), nn.ReLU()) for _ in range(2))
        return Disentangled(extractor, invariant, specific, nn.Linear(INVARIANT, head.out_features))


def job_of(
    data: str, target: str, rule: str, weight: float, seed: int, data_dir: Path, temperature: float = TEMPERATURE
) -> Job:
    """The federation of one run; a weight of 0 leaves that of the losses as it is by default."""
    kind, named = DATA[data], RULES[rule]
    settings = (
        *kind.settings,
        *kind.target_settings(target),
        f"task.data-dir={data_dir / kind.folder}",
        "task.factory=fada_features:HiddenLayers",
        *(
            f"training.{side}.{key}"
            for side in ("source", "target")
            for key in ("optimizer=adam", "learning-rate=0.001")
        ),
        *("training.source.batch-size=64", "training.target.batch-size=10"),
        *("training.source.threads=1", "training.target.threads=1"),
        *("privacy.visibility=individual", "privacy.norm-cap-kappa=0"),
        *(f"strategy.rounds={ROUNDS[data]}", f"strategy.warm-up-rounds={WARM_UP}", "strategy.rule=source_only"),
        *(f"strategy.feature-rows={FEATURE_ROWS[data]}", f"strategy.attention-temperature={temperature}"),
    )
    if rule not in WITH_LABELS:
        settings += ("training.target.labels=none", "training.target.release-features=true")
    if weight:
        shares = {"adversarial": 1.0, "entropy": 0.5, "information": 0.005, "reconstruction": 0.5}
        settings += tuple(f"training.source.align.{key}={share * weight:g}" for key, share in shares.items())
    schedule = Schedule.of(load_federation(sample(kind.example), settings))
    return Job(load_federation(sample(kind.example), [*settings, *named.settings_for(schedule)]), seed)


def measured(rows: list[dict[str, Any]], given: argparse.Namespace) -> None:
    """Run what ``rows`` lack, seed by seed, and write them after each."""
    for seed in range(given.seeds):
        for data in given.data:
            for rule in given.rules:
                for target in given.targets or DATA[data].targets:
                    weight = given.weight if rule in (*LABEL_FREE[1:3], *FADA[1:]) else 0.0
                    row = {"data": data, "rule": rule, "weight": weight, "target": target, "seed": seed}
                    row["temperature"] = given.temperature if rule in FADA else TEMPERATURE
                    if any(row.items() <= known.items() for known in rows):
                        continue
                    found = run(job_of(data, target, rule, weight, seed, given.data_dir.absolute(), row["temperature"]))
                    rows.append(row | {"accuracy": round(found.accuracy, 2)})
                    print(*rows[-1].values(), file=sys.stderr, flush=True)
                    FIGURES.write_text(as_text(rows, this_machine()))


def tables(rows: Iterable[Mapping[str, Any]], of_script: Sequence[Mapping[str, Any]], one_round: Any) -> dict[str, str]:
    """The tables as Markdown, from the figures of this script, of the independent one and of the analytic rule."""
    listed, lines = list(rows), []
    for rule in (*LABEL_FREE, *WITH_LABELS, ANALYTIC):
        cells = [rule]
        for data, title in TITLES.items():
            cells.append(_by_product(listed, data, rule, one_round))
            cells += [_by_script(of_script, title, rule, how) for how in SCHEDULES.values()]
            published = PUBLISHED[data].rows.get(rule)
            cells.append(f"{published[0]:.1f}" if published else "–")
        if set(cells[1:]) != {"–"}:
            lines.append(f"| {' | '.join(cells)} |")
    columns = ("product", *(f"script, {how}" for how in SCHEDULES), "paper")
    heads = [f"{title}: {columns[0]}" for title in TITLES.values()]
    heads = [head for first in heads for head in (first, *columns[1:])]
    looks = [f"| {' | '.join(('', *(f'{10 * tenth} %' for tenth in range(1, 11))))} |", f"|{'---|' * 11}"]
    for row in (row for row in of_script if row["steps"] == LONG):
        means = [fmean(run[look] for runs in row["accuracies"].values() for run in runs) for look in range(10)]
        looks.append(f"| {row['method']} | {' | '.join(f'{mean:.1f}' for mean in means)} |")
    return {
        "accuracy": "\n".join([f"| | {' | '.join(heads)} |", f"|{'---|' * (len(heads) + 1)}", *lines]),
        "looks": "\n".join(looks),
        "webcam": _one_target(listed, of_script, "office-caltech", "webcam"),
    }


def _one_target(
    rows: Sequence[Mapping[str, Any]], of_script: Sequence[Mapping[str, Any]], data: str, target: str
) -> str:
    """A table of the rules that were measured with one target, by temperature of attention."""
    lines = [f"| {target} is the target | product | script, rounds | script, each step |", "|---|---|---|---|"]
    for row in rows:
        if (row["data"], row["target"], row["seed"]) == (data, target, 0):
            at = f", temperature {row['temperature']:g}" if row["rule"] in FADA else ""
            hows = (SCHEDULES["rounds"], SCHEDULES["each step"]) if row["temperature"] == TEMPERATURE else ({}, {})
            cells = [_by_script(of_script, TITLES[data], row["rule"], how, target) if how else "–" for how in hows]
            lines.append(f"| {row['rule']}{at} | {row['accuracy']:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_product(rows: Sequence[Mapping[str, Any]], data: str, rule: str, one_round: Any) -> str:
    if rule == ANALYTIC:
        found = next(row["no labels"] for row in one_round if row["data"].startswith(TITLES[data]))
        return f"{found['mean']:.1f} ± {found['deviation']:.1f}"
    by_seed: dict[int, list[float]] = {}
    for row in rows:
        if (row["data"], row["rule"], row["temperature"]) == (data, rule, TEMPERATURE):
            by_seed.setdefault(row["seed"], []).append(row["accuracy"])
    return _shown([fmean(found) for found in by_seed.values() if len(found) == len(DATA[data].targets)])


def _by_script(
    rows: Sequence[Mapping[str, Any]], title: str, rule: str, how: Mapping[str, Any], target: str = ""
) -> str:
    asked = {"data": title, "method": rule} | how
    fit = (row for row in rows if row["steps"] != LONG)
    row = next((row for row in fit if asked.items() <= {**row, "rounds": row["exchange"] > 1}.items()), None)
    if row is None:
        return "–"
    by_run = zip(*([row["accuracies"][target]] if target else row["accuracies"].values()), strict=True)
    return _shown([fmean(look for looks in targets for look in looks[-LAST:]) for targets in by_run])


def _shown(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def main() -> int:
    """Measure where asked to, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--data-dir", type=Path, default=Path())
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", choices=TITLES, nargs="+", default=list(TITLES))
    parser.add_argument("--rules", choices=(*LABEL_FREE, *WITH_LABELS), nargs="+", default=(*LABEL_FREE, *WITH_LABELS))
    parser.add_argument("--targets", nargs="+", help="sites; all take turns if none is given")
    parser.add_argument("--weight", type=float, default=0.1)
    parser.add_argument("--temperature", type=float, default=TEMPERATURE, help="of attention")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(FIGURES.read_text())["rows"] if FIGURES.exists() else []
    if given.measure:
        use_one_thread()
        measured(rows, given)
    one_round = json.loads((FIGURES.parent / "one_round.json").read_text())["rows"]
    print(shown(tables(rows, json.loads(SCRIPT.read_text()), one_round)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
