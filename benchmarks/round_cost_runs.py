"""One federation of real processes for each cell of the study of round costs: which there are, and what one took."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import fmean, median
from typing import Any

from round_cost_task import params_of

from securefda.bench.accuracy.federated import Job
from securefda.errors import SecureFdaError
from securefda.local.launcher import run_processes
from securefda.operations.progress import SilentReporter
from securefda.operations.run_folder import METRICS_FILE
from securefda.settings import parse_settings
from securefda.site.config import FederationConfig

HERE = Path(__file__).resolve().parent
STUDY = "round-cost"
ROUNDS, LEFT_OUT = 6, 1
REPEATS = 3
PLAIN = "plain FedAvg"
DP = "sum, DP-SGD"
LEVELS = (PLAIN, "individual", "cohort", "sum", DP)
SIZES = ((5, 100_000), (5, 1_100_000), (5, 10_000), (10, 100_000), (20, 100_000))
"""Sources and parameters, most telling first."""
KINDS = ("training", "dp", "rule", "masking", "logging", "witnessing")
"""What is timed inside the processes; the rest is transport and what belongs to none."""

_COHORTS = {5: (2, 1), 10: (5, 2), 20: (5, 2)}
"""Sources -> fewest members of a cohort and min-others: cohorts of 2 and 3, two of 5, four of 5."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the study; the repeat is its seed."""

    sources: int
    params: int
    level: str
    repeat: int

    @property
    def study(self) -> str:
        """There is but one."""
        return STUDY

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return "/".join(str(value) for value in asdict(self).values())

    def job(self, given: Iterable[str]) -> Job:
        """The federation and the seed; there are no settings to be given."""
        del given
        return Job(config_of(self.sources, self.params, self.level), self.repeat)


def cells(sizes: Sequence[tuple[int, int]] = SIZES, repeats: int = REPEATS) -> list[Cell]:
    """All cells, repeat by repeat; the levels of a size follow each other, each repeat beginning with another one."""
    return [
        Cell(sources, params, LEVELS[(place + repeat) % len(LEVELS)], repeat)
        for repeat in range(repeats)
        for sources, params in sizes
        for place in range(len(LEVELS))
    ]


def config_of(sources: int, params: int, level: str) -> FederationConfig:
    """A federation at one level.

    Raises:
        KeyError: no such level, or no cohorts of so many sources.
    """
    training: dict[str, Any] = {"batch-size": 8, "epochs": 1, "device": "cpu"}
    noise = {"noise-multiplier": 1.0} if level == DP else {}
    data = {
        "federation": {"name": "round-cost", "sources": [f"source-{number + 1}" for number in range(sources)]},
        "task": {"factory": "round_cost_task:Wide", "options": {"parameters": params}},
        "strategy": {
            "rule": "source_only" if level == PLAIN else "fedgp_auto",
            "rounds": ROUNDS,
            "warm-up-rounds": 0,
        },
        "training": {"source": training | {"dp": noise}, "target": training | {"batch-size": 4}},
        "privacy": _privacy(sources, level),
        "transport": {"join-deadline-s": 600.0, "phase-deadline-s": 120.0},  # for a machine that others use too
    }
    return parse_settings(FederationConfig, data, file=HERE / "round_cost")


