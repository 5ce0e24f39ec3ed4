"""FADA's three models, f-DANN and f-DAN beside source_only on frozen features, in plain torch, without securefda.

    python benchmarks/independent/fada.py --data-dir DIR [--data NAME ...] [--modes MODE ...] [--methods METHOD ...]
                                          [--weight 0.1] [--steps 300] [--exchange 1] [--epochs] [--runs 3]

It says whether the gain of Peng et al. (ICLR 2020, "the paper") can be had on these data at all, and so whether its
absence is ours. DIR holds the folders amazon_review and office_caltech. ``fada.json`` gets a row for each method:
accuracy in percent on all rows of the target, by target, run and look; ten looks over the steps, which show whether a
model gets worse again. No training sees a label of the target. Rows that the file has are skipped.

Each domain is the target once. Every source takes its own step from a common model, and then all exchange; nothing is
exchanged more often, in the paper neither. With ``--exchange N`` they exchange after N steps, and begin with a new
optimizer: rounds. With ``--epochs`` a source stops in a round after as many batches as its rows fill.

- ``federated``: each source has an optimizer and private modules of its own; the mean of their models, by rows and
  under FADA by attention, is the next model.
- ``pooled``: all rows in one place. The mean of the gradients makes one step, and one set of modules tells the sources
  as one from the target. There is no attention, so model I is source_only.
- ``single``: a model of each source alone, without exchange. The mean of their accuracies counts.

The paper gives sizes for digits alone (its Tables 7 and 8); here are their kinds: an extractor G of two fully connected
layers, a disentangler D of one in each of two branches, a classifier C of one; identifiers and an estimator of mutual
information with a hidden layer. Under all methods D's first branch is in use. Weights of losses rise over the run as in
Ganin and Lempitsky 2015, up to ``--weight``.

All runs of a method train beside each other: tensors have a first dimension M of runs x targets x sources.
"""

from __future__ import annotations

import argparse
import json
import math
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import leaky_relu, softplus

DATA = {
    "Amazon reviews": ("amazon_review", ""),
    "Office-Caltech10": ("office_caltech", "efficientnet_lite0_"),
    "Office-Caltech10, SURF": ("office_caltech", "surf_"),
}
"""Name -> folder, beginning of the names of its files."""

ALIGNING = ("f_dann", "f_dan", "fada_adversarial", "fada")
ATTENTION = ("fada_attention", "fada_adversarial", "fada")
METHODS = {
    "federated": ("source_only", "fada_attention", *ALIGNING),
    "single": ("source_only",),
    "pooled": ("source_only", *ALIGNING),
}
BATCH, RATE, LOOKS = 64, 1e-3, 10
EVERY, SMOOTHING, CLUSTERED = 5, 0.8, 256
"""Steps between two measurements of gains, share of their running mean that is kept, rows that are clustered."""

HIDDEN, EXTRACTED, INVARIANT = 64, 32, 32
ENTROPY, INFORMATION, RECONSTRUCTION = 0.5, 0.005, 0.5
"""Weights of the losses of model III, in units of the adversarial one's."""


class Linear(nn.Module):
    """M linear layers beside each other: (M, n, inputs) to (M, n, outputs)."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter((2 * torch.rand(count, inputs, outputs) - 1) / math.sqrt(inputs))
        self.bias = nn.Parameter((2 * torch.rand(count, 1, outputs) - 1) / math.sqrt(inputs))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the outputs."""
        return torch.baddbmm(self.bias, rows, self.weight)


class Model(nn.Module):
    """G, D and C: what the sources exchange."""

    def __init__(self, count: int, width: int, classes: int) -> None:
        super().__init__()
        first, second = Linear(count, width, HIDDEN), Linear(count, HIDDEN, EXTRACTED)
        self.extractor = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
        self.invariant, self.specific = (
            nn.Sequential(Linear(count, EXTRACTED, INVARIANT), nn.ReLU()) for _ in range(2)
        )
        self.classifier = Linear(count, INVARIANT, classes)

    def features(self, rows: Tensor) -> Tensor:
        """What C takes, (M, n, INVARIANT)."""
        found: Tensor = self.invariant(self.extractor(rows))
        return found


