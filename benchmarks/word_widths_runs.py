"""One federation for each cell of the study of widths: which there are, how one runs, and what it gave."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from securefda.aggregator.headers import n_max_for
from securefda.aggregator.ranges import narrowest
from securefda.bench.accuracy.federated import Job
from securefda.errors import SecureFdaError
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.records import REPORTED_ROUNDS
from securefda.operations.run_folder import RunRecord, read_run
from securefda.protocol.packing import WORD_BITS
from securefda.site.config import load_federation
from securefda.tasks import TaskSettings, load_task
from securefda.training import layer_table

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
RULES = ("source_only", "fedda_auto", "fedgp_auto")
WIDE = WORD_BITS[-1]


@dataclass(frozen=True, slots=True)
class Study:
    """An example, what differs from it here, the folder of its data below the caller's, and the number of seeds."""

    example: str
    settings: tuple[str, ...] = ()
    data: str = ""
    seeds: int = 5


STUDIES = {
    "digits": Study("digits.toml"),
    "fed-heart": Study("fed_heart.toml", settings=("task.options.scaling=site",), data="fed_heart"),
    "label shift": Study(
        "label_shift_fashion_mnist.toml",
        settings=("strategy.rounds=12", "strategy.warm-up-rounds=3"),
        data="fashion_mnist",
        seeds=3,
    ),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the study."""

    study: str
    rule: str
    bits: int
    seed: int

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return "/".join(str(value) for value in asdict(self).values())

    def job(self, given: Iterable[str]) -> Job:
        """The federation and the seed; ``given`` are settings of the caller."""
        study = STUDIES[self.study]
        settings = [f"strategy.rule={self.rule}", f"session.bits={self.bits}", *study.settings]
        return Job(load_federation(EXAMPLES / study.example, [*settings, *given]), self.seed)


def cells() -> list[Cell]:
    """Every cell in the order in which they are run: seed by seed, so that a study cut short compares whole seeds."""
    found = [
        Cell(name, rule, bits, seed)
        for name, study in STUDIES.items()
        for rule in RULES
        for bits in WORD_BITS
        for seed in range(study.seeds)
    ]
    return sorted(found, key=lambda cell: (cell.seed, list(STUDIES).index(cell.study)))


def sources_of(name: str) -> int:
    """Number of sources in a study's federation."""
    return len(load_federation(EXAMPLES / STUDIES[name].example).federation.sources)


def default_width(sources: int) -> int:
    """Bits that a parameter has after the first round, where the settings do not say."""
    return narrowest(0, n_max_for(sources))


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run gave.

    Attributes:
        accuracy: on the target's test rows, mean over the last rounds, in percent.
        lost: rounds that were lost.
        refused: refusals of sources, over all rounds.
        sums: layers of sums at ``sum``, over all rounds.
        emptied: how many of them are zero.
        parts: what the norm cap holds for, layers of parts or whole parts, over all sources and rounds.
        zeroed: how many of them the norm cap set to zero.
        capped: how many of them it scaled down.
        clipped: coordinates that the clip or a range changed, over all sources and rounds.
    """

    accuracy: float
    lost: int
    refused: int
    sums: int
    emptied: int
    parts: int
    zeroed: int
    capped: int
    clipped: int


def run_cell(job: Job) -> Figures:
    """Run one federation to its end.

    Raises:
        RuntimeError: it ended early; the package's own errors do not travel between processes.
    """
    with tempfile.TemporaryDirectory() as folder:
        alone = job.config.strategy.model_copy(update={"compare_target_only": False})
        try:
            simulate(job.config.model_copy(update={"strategy": alone}), Path(folder), job.seed, SilentReporter())
        except SecureFdaError as error:
            raise RuntimeError(str(error)) from None
        by_layer = job.config.privacy.norm_cap_granularity == "layer"
        return _figures(read_run(Path(folder)), layers=_layers(job), by_layer=by_layer)


def _layers(job: Job) -> int:
    sites, task = job.config.federation, job.config.task
    settings = TaskSettings(sites.target, tuple(sites.sources), job.seed, task.data_dir, task.options)
    return len(layer_table(load_task(task.factory, settings).model()))


def _figures(record: RunRecord, *, layers: int, by_layer: bool) -> Figures:
    finished = [line for line in record.rounds if line["status"] == "finished"]
    own = [line for lines in record.sites.values() for line in lines if "samples" in line]
    return Figures(
        accuracy=100 * fmean(line["accuracy"] for line in finished[-REPORTED_ROUNDS:]),
        lost=len(record.rounds) - len(finished),
        refused=sum(len(line.get("refused", {})) for line in record.rounds),
        sums=layers * len(finished),
        emptied=sum(len(line.get("emptied", ())) for line in finished),
        parts=(layers if by_layer else 1) * len(own),
        zeroed=sum(line["zeroed"] for line in own),
        capped=sum(line["capped"] for line in own),
        clipped=sum(line["clipped"] for line in own),
    )
