"""Measures how far honest rounds move the model, in units of each source's own updates; writes model_step.json.

`limits.model-step` bounds, at every source and in every group of layers, the length of the step from the model that it
trained from last to the one that a header brings, and that of g_T, in units of the source's own largest update so far.
Here whole federations are simulated with the bound taken away, and every such length is collected. What is reported is
the largest ratio of each run: an honest run with this policy ends early if the bound is below it. And how many rounds
a target needs that walks to a model which it has made, at some bounds.

    python benchmarks/model_step.py [--data-dir DIR] [--seeds 0 1] [--cases NAME ...] [--out FILE]

DIR holds ``mnist`` and ``fashion_mnist``; without it the cases that need files are left out. Runs that
FILE has already are not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from offline_rounds import OfflineSites

from securefda.bench.accuracy.federated import use_one_thread
from securefda.bench.machine import this_machine
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.rules import round_plan
from securefda.site.config import load_federation
from securefda.source.model_bound import Course, Units, layer_groups, units_of
from threat_model.adversaries.made_model import imprinting_model, one_step_towards

LIMITS = (3.0, 10.0, 30.0)
EXAMPLES = Path(__file__).parent.parent / "examples"
HERE = Path(__file__).parent
DATA = {"colored_mnist": "mnist"}
_FASHION = "fashion_mnist"


_NOISE = (
    "training.source.dp.noise-multiplier=1.0",
    "training.target.dp.noise-multiplier=1.0",
    "privacy.budget.target-epsilon=1000000.0",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A federation file with settings that differ."""

    example: str
    settings: tuple[str, ...] = ()


CASES = {
    "digits": Case("digits"),
    "digits, source_only": Case("digits", ("strategy.rule=source_only",)),
    "digits, fedda_auto": Case("digits", ("strategy.rule=fedda_auto",)),
    "digits, fedgp, beta 0.5": Case("digits", ("strategy.rule=fedgp",)),
    "digits, fedavg": Case("digits", ("strategy.rule=fedavg",)),
    "digits, auto": Case("digits", ("strategy.rule=auto",)),
    "digits, cohort": Case("digits", ("privacy.visibility=cohort", "privacy.max-colluders=0", "privacy.min-others=1")),
    "digits, individual": Case("digits", ("privacy.visibility=individual", "privacy.max-colluders=0")),
    "digits, sgd": Case(
        "digits",
        (
            "training.source.optimizer=sgd",
            "training.target.optimizer=sgd",
            "training.source.learning-rate=0.1",
            "training.target.learning-rate=0.1",
        ),
    ),
    "digits, momentum at the server": Case("digits", ("strategy.rule=fedavg", "strategy.server-optimizer=momentum")),
    "digits, adam at the server": Case("digits", ("strategy.rule=fedavg", "strategy.server-optimizer=adam")),
    "digits, personalized_fedavg": Case(
        "digits", ("strategy.rule=personalized_fedavg", "strategy.reptile-rounds=10", "strategy.warm-up-rounds=0")
    ),
    "digits, fedrep": Case(
        "digits",
        (
            "strategy.rule=fedrep",
            "strategy.warm-up-rounds=0",
            "training.source.personal-layers=1",
            "training.target.personal-layers=1",
        ),
    ),
    "digits, ditto": Case("digits", ("strategy.rule=ditto", "strategy.warm-up-rounds=0")),
    "three_hospitals": Case("three_hospitals"),
    "rbf": Case("rbf"),
    "fed_heart": Case("fed_heart"),
    "fed_heart, target va": Case(
        "fed_heart", ("federation.target=va", 'federation.sources=["cleveland", "hungarian", "switzerland"]')
    ),
    "fed_heart, target switzerland": Case(
        "fed_heart", ("federation.target=switzerland", 'federation.sources=["cleveland", "hungarian", "va"]')
    ),
    "fed_heart, source_only": Case("fed_heart", ("strategy.rule=source_only",)),
    "fed_heart, fedda_auto": Case("fed_heart", ("strategy.rule=fedda_auto",)),
    "fed_heart, momentum at the server": Case(
        "fed_heart", ("strategy.rule=fedavg", "strategy.server-optimizer=momentum")
    ),
    "fed_heart, adam at the server": Case("fed_heart", ("strategy.rule=fedavg", "strategy.server-optimizer=adam")),
    "digits, DP-SGD": Case("digits", (*_NOISE, "strategy.rule=fedgp_auto")),
    "digits, DP-SGD, source_only": Case("digits", (*_NOISE, "strategy.rule=source_only")),
    "colored_mnist": Case("colored_mnist"),
    "noisy_fashion_mnist": Case("noisy_fashion_mnist"),
    "label_shift_fashion_mnist": Case("label_shift_fashion_mnist"),
}


