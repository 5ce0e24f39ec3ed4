"""What norm caps leave of three to five sources, for each choice of the rule and of the caps' settings.

    python benchmarks/few_sources.py --measure --cache FOLDER    run what FOLDER lacks, write the figures
    python benchmarks/few_sources.py [--check]    print the tables; with --check fail where a default leaves sources out

Every run is a simulated federation. Each source's contribution is measured as it enters the caps and as it leaves them;
the sources' share of a step is what the run itself reports. Rows of studies that are no longer here stay in the file:
they were measured once, at commit 3fb892a9.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any
from unittest.mock import patch

import numpy as np
from studies import Cache, as_text, measure, this_machine, told

from securefda.bench.accuracy.federated import Job, use_one_thread
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.records import NO_PART
from securefda.operations.run_folder import read_run
from securefda.protocol import weighed_contribution
from securefda.protocol.encoding import Vector64
from securefda.protocol.weighed_contribution import AppliedCaps, NormReport, RoundTerms, apply_caps
from securefda.rules import Contribution, Rule, caps_for, contribution_norms
from securefda.samples import sample
from securefda.site.config import load_federation

FIGURES = Path(__file__).parent / "few_sources.json"
SEEDS = (0, 1, 2)
BASELINES = ("target_only", "warm_target")
DEFAULT = "fedda_auto, by layer"
MAIN = ("fedgp_auto, by layer", DEFAULT)
"""What is measured first: the rule with the filter, and the default."""
_GP, _DA = "strategy.rule=fedgp_auto", "strategy.rule=fedda_auto"
_LAYER, _MODEL = "privacy.norm-cap-granularity=layer", "privacy.norm-cap-granularity=model"
_FILTER, _NO_FILTER = "strategy.filter=true", "strategy.filter=false"
_OFF = "privacy.norm-cap-kappa=0"

CHOICES: dict[str, tuple[str, ...]] = {
    "fedgp_auto, off": (_GP, _FILTER, _OFF),
    "fedgp_auto, by layer": (_GP, _FILTER, _LAYER),
    "fedgp_auto, by layer, κ = 0.25": (_GP, _FILTER, _LAYER, "privacy.norm-cap-kappa=0.25"),
    "fedgp_auto, by layer, all must answer": (_GP, _FILTER, _LAYER, "session.threshold=5"),
    "fedgp_auto, on the model": (_GP, _FILTER, _MODEL),
    "fedgp_auto, no filter, by layer": (_GP, _NO_FILTER, _LAYER),
    "fedgp_auto, no filter, on the model": (_GP, _NO_FILTER, _MODEL),
    "fedda_auto, off": (_DA, _OFF),
    DEFAULT: (_DA, _LAYER),
    "fedda_auto, on the model": (_DA, _MODEL),
}
"""Rule and caps -> settings; κ is 1 unless it says otherwise."""

_FOUR = json.dumps([f"source-{number}" for number in range(1, 5)])
_TABLES = str(FIGURES.parents[1] / "examples" / "heart_tables" / "federation.toml")
STUDIES: dict[str, tuple[str | Path, tuple[str, ...], tuple[str, ...]]] = {
    "digits, 5 sources": ("digits", (), tuple(CHOICES)[:6] + tuple(CHOICES)[7:9]),
    "digits, 4 sources": ("digits", (f"federation.sources={_FOUR}",), MAIN),
    "digits, 3 sources": (
        "three_hospitals",
        ("strategy.rounds=20",),
        ("fedgp_auto, off", "fedgp_auto, by layer", "fedgp_auto, on the model", "fedda_auto, off", DEFAULT),
    ),
    "heart tables, 3 sources": (Path(_TABLES), (), MAIN),
    "Fed-Heart, public scaling, 3 sources": (
        "fed_heart",
        (),
        ("fedgp_auto, by layer", "fedgp_auto, no filter, on the model", DEFAULT, "fedda_auto, on the model"),
    ),
}
"""Study -> example, settings, choices."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    study: str
    choice: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return "/".join(str(value) for value in asdict(self).values())

    def job(self, given: Iterable[str]) -> Job:
        """The federation and the seed; ``given`` are settings of the caller."""
        example, settings, _ = STUDIES[self.study]
        alone = f"strategy.compare-target-only={str(self.choice == DEFAULT).lower()}"  # once for each seed
        file = example if isinstance(example, Path) else sample(example)
        return Job(load_federation(file, [*settings, *CHOICES[self.choice], alone, *given]), self.seed)


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run gave, over its rounds with a rule that adapts; all but accuracies are shares from 0 to 1.

    Attributes:
        accuracy: on the target's test rows, mean of the last five rounds, in percent.
        unseen: layers and rounds that are zero in the sum without any cap.
        emptied: layers and rounds that the caps set to zero at every source.
        kept: what is left of the contributions' squared norms under the caps, mean over the rounds.
        share: the sources' share of the step, median over the rounds.
        no_part: rounds in which that is below 1 %.
        alone: layers and rounds with one source alone, after the caps.
        target_only: accuracy of the target alone for as many rounds; None where it was not measured.
        warm_target: that of the target alone after the warm-up, at the rates of the rule.
    """

    accuracy: float
    unseen: float
    emptied: float
    kept: float
    share: float
    no_part: float
    alone: float
    target_only: float | None = None
    warm_target: float | None = None


@dataclass(slots=True)
class Watch:
    """The norms of the contributions of a run, by round, source and layer, before the caps and after."""

    before: dict[int, list[Vector64]] = field(default_factory=dict)
    after: dict[int, list[Vector64]] = field(default_factory=dict)

    def caps(
        self, terms: RoundTerms, own: NormReport | None, reports: Mapping[int, bytes], contribution: Contribution
    ) -> AppliedCaps | None:
        """Apply the caps, and keep the norms before and after, weighted by rows where there is a norm report."""
        norms = partial(contribution_norms, contribution.vector, terms.sizes)
        before, number = norms(1.0), terms.header.round
        length = float(np.linalg.norm(before))
        weight = float(np.linalg.norm(own.exact)) / length if own and length else 1.0
        applied = apply_caps(terms, own, reports, contribution)
        if terms.header.rule.rule != Rule.SOURCE_ONLY:
            self.before.setdefault(number, []).append(weight * before)
            self.after.setdefault(number, []).append(norms(weight))
        return applied


def run_cell(job: Job) -> Figures:
    """The figures of one federation."""
    use_one_thread()
    watch = Watch()
    with tempfile.TemporaryDirectory() as name, patch.object(weighed_contribution, "apply_caps", watch.caps):
        summary = simulate(job.config, Path(name), job.seed, SilentReporter())
        lines = read_run(Path(name)).rounds
    before, after = (np.array(list(kept.values())) for kept in (watch.before, watch.after))  # rounds, sources, layers
    squares_before, squares_after = (np.sum(kept**2, axis=(1, 2)) for kept in (before, after))
    there, unseen = squares_before > 0, ~before.any(axis=1)
    shares = [line["source_share"] for line in lines if line["rule"] != Rule.SOURCE_ONLY]
    alone, warm = (each and 100 * (each["accuracy"] or 0) for each in (summary.target_only, summary.warm_target))
    return Figures(
        accuracy=100 * (summary.target_accuracy or 0),
        unseen=float(np.mean(unseen)),
        emptied=float(np.mean(~after.any(axis=1) & ~unseen)),
        kept=float(np.mean(squares_after[there] / squares_before[there])) if there.any() else 0.0,
        share=median(shares),
        no_part=fmean(share < NO_PART for share in shares),
        alone=float(np.mean(np.count_nonzero(after, axis=1) == 1)),
        target_only=alone,
        warm_target=warm,
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means over the seeds, in Markdown."""
    head = ("task", "rule, caps", "seeds", "accuracy, %", "layers without any source, %", "emptied by caps, %")
    head += ("left of the squared norms, %", "one source alone, %", "sources' share of the step, %", "less than 1 %")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for study in dict.fromkeys(row["study"] for row in rows):
        of_study = [row for row in rows if row["study"] == study]
        for name in dict.fromkeys((*BASELINES, *(row["choice"] for row in of_study))):
            runs = [row for row in of_study if row["choice"] == name]
            accuracies = [row["accuracy"] for row in runs] or [row[name] for row in of_study if row.get(name)]
            cells = ["–"] * 6
            if runs and name not in BASELINES:
                names = ("unseen", "emptied", "kept", "alone", "share")
                cells = [_percent(100 * fmean(run[each] for run in runs)) for each in names]
                no_part = [run["no_part"] for run in runs if "no_part" in run]
                cells.append(_percent(100 * fmean(no_part)) if no_part else "–")
            if accuracies:
                spread = f" ± {stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
                accuracy = f"{fmean(accuracies):.1f}{spread}"
                lines.append(f"| {' | '.join((study, name, str(len(accuracies)), accuracy, *cells))} |")
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{share:.0f}" if share >= 1 or share == 0 else f"{share:.1g}"


