"""What adaptation at the target costs in plain torch: seconds of one core for 1,000 steps, on made-up images.

    python benchmarks/independent/adaptation_steps.py [--steps 100] [--norm batch|group] [--channels-last]

It imports nothing of securefda, and says whether the recipe or our code takes the time: the narrow network of the digit
domains, batches of 64; the student sees each batch as it is and varied, the teacher as it is.
"""

from __future__ import annotations

import argparse
import copy
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

KEPT, SURE = 0.99, 0.9


def network(norm: str) -> nn.Sequential:
    """Three convolutions, of which two are pooled, and three linear layers; 491,000 parameters."""
    of_images, of_rows = (nn.BatchNorm2d, nn.BatchNorm1d) if norm == "batch" else (_groups, _groups)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 5, padding=2), of_images(8), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(8, 8, 5, padding=2), of_images(8), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(8, 16, 5, padding=2), of_images(16), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(1024, 384), of_rows(384), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(384, 256), of_rows(256), nn.ReLU(), nn.Linear(256, 10)),
    )


def _groups(channels: int) -> nn.Module:
    return nn.GroupNorm(8, channels)


def varied(images: Tensor) -> Tensor:
    """Scaled, turned and shifted, and each channel in another contrast."""
    count = len(images)
    scale, angle = 1 / (0.6 + 0.7 * torch.rand(count)), 0.35 * torch.rand(count) - 0.175
    maps = torch.zeros(count, 2, 3)
    maps[:, 0, 0] = maps[:, 1, 1] = scale * angle.cos()
    maps[:, 1, 0] = scale * angle.sin()
    maps[:, 0, 1] = -maps[:, 1, 0]
    maps[:, :, 2] = (0.5 * torch.rand(count, 2) - 0.25) * scale[:, None]
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
    moved = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    inverted, contrast, light = torch.rand(3, count, 3, 1, 1)
    contrast = 0.3 + 0.7 * contrast
    return torch.where(inverted < 0.5, 1 - moved, moved) * contrast + light * (1 - contrast)


def main() -> None:
    """Take the steps, and print what 1,000 would take."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--norm", choices=("batch", "group"), default="batch")
    parser.add_argument("--channels-last", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    student = network(given.norm)
    student[-1].requires_grad_(requires_grad=False)
    if given.channels_last:
        student = student.to(memory_format=torch.channels_last)
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.Adam([one for one in student.parameters() if one.requires_grad], lr=1e-3, fused=True)
    rows, prior = torch.rand(2000, 3, 32, 32), torch.full((10,), 0.1)
    shares = prior.clone()
    began = time.process_time()
    for _ in range(given.steps):
        images = rows[torch.randperm(len(rows))[:64]]
        with torch.no_grad():
            expected = teacher(images).softmax(dim=1)
            shares.lerp_(expected.mean(dim=0), 0.05)
            sure, labels = functional.normalize(expected * prior / shares, p=1).max(dim=1)
        by_row = functional.cross_entropy(student(varied(images)), labels, reduction="none")
        logs = student(images).log_softmax(dim=1)
        mean = logs.exp().mean(dim=0)
        loss = (by_row * (sure >= SURE)).mean() - (logs.exp() * logs).sum(dim=1).mean()
        loss = loss + (mean * (mean / prior).log()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, its in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.lerp_(its, 1 - KEPT)
    print(f"1,000 steps: {1000 * (time.process_time() - began) / given.steps:.1f} s of one core")


if __name__ == "__main__":
    main()
