"""What alignment of features gains where nothing stands in its way: all rows in one place, an exchange at every step.

    python benchmarks/pooled_alignment.py --measure --data-dir DIR --cache FOLDER [--workers N] [--seeds N]
    python benchmarks/pooled_alignment.py    from pooled_alignment.json: print the tables

DIR holds ``mnist`` and ``usps``. Each domain is the target once, and the other three are its sources. In every step a
batch of each source and a batch of the target pass through one model, one domain identifier for each source learns from
their features, and the model's step uses the identifiers as they are then. No federation can exchange more, so what is
not gained here cannot be lost by exchanging once a round. The losses are those of the rules of the same names; the
weight of the loss rises over the run, as in Ganin and Lempitsky 2015. Weight and learning rate come from trials on
mnist-m and synthetic with another seed, so that their columns are no test of them. On varied rows the best of them
alone is run.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from federated import Job
from torch import Tensor, nn
from variants import (
    DOMAINS,
    MOST_SEEDS,
    VariantCell,
    complete_seeds,
    domain_arguments,
    domain_cells,
    domain_study,
    found_in,
    mean_and_spread,
)

from securefda.tasks import Task, TaskSettings, Unlabelled, load_task
from securefda.training.alignment.adversarial import (
    identification_loss,
    reversed_source_loss,
    reversed_target_loss,
    source_confusion_loss,
    target_confusion_loss,
)
from securefda.training.alignment.discrepancy import discrepancy, median_distance
from securefda.training.alignment.modules import DomainIdentifier
from securefda.training.batch_norm import estimate_statistics
from securefda.training.features import last_linear

ROWS, BATCH, STEPS = 2000, 64, 600
LAST = (400, 450, 500, 550, 600)
"""Steps after which the target's test rows are looked at; their mean is the figure."""

LEARNING_RATE, PRIVATE_LEARNING_RATE, WEIGHT = 1e-3, 1e-3, 0.3
RULES = ("source_only", "f_dann", "f_dan", "fada_adversarial")
SETTINGS = (f"task.options.rows={ROWS}", f"task.options.target-rows={ROWS}", "training.target.labels=none")
RELEASED = "training.target.release-features=true"
VARIED = "training.source.vary=true"
VARIANTS = {rule: (f"strategy.rule={rule}", RELEASED) for rule in RULES} | {
    f"{rule}, varied": (f"strategy.rule={rule}", RELEASED, VARIED) for rule in ("source_only", "f_dann")
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Accuracy on the target's test rows in percent: mean of the last looks, and each of them."""

    accuracy: float
    accuracies: list[float]


class Batches:
    """Batches of one site's rows, in a new order whenever all have passed."""

    def __init__(self, rows: int, draws: torch.Generator) -> None:
        self._rows, self._draws = rows, draws
        self._left = torch.randperm(rows, generator=draws)

    def __next__(self) -> Tensor:
        if len(self._left) < BATCH:
            self._left = torch.randperm(self._rows, generator=self._draws)
        batch, self._left = self._left[:BATCH], self._left[BATCH:]
        return batch


def run_cell(job: Job) -> Figures:
    """Train one model on the rows of all sites."""
    sites, kind = job.config.federation, job.config.task
    settings = TaskSettings(sites.target, tuple(sites.sources), job.seed, kind.data_dir, kind.options)
    task = load_task(kind.factory, settings)
    data = {site: task.train_data(site) for site in (sites.target, *sites.sources)}
    test, unlabelled = task.test_data(sites.target), Unlabelled(data[sites.target].features)
    rule, vary = job.config.strategy.rule, job.config.training.source.vary
    torch.manual_seed(job.seed)
    draws = torch.Generator().manual_seed(job.seed)
    model = task.model()
    taken: list[Tensor] = []
    last_linear(model).register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0].flatten(1)))
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    aligned = Aligned(rule, last_linear(model).in_features, len(sites.sources))
    batches = {site: Batches(len(data[site]), draws) for site in data}
    accuracies = []
    for step in range(1, STEPS + 1):
        model.train()
        losses, own = [], []
        for site in sites.sources:
            chosen = next(batches[site])
            rows = data[site].features[chosen]
            outputs = model(task.varied(rows, draws) if vary else rows)
            own.append(taken.pop())
            losses.append(task.loss(outputs, data[site].labels[chosen]))
        loss = torch.stack(losses).mean()
        if rule != "source_only":
            model(unlabelled.features[next(batches[sites.target])])
            rise = 2 / (1 + math.exp(-10 * step / STEPS)) - 1
            loss = loss + WEIGHT * rise * aligned.loss(own, taken.pop())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in LAST:
            accuracies.append(accuracy_of(task, model, unlabelled, test.features, test.labels))
            taken.clear()
    return Figures(fmean(accuracies), accuracies)