ATTACKS = (  # rule, sources, κ, others that count, by layer, filter
    ("fedgp", 5, 1.0, 2, True, True),
    ("fedgp", 5, 0.25, 2, True, True),
    ("fedgp", 5, 1.0, 4, True, True),
    ("fedgp", 5, 1.0, 3, True, True),
    ("fedgp", 5, 1.0, 2, False, True),
    ("fedgp", 5, 0.25, 2, False, True),
    ("fedgp", 5, 1.0, 2, True, False),
    ("fedgp", 3, 1.0, 2, True, True),
    ("fedgp", 3, 0.25, 2, True, True),
    ("fedgp", 3, 1.0, 2, False, True),
    ("fedgp", 3, 0.25, 2, False, True),
    ("fedgp", 3, 1.0, 2, True, False),
    ("fedda", 5, 1.0, 2, True, True),
    ("fedda", 3, 1.0, 2, True, True),
)
_WIDTH = 2048


def attack_rows() -> Iterator[dict[str, Any]]:
    """What a target gains that makes up its update (T22), by the threat register's own search.

    The sources' updates are known to it: ``unrelated``, orthogonal but for chance; or ``alike`` but for the victim's,
    at a cosine of 0.97. Under FedDA it chooses one weight for each source, not one for each layer: one layer here.
    """
    sys.path.insert(0, str(FIGURES.parents[1]))  # the register of threats is not installed
    from threat_model.adversaries.crafted_target import Search  # noqa: PLC0415

    draws = np.random.default_rng(22)
    for rule, sources, kappa, others, by_layer, filtered in ATTACKS:
        row: dict[str, Any] = {"rule": rule, "sources": sources, "kappa": kappa, "others": others}
        row |= {"by_layer": by_layer, "filtered": filtered}
        sizes = (_WIDTH, _WIDTH) if rule == "fedgp" else (2 * _WIDTH,)
        own, shared = draws.normal(size=(sources, 2 * _WIDTH)), draws.normal(size=2 * _WIDTH)
        for name, updates in {"unrelated": own, "alike": np.vstack([own[:1], 0.85 * shared + 0.15 * own[1:]])}.items():
            known = {index: update.astype(np.float32) for index, update in enumerate(updates, 1)}
            search = Search(
                known, dict.fromkeys(known, 1.0), sizes, 1, kappa, others, others, by_layer, negative=not filtered
            )
            row[name] = round(search.best(starts=4, sweeps=6, seed=22)[1], 3)
        yield row


