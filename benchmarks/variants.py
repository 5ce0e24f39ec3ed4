"""Studies that run one sample federation in several variants: their cells, their command line, and their table cells.

Three of them are of the domains of ``digit_domains``, each of which is the target once and has the other three as its
sources.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from federated import Job, workers
from studies import Cache, Figures, as_text, measure, shown, this_machine

from securefda.samples import sample
from securefda.site.config import load_federation

DOMAINS = ("mnist-m", "synthetic", "mnist", "usps")
MOST_SEEDS = 5


@dataclass(frozen=True, slots=True)
class VariantCell:
    """One run: a sample federation with settings. Study, variant and seed name it."""

    study: str
    variant: str
    seed: int
    example: str
    settings: tuple[str, ...]

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return f"{self.study}/{self.variant}/{self.seed}"

    def job(self, given: Iterable[str]) -> Job:
        """The federation and the seed."""
        return Job(load_federation(sample(self.example), [*self.settings, *given]), self.seed)


def domain_cells(
    settings: Sequence[str], variants: Mapping[str, Sequence[str]], seeds: int = MOST_SEEDS
) -> Iterator[VariantCell]:
    """Every variant with every domain as the target, seed by seed and target by target; its study is the target."""
    for seed in range(seeds):
        for target in DOMAINS:
            sites = target_settings(target)
            for variant, own in variants.items():
                yield VariantCell(target, variant, seed, "digit_domains", (*sites, *settings, *own))


def target_settings(target: str) -> tuple[str, str]:
    """The settings that make a domain the target, and the others its sources."""
    sources = json.dumps([site for site in DOMAINS if site != target])
    return f"federation.target={target}", f"federation.sources={sources}"


def found_in(
    known: Mapping[str, Mapping[str, Any]], cells: Iterable[VariantCell]
) -> dict[tuple[str, str], dict[int, Mapping[str, Any]]]:
    """(study, variant) -> seed -> figures, of the cells that were run, in their order."""
    found: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for cell in cells:
        if cell.key in known:
            found.setdefault((cell.study, cell.variant), {})[cell.seed] = known[cell.key]
    return found


def complete_seeds(known: Mapping[str, Any], cells: Iterable[VariantCell]) -> dict[str, list[int]]:
    """Study -> the seeds that every one of its variants was run with; studies without such a seed are left out."""
    run: dict[str, dict[int, bool]] = {}
    for cell in cells:
        seeds = run.setdefault(cell.study, {})
        seeds[cell.seed] = seeds.get(cell.seed, True) and cell.key in known
    complete = {study: [seed for seed, whole in seeds.items() if whole] for study, seeds in run.items()}
    return {study: seeds for study, seeds in complete.items() if seeds}


def mean_and_spread(values: Sequence[float] | None) -> str:
    """Mean and standard deviation as a table shows them; a dash where nothing was run."""
    if not values:
        return "–"
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def study_parser(about: str | None, name: str, needs: str) -> argparse.ArgumentParser:
    """The command line of a study; ``needs`` says which folders of data it reads, ``name`` gives its files."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run what the cache lacks first")
    parser.add_argument("--data-dir", type=Path, help=f"folder with {needs}")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(f"{name.replace('_', '-')}-cache"),
        help="folder for what was run already",
    )
    parser.add_argument("--workers", type=int, default=1, help="federations beside each other")
    parser.add_argument(
        "--figures", type=Path, default=Path(__file__).parent / f"{name}.json", help="the figures, JSON"
    )
    return parser


def domain_arguments(about: str | None, name: str, *, check: str = "") -> argparse.Namespace:
    """The arguments of a study of domains; ``check`` says what ``--check`` asks, where there is one."""
    parser = study_parser(about, name, "mnist and usps")
    parser.add_argument("--seeds", type=int, choices=range(1, MOST_SEEDS + 1), default=2, help="of each target")
    if check:
        parser.add_argument("--check", action="store_true", help=check)
    given = parser.parse_args()
    if given.measure and given.data_dir is None:
        parser.error("--measure needs --data-dir")
    return given


def measured(
    given: argparse.Namespace,
    run_cell: Callable[[Job], Figures],
    cells: Iterable[VariantCell],
    data: Mapping[str, list[str]],
) -> dict[str, dict[str, Any]]:
    """Figures by cell, after every cell that the cache lacked was run.

    Args:
        given: what :func:`study_parser` reads.
        run_cell: runs one; its figures have an ``accuracy``, in percent.
        cells: of the study.
        data: study -> the settings that say where its data lie.
    """
    cache = Cache(given.cache, given.figures.stem)

    def done(cell: VariantCell, figures: Any) -> None:
        print(f"{cell.key}: {figures.accuracy:.1f} %", file=sys.stderr, flush=True)

    with workers(given.workers) as pool:
        measure(pool, run_cell, cells, cache, data, done)
    return cache.read()


Rows = list[dict[str, Any]]


def domain_study(
    given: argparse.Namespace,
    run_cell: Callable[[Job], Figures],
    cells: Callable[[int], Iterable[VariantCell]],
    rows_of: Callable[[Mapping[str, Mapping[str, Any]]], Rows],
    tables: Callable[[Rows], dict[str, str]],
    folders: Mapping[str, str] = dict.fromkeys(DOMAINS, "."),
) -> Rows:
    """Measure a study of domains where asked to, print its tables, and give its rows.

    ``folders``: study -> where its files are, below the folder of data; studies that read none are left out.
    """
    if given.measure:
        data = {study: [f"task.data-dir={(given.data_dir / folder).absolute()}"] for study, folder in folders.items()}
        known = measured(given, run_cell, cells(given.seeds), defaultdict(list, data))
        given.figures.write_text(as_text(rows_of(known), this_machine()))
    rows: Rows = json.loads(given.figures.read_text())["rows"]
    print(shown(tables(rows)))
    return rows
