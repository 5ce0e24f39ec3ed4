"""Noisy Fashion-MNIST by the schedule of the authors' published code, in plain torch and numpy, without securefda.

    python benchmarks/independent/authors_schedule.py --data-dir DIR --out FILE [--noise 0.4 ...] [--seeds 0 1 ...]

It says whether a figure of the paper can be reached at all, and so whether a miss is ours. DIR holds the four files of
Fashion-MNIST as published. FILE gets a line of JSON for each finished cell (noise, seed, column, draw); cells that it
has are skipped. Accuracy is the mean over the last five rounds, in percent.

What every cell has in common: 60,000 training images dealt out in ten equal parts by the seed, one to the target, which
has labels for the first 100; two rounds of FedAvg over the nine sources, then 50 rounds; one epoch of Adam in each,
which starts anew; sources at 0.01 in batches of 64, the target at 0.005; new noise whenever an image of the target is
used, for training and for the test on the 10,000 images of t10k. What differs is in `COLUMNS`.

The split is the same as that of securefda's task for a seed. First weights, batches and noise are other draws, and
each ``--draw`` has its own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

SOURCES, LABELLED, WARM_ROUNDS, LAST_ROUNDS = 9, 100, 2, 5
SOURCE_RATE, TARGET_RATE, SOURCE_BATCH = 0.01, 0.005, 64


class Column(NamedTuple):
    """A column of the paper's table.

    Attributes:
        rule: what a round does after the warm start.
        batch: of the target.
        factor: on both learning rates after the warm start.
        beta: of every source; None: chosen in each round, by equation 3 of the paper.
        aligned: whether the estimate of β scales a source's step by the ratio of learning rates, as Appendix C.9 does.
            In the published code that ratio is on the target's steps as well, and so cancels out.
    """

    rule: str
    batch: int = 16
    factor: float = 1.0
    beta: float | None = 0.5
    aligned: bool = False


COLUMNS = {
    "fine_tuning": Column("target_only", 4, 0.1),  # not in the paper: the auto rules without their sources
    "warm_target": Column("target_only"),  # the paper's "Target only"
    "fedda_auto": Column("fedda", 4, 0.1, None),
    "fedda_auto_aligned": Column("fedda", 4, 0.1, None, aligned=True),  # as securefda estimates β
    "fedgp_auto": Column("fedgp", 4, 0.1, None),
    "source_only": Column("source_only"),
    "fedda": Column("fedda"),
    "fedgp": Column("fedgp"),
}


class Network(nn.Sequential):
    """The paper's network, its parameters and their gradient in one vector each.

    It pools before the ReLU: the same values from a quarter of the work.
    """

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
        )
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.sizes = [parameter.numel() for parameter in self.parameters()]
        self.vector = torch.cat([torch.as_strided(part.detach(), (part.numel(),), (1,)) for part in self.parameters()])
        self.vector.grad = torch.zeros_like(self.vector)
        for part, end in zip(self.parameters(), np.cumsum(self.sizes).tolist(), strict=True):
            place = part.shape, part.stride(), end - part.numel()
            part.data, part.grad = self.vector.as_strided(*place), self.vector.grad.as_strided(*place)


class Site(NamedTuple):
    """Rows of one site, and the standard deviation of the noise that an image gets whenever it is used."""

    images: Tensor
    labels: Tensor
    noise: float = 0.0

    def batch(self, rows: Tensor, draws: torch.Generator) -> Tensor:
        """Some images, as they are seen this time."""
        images = self.images[rows]
        return images + self.noise * torch.randn(images.shape, generator=draws) if self.noise else images


def train(
    model: Network, start: Tensor, site: Site, size: int, rate: float, draws: torch.Generator
) -> Iterator[Tensor]:
    """One epoch of Adam from ``start``: after each step the parameters, (m,), overwritten by the next one."""
    model.vector.copy_(start)
    adam = torch.optim.Adam([model.vector], rate, fused=True)
    for rows in torch.randperm(len(site.labels), generator=draws).split(size):
        adam.zero_grad(set_to_none=False)
        functional.cross_entropy(model(site.batch(rows, draws)), site.labels[rows]).backward()
        adam.step()
        yield model.vector


def updates_of(model: Network, start: Tensor, sites: list[Site], rate: float, draws: torch.Generator) -> Tensor:
    """The sources' updates after an epoch, (N, m)."""
    ends = [deque(train(model, start, site, SOURCE_BATCH, rate, draws), maxlen=1)[0].clone() for site in sites]
    return torch.stack(ends) - start


def accuracy(model: Network, at: Tensor, site: Site, draws: torch.Generator) -> float:
    """Percent of a site's rows that the model is right about."""
    model.vector.copy_(at)
    right = 0
    with torch.no_grad():
        for rows in torch.arange(len(site.labels)).split(1000):
            right += int((model(site.batch(rows, draws)).argmax(1) == site.labels[rows]).sum())
    return 100 * right / len(site.labels)


# --- rules ------------------------------------------------------------------------------------------------------------


def auto_beta(rule: str, steps: Tensor, source: Tensor) -> float:
    """β of a source, equation 3 of the paper, from the target's steps x_j, (B, m), and the source's mean one, (m,)."""
    steps, source = steps.double(), source.double()
    direction = source / source.norm()
    apart = steps - source if rule == "fedda" else steps - (steps @ direction)[:, None] * direction
    variance = steps.var(dim=0).sum() / len(steps)
    distance = (apart.square().sum() / len(steps) - apart.var(dim=0).sum()).clamp(min=0)
    return float(variance / (variance + distance))


