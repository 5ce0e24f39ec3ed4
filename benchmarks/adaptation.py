"""What adaptation at the target adds: to source_only without labels, on digits and on the digit domains; to FedGP with
few labels, on digits and on noisy Fashion-MNIST.

    python benchmarks/adaptation.py --measure --data-dir DIR --cache FOLDER [--workers N] [--seeds N]
    python benchmarks/adaptation.py    from adaptation.json: print the tables

DIR holds ``mnist``, ``usps`` and ``fashion_mnist``. Each domain is the target once, and the other three are its
sources; "skewed usps" is USPS with a fifth of the images of five classes. The sample ``digits`` is bundled. Every run
is ``securefda simulate``, with masks and norm caps. The settings are the defaults; they were chosen with seeds 0 and 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from full_data_runs import AUTHORS, STUDIES
from safetensors.torch import load_file
from studies import Cache, as_text, markdown, measure, shown, this_machine

from securefda.bench.accuracy.federated import Job
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import Samples, TaskSettings, Unlabelled, load_task
from securefda.tasks.digit_domains import DigitDomains
from securefda.training.parameter_vectors import model_to_vector
from securefda.training.site_model import SiteModel
from securefda.training.target_adaptation import AdaptationSettings, adapt
from securefda.training.training_settings import TrainingSettings

FIGURES = Path(__file__).with_suffix(".json")
DOMAINS = ("mnist-m", "synthetic", "mnist", "usps")
FIRST_SEED, MOST_SEEDS = 10, 5
SETTINGS = (
    *("training.source.threads=1", "training.target.threads=1"),
    *("strategy.rule=source_only", "strategy.warm-up-rounds=0"),
    *("training.target.labels=none", "training.target.adapt=consistency"),
)
DIGITS = {f"{angle}°": (f"task.options.target-angle={angle}",) for angle in (0, 20, 40)}
OF_DIGITS = ("task.options.target-rows=400", "strategy.rounds=10")
OF_DOMAINS = (
    *("task.options.rows=2000", "task.options.target-rows=2000"),
    *("training.source.batch-size=64", "strategy.rounds=20"),
)
LABELS, FEW_LABELS = (20, 50, 100), "few labels"
OF_LABELS = (*SETTINGS[:2], "training.target.adapt=consistency")
VARIANTS_OF_DIGITS: Mapping[str, tuple[str, ...]] = {
    "plain rows": (),
    "varied rows": ("training.source.vary=true",),
}
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "plain rows, BatchNorm": (),
    "varied rows, BatchNorm": ("training.source.vary=true",),
    "varied rows, GroupNorm": ("training.source.vary=true", "task.options.norm=group"),
}
SKEWED = "skewed usps"
VARIANTS_OF_SKEWED = VARIANTS | {
    "varied rows, BatchNorm, received": ("training.source.vary=true", "training.target.adapt-prior=received")
}
NOISY = "noisy Fashion-MNIST"
NOISY_RULES = ("fedda_auto", "fedgp_auto")
OF_NOISY = (
    *(*STUDIES[NOISY].settings, *OF_LABELS, "task.options.target-rows=50", "strategy.rounds=12"),
    *("task.options.noise-drawn=once", "training.target.vary=false", "training.target.learning-rate=0.005"),
)
"""The authors' schedule, cut to twelve rounds, but for the noise: a row that the target has keeps its own."""

FOLDERS = {**dict.fromkeys((*DOMAINS, SKEWED), "."), NOISY: "fashion_mnist"}
"""Study -> where its files are, below the folder of data; the others read none."""


class SkewedDigits(DigitDomains):
    """Digit domains of which the target has a fifth of the images of 5 to 9, in training and in test."""

    def _fewer(self, site: str, samples: Samples) -> Samples:
        if site != self.settings.target:
            return samples
        rare = samples.labels >= 5
        kept = ~rare | (rare.cumsum(0) % 5 == 0)
        return Samples(samples.features[kept], samples.labels[kept])

    def train_data(self, site: str) -> Samples:
        """As of the domain, and fewer at the target."""
        return self._fewer(site, super().train_data(site))

    def test_data(self, site: str) -> Samples:
        """As of the domain, and fewer at the target."""
        return self._fewer(site, super().test_data(site))


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


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run gave.

    Attributes:
        accuracy: of the model that the target ends with, adapted or not, in percent.
        before: of the run's last model.
        adapted: of the adapted model, kept or not.
        kept: whether it was kept.
        scores: before and after.
        seconds: of adaptation, by the processor's time of this process.
        alone, warm: of the target alone, and of the warm-started target, after the last round; with labels only.
        unlabelled: of the last model, adapted to the same rows without a look at the labels that some have.
    """

    accuracy: float
    before: float
    adapted: float
    kept: bool
    scores: tuple[float, float]
    seconds: float
    alone: float | None = None
    warm: float | None = None
    unlabelled: float | None = None


class _Timed(SilentReporter):
    """Notes the processor's time at which adaptation begins."""

    began = taken = 0.0

    def note(self, note: object) -> None:
        if "the target adapts" in str(note):
            self.began = time.process_time()

    def phase(self, name: str, *_rest: object) -> None:
        if name.startswith("adapting the model"):
            self.taken = time.process_time() - self.began


