"""What ``gpu.py`` measures, one part in a process of its own. Every part compares a device with the CPU beside it.

    python benchmarks/gpu_parts.py PART DEVICE SIZE FILE

The figures go to FILE as JSON, anew after each case, so that those of a part that is stopped are kept.
"""

# ruff: noqa: PLC0415 - a part imports what it needs, of which another may have to do without

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_POLL_S = 0.5

Keep = Callable[[Any], None]
"""Writes the figures of a part as far as they are known."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Attributes:
        tests: test files, relative to the repository.
        models: names of the models that are trained, ``MODELS`` has them.
        batch: rows of a step; None: each model's own.
        seconds: that a timed round of training is made to take, about.
        turns: timed rounds of each model on each device.
        dp_cases, dp_turns: cases of ``dp_step.py``, and how often each is measured.
        settings: overrides of the federation ``digits``.
        seeds: of simulated federations.
        in_memory: names of the models whose memory is measured.
    """

    tests: tuple[str, ...]
    models: tuple[str, ...]
    batch: int | None
    seconds: float
    turns: int
    dp_cases: tuple[str, ...]
    dp_turns: int
    settings: tuple[str, ...]
    seeds: int
    in_memory: tuple[str, ...]


_CONVOLUTIONS = {"conv 1.1 M": ((64, 128, 256, 304), 64), "conv 11 M": ((128, 256, 512, 1024, 512), 64)}
"""Widths of 3 x 3 convolutions on 3 x 32 x 32 pixels, the later ones at half, a quarter and an eighth; the batch."""

_DEVICE_TESTS = (
    "tests/training/test_training_devices.py",
    "tests/training/test_private_devices.py",
    "tests/privacy/test_noise.py",
    "tests/training/test_training_settings.py",
)
SIZES = {
    "full": Size(
        tests=_DEVICE_TESTS,
        models=(
            *_CONVOLUTIONS,
            *("digits", "fashion_mnist", "colored_mnist", "image_folder", "tabular", "rbf", "fed_heart"),
        ),
        batch=None,
        seconds=0.7,
        turns=3,
        dp_cases=("digits", "wide"),
        dp_turns=7,
        settings=(),
        seeds=4,
        in_memory=tuple(_CONVOLUTIONS),
    ),
    "smallest": Size(
        tests=_DEVICE_TESTS[:1],
        models=("digits", "conv 1.1 M"),
        batch=2,
        seconds=0.01,
        turns=1,
        dp_cases=("digits",),
        dp_turns=1,
        settings=(
            "strategy.rounds=2",
            "strategy.warm-up-rounds=1",
            'federation.sources=["source-1", "source-2", "source-3"]',
            "privacy.min-others=1",
        ),
        seeds=2,
        in_memory=("conv 1.1 M",),
    ),
}


# --- the tests that want a device -------------------------------------------------------------------------------------