def _privacy(sources: int, level: str) -> dict[str, Any]:
    if level == "cohort":
        smallest, min_others = _COHORTS[sources]
        return {"visibility": "cohort", "cohort-size": smallest, "min-others": min_others}
    visibility = {PLAIN: "individual", "individual": "individual", "sum": "sum", DP: "sum"}[level]
    return {"visibility": visibility, "budget": {"target-epsilon": 1e6}}


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run took, medians over its rounds but the first.

    Attributes:
        seconds: of a round, from one beginning to the next.
        target: kind -> seconds at the target.
        source: kind -> seconds at the slowest source; both together are the way that a round waits for.
        processor: seconds of processor time of a round, of the target and of the source with the most.
        bytes_up: from one source to the target in a round, mean over the sources.
        bytes_down: to one source, likewise.
        params: of the model.
        others: cores that other work took during the run.
        load: of the machine when it began.
    """

    seconds: float
    target: Mapping[str, float]
    source: Mapping[str, float]
    processor: Mapping[str, float]
    bytes_up: float
    bytes_down: float
    params: int
    others: float
    load: float


def run_cell(job: Job) -> Figures:
    """Run one federation to its end.

    Raises:
        RuntimeError: it ended early, or a process left no figures; the package's own errors do not travel.
    """
    with tempfile.TemporaryDirectory() as name:
        out, left = Path(name) / "run", Path(name) / "shares"
        left.mkdir()
        load = Load()
        try:
            with _timed_processes(left):
                run_processes(job.config, out, job.seed, SilentReporter())
        except SecureFdaError as error:
            raise RuntimeError(str(error)) from None
        others = load.of_others()
        lines = [json.loads(line) for line in (out / METRICS_FILE).read_text().splitlines()]
        sites = [json.loads(file.read_text()) for file in left.iterdir()]
    params = params_of(int(job.config.task.options["parameters"]))
    return figures_of(lines, sites, params=params, others=others, load=load.at_first)


@contextmanager
def _timed_processes(left: Path) -> Iterator[None]:
    """Processes started in this block find the task, time themselves, and leave what they found in a folder."""
    ours = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
        "SECUREFDA_SHARES": str(left),
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


class Load:
    """What else the machine does, from now on."""

    def __init__(self) -> None:
        self._began, self._busy, self._ours = time.monotonic(), _busy_s(), _ours_s()
        self.at_first = os.getloadavg()[0]

    def of_others(self) -> float:
        """Cores that others took until now, on average; processes of ours count once they have ended."""
        others = (_busy_s() - self._busy) - (_ours_s() - self._ours)
        return max(0.0, others / (time.monotonic() - self._began))


def _busy_s() -> float:
    """Processor time of the whole machine since it started: user, nice, system, irq, softirq."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[place]) for place in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


def _ours_s() -> float:
    children = getrusage(RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime + time.process_time()


def figures_of(
    lines: Sequence[Mapping[str, Any]], sites: Sequence[Mapping[str, Any]], *, params: int, others: float, load: float
) -> Figures:
    """The figures of a run from its metrics and from what its processes left.

    Raises:
        RuntimeError: a round was lost, or a process left no figures or not of every round.
    """
    target = [site["rounds"] for site in sites if "aggregator" in site["command"]]
    sources = [site["rounds"] for site in sites if "source" in site["command"]]
    per_round = {len(rounds) for rounds in (*target, *sources)}
    members = {len(line["survivors"]) for line in lines}
    if len(target) != 1 or members != {len(sources)} or per_round != {len(lines)}:
        raise RuntimeError(f"rounds of {len(target)} targets and {len(sources)} sources: {sorted(per_round)}")
    used = range(LEFT_OUT, len(lines))
    slowest = [slowest_of([rounds[place] for rounds in sources]) for place in used]
    own = median(target[0][place]["processor"] for place in used)
    most = max(median(rounds[place]["processor"] for place in used) for rounds in sources)
    return Figures(
        seconds=median(target[0][place]["wall"] for place in used),
        target=_by_kind([target[0][place] for place in used]),
        source=_by_kind(slowest),
        processor={"target": own, "source": most},
        bytes_up=_bytes(lines[LEFT_OUT:], "bytes_up"),
        bytes_down=_bytes(lines[LEFT_OUT:], "bytes_down"),
        params=params,
        others=others,
        load=load,
    )


def slowest_of(sources: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of a round at every source the one that was at work longest; waiting is not work."""
    return max(sources, key=lambda source: sum(source["seconds"].values()))


def _by_kind(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {kind: median(one["seconds"].get(kind, 0.0) for one in rounds) for kind in KINDS}


def _bytes(lines: Sequence[Mapping[str, Any]], name: str) -> float:
    return median(fmean(line[name].values()) for line in lines)