def smoothed(rounds: int, sources: int = 5, others: int = 2) -> float:
    """What is left of a source that is alone in a round, where caps follow from norms averaged over so many rounds.

    In the rounds before, all sources contributed as much as the victim does now; their squares are averaged.
    """
    past = np.ones((rounds - 1, sources))
    now = np.eye(1, sources)
    reports = np.sqrt(np.mean(np.vstack([past, now]) ** 2, axis=0))
    return float(min(1.0, caps_for(reports[:, np.newaxis], kappa=1.0, others=others)[0]))


def many_rows() -> Iterator[dict[str, Any]]:
    """What forty sums tell a target that lies in each of them (T12), by the threat register's own attacks.

    Each attack's cosine with every source's mean update, with norm caps by layer and κ = 1.
    """
    root = FIGURES.parents[1]
    sys.path[:0] = [str(root / name) for name in ("", "tests", "tests/support", "threat_model/tests")]
    import test_t12_many_sums as t12  # noqa: PLC0415 - needs the paths

    from threat_model.stage import Stage  # noqa: PLC0415

    with ExitStack() as stack:

        def staged(*sites: Any, **options: Any) -> Stage:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            return stack.enter_context(closing(Stage(folder, *sites, **options)))

        for batches, batch in (("drawn, of ten rows", t12.SMALL), ("one, of all rows", t12.WHOLE)):
            yield {
                "batches": batches,
                "fedda_auto": t12.found(t12.weighed(staged, batch, kappa=1.0).play(), batch),
                "fedgp": t12.turned(staged, batch, 1.0),
            }