def run_cell(job: Job) -> Figures:
    """Run one federation to its end."""
    timed = _Timed()
    with tempfile.TemporaryDirectory() as folder:
        summary = simulate(job.config, Path(folder), job.seed, timed)
        labelled = bool(summary.adapted and summary.adapted["labelled"])
        unlabelled = without_labels(job, Path(folder)) if labelled else None
    found, alone, warm = summary.adapted, summary.target_only, summary.warm_target
    if found is None or found["accuracy"] is None or found["accuracy_before"] is None:
        raise RuntimeError("the run adapted no model")
    before, adapted = 100 * found["accuracy_before"], 100 * found["accuracy"]
    return Figures(
        accuracy=adapted if found["kept"] else before,
        before=before,
        adapted=adapted,
        kept=found["kept"],
        scores=(found["score_before"], found["score"]),
        seconds=timed.taken,
        alone=100 * alone["final"] if alone else None,
        warm=100 * warm["final"] if warm else None,
        unlabelled=unlabelled,
    )


def without_labels(job: Job, folder: Path) -> float:
    """The accuracy of a run's last model, adapted to all of the target's rows without a look at their labels."""
    section, sites = job.config.task, job.config.federation
    of_task = TaskSettings(sites.target, tuple(sites.sources), job.seed, section.data_dir, section.options)
    task = load_task(section.factory, of_task)
    rows = torch.cat([task.train_data(sites.target).features, task.unlabelled_data().features])
    site = SiteModel(task, sites.target, Unlabelled(rows), TrainingSettings(device="cpu", threads=1), job.seed)
    site.module.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    found = adapt(site, model_to_vector(site.module), AdaptationSettings(), job.seed)
    return 100 * site.evaluate(found.vector, task.test_data(sites.target)).metrics["accuracy"]


def cells(seeds: int = MOST_SEEDS) -> Iterator[VariantCell]:
    """Every run, seed by seed."""
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for count in LABELS:
            rows = f"task.options.target-rows={count}"
            yield VariantCell(f"{count} labels", FEW_LABELS, seed, "digits", (*OF_LABELS, rows))
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for variant, own in VARIANTS_OF_DIGITS.items():
            for study, angle in DIGITS.items():
                yield VariantCell(study, variant, seed, "digits", (*SETTINGS, *OF_DIGITS, *angle, *own))
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for variant, own in VARIANTS.items():
            for target in DOMAINS:
                settings = (*_target_settings(target), *SETTINGS, *OF_DOMAINS, *own)
                yield VariantCell(target, variant, seed, "digit_domains", settings)
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for variant, own in VARIANTS_OF_SKEWED.items():
            settings = (*_target_settings("usps"), *SETTINGS, *OF_DOMAINS, *own)
            yield VariantCell(
                SKEWED, variant, seed, "digit_domains", ("task.factory=adaptation:SkewedDigits", *settings)
            )
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for rule in NOISY_RULES:
            factor, own = AUTHORS[rule]
            schedule = (f"strategy.rule={rule}", f"strategy.lr-after-warm-up={factor}", "strategy.warm-up-rounds=2")
            yield VariantCell(NOISY, rule, seed, "noisy_fashion_mnist", (*OF_NOISY, *own, *schedule))


def _target_settings(target: str) -> tuple[str, str]:
    """The settings that make a domain the target, and the others its sources."""
    sources = json.dumps([site for site in DOMAINS if site != target])
    return f"federation.target={target}", f"federation.sources={sources}"


