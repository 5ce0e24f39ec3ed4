"""Rows rebuilt from what one round opened, of the victim alone and of sums.

By division (Phong et al. 2018; Boenisch et al. 2023): each unit of a first linear layer gives one image, its weights'
change over its bias's. Where the unit was on for one row alone that is the row. Counted: rows of the victim that one of
the units shows, to a cosine of at least `ALIKE`.

By optimisation (Geiping et al. 2020): images are changed until the direction of their gradient is that of what was
opened, with a penalty on total variation; the attacker knows all labels. It takes what was opened for one step of
gradient descent, which in a round of several steps it is not. Counted: the distance of the nearest image from each of
the victim's rows, and how often it is nearer to the row than to all decoys: up to `DECOYS` others of the row's class at
its source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from attacks_play import FIRST_MODEL, Game, Vector, Vector64, all_rows, play, some
from torch import Tensor

from securefda.training import build_model, derive_seed, vector_to_model

ALIKE = 0.99
DECOYS = 20
ITERATIONS = 600
RESTARTS = 2
STEP = 0.1
VARIATION = 3e-3
DARK = 0.1
"""Brightest pixel of the images that optimisation starts from."""


@dataclass(frozen=True, slots=True)
class Divided:
    """``found`` of ``rows_seen`` rows of the victim, over all repetitions."""

    found: int
    rows_seen: int


@dataclass(frozen=True, slots=True)
class Optimised:
    """Over the victim's rows of all repetitions.

    Attributes:
        psnr: of the nearest image, median, in dB; ``blind`` that of the mean of the decoys.
        named: rows that are nearer to their image than all decoys; of ``rows_seen``.
        decoys: of a row, the fewest.
    """

    psnr: float
    blind: float
    named: int
    rows_seen: int
    decoys: int


def psnr(estimate: Tensor, secret: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of values in [0, 1], to which the estimate is cut; 200 where nothing differs."""
    error = float(((estimate.double().clamp(0, 1) - secret.double()) ** 2).mean())
    return -10 * math.log10(max(error, 1e-20))


def with_rows(game: Game, rows: int, rng: np.random.Generator) -> Game:
    """The game in which each source has so many rows, drawn anew."""

    sites = game.sites
    others = tuple(some(part, rows, rng) for part in sites.others)
    return replace(game, sites=replace(sites, candidates=some(sites.candidates, rows, rng), others=others), rounds=1)


def divided(game: Game, rows: int, repetitions: int, seed: int) -> Divided:
    """Rebuild rows by division."""
    rng, found = np.random.default_rng(seed), 0
    for number in range(repetitions):
        drawn = with_rows(game, rows, rng)
        run = play(drawn, np.ones(rows, dtype=bool), derive_seed(seed, number))
        images = _quotients(run.opened[0], drawn.candidates.features.shape[1])
        truth = drawn.candidates.features.double().numpy()
        truth = truth / np.linalg.norm(truth, axis=1, keepdims=True)
        found += int(np.count_nonzero((truth @ images.T).max(axis=1) >= ALIKE))
    return Divided(found, repetitions * rows)


def _quotients(opened: Vector64, inputs: int) -> Vector64:
    """An image of each unit that moved, scaled to length one, (units, inputs)."""
    units = 128
    weights = opened[: units * inputs].reshape(units, inputs)
    bias = opened[units * inputs : units * (inputs + 1)]
    moved = np.abs(bias) > 1e-9
    images = weights[moved] / bias[moved, None]
    return images / (np.linalg.norm(images, axis=1, keepdims=True) + 1e-12)


def optimised(game: Game, rows: int, repetitions: int, seed: int, iterations: int = ITERATIONS) -> Optimised:
    """Rebuild rows by optimisation."""
    rng = np.random.default_rng(seed)
    pool = game.sites.spare
    found, blind, counts, named = [], [], [], 0
    for number in range(repetitions):
        drawn = with_rows(game, rows, rng)
        run = play(drawn, np.ones(rows, dtype=bool), derive_seed(seed, number))
        labels = all_rows([drawn.candidates, *drawn.sites.others]).labels
        images = matched(drawn, run.models[0], run.opened[0], labels, iterations, derive_seed(seed, number, "start"))
        for row, label in zip(drawn.candidates.features, drawn.candidates.labels, strict=True):
            alike = images[labels == label]
            nearest = alike[int(torch.argmin((alike - row).square().flatten(1).sum(1)))]
            decoys = pool.features[(pool.labels == label) & ((pool.features - row).flatten(1).abs().sum(1) > 0)]
            decoys = decoys[:DECOYS]
            counts.append(len(decoys))
            found.append(psnr(nearest, row))
            blind.append(psnr(decoys.mean(0), row))
            distance = (nearest - row).square().sum()
            named += bool((distance < (decoys - nearest).square().flatten(1).sum(1)).all())
    return Optimised(float(np.median(found)), float(np.median(blind)), named, repetitions * rows, min(counts))


def matched(game: Game, model: Vector, opened: Vector64, labels: Tensor, iterations: int, seed: int) -> Tensor:
    """Images in [0, 1] whose gradient points where the opened vector came from, one for each label.

    Of several starts the one is kept that ends nearest.
    """
    task = game.sites.task
    net = build_model(task, FIRST_MODEL)
    vector_to_model(model, net)
    wanted = torch.from_numpy(-opened).float()
    shape = (len(labels), *game.candidates.features.shape[1:])
    generator = torch.Generator().manual_seed(seed % 2**32)

    def distance(images: Tensor) -> Tensor:
        loss = task.row_losses(net(images), labels).sum()
        parts = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        return 1 - torch.cosine_similarity(torch.cat([part.flatten() for part in parts]), wanted, dim=0)

    found = []
    for _ in range(RESTARTS):
        images = (DARK * torch.rand(shape, generator=generator)).requires_grad_()
        optimizer = torch.optim.Adam([images], STEP)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
        for _ in range(iterations):
            optimizer.zero_grad()
            (distance(images) + VARIATION * _variation(images)).backward()
            images.grad.sign_()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                images.clamp_(0, 1)
        found.append((float(distance(images).detach()), images.detach()))
    return min(found, key=lambda pair: pair[0])[1]


def _variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels; 0 for rows that are no images of two dimensions."""
    if images.dim() < 4:
        return images.new_zeros(())
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()