def main() -> None:
    arguments = _arguments()
    use_one_thread()
    kept = json.loads(arguments.out.read_text())["cases"] if arguments.out.exists() else {}
    for seed, (name, case) in itertools.product(arguments.seeds, CASES.items()):
        data = _data_of(case, arguments.data_dir)
        if data is None or (arguments.cases and name not in arguments.cases) or str(seed) in kept.get(name, {}):
            continue
        began = time.perf_counter()
        kept.setdefault(name, {})[str(seed)] = figures = _run(case, data, seed)
        print(f"{name}, seed {seed}: {figures} {time.perf_counter() - began:.0f} s", flush=True)
        arguments.out.write_text(json.dumps(_result(kept), indent=2) + "\n")
    walk = {f"limit {limit:g}": _rounds_to_the_imprint(limit) for limit in LIMITS}
    print(f"rounds to an imprinting model: {walk}")
    result = _result(kept) | {"rounds_to_an_imprinting_model": walk}
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


def _result(cases: dict[str, Any]) -> dict[str, Any]:
    runs = [run for seeds in cases.values() for run in seeds.values()]
    largest = {kind: max(run[kind] for run in runs) for kind in ("model", "target")}
    return {"machine": this_machine(), "largest": largest, "cases": cases}


def _rounds_to_the_imprint(limit: float, seed: int = 0) -> int:
    """How many finished rounds a target needs on digits that moves the model as far as every source lets it.

    It goes straight from the task's first model to one whose first layer imprints rows, and knows each source's units.
    """
    sites = OfflineSites(load_federation(EXAMPLES / "digits.toml"), seed)
    (units, inputs), (classes, _) = (shape for _, shape in sites.target.layers if len(shape) == 2)
    first = imprinting_model(inputs, units, mean=0.3, deviation=0.05)[: units * (inputs + 1)]
    made = np.concatenate([first, np.repeat(np.linspace(-1, 1, classes), units), np.zeros(classes)]).astype(np.float32)
    groups = layer_groups(sites.target.sizes)
    reach: list[Units] = [(0.0,) * len(groups)] * len(sites.sources)
    plan = round_plan(sites.strategy, 1)
    for number in itertools.count():
        if np.array_equal(sites.model, made):
            return number
        own = [units_of(result.update, groups) for result in sites.train_sources(plan, 1)]
        reach = [tuple(map(max, before, now)) for before, now in zip(reach, own, strict=True)]
        most = [limit * min(of_all) for of_all in zip(*reach, strict=True)]
        sites.model = one_step_towards(made, sites.model, groups, most)
    raise AssertionError("it has no end")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="measure how far honest rounds move the model")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--cases", nargs="+")
    parser.add_argument("--out", type=Path, default=HERE / "model_step.json")
    return parser.parse_args()


def _data_of(case: Case, folder: Path | None) -> tuple[str, ...] | None:
    """The setting that names the data; None where they are missing."""
    needed = _FASHION if case.example.endswith(_FASHION) else DATA.get(case.example)
    if needed is None:
        return ("task.options.scaling=site",) if case.example == "fed_heart" else ()
    return None if folder is None else (f"task.data-dir={folder / needed}",)


def _run(case: Case, data: tuple[str, ...], seed: int) -> dict[str, Any]:
    """The largest ratios of one run, over all rounds, sources and groups of layers."""
    config = load_federation(EXAMPLES / f"{case.example}.toml", [*case.settings, *data])
    model, target, ended = [], [], "completed"
    with tempfile.TemporaryDirectory() as folder, _unbounded() as courses:
        try:
            simulate(config, Path(folder), seed, SilentReporter())
        except Exception as error:  # noqa: BLE001 - an honest run that ends early is a result too
            ended = f"{type(error).__name__}: {error}"
        for course, units in courses:
            if course.moved is not None:
                steps = max(1, course.results)
                model += [moved / (steps * unit) for moved, unit in zip(course.moved, units, strict=True)]
            if course.target is not None:
                target += [length / unit for length, unit in zip(course.target, units, strict=True)]
    return {
        "model": round(max(model, default=0.0), 2),
        "target": round(max(target, default=0.0), 2),
        "median_model": round(float(np.median(model)), 2) if model else 0.0,
        "rounds": config.strategy.rounds,
        "ended": ended,
    }


@contextmanager
def _unbounded() -> Iterator[list[tuple[Course, Units]]]:
    """No step is too long; every course of the run, with the units that it is compared with."""
    courses: list[tuple[Course, Units]] = []
    require_within = Course.require_within

    def record(course: Course, units: Units) -> None:
        courses.append((course, units))

    Course.require_within = record  # type: ignore[method-assign]
    try:
        yield courses
    finally:
        Course.require_within = require_within  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
