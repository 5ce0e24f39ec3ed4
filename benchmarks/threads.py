"""What threads do to a step of training: models and batches of rising work, on one thread and on more.

Steps of one thread and of several take turns, so that both see the same load; figures are medians. The work of a step
is what ``securefda.training.device`` counts. Prints one JSON object.

    python benchmarks/threads.py                   # on an idle machine
    python benchmarks/threads.py --busy            # beside processes that keep every core busy
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from securefda.bench.machine import this_machine
from securefda.machine import usable_cores
from securefda.training.device import choose_threads, multiply_adds

IMAGE = (1, 28, 28)
BATCHES = (4, 16, 64, 256)
SECONDS = 0.4
"""Of each measurement, at least; five are made of each."""


def dense(inputs: int, width: int, layers: int) -> nn.Sequential:
    hidden = [part for _ in range(layers - 1) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), *hidden, nn.Linear(width, 10))


def convolutional(*widths: int) -> nn.Sequential:
    pairs = zip((1, *widths), widths, strict=False)
    parts = [
        part
        for number, (inputs, outputs) in enumerate(pairs)
        for part in (nn.Conv2d(inputs, outputs, 3, 2 if number else 1, padding=1), nn.ReLU())
    ]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


MODELS = {
    "dense, 64 inputs, 128 wide (digits)": (dense(64, 128, 1), (64,)),
    "dense, 784 inputs, 256 wide, 2 layers": (dense(784, 256, 2), IMAGE),
    "dense, 784 inputs, 1024 wide, 2 layers": (dense(784, 1024, 2), IMAGE),
    "convolutions of 8, 16, 32": (convolutional(8, 16, 32), IMAGE),
    "convolutions of 32, 64, 128": (convolutional(32, 64, 128), IMAGE),
}


def milliseconds(model: nn.Module, features: torch.Tensor, labels: torch.Tensor, threads: int) -> float:
    """Of one step of plain SGD."""
    torch.set_num_threads(threads)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    steps, began = 0, time.perf_counter()
    while (taken := time.perf_counter() - began) < SECONDS:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
        steps += 1
    return 1e3 * taken / steps


def measure(threads: int) -> list[dict[str, object]]:
    rows = []
    for name, (model, shape) in MODELS.items():
        for batch in BATCHES:
            features, labels = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))
            turns = [[milliseconds(model, features, labels, count) for count in (1, threads)] for _ in range(5)]
            one, many = (statistics.median(times) for times in zip(*turns, strict=True))
            work = batch * multiply_adds(model, features)
            rows.append(
                {
                    "model": name,
                    "batch": batch,
                    "work": work,
                    "one_thread_ms": round(one, 3),
                    "many_threads_ms": round(many, 3),
                    "speedup": round(statistics.median(a / b for a, b in turns), 2),
                    "chosen_threads": choose_threads(0, lambda work=work: work, {}),
                }
            )
    return rows


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy_cores() -> Iterator[None]:
    """A process on every core that does nothing but compute."""
    others = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(usable_cores())]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=usable_cores(), help="how many are compared with one")
    parser.add_argument("--busy", action="store_true", help="beside processes that keep every core busy")
    given = parser.parse_args()
    if given.busy:
        with busy_cores():
            rows = measure(given.threads)
    else:
        rows = measure(given.threads)
    print(json.dumps({"machine": this_machine(), **vars(given), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