def combined(rule: str, target: Tensor, sources: Tensor, betas: Tensor, scale: float, sizes: list[int]) -> Tensor:
    """The global update, (m,), from the target's, (m,), and the sources', (N, m), with a β each, (N,).

    FedDA takes a source's update as it is. FedGP takes it times ``scale``, the ratio of the target's rate to the
    sources' times that of steps, and each tensor, of ``sizes``, times its cosine with the target's.
    """
    if rule == "fedgp":
        parts = zip(target.split(sizes), sources.split(sizes, dim=1), strict=True)
        cosines = [functional.cosine_similarity(mine[None], theirs).clamp(min=0) for mine, theirs in parts]
        sources = scale * sources * torch.stack(cosines, dim=1).repeat_interleave(torch.tensor(sizes), dim=1)
    return ((1 - betas)[:, None] * target + betas[:, None] * sources).mean(dim=0)


# --- a cell -----------------------------------------------------------------------------------------------------------


@cache
def read(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Images (n, 1, 28, 28) in [0, 1] and labels of ``train`` or ``t10k``."""
    pixels, labels = (
        np.frombuffer(gzip.decompress((folder / f"{part}-{name}-ubyte.gz").read_bytes()), np.uint8, offset=skip)
        for name, skip in (("images-idx3", 16), ("labels-idx1", 8))
    )
    images = torch.from_numpy(pixels.reshape(-1, 1, 28, 28).astype(np.float32) / np.float32(255))
    return images, torch.from_numpy(labels.astype(np.int64))


@cache
def sites(folder: Path, seed: int) -> tuple[list[Site], Site]:
    """The sources, and the target's labelled rows without noise."""
    images, labels = read(folder, "train")
    parts = np.array_split(np.random.default_rng(seed).permutation(len(labels)), 1 + SOURCES)
    mine, *others = (torch.from_numpy(part) for part in parts)
    return [Site(images[rows], labels[rows]) for rows in others], Site(images[mine[:LABELLED]], labels[mine[:LABELLED]])


@cache
def warm_start(folder: Path, seed: int, draw: int = 0) -> Tensor:
    """The model after the first rounds, the same for all columns and noises of a seed."""
    torch.manual_seed(seed + 100 * draw)
    model, draws = Network(), torch.Generator().manual_seed(1000 + seed + 100 * draw)
    start, (sources, _) = model.vector.clone(), sites(folder, seed)
    for _ in range(WARM_ROUNDS):
        start = start + updates_of(model, start, sources, SOURCE_RATE, draws).mean(dim=0)
    return start


def run(folder: Path, noise: float, seed: int, name: str, rounds: int, draw: int) -> dict[str, object]:
    """All rounds of one cell."""
    began, column = time.process_time(), COLUMNS[name]
    model, draws = Network(), torch.Generator().manual_seed(2000 + seed + 100 * draw)
    sources, target = sites(folder, seed)
    target, test = target._replace(noise=noise), Site(*read(folder, "t10k"), noise)
    source_rate, target_rate = SOURCE_RATE * column.factor, TARGET_RATE * column.factor
    rates, count = target_rate / source_rate, -(-len(sources[0].labels) // SOURCE_BATCH)
    at, last, all_betas = warm_start(folder, seed, draw), list[float](), list[list[float]]()
    for number in range(1, rounds + 1):
        start = at
        if column.rule != "target_only":
            updates = updates_of(model, start, sources, source_rate, draws)
        if column.rule == "source_only":
            at = start + updates.mean(dim=0)
        else:
            after = [one.clone() for one in train(model, start, target, column.batch, target_rate, draws)]
            at, steps = after[-1], torch.diff(torch.stack([start, *after]), dim=0)
        if column.rule in ("fedda", "fedgp"):
            betas = [column.beta] * SOURCES
            if column.beta is None:
                means = updates / count * (rates if column.aligned else 1.0)
                betas = [auto_beta(column.rule, steps, mean) for mean in means]
            all_betas.append(betas)
            scale = rates * len(steps) / count
            at = start + combined(column.rule, at - start, updates, torch.tensor(betas), scale, model.sizes)
        if number > rounds - LAST_ROUNDS:
            last.append(accuracy(model, at, test, draws))
    return (
        {"noise": noise, "seed": seed, "column": name, "rounds": rounds, "draw": draw}
        | {"accuracy": round(float(np.mean(last)), 2)}
        | {"beta": round(float(np.mean(all_betas)), 4) if all_betas else None, "last": last}
        | {"cpu_s": round(time.process_time() - began, 1)}
    )


def main() -> None:
    """Run the cells that the file lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--draw", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    done = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    known = {(*(cell[key] for key in ("noise", "seed", "column", "rounds")), cell.get("draw", 0)) for cell in done}
    for noise in given.noise:
        for seed in given.seeds:
            for name in given.columns:
                if (noise, seed, name, given.rounds, given.draw) not in known:
                    line = json.dumps(run(given.data_dir, noise, seed, name, given.rounds, given.draw))
                    print(line, flush=True)
                    with given.out.open("a") as file:
                        file.write(f"{line}\n")


if __name__ == "__main__":
    main()