def tests(device: str, size: Size, keep: Keep) -> None:
    """Outcomes of the tests, and how many of them ran on the device by name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-o", "addopts=-q", "-p", "no:cacheprovider", "-p", "no:randomly", f"--junit-xml={report}"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        command = [sys.executable, "-m", "pytest", *options, *size.tests]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if not report.is_file():
            raise RuntimeError(f"pytest ended with {done.returncode}: {' '.join((done.stdout + done.stderr).split())}")
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    outcomes = {f"{case.get('classname')}::{case.get('name')}": _outcome(case) for case in cases}
    failed = [name for name, outcome in outcomes.items() if outcome == "failed"]
    counts = {kind: sum(outcome == kind for outcome in outcomes.values()) for kind in ("passed", "failed", "skipped")}
    on_device = sum(device in name.partition("[")[2] and outcomes[name] == "passed" for name in outcomes)
    keep({**counts, "passed_on_device": on_device, "failures": failed})
    if failed or done.returncode:
        raise RuntimeError(f"{len(failed)} tests failed: {', '.join(failed[:3]) or done.stdout[-300:]}")


def _outcome(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


# --- training ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Model:
    """A task whose model is trained on random rows.

    Attributes:
        task: gives model and loss; it is asked for no data.
        shape: of a row.
        labels: of n rows.
        batch: rows of a step.
    """

    task: Any
    shape: tuple[int, ...]
    labels: Callable[[int], Any]
    batch: int

    def rows(self, count: int) -> Any:
        """So many of them, always the same."""
        import torch

        from securefda.tasks import Samples

        torch.manual_seed(0)
        return Samples(torch.randn(count, *self.shape), self.labels(count))

    def trainer(self, rows: Any, device: str) -> Any:
        """What trains a round on these rows, as a site does."""
        from securefda.training import TrainingSettings
        from securefda.training.trainer import SiteTrainer

        settings = TrainingSettings("sgd", 1e-4, batch_size=self.batch, momentum=0.9, device=device)
        return SiteTrainer(self.task, "a", rows, settings, 0)


def models() -> dict[str, Callable[[], Model]]:
    """Each built-in model and two convolutional nets, by name."""
    import torch
    from torch import nn

    from securefda.tasks import TaskSettings
    from securefda.tasks.classification import Classification
    from securefda.tasks.fed_heart import FEATURES

    class Convolutional(Classification):
        """Convolutions of 3 x 3 with group normalisation on 32 x 32 pixels, their mean over the image, 10 logits."""

        widths: tuple[int, ...] = ()

        def model(self) -> nn.Module:
            layers: list[nn.Module] = []
            for place, (inputs, outputs) in enumerate(pairwise((3, *self.widths))):
                stride = 2 if 0 < place < 4 else 1
                layers += [nn.Conv2d(inputs, outputs, 3, stride, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]
            return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(self.widths[-1], 10))

        def train_data(self, site: str) -> Any:
            raise NotImplementedError("rows are made by Model.rows")

        test_data = train_data

    def classes(count: int) -> Callable[[int], Any]:
        return lambda rows: torch.randint(count, (rows,))

    def built_in(where: str, shape: tuple[int, ...], labels: Callable[[int], Any], **options: object) -> Model:
        module, name = where.split(":")
        sites = {"ColoredMnist": ("minus-90", "plus-90"), "FedHeart": ("va", "cleveland")}.get(name, ("a", "b"))
        settings = TaskSettings(sites[0], sites[1:], data_dir=ROOT, options=options)
        return Model(getattr(importlib.import_module(f"securefda.tasks.{module}"), name)(settings), shape, labels, 32)

    def convolutional(name: str) -> Model:
        task = Convolutional(TaskSettings("a", ("b",)))
        task.widths, batch = _CONVOLUTIONS[name]
        return Model(task, (3, 32, 32), classes(10), batch)

    columns = {f"x{number}": {"type": "number", "center": 0.0, "scale": 1.0} for number in range(20)}
    table = {"columns": columns, "label": {"column": "y", "classes": ["no", "yes"]}}
    images = {"classes": ["no", "yes"], "size": 32, "colour": "rgb"}
    return {
        "digits": lambda: built_in("digits:Digits", (64,), classes(10)),
        "fed_heart": lambda: built_in("fed_heart:FedHeart", (FEATURES,), lambda rows: torch.ones(rows, 1)),
        "rbf": lambda: built_in("rbf:RadialBasis", (50,), lambda rows: torch.randn(rows, 10)),
        "tabular": lambda: built_in("tabular:Tabular", (20,), classes(2), **table),
        "colored_mnist": lambda: built_in("colored_mnist:ColoredMnist", (2, 14, 14), classes(2)),
        "fashion_mnist": lambda: built_in("fashion_mnist:NoisyFashionMnist", (1, 28, 28), classes(10)),
        "image_folder": lambda: built_in("image_folder:ImageFolder", (3, 32, 32), classes(2), **images),
        **{name: lambda name=name: convolutional(name) for name in _CONVOLUTIONS},  # type: ignore[misc]
    }


def training(device: str, size: Size, keep: Keep) -> None:
    """Rows per second of a site's round, on both devices in turns."""
    found, made = [], models()
    for name in size.models:
        model = made[name]() if size.batch is None else replace(made[name](), batch=size.batch)
        both = {"cpu": _Rounds(model, "cpu", size.seconds), "device": _Rounds(model, device, size.seconds)}
        rates: dict[str, list[float]] = {where: [] for where in both}
        for _ in range(size.turns):
            for where, rounds in both.items():
                rates[where].append(rounds.rows / rounds.seconds())
        found.append(
            {
                "model": name,
                "parameters": both["cpu"].parameters,
                "batch": model.batch,
                "rows_per_second": {where: round(median(of), 1) for where, of in rates.items()},
                "on": {where: rounds.trains_on for where, rounds in both.items()},
                "gain": round(median(b / a for a, b in zip(rates["cpu"], rates["device"], strict=True)), 2),
            }
        )
        keep({"models": found})


