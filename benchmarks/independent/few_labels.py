"""Adaptation after FedDA_auto on noisy Fashion-MNIST with few labels, in plain torch, without securefda.

    python benchmarks/independent/few_labels.py --data-dir DIR [--labels 50] [--rounds 10] [--seeds 0 1 2 ...]

It says whether the gain that benchmarks/adaptation.py looks for can be had, and so whether a miss is ours. Rules and
rounds are those of authors_schedule.py, beside it. The target has 6,000 images with noise of 0.4 that is drawn once,
and the labels of the first few. Prints accuracy in percent of the rule's last model, and of that model adapted to all
6,000 images with these labels and without: entropy, shares of classes and labels of a teacher, as SHOT and FixMatch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from authors_schedule import (
    COLUMNS,
    SOURCE_BATCH,
    SOURCE_RATE,
    TARGET_RATE,
    Network,
    Site,
    accuracy,
    auto_beta,
    combined,
    read,
    sites,
    train,
    updates_of,
    warm_start,
)
from torch import Tensor
from torch.nn import functional

NOISE, STEPS, BATCH, RATE, KEPT, SURE = 0.4, 1034, 64, 1e-3, 0.99, 0.9


def target_rows(folder: Path, seed: int) -> tuple[Tensor, Tensor]:
    """All images of the target, each with its noise, and their labels."""
    images, labels = read(folder, "train")
    mine = torch.from_numpy(np.array_split(np.random.default_rng(seed).permutation(len(labels)), 10)[0])
    noise = torch.randn(images[mine].shape, generator=torch.Generator().manual_seed(3000 + seed))
    return images[mine] + NOISE * noise, labels[mine]


def after_rule(folder: Path, seed: int, target: Site, rounds: int) -> Tensor:
    """The model after the warm start and so many rounds of FedDA_auto."""
    column, model, draws = COLUMNS["fedda_auto_aligned"], Network(), torch.Generator().manual_seed(2000 + seed)
    at, (sources, _) = warm_start(folder, seed), sites(folder, seed)
    count, sizes = -(-len(sources[0].labels) // SOURCE_BATCH), model.sizes
    for _ in range(rounds):
        updates = updates_of(model, at, sources, SOURCE_RATE * column.factor, draws)
        after = [one.clone() for one in train(model, at, target, column.batch, TARGET_RATE * column.factor, draws)]
        steps = torch.diff(torch.stack([at, *after]), dim=0)
        betas = [auto_beta("fedda", steps, update / count * TARGET_RATE / SOURCE_RATE) for update in updates]
        at = at + combined("fedda", after[-1] - at, updates, torch.tensor(betas), 1.0, sizes)
    return at


def shifted(images: Tensor, draws: torch.Generator) -> Tensor:
    """Each image moved by up to two pixels either way."""
    by = torch.randint(-2, 3, (len(images), 2), generator=draws).tolist()
    padded = functional.pad(images, (2, 2, 2, 2))
    return torch.stack([row[:, 2 + y : 30 + y, 2 + x : 30 + x] for row, (y, x) in zip(padded, by, strict=True)])


def adapted(at: Tensor, rows: Tensor, labelled: Site | None, seed: int) -> Tensor:
    """The teacher after as many steps as the target takes."""
    student, teacher, draws = Network(), Network(), torch.Generator().manual_seed(4000 + seed)
    student.vector.copy_(at)
    teacher.vector.copy_(at)
    with torch.no_grad():
        mean = torch.softmax(student(rows), dim=1).mean(dim=0)
    prior = (mean + 0.1) / 2
    shares, adam = prior.clone(), torch.optim.Adam([student.vector], RATE)
    parts = -(-len(rows) // BATCH)
    for step in range(STEPS):
        if step % parts == 0:
            order = torch.randperm(len(rows), generator=draws).tensor_split(parts)
        some = rows[order[step % parts]]
        with torch.no_grad():
            expected = torch.softmax(teacher(some), dim=1)
            shares.lerp_(expected.mean(dim=0), 0.05)
            scaled = expected * prior / shares
            sure, labels = (scaled / scaled.sum(dim=1, keepdim=True)).max(dim=1)
        logs = torch.log_softmax(student(some), dim=1)
        mean = logs.exp().mean(dim=0)
        loss = -(logs.exp() * logs).sum(dim=1).mean() + (mean * (mean / prior).log()).sum()
        by_row = functional.cross_entropy(student(shifted(some, draws)), labels, reduction="none")
        loss = loss + (by_row * (sure >= SURE)).mean()
        if labelled:
            loss = loss + functional.cross_entropy(student(shifted(labelled.images, draws)), labelled.labels)
        for group in adam.param_groups:
            group["lr"] = RATE * (1 + 10 * step / STEPS) ** -0.75
        adam.zero_grad(set_to_none=False)
        loss.backward()
        if not labelled:
            student.vector.grad[-sum(student.sizes[-2:]) :] = 0  # the classifier stays
        adam.step()
        teacher.vector.lerp_(student.vector, 1 - KEPT)
    return teacher.vector.clone()


def main() -> None:
    """Print a line for each seed, and the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--labels", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for seed in given.seeds:
        rows, labels = target_rows(given.data_dir, seed)
        labelled = Site(rows[: given.labels], labels[: given.labels])
        images, expected = read(given.data_dir, "t10k")
        test = Site(images, expected, NOISE)
        at = after_rule(given.data_dir, seed, labelled, given.rounds)
        models = at, adapted(at, rows, labelled, seed), adapted(at, rows, None, seed)
        draws = torch.Generator().manual_seed(5000 + seed)
        found.append([accuracy(Network(), one, test, draws) for one in models])
        print(
            f"seed {seed}: rule {found[-1][0]:.1f}, adapted {found[-1][1]:.1f}, no labels {found[-1][2]:.1f}",
            flush=True,
        )
    rule, with_labels, without = np.mean(found, axis=0)
    print(f"mean: rule {rule:.1f}, adapted {with_labels:.1f}, no labels {without:.1f}")


if __name__ == "__main__":
    main()
