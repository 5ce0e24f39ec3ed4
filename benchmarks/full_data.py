"""The paper's tables on the whole of MNIST and Fashion-MNIST: by the authors' schedule, or one chosen for each rule.

    python benchmarks/full_data.py --measure --data-dir DIR --cache FOLDER [--only STUDY ...] [--rules RULE ...]
    python benchmarks/full_data.py [--check]    from full_data.json: print the tables

Every run is a simulated federation at ``sum`` (`full_data_runs.py` has the grid). Noisy Fashion-MNIST has the authors'
schedule. Elsewhere the factor on the learning rates after warm-up is chosen for each rule and data set: the one with
the best accuracy on `VALIDATION_SEED`, which is in no table. target_only always has more factors to choose from, and
so is the target alone at its best rate.

A study that was stopped goes on where it was; its figures are written after every run, and rows of which FOLDER has no
run stay as they were. ``--check`` ends with 1 where a requirement of `BARS` does not hold or a seed of it is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from full_data_runs import (
    SEEDS,
    STUDIES,
    VALIDATION_SEED,
    Cell,
    command_line,
    measured_cells,
    merged,
    run_missing,
    searched_cells,
)
from studies import Cache, as_text, markdown, this_machine, told

from securefda.bench.accuracy.paper import COLORED_MNIST, LABEL_SHIFT, MEAN, NOISY_FASHION, Published

HERE = Path(__file__).parent
FIGURES = HERE / "full_data.json"
INDEPENDENT = HERE / "independent" / "authors_schedule.jsonl"
PAPER: Mapping[str, tuple[Published, str]] = {
    "ColoredMNIST": (COLORED_MNIST, ""),
    "noisy Fashion-MNIST": (NOISY_FASHION, "0.4"),
    "label shift": (LABEL_SHIFT, "0.15"),
}
"""Study -> the paper's table, and its column where the study has one."""

Row = Mapping[str, Any]
"""A rule of a study: accuracy on the validation seed by factor, the chosen factor, and accuracy by target and seed."""
Known = Mapping[str, Mapping[str, Any]]
"""Figures by the key of their cell."""


def rows_of(known: Known) -> list[dict[str, Any]]:
    """A row for each study and rule of which something is known, with the seeds that every target has."""
    rows = []
    for name, study in STUDIES.items():
        for rule in study.rules:
            factor = chosen(name, rule, known)
            if factor is None:
                continue
            seeds = [
                seed
                for seed in SEEDS
                if all(Cell(name, target, rule, factor, seed).key in known for target in study.targets)
            ]
            runs = {
                target: [known[Cell(name, target, rule, factor, seed).key] for seed in seeds]
                for target in study.targets
            }
            searched = {} if rule in study.given else _searched(name, rule, known)
            if not seeds and not searched:
                continue
            rows.append(
                {"study": name, "rule": rule, "factor": factor, "searched": searched}
                | {"seeds": seeds}
                | {"accuracy": {target: [round(run["accuracy"], 2) for run in of] for target, of in runs.items()}}
                | {"beta": _mean([run["beta"] for of in runs.values() for run in of if run["beta"] is not None])}
                | {"by_round": _by_round([run["accuracies"] for of in runs.values() for run in of])}
                | {"cpu_s": _mean([run["cpu_s"] for of in runs.values() for run in of])}
            )
    return rows


def chosen(study: str, rule: str, known: Known) -> float | None:
    """The factor that is given, or the best on the validation seed, mean over targets; None until all were measured."""
    if rule in STUDIES[study].given:
        return STUDIES[study].given[rule][0]
    found = _searched(study, rule, known)
    if len(found) < len(STUDIES[study].factors_of(rule)):
        return None
    return float(max(found, key=lambda factor: found[factor]))


def _searched(study: str, rule: str, known: Known) -> dict[str, float]:
    """Factor -> accuracy on the validation seed, mean over targets, of those that every target has."""
    found = {}
    for factor in STUDIES[study].factors_of(rule):
        keys = [Cell(study, target, rule, factor, VALIDATION_SEED).key for target in STUDIES[study].targets]
        if all(key in known for key in keys):
            found[f"{factor:g}"] = round(fmean(known[key]["accuracy"] for key in keys), 2)
    return found


def _mean(values: Sequence[float]) -> float | None:
    return round(fmean(values), 3) if values else None


def _by_round(runs: Sequence[Sequence[float]]) -> list[float]:
    """Accuracy of every round, mean over all runs."""
    return [round(fmean(of_round), 2) for of_round in zip(*runs, strict=True)]