class _Rounds:
    """Rounds of a model that take about so many seconds: as many steps as a first round of one step lets expect."""

    def __init__(self, model: Model, device: str, seconds: float) -> None:
        self._trainer = model.trainer(model.rows(model.batch), device)
        self.seconds()  # prepares the device
        steps = min(300, max(1, round(seconds / self.seconds())))
        self.rows = steps * model.batch
        self._trainer = model.trainer(model.rows(self.rows), device)
        self.parameters, self.trains_on = self._trainer.n_params, self._trainer.trains_on
        self.seconds()

    def seconds(self) -> float:
        """Of one round; it ends with the update on the host."""
        received = self._trainer.initial_model()
        began = time.perf_counter()
        self._trainer.train(received, 1, 1.0)
        return time.perf_counter() - began


# --- a step of DP-SGD -------------------------------------------------------------------------------------------------


def dp(device: str, size: Size, keep: Keep) -> None:
    """Of ``dp_step.py``, on the device."""
    import dp_step
    import torch

    warnings.filterwarnings("ignore", category=UserWarning)
    torch.set_num_threads(1)
    found = {}
    for name in size.dp_cases:
        case = dp_step.CASES[name]
        found[name] = dp_step.figures(dp_step.measure(case, device, size.dp_turns), case)
        keep({"allowed": dp_step.ALLOWED, "cases": found})


# --- a whole run ------------------------------------------------------------------------------------------------------