def rows_of(
    known: Mapping[str, Mapping[str, Any]], of: Iterable[VariantCell], variants: str = "variant"
) -> list[dict[str, Any]]:
    """A row for each target and variant, of the seeds that were run, from figures by cell."""
    found: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for cell in of:
        if cell.key in known:
            found.setdefault((cell.study, cell.variant), {})[cell.seed] = known[cell.key]
    return [
        {"target": target, variants: variant, "seeds": list(runs), "runs": list(runs.values())}
        for (target, variant), runs in found.items()
    ]


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The tables as Markdown, of the studies that were run."""
    at = {(row["target"], row["variant"]): row["runs"] for row in rows}
    made = {
        "digits": _table(at, tuple(DIGITS), VARIANTS_OF_DIGITS),
        "domains": _table(at, DOMAINS, VARIANTS),
        "labels": _table_of_labels(at),
    }
    studies = {study for study, _ in at}
    made |= {"skewed": _table(at, (SKEWED,), VARIANTS_OF_SKEWED)} if SKEWED in studies else {}
    return made | ({"noisy": _table_of_rules(at)} if NOISY in studies else {})


def _table_of_labels(at: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]) -> str:
    """Accuracy by the number of labels: of the target alone, with the rule, and with adaptation after it."""
    lines = []
    names = {"alone": "target_only", "warm": "warm_target", "before": "fedgp_auto", "accuracy": "fedgp_auto, adapted"}
    for key, name in names.items():
        found = [[run[key] for run in at.get((f"{count} labels", FEW_LABELS), ())] for count in LABELS]
        lines.append([name, *map(mean_and_spread, found)])
    return markdown(("", *(f"{count} labels" for count in LABELS)), lines)


def _table_of_rules(at: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]) -> str:
    """Accuracy on noisy Fashion-MNIST with 50 labels, by rule."""
    lines = []
    for rule in NOISY_RULES:
        runs = at.get((NOISY, rule), ())
        found = [[run[key] for run in runs] for key in ("alone", "warm", "before", "accuracy", "unlabelled")]
        lines += [[rule, *map(mean_and_spread, found)]] if runs else []
    return markdown(("rule", "target_only", "warm_target", "the rule", "adapted", "adapted, no labels"), lines)


def _table(
    at: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]], targets: Sequence[str], variants: Iterable[str]
) -> str:
    """Before and after at each target, the means over the targets, and what was gained."""
    lines = []
    for variant in variants:
        means = []
        for name, key in (("source_only", "before"), ("adapted", "accuracy")):
            found = [[run[key] for run in at.get((target, variant), ())] for target in targets]
            if not any(found):
                break
            means += [fmean(map(fmean, found))] if all(found) else []
            mean = f"{means[-1]:.1f}" if all(found) else "–"
            gain = f"{means[1] - means[0]:+.1f}" if len(means) == len(("before", "after")) else ""
            lines.append([variant, name, *map(mean_and_spread, found), mean, gain])
    return markdown(("sources", "", *targets, "mean", "gain"), lines)


def mean_and_spread(values: Sequence[float]) -> str:
    """Mean and standard deviation as a table shows them; a dash where nothing was run."""
    if not values:
        return "–"
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def _measured(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Run what the cache lacks, and give the rows of all that it has."""
    cache, data = Cache(given.cache, "adaptation"), given.data_dir.absolute()
    settings = {study: [f"task.data-dir={data / folder}"] for study, folder in FOLDERS.items()}

    def done(cell: VariantCell, figures: Figures) -> None:
        print(f"{cell.key}: {figures.accuracy:.1f} %", file=sys.stderr, flush=True)

    measure(given.workers, run_cell, cells(given.seeds), cache, settings, done)
    return rows_of(cache.read(), cells())


def command_line(title: str, folders: str, seeds: int, figures: Path) -> argparse.Namespace:
    """Parse the command line of a study of adaptation; ``seeds`` is how many a target has if none are asked for."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--measure", action="store_true", help="run what the cache lacks first")
    parser.add_argument("--data-dir", type=Path, help=f"folder with {folders}")
    parser.add_argument("--cache", type=Path, default=Path("adaptation-cache"), help="folder for what was run already")
    parser.add_argument("--workers", type=int, default=1, help="federations beside each other")
    parser.add_argument("--seeds", type=int, choices=range(1, MOST_SEEDS + 1), default=seeds, help="of each target")
    parser.add_argument("--figures", type=Path, default=figures, help="the figures, JSON")
    given = parser.parse_args()
    if given.measure and given.data_dir is None:
        parser.error("--measure needs --data-dir")
    return given


def main() -> int:
    """Measure where asked to, and print the tables."""
    given = command_line((__doc__ or "").splitlines()[0], "mnist, usps and fashion_mnist", 2, FIGURES)
    if given.measure:
        given.figures.write_text(as_text(_measured(given), this_machine()))
    print(shown(tables(json.loads(given.figures.read_text())["rows"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