class Private(nn.Module):
    """What stays at a source: identifiers of domain and class, estimator of information, decoder."""

    def __init__(self, count: int, classes: int) -> None:
        super().__init__()
        self.domain = nn.Sequential(Linear(count, INVARIANT, HIDDEN), nn.LeakyReLU(), Linear(count, HIDDEN, 1))
        self.classes = Linear(count, INVARIANT, classes)
        self.first, self.second = Linear(count, INVARIANT, HIDDEN), Linear(count, INVARIANT, HIDDEN)
        self.out, self.parts = Linear(count, HIDDEN, 1), Linear(count, 2 * INVARIANT, EXTRACTED)

    def information(self, one: Tensor, other: Tensor) -> Tensor:
        """A lower bound of the mutual information of two parts of features (Eq. 8), (M, 1)."""
        shuffled = other[:, torch.randperm(other.shape[1])]
        first = self.first(one)
        together, apart = (self.out(leaky_relu(first + self.second(part))) for part in (other, shuffled))
        return together.mean(1) - torch.logsumexp(apart, dim=1) + math.log(apart.shape[1])

    def distance(self, one: Tensor, other: Tensor, whole: Tensor) -> Tensor:
        """How far the two parts are from giving the whole back, (M,)."""
        return (self.parts(torch.cat([one, other], 2)) - whole).square().mean((1, 2))

    def own_loss(self, method: str, own: Tensor, specific: Tensor, whole: Tensor, theirs: Tensor, y: Tensor) -> Tensor:
        """Eq. 4, and under model III what Eqs. 6 and 8 and the decoder ask of these modules; the sum over M."""
        loss = softplus(-self.domain(own)).mean((1, 2)).sum() + softplus(self.domain(theirs)).mean((1, 2)).sum()
        if method == "fada":
            loss = loss + cross_entropy(self.classes(specific), y) + self.distance(own, specific, whole).sum()
            loss = loss - self.information(own, specific).sum()
        return loss


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean over rows, summed over M."""
    return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="sum") / labels.shape[1]


def discrepancy(one: Tensor, other: Tensor) -> Tensor:
    """The squared maximum mean discrepancy, five Gaussian kernels about the median squared distance, (M,)."""
    rows = torch.cat([one, other], 1)
    lengths = rows.square().sum(2)
    squared = (lengths[:, :, None] + lengths[:, None] - 2 * rows @ rows.mT).clamp_min(0)
    first, second = torch.triu_indices(rows.shape[1], rows.shape[1], 1)
    unit = squared.detach()[:, first, second].median(1).values[:, None, None].clamp_min(1e-9)
    kernel, n = sum(torch.exp(-squared / (factor * unit)) for factor in (0.25, 0.5, 1, 2, 4)), one.shape[1]
    return (kernel[:, :n, :n] + kernel[:, n:, n:] - 2 * kernel[:, :n, n:]).mean((1, 2))


def added(private: Private, method: str, own: Tensor, specific: Tensor, whole: Tensor, theirs: Tensor) -> Tensor:
    """What a method adds to the loss of the model for a weight of 1, summed over M."""
    if method == "f_dan":
        return discrepancy(own, theirs).sum()
    source, target = private.domain(own), private.domain(theirs)
    if method == "f_dann":  # the reversed gradient of Eq. 4
        return -softplus(-source).mean((1, 2)).sum() - softplus(target).mean((1, 2)).sum()
    # Eq. 5, with the source's term as the text has it: the identifier is to take each for the other
    loss = softplus(source).mean((1, 2)).sum() + softplus(-target).mean((1, 2)).sum()
    if method == "fada":
        logs = private.classes(specific).log_softmax(2)
        loss = loss + ENTROPY * (logs.exp() * logs).sum(2).mean(1).sum()
        loss = loss + INFORMATION * private.information(own, specific).sum()
        loss = loss + RECONSTRUCTION * private.distance(own, specific, whole).sum()
    return loss


def averaged(tensors: list[Tensor], shares: Tensor) -> None:
    """Put in the place of each source's tensor the mean over the sources, by shares (groups, sources)."""
    for one in tensors:
        apart = one.view(*shares.shape, -1)
        apart.copy_((shares[:, None] @ apart).expand_as(apart))