def run(device: str, size: Size, keep: Keep) -> None:
    """``securefda run digits``, one process per site, all of which train on the one and then on the other."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys((device, "cpu")):
        with tempfile.TemporaryDirectory() as folder:
            out, settings = Path(folder) / "run", (*_on(name), *size.settings)
            given = [argument for setting in settings for argument in ("--set", setting)]
            command = [sys.executable, "-m", "securefda.cli", "run", "digits", "--out", str(out), "--format", "json"]
            began = time.perf_counter()
            with _device_memory() as most:
                done = subprocess.run([*command, "--quiet", *given], capture_output=True, text=True, check=False)
            seconds = time.perf_counter() - began
            if done.returncode:
                raise RuntimeError(f"on {name}, exit code {done.returncode}: {done.stdout or done.stderr[-500:]}")
            summary = json.loads((out / "summary.json").read_text())
            logs = {path.parent.name: path.read_text() for path in sorted((out / "sites").glob("*/log.txt"))}
        missing = [site for site, log in logs.items() if f"trains on {name}" not in log]
        if missing or len(logs) < 2:
            raise RuntimeError(f"not on {name}, by their logs: {', '.join(missing) or 'no site'}")
        found[name] = {
            "seconds": round(seconds, 1),
            "sites": len(logs),
            "rounds": summary["rounds"],
            "final_accuracy": summary["final_accuracy"],
            "device_memory_mb": most(),
        }
        keep(found)


def _on(device: str) -> tuple[str, str]:
    return f"training.source.device={device}", f"training.target.device={device}"


@contextmanager
def _device_memory() -> Iterator[Callable[[], int | None]]:
    """What of the first GPU's memory was in use at most, in MB, by ``nvidia-smi``; None where there is none."""
    tool = shutil.which("nvidia-smi")
    seen: list[int] = []
    ended = threading.Event()

    def look() -> None:
        command = [str(tool), "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
        while not ended.wait(_POLL_S):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.stdout.strip().isdecimal():
                seen.append(int(done.stdout))

    thread = threading.Thread(target=look)
    if tool:
        thread.start()
    try:
        yield lambda: max(seen, default=None)
    finally:
        ended.set()
        if tool:
            thread.join()


# --- accuracy ---------------------------------------------------------------------------------------------------------


def accuracy(device: str, size: Size, keep: Keep) -> None:
    """Of the federation ``digits``, simulated: of each seed on both. A seed gives both the same rows and batches."""
    from securefda.local.simulator import simulate
    from securefda.operations.progress import SilentReporter
    from securefda.samples import sample
    from securefda.site.config import load_federation

    found: dict[str, list[float]] = {name: [] for name in ("cpu", device)}
    for seed in range(size.seeds):
        for name, accuracies in found.items():
            config = load_federation(sample("digits"), [*_on(name), *size.settings])
            with tempfile.TemporaryDirectory() as folder:
                summary = simulate(config, Path(folder) / "run", seed, SilentReporter())
            if summary.target_accuracy is None:
                raise RuntimeError(f"seed {seed} on {name}: no round finished")
            accuracies.append(summary.target_accuracy)
        if seed:
            differences = [there - here for here, there in zip(found["cpu"], found[device], strict=True)]
            keep({"accuracies": found, "difference": fmean(differences), "noise": stdev(found["cpu"])})


# --- memory -----------------------------------------------------------------------------------------------------------


def memory(device: str, size: Size, keep: Keep) -> None:
    """Peaks of a process that trains one model for a round of two steps, each in a new process."""
    found = []
    for name in size.in_memory:
        for where in dict.fromkeys(("cpu", device)):
            command = [sys.executable, __file__, "one-memory", where, name, "-"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{name} on {where}: {done.stderr[-500:]}")
            found.append({"model": name, "on": where, **json.loads(done.stdout)})
            keep({"processes": found})


def one_memory(device: str, name: str) -> dict[str, float | None]:
    """Of this process, in MB: peak of host memory, what importing torch took, and peaks of the device."""
    import torch

    from securefda.bench.resources import resident_bytes

    imported = resident_bytes("VmRSS")
    model = models()[name]()
    trainer = model.trainer(model.rows(2 * model.batch), device)
    trainer.train(trainer.initial_model(), 1, 1.0)
    on_gpu = device == "cuda"
    sizes = {
        "model": 4 * trainer.n_params,
        "import_torch": imported,
        "host_peak": resident_bytes("VmHWM"),
        "device_allocated": torch.cuda.max_memory_allocated() if on_gpu else None,
        "device_reserved": torch.cuda.max_memory_reserved() if on_gpu else None,
    }
    return {f"{what}_mb": None if value is None else round(value / 1e6, 1) for what, value in sizes.items()}


PARTS = {"tests": tests, "run": run, "training": training, "dp": dp, "accuracy": accuracy, "memory": memory}
"""In order of worth."""


def main(arguments: list[str]) -> int:
    """Measure one part."""
    part, device, size, file = arguments
    if part == "one-memory":
        print(json.dumps(one_memory(device, size)))
        return 0

    def keep(figures: Any) -> None:
        new = Path(f"{file}.new")
        new.write_text(json.dumps(figures))
        new.replace(file)

    PARTS[part](device, SIZES[size], keep)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