def by_seed(row: Row, target: str = "") -> list[float]:
    """Accuracy of a row for each of its seeds: of a target, or the mean over all."""
    columns = [row["accuracy"][target]] if target else list(row["accuracy"].values())
    return [fmean(of_seed) for of_seed in zip(*columns, strict=True)]


# --- requirements -----------------------------------------------------------------------------------------------------

NONE = float("inf")
BARS: Sequence[tuple[str, str, float, float, str]] = (
    ("ColoredMNIST", "fedgp_auto", 86.1, NONE, ""),
    ("ColoredMNIST", "fedgp_auto", 1.0, NONE, "target_only"),
    ("noisy Fashion-MNIST", "source_only", 0.0, 25.0, ""),
    ("noisy Fashion-MNIST", "warm_target", 63.0, 67.0, ""),
    ("noisy Fashion-MNIST", "fedda", 56.6, 60.6, ""),
    ("noisy Fashion-MNIST", "fedgp", 69.1, 73.1, ""),
    ("noisy Fashion-MNIST", "fedgp_auto", 69.8, NONE, ""),
    ("noisy Fashion-MNIST", "fedda_auto", 71.3, NONE, ""),
    ("noisy Fashion-MNIST", "fedda_auto", 1.2, NONE, "fine_tuning"),
    ("label shift", "fedgp_auto", 87.0, NONE, ""),
)
"""Study, rule, the least and the most percent of its mean, or points above another rule's."""

LOWEST = ("ColoredMNIST", "fedgp_auto", "minus-90", 75.0)
"""Below which no seed may be."""


Means = Mapping[tuple[str, str], float]
"""Percent by study and rule, means over all of `SEEDS`."""


def means_of(rows: Sequence[Row]) -> Means:
    """Of the rules that lack no seed."""
    return {(row["study"], row["rule"]): fmean(by_seed(row)) for row in rows if row["seeds"] == list(SEEDS)}


def reached(means: Means, study: str, rule: str, over: str) -> float | None:
    """What a requirement is about; None where a seed is missing."""
    own, other = means.get((study, rule)), means.get((study, over)) if over else 0.0
    return None if own is None or other is None else own - other


def _bound(least: float, most: float) -> str:
    return f"{least:g} or more" if most == NONE else f"{least:g} to {most:g}"


def misses(rows: Sequence[Row]) -> list[str]:
    """A line for each requirement that does not hold or cannot be judged."""
    means, wrong = means_of(rows), []
    for study, rule, least, most, over in BARS:
        found, above = reached(means, study, rule, over), f" above {over}" if over else ""
        if found is None:
            wrong.append(f"MISSING: {study}: {rule}{above} lacks a seed")
        elif not least <= found <= most:
            wrong.append(f"MISSED: {study}: {rule} is at {found:.1f}{above}, must be at {_bound(least, most)}")
    study, rule, target, least = LOWEST
    for row in rows:
        if (row["study"], row["rule"]) == (study, rule):
            wrong += [
                f"MISSED: {study}: {rule} on {target} is at {found:.1f} with one seed, must be at {least:g}"
                for found in by_seed(row, target)
                if found < least
            ]
    return wrong


# --- tables -----------------------------------------------------------------------------------------------------------


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Text in Markdown: accuracy in each study, and what the search found."""
    accuracy = {_name(study): _accuracy(study, rows) for study in STUDIES}
    return accuracy | {"independent": _independent(rows), "search": _search(rows), "bars": _bars(rows)}


def _name(study: str) -> str:
    return study.lower().replace(" ", "-")


def _accuracy(study: str, rows: Sequence[Row]) -> str:
    """With the paper's figures in brackets."""
    targets = STUDIES[study].targets
    several = len(targets) > 1
    published, column = PAPER[study]
    head = ["rule", *(targets if several else ()), "mean" if several else "accuracy", "mean β", "seeds"]
    measured = {row["rule"]: row for row in rows if row["study"] == study and row["seeds"]}
    lines = []
    for rule in STUDIES[study].rules:
        if rule not in measured:
            lines.append([rule, *["not measured"] * (len(head) - 3), "", ""])
            continue
        row = measured[rule]
        cells = [_cell(by_seed(row, target), published.figure(rule, target)) for target in targets if several]
        cells.append(_cell(by_seed(row), published.figure(rule, MEAN if several else column)))
        beta = "" if row["beta"] is None else f"{row['beta']:.2f}"
        lines.append([rule, *cells, beta, ", ".join(map(str, row["seeds"]))])
    return markdown(head, lines)


def _cell(values: Sequence[float], published: float | None) -> str:
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}" + ("" if published is None else f" ({published:.1f})")