def many_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Smallest, mean and largest cosine of each attack, in Markdown."""

    def spread(cosines: Sequence[float]) -> str:
        return f"{fmean(cosines):.2f} ({min(cosines):.2f} to {max(cosines):.2f})"

    cells = (f"| {row['batches']} | {spread(row['fedda_auto'])} | {spread(row['fedgp'])} |" for row in rows)
    return "\n".join(("| a source's batches | fedda_auto | fedgp with its filter |", "|---|---|---|", *cells))


def smoothed_table() -> str:
    """What averaged norms leave of a source that is alone, in Markdown."""
    head = ("rounds whose norms are averaged", "left of a source that is alone in this round, %")
    rows = (f"| {count} | {100 * smoothed(count):.0f} |" for count in (1, 2, 4))
    return "\n".join((f"| {' | '.join(head)} |", "|---|---|", *rows))


def attack_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """The attack's cosines beside the bound, in Markdown."""
    head = ("rule", "sources", "others that count", "κ", "caps", "filter", "bound", "found, unrelated", "alike")
    lines = [f"| {' | '.join((*head, 'bound in one layer'))} |", f"|{'---|' * (len(head) + 1)}"]
    for row in rows:
        bound = f"{1 / math.sqrt(1 + row['kappa']):.2f}"
        is_fedda = row["rule"] == "fedda"
        cells = [row["rule"], str(row["sources"]), str(row["others"]), f"{row['kappa']:g}"]
        cells += ["by layer" if row["by_layer"] else "on the model"]
        cells += ["none to have" if is_fedda else "yes" if row["filtered"] else "no", bound]
        cells += [f"{row['unrelated']:.2f}", f"{row['alike']:.2f}", bound if row["by_layer"] else "none"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """All tables."""
    return {
        "caps": table([row for row in rows if "choice" in row]),
        "attack": attack_table(row for row in rows if "unrelated" in row),
        "many": many_table(row for row in rows if "batches" in row),
        "smoothed": smoothed_table(),
    }


def misses(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Runs of the default in which caps empty a layer or the sources have no part."""
    runs = [row for row in rows if row.get("choice") == DEFAULT and "no_part" in row]
    return [
        f"{run['study']}, seed {run['seed']}: {run['share']:.2%} of the step, {run['emptied']:.0%} of layers emptied"
        for run in runs
        if run["emptied"] or run["share"] < NO_PART
    ]


def main() -> int:
    """Measure if asked to, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    rows = json.loads(FIGURES.read_text())["rows"]
    if asked.measure:
        if asked.cache is None:
            parser.error("--measure needs --cache")
        cells = [Cell(study, choice, seed) for study in STUDIES for choice in STUDIES[study][2] for seed in SEEDS]
        cache = Cache(asked.cache, "few_sources")
        chosen = sorted(cells, key=lambda cell: cell.choice not in MAIN)
        with ProcessPoolExecutor(1) as pool:
            given: dict[str, list[str]] = {study: [] for study in STUDIES}
            measure(pool, run_cell, chosen, cache, given, lambda *done: print(*done, flush=True))
        known = cache.read()
        new = [asdict(cell) | known[cell.key] for cell in cells if cell.key in known]
        older = [row for row in rows if row.get("study", next(iter(STUDIES))) not in STUDIES]
        rows = [*new, *older, *attack_rows(), *many_rows()]
        FIGURES.write_text(as_text(rows, this_machine()))
    return told(tables(rows), misses(rows), check=asked.check)


if __name__ == "__main__":
    sys.exit(main())
