"""What a step of DP-SGD takes here, beside Opacus by itself and beside plain training.

    python benchmarks/dp_step.py [--repeats 15] [--device cpu] [--check]

Four ways to train a round from the same model on the same rows: `train_private`; Opacus as its users run it, with its
own loader, Poisson sampling and noise; both with per-sample gradients (hooks) and with ghost clipping; and
`train_local`. They take turns in one process on one thread, the order turned by one each time. A time is that of a
round, what goes before its first step included, over its number of steps: processor time, or wall-clock time on a GPU.
Figures are medians; a ratio is the median of the ratios of the turns. ``--check`` ends with 1 where a step takes over
1.3 times as long as Opacus' by itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from securefda.privacy.noise import NoiseSource
from securefda.privacy.private_training import train_private
from securefda.protocol.encoding import Vector
from securefda.tasks import Samples, TaskSettings
from securefda.tasks.digits import Digits
from securefda.training import NoiseSettings, TrainingSettings, build_model, model_to_vector, train_local
from securefda.training.parameter_vectors import vector_to_model

ALLOWED = 1.3
MODES = ("hooks", "ghost")


@dataclass(frozen=True, slots=True)
class Case:
    """A model, a batch, and the steps of a round."""

    hidden: tuple[int, ...]
    batch_size: int
    steps: int


CASES = {"digits": Case((128,), 32, 20), "wide": Case((1024, 1024), 64, 10)}


class Perceptron(Digits):
    """The digits task with hidden layers of given widths."""

    hidden: tuple[int, ...] = (128,)

    def model(self) -> nn.Module:
        """Return 64 pixels -> rectified units, layer by layer -> 10 logits."""
        widths = (64, *self.hidden)
        layers = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


class Turn:
    """The ways to train one round of one case."""

    def __init__(self, case: Case, device: str) -> None:
        self.task = Perceptron(TaskSettings("target", ("source",), 0, None, {}))
        self.task.hidden = case.hidden
        generator = torch.Generator().manual_seed(0)
        count = case.steps * case.batch_size
        rows = torch.rand((count, 64), generator=generator)
        self.data = Samples(rows, torch.randint(10, (count,), generator=generator))
        self.model = build_model(self.task, 0)
        self.received: Vector = model_to_vector(self.model)
        self.settings = TrainingSettings("sgd", 0.1, case.batch_size, device=device)

    def ways(self) -> dict[str, Callable[[], object]]:
        """Way -> what trains a round so."""
        ours = {f"ours, {mode}": partial(self.ours, mode) for mode in MODES}
        opacus = {f"opacus, {mode}": partial(self.opacus, mode) for mode in MODES}
        return {**ours, **opacus, "plain": self.plain}

    def plain(self) -> None:
        """Without noise."""
        train_local(
            self.task, self.model, self.received, self.data, settings=self.settings, seed=0, site="a", fewest_steps=1
        )

    def ours(self, mode: str) -> None:
        """By `train_private`."""
        settings = replace(self.settings, dp=NoiseSettings(1.0, 1.0, mode == "ghost"))
        train_private(self.task, self.model, self.received, self.data, settings=settings, site="a")

    def opacus(self, mode: str) -> None:
        """By Opacus alone."""
        device, settings = torch.device(self.settings.device), self.settings
        model = build_model(self.task, 0)
        vector_to_model(self.received, model)
        model.to(device).train()
        private = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=settings.learning_rate),
            criterion=nn.CrossEntropyLoss(),
            data_loader=DataLoader(TensorDataset(*self.data_of()), batch_size=settings.batch_size),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            grad_sample_mode=mode,
        )
        wrapped, optimizer, loader = private[0], private[1], private[-1]
        row_loss = private[2] if mode == "ghost" else nn.CrossEntropyLoss()
        for features, labels in loader:
            optimizer.zero_grad()
            row_loss(wrapped(features.to(device)), labels.to(device)).backward()
            optimizer.step()

    def data_of(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Features and labels."""
        return self.data.features, self.data.labels


def seconds(run: Callable[[], object], device: str) -> float:
    """Of processor time on a CPU, of wall-clock time elsewhere."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    _finish(device)
    started = clock()
    run()
    _finish(device)
    return clock() - started


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(case: Case, device: str, repeats: int) -> dict[str, list[float]]:
    """Seconds of a step, way -> one for each turn; a first turn is not counted."""
    ways = list(Turn(case, device).ways().items())
    found: dict[str, list[float]] = {name: [] for name, _ in ways}
    for repeat in range(repeats + 1):
        start = repeat % len(ways)
        for name, run in ways[start:] + ways[:start]:
            taken = seconds(run, device) / case.steps
            if repeat:
                found[name].append(taken)
    return found


def figures(times: Mapping[str, list[float]], case: Case) -> dict[str, object]:
    """Milliseconds of a step, ratios, and the part of the noise."""
    parameters = model_to_vector(build_model(Turn(case, "cpu").task, 0)).size
    ratios = {
        f"ours over opacus, {mode}": _ratio(times[f"ours, {mode}"], times[f"opacus, {mode}"]) for mode in MODES
    } | {f"ours over plain, {mode}": _ratio(times[f"ours, {mode}"], times["plain"]) for mode in MODES}
    return {
        "parameters": parameters,
        "batch_size": case.batch_size,
        "ms": {name: round(1e3 * median(values), 3) for name, values in times.items()},
        "noise_ms": {name: round(value, 3) for name, value in noise(parameters).items()},
        "ratios": {name: round(value, 2) for name, value in ratios.items()},
    }


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return median(one / other for one, other in zip(ours, theirs, strict=True))


def noise(count: int) -> dict[str, float]:
    """Milliseconds of processor time to add noise to ``count`` values: ours and torch's; on the host, as we make it."""
    source, zeros = NoiseSource(), torch.zeros(count)
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: source.added_to(zeros, 1.0),
        "torch": lambda: zeros + torch.normal(0.0, 1.0, (count,)),
    }
    return {name: 1e3 * median(seconds(run, "cpu") for _ in range(21)) for name, run in runs.items()}


def misses(found: Mapping[str, Mapping[str, object]]) -> list[str]:
    """A line for each ratio to Opacus by itself that is too large."""
    return [
        f"MISSED: {name}: {what} is {ratio}, allowed is {ALLOWED}"
        for name, values in found.items()
        for what, ratio in dict(values["ratios"]).items()  # type: ignore[call-overload]
        if "opacus" in what and ratio > ALLOWED
    ]


def main() -> int:
    """Measure, print JSON, check."""
    given = _arguments()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=UserWarning)
    measured = {name: (measure(CASES[name], given.device, given.repeats), CASES[name]) for name in given.cases}
    found = {name: figures(times, case) for name, (times, case) in measured.items()}
    wrong = misses(found)
    print(json.dumps({"device": given.device, "torch": torch.__version__, "cases": found, "misses": wrong}, indent=1))
    return 1 if given.check and wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15, help="turns of each case")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--check", action="store_true", help="end with 1 where a step takes too long")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