def _independent(rows: Sequence[Row]) -> str:
    """Noisy Fashion-MNIST: the paper, the independent script and the product, by seed."""
    name = "noisy Fashion-MNIST"
    product = {
        (row["rule"], seed): reached for row in rows if row["study"] == name for seed, reached in _by_its_seed(row)
    }
    script = _of_script()
    published, column = PAPER[name]
    lines = []
    for rule in (*STUDIES[name].rules[1:], "fedda_auto_aligned"):
        paper = published.figure(rule, column)
        own = rule.removesuffix("_aligned")
        both = [(script.get((rule, seed)), product.get((own, seed))) for seed in SEEDS]
        apart = [mine - other for other, mine in both if mine is not None and other is not None]
        line = [rule, "" if paper is None else f"{paper:.1f}", *map(_seeds, zip(*both, strict=True))]
        lines.append([*line, f"{fmean(apart):+.1f} ± {stdev(apart) / len(apart) ** 0.5:.1f}" if len(apart) > 2 else ""])
    return markdown(["rule", "paper", "independent script", "securefda", "difference"], lines)


def _of_script() -> dict[tuple[str, int], float]:
    """What the independent script reached by column and seed, at the study's noise, in its first draw."""
    cells = [json.loads(line) for line in INDEPENDENT.read_text().splitlines()]
    first = [cell for cell in cells if cell["noise"] == 0.4 and not cell.get("draw", 0)]
    return {(cell["column"], cell["seed"]): cell["accuracy"] for cell in first}


def _bars(rows: Sequence[Row]) -> str:
    """Every requirement, what was reached here and by the independent script, and whether it holds."""
    found: dict[tuple[str, str], list[float]] = {}
    for (column, _), accuracy in _of_script().items():
        found.setdefault(("noisy Fashion-MNIST", column), []).append(accuracy)
    script = {name: fmean(of_seed) for name, of_seed in found.items() if len(of_seed) == len(SEEDS)}
    means, lines = means_of(rows), []
    for study, rule, least, most, over in BARS:
        own, other = (reached(of, study, rule, over) for of in (means, script))
        verdict = "not measured" if own is None else "reached" if least <= own <= most else "**missed**"
        texts = ["–" if value is None else f"{value:.1f}" for value in (own, other)]
        lines.append([study, f"{rule} above {over}" if over else rule, _bound(least, most), *texts, verdict])
    return markdown(["data", "rule", "asked for", "securefda", "independent script", ""], lines)


def _by_its_seed(row: Row) -> Iterable[tuple[int, float]]:
    return zip(row["seeds"], by_seed(row), strict=True)


def _seeds(figures: Sequence[float | None]) -> str:
    """Each seed's figure, and their mean if none is missing."""
    known = [reached for reached in figures if reached is not None]
    if not known:
        return "not measured"
    each = ", ".join("–" if reached is None else f"{reached:.1f}" for reached in figures)
    return f"{each}: {fmean(known):.1f}" if len(known) == len(figures) else each


def _search(rows: Sequence[Row]) -> str:
    """The validation seed's accuracies by factor, the chosen one bold."""
    lines = []
    for row in rows:
        if not row["searched"]:
            continue
        tried = [
            f"**{factor}: {accuracy:.1f}**" if float(factor) == row["factor"] else f"{factor}: {accuracy:.1f}"
            for factor, accuracy in row["searched"].items()
        ]
        lines.append([row["study"], row["rule"], ", ".join(tried)])
    return markdown(["data", "rule", f"factor: accuracy with seed {VALIDATION_SEED}"], lines)


# --- measuring --------------------------------------------------------------------------------------------------------


def measure(asked: argparse.Namespace) -> None:
    """Run what the cache lacks: for each study the search, then all seeds. Write the figures after each run."""
    cache = Cache(asked.cache, "full_data")

    def write() -> None:
        found = merged(asked.figures, rows_of(cache.read()), ("study", "rule"))
        asked.figures.write_text(as_text(found, this_machine()))

    for name in asked.only:
        run_missing(searched_cells(name), asked, cache, write)
        factors = {rule: chosen(name, rule, cache.read()) for rule in STUDIES[name].rules}
        known = {rule: factor for rule, factor in factors.items() if factor is not None}
        run_missing(measured_cells(name, known), asked, cache, write)
    write()


def main() -> int:
    """Measure if asked to, then print the tables."""
    asked = command_line(__doc__.splitlines()[0], FIGURES, STUDIES)
    if asked.measure:
        measure(asked)
    rows = json.loads(asked.figures.read_text())["rows"]
    return told(tables(rows), misses(rows), check=asked.check)


if __name__ == "__main__":
    sys.exit(main())