@torch.no_grad()
def gaps(model: Model, rows: Tensor, centres: Tensor | None, clusters: int) -> tuple[Tensor, Tensor]:
    """Eq. 3 over the variance of all rows, (M,), after steps of k-means from given centres; and the centres."""
    features = model.features(rows)
    passes, centres = (20, features[:, :clusters]) if centres is None else (2, centres)
    for _ in range(passes):
        chosen = functional.one_hot(torch.cdist(features, centres).argmin(2), clusters).float()
        counts = chosen.sum(1)[:, :, None]
        centres = torch.where(counts > 0, chosen.mT @ features / counts.clamp_min(1), centres)
    within = (features - chosen @ centres).square().sum((1, 2))
    return within / (features - features.mean(1, keepdim=True)).square().sum((1, 2)), centres


class Schedule(NamedTuple):
    """Steps of a run, steps between two exchanges, and whether a source stops in between when its rows are through."""

    steps: int
    exchange: int = 1
    epochs: bool = False


def run(sites: list[tuple[Tensor, Tensor]], mode: str, method: str, weight: float, runs: int, how: Schedule) -> Tensor:
    """Train all runs of a method; accuracy in percent, (looks, runs, targets)."""
    steps, exchange, epochs = how
    counts = torch.tensor([len(labels) for _, labels in sites])
    rows, labels = (torch.cat(parts) for parts in zip(*sites, strict=True))
    starts, classes = counts.cumsum(0) - counts, int(labels.max()) + 1
    pairs = [(target, [one for one in range(len(sites)) if one != target]) for target in range(len(sites))] * runs
    of_source = torch.tensor([source for _, sources in pairs for source in sources])
    of_target = torch.tensor([target for target, sources in pairs for _ in sources])
    shares = counts[of_source].float().view(len(pairs), -1)
    shares = shares / shares.sum(1, keepdim=True)
    equal = torch.eye(shares.shape[1])[0].expand_as(shares)  # the first source's stand for all

    def drawn(site: Tensor, count: int) -> Tensor:
        return starts[site][:, None] + (torch.rand(len(site), count) * counts[site][:, None]).long()

    model = Model(len(of_source), rows.shape[1], classes)
    private = Private(len(of_source), classes)
    averaged([one.data for one in model.parameters()], equal)
    if mode == "pooled":
        averaged([one.data for one in private.parameters()], equal)
    adams = [torch.optim.Adam(list(one.parameters()), RATE, fused=True) for one in (model, private)]
    clustered, centres, gains = rows[drawn(of_target, CLUSTERED)], None, torch.zeros(shares.shape)
    weights, before, found = shares, None, list[Tensor]()
    for number in range(1, steps + 1):
        chosen = drawn(of_source, BATCH)
        whole = model.extractor(rows[chosen])
        own = model.invariant(whole)
        loss = cross_entropy(model.classifier(own), labels[chosen])
        if method in ALIGNING:
            theirs = model.features(rows[drawn(of_target, BATCH)])
            specific = model.specific(whole) if method == "fada" else own
            if method != "f_dan":
                seen = [one.detach() for one in (own, specific, whole, theirs)]
                adams[1].zero_grad()
                private.own_loss(method, *seen, labels[chosen]).backward()
                if mode == "pooled":
                    averaged([one.grad for one in private.parameters() if one.grad is not None], shares)
                adams[1].step()
            rise = weight * (2 / (1 + math.exp(-10 * number / steps)) - 1)
            private.requires_grad_(requires_grad=False)
            loss = loss + rise * added(private, method, own, specific, whole, theirs)
            private.requires_grad_()
        adams[0].zero_grad()
        loss.backward()
        if mode == "pooled":
            averaged([one.grad for one in model.parameters() if one.grad is not None], shares)
        if mode == "federated" and method in ATTENTION and number % (EVERY if exchange == 1 else exchange) == 1:
            before, centres = gaps(model, clustered, centres, classes)
        idle = ((number - 1) % exchange * BATCH >= counts[of_source]) & epochs
        kept = [one.data[idle] for one in model.parameters()]
        adams[0].step()
        for one, old in zip(model.parameters(), kept, strict=True):
            one.data[idle] = old
        if number % exchange == 0 and before is not None:
            # Gains of single steps are small and noisy: their running mean counts, in its spread over the sources.
            after, _ = gaps(model, clustered, centres, classes)
            gains = SMOOTHING * gains + (1 - SMOOTHING) * (before - after).view(shares.shape)
            apart = (gains - gains.mean(1, keepdim=True)) / gains.std(1, keepdim=True).clamp_min(1e-12)
            weights = shares * apart.softmax(1)
            weights, before = weights / weights.sum(1, keepdim=True), None
        if mode == "federated" and number % exchange == 0:
            averaged([one.data for one in model.parameters()], weights)
            if exchange > 1:
                adams[0].state.clear()
        if number % (steps // LOOKS) == 0:
            seen = torch.ones_like(shares, dtype=torch.bool) if mode == "single" else equal > 0
            found.append(accuracy(model, sites, of_target, seen.flatten()).view(runs, len(sites), -1).mean(2))
    return torch.stack(found)


@torch.no_grad()
def accuracy(model: Model, sites: list[tuple[Tensor, Tensor]], of_target: Tensor, seen: Tensor) -> Tensor:
    """Percent of its target's rows that each model is right about, of those that ``seen`` marks among M."""
    found = torch.zeros(len(of_target))
    for site, (rows, labels) in enumerate(sites):
        here = seen & (of_target == site)
        chosen = Model(int(here.sum()), rows.shape[1], model.classifier.bias.shape[2])
        chosen.load_state_dict({name: values[here] for name, values in model.state_dict().items()})
        outputs = chosen.classifier(chosen.features(rows.expand(int(here.sum()), -1, -1)))
        found[here] = 100 * (outputs.argmax(2) == labels).float().mean(1)
    return found[seen]


def read(folder: Path, name: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Site -> its rows (n, d) of root mean square 1, and their classes (n,)."""
    where, prefix = DATA[name]
    found = {}
    for path in sorted((folder / where).glob(f"{prefix}*.npz")):
        with np.load(path) as arrays:
            rows, labels = torch.from_numpy(arrays["features"].astype(np.float32)), arrays["labels"].ravel()
        unit = functional.normalize(rows) * math.sqrt(rows.shape[1])
        found[path.stem.removeprefix(prefix)] = unit, torch.from_numpy(labels.astype(np.int64))
    return found


def main() -> None:
    """Run what the file lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--data", choices=DATA, nargs="+", default=list(DATA))
    parser.add_argument("--modes", choices=METHODS, nargs="+", default=list(METHODS))
    parser.add_argument("--methods", choices=METHODS["federated"], nargs="+", default=METHODS["federated"])
    parser.add_argument("--weight", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--exchange", type=int, default=1)
    parser.add_argument("--epochs", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--figures", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows: list[dict[str, Any]] = json.loads(given.figures.read_text()) if given.figures.exists() else []
    for data, mode, method in product(given.data, given.modes, given.methods):
        if method not in METHODS[mode]:
            continue
        row = {"data": data, "mode": mode, "method": method, "weight": given.weight if method in ALIGNING else 0.0}
        how = Schedule(given.steps, given.exchange, given.epochs)
        row |= how._asdict() | {"runs": given.runs}
        if any(row.items() <= one.items() for one in rows):
            continue
        torch.manual_seed(0)
        sites = read(given.data_dir, data)
        found = run(list(sites.values()), mode, method, row["weight"], given.runs, how)
        print(*row.values(), " ".join(f"{look:.1f}" for look in found.mean((1, 2)).tolist()), flush=True)
        row["accuracies"] = dict(zip(sites, found.permute(2, 1, 0).tolist(), strict=True))
        rows.append(row)
        lines = ",\n".join(json.dumps(one | {"accuracies": rounded(one["accuracies"])}) for one in rows)
        given.figures.write_text(f"[\n{lines}\n]\n")


def rounded(accuracies: dict[str, list[list[float]]]) -> dict[str, list[list[float]]]:
    """Accuracies by target, run and look to a hundredth."""
    return {target: [[round(one, 2) for one in run] for run in runs] for target, runs in accuracies.items()}


if __name__ == "__main__":
    main()