def accuracy_of(task: Task, model: nn.Module, unlabelled: Unlabelled, features: Tensor, labels: Tensor) -> float:
    """Percent of the target's test rows, with the target's own BatchNorm statistics."""
    estimate_statistics(task, model, unlabelled)
    with torch.no_grad():
        return round(100 * (model(features).argmax(1) == labels).float().mean().item(), 1)


class Aligned:
    """What a rule adds to the loss: its domain identifiers, which learn at every step, and how the model answers."""

    def __init__(self, rule: str, width: int, sources: int) -> None:
        self._rule = rule
        self._identifiers = nn.ModuleList([DomainIdentifier(width) for _ in range(sources)])
        self._optimizer = torch.optim.Adam(self._identifiers.parameters(), PRIVATE_LEARNING_RATE)

    def loss(self, own: Sequence[Tensor], target: Tensor) -> Tensor:
        """The mean over sources, of features (n, d) each and the target's (n, d), after the identifiers' step.

        As in a federation, features are standardised by moments of the target's.
        """
        with torch.no_grad():
            spread, middle = torch.std_mean(target, dim=0, correction=0)
            spread = spread.clamp_min(0.1 * float(spread.square().mean().sqrt()))
        theirs, ours = (target - middle) / spread, [(one - middle) / spread for one in own]
        if self._rule == "f_dan":
            return torch.stack([discrepancy(one, theirs, median_distance(one, theirs)) for one in ours]).mean()
        self._optimizer.zero_grad()
        for identifier, one in zip(self._identifiers, ours, strict=True):
            identification_loss(identifier(one.detach()), identifier(theirs.detach())).backward()
        self._optimizer.step()
        of_source, of_target = (
            (reversed_source_loss, reversed_target_loss)
            if self._rule == "f_dann"
            else (source_confusion_loss, target_confusion_loss)
        )
        self._identifiers.requires_grad_(requires_grad=False)
        added = [
            of_source(identifier(one)) + of_target(identifier(theirs))
            for identifier, one in zip(self._identifiers, ours, strict=True)
        ]
        self._identifiers.requires_grad_()
        return torch.stack(added).mean()


def cells(seeds: int = MOST_SEEDS) -> Iterator[VariantCell]:
    """Every run, seed by seed, mnist-m first."""
    return domain_cells(SETTINGS, VARIANTS, seeds)


def rows_of(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each target and variant, of the seeds that every variant was run with, from figures by cell."""
    complete = complete_seeds(known, cells())
    return [
        {
            "target": target,
            "variant": variant,
            "seeds": complete[target],
            "accuracies": [round(found[seed]["accuracy"], 2) for seed in complete[target]],
        }
        for (target, variant), found in found_in(known, cells()).items()
        if target in complete
    ]


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The table as Markdown: each rule, and how far its mean is above source_only on the same rows."""
    at = {(row["target"], row["variant"]): row["accuracies"] for row in rows}
    targets = [target for target in DOMAINS if (target, "source_only") in at]
    means = {variant: fmean(fmean(at[target, variant]) for target in targets) for variant in VARIANTS}
    lines = [f"| | {' | '.join(targets)} | mean | above source_only |", f"|---|{'---|' * (len(targets) + 2)}"]
    for variant, mean in means.items():
        beside = means["source_only, varied" if variant.endswith(", varied") else "source_only"]
        shown_here = [mean_and_spread(at[target, variant]) for target in targets]
        lines.append(f"| {variant} | {' | '.join(shown_here)} | {mean:.1f} | {mean - beside:+.1f} |")
    return {"accuracy": "\n".join(lines)}


def main() -> int:
    """Measure where asked to, and print the table."""
    given = domain_arguments(__doc__, "pooled_alignment")
    domain_study(given, run_cell, cells, rows_of, tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
